"""Releases of outlier means behind a test: one that is certified, and the noise of any with its rounding.

    >>> full, lowered = release(1.0, 1e-6, 1000), release(1.0, 1e-6, 1000, forgiven=20)
    >>> full.mean.core, lowered.mean.core, lowered.test.chance(990**2) >= 0.999
    (844, 816, True)

`release` finds one that passes its test although some answers are lost, for `mechanisms.OutlierMean` and algorithms.

Source: docs/privacy/outlier-mean.md#o1 and outlier-mean#o3.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Union

from quoron_privacy.accounts import sensitivity_recount
from quoron_privacy.accounts.roots import least_number
from quoron_privacy.errors import Infeasible, VerificationError
from quoron_privacy.gaussian import GaussianNoise
from quoron_privacy.robust import smooth_test
from quoron_privacy.robust.outlier_mean import LARGEST_COHORT, RADII, recounted_slack
from quoron_privacy.robust.smooth_test import OneShot

if TYPE_CHECKING:
    from quoron_privacy.robust.laplace_gate import LaplaceOneShot
    from quoron_privacy.robust.subsampled_test import SubsampledTest

Tested = Union[OneShot, "LaplaceOneShot", "SubsampledTest"]  # an aggregate behind a test, and its noise

LARGEST_NOISE = 1e3  # in units of τ; beyond, a release says nothing


def release(
    epsilon: float, delta: float, cohort_size: int, *, forgiven: int = 0, name: str = "outlier mean"
) -> OneShot:
    """Return the release, certified. Raises Infeasible, in the name of `name`, where there is none of use.

    A calibration at full concentration passes with its chance at S = C² only. One for S = C² - s·C has all its levels
    lower by s·C, and passes with the same chance there; the aggregate's bound grows, and the noise with it.
    """
    with suppress(Infeasible):
        made = smooth_test.calibrate(epsilon, delta, cohort_size, forgiven=forgiven)
        if made.noise_multiplier < LARGEST_NOISE:
            return made
    raise Infeasible(name, f"a cohort of {cohort_size:,} is too small", "a larger cohort")


def release_scale(plan: Tested, radius: float, dimension: int) -> float:
    """Return σ per coordinate at τ = `radius`: the theorem's, with slack for the mean's arithmetic and noise's grid.

    The grid costs the same μ whatever the shift, so the smallest shift needs the most room. 1e-8 of μ and 1e-9 are left
    to the arithmetic of those who verify.
    """
    shift = plan.mean.least_shift
    sensitivity = shift * radius * (1 + plan.mean.rounding_slack(dimension))
    mu = shift / plan.noise_multiplier * (1 - 1e-8) - 1e-9
    return GaussianNoise.for_mu(sensitivity=sensitivity, mu=mu, dimension=dimension).scale


def verify_scale(plan: Tested, scale: float, radius: float, dimension: int) -> None:
    """Raise VerificationError unless noise of this σ at τ = `radius` is what `plan` was certified for."""
    if not RADII[0] < radius < RADII[1]:
        raise VerificationError(f"Expected radius in {RADII}, got {radius:g}.")
    slack, least = recounted_slack(plan.mean, dimension), 2 * plan.mean.kappa / plan.mean.cohort_size
    for shift in (least, *plan.mean.shifts):
        truth = sensitivity_recount.mu(shift * radius * (1 + slack), scale, dimension)
        if not truth <= shift / plan.noise_multiplier * (1 + 1e-12):
            raise VerificationError(
                f"Expected release_scale >= {radius * plan.noise_multiplier:g} and a little, got {scale:g}."
            )


def smallest(noise: Callable[[int], float]) -> int | None:
    """C_min: the least cohort with a useful `noise`(C) = σ/τ, which falls; None where it is too large to compare."""
    return least_number(lambda size: noise(size) < LARGEST_NOISE, 4, most=LARGEST_COHORT)
