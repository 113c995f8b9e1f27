"""What `whitened-tracking` leaves at most in nine of ten problems: before a run by public numbers, then by releases.

Powers of public, or of released, numbers, fixed on made tables and real ones (docs/privacy/whitened-tracking.md,
"Forecast"; benchmarks/whitened_bound.py fits them anew): no theorem. A bound on the excess risk itself and not on a
share of the start's, which nobody knows before: noise leaves what it leaves, however much there is to learn. They rank
plans and inform people; no noise and nothing that a run does depends on them.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from quoron_server.algorithms.forecast import constant_risk, start_risk
from quoron_server.problem import Problem

LEAST_RESOLUTION = 10.0  # ν = nμ_g / √d below which nothing is learnt
FAR = 1000.0  # ν, up to which made and real tables fixed the bounds; rare labels fall slower beyond
FORECAST_FROM = 9  # rounds: with fewer the way may be too long, as the model at most about doubles in each
PULLED = 0.3  # share of what they could do at most that clipped users do, where the tail of lengths is flat
FLAT_TAIL = 2.0  # α of a tail r^-α below which it is


class Powers(NamedTuple):
    """The logarithm of a bound: a constant, and exponents of D = d(K - 1), of nμ_g / √D, of m, and of what is known.

    For squares in units of twice the start's loss, the squared label bound.
    """

    constant: float
    dimension: float
    resolution: float
    items: float
    noise: float = 0.0  # released: of what the noise in the gradient is worth
    curvature: float = 0.0  # of the mean curvature at the model
    radius: float = 0.0  # C that the last release left
    rarity: float = 0.0  # of 4p(1 - p), p a known label rate
    flatter: float = 0.0  # added to the exponent of ν beyond `FAR`

    def of(self, problem: Problem, resolution: float, seen: "Seen | None" = None) -> float:
        """The bound, at most what not training leaves, and what a known label rate leaves to learn."""
        parts, rate = contrasts(problem), problem.beliefs.label_rate or 0.5
        public = (parts, resolution * math.sqrt(problem.dimension / parts), problem.items_per_user)
        unit = scale(problem)
        released = (1.0, 1.0, 1.0) if seen is None else (seen.noise / unit, seen.curvature, seen.radius / unit**0.5)
        facts = (*public, *released, 4 * rate * (1 - rate), max(1.0, public[1] / FAR))
        powers = zip(self[1:], facts, strict=True)
        logarithm = self.constant + sum(power * math.log(fact) for power, fact in powers if power)
        most, constant = start_risk(problem), constant_risk(problem)
        most = most if constant is None else min(most, constant)
        return min(unit * math.exp(min(logarithm, 100.0)), most)


class Seen(NamedTuple):
    """What a run released about how far its model is off."""

    noise: float  # ½ Σ P/h: the excess risk of the noise, one step from the model
    curvature: float
    radius: float
    clipped: float = 0.0  # excess risk if all that the last round clipped had pulled one way; 0 unless the tail is flat

    @classmethod
    def of(cls, error: float, bends: NDArray[np.float64], curvature: float, radius: float) -> "Seen":
        """From P⁺, the curvatures that a step goes by, their mean without doubt, and C."""
        return cls(0.5 * error * float(np.sum(1 / bends)), curvature, radius)

    def pulled(self, radius: float, beyond: float, tail: float) -> "Seen":
        """With the last round's C, the share of users beyond ⅔ of it, and the flattest tail of lengths, r^-tail."""
        return self if tail >= FLAT_TAIL else self._replace(clipped=0.5 * (radius * beyond) ** 2 / self.curvature)


BEFORE = {
    "logistic": Powers(4.0, 0.55, -1.75, -0.4, flatter=0.31),
    "rate": Powers(3.88, 0.364, -1.61, -0.611, rarity=-0.836),  # where a label rate is known
    "squares": Powers(1.65, 0.0, -1.63, -0.268),
}
AFTER = {
    "logistic": Powers(0.803, 0.477, 0.0, -0.542, 0.818, -0.31, -1.6),
    "squares": Powers(2.17, 0.0554, -1.6, -0.576, 0.064, 0.0, 1.08),
}


def before(problem: Problem, rounds: int, resolution: float) -> float | None:
    """Of a plan, by ν = nμ_g / √d; with few rounds a share 2⁻ᵀ of the start's risk more. None of an unmeasured loss."""
    if not _measured(problem):
        return None
    kind = "rate" if constant_risk(problem) is not None else _kind(problem)
    most = start_risk(problem)
    unreached = 0.0 if rounds >= FORECAST_FROM else 0.5 ** (rounds - 1) * most  # measured from four rounds on
    return min(max(BEFORE[kind].of(problem, resolution) + unreached, _way(problem, rounds)), most)


def _way(problem: Problem, rounds: int) -> float:
    """What rounds that each halve what is left, as they do where features are far from Gaussian, leave of the most."""
    return 0.5**rounds * start_risk(problem) if problem.beliefs.sigmoid else 0.0


def after(problem: Problem, rounds: int, resolution: float, seen: Seen) -> float | None:
    """Of a run that kept its model, by what it released; None with few rounds, too."""
    if rounds < FORECAST_FROM or not _measured(problem):
        return None
    found = AFTER[_kind(problem)].of(problem, resolution, seen)
    pulled = PULLED * seen.clipped if problem.beliefs.sigmoid and problem.outputs == 1 else 0.0
    return min(max(found + pulled, _way(problem, rounds)), start_risk(problem))


def _measured(problem: Problem) -> bool:
    """Logistic losses, of several classes too, squares and Huber's; no other loss."""
    return problem.beliefs.sigmoid or problem.beliefs.label_bound is not None


def _kind(problem: Problem) -> str:
    return "logistic" if problem.beliefs.sigmoid else "squares"


def contrasts(problem: Problem) -> int:
    """D: numbers of a model that tell anything, d (K - 1) of K classes."""
    return problem.features * max(1, problem.outputs - 1)


def scale(problem: Problem) -> float:
    """1 for a logistic loss; of other losses twice what an item's can fall from the start, Y² of squares."""
    known = problem.beliefs
    if known.sigmoid:
        return 1.0
    if known.start_loss is not None:
        return 2 * known.start_loss
    return problem.start / (problem.feature_norm or 1.0) * (known.label_bound or 1.0)
