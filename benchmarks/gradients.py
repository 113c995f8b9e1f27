"""Average gradients of many users against the machine's own read bandwidth and against the best plain numpy.

    python benchmarks/gradients.py [--users 100000] [--items 20] [--dimension 100] [--repeats 9]

Every figure is a ratio of medians measured in this run, the contestants taking turns, so that a busy machine slows all
of them alike. numpy gets float32 arithmetic and its own threaded matrix products; ours is float64 throughout.
"""

import argparse
from collections.abc import Callable
from functools import partial
from time import perf_counter

import numba
import numpy as np
from numpy.typing import NDArray

from quoron_client import AverageGradient, ItemBatch, average_gradient, make_loss

Floats = NDArray[np.float32]


def parallel_sum(values: Floats) -> float:
    total = np.float32(0.0)
    for i in numba.prange(values.size):
        total += values[i]
    return float(total)


def numpy_gradients(items: Floats, labels: Floats, point: Floats) -> Floats:
    margins = labels * np.matmul(items, point)
    coefficients = -labels / (1.0 + np.exp(margins)) / items.shape[1]
    gradients: Floats = np.matmul(coefficients[:, None, :], items)[:, 0]
    return gradients


def medians(contestants: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Median seconds of each, taking turns, after one turn that is not counted."""
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(repeats + 1):
        for name, run in contestants.items():
            start = perf_counter()
            run()
            times[name].append(perf_counter() - start)
    return {name: float(np.median(values[1:])) for name, values in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description="Average gradients: ratios to read bandwidth and to numpy.")
    parser.add_argument("--users", type=int, default=100_000)
    parser.add_argument("--items", type=int, default=20)
    parser.add_argument("--dimension", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=9)
    options = parser.parse_args()
    n, m, d = options.users, options.items, options.dimension

    rng = np.random.default_rng(0)
    features = rng.standard_normal((n * m, d), dtype=np.float32)
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    labels = np.sign(rng.standard_normal(n * m))
    points = rng.standard_normal((2, d)) / np.sqrt(d)
    batch = ItemBatch(features, labels, np.arange(n + 1) * m)
    blocks, signs = features.reshape(n, m, d), labels.reshape(n, m).astype(np.float32)
    one, two = AverageGradient(points[:1], (1.0,)), AverageGradient(points, (1.0, -0.9))
    read = numba.njit(parallel=True, fastmath=True)(parallel_sum)
    logistic, huber = make_loss("logistic"), make_loss("huber")
    times = medians(
        {
            "read": partial(read, features.reshape(-1)),
            "numpy": partial(numpy_gradients, blocks, signs, points[0].astype(np.float32)),
            "logistic, one point": partial(average_gradient, logistic, batch, one),
            "logistic, two points": partial(average_gradient, logistic, batch, two),
            "huber, one point": partial(average_gradient, huber, batch, one),
            "huber, two points": partial(average_gradient, huber, batch, two),
        },
        options.repeats,
    )
    size = f"{n:,} users x {m} items x {d} features, float32, {features.nbytes / 1e9:.2f} GB"
    print(f"{size}, {numba.get_num_threads()} threads")
    print(f"{'':22s}{'share of read bandwidth':>25s}{'times numpy':>14s}{'two / one':>12s}")
    for name in list(times)[1:]:
        pair = times[name] / times[name.replace("two points", "one point")]
        last = f"{pair:12.2f}" if name.endswith("two points") else ""
        print(f"{name:22s}{times['read'] / times[name]:25.2f}{times['numpy'] / times[name]:14.2f}{last}")


if __name__ == "__main__":
    main()
