"""Excess risk of every algorithm on one logistic problem, parameters chosen by the plan, mean of three seeds.

    python benchmarks/excess_risk.py [SETTING ...]

The problem: features on the unit sphere in 10 dimensions, ‖θ*‖ = 3, i.i.d. users of 50 items, (1, 1e-6) replace-one.
The column `figure` holds what a prototype with hand-chosen parameters reached on it (our design notes).
"""

import math
import sys
import tempfile
from pathlib import Path
from statistics import fmean

import quoron
from quoron import Keep, Method
from quoron_privacy.errors import Infeasible

FIGURES = {
    (300_000, "filtered-sgd"): 4.6e-6,
    (1_000_000, "filtered-sgd"): 5.0e-7,
    (300_000, "phased-sgd"): 5.9e-5,
    (1_000_000, "phased-sgd"): 1.2e-5,
    (300_000, "one-pass-dp-sgd"): 1.1e-6,
    (1_000_000, "one-pass-dp-sgd"): 1.9e-7,
}
ALGORITHMS = ("filtered-sgd", "soft-filtered-sgd", "phased-sgd", "one-pass-dp-sgd", "dp-sgd-wor", "sgd")


def main(settings: list[str]) -> None:
    """Print a row for each number of users and algorithm."""
    print("     users  algorithm           rounds    guessed  measured    figure  measured/figure")
    for users in (300_000, 1_000_000):
        for algorithm in ALGORITHMS:
            risks, plan = [], None
            for seed in (1, 2, 3):
                with tempfile.TemporaryDirectory() as folder:
                    chosen = [f"population.users={users}", "domain.radius=4.0", *settings]
                    try:
                        run = quoron.simulate(
                            "quickstart",
                            method=Method(algorithm, seed=seed),
                            keep=Keep(Path(folder) / "run"),
                            simulation_seed=seed,
                            settings=chosen,
                        )
                    except Infeasible as error:
                        print(f"{users:10,}  {algorithm:18s}  {error}")
                        break
                    risks.append(run.summary.excess_risk or 0.0)
                    plan = run.plan
            if plan is not None:
                figure = FIGURES.get((users, algorithm))
                beside = f"{figure:9.1e}  {fmean(risks) / figure:15.2f}" if figure else ""
                risk = f"{plan.guessed_excess_risk or math.nan:9.1e} {fmean(risks):9.1e} {beside}"
                print(f"{users:10,}  {algorithm:18s}  {plan.cost.rounds:6,}  {risk}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
