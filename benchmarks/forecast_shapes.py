"""Made tables of many shapes for `forecasts.py`, each with n, d, m and ε drawn at random by a fixed seed.

fixed     what forecasts are fixed on: six kinds of columns; how users differ, how strong, how rare and how noisy the
          label is, and how far columns fill their ranges are drawn anew for each cell
others    what they are only tested on: shapes by name, of other kinds of columns and users
edges     the kinds of the first group at the ends of what is planned: few users and many, few columns and many, up to
          1,000 rows a user, 26 classes, ε = 0.1 to 15
rare      labels of which half to thirty per cent are positive, of every kind of columns and of three strengths
tails     amounts with a long tail, of every kind of columns

All have a constant column. A label is of two classes, of three to six, or a number.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from quoron.data import TablePopulation, from_table
from quoron_client.data.encoding import Encoding, read_label
from quoron_client.data.features import Numeric
from quoron_client.losses import Huber, LeastSquares, Logistic, Softmax
from quoron_client.protocol.domains import L2Ball
from quoron_privacy.accounts.gdp import mu_for

FAR = L2Ball(1e5)  # within which the optimum is looked for
DELTA = 1e-6
USERS, COLUMNS = (300, 40_000), (2, 3, 5, 10, 15, 30, 60, 100)
ITEMS, EPSILONS = (1, 1, 3, 10, 30, 100), (0.5, 1.0, 2.0, 4.0, 8.0)
RESOLUTIONS = 12.0, 5_000.0  # ν of a cell
MOST_NUMBERS, MOST_MOMENTS = 2_000_000, 15_000_000  # of a table; of all users' second moments
EDGES = (  # n, d, m, ε and K
    *((300, 2, 1, 4.0, 1), (300, 2, 100, 0.5, 1), (300, 2, 3, 15.0, 1), (300, 5, 1, 1.0, 1), (300, 5, 100, 0.5, 1)),
    *((400, 2, 1000, 0.5, 1), (1_000, 5, 1, 0.1, 1), (1_000, 30, 30, 0.5, 1), (1_000, 30, 1, 1.0, 1)),
    *((3_000, 100, 3, 0.5, 1), (10_000, 30, 10, 0.1, 1), (200_000, 3, 1, 15.0, 1), (100_000, 10, 3, 8.0, 1)),
    *((5_000, 200, 2, 15.0, 1), (20_000, 100, 3, 8.0, 1), (20_000, 3, 3, 4.0, 26), (5_000, 3, 3, 15.0, 26)),
)

RATES = (0.005, 0.01, 0.02, 0.05, 0.1, 0.3)  # of positive labels

Matrix = NDArray[np.float32]
Random = np.random.Generator


@dataclass(frozen=True)
class Cell:
    """One table and one ε."""

    name: str
    kind: str  # of its columns
    loss: str = "logistic"
    users_are: str = "even"
    strength: float = 1.5  # of the scores, in standard deviations; of numbers, over the noise
    level: float = -0.3  # and their mean
    flipped: float = 0.0  # share of labels; of numbers, whether their noise has heavy tails
    wide: float = 1.0  # times the columns' ranges
    users: int = 0
    columns: int = 0  # with the constant
    items: int = 0
    epsilon: float = 0.0
    seed: int = 0
    classes: int = 0  # of a softmax loss; three or six unless told
    skew: float = 0.0  # of numbers, of which then exponentials are labels


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
    """Columns that fill from all to a tenth of their ranges."""
    return (draw.standard_normal((rows, d)) * np.geomspace(1, 1 / 10, d)).astype(np.float32)


KINDS: Mapping[str, tuple[Callable[[Random, int, int], Matrix], tuple[float, float]]] = {  # and their ranges
    "plain": (lambda draw, rows, d: draw.standard_normal((rows, d), np.float32), (-4, 4)),
    "correlated": (_factors, (-4, 4)),
    "uncentred": (lambda draw, rows, d: np.float32(3) + draw.standard_normal((rows, d), np.float32), (-4, 7)),
    "heavy": (lambda draw, rows, d: draw.standard_t(2.5, (rows, d)).astype(np.float32), (-4, 4)),
    "sparse": (
        lambda draw, rows, d: draw.standard_normal((rows, d), np.float32) * (draw.random((rows, d)) < 0.1),
        (-4, 4),
    ),
    "one-hot": (_one_hot, (0, 1)),
    "toeplitz": (_toeplitz, (-4, 4)),
    "lognormal": (lambda draw, rows, d: np.exp(draw.standard_normal((rows, d), np.float32)), (0, 12)),
    "binary": (_binary, (0, 1)),
    "clusters": (_clusters, (-6, 6)),
    "scales": (_scales, (-4, 4)),
}
FIXED = ("plain", "correlated", "uncentred", "heavy", "sparse", "one-hot")
OTHERS = (
    Cell("toeplitz", "toeplitz", users_are="random"),
    Cell("toeplitz, strong", "toeplitz", users_are="random", strength=3.0, level=0.5),
    Cell("toeplitz, weak, careful", "toeplitz", users_are="few-large", strength=0.5, level=-1.0, wide=5.0),
    Cell("lognormal", "lognormal", users_are="random", strength=1.0, level=-1.0),
    Cell("marks, strong", "binary", users_are="few-large", strength=3.0, level=0.5),
    Cell("marks, 2 % positive", "binary", users_are="random", strength=1.0, level=-4.5),
    Cell("clusters, weak", "clusters", users_are="random", strength=0.5, level=-1.0),
    Cell("clusters, 2 % positive", "clusters", users_are="few-large", strength=1.0, level=-4.5),
    Cell("scales", "scales", users_are="random"),
    Cell("scales, noisy", "scales", users_are="few-large", flipped=0.2),
    Cell("toeplitz, numbers", "toeplitz", "least_squares", "random", 3.0),
    Cell("lognormal, numbers", "lognormal", "least_squares", "few-large", 0.5, flipped=1.0),
    Cell("marks, numbers", "binary", "least_squares", "random", 0.5),
    Cell("scales, numbers", "scales", "least_squares", "random", 1.0),
    Cell("clusters, classes", "clusters", "softmax", "random", 2.0),
    Cell("marks, classes", "binary", "softmax", "few-large", 1.0),
    Cell("toeplitz, numbers, Huber", "toeplitz", "huber", "random", 1.0, flipped=1.0),
    Cell("scales, numbers, Huber", "scales", "huber", "few-large", 1.0, flipped=1.0),
)


def cells(which: str, each: int) -> Iterator[Cell]:
    """`each` of every kind of columns and label, or of every shape by name, of ν within RESOLUTIONS; or the edges."""
    if which == "edges":
        yield from _edges()
        return
    draw = np.random.default_rng({"others": 7, "rare": 9, "tails": 11}.get(which, 5))
    if which == "rare":
        drawn = [(kind, rate, strength) for _ in range(each) for kind in KINDS for rate in RATES for strength in (1, 3)]
        shapes = [_rare(draw, *some) for some in drawn]
    elif which == "tails":
        skewed = [(kind, skew) for _ in range(each) for kind in KINDS for skew in (0.5, 1.0)]
        shapes = [Cell(kind, kind, "least_squares", skew=skew) for kind, skew in skewed]
    elif which == "others":
        shapes = [shape for shape in OTHERS for _ in range(each)]
    else:
        losses = ("logistic", "logistic", "least_squares", "softmax")
        shapes = [_drawn(draw, kind, loss) for _ in range(each) for kind in FIXED for loss in losses]
    for shape in shapes:
        while True:
            users = round(math.exp(draw.uniform(*np.log(USERS))))
            columns, items, epsilon = (draw.choice(values) for values in (COLUMNS, ITEMS, EPSILONS))
            low, high = RESOLUTIONS
            parts = _classes(shape, 0) - 1 if shape.loss == "softmax" else 1
            small = users * items * columns <= MOST_NUMBERS / parts and users * columns**2 <= MOST_MOMENTS / parts
            if small and low < 0.88 * users * mu_for(epsilon, DELTA) / math.sqrt(columns * parts) < high:
                break
        found = {"users": users, "columns": int(columns), "items": int(items), "epsilon": float(epsilon)}
        yield replace(shape, **found, seed=int(draw.integers(2**31)))


def _edges() -> Iterator[Cell]:
    for number, (users, columns, items, epsilon, classes) in enumerate(EDGES):
        loss, few = ("softmax" if classes > 1 else "logistic"), users * columns**2 * classes > MOST_MOMENTS
        for kind in FIXED[: 2 if few else None]:
            sizes = {"users": users, "columns": columns, "items": items, "epsilon": epsilon, "classes": classes}
            yield Cell(kind, kind, loss, **sizes, seed=number)


def _drawn(draw: Random, kind: str, loss: str) -> Cell:
    users_are = str(draw.choice(["even", "even", "unequal", "personal"]))
    strength, level = math.exp(draw.uniform(math.log(0.3), math.log(4))), -2 * abs(draw.normal())
    flipped, wide = draw.choice([0.0, 0.0, 0.25]), math.exp(max(0.0, draw.uniform(-math.log(20), math.log(20))))
    return Cell(f"{kind}, {loss}", kind, loss, users_are, strength, level, float(flipped), wide)


def _rare(draw: Random, kind: str, rate: float, strength: float) -> Cell:
    """About so many positive labels."""
    level = math.log(rate / (1 - rate)) * math.sqrt(1 + (strength / 1.7) ** 2)
    users_are = str(draw.choice(["even", "unequal", "personal"]))
    return Cell(f"{kind}, {100 * rate:g} % positive", kind, users_are=users_are, strength=strength, level=level)


def _classes(cell: Cell, seed: int) -> int:
    return cell.classes or 3 + (len(cell.kind) + seed) % 2 * 3  # three or six


def _counts(draw: Random, kind: str, users: int, items: int) -> NDArray[np.int64]:
    if items == 1:
        return np.ones(users, np.int64)
    if kind == "unequal":  # half have less than half of it, some have many
        return np.maximum(1, np.rint(items * np.exp(draw.normal(-0.5, 1.0, users)))).astype(np.int64)
    if kind == "few-large":
        return np.where(draw.random(users) < 0.1, 5 * items, np.maximum(1, items // 2)).astype(np.int64)
    return draw.integers(1, 2 * items, users)


def table(cell: Cell) -> TablePopulation:
    """Nine tenths of its users to train on."""
    draw = np.random.default_rng(cell.seed)
    users, d = math.ceil(cell.users / 0.9), cell.columns - 1
    owners = np.repeat(np.arange(users), _counts(draw, cell.users_are, users, cell.items))
    make, (low, high) = KINDS[cell.kind]
    numbers = make(draw, len(owners), d)
    if cell.users_are == "random":  # half of what a row's columns are is its user's
        numbers = np.where(draw.random(d) < 0.5, make(draw, users, d)[owners], numbers).astype(np.float32)
    many = _classes(cell, 0) if cell.loss == "softmax" else 1
    scores = numbers @ draw.normal(size=(d, many)).astype(np.float32)
    scores = (scores - scores.mean(axis=0)) / np.maximum(scores.std(axis=0), 1e-9)
    if cell.users_are in ("personal", "few-large"):
        scores = scores + 0.5 * draw.standard_normal((users, 1))[owners]
    names, middle = [f"x{k}" for k in range(d)], 0.5 * (low + high)
    frame = pd.DataFrame(numbers, columns=names).assign(who=owners)
    flips = draw.random(len(owners)) < cell.flipped
    if cell.loss == "logistic":
        chances = 0.5 + 0.5 * np.tanh(0.5 * (cell.strength * scores[:, 0] + cell.level))
        frame["y"], meant, loss = (draw.random(len(owners)) < chances) ^ flips, read_label("y"), Logistic()
    elif cell.loss == "softmax":
        wild = scores * cell.strength + draw.gumbel(size=scores.shape) + np.arange(many) * 0.3 * cell.level / many
        found = np.where(flips, draw.integers(0, many, len(owners)), wild.argmax(axis=1))
        frame["y"], meant = found, read_label("y", classes=tuple(range(many)))
        loss = Softmax(classes=many)
    else:
        noise = draw.standard_t(3, len(owners)) if cell.flipped else draw.standard_normal(len(owners))
        frame["y"] = scores[:, 0] + min(1 / cell.strength, 2.0) * noise
        if cell.skew:
            frame["y"] = np.exp(cell.skew * frame["y"])
        meant = read_label("y", range=(-6.0, 8.0))
        loss = Huber(threshold=0.15) if cell.loss == "huber" else LeastSquares()
    ends = middle + cell.wide * (low - middle), middle + cell.wide * (high - middle)
    return from_table(
        frame,
        Encoding(tuple(Numeric(name, *ends) for name in names), label=meant),
        user="who",
        loss=loss,
        domain=FAR,
        items_per_user=cell.items,
        test_fraction=0.1,
    )
