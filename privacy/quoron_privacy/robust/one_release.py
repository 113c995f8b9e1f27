"""One release of an outlier mean that passes its test although some answers are lost: calibrated, lowered, certified.

    >>> target = Target(1.0, 1e-6, "lottery", "weighted", kappa=1)
    >>> full, lowered = release(target, 1000, 1000**2), release(target, 1000, 990**2)
    >>> full.mean.core, lowered.mean.core, lowered.test.chance(990**2) >= 0.999
    (928, 908, True)

A calibration at full concentration passes with its chance at S = C² only. Lowering core and threshold together by s
moves every rung down by s·C: the same test passes with the same chance at S = C² - s·C, the aggregate's bound grows,
and the noise with it. What is certified in the end is the lowered release itself, by docs/privacy/outlier-mean.md.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np

from quoron_privacy.accounts import moved
from quoron_privacy.errors import Infeasible, VerificationError
from quoron_privacy.gaussian import GaussianNoise
from quoron_privacy.robust import laplace_test, lottery
from quoron_privacy.robust.laplace_test import LaplaceOneShot
from quoron_privacy.robust.lottery import OneShot
from quoron_privacy.robust.outlier_mean import LARGEST_COHORT, Kappa, Kind, OutlierMean, best_mean

Test = Literal["lottery", "laplace"]
OneRelease = OneShot | LaplaceOneShot

LARGEST_NOISE = 1e3  # in units of τ; beyond, a release says nothing


@dataclass(frozen=True, slots=True)
class Target:
    """What a release has to be: (ε, δ) after slack, and its form."""

    epsilon: float
    delta: float
    test: Test
    kind: Kind
    kappa: Kappa | None  # None: the one of less noise


def noise(target: Target, cohort_size: int, score: int) -> float:
    """σ/τ of a release that passes at `score`, about; inf where there is none."""
    proposed = _proposed(target, cohort_size)
    if proposed is None:
        return math.inf
    full, multiplier = proposed
    mean = _lowered(target, full, score)
    return math.inf if mean is None else multiplier * _growth(full, mean)


def release(target: Target, cohort_size: int, score: int, *, name: str = "outlier mean") -> OneRelease:
    """The release, certified. Raises Infeasible, in the name of `name`, where there is none."""
    calibrate = lottery.calibrate if target.test == "lottery" else laplace_test.calibrate
    base = calibrate(target.epsilon, target.delta, cohort_size, kappa=target.kappa, kind=target.kind)
    mean = _lowered(target, base.mean, score)
    if mean is not None:
        multiplier = base.noise_multiplier * _growth(base.mean, mean)
        while multiplier < LARGEST_NOISE:
            plan = _with(base, mean, multiplier)
            try:
                certify(plan, target.epsilon, target.delta)
            except VerificationError:
                multiplier *= 1.01  # random inclusion: flips do not scale with the shift
            else:
                return plan
    raise Infeasible(name, f"a cohort of {cohort_size:,} is too small", "a larger cohort")


def certify(plan: OneRelease, epsilon: float, delta: float) -> float:
    """δ that the theorem of the plan's test certifies. Raises VerificationError above `delta`."""
    if isinstance(plan, OneShot):
        return lottery.verify_one_shot(plan, epsilon, delta)
    return laplace_test.verify_laplace_test(plan, epsilon, delta)


def release_scale(plan: OneRelease, radius: float, dimension: int) -> float:
    """σ per coordinate at τ = `radius`: the theorem's, with room for the mean's arithmetic and the grid of the noise.

    The grid costs the same μ whatever the shift, so the smallest shift needs the most room.
    """
    shift = min(plan.mean.shifts)
    sensitivity = shift * radius * (1 + plan.mean.rounding_slack(dimension))
    mu = shift / plan.noise_multiplier
    return GaussianNoise.for_mu(sensitivity=sensitivity, mu=mu, dimension=dimension).scale


def verify_scale(plan: OneRelease, scale: float, radius: float, dimension: int) -> None:
    """Raises VerificationError unless noise of this σ at τ = `radius` is what `plan` was certified for."""
    slack = plan.mean.rounding_slack(dimension)
    for shift in plan.mean.shifts:
        truth = moved.mu(shift * radius * (1 + slack), scale, dimension)
        if not truth <= shift / plan.noise_multiplier * (1 + 1e-12):
            raise VerificationError(
                f"Expected release_scale >= {radius * plan.noise_multiplier:g} and a little, got {scale:g}."
            )


def smallest(target: Target, score: Callable[[int], int], most: float = LARGEST_NOISE) -> int | None:
    """C_min: the least cohort whose release passes at the `score` of its size with σ/τ < `most`; None if too large.

    `score(C)` is what a cohort of C reaches, a growing share of C².
    """
    low, high = 3, 4

    def feasible(size: int) -> bool:
        return noise(target, size, score(size)) < most

    while not feasible(high):
        low, high = high, 2 * high
        if high > LARGEST_COHORT:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if feasible(middle) else (middle, high)
    return high


@lru_cache(maxsize=1024)
def _proposed(target: Target, cohort_size: int) -> tuple[OutlierMean, float] | None:
    """(aggregate, about the noise) at full concentration."""
    if target.test == "lottery":
        return lottery.estimate(target.epsilon, target.delta, cohort_size, kappa=target.kappa, kind=target.kind)
    try:
        plan = laplace_test.calibrate(target.epsilon, target.delta, cohort_size, kappa=target.kappa, kind=target.kind)
    except Infeasible:
        return None
    return plan.mean, plan.noise_multiplier


def _lowered(target: Target, full: OutlierMean, score: int) -> OutlierMean | None:
    """The aggregate when core and threshold are lowered for a test that passes at `score` as it did at C²."""
    size = full.cohort_size
    core = full.core - -(-(size**2 - score) // size)
    return best_mean(size, core, target.kappa, target.kind) if core > size // 2 else None


def _growth(full: OutlierMean, lowered: OutlierMean) -> float:
    """By how much noise grows with the usual shift."""
    usual = [float(np.asarray(mean.shifts) @ np.asarray(mean.chances)) for mean in (full, lowered)]
    return usual[1] / usual[0] * (1 + 1e-9)


def _with(base: OneRelease, mean: OutlierMean, multiplier: float) -> OneRelease:
    """`base` lowered to the core of `mean`, with this noise."""
    if isinstance(base, OneShot):
        return OneShot(mean, lottery.Lottery(mean.cohort_size, mean.core, base.lottery.table), multiplier)
    drop = base.mean.core - mean.core
    test = laplace_test.LaplaceTest(mean.cohort_size, mean.core, base.test.scale, base.test.threshold - drop)
    return LaplaceOneShot(mean, test, multiplier)
