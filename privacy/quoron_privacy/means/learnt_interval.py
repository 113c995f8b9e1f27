"""What the learnt mean of one column concludes from what it has released: a scale, bins of place, an interval.

    >>> from statistics import NormalDist
    >>> scale = 0.026
    >>> edges = bins_around(scale, 1.0, 5_000.0)
    >>> shares = np.diff(np.array([NormalDist(0.0, 1.5 * scale).cdf(edge) for edge in edges]))
    >>> found = interval_of(shares, 0.001, edges, scale, 0.0004)
    >>> 2.5 < found.high / scale < 5.0, abs(found.outside) < 0.01 * scale
    (True, True)

Functions of releases and of public numbers alone: nothing here can cost privacy, and what it gets wrong costs accuracy.
In one dimension a clip needs no middle: users are clipped to [low, high], whose noise is that of its width. What users
outside add is known from their released shares, as far as those stand out of their noise.
How the rules were found: docs/privacy/private-mean.md, "One column".
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quoron_privacy.means.learnt_radii import seen_of, stands_out, unseen

Vector = NDArray[np.float64]

MOST_PLACES = 4096  # bins of a look at the place; fewer lie around it
TRIES = 3  # at the place and what lies around it
LOOKS = 15  # of all tries at most, by the smallest scale: four at the place and one around it
LEAST_LAST = 0.3  # of μ² for the mean
_WIDTH = 3.0  # scales that a bin of place is wide
_STEP, _STEEPEST = 1.6, 0.25  # of tails that nothing shows: see `unseen`
_INSIDE = 0.25  # of a bin's width, by which its users may be off its middle on average


@dataclass(frozen=True, slots=True)
class Interval:
    """What users are clipped to, and what is known of those outside."""

    low: float
    high: float
    outside: float  # what they add to the mean beyond the clipped one, by their released shares
    deviation: float  # of that, from noise
    least: float  # share of users that is seen wherever it lies


def shares_of(strength: float) -> tuple[float, float, float]:
    """Of μ²: for pairs, for one look at the place, for one look around it; `strength` is n μ."""
    return (
        min(0.25, max(0.01, (40 / strength) ** 2)),
        min(0.1, max(0.005, (28 / strength) ** 2)),
        0.3 * min(1.0, (240 / strength) ** 0.2),
    )


def places(low: float, high: float, scale: float) -> Vector:
    """Edges of equal bins, as wide as users are apart where that is few enough."""
    return np.linspace(low, high, 1 + min(MOST_PLACES, max(4, math.ceil((high - low) / (_WIDTH * scale)))))


def place_of(shares: Vector, edges: Vector) -> float:
    """Within the two neighbouring bins with the most users."""
    first = int(np.argmax(shares[:-1] + shares[1:]))
    below, above = np.maximum(shares[first : first + 2], 0.0).tolist()
    lean = (above - below) / (above + below) if above + below > 0 else 0.0
    return float(edges[first + 1] + lean * (edges[1] - edges[0]) / 2)


def near_enough(width: float, scale: float) -> bool:
    """Bins of that width tell the place."""
    return width <= _WIDTH * scale * (1 + 1e-9)


def bins_around(scale: float, bound: float, strength: float) -> Vector:
    """Edges around zero to twice the bound: equal ones, then three to the octave, then octaves."""
    each = min(6, max(2, round(strength**0.3 / 2.6)))
    side = [scale * k / each for k in range(1, int(3.5 * each) + 1)]
    while side[-1] < 2 * bound:
        side.append(side[-1] * (2 ** (1 / 3) if side[-1] < 32 * scale else 2.0))
    return np.concatenate([-np.array(side[::-1]), [0.0], side])


def missed(shares: Vector, edges: Vector, scale: float) -> float | None:
    """None where most users are around zero; else how far from it half of them are."""
    if shares[np.abs(edges[:-1] + edges[1:]) < 16 * scale].sum() > 0.4:
        return None
    half = len(shares) // 2
    enough = np.cumsum(shares[half:] + shares[:half][::-1]) > 0.5
    return max(scale, float(edges[half + 1 + int(np.argmax(enough))])) if enough.any() else scale


def interval_of(shares: Vector, deviation: float, edges: Vector, scale: float, unit: float) -> Interval:
    """The least of noise, of what users outside add to it, and of those whom nothing shows.

    `unit` is the noise of the mean for a width of one. All pairs of edges are tried.
    """
    low, high = edges[:-1], edges[1:]
    same = np.full(len(shares), deviation)
    least = stands_out(np.maximum(-low, high) / scale, same, len(shares))
    seen = seen_of(shares, same, least, windows=(1, 2, 4))
    first, last = int(np.flatnonzero(seen).min()), int(np.flatnonzero(seen).max())
    known = np.zeros(len(shares), np.bool_)
    known[max(0, first - 1) : last + 2] = True
    trust = np.where(known & (shares > 0), shares**2 / (shares**2 + deviation**2), 0.0)
    users, middles = trust * shares, _middles(low, high)
    square = np.minimum(users, deviation) ** 2
    loose = (_INSIDE * users * (high - low)) ** 2

    above, below = np.maximum(middles - high[:, None], 0.0), np.maximum(low[:, None] - middles, 0.0)
    tails = (
        unseen(shares, edges, float(high[last]), high, deviation, step=_STEP, steepest=_STEEPEST),
        unseen(shares[::-1], -edges[::-1], -float(low[first]), -low, deviation, step=_STEP, steepest=_STEEPEST),
    )
    up, down = (
        np.sum(beyond**2 * square + (beyond > 0) * loose, axis=1) + tail**2
        for beyond, tail in zip((above, below), tails, strict=True)
    )
    width = high - low[:, None]  # by low, by high
    risk = np.where(width > 0, (width * unit) ** 2 + up + down[:, None], math.inf)
    at, to = np.unravel_index(int(np.argmin(risk)), risk.shape)
    reach = above[to] - below[at]
    noise = deviation * math.sqrt(float(np.sum((trust * reach) ** 2)))
    return Interval(float(low[at]), float(high[to]), float(np.sum(users * reach)), noise, float(min(1.0, least.max())))


def _middles(low: Vector, high: Vector) -> Vector:
    """Where users of a bin are: nearer to zero than half way, but in bins beside zero."""
    beside = np.minimum(np.abs(low), np.abs(high)) == 0
    away: Vector = np.where(beside, (low + high) / 2, np.sign(low + high) * np.sqrt(np.abs(low * high)))
    return away
