"""Facts of a table: exact laws of ranks on every small table, and what is released of items, ranges and categories."""

from decimal import Decimal, localcontext
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quoron_privacy.counts.user_histograms import (
    distances,
    holders_of_category,
    release_categories,
    release_items_per_user,
    users_for_items,
)
from quoron_privacy.errors import Infeasible
from quoron_privacy.means.private_range import weights
from quoron_privacy.noise.streams import RandomStream, SeededNoise

fast = settings(derandomize=True, deadline=None, max_examples=60)


def stream(*labels: str | int) -> RandomStream:
    return SeededNoise(6).stream("facts", *labels)


def law(votes, rank, epsilon):
    """Exact probabilities of every bin."""
    whole = weights(distances(np.array(votes), rank), epsilon)
    return [Fraction(weight, sum(whole)) for weight in whole]


def widest(bins, users, epsilon):
    """e to the range of log-likelihood ratios, over all neighbours and all ranks."""
    found = Fraction(0)
    for votes in product(range(users + 1), repeat=bins):
        if sum(votes) != users:
            continue
        for rank in range(users + 1):
            here = law(votes, rank, epsilon)
            for a, b in product(range(bins), repeat=2):
                if a == b or not votes[a]:
                    continue
                there = law([v - (i == a) + (i == b) for i, v in enumerate(votes)], rank, epsilon)
                ratios = [p / q for p, q in zip(here, there, strict=True)]
                found = max(found, max(ratios) / min(ratios))
    with localcontext() as context:
        context.prec = 90
        return (Decimal(found.numerator) / Decimal(found.denominator)).ln()


@pytest.mark.parametrize("epsilon", [0.3, 2.0])
@pytest.mark.parametrize(("bins", "users"), [(2, 4), (3, 4), (4, 3)])
def test_a_rank_costs_epsilon_on_all_neighbours_and_a_quarter_of_the_noise_four_times_that(bins, users, epsilon):
    assert Decimal(0.49 * epsilon) < widest(bins, users, epsilon) <= Decimal(epsilon)
    assert widest(bins, users, 4 * epsilon) > Decimal(epsilon)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=12), st.data())
@fast
def test_one_user_moves_every_distance_by_at_most_one(votes, data):
    rank = data.draw(st.integers(0, sum(votes) + 2))
    leaves, joins = (data.draw(st.integers(0, len(votes) - 1)) for _ in range(2))
    moved = np.array(votes)
    moved[joins] += 1
    if moved[leaves] > 0:
        moved[leaves] -= 1
    far, there = distances(np.array(votes), rank), distances(moved, rank)
    assert abs(far - there).max() <= 1
    assert far.min() >= 0
    assert sum(votes) < rank or far.min() == 0


class TestItems:
    def test_the_forecast_is_where_it_begins_to_be_refused(self):
        least = users_for_items(epsilon=1.0)
        release_items_per_user(np.ones(least, np.int64), epsilon=1.0, stream=stream())
        with pytest.raises(Infeasible, match=rf"items per user: .*needs {least} users, or epsilon >= 1.0"):
            release_items_per_user(np.ones(least - 1, np.int64), epsilon=1.0, stream=stream())


class TestCategories:
    def test_those_that_enough_users_hold_come_the_most_frequent_first(self):
        needed = holders_of_category(epsilon=1.0, delta=1e-6)
        words = ["often"] * (3 * needed) + ["seldom"] * needed + ["once", 7, None, 2.5, b"x", True]
        words += [5] * (2 * needed)
        fact = release_categories(words, np.arange(len(words)), epsilon=1.0, delta=1e-6, stream=stream("words"))
        assert list(fact.value) == ["often", 5, "seldom"]
        assert fact.epsilon <= 1.0
        assert fact.delta <= 1e-6
        assert fact.value["often"] == pytest.approx(3 * needed, abs=60)

    def test_no_category_is_shown_of_a_table_of_names(self):
        names = [f"user {number}" for number in range(5000)]
        fact = release_categories(names, np.arange(5000), epsilon=1.0, delta=1e-9, stream=stream("names"))
        assert fact.value == {}
