"""What the learnt mean concludes from what it has released: typical length, shares of μ², radii, the mean itself.

    >>> counts = np.zeros(BINS)
    >>> counts[5:7] = 0.6, 0.4
    >>> length = typical_length(counts, 2.0)
    >>> round(length, 4), shares_of(length, 2.0, users=10_000, dimension=10, mu=0.2).steps
    (0.0263, 4)

Functions of releases and of public numbers alone: nothing here can cost privacy, and what it gets wrong costs accuracy.
How the rules were found: docs/privacy/private-mean.md, "What is made of the releases".
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]
Mask = NDArray[np.bool_]

BINS = 64  # of the lengths of pairs, each half as long as the one before
INNER = 0.45  # β: of a norm of one, what the middle release gives to the vector
STEPS = 12  # of centring, at most
MOST_LENGTHS, _INNER_BINS = 200, 19  # bins of the middle release: at most; those of a third of an octave
_STEP_SHARES = (0.003, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.12, 0.15, 0.2)
_MIDDLE_SHARES = (0.15, 0.2, 0.25, 0.3, 0.35)
_LEAST_LAST = 0.3
_OFTEN, _FALSE, _NEAR, _RAREST = 5e-4, 0.3, 4.5, 1e-12  # that noise makes users; falls from so many scales on
_UNSEEN = 2.0  # deviations of users that may be beyond the last bin that holds any, falling off by the cube
_NARROWER, _LEAST_KEPT = 24, 0.2  # radii tried below the wide one, four to the octave, and what they have to show
_CHANCE = 3.0  # deviations of the square of a difference that noise explains
_ABOVE, _BELOW = 1.5, 2.5  # typical lengths, and deviations beyond √d, that a step looks around its centre


@dataclass(frozen=True, slots=True)
class Shares:
    """Of μ²: `steps` times `step` for a centre, `middle` for a better one and lengths, `last` for the mean."""

    steps: int
    step: float
    middle: float
    last: float


@dataclass(frozen=True, slots=True, eq=False)
class Held:
    """Which share of users is how far from the centre."""

    lengths: Vector  # (bins,)
    between: tuple[Vector, Vector]  # which they are, (bins,) each
    shares: Vector  # that add to one
    edge: float  # length of the last bin that surely holds users
    unseen: float  # share of users that may be beyond
    least: float  # share of users that is seen wherever it lies


@dataclass(frozen=True, slots=True)
class Radii:
    """Of the last release; see `learnt_mean.LearntMean`."""

    wide: float  # C
    narrow: float  # c
    kept: float  # of a move of all users the part that the narrow mean shows, if they lie evenly around a point
    scatter: float  # then: variance of a coordinate of it, divided by `kept`, beside the noise
    off: float  # else: how far off it may be


def typical_length(counts: Vector, top: float) -> float:
    """How far a user is from the centre, roughly: a power of 2^¼, so that few plans are made.

    From noisy shares of pairs; bin j has differences in (top 2⁻ʲ⁻¹, top 2⁻ʲ]. The two neighbours with the most pairs
    tell.
    """
    first = int(np.argmax(counts[:-1] + counts[1:]))
    here, below = np.maximum(counts[first : first + 2], 0.0).tolist()
    middle = (0.7 * here + 0.35 * below) / (here + below) if here + below > 0 else 0.7
    return float(2.0 ** (round(4 * math.log2(top * 2.0**-first * middle / math.sqrt(2))) / 4))


def reach(typical: float, radius: float, deviation: float, dimension: int) -> float:
    """Radius in which users are around a centre with that noise a coordinate; at most `radius`."""
    return min(radius, _ABOVE * typical + deviation * (math.sqrt(dimension) + _BELOW))


@lru_cache(maxsize=256)
def shares_of(typical: float, bound: float, *, users: int, dimension: int, mu: float) -> Shares:
    """The shares that make the error least that can be foreseen."""
    unit = 2 / (users * mu)  # noise of a coordinate for a radius of 1 and all of μ
    found: list[tuple[float, Shares]] = []
    for step in _STEP_SHARES:
        radius, away = bound, bound**2 / 4  # away: squared distance of the centre
        for steps in range(STEPS + 1):
            if steps:
                deviation = unit * radius / math.sqrt(step)
                radius, away = reach(typical, radius, deviation, dimension), dimension * deviation**2
            for middle in _MIDDLE_SHARES:
                last = 1 - steps * step - middle
                if last >= _LEAST_LAST:
                    left = min(dimension * (unit * radius / INNER) ** 2 / middle, away)
                    noise = (typical**2 + away + 0.5 * left) * unit**2 * dimension / last
                    unseen = (0.35 * unit * typical) ** 2 / middle
                    found.append((noise + unseen, Shares(steps, step, middle, last)))
    return min(found, key=lambda each: each[0])[1]


def edges_of(radius: float, bound: float) -> Vector:
    """Upper edges of bins of length, to 2 bound or more: three to the octave, from 1.6 radius on one if too many."""
    octaves, most = max(2, math.ceil(math.log2(max(2 * bound / radius, 1.0)))), MOST_LENGTHS - _INNER_BINS
    near = radius * 2.0 ** (np.arange(3 - _INNER_BINS, 3) / 3)
    each = 3 if 3 * octaves <= most else 1
    outer = np.arange(1, min(most, each * octaves) + 1) / each
    return np.concatenate([near, near[-1] * 2.0**outer])


def held(noisy: Vector, scale: float, edges: Vector, radius: float, nearer: float, most: float) -> Held:
    """From the noisy means of the middle release's bins.

    `nearer` is by how much the new centre is, squared; nobody is farther from it than `most`.
    """
    lengths = np.sqrt(np.append(edges[0] / 2, edges[:-1]) * edges)
    weights = math.sqrt(2) * np.sqrt(1 - (INNER * np.minimum(1.0, lengths / radius)) ** 2)
    shares, deviations = noisy / weights, scale / weights
    far = np.where(np.arange(len(edges)) < _INNER_BINS, 0.0, _ABOVE * edges / radius)
    least = stands_out(far, deviations, len(edges) - _INNER_BINS)
    seen = seen_of(shares, deviations, least, windows=(1, 2))
    beside = seen.copy()
    beside[:-1] |= seen[1:]
    likely = np.where(beside, np.maximum(shares, 0.0), 0.0)
    likely = likely / likely.sum() if likely.sum() > 0 else seen / seen.sum()
    group = np.append(False, likely[1:] > likely[:-1])  # of its own, so maybe at the upper edge of its octave
    group[:_INNER_BINS] = False
    lengths, lows, highs = (
        np.minimum(most, np.sqrt(np.maximum(each**2 - nearer, (0.3 * each) ** 2)))
        for each in (np.where(group, edges, of) for of in (lengths, np.append(0.0, edges[:-1]), edges))
    )
    last = int(np.flatnonzero(seen).max())
    unseen = float(min(1.0, _UNSEEN * deviations[last]))
    return Held(lengths, (lows, highs), likely, float(lengths[last]), unseen, float(min(1.0, least.max())))


def stands_out(scales: Vector, deviations: Vector, bins: int) -> Vector:
    """Shares that noise alone reaches hardly ever, and the less, the more scales away, where that would cost more."""
    chances = np.minimum(_OFTEN, _FALSE / bins * np.minimum(1.0, _NEAR / np.maximum(scales, _NEAR)) ** 2)
    least: Vector = deviations * [-NormalDist().inv_cdf(each) for each in np.maximum(chances, _RAREST).tolist()]
    return least


def seen_of(shares: Vector, deviations: Vector, least: Vector, windows: tuple[int, ...]) -> Mask:
    """Bins that hold users for sure, alone or so many neighbours together; if none does, that of the most."""
    seen = np.zeros(len(shares), np.bool_)
    for window in windows:
        for start in range(len(shares) - window + 1):
            own = slice(start, start + window)
            if not seen[own].any() and shares[own].sum() > least[own].max() * math.sqrt(window):
                seen[own] = shares[own] > (deviations[own] if window > 1 else 0.0)
    return seen if seen.any() else shares == shares.max()


def radii_of(held: Held, *, users: int, dimension: int, unit: float) -> Radii:
    """The least of noise and of what clipping may do; `unit` is the noise of a coordinate for a radius of 1."""
    lengths, shares = held.lengths, held.shares
    tried = lengths[-1] * 2.0 ** (-np.arange(4 * math.log2(lengths[-1] / lengths[0])) / 4)
    beyond = np.sum(shares * _excess(*held.between, tried[:, None]), axis=1)
    beyond += held.unseen * tried * np.minimum(1.0, held.edge / tried) ** 3 / 2
    widest = int(np.argmin(dimension * (unit * tried) ** 2 + beyond**2))
    wide, narrow = float(tried[widest]), tried[widest : widest + _NARROWER, None]

    free = np.sqrt(1 - np.minimum(1.0, lengths / wide) ** 2)
    shown = free * np.minimum(lengths, narrow)  # of every length, by every radius
    kept = np.sum(shares * shown / lengths, axis=1) * (1 - 1 / dimension)
    kept += np.sum(shares * free * (lengths < narrow), axis=1) / dimension
    heard = np.maximum(kept, _LEAST_KEPT)
    missed = lengths - shown / heard[:, None]
    scatter = np.sum(shares * missed**2, axis=1) / users / dimension
    noise = np.where(kept < _LEAST_KEPT, math.inf, (unit * narrow[:, 0] / heard) ** 2 + scatter)
    best = int(np.argmin(noise))
    if math.isinf(noise[best]):
        return Radii(wide, wide, 1.0, 0.0, math.inf)
    off = float(np.sum(shares * np.abs(missed[best]))) + held.unseen * wide
    return Radii(wide, float(narrow[best, 0]), float(kept[best]), float(scatter[best]), off)


def _excess(lows: Vector, highs: Vector, over: Vector) -> Vector:
    """Mean length over so much, of users evenly between two lengths, or all at one."""
    above: Vector = np.maximum(highs - over, 0.0)
    part = np.minimum(1.0, np.divide(above, highs - lows, out=np.ones_like(above), where=highs > lows))
    return np.where(lows > over, (lows + highs) / 2 - over, above * part / np.where(highs > lows, 2.0, 1.0))


def combined(
    centre: Vector, deviation: float, wide: Vector, narrow: Vector, radii: Radii, unit: float
) -> tuple[Vector, float]:
    """(the mean, noise of a coordinate of it) from a centre with its noise and two means around it, all released.

    If users lie evenly around a point, `narrow` / kept shows it, and so does the centre. The wide mean shows the mean
    in any case: it counts for as much as the two differ by more than their noise.
    """
    d, quiet, loud = len(centre), (unit * radii.narrow / radii.kept) ** 2, (unit * radii.wide) ** 2
    trust = deviation**2 / (deviation**2 + quiet + radii.scatter)
    even, noise = trust * narrow / radii.kept, trust**2 * quiet + (1 - trust) ** 2 * deviation**2
    variance = noise + trust**2 * radii.scatter
    chance = (d + _CHANCE * math.sqrt(2 * d)) * (variance + loud)
    apart = min(max(0.0, float(np.sum((wide - even) ** 2)) - chance), radii.off**2)
    share = (apart + d * variance) / (apart + d * (variance + loud))
    return centre + even + share * (wide - even), math.sqrt(share**2 * loud + (1 - share) ** 2 * noise)
