"""What an algorithm is: pure functions on an immutable state, free of transport, files, clocks and global randomness.

    state = algorithm.init()
    while (question := algorithm.request(state, noise)) is not None:
        answers = engine.ask(question)
        state = algorithm.update(state, answers, noise).state
    model = algorithm.model(state)

`noise` is the `NoiseSource` of this start of the run; every draw is keyed by (round, purpose), so the same state and
the same start give the same bits.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cache
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from quoron_client.protocol.questions import Question
from quoron_privacy.arrays import Vector as Vector
from quoron_privacy.noise.streams import NoiseSource
from quoron_privacy.release import Release
from quoron_server.parameters import Parameters
from quoron_server.plan import RunPlan

S = TypeVar("S")
P = TypeVar("P", bound=Parameters)
# Bytes of a state's arrays: PostgreSQL hands a value out as two digits a byte, 2³⁰ of them with all else; SQLite takes
# 10⁹ bytes. The last MiB is for names and plain values.
MAX_STATE = (1 << 29) - (1 << 20)


@dataclass(frozen=True, slots=True)
class Update(Generic[S]):
    """The new state, what it released, and what an observer may see.

    `public` is safe to show to anyone. `diagnostics` are functions of private data: for observers in simulation only.
    """

    state: S
    releases: tuple[Release, ...] = ()
    public: Mapping[str, Any] = field(default_factory=dict)
    diagnostics: Mapping[str, Any] = field(default_factory=dict)
    present: float | None = None  # how many users answered, as the round's releases tell it: noise included


@cache
def _names(kind: Any) -> tuple[str, ...] | None:
    return tuple(item.name for item in fields(kind)) if is_dataclass(kind) else None


# names_of(kind): the fields of a dataclass, in order, looked up once, for a round reads many; None of any other type.
names_of: Callable[[type], tuple[str, ...] | None] = _names


class Algorithm(Protocol[S]):
    """One algorithm with one plan. States are frozen dataclasses of arrays, plain values and such states.

    An array of a state has the same shape after every round: how much there is to keep is known before the first.
    """

    plan: RunPlan

    def init(self) -> S:
        """Return the state before the first round."""

    def request(self, state: S, noise: NoiseSource) -> Question | None:
        """Return the next question, or None when the run is complete. Pure: the same state gives the same question.

        Whom it asks may be drawn by coins of `noise`, if the question says so: they are each start's own.
        """

    def update(self, state: S, answers: Any, noise: NoiseSource) -> Update[S]:
        """The state after `answers` to `request(state, noise)`: Answers, or Sums where the question has a reduction."""

    def model(self, state: S) -> Vector:
        """Return the model released so far, shape (d,)."""

    def iterate(self, state: S) -> Vector:
        """The current iterate, shape (d,); not released under trust model `central-release`, so for simulation only."""


class OfPlan(Generic[P]):
    """What algorithms share whose points are all functions of releases; `kind` is the type of their parameters."""

    kind: type[P]

    def __init__(self, plan: RunPlan) -> None:
        """Raise VerificationError for a plan of another algorithm."""
        self.plan, self.parameters = plan, plan.parameters_of(self.kind)

    def model(self, state: Any) -> Vector:
        """Return the mean of the last `suffix` iterates once it is complete, before that the current iterate."""
        average: Vector = state.running if state.round == self.plan.cost.rounds else state.iterate
        return average

    def iterate(self, state: Any) -> Vector:
        """Return the model so far: every iterate is private already."""
        return self.model(state)


class InPhases(OfPlan[P]):
    """The same for runs in phases, which the parameters hold with the `rounds` of each, or are the only one."""

    def __init__(self, plan: RunPlan) -> None:
        """Raise VerificationError for a plan of another algorithm."""
        super().__init__(plan)
        self.phases: tuple[Any, ...] = getattr(self.parameters, "phases", (self.parameters,))
        self._ends = np.cumsum([phase.rounds for phase in self.phases])

    def phase_index(self, round_: int) -> int:
        """Return the index of the phase that a round belongs to."""
        return int(np.searchsorted(self._ends, round_, side="right"))
