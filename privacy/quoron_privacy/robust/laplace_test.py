"""The Laplace test: one release of an outlier mean, made when the concentration score with noise clears a threshold.

    >>> plan = calibrate(1.0, 1e-6, 1000)
    >>> verify_laplace_test(plan, 1.0, 1e-6) <= 1e-6
    True

The printed algorithm's form, kept for comparison: the `lottery` needs a third to a half of the noise it leaves behind,
and no Laplace sample. For one release only; under sampling or in a series nothing is proved for it (`combinations`).

Decided between integers: with T = ⌈C · threshold⌉ and the integer score S, S + ⌊L⌋ >= T holds iff S + L >= T. So this
is the test with continuous noise L ~ Laplace(C · scale) and a threshold rounded up: rounding costs no privacy at all.

Source: Lowy, Liu & Asi (2024), Algorithm 1, lines 10 and 11. Statement, proof and symbols:
docs/privacy/outlier-mean.md (outlier-mean#o5).
"""

import math
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from quoron_privacy.accounts import gdp
from quoron_privacy.errors import Infeasible, VerificationError, count, positive, probability
from quoron_privacy.kernels.on_first_use import OnFirstUse
from quoron_privacy.noise.streams import RandomStream
from quoron_privacy.release import Release
from quoron_privacy.robust.lottery import RELEASE, cheapest, pair_divergence
from quoron_privacy.robust.outlier_mean import (
    Kappa,
    Kind,
    OutlierMean,
    best_mean,
    in_score_units,
    ramp_floor,
    recounted_step,
    require_exact,
    score_scale,
    score_step,
    verify_outlier_mean,
)

loops = OnFirstUse("quoron_privacy.robust.lottery_loops")

_CELLS = 400
_LARGEST_EPSILON = 200.0  # beyond, nobody is protected
_TRIES = 30


@dataclass(frozen=True, slots=True)
class LaplaceTest:
    """Release iff S/C + Laplace(scale) >= threshold, S the integer score.

    Formal guarantee: (ε, δ) with threshold and scale as in outlier-mean#o5, up to `noise.LAPLACE_SLACK` in total
    variation.
    """

    cohort_size: int  # C
    core: int  # k: what the release assumes of the score, S >= C·k
    scale: float  # b, of S / C
    threshold: float  # θ, in the same units

    def __post_init__(self) -> None:
        count(cohort_size=self.cohort_size)
        positive(threshold=self.threshold, scale=self.scale)
        score_scale(self.scale, self.cohort_size)

    def chance(self, score: int) -> float:
        """Return the chance of a release at integer score S."""
        margin = (self.threshold - score / self.cohort_size) / self.scale
        return 0.5 * math.exp(-margin) if margin > 0 else 1 - 0.5 * math.exp(margin)

    def decide(self, score: int, stream: RandomStream) -> bool:
        """Return whether to release a cohort of score S (a Python integer)."""
        noise = stream.laplace_steps(score_scale(self.scale, self.cohort_size), 1)
        return score + int(noise[0]) >= in_score_units(self.threshold, self.cohort_size)

    def entry(self) -> Release:
        """Return the ledger entry of one decision, whichever way it went."""
        parameters = {"cohort_size": self.cohort_size, "threshold": self.threshold, "scale": self.scale}
        return Release("laplace-test", parameters)


@dataclass(frozen=True, slots=True)
class LaplaceOneShot:
    """One release behind a Laplace test. Made by `calibrate`, checked by `verify_laplace_test`."""

    mean: OutlierMean
    test: LaplaceTest
    noise_multiplier: float  # σ/τ, per coordinate


def calibrate(
    epsilon: float,
    delta: float,
    cohort_size: int,
    *,
    kappa: Kappa | None = None,
    kind: Kind = "weighted",
) -> LaplaceOneShot:
    """Return the least noise for one (ε, δ)-DP release that passes with chance RELEASE at full concentration.

    Raises Infeasible naming the smallest cohort that would do.
    """
    positive(epsilon=epsilon)
    probability(delta=delta)
    count(cohort_size=cohort_size)
    plan = _calibrate(epsilon, delta, cohort_size, kappa, kind)
    if plan is None:
        least = max(smallest_cohort(epsilon, delta), cohort_size + 1)
        why = f"at epsilon={epsilon:g}, delta={delta:g}"
        raise Infeasible.small_cohort("laplace test (outlier-mean#o5)", cohort_size, why, least, 2 * least)
    return plan


def smallest_cohort(epsilon: float, delta: float) -> int:
    """Return the least cohort for a plan, however noisy: the test takes nearly all of ε, the core is over half."""
    positive(epsilon=epsilon)
    probability(delta=delta)
    size = 2
    while _core(size, 0.98 * epsilon, delta) <= ramp_floor(size):
        size += 1
    return size


def enough(plan: LaplaceOneShot, epsilon: float, delta: float) -> bool:
    """Return whether the noise of a plan suffices by the account that `calibrate` searches with."""
    each = score_step(plan.mean.cohort_size) / plan.mean.cohort_size / plan.test.scale
    mus = np.asarray(plan.mean.shifts) / plan.noise_multiplier
    worst: float = loops.laplace_worst(epsilon, each, mus, np.asarray(plan.mean.chances), _CELLS)
    return worst <= delta


def verify_laplace_test(plan: LaplaceOneShot, epsilon: float, delta: float) -> float:
    """Return δ that outlier-mean#o5 certifies at ε, from a fine grid of thresholds from one score; at most `delta`.

    Independent of the search: divergences are masses of the best test's region, on intervals whose ends are combined
    on the safe side. Raises VerificationError.
    """
    positive(epsilon=epsilon, noise_multiplier=plan.noise_multiplier)
    probability(delta=delta)
    verify_outlier_mean(plan.mean)
    mean, test = plan.mean, plan.test
    require_exact(test.threshold, test.scale, test.cohort_size)
    step = recounted_step(mean.cohort_size) / mean.cohort_size
    if (test.cohort_size, test.core) != (mean.cohort_size, mean.core) or not test.scale >= step / epsilon:
        raise VerificationError(
            f"Expected a test on the aggregate's own core with scale >= {step / epsilon:g}: {test}."
        )
    mus, chances = np.asarray(mean.shifts) / plan.noise_multiplier, np.asarray(mean.chances)
    # Below the core in one world, below core + step in both: each passes with at most this chance.
    low = 0.5 * math.exp(-(test.threshold - test.core - step) / test.scale)
    if test.threshold < test.core + step:
        raise VerificationError(f"Expected threshold >= core + {step:g}, got {test}.")
    worst = low
    margins = np.linspace(-mean.cohort_size / test.scale - 1, max(60.0, 2 * epsilon), 6001)
    margins = np.unique(np.concatenate([margins, np.linspace(-step / test.scale - 6, 1.0, 6001)]))
    tails = _tail(margins)
    ratios = tails / _tail(margins + step / test.scale)
    p = tails[:-1]
    q = p / ratios[1:]
    for start in range(0, len(p), 1000):
        block = slice(start, start + 1000)
        found = pair_divergence(epsilon, p[block], q[block], mus, chances)
        worst = float(np.maximum(worst, found.max()))  # NaN stays
    worst = float(np.maximum(worst, mean.profile(plan.noise_multiplier, epsilon)))
    certified = worst * (1 + 1e-9)
    if not certified <= delta:
        raise VerificationError(f"Expected a certified delta <= {delta:g} at epsilon={epsilon:g}, got {certified:.6g}.")
    return certified


@lru_cache(maxsize=64)
def certified_epsilon(plan: LaplaceOneShot, delta: float, lacking: float) -> float:
    """An ε at which outlier-mean#o5 certifies `plan` for `delta` less (1 + e^ε) · `lacking`, about the least there is.

    The least of the account of `calibrate`, whose grid is coarse (seldom more than a few thousandths above), certified
    by `verify_laplace_test`; infinite where the theorem says nothing.
    `lacking` is what the samplers lack in total variation.
    """
    step = recounted_step(plan.mean.cohort_size) / plan.mean.cohort_size
    least = step / plan.test.scale  # what a decision costs by itself

    def left(epsilon: float) -> float:
        return delta - (1 + math.exp(min(epsilon, 700.0))) * lacking

    low, high = least, 2 * least
    while not (left(high) > 0 and enough(plan, high, left(high))):
        low, high = high, 2 * high
        if high > _LARGEST_EPSILON:
            return math.inf
    while high - low > 1e-7 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if enough(plan, middle, left(middle)) else (middle, high)
    for _ in range(_TRIES):  # the second account may ask for a little more
        with suppress(VerificationError):
            verify_laplace_test(plan, high, left(high))
            return high
        high = least + (high - least) * 1.001
    return math.inf


def _tail(v: NDArray[np.float64]) -> NDArray[np.float64]:
    tail: NDArray[np.float64] = np.where(v > 0, 0.5 * np.exp(-np.abs(v)), 1 - 0.5 * np.exp(-np.abs(v)))
    return tail


def _core(size: int, each: float, delta: float) -> int:
    """Core that a test of cost `each` leaves room for."""
    step = score_step(size) / size
    return math.floor(size - step - step / each * _margins(delta))


def _margins(delta: float) -> float:
    """Distance from the core plus a step to full concentration, in units of the scale."""
    return math.log(1 / (2 * delta)) + math.log(1 / (2 * (1 - RELEASE)))


@lru_cache(maxsize=256)
def _calibrate(epsilon: float, delta: float, size: int, kappa: Kappa | None, kind: Kind) -> LaplaceOneShot | None:
    step, aim = score_step(size) / size, delta * (1 - 1e-4)
    cores = sorted({_core(size, share * epsilon, aim) for share in np.linspace(0.03, 0.98, 80)})
    options = [(core, mean) for core in cores if (mean := best_mean(size, core, kappa, kind)) is not None]
    if not options:
        return None

    def least(option: tuple[int, OutlierMean], tolerance: float = 1e-3) -> float:
        core, mean = option
        each = step * _margins(aim) / (size - step - core)
        shifts, chances = np.asarray(mean.shifts), np.asarray(mean.chances)
        low = float(shifts @ chances) / gdp.mu_for(epsilon, delta) * 0.9
        high = low
        while loops.laplace_worst(epsilon, each, shifts / high, chances, _CELLS) > aim:
            low, high = high, 1.5 * high
            if high > 1e6 * mean.sensitivity:
                return 1e9 * (1 + each)
        while high > low * (1 + tolerance):
            middle = math.sqrt(low * high)
            good = loops.laplace_worst(epsilon, each, shifts / middle, chances, _CELLS) <= aim
            low, high = (low, middle) if good else (middle, high)
        return high

    (core, mean), _ = cheapest(options, least)
    scale = (size - step - core) / _margins(aim) * (1 - 1e-12)
    threshold = (core + step + scale * math.log(1 / (2 * aim))) * (1 + 1e-13)
    return LaplaceOneShot(mean, LaplaceTest(size, core, scale, threshold), least((core, mean), 1e-5) * (1 + 1e-5))
