"""A minimum cohort: a run goes on only while enough of those it asks answer, by a count with noise.

    >>> min_cohort = calibrate(0.5, 0.0, (1000,) * 10, participations=1, rest=(1.0, 1e-6), free=(0.2,) * 10)
    >>> round(min_cohort.deviation(0.2), 6), min_cohort.needed(1001)
    (5.0, 501)
    >>> present_fails, nobody_passes = chances(min_cohort, (1000,) * 10, free=(0.2,) * 10)
    >>> max(present_fails, nobody_passes) <= BETA
    True

Round t goes on iff answered_t + V_t >= q · asked_t + Ξ, all in whole users: V_t fresh noise, Ξ one secret draw a run. A
run that falls below ends for good. Where a round's own release leaves room for a count with Gaussian noise, or contains
one, the count is free. Else it is paid for, with Gaussian noise in every round, or with Laplace noise by sparse
vectors, whichever can count smaller cohorts. Where who answers is public, answers are counted as they are. Statement,
proof and symbols: docs/privacy/min-cohort.md#q1, min-cohort#q4 and #q5, minimum cohort-secret#q2,
public-participation#pa1.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Protocol, runtime_checkable

import numpy as np
from scipy.special import log_ndtr, ndtr, ndtri

from quoron_privacy.accounts.pair import DominatingPair
from quoron_privacy.accounts.roots import least_number
from quoron_privacy.arrays import Floats, Integers
from quoron_privacy.errors import ConfigError, Infeasible, count, positive, probability, require
from quoron_privacy.gaussian import GaussianNoise
from quoron_privacy.noise.streams import GRID_BITS, RandomStream, total_variation
from quoron_privacy.release import Release

BETA = 1e-6  # of either mistake: a run with everybody present ends, a round that nobody answers passes
MARGIN = 1.15  # over what would do for this run: with it, the run is planned again, and may need a little more
SHARE = 0.05  # of ε, at most, where nothing else is said
_MOST_DRAWS = 1 << 21  # of one run: more than any plan has rounds
_REACH, _CELLS = 60, 24_000  # of the grid on which Ξ is integrated, in scales and in all
Alike = Mapping[tuple[int, float], int]  # (users asked, μ of a count for nothing): how many rounds are of these


@runtime_checkable
class TellsPresence(Protocol):
    """A mechanism whose releases tell for nothing, with noise, which share of `users` has answered."""

    @property
    def users(self) -> int:
        """n, the divisor."""

    @property
    def presence_deviation(self) -> float:
        """Of that share."""


@dataclass(frozen=True, slots=True)
class MinCohort:
    """Numbers of a run's minimum cohort, fixed before it starts.

    Formal guarantee: its decisions cost one user `epsilon`, beside what the algorithm itself costs (min-cohort#q1),
    or a count of μ = `each` in every round (min-cohort#q5), or nothing (min-cohort#q4).
    """

    share: float  # q, of those asked in a round
    epsilon: float  # ε_q: what of ε the algorithm leaves to all decisions together; 0 where they cost nothing
    participations: int  # r: rounds that ask one user, at most
    threshold_scale: float  # s_Ξ, in users; 0: none
    count_scale: float  # s_V, in users; 0: none
    rest_epsilon: float  # what the algorithm itself promises
    rest_delta: float
    each: float = 0.0  # μ_p of a count with Gaussian noise, paid for in every round; 0: none
    public: bool = False  # who answers is public: counts are exact, and cost nothing (public-participation#pa1)

    def needed(self, asked: int) -> int:
        """⌈q · asked⌉, with q the decimal number that it is written as."""
        return math.ceil(_exact(self.share) * asked)

    def deviation(self, free: float) -> float:
        """σ_t in users, 2³⁰ over a whole number, of a round that has a count of μ = `free` for nothing.

        Infinite where there is no count, 0 where who answers is seen anyway.
        """
        if math.isinf(free):
            return 0.0
        steps = math.floor(math.hypot(free, self.each) * (1 - 1e-12) * 2.0**GRID_BITS)
        return 2.0**GRID_BITS / steps if steps else math.inf

    def entry(self, asked: int, free: float = 0.0) -> Release:
        """Return the ledger entry of one decision, whichever way it went, of a round that asked so many."""
        noise = {"threshold_scale": self.threshold_scale, "count_scale": self.count_scale}
        if not self.count_scale:
            noise = {"deviation": self.deviation(free)}
        return Release("min_cohort", {"share": self.share, "asked": asked, "epsilon": self.epsilon, **noise})

    @property
    def cost(self) -> Fraction:
        """What min-cohort#q1 certifies for all decisions with Laplace noise: r / s_V, or 1 / s_Ξ + 2 / s_V."""
        if not self.count_scale:
            return Fraction(0)
        if not self.threshold_scale:
            return self.participations / Fraction(self.count_scale)
        return 1 / Fraction(self.threshold_scale) + 2 / Fraction(self.count_scale)

    @property
    def mu(self) -> float:
        """A μ for which all decisions are μ-GDP, rounded up."""
        if not self.count_scale:
            return math.sqrt(self.participations) * self.each * (1 + 1e-15)
        return -2 * float(ndtri(1 / (1 + math.exp(self.epsilon)))) * (1 + 1e-9)

    def pair(self, rounds: int, *, alone: bool = True) -> DominatingPair:
        """What all decisions cost, samplers included; these only if rounds are counted with their counts (not `alone`).

        With Gaussian noise a user is in so many counts at most; what they have for nothing is in the run's own pair.
        """
        spent = DominatingPair()
        if self.count_scale:
            spent = DominatingPair.response(self.epsilon)
        elif self.each and alone:
            spent = DominatingPair.gaussian(math.sqrt(self.participations) * self.each * (1 + 1e-15))
        return spent.with_variation(total_variation(gaussians=self.draws(rounds)))

    def draws(self, rounds: int) -> int:
        """Return samples of noise in a run, at most."""
        return rounds + 1


def noisy_count(answered: int, deviation: float, stream: RandomStream) -> float:
    """So many users, with Gaussian noise. With σ = 2³⁰ / j each is j whole steps of its grid: nothing is rounded."""
    if not deviation:
        return float(answered)
    steps = round(2.0**GRID_BITS / deviation)
    noise = GaussianNoise(float(steps), 2.0**GRID_BITS)  # of a number of steps: integers, up to where it is clamped
    return float(noise.release(np.array([float(answered * steps)]), stream)[0]) / steps


def rest(epsilon: float, delta: float, min_cohort_epsilon: float) -> tuple[float, float]:
    """(ε, δ) that a minimum cohort of ε_q leaves to the algorithm. ConfigError if it leaves too little."""
    left = epsilon - min_cohort_epsilon
    while _exact(left) + _exact(min_cohort_epsilon) > _exact(epsilon):
        left = math.nextafter(left, -math.inf)
    extra = total_variation(laplaces=_MOST_DRAWS) * (1 + math.exp(epsilon))
    if not (left >= 0.01 and delta - extra >= 1e-12):
        raise ConfigError(
            "Expected min_cohort_epsilon to leave an epsilon of at least 0.01 and a delta of a little more than "
            f"1e-12, got min_cohort_epsilon={min_cohort_epsilon:g} of epsilon={epsilon:g} and delta={delta:g}."
        )
    return left, math.nextafter(delta - extra, 0.0)


def spent_on(share: float | None, epsilon: float, wanted: float | None) -> float:
    """ε_q: as `wanted`, else a twentieth of ε.

    0 without a minimum cohort, unless one is `wanted` for none, to be refused.
    """
    if wanted is not None:
        return wanted
    return 0.0 if share is None else SHARE * epsilon


def exact(share: float, cohorts: Sequence[int], *, participations: int, rest: tuple[float, float]) -> MinCohort:
    """Return the minimum cohort of a run whose participation is public: never wrong, whatever the size of a cohort."""
    _check(share, 0.0, cohorts, participations)
    return MinCohort(share, 0.0, participations, 0.0, 0.0, *rest, public=True)


def calibrate(
    share: float,
    epsilon: float,
    cohorts: Sequence[int],
    *,
    participations: int,
    rest: tuple[float, float],
    free: Sequence[float] = (),
    room: Callable[[float], float] = lambda epsilon: 0.0,
    present: Callable[[int], int] = int,
    beta: float = BETA,
    name: str = "this run",
) -> MinCohort:
    """Return the minimum cohort that needs the smallest cohorts.

    `cohorts` are the users asked in each round, as planned, and `present` how many of a planned cohort are there at
    least when everybody is. The μ of counts that cost nothing are `free`, of each round (none without), and `room(ε_q)`
    is the μ of a count in every round that ε_q pays for. Raises Infeasible, naming what would do, if one of its two
    mistakes had a chance above `beta`: what `present` leaves of BETA.
    """
    _check(share, epsilon, cohorts, participations)
    free = free or (0.0,) * len(cohorts)

    def best(spent: float, alike: Alike) -> tuple[float, MinCohort]:
        found = _schemes(share, spent, len(cohorts), participations, rest, room)
        wrong = [max(_chances(scheme, alike, present)) for scheme in found]
        return min(zip(wrong, found, strict=True), key=lambda scheme: scheme[0])

    planned, told = Counter(zip(cohorts, free, strict=True)), Counter(free)
    wrong, min_cohort = best(epsilon, planned)
    if wrong <= beta:
        return min_cohort
    smallest, rounds = min(cohorts), len(cohorts)

    def needs() -> str:  # called when somebody reads it
        ways = []
        least = least_number(
            lambda size: best(epsilon, {(size, mu): times for mu, times in told.items()})[0] <= beta, smallest + 1
        )
        if least is not None:
            ways.append(f"about {math.ceil(MARGIN * least):,} users in every round")
        step = (epsilon or SHARE * rest[0]) / 8
        most = math.ceil((rest[0] + epsilon) / step) - 1 if math.isfinite(rest[0]) else 0  # of what is private
        enough = least_number(lambda steps: best(steps * step, planned)[0] <= beta, 9 if epsilon else 1, most=most)
        if enough is not None and MARGIN * enough * step < rest[0] + epsilon:
            ways.append(f"min_cohort_epsilon of about {MARGIN * enough * step:.3g}")
        return " or ".join([*ways, "no minimum cohort (`--quorum none`)"])

    raise Infeasible(
        name,
        f"a round of {smallest:,} users, with noise worth min_cohort_epsilon={epsilon:.3g}, does not tell a share of "
        f"{share:g} who answer from everybody or nobody in {rounds:,} rounds",
        needs,
    )


def verify(min_cohort: MinCohort, epsilon: float, delta: float, cohorts: Sequence[int], *, participations: int) -> None:
    """Verify min-cohort#q1 at the plan's numbers, in exact fractions: VerificationError unless all is within (ε, δ).

    Of counts with Gaussian noise, verify that none is Laplace noise; the caller verifies what they cost together.
    """
    _check(min_cohort.share, min_cohort.epsilon, cohorts, min_cohort.participations)
    scales = (min_cohort.threshold_scale, min_cohort.count_scale)
    extra = Fraction(total_variation(laplaces=min_cohort.draws(len(cohorts)))) * (
        1 + Fraction(math.exp(epsilon) * (1 + 1e-12))
    )
    added = _exact(min_cohort.rest_epsilon) + (0 if min_cohort.each else _exact(min_cohort.epsilon))
    require(
        "a minimum cohort",
        (f"participations >= {participations}", min_cohort.participations >= participations, min_cohort.participations),
        ("scales from 0 to 2**50", min(scales) >= 0 and max(scales) <= 2.0**50, min_cohort),
        ("a threshold without noise beside counts without Laplace noise", scales[1] > 0 or not scales[0], min_cohort),
        (
            "counts with one kind of noise",
            not (min_cohort.each and scales[1]) and 0 <= min_cohort.each <= 2.0**20,
            min_cohort,
        ),
        (
            "no noise in public counts, and no cost",
            not (min_cohort.public and (min_cohort.epsilon or any(scales))),
            min_cohort,
        ),
        (
            f"a cost of at most minimum cohort.epsilon={min_cohort.epsilon}",
            min_cohort.cost <= _exact(min_cohort.epsilon),
            min_cohort.cost,
        ),
        (
            f"epsilon of algorithm and minimum cohort <= {epsilon}",
            added <= _exact(epsilon),
            (min_cohort.rest_epsilon, min_cohort),
        ),
        (f"delta with the samplers <= {delta}", Fraction(min_cohort.rest_delta) + extra <= Fraction(delta), min_cohort),
    )


def chances(
    min_cohort: MinCohort, cohorts: Sequence[int], present: Callable[[int], int] = int, free: Sequence[float] = ()
) -> tuple[float, float]:
    """Chance that a run with everybody present ends below its minimum cohort, and that a round which nobody answers
    passes.

    Both rounded up, and for any round that is decided, after whatever went before: Ξ is integrated cell by cell, each
    at its worse end. (0, 1) where no round is decided. `free` as for `calibrate`.
    """
    return _chances(min_cohort, Counter(zip(cohorts, free or (0.0,) * len(cohorts), strict=True)), present)


def _chances(min_cohort: MinCohort, alike: Alike, present: Callable[[int], int]) -> tuple[float, float]:
    """Return the same, with rounds that are alike counted."""
    slack = (sum(alike.values()) + 1) * 2.0**-52  # of the sums; the samplers need next to nothing
    if not min_cohort.count_scale:
        wrong = _gaussian_chances(min_cohort, alike, present)
        return min(1.0, wrong[0] * (1 + 1e-9) + slack), min(1.0, wrong[1] * (1 + 1e-9) + slack)
    margins: Counter[int] = Counter()
    for (size, _), times in alike.items():
        margins[present(size) - min_cohort.needed(size)] += times
    needed = min(min_cohort.needed(size) for size, _ in alike)
    ends, mass = _cells(min_cohort.threshold_scale)
    with np.errstate(divide="ignore"):
        log_passes = sum(
            times * np.log(_reaches(ends - margin, min_cohort.count_scale)) for margin, times in margins.items()
        )
    fails = -np.expm1(log_passes)  # grows with Ξ: at each cell's upper end
    passes = _reaches(ends + needed, min_cohort.count_scale)  # falls: at its lower end
    if min_cohort.threshold_scale:
        fails = np.append(fails, 1.0)
        passes = np.append(1.0, _reaches(ends + 1 + needed, min_cohort.count_scale))
    failing, passing = (min(1.0, float(mass @ worst) * (1 + 1e-9) + slack) for worst in (fails, passes))
    return failing, passing


def _gaussian_chances(min_cohort: MinCohort, alike: Alike, present: Callable[[int], int]) -> tuple[float, float]:
    """The same of counts with Gaussian noise, or none: a margin of m users is met with chance Φ(m / σ_t), exactly."""
    fails, passes = 0.0, None
    for (size, mu), times in alike.items():
        deviation, needed = min_cohort.deviation(mu), min_cohort.needed(size)
        if math.isinf(deviation):
            continue  # is not decided
        margin = present(size) - needed
        if deviation:
            fails -= times * float(log_ndtr(margin / deviation))
            passes = max(passes or 0.0, float(ndtr(-needed / deviation)))
        else:
            fails, passes = fails if margin >= 0 else math.inf, passes or 0.0
    return (0.0, 1.0) if passes is None else (-math.expm1(-fails), passes)


def _schemes(
    share: float,
    epsilon: float,
    rounds: int,
    participations: int,
    rest: tuple[float, float],
    room: Callable[[float], float],
) -> list[MinCohort]:
    """What ε_q pays for: counts with Gaussian noise, where that is known; Laplace noise, the better of two ways."""
    if not epsilon:
        return [MinCohort(share, 0.0, participations, 0.0, 0.0, *rest)]
    once, all_rounds = math.log(1 / (2 * BETA)), math.log(rounds / (2 * BETA))
    up = 1 + 1e-12
    together = (math.sqrt(once) + math.sqrt(2 * all_rounds)) ** 2
    if participations * all_rounds <= together:
        laplace = MinCohort(share, epsilon, participations, 0.0, participations / epsilon * up, *rest)
    else:  # Least s_Ξ · once + s_V · all_rounds with 1/s_Ξ + 2/s_V = ε_q.
        threshold, counts = math.sqrt(together / once), math.sqrt(2 * together / all_rounds)
        laplace = MinCohort(share, epsilon, participations, threshold / epsilon * up, counts / epsilon * up, *rest)
    each = room(epsilon)
    return [MinCohort(share, epsilon, participations, 0.0, 0.0, *rest, each=each), laplace] if each else [laplace]


def _reaches(levels: Integers, scale: float) -> Floats:
    """P(⌊L⌋ >= k) for L ~ Laplace(scale), k an integer; scale 0 is no noise."""
    if not scale:
        return np.where(levels <= 0, 1.0, 0.0)
    tail = 0.5 * np.exp(-np.abs(levels) / scale)
    return np.where(levels > 0, tail, 1 - tail)


@lru_cache(maxsize=4)
def _cells(scale: float) -> tuple[Integers, Floats]:
    """Upper ends of the cells of Ξ, ascending, without the last one's, which is infinite; and every cell's chance.

    No cell but the first and the last is wider than a two-hundredth of the scale, or one. Without noise there is one.
    """
    if not scale:
        return np.zeros(1, np.int64), np.ones(1)
    reach = math.ceil(_REACH * scale)
    ends = np.linspace(-reach, reach, _CELLS + 1).astype(np.int64)  # ascending
    ends = ends[np.append(True, ends[1:] > ends[:-1])]
    above = np.concatenate([[1.0], _reaches(ends + 1, scale), [0.0]])
    return ends, above[:-1] - above[1:]


def _check(share: float, epsilon: float, cohorts: Sequence[int], participations: int) -> None:
    probability(share=share)
    if epsilon:
        positive(min_cohort_epsilon=epsilon)
    count(participations=participations)
    if not cohorts or min(cohorts) < 1 or len(cohorts) >= _MOST_DRAWS:
        raise ConfigError(
            f"Expected a minimum cohort for 1 to {_MOST_DRAWS - 1:,} rounds that ask somebody, got {cohorts}."
        )


@lru_cache(maxsize=256)
def _exact(value: float) -> Fraction:
    """Return the decimal number as it is written."""
    return Fraction(repr(float(value)))
