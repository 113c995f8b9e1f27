"""What hostile users cost: excess risk on a clean population and with 5 % of users shifted, huge or zero.

    python benchmarks/outlier_users.py [ALGORITHM | SETTING ...]

Mean of three seeds on the preset `outlier-iterates`, (1, 1e-6) replace-one. The declared share of hostile users is 5 %
in every column but `undeclared`, which is the clean population with nothing declared: what it costs to be ready. The
target is a ratio of at most 1.5 between each hostile column and the clean one, for algorithms that remove outliers.
"""

import sys
import tempfile
from pathlib import Path
from statistics import fmean

import quoron
from quoron import Keep, Method
from quoron_privacy.errors import Infeasible
from quoron_server.algorithms import ALGORITHMS

NAMES = ("outlier-iterates", "accelerated-erm", "one-pass-dp-sgd", "tracking-srgd")
KINDS = ("shifted", "huge", "zero")
SEEDS = (1, 2, 3)
TARGET = 1.5


def measure(name: str, settings: list[str]) -> tuple[float, float, int]:
    """(mean excess risk, predicted, rounds)."""
    risks, predicted, rounds = [], float("nan"), 0
    for seed in SEEDS:
        with tempfile.TemporaryDirectory() as folder:
            run = quoron.simulate(
                "outlier-iterates",
                method=Method(name, seed=seed),
                keep=Keep(Path(folder) / "run"),
                simulation_seed=seed,
                settings=settings,
            )
        risks.append(run.summary.excess_risk or 0.0)
        predicted, rounds = run.plan.predicted_excess_risk or float("nan"), run.plan.cost.rounds
    return fmean(risks), predicted, rounds


def main(arguments: list[str]) -> None:
    """Print a row for each algorithm that is named, or for all that are registered."""
    settings = [each for each in arguments if "=" in each]
    named = [each for each in arguments if "=" not in each] or [each for each in NAMES if each in ALGORITHMS]
    print("algorithm           rounds  predicted  undeclared     clean   shifted      huge      zero  worst/clean")
    clean = ["population.outlier_fraction=0.0"]
    for name in named:
        try:
            bare, _, _ = measure(name, [*settings, *clean, "problem.hostile_share=0.0"])
            honest, predicted, rounds = measure(name, [*settings, *clean, "problem.hostile_share=0.05"])
            hostile = [
                measure(name, [*settings, "problem.hostile_share=0.05", f"population.outlier_kind={kind}"])[0]
                for kind in KINDS
            ]
        except Infeasible as error:
            print(f"{name:18s}  {error}", flush=True)
            continue
        ratio = max(hostile) / honest
        kept = (
            ("within" if ratio <= TARGET else "above")
            if ALGORITHMS[name].choosing.removes_outliers
            else "not made for it"
        )
        columns = "".join(f"{risk:10.1e}" for risk in (honest, *hostile))
        print(f"{name:18s}  {rounds:6}  {predicted:9.1e}  {bare:10.1e}{columns}  {ratio:11.2f}  {kept}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
