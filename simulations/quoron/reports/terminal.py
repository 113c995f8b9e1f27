r"""Results on a terminal: names that come out of files and from other machines cannot write on it.

>>> Terminal(width=40).print("column age\x1b[2J", markup=False, highlight=False)
column age\x1b[2J
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from rich import box
from rich import table as tables
from rich.console import Console
from rich.markup import escape
from rich.text import Text

from quoron_privacy.errors import printable

if TYPE_CHECKING:  # a command that prints a line needs no pages
    from quoron.reports.page import Section


class Terminal(Console):
    """Shows control characters of what it is given by their escapes; those of colours are its own."""

    def render_str(self, text: str, **how: Any) -> Text:
        """A string that is printed, or a cell of a table."""
        return super().render_str(printable(text), **how)


def show(out: Console, parts: "Iterable[Section]", *, details: bool = False) -> None:
    """Print what a page shows of a result but its pictures; with `details` all sections, else the brief ones."""
    for part in parts:
        if part.detail and not details:
            continue
        listed = [(each.heads[: each.brief], each.rows) for each in part.tables if each.rows]
        listed = [((), part.rows), *listed] if part.rows else listed
        if part.title and (listed or part.note or part.warnings or part.statement):
            say(out, part.title, style="bold")
        for text in (*part.note, *filter(None, [part.statement])):
            say(out, text)
        for heads, rows in listed:
            made = table(*heads, dense=part.dense)
            for row in rows:
                made.add_row(*map(escape, row[: len(heads) or None]))
            out.print(made)
        for style, texts in (("yellow", part.warnings), ("dim", part.below)):
            for text in texts:
                say(out, text, style=style)


def say(out: Console, text: str, *, style: str | None = None) -> None:
    """Print a sentence; it is broken into lines only on a terminal."""
    out.print(escape(text), soft_wrap=not out.is_terminal, highlight=False, style=style)


def table(*heads: str, dense: bool = False) -> tables.Table:
    """An empty table with these columns, whose cells fold rather than lose text; `dense` without lines around them."""
    made = tables.Table(box=None if dense else box.SIMPLE_HEAD, show_header=bool(heads), pad_edge=not dense)
    for head in heads:
        made.add_column(head, overflow="fold")
    return made
