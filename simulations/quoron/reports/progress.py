"""Observers that show a run while it goes: a live bar in a terminal, a few plain lines elsewhere, or nothing."""

import sys
from types import TracebackType
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from quoron_server.plan import Plan
from quoron_server.rounds import RoundEvent

Vector = NDArray[np.float64]
LINES = 10  # plain lines a run, at most


class Display(Protocol):
    """An observer that is a context manager, so that the terminal is left tidy whatever happens."""

    def __enter__(self) -> "Display":
        """Take the terminal."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Give the terminal back."""

    def started(self, plan: Plan) -> None:
        """Before the first round."""

    def round_finished(self, event: RoundEvent) -> None:
        """After a round's commit."""

    def finished(self, model: Vector) -> None:
        """After the last commit."""


def display(*, quiet: bool) -> Display:
    """A live bar when standard error is a terminal, plain lines when it is not, silence when asked."""
    if quiet:
        return Silence()
    return Bar() if sys.stderr.isatty() else Lines()


class Silence:
    """Shows nothing."""

    def __enter__(self) -> Display:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        pass

    def started(self, plan: Plan) -> None:
        """Nothing."""

    def round_finished(self, event: RoundEvent) -> None:
        """Nothing."""

    def finished(self, model: Vector) -> None:
        """Nothing."""


class Lines(Silence):
    """A plain line now and then, on standard error."""

    def round_finished(self, event: RoundEvent) -> None:
        """One line in every tenth of the rounds."""
        if event.round % max(1, event.rounds // LINES) == 0 or event.round == event.rounds - 1:
            told = f"round {event.round + 1}/{event.rounds}, {event.asked:,} users{_figures(event)}"
            print(told, file=sys.stderr, flush=True)


class Bar(Silence):
    """A live progress bar on standard error."""

    def __init__(self) -> None:
        self._bar = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("rounds{task.fields[figures]}"),
            TimeElapsedColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self._task = self._bar.add_task("preparing users", total=None, figures="")

    def __enter__(self) -> Display:
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._bar.stop()

    def started(self, plan: Plan) -> None:
        """Show the plan's rounds as the length of the bar."""
        self._bar.update(self._task, description=plan.algorithm, total=plan.cost.rounds)

    def round_finished(self, event: RoundEvent) -> None:
        """Move the bar."""
        self._bar.update(self._task, completed=event.round + 1, figures=_figures(event))


def _figures(event: RoundEvent) -> str:
    risk = event.diagnostics.get("excess_risk")
    told = f", excess risk {risk:.2g}" if risk is not None else ""
    return told + (", halted" if event.public.get("halted") else "")
