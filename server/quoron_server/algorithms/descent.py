"""Gradient descent on private mean gradients: the loop that most algorithms share.

    for each round t:
        q_u     = ∇F_u(x_t)               of the users in the round's `cohort`
        g_t     = the `estimate` of their mean: clipped, tested or filtered, with noise; or nothing
        x_{t+1} = Proj(x_t - η g_t)       `step`; x_t where there is no g_t
        the last w iterates of a phase are averaged
    after the last round of a phase:      `ended`
    model: the average

An algorithm says whom it asks and how a gradient is estimated. Some take steps of their own, or release something where
a phase ends. docs/adding-an-algorithm.md writes one.
"""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Generic, TypeVar, cast

import numpy as np

from quoron_client.protocol.questions import Answers, AverageGradient, Question, summed
from quoron_client.protocol.smoothing import moreau
from quoron_privacy.arrays import Integers, Matrix
from quoron_privacy.means.clipping import ClippedSum
from quoron_privacy.noise.streams import NoiseSource
from quoron_privacy.release import NoisySums, Release, Sums
from quoron_server.algorithm import InPhases, P, Update, Vector
from quoron_server.algorithms.slots import partition


@dataclass(frozen=True, slots=True, eq=False)
class State:
    """Everything between two rounds; algorithms add what they remember."""

    round: int
    iterate: Vector  # x_t
    running: Vector  # sum of the averaged iterates, divided by their planned number


@dataclass(frozen=True, slots=True, eq=False)
class Estimate:
    """What a round's answers tell."""

    gradient: Vector | None  # g_t, (d,); None: a test withholds it
    releases: tuple[Release, ...] = ()
    public: Mapping[str, Any] = field(default_factory=dict)
    diagnostics: Mapping[str, Any] = field(default_factory=dict)  # functions of private data, for simulation only
    remembered: Mapping[str, Any] = field(default_factory=dict)  # fields of the state, as they are from now on


S = TypeVar("S", bound=State)


class Descent(InPhases[P], Generic[P, S]):
    """Algorithm object for a plan whose parameters have `cohort_size`, and `rounds`, `step_size` and `suffix`.

    The last three are in each of the `phases` where the parameters have some.
    """

    def init(self) -> S:
        """Start at zero."""
        zero = np.zeros(self.plan.problem.dimension)
        return cast(S, State(0, zero, zero))

    @cached_property
    def _batches(self) -> int:
        """Disjoint cohorts, in whose order all rounds go, again and again where a user is asked several times."""
        return -(-self.plan.cost.rounds // self.plan.schedule.participations)

    @abstractmethod
    def estimate(self, state: S, answers: Any, noise: NoiseSource) -> Estimate:
        """Return the gradient that a round's Answers, or Sums where it has a reduction, are for."""

    def cohort(self, round_: int, noise: NoiseSource) -> tuple[Integers, bool]:
        """Return whom a round asks, and whether secret coins have drawn it: here the next users of a public order."""
        numbers: Any = self.parameters
        size, batch = numbers.cohort_size, round_ % self._batches
        order = partition(seed=self.plan.seed, users=self.plan.problem.users)
        return order[batch * size : (batch + 1) * size], False

    def points(self, state: S) -> tuple[Matrix, tuple[float, ...]]:
        """Return where users take gradients, (k, d), and the weights of their sum, (k,): once, at the iterate."""
        return state.iterate[None, :], (1.0,)

    def reduction(self, state: S) -> ClippedSum | None:
        """Return all that a round reads of its answers; None where it reads single ones."""
        return None

    def request(self, state: S, noise: NoiseSource) -> Question | None:
        """Return what the next round asks; None after the last one."""
        return None if state.round == self._ends[-1] else self.question(state, noise)

    def question(self, state: S, noise: NoiseSource) -> Question:
        """Average gradients of the round's cohort."""
        numbers: Any = self.parameters
        points, weights = self.points(state)
        smoothing = moreau(getattr(numbers, "smoothing", 0.0))
        task = AverageGradient(points, weights, self.plan.problem.user_smoothness, smoothing=smoothing)
        cohort, drawn = self.cohort(state.round, noise)
        return Question(state.round, cohort, task, numbers.cohort_size, self.reduction(state), drawn)

    def step(self, state: S, gradient: Vector, phase: Any) -> S:
        """Return the state with x_{t+1} as its iterate."""
        return replace(state, iterate=self.plan.problem.domain.project(state.iterate - phase.step_size * gradient))

    def update(self, state: S, answers: Answers | Sums, noise: NoiseSource) -> Update[S]:
        """Estimate the gradient, step along it, and average."""
        index = self.phase_index(state.round)
        phase, left = self.phases[index], int(self._ends[index]) - state.round
        found = self.estimate(state, answers, noise)
        after = replace(state, **found.remembered) if found.remembered else state
        if found.gradient is not None:
            after = self.step(after, found.gradient, phase)
        running = after.running + after.iterate / phase.suffix if left <= phase.suffix else after.running
        after = replace(after, round=state.round + 1, running=running)
        public = found.public if phase is self.parameters else {"phase": index, **found.public}
        update = Update(after, found.releases, public, found.diagnostics)
        return update if left > 1 else self.ended(update, noise, index)

    def ended(self, update: Update[S], noise: NoiseSource, phase: int) -> Update[S]:
        """Return what the last round of a phase releases beside its own: nothing."""
        return update


def clipped(answers: Answers | Sums, reduction: ClippedSum) -> tuple[Vector | NoisySums, dict[str, float]]:
    """Return (1/B) Σ clip_C of a round's rows, or the sum with noise, and diagnostics."""
    sums = summed(answers, reduction)
    return sums if isinstance(sums, NoisySums) else reduction.mean(sums), diagnosed(sums)


def diagnosed(sums: Sums) -> dict[str, float]:
    """Return how many answered and how many of them were clipped: private, for simulation only."""
    return {"answered": sums.answered, "clipped_fraction": sums.clipped / max(1, sums.answered)}
