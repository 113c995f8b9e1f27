"""Rounds of DP-SGD on quoron and on peers: clipped, noised sums of users' average gradients, in turns.

    python benchmarks/peers.py                                              # five jobs, with what is installed here
    python benchmarks/peers.py --with "pfl=/path/to/python" --with "jax by hand=/path/to/python"
    python benchmarks/peers.py --jobs 1 4 --rounds 101

A round draws a cohort, computes every user's average gradient of a logistic loss over all of its items, clips it,
sums, adds Gaussian noise and takes a step. Every contestant is a process of its own, of whatever interpreter has it
installed (`--with`), with the same users from the same seed, and works only when it is its turn. A contestant that has
had its `--seconds` in a job gets no more turns in it; one without a round in five times as many has no figure.

* quoron is a run of `dp-sgd-wor` on a table in memory: with a ledger, which commits twice a round, and without.
* numpy, C (`peers.c`, by gcc with OpenMP) and JAX by hand are what one writes in float32 for this job alone.
* pfl and Flower's simulation take one local step over all items, which is the gradient times its step.
* Opacus takes a user for a sample, in virtual batches.
* The read limit is one pass over as many bytes as a cohort holds, on as many threads as numba has.
"""

import argparse
import ctypes
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import astuple, dataclass, replace
from functools import cache, partial
from pathlib import Path
from threading import Timer
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Job:
    """What everybody does."""

    cohort: int
    users: int
    items: int
    features: int
    clip: float = 1.0
    noise: float = 1.0  # times the clip
    folder: str = ""  # of its data

    def make(self) -> None:
        """Features (users, items, features) float32 of rows of norm 1, labels ±1 (users, items), into its folder."""
        rng = np.random.default_rng(0)
        features = rng.standard_normal((self.users, self.items, self.features), dtype=np.float32)
        features /= np.sqrt(np.einsum("umd,umd->um", features, features))[:, :, None] * np.float32(1.00001)
        np.save(f"{self.folder}/features.npy", features)
        np.save(f"{self.folder}/labels.npy", np.sign(rng.standard_normal(features.shape[:2])).astype(np.float32))

    def data(self) -> tuple[Any, Any]:
        """What `make` made."""
        return np.load(f"{self.folder}/features.npy"), np.load(f"{self.folder}/labels.npy")

    def cohorts(self) -> Iterator[Any]:
        """Whom each round asks; None for everybody."""
        rng = np.random.default_rng(1)
        while True:
            yield rng.choice(self.users, self.cohort, replace=False) if self.cohort < self.users else None


JOBS = (
    Job(1_000, 10_000, 20, 100),
    Job(10_000, 10_000, 20, 100),
    Job(10_000, 1_000_000, 10, 20),
    Job(100_000, 100_000, 1, 20),
    Job(10_000, 100_000, 1, 20),
)
TURN = 0.02  # seconds, or one round: rounds follow one another as they do in a run
_ends: list[float] = []


def turn() -> None:
    """End a round, if one has begun; after the last of a turn wait for the next: the process ends with its last."""
    _ends.append(time.perf_counter())
    taken, rounds = _ends[-1] - _ends[0], len(_ends) - 1
    if rounds > 0 and taken < TURN:
        return
    if rounds:
        print(f"took {taken / rounds}", flush=True)
    if not sys.stdin.readline():
        os._exit(0)
    _ends[:] = [time.perf_counter()]


def reading(job: Job) -> None:
    """The read limit."""
    import numba

    def parallel_sum(values: Any) -> float:
        total = np.float32(0.0)
        for i in numba.prange(values.size):
            total += values[i]
        return float(total)

    compiled = numba.njit(parallel=True, fastmath=True)(parallel_sum)
    features, size = job.data()[0].reshape(-1), job.cohort * job.items * job.features
    places = iter(np.tile(np.arange(0, features.size - size + 1, size), 10_000))
    while True:
        turn()
        compiled(features[(start := next(places)) : start + size])


def quoron(job: Job, *, ledger: bool) -> None:
    """The round loop of `quoron train`, its engine over a table in memory, and noise that is fit for people."""
    from quoron.data.users import Declared
    from quoron.training.table import CuratorEngine
    from quoron_client import ItemBatch, make_loss
    from quoron_client.protocol.domains import L2Ball
    from quoron_privacy.noise.streams import SecureNoise
    from quoron_server.algorithms import ALGORITHMS
    from quoron_server.plan import Privacy
    from quoron_server.problem import Problem
    from quoron_server.rounds import run, without_ledger
    from quoron_server.storage.ledger import Ledger

    features, labels = job.data()
    rows = features.reshape(-1, job.features)
    batch = ItemBatch(rows, labels.reshape(-1).astype(np.float64), np.arange(job.users + 1) * job.items)
    domain, noise, kind = L2Ball(10.0), SecureNoise.fresh(), ALGORITHMS["dp-sgd-wor"]
    declared = Declared(job.users, job.items, job.features, make_loss("logistic"), domain)
    engine = CuratorEngine(declared, batch, noise)
    problem = Problem(job.users, job.items, job.features, domain, lipschitz=1.0, smoothness=0.25)
    options = kind.options_for("calibrated")(rounds=1_000, rate=job.cohort / job.users, clip_norm=job.clip)
    algorithm = kind.make(kind.plan(problem, Privacy(8.0, 1e-7), options))

    class Turns:
        def ask(self, question: Any) -> Any:
            turn()  # from question to question: the commits between them belong to a round
            return engine.ask(question)

    with tempfile.TemporaryDirectory() as folder:
        path, key = Path(folder) / "ledger.sqlite", noise.export_key()
        if not ledger:
            without_ledger(algorithm, Turns(), noise)
        with Ledger.create(path, plan="{}", config_digest="", noise_key=key) as store:
            run(algorithm, Turns(), store, noise, trust_clients=True)


def by_hand(job: Job, clipped_sum: Callable[[Any, Any], Any]) -> None:
    """Rounds of a function of (cohort or None, model) that returns the clipped sum."""
    rng, model = np.random.default_rng(2), np.zeros(job.features, np.float32)
    cohorts = job.cohorts()
    while True:
        turn()
        total = clipped_sum(next(cohorts), model) + job.noise * job.clip * rng.standard_normal(job.features)
        model = (model - 0.1 * total / job.cohort).astype(np.float32)


def numpy(job: Job) -> None:
    """A gather, two products, a clip."""
    blocks, signs = job.data()

    def clipped_sum(chosen: Any, model: Any) -> Any:
        items, marks = (blocks, signs) if chosen is None else (blocks[chosen], signs[chosen])
        slopes = -marks / (1.0 + np.exp(marks * np.matmul(items, model))) / job.items
        rows = np.matmul(slopes[:, None, :], items)[:, 0]
        rows *= np.minimum(1.0, job.clip / np.maximum(np.linalg.norm(rows, axis=1), 1e-30))[:, None]
        return rows.sum(axis=0)

    by_hand(job, clipped_sum)


def in_c(job: Job) -> None:
    """The same in one call of `peers.c`."""
    blocks, signs = job.data()
    with tempfile.TemporaryDirectory() as folder:
        made, source = f"{folder}/peers.so", str(Path(__file__).with_suffix(".c"))
        flags = ["-O3", "-march=native", "-fopenmp", "-shared", "-fPIC"]
        subprocess.run(["gcc", *flags, source, "-o", made, "-lm"], check=True)
        call = ctypes.CDLL(made).clipped_sum
    sizes = [ctypes.c_int64(size) for size in (job.cohort, job.items, job.features)]

    def clipped_sum(chosen: Any, model: Any) -> Any:
        total = np.zeros(job.features, np.float32)
        at = [None if array is None else array.ctypes.data_as(ctypes.c_void_p) for array in (chosen, model, total)]
        data = (array.ctypes.data_as(ctypes.c_void_p) for array in (blocks, signs))
        call(*data, at[0], *sizes, at[1], ctypes.c_float(job.clip), at[2])
        return total

    by_hand(job, clipped_sum)


def in_jax(job: Job, gradient: Any = None) -> None:
    """Data on the device once, a round one compiled call; the clipped sum is `gradient`'s, or by hand."""
    import jax
    import jax.numpy as jnp

    def clipped_sum(model: Any, blocks: Any, signs: Any) -> Any:
        slopes = -signs * jax.nn.sigmoid(-signs * (blocks @ model)) / job.items
        rows = jnp.einsum("um,umd->ud", slopes, blocks)
        return jnp.minimum(1.0, job.clip / jnp.maximum(jnp.linalg.norm(rows, axis=1), 1e-30)) @ rows

    @jax.jit
    def step(model: Any, blocks: Any, signs: Any, chosen: Any, key: Any) -> tuple[Any, Any]:
        key, own = jax.random.split(key)
        noise = job.noise * job.clip * jax.random.normal(own, model.shape)
        if chosen is not None:
            take = {"mode": "promise_in_bounds", "unique_indices": True}
            blocks, signs = blocks.at[chosen].get(**take), signs.at[chosen].get(**take)
        return model - 0.1 * ((gradient or clipped_sum)(model, blocks, signs) + noise) / job.cohort, key

    model, key, data = jnp.zeros(job.features), jax.random.key(0), [jnp.asarray(array) for array in job.data()]
    for chosen in job.cohorts():
        turn()
        model, key = step(model, *data, chosen, key)
        model.block_until_ready()


def jax_privacy(job: Job) -> None:
    """`clipped_grad` over a batch of users."""
    import jax
    from jax_privacy.clipping import clipped_grad

    def loss(model: Any, items: Any, marks: Any) -> Any:
        return jax.numpy.mean(jax.nn.softplus(-marks * (items @ model)))

    in_jax(job, clipped_grad(loss, argnums=0, batch_argnums=(1, 2), l2_clip_norm=job.clip, keep_batch_dim=False))


def opacus(job: Job) -> None:
    """Gradients of samples that are users: their items are a sample's second axis, over which the loss is a mean."""
    import torch
    from opacus import GradSampleModule
    from opacus.optimizers import DPOptimizer

    blocks, signs = (torch.from_numpy(array) for array in job.data())
    model: Any = GradSampleModule(torch.nn.Linear(job.features, 1, bias=False))
    plain = torch.optim.SGD(model.parameters(), lr=0.1)
    noised = {"noise_multiplier": job.noise, "max_grad_norm": job.clip, "expected_batch_size": job.cohort}
    optimizer, virtual = DPOptimizer(plain, **noised), max(1, (1 << 22) // (job.items * job.features))
    for chosen in job.cohorts():
        turn()
        users = torch.arange(job.users) if chosen is None else torch.from_numpy(chosen)
        for first in range(0, job.cohort, virtual):
            own = users[first : first + virtual]
            optimizer.signal_skip_step(do_skip=first + virtual < job.cohort)
            torch.nn.functional.softplus(-signs[own] * model(blocks[own])[..., 0]).mean().backward()
            optimizer.step()
            optimizer.zero_grad()


def pfl(job: Job) -> None:
    """`FederatedAveraging` on the simulated backend with a central Gaussian mechanism."""
    import torch
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data.dataset import Dataset
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
    from pfl.model.pytorch import PyTorchModel
    from pfl.privacy.gaussian_mechanism import GaussianMechanism
    from pfl.privacy.privacy_mechanism import CentrallyAppliedPrivacyMechanism

    class Linear(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weights = torch.nn.Parameter(torch.zeros(job.features))

        def loss(self, items: Any, marks: Any) -> Any:
            return torch.nn.functional.softplus(-marks * (items @ self.weights)).mean()

        def metrics(self, items: Any, marks: Any) -> dict[str, Any]:
            return {}

    class Turns(TrainingProcessCallback):
        def after_central_iteration(self, aggregate_metrics: Any, model: Any, *, central_iteration: int) -> Any:
            turn()
            return super().after_central_iteration(aggregate_metrics, model, central_iteration=central_iteration)

    blocks, signs = (torch.from_numpy(array) for array in job.data())
    module, often = Linear(), 10**9
    model = PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0))
    sampler = get_user_sampler("random", list(range(job.users)))
    data = FederatedDataset(lambda user: Dataset([blocks[user], signs[user]]), sampler)
    mechanism = CentrallyAppliedPrivacyMechanism(GaussianMechanism(job.clip, job.noise))
    turn()
    FederatedAveraging().run(
        NNAlgorithmParams(often, evaluation_frequency=often, train_cohort_size=job.cohort, val_cohort_size=0),
        SimulatedBackend(data, data, postprocessors=[mechanism]),
        model,
        NNTrainHyperParams(local_num_epochs=1, local_learning_rate=0.1, local_batch_size=None),
        NNEvalHyperParams(local_batch_size=None),
        callbacks=[Turns()],
    )


def flower(job: Job) -> None:
    """A simulation of one node a user: `FedAvg` in a fixed-clipping wrapper, whose clients take the same local step."""
    from flwr.app import ArrayRecord, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.common import Message
    from flwr.serverapp import ServerApp
    from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg
    from flwr.simulation import run_simulation

    client, server = ClientApp(), ServerApp()
    shape, share = astuple(job), job.cohort / job.users
    os.environ["PYTHONPATH"] = str(Path(__file__).parent)  # of the processes that answer for users

    @client.train()
    def train(message: Message, context: Any) -> Message:
        from peers import Job, users_of  # once in each of them

        blocks, signs = users_of(Job(*shape))
        user = int(context.node_config["partition-id"])
        items, marks = blocks[user], signs[user]
        (model,) = message.content["arrays"].to_numpy_ndarrays()
        slopes = -marks / (1.0 + np.exp(marks * (items @ model))) / len(items)
        stepped = ArrayRecord([(model - 0.1 * (slopes @ items)).astype(np.float32)])
        content = RecordDict({"arrays": stepped, "metrics": MetricRecord({"num-examples": len(items)})})
        return Message(content, reply_to=message)

    @server.main()
    def main(grid: Any, context: Any) -> None:
        arrays = ArrayRecord([np.zeros(job.features, np.float32)])
        plain = FedAvg(fraction_train=share, fraction_evaluate=0.0, min_available_nodes=job.users)
        while True:
            turn()
            private = DifferentialPrivacyServerSideFixedClipping(plain, job.noise, job.clip, job.cohort)
            arrays = private.start(grid, arrays, num_rounds=1).arrays

    run_simulation(server, client, job.users, backend_config={"client_resources": {"num_cpus": 1}})


users_of = cache(Job.data)
CONTESTANTS: dict[str, tuple[Callable[[Job], None], str]] = {  # and the module without which there is none
    "a read of the same bytes": (reading, "numba"),
    "quoron with its ledger": (partial(quoron, ledger=True), "quoron"),
    "quoron": (partial(quoron, ledger=False), "quoron"),
    "numpy by hand": (numpy, "numpy"),
    "C by hand": (in_c, "numpy"),
    "JAX by hand": (in_jax, "jax"),
    "jax-privacy": (jax_privacy, "jax_privacy"),
    "Opacus": (opacus, "opacus"),
    "pfl": (pfl, "pfl"),
    "Flower": (flower, "ray"),
}


class Process:
    """A contestant in a process of its own."""

    def __init__(self, name: str, python: str, job: Job, limit: float) -> None:
        command = [python, __file__, "--contestant", name, *map(str, astuple(job))]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        self.process = subprocess.Popen(command, text=True, **pipes)
        self.times: list[float] = []
        self.limit = limit

    def turn(self) -> None:
        """One round, unless this contestant has had its time."""
        to: Any = self.process.stdin
        answers: Any = self.process.stdout
        if sum(self.times[1:]) > self.limit or self.process.poll() is not None:
            return
        timer = Timer(5 * self.limit, self.process.kill)
        timer.start()
        to.write("go\n")
        to.flush()
        taken = next((line for line in answers if line.startswith("took ")), None)
        timer.cancel()
        if taken is not None:
            self.times.append(float(taken.split()[1]))

    def seconds(self) -> float | None:
        """Of the fastest round, which others on the machine delayed least, or the only one; None without a round."""
        return min(self.times[1:] or self.times, default=None)


def measured(job: Job, pythons: dict[str, str], rounds: int, limit: float) -> dict[str, float | None]:
    """Seconds of a round of each contestant."""
    with tempfile.TemporaryDirectory() as folder:
        own = replace(job, folder=folder)
        own.make()
        there = {name: Process(name, python, own, limit) for name, python in pythons.items()}
        for _ in range(rounds):
            for process in there.values():
                process.turn()
        for process in there.values():
            process.process.communicate()
    return {name: process.seconds() for name, process in there.items()}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, nargs="+", default=range(1, len(JOBS) + 1), metavar="NUMBER")
    parser.add_argument("--rounds", type=int, default=51)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--with", action="append", default=[], dest="elsewhere", metavar="NAME=PYTHON")
    given = parser.parse_args()
    pythons = dict(each.split("=", 1) for each in given.elsewhere)
    if unknown := pythons.keys() - CONTESTANTS.keys():
        parser.error(f"Expected a contestant, got {sorted(unknown)[0]!r}; there are {', '.join(CONTESTANTS)}.")
    for name, (_, module) in CONTESTANTS.items():
        if importlib.util.find_spec(module) is not None and (name != "C by hand" or shutil.which("gcc")):
            pythons.setdefault(name, sys.executable)
    loads, columns = [os.getloadavg()[0]], []
    jobs = [JOBS[number - 1] for number in given.jobs]
    for job in jobs:
        columns.append(measured(job, pythons, given.rounds, given.seconds))
        loads.append(os.getloadavg()[0])
    print(f"{given.rounds} rounds in turns on {os.cpu_count()} processors, load averages {loads}")
    print("users a second in the fastest round; in brackets its time over that of quoron without its ledger")
    print("".join(f"| {j.cohort:,} of {j.users:,}, {j.items} × {j.features} " for j in jobs).join(("| ", "|")))
    print("| --- " + "| ---: " * len(jobs) + "|")
    for name in CONTESTANTS:
        cells = []
        for job, seconds in zip(jobs, columns, strict=True):
            taken, own = seconds.get(name), seconds.get("quoron")
            ratio = f" ({taken / own:.2g})" if taken and own and name not in ("quoron", next(iter(CONTESTANTS))) else ""
            cells.append(f"{job.cohort / taken:,.0f}{ratio}" if taken else "–")
        print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--contestant"]:
        *numbers, clip, noise, folder = sys.argv[3:]
        cohort, users, items, features = map(int, numbers)
        CONTESTANTS[sys.argv[2]][0](Job(cohort, users, items, features, float(clip), float(noise), folder))
    else:
        main()
