"""What ranges that are too wide cost: per cent of the start's excess risk that is left, with and without a ball.

    python benchmarks/wide_ranges.py                      # three columns that fill 1/4 to 1/4,000 of their ranges
    python benchmarks/wide_ranges.py --radius 30 --method recentred-sgd

Made users, two rows each, three normal columns declared as [-w, w], a constant one; logistic, δ = 10⁻⁶. Mean over seeds
of the noise, of the excess risk over the best of all models.
"""

import argparse
import json
from dataclasses import replace

import numpy as np
import pandas as pd

from quoron.config import from_tree
from quoron.data import Numeric, TablePopulation, from_table
from quoron.engine.inline import InlineEngine
from quoron.planning.plans import choose
from quoron.simulation.problem import problem
from quoron_client.protocol.domains import L2Ball
from quoron_privacy.errors import Infeasible
from quoron_privacy.noise.streams import SeededNoise
from quoron_server.algorithms import ALGORITHMS


def crowd(users: int, width: float) -> TablePopulation:
    """The users."""
    draw, names = np.random.Generator(np.random.Philox(8)), [f"x{k}" for k in range(3)]
    numbers = draw.normal(size=(2 * users, 3))
    ill = draw.random(2 * users) < 1 / (1 + np.exp(-1.5 * numbers[:, 0] + numbers[:, 1]))
    frame = pd.DataFrame(numbers, columns=names).assign(who=np.repeat(np.arange(users), 2), ill=ill)
    features = tuple(Numeric(name, -width, width) for name in names)
    return from_table(frame, user="who", label="ill", features=features, domain=L2Ball(3.0), test_fraction=0.0)


def left(people: TablePopulation, epsilon: float, method: str, radius: float | None, seeds: int) -> float | None:
    """Per cent, or None where it is declined."""
    domain = {} if radius is None else {"radius": radius}
    people = people if radius is None else replace(people, domain=L2Ball(radius))
    table = {"kind": "table", "path": "-", "user": "-", "label": "- > 0", "columns": {"numeric": {"-": [0, 1]}}}
    privacy = {"epsilon": epsilon, "delta": 1e-6}
    config = from_tree({"population": table, "privacy": privacy, "domain": domain, "algorithm": {"name": method}})
    try:
        plan = choose(config, problem(config, people), alternatives=False).plan
    except Infeasible:
        return None
    found = []
    for seed in range(seeds):
        made, noise, engine = ALGORITHMS[plan.algorithm].make(plan), SeededNoise(seed), InlineEngine(people)
        state = made.init()
        while (question := made.request(state, noise)) is not None:
            state = made.update(state, engine.ask(question), noise).state
        found.append(people.excess_risk(made.model(state)))
    return float(f"{100 * np.mean(found) / people.excess_risk(np.zeros(people.dimension)):.2g}")


def main() -> None:
    """A line a cell."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--method", default="auto")
    parser.add_argument("--radius", type=float, help="declared; else none")
    parser.add_argument("--seeds", type=int, default=4)
    given = parser.parse_args()
    for width in (4.0, 40.0, 400.0, 4000.0):
        for users in (500, 1500, 5000, 20_000):
            people = crowd(users, width)
            cells = {eps: left(people, eps, given.method, given.radius, given.seeds) for eps in (1.0, 4.0)}
            print(json.dumps({"width": width, "users": users} | {f"left at {eps:g}": v for eps, v in cells.items()}))


if __name__ == "__main__":
    main()
