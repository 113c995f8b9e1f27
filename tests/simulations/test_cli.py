"""The command line: what it prints, what it writes, which exit code, and never a traceback for a wrong request."""

import html
import json
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import click
import pytest
import typer

from quoron.cli.app import GROUPS, app, invoke
from quoron.reports import progress
from quoron.run_folder import RunFolder
from quoron_privacy.accounts import exports
from quoron_server.algorithms import ALGORITHMS
from quoron_server.algorithms.refused import REFUSED
from quoron_server.rounds import RoundEvent
from small_run import TOML

pytestmark = pytest.mark.usefixtures("planned_once")

FIELDS = {
    "rounds", "messages", "bytes_up", "bytes_down", "gradient_evaluations", "users_asked",
    "users_filtered_simulation_only", "halted", "epsilon", "delta", "adjacency", "exposure", "excess_risk", "test",
    "seconds", "peak_memory_bytes", "algorithm", "excess_risk_initial", "predicted_excess_risk",
}  # fmt: skip
LEDGER = {"ledger.sqlite", "ledger.sqlite-acknowledged"}
FILES = LEDGER | {"config.toml", "plan.json", "rounds.parquet", "model.npz", "summary.json", "report.html"}


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    (tmp_path / "small.toml").write_text(TOML)
    return tmp_path


def failing(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """Exit code and standard error of a command that must fail and print nothing on standard output."""
    code = invoke(arguments)
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "Traceback" not in printed.err
    return code, printed.err


def test_json_is_exactly_one_object_with_the_agreed_fields(capsys: pytest.CaptureFixture[str], place: Path) -> None:
    assert invoke(["simulate", "small.toml", "--json", "--simulation-seed", "3"]) == 0
    printed = capsys.readouterr()
    summary = json.loads(printed.out)
    assert set(summary) >= FIELDS
    assert (summary["rounds"], summary["users_asked"], summary["epsilon"]) == (8, 2_000, 4.0)
    assert summary["excess_risk"] < summary["excess_risk_initial"]
    assert summary["simulation_seed"] == 3
    assert printed.err == ""
    assert {path.name for path in (place / "runs" / "small-1").iterdir()} == FILES


def test_people_see_the_promise_the_figures_and_where_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["simulate", "small.toml", "--out", "mine"]) == 0
    printed = capsys.readouterr()
    for text in ("(4, 1e-05)-differential privacy", "replace-one", "excess risk", "2,000", "mine/report.html"):
        assert text in printed.out
    assert "round 8/8" in printed.err


BAD = [
    (["simulate", "nothing"], "Expected a preset (accelerated-erm, "),
    (["simulate", "absent.toml"], "absent.toml"),
    (["simulate", "small.toml", "--set", "privacy.epsilom=2"], "did you mean privacy.epsilon?"),
    (["simulate", "small.toml", "--set", "population.users=many"], "population.users to be an integer"),
    (["simulate", "small.toml", "--set", "privacy.epsilon=0"], "Expected privacy.epsilon > 0"),
    (["simulate", "small.toml", "--set", "privacy.delta=1.0"], "Expected privacy.delta < 1"),
    (["simulate", "small.toml", "--set", "algorithm.name=sdg"], "algorithm.name='sdg'"),
    (["simulate", "small.toml", "--set", "algorithm.options.roundz=3"], "did you mean algorithm.options.rounds?"),
    (["simulate", "small.toml", "--set", "algorithm.options.rounds=many"], "algorithm.options.rounds"),
    (
        ["simulate", "small.toml", "--set", "loss.name=huber"],
        "Expected loss.name to be 'auto' or 'logistic' for this synthetic",
    ),
    (["simulate", "small.toml", "--set", "epsilon"], "Expected key=value"),
    (["simulate", "small.toml", "--colour"], "No such option"),
    (["simulat"], "No such command"),
    (["resume", "nowhere"], "Expected a run folder with a config.toml, got nowhere"),
    (["report", "nowhere"], "Expected a run folder with a config.toml, got nowhere"),
]


@pytest.mark.parametrize(("arguments", "message"), BAD, ids=[" ".join(arguments) for arguments, _ in BAD])
def test_a_wrong_request_exits_2_names_it_and_writes_nothing(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str], place: Path
) -> None:
    code, printed = failing(capsys, *arguments)
    assert code == 2
    assert message in printed
    assert not (place / "runs").exists()


TABLE = """
[population]
kind = "table"
path = "visits.csv"
user = "who"
label = "stay > 3"
numeric = { age = [0, 100] }

[algorithm]
name = "one-pass-dp-sgd"
"""


def test_a_plan_over_budget_is_refused_before_anything_is_asked(
    capsys: pytest.CaptureFixture[str], place: Path
) -> None:
    code, printed = failing(capsys, "simulate", "small.toml", "--set", "budget.epsilon=0.5", "--out", "mine")
    assert code == 1
    assert "(budget.epsilon), got" in printed
    assert not (place / "mine" / "ledger.sqlite").exists()


def test_a_folder_of_another_configuration_is_refused_and_left_alone(
    capsys: pytest.CaptureFixture[str], place: Path
) -> None:
    assert invoke(["simulate", "small.toml", "--out", "mine", "--quiet"]) == 0
    before = {path: path.read_bytes() for path in (place / "mine").iterdir()}
    capsys.readouterr()
    code, printed = failing(capsys, "simulate", "small.toml", "--out", "mine", "--simulation-seed", "9")
    assert code == 2
    assert "belongs to another" in printed
    assert "quoron resume mine" in printed
    assert {path: path.read_bytes() for path in (place / "mine").iterdir()} == before


def test_a_folder_of_something_else_is_refused_and_left_alone(capsys: pytest.CaptureFixture[str], place: Path) -> None:
    (place / "thesis").mkdir()
    (place / "thesis" / "chapter.tex").write_text("precious")
    code, printed = failing(capsys, "simulate", "small.toml", "--out", "thesis")
    assert code == 2
    assert "Expected an empty folder or a run folder, got thesis" in printed
    assert [path.name for path in (place / "thesis").iterdir()] == ["chapter.tex"]


def test_a_damaged_ledger_exits_1_and_is_named(capsys: pytest.CaptureFixture[str], place: Path) -> None:
    assert invoke(["simulate", "small.toml", "--out", "mine", "--quiet"]) == 0
    capsys.readouterr()
    (place / "mine" / "ledger.sqlite").write_bytes(b"not a database at all" * 100)
    code, printed = failing(capsys, "resume", "mine")
    assert code == 1
    assert "mine/ledger.sqlite" in printed


def test_a_full_disk_exits_1_says_so_and_the_run_goes_on_later(
    capsys: pytest.CaptureFixture[str], place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_handle: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("quoron.run_folder.os.fsync", full)
        code, printed = failing(capsys, "simulate", "small.toml", "--out", "mine", "--quiet")
    assert code == 1
    assert "No space left on device" in printed
    assert "quoron resume mine" in printed or "config.toml" in printed
    assert invoke(["simulate", "small.toml", "--out", "mine", "--quiet"]) == 0
    assert {path.name for path in (place / "mine").iterdir()} == FILES


class Impatient(progress.Display):
    """Somebody who presses Ctrl-C in round 4."""

    def round_finished(self, event: RoundEvent) -> None:
        if event.round == 3:
            raise KeyboardInterrupt


def test_an_interrupted_run_says_how_to_resume_and_gives_the_same_bits(
    capsys: pytest.CaptureFixture[str], place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert invoke(["simulate", "small.toml", "--out", "whole", "--quiet"]) == 0
    capsys.readouterr()
    with monkeypatch.context() as patched:
        patched.setattr(progress, "display", lambda **_: Impatient())
        code, printed = failing(capsys, "simulate", "small.toml", "--out", "cut")
    assert code == 130
    assert "quoron resume cut" in printed
    assert not (place / "cut" / "summary.json").exists()
    assert invoke(["resume", "cut", "--quiet"]) == 0
    whole, cut = (RunFolder(place / name).summary() for name in ("whole", "cut"))
    for noisy in ("seconds", "peak_memory_bytes"):
        del whole[noisy], cut[noisy]
    assert whole == cut
    assert (place / "whole" / "model.npz").read_bytes() == (place / "cut" / "model.npz").read_bytes()


def test_a_plan_tells_the_promise_the_noise_and_every_alternative(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["plan", "small.toml"]) == 0
    printed = capsys.readouterr().out
    for text in (
        "(4, 1e-05)-differential privacy",
        "noise scale",
        "cohort size",
        "predicted excess risk",
        "phased-sgd",
    ):
        assert text in printed
    assert invoke(["plan", "small.toml", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["algorithm"] == "one-pass-dp-sgd"
    assert {each["algorithm"] for each in plan["considered"]} >= {"filtered-sgd", "phased-sgd", "one-pass-dp-sgd"}


def test_a_plan_s_losses_are_written_for_other_accountants(capsys: pytest.CaptureFixture[str], place: Path) -> None:
    assert invoke(["plan", "small.toml", "--losses", "losses.json", "--json"]) == 0
    promised = json.loads(capsys.readouterr().out)["guarantee"]
    read = json.loads((place / "losses.json").read_text())
    assert (read["epsilon"], read["delta"]) == (promised["epsilon"], promised["delta"])
    for pair in read["pairs"]:
        above, below = (exports.Lattice.of_json(pair[each]) for each in ("pessimistic", "optimistic"))
        assert below.delta(read["epsilon"]) <= above.delta(read["epsilon"]) <= 1.01 * read["delta"]
    for wrong in ("losses.txt", "nowhere/losses.json"):
        code, printed = failing(capsys, "plan", "small.toml", "--losses", wrong)
        assert code == 2
        assert "Expected --losses to name a .json file" in printed


def test_an_automatic_choice_is_told_by_plan_and_simulate_and_stored(
    capsys: pytest.CaptureFixture[str], place: Path
) -> None:
    automatic = ["small.toml", "--set", "algorithm.name=auto"]
    assert invoke(["simulate", *automatic, "--quiet", "--out", "mine"]) == 0
    choice = json.loads((place / "mine" / "plan.json").read_text())["choice"]
    assert "predicts an excess risk of" in choice
    assert choice in html.unescape((place / "mine" / "report.html").read_text())
    assert f"Chosen {choice}" in capsys.readouterr().out
    assert invoke(["resume", "mine", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["choice"] == choice
    assert invoke(["plan", *automatic]) == 0
    assert f"Chosen {choice}" in capsys.readouterr().out


def test_algorithms_are_listed_for_machines_with_the_agreed_fields(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["algorithms", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    agreed = {"name", "paper", "exposure", "adjacency", "constants", "theorem"}
    assert all(set(each) >= agreed for each in listed)
    assert {"filtered-sgd", "one-pass-dp-sgd", "phased-sgd", "sgd"} <= {each["name"] for each in listed}
    refused = {each["name"] for each in listed if not each["constants"]}
    assert refused == set(REFUSED)
    assert refused.isdisjoint(ALGORITHMS)  # nothing plans them, and `auto` never looks at them


def test_a_row_that_nobody_can_run_is_refused_with_the_count_of_its_search(capsys: pytest.CaptureFixture[str]) -> None:
    code, printed = failing(capsys, "plan", "small.toml", "--set", "algorithm.name=ghazi-2023")
    assert code == 2
    assert "Infeasible: ghazi-2023" in printed
    assert "deleted of n=2,000 users, 10^" in printed
    assert "Feasible here: " in printed


def test_algorithms_and_presets_are_listed_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["algorithms"]) == 0
    assert "filtered-sgd" in capsys.readouterr().out
    assert invoke(["presets"]) == 0
    assert "quickstart" in capsys.readouterr().out


def test_every_command_stands_under_what_people_come_for() -> None:
    named = [name for names in GROUPS.values() for name in names]
    commands = typer.main.get_command(app)
    assert isinstance(commands, click.Group)
    assert list(commands.commands) == named, "a new command joins by its name in quoron.cli.app"


@pytest.mark.parametrize("plain", [False, True], ids=["in boxes", "as plain text"])
def test_help_shows_the_groups_in_order_with_their_commands(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, plain: bool
) -> None:
    monkeypatch.setattr(app, "rich_markup_mode", None if plain else "rich")
    assert invoke(["--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    words = [word for heading, names in GROUPS.items() for word in (heading, *names)]
    beginnings = [line.strip(" │╭╮─:").split("  ")[0] for line in lines]
    assert [each for each in beginnings if each in words] == words
    assert "Commands" not in beginnings, "nothing is left over"


def test_the_version_is_the_installed_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["--version"]) == 0
    assert capsys.readouterr().out == f"quoron {metadata.version('quoron')}\n"


@pytest.mark.parametrize(("arguments", "code"), [([], 0), (["tokens"], 2), (["ledger"], 2)])
def test_without_a_command_there_is_help_and_no_bare_error(
    capsys: pytest.CaptureFixture[str], arguments: list[str], code: int
) -> None:
    assert invoke(arguments) == code
    printed = capsys.readouterr()
    assert "Usage: quoron" in printed.out + printed.err
    assert "error:" not in printed.out + printed.err


@pytest.mark.programs
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
@pytest.mark.parametrize("arguments", [["presets"], ["plan", "small.toml", "--json"], ["train", "--help"]])
def test_output_that_cannot_be_written_is_an_error_in_one_line(arguments: list[str], place: Path) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "quoron", *arguments], cwd=place, stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert done.returncode == 1
    assert done.stderr == "error: Cannot write to standard output: No space left on device. Make room.\n"


def test_one_reason_is_told_once_for_all_algorithms_that_it_rules_out(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["plan", "quickstart", "--set", "privacy.trust_server=false"]) == 0
    refused = [line for line in capsys.readouterr().out.splitlines() if line.startswith("Infeasible here: ")]
    reasons = [line.partition(": ")[2].partition(": ")[2] for line in refused]
    assert len(reasons) == len(set(reasons)) <= 10
    names = {name for line in refused for name in line.removeprefix("Infeasible here: ").partition(": ")[0].split(", ")}
    private = {info.name: info.promises.one_server for info in ALGORITHMS.values() if info.exposure != "none"}
    assert {name for name in private if private[name]} - {"local-model"} <= names < {*private}


@pytest.mark.programs
def test_completion_knows_presets_and_run_folders(place: Path) -> None:
    (place / "runs" / "small-1").mkdir(parents=True)
    (place / "runs" / "small-1" / "config.toml").touch()
    environment = {
        "_QUORON_COMPLETE": "complete_bash", "PATH": os.environ["PATH"], "HOME": str(place)
    }  # fmt: skip

    def completed(words: str) -> set[str]:
        found = environment | {"COMP_WORDS": words, "COMP_CWORD": str(len(words.split(" ")) - 1)}
        done = subprocess.run(
            [sys.executable, "-m", "quoron"], env=found, cwd=place, capture_output=True, text=True, check=True
        )
        return set(done.stdout.split())

    assert completed("quoron simu") == {"simulate"}
    assert {"flights", "flights-one-pass"} <= completed("quoron plan fli")
    assert completed("quoron resume runs/sm") == {"runs/small-1"}
    (place / "visits.csv").write_text("who,age,stay\n1,2,3\n")
    assert "visits.csv" in completed("quoron train vis")
    assert completed("quoron train visits.csv --user w") == {"who"}
    assert completed("quoron train visits.csv --numeric age,st") == {"age,stay"}
    assert completed("quoron train nowhere.csv --user w") == set()
