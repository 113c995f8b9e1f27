"""Messy tables of categories and dates, and of columns that are many or declared badly."""

import unicodedata
from collections.abc import Callable
from typing import Any

import numpy as np
from messy_sheets import RANGES, WARDS, Draw, Mess, Sheet, Spoil, as_bytes, listing, text_of, typed, untouched

MESSES: list[Mess] = []
mess = listing(MESSES)

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
mess("ranges far too wide", says=(*RANGES, "shares of their ranges"), null=True, declared=WIDE)(untouched)
mess("ranges far too wide, rare label", says=("ill", *RANGES), null=True, declared=WIDE, rare=True)(untouched)
mess("ranges far too narrow", says=tuple(RANGES), declared={"numeric": dict.fromkeys(RANGES, (0.0, 1e-3))})(untouched)
