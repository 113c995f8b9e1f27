import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quoron_privacy.accounts.gdp import delta_for
from quoron_privacy.errors import Infeasible, VerificationError
from quoron_privacy.robust.filter import outlier_filter
from quoron_privacy.robust.filter.outlier_filter import calibrate, smallest_cohort, verify

DELTA = 1e-6


def reference_game(epsilon: float, each: float, hits: int, mu: float) -> tuple[range, list[np.ndarray]]:
    """V_1, …, V_hits on a wide lattice by plain value iteration: nothing shared with the shipped recursion."""
    likely = 1 / (1 + math.exp(-each))
    rare = 1 - likely
    points = range(-math.ceil(3 * epsilon / each), math.ceil(4 * epsilon / each) + 1)
    stop = np.array([delta_for(mu, epsilon - j * each) for j in points])
    levels, before = [], stop
    for _ in range(hits):
        now = before
        while True:
            hit_up, hit_down = np.append(before[1:], 1.0), np.append(before[0], before[:-1])
            up, down = np.append(now[1:], 1.0), np.append(now[0], now[:-1])
            new = np.maximum(stop, np.maximum(likely * hit_up + rare * down, likely * up + rare * hit_down))
            if np.max(new - now) < 1e-17:
                break
            now = new
        levels.append(new)
        before = new
    return points, levels


def reference_delta(p: outlier_filter.FilterParameters, epsilon: float) -> float:
    """outlier-filter#f1 for replace-one from its statement, the own user's noise rounded DOWN: a lower bound."""
    size, c_max, kerr = p.cohort_size, 2 * p.cutoff_centre - 1, p.score_error
    n, lam = size - c_max, p.laplace_scale
    k2 = p.threshold - p.others_tail - kerr

    def shifts(noise: float) -> tuple[float, float]:
        k1 = p.threshold - noise - kerr
        rho_p = -math.log((k1 + k2) / size - 1)
        rho_b = min(rho_p, rho_p / (1 - math.exp(-rho_p)) * (size - k1) / n)
        return -math.log(2 * (k1 - 1) / (size - 1) - 1), rho_b

    delta_score = max(1.0, (size - 1) * (1 - math.exp(-p.eta_beta * max(shifts(p.own_tail)) / (n + 1))))
    assert (delta_score + 2 * kerr) / lam <= p.decision_epsilon
    weights = [math.exp(-p.cutoff_lattice * p.decision_epsilon * abs(k - p.cutoff_centre)) for k in range(1, c_max + 1)]
    pi = [0.0] + [w / sum(weights) for w in weights]  # pi[k], k from 1

    def pair(mu_a: float, mu_b: float) -> float:
        points, levels = reference_game(epsilon, p.decision_epsilon, c_max, mu_a)
        same = sum(pi[e] * levels[e - 1][points.index(0)] for e in range(1, c_max + 1))
        points, levels = reference_game(epsilon, p.decision_epsilon, c_max, mu_b)
        first, second = pi[c_max], pi[1]
        for e in range(1, c_max):
            step = round(math.log(pi[e + 1] / pi[e]) / p.decision_epsilon)
            first += pi[e] * levels[e - 1][points.index(-step)]
            second += pi[e + 1] * levels[e - 1][points.index(step)]
        return max(same, first, second)

    depths = np.linspace(0, p.own_tail / lam, 12)
    total = 0.5 * pair(*(rho / p.noise_multiplier for rho in shifts(0.0)))
    for left, right in itertools.pairwise(depths):
        mass = 0.5 * (math.exp(-left) - math.exp(-right))
        total += mass * pair(*(rho / p.noise_multiplier for rho in shifts(left * lam)))
    total += 0.5 * math.exp(-p.own_tail / lam)
    return total + 0.5 * (size - 1) * math.exp(-(p.others_tail - 1 - 2 * kerr) / lam)


@pytest.mark.parametrize(
    ("cohort", "eta_beta", "score_error", "louder"),
    [pytest.param(1000, 1.0, 0.0, 1.0, marks=pytest.mark.slow), (2500, 0.05, 0.1, 1.4)],
)
def test_verify_is_never_below_an_independent_evaluation_of_the_theorem(cohort, eta_beta, score_error, louder):
    p = calibrate(8.0, DELTA, cohort, eta_beta, 10 * cohort, score_error=score_error)
    p = replace(p, noise_multiplier=louder * p.noise_multiplier)
    reference = reference_delta(p, 8.0)
    assert reference <= verify(p, 8.0, DELTA) <= 2 * reference


@pytest.fixture(scope="module")
def good():
    return calibrate(4.0, DELTA, 2500, 1.0, 25_000)


@pytest.mark.parametrize(
    ("change", "condition"),
    [
        (lambda p: {"laplace_scale": p.laplace_scale / 4}, "kerr.*/λ <= e0"),
        (lambda p: {"noise_multiplier": p.noise_multiplier / 4}, "certified delta"),
        (lambda p: {"eta_beta": 2.1}, "step·smoothness <= 2"),
        (lambda p: {"others_tail": p.others_tail / 2}, "certified delta"),
        (lambda p: {"cutoff_centre": 1}, "c_mid >= 2"),
        (lambda p: {"cutoff_lattice": 4 * p.cutoff_lattice}, "certified delta"),
        (lambda p: {"noise_multiplier": math.nan}, "finite"),
        (lambda p: {"decision_epsilon": p.decision_epsilon * (1 - 1e-6)}, "λ <= e0"),
    ],
)
def test_parameters_that_break_a_hypothesis_are_refused_by_its_name(good, change, condition):
    with pytest.raises(VerificationError, match=condition):
        verify(replace(good, **change(good)), 4.0, DELTA)


def test_noise_is_scale_free(good):
    assert good.noise_scale(0.2, 3.0) == pytest.approx(0.2 * 3.0 * good.noise_factor / good.cohort_size)
    assert good.temperature(3.0) == good.theta / 3


@given(
    epsilon=st.sampled_from([2.0, 4.0, 8.0]),
    stretch=st.floats(1.05, 20),
    eta_beta=st.floats(0, 2),
    rounds=st.integers(1, 100),
    error=st.floats(0, 0.3),
    slack=st.sampled_from([0.0, 1e-11]),
)
@settings(derandomize=True, deadline=None, max_examples=8)
def test_whatever_calibrate_returns_passes_verify(epsilon, stretch, eta_beta, rounds, error, slack):
    cohort = int(stretch * smallest_cohort(epsilon, DELTA, eta_beta))
    settings_ = {"score_error": error, "delta_slack": slack}
    try:
        p = calibrate(epsilon, DELTA, cohort, eta_beta, rounds * cohort, **settings_)
    except Infeasible:
        assert stretch < 1.6  # errors of the scores and long phases move the edge a little
        return
    assert 0.5 * DELTA < verify(p, epsilon, DELTA, delta_slack=slack) <= DELTA
    assert p.eta_beta == eta_beta
    assert p.score_error == error


def test_a_promise_smaller_than_the_calibrated_one_is_refused(good):
    verify(good, 4.0, DELTA)
    with pytest.raises(VerificationError):
        verify(good, 3.8, DELTA)
    with pytest.raises(VerificationError):
        verify(good, 4.0, DELTA / 2)


@pytest.mark.parametrize("seed", range(40))
def test_a_kept_user_is_no_farther_from_the_kept_others_than_the_shift_says(seed):
    # Random clusters on a line, in the plane and in space: the geometry behind ρ_A and ρ_B, with τ = 1.
    rng = np.random.default_rng(seed)
    size, dimension = 14, 1 + seed % 3
    spread = rng.exponential(0.15)
    points = spread * rng.standard_normal((size, dimension))
    points[: rng.integers(0, 4)] += rng.uniform(0, 1.5)
    moved = points.copy()
    moved[0] += rng.uniform(-1, 1, dimension)
    kappa = np.exp(-np.linalg.norm(points[:, None] - points[None], axis=2)).sum(axis=1)
    kappa_moved = np.exp(-np.linalg.norm(moved[0] - points[1:], axis=1)).sum() + 1
    k1 = min(kappa[0], kappa_moved)
    if 2 * (k1 - 1) > size - 1:
        rho_a = -math.log(2 * (k1 - 1) / (size - 1) - 1)
        assert np.linalg.norm(points[0] - moved[0]) <= rho_a + 1e-12
    kept = np.argsort(-kappa[1:])[: size - 4] + 1  # at least N = B − c_max with c_max = 3, minus none
    k1, k2 = kappa[0], kappa[kept].min()
    if k1 + k2 > size:
        bound = outlier_filter._one_kept(np.array([k1]), k2, size, len(kept))[0]
        assert np.linalg.norm(points[0] - points[kept].mean(axis=0)) <= bound + 1e-12
