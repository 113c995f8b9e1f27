"""Private ranges: exactly the bounded range that is charged, by enumeration of every small dataset."""

from decimal import Decimal, localcontext
from fractions import Fraction
from itertools import combinations_with_replacement
from math import log

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from quoron_privacy.errors import ConfigError
from quoron_privacy.means.private_range import PrivateRange, bounded_range_mu, costs, range_epsilon, weights
from quoron_privacy.noise.sources import SeededNoise

fast = settings(derandomize=True, deadline=None, max_examples=60)


def law(counts, epsilon):
    """Exact probabilities of every bin."""
    whole = weights(costs(np.array(counts)), epsilon)
    return [Fraction(weight, sum(whole)) for weight in whole]


def datasets(users, bins):
    for held in combinations_with_replacement(range(bins), users):
        yield tuple(held.count(b) for b in range(bins))


def replaced(counts):
    """Every dataset at distance one replacement."""
    for a, holds in enumerate(counts):
        for b in range(len(counts)):
            if a != b and holds:
                yield tuple(n - (i == a) + (i == b) for i, n in enumerate(counts))


def as_decimal(ratio):
    return Decimal(ratio.numerator) / Decimal(ratio.denominator)


@pytest.mark.parametrize("epsilon", [0.3, 1.0, 2.5])
@pytest.mark.parametrize(("users", "bins"), [(1, 3), (2, 4), (3, 4), (4, 5), (5, 4), (6, 3)])
def test_log_ratios_of_neighbours_range_over_epsilon_and_no_more(users, bins, epsilon):
    widest, largest = Fraction(0), Fraction(0)
    for counts in datasets(users, bins):
        here = law(counts, epsilon)
        for other in replaced(counts):
            ratios = [p / q for p, q in zip(here, law(other, epsilon), strict=True)]
            widest = max(widest, max(ratios) / min(ratios))
            largest = max(largest, max(ratios))
    with localcontext() as context:
        context.prec = 90
        assert as_decimal(widest).ln() <= Decimal(epsilon)  # in exact arithmetic of the integer weights
        assert as_decimal(largest).ln() < Decimal(epsilon)
    if users > 1:
        assert log(widest) == pytest.approx(epsilon, rel=1e-12)


@given(epsilon=st.floats(1e-9, 1000.0), cost=st.integers(0, 10**6))
@fast
def test_neighbouring_weights_are_within_half_of_epsilon(epsilon, cost):
    low, high = weights([cost + 1, cost], epsilon)
    with localcontext() as context:
        context.prec = 120
        assert low <= high
        assert (Decimal(high) / Decimal(low)).ln() <= Decimal(epsilon) / 2
        assert (Decimal(high) / Decimal(low)).ln() >= Decimal(epsilon) / 2 * (1 - Decimal(2) ** -50)


@given(counts=st.lists(st.integers(0, 9), min_size=1, max_size=8).filter(any))
@fast
def test_costs_are_the_larger_of_users_below_and_above(counts):
    slow = [max(sum(counts[:b]), sum(counts[b + 1 :])) for b in range(len(counts))]
    assert costs(np.array(counts)).tolist() == slow


def test_a_choice_follows_its_exact_law():
    mechanism, counts = PrivateRange(1.0, 5, 1.0), np.array([1, 0, 3, 0, 1])
    stream = SeededNoise(6).stream("range")
    drawn = np.bincount([mechanism.choose(counts, stream) for _ in range(4_000)], minlength=5)
    expected = np.array([float(p) for p in law(counts, 1.0)]) * 4_000
    assert stats.chi2.sf(((drawn - expected) ** 2 / expected).sum(), 4) > 1e-8  # the false alarm


class TestRelease:
    MECHANISM = PrivateRange(20.0, 40, 2.0)  # so sharp that it takes the median bin
    SIGNS = np.array([1.0, -1.0, -1.0])

    def release(self, values, answered=None, **change):
        answered = np.ones(len(values), bool) if answered is None else answered
        return self.MECHANISM.release(values, answered, self.SIGNS, SeededNoise(1).stream("range"))

    def test_the_point_is_near_where_most_users_are(self):
        values = np.full((101, 3), 0.4) + np.random.default_rng(0).normal(size=(101, 3)) * 0.01
        values[:20] = 1e6
        # Each of four rotated coordinates is off by half a bin and the spread at most.
        assert np.linalg.norm(self.release(values) - 0.4) < 2 * (0.05 + 0.03)

    @pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1.7e308])
    def test_no_row_can_raise_or_reach_beyond_the_range(self, bad):
        values = np.full((30, 3), bad)
        values[0] = 1.0
        point = self.release(values)
        assert np.isfinite(point).all()
        assert np.linalg.norm(point) <= 4.0

    def test_absent_and_non_finite_rows_count_as_zero(self):
        values = np.random.default_rng(1).normal(size=(9, 3))
        zeroed, hostile, answered = values.copy(), values.copy(), np.ones(9, bool)
        zeroed[2:4] = 0.0
        hostile[2], answered[3] = np.nan, False
        assert np.array_equal(self.release(zeroed), self.release(hostile, answered))

    def test_blocks_of_users_do_not_change_the_result(self, monkeypatch):
        values = np.random.default_rng(1).normal(size=(50, 3))
        whole = self.release(values)
        monkeypatch.setattr("quoron_privacy.means.private_range._MOST_COORDINATES", 12)
        assert np.array_equal(self.release(values), whole)

    def test_choices_fall_outside_the_users_no_oftener_than_planned(self):
        # 300 runs at a failure chance of 1e-3 each: 10 or more failures have probability below 1e-12.
        users, bins = 64, 32
        epsilon = range_epsilon(users=users, bins=bins, choices=1, failure=1e-3)
        counts = np.zeros(bins, np.int64)
        counts[[20, 21]] = users // 2
        mechanism, stream = PrivateRange(epsilon, bins, 1.0), SeededNoise(2).stream("x")
        assert sum(mechanism.choose(counts, stream) not in (20, 21) for _ in range(300)) < 10

    def test_what_it_costs_counts_padded_coordinates(self):
        assert self.MECHANISM.mu(3) == pytest.approx(2 * bounded_range_mu(20.0))
        assert self.MECHANISM.mu(5) == pytest.approx(8**0.5 * bounded_range_mu(20.0))
        assert self.MECHANISM.entry(5).parameters["choices"] == 8

    @pytest.mark.parametrize("change", [{"epsilon": 0.0}, {"epsilon": 2000.0}, {"bins": 0}, {"half_width": np.inf}])
    def test_parameters_out_of_range_are_refused(self, change):
        with pytest.raises(ConfigError, match="Expected"):
            PrivateRange(**{"epsilon": 1.0, "bins": 4, "half_width": 1.0, **change})
