"""The stages of a pair, composed: each as a law of losses, and δ at ε of all of them, in closed form or on a lattice.

`pair` is what is asked; it brings this when it is. Statement and proof: docs/privacy/pairs.md#pl2.
"""

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np
import scipy

from quoron_privacy.accounts import losses, mixtures, stages
from quoron_privacy.accounts.losses import Atoms
from quoron_privacy.accounts.mixtures import Mixtures, Vector
from quoron_privacy.accounts.stages import Items, Response, Sampled, Stage

Stages = tuple[tuple[Stage, int], ...]  # each with how often it is there

_SHARE = 1e-11  # of δ: rounding of sums over atoms
_LARGEST = 1e3  # ε beyond which none is looked for
_NOBODY = np.ones(1), np.zeros(1)


def laws(stage: Stage) -> tuple[Mixtures | Atoms, ...]:
    """Of its loss in both orders of the neighbours; two equal ones are one."""
    if isinstance(stage, Sampled):
        own = np.array([1 - stage.rate, stage.rate]), np.array([0.0, stage.mu])
        return (Mixtures(own, _NOBODY, folded=True),) if stage.adjacency == "replace-one" else _both_ways(own)
    if isinstance(stage, Items):
        chances, numbers, lost = stages.binomial(stage.most, stage.rate)
        own = chances, numbers / stage.z
        if stage.adjacency == "replace-one":
            return (Mixtures(own, (chances, -numbers / stage.z), lost),)
        return _both_ways(own, lost)
    if isinstance(stage, Response):
        if stage.epsilon > 700:  # the opposite has a chance below 1e-304
            return (Atoms(np.array([float(stage.epsilon)]), np.ones(1)),)
        both = np.array([-stage.epsilon, stage.epsilon])
        return (Atoms(both, 1 / (1 + np.exp(-both))),)
    law = (Atoms(np.array(stage.losses), np.array(stage.masses), stage.infinite),)
    return law if stage.back is None else (*law, *laws(stage.back))


def _both_ways(own: tuple[Vector, Vector], lost: float = 0.0) -> tuple[Mixtures, Mixtures]:
    """Own items against nobody's, and the other order, turned round, so that its loss grows with x, too."""
    return Mixtures(own, _NOBODY, lost), Mixtures(_NOBODY, (own[0], 0.0 - own[1]))


def orders(mu: float, every: Stages) -> tuple[losses.Parts, ...]:
    """The laws of all stages' losses, each with how often it is there: in one order of the pair, or in both."""
    ways = [(laws(stage), times) for stage, times in every]
    gaussian: list[tuple[Mixtures | Atoms, int]] = []
    if mu:
        gaussian = [(Mixtures((np.ones(1), np.full(1, mu)), _NOBODY), 1)]
    found = max((len(each) for each, _ in ways), default=1)
    return tuple([*((each[order % len(each)], times) for each, times in ways), *gaussian] for order in range(found))


@lru_cache(maxsize=1024)
def exactly(mu: float, every: Stages, epsilon: float, near: float, *, least: bool) -> tuple[tuple[float, float], ...]:
    """(least, most) δ with exact noise, in each order of the pair; 0 or 1 for whichever is not asked for."""
    return tuple(_one_order(mu, parts, epsilon, near, least) for parts in orders(mu, every))


def _one_order(mu: float, parts: losses.Parts, epsilon: float, near: float, least: bool) -> tuple[float, float]:
    own = parts[:-1] if mu else parts
    if len(parts) == 1 and parts[0][1] == 1 and own and isinstance(law := parts[0][0], Mixtures):
        # Above 0 a folded pair has the profile of the one that it is made of.
        return (0.0, 1.0) if law.too_far else mixtures.once(law, epsilon)
    pure = [(law, times) for law, times in own if isinstance(law, Atoms)]
    if len(pure) == len(own) and (sums := losses.all_sums(pure)) is not None:
        return _each(mu, sums, epsilon)
    if least:
        return losses.least(parts, epsilon, near), 1.0
    return 0.0, losses.most(parts, epsilon, near)


def _each(mu: float, sums: Atoms, epsilon: float) -> tuple[float, float]:
    """A Gaussian, if there is one, after each sum of losses that are atoms: in closed form."""
    left = epsilon - sums.losses
    if mu:
        least, most = mixtures.gaussian(mu, left)
    else:
        least = most = np.maximum(-np.expm1(np.minimum(left, 0.0)), 0.0)
    rounding = _SHARE if len(left) > 1 or not mu else 0.0
    lower, upper = float(sums.masses @ least) * (1 - rounding), float(sums.masses @ most) * (1 + rounding)
    return max(0.0, lower * (1 - 1e-15) + sums.lost), min(1.0, upper * (1 + 1e-15) + sums.lost)


def crossing(delta: Callable[[float], float], wanted: float) -> tuple[float, float]:
    """Two ε close to each other, the larger one alone with a δ of at most `wanted`: infinite beyond 1,000."""
    if delta(0.0) <= wanted:
        return 0.0, 0.0

    def excess(epsilon: float) -> float:
        found = math.log(max(delta(epsilon), 1e-300) / wanted)
        return found if found > 0 else min(found, -1e-12)  # 0 may be the value of a whole range: its start is wanted

    low, high = 0.0, 0.01
    while excess(high) > 0:
        if high == _LARGEST:
            return _LARGEST, math.inf
        low, high = high, min(4 * high, _LARGEST)
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
    return low, high
