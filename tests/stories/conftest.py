"""What stories are told with: a table in a file, the command line (called in this process), and the Python package."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from patients import patients
from quoron.cli.app import invoke

DECLARED = ("--set", 'population.label.classes=["no", "yes"]', "--numeric", "age=0:100", "--numeric", "dose=0:5")
ILL = ("--user", "who", "--label", "ill", *DECLARED)
PRIVATE = ("--epsilon", "8", "--delta", "1e-4")
QUICK = ("--set", "algorithm.name=one-pass-dp-sgd", "--set", "algorithm.options.rounds=4")


class Said(NamedTuple):
    """What a command left behind on the terminal."""

    code: int
    out: str
    err: str


Command = Callable[..., Said]


def shown_again(quoron: Command, folder: str) -> str:
    """All that `quoron show` says of a folder, once what it says in ten lines and to a program is checked."""
    brief = quoron("show", folder)
    assert (brief.code, brief.out.splitlines()[-1]) == (0, f"{folder}/report.html")
    assert len(brief.out.splitlines()) <= 12  # a title, ten, and the page
    assert Path(folder, "report.html").stat().st_size > 1000
    assert json.loads(quoron("show", folder, "--json").out)["directory"] == folder
    whole = quoron("show", folder, "--details")
    assert whole.code == 0
    return whole.out


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, planned_once: None) -> Path:
    """An empty folder to work in, with `visits.csv` and an account of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("QUORON_LEDGER", str(tmp_path / "lifetime.sqlite"))
    monkeypatch.setenv("COLUMNS", "160")
    table = patients(1500, spread=8.0)
    table.assign(ill=table.ill.map({True: "yes", False: "no"})).to_csv("visits.csv", index=False)
    return tmp_path


@pytest.fixture
def quoron(capsys: pytest.CaptureFixture[str]) -> Command:
    """A command as somebody types it; a request that cannot be met says so without a traceback."""

    def run(*arguments: object) -> Said:
        code = invoke([str(argument) for argument in arguments])
        printed = capsys.readouterr()
        assert "Traceback" not in printed.err
        return Said(code, printed.out, printed.err)

    return run
