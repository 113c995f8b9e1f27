"""Messy tables whose users are odd, or whose file is."""

import gzip
import math
from collections.abc import Callable
from typing import Any

from messy_sheets import Draw, Mess, Sheet, as_bytes, listing, text_of, typed

MESSES: list[Mess] = []
mess = listing(MESSES)

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
