"""The command line and configurations: what is written, which exit code, never a traceback, whom to cite."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import gen_citations as generator
import numpy as np
import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

import quoron
from quoron import config as configs
from quoron import toml_text
from quoron.cli.app import GROUPS, app, invoke
from quoron.config import Config
from quoron.presets import presets
from quoron.reports import terminal as progress
from quoron.run_folder import RunFolder
from quoron_privacy.errors import ConfigError
from quoron_server.algorithms import ALGORITHMS
from quoron_server.rounds import RoundEvent
from quoron_server.wording import SEEDED, sentence
from small_run import TOML


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


BAD = [
    (["simulate", "nothing"], "Expected a preset (accelerated-erm, "),
    (["simulate", "small.toml", "--set", "privacy.epsilom=2"], "did you mean privacy.epsilon?"),
    (["simulate", "small.toml", "--set", "algorithm.name=sdg"], "algorithm.name='sdg'"),
    (["simulate", "small.toml", "--colour"], "No such option"),
    (["resume", "nowhere"], "Expected a run folder with a config.toml, got nowhere"),
]


@pytest.mark.parametrize(("arguments", "message"), BAD, ids=[" ".join(arguments) for arguments, _ in BAD])
def test_a_wrong_request_exits_2_names_it_and_writes_nothing(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str], place: Path
) -> None:
    code, printed = failing(capsys, *arguments)
    assert code == 2
    assert message in printed
    assert not (place / "runs").exists()


def test_a_folder_of_another_configuration_is_refused_and_left_alone(
    capsys: pytest.CaptureFixture[str], place: Path
) -> None:
    assert invoke(["--quiet", "simulate", "small.toml", "--out", "mine"]) == 0
    before = {path: path.read_bytes() for path in (place / "mine").iterdir()}
    capsys.readouterr()
    code, printed = failing(capsys, "simulate", "small.toml", "--out", "mine", "--seed", "9")
    assert code == 2
    assert "belongs to another" in printed
    assert "quoron resume mine" in printed
    assert {path: path.read_bytes() for path in (place / "mine").iterdir()} == before


def test_a_folder_of_something_else_is_refused_and_left_alone(capsys: pytest.CaptureFixture[str], place: Path) -> None:
    (place / "thesis").mkdir()
    (place / "thesis" / "chapter.tex").write_text("precious")
    code, printed = failing(capsys, "simulate", "small.toml", "--out", "thesis")
    assert code == 2
    assert "Expected an empty folder or one of a run, got thesis" in printed
    assert [path.name for path in (place / "thesis").iterdir()] == ["chapter.tex"]


class Impatient(progress.Display):
    """Somebody who presses Ctrl-C in round 4."""

    def round_finished(self, event: RoundEvent) -> None:
        if event.round == 3:
            raise KeyboardInterrupt


def test_an_interrupted_run_says_how_to_resume_and_gives_the_same_bits(
    capsys: pytest.CaptureFixture[str], place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert invoke(["--quiet", "simulate", "small.toml", "--out", "whole"]) == 0
    capsys.readouterr()
    with monkeypatch.context() as patched:
        patched.setattr(progress, "display", lambda _: Impatient())
        code, printed = failing(capsys, "simulate", "small.toml", "--out", "cut")
    assert code == 130
    assert "quoron resume cut" in printed
    assert not (place / "cut" / "summary.json").exists()
    assert invoke(["--quiet", "resume", "cut"]) == 0
    whole, cut = (RunFolder(place / name).summary() for name in ("whole", "cut"))
    for noisy in ("seconds", "peak_memory_bytes"):
        del whole[noisy], cut[noisy]
    assert whole == cut
    assert (place / "whole" / "model.npz").read_bytes() == (place / "cut" / "model.npz").read_bytes()


def test_every_command_stands_under_what_people_come_for() -> None:
    named = [name for names in GROUPS.values() for name in names]
    commands = typer.main.get_command(app)
    assert isinstance(commands, click.Group)
    assert list(commands.commands) == named, "a new command joins by its name in quoron.cli.app"


@pytest.mark.programs
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
@pytest.mark.parametrize("arguments", [["show", "presets"], ["plan", "small.toml", "--json"], ["train", "--help"]])
def test_output_that_cannot_be_written_is_an_error_in_one_line(arguments: list[str], place: Path) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "quoron", *arguments], cwd=place, stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert done.returncode == 1
    assert done.stderr == "error: Cannot write to standard output: No space left on device. Make room.\n"


def test_one_reason_is_told_once_for_all_algorithms_that_it_rules_out(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["plan", "quickstart", "--set", "privacy.trust_model=two-servers"]) == 0
    refused = [line for line in capsys.readouterr().out.splitlines() if line.startswith("Infeasible here: ")]
    reasons = [line.partition(": ")[2].partition(": ")[2] for line in refused]
    assert len(reasons) == len(set(reasons)) <= 10
    names = {name for line in refused for name in line.removeprefix("Infeasible here: ").partition(": ")[0].split(", ")}
    private = {info.name: info.guarantees.one_server for info in ALGORITHMS.values() if info.trust_model != "none"}
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
    assert {"flights"} <= completed("quoron plan fli")
    assert completed("quoron resume runs/sm") == {"runs/small-1"}
    (place / "visits.csv").touch()
    assert "visits.csv" in completed("quoron train vis")


TABLE = 'population={kind="table", path="rows.csv", user="who", label="late > 15", %s}'

WRONG = [
    ("population.usres=3", "Unknown key population.usres; did you mean population.users?"),
    ("population={kind='table', user='who'}", "Missing key population.path ("),
    ("privacy.epsilon=0", "Expected privacy.epsilon > 0, got privacy.epsilon=0."),
    ("problem.user_smoothness=itme", "to be 'item' or 'isotropic' or a number, got problem.user_smoothness='itme'."),
    ("algorithm.options={rounds=3", "Expected a dotted key, '=' and a TOML value"),
    ("=3", "Expected key=value, such as privacy.epsilon=2, got '=3'."),
]


@pytest.mark.parametrize(("setting", "message"), WRONG, ids=[setting for setting, _ in WRONG])
def test_a_wrong_key_or_value_is_named_with_its_fix(setting: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        configs.parse("", settings=[setting])
    assert message in str(caught.value)
    assert "pydantic" not in str(caught.value)


def test_a_file_that_is_not_text_is_named(tmp_path: Path) -> None:
    (tmp_path / "noise.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="UTF-8"):
        configs.read(tmp_path / "noise.toml")


@pytest.mark.parametrize("preset", presets(), ids=lambda preset: preset.name)
def test_a_resolved_configuration_reads_back_as_itself(preset: object) -> None:
    config = configs.parse(preset.text)  # type: ignore[attr-defined]
    assert configs.parse(config.as_toml()) == config
    assert configs.parse(config.as_toml()).digest() == config.digest()


def test_the_digest_ignores_where_run_and_table_are_kept_and_nothing_else() -> None:
    base = Config()
    here, there = (
        configs.parse("", settings=[(TABLE % "seed=1").replace("rows.csv", name)]) for name in ("here", "there")
    )
    assert here.digest() == there.digest() != base.digest()
    assert configs.parse("", settings=["run.out=elsewhere"]).digest() == base.digest()
    for setting in (
        "run.seed=1",
        "privacy.epsilon=2",
        "population.users=7",
        "algorithm.options.rounds=3",
    ):
        assert configs.parse("", settings=[setting]).digest() != base.digest()


plain = st.one_of(
    st.booleans(), st.integers(-(2**62), 2**62), st.floats(allow_nan=False), st.text(st.characters(codec="utf-8"))
)
values = st.recursive(
    plain, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(min_size=1), inner, max_size=3)
)


@given(st.dictionaries(st.text(min_size=1), st.dictionaries(st.text(min_size=1), values, max_size=3), max_size=3))
def test_every_tree_survives_being_written_and_read(tree: dict[str, dict[str, object]]) -> None:
    assert toml_text.parse(toml_text.dumps(tree), "a test") == tree


DEEP = {
    "lists": "a = " + "[" * 5000 + "]" * 5000,
    "inline tables": "a = " + "{x = " * 5000 + "1" + "}" * 5000,
    "a table's name": "[" + ".".join(["a"] * 3000) + "]\nx = 1",
}


@pytest.mark.parametrize("name", DEEP)
def test_values_nested_too_deep_are_refused_in_a_sentence(name, tmp_path, capsys):
    (tmp_path / "deep.toml").write_text(DEEP[name])
    assert invoke(["plan", str(tmp_path / "deep.toml")]) == 2
    assert "valid TOML, got: tables or lists nested more than 100 deep" in " ".join(capsys.readouterr().err.split())
    if "\n" not in DEEP[name]:
        assert invoke(["plan", "quickstart", "--set", DEEP[name].replace(" = ", "=")]) == 2
        said = capsys.readouterr().err
        assert "Expected a dotted key" in said
        assert len(said) < 500


def test_sources_of_algorithms_are_the_papers_of_the_bibliography_as_it_cites_them() -> None:
    sources = {source.key: source.short for name in ALGORITHMS for source in generator.sources(name)}
    assert sources == {key: generator.short(entry) for key, entry in generator.entries().items()}


FIELDS = {
    "rounds", "messages", "bytes_up", "bytes_down", "gradient_evaluations", "users_asked",
    "users_filtered_simulation_only", "halted", "epsilon", "delta", "adjacency", "trust_model", "excess_risk", "test",
    "seconds", "peak_memory_bytes", "algorithm", "excess_risk_initial", "predicted_excess_risk",
}  # fmt: skip


LEDGER = {"ledger.sqlite", "ledger.sqlite-acknowledged"}


FILES = LEDGER | {"config.toml", "plan.json", "rounds.parquet", "model.npz", "summary.json", "report.html"}


def test_json_is_exactly_one_object_with_the_agreed_fields(capsys: pytest.CaptureFixture[str], place: Path) -> None:
    assert invoke(["simulate", "small.toml", "--json", "--seed", "3"]) == 0
    printed = capsys.readouterr()
    summary = json.loads(printed.out)
    assert set(summary) >= FIELDS
    assert (summary["rounds"], summary["users_asked"], summary["epsilon"]) == (8, 2_000, 4.0)
    assert summary["excess_risk"] < summary["excess_risk_initial"]
    assert summary["simulation_seed"] == 3
    assert printed.err == ""
    assert {path.name for path in (place / "runs" / "small-1").iterdir()} == FILES


def test_a_damaged_ledger_exits_1_and_is_named(capsys: pytest.CaptureFixture[str], place: Path) -> None:
    assert invoke(["--quiet", "simulate", "small.toml", "--out", "mine"]) == 0
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
        patched.setattr("quoron_client.durable.os.fsync", full)
        code, printed = failing(capsys, "--quiet", "simulate", "small.toml", "--out", "mine")
    assert code == 1
    assert "No space left on device" in printed
    assert "quoron resume mine" in printed or "config.toml" in printed
    assert invoke(["--quiet", "simulate", "small.toml", "--out", "mine"]) == 0
    assert {path.name for path in (place / "mine").iterdir()} == FILES


def commands(command: click.Command, name: str = "") -> Iterator[tuple[str, click.Command]]:
    """Every command by its words, those of groups too."""
    for inner in command.commands.values() if isinstance(command, click.Group) else ():
        yield from commands(inner, f"{name} {inner.name}".strip())
    if name and not (isinstance(command, click.Group) and not command.invoke_without_command):
        yield name, command


def options(command: click.Command) -> list[str]:
    """Its options, but for help."""
    found = [each.opts[0] for each in command.params if isinstance(each, click.Option)]
    return [name for name in found if name != "--help"]


OF_TABLES = (
    *("train", "predict", "evaluate", "tune", "stats", "bounds", "example", "resume", "show"),
    *("plan", "simulate", "compare"),
)
MAX_COMMANDS, MAX_OPTIONS, MAX_OF_TABLES = 45, 250, 110
PROGRAM = typer.main.get_command(app)


def test_commands_and_their_options_become_no_more() -> None:
    found = dict(commands(PROGRAM))
    of_program = {*options(PROGRAM)} - {"--install-completion", "--show-completion"}
    assert of_program == {"--profile", "--quiet", "--version"}
    assert len(found) <= MAX_COMMANDS
    assert sum(len(options(each)) for each in found.values()) + len(of_program) <= MAX_OPTIONS
    assert sum(len(options(found[name])) for name in OF_TABLES) <= MAX_OF_TABLES


@pytest.mark.parametrize(
    ("words", "written"),
    [
        ("runs --profile clinic", "quoron --profile clinic runs"),
        ("ledger show --profile=clinic --json", "quoron --profile=clinic ledger show --json"),
        ("admin users --profile clinic list", "quoron --profile clinic admin users list"),
        ("simulate quickstart --quiet --seed 3", "quoron --quiet simulate quickstart --seed 3"),
        ("resume run -q", "quoron -q resume run"),
        ("--profile clinic login hub:7444", "quoron login --profile clinic"),
    ],
)
def test_an_option_of_the_program_behind_its_command_is_refused_with_the_words_in_order(
    words: str, written: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, printed = failing(capsys, *words.split())
    assert code == 2
    assert printed.rstrip().endswith(f"Write: {written}")


def test_a_profile_is_refused_twice_and_for_a_command_that_uses_none(capsys: pytest.CaptureFixture[str]) -> None:
    code, printed = failing(capsys, "--profile", "clinic", "plan", "quickstart")
    assert code == 2
    assert "Expected no profile before quoron plan, got 'clinic'. Leave it out." in printed
    assert failing(capsys, "--profile", "a", "--profile", "b", "runs")[0] == 2
    assert invoke(["--profile", "clinic", "plan", "--help"]) == 0


@pytest.mark.parametrize("name", [name for name, _ in commands(PROGRAM)])
def test_help_has_every_option(name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert invoke([*name.split(), "--help"]) == 0
    shown = capsys.readouterr().out
    assert [option for option in options(dict(commands(PROGRAM))[name]) if f"{option} " not in shown] == []


def test_a_complete_run_is_shown_in_ten_lines_or_with_all_that_is_known_of_it(
    capsys: pytest.CaptureFixture[str], place: Path
) -> None:
    assert invoke(["--quiet", "simulate", "small.toml", "--out", "mine"]) == 0
    page = place / "mine" / "report.html"
    capsys.readouterr()
    assert invoke(["show", "mine"]) == 0
    *lines, last = capsys.readouterr().out.splitlines()
    assert len(lines) <= 11  # a title, and ten
    assert last == "mine/report.html"
    assert page.is_file()
    assert invoke(["show", "mine", "--details"]) == 0
    told = capsys.readouterr().out
    summary = RunFolder(place / "mine").summary()
    assert summary["statement"] in told
    assert len(told.splitlines()) > 11
    assert invoke(["show", "mine", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown.items() >= summary.items()
    assert (shown["directory"], shown["report"]) == ("mine", "mine/report.html")


def test_a_run_that_is_not_complete_is_not_shown_and_says_how_to_complete_it(
    capsys: pytest.CaptureFixture[str], place: Path
) -> None:
    assert invoke(["--quiet", "simulate", "small.toml", "--out", "mine"]) == 0
    (place / "mine" / "summary.json").unlink()
    capsys.readouterr()
    code, printed = failing(capsys, "show", "mine")
    assert code == 1
    assert "Complete the run with `quoron resume mine`" in printed


def test_lists_are_shown_and_another_word_is_told_the_nearest(capsys: pytest.CaptureFixture[str], place: Path) -> None:
    for thing, names in (("presets", {each.name for each in presets()}), ("algorithms", set(ALGORITHMS))):
        assert invoke(["show", thing]) == 0
        assert all(name in capsys.readouterr().out for name in list(names)[:1])
        assert invoke(["show", thing, "--json"]) == 0
        assert {row["name"] for row in json.loads(capsys.readouterr().out)} == names
    (place / "runs" / "small-1").mkdir(parents=True)
    (place / "runs" / "small-1" / "config.toml").touch()
    for typed, meant in (("preset", "presets"), ("algoritms", "algorithms"), ("runs/smal-1", "runs/small-1")):
        code, printed = failing(capsys, "show", typed)
        assert code == 2
        assert f"Did you mean '{meant}'?" in printed


SMALL = configs.parse(TOML)


def test_a_run_that_nobody_measures_has_the_same_bits_and_no_figures_of_data(place: Path) -> None:
    measured, alone = (
        quoron.simulate(SMALL, out="measured"),
        quoron.simulate(SMALL, out="alone", settings=["run.evaluate=false"]),
    )
    assert np.array_equal(measured.weights, alone.weights)
    assert measured.summary.excess_risk is not None
    summary = alone.summary
    assert (summary.excess_risk, summary.excess_risk_initial, summary.test) == (None, None, {})
    assert not [row for row in alone.records() if "simulation.excess_risk" in row]
    assert (place / "alone" / "report.html").exists()
    with pytest.raises(ConfigError, match=r"run\.evaluate for a comparison"):
        quoron.compare(SMALL, settings=["run.evaluate=false"])


def test_noise_from_a_seed_is_never_told_as_a_promise(tmp_path: Path) -> None:
    run = quoron.simulate(SMALL, out=tmp_path / "run")
    text = json.loads((tmp_path / "run" / "plan.json").read_text())["statement"]
    for statement in (run.summary.statement, sentence(run.plan.guarantee), text):
        assert statement.startswith(SEEDED)
        assert "With secret noise: (4, " in statement
    assert SEEDED in (tmp_path / "run" / "report.html").read_text()
    assert not sentence(quoron.plan(SMALL).plan.guarantee).startswith(SEEDED)
