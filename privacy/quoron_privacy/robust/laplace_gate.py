"""The Laplace test: one release of an outlier mean, made when the concentration score with noise clears a threshold.

    >>> from quoron_privacy.robust.outlier_mean import weighted_mean
    >>> plan = LaplaceOneShot(weighted_mean(1000, 844), LaplaceGate(1000, 844, scale=5.0, threshold=913.0), 0.05)
    >>> round(certified_epsilon(plan, 1e-6, variation=0.0), 2)
    0.95

As printed, for comparison, with numbers that others choose: the `smooth_test` needs a third to a half of the noise it
leaves behind, and no Laplace sample. For one release only; under sampling or in a series nothing is proved for it.

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

from quoron_privacy.errors import VerificationError, count, positive, probability
from quoron_privacy.kernels.on_first_use import OnFirstUse
from quoron_privacy.noise.streams import RandomStream
from quoron_privacy.release import Release
from quoron_privacy.robust.outlier_mean import (
    OutlierMean,
    in_score_units,
    recounted_step,
    require_exact,
    score_scale,
    score_step,
    verify_outlier_mean,
)
from quoron_privacy.robust.smooth_test import pair_divergence

loops = OnFirstUse("quoron_privacy.robust.smooth_test_loops")

_CELLS = 400
_LARGEST_EPSILON = 200.0  # beyond, nobody is protected
_TRIES = 30


@dataclass(frozen=True, slots=True)
class LaplaceGate:
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
    """One release behind a Laplace test, checked by `verify_laplace_gate`."""

    mean: OutlierMean
    test: LaplaceGate
    noise_multiplier: float  # σ/τ, per coordinate


def enough(plan: LaplaceOneShot, epsilon: float, delta: float) -> bool:
    """Return whether the noise of a plan suffices by the account that `certified_epsilon` searches with."""
    cost = score_step(plan.mean.cohort_size) / plan.mean.cohort_size / plan.test.scale
    mus = np.asarray(plan.mean.shifts) / plan.noise_multiplier
    worst: float = loops.laplace_worst(epsilon, cost, mus, np.asarray(plan.mean.chances), _CELLS)
    return worst <= delta


def verify_laplace_gate(plan: LaplaceOneShot, epsilon: float, delta: float) -> float:
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
def certified_epsilon(plan: LaplaceOneShot, delta: float, variation: float) -> float:
    """About the least ε at which outlier-mean#o5 certifies `plan` for `delta` less (1 + e^ε) · `variation`.

    The least of the account of `enough`, whose grid is coarse (seldom more than a few thousandths above), certified by
    `verify_laplace_gate`; infinite where the theorem says nothing. `variation`: the total variation of samplers.
    """
    step = recounted_step(plan.mean.cohort_size) / plan.mean.cohort_size
    least = step / plan.test.scale  # what a decision costs by itself

    def left(epsilon: float) -> float:
        return delta - (1 + math.exp(min(epsilon, 700.0))) * variation

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
            verify_laplace_gate(plan, high, left(high))
            return high
        high = least + (high - least) * 1.001
    return math.inf


def _tail(v: NDArray[np.float64]) -> NDArray[np.float64]:
    tail: NDArray[np.float64] = np.where(v > 0, 0.5 * np.exp(-np.abs(v)), 1 - 0.5 * np.exp(-np.abs(v)))
    return tail
