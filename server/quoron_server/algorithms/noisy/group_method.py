"""Item-level DP-SGD whose noise protects all items of a user: group privacy by secret coins on items.

    in round t every place 1 .. m of every user is chosen by a secret coin of its own with chance q
    s_u = Σ_{chosen places of u that have an item} clip_C(∇f(x_t; z))        computed by the client
    g_t = (1/(q n m)) (Σ_u clip_{C · chosen places of u}(s_u) + N(0, z² C² I));   x_{t+1} = Proj(x_t - η g_t)
    model = uniform average of the last `suffix` iterates

Only users with a chosen place are asked, and each is told its own places alone. A place without an item adds zero, the
divisor is fixed. Everything sent out is private: trust model `central-broadcast`.
Proof: docs/privacy/group-privacy.md#g2.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from quoron_client.protocol.questions import Answers, PlacedGradient, Question
from quoron_privacy.errors import RunError
from quoron_privacy.gaussian import GaussianNoise
from quoron_privacy.means.clipping import clipped_mean
from quoron_privacy.noise.streams import NoiseSource
from quoron_server.algorithm import Update, Vector
from quoron_server.algorithms.noisy.method import NoisyState
from quoron_server.algorithms.optimisers import SGD
from quoron_server.parameters import Assumption, Kind, Parameters, PlannedRelease
from quoron_server.plan import RunPlan
from quoron_server.problem import Problem


@dataclass(frozen=True, slots=True)
class GroupSGDParameters(Parameters):
    """Public numbers of one run."""

    items: int  # m: places of a user, a cap; items beyond it are never used
    rate: float  # q, of each place in each round
    width: int  # places of one user that a round uses at most; more at once are cut, which is next to never
    cohort_size: int  # users asked in a round, as expected
    expected: int  # items of an asked user, as expected
    rounds: int  # T
    step_size: float  # η
    suffix: int  # iterates averaged
    clip_norm: float  # C, on an item's gradient
    sensitivity: float  # of one round's mean, ℓ2, if all m places of a user were chosen
    noise_scale: float  # of one round's mean
    multiplier: float  # z, of the sum in units of C

    @property
    def noise(self) -> GaussianNoise:
        """Of one round's mean."""
        return GaussianNoise(self.sensitivity, self.noise_scale)

    def releases(self, dimension: int) -> tuple[PlannedRelease, ...]:
        """A noisy mean in every round."""
        noise = self.noise
        mu = noise.effective_mu(dimension)
        return (PlannedRelease(noise, noise.entry(), self.rounds, range(self.rounds), mu),)

    def asks(self, problem: Problem) -> PlacedGradient:
        """A gradient at the places that may be chosen."""
        places = np.arange(self.width, dtype=np.int64)[None, :]
        return PlacedGradient(np.zeros((1, problem.dimension)), places, 1.0, self.clip_norm, self.expected)

    def cohorts(self) -> tuple[int, ...]:
        """As many users in every round, as expected."""
        return (self.cohort_size,) * self.rounds

    @property
    def poisson_sampling(self) -> bool:
        """Whoever has a place chosen is asked."""
        return True

    def participations(self) -> int:
        """In every round."""
        return self.rounds

    def assumptions(self, problem: Problem) -> tuple[Assumption, ...]:
        """Secret items, and as coins for items are coins for users, too, secret cohorts."""
        del problem
        return (Assumption(Kind.SECRET_ITEMS), Assumption(Kind.SECRET_COHORTS)) if self.rate < 1 else ()


class GroupSGD:
    """Algorithm object for a plan with GroupSGDParameters."""

    def __init__(self, plan: RunPlan) -> None:
        self.plan = plan
        self.parameters = plan.parameters_of(GroupSGDParameters)

    def init(self) -> NoisyState:
        """Start at zero."""
        zero = np.zeros(self.plan.problem.dimension)
        return NoisyState(0, zero, zero, self.parameters.clip_norm, SGD.start(len(zero)))

    def request(self, state: NoisyState, noise: NoiseSource) -> Question | None:
        """Clipped gradients of each user's chosen items at the current iterate."""
        p = self.parameters
        if state.round == p.rounds:
            return None
        cohort, places = self._chosen(state.round, noise)
        task = PlacedGradient(state.iterate[None, :], places, 1.0, p.clip_norm, p.expected)
        return Question(state.round, cohort, task, planned=p.cohort_size, drawn=True)

    def update(self, state: NoisyState, answers: Answers, noise: NoiseSource) -> Update[NoisyState]:
        """One noisy step. A user's sum is clipped to what its chosen places may add, whatever it sends."""
        p = self.parameters
        cohort, places = self._chosen(state.round, noise)  # by the same coins again
        if len(cohort) != len(answers.answered):
            raise RunError(
                f"Expected answers of the {len(cohort):,} users that this noise draws in round {state.round}, got "
                f"{len(answers.answered):,}. Update with the noise of the request."
            )
        chosen, total, clipped = np.sum(places >= 0, axis=1), np.zeros_like(state.iterate), 0
        for many in range(1, p.width + 1):
            alike = answers.answered & (chosen == many)
            mean, cut = clipped_mean(answers.values, alike, many * p.clip_norm, p.cohort_size)
            total, clipped = total + mean, clipped + cut
        mean = total * (p.cohort_size / (p.rate * self.plan.problem.users * p.items))
        gradient = p.noise.release(mean, noise.stream("release", state.round))
        iterate = self.plan.problem.domain.project(state.iterate - p.step_size * gradient)
        averaged = p.rounds - state.round <= p.suffix
        running = state.running + iterate / p.suffix if averaged else state.running
        moved = replace(state, round=state.round + 1, iterate=iterate, running=running)
        answered = int(np.sum(answers.answered))
        return Update(moved, (p.noise.entry(),), {}, {"answered": answered, "too_long": clipped})

    def model(self, state: NoisyState) -> Vector:
        """The suffix average once complete, before that the current iterate."""
        return state.running if state.round == self.parameters.rounds else state.iterate

    def iterate(self, state: NoisyState) -> Vector:
        """As `model`: every iterate is already private."""
        return self.model(state)

    def _chosen(self, round_: int, noise: NoiseSource) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Users with a chosen place (k,), ascending, and their places (k, width), -1 beyond the last."""
        p = self.parameters
        stream = noise.stream("cohort", round_)  # which places is secret: it is what amplification rests on
        users, places = np.divmod(stream.poisson_subset(self.plan.problem.users * p.items, p.rate), p.items)
        cohort, first, counts = np.unique(users, return_index=True, return_counts=True)
        order = np.arange(len(users)) - np.repeat(first, counts)
        kept = order < p.width
        rows = np.full((len(cohort), p.width), -1, np.int64)
        rows[np.repeat(np.arange(len(cohort)), counts)[kept], order[kept]] = places[kept]
        return cohort.astype(np.int64), rows
