"""The private second moment: √2 R² apart whatever is sent, exact sums, isometric noise."""

from fractions import Fraction
from math import sqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from quoron_privacy.means.free_presence import moment_sensitivity
from quoron_privacy.release import packed
from sums import moment_mean

NORMS = st.floats(1e-3, 1e3)
HOSTILE = st.floats(width=64) | st.sampled_from([0.0, 5e-324, -1e-300, 1e300, np.nan, np.inf]) | st.floats(-2, 2)
DIVISORS = st.sampled_from([1, 3, 1000, 10**9])  # the last one makes the grid of the sum coarse
fast = settings(derandomize=True, deadline=None, max_examples=150)


def factors(dimension, users):
    return hnp.arrays(np.float64, (users, packed(dimension)), elements=HOSTILE)


def distance(one, two):
    """Exact, squared."""
    return sum((Fraction(float(a)) - Fraction(float(b))) ** 2 for a, b in zip(one, two, strict=True))


class TestMomentMean:
    @given(data=st.data(), dimension=st.integers(1, 4), norm=NORMS, divisor=DIVISORS)
    @fast
    def test_leaving_one_user_out_moves_the_mean_by_a_root_two_less(self, data, dimension, norm, divisor):
        rows = data.draw(factors(dimension, 3))
        answered = np.array([True, True, True])
        one, two = (
            moment_mean(rows, who, dimension=dimension, norm=norm, divisor=divisor)
            for who in (answered, np.array([True, False, True]))
        )
        bound = moment_sensitivity(dimension, norm, divisor, "zero-out")
        assert distance(one, two) <= Fraction(bound) ** 2
        assert bound * sqrt(2) == pytest.approx(moment_sensitivity(dimension, norm, divisor))

    @pytest.mark.parametrize("divisor", [1, 10**9])
    def test_a_search_for_the_worst_pair_of_factors_comes_up_to_the_sensitivity_and_not_beyond(self, divisor):
        # climb from random pairs; rows are sent up to ten times too long
        rng, dimension, best = np.random.default_rng(1), 3, 0.0
        bound = moment_sensitivity(dimension, 1.0, divisor)

        def apart(pair):
            means = [
                moment_mean(row[None], np.ones(1, bool), dimension=dimension, norm=1.0, divisor=divisor) for row in pair
            ]
            return float(np.linalg.norm(means[0] - means[1]))

        for _ in range(20):
            pair = rng.normal(size=(2, packed(dimension))) * rng.uniform(0, 10)
            found, step = apart(pair), 1.0
            for _ in range(200):
                tried = pair + step * rng.normal(size=pair.shape) * (rng.random(pair.shape) < 0.4)
                if (farther := apart(tried)) > found:
                    pair, found = tried, farther
                else:
                    step = max(step * 0.97, 1e-3)
            best = max(best, found)
        assert 0.999 * bound < best <= bound

    def test_users_with_orthogonal_features_attain_the_sensitivity(self):
        rows = np.array([[3.0, 0, 0], [0, 0, 3.0]])  # U = 3 e₁e₁ᵀ and 3 e₂e₂ᵀ, clipped to norm 2
        one, two = (
            moment_mean(row[None], np.ones(1, bool), dimension=2, norm=2.0, divisor=10) for row in (rows[0], rows[1])
        )
        assert np.linalg.norm(one - two) == pytest.approx(sqrt(2) * 4 / 10, rel=1e-12)
        assert moment_sensitivity(2, 2.0, 10) == pytest.approx(sqrt(2) * 4 / 10, rel=1e-12)
