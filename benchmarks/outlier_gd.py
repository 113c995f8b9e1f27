"""One step of `outlier-gd`: counting close pairs, the private test's score, the mean without outliers.

    python benchmarks/outlier_gd.py [--users 60000] [--dimension 20] [--repeats 5]

Median seconds of a whole step on answers like honest users', at the radius that a plan takes and at one that leaves one
pair in a hundred out, and the share of it that is the counting.
"""

import argparse
import math
from time import perf_counter

import numpy as np
from scipy.special import chdtri

from quoron_privacy.robust.outlier_mean import neighbour_counts, weighted_mean


def main() -> None:
    parser = argparse.ArgumentParser(description="Seconds of a step of outlier-gd.")
    parser.add_argument("--users", type=int, default=60_000)
    parser.add_argument("--dimension", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    users, dimension = options.users, options.dimension

    rows = np.random.default_rng(0).standard_normal((users, dimension)) / math.sqrt(dimension)
    everyone, reference = np.ones(users, np.bool_), np.zeros(dimension)
    print(f"{users:,} users x {dimension} coordinates, median of {options.repeats} steps")
    print(f"{'pairs beyond':>14s}{'step, seconds':>16s}{'counting':>12s}")
    mean = weighted_mean(users, round(0.98 * users))
    for beyond in (1e-4, 1e-2):
        radius = math.sqrt(2 * float(chdtri(dimension, beyond)) / dimension)
        times = []
        for _ in range(options.repeats + 1):  # the first one loads the loops
            start = perf_counter()
            neighbour_counts(rows, everyone, (radius,))
            counted = perf_counter()
            seen = mean.observe(rows, everyone, radius=radius, reference=reference)
            mean.aggregate(rows, seen.weights, radius=radius, reference=reference)
            times.append((perf_counter() - counted, counted - start))
        step, counting = np.median(np.array(times[1:]), axis=0)
        print(f"{beyond:14g}{step:16.3f}{counting:12.3f}", flush=True)


if __name__ == "__main__":
    main()
