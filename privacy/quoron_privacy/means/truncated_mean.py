"""The truncated mean: where users lie near one point, clip around that point and not around zero.

    centre = crude mean, released privately;     release = centre + (1/n) Σ clip_C(x - centre) + N(0, σ² I)

The noise follows the spread τ of the users and not the bound L on what one may send. The crude mean is a private range
of every rotated coordinate, or a first Gaussian mean clipped at L, which is cheaper unless τ is very small against L.

Source: Bassily & Sun (2023), Algorithm 1, with the noise added once and the clip around the crude mean. Statement,
proof and constants: docs/privacy/private-mean.md.
"""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from quoron_privacy.accounts import gdp
from quoron_privacy.errors import Infeasible, count, positive, probability
from quoron_privacy.gaussian import GaussianNoise, mean_sensitivity
from quoron_privacy.means import private_range
from quoron_privacy.means.clipping import clipped_mean
from quoron_privacy.means.private_range import PrivateRange
from quoron_privacy.means.rotation import coordinate_bound, padded, random_signs
from quoron_privacy.noise.streams import RandomStream
from quoron_privacy.release import Release

Matrix = NDArray[np.float64]
Vector = NDArray[np.float64]
Crude = Literal["none", "gaussian", "range"]

BIN_WIDTH = 0.25  # β_w: half a bin, in units of the largest rotated deviation; narrower bins cost a logarithm only
_MOST_BINS = 1 << 12  # then bins grow wider and so does the radius
_SHARES = tuple(share / 40 for share in range(1, 30))  # of μ², tried for the first of two Gaussian means


@dataclass(frozen=True, slots=True)
class TruncatedMean:
    """Two releases on the same users, the second clipped around the first.

    Formal guarantee: `mu(dimension)`-GDP under replace-one with exact noise, for every dataset; that users lie within
    τ of one point decides the bias, never the privacy. A run draws `gaussians(dimension)` Gaussian samples.

    | input                       | what happens                                                    |
    | --------------------------- | --------------------------------------------------------------- |
    | absent or non-finite row    | adds nothing; the divisor stays `users`                         |
    | row farther than `radius`   | moved towards the centre                                        |
    | crude is None               | clipped around zero, one release                                |
    """

    users: int  # n, the divisor
    radius: float  # C
    noise: GaussianNoise  # of the last release
    crude: PrivateRange | GaussianNoise | None
    bound: float  # L, the clip of a Gaussian crude mean

    def mu(self, dimension: int) -> float:
        """GDP parameter of everything released."""
        last = self.noise.effective_mu(dimension)
        if self.crude is None:
            return last
        first = self.crude.mu(dimension) if isinstance(self.crude, PrivateRange) else self.crude.effective_mu(dimension)
        return gdp.compose(first, last)

    def gaussians(self, dimension: int) -> int:
        """Gaussian samples drawn."""
        return dimension * (1 + isinstance(self.crude, GaussianNoise))

    def release(
        self, values: Matrix, answered: NDArray[np.bool_], stream: RandomStream, public: RandomStream
    ) -> Vector:
        """The private mean, shape (d,); values (n, d), answered (n,). `public` gives the rotation's signs."""
        if self.crude is None:
            centre = np.zeros(values.shape[1])
        elif isinstance(self.crude, PrivateRange):
            centre = self.crude.release(values, answered, random_signs(values.shape[1], public), stream)
        else:
            mean, _ = clipped_mean(values, answered, self.bound, self.users)
            centre = self.crude.release(mean, stream)
        with np.errstate(all="ignore"):
            mean, _ = clipped_mean(values - centre, answered, self.radius, self.users)
        return centre + self.noise.release(mean, stream)

    def entries(self, dimension: int) -> tuple[Release, ...]:
        """The ledger entries of one release."""
        if self.crude is None:
            return (self.noise.entry(),)
        first = self.crude.entry(dimension) if isinstance(self.crude, PrivateRange) else self.crude.entry()
        return (first, self.noise.entry())


def calibrate(
    crude: Crude, *, users: int, dimension: int, bound: float, spread: float | None, mu: float, failure: float = 1e-3
) -> TruncatedMean:
    """The least final noise of that kind for μ-GDP in all.

    `bound` is L, the norm to which every row may be trusted to be clipped without harm; `spread` is τ: all rows lie
    within τ of one point. Nothing is clipped at the radius chosen, but with probability `failure`, if that is so.
    Raises Infeasible where the crude mean leaves no budget, with the users that it takes.
    """
    count(users=users, dimension=dimension)
    positive(bound=bound, mu=mu)
    probability(failure=failure)
    if crude == "none" or spread is None:
        return _assemble(users, dimension, bound, bound, mu, None)
    positive(spread=spread)
    if crude == "gaussian":
        return min(
            (_two_gaussians(users, dimension, bound, spread, mu, share, failure) for share in _SHARES),
            key=lambda mean: mean.noise.scale,
        )
    return _ranged(users, dimension, bound, spread, mu, failure)


def _two_gaussians(
    users: int, dimension: int, bound: float, spread: float, mu: float, share: float, failure: float
) -> TruncatedMean:
    """A share of μ² for a mean clipped at L; rows are within 2τ of the true mean and that within its noise of it."""
    sensitivity = mean_sensitivity(bound, users)
    first = _noise(sensitivity, dimension, mu * math.sqrt(share))
    radius = min(2 * spread, 2 * bound) + first.scale * (math.sqrt(dimension) + math.sqrt(2 * math.log(1 / failure)))
    return _assemble(users, dimension, bound, radius, mu * math.sqrt(1 - share), first)


def _ranged(users: int, dimension: int, bound: float, spread: float, mu: float, failure: float) -> TruncatedMean:
    """private-mean#m4: bins of width 2 β_w τ_∞ and the least ε₁ that keeps every choice among the users."""
    deviation = coordinate_bound(spread, dimension=dimension, rows=users, failure=failure)
    half_width = min(bound, coordinate_bound(bound, dimension=dimension, rows=users, failure=failure))
    bins = min(max(2, math.ceil(half_width / (BIN_WIDTH * deviation))), _MOST_BINS)
    choices = padded(dimension)
    epsilon = private_range.range_epsilon(users=users, bins=bins, choices=choices, failure=failure / 2)
    crude = PrivateRange(epsilon, bins, half_width)
    left = mu**2 - crude.mu(dimension) ** 2
    if left <= 0:
        needed = private_range.crude_mean_users(dimension=dimension, bins=bins, mu=mu, failure=failure)
        raise Infeasible("private mean", f"{users} users are too few for private ranges", f"users >= {needed}")
    radius = spread + math.sqrt(choices) * (deviation + crude.width / 2)
    return _assemble(users, dimension, bound, radius, math.sqrt(left), crude)


def _noise(sensitivity: float, dimension: int, mu: float) -> GaussianNoise:
    """The least noise whose effective μ is at most `mu`."""
    grid = GaussianNoise(sensitivity, sensitivity).effective_mu(dimension) - 1
    if mu <= 2 * grid:
        raise Infeasible("private mean", f"mu={mu:g} is below the resolution of the noise", "a larger epsilon")
    return GaussianNoise(sensitivity, sensitivity * (1 + 3e-9) / (mu - grid))


def _assemble(
    users: int, dimension: int, bound: float, radius: float, mu: float, crude: PrivateRange | GaussianNoise | None
) -> TruncatedMean:
    return TruncatedMean(users, radius, _noise(mean_sensitivity(radius, users), dimension, mu), crude, bound)
