"""What training released, whatever was trained: a table's model, a module, a tree of parameters, an array."""

from dataclasses import dataclass

from quoron.evaluating.evaluation import Evaluation
from quoron.results import M, Run
from quoron_server.plan import Guarantee, RunPlan


class DoubtfulModel(UserWarning):
    """By its plan, before anything is charged, or by what its run released, a model is no better than none."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class TrainedRows(Run[M]):
    """What was trained by rows that somebody else computes."""

    plan: RunPlan
    evaluation: Evaluation | None = None  # of users that were held out; None: nobody was

    def rows(self) -> list[tuple[str, str]]:
        """Those of the plan, and how good the model is."""
        measured = [] if self.evaluation is None else self.evaluation.rows()
        return [("algorithm", self.plan.algorithm), *self.plan.rows()[-3:], *measured]

    @property
    def guarantee(self) -> Guarantee:
        """ε, δ, adjacency, trust model and assumptions; `statement` says it in words."""
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
