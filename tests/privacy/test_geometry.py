"""Geometry of the concentration score: users who both score high lie close together. Tried by adversarial search."""

import numpy as np
import pytest

from cover import by_default
from quoron_privacy.robust.filter.concentration import filtered_mean, score_error, scores


def both_kept_ratio(others, here, there):
    """τ‖q_o - q_o'‖ over its bound ρ_A at k1 = the smaller own score (τ = 1); None where the bound does not apply."""
    size = len(others) + 1
    error = score_error(size, others.shape[1])
    k1 = min(scores(np.vstack([others, [own]]), 1.0)[-1] for own in (here, there)) - error
    agreement = 2 * (k1 - 1) / (size - 1) - 1
    return np.linalg.norm(here - there) / -np.log(agreement) if 0 < agreement < 1 else None


def one_kept_ratios(others, own, survivors):
    """Distances of own to survivors, and to their mean, over ρ_P and ρ_B; None where the bounds do not apply."""
    size = len(others) + 1
    values = scores(np.vstack([others, [own]]), 1.0) - score_error(size, others.shape[1])
    k1, k2 = values[-1], values[:-1][survivors].min()
    agreement = (k1 + k2) / size - 1
    if not 0 < agreement < 1:
        return None
    rho_p = -np.log(agreement)
    rho_b = min(rho_p, rho_p / -np.expm1(-rho_p) * (size - k1) / survivors.sum())
    to_each = np.linalg.norm(others[survivors] - own, axis=1).max() / rho_p
    return max(to_each, np.linalg.norm(filtered_mean(others, survivors) - own) / rho_b)


def climb(ratio, points, rng, steps):
    """Largest ratio found by random steps from `points` (rows), and how often the bound applied."""
    best, applied = 0.0, 0
    for _ in range(steps):
        trial = points + rng.normal(size=points.shape) * 10.0 ** rng.uniform(-4, 0) * (rng.random(points.shape) < 0.5)
        value = ratio(trial)
        if value is not None:
            applied += 1
            if value >= best:
                points, best = trial, value
    return best, applied


@pytest.mark.parametrize("places", [2, 1])
@pytest.mark.parametrize("seed", by_default(range(6), (0, 1, 2)))
def test_places_where_a_user_is_kept_are_never_farther_apart_or_from_the_survivors_than_the_bound(seed, places):
    rng = np.random.default_rng(seed if places == 2 else 100 + seed)
    size, dimension = rng.integers(3, 12), rng.integers(1, 4)
    survivors = rng.random(size) < 0.9 if places == 1 else np.ones(size, bool)
    survivors[0] = True
    start = rng.normal(size=(size + places, dimension)) * 0.2
    ratio = {
        2: lambda p: both_kept_ratio(p[2:], p[0], p[1]),
        1: lambda p: one_kept_ratios(p[1:], p[0], survivors),
    }[places]
    best, applied = climb(ratio, start, rng, 1500)
    assert applied > 100
    assert 0.5 < best <= 1.0


@pytest.mark.parametrize("apart", [1e-3, 0.3, 2.0])
def test_the_bound_for_two_kept_places_is_attained(apart):
    others = np.array([[0.0]] * 20 + [[apart]] * 20)
    ratio = both_kept_ratio(others, np.array([0.0]), np.array([apart]))
    assert 1 - 1e-5 < ratio <= 1.0


@pytest.mark.parametrize("apart", [1e-3, 0.3])
def test_the_bound_on_the_distance_to_a_survivor_is_attained(apart):
    # Own at one end, one survivor at the other, everybody else in between or at either end.
    others = np.array([[apart]] * 20 + [[0.0]] * 19)
    survivors = np.arange(39) < 20
    assert 1 - 1e-4 < one_kept_ratios(others, np.array([0.0]), survivors) <= 1.0
