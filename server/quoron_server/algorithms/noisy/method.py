"""Noisy projected SGD that privatises every step: clip, average with a fixed divisor, add Gaussian noise.

    g_t = (1/B) Σ_{u in cohort t} clip_C(∇F_u(x_t)) + N(0, σ² I);   x_{t+1} = Proj(x_t - η g_t)
    model = uniform average of the last `suffix` iterates

The state machine of every baseline in this family; what differs is how cohorts are drawn and what that costs: disjoint
(one pass), a fresh uniform subset each round, or Poisson. Another optimiser may take the step, and the clip norm may
follow the users (`AdaptiveClip`). An absent user contributes exactly zero and the divisor stays B. Everything sent out
is private: trust model `central-broadcast`.
"""

from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import exp, isfinite, isinf
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from quoron_client.protocol.questions import Answers, AverageGradient, Question, summed
from quoron_privacy.gaussian import GaussianNoise
from quoron_privacy.means.clipping import ClippedSum, clipped_mean
from quoron_privacy.means.free_presence import SHARES, MeanAndCounts, NormCountMean, Presence, weights_of
from quoron_privacy.noise.streams import NoiseSource
from quoron_privacy.release import Adjacency, NoisySums, Release, Sums
from quoron_server.algorithm import OfPlan, Update, Vector
from quoron_server.algorithms.optimisers import SGD, Moments, Optimiser
from quoron_server.algorithms.slots import partition
from quoron_server.parameters import Assumption, Kind, Parameters
from quoron_server.problem import Problem
from quoron_server.schedule import MaskedRows, RoundRelease, Rounds, clipped_row, count_beside, gradients

# Users join by coins of their own in the last two: against users who are left out, and who are replaced.
Sampling = Literal["disjoint", "without-replacement", "poisson", "poisson-replaced"]

COINS: tuple[Sampling, ...] = ("poisson", "poisson-replaced")
SECRET = (Assumption(Kind.SECRET_COHORTS),)  # of users asked by coins of their own
SECRET_AND_FORGOTTEN = (*SECRET, Assumption(Kind.FORGETFUL_CLIENTS))  # of uniform cohorts of a fixed size

REACH = 2.0**20  # a clip norm stays within this factor of the first one, both ways
QUANTILES = 0.4, 0.95
LEAST_FACTOR, MOST_FACTOR = 0.35, 2.0  # of one round, where users are far
GAIN = 0.15  # of the logarithm in one round, where they are near


def assumptions_of(sampling: Sampling, users: int, cohort: int) -> tuple[Assumption, ...]:
    """Secret cohorts, unless they are public or everybody; and that clients forget, where draws tie them."""
    if sampling == "disjoint" or cohort == users:
        return ()
    return SECRET_AND_FORGOTTEN if sampling == "without-replacement" else SECRET


class DrawnCohorts(Parameters):
    """Numbers of a run with one way of drawing all cohorts."""

    __slots__ = ()
    sampling: Sampling
    cohort_size: int
    round_mu: float

    @property
    def poisson_sampling(self) -> bool:
        """With Poisson sampling."""
        return self.sampling in COINS

    @property
    def answer_mu(self) -> float:
        """GDP of a round whose cohort is known: of a user who is replaced by coins, from its row to none and on."""
        return 2 * self.round_mu if self.sampling == "poisson-replaced" else self.round_mu

    @property
    def adjacency(self) -> Adjacency:
        """What is promised of cohorts that are drawn so."""
        return "zero-out" if self.sampling == "poisson" else "replace-one"

    def assumptions(self, problem: Problem) -> tuple[Assumption, ...]:
        """Secret cohorts, where they are drawn."""
        return assumptions_of(self.sampling, problem.users, self.cohort_size)


@dataclass(frozen=True, slots=True)
class AdaptiveClip:
    """How the clip norm follows the users.

    A row v with a = min(1, ‖v‖ / C) has the soft share h = min(1, √((1 - a)(1 + 3a))): 1 up to a = ⅔, and 0 where v is
    clipped. C moves to where the mean of h over the users who answer is `quantile`.

        g_t = C_t ((1/B) Σ clip_1(∇F_u(x_t)/C_t) + N(0, σ² I));   C_{t+1} from noisy shares of the same rows

    Rows enter in units of the norm C_t, and the shares come with their mean at no extra cost.

        >>> clip = AdaptiveClip(0.5, "replace-one")
        >>> released = MeanAndCounts(np.zeros(1), 0.9, 1.0, 1.0, 0)  # rows a tenth as long as the clip norm
        >>> clip.following(1.0, released, 0.05, Presence(), 1.0)[0]
        0.35

    Statement and proof: docs/privacy/free-presence.md#ac1.
    """

    quantile: float  # γ
    adjacency: Adjacency  # of the rows

    def deviation(self, scale: float) -> float:
        """Of the mean of h, for noise `scale` of a weighted share."""
        return scale / weights_of(self.adjacency, soft=True)[2]

    def following(
        self, radius: float, told: MeanAndCounts, scale: float, presence: Presence, first: float
    ) -> tuple[float, Presence]:
        """Return the next clip norm, from what a round at norm `radius` released, and the share of present users.

        `scale` is the noise of a weighted share. By Markov's inequality a share γ of the users is within E a / (1 - γ)
        of C: where that says that C is far too large, it shrinks so far. Where hardly anybody is within, it doubles.
        Else it moves geometrically. All of it is a function of what was released; non-finite gives the largest norm.
        """
        weights = weights_of(self.adjacency, soft=True)
        length, near = scale / weights[1], scale / weights[2]
        if weights[3]:
            presence = presence.seen(told.presence, scale / weights[3])
        there = presence.share if weights[3] else 1.0
        beyond, within = told.beyond / there, told.within / there
        if not all(isfinite(each) for each in (radius, beyond, within)):
            return first * REACH, presence
        far = (1 - beyond + length) / (1 - self.quantile)
        if far < exp(-GAIN):
            factor = max(far, LEAST_FACTOR)
        elif within < 0.4 * self.quantile - 1.25 * near:
            factor = MOST_FACTOR
        else:
            over = (within - self.quantile) / (1 - self.quantile)
            factor = exp(-GAIN * min(max(over, -1.0), 1.0))
        return min(max(radius * factor, first / REACH), first * REACH), presence


@dataclass(frozen=True, slots=True)
class NoisySGDParameters(DrawnCohorts):
    """Public numbers of one run."""

    sampling: Sampling
    cohort_size: int  # B: users a round; the expected number under Poisson sampling
    rounds: int  # T
    step_size: float  # η
    suffix: int  # iterates averaged
    clip_norm: float  # C, on a user's average gradient, or C_0 where it is adaptive; inf without privacy
    # Of one round's mean, ℓ2, one user replaced, or there against absent with coins; of unit rows where C is adaptive.
    sensitivity: float
    noise_scale: float  # σ per coordinate of that mean; 0 without privacy
    round_mu: float  # each round, as a function of its cohort, is this GDP for such a change; inf without privacy
    optimiser: Optimiser = SGD
    adaptive: AdaptiveClip | None = None

    @property
    def noise(self) -> GaussianNoise | None:
        """Of one round's mean, and of the shares that an adaptive clip follows; None without privacy."""
        return GaussianNoise(self.sensitivity, self.noise_scale) if self.noise_scale else None

    def shares(self, dimension: int) -> NormCountMean | None:
        """One round's mean with the shares that an adaptive clip follows; None where it is fixed."""
        if self.adaptive is None:
            return None
        return NormCountMean(dimension, self.cohort_size, self.adaptive.adjacency, self.noise_scale, soft=True)

    def reduction(self, radius: float) -> ClippedSum | None:
        """Return all that a round with clip norm C_t = `radius` reads of its answers; None without a clip."""
        return None if isinf(radius) else ClippedSum(radius, self.cohort_size)

    def stretches(self, problem: Problem) -> tuple[Rounds, ...]:
        """Return a noisy mean in every round, in proportion to an adaptive clip and with the shares that it follows."""
        often, summed = 1 if self.sampling == "disjoint" else self.rounds, not isinf(self.clip_norm)
        alike = Rounds(self.rounds, self.cohort_size, gradients(problem), often=often, summed=summed)
        if (made := self.shares(problem.dimension) or self.noise) is None:
            return (alike,)
        scaled, unit = self.adaptive is not None, self.clip_norm / self.cohort_size / self.noise_scale
        blocks = made.masked if isinstance(made, NormCountMean) else clipped_row(problem.dimension, unit)
        return (
            replace(
                alike,
                releases=(RoundRelease(made, made.entry(), self.answer_mu, scaled=scaled),),
                leaks=count_beside(None if self.poisson_sampling or scaled else self.noise),
                rows=MaskedRows(self.adjacency, blocks) if summed else None,
            ),
        )

    def separate(self, problem: Problem) -> bool:
        """With everybody in every round."""
        return self.sampling != "disjoint" and self.cohort_size == problem.users


def drawn_cohort(p: Any, users: int, round_: int, noise: NoiseSource) -> NDArray[np.int64]:
    """Return whom a round asks whose cohort is drawn afresh; who is in it is secret: amplification rests on it."""
    if p.cohort_size == users:
        return _everybody(users)
    stream = noise.stream("cohort", round_)
    if p.poisson_sampling:
        return stream.poisson_subset(users, p.cohort_size / users)
    return stream.subset(users, p.cohort_size)


@lru_cache(maxsize=1)
def _everybody(users: int) -> NDArray[np.int64]:
    """Return all of them, made once for all rounds."""
    found = np.arange(users, dtype=np.int64)
    found.flags.writeable = False
    return found


def drawn(problem: Problem, adaptive: bool) -> int:
    """Noise samples of one round."""
    return problem.dimension + (SHARES if adaptive else 0)


@dataclass(frozen=True, slots=True, eq=False)
class NoisyState:
    """Everything between two rounds."""

    round: int
    iterate: Vector
    running: Vector  # sum of the averaged iterates, divided by their planned number
    radius: float  # C_t
    moments: Moments  # of the optimiser
    presence: Presence = field(default_factory=Presence)  # of those asked, by releases of an adaptive clip


class NoisySGD(OfPlan[NoisySGDParameters]):
    """Algorithm object for a plan with NoisySGDParameters."""

    kind = NoisySGDParameters

    def init(self) -> NoisyState:
        """Start at zero."""
        p, zero = self.parameters, np.zeros(self.plan.problem.dimension)
        return NoisyState(0, zero, zero, p.clip_norm, p.optimiser.start(len(zero)))

    def request(self, state: NoisyState, noise: NoiseSource) -> Question | None:
        """Average gradients of this round's cohort at the current iterate."""
        if state.round == self.parameters.rounds:
            return None
        task = AverageGradient(state.iterate[None, :], (1.0,), self.plan.problem.user_smoothness)
        p = self.parameters
        users, size, disjoint = self.plan.problem.users, p.cohort_size, p.sampling == "disjoint"
        if disjoint:
            cohort = partition(seed=self.plan.seed, users=users)[state.round * size : (state.round + 1) * size]
        else:
            cohort = drawn_cohort(p, users, state.round, noise)
        return Question(state.round, cohort, task, size, p.reduction(state.radius), drawn=not disjoint and size < users)

    def update(self, state: NoisyState, answers: Answers | Sums, noise: NoiseSource) -> Update[NoisyState]:
        """One noisy step."""
        p, t, radius, gaussian = self.parameters, state.round, state.radius, self.parameters.noise
        public: dict[str, Any] = {}
        releases: tuple[Release, ...] = ()
        presence, reduction = state.presence, p.reduction(radius)
        if reduction is None:
            assert isinstance(answers, Answers)
            mean: Vector | NoisySums
            mean, clipped = clipped_mean(answers.values, answers.answered, p.clip_norm, p.cohort_size)
        else:
            sums = summed(answers, reduction)
            mean, clipped = sums if isinstance(sums, NoisySums) else reduction.mean(sums), sums.clipped
        if (shares := p.shares(len(state.iterate))) is not None and p.adaptive is not None:
            told = shares.release(sums, noise.stream("release", t))
            gradient, public, releases = radius * told.mean, {"radius": radius}, (shares.entry().scaled(radius),)
            radius, presence = p.adaptive.following(radius, told, p.noise_scale, presence, p.clip_norm)
        elif gaussian is not None:
            gradient, releases = gaussian.release(mean, noise.stream("release", t)), (gaussian.entry(),)
        else:
            assert not isinstance(mean, NoisySums)
            gradient = mean
        wanted, moments = p.optimiser.step(state.iterate, gradient, state.moments, p.step_size, t=t, rounds=p.rounds)
        iterate = self.plan.problem.domain.project(wanted)
        averaged = p.rounds - t <= p.suffix
        running = state.running + iterate / p.suffix if averaged else state.running
        moved = NoisyState(t + 1, iterate, running, radius, moments, presence)
        answered = int(np.sum(answers.answered))
        diagnostics: dict[str, Any] = {"answered": answered, "clipped_fraction": clipped / max(1, answered)}
        return Update(moved, releases, public, diagnostics)

    def noise_label(self, round_: int) -> tuple[str | int, ...]:
        """Return the stream of a round's noise."""
        return "release", round_
