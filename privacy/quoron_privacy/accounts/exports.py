"""A pair's whole law of losses, for an accountant of somebody else's: certified masses at whole multiples of a gap.

    >>> from quoron_privacy.accounts.pair import Pair
    >>> found = lattice(Pair.gaussian(0.3).and_(Pair.response(0.05)), near=1e-6)
    >>> round(found.delta(1.0) / Pair.gaussian(0.3).and_(Pair.response(0.05)).delta(1.0), 2)
    1.0

`Pair.delta` looks at the sum's tail under one tilt, which is exact about one ε. Here the same sum is looked at under
several, and of each place the best bound is kept. Statement and proof: docs/privacy/pairs.md#pl4.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from quoron_privacy.accounts import losses
from quoron_privacy.accounts.pair import NEAR, Pair
from quoron_privacy.arrays import Vector
from quoron_privacy.errors import ConfigError, probability

if TYPE_CHECKING:
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

_TILTS = 9  # from that of `near` downwards, and none at all
_LONGEST = 1 << 20  # places
_ANY = 1e-4  # gap of what has no losses
_LESS_STEEP = 10  # how often less steep a tilt is tried


@dataclass(frozen=True, slots=True, eq=False)
class Law:
    """Of the loss in one order of the pair: masses (k,) at the places first, first + 1, ... times a gap."""

    first: int
    masses: Vector
    infinite: float


@dataclass(frozen=True, slots=True, eq=False)
class Lattice:
    """Laws of losses in both orders, or one where both are the same; δ from them is never below the pair's.

    `lack` is what samplers lack of exact noise: (1 + e^ε) times that is added to δ.
    """

    gap: float
    laws: tuple[Law, ...]
    lack: float

    def delta(self, epsilon: float) -> float:
        """Return δ at ε, the worse of both orders."""
        found = []
        for law in self.laws:
            beyond = (law.first + np.arange(len(law.masses))) * self.gap - epsilon
            found.append(float(law.masses @ np.maximum(-np.expm1(-np.maximum(beyond, 0.0)), 0.0)) + law.infinite)
        lacking = (1 + math.exp(min(epsilon, 700.0))) * self.lack
        return min(1.0, max(found) + lacking)

    def distribution(self) -> "PrivacyLossDistribution":
        """Return the same for dp-accounting, which composes it with others of the same gap. It knows of no `lack`."""
        from dp_accounting.pld import pld_pmf, privacy_loss_distribution  # heavy

        made = [pld_pmf.DensePLDPmf(self.gap, law.first, law.masses, law.infinite, True) for law in self.laws]
        return privacy_loss_distribution.PrivacyLossDistribution(*made)


def lattice(pair: Pair, *, near: float = NEAR) -> Lattice:
    """Return the law of the whole pair's loss, exact enough for every δ from `near` on.

    ConfigError where that would take more than a million places.
    """
    probability(near=near)
    if not pair.mu and not pair.stages:
        return Lattice(_ANY, (Law(0, np.ones(1), 0.0),), pair.lack)
    orders = losses.orders(pair.mu, pair.stages)
    rounds = max(sum(times for _, times in parts) for parts in orders)
    cut, epsilon = losses.CUT * near / rounds, Pair(pair.mu, pair.stages).epsilon(near)
    tilts = [losses.tilted(parts, min(epsilon, 1e3), cut) for parts in orders]
    steepest = max((tilt for tilt in tilts if tilt is not None), default=1.0)
    # Where every loss is an atom the tilt grows without bound towards the largest sum: one less steep will do.
    pure = all(isinstance(law, losses.Atoms) for parts in orders for law, _ in parts)
    for last in (False,) * _LESS_STEEP * pure + (True,):
        gap = min(losses.gap_for(parts, min(epsilon, 1e3), steepest) for parts in orders)
        try:
            laws = tuple(_above(parts, gap, cut, near, steepest) for parts in orders)
            break
        except ConfigError:
            if last:
                raise
            steepest /= 4
    return Lattice(gap, laws, pair.lack)


def _above(parts: losses.Parts, gap: float, cut: float, near: float, steepest: float) -> Law:
    """Masses that are never too small: what is beside the window goes to its first place, or counts as infinite."""
    above = losses.CUT * near
    laws = [(losses.above(law, gap, cut), times) for law, times in parts]
    first, places = 0, np.empty(0)
    best: Vector = places
    for tilt, found in _sums(laws, steepest, above):
        with np.errstate(over="ignore"):
            masses = np.exp(found.logs + found.rounding) * (np.maximum(found.sums, 0.0) + found.error)
        best = np.minimum(best, masses) if tilt else masses
        first = found.first
    best[0] += losses.OUTSIDE
    # Losses may be larger by `off` in all: a share of every mass goes one place up, as keeps both laws' masses.
    off = sum(times * law.off for law, times in laws)
    share = math.expm1(-off) / math.expm1(-gap)
    whole = np.append(best, 0.0) * math.exp(2 * off)
    moved = np.append(0.0, best) * math.exp(2 * off)
    return Law(first, (1 - share) * whole + share * moved, min(1.0, losses.lost(laws) + above))


@dataclass(frozen=True, slots=True, eq=False)
class _Seen:
    """Of a tilted sum: its first place, ln of each place's factor, its masses, what these and factors are wrong by."""

    first: int
    logs: Vector
    sums: Vector
    error: float
    rounding: float


def _sums(laws: losses.Laws, steepest: float, above: float) -> Iterator[tuple[float, _Seen]]:
    """Yield the sum's law on one window, without a tilt and under some."""
    gap = laws[0][0].gap
    tilts = [0.0, *(steepest * np.geomspace(2.0 ** (1 - _TILTS), 1.0, _TILTS)).tolist()]
    growths = [[float(law.growth(np.array([tilt]))[0]) for law, _ in laws] for tilt in tilts]
    # The steeper the tilt, the larger the sum: what holds all but a little at both ends does so between them.
    bottom, top = (
        losses.window(laws, growths[0], 0.0, None)[0],
        losses.window(laws, growths[-1], steepest, above)[1],
    )
    size = 1 << max(4, math.ceil(math.log2(max(top - bottom + 1, 2))))
    if size > _LONGEST:
        raise ConfigError(f"Expected losses on at most {_LONGEST:,} places, got some on {size:,}. Take a larger near.")
    places = np.arange(bottom, top + 1)
    for tilt, grown in zip(tilts, growths, strict=True):
        masses, total, error = losses.power(laws, grown, tilt, size)
        scale = sum(times * growth for growth, (_, times) in zip(grown, laws, strict=True)) + total
        rounding = losses.rounding(laws, tilt)
        yield tilt, _Seen(bottom, scale - tilt * gap * places, masses[places % size], error, rounding)
