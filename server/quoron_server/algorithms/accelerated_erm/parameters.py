"""Options and public numbers of `accelerated-erm`."""

import math
from dataclasses import dataclass
from typing import Literal

from quoron_privacy.gaussian import SPARE, GaussianNoise, mean_sensitivity
from quoron_privacy.robust.above_threshold import AboveThreshold, Series
from quoron_privacy.robust.combinations import Aggregate, Sampling, Test
from quoron_privacy.robust.lottery import Lottery
from quoron_privacy.robust.subsampled_lottery import SubsampledLottery
from quoron_server.algorithms.acsa import Shape
from quoron_server.parameters import Assumption, Attendance, Kind, Parameters, PlannedRelease
from quoron_server.problem import Problem

SECRET = "without-replacement", "poisson"  # ways of drawing cohorts on whose secrecy promises rest


@dataclass(frozen=True, slots=True)
class AcceleratedERMOptions:
    """Planning options; None lets the plan choose by predicted excess risk."""

    rounds: int | None = None  # all of them, exactly
    phases: int | None = None  # with strongly_convex: within each step of its schedule
    stages: int | None = None  # of each phase
    cohort: int | None = None  # K; at most a phase's users
    test: Literal["lottery", "above-threshold", "clip"] = "lottery"  # clip: no test, outliers shortened
    aggregate: Literal["weighted", "random"] = "weighted"
    kappa: Literal[1, 2] | None = None  # weights count answers within κτ; with declared hostile users 1
    # Public: shuffled epochs of fixed batches, no amplification. Coins: each user by its own, with test="clip" alone.
    schedule: Literal["secret", "public", "coins"] = "secret"
    regularisation: float | None = None  # λ_1
    radius: float | Literal["guaranteed"] | None = None  # τ, or with test="clip" C; from public knowledge
    strongly_convex: bool = False  # the schedule of remark 3.6, with strong_convexity or else the loss's ridge
    strong_convexity: float | None = None  # μ_s of the expected loss
    smoothing: float | None = None  # r, for losses whose slope jumps


@dataclass(frozen=True, slots=True)
class Clipped:
    """Rounds without a test: answers clipped at C around the last release, a fixed divisor, Gaussian noise.

    Formal guarantee: a round is `round_mu`-GDP given its cohort and the past, whatever users send; with `coins` it is
    so for a user who is there against absent, and twice that for one who is replaced.
    """

    cohort_size: int  # K, the divisor
    round_mu: float  # μ_r
    coins: bool = False  # K users are expected

    def noise(self, radius: float, scale: float) -> GaussianNoise:
        """Of a mean of rows clipped at `radius`, with noise σ = `scale`."""
        return GaussianNoise(self.sensitivity(radius), scale)

    def sensitivity(self, radius: float) -> float:
        """What `round_mu` is about."""
        return mean_sensitivity(radius, self.cohort_size, "zero-out" if self.coins else "replace-one")

    @property
    def answer_mu(self) -> float:
        """GDP of a round for a user who is replaced in a known cohort."""
        return 2 * self.round_mu if self.coins else self.round_mu


@dataclass(frozen=True, slots=True)
class Phase:
    """One phase's public numbers."""

    first: int  # its users hold the slots first .. first + users - 1
    users: int  # n_i
    cohort_size: int  # K_i
    stages: tuple[int, ...]  # N_1 .. N_S
    regularisation: float  # λ_i
    strength: float  # μ of the steps: λ_i and what is known of the loss's curvature
    smoothness: float  # Ls
    radius: float  # τ, or C
    accounting: SubsampledLottery | Series | Clipped
    noise_scale: float  # σ_i per coordinate, rounding included

    @property
    def noise(self) -> GaussianNoise:
        """Of a released step."""
        if isinstance(self.accounting, Clipped):
            return self.accounting.noise(self.radius, self.noise_scale)
        return GaussianNoise(self.radius * self.accounting.mean.sensitivity, self.noise_scale)

    @property
    def test(self) -> Lottery | AboveThreshold | None:
        """What decides whether a step is released; None: it always is."""
        if isinstance(self.accounting, Clipped):
            return None
        return self.accounting.test if isinstance(self.accounting, Series) else self.accounting.lottery

    @property
    def rounds(self) -> int:
        """T_i."""
        return sum(self.stages)

    @property
    def shape(self) -> Shape:
        """What a step knows of the objective."""
        return Shape(self.strength, self.smoothness)


@dataclass(frozen=True, slots=True)
class AcceleratedERMParameters(Parameters):
    """Public numbers of one run."""

    test: Test
    aggregate: Aggregate
    sampling: Sampling
    phases: tuple[Phase, ...]
    smoothing: float | None  # r

    def releases(self, dimension: int) -> tuple[PlannedRelease, ...]:
        """A decision in every round, of a noisy threshold up to its first miss, and the noisy step where it passes."""
        del dimension
        found: list[PlannedRelease] = []
        first = 0
        for phase in self.phases:
            rounds = range(first, first := first + phase.rounds)
            if isinstance(phase.accounting, Clipped):
                mu = phase.accounting.answer_mu
                found.append(PlannedRelease(phase.noise, phase.noise.entry(), phase.rounds, rounds, mu))
                continue
            assert phase.test is not None
            once = self.test == "above-threshold"
            found.append(PlannedRelease(phase.test, phase.test.entry(), phase.rounds, rounds, None, tested=once))
            steps = PlannedRelease(phase.accounting, phase.noise.entry(), phase.rounds, rounds, None, tested=True)
            found.append(steps)
        return tuple(found)

    def cohorts(self) -> tuple[int, ...]:
        """Of the phases."""
        return tuple(phase.cohort_size for phase in self.phases for _ in range(phase.rounds))

    @property
    def poisson_sampling(self) -> bool:
        """With coins."""
        return self.sampling == "poisson"

    def participations(self) -> int:
        """Those of a phase, as phases share no user."""
        return max(participations(each.rounds, each.users, each.cohort_size, self.sampling) for each in self.phases)

    def attendance(self, problem: Problem) -> tuple[Attendance, ...]:
        """Beside means of vectors cut to a fixed length; nothing with coins, or beside what a test may withhold."""
        del problem
        noises = [(each.noise, each.rounds) for each in self.phases if isinstance(each.accounting, Clipped)]
        if len(noises) < len(self.phases) or self.poisson_sampling:
            return ()
        return tuple(Attendance(SPARE * one.sensitivity / one.scale) for one, rounds in noises for _ in range(rounds))

    def assumptions(self, problem: Problem) -> tuple[Assumption, ...]:
        """Secret cohorts, of a fixed size but for coins, unless everybody is asked or batches are public."""
        del problem
        tested = not any(isinstance(phase.accounting, Clipped) for phase in self.phases)
        kinds = [Kind.ABSENT_IS_OUTLIER] if tested else []
        if self.sampling == "without-replacement":
            kinds += [Kind.SECRET_COHORTS, Kind.FORGETFUL_CLIENTS]
        elif self.sampling == "poisson":
            kinds += [Kind.SECRET_COHORTS]
        return tuple(map(Assumption, kinds))


def participations(rounds: int, users: int, cohort: int, sampling: Sampling) -> int:
    """Most cohorts of a phase that one user may be in."""
    return math.ceil(rounds / (users // cohort)) if sampling == "public-schedule" else rounds
