"""What runs on secret samples are to a lifetime: Gaussian ones, but for a chance t.

    points(own.parameters.secret_samples(own.problem), own.guarantee)       # ((0.1113, 3e-09), ...)

Statement: docs/privacy/lifetime.md#lt6.
"""

import math
from collections.abc import Sequence
from functools import lru_cache

from quoron_privacy.accounts import gdp, near_gaussian
from quoron_privacy.accounts.pair import Pair
from quoron_server.parameters import SecretSamples
from quoron_server.plan import Guarantee


def points(samples: tuple[SecretSamples, ...], own: Guarantee) -> tuple[tuple[float, float], ...]:
    """(μ, t), with each of which runs on these samples are μ-GDP but for t, for replacing one user; `own` as promised.

    By the second account, at more ε than the one that the plan is verified at.
    """
    # A zero-out promise costs a replacement at most twice its ε: about there the lattice has to be fine.
    return _points(samples, own.epsilon * (1 if own.adjacency == "replace-one" else 2), own.delta) if samples else ()


@lru_cache(maxsize=64)
def _points(samples: tuple[SecretSamples, ...], epsilon: float, delta: float) -> tuple[tuple[float, float], ...]:
    pairs = [_pair(each) for each in samples]
    return near_gaussian.points(lambda at, near: max(pair.delta(at, near) for pair in pairs), epsilon, delta)


def beside(near: Sequence[tuple[float, float]], mu: float) -> tuple[tuple[float, float], ...]:
    """The same with all that is μ-GDP beside it."""
    return tuple((math.nextafter(gdp.compose(each, mu), math.inf), lost) for each, lost in near)


def _pair(samples: SecretSamples) -> Pair:
    if samples.items is None:
        return Pair.sampled(samples.rate, samples.mu, samples.rounds, "replace-one")
    return Pair.items(samples.rate, samples.items, samples.rounds, (1 - 2.0**-50) / samples.mu, "replace-one")
