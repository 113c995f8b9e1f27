"""The concentration test by bounds against all pairs, and against computing the cohort's gradients.

    python benchmarks/concentration.py [--users 10000] [--items 20] [--dimension 50] [--repeats 9]

Every figure is a ratio of medians measured in this run, the contestants taking turns, so that a busy machine slows all
of them alike. Thresholds are those of a private round: 0.77 of the cohort, Laplace noise of scale 86 · users / 15,000.
"""

import argparse
from collections.abc import Callable
from functools import partial
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from quoron_client import AverageGradient, ItemBatch, average_gradient, make_loss
from quoron_privacy.robust.filter import concentration
from quoron_privacy.robust.filter.decisions import decide, decide_by_all_pairs, filtered_mean

Matrix = NDArray[np.float64]
STEP = 2.0**-16


def medians(contestants: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Median seconds of each, taking turns, after one turn that is not counted."""
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(repeats + 1):
        for name, run in contestants.items():
            start = perf_counter()
            run()
            times[name].append(perf_counter() - start)
    return {name: float(np.median(values[1:])) for name, values in times.items()}


def cohorts(users: int, dimension: int, rng: np.random.Generator) -> dict[str, Matrix]:
    """Answers at pairwise distance about 1: as expected, with strays, with a second cluster, and hard to decide."""
    near = rng.standard_normal((users, dimension)) / np.sqrt(2 * dimension)
    strays, clusters = near.copy(), near.copy()
    strays[:50] *= 30.0
    clusters[: users // 7, 0] += 5.0
    radii = np.sqrt(12 * rng.random((users, 1)))
    return {"ordinary": near, "50 strays": strays, "a cluster of 1/7": clusters, "wide spread": near * radii}


def main() -> None:
    parser = argparse.ArgumentParser(description="Concentration test: ratios to all pairs and to gradients.")
    parser.add_argument("--users", type=int, default=10_000)
    parser.add_argument("--items", type=int, default=20)
    parser.add_argument("--dimension", type=int, default=50)
    parser.add_argument("--repeats", type=int, default=9)
    options = parser.parse_args()
    n, m, d, tau = options.users, options.items, options.dimension, 0.15

    rng = np.random.default_rng(0)
    features = rng.standard_normal((n * m, d), dtype=np.float32)
    batch = ItemBatch(features, np.sign(rng.standard_normal(n * m)), np.arange(n + 1) * m)
    task = AverageGradient(rng.standard_normal((1, d)) / np.sqrt(d), (1.0,))
    gradients = partial(average_gradient, make_loss("logistic"), batch, task)
    answered = np.ones(n, dtype=np.bool_)
    thresholds = np.rint((0.77 * n - rng.laplace(size=n) * 86 * n / 15_000) / STEP).astype(np.int64)

    print(f"{n:,} users x {d} coordinates; gradients of {m} items each")
    print(f"{'':20s}{'all pairs / bounds':>20s}{'gradients / bounds':>20s}{'kept':>10s}{'undecided':>12s}")
    for name, rows in cohorts(n, d, rng).items():
        test = (rows, answered, tau, thresholds)
        outcome = decide(*test, step=STEP)
        if not np.array_equal(outcome.kept, decide_by_all_pairs(*test, step=STEP).kept):
            raise AssertionError("bounds and all pairs disagree")
        contestants: dict[str, Callable[[], object]] = {
            "bounds": partial(decide, *test, step=STEP),
            "pairs": partial(decide_by_all_pairs, *test, step=STEP),
            "gradients": gradients,
            "scores": partial(concentration.scores, rows, tau),
            "mean": partial(filtered_mean, rows, outcome.kept),
        }
        times = medians(contestants, options.repeats)
        ratios = [times[other] / times["bounds"] for other in ("pairs", "gradients")]
        line = f"{outcome.kept.mean():10.2%}{outcome.undecided / n:12.2%}"
        print(f"{name:20s}{ratios[0]:20.1f}{ratios[1]:20.2f}{line}")
    share = times["mean"] / times["bounds"]
    print(
        f"last row: all-pairs scores / gradients {times['scores'] / times['gradients']:.1f}, mean / bounds {share:.4f}"
    )


if __name__ == "__main__":
    main()
