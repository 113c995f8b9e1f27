"""Twenty kills in a row of one coordinator, with secret noise and with a simulation's, on SQLite and on PostgreSQL.

What was committed stands to the bit, each round is released once, the run is charged once, nobody hears two questions
of a round, and no client ends. A simulation ends with the bits of a run without kills.
"""

import asyncio
import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

import grpc
import numpy as np
import pytest

import dying
from committed import Committed
from dying import Moment
from federation.crowd import (
    CLIENT,
    RETRYING,
    SEED,
    Honest,
    called,
    carried_out,
    coming_back,
    enrolled,
    from_items,
    inline_model,
    specification,
    until,
    write_items,
)
from quoron.engine.inline import InlineEngine
from quoron.engine.processors import free_ports
from quoron_privacy.errors import LedgerUnavailable
from quoron_server.service import tokens
from quoron_server.specification import RunSpecification
from quoron_server.storage.database import Database
from quoron_server.storage.ledger import Ledger
from quoron_server.storage.lifetime_ledger import PopulationLedger

TESTS = Path(__file__).parent.parent
ENVIRONMENT = os.environ | {"PYTHONPATH": str(TESTS), "OPENBLAS_NUM_THREADS": "1"}


@dataclass
class Scene:
    """A coordinator that comes back at the same address with the same database, and real clients in its run."""

    folder: Path
    database: str
    where: str = field(default_factory=lambda: f"127.0.0.1:{free_ports(1)[0]}")
    control: str = field(default_factory=lambda: f"127.0.0.1:{free_ports(1)[0]}")
    token: str = ""

    def __post_init__(self) -> None:
        self.token = tokens.add(self.folder / "tokens.json", name="ada", role="operator")

    @contextlib.contextmanager
    def begin(self, *command: object, log: str) -> Iterator[subprocess.Popen[bytes]]:
        """A process that is gone in the end, whatever happens."""
        with (self.folder / log).open("ab") as file:
            process = subprocess.Popen([*map(str, command)], stdout=file, stderr=file, env=ENVIRONMENT)
        try:
            yield process
        finally:
            process.kill()
            process.wait()

    def coordinator(self, moment: Moment | None) -> contextlib.AbstractContextManager[subprocess.Popen[bytes]]:
        """One life of it."""
        how = [sys.executable, "-m", "quoron"] if moment is None else dying.words(moment, "quoron")
        places = ["--listen", self.where, "--control", self.control, "--database", self.database]
        more = ["--tokens", self.folder / "tokens.json", "--allow-simulation", "--insecure"]
        return self.begin(*how, "serve", *places, *more, log="coordinator.log")

    def client(self, user: int, data: Path) -> contextlib.AbstractContextManager[subprocess.Popen[bytes]]:
        """One user's program."""
        own = ["--data", data, "--state", self.record(user), "--set", f"name=client-{user}", "--insecure"]
        limits = ["--limit", "inf,1", "--accept", "central-release", "--accept", "central-broadcast"]
        more = ["--coordinator", self.where, "--set", f"seed={SEED}"]
        return self.begin(sys.executable, "-c", CLIENT, "client", *own, *limits, *more, log=f"client-{user}.log")

    def record(self, user: int) -> Path:
        return self.folder / f"record-{user}.sqlite"

    def answered(self, user: int) -> set[tuple[int, int, bytes]]:
        """(user, round, digest of the question) of all answers of a real client."""
        with contextlib.closing(sqlite3.connect(self.record(user))) as stored:
            rows = stored.execute("SELECT round, digest FROM answers WHERE run = 'trial'").fetchall()
        return {(user, number, digest) for number, digest in rows}

    def knows_the_end(self, user: int) -> bool:
        with contextlib.closing(sqlite3.connect(self.record(user))) as stored:
            return bool(stored.execute("SELECT 1 FROM runs WHERE run = 'trial' AND ended").fetchall())


async def submitted(scene: Scene, text: str) -> None:
    """Once a coordinator has said that it has taken the run on."""
    async with grpc.aio.insecure_channel(scene.control, options=RETRYING) as channel:
        while True:
            with contextlib.suppress(grpc.aio.AioRpcError):
                await channel.channel_ready()
                await called(channel, scene.token, "submit", specification=text)
                return


REAL = 2  # of the clients are programs of their own
# Each user once; all of them in every round, behind a test; cohorts by secret coins.
RUNS: dict[str, tuple[int, dict[str, object]]] = {
    "one-pass-dp-sgd": (36, {"rounds": 12}),
    "outlier-gd": (200, {"rounds": 12}),
    "dp-sgd-wor": (20, {"rounds": 12, "rate": 0.5}),
}
COINS = ("dp-sgd-wor",)
IN_ROUNDS = (("spend", "before"), ("spend", "after"), ("_ask", "after"), ("answer", "before"), ("answer", "after"))
IN_ROUNDS += (("commit", "before"), ("commit", "after"))
BEGINNING = ("settle", "add_run", "fix_members", "charge", "begin", "set_state")
IN_TURN = tuple(
    Moment(at, when, number, 1) for number, (at, when) in enumerate((*IN_ROUNDS, *IN_ROUNDS[5:], *IN_ROUNDS[:2]))
)
TWENTY = (
    *(Moment(at, "after") for at in BEGINNING),
    *IN_TURN,
    *(Moment(at, "after") for at in ("finish", "release", "end")),
)


def wanted(algorithm: str, *, secret: bool) -> RunSpecification:
    """A run of secret noise, or of a seed. Where secret coins draw cohorts a round lasts as long as it may."""
    users, options = RUNS[algorithm]
    real = specification(algorithm, **({"simulation": False, "simulation_seed": None} if secret else {}))
    if secret and algorithm in COINS:
        real = real.model_copy(update={"early_ends": False, "seconds": 4.0})
    return real.model_copy(update={"options": options, "problem": replace(real.problem, users=users)})


def stored(url: str) -> Committed | None:
    """What the store of a coordinator that is gone holds; None while its server does not know that it is."""
    try:
        with Database(url) as database:
            return Committed.of(Ledger.within(database, "trial")) if Ledger.begun(database, "trial") else Committed()
    except LedgerUnavailable:
        return None


async def read(url: str) -> Committed:
    found: list[Committed] = []

    def there() -> bool:
        seen = stored(url)
        found.extend([] if seen is None else [seen])
        return bool(found)

    await until(there)
    return found[0]


async def killed_in_a_row(scene: Scene, run: RunSpecification, honest: Honest, moments: Sequence[Moment]) -> None:
    users = run.problem.users
    paths = write_items(scene.folder, REAL)
    before = Committed()
    with ExitStack() as processes:
        with scene.coordinator(None) as first:
            await enrolled(scene.where, users)
            clients = [processes.enter_context(scene.client(user, paths[user])) for user in range(REAL)]
            first.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(first.wait) == 0
        light = asyncio.create_task(coming_back(scene.where, range(REAL, users), honest))
        submitting = asyncio.create_task(submitted(scene, run.as_text()))
        for moment in moments:
            with scene.coordinator(moment) as life:
                assert await asyncio.to_thread(life.wait) == -signal.SIGKILL, moment
            now = await read(scene.database)
            assert now.goes_on_from(before), moment
            before = now
        with scene.coordinator(None) as last:
            await submitting
            await until(lambda: all(scene.knows_the_end(user) for user in range(REAL)))
            await light
            assert [client.poll() for client in clients] == [None] * REAL, "a client did not live to the end"
            last.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(last.wait) == 0
        for client in clients:
            client.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(client.wait) == 0
    assert (await read(scene.database)).goes_on_from(before)


@pytest.mark.parametrize("secret", [True, False], ids=["secret", "simulated"])
@pytest.mark.parametrize(
    ("algorithm", "moments"),
    [
        *(pytest.param(name, TWENTY, marks=pytest.mark.slow) for name in RUNS),
        pytest.param("one-pass-dp-sgd", TWENTY[5:12:2], marks=pytest.mark.programs),
    ],
)
def test_kills_in_a_row_leave_what_was_committed_and_one_release_a_round_for_one_charge(
    algorithm: str, moments: Sequence[Moment], secret: bool, database_url: str, tmp_path: Path
) -> None:
    run = wanted(algorithm, secret=secret)
    honest = Honest(InlineEngine(from_items(run.problem.users), seed=SEED))
    scene = Scene(tmp_path, database_url)
    carried_out(killed_in_a_row(scene, run, honest, moments), within=900.0)
    with Database(database_url) as database:
        store = Committed.of(Ledger.within(database, "trial"))
        population = PopulationLedger(database)
        population.verify()
        assert [row["kind"] for row in population.rows()] == ["submit", "charge", "release", "end"]
    assert [number for number, _, _ in store.rounds] == list(range(run.options["rounds"]))
    assert store.model is not None
    model = np.frombuffer(store.model)
    assert np.isfinite(model).all()
    if not secret:
        np.testing.assert_array_equal(model, inline_model(run, tmp_path, from_items(run.problem.users)))
    asked = {(user, number, digest) for user, _, number, digest in honest.asked}
    for user in range(REAL):
        asked |= scene.answered(user)
        log = (tmp_path / f"client-{user}.log").read_text()
        assert "No answer" not in log
        assert "Traceback" not in log
    assert len(asked) == len({each[:2] for each in asked}), "somebody heard two questions of a round"
    if algorithm not in COINS:
        rounds = {user: {number for each, _, number, _ in honest.asked if each == user} for user, *_ in honest.asked}
        most = 1 if algorithm == "one-pass-dp-sgd" else run.options["rounds"]
        assert {len(each) for each in rounds.values()} == {most}


def test_twenty_kills_are_twenty_and_of_every_kind() -> None:
    assert len(TWENTY) == 20
    assert {(moment.at, moment.when) for moment in TWENTY} >= set(IN_ROUNDS)
