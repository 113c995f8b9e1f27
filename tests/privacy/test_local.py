"""The local model's constants, its reports, and rotations, against direct computation."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar
from scipy.stats import binom

from privacy.references import responses_delta, vector_delta
from quoron_privacy.local import count_bits, mean_of_reports
from quoron_privacy.means.rotation import coordinate_bound, padded, random_signs, rotate, rotate_back
from quoron_privacy.noise.streams import SeededNoise

fast = settings(derandomize=True, deadline=None, max_examples=60)


def chance_of_a_tie_or_worse(size, members, epsilon):
    """P(a bin without values has at least as many ones as a bin with `members` of `size`), exactly."""
    flip = 1 / (math.exp(epsilon / 2) + 1)
    own = np.convolve(
        binom.pmf(range(members + 1), members, 1 - flip), binom.pmf(range(size - members + 1), size - members, flip)
    )
    at_least = binom.sf(np.arange(size + 1) - 1, size, flip)
    return float(own @ at_least)


def group_size(*, epsilon, bins, failure):
    """Reports after which the fullest bin is one of two neighbours that hold all values (local-model#r3)."""
    flip = 1 / (math.exp(epsilon / 2) + 1)
    keep = 1 - flip

    def rate(tilt):
        up = flip * math.exp(tilt) + keep
        return (
            2 * math.log(up) + math.log(keep * math.exp(-tilt) + flip) + math.log(flip * math.exp(-tilt) + keep)
        ) / 2

    best = minimize_scalar(rate, bounds=(0.0, epsilon + 1), method="bounded", options={"xatol": 1e-10})
    return math.ceil(math.log(bins / failure) / -float(best.fun))  # every tilt gives a valid bound


class TestGroupSize:
    @given(epsilon=st.floats(0.3, 6.0), bins=st.integers(2, 300), log_failure=st.floats(-6, -1))
    @settings(fast, max_examples=25)
    def test_enough_by_exact_probabilities_however_the_values_are_split(self, epsilon, bins, log_failure):
        size = group_size(epsilon=epsilon, bins=bins, failure=10**log_failure)
        for members in {math.ceil(size / 2), math.ceil(0.7 * size), size}:
            assert bins * chance_of_a_tie_or_worse(size, members, epsilon) <= 10**log_failure

    def test_the_printed_number_is_far_from_enough(self):
        printed = math.ceil(4 * math.log(64 / 1e-5))
        assert chance_of_a_tie_or_worse(printed, printed // 2, 1.0) > 0.05


class TestMessages:
    @pytest.mark.parametrize(("total", "first", "scale"), [(1.0, 0.5, 15.7), (4.0, 1.0, 3.05)])
    def test_noise_of_a_second_message_at_one_in_a_million(self, total, first, scale):
        spent = [responses_delta(total, first, 1, 2 / (scale + more)) for more in (-0.05, 0.05)]
        assert spent[0] > 1e-6 > spent[1]

    def test_the_classical_formula_is_wasteful_below_one_and_wrong_above(self):
        for epsilon, enough in ((0.5, True), (1.0, True), (12.0, False)):
            classical = 2 * math.sqrt(2 * math.log(1.25 / 1e-6)) / epsilon
            spent = vector_delta(radius=1.0, scale=classical, dimension=1, epsilon=epsilon)
            assert (spent <= 1e-6) == enough


class TestCounting:
    @given(seed=st.integers(0, 999), users=st.integers(0, 30))
    @fast
    def test_counts_equal_a_slow_count_and_add_over_chunks(self, seed, users):
        rng = np.random.default_rng(seed)
        reports, at = rng.integers(0, 2, (users, 5)).astype(np.uint8), rng.integers(0, 4, users)
        answered = rng.random(users) < 0.8
        slow = np.zeros((4, 5), int)
        for report, group, here in zip(reports, at, answered, strict=True):
            slow[group] += report * here
        assert np.array_equal(count_bits(reports, answered, at, 4), slow)
        halves = [count_bits(reports[part], answered[part], at[part], 4) for part in (slice(0, 7), slice(7, None))]
        assert np.array_equal(sum(halves), slow)

    @pytest.mark.parametrize("bad", [np.nan, np.inf, 1e300, 0.5, -1.0, 2.0])
    def test_a_report_that_is_not_bits_counts_for_nothing(self, bad):
        reports = np.array([[1.0, 0.0], [bad, 1.0], [0.0, 1.0]])
        counts = count_bits(reports, np.ones(3, bool), np.zeros(3, int), 1)
        assert counts.tolist() == [[1, 1]]


class TestMeanOfReports:
    CENTRE = np.array([1.0, -1.0])

    @pytest.mark.parametrize("bad", [np.nan, np.inf, 1e308])
    def test_a_hostile_report_moves_it_by_at_most_its_share(self, bad):
        reports = np.tile(self.CENTRE, (10, 1))
        reports[4] = bad
        assert np.linalg.norm(mean_of_reports(reports, np.ones(10, bool), self.CENTRE, 5.0) - self.CENTRE) <= 0.5 + 1e-9


PRECISION = {np.float32: 3e-6, np.float64: 1e-14}
both = pytest.mark.parametrize("kind", [np.float32, np.float64])


def slow(rows):
    """Level by level, as in a textbook."""
    out, h, length = rows.astype(np.float64), 1, rows.shape[1]
    while h < length:
        pairs = out.reshape(len(rows), -1, 2, h)
        out = np.stack([pairs[:, :, 0] + pairs[:, :, 1], pairs[:, :, 0] - pairs[:, :, 1]], axis=2).reshape(rows.shape)
        h *= 2
    return out / np.sqrt(length)


def test_the_reference_is_the_definition():
    entries = [[(-1) ** (i & j).bit_count() for j in range(16)] for i in range(16)]
    assert slow(np.eye(16)) * 4 == pytest.approx(np.array(entries), abs=1e-12)


@both
@pytest.mark.parametrize("power", range(18))
def test_the_transform_equals_the_reference_at_every_length(power, kind):
    rows = np.random.default_rng(power).normal(size=(3, 1 << power)).astype(kind)
    signs = np.ones(1 << power)
    found = rotate_back(rows, signs)
    assert np.abs(found - slow(rows)).max() < PRECISION[kind] * (power + 1)
    assert np.abs(rotate_back(found, signs) - rows).max() < PRECISION[kind] * (power + 1)


@given(dimension=st.integers(1, 70), rows=st.integers(1, 4), seed=st.integers(0, 99))
@fast
def test_a_rotation_keeps_lengths_and_is_undone(dimension, rows, seed):
    rng = np.random.default_rng(seed)
    values, signs = rng.normal(size=(rows, dimension)), rng.choice([-1.0, 1.0], dimension)
    rotated = rotate(values, signs)
    assert rotated.shape == (rows, padded(dimension))
    assert np.linalg.norm(rotated, axis=1) == pytest.approx(np.linalg.norm(values, axis=1))
    assert rotate_back(rotated, signs) == pytest.approx(values, abs=1e-13)
    # Any row comes out as it would alone: its bits are a function of that row.
    assert np.array_equal(rotate(values[-1:], signs), rotated[-1:])


def test_rotated_coordinates_stay_within_their_bound():
    # One spiky row is the worst for an unrotated range. The bound fails with probability below 1e-9 / 2.
    values = np.zeros((50, 200))
    values[np.arange(50), np.arange(50)] = 3.0
    signs = random_signs(200, SeededNoise(1).stream("public"))
    bound = coordinate_bound(3.0, dimension=200, rows=50, failure=1e-9)
    assert np.abs(rotate(values, signs)).max() <= bound
    assert bound < 2.0
