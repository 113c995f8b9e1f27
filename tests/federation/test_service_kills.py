"""Forty kills of one coordinator in one run, over all it does; eight clients that are processes live to the end."""

import asyncio
import contextlib
import os
import random
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import grpc
import numpy as np
import pytest

import dying
from dying import Moment
from federation.crowd import (
    FEW,
    SEED,
    Honest,
    Peer,
    carried_out,
    complete,
    coordinator,
    crowd,
    from_items,
    inline_model,
    specification,
    until,
    write_items,
)
from federation.test_service_processes import bearer
from quoron.ports import free_port
from quoron.simulation.inline import InlineEngine
from quoron_protos.v1 import federation_pb2 as pb
from quoron_protos.v1 import federation_pb2_grpc
from quoron_server.books.database import Database
from quoron_server.books.ledger import Ledger
from quoron_server.books.lifetime_ledger import PopulationLedger
from quoron_server.service import RunSpecification, tokens

KILLS, REAL = 40, 8
TESTS = Path(__file__).parent.parent
ENVIRONMENT = os.environ | {"PYTHONPATH": str(TESTS), "OPENBLAS_NUM_THREADS": "1"}
# A client's program; a coordinator that dies forty times would else be waited for a minute at a time.
CLIENT = "from quoron_client.federation import session; session._LONGEST_WAIT = 0.5; from quoron.__main__ import main; "
# Noise in every round; a test that may halt and a filter of outliers; a state that remembers earlier answers.
LONG: dict[str, tuple[int, dict[str, object]]] = {
    "dp-sgd-wor": (REAL, {"rounds": 30, "rate": 0.5}),
    "outlier-iterates": (100, {"rounds": 12, "phases": 2}),
    "tracking-srgd": (66, {"rounds": 20}),
}
BEGINNING = ("settle", "add_run", "fix_members", "charge", "begin", "set_state")
IN_ROUNDS = (("spend", "before"), ("spend", "after"), ("_ask", "after"), ("answer", "before"), ("answer", "after"))
IN_ROUNDS += (("commit", "before"), ("commit", "after"))
ENDING = ("finish", "release", "end")


def wanted(algorithm: str) -> RunSpecification:
    users, options = LONG[algorithm]
    whole = specification(algorithm)
    return whole.model_copy(update={"options": options, "problem": replace(whole.problem, users=users)})


def moments(rounds: int, seed: int) -> list[Moment]:
    """Forty, in the order in which a run comes to them: around each write of its beginning and its end, and within
    rounds in between, after some of the questions and answers too."""
    draw = random.Random(seed)
    begun = [Moment(at, when) for at in BEGINNING for when in ("before", "after")]
    ended = [Moment(at, when) for at in ENDING for when in ("before", "after")]
    asked: set[tuple[int, int]] = set()
    while len(asked) < KILLS - len(begun) - len(ended):  # each kind of moment in turn, in one round after the other
        asked.add((draw.randrange(rounds), len(asked) % len(IN_ROUNDS)))
    in_rounds = []
    for number, point in sorted(asked):
        at, when = IN_ROUNDS[point]
        in_rounds.append(Moment(at, when, number, 1 if at in ("spend", "commit") else draw.randint(1, 2)))
    return [*begun, *in_rounds, *ended]


@dataclass
class Scene:
    """A coordinator that comes back at the same address with the same database, and real clients in its run."""

    folder: Path
    database: str
    where: str = field(default_factory=lambda: f"127.0.0.1:{free_port()}")
    control: str = field(default_factory=lambda: f"127.0.0.1:{free_port()}")
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
        own = ["--data", data, "--record", self.record(user), "--name", f"client-{user}", "--insecure"]
        limits = ["--lifetime-epsilon", "inf", "--lifetime-delta", 1.0, "--accept", "model", "--accept", "broadcast"]
        more = ["--coordinator", self.where, "--simulation-seed", SEED]
        return self.begin(
            sys.executable, "-c", CLIENT + "main()", "client", *own, *limits, *more, log=f"client-{user}.log"
        )

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


async def take_part(where: str, users: range, honest: Honest) -> None:
    """Light clients beside the processes, which come back until the run has ended."""

    async def one(user: int, channel: grpc.aio.Channel) -> None:
        peer, how = Peer(channel, f"client-{user}"), "disconnected"
        while how == "disconnected":
            with contextlib.suppress(grpc.aio.AioRpcError):
                await channel.channel_ready()
                assert await peer.enrol() == user
                await peer.hello()
                how = await peer.work(honest)

    options = (("grpc.initial_reconnect_backoff_ms", 50), ("grpc.max_reconnect_backoff_ms", 50))
    async with grpc.aio.insecure_channel(where, options=options) as channel:
        await asyncio.gather(*(one(user, channel) for user in users))


async def enrolled(where: str, users: int) -> None:
    """User i is the i-th to enrol."""
    async with grpc.aio.insecure_channel(where) as channel:
        await channel.channel_ready()
        for user in range(users):
            assert await Peer(channel, f"client-{user}").enrol() == user


async def submitted(scene: Scene, text: str) -> None:
    """Once a coordinator has said that it has taken the run on."""
    options = (("grpc.initial_reconnect_backoff_ms", 50), ("grpc.max_reconnect_backoff_ms", 50))
    async with grpc.aio.insecure_channel(scene.control, options=options) as channel:
        stub = federation_pb2_grpc.ControlPlaneStub(channel)
        while True:
            with contextlib.suppress(grpc.aio.AioRpcError):
                await channel.channel_ready()
                await stub.Submit(pb.SubmitRequest(specification=text), metadata=bearer(scene.token))
                return


async def undisturbed(run: RunSpecification, folder: Path) -> set[tuple[int, int, bytes]]:
    """(user, round, digest) of every question of a whole run."""
    users = run.problem.users
    honest = Honest(InlineEngine(from_items(users), seed=SEED))
    async with coordinator(folder) as running, crowd(running.listen, users) as peers:
        working = [asyncio.create_task(peer.work(honest)) for peer in peers]
        await running.manager.submit(run.as_text())
        await complete(running)
        await asyncio.gather(*working)
    return {(user, number, digest) for user, _, number, digest in honest.asked}


async def killed_forty_times(scene: Scene, run: RunSpecification, honest: Honest, seed: int) -> None:
    users = run.problem.users
    paths = write_items(scene.folder, REAL)
    with contextlib.ExitStack() as processes:
        with scene.coordinator(None) as first:
            await enrolled(scene.where, users)
            clients = [processes.enter_context(scene.client(user, paths[user])) for user in range(REAL)]
            first.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(first.wait) == 0
        light = asyncio.create_task(take_part(scene.where, range(REAL, users), honest))
        submitting = asyncio.create_task(submitted(scene, run.as_text()))
        for moment in moments(run.options["rounds"], seed):
            with scene.coordinator(moment) as life:
                assert await asyncio.to_thread(life.wait) == -signal.SIGKILL, moment
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


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", LONG)
def test_forty_kills_in_a_row_change_no_bit_and_no_question_and_end_no_client(
    algorithm: str, database_url: str, tmp_path: Path
) -> None:
    run = wanted(algorithm)
    users, whole = run.problem.users, tmp_path / "whole"
    whole.mkdir()
    asked = carried_out(undisturbed(run, whole))
    honest = Honest(InlineEngine(from_items(users), seed=SEED))
    scene = Scene(tmp_path, database_url)
    carried_out(killed_forty_times(scene, run, honest, seed=users), within=900.0)
    with Database(database_url) as database:
        ledger = Ledger.within(database, "trial")
        np.testing.assert_array_equal(ledger.model, inline_model(run, tmp_path, from_items(users)))
        assert [event["round"] for event in ledger.events()] == list(range(run.options["rounds"]))
        population = PopulationLedger(database)
        population.verify()
        assert [row["kind"] for row in population.rows()] == ["submit", "charge", "release", "end"]
    heard = {(user, number, digest) for user, _, number, digest in honest.asked}
    for user in range(REAL):
        heard |= scene.answered(user)
        log = (tmp_path / f"client-{user}.log").read_text()
        assert "No answer" not in log
        assert "Traceback" not in log
    assert heard == asked, "somebody was asked another question than without a kill"


def test_the_kills_are_spread_over_a_whole_run() -> None:
    for users, options in LONG.values():
        chosen = moments(options["rounds"], users)
        assert len(chosen) == KILLS
        rounds = [moment.round for moment in chosen if moment.round >= 0]
        assert min(rounds) < options["rounds"] / 4 < 3 * options["rounds"] / 4 < max(rounds)
        assert {(moment.at, moment.when) for moment in chosen} >= set(IN_ROUNDS)
    assert set(LONG) <= set(FEW)
