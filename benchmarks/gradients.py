"""Average gradients, their sums and local SGD of many users, as shares of what the machine reads of their items.

    python benchmarks/gradients.py [--megabytes 200] [--repeats 9] [--dimension 20 100 500] [--items 1 10 100]

A share is the time of a plain sum over the same float32 features, by as many threads, over that of a kernel: 1 would
be a kernel that costs nothing but its one read. Both are the least processor seconds of so many turns, the contestants
taking turns, so that a machine with other work to do shows little; fresh memory for rows is not in it. Rows of short
users are more bytes than their items: a kernel that writes them cannot reach 1, sums can.
"""

import argparse
from collections.abc import Callable
from functools import partial
from time import process_time

import numba
import numpy as np
from numpy.typing import NDArray

from quoron_client import AverageGradient, ItemBatch, LocalSGD, average_gradient, local_sgd, make_loss
from quoron_client.compute.gradients import gradient_sums
from quoron_client.protocol.domains import L2Ball
from quoron_privacy.means.clipping import ClippedSum

Floats = NDArray[np.float32]


def parallel_sum(values: Floats) -> float:
    total = np.float32(0.0)
    for i in numba.prange(values.size):
        total += values[i]
    return float(total)


def least(contestants: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Least processor seconds of each, taking turns, after one turn that is not counted."""
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(repeats + 1):
        for name, run in contestants.items():
            start = process_time()
            run()
            times[name].append(process_time() - start)
    return {name: min(values[1:]) for name, values in times.items()}


def shares(users: int, items: int, dimension: int, repeats: int) -> tuple[float, dict[str, float]]:
    """Bytes the machine reads a processor second, and the share of that which each kernel reaches."""
    rng = np.random.default_rng(0)
    features = rng.standard_normal((users * items, dimension), dtype=np.float32)
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    labels = np.sign(rng.standard_normal(users * items))
    points = rng.standard_normal((2, dimension)) / np.sqrt(dimension)
    batch = ItemBatch(features, labels, np.arange(users + 1) * items)
    one, two = AverageGradient(points[:1], (1.0,)), AverageGradient(points, (1.0, -0.9))
    passes = LocalSGD(np.zeros((users, dimension)), 0.5, L2Ball(1.0))
    read = numba.njit(parallel=True, fastmath=True)(parallel_sum)
    loss, reduction = make_loss("logistic"), ClippedSum(0.1, users)
    times = least(
        {
            "read": partial(read, features.reshape(-1)),
            "rows, one point": partial(average_gradient, loss, batch, one),
            "rows, two": partial(average_gradient, loss, batch, two),
            "sums, one point": partial(gradient_sums, loss, batch, one, reduction),
            "sums, two": partial(gradient_sums, loss, batch, two, reduction),
            "local SGD": partial(local_sgd, loss, batch, passes),
        },
        repeats,
    )
    whole = times.pop("read")
    return features.nbytes / whole, {name: whole / taken for name, taken in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--dimension", type=int, nargs="+", default=[20, 100, 500])
    parser.add_argument("--items", type=int, nargs="+", default=[1, 10, 100])
    given = parser.parse_args()
    print(
        f"{given.megabytes} MB of float32 features, {numba.get_num_threads()} threads, logistic loss; shares of a read"
    )
    heading = None
    for dimension in given.dimension:
        for items in given.items:
            users = max(1, given.megabytes * 250_000 // (items * dimension))
            rate, found = shares(users, items, dimension, given.repeats)
            if heading is None:
                heading = "".join(f"{name:>17s}" for name in found)
                print(f"{'features':>8s}{'items':>6s}{'GB/s':>6s}{heading}")
            print(f"{dimension:8d}{items:6d}{rate / 1e9:6.1f}" + "".join(f"{share:17.2f}" for share in found.values()))


if __name__ == "__main__":
    main()
