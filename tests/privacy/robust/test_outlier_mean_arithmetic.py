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


def wide_shift(cohort_size, core):
    """outlier-mean#o1 (a), in units of τ."""
    low = floor_of(cohort_size)
    ramp = (
        Fraction(cohort_size - core, core - 1 - low) * 2 * (2 - Fraction(max(low + core - cohort_size, 0), cohort_size))
    )
    return float((4 + ramp) / core)


def near_shift(cohort_size, core, high):
    """outlier-mean#o1 (b), in units of τ: the largest over every height of the ramp."""
    low, worst = floor_of(cohort_size), Fraction(0)
    for h in range(low, high + 1):
        n = Fraction(cohort_size * (cohort_size - core), cohort_size - h)
        below = cohort_size - n * (1 - Fraction(h - low, high - low))
        if below <= 0:
            return float("inf")
        worst = max(worst, (2 + 2 * n / (high - low)) / below)
    return float(worst)


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


def neighbours_by_climbing(mean, core, dimension, rng, climbs, steps):
    """Pairs (score, score', distance) found by moving clusters between critical distances, with both scores high."""
    size, tau = mean.cohort_size, mean.radius
    places = np.array([-4, -3, -2, -1, -0.5, 0, 0, 0, 0, 0.5, 1, 2, 3, 4]) * tau

    def measure(rows, other):
        replaced = rows.copy()
        replaced[0] = other
        (first, _, before), (second, _, after) = run(mean, rows), run(mean, replaced)
        return np.linalg.norm(before - after) if min(first, second) >= size * core else -1.0

    for _ in range(climbs):
        rows, other = np.zeros((size, dimension)), np.zeros(dimension)
        best = measure(rows, other)
        for _ in range(steps):
            trial, changed = rows.copy(), other.copy()
            group = rng.integers(size, size=rng.integers(1, max(2, size // 3)))
            if rng.random() < 0.7:
                trial[group, rng.integers(dimension)] = rng.choice(places)
            else:
                trial[0], changed = rng.choice(places, dimension), rng.choice(places, dimension)
            if (found := measure(trial, changed)) >= best:
                rows, other, best = trial, changed, found
        yield best


@pytest.mark.parametrize(
    ("cohort_size", "core"),
    [
        (9, 7),
        pytest.param(12, 10, marks=pytest.mark.slow),
        pytest.param(21, 19, marks=pytest.mark.slow),
        pytest.param(40, 30, marks=pytest.mark.slow),
        (40, 38),
        pytest.param(101, 98, marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("wide", [True, False])
def test_no_adversary_moves_the_aggregate_beyond_the_theorem(cohort_size, core, wide):
    rng = np.random.default_rng(cohort_size * core)
    if wide:
        mean, shift = wide_mean(cohort_size, core, 0.75), wide_shift(cohort_size, core)
    else:
        highs = range(floor_of(cohort_size) + 1, cohort_size)
        high = min(highs, key=lambda high: near_shift(cohort_size, core, high))
        mean, shift = near_mean(cohort_size, high, 0.75), near_shift(cohort_size, core, high)
    bound = 0.75 * shift * (1 + 1.1e-6) * (1 + mean.rounding_slack(2))
    for dimension in (1, 2):
        found = list(neighbours_by_climbing(mean, core, dimension, rng, climbs=3, steps=100))
        assert max(found) <= bound
        assert max(found) >= 0.1 * bound  # the search is not blind


def test_weight_without_a_ramp_would_break_the_bound():
    # The broken twin: keep whoever has C/2 neighbours. One replaced answer then takes five others along.
    size, core = 100, 94
    rows = np.zeros((size, 1))
    rows[:6], rows[6:50] = 2.0, 1.0  # an answer at 2 has 50 neighbours until one of them leaves
    moved = rows.copy()
    moved[0] = 0.0
    high = min(range(51, size), key=lambda high: near_shift(size, core, high))
    bound = near_shift(size, core, high)

    def cliff(rows):
        return rows[(np.abs(rows - rows.T) <= 1.0).sum(axis=1) >= size / 2].mean()

    (score, _, before), (other, _, after) = run(near_mean(size, high), rows), run(near_mean(size, high), moved)
    assert min(score, other) >= size * core
    assert abs(before - after)[0] <= bound < 2 * bound < abs(cliff(rows) - cliff(moved))


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
