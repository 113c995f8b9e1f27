"""Correlated noise for users who come back: prefix-noise#c3 against all patterns, in integers; audits elsewhere."""

from dataclasses import replace
from fractions import Fraction
from itertools import combinations, pairwise
from math import inf, sqrt

import numpy as np
import pytest
import scipy
from hypothesis import given, settings
from hypothesis import strategies as st

from cover import by_default
from privacy.references import strategy_matrix
from quoron_privacy.noise.streams import SeededNoise
from quoron_privacy.prefix import noise as simulated
from quoron_privacy.prefix.noise import PrefixNoise, factorise, sqrt_coefficients
from quoron_privacy.prefix.strategies import combine, loudness, together

fast = settings(derandomize=True, deadline=None, max_examples=60)


@given(
    name=st.sampled_from(["banded", "blt"]),
    rounds=st.integers(1, 300),
    participations=st.integers(1, 300),
    separation=st.integers(1, 400),
)
@fast
def test_row_norms_are_those_of_b_and_b_is_nowhere_negative(name, rounds, participations, separation):
    made = factorise(name, rounds, separation, participations)
    column = scipy.linalg.solve_triangular(
        scipy.linalg.toeplitz(made.coefficients, np.zeros(rounds)), np.ones(rounds), lower=True
    )
    assert column.min() >= -1e-12
    np.testing.assert_allclose(made.row_norms**2, np.cumsum(column**2), rtol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize(("rounds", "participations", "separation"), [(200, 2, 100), (500, 5, 100), (1000, 10, 100)])
def test_a_band_that_is_no_toeplitz_matrix_is_at_most_four_per_cent_quieter(rounds, participations, separation):
    """Every entry of the band free, columns of one norm: 3.6, 2.6 and 2.4 %."""
    lag = np.subtract.outer(np.arange(rounds), np.arange(rounds))
    free = np.nonzero((lag >= 0) & (lag < separation))
    ones = np.tri(rounds)

    def objective(entries: np.ndarray) -> tuple[float, np.ndarray]:
        raw = np.zeros((rounds, rounds))
        raw[free] = entries
        norms = np.linalg.norm(raw, axis=0)
        c = raw / norms
        b = scipy.linalg.solve_triangular(c, ones.T, trans="T", lower=True).T
        slope = -2 * scipy.linalg.solve_triangular(c, b.T @ b, lower=True).T
        return np.log(np.sum(b**2)), ((slope - c * np.sum(slope * c, axis=0)) / norms)[free] / np.sum(b**2)

    made = factorise("banded", rounds, separation, participations)
    start = scipy.linalg.toeplitz(made.coefficients, np.zeros(rounds))[free]
    found = scipy.optimize.minimize(objective, start, jac=True, method="L-BFGS-B", options={"maxiter": 80})
    best = np.sqrt(participations * np.exp(found.fun) / rounds)
    assert best <= loudness(made, participations, separation) <= 1.04 * best


@pytest.mark.parametrize("shape", [(40, 4, 10), (60, 2, 30), (90, 30, 3)])
def test_predictions_of_a_fitted_band_stay_within_the_bound_of_the_proof(shape):
    """In exact rational arithmetic, on noise as large as the proof allows, all of one sign."""
    made, past = (
        factorise("banded", shape[0], shape[2], shape[1]),
        np.random.default_rng(3).integers(2**35, 2**36, shape[0]),
    )
    table, memory = [Fraction(c) for c in made.coefficients.tolist()], np.zeros((made.slots, 1))
    for t in range(shape[0]):
        exact = sum((table[t - j] * int(past[j]) for j in range(t)), Fraction(0))
        assert abs(int(np.rint(made.predict(t, memory))[0]) - exact) <= made.rounding
        memory = made.remember(t, memory, np.array([float(past[t])]))


NAMES = ["banded", "blt"]


def patterns(rounds: int, participations: int, separation: int) -> list[tuple[int, ...]]:
    """All sets of at most so many rounds, any two so far apart."""
    return [
        chosen
        for size in range(1, participations + 1)
        for chosen in combinations(range(rounds), size)
        if all(b - a >= separation for a, b in pairwise(chosen))
    ]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("rounds", [2, 5, 8, 11])
@pytest.mark.parametrize("separation", [1, 2, 3, 5])
@pytest.mark.parametrize("participations", [2, 3, 4])
def test_the_norm_is_that_of_the_worst_pattern_with_the_worst_signs(
    name: str, rounds: int, separation: int, participations: int
) -> None:
    c = strategy_matrix(factorise(name, rounds, separation, participations), rounds)
    together = max(
        np.linalg.norm(c[:, list(chosen)].sum(axis=1)) for chosen in patterns(rounds, participations, separation)
    )
    norm = factorise(name, rounds, separation, participations).participation_norm(participations, separation)
    assert norm == pytest.approx(together, rel=1e-9)
    signed = max(
        np.linalg.norm(c[:, list(chosen)] @ np.array(signs))
        for chosen in patterns(rounds, participations, separation)
        for signs in np.ndindex(*(2,) * len(chosen))
        for signs in [[2 * sign - 1 for sign in signs]]
    )
    assert signed <= norm * (1 + 1e-9)


@given(
    name=st.sampled_from(NAMES),
    rounds=st.integers(2, 40),
    separation=st.integers(1, 12),
    participations=st.integers(2, 6),
    seed=st.integers(0, 10**6),
)
@fast
def test_no_contributions_of_the_ball_in_any_pattern_reach_further(
    name: str, rounds: int, separation: int, participations: int, seed: int
) -> None:
    draw = np.random.default_rng(seed)
    change, at = np.zeros((rounds, 3)), int(draw.integers(rounds))
    for _ in range(participations):
        if at >= rounds:
            break
        vector = draw.normal(size=3)
        change[at] = vector / np.linalg.norm(vector)
        at += separation + int(draw.integers(3))
    moved = np.linalg.norm(strategy_matrix(factorise(name, rounds, separation, participations), rounds) @ change)
    assert moved <= factorise(name, rounds, separation, participations).participation_norm(
        participations, separation
    ) * (1 + 1e-9)


def test_a_band_no_wider_than_the_separation_makes_columns_orthogonal() -> None:
    factors = factorise("banded", 60, 10, 5)
    assert factors.coefficients is not None
    assert np.count_nonzero(factors.coefficients) == 10
    assert factors.participation_norm(5, 10) == pytest.approx(sqrt(5) * factors.column_norm)


@given(
    name=st.sampled_from(NAMES),
    rounds=st.integers(1, 60),
    separation=st.integers(1, 80),
    participations=st.integers(1, 60),
)
@fast
def test_the_stream_alone_shows_the_same_column_norm(
    name: str, rounds: int, separation: int, participations: int
) -> None:
    noise = PrefixNoise(rounds, 1.0, 1.0, name, participations, separation)
    assert simulated.mu(noise, 1.0, 3) == pytest.approx(noise.effective_mu(3), rel=1e-12)


def test_a_stream_whose_columns_grow_shows_no_norm(monkeypatch: pytest.MonkeyPatch) -> None:
    weights, decays = np.array([1.5]), np.array([0.5])
    grows = replace(
        factorise("blt", 6, 3, 2),
        slots=1,
        predict=lambda t, memory: combine(weights, memory),
        remember=lambda t, memory, own: decays[:, None] * memory + own,
    )
    noise = PrefixNoise(6, 1.0, 1.0, "blt", 2, 3)
    monkeypatch.setattr(PrefixNoise, "factors", property(lambda self: grows))
    assert simulated.mu(noise, 1.0, 3) == inf


@given(
    name=st.sampled_from(NAMES),
    rounds=st.integers(4, 30),
    separation=st.integers(1, 9),
    participations=st.integers(1, 5),
    seed=st.integers(0, 10**6),
    aligned=st.booleans(),
)
@fast
def test_the_seed_noise_that_explains_a_transcript_moves_by_at_most_effective_mu(
    name: str, rounds: int, separation: int, participations: int, seed: int, aligned: bool
) -> None:
    """prefix-noise#c3 in the code's own integers: rerun a transcript in the other world, solve for its noise."""
    noise = PrefixNoise(rounds, 1.0, 0.7, name, participations, separation)
    factors, d = factorise(name, rounds, separation, participations), 4
    rng = np.random.default_rng(seed)
    mine = {separation * number for number in range(participations)}
    state, memory, square, last = noise.start(d), np.zeros((factors.slots, d)), 0.0, np.zeros(d)
    for t in range(rounds):
        g = rng.normal(size=d) * 10 + np.sin(last)
        direction = np.ones(d) if aligned else rng.normal(size=d) + np.cos(last)  # answers to what was released
        other = g + direction / np.linalg.norm(direction) if t in mine else g
        last, after = noise.release(state, g, SeededNoise(seed))
        own = after.total - state.total - noise._steps(other)
        explained = own + np.rint(factors.predict(t, memory)).astype(np.int64)
        memory = factors.remember(t, memory, own.astype(np.float64))
        square += float(np.sum((explained - SeededNoise(seed).stream("prefix", t).gaussian_steps(d)) ** 2.0))
        state = after
    assert sqrt(square) * 2.0**-30 <= noise.effective_mu(d)
    if aligned:
        assert sqrt(square) * 2.0**-30 >= 2 * noise.column_norm / 0.7 - noise.effective_mu(d)


MANY_COHORTS = [(1000, 10, 100), (2000, 20, 100), (3000, 30, 100), (1200, 20, 60), (500, 5, 100)]


OTHERS = [(200, 2, 100), (1000, 2, 500), (400, 20, 20), (100, 50, 2), (9, 3, 3), (1500, 75, 20)]


def inverse_of(column: np.ndarray) -> np.ndarray:
    return scipy.signal.lfilter([1.0], np.trim_zeros(column, "b"), np.eye(1, len(column))[0])


def error(column: np.ndarray, inverse: np.ndarray, participations: int, separation: int) -> float:
    """Root mean square noise of a prefix sum per unit of Δ/μ, from the first columns of C and of C⁻¹."""
    moved = together(column, participations, separation)
    return float(np.sqrt(np.sum(moved**2) * np.mean(np.cumsum(np.cumsum(inverse) ** 2))))


def cut(column: np.ndarray, width: int) -> np.ndarray:
    return np.where(np.arange(len(column)) < width, column, 0.0)


def widths(rounds: int, separation: int) -> list[int]:
    """Bands to try: a hundred of all sizes, and multiples of the separation, where the optimum is a kink."""
    kinks = separation * np.arange(1, 5)
    return sorted({int(p) for p in (*np.geomspace(1, rounds, 100), *kinks) if p <= rounds})


def square_root(rounds: int, participations: int, separation: int) -> float:
    """Kalinin & Lampert (2024): C is the square root of prefix sums, cut to its best band."""
    root, _ = sqrt_coefficients(rounds)
    bands = (cut(root, p) for p in widths(rounds, separation))
    return min(error(band, inverse_of(band), participations, separation) for band in bands)


def inverse_square_root(rounds: int, participations: int, separation: int) -> float:
    """Kalinin, McKenna, Upadhyay & Lampert (2026): C⁻¹ is the inverse square root, cut to its best band."""
    _, root = sqrt_coefficients(rounds)
    bands = (cut(root, p) for p in widths(rounds, separation))
    return min(error(inverse_of(band), band, participations, separation) for band in bands)


def free_band(rounds: int, participations: int, separation: int) -> float:
    """The best coefficients of a Toeplitz band as wide as the separation, by descent from all of them at once."""
    left = np.arange(rounds, 0, -1) / rounds  # how many sums hold the noise of a lag

    def objective(tail: np.ndarray) -> tuple[float, np.ndarray]:
        column = np.concatenate([[1.0], tail, np.zeros(rounds - separation)])
        inverse = inverse_of(column)
        sums = np.cumsum(inverse)
        variance, square = left @ sums**2, column @ column
        slope = scipy.signal.fftconvolve((left * sums)[::-1], scipy.signal.fftconvolve(inverse, sums)[:rounds])
        gradient = -2 * slope[:rounds][::-1] / variance + 2 * column / square
        return np.log(variance) + np.log(square), gradient[1:separation]

    start = sqrt_coefficients(separation)[0][1:]
    found = scipy.optimize.minimize(objective, start, jac=True, bounds=[(0, None)] * len(start)).x
    column = np.concatenate([[1.0], found, np.zeros(rounds - separation)])
    return error(column, inverse_of(column), participations, separation)


@pytest.mark.parametrize(
    ("rounds", "participations", "separation"),
    by_default([*MANY_COHORTS, *OTHERS], [each for each in (*MANY_COHORTS, *OTHERS) if each[0] < 2000]),
)
def test_banded_noise_is_within_one_per_cent_of_the_best_band(rounds, participations, separation):
    shape = rounds, participations, separation
    ours = loudness(factorise("banded", shape[0], shape[2], shape[1]), participations, separation)
    assert ours <= 1.01 * free_band(*shape)
    assert ours <= min(square_root(*shape), inverse_square_root(*shape))
