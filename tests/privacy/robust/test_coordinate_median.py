"""Robust statistics of Assumption 28, the estimate held near them, and the theorem about one phase."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quoron_privacy.accounts import gdp
from quoron_privacy.errors import VerificationError
from quoron_privacy.robust.coordinate_median import (
    MedianParameters,
    calibrate,
    debiased_mean,
    median_trim,
    trimmed_mean,
    verify,
)
from quoron_privacy.robust.filter.concentration import scores

examples = settings(derandomize=True, deadline=None, max_examples=80)
FINE = 1e-12


@st.composite
def cohorts(draw: st.DrawFn) -> tuple[np.ndarray, int, np.random.Generator]:
    """Rows, even and odd in number, some equal, some far; how many are trimmed; and more randomness."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    users = draw(st.integers(1, 14))
    rows = rng.normal(size=(users, draw(st.integers(1, 3)))) * draw(st.sampled_from([1e-3, 1.0, 1e3]))
    rows[rng.random(users) < 0.3] = rows[0]
    rows[rng.random(users) < 0.2] *= 50
    return rows, draw(st.integers(0, median_trim(users))), rng


def slow_trimmed_mean(rows: np.ndarray, trim: int) -> np.ndarray:
    """One coordinate at a time."""
    found = []
    for column in rows.T:
        values = sorted(column.tolist())
        kept = values[trim : len(values) - trim]
        found.append(sum(kept) / len(kept))
    return np.array(found)


@examples
@given(cohorts())
def test_the_statistic_is_the_mean_of_what_is_left_of_each_sorted_column(drawn) -> None:
    rows, trim, _ = drawn
    size = np.abs(rows).max()
    np.testing.assert_allclose(trimmed_mean(rows, trim), slow_trimmed_mean(rows, trim), atol=FINE * size)
    np.testing.assert_allclose(trimmed_mean(rows, median_trim(len(rows))), np.median(rows, axis=0), atol=FINE * size)


@examples
@given(cohorts(), st.floats(0, 10), st.floats(0, 5))
def test_property_2_and_lemma_31_moving_rows_moves_statistic_and_estimate_no_farther(drawn, moved, radius) -> None:
    rows, trim, rng = drawn
    other = rows + moved * rng.choice([-1.0, 1.0, 0.3, 0.0], size=rows.shape)
    slack = FINE * (1 + np.abs(rows).max() + moved)
    assert np.abs(trimmed_mean(other, trim) - trimmed_mean(rows, trim)).max() <= moved + slack
    estimates = debiased_mean(other, trim, radius), debiased_mean(rows, trim, radius)
    assert np.abs(estimates[0] - estimates[1]).max() <= moved + slack


PARAMETERS = calibrate(2.0, 1e-6, 1000, 1e-4, 3.0, score_error=1e-6)


def test_the_certified_delta_is_the_sum_over_both_outcomes_of_randomised_response() -> None:
    mu = PARAMETERS.shift / PARAMETERS.noise_multiplier
    each = PARAMETERS.test_epsilon
    likely = 1 / (1 + np.exp(-each))
    own = likely * gdp.delta_for(mu, 2.0 - each) + (1 - likely) * gdp.delta_for(mu, 2.0 + each)
    assert verify(PARAMETERS, 2.0, 1e-6) == pytest.approx(max(own, PARAMETERS.failure), rel=1e-6)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"noise_multiplier": PARAMETERS.noise_multiplier * 0.98}, "a certified delta"),
        ({"test_scale": PARAMETERS.test_scale / 2}, "a certified delta|a test of at most"),
        ({"core": 0.4}, "B - k < core"),
        ({"eta_beta": 2.5}, "step"),
        ({"trim": 0}, "1 <= k"),
        ({"noise_multiplier": float("nan")}, "finite"),
    ],
)
def test_a_phase_that_the_theorem_does_not_cover_is_refused_with_the_condition(changes, message) -> None:
    with pytest.raises(VerificationError, match=message):
        verify(replace(PARAMETERS, **changes), 2.0, 1e-6)


def one_phase(parameters: MedianParameters, rounds, step: float) -> tuple[float, np.ndarray]:
    """Least score, and last iterate, of users whose gradients are H_u (x - c_u); τ = 1, a box of half width 1."""
    iterate, least = np.zeros(rounds[0][1].shape[1]), np.inf
    for hessians, centres in rounds:
        clipped = np.clip(np.einsum("uij,uj->ui", hessians, iterate - centres), -parameters.clip, parameters.clip)
        least = min(least, float(np.mean(scores(clipped, 1.0, norm="linf"))))
        iterate = np.clip(iterate - step * debiased_mean(clipped, parameters.trim, parameters.room), -1, 1)
    return least, iterate


def dominant(rng: np.random.Generator, users: int, dimension: int, beta: float) -> np.ndarray:
    """Random Hessians that are symmetric and diagonally dominant, with row sums up to β."""
    half = np.triu(rng.normal(size=(users, dimension, dimension)), 1)
    whole = half + half.transpose(0, 2, 1)
    rows = np.abs(whole).sum(axis=2)
    diagonal = rows.max(axis=1, keepdims=True) + rng.random((users, dimension)) * rng.choice([0.0, 1.0])
    whole[:, np.arange(dimension), np.arange(dimension)] = np.maximum(diagonal, rows)
    return beta * whole / np.abs(whole).sum(axis=2).max()


@pytest.mark.parametrize("trim", [6, 4])
def test_no_search_moves_score_or_iterates_farther_than_the_theorem_says(trim) -> None:
    rng, size, step, beta = np.random.default_rng(7), 14, 0.05, 1.0
    worst_score = worst_shift = 0.0
    for trial in range(300):
        core = (size - trim) / size + rng.uniform(0.02, 0.98) * trim / size
        clip, room = float(10.0 ** rng.uniform(-1, 2)), float(10.0 ** rng.uniform(-1, 1))
        p = MedianParameters(size, trim, core, 1.0, 1.0, step * beta, 1.0, clip, room, 1.0, 1e-9)
        spread = 10.0 ** rng.uniform(-2, 0)
        rounds = [(dominant(rng, size, 2, beta), spread * rng.normal(size=(size, 2))) for _ in range(3)]
        side = rng.choice([-1.0, 1.0], size=2)
        if trial % 2:  # half of a tight crowd on one side: medians jump as far as a score of core · B lets them
            rounds[0][0][:] = beta * np.eye(2)
            rounds[0][1][:] = 0.0
            rounds[0][1][: size // 2 - trial % 3] = side * rng.uniform(0, 2 * p.reach) / beta
        others = [(hessians.copy(), centres.copy()) for hessians, centres in rounds]
        rounds[0][1][-1], others[0][1][-1] = side * 10.0 ** rng.uniform(-1, 3), -side * 10.0 ** rng.uniform(-1, 3)
        (score, at), (other_score, other_at) = (one_phase(p, each, step) for each in (rounds, others))
        if min(score, other_score) < core * size:
            continue
        worst_shift = max(worst_shift, np.abs(at - other_at).max() / (step * p.shift))
        worst_score = max(worst_score, abs(score - other_score) / p.test_sensitivity)
    assert 0.2 < worst_shift <= 1.0
    assert 0.2 < worst_score <= 1.0


@examples
@given(cohorts(), st.sampled_from([-3.0, -1.0, -0.1, 0.0, 0.5, 4.0]))
def test_property_3_scaling_by_any_sign_and_translating_are_followed(drawn, scale) -> None:
    rows, trim, rng = drawn
    by = rng.normal(size=rows.shape[1])
    size = 1 + np.abs(rows).max()
    np.testing.assert_allclose(
        trimmed_mean(scale * rows + by, trim), scale * trimmed_mean(rows, trim) + by, atol=1e-11 * size
    )
    np.testing.assert_allclose(
        debiased_mean(scale * rows + by, trim, abs(scale) * 0.4),
        scale * debiased_mean(rows, trim, 0.4) + by,
        atol=1e-11 * size,
    )


def test_a_lower_median_does_not_follow_a_change_of_sign() -> None:
    # Why an even number of rows takes the middle of the two middle ones: the proof scales by -η.
    rows = np.array([0.0, 1.0])
    assert np.sort(-rows)[0] != -np.sort(rows)[0]
    assert trimmed_mean(-rows[:, None], 0) == -trimmed_mean(rows[:, None], 0) == -0.5


def test_a_worst_gradient_that_moves_the_mean_farther_than_medians_do_is_paid_for() -> None:
    # The notes' accountant leaves this branch out: with few items apart, 2G/B is more than twice the reach.
    calm, wild = calibrate(2.0, 1e-6, 300, 0.0, 3.0), calibrate(2.0, 1e-6, 300, 0.0, 1e6)
    assert calm.shift == pytest.approx(2 * calm.reach)
    assert wild.shift > 2 * wild.reach
    assert wild.shift == pytest.approx(2 * wild.reach + 2 * wild.room)


def test_the_shift_of_a_median_is_attained() -> None:
    # Half the cohort at either end, the own user decides which half is the larger: the median jumps by twice the reach.
    size, end = 11, 0.3
    rows = np.array([[0.0]] * 5 + [[end]] * 5 + [[0.0]])
    other = rows.copy()
    other[-1] = end
    score = float(np.mean(scores(rows, 1.0, norm="linf")))
    p = MedianParameters(size, 5, score / size, 1.0, 1.0, 0.0, 1.0, 1e-9, 5.0, 1.0, 0.0)
    jump = float(np.abs(trimmed_mean(rows, 5) - trimmed_mean(other, 5))[0])
    assert jump == pytest.approx(end)
    assert jump <= 2 * p.reach < 3 * jump
