"""An audit of two committed releases of one round, as books that are put back make them: √2 μ and no more.

A victim answers one clip up or one clip down in the first copy. In the second it answers again, or is kept away while a
colluder, who was silent before, sends what the victim would have answered if it was up: the sums are equal if it was.
"""

from collections.abc import Callable
from functools import cache
from hashlib import blake2b

import numpy as np
import pytest

from audits.harness import epsilon_lower_bound
from quoron_privacy.accounts import gdp
from quoron_privacy.gaussian import GaussianNoise
from quoron_privacy.noise.ahead import StartedNoise
from quoron_privacy.noise.sources import SecureNoise

CLIP, DELTA, DRAWS = 1.0, 1e-2, 2000
Nonce = Callable[[StartedNoise, float], StartedNoise]
Statistic = Callable[[float, float], float]


@cache
def one() -> GaussianNoise:
    """Of one release."""
    return GaussianNoise.for_mu(sensitivity=2 * CLIP, mu=gdp.mu_for(1.0, DELTA, gaussians=1), dimension=1)


@cache
def claim() -> float:
    """ε of two copies."""
    return gdp.epsilon_for(np.sqrt(2) * one().effective_mu(1), DELTA)


def copies(victim: float, *, away: bool, nonce: Nonce, statistic: Statistic, seed: int):
    """Sampler of a statistic of both releases of a round; `nonce` makes of a start what labels its noise."""
    sums = victim, CLIP if away else victim

    def draw(size: int) -> np.ndarray:
        found = np.zeros(size)
        for index in range(size):
            key = SecureNoise(blake2b(f"{seed} {index}".encode(), digest_size=32).digest())
            first, second = (nonce(StartedNoise.fresh(key), total) for total in sums)
            result = [
                float(one().release(np.array([total]), start.stream("release", 0))[0])
                for total, start in zip(sums, (first, second), strict=True)
            ]
            found[index] = statistic(*result)
        return found

    return draw


def found(*, away: bool, statistic: Statistic, nonce: Nonce = lambda start, total: start) -> float:
    up, down = (
        copies(side * CLIP, away=away, nonce=nonce, statistic=statistic, seed=seed)
        for seed, side in enumerate((1, -1), 1)
    )
    return epsilon_lower_bound(up, down, delta=DELTA, draws=DRAWS)


STATISTICS: dict[str, Statistic] = {
    "sum": lambda first, second: first + second,
    "difference": lambda first, second: first - second,
    "equal": lambda first, second: float(first == second),
}


def digested(start: StartedNoise, total: float) -> StartedNoise:
    """As it was: the same answers, the same noise."""
    return StartedNoise(start.source, str(total))


def constant(start: StartedNoise, total: float) -> StartedNoise:
    return StartedNoise(start.source, "always")


@pytest.mark.parametrize("statistic", STATISTICS)
@pytest.mark.parametrize("away", [True, False])
def test_two_copies_show_no_more_than_the_root_of_two(statistic: str, away: bool) -> None:
    assert found(away=away, statistic=STATISTICS[statistic]) <= claim()


def test_the_audit_catches_noise_that_follows_from_answers() -> None:
    assert found(away=True, statistic=STATISTICS["equal"], nonce=digested) > claim()


@pytest.mark.parametrize("statistic", ["difference", "equal"])
def test_the_audit_catches_a_nonce_that_is_always_the_same(statistic: str) -> None:
    assert found(away=True, statistic=STATISTICS[statistic], nonce=constant) > claim()
