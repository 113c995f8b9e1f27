"""How far plans' predicted risks are off, and the factors that make bounds of them which hold in nine of ten problems.

    python benchmarks/few_users.py --against-all --group fixed --group shipped --group others > cells.jsonl
    python benchmarks/forecasts.py made > made.jsonl         # every algorithm on made problems of known curvature
    python benchmarks/forecasts.py tables > shapes.jsonl     # every algorithm on made tables, of one row a user too
    python benchmarks/forecasts.py fit cells.jsonl made.jsonl shapes.jsonl
    python benchmarks/forecasts.py factors                   # the table of docs/results.md, of what is registered

`fit` prints, for each algorithm and for known and unknown curvature, the factor fixed on some problems (tables `fixed`
and `shipped`, made problems FIXED), and how often the bound that it makes held there and on the others. A factor
stands beside its algorithm, in the registration. A run of more than MOST_GRADIENTS gradients is left out.
`whitened-tracking` has a benchmark of its own, whitened_bound.py.
"""

import json
import math
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from cells import model, plan_of, start_excess
from few_users import GROUPS
from shapes import table

from quoron.config import from_tree
from quoron.simulation.problem import setup
from quoron_privacy.errors import QuoronError
from quoron_privacy.noise.streams import SeededNoise
from quoron_server.algorithms import ALGORITHMS
from quoron_server.plan import Privacy

MOST_GRADIENTS = 10_000_000
NEED_MORE = ("filtered-sgd", "median-sgd", "local-model")  # users than there are here
HELD = 0.95  # share of cells that a factor is to hold in where it is fixed
SPARE = 1.5  # and is then multiplied by
Made = tuple[str, int, int, int, dict[str, Any]]  # family, users, features, items, more
FIXED: tuple[Made, ...] = (
    ("logistic", 5_000, 10, 20, {}),
    ("logistic", 20_000, 20, 5, {}),
    ("logistic", 10_000, 10, 20, {"heterogeneity": 1.0}),
    ("least_squares", 5_000, 10, 10, {"label_noise": 0.5}),
    ("least_squares", 20_000, 30, 10, {"label_noise": 0.5}),
    ("quadratic", 10_000, 10, 10, {}),
    ("logistic", 8_000, 15, 10, {}),
    ("logistic", 30_000, 8, 20, {}),
    ("logistic", 10_000, 12, 10, {"unequal_items": True}),
)
OTHERS: tuple[Made, ...] = (
    ("least_squares", 10_000, 15, 5, {"label_noise": 1.0}),
    ("least_squares", 8_000, 8, 20, {"label_noise": 0.5, "heterogeneity": 0.5}),
    ("quadratic", 20_000, 20, 5, {}),
    ("logistic", 12_000, 6, 10, {}),
    ("logistic", 15_000, 15, 20, {"heterogeneity": 0.5}),
)


FIXED_TABLES = (  # shape, users, columns
    *(("single", 20_000, 10), ("single", 60_000, 5), ("careful", 3_000, 10), ("careful", 20_000, 5)),
    *(("rare", 3_000, 5), ("rare", 20_000, 15), ("correlated", 3_000, 30), ("onehot", 5_000, 20)),
    *(("unequal", 3_000, 10), ("heavy", 10_000, 10), ("amounts", 3_000, 10), ("amounts", 20_000, 15)),
)
OTHER_TABLES = (
    *(("single", 30_000, 15), ("careful", 8_000, 20), ("rare", 8_000, 10), ("amounts", 8_000, 20)),
    *(("uncentred", 5_000, 10), ("noisy", 5_000, 5), ("sparse", 5_000, 20), ("constant", 3_000, 10)),
)


def made(which: str, problems: tuple[Made, ...]) -> Iterator[dict[str, Any]]:
    """A line for each algorithm on each problem at ε = 1 and 4: guessed and measured excess risk of one seed."""
    for number, (family, users, features, items, more) in enumerate(problems):
        population = {"family": family, "users": users, "dimension": features, "items_per_user": items, **more}
        scene = setup(from_tree({"population": population, "domain": {"radius": 6.0}}), Path())
        for epsilon in (1.0, 4.0):
            for name, info in ALGORITHMS.items():
                if info.trust_model == "none" or name in NEED_MORE:
                    continue
                with suppress(QuoronError):
                    plan = info.plan(scene.problem, Privacy(epsilon, 1e-6), None, "calibrated", 0)
                    if plan.cost.gradient_evaluations > MOST_GRADIENTS or plan.guessed_excess_risk is None:
                        continue
                    algorithm, noise = info.make(plan), SeededNoise(number)
                    state = algorithm.init()
                    while (question := algorithm.request(state, noise)) is not None:
                        state = algorithm.update(state, scene.engine.ask(question), noise).state
                    best = max(0.0, scene.population.excess_risk(scene.population.optimum))
                    risk = scene.population.excess_risk(algorithm.model(state)) - best
                    values = {"group": which, "problem": number, "epsilon": epsilon, "algorithm": name}
                    known = scene.problem.beliefs.isotropic is not None
                    yield values | {"known": known, "guess": plan.guessed_excess_risk, "risk": risk}


def tables(which: str, named: tuple[tuple[str, int, int], ...]) -> Iterator[dict[str, Any]]:
    """The same on made tables, whose curvature is unknown, at ε = 1 and 4."""
    for number, (shape, users, columns) in enumerate(named):
        people = table(shape, users, columns, draw=int(which == "others"))
        for epsilon in (1.0, 4.0):
            for name, info in ALGORITHMS.items():
                if info.trust_model == "none" or name in (*NEED_MORE, "whitened-tracking"):
                    continue
                with suppress(QuoronError):
                    plan = plan_of(people, name, epsilon)
                    if plan.cost.gradient_evaluations > MOST_GRADIENTS or plan.guessed_excess_risk is None:
                        continue
                    risk = people.excess_risk(model(people, plan, number))
                    values = {"group": which, "problem": f"{shape} {users} {columns}"}
                    values |= {"epsilon": epsilon, "algorithm": name, "start": start_excess(people)}
                    yield values | {"known": False, "guess": plan.guessed_excess_risk, "risk": risk}


def ratios(lines: list[dict[str, Any]]) -> dict[tuple[str, bool], tuple[list[float], list[float]]]:
    """By algorithm and whether curvature is known: measured over guessed, where factors are fixed and elsewhere."""
    found: dict[tuple[str, bool], tuple[list[float], list[float]]] = {}
    for line in lines:
        if "task" in line:
            if line["algorithm"].startswith("auto") or not line.get("guess"):
                continue
            fixed, known = line["task"] not in GROUPS["others"], False
            ratio = line["left"] / line["guess"]
        else:
            fixed, known, ratio = line["group"] == "fixed", line["known"], line["risk"] / line["guess"]
        found.setdefault((line["algorithm"], known), ([], []))[0 if fixed else 1].append(ratio)
    return found


def fit(lines: list[dict[str, Any]]) -> None:
    """One JSON object for each algorithm and kind of knowledge."""
    for (name, known), (fixed, others) in sorted(ratios(lines).items()):
        quantile = float(np.quantile(fixed, HELD, method="higher")) if fixed else math.inf
        factor = ALGORITHMS[name].factor
        used = factor.known if known else factor.unknown
        held = [f"{sum(ratio <= (used or 1.0) for ratio in part)} of {len(part)}" for part in (fixed, others)]
        text = {"algorithm": name, "curvature": "known" if known else "unknown", "fitted": f"{SPARE * quantile:.2g}"}
        print(json.dumps(text | {"used": used, "held where fixed": held[0], "held elsewhere": held[1]}))


def factors() -> str:
    """The registered factors, as Markdown."""
    rows = ["| method | factor, curvature unknown | known |", "|---|---|---|"]
    for name, info in sorted(ALGORITHMS.items()):
        told = ["" if each is None else f"{each:g}" for each in (info.factor.unknown, info.factor.known)]
        if any(told):
            rows.append(f"| `{name}` | {told[0]} | {told[1]} |")
    return "\n".join(rows)


def main() -> None:
    """As the docstring says."""
    if sys.argv[1] == "made":
        for which, problems in (("fixed", FIXED), ("others", OTHERS)):
            for line in made(which, problems):
                print(json.dumps(line), flush=True)
    elif sys.argv[1] == "factors":
        print(factors())
    elif sys.argv[1] == "tables":
        for which, named in (("fixed", FIXED_TABLES), ("others", OTHER_TABLES)):
            for line in tables(which, named):
                print(json.dumps(line), flush=True)
    else:
        fit([json.loads(line) for path in sys.argv[2:] for line in Path(path).read_text(encoding="utf-8").splitlines()])


if __name__ == "__main__":
    main()
