"""Descent on average gradients, a question a round: the state, the question and the average of the last iterates.

    class MySGD(Descent[MyParameters]):
        kind = MyParameters

        def update(self, state, answers, noise):
            ...  # a release, and a step along it
            return Update(state.moved(iterate, self.parameters), releases)

Parameters have `rounds`, `cohort_size` and `suffix`, and where a loss may be smoothed `smoothing`. Every iterate is a
function of releases: trust model `central-broadcast`.
"""

from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from quoron_client.protocol.questions import Answers, AverageGradient, Question, summed
from quoron_client.protocol.smoothing import moreau
from quoron_privacy.means.clipping import ClippedSum
from quoron_privacy.noise.streams import NoiseSource
from quoron_privacy.release import NoisySums, Reduction, Sums
from quoron_privacy.schedule import Users
from quoron_server.algorithm import OfPlan, P, Vector
from quoron_server.algorithms.slots import partition


@dataclass(frozen=True, slots=True, eq=False)
class DescentState:
    """Everything between two rounds; all of it a function of releases."""

    round: int
    iterate: Vector  # x_t
    running: Vector  # sum of the averaged iterates, divided by their planned number

    def moved(self, iterate: Vector, p: Any, **more: Any) -> Self:
        """Return the state of the next round: the last `p.suffix` of `p.rounds` iterates enter the average."""
        averaged = p.rounds - self.round <= p.suffix
        running = self.running + iterate / p.suffix if averaged else self.running
        return replace(self, round=self.round + 1, iterate=iterate, running=running, **more)


class Descent(OfPlan[P]):
    """An algorithm of this kind but for its steps, for a plan with parameters as above."""

    def init(self) -> DescentState:
        """Start at zero."""
        zero = np.zeros(self.plan.problem.dimension)
        return DescentState(0, zero, zero)

    def request(self, state: DescentState, noise: NoiseSource) -> Question | None:
        """Average gradients of this round's cohort at the current iterate. None after the last round."""
        p: Any = self.parameters
        if state.round == p.rounds:
            return None
        smoothing = moreau(getattr(p, "smoothing", 0.0))
        task = AverageGradient(state.iterate[None, :], (1.0,), self.plan.problem.user_smoothness, smoothing=smoothing)
        cohort, drawn = self.cohort(state.round, noise)
        return Question(state.round, cohort, task, p.cohort_size, self.reduction(state), drawn)

    def cohort(self, round_: int, noise: NoiseSource) -> tuple[Users, bool]:
        """Return whom a round asks, and whether secret coins have drawn it: here the next users of a public order."""
        p: Any = self.parameters
        order = partition(seed=self.plan.seed, users=self.plan.problem.users)
        return order[round_ * p.cohort_size : (round_ + 1) * p.cohort_size], False

    def reduction(self, state: Any) -> Reduction | None:
        """Return all that a round reads of its answers; None: single rows."""
        return None


def clipped(answers: Answers | Sums, reduction: ClippedSum) -> tuple[Vector | NoisySums, dict[str, float]]:
    """Return (1/B) Σ clip_C of a round's rows, or the sum with noise, and diagnostics."""
    sums = summed(answers, reduction)
    return sums if isinstance(sums, NoisySums) else reduction.mean(sums), diagnosed(sums)


def diagnosed(sums: Sums) -> dict[str, float]:
    """Return how many answered and how many of them were clipped: private, for simulation only."""
    return {"answered": sums.answered, "clipped_fraction": sums.clipped / max(1, sums.answered)}
