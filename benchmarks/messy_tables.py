"""Messy tables: what `quoron train` makes of each, with ranges declared and with nothing declared but user and label.

    python benchmarks/messy_tables.py                              # all, both ways: some minutes
    python benchmarks/messy_tables.py --table "decimal commas" --way declared
    python benchmarks/messy_tables.py --markdown > table.md

Each is one clean table of 2,000 users that something has been done to, as it happens to people, and what somebody would
type who has not noticed. There are four ends:

    model     on users held out, whose table is as messy, it beats always giving the same answer
    told      it does not, and a warning of the run names the column, or what is wrong with all rows, with the fix; or
              nothing could be trained by what was bought, which an error says
    refused   before the charge, with the fix
    SILENT    a null model that nobody was told of; CHARGED, an error after the charge, and CRASH are as bad

A model may come with warnings, too. What nobody is told of has to reach half of what the clean table gives. `-` where a
way makes no sense. The exit status is 1 if anything is SILENT, CHARGED or a CRASH.
"""

import argparse
import csv
import gzip
import io
import math
import re
import sys
import tempfile
import unicodedata
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

Way = Literal["declared", "undeclared"]
WAYS: tuple[Way, ...] = ("declared", "undeclared")
USERS, HELD_OUT, EPSILON = 2_000, 1_000, 4.0
RANGES = {"age": (18.0, 90.0), "height": (1.2, 2.2), "income": (0.0, 150_000.0), "score": (-4.0, 4.0)}
WARDS = ["north", "south", "east"]
BETTER = {"auc": 0.6, "accuracy over the commonest": 0.04, "r2": 0.03}  # noise alone may reach that
CLEAR = {"auc": 0.68, "accuracy over the commonest": 0.08, "r2": 0.1}  # and by luck seldom this
NULL = ("no row that can be used", "of the labels", "no better off")  # what is said of a null model as a whole
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


MESSES: list[Mess] = []


def mess(name: str, **more: Any) -> Callable[[Spoil], Spoil]:
    """Of a table that a function spoils."""

    def listed(spoil: Spoil) -> Spoil:
        MESSES.append(Mess(name, spoil, **more))
        return spoil

    return listed


def untouched(sheet: Sheet, draw: Draw) -> None:
    """The mess is in how it is written."""


# --- numbers -------------------------------------------------------------------------------------------------------

mess("clean")(untouched)


@mess("wrong unit: metres as mm", says=("height",))
def _(sheet: Sheet, draw: Draw) -> None:
    sheet.change("height", lambda cell: f"{1000 * float(cell):.0f}")


@mess("every column in another unit", says=("height", "income", "score", "age"))
def _(sheet: Sheet, draw: Draw) -> None:
    units = {"age": 365.0, "height": 1000.0, "income": 1e4, "score": 1e3}
    for name, times in units.items():
        sheet.columns[name] = [f"{times * (float(cell) + 10):.0f}" for cell in sheet.columns[name]]


@mess("decimal commas, in quotes", says=("height", "score"))
def _(sheet: Sheet, draw: Draw) -> None:
    for name in ("height", "score"):
        sheet.change(name, lambda cell: cell.replace(".", ","))


@mess("decimal commas and semicolons", write=as_bytes("table.csv", lambda sheet: text_of(sheet, ";").encode()))
def _(sheet: Sheet, draw: Draw) -> None:
    for name in ("height", "score"):
        sheet.change(name, lambda cell: cell.replace(".", ","))


@mess("thousands separators", says=("income",))
def _(sheet: Sheet, draw: Draw) -> None:
    sheet.change("income", lambda cell: f"{int(cell):,}")


@mess("thousands separated by dots", says=("income",))
def _(sheet: Sheet, draw: Draw) -> None:
    sheet.change("income", lambda cell: f"{int(cell):,}".replace(",", "."))


@mess("percentages: 45%", says=("age",), declared={"numeric": RANGES | {"age": (0.0, 100.0)}})
def _(sheet: Sheet, draw: Draw) -> None:
    sheet.change("age", lambda cell: cell + "%")


@mess("currency: $1,200", says=("income",))
def _(sheet: Sheet, draw: Draw) -> None:
    sheet.change("income", lambda cell: f"${int(cell):,}")


@mess("units in cells: 1.75 m", says=("height",))
def _(sheet: Sheet, draw: Draw) -> None:
    sheet.change("height", lambda cell: cell + " m")


@mess("negative numbers in parentheses", says=("score",))
def _(sheet: Sheet, draw: Draw) -> None:
    sheet.change("score", lambda cell: f"({cell[1:]})" if cell.startswith("-") else cell)


@mess("infinities")
def _(sheet: Sheet, draw: Draw) -> None:
    for name in RANGES:
        sheet.change(name, lambda cell: ("inf", "-inf", "Infinity")[len(cell) % 3], sheet.some(draw, 0.03))


@mess("1e308 and typing mistakes")
def _(sheet: Sheet, draw: Draw) -> None:
    for name in RANGES:
        sheet.change(name, lambda cell: ("1e308", "-1e308", "1e400", "99999999")[len(cell) % 4], sheet.some(draw, 0.02))


@mess("a column of subnormals", says=("height",))
def _(sheet: Sheet, draw: Draw) -> None:
    sheet.change("height", lambda cell: f"{float(cell) * 1e-310:g}")


@mess("mixed types in a column", says=("age",))
def _(sheet: Sheet, draw: Draw) -> None:
    sheet.change("age", lambda cell: f"about {cell}", sheet.some(draw, 0.3))


@mess("a column of words declared as numbers", says=("age",))
def _(sheet: Sheet, draw: Draw) -> None:
    sheet.change("age", lambda cell: "old" if float(cell) > 50 else "young")


@mess("a constant column")
def _(sheet: Sheet, draw: Draw) -> None:
    sheet.change("age", lambda cell: "50")


@mess("a column of nulls", says=("age",))
def _(sheet: Sheet, draw: Draw) -> None:
    sheet.change("age", lambda cell: "")


@mess("every numeric column of nulls", says=tuple(RANGES))
def _(sheet: Sheet, draw: Draw) -> None:
    for name in RANGES:
        sheet.change(name, lambda cell: "")


@mess("half of every column missing", says=("no row that can be used", *RANGES))
def _(sheet: Sheet, draw: Draw) -> None:
    for name in (*RANGES, "ward"):
        sheet.change(name, lambda cell: "", sheet.some(draw, 0.5))


@mess("half of every column missing, one row a user", says=("no row that can be used", *RANGES), only_users=True)
def _(sheet: Sheet, draw: Draw) -> None:
    sheet.columns["who"] = [f"q{row}" for row in range(len(sheet.ill))]
    for name in (*RANGES, "ward"):
        sheet.change(name, lambda cell: "", sheet.some(draw, 0.5))


@mess("NA spelled seven ways", says=("age", "height"))
def _(sheet: Sheet, draw: Draw) -> None:
    words = ("NA", "n/a", "-", "null", "999", "", "unknown")
    for name in ("age", "height"):
        sheet.change(name, lambda cell: words[draw.integers(7)], sheet.some(draw, 0.4))


@mess("booleans as text", declared={"numeric": RANGES | {"adult": (0.0, 1.0)}})
def _(sheet: Sheet, draw: Draw) -> None:
    sheet.columns["adult"] = [("FALSE", "TRUE")[float(cell) > 50] for cell in sheet.columns["age"]]
    sheet.change("age", lambda cell: "50")


@mess("booleans as yes and no", says=("adult",), declared={"numeric": RANGES | {"adult": (0.0, 1.0)}})
def _(sheet: Sheet, draw: Draw) -> None:
    sheet.columns["adult"] = [("no", "yes")[float(cell) > 50] for cell in sheet.columns["age"]]


# --- labels --------------------------------------------------------------------------------------------------------


def labelled(*words: str) -> Spoil:
    """The label in words."""

    def spoil(sheet: Sheet, draw: Draw) -> None:
        sheet.columns["ill"] = [words[each] for each in sheet.ill]

    return spoil


mess("label yes, no", says=("ill",))(labelled("no", "yes"))
mess("label Y, N", says=("ill",))(labelled("N", "Y"))
mess("label True, False")(labelled("False", "True"))
mess("label 1, 2", says=("ill",))(labelled("1", "2"))
mess("label -1, +1")(labelled("-1", "+1"))
mess("label 0.0, 1.0")(labelled("0.0", "1.0"))
mess("label ' yes ', classes declared", says=("ill",), declared={"classes": ["no", "yes"]})(labelled(" no ", " yes "))
mess("label YES, classes declared in small letters", says=("ill",), declared={"classes": ["no", "yes"]})(
    labelled("NO", "YES")
)
mess("positive='Yes' of yes", says=("ill",), null=True, declared={"positive": "Yes"})(labelled("no", "yes"))


@mess("label with a class of typing mistakes", says=("ill",), declared={"classes": ["no", "yes"]})
def _(sheet: Sheet, draw: Draw) -> None:
    labelled("no", "yes")(sheet, draw)
    sheet.change("ill", lambda cell: cell[:1] + "x" + cell[1:], sheet.some(draw, 0.04))


@mess("label half missing")
def _(sheet: Sheet, draw: Draw) -> None:
    sheet.change("ill", lambda cell: "", sheet.some(draw, 0.5))


@mess("label constant", says=("ill",), null=True, always=True)
def _(sheet: Sheet, draw: Draw) -> None:
    sheet.change("ill", lambda cell: "0")


@mess("label of nulls", says=("ill",))
def _(sheet: Sheet, draw: Draw) -> None:
    sheet.change("ill", lambda cell: "")


mess("rare label, 1 %", rare=True, says=("ill",))(untouched)


@mess("label a probability", says=("ill",))
def _(sheet: Sheet, draw: Draw) -> None:
    sheet.change("ill", lambda cell: f"{0.1 + 0.7 * float(cell) + 0.1 * draw.random():.3f}")


def three(words: Sequence[str]) -> Spoil:
    """Three classes."""

    def spoil(sheet: Sheet, draw: Draw) -> None:
        sheet.columns["ill"] = [words[each] for each in sheet.kind]

    return spoil


ACCURACY: Any = "accuracy over the commonest"
mess("three classes in words", figure=ACCURACY, says=("ill",))(three(("low", "middle", "high")))
mess("three classes 0, 1, 2", figure=ACCURACY, says=("ill",))(three("012"))
mess("three classes, declared", figure=ACCURACY, says=("ill",), declared={"classes": [0, 1, 2]})(three("012"))
mess("three classes, two declared", figure=ACCURACY, says=("ill",), declared={"classes": [0, 1]})(three("012"))


@mess("regression in thousands", figure="r2", says=("amount",), label="amount", declared={"label_range": (0.0, 80.0)})
def _(sheet: Sheet, draw: Draw) -> None:
    sheet.columns["amount"] = [f"{each:.0f}" for each in sheet.amount]
    del sheet.columns["ill"]


@mess("regression, range declared", figure="r2", label="amount", declared={"label_range": (0.0, 80_000.0)})
def _(sheet: Sheet, draw: Draw) -> None:
    sheet.columns["amount"] = [f"{each:.0f}" for each in sheet.amount]
    del sheet.columns["ill"]


@mess("regression, nothing said of the label", figure="r2", says=("amount",), label="amount")
def _(sheet: Sheet, draw: Draw) -> None:
    sheet.columns["amount"] = [f"{each:.0f}" for each in sheet.amount]
    del sheet.columns["ill"]


HEAVY: dict[str, Any] = {"label": "amount", "declared": {"label_range": (0.0, 1e8)}, "clear": 0.05}  # a line fits badly


@mess("regression, heavy tail", figure="r2", says=("amount",), **HEAVY)
def _(sheet: Sheet, draw: Draw) -> None:
    sheet.amount = np.exp((sheet.amount - 40_000) / 9_000 + draw.normal(size=len(sheet.ill)) + 6)
    sheet.columns["amount"] = [f"{each:.2f}" for each in sheet.amount]
    del sheet.columns["ill"]


@mess("a column that is the label")
def _(sheet: Sheet, draw: Draw) -> None:
    sheet.columns["diagnosis"] = [("none", "flu")[each] for each in sheet.ill]


# --- users ---------------------------------------------------------------------------------------------------------


@mess("one row a user", only_users=True)
def _(sheet: Sheet, draw: Draw) -> None:
    sheet.columns["who"] = [f"q{row}" for row in range(len(sheet.ill))]


@mess("one user has all rows", only_users=True, says=("who",))
def _(sheet: Sheet, draw: Draw) -> None:
    sheet.change("who", lambda cell: "p")


@mess("one user has most rows", only_users=True)
def _(sheet: Sheet, draw: Draw) -> None:
    sheet.change("who", lambda cell: "p", sheet.some(draw, 0.3))


@mess("few users", only_users=True, says=("users",))
def _(sheet: Sheet, draw: Draw) -> None:
    sheet.change("who", lambda cell: cell[-2:])


@mess("ids are 19 digits long", only_users=True)
def _(sheet: Sheet, draw: Draw) -> None:
    sheet.change("who", lambda cell: f"92233720368547{cell[1:]}")


@mess("ids are floats: 17.0", only_users=True)
def _(sheet: Sheet, draw: Draw) -> None:
    sheet.change("who", lambda cell: f"{int(cell[1:])}.0")


@mess("some rows have no user", only_users=True, says=("who",))
def _(sheet: Sheet, draw: Draw) -> None:
    sheet.change("who", lambda cell: "", sheet.some(draw, 0.05))


@mess("ids with spaces and capitals here and there", only_users=True)
def _(sheet: Sheet, draw: Draw) -> None:
    sheet.change("who", lambda cell: cell.upper() + " ", sheet.some(draw, 0.2))


def float_ids(frame: Any) -> Any:
    """Numbers, and NaN for somebody."""
    return frame.assign(who=[math.nan if each == "p00003" else float(each[1:]) for each in frame["who"]])


@mess("a float id column with NaN", only_users=True, says=("who",), write=typed("", float_ids))
def _(sheet: Sheet, draw: Draw) -> None:
    pass


# --- files ---------------------------------------------------------------------------------------------------------


def file(name: str, data: Callable[[Sheet], bytes], path: str = "table.csv", **more: Any) -> None:
    """A clean table in such a file."""
    MESSES.append(Mess(name, write=as_bytes(path, data), **more))


def odd_lines(sheet: Sheet, change: Callable[[int, str], str]) -> bytes:
    """Rows, number by number from 1 on, changed as lines; the header is line 0."""
    return "\n".join(change(*each) for each in enumerate(text_of(sheet).splitlines())).encode()


file("byte order mark", lambda sheet: text_of(sheet).encode("utf-8-sig"))
file("UTF-16", lambda sheet: text_of(sheet).encode("utf-16"))
file("semicolons", lambda sheet: text_of(sheet, ";").encode())
file("tabs in a .csv", lambda sheet: text_of(sheet, "\t").encode())
file("tabs in a .tsv", lambda sheet: text_of(sheet, "\t").encode(), "table.tsv")
file("bars", lambda sheet: text_of(sheet, "|").encode())
file("CRLF", lambda sheet: text_of(sheet, end="\r\n").encode())
file("everything in quotes", lambda sheet: text_of(sheet, quoted=True).encode())
file("empty lines", lambda sheet: text_of(sheet).replace("\n", "\n\n").encode())
file("rows too short and too long", lambda sheet: odd_lines(
    sheet, lambda row, line: line + ",x" if row % 20 == 3 else line.rpartition(",")[0] if row % 20 == 7 else line
))  # fmt: skip
file("a comma at the end of rows, not of the header", lambda sheet: odd_lines(
    sheet, lambda row, line: line + "," if row else line
), says=("rows",))  # fmt: skip
file("a comma at the end of rows and header", lambda sheet: odd_lines(sheet, lambda row, line: line + ","))
file("no header", lambda sheet: text_of(sheet).partition("\n")[2].encode())
file("a title above the header", lambda sheet: b"Visits of 2024\n\n" + text_of(sheet).encode())
file("a total below the rows", lambda sheet: text_of(sheet).encode() + b"Total,,,1234567,,,\n")
file("header with capitals and spaces", lambda sheet: odd_lines(
    sheet, lambda row, line: line if row else " Who , Age , Height , Income , Score , Ward , Ill "
))  # fmt: skip
file("a quote that is never closed", lambda sheet: odd_lines(
    sheet, lambda row, line: line.replace(",", ',"', 1) if row == 40 else line
))  # fmt: skip
file(".csv.gz", lambda sheet: gzip.compress(text_of(sheet).encode()), "table.csv.gz")
file("an Excel file", lambda sheet: b"PK\x03\x04" + bytes(4000), "table.xlsx")
file("an Excel file called .csv", lambda sheet: b"PK\x03\x04" + bytes(4000))
file("an empty file", lambda sheet: b"")
file("a header and no rows", lambda sheet: text_of(sheet).partition("\n")[0].encode() + b"\n")


@mess("quotes, commas and line ends within cells")
def _(sheet: Sheet, draw: Draw) -> None:
    notes = ('said "no"', "well, well", "line\nanother\nand, more", "p00001,50,1.7,100,0,north,1\n", "")
    sheet.columns["note"] = [notes[row % 5] for row in range(len(sheet.ill))]


@mess("a column twice", write=as_bytes("table.csv", lambda sheet: text_of(sheet).replace("also", "age", 1).encode()))
def _(sheet: Sheet, draw: Draw) -> None:
    sheet.columns["also"] = sheet.columns["age"]


@mess(
    "another column twice",
    write=as_bytes("table.csv", lambda sheet: text_of(sheet).replace("also", "note", 1).encode()),
)
def _(sheet: Sheet, draw: Draw) -> None:
    sheet.columns["note"] = sheet.columns["also"] = ["" for _ in sheet.ill]


# --- categories ----------------------------------------------------------------------------------------------------


def wards(*names: str) -> dict[str, Any]:
    """Categories as they are typed."""
    return {"categorical": {"ward": list(names)}}


GERMAN = {"north": "Nördlich", "south": "Süd", "east": "Öst"}


@mess("Latin-1", declared=wards(*GERMAN.values()), says=("ward",),
      write=as_bytes("table.csv", lambda sheet: text_of(sheet).encode("latin-1")))  # fmt: skip
def _(sheet: Sheet, draw: Draw) -> None:
    sheet.change("ward", GERMAN.__getitem__)


@mess("other forms of the same letters", declared=wards(*GERMAN.values()), says=("ward",))
def _(sheet: Sheet, draw: Draw) -> None:
    sheet.change("ward", lambda cell: unicodedata.normalize("NFD", GERMAN[cell]))


@mess("categories with spaces at the end", declared=wards(*WARDS), says=("ward",))
def _(sheet: Sheet, draw: Draw) -> None:
    sheet.change("ward", lambda cell: cell + "  ")


@mess("categories in capitals here and there", declared=wards(*WARDS), says=("ward",))
def _(sheet: Sheet, draw: Draw) -> None:
    sheet.change("ward", str.upper, sheet.some(draw, 0.4))


@mess("integer categories as 1.0", declared=wards() | {"categorical": {"ward": [1, 2, 3]}}, says=("ward",))
def _(sheet: Sheet, draw: Draw) -> None:
    sheet.change("ward", lambda cell: f"{WARDS.index(cell) + 1}.0")


@mess("10,000 categories", declared={"categorical": {"ward": WARDS, "town": [f"t{each}" for each in range(10_000)]}})
def _(sheet: Sheet, draw: Draw) -> None:
    sheet.columns["town"] = [f"t{each}" for each in draw.integers(0, 10_000, len(sheet.ill))]


@mess("a number of each row", declared={"numeric": RANGES | {"row": (0.0, 1e6)}})
def _(sheet: Sheet, draw: Draw) -> None:
    sheet.columns["row"] = [str(100_000 + each) for each in range(len(sheet.ill))]


@mess("a text of each row")
def _(sheet: Sheet, draw: Draw) -> None:
    sheet.columns["visit"] = [f"v-{each:08x}" for each in draw.integers(0, 1 << 32, len(sheet.ill))]


# --- dates, and many columns ---------------------------------------------------------------------------------------


def dated(sheet: Sheet, written: Callable[[str, str, str], str]) -> None:
    """Ages as days of birth."""
    days = [np.datetime64("2024-06-01") - int(float(each) * 365.25) for each in sheet.columns["age"]]
    sheet.columns["born"] = [written(*str(day).split("-")) for day in days]
    del sheet.columns["age"]


BORN = {"numeric": {name: ends for name, ends in RANGES.items() if name != "age"} | {"born": (1930.0, 2010.0)}}


@mess("dates as text", declared=BORN, says=("born",))
def _(sheet: Sheet, draw: Draw) -> None:
    dated(sheet, lambda year, month, day: f"{year}-{month}-{day}")


@mess("dates as text, day first", declared=BORN, says=("born",))
def _(sheet: Sheet, draw: Draw) -> None:
    dated(sheet, lambda year, month, day: f"{day}.{month}.{year}")


@mess("mixed dates", declared=BORN, says=("born",))
def _(sheet: Sheet, draw: Draw) -> None:
    dated(sheet, lambda *parts: ("{}-{}-{}", "{2}/{1}/{0}", "{1}/{2}/{0}")[draw.integers(3)].format(*parts))


def with_dates(frame: Any) -> Any:
    """Of pandas' own type."""
    import pandas as pd

    return frame.assign(born=pd.to_datetime(frame["born"]))


@mess("dates as types, Parquet", declared=BORN, says=("born",), write=typed("table.parquet", with_dates))
def _(sheet: Sheet, draw: Draw) -> None:
    dated(sheet, lambda year, month, day: f"{year}-{month}-{day}")


@mess("dates as types, DataFrame", declared=BORN, says=("born",), write=typed("", with_dates))
def _(sheet: Sheet, draw: Draw) -> None:
    dated(sheet, lambda year, month, day: f"{year}-{month}-{day}")


MESSES.append(Mess("clean, Parquet", write=typed("table.parquet", lambda frame: frame)))
MESSES.append(Mess("clean, DataFrame", write=typed("", lambda frame: frame)))
MESSES.append(
    Mess("all columns text, Parquet", write=typed("table.parquet", lambda frame: frame.astype(str)), says=("ill",))
)
MESSES.append(Mess("users in the index", write=typed("", lambda frame: frame.set_index("who")), says=("who",)))


def wide(columns: int) -> Spoil:
    """Many numbers that say nothing."""

    def spoil(sheet: Sheet, draw: Draw) -> None:
        for each in range(columns):
            sheet.columns[f"x{each}"] = [f"{value:.2f}" for value in draw.normal(size=len(sheet.ill))]

    return spoil


mess("wide: 100 columns", declared={"numeric": RANGES | {"x*": (-4.0, 4.0)}}, says=("columns",))(wide(100))
mess("wide: 500 columns", declared={"numeric": RANGES | {"x*": (-4.0, 4.0)}}, says=("columns",))(wide(500))
mess("declared from the highest to the lowest", declared={"numeric": RANGES | {"age": (90.0, 18.0)}})(untouched)
WIDE: dict[str, Any] = {"numeric": dict.fromkeys(RANGES, (-1e9, 1e9)), "categorical": {}}
mess("ranges far too wide", says=tuple(RANGES), null=True, declared=WIDE)(untouched)
mess("ranges far too wide, rare label", says=("ill", *RANGES), null=True, declared=WIDE, rare=True)(untouched)
mess("ranges far too narrow", says=tuple(RANGES), declared={"numeric": dict.fromkeys(RANGES, (0.0, 1e-3))})(untouched)


# --- what becomes of them ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class End:
    """What became of a table, by one of the two ways."""

    kind: Literal["model", "told", "refused", "SILENT", "CHARGED", "CRASH", "-"]
    figure: float = math.nan
    said: tuple[str, ...] = ()  # warnings, or the error

    @property
    def bad(self) -> bool:
        """Whether it may not be."""
        return self.kind in ("SILENT", "CHARGED", "CRASH")

    def words(self) -> str:
        """On one line."""
        figure = "" if math.isnan(self.figure) else f" {self.figure:.2f}"
        return f"{self.kind}{figure}"


def tried(each: Mess, way: Way, *, users: int = USERS, epsilon: float = EPSILON, seed: int = 0) -> End:
    """Train on it, and ask the model of others."""
    import quoron
    from quoron.training import lifetime
    from quoron_privacy.errors import QuoronError

    typed_in = asked(each, way)
    if typed_in is None:
        return End("-")
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        known, others = (place / "known", place / "others")
        known.mkdir()
        others.mkdir()
        sheet, draw = Sheet.made(users, 2 * seed, rare=each.rare), np.random.default_rng(seed)
        each.spoil(sheet, draw)
        source = each.write(sheet, known)
        ledger = place / "lifetime.sqlite"
        keep = quoron.Keep(place / "run", ledger=ledger)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                source = str(source) if isinstance(source, Path) else source
                run = quoron.train(source, epsilon=epsilon, keep=keep, progress=False, **typed_in)
        except QuoronError as error:
            charged = ledger.exists()
            if charged:
                with lifetime.opened(ledger) as kept:
                    charged = kept.spent("everyone").epsilon > 0
            named = "Nothing was trained" in str(error) and any(word in str(error) for word in each.says)
            return End("refused" if not charged else "told" if named else "CHARGED", said=(str(error),))
        except Exception as error:
            return End("CRASH", said=(f"{type(error).__name__}: {error}",))
        told = run.summary.warnings
        other = Sheet.made(HELD_OUT, 2 * seed + 1, rare=each.rare)
        other.columns["who"] = [f"p{row:05}" for row in range(len(other.ill))]
        (replace(each, spoil=without_users(each.spoil)) if each.only_users else each).spoil(other, draw)
        figure = figure_of(
            each, run.model, other, plain(other, others) if each.only_users else each.write(other, others)
        )
    named = any(word in said for said in told for word in (*each.says, *NULL))
    null = each.always or (each.null and way == "declared")
    if named and (null or any(map(nothing_learnt, told))):
        return End("told", figure, told)
    if figure >= (BETTER[each.figure] if named else each.clear or CLEAR[each.figure]):
        return End("model", figure, told)
    return End("told" if named else "SILENT", figure, told)


def nothing_learnt(warning: str) -> bool:
    """Whether a warning says that the model is null: a figure above one half is then luck."""
    found = re.search(r"about ([\d,]+) of ([\d,]+) users .* have no row", warning)
    if found is None:
        return "no better off" in warning
    lost, users = (int(each.replace(",", "")) for each in found.groups())
    return lost > 0.9 * users


def without_users(spoil: Spoil) -> Spoil:
    """The same, of nobody's name."""

    def spoilt(sheet: Sheet, draw: Draw) -> None:
        who = sheet.columns["who"]
        spoil(sheet, draw)
        sheet.columns["who"] = who

    return spoilt


def asked(each: Mess, way: Way) -> dict[str, Any] | None:
    """What is typed."""
    usual: dict[str, Any] = {"user": "who", "label": each.label}
    if way == "undeclared":
        return None if each.undeclared is None else usual | each.undeclared
    return usual | {"numeric": RANGES, "categorical": {"ward": WARDS}} | each.declared


def figure_of(each: Mess, model: Any, sheet: Sheet, source: Any) -> float:
    """Of a model, on rows held out. Where a number is missing it counts as the middle of its range."""
    from quoron_client.data import columns, tables
    from quoron_client.data.labels import Range

    filling = replace(model, encoding=replace(model.encoding, missing="middle"))
    features = replace(filling.encoding, label=None, weight=None).columns
    table = tables.read(source, tuple(dict.fromkeys((*features, "who"))))
    place = {who: row for row, who in enumerate(sheet.columns["who"])}
    rows = np.array([place.get(who, -1) for who in columns.texts(table, "who").to_pylist()], np.int64)
    scores = filling.decision_function(table)[rows >= 0]
    rows = rows[rows >= 0]
    if each.figure == "accuracy over the commonest" and not isinstance(model.encoding.label, Range):
        kind, commonest = sheet.kind, np.bincount(sheet.kind).argmax()
        kinds = dict(zip(map(plainly, sheet.columns["ill"]), kind, strict=True))
        guessed = np.full(len(kind), commonest)
        predicted = np.asarray(model.classes_)[scores.argmax(1) if scores.ndim > 1 else (scores > 0).astype(int)]
        guessed[rows] = [kinds.get(plainly(each), commonest) for each in predicted]
        return float(np.mean(guessed == kind) - np.mean(kind == commonest))
    if each.figure == "auc" and not isinstance(model.encoding.label, Range):
        said = np.array([plainly(cell) == plainly(model.classes_[0]) for cell in sheet.columns["ill"]])
        scores = -scores if said.any() and sheet.ill[said].mean() > 0.5 else scores
    everybody = np.full(len(sheet.ill), np.median(scores) if len(scores) else 0.0)
    everybody[rows] = scores
    if each.figure != "auc":
        units = getattr(model.encoding.label, "in_units", lambda values: values)
        return float(1 - np.mean((units(everybody) - sheet.amount) ** 2) / np.var(sheet.amount))
    return auc(everybody, sheet.ill)


def plainly(value: Any) -> str:
    """A label as it is meant."""
    return str(value).strip().lower().removeprefix("+").removesuffix(".0")


def auc(scores: np.ndarray, labels: np.ndarray) -> float:
    """Area under the curve, ties as halves."""
    _, inverse, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
    positive = int(labels.sum())
    below = ranks[labels == 1].sum() - positive * (positive + 1) / 2
    return float(below / (positive * (len(labels) - positive)))


def line(each: Mess, ends: dict[Way, End], *, markdown: bool) -> str:
    """Of the table."""
    if not markdown:
        said = "".join(f"\n        {way}: {text[:300]}" for way, end in ends.items() for text in end.said)
        return f"{each.name:50} " + "  ".join(f"{way}: {end.words():14}" for way, end in ends.items()) + said
    said = next((text for end in ends.values() for text in end.said if end.kind != "model"), "")
    return f"| {each.name} | " + " | ".join(end.words() for end in ends.values()) + f" | {said[:160]} |"


def main() -> None:
    """Print a line a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", action="append", help="a part of its name")
    parser.add_argument("--way", action="append", choices=WAYS)
    parser.add_argument("--users", type=int, default=USERS)
    parser.add_argument("--epsilon", type=float, default=EPSILON)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--markdown", action="store_true")
    given = parser.parse_args()
    bad = 0
    for each in MESSES:
        if given.table and not any(part in each.name for part in given.table):
            continue
        ends = {
            way: tried(each, way, users=given.users, epsilon=given.epsilon, seed=given.seed)
            for way in given.way or WAYS
        }
        bad += sum(end.bad for end in ends.values())
        print(line(each, ends, markdown=given.markdown), flush=True)
    print(f"{bad} of them are SILENT, CHARGED or a CRASH")
    sys.exit(bad > 0)


if __name__ == "__main__":
    main()
