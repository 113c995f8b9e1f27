"""Laws of privacy loss and their sums: δ at ε of independent stages, certified from above.

    >>> bool(0.99e-6 < gaussian(0.2367, np.array([1.0]))[0] <= 1e-6)
    True

A release is a pair of Gaussian mixtures (`Mixtures`) or has finitely many losses (`Atoms`). Losses are put on a lattice
(`above`) and added up (`most`). Function `exactly` composes all stages of a pair under one tilt, which is exact about
one ε. Function `lattice` looks at the same sum under several. What is rounded or cut off is bounded and added.

Statement and proof: docs/privacy/pairs.md#pl1, pairs.md#pl2 and pairs.md#pl4.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np
import scipy
from numpy.typing import NDArray

from quoron_privacy.arrays import Integers, Vector
from quoron_privacy.errors import ConfigError, positive
from quoron_privacy.release import Adjacency

Complexes = NDArray[np.complex128]

UNIT = 2.0**-53
_BELOW = 8.5  # and below so many, 1e-17, a loss counts as that of the edge
STEP = 2e-3  # of x, between two points of a table, in standard deviations
FARTHEST = 100.0  # standard deviations between shifts, beyond which laws count as fully distinguishable

_SUMS = 512  # of atoms, up to which each is gone through

CUT = 1e-5  # of the δ that is asked about, in all rounds: chance of losses that count as infinite
_COARSE = 2e-3  # relative growth of δ that the lattice of losses may cost
OUTSIDE = 1e-9  # of the tilted law of the sum: mass beside the window, on either side
_SEEN = 1e-4  # of what is seen of the tilted law, the same at most
_MOST = 1 << 22  # points of a transform
_WIDER = 4  # gaps tried, each twice as wide, where the transform would be longer
_JUMPS = 6  # of one law, losses so large that few of them make up δ
_CHOICES = 64  # of how many of each law are large

_TILTS = 9  # of a lattice, from that of the least δ downwards, and none at all
_LONGEST = 1 << 20  # its places
_ANY = 1e-4  # gap of what has no losses
_LESS_STEEP = 10  # how often less steep a tilt is tried

_SHARE = 1e-11  # of δ: rounding of sums over atoms
_LARGEST = 1e3  # ε beyond which none is looked for
_NOBODY = np.ones(1), np.zeros(1)


@dataclass(frozen=True, slots=True)
class Sampled:
    """A μ-GDP release of a secret cohort: uniform of a fixed size (replace-one), or joined by coins (zero-out)."""

    rate: float
    mu: float
    adjacency: Adjacency


@dataclass(frozen=True, slots=True)
class Coins:
    """A μ-GDP release of a secret cohort that is joined by coins, where a user is there in both worlds, and moved."""

    rate: float
    mu: float  # of a user who is there against absent
    adjacency: Adjacency = "replace-one"


@dataclass(frozen=True, slots=True)
class Response:
    """Whatever is (ε, 0)-DP: randomised response between two answers is the worst of it."""

    epsilon: float
    adjacency: Adjacency = "none"


@dataclass(frozen=True, slots=True)
class Table:
    """A law of losses that others certify, the same in both orders."""

    losses: tuple[float, ...]
    masses: tuple[float, ...]
    infinite: float
    adjacency: Adjacency = "none"


Stage = Sampled | Coins | Response | Table
Stages = tuple[tuple[Stage, int], ...]  # each with how often it is there


@dataclass(frozen=True, slots=True, eq=False)
class Mixtures:
    """Two mixtures of unit Gaussians on the line, the left one nowhere to the left of the right one.

    Their loss, the logarithm of left over right, does not fall with x.
    """

    left: tuple[Vector, Vector]  # chances, shifts
    right: tuple[Vector, Vector]
    folded: bool = False  # the losses above 0 of both laws, their mirror images, and what is left over at 0

    @property
    def too_far(self) -> bool:
        """Whether the laws count as fully distinguishable."""
        return bool(np.ptp(np.concatenate([self.left[1], self.right[1]])) > FARTHEST)


def gaussian(mu: float, epsilons: Vector) -> Vector:
    """Return δ at each ε (k,), of any sign, of a μ-GDP release: never below the truth, and hardly above it."""
    positive(mu=mu)
    if mu > FARTHEST:
        return np.ones(len(epsilons))
    at = epsilons / mu + mu / 2  # where the loss is ε, in standard deviations from the right law
    near = epsilons / mu - mu / 2
    own, off = _above(near)
    # e^ε times the right law's tail by the left law's density: neither factor is ever too large.
    size = np.maximum(at, 0.0)
    density = np.exp(-0.5 * near * near)
    with np.errstate(over="ignore", invalid="ignore"):
        far = 0.5 * scipy.special.erfcx(size / math.sqrt(2)) * density
        right = np.where(at >= 0, far, np.exp(np.minimum(epsilons, 0.0)) * _above(np.minimum(at, 0.0))[0])
    wrong = off + (64 + 8 * np.abs(epsilons) + 4 * near * near + 4 * np.minimum(at * at, 1e4)) * UNIT * (own + right)
    most: Vector = np.clip(own - right + wrong + 1e-300, 0.0, 1.0)
    return most


def _above(t: Vector) -> tuple[Vector, Vector]:
    """P(N(0, 1) > t), and what rounding did to it at most."""
    tail, off = _normal_tail(t)
    return np.where(t >= 0, tail, 1 - tail), off + np.where(t >= 0, 0.0, UNIT)


def loss(pair: Mixtures, x: Vector) -> tuple[Vector, Vector, float]:
    """Return the logarithm of left over right at each x (k,), its slope, and a bound on the rounding of the former."""
    (left, left_slope, one), (right, right_slope, other) = (_log_density(law, x) for law in (pair.left, pair.right))
    return left - right, left_slope - right_slope, one + other


def _log_density(law: tuple[Vector, Vector], x: Vector) -> tuple[Vector, Vector, float]:
    """Return ln Σ w_j exp(s_j x - s_j²/2), its slope and its rounding, by one component after the other."""
    logs = np.log(law[0])
    top = np.full(len(x), -np.inf)
    for weight, shift in zip(logs, law[1], strict=True):
        np.maximum(top, weight + shift * (x - shift / 2), out=top)
    total, slope = np.zeros(len(x)), np.zeros(len(x))
    for weight, shift in zip(logs, law[1], strict=True):
        term = np.exp(weight + shift * (x - shift / 2) - top)
        total += term
        slope += shift * term
    largest = float(np.abs(logs).max() + np.abs(law[1]).max() * (np.abs(x).max() + np.abs(law[1]).max()))
    return top + np.log(total), slope / total, (8 + 8 * len(logs) + 4 * largest) * UNIT


def _normal_tail(t: Vector) -> tuple[Vector, Vector]:
    """P(N(0, 1) > |t|), and a bound on what rounding did to it: a share of (16 + t²) 2⁻⁵³."""
    size = np.minimum(np.abs(t), 38.0)  # beyond, the chance is below 1e-315
    found = 0.5 * scipy.special.erfcx(size / math.sqrt(2)) * np.exp(-0.5 * size * size)
    return found, (16 + size * size) * UNIT * found


def masses(law: tuple[Vector, Vector], edges: Vector) -> tuple[Vector, Vector]:
    """Mass of a law between neighbouring edges (k,), which may be infinite at the ends, and what rounding did to it."""
    mass, wrong = np.zeros(len(edges) - 1), np.zeros(len(edges) - 1)
    for chance, shift in zip(*law, strict=True):
        t = edges - shift
        tail, off = _normal_tail(t)
        first, last = tail[:-1], tail[1:]
        inside = np.where(t[:-1] >= 0, first - last, np.where(t[1:] <= 0, last - first, 1 - first - last))
        mass += chance * np.maximum(inside, 0.0)
        wrong += chance * (off[:-1] + off[1:] + 4 * UNIT * np.maximum(inside, 0.0))
    return mass, wrong + 8 * len(law[0]) * UNIT * mass


def once(pair: Mixtures, epsilon: float) -> float:
    """Return δ at ε >= 0 of a release, never below the truth: left less e^ε right, for losses above."""
    x, known = table(pair, 12.0)
    if epsilon >= known[-1]:
        return min(1.0, float(masses(pair.left, np.array([x[-1], np.inf]))[0][0]) + 1e-300)
    at, off = where(pair, np.array([epsilon]), x, known)
    before = at[0] - 2 * STEP
    edges = np.array([before, at[0], np.inf])
    (left, more), (right, less) = masses(pair.left, edges), masses(pair.right, edges)
    # Between `at` and where the loss is ε it is within `off` of ε: what is counted wrongly there is a share of left.
    doubtful = left.sum() if loss(pair, edges[:1])[0][0] <= epsilon else 1.0
    rounded = float(more[1] + math.exp(epsilon) * (less[1] + 4 * UNIT * (1 + epsilon) * right[1]))
    found = float(left[1] - math.exp(epsilon) * right[1])
    return min(1.0, max(0.0, found) + rounded + 2 * off * float(doubtful) + 1e-300)


def table(pair: Mixtures, reach: float) -> tuple[Vector, Vector]:
    """Points on the line, up to `reach` beyond all shifts, and the losses there."""
    low = min(float(pair.left[1].min()), float(pair.right[1].min())) - _BELOW
    x = np.arange(low, float(pair.left[1].max()) + reach, STEP)
    losses, _, _ = loss(pair, x)
    return x, np.maximum.accumulate(losses)


def where(pair: Mixtures, losses: Vector, x: Vector, known: Vector) -> tuple[Vector, float]:
    """Return where the loss is as wished, by Newton's steps from a table, and how far off it is there at most."""
    at = np.interp(losses, known, x)
    low, high = at - 2 * STEP, at + 2 * STEP
    for _ in range(3):
        found, slope, _ = loss(pair, at)
        at = np.clip(at + (losses - found) / np.maximum(slope, 1e-300), low, high)
    at = np.maximum.accumulate(at)
    found, _, wrong = loss(pair, at)
    return at, float(np.abs(found - losses).max()) + wrong


def limit(pair: Mixtures, *, last: bool) -> float:
    """Return the loss's limit at an end of the line: ±∞ unless both laws have the same outermost shift there."""
    place = (np.argmax if last else np.argmin)(pair.left[1]), (np.argmax if last else np.argmin)(pair.right[1])
    if pair.left[1][place[0]] != pair.right[1][place[1]]:
        return math.inf if last else -math.inf
    return float(np.log(pair.left[0][place[0]]) - np.log(pair.right[0][place[1]]))


@dataclass(frozen=True, slots=True, eq=False)
class Atoms:
    """Finitely many losses (k,), ascending where they are given, their masses, and the mass of infinite loss."""

    losses: Vector
    masses: Vector
    lost: float = 0.0


def all_sums(parts: Sequence[tuple[Atoms, int]]) -> Atoms | None:
    """Return every sum of what has atoms alone, but for a share 1e-11 of each mass; None where those are many."""
    losses, masses, lost = np.zeros(1), np.ones(1), 0.0
    for atoms, times in parts:
        if len(losses) * (len(atoms.losses) if times == 1 else times + 1) > _SUMS or (
            times > 1 and len(atoms.losses) > 2
        ):
            return None
        own, weights = (atoms.losses, atoms.masses) if times == 1 else _of_two(atoms, times)
        losses, masses = np.add.outer(losses, own).ravel(), np.multiply.outer(masses, weights).ravel()
        for _ in range(times if atoms.lost else 0):
            lost += atoms.lost - lost * atoms.lost  # of one stage alone exactly its own
    return Atoms(losses, masses, lost)


def _of_two(atoms: Atoms, times: int) -> tuple[Vector, Vector]:
    """Sums of one or two atoms, drawn so often, and their masses."""
    if len(atoms.losses) == 1:
        return times * atoms.losses, atoms.masses**times
    numbers = np.arange(times + 1, dtype=np.float64)
    chosen = scipy.special.gammaln(times + 1) - scipy.special.gammaln(numbers + 1)
    chosen -= scipy.special.gammaln(times - numbers + 1)
    first, second = np.log(atoms.masses)
    logs: Vector = chosen + (times - numbers) * first + numbers * second
    return (times - numbers) * atoms.losses[0] + numbers * atoms.losses[1], np.exp(logs)


@dataclass(frozen=True, slots=True, eq=False)
class Losses:
    """A law of one release's loss: masses (k,) at whole multiples of a gap, and the mass of infinite loss."""

    places: Integers
    masses: Vector
    gap: float
    lost: float
    off: float = 0.0  # factor, as a logarithm, by which the left law may be larger than the one accounted for

    @property
    def values(self) -> Vector:
        """The losses themselves."""
        return _times(self.places, self.gap)

    def where(self, kept: NDArray[np.bool_]) -> "Losses":
        """Return the same with some of its places (k,) alone."""
        return replace(self, places=self.places[kept], masses=self.masses[kept])

    def growth(self, tilts: Vector) -> Vector:
        """Return ln E e^{tilt · loss} of what is finite, at each tilt (k,)."""
        exponents = np.outer(tilts, self.values)
        top = exponents.max(axis=1, keepdims=True)
        found: Vector = top[:, 0] + np.log(np.exp(exponents - top) @ self.masses)
        return found


def above(law: Mixtures | Atoms, gap: float, cut: float) -> Losses:
    """Return a law that is never below the true one. Of large losses a mass of about `cut` counts as infinite."""
    if isinstance(law, Atoms):
        first = np.floor(law.losses / gap).astype(np.int64)
        masses, losses = law.masses, _times(first, gap)
        other = masses * np.exp(np.minimum(-law.losses, 700.0))  # beyond, all goes to the upper end
        zero = np.zeros(len(masses))
        width = np.full(len(masses), gap)
        low, high = _split(losses, width, masses, 4 * UNIT * masses, other, zero, 2 * UNIT)
        return _cut(np.concatenate([first, first + 1]), np.concatenate([low, high]), gap, law.lost, 0.0, cut)
    x, known = table(law, -float(scipy.special.ndtri(cut)))
    near = np.unique(np.rint(known / gap)).astype(np.int64)  # next to a loss of the table
    ends = np.unique(np.append(near, 0))  # 0 is between two losses of any pair
    ends = ends[(ends * gap > known[0]) & (ends * gap < known[-1]) & ((ends >= 0) | (not law.folded))]
    at, off = where(law, ends * gap, x, known)
    least, most = (limit(law, last=last) for last in (False, True))
    lost = 0.0
    if math.isfinite(most):  # the last cell has two ends, too
        (left, more), (right, less) = _cells(law, at)
        ends = np.append(ends, math.floor(most / gap + 1e-9) + 1)
    else:  # so has what is below the largest loss of the table
        ends, at = np.append(ends, math.floor(known[-1] / gap) + 1), np.append(at, max(float(x[-1]), *at[-1:]))
        (left, more), (right, less) = _cells(law, at)
        lost = float(left[-1] + more[-1])
        left, more, right, less = left[:-1], more[:-1], right[:-1], less[:-1]
    if law.folded:
        middle = max(left[0] - float(right[1:].sum()), 0.0) + more[0] + float(less.sum()) + len(less) * UNIT
        up = _between(_times(ends, gap), left[1:], more[1:], right[1:], less[1:], off)
        # A mirrored cell has the masses of the two laws exchanged.
        down = _between(_times(-ends[::-1], gap), right[:0:-1], less[:0:-1], left[:0:-1], more[:0:-1], off)
        places = np.concatenate([ends[:-1], ends[1:], -ends[:0:-1], -ends[-2::-1], [0]])
        return _cut(places, np.concatenate([*up, *down, [middle]]), gap, lost, off, cut)
    if math.isfinite(least):
        ends = np.insert(ends, 0, math.ceil(least / gap - 1e-9) - 1)
        split = _between(_times(ends, gap), left, more, right, less, off)
        return _cut(np.concatenate([ends[:-1], ends[1:]]), np.concatenate(split), gap, lost, off, cut)
    places = np.concatenate([ends[:1], ends[:-1], ends[1:]])
    split = _between(_times(ends, gap), left[1:], more[1:], right[1:], less[1:], off)
    return _cut(places, np.concatenate([left[:1] + more[:1], *split]), gap, lost, off, cut)


def _cells(law: Mixtures, at: Vector) -> tuple[tuple[Vector, Vector], tuple[Vector, Vector]]:
    edges = np.concatenate([[-np.inf], at, [np.inf]])
    return masses(law.left, edges), masses(law.right, edges)


def _times(places: Integers, gap: float) -> Vector:
    found: Vector = places.astype(np.float64) * gap
    return found


def _cut(places: Integers, masses: Vector, gap: float, lost: float, off: float, cut: float) -> Losses:
    """The law without its largest losses, of a mass of at most `cut`, which count as infinite; one mass a place."""
    places, same = np.unique(places, return_inverse=True)
    masses = np.bincount(same.ravel(), weights=masses).astype(np.float64)
    places, masses = places[masses > 0], masses[masses > 0]
    far = np.cumsum(masses[::-1])[::-1]
    kept = int(np.count_nonzero(far > cut))
    return Losses(places[:kept], masses[:kept], gap, lost + (float(far[kept]) if kept < len(far) else 0.0), off)


def _between(
    losses: Vector, left: Vector, more: Vector, right: Vector, less: Vector, off: float
) -> tuple[Vector, Vector]:
    """`_split` of cells whose ends are neighbours (k+1,)."""
    return _split(losses[:-1], np.diff(losses), left, more, right, less, off)


def _split(
    first: Vector, width: Vector, left: Vector, more: Vector, right: Vector, less: Vector, off: float
) -> tuple[Vector, Vector]:
    """The left mass of each cell at its lower and its upper end: as keeps both laws' masses, and more of it above."""
    growth = np.exp(np.minimum(first, 700.0))  # beyond, more goes to the upper end than has to
    lower = growth * right
    wrong = more + growth * less + (off + 4 * UNIT * (2 + np.abs(first))) * (left + lower)
    whole = left + more
    upper = np.clip((left - lower + wrong) / -np.expm1(-width) * (1 + 8 * UNIT), 0.0, whole)
    return whole - upper, upper


Parts = Sequence[tuple[Mixtures | Atoms, int]]  # laws of losses, and how often each is there
Laws = Sequence[tuple[Losses, int]]


def most(parts: Parts, epsilon: float, near: float) -> float:
    """Return δ at ε of all `parts` together, never below the truth; values far below `near` are not resolved.

    That is E (1 - e^{ε - sum})_+, by a Fourier transform of the tilted laws: as exact far out in the tail as in the
    middle.
    """
    if any(isinstance(law, Mixtures) and law.too_far for law, _ in parts):
        return 1.0
    rounds = sum(times for _, times in parts)
    cut = CUT * near / rounds
    tilt = tilted(parts, epsilon, cut)
    if tilt is None:
        return min(1.0, lost([(above(law, _rough_gap(law, cut), cut), times) for law, times in parts]) + 1e-300)
    gap = gap_for(parts, epsilon, tilt)
    for _ in range(_WIDER):
        laws = [(above(law, gap, cut), times) for law, times in parts]
        level = epsilon - sum(times * law.off for law, times in laws)
        tail = _tail(laws, level, tilt, CUT * near)
        if tail is not None:
            break
        gap *= 2
    else:
        return 1.0
    found = tail.most
    if tail.wrong > _SEEN * tail.seen:
        found = min(found, _most_by_jumps(laws, level, CUT * near))
    return min(1.0, found + CUT * near + lost(laws) + 1e-300)


def _most_by_jumps(laws: Laws, level: float, chance: float) -> float:
    """The tail of the sum beyond `level`, never below the truth, by how many of its losses are above a quarter of that.

    Each number of large losses is looked at under its own tilt. Of each law the masses of both kinds are kept as they
    are: times the number of ways to choose them they add up to the whole. 1 where more than a few large losses together
    have a chance above `chance`, and where there are none.
    """
    choices: list[tuple[int, list[tuple[Losses, int]]]] = [(1, [])]
    more, whole = 0.0, 0.0  # chance of more large ones than are gone through, at most
    for law, times in laws:
        large = law.values > level / 4
        mass = float(law.masses[large].sum()) * (1 + 1e-9)
        whole += times * max(0.0, math.log(math.fsum(law.masses)) + 4 * UNIT)
        numbers = [0, 1] if times == 1 else list(range(min(times, _JUMPS) + 1))
        bounds = [math.comb(times, number + 1) * mass ** (number + 1) for number in numbers]
        if not 0 < np.count_nonzero(large) < len(large):
            choices = [(ways, [*chosen, (law, times)]) for ways, chosen in choices]
            continue
        kept = next((number for number, bound in zip(numbers, bounds, strict=True) if bound <= chance), None)
        if kept is None or len(choices) * (kept + 1) > _CHOICES:
            return 1.0
        more += bounds[kept]
        small, big = law.where(~large), law.where(large)
        choices = [
            (ways * math.comb(times, k), [*chosen, *((part, n) for part, n in ((small, times - k), (big, k)) if n)])
            for ways, chosen in choices
            for k in range(kept + 1)
        ]
    if len(choices) == 1:
        return 1.0
    total = more * math.exp(whole) * (1 + 1e-9)
    for ways, chosen in choices:
        if (tilt := _best_tilt(chosen, level)) is None:
            continue
        if (tail := _tail(chosen, level, tilt, chance / ways)) is None:
            return 1.0
        total += ways * tail.most * (1 + 1e-12) + chance
    return total


def lost(laws: Laws) -> float:
    """Return the chance of any infinite loss, rounded up."""
    if any(law.lost >= 1 for law, _ in laws):
        return 1.0
    return -math.expm1(sum(times * math.log1p(-law.lost) for law, times in laws)) * (1 + 1e-12)


def tilted(parts: Parts, epsilon: float, cut: float) -> float | None:
    """About the tilt at which the sum lies about ε, by rough laws; None if no sum does. Every tilt is sound."""
    return _best_tilt([(above(law, _rough_gap(law, cut), cut), times) for law, times in parts], epsilon)


def _best_tilt(rough: Laws, epsilon: float) -> float | None:
    if sum(times * float(law.values[-1]) for law, times in rough) <= epsilon:
        return None
    low, high = math.log(1e-3), math.log(1e7)

    def height(log: float) -> float:
        tilt = math.exp(log)
        growth = sum(times * float(law.growth(np.array([tilt]))[0]) for law, times in rough)
        return growth - tilt * epsilon - math.log(tilt) - math.log1p(tilt)

    share = (math.sqrt(5) - 1) / 2
    for _ in range(22):
        first, second = high - share * (high - low), low + share * (high - low)
        low, high = (low, second) if height(first) < height(second) else (first, high)
    return math.exp((low + high) / 2)


def _rough_gap(law: Mixtures | Atoms, cut: float) -> float:
    """Return a two-hundredth of a round's typical loss."""
    if isinstance(law, Atoms):
        return max(float(np.sqrt(law.masses @ law.losses**2)) / 200, 1e-12)
    x, known = table(law, -float(scipy.special.ndtri(cut)))
    density = sum(chance * np.exp(-0.5 * (x - shift) ** 2) for chance, shift in zip(*law.left, strict=True))
    return float(np.sqrt(STEP / math.sqrt(2 * math.pi) * density @ known**2)) / 200


def gap_for(parts: Parts, epsilon: float, tilt: float) -> float:
    """So fine that the lattice costs a share _COARSE of δ; on it lie the losses of the commonest law of two atoms.

    Of losses that are rare δ changes over ε, or over what the sum usually is, however small the tilt.
    """
    usual = math.hypot(*(math.sqrt(times) * 2.5 * _apart(law) for law, times in parts))
    steep, rounds = tilt + 1 / max(epsilon, usual, 1e-9), sum(times for _, times in parts)
    gap = math.sqrt(8 * _COARSE / (rounds * steep * (steep + 1)))
    pure = [(times, float(law.losses[-1])) for law, times in parts if isinstance(law, Atoms) and len(law.losses) == 2]
    if not pure:
        return gap
    loss = max(pure)[1]
    return loss / max(1, math.ceil(loss / gap))


def _apart(law: Mixtures | Atoms) -> float:
    """Return the total variation between the two laws, about."""
    if isinstance(law, Atoms):
        return float(law.masses @ -np.expm1(-np.maximum(law.losses, 0.0))) + law.lost
    return once(law, 0.0)


@dataclass(frozen=True, slots=True)
class _Tail:
    """E (1 - e^{level - sum})_+ of what is finite, as e^scale times what is seen of the tilted law."""

    seen: float
    wrong: float  # most by which that is off either way
    scale: float
    rounding: float  # the same of all of it, as a logarithm

    @property
    def most(self) -> float:
        """What it is at most."""
        return math.exp(min(self.scale + math.log(max(self.seen + self.wrong, 1e-300)) + self.rounding, 1.0))


def _tail(laws: Laws, level: float, tilt: float, above: float) -> _Tail | None:
    """Return the tail of the sum beyond `level`; `above`: chance of sums not to be looked at. None: too long."""
    gap = laws[0][0].gap
    growths = [float(law.growth(np.array([tilt]))[0]) for law, _ in laws]
    bottom, top = window(laws, growths, tilt, above)
    size = 1 << max(4, math.ceil(math.log2(max(top - bottom + 1, 2))))
    if size > _MOST:
        return None
    sums, total, error = power(laws, growths, tilt, size)
    start = math.floor(level / gap) + 1
    places = np.arange(max(start, bottom), top + 1)
    beyond = places * gap - level
    weights = np.exp(-tilt * beyond) * -np.expm1(-beyond)
    wrong = error * float(weights.sum()) + (start < bottom) * OUTSIDE
    scale = sum(times * growth for growth, (_, times) in zip(growths, laws, strict=True)) + total - tilt * level
    return _Tail(float(weights @ sums[places % size]), wrong, scale, rounding(laws, tilt))


def rounding(laws: Laws, tilt: float) -> float:
    """Return a bound on what tilting and adding up change, as a logarithm."""
    return 1e-9 + sum(
        times * (2 * law.off + (len(law.places) + 64 + float(np.abs(tilt * law.values).max())) * 4 * UNIT)
        for law, times in laws
    )


def window(laws: Laws, growths: Sequence[float], tilt: float, above: float | None) -> tuple[int, int]:
    """Places from which to which the sum's law is looked at: Markov's inequality for powers, the best of some.

    Above it is `above` of the law itself. On either side is OUTSIDE of the tilted law.
    """

    def grown(tilts: Vector) -> Vector:
        return np.asarray(sum(times * law.growth(tilts) for law, times in laws))

    now = sum(times * growth for growth, (_, times) in zip(growths, laws, strict=True))
    variance = 0.0  # of the tilted sum
    for growth, (law, times) in zip(growths, laws, strict=True):
        weights = law.masses * np.exp(tilt * law.values - growth)
        own = float(weights @ law.values)
        variance += times * float(weights @ (law.values - own) ** 2)
    deviation = max(math.sqrt(variance), laws[0][0].gap)
    more = np.geomspace(0.02, 40, 28) / deviation
    up, down = np.concatenate([tilt * np.linspace(0.5, 1, 6), tilt + more]), tilt - more
    up = up[up > 0]
    top = float(np.min((grown(tilt + more) - now - math.log(OUTSIDE)) / more))
    if above is not None:
        top = max(top, float(np.min((grown(up) - math.log(above)) / up)))
    bottom = float(np.max((now - grown(down) + math.log(OUTSIDE)) / more))
    return math.floor(bottom / laws[0][0].gap), math.ceil(top / laws[0][0].gap)


def power(laws: Laws, growths: Sequence[float], tilt: float, size: int) -> tuple[Vector, float, float]:
    """Return the tilted sum's law around a circle, ln of a factor to it, and how far rounding moves a place at most."""
    each = 16 * math.log2(size) * UNIT  # of the norm of a transform (Higham 2002, theorem 24.2, twice the constant)
    total, product, spectra = 0.0, np.ones(size // 2 + 1, np.complex128), []
    for growth, (law, times) in zip(growths, laws, strict=True):
        weights = law.masses * np.exp(tilt * law.values - growth)
        array = np.bincount(law.places % size, weights=weights, minlength=size).astype(np.float64)
        array /= (mass := float(array.sum()))
        total += times * math.log(mass)
        spectrum = scipy.fft.rfft(array)
        first = each * math.sqrt(size) * float(np.linalg.norm(array))  # norm of the error in the spectrum
        spectra.append((np.log(np.abs(spectrum) + first), first, times))
        product = product * _raised(spectrum, times)
    logs = sum(times * log for log, _, times in spectra)
    by_first = sum(
        times * first * math.sqrt(2) * float(np.linalg.norm(np.exp(logs - log))) / size for log, first, times in spectra
    )
    rounds = sum(times for _, _, times in spectra)
    norm = math.sqrt(2) * float(np.linalg.norm(product))  # of all of it: half is stored
    by_power = 3 * rounds * UNIT * 2 * float(np.abs(product).sum()) / size
    return scipy.fft.irfft(product, size), total, by_first + by_power + each * norm / math.sqrt(size)


def _raised(values: Complexes, exponent: int) -> Complexes:
    """values ** exponent by squaring: a share of (exponent - 1) √5 2⁻⁵³ of rounding at most."""
    found, square = np.ones_like(values), values
    while exponent:
        if exponent & 1:
            found = found * square
        exponent >>= 1
        if exponent:
            square = square * square
    return found


def laws(stage: Stage) -> tuple[Mixtures | Atoms, ...]:
    """Of its loss in both orders of the neighbours; two equal ones are one."""
    if isinstance(stage, Sampled):
        own = np.array([1 - stage.rate, stage.rate]), np.array([0.0, stage.mu])
        return (Mixtures(own, _NOBODY, folded=True),) if stage.adjacency == "replace-one" else _both_ways(own)
    if isinstance(stage, Coins):
        chances = np.array([1 - stage.rate, stage.rate])
        return (Mixtures((chances, np.array([0.0, stage.mu])), (chances, np.array([0.0, -stage.mu]))),)
    if isinstance(stage, Response):
        if stage.epsilon > 700:  # the opposite has a chance below 1e-304
            return (Atoms(np.array([float(stage.epsilon)]), np.ones(1)),)
        both = np.array([-stage.epsilon, stage.epsilon])
        return (Atoms(both, 1 / (1 + np.exp(-both))),)
    return (Atoms(np.array(stage.losses), np.array(stage.masses), stage.infinite),)


def _both_ways(own: tuple[Vector, Vector]) -> tuple[Mixtures, Mixtures]:
    """Return a member against no user, and the other order, turned round, so that its loss grows with x, too."""
    return Mixtures(own, _NOBODY), Mixtures(_NOBODY, (own[0], 0.0 - own[1]))


def orders(mu: float, every: Stages) -> tuple[Parts, ...]:
    """Return the laws of all stages' losses, each with how often it is there: in one order of the pair, or in both."""
    ways = [(laws(stage), times) for stage, times in every]
    gaussian: list[tuple[Mixtures | Atoms, int]] = []
    if mu:
        gaussian = [(Mixtures((np.ones(1), np.full(1, mu)), _NOBODY), 1)]
    found = max((len(own) for own, _ in ways), default=1)
    return tuple([*((own[order % len(own)], times) for own, times in ways), *gaussian] for order in range(found))


@lru_cache(maxsize=1024)
def exactly(mu: float, every: Stages, epsilon: float, near: float) -> float:
    """Return δ at ε with exact noise, the worse of both orders of the pair, never below the truth."""
    return max(_one_order(mu, parts, epsilon, near) for parts in orders(mu, every))


def _one_order(mu: float, parts: Parts, epsilon: float, near: float) -> float:
    own = parts[:-1] if mu else parts
    if len(parts) == 1 and parts[0][1] == 1 and own and isinstance(law := parts[0][0], Mixtures):
        # Above 0 a folded pair has the profile of the one that it is made of.
        return 1.0 if law.too_far else once(law, epsilon)
    pure = [(law, times) for law, times in own if isinstance(law, Atoms)]
    if len(pure) == len(own) and (sums := all_sums(pure)) is not None:
        return _each(mu, sums, epsilon)
    return most(parts, epsilon, near)


def _each(mu: float, sums: Atoms, epsilon: float) -> float:
    """Return a Gaussian, if there is one, after each sum of losses that are atoms: in closed form."""
    left = epsilon - sums.losses
    most = gaussian(mu, left) if mu else np.maximum(-np.expm1(np.minimum(left, 0.0)), 0.0)
    rounding = _SHARE if len(left) > 1 or not mu else 0.0
    return min(1.0, float(sums.masses @ most) * (1 + rounding) * (1 + 1e-15) + sums.lost)


def crossing(delta: Callable[[float], float], wanted: float, *, most: float = _LARGEST) -> float:
    """Return about the least ε with a δ of at most `wanted`, one that has it: infinite beyond `most`."""
    if delta(0.0) <= wanted:
        return 0.0

    def excess(epsilon: float) -> float:
        found = math.log(max(delta(epsilon), 1e-300) / wanted)
        return found if found > 0 else min(found, -1e-12)  # 0 may be the value of a whole range: its start is wanted

    low, high = 0.0, 0.01
    while excess(high) > 0:
        if high == most:
            return math.inf
        low, high = high, min(4 * high, most)
    found = float(scipy.optimize.brentq(excess, low, high, xtol=1e-9, rtol=2e-7))
    step = near = 1e-9 + 4e-7 * found
    while found - step > low and excess(found - step) <= 0:
        high, step = found - step, 2 * step
    low = max(low, found - step)
    step = near
    while found + step < high and excess(found + step) > 0:
        low, step = found + step, 2 * step
    high = min(high, found + step)
    while high - low > 3 * near:
        middle = (low + high) / 2
        low, high = (middle, high) if excess(middle) > 0 else (low, middle)
    return high


@dataclass(frozen=True, eq=False)
class Law:
    """Of the loss in one order of the pair: masses (k,) at the places first, first + 1, ... times a gap."""

    first: int
    masses: Vector
    infinite: float
    gap: float

    @cached_property
    def losses(self) -> Vector:
        """The losses themselves, (k,)."""
        return _times(self.first + np.arange(len(self.masses)), self.gap)

    @cached_property
    def _tails(self) -> tuple[Vector, Vector]:
        """What lies from each place on, and beyond all: in this order of the pair, and in the other."""
        other = self.masses * np.exp(-np.maximum(self.losses, -700.0))
        own, other = (np.append(np.cumsum(masses[::-1])[::-1], 0.0) for masses in (self.masses, other))
        return own, other

    def delta(self, epsilons: float | Vector, rounding: float) -> Vector:
        """Return the sum of masses (1 - e^(ε - loss)) above ε, and a share `rounding` of those masses."""
        at = np.searchsorted(self.losses, epsilons, side="right")
        own, other = self._tails[0][at], self._tails[1][at] * np.exp(np.minimum(epsilons, 700.0))
        return np.asarray(np.maximum(own - other, 0.0) + rounding * own) + self.infinite


@dataclass(frozen=True, slots=True, eq=False)
class Lattice:
    """Laws of losses in both orders, or one where both are the same; δ from them is never below the pair's.

    `variation` is that of samplers from exact noise: (1 + e^ε) times that is added to δ.
    """

    laws: tuple[Law, ...]
    variation: float

    def delta(self, epsilons: float | Vector, rounding: float = 0.0) -> Vector:
        """Return δ at each ε, the worse of both orders, of the shape of `epsilons`; sums are right to 1e-9 of tails."""
        worst = np.max([law.delta(epsilons, rounding) for law in self.laws], axis=0)
        return np.asarray(np.minimum(1.0, worst + (1 + np.exp(np.minimum(epsilons, 700.0))) * self.variation))


def lattice(mu: float, every: Stages, variation: float, near: float) -> Lattice:
    """Return the law of the whole pair's loss, exact enough for every δ from `near` on.

    ConfigError where that would take more than a million places.
    """
    if not mu and not every:
        return Lattice((Law(0, np.ones(1), 0.0, _ANY),), variation)
    both = orders(mu, every)
    cut = CUT * near / max(sum(times for _, times in parts) for parts in both)
    epsilon = min(crossing(lambda epsilon: min(1.0, exactly(mu, every, epsilon, near)), near), 1e3)
    tilts = [tilted(parts, epsilon, cut) for parts in both]
    steepest = max((tilt for tilt in tilts if tilt is not None), default=1.0)
    # Where every loss is an atom the tilt grows without bound towards the largest sum: one less steep will do.
    pure = all(isinstance(law, Atoms) for parts in both for law, _ in parts)
    for last in (False,) * _LESS_STEEP * pure + (True,):
        gap = min(gap_for(parts, epsilon, steepest) for parts in both)
        try:
            made = tuple(_law_of_all(parts, gap, cut, near, steepest) for parts in both)
            break
        except ConfigError:
            if last:
                raise
            steepest /= 4
    return Lattice(made, variation)


def _law_of_all(parts: Parts, gap: float, cut: float, near: float, steepest: float) -> Law:
    """Masses that are never too small: what is beside the window goes to its first place, or counts as infinite."""
    each = [(above(law, gap, cut), times) for law, times in parts]
    tilts = [0.0, *(steepest * np.geomspace(2.0 ** (1 - _TILTS), 1.0, _TILTS)).tolist()]
    growths = [[float(law.growth(np.array([tilt]))[0]) for law, _ in each] for tilt in tilts]
    # The steeper the tilt, the larger the sum: what holds all but a little at both ends does so between them.
    bottom, top = window(each, growths[0], 0.0, None)[0], window(each, growths[-1], steepest, CUT * near)[1]
    size = 1 << max(4, math.ceil(math.log2(max(top - bottom + 1, 2))))
    if size > _LONGEST:
        raise ConfigError(f"Expected losses on at most {_LONGEST:,} places, got some on {size:,}. Take a larger near.")
    places = np.arange(bottom, top + 1)
    best = np.full(len(places), math.inf)
    for tilt, grown in zip(tilts, growths, strict=True):
        sums, total, error = power(each, grown, tilt, size)
        scale = sum(times * growth for growth, (_, times) in zip(grown, each, strict=True)) + total
        with np.errstate(over="ignore"):
            most = np.exp(scale - tilt * gap * places + rounding(each, tilt))
            best = np.minimum(best, most * (np.maximum(sums[places % size], 0.0) + error))
    best[0] += OUTSIDE
    # Losses may be larger by `off` in all: a share of every mass goes one place up, as keeps both laws' masses.
    off = sum(times * law.off for law, times in each)
    share = math.expm1(-off) / math.expm1(-gap)
    whole, moved = np.append(best, 0.0) * math.exp(2 * off), np.append(0.0, best) * math.exp(2 * off)
    return Law(bottom, (1 - share) * whole + share * moved, min(1.0, lost(each) + CUT * near), gap)
