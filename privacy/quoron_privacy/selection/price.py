"""What it costs to release the best of a secret number of private trials: exactly, from one trial's privacy profile.

    >>> from quoron_privacy.accounts.gdp import mu_for
    >>> law = Trials.negative_binomial(40.0)
    >>> round(Selection(law, (DominatingPair.gaussian(mu_for(1.0, 1e-6)),)).epsilon(1e-6), 2)
    1.88

That is twenty settings, each tried twice in the mean, for less than twice one run's ε. One after the other, in the
open, they would cost 5.2. A second evaluation of the same theorem, `verified`, shares no function with this one.
Source: Liu & Talwar (2019), Papernot & Steinke (2022), Koskela, Redberg & Wang (2024), with the envelope of
docs/privacy/selection.md#se2 in place of one worst loss for all ranks.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from decimal import ROUND_DOWN, Context, Decimal
from functools import cached_property, lru_cache, partial

import numpy as np

from quoron_privacy.accounts import gdp, pld_lattice
from quoron_privacy.accounts.pair import DominatingPair
from quoron_privacy.accounts.roots import root
from quoron_privacy.arrays import Vector
from quoron_privacy.errors import ConfigError, Infeasible, non_negative, positive, probability
from quoron_privacy.selection.trials import Trials

Profile = Callable[[Vector], Vector]  # ε (m,) at least 0 -> δ (m,), of the worse order
NEAR = 1e-14  # δ of one trial below which nothing is resolved
MOST_EPSILON = 1000.0
_SIX_DIGITS = Context(prec=6, rounding=ROUND_DOWN)
SPARE = 1.01
_ARITHMETIC = 1e-11  # of slopes, which are right to 1e-12
# s, how much of a trial's law is above an outcome: fine where others than the best trial win.
_RANKS = np.concatenate([[0.0], np.geomspace(1e-13, 1e-6, 40), np.geomspace(1e-6, 1.0, 14_000)[1:]])
_LEVELS = 600  # losses at which the profile is looked at for them


@dataclass(frozen=True)
class Selection:
    """The best of K trials by their own private scores, K of `trials`; each trial is worth the worst of `pairs`.

    Formal guarantee: the best trial's score and all that it released are (`epsilon(delta)`, delta)-DP (selection#se1),
    if nothing of the others, of K and of how long it took is observed.
    """

    trials: Trials
    pairs: tuple[DominatingPair, ...]  # a user is in one of these in every trial; they cover every candidate

    def __post_init__(self) -> None:
        if not self.pairs:
            raise ConfigError("Expected what a trial is worth as one pair or more, got none.")

    def delta(self, epsilon: float) -> float:
        """Return δ at ε, never below the truth."""
        non_negative(epsilon=epsilon)
        return at(epsilon, self._sticks, self._profile)

    def promised(self, delta: float) -> float:
        """Return the ε to state and charge: 1 % above `epsilon`, so that the second, coarser account agrees."""
        return _epsilon(self, delta) * SPARE

    def epsilon(self, delta: float) -> float:
        """Return the least ε at δ, rounded up: to 1e-6 of itself or 1e-9; infinite if no ε up to 1,000 has that δ."""
        probability(delta=delta)
        return pld_lattice.crossing(self.delta, delta)

    def trial_epsilon(self, delta: float) -> float:
        """Return what one trial alone would cost."""
        return max(pair.epsilon(delta) for pair in self.pairs)

    @cached_property
    def _profile(self) -> Profile:
        found = [profile(pair) for pair in self.pairs]
        return lambda epsilons: np.max([curve(epsilons) for curve in found], axis=0)

    @cached_property
    def _sticks(self) -> tuple[Vector, Vector]:
        return sticks(self.trials, self._profile)


@lru_cache(maxsize=64)
def _epsilon(chosen: Selection, delta: float) -> float:
    return chosen.epsilon(delta)


@lru_cache(maxsize=64)
def calibrate(epsilon: float, delta: float, trials: Trials) -> float:
    """Return the largest μ, rounded down, of μ-GDP trials whose `promised(delta)` is at most ε. Infeasible if none."""
    positive(epsilon=epsilon)
    probability(delta=delta)

    def cost(mu: float) -> float:
        return math.log(max(Selection(trials, (DominatingPair.gaussian(mu),)).delta(epsilon / SPARE), 1e-300) / delta)

    high = gdp.mu_for(epsilon, delta)
    if cost(high) <= 0:
        return rounded(high)
    low = high / 2
    while cost(low) > 0:
        high, low = low, low / 2
        if low < 1e-9:
            raise Infeasible("selection", f"no trial is private enough for epsilon={epsilon:g}", "a larger delta")
    found = rounded(root(cost, low, high, rtol=1e-5))
    while cost(found) > 0:
        found = rounded(found * (1 - 1e-5))
    return found


def rounded(value: float) -> float:
    """Down to six digits: the last bits of a sum are another processor's own, and a plan stands on what is found."""
    return float(_SIX_DIGITS.create_decimal(Decimal(value)))


def sticks(trials: Trials, found: Profile) -> tuple[Vector, Vector]:
    """Return the hockey sticks of selection#se2 at ε = 0: how much of each (m,), and at which ratio of densities (m,).

    An outcome at rank s counts f'(1 - s) at most in one world and f'(1 - t) at least in the other: a line in R.
    """
    slopes = trials.slopes(_RANKS) * (1 + _ARITHMETIC)
    losses = trials.slopes(above(found, _RANKS)) * (1 - _ARITHMETIC)
    return _sticks_of(slopes[:-1], losses[1:])


def at(epsilon: float, held: tuple[Vector, Vector], found: Profile) -> float:
    """Return δ at ε of such hockey sticks, each as large as a trial's profile says."""
    steps, ratios = held[0], held[1] * math.exp(min(epsilon, 700.0))
    deltas = found(np.abs(np.log(np.maximum(ratios, 1e-300))))
    each = np.where(ratios >= 1, deltas, np.minimum(1.0, 1 - ratios + ratios * deltas))
    return min(1.0, math.fsum((steps * each).tolist()) * (1 + 1e-12))


def profile(pair: DominatingPair) -> Profile:
    """Return δ at ε of one trial, for many ε at once."""
    if pair.is_gaussian:
        return lambda epsilons: np.asarray(
            gdp.delta_for(pair.mu, epsilons) + (1 + np.exp(np.minimum(epsilons, 700.0))) * pair.variation
        )
    return partial(pair.lattice(NEAR).delta, rounding=1e-9)


def above(found: Profile, ranks: Vector) -> Vector:
    """Return the most that the other world's law may have where one world's has s = `ranks`, (m,): it does not fall."""
    highest = 1e-3
    while highest < MOST_EPSILON and float(found(np.array([highest]))[0]) > 10 * NEAR:
        highest *= 1.2
    most = np.ones(len(ranks))
    levels = np.linspace(0.0, highest, _LEVELS)
    for level, delta in zip(levels.tolist(), found(levels).tolist(), strict=True):
        grown = math.exp(min(level, 700.0))
        most = np.minimum(most, np.minimum(grown * ranks + delta, 1 - (1 - ranks - delta) / grown))
    return np.maximum.accumulate(np.minimum(most * (1 + 1e-13) + 1e-16, 1.0))


def _sticks_of(slopes: Vector, losses: Vector) -> tuple[Vector, Vector]:
    """The largest of 0 and slopes · R - losses as a sum of weights · (R - ratios)₊: the envelope of the lines."""
    tops: list[tuple[float, float, float]] = [(0.0, 0.0, 0.0)]  # slope, loss, from which R on
    for slope, loss in zip(slopes[::-1].tolist(), losses[::-1].tolist(), strict=True):
        while slope <= tops[-1][0] and len(tops) > 1 and loss < tops[-1][1]:
            tops.pop()
        if slope <= tops[-1][0]:  # as steep, and it loses no less
            continue
        while (begins := (loss - tops[-1][1]) / (slope - tops[-1][0])) <= tops[-1][2] and len(tops) > 1:
            tops.pop()
        tops.append((slope, loss, max(begins, 0.0)))
    steps = np.array([one[0] - other[0] for one, other in zip(tops[1:], tops, strict=False)])
    return steps, np.array([top[2] for top in tops[1:]])
