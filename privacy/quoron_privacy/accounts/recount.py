"""The second account of rounds on secret samples: δ at ε again, from laws in place of profiles.

    >>> replaced(0.01, 1000, 0.5, 0.8286, 1e-6) <= 1e-6 < replaced(0.01, 1000, 0.5, 0.82, 1e-6)
    True

A plan's noise is found by one account (`subsampling`, `item_sampling`) and accepted by this one, which shares no
function with it, no table, no cache and no convolution. There, a profile δ(ε) is tabulated, its dots are connected and
dp-accounting composes. Here, a round is a pair of laws on the line; its losses are cut into cells, what is in a cell
goes to its two ends so that both laws keep their mass, and the sum of all rounds is taken by a tilted Fourier
transform, which is as exact far out in the tail as in the middle. Whatever is rounded or cut off is added on the larger
side. Statement and proof: docs/privacy/subsampling.md, "The second account".
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import scipy
from numpy.typing import NDArray

from quoron_privacy.accounts import recount_once as one
from quoron_privacy.accounts.recount_once import FARTHEST, STEP, UNIT, Pair, gaussian
from quoron_privacy.errors import ConfigError, count, positive, probability
from quoron_privacy.release import Adjacency

Vector = NDArray[np.float64]
Integers = NDArray[np.int64]

_CUT = 1e-5  # of the δ that is asked about, in all rounds: chance of losses that count as infinite
_COARSE = 2e-3  # relative growth of δ that the lattice of losses may cost
_OUTSIDE = 1e-9  # of the tilted law of the sum: mass beside the window
_MOST = 1 << 22  # points of a transform
_RARE = 1e-32  # chances of numbers of own items that are not told apart


@lru_cache(maxsize=1024)
def replaced(rate: float, rounds: int, mu: float, epsilon: float, delta: float) -> float:
    """δ at ε, never below the truth, of μ-GDP rounds on uniform cohorts of a share `rate`; replace-one.

    What lies far below `delta`, which it is compared with, is not told apart.
    """
    _check(rate, rounds, epsilon, delta)
    positive(mu=mu)
    if rate == 1:
        return gaussian(math.sqrt(rounds) * mu, epsilon)
    return _composed((Pair(*_coin(rate, mu), folded=True),), rounds, epsilon, delta)


@lru_cache(maxsize=1024)
def absent(rate: float, rounds: int, mu: float, epsilon: float, delta: float) -> float:
    """δ at ε, never below the truth, of μ-GDP rounds that a user joins with chance `rate`; add/remove, zero-out."""
    _check(rate, rounds, epsilon, delta)
    positive(mu=mu)
    if rate == 1:
        return gaussian(math.sqrt(rounds) * mu, epsilon)
    return _composed(_both_ways(*_coin(rate, mu)), rounds, epsilon, delta)


@lru_cache(maxsize=256)
def items(rate: float, most: int, rounds: int, z: float, epsilon: float, delta: float, adjacency: Adjacency) -> float:
    """δ at ε, never below the truth, of rounds on items sampled with chance `rate`, of a user's at most `most`.

    `z` is the noise in units of one item's clip.
    """
    _check(rate, rounds, epsilon, delta)
    count(most=most)
    positive(z=z)
    ends = {"replace-one": 2, "zero-out": 1}.get(adjacency)
    if ends is None:
        raise ConfigError(f"Expected adjacency zero-out or replace-one, got adjacency={adjacency!r}.")
    if rate == 1:
        return gaussian(math.sqrt(rounds) * ends * most / z, epsilon)
    chances, numbers, lost = _binomial(most, rate)
    own = chances, numbers / z
    if ends == 2:
        return _composed((Pair(own, (chances, -numbers / z), lost),), rounds, epsilon, delta)
    left, right = _both_ways(own, (np.ones(1), np.zeros(1)))
    return _composed((Pair(left.left, left.right, lost), right), rounds, epsilon, delta)


def _check(rate: float, rounds: int, epsilon: float, delta: float) -> None:
    count(rounds=rounds)
    probability(delta=delta)
    positive(epsilon=epsilon)
    if not 0 < rate <= 1:
        raise ConfigError(f"Expected rate in (0, 1], got rate={rate}.")


def _coin(rate: float, mu: float) -> tuple[tuple[Vector, Vector], tuple[Vector, Vector]]:
    """The release of a user who joins by a coin, against that of nobody."""
    return (np.array([1 - rate, rate]), np.array([0.0, mu])), (np.ones(1), np.zeros(1))


def _both_ways(own: tuple[Vector, Vector], other: tuple[Vector, Vector]) -> tuple[Pair, Pair]:
    """A pair in both orders; the second is turned round, so that its loss grows with x, too."""
    return Pair(own, other), Pair((other[0], 0.0 - other[1]), (own[0], 0.0 - own[1]))


def _binomial(most: int, rate: float) -> tuple[Vector, Vector, float]:
    """Chances of numbers of own items, the numbers, and a bound on the chance of all that are left out.

    Each chance is a product of ratios from the likeliest number outwards: off by 4 roundings a step.
    """
    numbers = np.arange(most + 1, dtype=np.float64)
    ratios = (most - numbers[:-1]) / numbers[1:] * (rate / (1 - rate))
    mode = min(most, int((most + 1) * rate))
    chances = np.concatenate([np.cumprod(1 / ratios[:mode][::-1])[::-1], [1.0], np.cumprod(ratios[mode:])])
    kept = chances > _RARE
    return chances[kept] / chances[kept].sum(), numbers[kept], (most + 1) * _RARE


@dataclass(frozen=True, slots=True, eq=False)
class _Losses:
    """A law of one round's loss that is never below the true one: masses (k,) at whole multiples of a gap."""

    places: Integers
    masses: Vector
    gap: float
    lost: float  # mass of infinite loss
    off: float  # factor, as a logarithm, by which the left law may be larger than the one accounted for

    @property
    def values(self) -> Vector:
        return _times(self.places, self.gap)

    def growth(self, tilts: Vector) -> Vector:
        """ln E e^{tilt · loss} of what is finite, at each tilt (k,)."""
        exponents = tilts[:, None] * self.values
        top = exponents.max(axis=1, keepdims=True)
        found: Vector = top[:, 0] + np.log(np.exp(exponents - top) @ self.masses)
        return found


def _times(places: Integers, gap: float) -> Vector:
    found: Vector = places.astype(np.float64) * gap
    return found


def _losses(pair: Pair, gap: float, cut: float) -> _Losses:
    """Cells between losses that are multiples of `gap`, the mass of each at its two ends; never below the truth.

    Of large losses a mass of about `cut` counts as infinite.
    """
    x, known = one.table(pair, -float(scipy.special.ndtri(cut)))
    ends = np.unique(np.append(np.rint(known / gap), 0.0)).astype(np.int64)  # 0 is between two losses of any pair
    ends = ends[(ends * gap > known[0]) & (ends * gap < known[-1]) & ((ends >= 0) | (not pair.folded))]
    at, off = one.where(pair, ends * gap, x, known)
    edges = np.concatenate([[-np.inf], at, [np.inf]])
    (left, more), (right, less) = one.masses(pair.left, edges), one.masses(pair.right, edges)
    least, most = (_limit(pair, last=last) for last in (False, True))
    lost = pair.lost
    if math.isfinite(most):  # the last cell has two ends, too
        ends, at = np.append(ends, math.floor(most / gap + 1e-9) + 1), np.append(at, np.inf)
    else:
        lost += float(left[-1] + more[-1])
        left, more, right, less = left[:-1], more[:-1], right[:-1], less[:-1]
    if pair.folded:
        middle = max(left[0] - float(right[1:].sum()), 0.0) + more[0] + float(less.sum()) + len(less) * UNIT
        up = _split(_times(ends, gap), left[1:], more[1:], right[1:], less[1:], off)
        # A mirrored cell has the masses of the two laws exchanged.
        down = _split(_times(-ends[::-1], gap), right[:0:-1], less[:0:-1], left[:0:-1], more[:0:-1], off)
        places = np.concatenate([ends[:-1], ends[1:], -ends[:0:-1], -ends[-2::-1], [0]])
        return _cut(places, np.concatenate([*up, *down, [middle]]), gap, lost, off, cut)
    if math.isfinite(least):
        ends = np.insert(ends, 0, math.ceil(least / gap - 1e-9) - 1)
        places = np.concatenate([ends[:-1], ends[1:]])
        return _cut(
            places, np.concatenate(_split(_times(ends, gap), left, more, right, less, off)), gap, lost, off, cut
        )
    places = np.concatenate([ends[:1], ends[:-1], ends[1:]])
    masses = _split(_times(ends, gap), left[1:], more[1:], right[1:], less[1:], off)
    return _cut(places, np.concatenate([left[:1] + more[:1], *masses]), gap, lost, off, cut)


def _cut(places: Integers, masses: Vector, gap: float, lost: float, off: float, cut: float) -> _Losses:
    """The law without its largest losses, of a mass of at most `cut`, which count as infinite; one mass a place."""
    places, same = np.unique(places, return_inverse=True)
    masses = np.bincount(same.ravel(), weights=masses).astype(np.float64)
    places, masses = places[masses > 0], masses[masses > 0]
    above = np.cumsum(masses[::-1])[::-1]
    kept = int(np.count_nonzero(above > cut))
    return _Losses(places[:kept], masses[:kept], gap, lost + (float(above[kept]) if kept < len(above) else 0.0), off)


def _limit(pair: Pair, *, last: bool) -> float:
    """What the loss comes near at an end of the line: ±∞ unless both laws have the same outermost shift there."""
    place = (np.argmax if last else np.argmin)(pair.left[1]), (np.argmax if last else np.argmin)(pair.right[1])
    if pair.left[1][place[0]] != pair.right[1][place[1]]:
        return math.inf if last else -math.inf
    return float(np.log(pair.left[0][place[0]]) - np.log(pair.right[0][place[1]]))


def _split(
    losses: Vector, left: Vector, more: Vector, right: Vector, less: Vector, off: float
) -> tuple[Vector, Vector]:
    """The left mass of each cell at its lower and its upper end: as keeps both laws' masses, and more of it above."""
    first, width = losses[:-1], np.diff(losses)
    growth = np.exp(np.minimum(first, 700.0))  # beyond, more goes to the upper end than has to
    lower = growth * right
    wrong = more + growth * less + (off + 4 * UNIT * (2 + np.abs(first))) * (left + lower)
    whole = left + more
    above = np.clip((left - lower + wrong) / -np.expm1(-width) * (1 + 8 * UNIT), 0.0, whole)
    return whole - above, above


def _composed(pairs: tuple[Pair, ...], rounds: int, epsilon: float, delta: float) -> float:
    """δ at ε of all rounds, the worst of some orders of the pair."""
    if any(np.ptp(np.concatenate([pair.left[1], pair.right[1]])) > FARTHEST for pair in pairs):
        return 1.0
    return max(_one_order(pair, rounds, epsilon, delta) for pair in pairs)


def _one_order(pair: Pair, rounds: int, epsilon: float, delta: float) -> float:
    """One pair: `rounds` times, by a lattice as fine as its own tilt asks for."""
    if rounds == 1:  # above 0 a folded pair has the profile of the one that it is made of
        return one.once(pair, epsilon)
    cut = _CUT * delta / rounds
    rough = _losses(pair, _rough_gap(pair, cut), cut)
    if rounds * float(rough.values[-1]) <= epsilon:
        return min(1.0, rounds * rough.lost + 1e-300)
    tilt = _tilt(rough, rounds, epsilon)
    # Of losses that are rare δ changes over ε, or over what the sum usually is, however small the tilt.
    steep = tilt + 1 / max(epsilon, 2.5 * math.sqrt(rounds) * one.once(pair, 0.0))
    gap = math.sqrt(8 * _COARSE / (rounds * steep * (steep + 1)))
    return _tail_of_sum(_losses(pair, gap, cut), rounds, epsilon, tilt, _CUT * delta)


def _rough_gap(pair: Pair, cut: float) -> float:
    """A two-hundredth of a round's typical loss."""
    x, known = one.table(pair, -float(scipy.special.ndtri(cut)))
    weights = (
        STEP
        / math.sqrt(2 * math.pi)
        * sum(chance * np.exp(-0.5 * (x - shift) ** 2) for chance, shift in zip(*pair.left, strict=True))
    )
    return float(np.sqrt(weights @ known**2)) / 200


def _tilt(losses: _Losses, rounds: int, epsilon: float) -> float:
    """About where T ln E e^{tilt · loss} - tilt · ε - ln(tilt (tilt + 1)) is least; every tilt is sound."""
    low, high = math.log(1e-3), math.log(1e7)

    def height(log: float) -> float:
        tilt = math.exp(log)
        return rounds * float(losses.growth(np.array([tilt]))[0]) - tilt * epsilon - math.log(tilt) - math.log1p(tilt)

    share = (math.sqrt(5) - 1) / 2
    for _ in range(30):
        first, second = high - share * (high - low), low + share * (high - low)
        low, high = (low, second) if height(first) < height(second) else (first, high)
    return math.exp((low + high) / 2)


def _tail_of_sum(losses: _Losses, rounds: int, epsilon: float, tilt: float, above: float) -> float:
    """E (1 - e^{ε - sum})_+ of `rounds` independent losses, never below the truth; `above`: chance of the largest."""
    [log_growth] = losses.growth(np.array([tilt]))
    tilted = losses.masses * np.exp(tilt * losses.values - log_growth)
    bottom, top = _window(losses, rounds, tilt, float(log_growth), above)
    size = 1 << max(4, math.ceil(math.log2(max(top - bottom + 1, 2))))
    if size > _MOST:
        return 1.0
    array = np.bincount(losses.places % size, weights=tilted, minlength=size).astype(np.float64)
    array /= (total := array.sum())
    spectrum = scipy.fft.rfft(array)
    power = _power(spectrum, rounds)
    sums = scipy.fft.irfft(power, size)

    level = epsilon - rounds * losses.off
    start = math.floor(level / losses.gap) + 1
    places = np.arange(max(start, bottom), top + 1)
    beyond = places * losses.gap - level
    weights = np.exp(-tilt * beyond) * -np.expm1(-beyond)
    seen = float(weights @ sums[places % size])
    seen += _transform_error(array, spectrum, power, rounds) * float(weights.sum())
    seen += _OUTSIDE if start < bottom else 0.0
    log_scale = rounds * (log_growth + math.log(total)) - tilt * level
    exponents = float(np.abs(tilt * losses.values).max())
    rounding = rounds * (2 * losses.off + (len(losses.places) + 64 + exponents) * 4 * UNIT) + 1e-9
    found = math.exp(min(log_scale + math.log(max(seen, 1e-300)) + rounding, 1.0))
    return min(1.0, found + above + rounds * losses.lost + 1e-300)


def _window(losses: _Losses, rounds: int, tilt: float, log_growth: float, above: float) -> tuple[int, int]:
    """Places from which to which the sum's law is looked at: Markov's inequality for powers, the best of some.

    Above it is `above` of the law itself. On either side is _OUTSIDE of the tilted law, which only comes out too large.
    """
    weights = losses.masses * np.exp(tilt * losses.values - log_growth)
    mean = float(weights @ losses.values)
    deviation = math.sqrt(rounds * float(weights @ (losses.values - mean) ** 2))
    more = np.geomspace(0.02, 40, 28) / deviation
    up, down = np.concatenate([tilt * np.linspace(0.5, 1, 6), tilt + more]), tilt - more
    top = float(np.min((rounds * losses.growth(up) - math.log(above)) / up))
    far = float(np.min((rounds * (losses.growth(tilt + more) - log_growth) - math.log(_OUTSIDE)) / more))
    bottom = float(np.max((rounds * (log_growth - losses.growth(down)) + math.log(_OUTSIDE)) / more))
    return math.floor(bottom / losses.gap), math.ceil(max(top, far) / losses.gap)


def _power(values: NDArray[np.complex128], exponent: int) -> NDArray[np.complex128]:
    """values ** exponent by squaring: a share of (exponent - 1) √5 2⁻⁵³ of rounding at most."""
    found: NDArray[np.complex128] | None = None
    square = values
    while True:
        if exponent & 1:
            found = square if found is None else found * square
        exponent >>= 1
        if not exponent:
            assert found is not None
            return found
        square = square * square


def _transform_error(
    array: Vector, spectrum: NDArray[np.complex128], power: NDArray[np.complex128], rounds: int
) -> float:
    """Most by which rounding of both transforms and of the power moves any one place of the sum's law."""
    size = len(array)
    each = 16 * math.log2(size) * UNIT  # of the norm of a transform (Higham 2002, theorem 24.2, twice the constant)
    first = each * math.sqrt(size) * float(np.linalg.norm(array))  # norm of the error in the spectrum
    slope = rounds * np.exp((rounds - 1) * np.log(np.abs(spectrum) + first))
    norm = math.sqrt(2) * float(np.linalg.norm(power))  # of all of it: half is stored
    by_first = math.sqrt(2) * float(np.linalg.norm(slope)) * first / size
    by_power = 3 * rounds * UNIT * 2 * float(np.abs(power).sum()) / size
    return by_first + by_power + each * norm / math.sqrt(size)
