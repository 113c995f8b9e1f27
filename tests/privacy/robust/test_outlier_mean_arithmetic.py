from fractions import Fraction
from math import ceil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privacy.robust.means import mean_at
from quoron_privacy.errors import ConfigError
from quoron_privacy.noise.sources import SeededNoise
from quoron_privacy.robust.outlier_mean import REACH

examples = settings(derandomize=True, deadline=None, max_examples=40)
SEED = st.integers(0, 2**32 - 1)


def floor_of(cohort_size):
    return (cohort_size + 1) // 2


def wide_mean(cohort_size, core, radius=1.0):
    return mean_at(cohort_size, radius, 2, floor_of(cohort_size), core - 1)


def near_mean(cohort_size, high, radius=1.0):
    return mean_at(cohort_size, radius, 1, floor_of(cohort_size), high)


def run(mean, rows, reference=None):
    """(score, weights, aggregate) with everybody answering."""
    reference = np.zeros(rows.shape[1]) if reference is None else reference
    seen = mean.observe(rows, np.ones(len(rows), dtype=bool), reference=reference)
    return seen.score, seen.weights, mean.aggregate(rows, seen.weights, reference=reference)


def reference_aggregate(mean, rows):
    """Score, weights and mean from the definition, in exact arithmetic (radii and answers as given)."""
    rows = [[Fraction(float(x)) for x in row] for row in rows]
    squares = [[sum((x - y) ** 2 for x, y in zip(a, b, strict=True)) for b in rows] for a in rows]

    def heights(radius):
        return [sum(s <= Fraction(radius) ** 2 for s in row) for row in squares]

    width = mean.ramp_high - mean.ramp_low
    weights = [min(max(h - mean.ramp_low, 0), width) for h in heights(mean.radius * mean.removal_radius)]
    total = sum(weights)
    sums = [sum(w * row[k] for w, row in zip(weights, rows, strict=True)) for k in range(len(rows[0]))]
    return sum(heights(mean.radius)), weights, [float(s / total) if total else 0.0 for s in sums]


@examples
@given(seed=SEED, cohort_size=st.integers(5, 24), dimension=st.integers(1, 3), wide=st.booleans())
def test_score_weights_and_aggregate_equal_the_exact_reference(seed, cohort_size, dimension, wide):
    rng = np.random.default_rng(seed)
    mean = mean_at(cohort_size, 1.0, 2 if wide else 1, floor_of(cohort_size), cohort_size)
    rows = np.rint(8 * rng.normal(size=(cohort_size, dimension)) * rng.choice([0.1, 0.3, 1.0])) / 8
    score, weights, aggregate = run(mean, rows)
    expected = reference_aggregate(mean, rows)
    assert (score, weights.tolist()) == expected[:2]
    np.testing.assert_allclose(aggregate, expected[2], rtol=1e-12, atol=1e-11)


@examples
@given(seed=SEED, value=st.sampled_from([np.nan, np.inf, -np.inf, 1e300, 3e6, "absent"]))
def test_unusable_and_far_answers_contribute_exactly_nothing(seed, value):
    rng = np.random.default_rng(seed)
    mean = near_mean(20, 15)
    rows, answered, zero = rng.normal(size=(20, 3)) * 0.3, np.ones(20, dtype=bool), np.zeros(3)
    hostile, own = rows.copy(), int(rng.integers(20))
    if value == "absent":
        answered[own] = False
        hostile[own] = np.nan
    else:
        hostile[own, rng.integers(3)] = value
    seen = mean.observe(hostile, answered, reference=zero)
    others = near_mean(20, 15).observe(rows, np.arange(20) != own, reference=zero)
    assert seen.weights[own] == 0
    assert (seen.score, seen.weights.tolist()) == (others.score, others.weights.tolist())
    aggregate = mean.aggregate(hostile, seen.weights, reference=zero)
    assert np.isfinite(aggregate).all()
    assert np.array_equal(aggregate, mean.aggregate(rows, others.weights, reference=zero))


@examples
@given(seed=SEED)
def test_aggregates_do_not_depend_on_the_order_of_answers(seed):
    rng = np.random.default_rng(seed)
    mean = mean_at(64, 1.3, 2, 32, 63)
    rows, order = rng.normal(size=(64, 4)) * 0.6, rng.permutation(64)
    assert np.array_equal(run(mean, rows)[2], run(mean, rows[order])[2])


@examples
@given(seed=SEED, offset=st.sampled_from([0.0, 1.0, 1e3, 0.99 * REACH]), scale=st.sampled_from([1e-90, 1.0, 1e90]))
def test_aggregates_lie_within_the_rounding_that_the_slack_allows(seed, offset, scale):
    rng = np.random.default_rng(seed)
    size, dimension = 200, 5
    mean = mean_at(size, scale, 1, 100, 190)
    rows = rng.normal(size=(size, dimension)) * 0.1
    rows[:, 0] += offset
    rows *= scale
    _, weights, aggregate = run(mean, rows)
    units = [[Fraction(float(x)) / Fraction(scale) for x in row] for row in rows]
    exact = [sum(int(w) * row[k] for w, row in zip(weights, units, strict=True)) / int(weights.sum()) for k in range(5)]
    error = np.linalg.norm(
        [float(Fraction(float(a)) / Fraction(scale) - e) for a, e in zip(aggregate, exact, strict=True)]
    )
    assert weights.sum() > 0
    # Two cohorts err by this each, against a shift of at least 2/C; the grid error alone is the same for both.
    assert 2 * error <= mean.rounding_slack(dimension) * 2 / size


class Coins:
    """A stream whose coins are given."""

    def __init__(self, coins):
        self.coins = np.asarray(coins)

    def uniform_below(self, bound, size):
        assert size == len(self.coins)
        assert self.coins.max() < bound
        return self.coins


def test_random_inclusion_keeps_each_answer_with_exactly_its_weight_as_chance():
    mean = wide_mean(12, 10)  # A = 6, B = 9: thirds
    weights = np.array([0, 1, 2, 3] * 3)
    kept = [mean.include(weights, Coins(np.full(12, coin))) for coin in range(3)]
    assert np.array_equal(sum(kept), weights)
    drawn = mean.include(weights, SeededNoise(3).stream("include", 0))
    assert set(drawn.tolist()) <= {0, 1}
    assert (drawn[weights == 3] == 1).all()
    assert (drawn[weights == 0] == 0).all()


def test_arguments_are_checked_by_name():
    with pytest.raises(ConfigError, match="radius"):
        mean_at(10, 1e120, 1, 5, 8).observe(np.zeros((10, 2)), np.ones(10, dtype=bool), reference=np.zeros(2))
    with pytest.raises(ConfigError, match="shape"):
        near_mean(6, 5).observe(np.zeros((5, 2)), np.ones(5, dtype=bool), reference=np.zeros(2))
    with pytest.raises(ConfigError, match="finite"):
        near_mean(6, 5).observe(np.zeros((6, 2)), np.ones(6, dtype=bool), reference=np.array([0.0, np.nan]))
    assert ceil(mean_at(7, 1.0, 1, 4, 6).rounding_slack(3)) == 1
