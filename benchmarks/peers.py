"""One job on quoron and on peers: clipped, noised sums of users' average gradients, in turns, beside the read limit.

    python benchmarks/peers.py                                          # 10,000 users, 1,000 a round
    python benchmarks/peers.py --users 1000000 --items 10 --features 20 --cohort 10000
    python benchmarks/peers.py --with pfl=/path/to/python --with jax-privacy=/path/to/python
    python benchmarks/peers.py --rounds 5 --with flower=/path/to/python   # "flwr[simulation]": some seconds a round

A round draws a cohort, computes every user's average gradient of a logistic loss over all of its items, clips it,
sums, and adds Gaussian noise. Every contestant is a process of its own, of whatever interpreter has it installed
(`--with`), with the same users from the same seed, and works only when it is its turn. `numpy` is what one writes by
hand, in float32. pfl and Flower's simulation take one local step over all items, which is the gradient times its step.
The read limit is one pass over as many bytes as a cohort holds, on as many threads as numba has; durable books are not
part of a round here (`engine.py` times them apart).
"""

import argparse
import importlib.util
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import astuple, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

Round = Callable[[], object]
LOAD = os.getloadavg()[0]


@dataclass(frozen=True)
class Job:
    """What everybody does."""

    users: int
    items: int
    features: int
    cohort: int
    clip: float = 1.0
    noise: float = 1.0  # times the clip

    def data(self) -> tuple[Any, Any]:
        """Features (users · items, features) float32 of rows of norm 1, labels ±1."""
        rng = np.random.default_rng(0)
        features = rng.standard_normal((self.users * self.items, self.features), dtype=np.float32)
        features /= np.sqrt(np.einsum("ij,ij->i", features, features))[:, None] * np.float32(1.00001)
        return features, np.sign(rng.standard_normal(len(features))).astype(np.float32)


def reading(job: Job) -> Round:
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
    return lambda: compiled(features[(start := next(places)) : start + size])


def quoron(job: Job) -> Round:
    """A table in memory, the curator's engine, the mechanism's own sum and noise."""
    from quoron.data.users import Declared
    from quoron.training.table import CuratorEngine
    from quoron_client import AverageGradient, ItemBatch, make_loss
    from quoron_client.protocol.domains import L2Ball
    from quoron_client.protocol.questions import Question, summed
    from quoron_privacy.gaussian import GaussianNoise, mean_sensitivity
    from quoron_privacy.means.clipping import ClippedSum
    from quoron_privacy.noise.streams import SecureNoise

    features, labels = job.data()
    batch = ItemBatch(features, labels.astype(np.float64), np.arange(job.users + 1) * job.items)
    declared = Declared(job.users, job.items, job.features, make_loss("logistic"), L2Ball(10.0))
    noise = SecureNoise.fresh()
    engine, reduction = CuratorEngine(declared, batch, noise), ClippedSum(job.clip, job.cohort)
    release = GaussianNoise(mean_sensitivity(job.clip, job.cohort), job.noise * job.clip / job.cohort)
    model, rounds = np.zeros(job.features), iter(range(10**9))

    def go() -> None:
        nonlocal model
        number = next(rounds)
        stream = noise.stream("cohort", number)
        cohort = stream.subset(job.users, job.cohort)
        question = Question(number, cohort, AverageGradient(model[None], (1.0,)), reduction=reduction)
        mean = reduction.mean(summed(engine.ask(question), reduction))
        model = model - 0.1 * release.release(mean, noise.stream("release", number))

    return go


def numpy(job: Job) -> Round:
    """What one writes by hand: a gather, two products, a clip."""
    features, labels = job.data()
    blocks, signs = features.reshape(job.users, job.items, -1), labels.reshape(job.users, -1)
    rng, model = np.random.default_rng(1), np.zeros(job.features, np.float32)

    def go() -> None:
        nonlocal model
        chosen = rng.choice(job.users, job.cohort, replace=False)
        items, marks = blocks[chosen], signs[chosen]
        slopes = -marks / (1.0 + np.exp(marks * np.matmul(items, model))) / job.items
        rows = np.matmul(slopes[:, None, :], items)[:, 0]
        rows *= np.minimum(1.0, job.clip / np.maximum(np.linalg.norm(rows, axis=1), 1e-30))[:, None]
        total = rows.sum(axis=0) + job.noise * job.clip * rng.standard_normal(job.features)
        model = (model - 0.1 * total / job.cohort).astype(np.float32)

    return go


def jax_privacy(job: Job) -> Round:
    """`clipped_grad` over a batch of users: data on the device once, a round one compiled call, as it is best used."""
    import jax
    import jax.numpy as jnp
    from jax_privacy.clipping import clipped_grad

    features, labels = job.data()
    blocks = jnp.asarray(features.reshape(job.users, job.items, -1))
    signs = jnp.asarray(labels.reshape(job.users, -1))
    rng = np.random.default_rng(1)

    def loss(model: Any, items: Any, marks: Any) -> Any:
        return jnp.mean(jax.nn.softplus(-marks * (items @ model)))

    gradient = clipped_grad(loss, argnums=0, batch_argnums=(1, 2), l2_clip_norm=job.clip, keep_batch_dim=False)

    @jax.jit
    def step(model: Any, blocks: Any, signs: Any, chosen: Any, key: Any) -> tuple[Any, Any]:
        key, own = jax.random.split(key)
        noise = job.noise * job.clip * jax.random.normal(own, model.shape)
        if job.cohort < job.users:  # everybody needs no gathering
            blocks, signs = (
                each.at[chosen].get(mode="promise_in_bounds", unique_indices=True) for each in (blocks, signs)
            )
        return model - 0.1 * (gradient(model, blocks, signs) + noise) / job.cohort, key

    model, key = jnp.zeros(job.features), jax.random.key(0)

    def go() -> None:
        nonlocal model, key
        chosen = rng.choice(job.users, job.cohort, replace=False)
        model, key = step(model, blocks, signs, chosen, key)
        model.block_until_ready()

    return go


def pfl(job: Job) -> Iterator[None]:
    """`FederatedAveraging` on the simulated backend with a central Gaussian mechanism, a round whenever it goes on."""
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
            answered(time.perf_counter() - self.began)
            self.began = awaited()
            return False, super().after_central_iteration(
                aggregate_metrics, model, central_iteration=central_iteration
            )[1]

        def on_train_begin(self, *, model: Any) -> Any:
            self.began = awaited()
            return super().on_train_begin(model=model)

    features, labels = job.data()
    blocks = torch.from_numpy(features.reshape(job.users, job.items, -1))
    signs = torch.from_numpy(labels.reshape(job.users, -1))
    module = Linear()
    model = PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0))
    sampler = get_user_sampler("random", list(range(job.users)))
    data = FederatedDataset(lambda user: Dataset([blocks[user], signs[user]]), sampler)
    mechanism = CentrallyAppliedPrivacyMechanism(GaussianMechanism(job.clip, job.noise))
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=10**9,
            evaluation_frequency=10**9,
            train_cohort_size=job.cohort,
            val_cohort_size=0,
        ),
        SimulatedBackend(data, data, postprocessors=[mechanism]),
        model,
        NNTrainHyperParams(local_num_epochs=1, local_learning_rate=0.1, local_batch_size=None),
        NNEvalHyperParams(local_batch_size=None),
        callbacks=[Turns()],
    )
    yield


def flower(job: Job) -> Iterator[None]:
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
        from peers import users_of  # once in each of them

        blocks, signs = users_of(*shape)
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
            line = sys.stdin.readline()
            if not line:
                return
            began = time.perf_counter()
            private = DifferentialPrivacyServerSideFixedClipping(plain, job.noise, job.clip, job.cohort)
            arrays = private.start(grid, arrays, num_rounds=1).arrays
            answered(time.perf_counter() - began)

    run_simulation(server, client, job.users, backend_config={"client_resources": {"num_cpus": 1}})
    raise SystemExit
    yield


@cache
def users_of(*shape: Any) -> tuple[Any, Any]:
    """A job's features (users, items, features) and labels (users, items)."""
    job = Job(*shape)
    features, labels = job.data()
    return features.reshape(job.users, job.items, -1), labels.reshape(job.users, -1)


CONTESTANTS: dict[str, tuple[Callable[[Job], Any], str]] = {  # and the module without which there is none
    "read limit": (reading, "numba"),
    "quoron": (quoron, "quoron"),
    "numpy": (numpy, "numpy"),
    "jax-privacy": (jax_privacy, "jax_privacy"),
    "pfl": (pfl, "pfl"),
    "flower": (flower, "ray"),
}


def awaited() -> float:
    """Until it is one's turn; when that began. Ends the process with its last turn."""
    if not sys.stdin.readline():
        raise SystemExit
    return time.perf_counter()


def answered(seconds: float) -> None:
    print(f"took {seconds}", flush=True)


def contestant(name: str, job: Job) -> None:
    """Answers every line of stdin with the seconds of a round."""
    go = CONTESTANTS[name][0](job)
    if isinstance(go, Iterator):
        next(go)
        return
    while True:
        began = awaited()
        go()
        answered(time.perf_counter() - began)


class Process:
    """A contestant in a process of its own."""

    def __init__(self, name: str, python: str, job: Job) -> None:
        shape = [str(each) for each in (job.users, job.items, job.features, job.cohort)]
        command = [python, __file__, "--contestant", name, *shape]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )

    def turn(self) -> float | None:
        """Seconds of one round; None from a process that has ended."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.write("go\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            return None
        for line in self.process.stdout:
            if line.startswith("took "):
                return float(line.split()[1])
        return None

    def end(self) -> None:
        """No more turns."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--users", type=int, default=10_000)
    parser.add_argument("--items", type=int, default=20)
    parser.add_argument("--features", type=int, default=100)
    parser.add_argument("--cohort", type=int, default=1_000)
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--with", action="append", default=[], dest="elsewhere", metavar="NAME=PYTHON")
    given = parser.parse_args()
    job = Job(given.users, given.items, given.features, given.cohort)
    elsewhere = dict(each.split("=", 1) for each in given.elsewhere)
    there, absent = {}, []
    for name, (_, module) in CONTESTANTS.items():
        if name in elsewhere or importlib.util.find_spec(module) is not None:
            there[name] = Process(name, elsewhere.get(name, sys.executable), job)
        else:
            absent.append(name)
    times: dict[str, list[float]] = {name: [] for name in there}
    for number in range(given.rounds + 2):
        for name in list(there):
            taken = there[name].turn()
            if taken is None:
                there.pop(name)
                absent.append(name)
            elif number >= 2:  # compiling and warming up
                times[name].append(taken)
    for process in there.values():
        process.end()
    size = f"{job.users:,} users x {job.items} items x {job.features} features, cohorts of {job.cohort:,}"
    print(f"{size}; {given.rounds} rounds each in turns; medians (fastest), of ratios within a turn (quartiles)")
    print(f"load average {os.getloadavg()[0]:.1f} of {os.cpu_count()} processors, {LOAD:.1f} at the start")
    if absent:
        print(f"not installed, or failed: {', '.join(absent)}")
    print(f"{'':12s}{'ms a round':>20s}{'users/s':>14s}{'quoron is':>22s}{'of read limit':>15s}")
    own, limit = times["quoron"], statistics.median(times["read limit"])
    for name in there:
        median = statistics.median(times[name])
        text = f"{1e3 * median:.2f} ({1e3 * min(times[name]):.2f})"
        low, middle, high = statistics.quantiles([a / b for a, b in zip(times[name], own, strict=False)], n=4)
        ratio = "" if name == "read limit" else f"{middle:.2f} x ({low:.2f}-{high:.2f})"
        print(f"{name:12s}{text:>20s}{job.cohort / median:14,.0f}{ratio:>22s}{limit / median:15.3f}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--contestant"]:
        contestant(sys.argv[2], Job(*(int(each) for each in sys.argv[3:7])))
    else:
        main()
