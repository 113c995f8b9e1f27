r"""Results on a terminal: names that come out of files and from other machines cannot write on it.

>>> Terminal(width=40).print("column age\x1b[2J", markup=False, highlight=False)
column age\x1b[2J
"""

from collections.abc import Iterable
from typing import Any

from rich import box
from rich import table as tables
from rich.console import Console
from rich.markup import escape
from rich.text import Text

from quoron.reports.page import Raw, Section, Table
from quoron_privacy.errors import printable


class Terminal(Console):
    """Shows control characters of what it is given by their escapes; those of colours are its own."""

    def render_str(self, text: str, **how: Any) -> Text:
        """A string that is printed, or a cell of a table."""
        return super().render_str(printable(text), **how)


def show(out: Console, parts: Iterable[Section], *, details: bool = False) -> None:
    """Print what a page shows of a result but its pictures; with `details` all sections, else the brief ones."""
    for part in parts:
        if part.detail and not details:
            continue
        rows = [row for row in part.rows if not isinstance(row[1], Raw)]
        rows += [
            (each.label + " (simulation only)" * each.private, f"{each.figure}: {each.beside}") for each in part.cards
        ]
        listed = [each for each in part.tables if each.rows]
        if part.title and (rows or listed or part.note or part.warnings or part.statement):
            say(out, part.title + " (simulation only)" * part.private, style="bold")
        for text in (*part.note, *filter(None, [part.statement])):
            say(out, text)
        if rows:
            out.print(pairs(((row[0], row[1]) for row in rows), around=None if part.dense else box.SIMPLE))
        for each in listed:
            out.print(columns(each, dense=part.dense))
        for style, texts in (("yellow", part.warnings), ("dim", part.below)):
            for text in texts:
                say(out, text, style=style)


def say(out: Console, text: str, *, style: str | None = None) -> None:
    """Print a sentence; it is broken into lines only on a terminal."""
    out.print(escape(text), soft_wrap=not out.is_terminal, highlight=False, style=style)


def pairs(told: Iterable[tuple[str, str]], *, around: box.Box | None = None) -> tables.Table:
    """Labels and texts, side by side."""
    made = tables.Table(box=around, show_header=False, pad_edge=around is not None)
    for label, text in told:
        made.add_row(escape(label), escape(text))
    return made


def table(*heads: str, dense: bool = False) -> tables.Table:
    """An empty table with these columns, whose cells fold rather than lose text; `dense` without lines around them."""
    made = tables.Table(box=None if dense else box.SIMPLE_HEAD)
    for head in heads:
        made.add_column(head, overflow="fold")
    return made


def columns(listed: Table, *, dense: bool) -> tables.Table:
    """A table without its pictures, and of the first columns alone where only those are for a terminal."""
    heads, rows = listed.without(Raw)
    made = table(*heads[: listed.brief], dense=dense)
    for row in rows:
        made.add_row(*map(escape, row[: listed.brief]))
    return made
