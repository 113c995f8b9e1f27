"""Private ranges and means around them: the bounded range that is charged, exactly, and how far a user moves a mean."""

import math
from dataclasses import replace
from decimal import Decimal, localcontext
from fractions import Fraction
from itertools import combinations_with_replacement
from math import log

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.special import log_ndtr

from audits.harness import Still
from privacy.references import Chosen, worst_pair
from quoron_privacy.accounts import gdp
from quoron_privacy.gaussian import GaussianNoise
from quoron_privacy.means.private_range import (
    PrivateRange,
    TruncatedMean,
    WinsorisedMean,
    bounded_range_mu,
    box_sensitivity,
    calibrate,
    choices_mu,
    costs,
    weights,
)
from quoron_privacy.means.rotation import padded, rotate, rotate_back
from quoron_privacy.noise.streams import SeededNoise

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


class TestBoundedRangeMu:
    @given(eta=st.floats(0.01, 8.0), top=st.floats(0.0, 1.0), epsilon=st.floats(-6.0, 6.0))
    @fast
    def test_no_bounded_range_pair_is_easier_to_tell_apart_than_the_gaussian_one(self, eta, top, epsilon):
        p, q = worst_pair(eta, eta * min(max(top, 1e-3), 1 - 1e-3))
        attack = np.maximum(p - math.exp(epsilon) * q, 0).sum()
        assert attack <= gdp.delta_for(bounded_range_mu(eta), epsilon) + 1e-12

    @given(eta=st.floats(1e-6, 20.0))
    @fast
    def test_it_is_below_the_line_and_inverts(self, eta):
        mu = bounded_range_mu(eta)
        assert mu <= math.sqrt(math.pi / 8) * eta * (1 + 1e-9) + 1e-10
        assert 2 * (log_ndtr(mu / 2) - log_ndtr(-mu / 2)) == pytest.approx(eta, rel=1e-6, abs=1e-10)


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
    found, _ = mean.release(rows, np.ones(users, np.bool_), signs, Chosen(places), Still())
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
        found, _ = mean.release(rows, there, signs, Chosen(places), Still())
        values.append(found)
    # The first d of d₂ coordinates, rotated back: no longer than the whole, plus the noise's grid.
    assert np.linalg.norm(values[0] - values[1]) <= mean.noise.sensitivity + 4 * math.sqrt(length) * mean.noise.step


EVERY = pytest.mark.parametrize("crude", ["none", "gaussian", "range"])
KNOWN = {"users": 20_000, "dimension": 10, "bound": 1.0, "spread": 1e-4, "mu": 0.2367}


def released(mean, values, answered=None, seed=1):
    answered = np.ones(len(values), bool) if answered is None else answered
    source = SeededNoise(seed)
    return mean.release(values, answered, source.stream("noise"), source.stream("public"))


@EVERY
@given(mu=st.floats(0.05, 3.0), dimension=st.integers(1, 40), spread=st.floats(1e-5, 1.0))
@fast
def test_everything_released_costs_the_mu_that_was_asked_for(crude, mu, dimension, spread):
    mean = calibrate(crude, users=50_000, dimension=dimension, bound=1.0, spread=spread, mu=mu)
    assert mu * (1 - 1e-6) <= mean.mu(dimension) <= mu


@EVERY
def test_the_pieces_add_up_in_squares(crude):
    mean = calibrate(crude, **KNOWN)
    last = mean.noise.effective_mu(10)
    first = 0.0 if mean.crude is None else mean.crude.mu(10) if crude == "range" else mean.crude.effective_mu(10)
    assert mean.mu(10) == pytest.approx(np.hypot(first, last))


@EVERY
@given(row=st.lists(st.floats(allow_nan=True, allow_infinity=True), min_size=3, max_size=3), absent=st.booleans())
@fast
def test_given_the_crude_mean_one_user_moves_the_mean_by_two_radii_over_n(crude, row, absent):
    mean = TruncatedMean(8, 0.5, GaussianNoise(0.125, 1e-6), None, 1.0)
    if crude == "gaussian":
        mean = replace(mean, crude=GaussianNoise(1e-6, 1e3))  # same noise, but the first release moves with the row
    values = np.random.default_rng(0).normal(size=(8, 3))
    other, answered = values.copy(), np.ones(8, bool)
    other[5], answered[5] = row, not absent
    if crude != "none":
        assert np.isfinite(released(mean, other, answered)).all()
        return
    moved = released(mean, other, answered) - released(mean, values)
    assert np.linalg.norm(moved) <= 2 * 0.5 / 8 + 1e-6 * 1e-3


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e300])
@EVERY
def test_hostile_rows_cannot_raise(crude, bad):
    values = np.full((20_000, 10), 0.25)
    values[:50] = bad
    mean = calibrate(crude, **KNOWN)
    assert np.linalg.norm(released(mean, values) - 0.25) < 0.2


def test_opposite_ends_use_the_whole_box_and_an_absent_user_half_of_it():
    users, places = 5, [4, 4, 4, 4]
    mean, signs = box_mean(users, 4), np.ones(4)
    rows = np.zeros((users, 4))
    ends = []
    for own, there in ((1e9, True), (-1e9, True), (0.0, False)):
        rows[0, 0] = own
        present = np.ones(users, np.bool_)
        present[0] = there
        ends.append(mean.release(rows, present, signs, Chosen(places), Still())[0])
    assert np.linalg.norm(ends[0] - ends[1]) == pytest.approx(box_sensitivity(0.3, users, 4), rel=1e-6)
    assert np.linalg.norm(ends[0] - ends[2]) == pytest.approx(box_sensitivity(0.3, users, 4, "zero-out"), rel=1e-6)


def test_an_absent_row_clamped_around_the_choice_would_move_twice_as_far():
    """Why an absent user's residual is zero: with a_j = 5, h = 1 a row of 0 would count as 4, a present one as 6."""
    clamp = lambda value: min(max(value, 5.0 - 1.0), 5.0 + 1.0)  # noqa: E731
    assert clamp(9.0) - clamp(0.0) == 2.0


def test_mu_of_a_release_gives_the_epsilon_promised():
    mean = calibrate("range", **{**KNOWN, "mu": gdp.mu_for(1.0, 1e-6)})
    assert 0.98 < gdp.epsilon_for(mean.mu(10), 1e-6) <= 1.0
