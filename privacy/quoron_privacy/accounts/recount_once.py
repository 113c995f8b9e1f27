"""Pairs of laws on the line, and the second account of one release: δ at ε from their masses, not from a profile.

    >>> 0.99e-6 < gaussian(0.2367, 1.0) <= 1e-6
    True

`recount` composes such pairs over rounds on secret samples. Statement and proof: docs/privacy/subsampling.md, "The
second account".
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import scipy
from numpy.typing import NDArray

from quoron_privacy.errors import positive

Vector = NDArray[np.float64]

UNIT = 2.0**-53
_BELOW = 8.5  # and below so many, 1e-17, a loss counts as that of the edge
STEP = 2e-3  # of x, between two cells at most, in standard deviations
FARTHEST = 100.0  # standard deviations between shifts, beyond which everything counts as told


@dataclass(frozen=True, slots=True, eq=False)
class Pair:
    """Two mixtures of unit Gaussians on the line, the left one nowhere to the left of the right one.

    Their loss, the logarithm of left over right, does not fall with x. `lost` of the left law is not in the mixture and
    counts as infinite loss; what lacks of the right law makes losses larger.
    """

    left: tuple[Vector, Vector]  # chances, shifts
    right: tuple[Vector, Vector]
    lost: float = 0.0
    folded: bool = False  # the losses above 0 of both laws, their mirror images, and what is left over at 0


@lru_cache(maxsize=1024)
def gaussian(mu: float, epsilon: float) -> float:
    """δ at ε of a μ-GDP release, never below the truth and hardly above it."""
    positive(mu=mu)
    if mu > FARTHEST:
        return 1.0
    return once(Pair((np.ones(1), np.full(1, mu)), (np.ones(1), np.zeros(1))), epsilon)


def loss(pair: Pair, x: Vector) -> tuple[Vector, Vector, float]:
    """The logarithm of left over right at each x (k,), its slope, and a bound on the rounding of the former."""
    (left, left_slope, one), (right, right_slope, other) = (_log_density(law, x) for law in (pair.left, pair.right))
    return left - right, left_slope - right_slope, one + other


def _log_density(law: tuple[Vector, Vector], x: Vector) -> tuple[Vector, Vector, float]:
    """ln Σ w_j exp(s_j x - s_j²/2), its slope and its rounding, by one component after the other."""
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


def _tail(t: Vector) -> tuple[Vector, Vector]:
    """P(N(0, 1) > |t|), and a bound on what rounding did to it: a share of (16 + t²) 2⁻⁵³."""
    size = np.minimum(np.abs(t), 38.0)  # beyond, the chance is below 1e-315
    found = 0.5 * scipy.special.erfcx(size / math.sqrt(2)) * np.exp(-0.5 * size * size)
    return found, (16 + size * size) * UNIT * found


def masses(law: tuple[Vector, Vector], edges: Vector) -> tuple[Vector, Vector]:
    """Mass of a law between neighbouring edges (k,), which may be infinite at the ends, and what rounding did to it."""
    mass, wrong = np.zeros(len(edges) - 1), np.zeros(len(edges) - 1)
    for chance, shift in zip(*law, strict=True):
        t = edges - shift
        tail, off = _tail(t)
        first, last = tail[:-1], tail[1:]
        inside = np.where(t[:-1] >= 0, first - last, np.where(t[1:] <= 0, last - first, 1 - first - last))
        mass += chance * np.maximum(inside, 0.0)
        wrong += chance * (off[:-1] + off[1:] + 4 * UNIT * np.maximum(inside, 0.0))
    return mass, wrong + 8 * len(law[0]) * UNIT * mass


def once(pair: Pair, epsilon: float) -> float:
    """δ at ε of one round: where the loss is above ε, left less e^ε right."""
    x, known = table(pair, 12.0)
    if epsilon >= known[-1]:
        return min(1.0, float(masses(pair.left, np.array([x[-1], np.inf]))[0][0]) + pair.lost + 1e-300)
    at, off = where(pair, np.array([epsilon]), x, known)
    before = at[0] - 2 * STEP
    edges = np.array([before, at[0], np.inf])
    (left, more), (right, less) = masses(pair.left, edges), masses(pair.right, edges)
    # Between `at` and where the loss is ε it is within `off` of ε: what is counted wrongly there is a share of left.
    doubtful = left.sum() if loss(pair, edges[:1])[0][0] <= epsilon else 1.0
    wrong = more[1] + math.exp(epsilon) * (less[1] + 4 * UNIT * (1 + epsilon) * right[1]) + 2 * off * doubtful
    return min(1.0, max(0.0, float(left[1] - math.exp(epsilon) * right[1])) + float(wrong) + pair.lost + 1e-300)


def table(pair: Pair, reach: float) -> tuple[Vector, Vector]:
    """Points on the line, up to `reach` beyond all shifts, and the losses there."""
    low = min(float(pair.left[1].min()), float(pair.right[1].min())) - _BELOW
    x = np.arange(low, float(pair.left[1].max()) + reach, STEP)
    losses, _, _ = loss(pair, x)
    return x, np.maximum.accumulate(losses)


def where(pair: Pair, losses: Vector, x: Vector, known: Vector) -> tuple[Vector, float]:
    """Where the loss is as wished, by Newton's steps from a table, and how far off it is there at most."""
    at = np.interp(losses, known, x)
    low, high = at - 2 * STEP, at + 2 * STEP
    for _ in range(3):
        found, slope, _ = loss(pair, at)
        at = np.clip(at + (losses - found) / np.maximum(slope, 1e-300), low, high)
    at = np.maximum.accumulate(at)
    found, _, wrong = loss(pair, at)
    return at, float(np.abs(found - losses).max()) + wrong
