"""`quoron.torch.train` with nothing set, beside settings that were tried one by one without privacy for the search.

    python benchmarks/nothing_set.py --epsilons 2 8 --tasks sensors images table tags

Four made tasks of 400 to 3,000 users: windows of six activities with an offset of each user; ten shapes, mostly a few
of a user's own; a label that bends in sixteen columns; texts of twenty topics. The grid is rounds (40, 120), optimiser
and step size, with the clip norm that follows the users. Accuracy is that on items of other users. Noise is seeded, the
data are made up, and nothing is charged. Needs the extra `torch`.
"""

import argparse
import tempfile
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import nn

import quoron.torch

Task = tuple[np.ndarray, np.ndarray, int, nn.Module]  # features (users, items, ...), labels, users to train on, module
GRID = [
    {"rounds": rounds, "rate": 1.0, "suffix": rounds // 4, **optimiser}
    for rounds in (40, 120)
    for optimiser in (
        *({"step_size": step} for step in (0.5, 1.0, 2.0, 4.0)),
        *({"optimiser": "momentum", "step_size": step} for step in (0.1, 0.3)),
        *({"optimiser": "adam", "second_momentum": 0.99, "step_size": step} for step in (0.003, 0.01, 0.03)),
    )
]


def layers(*sizes: int) -> nn.Module:
    """A network of linear layers with ReLU between them."""
    torch.manual_seed(0)
    made: list[nn.Module] = []
    for given, wanted in pairwise(sizes):
        made += [nn.Linear(given, wanted), nn.ReLU()]
    return nn.Sequential(*made[:-1])


def sensors(random: np.random.Generator) -> Task:
    users, others, items, columns = 400, 150, 32, 30
    centres, offsets = random.normal(size=(6, columns)), random.normal(0, 0.7, size=(users + others, 1, columns))
    labels = random.integers(0, 6, size=(users + others, items))
    features = 0.6 * centres[labels] + offsets + random.normal(size=(*labels.shape, columns))
    return features.astype(np.float32), labels, users, layers(columns, 16, 6)


def images(random: np.random.Generator) -> Task:
    users, others, items, side = 1_500, 400, 16, 12
    shapes = np.kron(random.normal(size=(10, 4, 4)), np.ones((3, 3)))
    laws = random.dirichlet(np.full(10, 0.6), users + others)
    labels = np.array([random.choice(10, items, p=law) for law in laws])
    moves = random.integers(-1, 2, size=(*labels.shape, 2))
    features = random.normal(0, 1.5, size=(*labels.shape, side, side))
    for place in np.ndindex(labels.shape):
        features[place] += np.roll(shapes[labels[place]], moves[place], (0, 1))
    return features.reshape(*labels.shape, -1).astype(np.float32), labels, users, layers(side * side, 24, 10)


def table(random: np.random.Generator) -> Task:
    users, others, items, columns = 3_000, 800, 8, 16
    x = random.normal(size=(users + others, items, columns)) + 0.5 * random.normal(size=(users + others, 1, columns))
    bent = x[..., 0] * x[..., 1] + x[..., 2] - 0.7 * np.abs(x[..., 3]) + 0.8 * np.sin(2 * x[..., 4]) + 0.6
    labels = (random.random(bent.shape) < 1 / (1 + np.exp(-2 * bent))).astype(np.int64)
    return x.astype(np.float32), labels, users, layers(columns, 16, 2)


def tags(random: np.random.Generator) -> Task:
    users, others, items, words, topics = 1_500, 300, 12, 120, 20
    of_topic, laws = random.dirichlet(np.full(words, 0.05), topics), random.dirichlet(np.full(topics, 0.3), 1_800)
    labels = np.array([random.choice(topics, items, p=law) for law in laws])
    features = np.zeros((users + others, items, words), np.float32)
    for place in np.ndindex(labels.shape):
        features[place][random.choice(words, 12, p=0.6 * of_topic[labels[place]] + 0.4 / words)] = 1 / 3
    return features, labels, users, layers(words, topics)


TASKS: dict[str, Callable[[np.random.Generator], Task]] = {
    "sensors": sensors,
    "images": images,
    "table": table,
    "tags": tags,
}


def accuracy(task: Task, epsilon: float, options: dict[str, object] | None) -> float:
    """Share of right labels of users who were not trained on."""
    features, labels, users, module = task
    items = labels.shape[1]
    with tempfile.TemporaryDirectory() as folder:
        method = {} if options is None else {"algorithm": "dp-sgd-wor", "options": options}
        trained = quoron.torch.train(
            module,
            (features[:users].reshape(users * items, -1), labels[:users].reshape(-1)),
            user=np.repeat(np.arange(users), items),
            loss=nn.functional.cross_entropy,
            epsilon=epsilon,
            seed=1,
            out=Path(folder) / "run",
            **method,
        )
    with torch.no_grad():
        told = trained.model(torch.from_numpy(features[users:])).argmax(-1).numpy()
    return float((told == labels[users:]).mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--epsilons", nargs="+", type=float, default=[2.0, 8.0])
    given = parser.parse_args()
    print(
        "| task | users | numbers | ε | nothing set | best of the grid | its setting |\n| - | - | - | - | - | - | - |"
    )
    for name in given.tasks:
        task = TASKS[name](np.random.default_rng(0))
        size = sum(each.numel() for each in task[3].parameters())
        for epsilon in given.epsilons:
            own = accuracy(task, epsilon, None)
            found = [(accuracy(task, epsilon, options), options) for options in GRID]
            best, setting = max(found, key=lambda each: each[0])
            what = f"{setting.get('optimiser', 'sgd')}, {setting['rounds']} rounds, step {setting['step_size']}"
            print(f"| {name} | {task[2]:,} | {size:,} | {epsilon:g} | {own:.3f} | {best:.3f} | {what} |", flush=True)


if __name__ == "__main__":
    main()
