r"""Results on a terminal, and runs while they go: live bars, a few plain lines elsewhere, or nothing.

Names that come out of files and from other machines cannot write on it.

>>> Terminal(width=40).print("column age\x1b[2J", markup=False, highlight=False)
column age\x1b[2J
"""

import sys
from collections.abc import Iterable
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal, Self

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from quoron_privacy.errors import printable

if TYPE_CHECKING:  # what prints a line needs no more
    import numpy as np
    from numpy.typing import NDArray

    from quoron.reports.page import Section
    from quoron.simulation.comparison import Job
    from quoron_server.plan import RunPlan
    from quoron_server.rounds import RoundEvent

LINES = 3  # plain lines a run, about


class Display:
    """Shows on standard error the rounds of one run, or the runs that workers of a comparison carry out.

    A context manager that leaves the terminal tidy whatever happens.
    """

    def __init__(self, form: Literal["bars", "lines", "nothing"] = "nothing") -> None:
        self.form = form
        self._bars = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[figures]}"),
            TimeElapsedColumn(),
            console=Console(stderr=True),
            transient=True,
            disable=form != "bars",
        )
        self._tasks: dict[str, TaskID] = {}
        self._name = ""  # of the algorithm
        self._ended, self._runs = 0, 0  # of a comparison

    def __enter__(self) -> Self:
        """Take the terminal."""
        self._bars.start()
        return self

    def __exit__(self, *ended: object) -> None:
        """Give the terminal back."""
        self._bars.stop()

    def _line(self, text: str) -> None:
        if self.form == "lines":
            print(text, file=sys.stderr, flush=True)

    def _bar(self, name: str, **changes: Any) -> None:
        if name not in self._tasks:
            self._tasks[name] = self._bars.add_task("", total=None, figures="")
        self._bars.update(self._tasks[name], **changes)

    def waiting(self, text: str) -> None:
        """Show what is done before the first round."""
        self._line(text)
        self._bar("rounds", description=escape(text))

    def started(self, plan: "RunPlan") -> None:
        """Show how many rounds there are, and what to take care of."""
        if self.form != "nothing" and plan.guarantee.curated and not plan.guarantee.seeded:
            how = "Until the run is complete, ledger.sqlite in its folder is private: keep it to yourself."
            print(how, file=sys.stderr, flush=True)
        self._name = plan.algorithm
        self._bar("rounds", description=self._name, total=plan.cost.rounds)

    def round_finished(self, event: "RoundEvent") -> None:
        """Move the bar after a round's commit, or say so in every third of the rounds."""
        risk = event.diagnostics.get("excess_risk")
        figures = "" if risk is None else f", excess risk {risk:.2g}"
        figures += ", halted" if event.public.get("halted") else ""
        self._bar("rounds", description=self._name, completed=event.round + 1, figures=f"rounds{figures}")
        if event.round % max(1, event.rounds // LINES) == 0 or event.round == event.rounds - 1:
            self._line(f"round {event.round + 1}/{event.rounds}, {event.asked:,} users{figures}")

    def finished(self, model: "NDArray[np.float64]") -> None:
        """Show nothing after the last commit."""

    def planned(self, runs: int) -> None:
        """Show how many runs there are to do."""
        self._runs += runs
        self._bar("runs", description="runs", total=self._runs)

    def ended(self, job: "Job", end: str, why: str | None) -> None:
        """Show that a run is done, refused or failed; of an infeasible cell only the first says why."""
        self._ended += 1
        self._bar("runs", completed=self._ended)
        outcome = f"{end}: {why}" if why and (end == "failed" or job.number == 0) else end
        self._line(f"run {self._ended}/{self._runs}, {job.named}: {outcome}")


def display(progress: bool | None) -> Display:
    """Return a display: bars where they can move, else lines; nothing where `progress` is false.

    None: nothing but in terminals and notebooks. A bar moves in a notebook that has ipywidgets.
    """
    terminal, notebook = sys.stderr.isatty(), Console(stderr=True).is_jupyter
    if not (terminal or notebook if progress is None else progress):
        return Display()
    return Display("bars" if terminal or (notebook and find_spec("ipywidgets") is not None) else "lines")


class Terminal(Console):
    """Shows control characters of what it is given by their escapes; those of colours are its own."""

    def render_str(self, text: str, **how: Any) -> Text:
        """Return a string that is printed, or a cell of a table."""
        return super().render_str(printable(text), **how)


def show(out: Console, parts: "Iterable[Section]", *, details: bool = False) -> None:
    """Print what a page shows of a result; with `details` all sections, else the brief ones."""
    for part in parts:
        if part.detail and not details:
            continue
        listed = [(table.heads[: table.brief], table.rows) for table in part.tables if table.rows]
        listed = [((), part.rows), *listed] if part.rows else listed
        if part.title and (listed or part.note or part.warnings or part.statement):
            say(out, part.title, style="bold")
        for text in (*part.note, *filter(None, [part.statement])):
            say(out, text)
        for heads, rows in listed:
            made = Table(box=box.SIMPLE_HEAD, show_header=bool(heads), show_edge=False)
            for head in heads:
                made.add_column(head, overflow="fold")  # rather than lose text
            for row in rows:
                made.add_row(*map(escape, row[: len(heads) or None]))
            out.print(made)
        for style, texts in (("yellow", part.warnings), ("dim", part.below)):
            for text in texts:
                say(out, text, style=style)


def say(out: Console, text: str, *, style: str | None = None) -> None:
    """Print a sentence; it is broken into lines only on a terminal."""
    out.print(escape(text), soft_wrap=not out.is_terminal, highlight=False, style=style)
