"""What `auto` leaves of the start's excess risk on made tables of many sizes and shapes, beside methods by name.

    python benchmarks/sizes.py                                        # a cross through the grid: some minutes
    python benchmarks/sizes.py --users 20000 --columns 100 --shape plain --epsilon 1 --algorithm auto
    python benchmarks/sizes.py --radius 30                            # as if that ball had been declared
    python benchmarks/sizes.py --users 9000 --columns 10 --rounds 7 --algorithm whitened-tracking
    python benchmarks/sizes.py --memory --users 100000 --columns 100 --shape plain --algorithm whitened-tracking
    python benchmarks/sizes.py --memory --files --users 100000 --columns 100 --shape plain --algorithm whitened-tracking

One JSON object a cell: per cent of F(0) - F* that is left for each seed, F the user-averaged training risk and F* its
minimum without bounds; the AUC of held-out users, of the model and of that minimum; seconds of the plan and of the run;
with --memory the largest that the process was beyond what it was when users were made, in megabytes, and the processor
time of the run, for which give one cell alone. With --files the rows lie in Parquet, and items on disk.

Shapes: `plain`; `correlated` (columns mix a tenth as many factors); `uncentred`; `careful` (columns fill a tenth of
their declared ranges); `rare` (3 % positive); `heavy` (tails of Student's t with 2.5 degrees of freedom); `single` (one
row a user). All have a constant column. Columns count it.
"""

import argparse
import json
import os
import resource
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from quoron.config import from_tree
from quoron.datasets.population import from_dataset
from quoron.planning.plans import choose
from quoron.populations import Numeric, TablePopulation, from_table
from quoron.simulation.pieces import engine_for
from quoron.simulation.scene import problem
from quoron_client.data.encoding import Encoding, read_label
from quoron_client.losses import Logistic
from quoron_client.protocol.domains import L2Ball
from quoron_client.protocol.questions import summed
from quoron_privacy.errors import QuoronError
from quoron_privacy.noise.sources import SeededNoise
from quoron_server.algorithms import ALGORITHMS
from quoron_server.plan import Plan

SHAPES = ("plain", "correlated", "uncentred", "careful", "rare", "heavy", "single")
FAR = L2Ball(1e5)  # within which the optimum is looked for
USERS, COLUMNS, EPSILONS = (
    (300, 1_000, 3_000, 9_000, 11_000, 20_000, 100_000),
    (2, 10, 30, 98, 101, 200),
    (0.25, 1.0, 4.0),
)
MIDDLE = (9_000, 10, 1.0)  # of the cross


@cache
def table(users: int, columns: int, shape: str, files: str | None = None) -> Any:
    """Nine tenths of the users to train on; between one and five rows each. With `files` in that folder."""
    draw = np.random.Generator(np.random.Philox(columns))
    counts = draw.integers(1, 6, users * 10 // 9) if shape != "single" else np.ones(users * 10 // 9, int)
    rows, names = int(counts.sum()), [f"x{k}" for k in range(columns - 1)]
    numbers = draw.standard_normal((rows, len(names)), np.float32)
    if shape == "correlated":
        factors = max(2, len(names) // 10)
        mixed = draw.standard_normal((rows, factors), np.float32) @ draw.standard_normal(
            (factors, len(names)), np.float32
        )
        numbers = mixed / np.float32(factors**0.5) + np.float32(0.3) * numbers
    elif shape == "heavy":
        numbers = draw.standard_t(2.5, numbers.shape).astype(np.float32)
    scores = numbers @ draw.normal(size=len(names))
    scores = 1.5 * scores / scores.std() - (4.0 if shape == "rare" else 0.3)
    ill = draw.random(rows) < 1 / (1 + np.exp(-scores))
    end, shift = (40.0 if shape == "careful" else 4.0), (3.0 if shape == "uncentred" else 0.0)
    frame = pd.DataFrame(numbers + np.float32(shift), columns=names)
    frame = frame.assign(ill=ill, who=np.repeat(np.arange(len(counts)), counts))
    features = tuple(Numeric(name, -end, end + shift) for name in names)
    many = 1 if shape == "single" else 3
    if files is not None:
        frame.to_parquet(f"{files}/rows.parquet", row_group_size=1 << 16)
        rules = Encoding(features, read_label("ill"))
        given: Any = {"user": "who", "loss": Logistic(), "domain": FAR, "items_per_user": many, "test_fraction": 0.1}
        crowd = from_dataset(Path(files), rules, **given)
        return crowd.read_in(np.arange(crowd.users))
    return from_table(
        frame,
        user="who",
        label=read_label("ill"),
        features=features,
        domain=FAR,
        items_per_user=many,
        test_fraction=0.1,
    )


def plan_of(
    people: TablePopulation, algorithm: str, epsilon: float, radius: float | None, rounds: int | None = None
) -> Plan:
    """As a person gets it who declares no radius, or this one."""
    tree: dict[str, Any] = {
        "population": {"kind": "table", "path": "-", "user": "-", "label": "- > 0", "numeric": {"-": [0, 1]}},
        "algorithm": {"name": algorithm},
        "privacy": {"epsilon": epsilon, "delta": 1e-6},
        "domain": {} if radius is None else {"radius": radius},
        "budget": {} if rounds is None else {"rounds": rounds},
    }
    config = from_tree(tree)
    return choose(config, problem(config, replace(people, domain=L2Ball(radius or 3.0)))).plan


def model(people: TablePopulation, plan: Plan, seed: int) -> Any:
    """Of one run."""
    made, noise, engine = ALGORITHMS[plan.algorithm].make(plan), SeededNoise(1000 + seed), engine_for(people)
    state = made.init()
    while (question := made.request(state, noise)) is not None:
        answers = engine.ask(question)
        answers = answers if question.reduction is None else summed(answers, question.reduction)
        state = made.update(state, answers, noise).state
    return made.model(state)


def measured(cell: tuple[int, int, float], shape: str, algorithm: str, chosen: argparse.Namespace) -> Mapping[str, Any]:
    """One line."""
    users, columns, epsilon = cell
    values = {"shape": shape, "users": users, "columns": columns, "epsilon": epsilon, "algorithm": algorithm}
    people, began = table(users, columns, shape, chosen.folder), time.perf_counter()
    try:
        plan = plan_of(people, algorithm, epsilon, chosen.radius, chosen.rounds)
    except QuoronError as error:
        return values | {"refused": str(error)[:200]}
    planned, before, processor = time.perf_counter(), _peak(), time.process_time()
    models = [model(people, plan, seed) for seed in range(chosen.seeds)]
    ended, peak, processor = time.perf_counter(), _peak() - before, time.process_time() - processor
    start = people.excess_risk(np.zeros(columns))
    aucs = [round(people.test_metrics(each)["auc"], 3) for each in models]
    values |= {"algorithm": f"auto: {plan.algorithm}" if algorithm == "auto" else algorithm}
    values |= {"left": [float(f"{100 * people.excess_risk(each) / start:.3g}") for each in models], "auc": aucs}
    values |= {"best auc": round(people.test_metrics(people.optimum)["auc"], 3)}
    values |= {"plan seconds": round(planned - began, 1), "run seconds": round((ended - planned) / len(models), 1)}
    seconds = round(processor / len(models))
    return values | ({"megabytes more": peak, "processor seconds": seconds} if chosen.memory else {})


def _peak() -> int:
    """Megabytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10


def cells(chosen: argparse.Namespace) -> Iterator[tuple[int, int, float]]:
    """The asked product, or the cross through MIDDLE."""
    if chosen.users or chosen.columns or chosen.epsilon:
        for users in chosen.users or [MIDDLE[0]]:
            for columns in chosen.columns or [MIDDLE[1]]:
                yield from ((users, columns, epsilon) for epsilon in chosen.epsilon or [MIDDLE[2]])
        return
    yield from ((users, *MIDDLE[1:]) for users in USERS)
    yield from ((MIDDLE[0], columns, MIDDLE[2]) for columns in COLUMNS)
    yield from ((*MIDDLE[:2], epsilon) for epsilon in EPSILONS)


def main() -> None:
    """Print one JSON object a cell."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--users", type=int, action="append")
    parser.add_argument("--columns", type=int, action="append")
    parser.add_argument("--epsilon", type=float, action="append")
    parser.add_argument("--shape", action="append", choices=SHAPES)
    parser.add_argument("--algorithm", action="append", choices=["auto", *ALGORITHMS])
    parser.add_argument("--radius", type=float)
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--memory", action="store_true", help="tell the largest that the process ever was")
    parser.add_argument("--files", action="store_true", help="rows in Parquet, items on disk")
    chosen = parser.parse_args()
    chosen.folder = None
    with tempfile.TemporaryDirectory() as folder:
        if chosen.files:
            os.environ["QUORON_MEMORY"] = "1"
            chosen.folder = folder
        _show(chosen)


def _show(chosen: argparse.Namespace) -> None:
    for shape in chosen.shape or SHAPES:
        for cell in dict.fromkeys(cells(chosen)):
            for algorithm in chosen.algorithm or ("auto", "tracking-srgd"):
                print(json.dumps(measured(cell, shape, algorithm, chosen)), flush=True)


if __name__ == "__main__":
    main()
