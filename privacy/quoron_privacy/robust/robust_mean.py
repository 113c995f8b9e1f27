"""The private mean of users who agree, whatever a declared share of the others sends.

    >>> from quoron_privacy.noise.streams import SeededNoise
    >>> mean = calibrate(users=2000, dimension=2, bound=10.0, spread=0.5, outliers=0.01, epsilon=1.0, delta=1e-6)
    >>> rows, answered = np.random.default_rng(0).uniform(2.8, 3.2, size=(2000, 2)), np.ones(2000, dtype=np.bool_)
    >>> rows[:20] = -7.0
    >>> released = mean.release(rows, answered, SeededNoise(1))
    >>> bool(np.abs(released - 3.0).max() < 0.1), mean.release(100 * rows, answered, SeededNoise(1))
    (True, None)

All users are one cohort: the lottery test, the weighted mean without outliers, noise once. `release` finds such a
release, here and in algorithms, that passes its test although some answers are lost.

Source: docs/privacy/outlier-mean.md#o1 and outlier-mean#o3. Statement: docs/privacy/private-mean.md#m5.
"""

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Union

import numpy as np
from numpy.typing import NDArray

from quoron_privacy.accounts import gdp, sensitivity_recount
from quoron_privacy.accounts.roots import least_number
from quoron_privacy.errors import ConfigError, Infeasible, VerificationError, count, positive
from quoron_privacy.gaussian import LARGEST, GaussianNoise
from quoron_privacy.noise.streams import NoiseSource, total_variation
from quoron_privacy.release import Release
from quoron_privacy.robust import lottery
from quoron_privacy.robust.lottery import OneShot
from quoron_privacy.robust.outlier_mean import (
    LARGEST_COHORT,
    RADII,
    REACH,
    recounted_slack,
)

if TYPE_CHECKING:
    from quoron_privacy.robust.laplace_test import LaplaceOneShot
    from quoron_privacy.robust.subsampled_lottery import SubsampledLottery

Tested = Union[OneShot, "LaplaceOneShot", "SubsampledLottery"]  # an aggregate behind a test, and its noise

LARGEST_NOISE = 1e3  # in units of τ; beyond, a release says nothing

NAME = "robust mean"
_ROOM = 1 + 1e-6  # for the rounding of distances to zero


def release(
    epsilon: float, delta: float, cohort_size: int, *, forgiven: int = 0, name: str = "outlier mean"
) -> OneShot:
    """Return the release, certified. Raises Infeasible, in the name of `name`, where there is none of use.

        >>> full, lowered = release(1.0, 1e-6, 1000), release(1.0, 1e-6, 1000, forgiven=20)
        >>> full.mean.core, lowered.mean.core, lowered.test.chance(990**2) >= 0.999
        (844, 816, True)

    A calibration at full concentration passes with its chance at S = C² only. One for S = C² - s·C has all of its rungs
    lower by s·C, and passes with the same chance there; the aggregate's bound grows, and the noise with it.
    """
    with suppress(Infeasible):
        made = lottery.calibrate(epsilon, delta, cohort_size, forgiven=forgiven)
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


def smallest(noise: Callable[[int], float], most: float = LARGEST_NOISE) -> int | None:
    """C_min: the least cohort with `noise`(C) = σ/τ < `most`, which falls; None where it is too large to compare."""
    return least_number(lambda size: noise(size) < most, 4, most=LARGEST_COHORT)


@dataclass(frozen=True, slots=True)
class RobustMean:
    """One release of the mean of users who agree, or of the fact that too few do.

    Formal guarantee: for every dataset the outcome, silence included, is (ε, δ)-DP under replacing one user, at the
    numbers that `calibrate` was given (private-mean#m5).

    | input                                     | what happens                                           |
    | ----------------------------------------- | ------------------------------------------------------ |
    | absent or non-finite row                  | an outlier                                             |
    | row far from most others                  | weight 0: it moves nothing but the chance of a release |
    | fewer than the declared share agree       | nothing is released, the less likely the fewer         |

    Honest users within `spread` of one point lie within τ = 2 · spread of one another, so each has them all within τ.
    """

    radius: float  # τ: users within it of one another agree
    plan: OneShot  # test, weights, and σ/τ
    noise: GaussianNoise

    def release(
        self, values: NDArray[np.float64], answered: NDArray[np.bool_], noise: NoiseSource
    ) -> NDArray[np.float64] | None:
        """Return the private mean, shape (d,), or None where the test says no; values (n, d), answered (n,)."""
        at = {"radius": self.radius, "reference": np.zeros(values.shape[1])}
        seen = self.plan.mean.observe(values, answered, **at)  # type: ignore[arg-type]
        if not self.plan.test.decide(seen.score, noise.stream("robust-mean", "test")):
            return None
        mean = self.plan.mean.aggregate(values, seen.weights, **at)  # type: ignore[arg-type]
        return self.noise.release(mean, noise.stream("robust-mean", "release"))

    def entries(self) -> tuple[Release, ...]:
        """Return the ledger entries of one release."""
        return self.plan.test.entry(), self.noise.entry()


def calibrate(
    *, users: int, dimension: int, bound: float, spread: float, outliers: float, epsilon: float, delta: float
) -> RobustMean:
    """Return the least noise for (ε, δ) of a release that is made with chance 0.999 when the declaration holds.

    Declared are: all but a share `outliers` of the users lie within `spread` of one point, and that within `bound` of
    zero. A wrong declaration costs accuracy or the release, never privacy. Raises Infeasible, naming the users that
    would do, and ConfigError.
    """
    count(users=users, dimension=dimension)
    positive(bound=bound, spread=spread, epsilon=epsilon, delta=delta)
    if not 0 <= outliers < 0.5:
        raise ConfigError(f"Expected outliers in [0, 0.5), got outliers={outliers}: the honest have to be the most.")
    left = gdp.left(epsilon, delta, gaussians=dimension, laplaces=1, name=NAME)
    less = math.nextafter(left, 0.0)  # however little it is
    if users > LARGEST_COHORT:
        raise Infeasible(NAME, f"{users:,} users are too many to compare with one another", f"n <= {LARGEST_COHORT:,}")
    # Users beyond REACH · τ would count as outliers, and sums beyond LARGEST · σ would be cut.
    radius = max(2 * spread * _ROOM, 2 * bound / REACH)
    most = min(bound / (radius * math.sqrt(dimension)), LARGEST_NOISE)  # noisier, it says nothing

    def noise(size: int) -> float:
        return lottery.estimate(epsilon, less, size, forgiven=_forgiven(size, outliers))

    if users < 4 or not noise(users) < most:
        raise _infeasible(noise, users, outliers, most)
    plan = release(epsilon, less, users, forgiven=_forgiven(users, outliers), name=NAME)
    radius = max(radius, 2 * bound / (LARGEST * release_scale(plan, 1.0, dimension)))
    scale = release_scale(plan, radius, dimension)
    made = RobustMean(radius, plan, GaussianNoise(plan.mean.sensitivity * radius, scale))
    verify(made, epsilon, delta, dimension)
    return made


def verify(mean: RobustMean, epsilon: float, delta: float, dimension: int) -> float:
    """Return δ that is certified at ε, samplers included; at most `delta`. Raises VerificationError."""
    slack = _slack(epsilon, dimension)
    verify_scale(mean.plan, mean.noise.scale, mean.radius, dimension)
    return lottery.verify_one_shot(mean.plan, epsilon, math.nextafter(delta - slack, -1.0)) + slack


def _slack(epsilon: float, dimension: int) -> float:
    """Return what the samplers add to δ."""
    return (1 + math.exp(min(epsilon, 700.0))) * total_variation(gaussians=dimension, laplaces=1)


def _forgiven(users: int, outliers: float) -> int:
    """By how much the average count misses n when all but the share `outliers` lie within τ of one another."""
    honest = users - math.ceil(Fraction(repr(float(outliers))) * users)
    return -(-(users**2 - honest**2) // users)


def _infeasible(noise: Callable[[int], float], users: int, outliers: float, most: float) -> Infeasible:
    least = smallest(noise, most)
    reason = f"{users:,} users are too few to find out privately whether all but {100 * outliers:g} % of them agree"
    if least is None:
        return Infeasible(NAME, reason, "a smaller share of outliers, or a larger epsilon")
    return Infeasible.too_few(NAME, reason, max(least, users + 1), also=f" (better {3 * least:,})")
