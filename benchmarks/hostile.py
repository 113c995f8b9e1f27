"""What honest clients and the coordinator's memory feel of attackers from outside, beside clean runs, in turns.

    python benchmarks/hostile.py [--attacks "rapid resets, control" ...] [--turns 3] [--seconds 8]

The coordinator is `quoron serve`, one process, with mutual TLS on loopback and SQLite; each attack meets a fresh one.
Honest clients, in a process of their own, measure four things: a round of a run, from its last answer until all members
have the next question; an enrolment and a message with its receipt, both on connections that they have; and a new
connection with its enrolment. A call that takes longer than five seconds, or is refused, counts as endless. Three kinds
of phases take turns: clean; the attack; and the attack on a sink, a process that shakes hands, reads and answers
nothing. The sink tells what a busy machine alone does to honest clients: attackers share processors,
caches and the kernel's loopback with everybody else. Those without a declared rate are niced.

Printed are ratios of medians, attacked over clean and sink over clean, the MiB that the coordinator's memory rose above
its clean phases, and what the attacker reached a second, of the sink too. Attackers "outside" have no certificate and
no token; "member" is one client's certificate, gone bad, and "members" are sixteen.
"""

import argparse
import asyncio
import json
import logging
import os
import re
import resource
import ssl
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
from hostile_attacks import ATTACKS, DECLARED, MEMBERS, Target

from federation import specification, vector
from quoron.federation.control import Control
from quoron_client.protocol import wire
from quoron_client.protocol.questions import Status
from quoron_protos.v1 import federation_pb2 as pb
from quoron_protos.v1 import federation_pb2_grpc
from quoron_server.service import certificates, tokens

HONEST = 32  # certificates, and as many for new connections
ROUNDS, USERS = 20_000, 8  # of the run, which has certificates of its own
DIMENSION = 100
LAST = 0.05  # seconds after the others that a round's last answer comes
PAUSE, PATIENCE = 0.02, 5.0  # seconds between two honest calls of a kind, and for one
MOST_RATIO, MOST_MEBIBYTES = 2.0, 150.0
KINDS = ("round", "enrol", "message", "connect")


async def attacking(name: str, port: int, folder: Path) -> None:
    """Until the standard input ends; then prints how much was reached."""
    os.nice(0 if name.partition(",")[0] in DECLARED else 19)
    logging.disable()
    target = Target(port, folder)
    print("begins", flush=True)
    task = asyncio.create_task(ATTACKS[name][1](target))
    began = time.monotonic()
    await asyncio.to_thread(sys.stdin.read)
    print(target.count / (time.monotonic() - began), flush=True)
    task.cancel()
    os._exit(0)  # thousands of connections need no farewell


async def sink(folder: Path) -> None:
    """Shakes hands, reads, and answers nothing but flow control's promises of the beginning."""

    async def swallow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, ssl.SSLError):
            writer.write(bytes(3) + b"\4" + bytes(5))  # its settings
            writer.write(b"\0\0\6\4\0\0\0\0\0\0\4" + (1 << 24).to_bytes(4, "big"))  # windows of its streams
            writer.write(b"\0\0\4\x08\0\0\0\0\0" + (1 << 30).to_bytes(4, "big"))  # and of the connection
            writer.write(b"\0\0\0\1\5\0\0\0\1")  # the first call, which some attacks begin with, is over
            while await reader.read(1 << 16):
                pass
        writer.transport.abort()

    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(folder / "coordinator/certificate.pem", folder / "coordinator/key.pem")
    context.set_alpn_protocols(["h2"])
    server = await asyncio.start_server(swallow, "127.0.0.1", 0, ssl=context, backlog=4096)
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)
    print(f"127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


# Honest clients.


async def honest(where: str, folder: Path) -> None:
    """For ever: prints a line for each call, with its kind, when it began and how long it took."""
    members = [await member(where, folder, 2 * HONEST + number) for number in range(USERS)]  # the first to enrol
    channels = [channel(where, folder, number) for number in range(HONEST)]
    stubs = [federation_pb2_grpc.ClientPlaneStub(each) for each in channels]
    conversations = []
    for stub in stubs:
        await stub.Enrol(pb.EnrolRequest(protocol=2))
        call: Work = stub.Work()
        await call.write(pb.ClientMessage(hello=pb.Hello(protocol=2)))
        assert (await call.read()).WhichOneof("kind") == "welcome"
        conversations.append(call)

    async def enrolment(number: int) -> None:
        await stubs[number].Enrol(pb.EnrolRequest(protocol=2))

    async def message(number: int) -> None:
        await conversations[number].write(pb.ClientMessage(answer=pb.Answer(run="none")))
        received = await conversations[number].read()
        assert received is not grpc.aio.EOF

    async def connection(number: int) -> None:
        async with channel(where, folder, number + HONEST) as own:
            await federation_pb2_grpc.ClientPlaneStub(own).Enrol(pb.EnrolRequest(protocol=2))

    async def repeated(kind: str, action: Callable[[int], Awaitable[None]], pause: float) -> None:
        number = 0
        while True:
            began, took = time.monotonic(), float("inf")
            with suppress(grpc.aio.AioRpcError, AssertionError, TimeoutError):
                async with asyncio.timeout(PATIENCE):
                    await action(number % HONEST)
                took = time.monotonic() - began
            print(json.dumps([kind, began, took]), flush=True)
            number += 1
            await asyncio.sleep(pause)

    for number in range(HONEST):
        await connection(number)
    print("ready", flush=True)
    await asyncio.gather(
        rounds(members),
        repeated("enrol", enrolment, 2 * PAUSE),
        repeated("message", message, PAUSE),
        repeated("connect", connection, 2 * PAUSE),
    )


Work = Any  # a grpc.aio.StreamStreamCall


async def member(where: str, folder: Path, number: int) -> Work:
    stub = federation_pb2_grpc.ClientPlaneStub(channel(where, folder, number))
    await stub.Enrol(pb.EnrolRequest(protocol=2))
    call: Work = stub.Work()
    await call.write(pb.ClientMessage(hello=pb.Hello(protocol=2)))
    return call


async def rounds(members: list[Work]) -> None:
    """The run of all members: a line for each round, from its last answer until all have the next question."""
    came: Counter[int] = Counter()
    last = 0.0

    async def one(number: int, call: Work) -> None:
        nonlocal last
        while (message := await call.read()) is not grpc.aio.EOF:
            if message.HasField("run"):
                await call.write(pb.ClientMessage(consent=pb.Consent(run=message.run.run, takes_part=True)))
            elif message.HasField("question"):
                asked = message.question
                came[asked.round] += 1
                if came[asked.round] == USERS and last:
                    print(json.dumps(["round", last, time.monotonic() - last]), flush=True)
                if number == 0:
                    await asyncio.sleep(LAST)
                    last = time.monotonic()
                values = vector(number, DIMENSION)
                answer = wire.answer_to_wire(asked.run, asked.round, asked.digest, values, Status.ANSWERED)
                await call.write(pb.ClientMessage(answer=answer))

    await asyncio.gather(*(one(number, call) for number, call in enumerate(members)))


def channel(where: str, folder: Path, number: int) -> grpc.aio.Channel:
    pair = [(folder / f"honest-{number}/{end}.pem").read_bytes() for end in ("key", "certificate")]
    credentials = grpc.ssl_channel_credentials((folder / "authority.pem").read_bytes(), *pair)
    return grpc.aio.secure_channel(where, credentials, (("grpc.use_local_subchannel_pool", 1),))


# Measuring.


@dataclass
class Phases:
    """What was seen in one kind of phase."""

    took: dict[str, list[float]] = field(default_factory=lambda: {kind: [] for kind in KINDS})
    mebibytes: float = 0.0  # most
    rates: list[float] = field(default_factory=list)


def measured(name: str, folder: Path, turns: int, seconds: float) -> dict[str, Phases]:
    """One attack on a fresh coordinator: clean, attack and sink, in turns."""
    port = ATTACKS[name][0]
    found = {kind: Phases() for kind in ("clean", "attack", "sink")}
    said: list[tuple[str, float, float]] = []
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        coordinator = stack.enter_context(process(*serve(folder, place)))
        where = dict(zip(("clients", "control"), addresses(coordinator), strict=True))
        sunk = addresses(stack.enter_context(process(__file__, "--as", "sink", "--folder", folder)))[0]
        crowd = stack.enter_context(process(__file__, "--as", "honest", "--at", where["clients"], "--folder", folder))
        assert crowd.stdout is not None
        assert crowd.stdout.readline() == "ready\n"
        with Control(where["control"], (folder / "token").read_text(), folder / "authority.pem") as operator:
            operator.submit(specification(USERS, ROUNDS, DIMENSION).as_text())
        reader = threading.Thread(target=lambda: said.extend(map(json.loads, crowd.stdout)), daemon=True)
        reader.start()
        calm = 0.0
        spans: list[tuple[str, float, float]] = []

        def phase(kind: str, lasting: float) -> None:
            began = time.monotonic()
            while time.monotonic() < began + lasting:
                found[kind].mebibytes = max(found[kind].mebibytes, memory(coordinator.pid))
                time.sleep(0.02)
            spans.append((kind, began, time.monotonic()))

        for turn in range(turns):
            phase("clean", seconds)
            if turn == 0:
                calm = found["clean"].mebibytes  # what an attack leaves behind is the attack's
            for kind, at in (("attack", where[port]), ("sink", sunk)):
                attacker = subprocess.Popen(
                    [sys.executable, __file__, "--as", name, "--at", at, "--folder", str(folder)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
                assert attacker.stdout is not None
                assert attacker.stdout.readline() == "begins\n"
                time.sleep(0.5)
                phase(kind, seconds)
                found[kind].rates.append(float(attacker.communicate("")[0]))
                time.sleep(1.0)
        crowd.kill()
        reader.join()
    found["clean"].mebibytes = calm
    for what, began, took in said:
        for kind, start, end in spans:
            if start <= began < end:
                found[kind].took[what].append(took)
    return found


def serve(folder: Path, place: Path) -> list[object]:
    ports = ["--listen", "127.0.0.1:0", "--control", "127.0.0.1:0"]
    database = ["--database", f"sqlite:///{place}/coordinator.sqlite", "--tokens", folder / "tokens.json"]
    return ["-m", "quoron", "serve", "--allow-simulation", *ports, "--certs", folder / "coordinator", *database]


@contextmanager
def process(*arguments: object) -> Iterator["subprocess.Popen[str]"]:
    words = [sys.executable, *map(str, arguments)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as started:
        try:
            yield started
        finally:
            started.terminate()


def addresses(started: "subprocess.Popen[str]") -> list[str]:
    assert started.stdout is not None
    return re.findall(r"127\.0\.0\.1:\d+", started.stdout.readline())


def memory(pid: int) -> float:
    return int(re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())[1]) / 1024


def prepare(folder: Path) -> None:
    """Certificates and the operator's token. Who takes part in the run is in its group, and nobody else is."""
    certificates.make_authority(folder, days=1)
    certificates.issue(folder, "coordinator", coordinator=True, hosts=("127.0.0.1",), days=1)
    (folder / "token").write_text(tokens.add(folder / "tokens.json", name="benchmark", role="operator"))
    for who, number in (("honest", 2 * HONEST + USERS), ("member", MEMBERS)):
        for each in range(number):
            certificates.issue(folder, f"{who}-{each}", days=1, unit=None if each >= 2 * HONEST else "others")


def row(name: str, found: dict[str, Phases]) -> bool:
    """Prints it; whether the targets are kept."""
    medians = {
        kind: {what: statistics.median(took) if took else float("inf") for what, took in phases.took.items()}
        for kind, phases in found.items()
    }
    if never := [what for what in KINDS if not found["clean"].took[what]]:
        raise SystemExit(
            f"Expected calls of each kind in clean phases, got none of {', '.join(never)}: nothing to compare."
        )
    cells, kept = [], True
    for what in KINDS:
        clean = medians["clean"][what]
        attacked, sunk = medians["attack"][what] / clean, medians["sink"][what] / clean
        kept &= attacked < MOST_RATIO
        cells.append(f"{1000 * clean:5.1f} ms {attacked:6.2f} {sunk:5.2f}")
    more = max(found["attack"].mebibytes, found["sink"].mebibytes) - found["clean"].mebibytes
    rate = " ".join(f"{statistics.median(found[kind].rates):12,.0f}" for kind in ("attack", "sink"))
    kept &= more < MOST_MEBIBYTES
    mark = "" if kept else "   MISSED"
    print(f"{name:26s}" + " | ".join(cells) + f" | {more:8.0f} | {rate} {ATTACKS[name][2]}{mark}", flush=True)
    return kept


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--attacks", nargs="+", choices=ATTACKS, default=list(ATTACKS), metavar="NAME")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=8.0, help="of each phase")
    parser.add_argument("--as", dest="role", help=argparse.SUPPRESS)
    parser.add_argument("--at", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if options.role == "honest":
        asyncio.run(honest(options.at, options.folder))
    elif options.role == "sink":
        asyncio.run(sink(options.folder))
    elif options.role:
        asyncio.run(attacking(options.role, int(options.at.rpartition(":")[2]), options.folder))
    else:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            prepare(folder)
            targets = f"below {MOST_RATIO:g}, below {MOST_MEBIBYTES:g} MiB"
            print(f"medians: clean, attacked / clean, sink / clean; targets: {targets}")
            print(f"{'':26s}" + " | ".join(f"{kind:>21s}" for kind in KINDS) + " | MiB more | reached a second")
            for attack in options.attacks:
                row(attack, measured(attack, folder, options.turns, options.seconds))


if __name__ == "__main__":
    main()
