"""What a federation on this machine takes: seconds beyond its rounds, the coordinator's time an answer, memory, bits.

    python benchmarks/local.py [--clients 200] [--rounds 20] [--dimension 1000] [--processes 200]

The command is `quoron simulate --engine service`, in this process. Every client is asked in every round. An answer's
time is the coordinator's processor time from the end of the first round to that of the last, with its store, and with
the looks at the excess risk that only a simulation has (a tenth of it). A server of gRPC alone, with mutual
TLS, as many processes and the same bytes each way, is measured in the same run. Memory is what all processes take
together, shared pages once (Pss), after every round. The load of the machine is printed, too.
"""

import argparse
import asyncio
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import grpc
import numpy as np

import quoron
from quoron.config import parse
from quoron.engine.choice import Service
from quoron.federation.folder import RUNNING, Folder
from quoron_client.protocol import wire
from quoron_server.service import certificates

BEYOND, AN_ANSWER, FIRST, MEMORY = 120.0, 0.3, 20.0, 4096.0
CONFIG = """
[population]
kind = "synthetic"
users = {clients}
items_per_user = 5
dimension = {dimension}

[privacy]
epsilon = 8.0
delta = 1e-4

[algorithm]
name = "dp-sgd-wor"
options = {{ rounds = {rounds}, rate = 1.0 }}
"""


class Watch:
    """Looks at the processes after every round."""

    def __init__(self, passing: Path) -> None:
        self.passing, self.began = passing, time.perf_counter()
        self.asked = self.first = self.last = self.memory = 0.0
        self.used: list[float] = []

    def waiting(self, text: str) -> None:
        """Who is there."""
        print(text, flush=True)

    def started(self, plan: Any) -> None:
        """All are there."""
        self.asked = time.perf_counter() - self.began

    def round_finished(self, event: Any) -> None:
        """Look."""
        self.last = time.perf_counter() - self.began
        self.first = self.first or self.last
        (place,) = self.passing.glob("quoron-local-*")
        running = Folder(place).read(RUNNING)
        self.used.append(seconds(running["coordinator"]))
        if event.round in (0, event.rounds // 2):
            numbers = [
                os.getpid(),
                running["supervisor"],
                running["coordinator"],
                *(each for _, each in running["processes"]),
            ]
            self.memory = max(self.memory, sum(map(mebibytes, numbers)))

    def finished(self, model: Any) -> None:
        """Nothing."""


def seconds(process: int) -> float:
    """Of processors, that a process has used."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def mebibytes(process: int) -> float:
    """Of memory, with its share of what it shares."""
    for line in Path(f"/proc/{process}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) / 1024
    return 0.0


def bare_client(folder: Path, ports: Any, answer: bytes) -> None:
    """Answer every message of the bare server, once its port is known."""
    port = ports.get()
    own = [(folder / f"client/{end}.pem").read_bytes() for end in ("key", "certificate")]
    credentials = grpc.ssl_channel_credentials((folder / "authority.pem").read_bytes(), *own)

    async def talk() -> None:
        async with grpc.aio.secure_channel(f"127.0.0.1:{port}", credentials, options=wire.STEADY) as channel:
            call = channel.stream_stream("/bare/Work")()
            await call.write(b"here")
            while await call.read() is not grpc.aio.EOF:
                await call.write(answer)

    asyncio.run(talk())


async def bare(options: argparse.Namespace, folder: Path) -> float:
    """Milliseconds of this process for a message to a client and its answer, with gRPC alone."""
    number, made = bytes(8 * options.dimension), multiprocessing.get_context("fork")
    ports = made.SimpleQueue()
    clients = [made.Process(target=bare_client, args=(folder, ports, number)) for _ in range(options.clients)]
    for client in clients:  # before gRPC has threads
        client.start()
    certificates.make_authority(folder, days=1)
    certificates.issue(folder, "coordinator", coordinator=True, hosts=("127.0.0.1",), days=1)
    certificates.issue(folder, "client", days=1)
    own = [(folder / f"coordinator/{end}.pem").read_bytes() for end in ("key", "certificate")]
    calls: list[Any] = []
    over = asyncio.Event()

    async def work(_: Any, call: Any) -> None:
        await call.read()
        calls.append(call)
        await over.wait()

    server = grpc.aio.server(options=wire.STEADY)
    handlers = {"Work": grpc.stream_stream_rpc_method_handler(work)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bare", handlers),))
    signed = (folder / "authority.pem").read_bytes()
    port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([tuple(own)], signed, True))
    await server.start()
    for _ in clients:
        ports.put(port)
    while len(calls) < options.clients:
        await asyncio.sleep(0.1)

    async def exchange(call: Any) -> None:
        await call.write(number)
        await call.read()

    await asyncio.gather(*map(exchange, calls))
    began = time.process_time()
    for _ in range(options.rounds):
        await asyncio.gather(*map(exchange, calls))
    used = time.process_time() - began
    over.set()
    await server.stop(5)
    for client in clients:
        client.join()
    return 1000 * used / (options.clients * options.rounds)


def measured(options: argparse.Namespace, folder: Path) -> dict[str, float]:
    """Everything that one run shows."""
    config = parse(CONFIG.format(**vars(options)))
    (passing := folder / "passing").mkdir()
    tempfile.tempdir = str(passing)
    watch, began = Watch(passing), time.perf_counter()
    processes = options.processes or options.clients
    engine = Service(workers=processes)
    result = quoron.simulate(config, out=folder / "run", engine=engine, observers=[watch])
    whole = time.perf_counter() - began
    inline = quoron.simulate(config, out=folder / "inline")
    answers = options.clients * (options.rounds - 1)
    sizes = ["--clients", str(options.clients), "--rounds", str(options.rounds), "--dimension", str(options.dimension)]
    alone = float(
        subprocess.run([sys.executable, __file__, "--bare", *sizes], stdout=subprocess.PIPE, check=True).stdout
    )
    each = 1000 * (watch.used[-1] - watch.used[0]) / answers
    return {
        "processes": processes,
        "seconds_to_first_question": watch.asked,
        "seconds_of_rounds": watch.last - watch.asked,
        "seconds_beyond_rounds": whole - (watch.last - watch.asked),
        "coordinator_ms_an_answer": each,
        "bare_grpc_ms_an_answer": alone,
        "ratio": each / alone,
        "mebibytes_together": watch.memory,
        "same_bits": float(np.array_equal(result.weights, inline.weights)),
        "nothing_left": float(not list(passing.iterdir())),
        "load_of_the_machine": os.getloadavg()[0],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--dimension", type=int, default=1000)
    parser.add_argument("--processes", type=int)
    parser.add_argument("--bare", action="store_true", help="print what gRPC alone takes")
    options = parser.parse_args()
    if options.bare:
        with tempfile.TemporaryDirectory() as folder:
            print(asyncio.run(bare(options, Path(folder))))
        return
    with tempfile.TemporaryDirectory() as folder:
        figures = measured(options, Path(folder))
    for name, value in figures.items():
        print(f"{name:28s} {value:12,.2f}")
    print(
        f"targets: below {BEYOND:g} s beyond the rounds, {AN_ANSWER} ms an answer at d = 1,000 and {MEMORY:,.0f} MiB "
        f"with 200 clients; {FIRST:g} s to the first question with 20"
    )


if __name__ == "__main__":
    main()
