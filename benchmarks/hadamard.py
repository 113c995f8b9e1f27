"""The fast Walsh-Hadamard transform in place against copying the same array, and local reports of many users.

    python benchmarks/hadamard.py [--rows 100000] [--dimension 1024] [--users 1000000] [--repeats 9]

Transform and copy take turns, so that a busy machine slows both alike; both are on memory that is there already.
"""

import argparse
from collections.abc import Callable
from functools import partial
from time import perf_counter

import numpy as np

from quoron_client.randomisers import RangeBits, SeededRandomness, VectorNoise
from quoron_client.randomisers.hadamard import rotated_coordinates
from quoron_privacy.means.rotation import padded, walsh_hadamard


def seconds(work: Callable[[], object]) -> float:
    start = perf_counter()
    work()
    return perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description="Walsh-Hadamard transform and local reports.")
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--dimension", type=int, default=1024)
    parser.add_argument("--users", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=9)
    options = parser.parse_args()

    length = padded(options.dimension)
    for kind in (np.float32, np.float64):
        rows, copy = np.ones((options.rows, length), kind), np.empty((options.rows, length), kind)
        pairs = []
        for _ in range(options.repeats + 1):  # the first turn compiles and touches the memory
            pairs.append((seconds(partial(np.copyto, copy, rows)), seconds(partial(walsh_hadamard, rows))))
            rows[:] = 1.0
        copied, transformed = np.median(pairs[1:], axis=0)
        name = f"{options.rows:,} rows of {length} {np.dtype(kind).name}"
        print(f"{name}: transform {transformed:.3f} s, copy {copied:.3f} s, ratio {transformed / copied:.2f}")

    users, dimension, source = np.arange(options.users), 20, SeededRandomness(1)
    values, signs = np.full((options.users, dimension), 0.1), np.ones(dimension)
    vector, bits = VectorNoise(1.0, 1e-6, 1.0), RangeBits(1.0, 64, 1.0)
    for start in (10, options.users):  # the first turn compiles
        few = users[:start]
        report = seconds(partial(vector.randomise, values[few], np.zeros(dimension), source, round=0, users=few))
        begun = perf_counter()
        coordinates = rotated_coordinates(values[few], signs, few % padded(dimension))
        bits.randomise(coordinates, source, round=1, users=few)
        ranged = perf_counter() - begun
    print(f"{options.users:,} users, d = {dimension}: vector reports {report:.2f} s, range reports {ranged:.2f} s")


if __name__ == "__main__":
    main()
