from fractions import Fraction
from itertools import product

import numpy as np
import pytest

from privacy.robust.means import mean_at


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
    return mean_at(cohort_size, radius, "random", floor_of(cohort_size), core - 1)


def near_mean(cohort_size, high, radius=1.0):
    return mean_at(cohort_size, radius, "weighted", floor_of(cohort_size), high)


def run(mean, rows, reference=None):
    """(score, weights, aggregate) with everybody answering."""
    reference = np.zeros(rows.shape[1]) if reference is None else reference
    seen = mean.observe(rows, np.ones(len(rows), dtype=bool), reference=reference)
    return seen.score, seen.weights, mean.aggregate(rows, seen.weights, reference=reference)


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


@pytest.mark.slow
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


def test_opposite_answers_reach_the_bound_when_everybody_is_close():
    size, tau = 50, 0.3
    mean = near_mean(size, 40, tau)
    rows = np.zeros((size, 2))
    rows[0, 0] = tau
    moved = rows.copy()
    moved[0, 0] = -tau
    distance = np.linalg.norm(run(mean, rows)[2] - run(mean, moved)[2])
    assert distance == pytest.approx(2 * tau / size, rel=1e-7)
    assert near_shift(size, size, 40) == pytest.approx(2 / size)


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


class Coins:
    """A stream whose coins are given."""

    def __init__(self, coins):
        self.coins = np.asarray(coins)

    def uniform_below(self, bound, size):
        assert size == len(self.coins)
        assert self.coins.max() < bound
        return self.coins


@pytest.mark.slow
def test_random_inclusion_moves_with_flips_as_in_the_coupling_of_theorem_2():
    # All outcomes of the coins that matter, the same for both neighbours: distance at most Δ_b after b flips.
    size, core = 12, 10
    mean = wide_mean(size, core)
    low, zero = mean.ramp_low, np.zeros(1)
    heaviest = 2 * (2 - max(low + core - size, 0) / size)
    rng = np.random.default_rng(8)
    pairs = 0
    for _ in range(700):
        rows = np.zeros((size, 1))
        rows[:3, 0] = rng.choice([-2, -1, 1, 1.5, 2, 2.5, 3, 1e5], size=3)
        moved = rows.copy()
        moved[0] = rng.choice([-2, -1, 0, 1, 2, 3])
        seen, after = (mean.observe(r, np.ones(size, dtype=bool), reference=zero) for r in (rows, moved))
        if min(seen.score, after.score) < size * core:
            continue
        pairs += 1
        changed = np.abs(seen.weights - after.weights)[1:]
        assert changed.max() <= 1
        assert np.count_nonzero(changed) <= size - core
        for first in product(range(3), repeat=3):
            coins = np.array([*first, *[1] * (size - 3)])
            kept, other = mean.include(seen.weights, Coins(coins)), mean.include(after.weights, Coins(coins))
            flips = np.count_nonzero((kept != other)[1:])
            distance = abs(
                mean.aggregate(rows, kept, reference=zero)[0] - mean.aggregate(moved, other, reference=zero)[0]
            )
            assert distance <= (4 + flips * heaviest) / core * (1 + 1.1e-6) * (1 + mean.rounding_slack(1))
    assert pairs > 50
