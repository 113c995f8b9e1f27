"""Messy tables whose numbers or labels are not written as somebody declares them."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from messy_sheets import RANGES, Draw, Mess, Sheet, Spoil, as_bytes, listing, text_of, untouched

MESSES: list[Mess] = []
mess = listing(MESSES)

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


@mess("regression in thousands", figure="r2", says=("amount",), label="amount", declared={"range": (0.0, 80.0)})
def _(sheet: Sheet, draw: Draw) -> None:
    sheet.columns["amount"] = [f"{each:.0f}" for each in sheet.amount]
    del sheet.columns["ill"]


@mess("regression, range declared", figure="r2", label="amount", declared={"range": (0.0, 80_000.0)})
def _(sheet: Sheet, draw: Draw) -> None:
    sheet.columns["amount"] = [f"{each:.0f}" for each in sheet.amount]
    del sheet.columns["ill"]


@mess("regression, nothing said of the label", figure="r2", says=("amount",), label="amount")
def _(sheet: Sheet, draw: Draw) -> None:
    sheet.columns["amount"] = [f"{each:.0f}" for each in sheet.amount]
    del sheet.columns["ill"]


HEAVY: dict[str, Any] = {"label": "amount", "declared": {"range": (0.0, 1e8)}, "clear": 0.05}  # a line fits badly


@mess("regression, heavy tail", figure="r2", says=("amount",), **HEAVY)
def _(sheet: Sheet, draw: Draw) -> None:
    sheet.amount = np.exp((sheet.amount - 40_000) / 9_000 + draw.normal(size=len(sheet.ill)) + 6)
    sheet.columns["amount"] = [f"{each:.2f}" for each in sheet.amount]
    del sheet.columns["ill"]


@mess("a column that is the label")
def _(sheet: Sheet, draw: Draw) -> None:
    sheet.columns["diagnosis"] = [("none", "flu")[each] for each in sheet.ill]
