"""The same work in one process, by our own service and on Flower; and our messages beside bare ones of Flower.

    python benchmarks/flower.py engines    [--users 100] [--dimension 100] [--rounds 30] [--crowd 100000] [--nodes 50]
    python benchmarks/flower.py overhead   [--users 100] [--dimension 100] [--turns 7] [--rounds 8]

`engines` carries out one plan over the same users: inline; by a coordinator with TLS and a client, with a connection
of its own, for each; on Flower's simulation with one user a node, and with a crowd spread over a few nodes. All
models of a problem must have the same bits. Rates and CPU are from the end of the first round to that of the last, so
that starting up does not count; memory is the peak of all processes together.

`overhead` lets bare messages, as in Flower's documentation, and ours pass through the same nodes by turns, with an
array of the same size each way. Both need an idle machine, and Linux.
"""

import argparse
import asyncio
import hashlib
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import numpy as np
from flower_apps.processes import VARIABLE, cpu_seconds, memory

import federation
from quoron import config as configs
from quoron import toml_text
from quoron.engine.choice import Flower
from quoron.engine.processes import Program
from quoron.engine.processors import free_ports
from quoron.federation.control import Control
from quoron.federation.flower_simulation import environment, simulate
from quoron.planning.plans import Prepared
from quoron.run_folder import RunFolder
from quoron.simulation import run as runs
from quoron.simulation.problem import Setup
from quoron_client.data.encoding import Encoding, Signs
from quoron_client.data.features import Numeric
from quoron_client.protocol.questions import Question
from quoron_client.protocol.wire import question_from_wire
from quoron_protos.v1 import federation_pb2 as pb
from quoron_server.plan import RunPlan
from quoron_server.rounds import RoundEvent
from quoron_server.service import certificates, tokens
from quoron_server.specification import RunSpecification

sys.path.append(str(Path(__file__).parent.parent / "examples" / "flower"))
from loopback import FlowerConnection, program

APPS = Path(__file__).parent / "flower_apps"
RATE, CPU, MEMORY = "answers/s", "CPU ms/answer", "peak MiB"


def configuration(options: argparse.Namespace) -> configs.Config:
    """A problem in which every user is asked in every round."""
    return configs.from_tree(
        {
            "population": {
                "kind": "synthetic",
                "family": "logistic",
                "users": options.users,
                "items_per_user": 4,
                "dimension": options.dimension,
            },
            "privacy": {"epsilon": 15.0, "delta": 0.1},
            "algorithm": {"name": "dp-sgd-wor", "options": {"rounds": options.rounds, "rate": 1.0}},
        }
    )


class Meter:
    """Answers, seconds and CPU seconds from the end of the first round to that of the last."""

    def __init__(self, mark: str) -> None:
        self._mark, self._seen = mark, list[tuple[float, float]]()

    def look(self, round_number: int, rounds: int) -> None:
        """At the end of a round."""
        if round_number in (0, rounds - 1):
            self._seen.append((time.perf_counter(), cpu_seconds(self._mark)))

    def figures(self, answers_a_round: int, rounds: int) -> dict[str, float]:
        """Per second and per answer."""
        (began, before), (ended, after) = self._seen
        answers = answers_a_round * (rounds - 1)
        return {RATE: answers / (ended - began), CPU: 1000 * (after - before) / answers}

    def started(self, plan: RunPlan) -> None:
        """Nothing yet."""

    def round_finished(self, event: RoundEvent) -> None:
        """As an observer."""
        self.look(event.round, event.rounds)

    def finished(self, model: np.ndarray) -> None:
        """The last round has been seen."""


def inline(prepared: Prepared[Setup], meter: Meter, folder: Path, options: argparse.Namespace) -> np.ndarray:
    """In this process."""
    return runs.carry_out(prepared, RunFolder(folder), [meter]).weights


def flower(prepared: Prepared[Setup], meter: Meter, folder: Path, options: argparse.Namespace) -> np.ndarray:
    """On Flower's simulation, with Flower and Ray in processes of their own."""
    engine = Flower(nodes=options.nodes, cpus=os.cpu_count() or 1)
    return simulate(prepared, RunFolder(folder), [meter], engine).weights


def native(prepared: Prepared[Setup], meter: Meter, folder: Path, options: argparse.Namespace) -> np.ndarray:
    """By a coordinator, and clients that are coroutines of one other process, each with a certificate."""
    token = tokens.add(folder / "tokens.json", name="benchmark", role="operator")
    certificates.make_authority(folder, days=1)
    certificates.issue(folder, "coordinator", coordinator=True, hosts=("127.0.0.1",), days=1)
    for user in range(options.users):
        certificates.issue(folder, f"client-{user}", days=1)
    serve = ["-m", "quoron", "serve", "--listen", "127.0.0.1:0", "--control", "127.0.0.1:0", "--allow-simulation"]
    places = ["--database", f"sqlite:///{folder}/coordinator.sqlite", "--tokens", folder / "tokens.json"]
    coordinator = federation.spawn(*serve, *places, "--certs", folder / "coordinator")
    crowd = None
    try:
        where, control = re.findall(r"127\.0\.0\.1:\d+", coordinator.stdout.readline())
        crowd = federation.spawn(__file__, *sys.argv[1:], "--clients-of", where)
        assert crowd.stdout.readline() == "enrolled\n"
        with Control(control, token, folder / "authority.pem", False) as operator:
            operator.submit(specification(prepared).as_text())
            for event in operator.watch("load"):
                if event["kind"] == "round":
                    meter.look(event["round"], options.rounds)
            crowd.wait()
            return operator.model("load")
    finally:
        for process in (coordinator, crowd):
            if process is not None:
                process.terminate()
                process.wait()


def specification(prepared: Prepared[Setup]) -> RunSpecification:
    """The same run for a coordinator. The columns are never read: its clients draw their users as we do."""
    config, problem = prepared.config, prepared.setup.problem
    columns = Encoding(
        tuple(Numeric(f"x{j}", -1.0, 1.0) for j in range(problem.dimension)), Signs("y"), intercept=False
    )
    return RunSpecification(
        run="load",
        algorithm=config.algorithm.name,
        epsilon=config.privacy.epsilon,
        delta=config.privacy.delta,
        problem=problem,
        loss={"name": "logistic"},
        columns=columns,
        seconds=600.0,
        early_ends=True,
        options=dict(config.algorithm.options),
        seed=config.run.seed,
        simulation=True,
        simulation_seed=config.run.seed,
    )


async def clients(prepared: Prepared[Setup], where: str, folder: Path, users: int) -> None:
    """All of them, each answering for itself alone."""
    engine = prepared.setup.engine

    def answers_of(user: int) -> Callable[[pb.Question], np.ndarray]:
        def answer(message: pb.Question) -> np.ndarray:
            _, number, _, task = question_from_wire(message)
            return engine.ask(Question(number, np.array([user]), task)).values[0]

        return answer

    everybody = [await federation.connected(where, folder, user, insecure=False) for user in range(users)]
    print("enrolled", flush=True)
    await asyncio.gather(
        *(federation.answering(stub, metadata, answers_of(u)) for u, (stub, metadata) in enumerate(everybody))
    )


ENGINES: Mapping[str, Callable[[Prepared[Setup], Meter, Path, argparse.Namespace], np.ndarray]] = {
    "inline": inline,
    "native": native,
    "flower": flower,
}


def carry_out(options: argparse.Namespace) -> None:
    """In a process of its own: one engine's run; its figures on standard output."""
    prepared = runs.prepare(configuration(options), options.folder)
    if options.clients_of:
        asyncio.run(clients(prepared, options.clients_of, options.folder, options.users))
        return
    meter = Meter(os.environ[VARIABLE])
    model = ENGINES[options.engine](prepared, meter, options.folder, options)
    digest = hashlib.sha256(model.tobytes()).hexdigest()
    print(json.dumps({"model": digest, **meter.figures(options.users, options.rounds)}))


def measured(engine: str, folder: Path, **settings: int) -> dict[str, Any]:
    """One engine's figures, and the memory of all of its processes at its peak."""
    words = [word for name, value in settings.items() for word in (f"--{name}", str(value))]
    with marked() as mark, watched_memory(mark) as peaks:
        done = subprocess.run(
            [sys.executable, __file__, "engines", *words, "--engine", engine, "--folder", str(folder)],
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
    return {**json.loads(done.stdout.splitlines()[-1]), MEMORY: max(peaks)}


@contextmanager
def marked() -> Iterator[str]:
    """Whatever is started now can be told from everything else."""
    mark = uuid.uuid4().hex
    os.environ[VARIABLE] = mark
    yield mark
    del os.environ[VARIABLE]


@contextmanager
def watched_memory(mark: str) -> Iterator[list[float]]:
    """Memory of all marked processes, twice a second."""
    peaks, over = [0.0], threading.Event()

    def watch() -> None:
        while not over.wait(0.5):
            peaks.append(memory(mark))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield peaks
    finally:
        over.set()
        watcher.join()


def engines(options: argparse.Namespace) -> None:
    """Print the table."""
    one = {"users": options.users, "rounds": options.rounds, "dimension": options.dimension}
    crowd = {"users": options.crowd, "rounds": max(2, options.rounds // 5), "dimension": options.dimension}
    alone, spread = {"nodes": options.users}, {"nodes": options.nodes}
    names = {
        "inline": ("inline", one),
        "native service, one client a user": ("native", one),
        "Flower's simulation, one node a user": ("flower", {**one, **alone}),
        f"inline, {options.crowd:,} users": ("inline", crowd),
        f"Flower's simulation, {options.nodes} nodes": ("flower", {**crowd, **spread}),
    }
    print(f"{options.users:,} users and {options.crowd:,}, {options.dimension} numbers each way, all asked every round")
    print(f"{'':40s}{RATE:>14s}{CPU:>16s}{MEMORY:>12s}{'of the inline rate':>20s}")
    base: dict[str, Any] = {}
    for name, (engine, settings) in names.items():
        with TemporaryDirectory(prefix="quoron-benchmark-") as folder:
            found = measured(engine, Path(folder), **settings)
        base = found if engine == "inline" else base
        same = "" if found["model"] == base["model"] else "   OTHER BITS"
        ratio = found[RATE] / base[RATE]
        print(f"{name:40s}{found[RATE]:14,.0f}{found[CPU]:16.4f}{found[MEMORY]:12,.0f}{ratio:20.5f}{same}", flush=True)


def answers(url: str) -> bool:
    """Whether a server does."""
    try:
        return httpx.get(url, timeout=2.0, trust_env=False).is_success
    except httpx.HTTPError:
        return False


def overhead(options: argparse.Namespace) -> None:
    """Print medians over the turns, and their ratios to the bare app's."""
    with TemporaryDirectory(prefix="quoron-benchmark-") as scratch, marked() as mark:
        home, results = Path(scratch).resolve() / "home", Path(scratch).resolve() / "blocks.json"
        chosen = {name: getattr(options, name) for name in ("users", "dimension", "turns", "rounds")}
        settings = {**chosen, "mark": mark, "results": str(results)}
        app, components = Path(scratch) / "app", {"serverapp": "beside:server_app", "clientapp": "beside:client_app"}
        about = {"publisher": "quoron", "components": components, "config": settings}
        project = {"name": "beside", "version": "1.0.0", "description": "", "license": "Apache-2.0", "dependencies": []}
        app.mkdir()
        (app / "pyproject.toml").write_text(toml_text.dumps({"project": project, "tool": {"flwr": {"app": about}}}))
        for file in APPS.glob("*.py"):
            shutil.copy(file, app)
        port = free_ports(1)[0]
        connection = FlowerConnection(home, f"127.0.0.1:{port}")
        connection.begin()
        arguments = ("--insecure", "--simulation", "--host", "127.0.0.1", "--port", str(port))
        command = [program("flower-superlink"), *arguments]
        with Program(command, environment=environment(home), log=Path(scratch) / "log") as superlink:
            while not answers(f"http://127.0.0.1:{port}/health"):
                if superlink.code is not None:
                    sys.exit(f"The SuperLink has ended.\n{superlink.log}")
                time.sleep(0.1)
            sizes = f"num-supernodes={options.users} init-args-num-cpus={os.cpu_count()} client-resources-num-cpus=1"
            run = int(connection.call("run", str(app), "here", "--federation-config", sizes)["run-id"])
            looks = 0
            while not results.exists():  # asking Flower costs CPU, so seldom
                time.sleep(1.0)
                looks += 1
                if (
                    looks % 60 == 0
                    and connection.call("list", "here", "--run-id", str(run))["runs"][0]["status"].startswith(
                        "finished"
                    )
                    and not results.exists()
                ):
                    sys.exit(f"Flower has ended the run.\n{(Path(scratch) / 'log').read_text()[-3000:]}")
        blocks = json.loads(results.read_text())
    work = f"{options.turns} turns of {options.rounds} rounds"
    print(f"{options.users} nodes, {options.dimension:,} numbers each way, {work}")
    print(f"{'':26s}{'messages/s':>12s}{'CPU ms/message':>16s}{'rate':>8s}{'CPU':>8s}")
    base = (0.0, 0.0)
    for kind in dict.fromkeys(block["kind"] for block in blocks):
        of_kind = [block for block in blocks if block["kind"] == kind]
        assert all(block["answered"] == options.users * options.rounds for block in of_kind)
        rate = statistics.median(block["answered"] / block["seconds"] for block in of_kind)
        cpu = statistics.median(1000 * block["cpu"] / block["answered"] for block in of_kind)
        base = base if base[0] else (rate, cpu)
        print(f"{kind:26s}{rate:12.1f}{cpu:16.3f}{rate / base[0]:8.3f}{cpu / base[1]:8.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("engines", "overhead"))
    parser.add_argument("--users", type=int, default=100)
    parser.add_argument("--dimension", type=int, default=100)
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--crowd", type=int, default=100_000)
    parser.add_argument("--nodes", type=int, default=50)
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--engine", choices=ENGINES, help=argparse.SUPPRESS)
    parser.add_argument("--clients-of", metavar="HOST:PORT", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.rounds = options.rounds or (30 if options.what == "engines" else 8)
    if options.engine:
        carry_out(options)
    else:
        {"engines": engines, "overhead": overhead}[options.what](options)


if __name__ == "__main__":
    main()
