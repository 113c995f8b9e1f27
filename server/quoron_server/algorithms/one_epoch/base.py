"""What the algorithms of one epoch share: their public numbers, whom a round asks, and the clipped mean of the answers.

A public order of the users is cut into disjoint cohorts. The users of cohort t are asked for their gradient at x_t, or
for its weighted difference from the one at x_{t-1}; the server clips each answer to norm C, and the divisor B stays B
whoever answers. Proof of what the released sums promise: docs/privacy/srgd.md#s1.
"""

from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

import numpy as np

from quoron_client.protocol.questions import Answers, AverageGradient, Question
from quoron_privacy.gaussian import SPARE, GaussianNoise
from quoron_privacy.means.clipping import ClippedSum
from quoron_privacy.means.prefix_norm_counts import PrefixNormCounts
from quoron_privacy.noise.streams import NoiseSource
from quoron_privacy.prefix.noise import PrefixNoise, PrefixState
from quoron_privacy.release import NoisySums, Release, Sums
from quoron_server.algorithm import Update, Vector
from quoron_server.algorithms.noisy.clip import AdaptiveClip
from quoron_server.algorithms.optimisers import SGD, Optimiser
from quoron_server.algorithms.slots import first_answered, partition
from quoron_server.parameters import Assumption, Attendance, Kind, MaskedRounds, Parameters, PlannedRelease
from quoron_server.plan import RunPlan
from quoron_server.problem import Problem

Gradients = Literal["recursive", "independent", "ftrl"]
Method = Literal["accelerated", "plain", "ftrl", "anytime"]


@dataclass(frozen=True, slots=True)
class OneEpochParameters(Parameters):
    """Public numbers of one run."""

    gradients: Gradients
    method: Method
    rounds: int  # T
    cohort_size: int  # users asked a round: divisor + reserve
    divisor: int  # B: answers that count, in slot order
    beta: float  # β: inverse step size
    suffix: int  # iterates averaged, without acceleration; 1 for anytime, whose x_t are averages of the z_t
    clip_norm: float  # C, on a user's Δ_t
    sensitivity: float  # of one round's mean, ℓ2
    noise_scale: float  # seed noise of the prefix sums, or of each round's mean when independent
    factorisation: str  # of the prefix sums; "-" when independent
    mu: float  # GDP parameter of the whole transcript
    epochs: int = 1  # k: how often the cohorts are gone through, at most
    optimiser: Optimiser = SGD  # of ftrl
    adaptive: AdaptiveClip | None = None  # of ftrl; then C is the first clip norm, and sums are of unit rows

    @property
    def batches(self) -> int:
        """b: disjoint ones, in whose order all epochs go. A user's rounds are exactly so far apart."""
        return -(-self.rounds // self.epochs)

    @property
    def noise(self) -> GaussianNoise | PrefixNoise:
        """Of each round's mean when independent, else of the prefix sums."""
        if self.gradients == "independent":
            return GaussianNoise(self.sensitivity, self.noise_scale)
        own = self.factorisation, self.epochs, self._separation
        return PrefixNoise(self.rounds, self.sensitivity, self.noise_scale, *own)

    @property
    def _separation(self) -> int:
        """Of two rounds of a user, as their noise counts it."""
        return self.batches if self.epochs > 1 else 1

    def shares(self, dimension: int) -> PrefixNormCounts | None:
        """All rounds' sums with the shares that an adaptive clip follows; None where it is fixed."""
        if self.adaptive is None:
            return None
        own = self.rounds, self.factorisation, self.epochs, self._separation
        return PrefixNormCounts(dimension, self.divisor, self.adaptive.adjacency, self.noise_scale, *own, soft=True)

    def entry(self) -> Release:
        """The ledger entry of one round."""
        name = "gaussian" if self.gradients == "independent" else "prefix-sum"
        return Release(name, {"scale": self.noise_scale, "sensitivity": self.sensitivity})

    def releases(self, dimension: int) -> tuple[PlannedRelease, ...]:
        """A noisy mean, or the noised sum of all so far, in every round; with it the shares of an adaptive clip."""
        every, shares = range(self.rounds), self.shares(dimension)
        if shares is None:
            return (PlannedRelease(self.noise, self.entry(), self.rounds, every, self.mu),)
        return (PlannedRelease(shares, shares.entry(), self.rounds, every, self.mu, scaled=True),)

    def masked(self, problem: Problem) -> MaskedRounds | None:
        """A clipped vector, with the shares of an adaptive clip; nothing proved of these with users who come back."""
        independent, made = self.gradients == "independent", self.shares(problem.dimension)
        if made is not None and self.epochs > 1:
            return None
        unit = self.clip_norm / self.divisor / self.noise_scale
        rows = (("row" if independent else "sums", "clipped", problem.dimension, unit),)
        rounds = ((self.rounds, rows if made is None else made.masked),)
        return MaskedRounds("replace-one", rounds, None if independent else self.factorisation, self._separation)

    def cohorts(self) -> tuple[int, ...]:
        """As many users in every round."""
        return (self.cohort_size,) * self.rounds

    def reads_sums(self) -> bool:
        """Where all that come are counted."""
        return self.cohort_size <= self.divisor

    def participations(self) -> int:
        """Once an epoch."""
        return self.epochs

    def points_asked(self) -> int:
        """Two of a recursive gradient."""
        return 2 if self.gradients == "recursive" else 1

    def attendance(self, problem: Problem) -> tuple[Attendance, ...]:
        """Beside sums of vectors cut to a fixed length, of as many as count: a reserve replaces whoever is absent."""
        del problem
        if self.adaptive is not None:
            return ()
        noise = self.noise
        # A column of C is at least 1 long, and with one epoch a round may be as loud as the loudest.
        norm = noise.column_norm if isinstance(noise, PrefixNoise) and self.epochs == 1 else 1.0
        each = Attendance(SPARE * norm * self.sensitivity / self.noise_scale, most=self.divisor)
        return (each,) * self.rounds

    def assumptions(self, problem: Problem) -> tuple[Assumption, ...]:
        """What becomes of users who do not answer."""
        del problem
        if self.cohort_size == self.divisor:
            return (Assumption(Kind.ABSENT_IS_ZERO, (self.divisor,)),)
        return (Assumption(Kind.FIRST_ANSWERS_COUNT, (self.divisor, self.cohort_size)),)


@dataclass(frozen=True, slots=True, eq=False)
class Iterates:
    """Everything between two rounds. All points are functions of what was released."""

    round: int
    x: Vector
    previous: Vector  # x_{t-1}
    y: Vector
    z: Vector
    running: Vector  # weighted sum of the averaged iterates
    sums: PrefixState | None  # of the prefix noise; None where noise is independent


S = TypeVar("S", bound=Iterates)


def recursive(t: int) -> tuple[float, ...]:
    """η_t and -η_{t-1}, the weights of a recursive gradient: η_t = t + 1 and η_{-1} = 0."""
    return (t + 1.0, -float(t)) if t else (1.0,)


class OneEpoch:
    """An algorithm of this family but for its steps, for a plan with OneEpochParameters."""

    def __init__(self, plan: RunPlan) -> None:
        self.plan, self.parameters = plan, plan.parameters_of(OneEpochParameters)
        self.noise, self.project = self.parameters.noise, plan.problem.domain.project

    def init(self) -> Iterates:
        """Start at zero."""
        zero = np.zeros(self.plan.problem.dimension)
        sums = self.noise.start(len(zero)) if isinstance(self.noise, PrefixNoise) else None
        return Iterates(0, zero, zero, zero, zero, zero, sums)

    def request(self, state: Iterates, noise: NoiseSource) -> Question | None:
        """Each user's gradient at x_t, or its recursive one."""
        del noise
        return self.ask(state, recursive(state.round) if self.parameters.gradients == "recursive" else (1.0,))

    def ask(self, state: Iterates, weights: tuple[float, ...]) -> Question | None:
        """Δ_t(u): the gradient at x_t, or the weighted sum of those at x_t and x_{t-1}. None after the last round."""
        p, problem, t = self.parameters, self.plan.problem, state.round
        if t == p.rounds:
            return None
        points = np.stack([state.x, state.previous][: len(weights)])
        first = t % p.batches * p.cohort_size
        cohort = partition(seed=self.plan.seed, users=problem.users)[first : first + p.cohort_size]
        reserves = p.cohort_size > p.divisor  # then it matters who is among the first to answer
        reduction = None if reserves else self.reduction(state)
        return Question(t, cohort, AverageGradient(points, weights, problem.user_smoothness), reduction=reduction)

    def reduction(self, state: Any) -> ClippedSum:
        """All that a round reads of the answers that count."""
        del state
        return ClippedSum(self.parameters.clip_norm, self.parameters.divisor)

    def mean(self, state: Iterates, answers: Answers | Sums) -> tuple[Vector | NoisySums, Sums, dict[str, float]]:
        """(1/B) Σ clip_C(Δ_t(u)) over the answers that count, or their sum with noise; what was read; diagnostics."""
        reduction, sums = self.reduction(state), answers
        if not isinstance(sums, Sums):
            sums = reduction.of(sums.values, first_answered(sums.answered, self.parameters.divisor))
        mean = sums if isinstance(sums, NoisySums) else reduction.mean(sums)
        return mean, sums, {"answered": sums.answered, "clipped_fraction": sums.clipped / max(1, sums.answered)}

    def prefix_sum(
        self, state: Iterates, answers: Answers | Sums, noise: NoiseSource
    ) -> tuple[Vector, PrefixState, dict[str, float]]:
        """Ŝ_t, the noised sum of the means of all rounds so far; diagnostics."""
        mean, _, diagnostics = self.mean(state, answers)
        assert isinstance(self.noise, PrefixNoise)
        assert state.sums is not None
        return *self.noise.release(state.sums, mean, noise), diagnostics

    def moved(
        self, state: S, x: Vector, y: Vector, z: Vector, sums: PrefixState | None, diagnostics: dict[str, float]
    ) -> Update[S]:
        """The state of the next round, and the ledger's entry of this one."""
        p, t = self.parameters, state.round
        running = state.running + x / p.suffix if p.rounds - t <= p.suffix else state.running
        after = replace(state, round=t + 1, x=x, previous=state.x, y=y, z=z, running=running, sums=sums)
        return Update(after, (p.entry(),), {}, diagnostics)

    def model(self, state: Iterates) -> Vector:
        """The mean of the last `suffix` iterates; before the end the current one."""
        return state.running if state.round == self.parameters.rounds else state.x

    def iterate(self, state: Iterates) -> Vector:
        """As `model`: every point is a function of releases."""
        return self.model(state)

    def counting(self, state: Iterates) -> tuple[ClippedSum, int]:
        """What a round reads where nobody sees an answer, and of how many, the first in slot order."""
        return self.reduction(state), self.parameters.divisor

    def noise_label(self, round_: int) -> tuple[str | int, ...]:
        """The stream of a round's noise."""
        return "release" if self.parameters.gradients == "independent" else "prefix", round_
