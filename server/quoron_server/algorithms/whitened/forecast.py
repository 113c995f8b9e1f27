"""What `whitened-tracking` leaves at most: by public numbers, in nine of ten tables like those measured; by releases.

Powers of public, or of released, numbers, fixed on made tables and real ones (docs/privacy/whitened-tracking.md,
"Forecast"; benchmarks/whitened_bound.py fits them anew): no theorem. A bound on the excess risk itself and not on a
share of the start's, which nobody knows before: noise leaves what it leaves, however much there is to learn. They rank
plans and inform people; no noise and nothing that a run does depends on them.

Before a run nobody knows whether columns fill their ranges and whether labels stay in doubt, and the bound takes that
for granted: of odd tables about one in four leaves more. Releases tell: directions that the metric could not see, and
predictions that still want to grow.
"""

import math
from functools import cache
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from quoron_privacy.means.contrasts import Contrasts
from quoron_server.algorithms.forecast import constant_risk, loss_scale, start_risk
from quoron_server.algorithms.whitened.law import Law
from quoron_server.problem import Problem

Vector = NDArray[np.float64]

LEAST_RESOLUTION = 10.0  # ν = nμ_g / √d below which nothing is learnt
FORECAST_FROM = 9  # rounds: with fewer the way may be too long, as the model at most about doubles in each
LEARNT = 1.2  # times the root of what was learnt and of the most: what noise leaves is less
LOST = 0.5  # of the most: where noise may leave so much it may be why little was learnt, and nothing is sure
RISING = 4.0  # times what longer predictions would gain, where all is learnt; by the square of the share that is
HIDDEN, SMALL = 0.25, 0.36  # share of directions that may be copies of others; of the mean eigenvalue: a hidden one
NOISE, FAINT = 1.5, 0.4  # or one of which noise is so many times as large, and it at most that of the largest
QUANTILES = 512  # of predictions, by which means over them are taken


class Powers(NamedTuple):
    """The logarithm of a bound: a constant, exponents of D = d(K - 1), of ν = nμ_g / √D and of m, and of what is known.

    For squares in units of twice the start's loss, the squared label bound.
    """

    constant: float
    dimension: float
    resolution: float
    items: float
    noise: float = 0.0  # released: of what the noise in the gradient is worth
    radius: float = 0.0  # C that the last release left
    rarity: float = 0.0  # of 4p(1 - p), p a known label rate
    alone: float = 0.0  # added where users have one row each: few of them hold a rare column

    def of(self, problem: Problem, resolution: float, seen: "Seen | None" = None) -> float:
        """The bound, whatever there is to learn."""
        rate = problem.beliefs.label_rate or 0.5
        parts = Contrasts(problem.features, problem.outputs).dimension
        public = (parts, resolution, problem.items_per_user)
        unit = loss_scale(problem)
        released = (1.0, 1.0) if seen is None else (seen.noise / unit, seen.radius / unit**0.5)
        facts = (*public, *released, 4 * rate * (1 - rate), math.e if problem.items_per_user == 1 else 1.0)
        powers = zip(self[1:], facts, strict=True)
        logarithm = self.constant + sum(power * math.log(fact) for power, fact in powers if power)
        return unit * math.exp(min(logarithm, 100.0))


class Seen(NamedTuple):
    """What a run released about how far its model is off."""

    noise: float  # ½ Σ P/h: the excess risk of the noise, one step from the model
    radius: float  # C
    learnt: float = 0.0  # less doubt of labels than at the start, where predictions are right about it
    rising: float = 0.0  # what longer predictions gain by the last gradient, less half a deviation of its noise
    hidden: float = 0.0  # share of directions in which columns vary too little to be seen

    @classmethod
    def of(cls, error: float, bends: Vector, radius: float) -> "Seen":
        """From P⁺, the curvatures that a step goes by, and C."""
        return cls(0.5 * error * float(np.sum(1 / bends)), radius)

    def sure(self, law: Law, point: Vector, gradient: Vector, error: float) -> "Seen":
        """With what a logistic model at that point is sure of, and whether the gradient there wants it surer."""
        noise = 0.5 * math.sqrt(error) * float(np.linalg.norm(point))
        return self._replace(learnt=learnt(law, point), rising=max(0.0, -float(point @ gradient) - noise))

    def growth(self, problem: Problem) -> float:
        """What predictions that are still to grow may be worth: of labels that can be told exactly, about all of it."""
        return RISING * (self.learnt / start_risk(problem)) ** 2 * self.rising if problem.beliefs.sigmoid else 0.0

    @property
    def unseen(self) -> bool:
        """Whether more directions are hidden than those of columns that others make up."""
        return self.hidden > HIDDEN


def hidden(doubt: Vector, *, constant: bool) -> float:
    """Share of directions with far smaller eigenvalues than others once whitened; `doubt` is the noise over each.

    Where all that columns vary by was resolved, all are alike. Directions far below, or lost in noise where others are
    not, are copies of others, or of columns that fill next to nothing of their ranges.
    """
    doubt = np.maximum(doubt[: len(doubt) - constant], 1e-9)
    if not len(doubt):
        return 0.0
    values = 1 / doubt
    lost = (doubt > NOISE) & (values < FAINT * values.max())
    return float(np.mean((values < SMALL * values.mean()) | lost))


def learnt(law: Law, point: Vector) -> float:
    """By how much labels are less in doubt than at the start, in nats, if the law is right and predictions are."""
    if law.outputs == 1:
        level = float(point[-1]) if law.intercept else 0.0
        deviation = math.sqrt(max(float(point @ point) - level**2, 0.0))
        scores = np.abs(level + deviation * _quantiles())
        chances = np.stack([1 / (1 + np.exp(-scores)), np.exp(-scores) / (1 + np.exp(-scores))], axis=1)
    else:
        parts = point.reshape(law.parts, -1)
        others = parts[:, :-1] if law.intercept else parts
        chances = law.chances(parts[:, -1] if law.intercept else np.zeros(law.parts), others @ others.T)
    doubt = -np.sum(chances * np.log(np.maximum(chances, 1e-300)), axis=1).mean()
    return max(0.0, math.log(max(2, law.outputs)) - float(doubt))


@cache
def _quantiles() -> Vector:
    normal = NormalDist()
    return np.array([normal.inv_cdf((k + 0.5) / QUANTILES) for k in range(QUANTILES)])


BEFORE = {
    "logistic": Powers(1.05, 0.7, -1.37, -0.2, rarity=-0.86, alone=1.3),
    "squares": Powers(1.1, 0.2, -1.63, -0.268),
}
AFTER = {
    "logistic": Powers(2.7, 0.15, 0.0, -0.5, noise=0.95, radius=-1.0, alone=0.69),
    "squares": Powers(3.4, -0.3, 0.0, -0.15, noise=1.0),
}


def before(problem: Problem, rounds: int, resolution: float) -> float | None:
    """Of a plan, by ν = nμ_g / √d; with few rounds a share 2⁻ᵀ of the start's risk more. None of an unmeasured loss."""
    if not _measured(problem):
        return None
    most, constant = start_risk(problem), constant_risk(problem)
    unreached = 0.0 if rounds >= FORECAST_FROM else 0.5 ** (rounds - 1) * most  # measured from four rounds on
    told = min(BEFORE[_kind(problem)].of(problem, resolution), most if constant is None else constant)
    return min(max(told + unreached, _way(problem, rounds)), most)


def _way(problem: Problem, rounds: int) -> float:
    """What rounds that each halve what is left, as they do where features are far from Gaussian, leave of the most."""
    return 0.5**rounds * start_risk(problem) if problem.beliefs.sigmoid else 0.0


def after(problem: Problem, rounds: int, seen: Seen) -> float | None:
    """Of a run that kept its model, by what it released; None with few rounds, too."""
    if rounds < FORECAST_FROM or not _measured(problem):
        return None
    most, found = start_risk(problem), AFTER[_kind(problem)].of(problem, 1.0, seen)
    if problem.beliefs.sigmoid:
        top = LEARNT * math.sqrt(seen.learnt * most)  # noise leaves no more than there is, and most of that is learnt
        found = most if found > LOST * most else found * top / (found + top) if top > 0 else 0.0
    found += seen.growth(problem) + max(0.0, seen.hidden - HIDDEN) * most
    return min(max(found, _way(problem, rounds)), most)


def _measured(problem: Problem) -> bool:
    """Logistic losses, of several classes too, squares and Huber's; no other loss."""
    return problem.beliefs.sigmoid or problem.beliefs.label_bound is not None


def _kind(problem: Problem) -> str:
    return "logistic" if problem.beliefs.sigmoid else "squares"
