"""The lottery test: one release of an outlier mean, made with a chance that climbs with the concentration score.

    >>> plan = calibrate(1.0, 1e-6, 1000)
    >>> round(plan.noise_multiplier, 4)
    0.0215
    >>> verify_one_shot(plan, 1.0, 1e-6) <= 1e-6
    True

With score S the aggregate plus N(0, σ²) is released with chance π[rung(S)], rung(S) = ⌊(S − Ck)/(2(C − 1))⌋, and never
when S < Ck. One user moves the rung by at most one. The ladder π starts at δ and climbs as fast as outlier-mean#o3
allows; a cohort in full agreement stands at its top. Cohorts that may not release and cohorts that may are different
pairs, so δ is the larger of two costs and not their sum. One coin decides: no Laplace noise, and no floating-point
attack on it.

σ is in units of τ throughout. A noise source whose law is off by s in total variation costs (1 + e^ε)·s: take that off
δ first.

Source: in place of the Laplace tests of Lowy, Liu & Asi (2024), Algorithms 1 and 2. Statement, proof and symbols:
docs/privacy/outlier-mean.md.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from quoron_privacy.accounts import gdp
from quoron_privacy.errors import ConfigError, Infeasible, VerificationError, count, positive, probability
from quoron_privacy.kernels.on_first_use import OnFirstUse
from quoron_privacy.noise.streams import RandomStream
from quoron_privacy.release import Release
from quoron_privacy.robust.outlier_mean import (
    Kappa,
    Kind,
    OutlierMean,
    best_mean,
    score_step,
    verify_outlier_mean,
    weighted_shifts,
)
from quoron_privacy.robust.valley import cheapest

Vector = NDArray[np.float64]
Whole = TypeVar("Whole", int, NDArray[np.int64])

loops = OnFirstUse("quoron_privacy.robust.lottery_loops")

TICKETS = 2**63
RELEASE = 0.999  # chance of a release when all answers lie within τ of one another


@dataclass(frozen=True, slots=True)
class Lottery:
    """Release with probability table[rung], with the last chance from the last rung on, and never below rung 0.

    A rung is as high as one user can move the integer score, so neighbouring cohorts stand on the same rung or on
    adjacent ones. One uniform integer decides: there is no noise to round.

        >>> from quoron_privacy.noise.sources import SeededNoise
        >>> test = Lottery(cohort_size=10, core=8, table=(1e-6, 1.0))
        >>> test.rung(79), test.rung(80), test.rung(100), test.decide(100, SeededNoise(1).stream("test", 0))
        (None, 0, 1, True)

    Formal guarantee: (ε, δ) with the ladder conditions of outlier-mean#o3, which `calibrate` keeps and
    `verify_one_shot` checks. Each chance is used as ⌊2⁶³ chance⌋ / 2⁶³: exactly, as they are multiples of 2⁻⁵³.
    """

    cohort_size: int  # C
    core: int  # k: nothing is released when the score is below C·k
    table: tuple[float, ...]  # π_0, π_1, …; whole multiples of 2⁻⁵³; the last one holds for every higher rung

    def __post_init__(self) -> None:
        count(cohort_size=self.cohort_size, core=self.core)
        if self.core > self.cohort_size:
            raise ConfigError(f"Expected core <= cohort_size, got {self.core} and {self.cohort_size}.")
        if not self.table or not all(0 < chance <= 1 for chance in self.table):
            raise ConfigError(f"Expected at least one chance, each in (0, 1], got {self.table}.")

    def rung(self, score: int) -> int | None:
        """⌊(S - C·k) / (2(C - 1))⌋, at most the last one in the table; None when S < C·k."""
        above = score - self.cohort_size * self.core
        return None if above < 0 else min(above // max(score_step(self.cohort_size), 1), len(self.table) - 1)

    def chance(self, score: int) -> float:
        """Chance of a release at integer score S in [C, C²]."""
        rung = self.rung(score)
        return 0.0 if rung is None else self.table[rung]

    @property
    def at_concentration(self) -> float:
        """Chance of a release when all answers lie within τ of one another."""
        return self.chance(self.cohort_size**2)

    def tickets(self, score: int) -> int:
        """How many of the 2⁶³ equally likely draws release at this score."""
        return int(self.chance(score) * TICKETS)

    def decide(self, score: int, stream: RandomStream) -> bool:
        """Whether to release a cohort of score S (a Python integer). One draw, whatever the score."""
        return int(stream.uniform_below(TICKETS, 1)[0]) < self.tickets(score)

    def entry(self) -> Release:
        """The ledger entry of one decision, whichever way it went."""
        return Release("lottery-test", {"cohort_size": self.cohort_size, "core": self.core, "rungs": len(self.table)})


@dataclass(frozen=True, slots=True)
class OneShot:
    """One release: the aggregate, its test and its noise. Made by `calibrate`, checked by `verify_one_shot`."""

    mean: OutlierMean
    lottery: Lottery
    noise_multiplier: float  # σ/τ, per coordinate

    @property
    def test(self) -> Lottery:
        """What decides whether it is made; every kind of one release has one."""
        return self.lottery


def calibrate(
    epsilon: float,
    delta: float,
    cohort_size: int,
    *,
    kappa: Kappa | None = None,
    kind: Kind = "weighted",
    release: float = RELEASE,
) -> OneShot:
    """The least noise for one (ε, δ)-DP release, over the core and (kappa=None) over κ.

    `release` is the chance wanted at full concentration. Random inclusion exists with κ = 2 only.
    Raises Infeasible naming the smallest cohort that would do.
    """
    positive(epsilon=epsilon)
    probability(delta=delta, release=release)
    count(cohort_size=cohort_size)
    if kind == "random" and kappa == 1:
        raise ConfigError("Expected kappa=2 with random inclusion, got kappa=1: nothing is proved for it.")
    plan = _calibrate(epsilon, delta, cohort_size, kappa, kind, release)
    if plan is None:
        least = max(smallest_cohort(epsilon, delta, kappa=kappa, kind=kind, release=release), cohort_size + 1)
        raise Infeasible(
            "lottery (outlier-mean#o3)",
            f"cohort_size={cohort_size:,} is too small at epsilon={epsilon:g}, delta={delta:g}",
            f"cohort_size >= {least:,} (better {2 * least:,})",
        )
    return plan


def estimate(
    epsilon: float,
    delta: float,
    cohort_size: int,
    *,
    kappa: Kappa | None = None,
    kind: Kind = "weighted",
    release: float = RELEASE,
) -> tuple[OutlierMean, float] | None:
    """(aggregate, about the noise) of what `calibrate` finds, or None; for searches, as nothing certifies it."""
    if kind == "random":
        plan = _calibrate(epsilon, delta, cohort_size, kappa, kind, release)
        return None if plan is None else (plan.mean, plan.noise_multiplier)
    found = _best_core(epsilon, _aim(delta), cohort_size, kappa, kind, release)
    if found is None:
        return None
    mean, rungs, mu = found
    return mean, mean.sensitivity / _largest_mu(epsilon, _aim(delta), release, rungs, mu)


@lru_cache(maxsize=256)
def smallest_cohort(
    epsilon: float, delta: float, *, kappa: Kappa | None = None, kind: Kind = "weighted", release: float = RELEASE
) -> int:
    """C_min: the least cohort for which a plan exists, however noisy. Useful noise needs two to three times that."""
    positive(epsilon=epsilon)
    probability(delta=delta, release=release)
    rungs = int(_frontier(epsilon, _aim(delta), release)[0][0])

    def exists(size: int) -> bool:
        return best_mean(size, core_for(size, rungs), kappa, kind) is not None

    size = 4 * rungs  # below, the core would be less than half
    while size > 2 and exists(size):
        size -= 1
    while not exists(size):
        size += 1
    return size


def core_for(cohort_size: Whole, rungs: Whole) -> Whole:
    """Largest k that leaves `rungs` rungs between Ck and C²; of numbers or of arrays."""
    return (cohort_size**2 - score_step(cohort_size) * rungs) // cohort_size


def verify_one_shot(plan: OneShot, epsilon: float, delta: float) -> float:
    """δ that outlier-mean#o3 certifies at ε, by trying all pairs of neighbouring rungs; at most `delta`.

    Independent of the search: each pair's divergence is the mass of the best test's region under both laws, and the
    shifts are checked in rational arithmetic. Raises VerificationError.
    """
    positive(epsilon=epsilon, noise_multiplier=plan.noise_multiplier)
    probability(delta=delta)
    verify_outlier_mean(plan.mean)
    verify_lottery(plan.lottery, plan.mean)
    table = np.asarray(plan.lottery.table)
    mus, chances = np.asarray(plan.mean.shifts) / plan.noise_multiplier, np.asarray(plan.mean.chances)
    worst = table[0]
    for p, q in ((table, table), (table[1:], table[:-1]), (table[:-1], table[1:])):
        if len(p):
            worst = float(np.maximum(worst, pair_divergence(epsilon, p, q, mus, chances).max()))  # NaN stays
    certified = float(worst) * (1 + 1e-9)
    if not certified <= delta:
        raise VerificationError(f"Expected a certified delta <= {delta:g} at epsilon={epsilon:g}, got {certified:.6g}.")
    return certified


def verify_lottery(lottery: Lottery, mean: OutlierMean) -> None:
    """Raises VerificationError unless the ladder fits the aggregate and its chances can be tossed exactly."""
    fits = (lottery.cohort_size, lottery.core) == (mean.cohort_size, mean.core)
    table = np.asarray(lottery.table)
    tossed = len(table) > 0 and bool(
        np.all((table > 0) & (table <= 1) & (table * 2.0**53 == np.floor(table * 2.0**53)))
    )
    if not (fits and tossed and bool(np.all(np.diff(table) >= 0))):
        raise VerificationError(
            "Expected a climbing ladder in multiples of 2^-53 on the aggregate's own cohort and core."
        )


def pair_divergence(epsilon: float, p: Vector, q: Vector, mus: Vector, chances: Vector) -> Vector:
    """H_{e^ε} between releasing N(μ, 1) with chance p and N(0, 1) with chance q, averaged over the mixture of shifts.

    The best test releases iff x > t with t = (ε + ln(q/p))/μ + μ/2, and adds the silent outcome when that pays.
    """
    # Chances are multiples of 2⁻⁵³, so 1 − p is exact and the difference is off by rounding of its second term alone.
    silent = np.maximum((1 - p) - math.exp(epsilon) * (1 - q) + 4e-16 * (1 - p), 0.0)
    shift = mus[:, None]
    cut = (epsilon + np.log(q / p)) / shift + shift / 2
    spoken = p * ndtr(shift - cut) - math.exp(epsilon) * q * ndtr(-cut)
    total: Vector = silent + chances @ np.maximum(spoken, 0.0)
    return total


def _aim(delta: float) -> float:
    """What proposals aim at: δ less what float arithmetic in the verification may cost."""
    return delta * (1 - 1e-6) - 5e-16


@lru_cache(maxsize=256)
def _calibrate(
    epsilon: float, delta: float, size: int, kappa: Kappa | None, kind: Kind, release: float
) -> OneShot | None:
    aim = _aim(delta)
    found = _best_core(epsilon, aim, size, kappa, kind, release)
    if found is None:
        return None
    mean, rungs, mu = found
    noise = _least_noise(mean, epsilon, aim, rungs, release, mu, 1e-5)
    for _ in range(40):
        table = _ladder(mean, noise, epsilon, aim, rungs, release)
        lottery = Lottery(size, mean.core, tuple(map(float, table)))
        plan = OneShot(mean, lottery, noise)
        try:
            verify_one_shot(plan, epsilon, delta)
        except VerificationError:
            noise *= 1 + 1e-5
        else:
            return plan if lottery.at_concentration >= release else None
    return None


def _best_core(
    epsilon: float, delta: float, size: int, kappa: Kappa | None, kind: Kind, release: float
) -> tuple[OutlierMean, int, float] | None:
    """(aggregate, its number of rungs, μ of one shift whose ladder fits into them) of about the least noise."""
    rungs, mus = _frontier(epsilon, delta, release)
    sizes = np.full_like(rungs, size)
    cores = core_for(sizes, rungs)
    if kind == "weighted":
        noises = weighted_shifts(sizes, cores, kappa) / mus
        place = int(np.argmin(noises))
        mean = best_mean(size, int(cores[place]), kappa, kind) if np.isfinite(noises[place]) else None
    else:
        means = [best_mean(size, int(core), kappa, kind) for core in cores]
        options = [(place, mean) for place, mean in enumerate(means) if mean is not None]

        def rough(option: tuple[int, OutlierMean]) -> float:
            place, mean = option
            return _least_noise(mean, epsilon, delta, int(rungs[place]), release, float(mus[place]), 2e-3)

        place, mean = cheapest(options, rough)[0] if options else (0, None)
    return None if mean is None else (mean, int(rungs[place]), float(mus[place]))


@lru_cache(maxsize=4096)
def _largest_mu(epsilon: float, delta: float, release: float, rungs: int, mu: float) -> float:
    """The largest μ of one shift whose ladder reaches `release` within `rungs`, to 1e-5 from below; `mu` does."""

    def reaches(value: float) -> bool:
        table = loops.ladder(epsilon, delta, delta, np.array([value]), np.ones(1), rungs, release)
        return bool(table[-1] >= release)

    low, factor = mu, 1.005
    while reaches(low * factor):
        low, factor = low * factor, factor**2
    high = low * factor
    while high > low * (1 + 1e-5):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if reaches(middle) else (low, middle)
    return low


def _ladder(mean: OutlierMean, noise: float, epsilon: float, delta: float, rungs: int, release: float) -> Vector:
    mus, chances = np.asarray(mean.shifts) / noise, np.asarray(mean.chances)
    table: Vector = loops.ladder(epsilon, delta, delta, mus, chances, rungs, release)
    return table


def _least_noise(
    mean: OutlierMean, epsilon: float, delta: float, rungs: int, release: float, mu: float, tolerance: float
) -> float:
    """Least noise whose ladder reaches `release` within `rungs`; `mu` is one that does for a single shift."""

    def reaches(noise: float) -> bool:
        return bool(_ladder(mean, noise, epsilon, delta, rungs, release)[-1] >= release)

    high = mean.sensitivity / mu
    while not reaches(high):  # a mixture with chances that sum to a little above one
        high *= 1.01
    low = high / 1.2
    while reaches(low):
        low, high = low / 1.5, low
    while high > low * (1 + tolerance):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if reaches(middle) else (middle, high)
    return high


@lru_cache(maxsize=64)
def _frontier(epsilon: float, delta: float, release: float) -> tuple[NDArray[np.int64], Vector]:
    """Numbers of rungs worth having, ascending, each with the largest μ (to the grid) whose ladder fits into it."""
    full = gdp.mu_for(epsilon, delta)
    # About 20/ε rungs climb to the top even without noise to spare; four times that is never worth its core.
    share = np.concatenate([np.geomspace(1e-4, 0.1, 20), np.linspace(0.11, 0.999, 240 if epsilon > 0.2 else 60)])
    most = math.ceil(80 / epsilon) + 80
    largest: dict[int, float] = {}  # by rungs, which grow with μ
    for mu in share * full:
        table = loops.ladder(epsilon, delta, delta, np.array([mu]), np.ones(1), most, release)
        if table[-1] < release:
            break
        largest[len(table) - 1] = mu
    return np.array(list(largest)), np.array(list(largest.values()))
