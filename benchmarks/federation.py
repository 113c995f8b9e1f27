"""Answers a second of a coordinator with many clients, against a bare echo; its memory; that no answer is lost.

    python benchmarks/federation.py [--clients 1000] [--rounds 20] [--dimension 100 ...] [--repeats 1] [--insecure]

The coordinator is `quoron serve`, one process. The clients are coroutines of another process, each with a connection,
a certificate and a conversation of its own; they answer at once with a fixed vector, so that the protocol alone is
measured. Every client is asked in every round. The model must have the bits of the same run in one process.

The echo is a server of gRPC and nothing else: to each of the same clients it writes the bytes of a question, and when
those of an answer have come it writes the next. Echo and coordinator take turns, as other work on the machine slows
both; the medians over the turns, and of the ratio, are printed.
"""

import argparse
import asyncio
import itertools
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import grpc
import numpy as np

from quoron.federation.control import Control
from quoron_client.data.encoding import Encoding, Signs
from quoron_client.data.features import Numeric
from quoron_client.protocol import wire
from quoron_client.protocol.domains import L2Ball
from quoron_client.protocol.questions import Answers, AverageGradient, Question, Status, plain
from quoron_privacy.noise.streams import SeededNoise
from quoron_protos.v1 import federation_pb2 as pb
from quoron_protos.v1 import federation_pb2_grpc
from quoron_server.algorithms import ALGORITHMS
from quoron_server.problem import Problem
from quoron_server.rounds import run
from quoron_server.service import certificates, tokens
from quoron_server.specification import RunSpecification, make_plan
from quoron_server.storage.ledger import Ledger

TARGET_RATE, TARGET_SHARE, TARGET_MEMORY = 2000, 0.6, 500


def specification(clients: int, rounds: int, dimension: int) -> RunSpecification:
    problem = Problem(
        users=clients,
        items_per_user=4,
        dimension=dimension,
        domain=L2Ball(2.0),
        lipschitz=1.0,
        smoothness=0.25,
        feature_norm=1.0,
        link_curvature=1.0,
    )
    return RunSpecification(
        run="load",
        algorithm="dp-sgd-wor",
        epsilon=15.0,
        delta=0.1,
        problem=problem,
        loss={"name": "logistic"},
        columns=Encoding(tuple(Numeric(f"x{j}", -1.0, 1.0) for j in range(dimension)), Signs("y"), intercept=False),
        seconds=600.0,
        early_ends=True,
        options={"rounds": rounds, "rate": 1.0},
        simulation=True,
        simulation_seed=0,
    )


def vector(user: int, dimension: int) -> np.ndarray:
    return np.full(dimension, np.sin(user) / dimension)


class Fixed:
    """The engine of the same answers in one process."""

    def ask(self, question: Question) -> Answers:
        """What the clients would send."""
        dimension = plain(question.task).points.shape[1]
        values = np.stack([vector(user, dimension) for user in question.cohort])
        return Answers(values, np.zeros(len(values), np.uint8))


def inline_model(wanted: RunSpecification, folder: Path) -> np.ndarray:
    plan, noise = make_plan(wanted), SeededNoise(0)
    with Ledger.create(folder / "inline.sqlite", plan="{}", config_digest="", noise_key=noise.export_key()) as ledger:
        return run(ALGORITHMS[wanted.algorithm].make(plan), Fixed(), ledger, noise, simulation=True)


async def clients(where: str, folder: Path, number: int, dimension: int, insecure: bool) -> None:
    """All of them; prints when they have enrolled, and how many answers were taken."""
    everybody = [await connected(where, folder, user, insecure) for user in range(number)]
    print("enrolled", flush=True)
    taken = await asyncio.gather(
        *(
            answering(stub, metadata, lambda _, user=user: vector(user, dimension))
            for user, (stub, metadata) in enumerate(everybody)
        )
    )
    print(json.dumps({"taken": sum(taken)}), flush=True)


async def connected(
    where: str, folder: Path, user: int, insecure: bool
) -> tuple[federation_pb2_grpc.ClientPlaneStub, tuple[tuple[str, str], ...]]:
    metadata: tuple[tuple[str, str], ...] = ()
    options = (("grpc.use_local_subchannel_pool", 1),)  # a connection for each
    if insecure:
        channel, metadata = grpc.aio.insecure_channel(where, options), (("quoron-client", f"client-{user}"),)
    else:
        pair = [(folder / f"client-{user}/{end}.pem").read_bytes() for end in ("key", "certificate")]
        credentials = grpc.ssl_channel_credentials((folder / "authority.pem").read_bytes(), *pair)
        channel = grpc.aio.secure_channel(where, credentials, options)
    stub = federation_pb2_grpc.ClientPlaneStub(channel)
    assert (await stub.Enrol(pb.EnrolRequest(protocol=2), metadata=metadata)).user == user
    return stub, metadata


async def answering(
    stub: Any,  # of grpc.aio
    metadata: tuple[tuple[str, str], ...],
    answer_to: Callable[[pb.Question], np.ndarray],
) -> int:
    """A client's conversation to the end of a run; how many answers it gave that nobody refused."""
    taken = 0
    call = stub.Work(metadata=metadata)
    await call.write(pb.ClientMessage(hello=pb.Hello(protocol=2)))
    while (message := await call.read()) is not grpc.aio.EOF:
        kind = message.WhichOneof("kind")
        if kind == "question":
            asked = message.question
            answer = wire.answer_to_wire(asked.run, asked.round, asked.digest, answer_to(asked), Status.ANSWERED)
            await call.write(pb.ClientMessage(answer=answer))
            taken += 1
        elif kind == "receipt":
            taken -= 1
        elif kind == "run":
            await call.write(pb.ClientMessage(consent=pb.Consent(run=message.run.run, takes_part=True)))
        elif kind == "ended":
            break
    return taken


def measured(options: argparse.Namespace, dimension: int, folder: Path) -> dict[str, float]:
    """Everything that one run shows."""
    wanted = specification(options.clients, options.rounds, dimension)
    token = tokens.add(folder / "tokens.json", name="benchmark", role="operator")
    secure: list[object] = ["--insecure"]
    if not options.insecure:
        certificates.make_authority(folder, days=1)
        certificates.issue(folder, "coordinator", coordinator=True, hosts=("127.0.0.1",), days=1)
        for user in range(options.clients):
            certificates.issue(folder, f"client-{user}", days=1)
        secure = ["--certs", folder / "coordinator", "--set", f"max_clients={2 * options.clients}"]
    serve = ["-m", "quoron", "serve", "--listen", "127.0.0.1:0", "--control", "127.0.0.1:0", "--allow-simulation"]
    places = ["--database", f"sqlite:///{folder}/coordinator.sqlite", "--tokens", folder / "tokens.json"]
    coordinator = spawn(*serve, *places, *secure)
    try:
        where, control = re.findall(r"127\.0\.0\.1:\d+", coordinator.stdout.readline())
        began = time.perf_counter()
        crowd = spawn(__file__, "--as-clients", where, "--folder", folder, *sizes(options, dimension))
        assert crowd.stdout.readline() == "enrolled\n"
        enrolled = time.perf_counter() - began
        authority = None if options.insecure else folder / "authority.pem"
        with Control(control, token, authority, options.insecure) as operator:
            operator.submit(wanted.as_text())
            rounds = [(time.perf_counter(), event) for event in operator.watch("load")]
            model = operator.model("load")
        taken = json.loads(crowd.stdout.readline())["taken"]
        first, last = rounds[0][0], rounds[-2][0]  # the first round waits for consents, the last event is the end
        figures = {
            "answers_per_second": options.clients * (options.rounds - 1) / (last - first),
            "answers_taken": taken,
            "answers_asked": options.clients * options.rounds,
            "same_bits": float(np.array_equal(model, inline_model(wanted, folder))),
            "coordinator_mebibytes": peak(coordinator.pid),
            "coordinator_cpu_seconds": cpu(coordinator.pid),
            "enrolment_seconds": enrolled,
        }
        crowd.wait()
    finally:
        coordinator.terminate()
        coordinator.wait()
    return figures


async def echo(number: int, rounds: int, dimension: int, certificates: Path | None) -> None:
    """Serve so many questions of the same bytes to each client, and print answers a second after everybody's first."""
    task = AverageGradient(np.zeros((1, dimension)), (1.0,))
    asked = wire.question_to_wire(Question(0, np.zeros(1, np.int64), task), 0, run="load", user=0, seconds=600)
    question = pb.ServerMessage(question=asked).SerializeToString()
    ended = pb.ServerMessage(ended=pb.Ended(run="load")).SerializeToString()
    users, heard = itertools.count(), []

    async def enrol(request: bytes, context: Any) -> bytes:
        return pb.EnrolReply(user=next(users)).SerializeToString()

    async def work(requests: Any, context: Any) -> None:
        await context.read()
        for _ in range(rounds):
            await context.write(question)
            assert len(await context.read()) > 8 * dimension
            heard.append(time.perf_counter())
        await context.write(ended)
        if len(heard) == number * rounds:
            print((len(heard) - number) / (heard[-1] - heard[number - 1]), flush=True)

    server = grpc.aio.server(options=wire.STEADY)
    handlers = {
        "Enrol": grpc.unary_unary_rpc_method_handler(enrol),
        "Work": grpc.stream_stream_rpc_method_handler(work),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("quoron.v1.ClientPlane", handlers),))
    if certificates is None:
        port = server.add_insecure_port("127.0.0.1:0")
    else:
        own = [(certificates / f"coordinator/{end}.pem").read_bytes() for end in ("key", "certificate")]
        authority = (certificates / "authority.pem").read_bytes()
        port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([own], authority, True))
    print(f"127.0.0.1:{port}", flush=True)
    await server.start()
    await server.wait_for_termination()


def echoed(options: argparse.Namespace, dimension: int, folder: Path) -> float:
    """Answers a second of the echo, to clients with the same certificates."""
    given = "--folder", folder, *sizes(options, dimension)
    server = spawn(__file__, "--as-echo", *given)
    try:
        where = server.stdout.readline().strip()
        crowd = spawn(__file__, "--as-clients", where, *given)
        assert crowd.stdout.readline() == "enrolled\n"
        rate = float(server.stdout.readline())
        crowd.communicate()
    finally:
        server.terminate()
        server.wait()
    return rate


def sizes(options: argparse.Namespace, dimension: int) -> tuple[object, ...]:
    plain = ("--insecure",) if options.insecure else ()
    return "--clients", options.clients, "--rounds", options.rounds, "--dimension", dimension, *plain


def spawn(*arguments: object) -> "subprocess.Popen[str]":
    return subprocess.Popen([sys.executable, *map(str, arguments)], stdout=subprocess.PIPE, text=True)


def peak(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) / 1024


def cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--dimension", type=int, nargs="+", default=[100])
    parser.add_argument("--repeats", type=int, default=1, help="turns of coordinator and echo")
    parser.add_argument("--insecure", action="store_true", help="plaintext instead of mutual TLS")
    parser.add_argument("--as-clients", metavar="HOST:PORT", help=argparse.SUPPRESS)
    parser.add_argument("--as-echo", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if options.as_clients:
        (dimension,) = options.dimension
        asyncio.run(clients(options.as_clients, options.folder, options.clients, dimension, options.insecure))
    elif options.as_echo:
        folder = None if options.insecure else options.folder
        (dimension,) = options.dimension
        asyncio.run(echo(options.clients, options.rounds, dimension, folder))
    else:
        for dimension in options.dimension:
            show(options, dimension)


def show(options: argparse.Namespace, dimension: int) -> None:
    """Print the medians of the turns at one dimension."""
    turns = []
    for _ in range(options.repeats):
        with tempfile.TemporaryDirectory() as folder:
            figures = measured(options, dimension, Path(folder))
            figures["echoes_per_second"] = echoed(options, dimension, Path(folder))
        figures["share_of_echo"] = figures["answers_per_second"] / figures["echoes_per_second"]
        turns.append(figures)
    print(f"dimension {dimension:,}")
    for name in turns[0]:
        print(f"{name:28s} {median(turn[name] for turn in turns):12,.{2 if name == 'share_of_echo' else 1}f}")
    lost = sum(turn["answers_asked"] - turn["answers_taken"] for turn in turns)
    print(
        f"targets: {TARGET_RATE:,} answers a second and {TARGET_SHARE} of the echo, below {TARGET_MEMORY} MiB, "
        f"none lost (lost: {lost:.0f})"
    )


if __name__ == "__main__":
    main()
