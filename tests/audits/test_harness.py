"""The harness itself: it finds what is there, and never more than there is."""

import numpy as np
import pytest
from scipy import stats

from audits.harness import clopper_pearson, delta_bounds, epsilon_lower_bound


def shifted(shift, seed):
    return lambda draws: np.random.default_rng(seed).normal(shift, 1.0, draws)


@pytest.mark.parametrize(("hits", "trials"), [(0, 50), (3, 50), (25, 50), (50, 50)])
def test_clopper_pearson_inverts_the_binomial_tails(hits, trials):
    low, high = clopper_pearson(np.array([hits]), trials, 1e-3)
    if hits:
        assert stats.binom.sf(hits - 1, trials, low[0]) == pytest.approx(1e-3)
    if hits < trials:
        assert stats.binom.cdf(hits, trials, high[0]) == pytest.approx(1e-3)
    assert (low[0] == 0) == (hits == 0)
    assert (high[0] == 1) == (hits == trials)


@pytest.mark.parametrize("swap", [False, True])
def test_a_violation_is_found_in_either_direction_and_either_tail(swap):
    # an output that only one world can give
    worlds = [lambda n: np.zeros(n), lambda n: np.where(np.random.default_rng(2).random(n) < 0.01, -1, 0)]
    found = epsilon_lower_bound(*(reversed(worlds) if swap else worlds), delta=1e-4, draws=200_000)
    assert found > 3.0


def test_identical_worlds_give_nothing():
    assert epsilon_lower_bound(shifted(0, 1), shifted(0, 2), delta=1e-6, draws=200_000) < 0.05


def test_delta_bounds_enclose_the_exact_delta_of_a_gaussian_pair():
    mu, epsilon = 1.0, 1.0
    log_ratio = mu * shifted(mu, 3)(400_000) - mu**2 / 2
    exact = stats.norm.cdf(mu / 2 - epsilon / mu) - np.exp(epsilon) * stats.norm.cdf(-mu / 2 - epsilon / mu)
    low, high = delta_bounds(log_ratio, epsilon=epsilon)
    assert low <= exact <= high
    assert high - low < 0.01
