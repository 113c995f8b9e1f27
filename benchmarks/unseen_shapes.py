"""Made tables that no forecast was fixed on: odd ranges, odd columns, odd labels, odd users.

    looked   what a forecast was changed after a look at
    rare     labels of which 3 to 12 % are positive
    sealed   the same kinds with other parameters and other draws, and kinds that the first group has none of: what was
             only measured once a forecast was final

Each kind says what its columns, ranges, labels and users are like; a number in its name is a parameter.
"""

import math
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from quoron.data import TablePopulation, from_table
from quoron_client.data.encoding import Encoding, read_label
from quoron_client.data.features import Numeric
from quoron_client.losses import LeastSquares, Logistic
from quoron_client.protocol.domains import L2Ball

FAR = L2Ball(1e5)  # within which the optimum is looked for
HELD_OUT = 0.05

Matrix = NDArray[np.float64]
Random = np.random.Generator
Columns = Callable[[Random, NDArray[np.int64], int], tuple[Matrix, Matrix, Matrix]]  # numbers, lows, highs


@dataclass(frozen=True)
class Shape:
    """One kind of table."""

    columns: Columns
    items: tuple[int, int] = (1, 5)  # rows of a user
    strength: float = 1.5
    level: float = -0.3
    label: str = "plain"
    squares: bool = False


def _ends(d: int, low: float | Matrix, high: float | Matrix) -> tuple[Matrix, Matrix]:
    return np.full(d, low), np.full(d, high)


def normal(times: float = 1.0, mean: float = 0.0) -> Columns:
    """Numbers within [-4, 4], declared so many times as wide."""
    return lambda draw, owners, d: (
        mean + draw.standard_normal((len(owners), d)),
        *_ends(d, -4 * times, 4 * times),
    )


def units(most: float) -> Columns:
    """Ranges from just right to `most` times too wide, column by column."""
    return lambda draw, owners, d: (
        draw.standard_normal((len(owners), d)),
        -4 * np.geomspace(1, most, d),
        4 * np.geomspace(1, most, d),
    )


def half_wide(times: float) -> Columns:
    """Every second column's range so many times too wide."""

    def made(draw: Random, owners: NDArray[np.int64], d: int) -> tuple[Matrix, Matrix, Matrix]:
        wide = np.where(np.arange(d) % 2, times, 1.0)
        return draw.standard_normal((len(owners), d)), -4 * wide, 4 * wide

    return made


def counts(high: float, spread: float) -> Columns:
    """Counts with a long tail."""
    return lambda draw, owners, d: (
        np.floor(np.exp(spread * draw.standard_normal((len(owners), d)) + 1)),
        *_ends(d, 0.0, high),
    )


def marks(share: float, few: int) -> Columns:
    """`few` columns of zeros and ones, ones in that share of rows, beside numbers."""

    def made(draw: Random, owners: NDArray[np.int64], d: int) -> tuple[Matrix, Matrix, Matrix]:
        found, many = draw.standard_normal((len(owners), d)), min(few, d)
        found[:, :many] = draw.random((len(owners), many)) < share
        low, high = _ends(d, -4.0, 4.0)
        low[:many], high[:many] = 0, 1
        return found, low, high

    return made


def far_rows(share: float, far: float) -> Columns:
    """A few rows many deviations away, within ranges that hold them."""

    def made(draw: Random, owners: NDArray[np.int64], d: int) -> tuple[Matrix, Matrix, Matrix]:
        found = draw.standard_normal((len(owners), d))
        found[draw.random(len(owners)) < share] *= far
        return found, *_ends(d, -4 * far, 4 * far)

    return made


def tails(freedom: float, end: float) -> Columns:
    """Student's t, clipped at the range."""
    return lambda draw, owners, d: (draw.standard_t(freedom, (len(owners), d)), *_ends(d, -end, end))


def copies(noise: float) -> Columns:
    """Every column twice, nearly."""

    def made(draw: Random, owners: NDArray[np.int64], d: int) -> tuple[Matrix, Matrix, Matrix]:
        half = draw.standard_normal((len(owners), -(-d // 2)))
        found = np.concatenate([half, half + noise * draw.standard_normal(half.shape)], axis=1)[:, :d]
        return found, *_ends(d, -4, 4)

    return made


def likert(values: int) -> Columns:
    """Answers of 1 to so many that share a factor."""

    def made(draw: Random, owners: NDArray[np.int64], d: int) -> tuple[Matrix, Matrix, Matrix]:
        scores = draw.standard_normal((len(owners), 1)) + draw.standard_normal((len(owners), d))
        return np.clip(np.rint(values / 2 + 0.5 + values / 5 * scores), 1, values), *_ends(d, 1, values)

    return made


def per_user(share: float) -> Columns:
    """Columns most of which are the user's own."""

    def made(draw: Random, owners: NDArray[np.int64], d: int) -> tuple[Matrix, Matrix, Matrix]:
        own = draw.standard_normal((owners[-1] + 1, d))[owners]
        return math.sqrt(share) * own + math.sqrt(1 - share) * draw.standard_normal(own.shape), *_ends(d, -4, 4)

    return made


def drift(times: float) -> Columns:
    """Later users are elsewhere."""

    def made(draw: Random, owners: NDArray[np.int64], d: int) -> tuple[Matrix, Matrix, Matrix]:
        way = draw.standard_normal(d) * times
        return draw.standard_normal((len(owners), d)) + (owners / owners[-1])[:, None] * way, *_ends(d, -4, 8)

    return made


def zipf(many: int, power: float) -> Columns:
    """One-hot columns of `many` values, some rare."""

    def made(draw: Random, owners: NDArray[np.int64], d: int) -> tuple[Matrix, Matrix, Matrix]:
        odds = np.arange(1, many + 1) ** -power
        each = [draw.choice(many, len(owners), p=odds / odds.sum())[:, None] == np.arange(1, many) for _ in range(d)]
        return np.concatenate(each[: -(-d // (many - 1))], axis=1)[:, :d].astype(float), *_ends(d, 0, 1)

    return made


def classes(many: int) -> Columns:
    """Zeros and ones of which a hidden kind of row decides the odds."""

    def made(draw: Random, owners: NDArray[np.int64], d: int) -> tuple[Matrix, Matrix, Matrix]:
        odds, kind = draw.uniform(0.05, 0.95, (many, d)), draw.integers(0, many, len(owners))
        return (draw.random((len(owners), d)) < odds[kind]).astype(float), *_ends(d, 0, 1)

    return made


def groups(apart: float) -> Columns:
    """Two clouds."""

    def made(draw: Random, owners: NDArray[np.int64], d: int) -> tuple[Matrix, Matrix, Matrix]:
        side = np.where(draw.random(len(owners)) < 0.3, apart, 0.0)[:, None]
        return draw.standard_normal((len(owners), d)) + side * draw.standard_normal(d), *_ends(d, -12, 12)

    return made


def poisson(mean: float) -> Columns:
    """Small counts, mostly zero."""
    return lambda draw, owners, d: (draw.poisson(mean, (len(owners), d)).astype(float), *_ends(d, 0, 10))


def chain(next_to: float) -> Columns:
    """Each column like the one before."""

    def made(draw: Random, owners: NDArray[np.int64], d: int) -> tuple[Matrix, Matrix, Matrix]:
        found = draw.standard_normal((len(owners), d))
        for k in range(1, d):
            found[:, k] = next_to * found[:, k - 1] + math.sqrt(1 - next_to**2) * found[:, k]
        return found, *_ends(d, -4, 4)

    return made


def beside(some: Columns, others: Columns) -> Columns:
    """Half the columns of one kind, half of another."""

    def made(draw: Random, owners: NDArray[np.int64], d: int) -> tuple[Matrix, Matrix, Matrix]:
        first = some(draw, owners, d // 2)
        rest = others(draw, owners, d - first[0].shape[1])
        numbers = np.concatenate([first[0], rest[0]], axis=1)
        return numbers, np.concatenate([first[1], rest[1]]), np.concatenate([first[2], rest[2]])

    return made


LOOKED: Mapping[str, Shape] = {
    "wide 100": Shape(normal(100)),
    "wide 20": Shape(normal(20), strength=2.5),
    "units 3000": Shape(units(3000)),
    "half wide 50": Shape(half_wide(50)),
    "counts 5000": Shape(counts(5000, 1.0)),
    "mark 2 %, one row": Shape(marks(0.02, 1), items=(1, 1)),
    "marks 5 %, one row": Shape(marks(0.05, 4), items=(1, 1)),
    "few far rows": Shape(far_rows(0.01, 10)),
    "exact": Shape(normal(), label="exact"),
    "nearly exact": Shape(normal(), strength=12),
    "exact, marks": Shape(classes(4), label="exact", items=(1, 8)),
    "1 % positive": Shape(normal(), level=-5.6),
    "nothing": Shape(normal(), label="nothing"),
    "copies": Shape(copies(0.05)),
    "interactions": Shape(normal(), label="products"),
    "opposite": Shape(normal(), label="opposite"),
    "many rows": Shape(normal(), items=(1, 300)),
    "drift": Shape(drift(1.5)),
    "tails 1.5": Shape(tails(1.5, 50)),
    "mostly zero, numbers": Shape(normal(), label="mostly zero", squares=True),
    "zipf 12": Shape(zipf(12, 1.2)),
    "likert": Shape(likert(5), strength=1.0),
    "own columns": Shape(per_user(0.95), items=(2, 10)),
    "two clouds": Shape(groups(3.0)),
    "numbers, small labels": Shape(normal(), label="small", squares=True),
    "numbers, wide 30": Shape(normal(30), squares=True),
}
SEALED: Mapping[str, Shape] = {
    "wide 300": Shape(normal(300)),
    "wide 40": Shape(normal(40), strength=1.0, level=0.5),
    "units 500": Shape(units(500), items=(2, 6)),
    "half wide 200": Shape(half_wide(200)),
    "counts 2000": Shape(counts(2000, 1.5), strength=1.0),
    "mark 3 %, one row": Shape(marks(0.03, 1), items=(1, 1), strength=2.0),
    "marks 1 %": Shape(marks(0.01, 5)),
    "far rows 0.3 %": Shape(far_rows(0.003, 30)),
    "exact, correlated": Shape(chain(0.8), label="exact"),
    "nearly exact, own columns": Shape(per_user(0.7), strength=20, items=(1, 3)),
    "2 % positive": Shape(normal(), level=-4.8, strength=1.0),
    "97 % positive": Shape(chain(0.5), level=4.3),
    "nothing, marks": Shape(classes(3), label="nothing"),
    "copies, exactly": Shape(copies(0.0), strength=2.0),
    "products of marks": Shape(classes(5), label="products"),
    "opposite users": Shape(normal(), label="opposite", items=(1, 12), strength=2.5),
    "many rows, chain": Shape(chain(0.95), items=(1, 150)),
    "drift far": Shape(drift(3.0)),
    "tails 2": Shape(tails(2.0, 20), strength=1.0),
    "mostly zero, numbers": Shape(chain(0.7), label="mostly zero", squares=True),
    "poisson": Shape(poisson(0.3)),
    "poisson, one row": Shape(poisson(1.0), items=(1, 1)),
    "zipf 30": Shape(zipf(30, 1.0), strength=1.0),
    "likert 7, one row": Shape(likert(7), items=(1, 1)),
    "clouds far": Shape(groups(5.0), strength=1.0, items=(1, 3)),
    "numbers, wide 100": Shape(normal(100), squares=True, items=(1, 2)),
    "numbers of tails": Shape(tails(3.0, 15), squares=True),
}
LEVELS = {12: -2.6, 6: -3.5, 3: -4.4}  # by per cent of positive labels
RARE: Mapping[str, Shape] = {
    f"{kind}, {rate} %": Shape(columns, level=level)
    for kind, columns in {
        "one-hot": zipf(8, 1.0),
        "marks": classes(4),
        "half one-hot": beside(zipf(8, 1.0), normal()),
        "chain": chain(0.8),
    }.items()
    for rate, level in LEVELS.items()
}
POOLS = {"looked": LOOKED, "sealed": SEALED, "rare": RARE}


def table(pool: str, name: str, users: int, columns: int, draw: int = 0, held_out: float = HELD_OUT) -> TablePopulation:
    """A table of so many users, and a share of others held out; `columns` count the constant one."""
    shape = POOLS[pool][name]
    words = (pool, name, users, columns, draw)
    random = np.random.Generator(np.random.Philox(zlib.crc32(repr(words).encode())))
    everybody, d = math.ceil(users / (1 - held_out)), columns - 1
    low, high = shape.items
    many = np.rint(np.exp(random.uniform(math.log(low), math.log(high + 1), everybody)) - 0.5) if high > 20 else None
    rows = random.integers(low, high + 1, everybody) if many is None else np.clip(many, low, high).astype(int)
    owners = np.repeat(np.arange(everybody), rows)
    numbers, lows, highs = shape.columns(random, owners, d)
    numbers = np.clip(numbers, lows, highs)
    labels, ends = _labels(shape, numbers, owners, random)
    names = [f"x{k}" for k in range(d)]
    features = tuple(Numeric(*each) for each in zip(names, lows, highs, strict=True))
    return from_table(
        pd.DataFrame(numbers, columns=names).assign(who=owners, y=labels),
        Encoding(features, label=read_label("y", range=ends)),
        user="who",
        loss=LeastSquares() if shape.squares else Logistic(),
        domain=FAR,
        items_per_user=max(1, round(math.exp(np.mean(np.log(rows))))),
        test_fraction=held_out,
    )


def _labels(
    shape: Shape, numbers: Matrix, owners: NDArray[np.int64], random: Random
) -> tuple[Matrix, tuple[float, float] | None]:
    """Labels, and of numbers their range."""
    unit = (numbers - numbers.mean(axis=0)) / np.maximum(numbers.std(axis=0), 1e-9)
    if shape.label == "products":
        unit = np.concatenate([unit[:, :-1] * unit[:, 1:], 0.5 * unit], axis=1)
    scores = unit @ random.normal(size=unit.shape[1])
    scores /= max(float(scores.std()), 1e-9)
    if shape.label == "opposite":
        scores = scores * np.where(random.random(owners[-1] + 1) < 0.3, -1, 1)[owners]
    if shape.squares:
        noise = random.normal(size=len(scores))
        if shape.label == "mostly zero":
            return np.maximum(scores + 0.5 * noise - 1.0, 0), (0.0, 6.0)
        return (scores + noise) * (0.02 if shape.label == "small" else 1.0), (-8.0, 8.0)
    if shape.label == "nothing":
        return random.random(len(scores)) < 0.4, None
    if shape.label == "exact":
        return scores > -0.3 * shape.level, None
    return random.random(len(scores)) < 1 / (1 + np.exp(-shape.strength * scores - shape.level)), None
