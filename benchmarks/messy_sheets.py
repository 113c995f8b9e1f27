"""A clean table of people, what may be done to it, and how it is written: for `messy_tables.py`."""

import csv
import io
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

Way = Literal["declared", "undeclared"]
WAYS: tuple[Way, ...] = ("declared", "undeclared")
RANGES = {"age": (18.0, 90.0), "height": (1.2, 2.2), "income": (0.0, 150_000.0), "score": (-4.0, 4.0)}
WARDS = ["north", "south", "east"]
Draw = np.random.Generator
Cells = list[Any]


@dataclass
class Sheet:
    """A table as a person has it: cells by column, and what is true of its rows."""

    columns: dict[str, Cells]
    ill: np.ndarray  # (N,) 0, 1: what a model is to find out
    amount: np.ndarray  # (N,) of the regressions
    kind: np.ndarray  # (N,) 0, 1, 2

    @classmethod
    def made(cls, users: int, seed: int, *, rare: bool = False) -> "Sheet":
        """One to seven rows a user."""
        draw = np.random.Generator(np.random.Philox(seed))
        whose = np.repeat(np.arange(users), draw.integers(1, 8, users))
        many = len(whose)
        age, height = draw.uniform(18, 90, many), np.clip(draw.normal(1.7, 0.12, many), 1.2, 2.2)
        income, score = np.clip(draw.gamma(4, 12_000, many), 0, 150_000), np.clip(draw.normal(size=many), -4, 4)
        ward = draw.integers(0, 3, many)
        effect = (age - 54) / 20 - (height - 1.7) / 0.12 + (income - 48_000) / 24_000 - 0.8 * score + 0.8 * (ward - 1)
        ill = (effect - 5.5 * rare + draw.logistic(size=many) > 0).astype(int)
        columns = {
            "who": [f"p{each:05}" for each in whose],
            "age": [f"{each:.0f}" for each in age],
            "height": [f"{each:.2f}" for each in height],
            "income": [f"{each:.0f}" for each in income],
            "score": [f"{each:.3f}" for each in score],
            "ward": [WARDS[each] for each in ward],
            "ill": [str(each) for each in ill],
        }
        amount = np.clip(40_000 + 9_000 * effect + draw.normal(scale=9_000, size=many), 0, 80_000)
        return cls(columns, ill, amount, np.digitize(effect + draw.logistic(size=many), (-1.0, 1.0)))

    def change(self, name: str, change: Callable[[str], Any], rows: np.ndarray | None = None) -> None:
        """Cells of a column, all or those of some rows (N,) bool."""
        chosen = np.ones(len(self.ill), bool) if rows is None else rows
        self.columns[name] = [
            change(cell) if own else cell for cell, own in zip(self.columns[name], chosen, strict=True)
        ]

    def some(self, draw: Draw, share: float) -> np.ndarray:
        """Rows (N,) bool, about so many of them."""
        return draw.random(len(self.ill)) < share


def text_of(sheet: Sheet, separator: str = ",", end: str = "\n", *, quoted: bool = False) -> str:
    """As a correct writer writes it."""
    file = io.StringIO()
    quoting: Literal[0, 1] = csv.QUOTE_ALL if quoted else csv.QUOTE_MINIMAL
    writer = csv.writer(file, delimiter=separator, lineterminator=end, quoting=quoting)
    writer.writerow(sheet.columns)
    writer.writerows(zip(*sheet.columns.values(), strict=True))
    return file.getvalue()


Write = Callable[[Sheet, Path], Any]  # to a folder; the path, or a DataFrame
Spoil = Callable[[Sheet, Draw], None]


def plain(sheet: Sheet, folder: Path) -> Any:
    """UTF-8, commas, line feeds."""
    return as_bytes("table.csv", lambda each: text_of(each).encode())(sheet, folder)


def as_bytes(name: str, data: Callable[[Sheet], bytes]) -> Write:
    """Of a file of that name."""

    def write(sheet: Sheet, folder: Path) -> Any:
        (folder / name).write_bytes(data(sheet))
        return folder / name

    return write


def typed(name: str, change: Callable[[Any], Any]) -> Write:
    """A DataFrame with the types that pandas finds, changed; as Parquet if there is a file's name."""

    def write(sheet: Sheet, folder: Path) -> Any:
        import pandas as pd

        frame = change(pd.read_csv(io.StringIO(text_of(sheet))))
        if not name:
            return frame
        frame.to_parquet(folder / name)
        return folder / name

    return write


@dataclass(frozen=True)
class Mess:
    """What has been done to a table, and what would be typed."""

    name: str
    spoil: Spoil = lambda sheet, draw: None
    write: Write = plain
    says: tuple[str, ...] = ()  # columns of which one has to be named if the model is null
    declared: dict[str, Any] = field(default_factory=dict)  # beside the usual, or in place of it
    undeclared: dict[str, Any] | None = field(default_factory=dict)  # None: makes no sense
    figure: Literal["auc", "accuracy over the commonest", "r2"] = "auc"
    only_users: bool = False  # the mess is in who somebody is: the table held out is clean
    rare: bool = False
    null: bool = False  # whether nothing can be learnt of what is declared, so that any figure is luck
    always: bool = False  # and of what is bought
    clear: float | None = None  # what nobody is told of has to reach, if not CLEAR
    label: str = "ill"


def listing(messes: list[Mess]) -> Callable[..., Callable[[Spoil], Spoil]]:
    """`@mess(name, ...)` over a function that spoils a table puts it into the list."""

    def mess(name: str, **more: Any) -> Callable[[Spoil], Spoil]:
        def listed(spoil: Spoil) -> Spoil:
            messes.append(Mess(name, spoil, **more))
            return spoil

        return listed

    return mess


def untouched(sheet: Sheet, draw: Draw) -> None:
    """The mess is in how it is written."""
