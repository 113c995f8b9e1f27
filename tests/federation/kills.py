"""A coordinator that comes back at the same address after each kill, and clients that are processes."""

import asyncio
import contextlib
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import grpc

import dying
from dying import Moment
from federation.crowd import (
    SEED,
    Honest,
    Peer,
)
from federation.test_service_processes import bearer
from quoron.ports import free_port
from quoron_protos.v1 import federation_pb2 as pb
from quoron_protos.v1 import federation_pb2_grpc
from quoron_server.service import tokens

TESTS = Path(__file__).parent.parent
ENVIRONMENT = os.environ | {"PYTHONPATH": str(TESTS), "OPENBLAS_NUM_THREADS": "1"}
# A client's program; a coordinator that dies forty times would else be waited for a minute at a time.
CLIENT = "from quoron_client.federation import session; session._LONGEST_WAIT = 0.5; from quoron.__main__ import main; "
IN_ROUNDS = (("spend", "before"), ("spend", "after"), ("_ask", "after"), ("answer", "before"), ("answer", "after"))
IN_ROUNDS += (("commit", "before"), ("commit", "after"))


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
