"""A table, what one user may change of it, and all that a run knows of what is read of either: for tests of doors."""

import csv
import itertools
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pytest

from contracts.odd_values import NUMBERS, TEXTS
from quoron import config as configs
from quoron.training.table import load_rows
from quoron_client.data.encoding import Encoding
from quoron_client.data.items import ItemBatch
from quoron_client.federation.terms import Terms
from quoron_privacy.errors import DataError

CHANGES = 26  # of each door by default; 2,000 with -m slow
RULES = """
[population]
kind = "table"
path = "{path}"
user = "who"
label = {{ column = "sick", classes = ["no", "yes"] }}
columns.numeric = {{ age = [0, 100], size = [-1, 1] }}
columns.categorical = {{ ward = ["A", "7", "true"], code = [1, 2, 3] }}
columns.hashed = {{ note = 8 }}
columns.weight = {{ column = "count", most = 4 }}
columns.missing = "{missing}"
[population.columns.dates]
day = {{ parts = ["weekday", "hour"], days = ["2024-01-01", "2024-12-31"] }}
"""
USERS, ROWS = 8, 3
Table = dict[str, list[Any]]


@cache
def base() -> Table:
    """Users of a few rows each."""
    draw = np.random.default_rng(5)
    who = np.repeat(np.arange(USERS), ROWS)  # a folder's files are sorted by user, or one user is in one file
    many = len(who)
    return {
        "who": [f"u{each:02}" for each in who],
        "age": [float(each) for each in np.round(draw.uniform(-5, 110, many), 3)],
        "size": [float(each) for each in np.round(draw.normal(size=many), 2)],
        "ward": [str(each) for each in draw.choice(["A", "7", "B"], many)],
        "code": [int(each) for each in draw.integers(1, 5, many)],
        "sick": [str(each) for each in draw.choice(["no", "yes"], many)],
        "count": [int(each) for each in draw.integers(0, 6, many)],
        "note": ["nothing" for _ in range(many)],
        "day": [f"2024-{each // 28 + 1:02}-{each % 28 + 1:02}T{each % 24:02}:30Z" for each in range(many)],
    }


def changed(draw: np.random.Generator, table: Table, values: Callable[[str], tuple[Any, ...]]) -> Table:
    """The same table with some cells of user u03 replaced."""
    found = {name: list(cells) for name, cells in table.items()}
    own = [row for row, name in enumerate(table["who"]) if name == "u03"]
    for row in own:
        for name in found:
            if name != "who" and draw.random() < 0.4:
                among = values(name)
                found[name][row] = among[draw.integers(len(among))]
    return found


def outcome(source: Any, folder: Path, missing: str = "drop") -> tuple[Any, ...]:
    """What a run knows: the number of users, everybody's items but those of u03, or the error with its status."""
    given = source if isinstance(source, str) else "frame"
    try:
        held = load_rows(described(given, missing), folder, None if isinstance(source, str) else source)
        items = held.items
    except DataError as error:
        return ("error", error.exit_code)
    assert isinstance(items, ItemBatch)
    return (held.declared.users, *others(items))


@cache
def described(path: str, missing: str) -> configs.Config:
    """The configuration of a table."""
    return configs.parse(RULES.format(path=path, missing=missing))


def others(items: ItemBatch) -> list[tuple[bytes, ...]]:
    """The items of everybody but the user of number 3."""
    assert items.weights is not None
    seen = []
    for user in range(items.users):
        first, last = items.offsets[user : user + 2]
        parts = (items.features[first:last], items.labels[first:last], items.weights[first:last])
        seen.append(tuple(part.tobytes() for part in parts) if user != 3 else ())
    return seen


def every_change(count: int, values: Callable[[str], tuple[Any, ...]]) -> itertools.chain[tuple[int, Table]]:
    """Tables with another u03 each; the first ones have a single odd value in all of its cells, each value once."""
    draw = np.random.default_rng(11)
    longest = max(len(values(name)) for name in base())
    all_alike = ((each, alike(each, values)) for each in range(min(count, longest)))
    rest = ((each, changed(draw, base(), values)) for each in range(min(count, longest), count))
    return itertools.chain(all_alike, rest)


def alike(place: int, values: Callable[[str], tuple[Any, ...]]) -> Table:
    """All cells of u03 hold the value of one place among those that can be."""
    mine = [name == "u03" for name in base()["who"]]
    return {
        name: [values(name)[place % len(values(name))] if own and name != "who" else cell
               for own, cell in zip(mine, cells, strict=True)]
        for name, cells in base().items()
    }  # fmt: skip


def spread(count: int) -> list[Any]:
    """`count` by default and 2,000 with -m slow."""
    return [pytest.param(count, id="some"), pytest.param(2000, id="all", marks=pytest.mark.slow)]


WRITERS = ("minimal", "all", "unix", "arrow", "pandas")


def as_csv(table: Table, how: str, path: Path) -> Path:
    """As one of the `WRITERS` writes it."""
    text = {name: ["" if cell is None else str(cell) for cell in cells] for name, cells in table.items()}
    if how == "pandas":
        pd.DataFrame(text).to_csv(path, index=False)
    elif how == "arrow":
        pyarrow.csv.write_csv(pa.table(text), path)
    else:
        quoting = csv.QUOTE_MINIMAL if how == "minimal" else csv.QUOTE_ALL
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, quoting=quoting, lineterminator="\n" if how == "unix" else "\r\n")
            writer.writerow(text)
            writer.writerows(zip(*text.values(), strict=True))
    return path


def stored(kind: pa.DataType, cells: list[Any]) -> pa.Array:
    if pa.types.is_dictionary(kind):
        return stored(kind.value_type, cells).dictionary_encode()
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.array([None if each is None else str(each) for each in cells], pa.large_string()).cast(kind)
    return pa.array(cells, pa.float64()).cast(kind, safe=False)


TEXT_KINDS = (pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string()), pa.string_view())
NUMBER_KINDS = (pa.float64(), pa.float32(), pa.dictionary(pa.int32(), pa.string()), pa.string(), pa.float16())


def typed(table: Table, number: int) -> pa.Table:
    """The table in types of Arrow that go round with the number; odd values are those that fit."""
    words, figures = TEXT_KINDS[number % len(TEXT_KINDS)], NUMBER_KINDS[number % len(NUMBER_KINDS)]
    kinds = {"age": figures, "size": figures, "code": figures, "count": pa.float64()}
    return pa.table({name: stored(kinds.get(name, words), cells) for name, cells in table.items()})


def fitting(number: int) -> Callable[[str], tuple[Any, ...]]:
    """Values that a writer can put into the types of that number."""
    figures = NUMBER_KINDS[number % len(NUMBER_KINDS)]
    plain = pa.types.is_floating(figures)

    def among(name: str) -> tuple[Any, ...]:
        if name in ("ward", "sick", "note") or (name in ("age", "size", "code") and not plain):
            return (*TEXTS, None)
        return (*NUMBERS, None)

    return among


def terms_of(encoding: Encoding) -> Terms:
    """A run that anybody could announce."""
    return Terms(
        run="r", algorithm="a", statement="s", epsilon=1.0, delta=1e-6, adjacency="replace-one",
        trust_model="central-broadcast",
        rounds=1, participations=1, dimension=encoding.dimension, loss={"name": "logistic", "feature_norm": 1.0},
        domain={"l2-ball": 1.0}, columns=encoding,
    )  # fmt: skip
