"""The made tables of `default.py`: shapes that real tables have, drawn by a number, prefixes of one another.

A table of a shape, columns and draw has the same held-out users at every number of users, and its first users are
those of the smaller ones. Draw 0 is for whoever chooses a constant; figures are told of others.

    plain       between one and five rows a user, numbers without correlation, a balanced label
    correlated  columns mix a tenth as many factors
    uncentred   columns whose mean is three deviations from the middle of their range
    careful     columns fill a tenth of their declared ranges
    rare        4 % of labels are positive
    heavy       tails of Student's t with 2.5 degrees of freedom
    single      one row a user
    onehot      categories of unequal frequency in place of numbers, some of which are rare
    sparse      numbers that are zero in nineteen rows of twenty
    unequal     users of 1 to 100 rows, who differ from one another in every column and in the label
    noisy       a quarter of the labels are flipped
    constant    a fifth of the columns never change
    bare        no intercept
    amounts     a number is predicted, by least squares
    wages       the same, ten spreads off the middle of its range

All but `bare` have an intercept; columns count it. Beside them, of one row a user and without intercept:

    family      the made-up users of `population.family = "logistic"`
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from quoron.data import Synthetic, TablePopulation, from_table
from quoron.data.population import from_dataset
from quoron_client.data.encoding import Encoding, read_label
from quoron_client.data.features import Categorical, Feature, Numeric
from quoron_client.losses import LeastSquares, Logistic
from quoron_client.protocol.domains import L2Ball

SHAPES = (
    *("plain", "correlated", "uncentred", "careful", "rare", "heavy", "single"),
    *("onehot", "sparse", "unequal", "noisy", "constant", "bare", "amounts", "wages"),
)
FAR = L2Ball(1e5)  # within which the optimum is looked for
HELD_OUT = 4_000
USUAL = 20_000  # users of a table whose prefixes smaller ones are
WIDEST = 8  # categories of a column
AWAY = 18.0  # of the mean of `wages` from the middle of their range: ten spreads


def table(shape: str, users: int, columns: int, draw: int = 0) -> TablePopulation:
    """The first `users` of that draw, with 4,000 others held out."""
    whole = _drawn(shape, max(users, USUAL), columns, draw)
    return whole if users == whole.users else replace(whole, users=users, training=whole.training.of(np.arange(users)))


@lru_cache(maxsize=2)
def _drawn(shape: str, users: int, columns: int, draw: int) -> TablePopulation:
    if shape == "family":
        return _family(users, columns, draw)
    frame, encoding, rules = _rows(shape, users, columns, draw)
    return from_table(frame, encoding, **rules)


def on_disk(shape: str, users: int, columns: int, draw: int, folder: Path) -> Any:
    """The same with rows in Parquet in that folder, and items in files beside it."""
    frame, encoding, rules = _rows(shape, users, columns, draw)
    frame.to_parquet(folder / "rows.parquet", row_group_size=1 << 16)
    crowd = from_dataset(folder, encoding, **rules)
    return crowd.read_in(np.arange(crowd.users))


def _rows(shape: str, users: int, columns: int, draw: int) -> tuple[pd.DataFrame, Encoding, dict[str, Any]]:
    """A table, how its rows become items, and how it is read."""
    random = np.random.Generator(np.random.Philox([draw, columns, SHAPES.index(shape)]))
    everybody, many = users + HELD_OUT, columns - (shape != "bare")
    counts = _counts(shape, everybody, random)
    owners = np.repeat(np.arange(everybody), counts)
    values, design = _columns(shape, owners, many, random)
    scores = design @ random.normal(size=design.shape[1])
    scores = 1.5 * scores / max(float(scores.std()), 1e-9) - (4.0 if shape == "rare" else 0.3)
    if shape == "unequal":
        scores += random.normal(size=everybody)[owners]
    labels: Mapping[str, Any] = {"y": _labels(shape, scores, random)}
    amounts = shape in ("amounts", "wages")
    label = read_label("y", range=(-AWAY - 8, AWAY + 8) if shape == "wages" else (-8, 8) if amounts else None)
    encoding = Encoding(_features(shape, values), label, intercept=shape != "bare")
    return (
        pd.DataFrame(values | labels | {"who": owners}),
        encoding,
        {
            "user": "who",
            "loss": LeastSquares() if amounts else Logistic(),
            "domain": FAR,
            "items_per_user": 1 if shape == "single" else 3,
            "test_fraction": HELD_OUT / everybody,
        },
    )


def _family(users: int, columns: int, draw: int) -> TablePopulation:
    form = _drawn("bare", 1, columns, draw)
    made = Synthetic(
        family="logistic", users=users + HELD_OUT, items_per_user=1, dimension=columns, domain=FAR, seed=draw
    )
    held = made.items(np.arange(users, made.users))
    tested, training = np.ones(len(held.labels), bool), made.items(np.arange(users))
    return replace(form, users=training.users, training=training, held_out=held, tested=tested, items_per_user=1)


def _counts(shape: str, users: int, random: np.random.Generator) -> np.ndarray:
    if shape == "single":
        return np.ones(users, int)
    if shape == "unequal":
        return np.minimum(1 + random.lognormal(1.0, 1.2, users).astype(int), 100)
    return random.integers(1, 6, users)


def _columns(
    shape: str, owners: np.ndarray, many: int, random: np.random.Generator
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """A table's columns, and the numbers (N, p) that its label follows from."""
    rows = len(owners)
    if shape == "onehot":
        widths = [WIDEST] * (many // WIDEST) + ([many % WIDEST] if many % WIDEST else [])
        drawn = {}
        for k, width in enumerate(widths):  # the last category is not declared: a row of zeros
            chances = 1 / np.arange(1, width + 2)
            drawn[f"c{k}"] = random.choice(width + 1, rows, p=chances / chances.sum())
        kinds = [np.eye(width + 1, dtype=np.float32)[drawn[f"c{k}"]] for k, width in enumerate(widths)]
        return drawn, np.concatenate(kinds, axis=1)
    numbers = random.standard_normal((rows, many), np.float32)
    if shape == "correlated":
        factors = max(2, many // 10)
        mixed = random.standard_normal((rows, factors), np.float32)
        mixed = mixed @ random.standard_normal((factors, many), np.float32)
        numbers = mixed / np.float32(factors**0.5) + np.float32(0.3) * numbers
    elif shape == "heavy":
        numbers = random.standard_t(2.5, numbers.shape).astype(np.float32)
    elif shape == "sparse":
        numbers *= random.random(numbers.shape, np.float32) < 0.05
    elif shape == "unequal":
        numbers += random.standard_normal((owners[-1] + 1, many), np.float32)[owners]
    elif shape == "constant":
        numbers[:, : max(1, many // 5)] = 2.0
    moved = numbers + np.float32(3.0 if shape == "uncentred" else 0.0)
    return {f"x{k}": moved[:, k] for k in range(many)}, numbers


def _labels(shape: str, scores: np.ndarray, random: np.random.Generator) -> np.ndarray:
    if shape in ("amounts", "wages"):
        return scores + random.normal(size=len(scores)) + (AWAY if shape == "wages" else 0.0)
    positive = random.random(len(scores)) < 1 / (1 + np.exp(-scores))
    return positive ^ (random.random(len(scores)) < 0.25) if shape == "noisy" else positive


def _features(shape: str, values: Mapping[str, np.ndarray]) -> tuple[Feature, ...]:
    if shape == "onehot":
        return tuple(Categorical(name, tuple(range(int(found.max())))) for name, found in values.items())
    end, shift = (40.0 if shape == "careful" else 4.0), (3.0 if shape == "uncentred" else 0.0)
    return tuple(Numeric(name, -end, end + shift) for name in values)
