"""Made tables of many shapes for `forecasts.py`: how columns, users and labels are, in some two dozen kinds.

`SHAPES["fixed"]` are those on which forecasts are fixed, `SHAPES["others"]` those on which they are only tested: no
kind of columns, users or labels is in both. A cell is a shape with n, d, m and ε drawn at random, by a fixed seed.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from quoron.populations import Numeric, TablePopulation, from_table
from quoron_client.data.encoding import read_label
from quoron_client.losses import LeastSquares, Logistic
from quoron_client.protocol.domains import L2Ball
from quoron_privacy.accounts.gdp import mu_for

FAR = L2Ball(1e5)  # within which the optimum is looked for
DELTA = 1e-6
USERS, COLUMNS, ITEMS, EPSILONS = (
    (300, 40_000),
    (2, 3, 5, 10, 15, 30, 60, 100),
    (1, 1, 3, 10, 30, 100),
    (0.5, 1, 2, 4, 8),
)
RESOLUTIONS = 12.0, 5_000.0  # ν of a cell
MOST_NUMBERS, MOST_MOMENTS = 3_000_000, 25_000_000  # of a table; of all users' second moments

Matrix = NDArray[np.float32]
Random = np.random.Generator


@dataclass(frozen=True)
class Shape:
    """How the columns, the users and the label of a table are."""

    columns: str
    users: str = "even"
    label: str = "plain"
    loss: str = "logistic"
    ends: tuple[float, float] = (-4.0, 4.0)  # declared ranges

    @property
    def name(self) -> str:
        """Of all four."""
        return f"{self.loss} {self.columns} {self.users} {self.label} {self.ends[1]:g}"


def _factors(draw: Random, rows: int, d: int) -> Matrix:
    factors = max(2, d // 10)
    mixed = draw.standard_normal((rows, factors), np.float32) @ draw.standard_normal((factors, d), np.float32)
    return mixed / np.float32(factors**0.5) + np.float32(0.3) * draw.standard_normal((rows, d), np.float32)


def _toeplitz(draw: Random, rows: int, d: int) -> Matrix:
    found = draw.standard_normal((rows, d), np.float32)
    for k in range(1, d):
        found[:, k] = 0.9 * found[:, k - 1] + math.sqrt(1 - 0.81) * found[:, k]
    return found


def _one_hot(draw: Random, rows: int, d: int, many: int = 8) -> Matrix:
    """Groups of 8 values of Zipf's frequencies."""
    odds = 1 / np.arange(1, many + 1)
    found = [draw.choice(many, rows, p=odds / odds.sum())[:, None] == np.arange(many) for _ in range(-(-d // many))]
    return np.hstack(found)[:, :d].astype(np.float32)


def _binary(draw: Random, rows: int, d: int) -> Matrix:
    """Rare and frequent marks."""
    return (draw.random((rows, d)) < draw.uniform(0.02, 0.6, d)).astype(np.float32)


def _clusters(draw: Random, rows: int, d: int) -> Matrix:
    centres = draw.normal(0, 1.5, (4, d))
    return (centres[draw.integers(0, 4, rows)] + 0.6 * draw.standard_normal((rows, d))).astype(np.float32)


def _scales(draw: Random, rows: int, d: int) -> Matrix:
    """Columns that fill from all to a thirtieth of their ranges."""
    return (draw.standard_normal((rows, d)) * np.geomspace(1, 1 / 30, d)).astype(np.float32)


COLUMN_KINDS: Mapping[str, Callable[[Random, int, int], Matrix]] = {
    "plain": lambda draw, rows, d: draw.standard_normal((rows, d), np.float32),
    "correlated": _factors,
    "uncentred": lambda draw, rows, d: np.float32(3) + draw.standard_normal((rows, d), np.float32),
    "heavy": lambda draw, rows, d: draw.standard_t(2.5, (rows, d)).astype(np.float32),
    "sparse": lambda draw, rows, d: draw.standard_normal((rows, d), np.float32) * (draw.random((rows, d)) < 0.1),
    "one-hot": _one_hot,
    "toeplitz": _toeplitz,
    "lognormal": lambda draw, rows, d: np.exp(draw.standard_normal((rows, d), np.float32)),
    "binary": _binary,
    "clusters": _clusters,
    "scales": _scales,
}
LEVELS: Mapping[str, tuple[float, float, float]] = {  # strength of the scores, their mean, share of labels flipped
    "plain": (1.5, -0.3, 0.0),
    "rare": (1.5, -4.0, 0.0),
    "noisy": (1.5, 0.0, 0.25),
    "strong": (5.0, 0.5, 0.0),
    "weak": (0.5, -1.0, 0.0),
    "rarer": (1.0, -5.0, 0.0),
}
SHAPES: Mapping[str, tuple[Shape, ...]] = {
    "fixed": (
        Shape("plain"),
        Shape("correlated"),
        Shape("uncentred", ends=(-4.0, 7.0)),
        Shape("heavy"),
        Shape("sparse"),
        Shape("one-hot", ends=(0.0, 1.0)),
        Shape("plain", label="rare"),
        Shape("correlated", "unequal", "rare"),
        Shape("plain", "unequal"),
        Shape("plain", label="noisy"),
        Shape("uncentred", "personal", "noisy", ends=(-4.0, 7.0)),
        Shape("plain", ends=(-40.0, 40.0)),
        Shape("one-hot", "personal", ends=(0.0, 1.0)),
        Shape("plain", loss="least_squares"),
        Shape("correlated", loss="least_squares", label="noisy"),
        Shape("heavy", "unequal", loss="least_squares"),
        Shape("sparse", loss="least_squares", label="noisy"),
        Shape("one-hot", "personal", loss="least_squares", ends=(0.0, 1.0)),
        Shape("uncentred", loss="least_squares", ends=(-40.0, 40.0)),
    ),
    "others": (
        Shape("toeplitz", "random", "strong"),
        Shape("toeplitz", "random", "weak", ends=(-20.0, 20.0)),
        Shape("lognormal", "random", "weak", ends=(0.0, 12.0)),
        Shape("binary", "few-large", "strong", ends=(0.0, 1.0)),
        Shape("binary", "random", "rarer", ends=(0.0, 1.0)),
        Shape("clusters", "random", "weak", ends=(-6.0, 6.0)),
        Shape("clusters", "few-large", "rarer", ends=(-6.0, 6.0)),
        Shape("scales", "random", "strong"),
        Shape("scales", "few-large", "weak"),
        Shape("toeplitz", "random", "strong", "least_squares"),
        Shape("lognormal", "few-large", "weak", "least_squares", (0.0, 12.0)),
        Shape("binary", "random", "weak", "least_squares", (0.0, 1.0)),
        Shape("scales", "random", "strong", "least_squares"),
    ),
}


@dataclass(frozen=True)
class Cell:
    """One table and one ε."""

    shape: Shape
    users: int
    columns: int  # with the constant
    items: int
    epsilon: float
    seed: int = field(default=0)


def cells(which: str, each: int) -> Iterator[Cell]:
    """`each` of every shape, of ν within RESOLUTIONS, by a seed of their own."""
    for number, shape in enumerate(SHAPES[which]):
        draw, found = np.random.default_rng([number, which == "others"]), 0
        while found < each:
            users = round(math.exp(draw.uniform(*np.log(USERS))))
            columns, items, epsilon = (draw.choice(values) for values in (COLUMNS, ITEMS, EPSILONS))
            low, high = RESOLUTIONS
            small = users * items * columns <= MOST_NUMBERS and users * columns**2 <= MOST_MOMENTS
            if small and low < 0.88 * users * mu_for(epsilon, DELTA) / math.sqrt(columns) < high:
                found += 1
                yield Cell(shape, users, int(columns), int(items), float(epsilon), int(draw.integers(2**31)))


def _counts(draw: Random, kind: str, users: int, items: int) -> NDArray[np.int64]:
    if items == 1:
        return np.ones(users, np.int64)
    if kind == "unequal":  # half have a third, some have many
        return np.maximum(1, np.rint(items * np.exp(draw.normal(-0.5, 1.0, users)))).astype(np.int64)
    if kind == "few-large":
        return np.where(draw.random(users) < 0.1, 5 * items, np.maximum(1, items // 2)).astype(np.int64)
    return draw.integers(1, 2 * items, users)


def table(cell: Cell) -> TablePopulation:
    """Nine tenths of its users to train on."""
    shape, draw = cell.shape, np.random.default_rng(cell.seed)
    users, d = math.ceil(cell.users / 0.9), cell.columns - 1
    owners = np.repeat(np.arange(users), _counts(draw, shape.users, users, cell.items))
    numbers = COLUMN_KINDS[shape.columns](draw, len(owners), d)
    if shape.users == "random":  # half of what a row's columns are is its user's
        mine = COLUMN_KINDS[shape.columns](draw, users, d)
        numbers = np.where(draw.random(d) < 0.5, mine[owners], numbers).astype(np.float32)
    strength, mean, flipped = LEVELS[shape.label]
    scores = numbers @ draw.normal(size=d).astype(np.float32)
    scores = (scores - scores.mean()) / max(float(scores.std()), 1e-9)
    if shape.users in ("personal", "few-large"):
        scores = scores + 0.7 * draw.standard_normal(users)[owners]
    names = [f"x{k}" for k in range(d)]
    frame = pd.DataFrame(numbers, columns=names).assign(who=owners)
    if shape.loss == "logistic":
        label = draw.random(len(owners)) < 0.5 + 0.5 * np.tanh(0.5 * (strength * scores + mean))
        frame["y"], meant = label ^ (draw.random(len(owners)) < flipped), read_label("y")
    else:
        spread = 0.5 if shape.label == "strong" else 1.5
        noise = draw.standard_t(3, len(owners)) if shape.label == "noisy" else draw.standard_normal(len(owners))
        frame["y"], meant = scores + spread * noise, read_label("y", label_range=(-6.0, 8.0))
    return from_table(
        frame,
        user="who",
        label=meant,
        features=tuple(Numeric(name, *shape.ends) for name in names),
        loss=Logistic() if shape.loss == "logistic" else LeastSquares(),
        domain=FAR,
        items_per_user=cell.items,
        test_fraction=0.1,
    )
