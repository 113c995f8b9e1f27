"""Sampled lottery releases as the second account composes them: their pair, from every pair of neighbouring rungs.

It shares no function with the calibration. Statement, proof and rounding: docs/privacy/subsampled-lottery.md#o8.
"""

import math

import numpy as np

from quoron_privacy.accounts import near_gaussian
from quoron_privacy.accounts.pair import Pair
from quoron_privacy.arrays import Vector
from quoron_privacy.errors import VerificationError
from quoron_privacy.robust.lottery import pair_divergence

_DENSE = 256  # losses that are resolved in each typical one, and farther out in each factor e
_FARTHEST = 700.0  # losses beyond count as infinite
_SPARE = 1e-9  # relative, for the arithmetic of the law


def pair(table: Vector, mus: Vector, rate: float, releases: int) -> Pair:
    """Return the pair of `releases` lotteries on secret samples together; none of their pairs of rungs is skipped.

    `table` and `mus` have shape (R + 1,): shift r is of two cohorts the larger score of which stands on rung r. Raises
    VerificationError where one release already tells too much.
    """
    spare = _SPARE + 1e-13 / float(mus[1:].min(initial=1.0))  # Φ cancels by up to 40/μ
    least = rate * float(table[0]) * (1 + spare)  # what happens on rung 0 is charged with all of its chance

    def once(size: float) -> float:
        inner, found = math.log1p(math.expm1(size) / rate), least
        for p, q in ((table[1:], table[1:]), (table[1:], table[:-1]), (table[:-1], table[1:])):
            worst = pair_divergence(inner, p, q, mus[1:, None]).max(initial=0.0)
            found = max(found, rate * float(worst) * (1 + spare))
        return found

    sizes, deltas = [0.0], [once(0.0)]
    typical = 2.5 * deltas[0]
    while deltas[-1] > least and sizes[-1] < _FARTHEST:
        sizes.append(min(typical * math.sinh(len(sizes) / _DENSE), _FARTHEST))
        deltas.append(min(once(sizes[-1]), deltas[-1]))
    # A convex profile below the dots is below their lower hull, whatever rounding does to single dots.
    known = near_gaussian.convex(np.exp(np.array(sizes)), np.array(deltas))
    widths = np.diff(known.x)
    other = np.diff(np.diff(known.deltas) / widths, append=0.0)  # masses of the other law at losses above 0
    losses, own, infinite = np.log(known.x[1:]), known.x[1:] * other, float(known.deltas[-1])
    middle = 1 - infinite - float(own.sum() + other.sum())
    again = infinite + _from_above(widths * _from_above(other))  # the law's own profile: sums of positive numbers
    if not (middle >= 0 and np.all(again >= known.deltas[:-1] * (1 - spare / 2))):
        raise VerificationError(f"Expected a certified delta < 1 of every release, got {deltas[0]:.6g} at epsilon=0.")
    places, masses = np.concatenate([-losses[::-1], [0.0], losses]), np.concatenate([other[::-1], [middle], own])
    law = places.tolist(), masses.tolist(), infinite
    return Pair.table(*law, back=law, times=releases)  # its own mirror


def _from_above(values: Vector) -> Vector:
    """Sums of each and all behind it."""
    found: Vector = np.cumsum(values[::-1])[::-1]
    return found
