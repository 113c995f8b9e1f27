"""What training released, whatever was trained: a table's model, a module, a tree of parameters, an array."""

from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from quoron.evaluating.evaluation import Evaluation
from quoron.printed import Tabular
from quoron_server.plan import Guarantee, Plan

M = TypeVar("M")


class DoubtfulModel(UserWarning):
    """By its plan, before anything is charged, or by what its run released, a model is no better than none."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Trained(Tabular, Generic[M]):
    """A complete run: the model that it released, what was promised for it, and where it is kept."""

    model: M  # in the terms of whoever asked: a `quoron.Model`, a torch module, a tree of JAX, an array (d,)
    weights: NDArray[np.float64]  # (d,): its numbers
    statement: str  # the promise, in a sentence
    directory: Path  # the run's folder, or that of the books in a Flower project

    def rows(self) -> list[tuple[str, str]]:
        """Label and text of each line people see."""
        return [("model", f"a {type(self.model).__name__} of {self.weights.size:,} numbers")]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class TrainedRows(Trained[M]):
    """What was trained by rows that somebody else computes."""

    plan: Plan
    evaluation: Evaluation | None = None  # of users that were held out; None: nobody was

    def rows(self) -> list[tuple[str, str]]:
        """Those of the plan, and how good the model is."""
        measured = [] if self.evaluation is None else self.evaluation.rows()
        return [("algorithm", self.plan.algorithm), *self.plan.rows()[-3:], *measured]

    @property
    def guarantee(self) -> Guarantee:
        """ε, δ, adjacency, exposure and assumptions; `statement` says it in words."""
        return self.plan.guarantee


@dataclass(frozen=True, slots=True)
class BoughtLine:
    """One fact that was bought, in words."""

    column: str
    value: str
    error: float  # standard error, in users

    def text(self) -> str:
        """For people."""
        return f"{self.value} (± {self.error:,.0f} users)"
