"""What a hundred thousand enrolled users cost a coordinator: to enrol, to keep, to start with, to begin a run over.

    python benchmarks/crowd.py [--users 100000] [--connected 1000] [--rounds 3]

The coordinator is `quoron serve`, one process, over SQLite and in plaintext. The first and the last thousand users
enrol over gRPC, the others are put into its database. As many as `--connected` then hold a conversation, over twenty
connections, while a run asks all users once. Most are absent, so its rounds end at their deadline.
"""

import argparse
import asyncio
import json
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import grpc
import numpy as np

from federation import answering, peak, spawn, specification, vector
from quoron.federation.control import Control
from quoron_protos.v1 import federation_pb2 as pb
from quoron_protos.v1 import federation_pb2_grpc
from quoron_server.service import tokens
from quoron_server.specification import RunSpecification
from quoron_server.storage.database import Database
from quoron_server.storage.registry import USERS

DIMENSION, CHANNELS, TIMED = 10, 20, 1000
SECONDS = 2.0  # of a round


async def enrolled(where: str, first: int) -> float:
    """Milliseconds of an enrolment, over a thousand one by one."""
    async with grpc.aio.insecure_channel(where) as channel:
        stub = federation_pb2_grpc.ClientPlaneStub(channel)
        began = time.perf_counter()
        for user in range(first, first + TIMED):
            reply = await stub.Enrol(pb.EnrolRequest(protocol=2), metadata=(("quoron-client", f"client-{user}"),))
            assert reply.user == user
        return 1000 * (time.perf_counter() - began) / TIMED


def filled(folder: Path, users: int) -> None:
    """Everybody else, as if they had enrolled."""
    rows = [
        {"user": user, "fingerprint": f"somebody-{user:064d}", "group": "everyone", "enrolled_at": "before"}
        for user in range(TIMED, users - TIMED)
    ]
    with Database(f"sqlite:///{folder}/coordinator.sqlite") as database, database.transaction() as execute:
        USERS.insert(execute, *rows)


async def connected(where: str, number: int) -> None:
    """Conversations to the end of the run; prints when the first has been told of it."""
    channels = [grpc.aio.insecure_channel(where, (("grpc.use_local_subchannel_pool", 1),)) for _ in range(CHANNELS)]
    stubs = [federation_pb2_grpc.ClientPlaneStub(channel) for channel in channels]
    print("connected", flush=True)
    taken = await asyncio.gather(
        *(
            answering(
                stubs[user % CHANNELS],
                (("quoron-client", f"client-{user}"),),
                lambda _, user=user: vector(user, DIMENSION),
            )
            for user in range(number)
        )
    )
    print(json.dumps({"taken": sum(taken)}), flush=True)


def wanted(users: int, rounds: int) -> RunSpecification:
    """A run that asks everybody once."""
    changes = {"algorithm": "one-pass-dp-sgd", "options": {"rounds": rounds}, "seconds": SECONDS}
    return specification(users, rounds, DIMENSION).model_copy(update=changes)


def started(folder: Path) -> tuple["subprocess.Popen[str]", str, str, float]:
    """A coordinator, its two addresses, and the seconds until it listened."""
    serve = ["-m", "quoron", "serve", "--listen", "127.0.0.1:0", "--control", "127.0.0.1:0", "--allow-simulation"]
    places = ["--database", f"sqlite:///{folder}/coordinator.sqlite", "--tokens", folder / "tokens.json"]
    began = time.perf_counter()
    coordinator = spawn(*serve, *places, "--insecure")
    where, control = re.findall(r"127\.0\.0\.1:\d+", coordinator.stdout.readline())
    return coordinator, where, control, time.perf_counter() - began


def measured(options: argparse.Namespace, folder: Path) -> dict[str, float]:
    """Everything that one crowd shows."""
    token = tokens.add(folder / "tokens.json", name="benchmark", role="operator")
    coordinator, where, _, empty = started(folder)
    try:
        figures = {"start_empty_seconds": empty, "enrol_empty_ms": asyncio.run(enrolled(where, 0))}
        figures["empty_mebibytes"] = peak(coordinator.pid)
    finally:
        coordinator.terminate()
        coordinator.wait()
    filled(folder, options.users)
    coordinator, where, control, figures["start_full_seconds"] = started(folder)
    try:
        figures["enrol_full_ms"] = asyncio.run(enrolled(where, options.users - TIMED))
        crowd = spawn(__file__, "--as-clients", where, "--connected", options.connected)
        assert crowd.stdout.readline() == "connected\n"
        figures["full_mebibytes"] = peak(coordinator.pid)
        with Control(control, token, None, True) as operator:
            began = time.perf_counter()
            operator.submit(wanted(options.users, options.rounds).as_text())
            events = operator.watch("load")
            next(events)
            figures["submission_to_first_round_seconds"] = time.perf_counter() - began - SECONDS
            assert list(events)[-1]["how"] == "complete"
            assert np.isfinite(operator.model("load")).all()
        figures["answers_taken"] = json.loads(crowd.stdout.readline())["taken"]
        figures["run_mebibytes"] = peak(coordinator.pid)
        figures["database_mebibytes"] = (folder / "coordinator.sqlite").stat().st_size / 2**20
        crowd.wait()
    finally:
        coordinator.terminate()
        coordinator.wait()
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--users", type=int, default=100_000)
    parser.add_argument("--connected", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--as-clients", metavar="HOST:PORT", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.as_clients:
        asyncio.run(connected(options.as_clients, options.connected))
        return
    with tempfile.TemporaryDirectory() as folder:
        figures = measured(options, Path(folder))
    for name, value in figures.items():
        print(f"{name:36s} {value:12,.2f}")


if __name__ == "__main__":
    sys.exit(main())
