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
from quoron_privacy.means.private_range import PrivateRange, costs, weights
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

    @pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1.7e308])
    def test_no_row_can_raise_or_reach_beyond_the_range(self, bad):
        values = np.full((30, 3), bad)
        values[0] = 1.0
        point = self.release(values)
        assert np.isfinite(point).all()
        assert np.linalg.norm(point) <= 4.0

    @pytest.mark.parametrize("change", [{"epsilon": 0.0}, {"epsilon": 2000.0}, {"bins": 0}, {"half_width": np.inf}])
    def test_parameters_out_of_range_are_refused(self, change):
        with pytest.raises(ConfigError, match="Expected"):
            PrivateRange(**{"epsilon": 1.0, "bins": 4, "half_width": 1.0, **change})
