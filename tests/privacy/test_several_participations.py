"""Correlated noise for users who come back: prefix-noise#c3 against all patterns, in integers, and audited."""

from dataclasses import replace
from itertools import combinations, pairwise
from math import sqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from audits.harness import epsilon_lower_bound
from quoron_privacy.accounts import gdp
from quoron_privacy.noise.streams import SeededNoise
from quoron_privacy.prefix.noise import PrefixNoise, factorise

NAMES = ["banded", "blt"]
fast = settings(derandomize=True, deadline=None, max_examples=60)


def strategy_matrix(name: str, rounds: int, participations: int, separation: int) -> np.ndarray:
    """C, by streaming the unit vectors."""
    factors = factorise(name, rounds, separation, participations)
    memory, rows = np.zeros((factors.slots, rounds)), []
    for t in range(rounds):
        rows.append(factors.predict(t, memory) + np.eye(rounds)[t])
        memory = factors.remember(t, memory, np.eye(rounds)[t])
    return np.array(rows)


def patterns(rounds: int, participations: int, separation: int) -> list[tuple[int, ...]]:
    """All sets of at most so many rounds, any two so far apart."""
    return [
        chosen
        for size in range(1, participations + 1)
        for chosen in combinations(range(rounds), size)
        if all(b - a >= separation for a, b in pairwise(chosen))
    ]


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
    moved = np.linalg.norm(strategy_matrix(name, rounds, participations, separation) @ change)
    assert moved <= factorise(name, rounds, separation, participations).reach(participations, separation) * (1 + 1e-9)


def test_a_band_no_wider_than_the_separation_makes_columns_orthogonal() -> None:
    factors = factorise("banded", 60, 10, 5)
    assert factors.coefficients is not None
    assert np.count_nonzero(factors.coefficients) == 10
    assert factors.reach(5, 10) == pytest.approx(sqrt(5) * factors.column_norm)


DRAWS, ROUNDS, SENSITIVITY, EPSILON, DELTA = 200_000, 8, 0.05, 1.0, 1e-2


def honest(name: str, participations: int = 2, separation: int = 4) -> PrefixNoise:
    return PrefixNoise.for_mu(
        rounds=ROUNDS,
        sensitivity=SENSITIVITY,
        mu=gdp.mu_for(EPSILON, DELTA, gaussians=ROUNDS),
        dimension=1,
        factorisation=name,
        participations=participations,
        separation=separation,
    )


def audit(noise: PrefixNoise, mine: tuple[int, ...], *, seed: int = 31) -> float:
    """A user that gives all that it may in rounds `mine`, or nothing; wrong with probability at most 1e-8."""
    matrix = strategy_matrix(noise.factorisation, ROUNDS, noise.participations, noise.separation)
    away = matrix[:, list(mine)].sum(axis=1)

    def world(own: float, seed: int):
        def draw(draws: int) -> np.ndarray:
            state, sums, left = noise.start(draws), np.zeros(draws), []
            for t in range(ROUNDS):
                known = np.sign(sums) * 3.0 + np.cos(sums / SENSITIVITY)  # others answer to what was released
                new, state = noise.release(state, known + own * (t in mine), SeededNoise(seed))
                left.append(new - sums - known)
                sums = new
            return np.asarray(away @ (matrix @ np.array(left)))

        return draw

    return epsilon_lower_bound(world(SENSITIVITY, seed), world(0.0, seed + 1), delta=DELTA, draws=DRAWS)


@pytest.mark.parametrize("name", ["banded", "blt"])
def test_the_audit_catches_a_participation_more_often_than_planned(name: str) -> None:
    assert audit(honest(name, 1, 1), (0, 4)) > EPSILON
    assert audit(honest(name), (0, 2, 4, 6)) > EPSILON


@pytest.mark.parametrize("name", ["banded", "blt"])
def test_the_audit_catches_the_column_norm_of_one_participation(name: str) -> None:
    noise = honest(name)
    once = replace(noise, scale=noise.scale * noise.factors.column_norm / noise.column_norm)
    assert audit(once, (0, 4)) > EPSILON


def test_the_audit_catches_a_user_who_comes_back_sooner_than_planned() -> None:
    """Four rounds in a row at the noise for four rounds two apart, of a band of two."""
    noise = honest("banded", 4, 2)
    assert audit(noise, (0, 2, 4, 6)) <= EPSILON
    assert audit(noise, (0, 1, 2, 3)) > EPSILON


def test_the_audit_catches_columns_taken_for_orthogonal_that_are_not() -> None:
    noise = honest("blt", 4, 2)
    wrong = replace(noise, scale=noise.scale * 2 * noise.factors.column_norm / noise.column_norm)
    assert audit(wrong, (0, 2, 4, 6)) > EPSILON
