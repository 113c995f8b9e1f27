"""What the learnt mean of one column concludes from what it has released: a scale, bins of place, an interval.

    >>> from statistics import NormalDist
    >>> scale = 0.026
    >>> edges = bins_around(scale, 1.0, 5_000.0)
    >>> shares = np.diff(np.array([NormalDist(0.0, 1.5 * scale).cdf(edge) for edge in edges]))
    >>> found = interval_of(shares, np.full(len(shares), 0.001), edges, scale, 0.0004)
    >>> 2.5 < found.high / scale < 5.5, abs(found.outside) < 0.01 * scale
    (True, True)

Functions of releases and of public numbers alone: nothing here can cost privacy, and what it gets wrong costs accuracy.
In one dimension a clip needs no middle: users are clipped to [low, high], whose noise is that of its width. What users
outside add is known from their released shares, as far as those stand out of their noise.
How the rules were found: docs/privacy/private-mean.md, "One column".
"""

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from quoron_privacy.means.learnt_radii import seen_of, stands_out, turned, unseen

Matrix = NDArray[np.float64]
Vector = NDArray[np.float64]
Mask = NDArray[np.bool_]

MOST_PLACES = 4096  # bins of a look at the place; fewer lie around it
TRIES = 3  # at the place and what lies around it
LOOKS = 15  # at most, by the smallest scale: four at the place and one around it a try
LEAST_LAST = 0.3  # of μ² for the mean
_WINDOWS = (1, 2, 4)  # neighbouring bins that tell together
_WIDTH = 3.0  # scales that a bin of place is wide
_STEP, _STEEPEST = 1.6, 0.25  # of tails that nothing shows: see `unseen`
_INSIDE = 0.25  # of a bin's width, by which its users may be off its middle on average
_FALSE = 0.03  # how often noise makes users somewhere beyond `learnt_radii._NEAR` scales, about
_WIDEST, _AT_2400 = 0.8, 0.7  # octaves that a bin beyond equal ones is wide: at most; where n μ is 2,400
MOST_NODES = 64  # where far users are told, to a side
_NEXT, _FAR_OFTEN = 6.0, 0.0005  # the first node, in half widths; how often noise makes users there
_SEEN = 0.001  # the same of nodes where shares told of users
_CHANCE = 6.0  # variances of the square of a difference that noise explains
_LEAST_KEPT, _MOVES = 0.2, np.array([0.0, 1e-3, -1e-3])  # what the narrow mean has to show of a move; moves, in widths


@dataclass(frozen=True, slots=True)
class Interval:
    """What users are clipped to, and what is known of those outside."""

    low: float
    high: float
    outside: float  # what they add to the mean beyond the clipped one, by their released shares
    deviation: float  # of that, from noise
    least: float  # share of users that is seen wherever it lies
    ends: tuple[float, float] = (-math.inf, math.inf)  # beyond which users are told by nodes
    groups: tuple[float, ...] = ()  # where some surely are there, from the middle

    @property
    def middle(self) -> float:
        """Half way."""
        return (self.low + self.high) / 2

    @property
    def half(self) -> float:
        """Half its width."""
        return (self.high - self.low) / 2


@dataclass(frozen=True, slots=True)
class Narrow:
    """A second mean, of users near one point, which tells the mean of all if they lie evenly around it."""

    centre: float
    radius: float
    kept: float  # of a move of all users the part that it shows
    scatter: float  # its variance as an estimate, if they lie evenly, beside its noise; infinite where it is none


def shares_of(strength: float) -> tuple[float, float, float]:
    """Of μ²: for pairs, for one look at the place, for one look around it; `strength` is n μ."""
    return (
        min(0.25, max(0.01, (40 / strength) ** 2)),
        min(0.1, max(0.005, (28 / strength) ** 2)),
        0.24 * min(1.0, (240 / strength) ** 0.2) * min(1.0, (2400 / strength) ** 0.1),
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
    """Edges around zero to twice the bound: equal ones, then by a constant ratio to 32 scales, then octaves."""
    each = min(6, max(2, round(strength**0.3 / 2.6)))
    ratio = 2 ** min(_WIDEST, _AT_2400 * (2400 / strength) ** 0.2)
    side = [scale * k / each for k in range(1, int(3.5 * each) + 1)]
    while side[-1] < 2 * bound:
        side.append(side[-1] * (ratio if side[-1] < 32 * scale else 2.0))
    return np.concatenate([-np.array(side[::-1]), [0.0], side])


def missed(shares: Vector, edges: Vector, scale: float) -> float | None:
    """None where most users are around zero; else how far from it half of them are."""
    if shares[np.abs(edges[:-1] + edges[1:]) < 16 * scale].sum() > 0.4:
        return None
    half = len(shares) // 2
    enough = np.cumsum(shares[half:] + shares[:half][::-1]) > 0.5
    return max(scale, float(edges[half + 1 + int(np.argmax(enough))])) if enough.any() else scale


def _least(deviations: Vector, edges: Vector, scale: float) -> Vector:
    """Shares that stand out of noise."""
    return stands_out(np.maximum(-edges[:-1], edges[1:]) / scale, deviations, len(deviations), _FALSE)


def interval_of(shares: Vector, deviations: Vector, edges: Vector, scale: float, unit: float) -> Interval:
    """The least of noise, of what users outside add to it, and of those whom nothing shows.

    `unit` is the noise of the mean for a width of one. All pairs of edges are tried.
    """
    low, high = edges[:-1], edges[1:]
    least, deviation = _least(deviations, edges, scale), float(deviations.max())
    seen = seen_of(shares, deviations, least, windows=_WINDOWS)
    first, last = int(np.flatnonzero(seen).min()), int(np.flatnonzero(seen).max())
    known = np.zeros(len(shares), np.bool_)
    known[max(0, first - 1) : last + 2] = True
    trust = np.where(known & (shares > 0), shares**2 / (shares**2 + deviations**2), 0.0)
    users, middles = trust * shares, _middles(low, high)
    square = np.minimum(users, deviations) ** 2
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
    middle, half = (low[at] + high[to]) / 2, (high[to] - low[at]) / 2
    near = known & (np.maximum(high - middle, middle - low) <= _NEXT * half)
    ends = float(min(low[at], low[near].min(initial=low[at]))), float(max(high[to], high[near].max(initial=high[to])))
    reach = np.where(near, above[to] - below[at], 0.0)
    noise = math.sqrt(float(np.sum((trust * reach * deviations) ** 2)))
    groups = tuple((middles - middle)[known & (shares > least) & ~near].tolist())
    outside = float(np.sum(users * reach))
    return Interval(float(low[at]), float(high[to]), outside, noise, float(min(1.0, least.max())), ends, groups)


def narrow_of(shares: Vector, edges: Vector, found: Interval, users: int, unit: float) -> Narrow:
    """That of the least noise around the mean of those inside; `unit` is the noise of a mean for a radius of one."""
    low, high, width = edges[:-1], edges[1:], found.high - found.low
    inside = (low >= found.low) & (high <= found.high)
    middles, known = ((low + high) / 2)[inside], np.maximum(shares[inside], 0.0)
    known = known / known.sum() if known.any() else np.full(len(known), 1 / len(known))
    centre = float(known @ middles)
    radii = max(found.high - centre, centre - found.low) * 2.0 ** (-np.arange(24) / 4)
    here, up, down = (_shown(middles + move, found, centre, radii[:, None]) for move in width * _MOVES)
    kept = radii * ((up - down) @ known) / (width * (_MOVES[1] - _MOVES[2]))
    heard = np.maximum(kept, _LEAST_KEPT)
    scatter = (middles - centre - here * (radii / heard)[:, None]) ** 2 @ known / users
    noise = np.where(kept < _LEAST_KEPT, math.inf, (unit * radii / heard) ** 2 + scatter)
    best = int(np.argmin(noise))
    told = math.isfinite(noise[best])
    return Narrow(centre, float(radii[best]), float(heard[best]), float(scatter[best]) if told else math.inf)


def nodes_of(found: Interval, most: float) -> Vector:
    """Distances from the middle of the interval: its half width, _NEXT times that, and doubled until `most`."""
    number = min(MOST_NODES - 2, max(0, math.ceil(math.log2(most / found.half / _NEXT) - 1e-9)))
    return found.half * np.append(1.0, _NEXT * 2.0 ** np.arange(number + 1.0))


def rows_of(values: Vector, found: Interval, narrow: Narrow, nodes: Vector) -> Matrix:
    """(a, √(1 - a²) b at most) of users' values (k, 1), both means' rows, and what there is at nodes above and below.

    Of users beyond `ends` there is a part cos x at one node and sin x at the next, which add to where they are; the
    first node is the interval's own end. (k, 2 nodes), of norm one at most.
    """
    away = values[:, 0] - found.middle
    rows = np.zeros((len(away), 2, len(nodes)))
    rows[:, 0, 0] = np.clip(away / found.half, -1.0, 1.0)
    rows[:, 1, 0] = _shown(values, found, narrow.centre, narrow.radius)[:, 0]
    far = np.flatnonzero((values[:, 0] < found.ends[0]) | (values[:, 0] > found.ends[1]))
    length = np.maximum(np.abs(away[far]), found.half)
    at = np.clip(np.searchsorted(nodes, length) - 1, 0, len(nodes) - 2)
    angle, side = turned(length, nodes[at], nodes[at + 1]), np.where(away[far] > 0, 0, 1)
    rows[far, side, at] = np.cos(angle)
    rows[far, 0, 0] = np.where(at == 0, np.sign(away[far]) * np.cos(angle), 0.0)
    rows[far, 1, 0] = 0.0
    rows[far, side, at + 1] = np.sin(angle)
    ordered: Matrix = np.concatenate([rows[:, :, 0], rows[:, 0, 1:], rows[:, 1, 1:]], axis=1)
    return ordered


def far_of(means: Vector, unit: float, nodes: Vector, groups: tuple[float, ...]) -> tuple[float, float, float]:
    """(what users at the nodes add to the mean, its noise, how far the last lies): those that stand out of `unit`."""
    total, noise, reach = 0.0, 0.0, 0.0
    for sign, own in zip((1.0, -1.0), means.reshape(2, -1), strict=True):
        chances = np.maximum(1e-12, _FAR_OFTEN * (nodes[0] / nodes[1:]) ** 2.5)
        for group in groups:
            if sign * group > 0:
                chances[np.argmin(np.abs(np.log(nodes[1:] / abs(group))))] = _SEEN
        least = unit * np.array([-NormalDist().inv_cdf(each) for each in chances.tolist()])
        pairs = np.flatnonzero(own[:-1] + own[1:] > math.sqrt(2) * least[1:])
        counts = own > least
        for first in (*pairs, *np.flatnonzero(counts)):  # whoever is between two nodes is told by both
            beside = max((i for i in (first - 1, first + 1) if 0 <= i < len(own)), key=own.__getitem__, default=first)
            counts[first], counts[beside] = True, counts[beside] or own[beside] > unit
        if not counts.any():
            continue
        total += sign * float(np.sum((nodes[1:] * own)[counts]))
        noise = math.hypot(noise, unit * float(np.linalg.norm(nodes[1:][counts])))
        reach = max(reach, float(nodes[1:][counts].max()))
    return total, noise, reach


def _shown(values: Vector, found: Interval, centre: float, radius: float | Vector) -> Vector:
    """What the narrow mean takes of users there: between -1 and 1, odd around the centre."""
    middle, half = found.middle, found.half
    wide = np.minimum(1.0, np.maximum(np.abs(values - middle), np.abs(2 * centre - values - middle)) / half)
    taken: Vector = np.sqrt(1 - wide**2) * np.clip((values - centre) / radius, -1.0, 1.0)
    return taken


def combined(mean: Vector, found: Interval, narrow: Narrow, unit: float) -> tuple[float, float]:
    """(the mean, its noise) from both means, released with noise `unit`.

    The narrow one tells it if users lie evenly around a point. Where the other differs by more than noise explains, it
    counts by that much more.
    """
    half = (found.high - found.low) / 2
    value, loud = (
        (found.low + found.high) / 2 + half * mean[0] + found.outside,
        math.hypot(half * unit, found.deviation),
    )
    if math.isinf(narrow.scatter):
        return float(value), loud
    even, quiet = narrow.centre + narrow.radius * mean[1] / narrow.kept, unit * narrow.radius / narrow.kept
    variance = quiet**2 + narrow.scatter
    apart = max(0.0, (value - even) ** 2 - _CHANCE * (loud**2 + variance))
    share = (apart + variance) / (apart + variance + loud**2)
    return float(even + share * (value - even)), math.hypot(share * loud, (1 - share) * quiet)


def _middles(low: Vector, high: Vector) -> Vector:
    """Where users of a bin are: nearer to zero than half way, but in bins beside zero."""
    beside = np.minimum(np.abs(low), np.abs(high)) == 0
    away: Vector = np.where(beside, (low + high) / 2, np.sign(low + high) * np.sqrt(np.abs(low * high)))
    return away
