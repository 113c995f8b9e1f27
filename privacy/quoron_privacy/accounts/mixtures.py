"""Pairs of mixtures on the line: where their loss is what, how much mass lies there, and δ of one release at ε.

    >>> least, most = gaussian(0.2367, np.array([1.0]))
    >>> bool(0.99e-6 < least[0] <= most[0] <= 1e-6)
    True

Every number comes with a bound on what rounding did to it. `losses` cuts such pairs into cells, `pair` composes them.
Statement and proof: docs/privacy/pairs.md.
"""

import math
from dataclasses import dataclass

import numpy as np
import scipy
from numpy.typing import NDArray

from quoron_privacy.errors import positive

Vector = NDArray[np.float64]

UNIT = 2.0**-53
_BELOW = 8.5  # and below so many, 1e-17, a loss counts as that of the edge
STEP = 2e-3  # of x, between two points of a table, in standard deviations
FARTHEST = 100.0  # standard deviations between shifts, beyond which everything counts as told


@dataclass(frozen=True, slots=True, eq=False)
class Mixtures:
    """Two mixtures of unit Gaussians on the line, the left one nowhere to the left of the right one.

    Their loss, the logarithm of left over right, does not fall with x. `lost` of the left law is not in the mixture and
    counts as infinite loss; what lacks of the right law makes losses larger.
    """

    left: tuple[Vector, Vector]  # chances, shifts
    right: tuple[Vector, Vector]
    lost: float = 0.0
    folded: bool = False  # the losses above 0 of both laws, their mirror images, and what is left over at 0

    @property
    def too_far(self) -> bool:
        """Whether everything counts as told."""
        return bool(np.ptp(np.concatenate([self.left[1], self.right[1]])) > FARTHEST)


def gaussian(mu: float, epsilons: Vector) -> tuple[Vector, Vector]:
    """δ at each ε (k,), of any sign, of a μ-GDP release: never above the truth, never below it, and hardly either."""
    positive(mu=mu)
    if mu > FARTHEST:
        return np.maximum(-np.expm1(np.minimum(epsilons, 0.0)), 0.0), np.ones(len(epsilons))
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
    found = own - right
    least = np.maximum(found - wrong, np.maximum(-np.expm1(np.minimum(epsilons, 0.0)) * (1 - 4 * UNIT), 0.0))
    return least, np.clip(found + wrong + 1e-300, 0.0, 1.0)


def _above(t: Vector) -> tuple[Vector, Vector]:
    """P(N(0, 1) > t), and what rounding did to it at most."""
    tail, off = _tail(t)
    return np.where(t >= 0, tail, 1 - tail), off + np.where(t >= 0, 0.0, UNIT)


def loss(pair: Mixtures, x: Vector) -> tuple[Vector, Vector, float]:
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


def once(pair: Mixtures, epsilon: float) -> tuple[float, float]:
    """δ at ε >= 0 of one release, never above, never below the truth: left less e^ε right, where losses are above."""
    x, known = table(pair, 12.0)
    if epsilon >= known[-1]:
        most = float(masses(pair.left, np.array([x[-1], np.inf]))[0][0]) + pair.lost + 1e-300
        return 0.0, min(1.0, most)
    at, off = where(pair, np.array([epsilon]), x, known)
    before = at[0] - 2 * STEP
    edges = np.array([before, at[0], np.inf])
    (left, more), (right, less) = masses(pair.left, edges), masses(pair.right, edges)
    # Between `at` and where the loss is ε it is within `off` of ε: what is counted wrongly there is a share of left.
    doubtful = left.sum() if loss(pair, edges[:1])[0][0] <= epsilon else 1.0
    rounded = float(more[1] + math.exp(epsilon) * (less[1] + 4 * UNIT * (1 + epsilon) * right[1]))
    found = float(left[1] - math.exp(epsilon) * right[1])
    most = max(0.0, found) + rounded + 2 * off * float(doubtful) + pair.lost + 1e-300
    return max(0.0, found - rounded), min(1.0, most)


def table(pair: Mixtures, reach: float) -> tuple[Vector, Vector]:
    """Points on the line, up to `reach` beyond all shifts, and the losses there."""
    low = min(float(pair.left[1].min()), float(pair.right[1].min())) - _BELOW
    x = np.arange(low, float(pair.left[1].max()) + reach, STEP)
    losses, _, _ = loss(pair, x)
    return x, np.maximum.accumulate(losses)


def where(pair: Mixtures, losses: Vector, x: Vector, known: Vector) -> tuple[Vector, float]:
    """Where the loss is as wished, by Newton's steps from a table, and how far off it is there at most."""
    at = np.interp(losses, known, x)
    low, high = at - 2 * STEP, at + 2 * STEP
    for _ in range(3):
        found, slope, _ = loss(pair, at)
        at = np.clip(at + (losses - found) / np.maximum(slope, 1e-300), low, high)
    at = np.maximum.accumulate(at)
    found, _, wrong = loss(pair, at)
    return at, float(np.abs(found - losses).max()) + wrong


def limit(pair: Mixtures, *, last: bool) -> float:
    """What the loss comes near at an end of the line: ±∞ unless both laws have the same outermost shift there."""
    place = (np.argmax if last else np.argmin)(pair.left[1]), (np.argmax if last else np.argmin)(pair.right[1])
    if pair.left[1][place[0]] != pair.right[1][place[1]]:
        return math.inf if last else -math.inf
    return float(np.log(pair.left[0][place[0]]) - np.log(pair.right[0][place[1]]))
