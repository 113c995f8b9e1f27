import math
from dataclasses import replace
from functools import cache
from itertools import combinations_with_replacement
from math import comb, exp, log

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import log_ndtr

from privacy.robust.means import mean_at
from quoron_privacy.accounts.gdp import delta_for
from quoron_privacy.errors import Infeasible, VerificationError
from quoron_privacy.robust.outlier_mean import score_step
from quoron_privacy.robust.smooth_test import (
    TICKETS,
    SmoothTest,
    calibrate,
    pair_divergence,
    smallest_cohort,
    verify_one_shot,
)

DELTA = 1e-6


@pytest.mark.parametrize("epsilon", [1.0, 8.0])
def test_the_smallest_cohort_is_feasible_and_no_smaller_one_is(epsilon):
    edge = smallest_cohort(epsilon, DELTA)
    assert verify_one_shot(calibrate(epsilon, DELTA, edge), epsilon, DELTA) <= DELTA
    with pytest.raises(Infeasible, match=f"cohort_size >= {edge}"):
        calibrate(epsilon, DELTA, edge - 2)


def exact(epsilon: float, p: float, q: float, mu: float) -> float:
    """H between (silent w.p. 1 − p, N(μ, 1) w.p. p) and (…, q, N(0, 1)), from outlier-mean#o3's own formula."""
    if p == 0:
        return max(1 - math.exp(epsilon) * (1 - q), 0.0)
    silent = max((1 - p) - math.exp(epsilon) * (1 - q), 0.0)
    return silent + (p if q == 0 else p * delta_for(mu, epsilon + math.log(q / p)))


@given(p=st.floats(1e-9, 1.0), q=st.floats(1e-9, 1.0), mu=st.floats(0.01, 8), epsilon=st.floats(0.05, 6))
@settings(derandomize=True, deadline=None, max_examples=200)
def test_pair_divergence_is_the_theorems_formula(p, q, mu, epsilon):
    found = float(pair_divergence(epsilon, np.array([p]), np.array([q]), np.array([mu]), np.ones(1))[0])
    assert found == pytest.approx(exact(epsilon, p, q, mu), rel=1e-8, abs=3e-15)


@given(size=st.integers(12, 60), epsilon=st.floats(1.0, 8.0), seed=st.integers(0, 2**32 - 1))
@settings(derandomize=True, deadline=None, max_examples=60)
def test_no_pair_of_neighbouring_scores_exceeds_delta(size, epsilon, seed):
    rng = np.random.default_rng(seed)
    if size < smallest_cohort(epsilon, 1e-3):
        return
    plan = calibrate(epsilon, 1e-3, size)
    score = int(rng.integers(size, size**2 + 1))
    other = int(np.clip(score + rng.integers(-score_step(size), score_step(size) + 1), size, size**2))
    p, q = plan.test.chance(score), plan.test.chance(other)
    larger = max(score, other)
    sure = larger >= size * plan.test.core + score_step(size)  # on level 1: the smaller one is not below level 0
    mu = plan.mean.shifts_at(np.array([larger]))[0] / plan.noise_multiplier if sure else 1e9
    assert (0.0 if p == q == 0 else exact(epsilon, p, q, mu)) <= 1e-3


def test_broken_plans_do_not_verify():
    plan = calibrate(1.0, DELTA, 300)
    for broken, words in (
        (replace(plan, noise_multiplier=plan.noise_multiplier * 0.999), "certified delta"),
        (replace(plan, test=replace(plan.test, table=(1.0,))), "certified delta"),
        (replace(plan, test=replace(plan.test, table=plan.test.table[::2])), "certified delta"),
        (replace(plan, test=replace(plan.test, table=plan.test.table[::-1])), "climbing ladder"),
        (replace(plan, test=replace(plan.test, core=plan.test.core - 1)), "own cohort and core"),
    ):
        with pytest.raises(VerificationError, match=words):
            verify_one_shot(broken, 1.0, DELTA)


def test_rungs_are_decided_in_integers():
    test = SmoothTest(10, 8, (0.25, 0.5, 1.0))
    assert [test.chance(score) for score in (79, 80, 97, 98, 100)] == [0.0, 0.25, 0.25, 0.5, 0.5]
    assert test.chance(test.cohort_size**2) == 0.5


def delta_of_gaussian(mu, epsilon):
    """δ of a Gaussian release (Balle & Wang)."""
    if mu == 0:
        return max(0.0, 1 - exp(epsilon))
    return exp(log_ndtr(mu / 2 - epsilon / mu)) - exp(epsilon + log_ndtr(-mu / 2 - epsilon / mu))


@cache
def divergence(p, q, mu, epsilon):
    """Hockey stick of order e^ε: released with chance p against chance q, means μ standard deviations apart."""
    silent = max(0.0, (1 - p) - exp(epsilon) * (1 - q))
    if p == 0:
        return silent
    return silent + (p if q == 0 else p * delta_of_gaussian(mu, epsilon - log(p / q)))


def ladder(mu, epsilon, delta, levels):
    """The largest chances that outlier-mean#o3 allows, by bisection."""
    table = [delta]
    while len(table) < levels:
        low, high = table[-1], 1.0
        for _ in range(60):
            middle = (low + high) / 2
            worst = max(divergence(table[-1], middle, mu, epsilon), divergence(middle, table[-1], mu, epsilon))
            low, high = (middle, high) if worst <= delta else (low, middle)
        table.append(low)
    return tuple(table)


class One:
    """A stream that gives one number."""

    def __init__(self, number):
        self.number = number

    def uniform_below(self, bound, size):
        assert (bound, size) == (TICKETS, 1)
        return np.array([self.number])


@pytest.mark.parametrize(
    ("epsilon", "delta"),
    [
        pytest.param(0.5, 0.02, marks=pytest.mark.slow),
        pytest.param(1.0, 0.05, marks=pytest.mark.slow),
        (2.0, 0.01),
    ],
)
def test_every_cohort_of_a_tiny_world_is_private_against_every_neighbour(epsilon, delta):
    # All cohorts of 8 answers at 7 places, all replacements, exact distributions of decision and release.
    size, core, low, high = 8, 6, 4, 7
    shift = 0.0
    for h in range(low, high + 1):
        n = size * (size - core) / (size - h)
        shift = max(shift, (2 + 2 * n / (high - low)) / (size - n * (1 - (h - low) / (high - low))))
    mu = 0.9 * next(m for m in np.linspace(3, 0.01, 300) if delta_of_gaussian(m, epsilon) <= delta)
    test = SmoothTest(size, core, ladder(mu, epsilon, delta, 2))
    mean = mean_at(size, 1.0, "weighted", low, high)
    places, everyone, zero = [-2.0, -1.0, 0.0, 1.0, 2.0, 3.0, 1e9], np.ones(size, dtype=bool), np.zeros(1)
    known = {}
    for cohort in combinations_with_replacement(range(len(places)), size):
        rows = np.array([[places[i]] for i in cohort])
        seen = mean.observe(rows, everyone, reference=zero)
        known[cohort] = (
            seen.score,
            test.tickets(seen.score) / TICKETS,
            float(mean.aggregate(rows, seen.weights, reference=zero)[0]),
        )
    worst, steps, farthest = 0.0, set(), shift * (1 + mean.rounding_slack(1))
    for cohort, (score, p, value) in known.items():
        for left in set(cohort):
            for right in range(len(places)):
                rest = list(cohort)
                rest.remove(left)
                other, q, moved = known[tuple(sorted([*rest, right]))]
                assert abs(score - other) <= 2 * (size - 1)
                steps.add((test.level(score), test.level(other)))
                distance = abs(value - moved)
                assert not (p > 0 and q > 0) or distance <= farthest
                worst = max(worst, divergence(p, q, distance / (shift * (1 + 1e-6)) * mu, epsilon))
    assert len(known) == comb(14, 8)
    assert steps == {(a, b) for a in (None, 0, 1) for b in (None, 0, 1)} - {(None, 1), (1, None)}
    assert 0.999 * delta <= worst <= delta * (1 + 1e-9)  # attained where one cohort never releases and the other may


def test_a_test_without_rungs_would_be_caught_by_the_same_check():
    # The broken twin: release whenever S >= C k.
    assert divergence(1.0, 0.0, 0.0, 1.0) == 1.0
    assert divergence(0.02, 1.0, 0.1, 1.0) > 0.05


def test_rungs_are_one_user_high():
    for size, core in ((2, 1), (3, 2), (8, 6), (300, 285)):
        test = SmoothTest(size, core, tuple(np.linspace(1e-6, 1, 500)))
        levels = [test.level(s) for s in range(size, min(size * size, size * core + 40 * size) + 1)]
        assert levels[: size * (core - 1)] == [None] * (size * (core - 1)) or size > 100
        step = 2 * (size - 1)
        for i in range(len(levels) - step):
            first, second = (-1 if r is None else r for r in (levels[i], levels[i + step]))
            assert second - first <= 1 + (first == -1 and levels[i + step] is None) or second == first + 1
        assert test.level(size * core) == 0
        assert test.level(size * core - 1) is None


def test_a_draw_releases_exactly_when_it_is_below_the_chance():
    test = SmoothTest(10, 5, (0.25, 0.75))
    for score in (10, 49, 50, 60, 70, 100):
        tickets = test.tickets(score)
        for number in {0, max(tickets - 1, 0), min(tickets, TICKETS - 1), TICKETS - 1}:
            assert test.decide(score, One(number)) == (number < tickets)
    assert SmoothTest(10, 5, (1.0,)).decide(50, One(TICKETS - 1))
    assert not SmoothTest(10, 5, (1.0,)).decide(49, One(0))


def test_real_cohorts_at_critical_distances_stay_below_delta_and_sixteenth_noise_does_not():
    """Both orders, exact divergences: one dimension, so the shift of the aggregate is all that matters."""
    epsilon, delta = 2.0, 1e-3
    plan = calibrate(epsilon, delta, 60)
    mean = plan.mean
    rng = np.random.default_rng(1)

    def law(points: np.ndarray) -> tuple[float, float]:
        gaps = np.abs(points[:, None] - points)
        heights = (gaps <= mean.removal_radius).sum(1)
        weights = np.clip((heights - mean.ramp_low) / (mean.ramp_high - mean.ramp_low), 0, 1)
        centre = float(weights @ points / weights.sum()) if weights.sum() > 0 else 0.0
        return plan.test.chance(int((gaps <= 1).sum())), centre

    worst, broken = 0.0, 0.0
    for trial in range(1500):
        common = rng.choice([0.0, 1.0, 2.0], size=59, p=rng.dirichlet([6, 1, 0.5]))
        if trial % 3 == 0:
            common[:] = 0.0
        ends = rng.choice([-2.0, -1.0, 0.0, 1.0, 2.0, 9.0], size=2, replace=False)
        (p, x), (q, y) = (law(np.append(common, end)) for end in ends)
        if p == q == 0:
            continue
        for one, two in ((p, q), (q, p)):
            worst = max(worst, exact(epsilon, one, two, max(abs(x - y), 1e-9) / plan.noise_multiplier))
            broken = max(broken, exact(epsilon, one, two, max(abs(x - y), 1e-9) / plan.noise_multiplier * 16))
    assert 0 < worst <= delta
    assert broken > 10 * delta


def test_without_the_test_one_user_is_identified_where_the_test_stays_silent():
    plan = calibrate(1.0, DELTA, 1000)
    first = np.repeat([0.0, 1.5], [501, 499])  # only answers at 0 have more than half of the cohort around them
    second = np.repeat([0.0, 1.5], [500, 500])  # nobody has

    def law(points: np.ndarray) -> tuple[float, float]:
        near = np.abs(points[:, None] - points) <= 1
        weights = np.maximum(near.sum(1) - plan.mean.ramp_low, 0)
        return plan.test.chance(int(near.sum())), float(weights @ points / weights.sum()) if weights.any() else 1.5

    (p, x), (q, y) = law(first), law(second)
    assert p == q == 0.0
    assert delta_for(abs(x - y) / plan.noise_multiplier, 1.0) > 0.99  # released without a test: far beyond δ


def test_gaussian_pairs_agree_with_a_direct_integral():
    x = np.linspace(-12, 14, 200_001)
    density = lambda centre: np.exp(-0.5 * (x - centre) ** 2) / math.sqrt(2 * math.pi) * (x[1] - x[0])  # noqa: E731
    p, q, mu, epsilon = 0.3, 0.1, 1.2, 0.7
    integral = np.maximum(p * density(mu) - math.exp(epsilon) * q * density(0.0), 0).sum()
    silent = max(0.7 - math.exp(epsilon) * 0.9, 0)
    found = pair_divergence(epsilon, np.array([p]), np.array([q]), np.array([mu]), np.ones(1))[0]
    assert found == pytest.approx(integral + silent, rel=1e-6)
