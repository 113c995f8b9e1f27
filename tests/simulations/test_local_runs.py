"""Simulations by a federation on this machine, and ones that are kept: bits, kills, and what is left behind."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

import quoron
from federation.crowd import HANGS, items
from operators import reaching
from quoron.config import parse
from quoron.engine.processors import free_ports
from quoron.federation.folder import Folder
from quoron_server.storage.backup import accept
from quoron_server.storage.database import Database
from quoron_server.storage.ledger import Ledger
from quoron_server.storage.lifetime_ledger import PopulationLedger
from simulations.test_local import TABLE

programs = pytest.mark.programs
MADE_UP = """
[population]
kind = "synthetic"
users = 12
items_per_user = 4
dimension = 3
signal_norm = 1.0

[domain]
radius = 2.0

[problem]
user_smoothness = "item"

[privacy]
trust_model = "central-release"
epsilon = 15.0
delta = 0.05

[algorithm]
name = "dp-sgd-wor"
options = { rounds = 3 }
"""


class Command:
    """`quoron`, with a folder of its own for what is to pass."""

    def __init__(self, place: Path, *words: object) -> None:
        self.passing = place / "passing"
        self.passing.mkdir(exist_ok=True)
        heard = ["env", "--default-signal=INT,HUP"]  # whatever a shell in the background hands down
        command = [*heard, sys.executable, "-m", "quoron", *map(str, words)]
        self.log = place / "command.log"
        with self.log.open("ab") as log:
            environment = os.environ | {"TMPDIR": str(self.passing)}
            self.process = subprocess.Popen(command, cwd=place, stdout=log, stderr=log, env=environment)

    def done(self) -> None:
        assert self.process.wait(HANGS) == 0, self.log.read_text()

    def folder(self) -> Folder:
        """Of its federation, once there is one."""
        for _ in patience():
            if found := list(self.passing.glob("quoron-local-*")):
                return Folder(found[0])
            assert self.process.poll() is None, self.log.read_text()
        raise AssertionError

    def running(self, clients: int) -> dict[str, Any]:
        """What its federation notes, once so many clients are there."""
        place = self.folder()
        for _ in patience():
            found = place.read("running.json")
            if found.get("here") == clients:
                return found
            assert self.process.poll() is None, self.log.read_text()
        raise AssertionError


def patience() -> Iterator[None]:
    """Again and again, until a test hangs."""
    ends = time.monotonic() + HANGS
    while time.monotonic() < ends:
        yield
        time.sleep(0.01)
    raise AssertionError("it hung")


def numbers(running: dict[str, Any]) -> list[int]:
    return [running["supervisor"], running["coordinator"], *(number for _, number in running["processes"])]


def alive(number: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


def gone(some: list[int]) -> None:
    for _ in patience():
        if not any(map(alive, some)):
            return


@contextmanager
def command(place: Path, *words: object) -> Iterator[Command]:
    started = Command(place, *words)
    try:
        yield started
    finally:
        started.process.kill()
        started.process.wait()


def inline(text: str, place: Path) -> np.ndarray:
    return quoron.simulate(parse(text), out=place).weights


def model(folder: Path) -> np.ndarray:
    with np.load(folder / "model.npz") as stored:
        return stored["model"]


def ordered(place: Path, text: str, engine: str = "service", *more: object) -> list[object]:
    (place / "run.toml").write_text(text)
    return ["simulate", place / "run.toml", "--engine", engine, "--out", place / "run", *more]


@programs
def test_bits_are_the_inline_engines_though_clients_are_slow(tmp_path: Path) -> None:
    faults = "service:workers=5,slow=50"
    with command(tmp_path, *ordered(tmp_path, MADE_UP, faults)) as simulation:
        simulation.done()
    whole = quoron.simulate(parse(MADE_UP), out=tmp_path / "inline")
    np.testing.assert_array_equal(model(tmp_path / "run"), whole.weights)
    rows = [pq.read_table(each / "rounds.parquet").to_pylist() for each in (tmp_path / "run", whole.directory)]
    for name in ("simulation.excess_risk", "public.epsilon_spent", "total_messages", "bytes_up"):
        assert [row[name] for row in rows[0]] == [row[name] for row in rows[1]]
    assert (tmp_path / "run" / "report.html").stat().st_size > 1000
    assert list(simulation.passing.iterdir()) == []
    again = quoron.resume(tmp_path / "run")
    np.testing.assert_array_equal(again.weights, whole.weights)


@programs
@pytest.mark.parametrize("bent", ["", "columns.curves = 3\ncolumns.pairs = 2\n"], ids=["linear", "curves"])
def test_clients_of_a_table_have_the_bits_of_the_inline_engine(bent: str, tmp_path: Path) -> None:
    pq.write_table(items(12), tmp_path / "people.parquet")
    text = TABLE.replace("test_fraction", f"{bent}test_fraction").replace(
        '"people.parquet"', json.dumps(str(tmp_path / "people.parquet"))
    )
    with command(tmp_path, *ordered(tmp_path, text)) as simulation:
        simulation.done()
    np.testing.assert_array_equal(model(tmp_path / "run"), inline(text, tmp_path / "inline"))


@programs
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_nothing_is_left_of_a_command_that_ends_in_the_middle(how: signal.Signals, tmp_path: Path) -> None:
    words = ordered(tmp_path, MADE_UP, "service:workers=3,slow=60000")
    with command(tmp_path, *words) as simulation:
        running = simulation.running(12)
        simulation.process.send_signal(how)
        assert simulation.process.wait(HANGS) != 0
        gone(numbers(running))
        for _ in patience():
            if not list(simulation.passing.iterdir()):
                break


@programs
def test_whoever_loses_the_supervisor_ends_and_says_so(tmp_path: Path) -> None:
    with command(tmp_path, *ordered(tmp_path, MADE_UP, "service:workers=3,slow=60000")) as simulation:
        running = simulation.running(12)
        os.kill(running["supervisor"], signal.SIGKILL)
        assert simulation.process.wait(HANGS) == 1, simulation.log.read_text()
        gone(numbers(running))
        assert list(simulation.passing.iterdir()) == []
    assert "The local federation has ended" in simulation.log.read_text()


@programs
def test_a_client_that_cannot_go_on_is_named_at_once_and_ends_the_run(tmp_path: Path) -> None:
    """It shares a process with others, which would wait for it in every round, and have other bits without it."""
    slow = "service:workers=3,slow=300"
    with command(tmp_path, *ordered(tmp_path, MADE_UP.replace("rounds = 3", "rounds = 400"), slow)) as simulation:
        running, place = simulation.running(12), simulation.folder()
        (place.client(5) / "record.sqlite").write_text("nothing")
        assert simulation.process.wait(HANGS) == 1
        gone(numbers(running))
    assert "has ended. Client 5 has failed: Expected to read" in simulation.log.read_text()


@programs
def test_a_federation_that_is_kept_carries_out_a_run_for_real(tmp_path: Path) -> None:
    place, ports = Folder(tmp_path / "f"), [f"127.0.0.1:{free_ports(1)[0]}" for _ in range(2)]
    (tmp_path / "run.toml").write_text(MADE_UP.replace("delta = 0.05", "delta = 1e-4"))
    where = ["--folder", place.path]
    operator = reaching(coordinator=ports[1], token_file=place.operator / "token", authority=place.authority)
    try:
        start = ["local", "start", tmp_path / "run.toml", "--clients", 6, "--listen", ports[0], "--control", ports[1]]
        said(tmp_path, *start, *where)
        keys = (place.client(6) / "key.pem").read_bytes()
        assert json.loads(said(tmp_path, "local", "status", *where, "--json"))["here"] == 6
        ask = ["submit", place.path / "run.toml", "--run", "trial", "--users", 6, "--timeout", 2]
        ask += ["--set", "privacy.min_cohort=none"]
        said(tmp_path, *operator, *ask, "--set", "algorithm.options.rounds=2")
        assert "complete" in said(tmp_path, *operator, "watch", "trial")
        assert "stopped" in said(tmp_path, "local", "stop", *where)
        assert not place.runs
        with Database(place.database_url) as database:
            assert [row["kind"] for row in PopulationLedger(database).rows()] == ["submit", "charge", "release", "end"]
        said(tmp_path, *start, *where)
        assert (place.client(6) / "key.pem").read_bytes() == keys
        assert json.loads(said(tmp_path, "local", "status", *where, "--json"))["here"] == 6
    finally:
        said(tmp_path, "local", "stop", *where)


@programs
def test_one_that_listens_on_another_address_of_loopback_has_its_clients(tmp_path: Path) -> None:
    place, ports = Folder(tmp_path / "f"), [f"[::1]:{free_ports(1)[0]}" for _ in range(2)]
    (tmp_path / "run.toml").write_text(MADE_UP)
    where = ["--folder", place.path, "--listen", ports[0], "--control", ports[1]]
    try:
        told = said(tmp_path, "local", "start", tmp_path / "run.toml", "--clients", 2, *where)
        assert f"quoron login {ports[1]} " in told
        said(tmp_path, "local", "stop", "--folder", place.path)
        before = {path: path.read_bytes() for path in place.path.glob("clients/*/items.parquet")}
        said(tmp_path, "local", "start", "--clients", 3, *where)
        assert json.loads(said(tmp_path, "local", "status", "--folder", place.path, "--json"))["here"] == 3
        assert {path: path.read_bytes() for path in before} == before
    finally:
        said(tmp_path, "local", "stop", "--folder", place.path)


def said(place: Path, *words: object) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "quoron", *map(str, words)], cwd=place, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("kills", [pytest.param(4, marks=programs), pytest.param(40, marks=pytest.mark.slow)])
def test_clients_and_coordinator_that_are_killed_in_a_row_leave_a_whole_store_and_the_same_bits(
    kills: int, tmp_path: Path
) -> None:
    """A store that holds together, one charge, every round committed once; what was committed is what comes of it."""
    text = MADE_UP.replace("rounds = 3", f"rounds = {3 * kills}").replace("users = 12", "users = 8")
    draw = random.Random(kills)
    with command(tmp_path, *ordered(tmp_path, text, "service:workers=4,slow=300")) as simulation:
        simulation.running(8)
        kept, dead = simulation.folder(), set[int]()
        for name in ("store/coordinator.sqlite", "coordinator.log"):  # which stay when their folder is removed
            (tmp_path / Path(name).name).hardlink_to(kept.path / name)
        for kill in range(kills):
            wanted = draw.randrange(4)  # of the clients' processes; every other time the coordinator's
            for _ in patience():
                assert simulation.process.poll() is None, f"{kill} kills: {simulation.log.read_text()}"
                now = kept.read("running.json")
                some = [now.get("coordinator"), *(number for _, number in now.get("processes", ()))]
                number = some[0] if kill % 2 else some[1 + wanted] if len(some) > 1 else None
                if number is not None and number not in dead and now.get("here", 0) == 8:
                    dead.add(number)
                    os.kill(number, signal.SIGKILL)
                    break
        simulation.done()
    assert not kept.path.exists()
    accept(tmp_path / "coordinator.sqlite")  # their count went with the folder
    with Database(f"sqlite:///{tmp_path}/coordinator.sqlite") as database:
        ledger, population = Ledger.within(database, "simulation"), PopulationLedger(database)
        population.verify()
        assert [row["kind"] for row in population.rows()] == ["submit", "charge", "release", "end"]
        assert [event["round"] for event in ledger.events()] == list(range(3 * kills))
        np.testing.assert_array_equal(ledger.model, inline(text, tmp_path / "inline"))
    assert len(dead) == kills
    assert "Traceback" not in (tmp_path / "coordinator.log").read_text()
