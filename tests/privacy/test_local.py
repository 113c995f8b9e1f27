"""The local model's constants against direct computation."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom

from quoron_privacy import local
from quoron_privacy.accounts import gdp
from quoron_privacy.errors import ConfigError, Infeasible

fast = settings(derandomize=True, deadline=None, max_examples=60)


def chance_of_a_tie_or_worse(size, members, epsilon):
    """P(a bin without values has at least as many ones as a bin with `members` of `size`), exactly."""
    flip = 1 / (math.exp(epsilon / 2) + 1)
    own = np.convolve(
        binom.pmf(range(members + 1), members, 1 - flip), binom.pmf(range(size - members + 1), size - members, flip)
    )
    at_least = binom.sf(np.arange(size + 1) - 1, size, flip)
    return float(own @ at_least)


class TestGroupSize:
    @given(epsilon=st.floats(0.3, 6.0), bins=st.integers(2, 300), log_failure=st.floats(-6, -1))
    @fast
    def test_enough_by_exact_probabilities_however_the_values_are_split(self, epsilon, bins, log_failure):
        size = local.group_size(epsilon=epsilon, bins=bins, failure=10**log_failure)
        for members in {math.ceil(size / 2), math.ceil(0.7 * size), size}:
            assert bins * chance_of_a_tie_or_worse(size, members, epsilon) <= 10**log_failure

    def test_the_printed_number_is_far_from_enough(self):
        printed = math.ceil(4 * math.log(64 / 1e-5))
        assert chance_of_a_tie_or_worse(printed, printed // 2, 1.0) > 0.05


class TestCentredRadius:
    def test_it_is_the_formula_at_the_narrowest_bins_and_grows_with_them(self):
        known = {"dimension": 10, "users": 5000, "failure": 1e-3}
        narrow = local.centred_radius(0.1, **known)
        deviation = 0.1 * math.sqrt(2 * math.log(4 * 16 * 5000 / 1e-3) / 16)
        assert narrow == pytest.approx(0.1 * (1 + 2 * math.sqrt(2 * math.log(4 * 16 * 5000 / 1e-3))))
        assert local.centred_radius(0.1, **known, width=4 * deviation) == pytest.approx(narrow + 4 * deviation)
        with pytest.raises(ConfigError, match="Expected width >="):
            local.centred_radius(0.1, **known, width=deviation)


class TestMessages:
    def test_bits_epsilon_of_a_fair_coin_is_zero_and_of_the_formula_epsilon(self):
        assert local.bits_epsilon(2**63) == 0
        assert local.bits_epsilon(round(2**64 / (math.exp(0.5) + 1))) == pytest.approx(1.0)

    @pytest.mark.parametrize(("total", "first", "scale"), [(1.0, 0.5, 15.7), (4.0, 1.0, 3.05)])
    def test_noise_of_a_second_message_at_one_in_a_million(self, total, first, scale):
        mu = local.second_message_mu(range_epsilon=first, epsilon=total, delta=1e-6)
        assert 2 / mu == pytest.approx(scale, abs=0.05)
        assert gdp.mu_for(total - first, 1e-6) < mu < gdp.mu_for(total, 1e-6)

    def test_a_range_report_that_takes_all_is_refused(self):
        with pytest.raises(Infeasible, match="leaves nothing"):
            local.second_message_mu(range_epsilon=1.1, epsilon=1.0, delta=1e-6)

    def test_the_classical_formula_is_wasteful_below_one_and_wrong_above(self):
        for epsilon, enough in ((0.5, True), (1.0, True), (12.0, False)):
            classical = 2 * math.sqrt(2 * math.log(1.25 / 1e-6)) / epsilon
            spent = local.vector_delta(radius=1.0, scale=classical, dimension=1, epsilon=epsilon)
            assert (spent <= 1e-6) == enough
