"""Five made or shipped tasks for networks, as arrays, which `nothing_set.py` and `nothing_set_peers.py` share.

| task | users | of what |
| - | - | - |
| sensors | 400 | windows of six activities, with an offset of the user |
| images | 800 | ten moved shapes under noise, mostly a few of a user's own, as in FEMNIST |
| table | 1,200 | a label that bends in sixteen columns |
| tags | 800 | texts of twenty topics as bags of words, as in StackOverflow's tags |
| characters | 1,600 | the next of 27 characters after three, in passages of Python's own manual (`pydoc_data`) |

Accuracy is that on items of 150 to 800 other users. Needs NumPy alone, as every peer has it.
"""

import pydoc_data.topics
import re
from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Task(NamedTuple):
    """Items of users, and the network that is trained on them."""

    features: NDArray[np.float32]  # (users and others, items, columns)
    labels: NDArray[np.int64]  # (users and others, items)
    users: int  # the first so many are trained on, the others measure
    sizes: tuple[int, ...]  # of layers, with ReLU between them

    def start(self) -> list[tuple[NDArray[np.float32], NDArray[np.float32]]]:
        """Return weights (out, in) and offsets (out,) of all layers, of torch's distribution for `Linear`."""
        random = np.random.default_rng(0)
        return [
            (
                random.uniform(-1, 1, (wanted, given)).astype(np.float32) / np.float32(given**0.5),
                random.uniform(-1, 1, wanted).astype(np.float32) / np.float32(given**0.5),
            )
            for given, wanted in pairwise(self.sizes)
        ]

    def accuracy(self, scores: Callable[[NDArray[np.float32]], NDArray[np.float32]]) -> float:
        """Return the share of right labels of users who were not trained on."""
        return float((scores(self.features[self.users :]).argmax(-1) == self.labels[self.users :]).mean())


def sensors(random: np.random.Generator) -> Task:
    users, others, items, columns = 400, 150, 32, 30
    centres, offsets = random.normal(size=(6, columns)), random.normal(0, 0.7, size=(users + others, 1, columns))
    labels = random.integers(0, 6, size=(users + others, items))
    features = 0.6 * centres[labels] + offsets + random.normal(size=(*labels.shape, columns))
    return Task(features.astype(np.float32), labels, users, (columns, 16, 6))


def images(random: np.random.Generator) -> Task:
    users, others, items, side = 800, 400, 16, 12
    shapes = np.kron(random.normal(size=(10, 4, 4)), np.ones((3, 3)))
    laws = random.dirichlet(np.full(10, 0.6), users + others)
    labels = np.array([random.choice(10, items, p=law) for law in laws])
    moves = random.integers(-1, 2, size=(*labels.shape, 2))
    features = random.normal(0, 1.5, size=(*labels.shape, side, side))
    for place in np.ndindex(labels.shape):
        features[place] += np.roll(shapes[labels[place]], moves[place], (0, 1))
    return Task(features.reshape(*labels.shape, -1).astype(np.float32), labels, users, (side * side, 16, 10))


def table(random: np.random.Generator) -> Task:
    users, others, items, columns = 1_200, 800, 8, 16
    x = random.normal(size=(users + others, items, columns)) + 0.5 * random.normal(size=(users + others, 1, columns))
    bent = x[..., 0] * x[..., 1] + x[..., 2] - 0.7 * np.abs(x[..., 3]) + 0.8 * np.sin(2 * x[..., 4]) + 0.6
    labels = (random.random(bent.shape) < 1 / (1 + np.exp(-2 * bent))).astype(np.int64)
    return Task(x.astype(np.float32), labels, users, (columns, 16, 2))


def tags(random: np.random.Generator) -> Task:
    users, others, items, words, topics = 800, 300, 12, 120, 20
    of_topic = random.dirichlet(np.full(words, 0.05), topics)
    laws = random.dirichlet(np.full(topics, 0.3), users + others)
    labels = np.array([random.choice(topics, items, p=law) for law in laws])
    features = np.zeros((users + others, items, words), np.float32)
    for place in np.ndindex(labels.shape):
        features[place][random.choice(words, 12, p=0.6 * of_topic[labels[place]] + 0.4 / words)] = 1 / 3
    return Task(features, labels, users, (words, topics))


def characters(random: np.random.Generator) -> Task:
    users, others, items, before, letters = 1_600, 300, 16, 3, 27
    text = re.sub("[^a-z]+", " ", " ".join(pydoc_data.topics.topics.values()).lower()).encode()
    codes = np.maximum(np.frombuffer(text, np.uint8).astype(np.int64) - ord("a") + 1, 0)  # a space is 0
    passages = np.array_split(codes, users + others)
    taken = [passages[index] for index in random.permutation(users + others)]
    starts = [random.choice(len(passage) - before, items, replace=False) for passage in taken]
    windows = np.stack(
        [passage[first[:, None] + np.arange(before + 1)] for passage, first in zip(taken, starts, strict=True)]
    )
    features = np.eye(letters, dtype=np.float32)[windows[..., :-1]].reshape(*windows.shape[:2], -1)
    return Task(features, windows[..., -1], users, (before * letters, 16, letters))


TASKS: dict[str, Callable[[np.random.Generator], Task]] = {
    "sensors": sensors,
    "images": images,
    "table": table,
    "tags": tags,
    "characters": characters,
}
