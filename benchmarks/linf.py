"""Measured excess risk on the cube of coins beside the lower bound: the worst over spreads, the mean over draws of μ.

    python benchmarks/linf.py [SETTING ...]

ε = 4, δ = 1e-6, users of 20 items, models in [-1, 1]^d. No private method has a mean excess risk below the bound at
that bound's hardest spread, so none has a smaller worst one. Parameters are the plan's.
"""

import math
import sys
import tempfile
from pathlib import Path
from statistics import fmean

import quoron
from quoron.data import hardest_spread, lower_bound
from quoron_privacy.errors import Infeasible

ITEMS, EPSILON, DELTA = 20, 4.0, 1e-6
RUNS = {  # name of the row: algorithm and its options
    "filtered-sgd, linf": ("filtered-sgd", ["algorithm.options.norm=linf"]),
    "filtered-sgd, l2": ("filtered-sgd", ["algorithm.options.norm=l2"]),
    "median-sgd": ("median-sgd", ["algorithm.options.rounds=20"]),
    "phased-sgd": ("phased-sgd", ["algorithm.options.rounds=100"]),
}


def measured(algorithm: str, settings: list[str], seeds: range = range(3)) -> float:
    """Mean excess risk over draws of μ and of noise."""
    risks = []
    for seed in seeds:
        with tempfile.TemporaryDirectory() as folder:
            run = quoron.simulate(
                "linf",
                algorithm=algorithm,
                seed=seed,
                out=Path(folder) / "run",
                settings=[*settings, f"population.seed={seed}"],
            )
            risks.append(run.summary.excess_risk or 0.0)
    return fmean(risks)


def main(settings: list[str]) -> None:
    """Print a row for each size and algorithm."""
    print("     users    d  lower bound  algorithm           worst measured  at spread  times the bound")
    for users, dimension in ((20_000, 10), (80_000, 10), (20_000, 40)):
        sizes = {"users": users, "items_per_user": ITEMS, "dimension": dimension}
        hardest = hardest_spread(**sizes, epsilon=EPSILON, delta=DELTA)
        bound = lower_bound(**sizes, epsilon=EPSILON, delta=DELTA, spread=hardest)
        for name, (algorithm, options) in RUNS.items():
            worst, at = 0.0, math.nan
            for spread in (0.02, 0.08, 0.3, 0.9):
                chosen = [f"population.{key}={value}" for key, value in sizes.items()]
                chosen += [f"privacy.epsilon={EPSILON}", f"population.spread={spread}", *options, *settings]
                try:
                    worst, at = max((worst, at), (measured(algorithm, chosen), spread))
                except Infeasible as error:
                    print(f"{users:10,}  {dimension:3}  {name:18s}  {error}")
                    break
            figures = f"{worst:14.2g}  {at:9.2g}  {worst / bound:15.3g}"
            print(f"{users:10,}  {dimension:3}  {bound:11.2g}  {name:18s}  {figures}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
