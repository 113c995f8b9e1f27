"""Winsorised means: the bounded range of choices and the box that are charged, for either adjacency."""

import math
from fractions import Fraction
from itertools import combinations_with_replacement

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quoron_privacy.errors import ConfigError, Infeasible
from quoron_privacy.means.private_range import PrivateRange, costs, weights
from quoron_privacy.means.rotation import padded, rotate, rotate_back
from quoron_privacy.means.winsorised_mean import WinsorisedMean, box_sensitivity, choices_mu

fast = settings(derandomize=True, deadline=None, max_examples=80)


def law(counts, epsilon):
    whole = weights(costs(np.array(counts)), epsilon)
    return [Fraction(weight, sum(whole)) for weight in whole]


@pytest.mark.parametrize("epsilon", [0.3, 1.0])
@pytest.mark.parametrize(("users", "bins"), [(3, 3), (4, 4), (5, 5)])
def test_leaving_a_user_out_of_every_bin_costs_half_the_bounded_range_and_moving_it_all(users, bins, epsilon):
    """Every dataset: absent means in no bin. An absent user that stood in zero's bin would move, and cost ε."""
    left, moved = 0.0, 0.0
    for held in combinations_with_replacement(range(bins), users):
        counts = [held.count(b) for b in range(bins)]
        here = law(counts, epsilon)
        for b in set(held):
            less = counts.copy()
            less[b] -= 1
            ratios = [float(p / q) for p, q in zip(here, law(less, epsilon), strict=True)]
            left = max(left, math.log(max(ratios) / min(ratios)))
            as_zero = less.copy()
            as_zero[bins // 2] += 1
            ratios = [float(p / q) for p, q in zip(here, law(as_zero, epsilon), strict=True)]
            moved = max(moved, math.log(max(ratios) / min(ratios)))
    assert left == pytest.approx(epsilon / 2, rel=1e-9)
    assert moved == pytest.approx(epsilon, rel=1e-9)


class Silent:
    """No Gaussian noise."""

    def gaussian_steps(self, shape):
        return np.zeros(shape, np.int64)


class Chosen:
    """Choices that are given."""

    def __init__(self, places):
        self.places = iter(places)

    def weighted_choice(self, weights_):
        return next(self.places)


def box_mean(users, dimension, adjacency="replace-one", half_width=0.3):
    crude = PrivateRange(0.5, 8, 2.0)
    mu = 2 * choices_mu(crude, dimension, adjacency)
    return WinsorisedMean.for_mu(
        users=users, crude=crude, half_width=half_width, mu=mu, dimension=dimension, adjacency=adjacency
    )


def slow(mean, rows, signs, places):
    """Row by row, coordinate by coordinate."""
    middles = (np.array(places) + 0.5) * mean.crude.width - mean.crude.half_width
    total = np.zeros(len(middles))
    for row in rows:
        if np.isfinite(row).all():
            for j, y in enumerate(rotate(row[None, :], signs)[0]):
                total[j] += min(max(y - middles[j], -mean.half_width), mean.half_width)
    return rotate_back(middles + total / mean.users, signs)[0]


@given(seed=st.integers(0, 2**20), dimension=st.integers(1, 9), users=st.integers(1, 12))
@fast
def test_the_mean_is_the_one_by_rows_and_coordinates(seed, dimension, users):
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((users, dimension)) * 10.0 ** rng.integers(-2, 3)
    rows[rng.random(users) < 0.1] = np.nan
    signs = rng.choice([-1.0, 1.0], dimension)
    places = rng.integers(0, 8, padded(dimension)).tolist()
    mean = box_mean(users, dimension)
    found, _ = mean.release(rows, np.ones(users, np.bool_), signs, Chosen(places), Silent())
    np.testing.assert_allclose(found, slow(mean, rows, signs, places), atol=1e-6)


@given(
    seed=st.integers(0, 2**20),
    dimension=st.integers(1, 9),
    adjacency=st.sampled_from(["replace-one", "zero-out"]),
    size=st.sampled_from([1e-3, 1.0, 1e9, 1e300]),
)
@fast
def test_given_the_choices_one_user_moves_the_residuals_by_at_most_the_sensitivity(seed, dimension, adjacency, size):
    rng, users, length = np.random.default_rng(seed), 7, padded(dimension)
    mean, signs = box_mean(users, dimension, adjacency), rng.choice([-1.0, 1.0], dimension)
    places = rng.integers(0, 8, length).tolist()
    rows = rng.standard_normal((users, dimension))
    values = []
    for own in (size * signs, -size * signs):
        rows[2] = own if size < 1e300 else np.where(np.arange(dimension) == 0, np.sign(own) * 1.7e308, own)
        there = np.ones(users, np.bool_)
        if adjacency == "zero-out" and values:
            there[2] = False
        found, _ = mean.release(rows, there, signs, Chosen(places), Silent())
        values.append(found)
    # The first d of d₂ coordinates, rotated back: no longer than the whole, plus the noise's grid.
    assert np.linalg.norm(values[0] - values[1]) <= mean.noise.sensitivity + 4 * math.sqrt(length) * mean.noise.step


def test_an_absent_row_clamped_around_the_choice_would_move_twice_as_far():
    """Why an absent user's residual is zero: with a_j = 5, h = 1 a row of 0 would count as 4, a present one as 6."""
    clamp = lambda value: min(max(value, 5.0 - 1.0), 5.0 + 1.0)  # noqa: E731
    assert clamp(9.0) - clamp(0.0) == 2.0


def test_choices_that_cost_everything_and_too_many_rows_are_refused():
    crude = PrivateRange(1.0, 8, 2.0)
    with pytest.raises(Infeasible, match="private ranges"):
        WinsorisedMean.for_mu(users=10, crude=crude, half_width=0.1, mu=0.1, dimension=10)
    mean = box_mean(2, 3)
    with pytest.raises(ConfigError, match="at most users=2"):
        mean.release(np.zeros((3, 3)), np.ones(3, np.bool_), np.ones(3), Chosen([0] * 4), Silent())
    with pytest.raises(ConfigError, match="adjacency"):
        box_sensitivity(0.1, 10, 3, "add-remove")
