"""Facts of a table: exact laws of ranks on every small table, and what is released of items, ranges and categories."""

from decimal import Decimal, localcontext
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quoron_privacy.counts.facts import (
    RankChoice,
    distances,
    holders_of_category,
    release_categories,
    release_items_per_user,
    users_for_items,
)
from quoron_privacy.errors import ConfigError, Infeasible
from quoron_privacy.means.private_range import weights
from quoron_privacy.noise.sources import SeededNoise
from quoron_privacy.noise.streams import RandomStream

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


@given(st.lists(st.integers(0, 400), min_size=80, max_size=80), st.integers(0, 9), st.floats(0.05, 2.0))
@fast
def test_a_chosen_bin_is_within_its_error_of_the_rank(votes, seed, epsilon):
    """Each of 60 examples fails with probability 5e-4; they are always the same."""
    choice, held = RankChoice(epsilon, 80), np.array(votes)
    rank = held.sum() // 3
    chosen = choice.choose(held, rank, stream("error", seed))
    assert held[:chosen].sum() < rank + choice.error
    assert held[: chosen + 1].sum() > rank - choice.error


def test_distances_beyond_the_cut_off_are_no_longer_told_apart_and_hardly_ever_chosen():
    choice = RankChoice(20.0, 3)
    law_far, law_farther = (weights(np.minimum(distances(np.array([far, 0, 0]), 0), 7), 20.0) for far in (50, 5000))
    assert law_far == law_farther
    assert {choice.choose(np.array([0, 0, 5000]), 4000, stream("far", seed)) for seed in range(50)} == {2}


class TestItems:
    def test_at_least_half_of_the_users_hold_the_value_and_somebody_about(self):
        held = np.repeat([3, 9, 40, 1000], [300, 300, 300, 100])
        for seed in range(20):
            fact = release_items_per_user(held, epsilon=0.2, stream=stream("items", seed))
            assert fact.value in (3, 4, 6, 8)
        assert (fact.epsilon, fact.delta) == (0.2, 0.0)
        assert [entry.mechanism for entry in fact.entries] == ["rank-choice"]

    def test_numbers_that_make_no_sense_are_one(self):
        fact = release_items_per_user(np.full(100, -(2**62)), epsilon=2.0, stream=stream("odd"))
        assert fact.value == 1

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

    @given(st.randoms(use_true_random=False))
    @settings(fast, max_examples=10)
    def test_the_order_of_rows_decides_nothing(self, order):
        rows = [(word, user) for user in range(300) for word in "abcdefgh"[: 1 + user % 8]]
        seen = []
        for each in (rows, order.sample(rows, len(rows))):
            words, owners = zip(*each, strict=True)
            seen.append(
                release_categories(
                    np.array(words), np.array(owners), epsilon=2.0, delta=1e-3, stream=stream("mixed"), most_votes=3
                )
            )
        assert list(seen[0].value.items()) == list(seen[1].value.items())
        assert set(seen[0].value) <= set("abcdefgh")

    def test_no_category_is_shown_of_a_table_of_names(self):
        names = [f"user {number}" for number in range(5000)]
        fact = release_categories(names, np.arange(5000), epsilon=1.0, delta=1e-9, stream=stream("names"))
        assert fact.value == {}


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda: release_items_per_user(np.ones(9), epsilon=1.0, stream=stream()), "Expected held as integers"),
        (lambda: users_for_items(epsilon=1.0, most_below=0.0), "Expected a share of users"),
        (lambda: users_for_items(epsilon=0.0), "Expected epsilon in"),
        (
            lambda: release_categories(["a"], np.zeros(2, int), epsilon=1.0, delta=1e-6, stream=stream()),
            "Expected one owner",
        ),
    ],
)
def test_bad_input_is_refused_by_name(wrong, words):
    with pytest.raises(ConfigError, match=words):
        wrong()
