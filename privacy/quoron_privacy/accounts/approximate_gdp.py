"""How near a run on secret samples comes to a Gaussian one: the least μ for which it is that, but for a chance t.

    >>> from quoron_privacy.accounts.pair import DominatingPair
    >>> points(DominatingPair.sampled(0.05, 0.2, 100, "replace-one").delta, 0.5, 1e-7)[-1]
    (0.1097, 1e-10)

Function `points` reads μ off the corners of what is known of the run's trade-off curve, and `holds` proves every one
again. The proof names a test of the Gaussian pair for each stretch of the run's profile.

Statement and proof: docs/privacy/lifetime.md#lt6.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from decimal import ROUND_CEILING, Context, Decimal

import numpy as np
import scipy

from quoron_privacy.accounts import pld_lattice
from quoron_privacy.accounts.pld_lattice import FARTHEST
from quoron_privacy.arrays import Vector
from quoron_privacy.errors import positive, probability

Deltas = Callable[[float, float], float]  # δ at ε > 0, the worse of both orders, never below the truth; near what it is

SHARES = (0.3, 0.1, 0.03, 0.01, 0.001)  # t, of a run's own δ
_STEPS = 32  # of the lattice, up to the run's own ε
_MOST = 5 * _STEPS  # of the lattice
_FAR = 300.0  # ε beyond which nothing is looked at
_DIGITS = 4  # of μ, so that no stored number depends on the last bits of a library's functions
_TRIES = 8  # each of them a last digit more


@dataclass(frozen=True, slots=True, eq=False)
class Profile:
    """What is known of a run: δ at ln x is at most `deltas`, in both orders, at rising x > 1; shapes (k,).

    Between two x it is at most what lies on the line from one to the next: H_x(P, Q) is convex in x.
    """

    x: Vector
    deltas: Vector


def points(delta: Deltas, epsilon: float, at: float) -> tuple[tuple[float, float], ...]:
    """(μ, t), least t last, with each of which a run that is (ε, at)-DP is μ-GDP but for t, μ rounded up.

    Without a t that the run exceeds even at the far end of the lattice, at five times ε.
    """
    positive(epsilon=epsilon)
    probability(delta=at)
    known = profile(delta, epsilon, SHARES[-1] * at)
    found: list[tuple[float, float]] = []
    for share in SHARES:
        lost = float(f"{share * at:.3g}")
        mu = least_mu(known, lost)
        for _ in range(_TRIES):
            if not mu < FARTHEST:
                break
            mu = _up(mu)
            if holds(known, mu, lost):
                found = [point for point in found if point[0] < mu]  # a larger t for the same μ is worth nothing
                found.append((mu, lost))
                break
            mu = math.nextafter(mu, math.inf)
    return tuple(found)


def profile(delta: Deltas, epsilon: float, least: float) -> Profile:
    """Return a lattice of so many steps up to ε, and as many as it takes beyond, up to where δ is `least`."""
    steps: list[float] = []
    deltas: list[float] = []
    near = 0.5
    while len(steps) < _MOST and epsilon * len(steps) < _FAR * _STEPS and (not deltas or deltas[-1] > least):
        steps.append(epsilon * (len(steps) + 1) / _STEPS)
        near = min(near, delta(steps[-1], max(near, 1e-290)))
        deltas.append(near)
    # A larger x than the lattice's has a smaller δ than the lattice's.
    return convex(np.exp(np.array(steps)) * (1 + 2.0**-50), np.array(deltas))


def convex(x: Vector, deltas: Vector) -> Profile:
    """Without points above a line between two others: what lies below it is known of the run there, too."""
    kept: list[int] = []
    for new in range(len(x)):
        while len(kept) > 1:
            three = [*kept[-2:], new]
            before, after = np.diff(deltas[three]) / np.diff(x[three])
            if before < after:
                break
            kept.pop()
        kept.append(new)
    return Profile(x[kept], deltas[kept])


def least_mu(known: Profile, lost: float) -> float:
    """Return the least μ for which a run is μ-GDP but for t = `lost`, as far as is known of it; inf where none is.

    Its trade-off curve is nowhere below the lines 1 - δ_j - x_j α and their mirror images, and so above the convex one
    of a Gaussian run if that is below them at their corners.
    """
    if known.deltas[-1] > lost:
        return math.inf
    drops, widths = known.deltas[:-1] - known.deltas[1:], np.diff(known.x)
    middle = (1 - known.deltas[0]) / (1 + known.x[0])
    alpha = np.append(drops / widths, middle)  # errors of the first kind at the corners, and of the second kind, from 1
    power = np.append(known.deltas[1:] + known.x[1:] * alpha[:-1], 1 - middle)
    costs = power > lost
    shifts = scipy.special.ndtri((power[costs] - lost) / (1 - lost)) - scipy.special.ndtri(alpha[costs] / (1 - lost))
    return max(float(shifts.max(initial=0.0)), 1e-300)


def holds(known: Profile, mu: float, lost: float) -> bool:
    """Return whether a run of which this is known is certainly `mu`-GDP but for `lost`.

    The test that rejects above τ says that the Gaussian pair's δ at ln x is at least Φ(μ - τ) - x Φ(-τ), for every x.
    For each stretch one such line is above the run's own at both ends.
    """
    if not (0 < mu <= FARTHEST and 0 < lost < 0.5 and known.deltas[-1] <= lost):
        return False
    # The mirror image of the first point: H_1/x = 1 - 1/x + H_x / x in the other order.
    x = np.concatenate([[1 / known.x[0]], known.x])
    deltas = np.concatenate([[1 - (1 - known.deltas[0]) / known.x[0] + 2.0**-51], known.deltas])
    slopes = np.minimum((deltas[:-1] - deltas[1:]) / np.diff(x) / (1 - lost), 0.5)
    for index, slope in enumerate(slopes):
        tau = min(-float(scipy.special.ndtri(max(slope, 1e-300))), 37.0)
        if tau <= mu / 2:
            tau = mu / 2
        one, nobody = (_above(tau - shift) for shift in (mu, 0.0))
        for end in (index, index + 1):
            most = x[end] * nobody[1] * (1 + 2.0**-48)
            line = lost + (1 - lost) * (one[0] * (1 - 2.0**-48) - most)
            if not line >= deltas[end] + 2.0**-50 * (lost + one[0]):
                return False
    return True


def _above(threshold: float) -> tuple[float, float]:
    """P(N(0, 1) > threshold), from below and from above."""
    law = np.ones(1), np.zeros(1)
    mass, wrong = pld_lattice.masses(law, np.array([threshold, np.inf]))
    return float(mass[0] - wrong[0]), float(mass[0] + wrong[0])


def _up(value: float) -> float:
    """Return the next number of so many digits."""
    return float(Context(prec=_DIGITS, rounding=ROUND_CEILING).create_decimal(Decimal(value)))
