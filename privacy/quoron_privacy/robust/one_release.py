"""One release of an outlier mean that passes its test although some answers are lost: calibrated, lowered, certified.

    >>> target = Target(1.0, 1e-6, "lottery", "weighted", kappa=1)
    >>> full, lowered = release(target, 1000, 1000**2), release(target, 1000, 990**2)
    >>> full.mean.core, lowered.mean.core, lowered.test.chance(990**2) >= 0.999
    (844, 816, True)

A calibration at full concentration passes with its chance at S = C² only. A lottery for S = C² - s·C has all of its
rungs lower by s·C; a Laplace test its core and threshold by s. Either passes with the same chance there, the
aggregate's bound grows, and the noise with it. What is certified in the end is that release itself, by
docs/privacy/outlier-mean.md.
"""

import math
from collections.abc import Callable
from contextlib import suppress
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
from quoron_privacy.robust.outlier_mean import (
    LARGEST_COHORT,
    RADII,
    Kappa,
    Kind,
    OutlierMean,
    best_mean,
    recounted_slack,
)

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
    missed = _missed(cohort_size, score)
    if target.test == "lottery":
        budget = target.epsilon, target.delta
        return lottery.estimate(*budget, cohort_size, kappa=target.kappa, kind=target.kind, forgiven=missed)
    full = _laplace(target, cohort_size)
    mean = None if full is None else _lowered(target, full.mean, missed)
    return math.inf if full is None or mean is None else full.noise_multiplier * _growth(full.mean, mean)


def release(target: Target, cohort_size: int, score: int, *, name: str = "outlier mean") -> OneRelease:
    """The release, certified. Raises Infeasible, in the name of `name`, where there is none."""
    budget, form, missed = (target.epsilon, target.delta), (target.kappa, target.kind), _missed(cohort_size, score)
    if target.test == "lottery":
        with suppress(Infeasible):
            made = lottery.calibrate(*budget, cohort_size, kappa=form[0], kind=form[1], forgiven=missed)
            if made.noise_multiplier < LARGEST_NOISE:
                return made
    elif (full := _laplace(target, cohort_size)) and (mean := _lowered(target, full.mean, missed)):
        drop, multiplier = full.mean.core - mean.core, full.noise_multiplier * _growth(full.mean, mean)
        test = laplace_test.LaplaceTest(cohort_size, mean.core, full.test.scale, full.test.threshold - drop)
        while multiplier < LARGEST_NOISE:
            plan = LaplaceOneShot(mean, test, multiplier)
            with suppress(VerificationError):
                certify(plan, *budget)
                if laplace_test.enough(plan, *budget):  # of both accounts the one that asks for more noise
                    return plan
            multiplier *= 1.01  # random inclusion: flips do not scale with the shift
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
    shift = plan.mean.least_shift
    sensitivity = shift * radius * (1 + plan.mean.rounding_slack(dimension))
    mu = shift / plan.noise_multiplier
    return GaussianNoise.for_mu(sensitivity=sensitivity, mu=mu, dimension=dimension).scale


def verify_scale(plan: OneRelease, scale: float, radius: float, dimension: int) -> None:
    """Raises VerificationError unless noise of this σ at τ = `radius` is what `plan` was certified for."""
    if not RADII[0] < radius < RADII[1]:
        raise VerificationError(f"Expected radius in {RADII}, got {radius:g}.")
    slack, least = recounted_slack(plan.mean, dimension), 2 * plan.mean.kappa / plan.mean.cohort_size
    for shift in (least, *plan.mean.shifts):
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


def _missed(cohort_size: int, score: int) -> int:
    """By how much the average count misses the cohort, rounded up."""
    return -(-(cohort_size**2 - score) // cohort_size)


@lru_cache(maxsize=1024)
def _laplace(target: Target, cohort_size: int) -> LaplaceOneShot | None:
    """The release behind a Laplace test at full concentration."""
    try:
        return laplace_test.calibrate(target.epsilon, target.delta, cohort_size, kappa=target.kappa, kind=target.kind)
    except Infeasible:
        return None


def _lowered(target: Target, full: OutlierMean, missed: int) -> OutlierMean | None:
    """The aggregate when core and threshold are lowered for a test that passes at a lower score as it did at C²."""
    size, core = full.cohort_size, full.core - missed
    return best_mean(size, core, target.kappa, target.kind) if core > size // 2 else None


def _growth(full: OutlierMean, lowered: OutlierMean) -> float:
    """By how much noise grows with the usual shift."""
    usual = [float(np.asarray(mean.shifts) @ np.asarray(mean.chances)) for mean in (full, lowered)]
    return usual[1] / usual[0] * (1 + 1e-9)
