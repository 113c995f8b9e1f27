"""How far one user moves a release, and what that is worth as GDP, written out again for those who verify.

    >>> mu(rows(1.0, 100, "replace-one"), 0.2, 1) > 0.1
    True

Who finds noise asks the mechanisms (`GaussianNoise.effective_mu`, `mean_sensitivity`, ...); who verifies a plan asks
this, which shares nothing with them: a mistake in either is a plan that is refused. Proofs: docs/privacy/gaussian.md,
noise#n4, free-presence#p2, private-mean#m1.
"""

import math

from scipy.special import erfinv

from quoron_privacy.release import Adjacency

_PLANS = 1e-9  # rounding of products and quotients of public floats
_STEP = 2.0**-30  # of the grid of the noise, in standard deviations
_ROUNDING = 2.0**-53


def mu(moved: float, scale: float, dimension: int) -> float:
    """Of noise `scale` a coordinate on what a user moves so far in ℓ2; both ends of that are rounded to the grid."""
    if not scale > 0:
        return math.inf
    return moved / scale + moved / scale * _PLANS + math.sqrt(4 * dimension) * _STEP


def rows(norm: float, divisor: int, adjacency: Adjacency) -> float:
    """Return a mean of rows: the diameter of a ball where a row is replaced, its radius where it is left out."""
    return _quotient(norm + norm if adjacency == "replace-one" else norm, divisor)


def acute(norm: float, divisor: int, adjacency: Adjacency) -> float:
    """Return a mean of vectors at right angles or closer: the hypotenuse where one is replaced."""
    return _quotient(math.hypot(norm, norm) if adjacency == "replace-one" else norm, divisor)


def unit_moment(dimension: int, divisor: int, adjacency: Adjacency) -> float:
    """Return a mean of rows of a weighted moment, whitened first, and of presence: acute, each put on its grid."""
    error = 1.01 * (dimension + 4) * math.sqrt(dimension) * _ROUNDING + dimension * 2.0 ** -_bits(divisor)
    return acute(1.0, divisor, adjacency) * (1 + error + error + error)


def columns(own: int, divisor: int) -> float:
    """Return a mean of rows of bounded numbers of so many columns, six of each, no two rows farther apart than 1."""
    return rows(1.0, divisor, "zero-out") * (1 + 2 * math.sqrt(6 * own) * (2.0 ** -_bits(divisor) + 2.0**-50))


def rotated(dimension: int) -> int:
    """Return how many coordinates a rotated row has: doubled until all of it fits."""
    length = 1
    while length < dimension:
        length += length
    return length


def choice(epsilon: float) -> float:
    """Return GDP of one choice that is ε-bounded-range: a total variation of tanh(ε/4), which is erf(μ / √8)."""
    return math.sqrt(8) * float(erfinv(math.tanh(epsilon / 4))) * (1 + 1e-12)


def behind_choices(released: float, dimension: int, epsilon: float) -> float:
    """Return GDP of a release of that GDP and, before it, of one such choice in every rotated coordinate."""
    return together(released, math.sqrt(rotated(dimension)) * choice(epsilon))


def together(*mus: float) -> float:
    """Return GDP of releases that follow each other: the root of the sum of their squares."""
    return math.sqrt(math.fsum(mu**2 for mu in mus)) * (1 + 2.0**-52) if max(mus) < 1e150 else math.inf


def _quotient(length: float, divisor: int) -> float:
    """Of an exact sum; the quotient alone is rounded."""
    return length / divisor + length / divisor * (64 * divisor + 4) * 2.0**-51


def _bits(divisor: int) -> int:
    """Of the integers that are summed."""
    return min(51, 56 - math.floor(math.log2(divisor)) - 1)
