"""Counts of close answers by bounds against a blocked product of all pairs.

    python benchmarks/neighbour_counts.py [--users 100000] [--dimension 100] [--repeats 3]

Every figure is a ratio of medians measured in this run, the contestants taking turns, so that a busy machine slows both
alike. The contestant computes ‖a‖² + ‖b‖² - 2⟨a, b⟩ for each pair once, in double precision, by NumPy's matrix product.
Its counts may differ from the rule's where a pair lies within rounding of the radius; here they are checked to agree.
"""

import argparse
from collections.abc import Callable
from functools import partial
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from quoron_privacy.robust.neighbour_counts import neighbour_counts

Matrix = NDArray[np.float64]
BLOCK = 2048


def by_products(rows: Matrix, radii: tuple[float, ...]) -> NDArray[np.int64]:
    """Counts from a blocked product of all pairs, each unordered pair of blocks once."""
    squares, users = (rows * rows).sum(axis=1), len(rows)
    counts = np.zeros((len(radii), users), np.int64)
    for first in range(0, users, BLOCK):
        last = min(first + BLOCK, users)
        for low in range(first, users, BLOCK):
            high = min(low + BLOCK, users)
            distances = rows[first:last] @ rows[low:high].T
            distances *= -2.0
            distances += squares[first:last, None]
            distances += squares[low:high]
            for k, radius in enumerate(radii):
                near = distances <= radius * radius
                counts[k, first:last] += np.count_nonzero(near, axis=1)
                if low > first:
                    counts[k, low:high] += np.count_nonzero(near, axis=0)
    return counts


def medians(contestants: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Median seconds of each, taking turns."""
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(repeats):
        for name, run in contestants.items():
            start = perf_counter()
            run()
            times[name].append(perf_counter() - start)
    return {name: float(np.median(values)) for name, values in times.items()}


def cohorts(users: int, dimension: int, rng: np.random.Generator) -> dict[str, tuple[Matrix, float]]:
    """Answers at typical pairwise distance 1, and the radius in that unit: 2 is generous, 1.5 usual, 1.2 tight."""
    near = rng.standard_normal((users, dimension)) / np.sqrt(2 * dimension)
    strays = near.copy()
    strays[: users // 1000] *= 10.0 ** rng.integers(1, 7, size=(users // 1000, 1))
    clusters = near.copy()
    clusters[: users // 7, 0] += 50.0
    return {
        "radius 2": (near, 2.0),
        "radius 2, 0.1% strays": (strays, 2.0),
        "radius 2, cluster of 1/7": (clusters, 2.0),
        "radius 1.5": (near, 1.5),
        "radius 1.2": (near, 1.2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Neighbour counts: ratio to a blocked product of all pairs.")
    parser.add_argument("--users", type=int, default=100_000)
    parser.add_argument("--dimension", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()

    everyone = np.ones(options.users, dtype=np.bool_)
    print(f"{options.users:,} users x {options.dimension} coordinates, radii r and 2r")
    print(f"{'':28s}{'products / bounds':>20s}{'bounds, seconds':>18s}{'mean count':>14s}")
    for name, (rows, radius) in cohorts(options.users, options.dimension, np.random.default_rng(0)).items():
        radii = (radius, 2 * radius)
        counts = neighbour_counts(rows, everyone, radii)
        if not np.array_equal(counts, by_products(rows, radii)):
            raise AssertionError("bounds and products disagree")
        contestants: dict[str, Callable[[], object]] = {
            "bounds": partial(neighbour_counts, rows, everyone, radii),
            "products": partial(by_products, rows, radii),
        }
        times = medians(contestants, options.repeats)
        share = counts[0].mean() / options.users
        print(f"{name:28s}{times['products'] / times['bounds']:20.1f}{times['bounds']:18.3f}{share:14.4%}", flush=True)


if __name__ == "__main__":
    main()
