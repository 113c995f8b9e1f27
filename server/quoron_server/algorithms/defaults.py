"""What the registry asks of an algorithm, and what is answered for one that says nothing."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from quoron_server.budget import Budget
from quoron_server.plan import Need, Plan, Privacy
from quoron_server.problem import Problem

if TYPE_CHECKING:
    from dp_accounting import DpEvent

Planner = Callable[[Problem, Privacy, Any, int], Plan]  # problem, privacy, options, seed; raises Infeasible


@dataclass(frozen=True, slots=True)
class GaussianPromise:
    """Everything that a run releases is μ-GDP up to a total variation (docs/privacy/lifetime.md, "Gaussian runs").

    That is: under the plan's adjacency and assumptions, with exact noise wherever the proof needs it for one user, it
    is `mu`-GDP; and what it releases, as drawn, is within `variation` of that, whatever the dataset.
    """

    mu: float  # rounded up
    variation: float  # s, rounded up


@dataclass(frozen=True, slots=True)
class Allowance:
    """What a run may ask of users: public, and all that `auto`'s rules know beside a plan."""

    budget: Budget = field(default_factory=Budget)
    everybody: bool = False  # whether one machine holds all rows: to ask all users again then costs nobody anything
    held: int | None = 1 << 29  # bytes of a round's answers that may be held at once; None: they can be made again


class Verdict(NamedTuple):
    """What a method's own rule says of a plan."""

    taken: bool
    because: str = ""  # a clause of the sentence that `auto` tells, if there is something to be told


def not_gaussian(plan: Plan) -> GaussianPromise | None:
    """None: the theorem proves (ε, δ) only, as for secret samples, private tests and filters.

    So it does for local reports: a client holds a hostile coordinator to (ε, δ), under which that may ask for bits
    where vectors with Gaussian noise were planned.
    """
    del plan
    return None


def no_event(plan: Plan) -> "DpEvent | None":
    """None: dp-accounting has no event for private tests, removals of outliers and reports of clients."""
    del plan
    return None


def one_vector(plan: Plan) -> int:
    """Numbers in an answer: those of the model."""
    return plan.problem.dimension


def one_point(plan: Plan) -> int:
    """Points at which a question asks for a gradient: one."""
    del plan
    return 1


def never(plan: Plan) -> bool:
    """No."""
    del plan
    return False


def deployable(plan: Plan) -> str | None:
    """None: nothing keeps a plan from real clients."""
    del plan
    return None


def nothing(plan: Plan) -> tuple[str, ...]:
    """Nothing to say beside the numbers."""
    del plan
    return ()


def no_needs(plan: Plan) -> tuple[Need, ...]:
    """The promise rests on its numbers alone."""
    del plan
    return ()


def equal_cohorts(plan: Plan) -> tuple[int, ...]:
    """As many users in every round."""
    return (plan.parameters.cohort_size,) * plan.cost.rounds
