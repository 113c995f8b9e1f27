"""The private mean of users who agree, whatever a declared share of the others sends.

    >>> from quoron_privacy.noise.sources import SeededNoise
    >>> mean = calibrate(users=2000, dimension=2, bound=10.0, spread=0.5, outliers=0.01, epsilon=1.0, delta=1e-6)
    >>> rows, answered = np.random.default_rng(0).uniform(2.8, 3.2, size=(2000, 2)), np.ones(2000, dtype=np.bool_)
    >>> rows[:20] = -7.0
    >>> released = mean.release(rows, answered, SeededNoise(1))
    >>> bool(np.abs(released - 3.0).max() < 0.1), mean.release(100 * rows, answered, SeededNoise(1))
    (True, None)

All users are one cohort: the lottery test, the weighted mean without outliers, noise once. Honest users within `spread`
of one point lie within τ = 2 · spread of one another, so each has them all within τ, and κ = 1 removes from there on.
Source: docs/privacy/outlier-mean.md#o1 and outlier-mean#o3. Statement: docs/privacy/private-mean.md#m5.
"""

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from quoron_privacy.errors import ConfigError, Infeasible, count, positive
from quoron_privacy.gaussian import LARGEST, GaussianNoise
from quoron_privacy.noise.streams import NoiseSource, total_variation
from quoron_privacy.release import Release
from quoron_privacy.robust import one_release
from quoron_privacy.robust.one_release import OneRelease, Target, certify, release_scale, verify_scale
from quoron_privacy.robust.outlier_mean import LARGEST_COHORT, REACH

NAME = "robust mean"
_ROOM = 1 + 1e-6  # for the rounding of distances to zero


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
    """

    radius: float  # τ: users within it of one another agree
    plan: OneRelease  # test, weights, and σ/τ
    noise: GaussianNoise

    def release(
        self, values: NDArray[np.float64], answered: NDArray[np.bool_], noise: NoiseSource
    ) -> NDArray[np.float64] | None:
        """The private mean, shape (d,), or None where the test says no; values (n, d), answered (n,)."""
        at = {"radius": self.radius, "reference": np.zeros(values.shape[1])}
        seen = self.plan.mean.observe(values, answered, **at)  # type: ignore[arg-type]
        if not self.plan.test.decide(seen.score, noise.stream("robust-mean", "test")):
            return None
        mean = self.plan.mean.aggregate(values, seen.weights, **at)  # type: ignore[arg-type]
        return self.noise.release(mean, noise.stream("robust-mean", "release"))

    def entries(self) -> tuple[Release, ...]:
        """The ledger entries of one release."""
        return self.plan.test.entry(), self.noise.entry()


def calibrate(
    *, users: int, dimension: int, bound: float, spread: float, outliers: float, epsilon: float, delta: float
) -> RobustMean:
    """The least noise for (ε, δ) of a release that is made with chance 0.999 when the declaration holds.

    Declared are: all but a share `outliers` of the users lie within `spread` of one point, and that within `bound` of
    zero. A wrong declaration costs accuracy or the release, never privacy. Raises Infeasible, naming the users that
    would do, and ConfigError.
    """
    count(users=users, dimension=dimension)
    positive(bound=bound, spread=spread, epsilon=epsilon, delta=delta)
    if not 0 <= outliers < 0.5:
        raise ConfigError(f"Expected outliers in [0, 0.5), got outliers={outliers}: the honest have to be the most.")
    left = math.nextafter(delta - _slack(epsilon, dimension), -1.0)  # less, however little it is
    if left <= 0:
        raise Infeasible(NAME, f"delta={delta:g} is below the resolution of the noise", "a larger delta")
    target = Target(epsilon, left, "lottery", "weighted", kappa=1)
    if users > LARGEST_COHORT:
        raise Infeasible(NAME, f"{users:,} users are too many to compare with one another", f"n <= {LARGEST_COHORT:,}")
    # Users beyond REACH · τ would count as outliers, and sums beyond LARGEST · σ would be cut.
    radius = max(2 * spread * _ROOM, 2 * bound / REACH)
    most = min(bound / (radius * math.sqrt(dimension)), one_release.LARGEST_NOISE)  # noisier, it says nothing
    if users < 4 or not one_release.noise(target, users, _score(users, outliers)) < most:
        raise _infeasible(target, users, outliers, most)
    plan = one_release.release(target, users, _score(users, outliers), name=NAME)
    radius = max(radius, 2 * bound / (LARGEST * release_scale(plan, 1.0, dimension)))
    scale = release_scale(plan, radius, dimension)
    made = RobustMean(radius, plan, GaussianNoise(plan.mean.sensitivity * radius, scale))
    verify(made, epsilon, delta, dimension)
    return made


def verify(mean: RobustMean, epsilon: float, delta: float, dimension: int) -> float:
    """δ that is certified at ε, samplers included; at most `delta`. Raises VerificationError."""
    slack = _slack(epsilon, dimension)
    verify_scale(mean.plan, mean.noise.scale, mean.radius, dimension)
    return certify(mean.plan, epsilon, math.nextafter(delta - slack, -1.0)) + slack


def _slack(epsilon: float, dimension: int) -> float:
    """What the samplers add to δ."""
    return (1 + math.exp(min(epsilon, 700.0))) * total_variation(gaussians=dimension, laplaces=1)


def _score(users: int, outliers: float) -> int:
    """S when all but the share `outliers` lie within τ of one another."""
    honest = users - math.ceil(Fraction(repr(float(outliers))) * users)
    return honest**2


def _infeasible(target: Target, users: int, outliers: float, most: float) -> Infeasible:
    least = one_release.smallest(target, lambda size: _score(size, outliers), most)
    reason = f"{users:,} users are too few to find out privately whether all but {100 * outliers:g} % of them agree"
    if least is None:
        return Infeasible(NAME, reason, "a smaller share of outliers, or a larger epsilon")
    return Infeasible.too_few(NAME, reason, max(least, users + 1), also=f" (better {3 * least:,})")
