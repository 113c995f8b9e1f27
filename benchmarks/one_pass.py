"""The recommended method on the rows of its design notes: measured beside predicted, and beside one-pass DP-SGD.

    python benchmarks/one_pass.py [rows | misspecified | population]

Mean excess risk of three seeds, every parameter by the plan, (ε, 1e-6) replace-one. `notes` is what the prototype
reached; `unknown` plans without any knowledge of the curvature. `misspecified` tells the plan a wrong deviation of an
item's gradient; `population` takes heterogeneous and ragged users.
"""

import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from quoron.config import from_tree
from quoron.simulation.problem import Setup, setup
from quoron_privacy.errors import Infeasible
from quoron_privacy.noise.streams import SeededNoise
from quoron_server.algorithms import ALGORITHMS
from quoron_server.plan import Privacy, RunPlan
from quoron_server.problem import Beliefs, Problem

SEEDS = (0, 1, 2)
ITEM_NOISE = 0.3 * 3**0.5  # uniform noise of standard deviation 0.3


@dataclass(frozen=True)
class Row:
    """One problem, and what the prototype reached."""

    users: int
    dimension: int
    items: int
    notes: float
    family: str = "logistic"
    more: dict[str, Any] = field(default_factory=dict)
    ridge: float = 0.0

    def scene(self, seed: int) -> Setup:
        """Its population and public problem."""
        noise = {"label_noise": ITEM_NOISE} if self.family == "least_squares" else {}
        population = {"family": self.family, "users": self.users, "items_per_user": self.items, "seed": seed}
        population |= {"dimension": self.dimension, "signal_norm": 3.0, **noise, **self.more}
        tree = {"population": population, "loss": {"ridge": self.ridge}, "domain": {"radius": 6.0}}
        return setup(from_tree(tree), Path())


ROWS = (
    Row(100_000, 10, 50, 1.0e-6),
    Row(300_000, 10, 500, 6.0e-8),
    Row(100_000, 50, 500, 7.2e-7),
    Row(100_000, 200, 50, 4.9e-5),
    Row(10_000, 10, 50, 2.1e-5),
    Row(100_000, 10, 50, 1.8e-7, "least_squares"),
    Row(100_000, 50, 10, 3.0e-6, "least_squares"),
    Row(100_000, 50, 50, 7.2e-7, "least_squares"),
)
OTHERS = (
    Row(100_000, 10, 50, 1.4e-6, more={"heterogeneity": 0.5}),
    Row(100_000, 10, 50, 2.8e-6, more={"heterogeneity": 1.5}),
    Row(100_000, 10, 50, 2.0e-6, more={"unequal_items": True}),
    Row(100_000, 10, 50, 4.7e-7, ridge=0.02),
    Row(10_000, 10, 500, 2.5e-6),
    Row(100_000, 10, 10, 8.4e-6),
)


def measure(row: Row, name: str, known: Any = None, **options: Any) -> tuple[float, RunPlan]:
    """Mean excess risk over the seeds and the last plan; `known` changes what the plan is told."""
    risks = []
    for seed in SEEDS:
        scene, info = row.scene(seed), ALGORITHMS[name]
        problem: Problem = known(scene.problem) if known else scene.problem
        plan = info.plan(problem, Privacy(1.0, 1e-6), info.options(**options), "calibrated", seed)
        algorithm, noise = info.make(plan), SeededNoise(seed)
        state = algorithm.init()
        while (question := algorithm.request(state, noise)) is not None:
            state = algorithm.update(state, scene.engine.ask(question), noise).state
        risks.append(scene.population.excess_risk(algorithm.model(state)))
    return fmean(risks), plan


def blind(problem: Problem) -> Problem:
    """The problem of somebody who knows the loss and its bounds only."""
    return replace(problem, beliefs=Beliefs(heterogeneity=problem.beliefs.heterogeneity))


def rows(chosen: tuple[Row, ...]) -> None:
    """Measured, predicted and the others, a line each row."""
    names = "predicted  measured  pred/meas  notes  meas/notes  unknown  clipped  meas/clipped"
    print(f"  users    d    m  rounds  {names}")
    for row in chosen:
        risk, plan = measure(row, "tracking-srgd")
        ignorant, _ = measure(row, "tracking-srgd", blind)
        plain, _ = measure(row, "one-pass-dp-sgd")
        predicted = plan.predicted_excess_risk or np.nan
        print(
            f"{row.users:7,} {row.dimension:4} {row.items:4} {plan.cost.rounds:7} {predicted:10.1e} {risk:9.1e} "
            f"{predicted / risk:10.2f} {row.notes:6.1e} {risk / row.notes:11.2f} {ignorant:8.1e} {plain:8.1e} "
            f"{risk / plain:13.2f}  {row.family} {row.more or ''} ridge={row.ridge:g}",
            flush=True,
        )


def misspecified() -> None:
    """The plan is told a deviation that is wrong by these factors; the spread then starts there."""
    factors = (0.25, 0.5, 1.0, 2.0, 4.0)
    print("  users    d    m  " + "  ".join(f"V x {factor:<5g}" for factor in factors))
    for row in (Row(10_000, 10, 50, 0), Row(100_000, 50, 50, 0), Row(100_000, 10, 500, 0), Row(100_000, 200, 50, 0)):
        found = []
        for factor in factors:

            def with_guess(problem: Problem, factor: float = factor) -> Problem:
                beliefs = replace(problem.beliefs, gradient_deviation=factor * problem.deviation)
                return replace(problem, beliefs=beliefs)

            try:
                found.append(f"{measure(row, 'tracking-srgd', with_guess)[0]:9.1e}")
            except Infeasible:
                found.append("  refused")
        print(f"{row.users:7,} {row.dimension:4} {row.items:4}  " + "  ".join(found), flush=True)


if __name__ == "__main__":
    what = sys.argv[1] if len(sys.argv) > 1 else "rows"
    if what == "misspecified":
        misspecified()
    else:
        rows(OTHERS if what == "population" else ROWS)
