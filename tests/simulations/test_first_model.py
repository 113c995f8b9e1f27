"""docs/train.md does what it says: its commands, in order, on a shipped table, to predictions better than guessing."""

import re
import shlex
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import quoron
from quoron import run_folder
from quoron.cli.app import invoke
from quoron.training import lifetime
from quoron_privacy.noise.streams import SecureNoise

PAGE = (Path(__file__).parents[2] / "docs/train.md").read_text(encoding="utf-8")
BLOCKS = [block.replace("\\\n", " ") for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)]
COMMANDS = [line for block in BLOCKS for line in block.splitlines()]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(lifetime.VARIABLE, str(tmp_path / "own.sqlite"))
    monkeypatch.setattr(SecureNoise, "fresh", classmethod(lambda cls: cls(bytes(range(32)))))  # so no luck is needed
    monkeypatch.setattr(run_folder.secrets, "randbits", lambda bits: 7)
    return tmp_path


@pytest.fixture
def visits(here: Path) -> None:
    """The table that the page speaks of, of somebody's own, and rows to predict for."""
    dice, rows = np.random.default_rng(0), 3000
    age, weight = dice.uniform(20, 90, rows), dice.normal(75, 12, rows).round(1)
    ill = np.where(dice.random(rows) < age / 100, "yes", "no")
    ward = dice.choice(["north", "south"], rows)
    table = pd.DataFrame({"patient": np.arange(rows) // 3, "age": age, "weight": weight, "ward": ward, "ill": ill})
    table.to_csv("visits.csv", index=False)
    table.to_csv("new.csv", index=False)


@pytest.mark.usefixtures("visits")
def test_the_commands_of_the_page_lead_to_predictions(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in COMMANDS:
        program, *words = shlex.split(command, comments=True)
        assert (program, invoke(words)) == ("quoron", 0), capsys.readouterr().err
    assert "colleges" in capsys.readouterr().out  # the account of the population
    rows = pd.read_csv("scorecard.csv")
    known = rows.earnings_med.notna()
    off = pd.read_parquet("predicted.parquet").earnings_med[known] - rows.earnings_med[known]
    guessing = rows.earnings_med[known] - rows.earnings_med[known].mean()
    assert np.sqrt((off**2).mean()) < 0.95 * np.sqrt((guessing**2).mean())
    model = quoron.load("first")
    assert model.promise is not None
    assert (model.promise.epsilon, model.promise.delta) == (2.0, 1e-6)
    assert model.feature_names_out_[0] == "year"


def test_an_example_is_not_written_over_what_is_there(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("storms.csv").write_text("mine")
    assert invoke(["example", "storms"]) == 2
    assert invoke(["example", "quickstart"]) == 2
    assert "scorecard, storms" in capsys.readouterr().err
    assert Path("storms.csv").read_text() == "mine"
    assert not Path("storms.toml").exists()


def test_an_example_makes_its_folder_and_names_one_that_cannot_be(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke(["example", "scorecard", "--out", "new/runs"]) == 0
    assert (here / "new" / "runs" / "scorecard.toml").is_file()
    assert invoke(["example", "scorecard", "--out", "new/runs/scorecard.csv"]) == 2
    assert "Choose another with --out" in capsys.readouterr().err
