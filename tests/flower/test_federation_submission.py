"""Submitting to a federation of Flower and serving it there, without Flower's processes."""

import json
import logging
import math
import tomllib
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Context, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.supercore.object_ref import load_app

from flower.federation import expected, small
from flower.grids import FakeGrid, FakeTime
from flower.test_users import USERS, people
from quoron.cli.app import invoke
from quoron.flower.commands import Process, last_error
from quoron.operate import flower_app as federated
from quoron.operate import flower_submission as submission
from quoron.operate.flower_submission import COMPONENTS, SAYS, follow, operator, submit
from quoron.run_folder import RunFolder
from quoron_privacy.errors import ConfigError, QuoronError, RunError
from quoron_server.books.database import Database
from quoron_server.books.ledger import Ledger
from quoron_server.books.lifetime_ledger import PopulationLedger
from quoron_server.books.registry import Registry
from quoron_server.flower import exchange, serving

WANTED = small("dp-sgd-wor", "trial", USERS)


@pytest.fixture(autouse=True)
def time(monkeypatch: pytest.MonkeyPatch) -> FakeTime:
    fake = FakeTime()
    for module in (exchange, serving, submission):
        monkeypatch.setattr(module, "time", fake)
    return fake


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """The ServerApp's handler is for a process of its own."""
    logger = logging.getLogger("quoron")
    before, level = list(logger.handlers), logger.level
    yield
    logger.handlers, logger.level = before, level


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of a ServerApp for trials; the folder of its results."""
    monkeypatch.setenv("QUORON_DATABASE", f"sqlite:///{tmp_path}/books.sqlite")
    monkeypatch.setenv("QUORON_RESULTS", str(tmp_path / "results"))
    monkeypatch.setenv("QUORON_ALLOW_SIMULATION", "1")
    monkeypatch.delenv("QUORON_SUPERNODE_AUTH", raising=False)
    monkeypatch.delenv("QUORON_GROUP", raising=False)
    return tmp_path / "results"


def serve(
    folder: Path, text: str = WANTED.as_text(), *, waiting: object = 60.0, grid: FakeGrid | None = None
) -> FakeGrid:
    settings = {"specification": text, "waiting": waiting}
    grid = people(folder) if grid is None else grid
    federated.server_app(grid, Context(1, 1, {}, RecordDict(), settings))
    return grid


def test_what_was_released_is_in_the_results_folder(
    environment: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    serve(tmp_path)
    folder = RunFolder(environment / "trial")
    np.testing.assert_array_equal(folder.model(), expected(WANTED, tmp_path / "inline"))
    assert folder.plan()["algorithm"] == "dp-sgd-wor"
    ledger = json.loads((folder.path / "ledger.json").read_text())
    assert (ledger["run"], ledger["state"], ledger["spent"]["rounds"]) == ("trial", "complete", 2)
    assert len(ledger["releases"]) == 2
    printed = capsys.readouterr().out.splitlines()
    assert f"{SAYS}round 2 of at most 2: 3 users asked" in printed
    assert f"{SAYS}the model is in {folder.path}" in printed


@pytest.mark.parametrize("name", ["QUORON_DATABASE", "QUORON_RESULTS", "QUORON_ALLOW_SIMULATION"])
def test_what_the_operator_has_not_said_is_named(
    name: str, environment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv(name)
    missing = "QUORON_SUPERNODE_AUTH=1" if name == "QUORON_ALLOW_SIMULATION" else name
    with pytest.raises(ConfigError, match=f"Expected {missing} in the"):
        serve(tmp_path)
    assert f"{SAYS}Expected {missing}" in capsys.readouterr().out


def test_authentication_alone_allows_no_simulation(
    environment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QUORON_ALLOW_SIMULATION", "0")
    monkeypatch.setenv("QUORON_SUPERNODE_AUTH", "1")
    with pytest.raises(ConfigError, match="simulation=false"):
        serve(tmp_path)


@pytest.mark.parametrize("text", ["", "{}", "[" * 9], ids=["empty", "nothing", "no JSON"])
def test_what_is_no_specification_is_refused(text: str, environment: Path, tmp_path: Path) -> None:
    with pytest.raises(QuoronError, match="Expected a run specification"):
        serve(tmp_path, text)


@pytest.mark.parametrize("waiting", [math.nan, math.inf, -1.0, 604801.0, "soon", None], ids=str)
def test_no_submitter_makes_a_run_wait_for_ever(waiting: object, environment: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"Expected waiting in \[0, 604800\] seconds"):
        serve(tmp_path, waiting=waiting)


def test_the_operator_decides_whose_lifetime_budget_is_drawn_on(
    environment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, nobody = small("srgd", "evil", USERS, group="mine").as_text(), people(tmp_path)
    with pytest.raises(ConfigError, match="Expected a run of group everyone, got group='mine'"):
        serve(tmp_path, other, grid=nobody)
    assert not nobody.asked
    assert not (tmp_path / "books.sqlite").exists()
    monkeypatch.setenv("QUORON_GROUP", "mine")
    serve(tmp_path, other)
    with Database(f"sqlite:///{tmp_path}/books.sqlite") as database:
        assert Registry(database).users_count("mine") == USERS


def test_a_run_whose_messages_no_client_takes_is_refused(
    environment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quoron_client.protocol.wire.MAX_WHOLE", 4100)
    with pytest.raises(ConfigError, match="Expected messages of at most 4,100 bytes"):
        serve(tmp_path)


class Killed(BaseException):
    """The ServerApp's process ends here."""


@pytest.mark.parametrize("dies_at", ["Ledger.abandon", "PopulationLedger.release"])
def test_a_start_ends_what_was_ended_but_not_to_its_last_line(
    dies_at: str, environment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fails = dies_at == "Ledger.abandon"
    with monkeypatch.context() as dies:
        if fails:
            dies.setattr(serving.Books, "carry_out", _raises(RunError("no room")))
        place = "quoron_server.runs.Ledger.abandon" if fails else "quoron_server.runs.PopulationLedger.release"
        dies.setattr(place, _raises(Killed()))
        with pytest.raises(Killed):
            serve(tmp_path)
    serve(tmp_path, small("srgd", "another", USERS).as_text())
    with Database(f"sqlite:///{tmp_path}/books.sqlite") as database:
        assert not Ledger.unreleased(database)
        ends = [row["payload"]["run"] for row in PopulationLedger(database).rows() if row["kind"] == "end"]
    assert ends == ["trial", "another"]


def _raises(error: BaseException) -> Callable[..., None]:
    def fails(*_: object, **__: object) -> None:
        raise error

    return fails


@pytest.mark.parametrize("how", ["complete", "failed"])
def test_members_hear_of_the_end_of_a_run_again_at_every_start_that_meets_it(
    how: str, environment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def farewells(grid: FakeGrid) -> list[object]:
        found = [each for each in grid.asked if each.metadata.message_type == "query.ended"]
        return [each.content["quoron"]["how"] for each in found]

    expects = suppress(RunError) if how == "failed" else nullcontext()
    with monkeypatch.context() as fails, expects:
        if how == "failed":
            fails.setattr(serving.Books, "carry_out", _raises(RunError("no room")))
        grid = people(tmp_path)
        serve(tmp_path, grid=grid)
    assert farewells(grid) == [how] * USERS
    again = people(tmp_path)
    with expects:
        serve(tmp_path, grid=again)
    assert farewells(again) == [how] * USERS
    away = people(tmp_path, away=frozenset(range(9999)))
    with expects:
        serve(tmp_path, grid=away)


@dataclass
class FlowerSays:
    """A SuperLink that tells the log of a run in parts, because the connection breaks, and is away for a while."""

    home: Path
    logs: list[list[str]] = field(default_factory=list)
    states: list[tuple[str, str] | None] = field(default_factory=list)
    apps: list[Path] = field(default_factory=list)

    def run(self, app: Path) -> int:
        self.apps.append(app)
        return 7

    def stream(self, run: int) -> Iterator[str]:
        yield from (self.logs.pop(0) if len(self.logs) > 1 else self.logs[0])

    def status_and_details(self, run: int) -> tuple[str, str]:
        state = self.states.pop(0) if len(self.states) > 1 else self.states[0]
        if state is None:
            raise RunError("`flwr list` failed: it is away.")
        return state


def test_following_says_each_of_our_lines_once_whatever_becomes_of_the_connection(tmp_path: Path) -> None:
    lines = ["INFO: Flower", f"{SAYS}round 1", f"{SAYS}round 2", f"{SAYS}complete"]
    flower = FlowerSays(
        tmp_path, [lines[:2], [], lines[:3], lines], [("running", ""), None, None, ("finished:completed", "")]
    )
    said: list[str] = []
    follow(flower, 7, said.append)
    assert said == ["round 1", "round 2", "complete"]


def test_a_run_that_ends_without_a_model_is_an_error_with_its_reason(tmp_path: Path) -> None:
    flower = FlowerSays(tmp_path, [[]], [("finished:failed", "ServerApp failed with exception: no room")])
    with pytest.raises(RunError, match=r"run 7 has ended without a model \(finished:failed\).*no room"):
        follow(flower, 7, print)


RAISES = "import sys\nprint('INFO: begins', flush=True)\nopen('/nowhere/at/all')"


def test_whatever_ends_by_an_error_its_last_line_is_passed_on(tmp_path: Path) -> None:
    log = [
        "ERROR: an earlier one",
        "Traceback (most recent call last):",
        "OSError: no room",
        "\x1b[91mERROR\x1b[0m: code 200",
    ]
    flower = FlowerSays(tmp_path, [log], [("finished:failed", "")])
    with pytest.raises(RunError, match=r"without a model \(finished:failed\).*Its last error: OSError: no room$"):
        follow(flower, 7, print)
    assert last_error(log[-1]) == " Its last error: ERROR: code 200"
    assert last_error("INFO: no Error here\n") == ""
    (tmp_path / "log").write_text("ValueError: of a program before it\n")
    with (
        Process("python", ["-c", RAISES], home=tmp_path, log=tmp_path / "log") as program,
        pytest.raises(RunError, match=r"python has ended with code 1\..*Its last error: FileNotFoundError: .*all'$"),
    ):
        program.healthy("http://127.0.0.1:1/")
    quiet = Process("python", ["-c", ""], home=tmp_path, log=tmp_path / "log")
    with quiet, pytest.raises(RunError, match=r"ended with code 0\. Its log is .*log\.$"):
        quiet.healthy("http://127.0.0.1:1/")


def test_a_superlink_that_stays_away_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="it is away"):
        follow(FlowerSays(tmp_path, [[]], [None]), 7, print)


def test_a_submitted_app_names_components_that_are_there_and_carries_the_specification_whole(tmp_path: Path) -> None:
    flower = FlowerSays(tmp_path)
    assert submit(flower, WANTED, waiting=30) == 7
    app = tomllib.loads((flower.apps[0] / "pyproject.toml").read_text())["tool"]["flwr"]["app"]
    assert app["config"] == {"specification": WANTED.as_text(), "waiting": 30.0}
    assert isinstance(load_app(app["components"]["serverapp"], QuoronError), ServerApp)
    assert isinstance(load_app(COMPONENTS["client"], QuoronError), ClientApp)


@pytest.mark.parametrize(("authority", "insecure"), [(False, False), (True, True)], ids=["neither", "both"])
def test_plaintext_is_only_for_whoever_says_so(authority: bool, insecure: bool, tmp_path: Path) -> None:
    with (
        pytest.raises(ConfigError, match=r"Expected --authority CA\.pem or --insecure"),
        operator("127.0.0.1:1", tmp_path / "ca.pem" if authority else None, insecure=insecure),
    ):
        pass


def test_a_certificate_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"ca\.pem, found none"), operator("127.0.0.1:1", tmp_path / "ca.pem"):
        pass


@pytest.mark.parametrize(
    "wrong", [["--engine", "flower"], ["--superlink", "a:1"], ["--engine", "carrier-pigeon"]], ids=" ".join
)
def test_engine_and_superlink_go_together(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["submit", "run.toml", "--run", "trial", "--users", "5", *wrong]) != 0
    assert "Expected --engine flower together with --superlink" in capsys.readouterr().err
