"""The law of one release's loss on a lattice, from above and from below: what `pair` composes.

From above, what is in a cell goes to its two ends so that both laws keep their mass. From below, it is gathered at one
loss, and what the nearest place of the lattice is too large by is kept beside it. Whatever is rounded or cut off is
added to the larger losses above, and left out below. Statement and proof: docs/privacy/pairs.md#pl1.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import scipy
from numpy.typing import NDArray

from quoron_privacy.accounts import mixtures
from quoron_privacy.accounts.mixtures import UNIT, Mixtures, Vector

Integers = NDArray[np.int64]

_CELLS = 1 << 15  # of a law from below, beyond which one cell takes several gaps
_SUMS = 512  # of atoms, up to which each is gone through


@dataclass(frozen=True, slots=True, eq=False)
class Atoms:
    """Finitely many losses (k,), ascending where they are given, their masses, and the mass of infinite loss."""

    losses: Vector
    masses: Vector
    lost: float = 0.0


def all_sums(parts: Sequence[tuple[Atoms, int]]) -> Atoms | None:
    """Every sum of what has atoms alone, but for a share 1e-11 of each mass; None where those are many."""
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
    over: Vector | None = None  # from below: what each place is too large by, at most

    @property
    def values(self) -> Vector:
        """The losses themselves."""
        return _times(self.places, self.gap)

    def where(self, kept: NDArray[np.bool_]) -> "Losses":
        """The same with some of its places (k,) alone."""
        over = None if self.over is None else self.over[kept]
        return replace(self, places=self.places[kept], masses=self.masses[kept], over=over)

    def growth(self, tilts: Vector) -> Vector:
        """ln E e^{tilt · loss} of what is finite, at each tilt (k,)."""
        return log_means(np.outer(tilts, self.values), self.masses)


def log_means(exponents: Vector, weights: Vector) -> Vector:
    """ln Σ_j w_j e^{x_ij} for each row i."""
    top = exponents.max(axis=1, keepdims=True)
    found: Vector = top[:, 0] + np.log(np.exp(exponents - top) @ weights)
    return found


def above(law: Mixtures | Atoms, gap: float, cut: float) -> Losses:
    """A law that is never below the true one. Of large losses a mass of about `cut` counts as infinite."""
    if isinstance(law, Atoms):
        first = np.floor(law.losses / gap).astype(np.int64)
        masses, losses = law.masses, _times(first, gap)
        other = masses * np.exp(np.minimum(-law.losses, 700.0))  # beyond, all goes to the upper end
        zero = np.zeros(len(masses))
        width = np.full(len(masses), gap)
        low, high = _split(losses, width, masses, 4 * UNIT * masses, other, zero, 2 * UNIT)
        return _cut(np.concatenate([first, first + 1]), np.concatenate([low, high]), gap, law.lost, 0.0, cut)
    x, known = mixtures.table(law, -float(scipy.special.ndtri(cut)))
    ends = np.unique(np.append(_next_to(known, gap), 0))  # 0 is between two losses of any pair
    ends = ends[(ends * gap > known[0]) & (ends * gap < known[-1]) & ((ends >= 0) | (not law.folded))]
    at, off = mixtures.where(law, ends * gap, x, known)
    least, most = (mixtures.limit(law, last=last) for last in (False, True))
    lost = law.lost
    if math.isfinite(most):  # the last cell has two ends, too
        (left, more), (right, less) = _cells(law, at)
        ends = np.append(ends, math.floor(most / gap + 1e-9) + 1)
    else:  # so has what is below the largest loss of the table
        ends, at = np.append(ends, math.floor(known[-1] / gap) + 1), np.append(at, max(float(x[-1]), *at[-1:]))
        (left, more), (right, less) = _cells(law, at)
        lost += float(left[-1] + more[-1])
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


def below(law: Mixtures | Atoms, gap: float, cut: float) -> Losses:
    """A law that is never above the true one: each cell's mass at one loss, at the nearest place of the lattice.

    Of large losses a mass of at most `cut` is left out, so that no tilt finds them.
    """
    if isinstance(law, Atoms):
        return _gathered(law.losses, law.masses * (1 - 4 * UNIT), gap, lost=law.lost)
    x, known = mixtures.table(law, -float(scipy.special.ndtri(cut)))
    edges: Vector = np.asarray((_ends(known, gap) + 0.5) * gap, dtype=np.float64)
    edges = edges[(edges > known[0]) & (edges < known[-1]) & ((edges > 0) | (not law.folded))]
    if law.folded and not len(edges):
        edges = np.array([gap / 2])
    at = mixtures.where(law, edges, x, known)[0] if len(edges) else np.empty(0)
    (left, more), (right, less) = _cells(law, at)
    if law.folded:
        least = 1 - float(np.sum((left + more + right + less)[1:])) - 4 * len(left) * UNIT
        up, down = _mean(left[1:], more[1:], right[1:], less[1:]), _mean(right[1:], less[1:], left[1:], more[1:])
        losses = np.concatenate([up[0], down[0], [0.0]])
        return _gathered(losses, np.concatenate([up[1], down[1], [least]]), gap, cut=cut)
    return _gathered(*_mean(left, more, right, less), gap, cut=cut)


def _ends(known: Vector, gap: float) -> Integers:
    """Whole multiples of the gap between the losses of a table: all of them, or those next to one of the table's."""
    first, last = math.floor(known[0] / gap), math.ceil(known[-1] / gap)
    if last - first <= _CELLS:
        return np.arange(first, last + 1, dtype=np.int64)
    return _next_to(known, gap)


def _next_to(known: Vector, gap: float) -> Integers:
    """Those that are next to a loss of the table."""
    return np.unique(np.rint(known / gap)).astype(np.int64)


def _cells(law: Mixtures, at: Vector) -> tuple[tuple[Vector, Vector], tuple[Vector, Vector]]:
    edges = np.concatenate([[-np.inf], at, [np.inf]])
    return mixtures.masses(law.left, edges), mixtures.masses(law.right, edges)


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


def _mean(left: Vector, more: Vector, right: Vector, less: Vector) -> tuple[Vector, Vector]:
    """The loss at which all of a cell is gathered, and its left mass there, rounded down."""
    masses = left - more
    kept = masses > 0
    with np.errstate(divide="ignore"):
        found = np.log(np.where(kept, masses, 1.0)) - np.log(np.maximum(right + less, 1e-300))
    return found - 8 * UNIT * (1 + np.abs(found)), np.where(kept, masses, 0.0)


def _gathered(losses: Vector, masses: Vector, gap: float, *, lost: float = 0.0, cut: float = 0.0) -> Losses:
    """Those with a mass, but for the largest, each at the place nearest to it."""
    order = np.argsort(losses)
    losses, masses = losses[order], masses[order]
    kept = (masses > 0) & (np.cumsum(masses[::-1])[::-1] > cut)
    losses, masses = losses[kept], masses[kept]
    places = np.rint(losses / gap).astype(np.int64)
    over = _times(places, gap) - losses + 4 * UNIT * (1 + np.abs(losses))
    return Losses(places, masses, gap, lost, over=over)
