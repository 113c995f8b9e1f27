"""What a private evaluation released of a model, as figures with intervals: released and public numbers alone.

    evaluation.figure("AUC").value, evaluation.figure("AUC").low, evaluation.figure("AUC").high

Statement, proof and what the intervals cover: docs/privacy/evaluation.md.
"""

from dataclasses import asdict, dataclass
from typing import Any

from quoron.results import Release, in_units
from quoron_privacy.errors import DataError

MANY = (
    " An AUC is of two classes, per user. Of K, each against the rest, each would have √K times the noise, and K times "
    "that for being rare: train with a label of two, such as 'origin == 2', for one of them."
)


@dataclass(frozen=True, slots=True)
class Figure:
    """One number with its 95 % interval, which covers the noise and that these users were drawn from many.

    Each user weighs one, as the mean of its rows.
    """

    name: str  # "accuracy", "AUC", "log loss", "rmse"
    value: float  # in [0, 1]; of rmse in the label's own units; of log loss in nats
    low: float
    high: float
    baseline: float | None  # the same figure of the baseline, as released; None: unknown
    baseline_name: str  # always saying so: "chance", "majority", "label shares", "mean"
    useless: bool  # whether the interval holds the baseline and is as wide as all between it and a perfect model
    bound: str = ""  # at what it is clipped, in words; "" for nothing

    def text(self) -> str:
        """For people: the value, its interval and the baseline."""
        shown = "{:.3f}".format if self.name in ("accuracy", "AUC", "log loss") else in_units
        known = [] if self.baseline is None else [f"{self.baseline_name} {shown(self.baseline)}"]
        held = [self.bound] if self.bound and self.name == "rmse" else []
        said = [f"{shown(self.low)} to {shown(self.high)}", *known, *held, *(["useless"] if self.useless else [])]
        return f"{shown(self.value)} ({'; '.join(said)})"


@dataclass(frozen=True, slots=True)
class Bin:
    """Rows of about one predicted chance: what the model says, and how often it was so, with its 95 % interval."""

    predicted: float
    observed: float
    low: float
    high: float

    def text(self) -> str:
        """Return what was so, for people."""
        return f"{100 * self.observed:.0f} % ({100 * self.low:.0f} to {100 * self.high:.0f} %)"


@dataclass(frozen=True, slots=True, repr=False)
class Evaluation(Release):
    """Figures of one model, of users that are said, and what they cost."""

    figures: tuple[Figure, ...]
    calibration: tuple[Bin, ...]  # () where labels are not two classes
    users: int  # held out, with rows or without
    epsilon: float
    delta: float
    statement: str  # the promise, in a sentence
    remarks: tuple[str, ...] = ()

    def figure(self, name: str) -> Figure:
        """Return the one of this name. DataError if there is none."""
        for figure in self.figures:
            if figure.name == name:
                return figure
        known = ", ".join(figure.name for figure in self.figures)
        why = MANY if name == "AUC" and {figure.name for figure in self.figures} & {"accuracy", "rmse"} else ""
        raise DataError(f"Expected a figure among {known}, got {name!r}.{why}")

    def rows(self) -> list[tuple[str, str]]:
        """Label and text of each figure, for people."""
        return [(f"{figure.name} per user, with 95 %", figure.text()) for figure in self.figures]

    def records(self) -> list[dict[str, Any]]:
        """Return one mapping a figure."""
        return [asdict(figure) for figure in self.figures]
