"""Observers that show a run while it goes: a live bar in a terminal, a few plain lines elsewhere, or nothing."""

import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING, Self

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TaskID, TextColumn, TimeElapsedColumn

from quoron_server.plan import RunPlan
from quoron_server.rounds import RoundEvent

if TYPE_CHECKING:
    from quoron.simulation.comparison import Job

Vector = NDArray[np.float64]
LINES = 3  # plain lines a run, about


class Tidy:
    """A context manager that leaves the terminal tidy whatever happens."""

    def __enter__(self) -> Self:
        """Take the terminal."""
        return self

    def __exit__(self, *ended: object) -> None:
        """Give the terminal back."""


class Live(Tidy):
    """One live display on standard error."""

    def __init__(self, *columns: ProgressColumn) -> None:
        self._bar = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            *columns,
            TimeElapsedColumn(),
            console=Console(stderr=True),
            transient=True,
        )

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *ended: object) -> None:
        self._bar.stop()


class Display(Tidy):
    """An observer that shows nothing."""

    def started(self, plan: RunPlan) -> None:
        """Before the first round."""

    def round_finished(self, event: RoundEvent) -> None:
        """After a round's commit."""

    def finished(self, model: Vector) -> None:
        """After the last commit."""

    def said(self, text: str) -> None:
        """What is done before the first round."""


def wanted(progress: bool | None) -> bool:
    """Return `progress`; where it is None, whether standard error is a terminal or a notebook's cell."""
    return (sys.stderr.isatty() or _in_notebook()) if progress is None else progress


def _in_notebook() -> bool:
    return Console(stderr=True).is_jupyter


def _can_redraw() -> bool:
    """Return whether a bar can move: in a terminal, and in a notebook that has ipywidgets."""
    return sys.stderr.isatty() or (_in_notebook() and find_spec("ipywidgets") is not None)


def display(*, quiet: bool) -> Display:
    """Return a live bar in terminals and notebooks, plain lines elsewhere, and silence if `quiet`."""
    if quiet:
        return Display()
    return Bar() if _can_redraw() else Lines()


class Lines(Display):
    """A plain line now and then, on standard error."""

    def said(self, text: str) -> None:
        """A line."""
        print(text, file=sys.stderr, flush=True)

    def started(self, plan: RunPlan) -> None:
        """What to take care of, if anything."""
        _warn(plan)

    def round_finished(self, event: RoundEvent) -> None:
        """One line in every third of the rounds."""
        if event.round % max(1, event.rounds // LINES) == 0 or event.round == event.rounds - 1:
            text = f"round {event.round + 1}/{event.rounds}, {event.asked:,} users{_figures(event)}"
            print(text, file=sys.stderr, flush=True)


class Bar(Live, Display):
    """A live progress bar."""

    def __init__(self) -> None:
        super().__init__(TextColumn("rounds{task.fields[figures]}"))
        self._task = self._bar.add_task("preparing users", total=None, figures="")
        self._name = ""

    def said(self, text: str) -> None:
        """In front of the bar."""
        self._bar.update(self._task, description=escape(text))

    def started(self, plan: RunPlan) -> None:
        """Show the plan's rounds as the length of the bar."""
        _warn(plan)
        self._name = plan.algorithm
        self._bar.update(self._task, description=self._name, total=plan.cost.rounds)

    def round_finished(self, event: RoundEvent) -> None:
        """Move the bar."""
        self._bar.update(self._task, description=self._name, completed=event.round + 1, figures=_figures(event))


def _warn(plan: RunPlan) -> None:
    if plan.guarantee.curated and not plan.guarantee.seeded:
        how = "Until the run is complete, ledger.sqlite in its folder is private: keep it to yourself."
        print(how, file=sys.stderr, flush=True)


def _figures(event: RoundEvent) -> str:
    risk = event.diagnostics.get("excess_risk")
    text = f", excess risk {risk:.2g}" if risk is not None else ""
    return text + (", halted" if event.public.get("halted") else "")


class Runs(Tidy):
    """Hears what the workers of a comparison, numbered from 0, do, one call at a time, and shows nothing."""

    def planned(self, runs: int) -> None:
        """How many runs there are to do."""

    def began(self, worker: int, job: "Job") -> None:
        """A run begins."""

    def moved(self, worker: int, at: int, of: int) -> None:
        """Rounds of it."""

    def ended(self, worker: int, job: "Job", end: str, why: str | None) -> None:
        """It is done, refused or failed."""


def runs_display(*, quiet: bool) -> Runs:
    """Return live bars in terminals and notebooks, a line a run elsewhere, and silence if `quiet`."""
    if quiet:
        return Runs()
    return RunBars() if _can_redraw() else RunLines()


class RunLines(Runs):
    """A plain line for every run that ended, on standard error."""

    def __init__(self) -> None:
        self._done, self._all = 0, 0  # runs, of a comparison that adds seeds also those before

    def planned(self, runs: int) -> None:
        """Remember how many, with those before."""
        self._all += runs

    def ended(self, worker: int, job: "Job", end: str, why: str | None) -> None:
        """One line; of an infeasible cell only its first run's says why."""
        self._done += 1
        outcome = f"{end}: {why}" if why and (end == "failed" or job.number == 0) else end
        print(f"run {self._done}/{self._all}, {job.named}: {outcome}", file=sys.stderr, flush=True)


class RunBars(Live, Runs):
    """One live display: all runs, and for each worker the run it is at."""

    def __init__(self) -> None:
        super().__init__()
        self._all = self._bar.add_task("runs", total=None)
        self._workers: dict[int, TaskID] = {}

    def planned(self, runs: int) -> None:
        """The length of the first bar, with what is done."""
        self._bar.update(self._all, total=int(self._bar.tasks[self._all].completed) + runs)

    def began(self, worker: int, job: "Job") -> None:
        """A worker's bar begins again."""
        if worker not in self._workers:
            self._workers[worker] = self._bar.add_task("")
        self._bar.reset(self._workers[worker], total=None, description=escape(job.named))

    def moved(self, worker: int, at: int, of: int) -> None:
        """Move it."""
        self._bar.update(self._workers[worker], completed=at, total=of)

    def ended(self, worker: int, job: "Job", end: str, why: str | None) -> None:
        """Move the first bar."""
        self._bar.advance(self._all)
