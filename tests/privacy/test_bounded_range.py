"""Bounded range: never cheaper than the worst pair of laws, and a run's ε against exact laws composed another way."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from quoron_privacy.accounts import gdp
from quoron_privacy.accounts.subsampling import wor_epsilon
from quoron_privacy.means.private_range import (
    bounded_range_epsilon,
    bounded_range_mu,
    round_mu,
)
from renyi import renyi_ceiling

fast = settings(derandomize=True, deadline=None, max_examples=100)


def worst_pair(eta, top):
    """Two-point laws whose log-ratios are top and top - eta (private-mean#m1)."""
    q = -math.expm1(top - eta) / (math.exp(top) - math.exp(top - eta))  # mass of Q where the ratio is e^top
    p = q * math.exp(top)
    return np.array([p, 1 - p]), np.array([q, 1 - q])


class TestBoundedRangeMu:
    @given(eta=st.floats(0.01, 8.0), top=st.floats(0.0, 1.0), epsilon=st.floats(-6.0, 6.0))
    @fast
    def test_no_bounded_range_pair_is_easier_to_tell_apart_than_the_gaussian_one(self, eta, top, epsilon):
        p, q = worst_pair(eta, eta * min(max(top, 1e-3), 1 - 1e-3))
        attack = np.maximum(p - math.exp(epsilon) * q, 0).sum()
        assert attack <= gdp.delta_for(bounded_range_mu(eta), epsilon) + 1e-12

    def test_the_centred_pair_attains_it(self):
        for eta in (0.1, 1.0, 4.0):
            p, q = worst_pair(eta, eta / 2)
            assert norm.ppf(p[0]) - norm.ppf(q[0]) == pytest.approx(bounded_range_mu(eta), rel=1e-9)

    @given(eta=st.floats(1e-6, 20.0))
    @fast
    def test_it_is_below_the_line_and_inverts(self, eta):
        mu = bounded_range_mu(eta)
        assert mu <= math.sqrt(math.pi / 8) * eta * (1 + 1e-9) + 1e-10
        assert bounded_range_epsilon(mu) <= eta
        assert bounded_range_epsilon(mu) == pytest.approx(eta, rel=1e-6, abs=1e-10)

    def test_a_round_adds_in_squares(self):
        expected = math.sqrt(16 * bounded_range_mu(0.1) ** 2 + 0.3**2)
        assert round_mu(epsilon=0.1, choices=16, gaussian_mu=0.3) == pytest.approx(expected)


class TestRounds:
    """Whole runs of a truncated mean on random cohorts."""

    @pytest.mark.parametrize("rate", [0.01, 0.1, 0.5, 1.0])
    @pytest.mark.parametrize("mu", [0.05, 0.3, 1.0])
    def test_the_renyi_ceiling_is_never_below(self, rate, mu):
        assert renyi_ceiling(rate, 50, mu**2 / 2, 1e-6) >= wor_epsilon(rate, 50, mu, 1e-6) * 0.999

    def test_sampling_never_costs_more_than_asking_everybody(self):
        assert renyi_ceiling(0.9, 10, 0.1, 1e-6) <= renyi_ceiling(1.0, 10, 0.1, 1e-6)
