import math
from dataclasses import replace

import numpy as np
import pytest

from quoron_privacy.accounts.gdp import delta_for
from quoron_privacy.errors import Infeasible, VerificationError
from quoron_privacy.robust.above_threshold import (
    Series,
    calibrate,
    verify_above_threshold,
)
from quoron_privacy.robust.outlier_mean import weighted_mean

DELTA = 1e-6


def series(plan: Series, scores: np.ndarray, xi: np.ndarray) -> np.ndarray:
    """P(passing each step | ξ), shape (len(xi), T)."""
    margin = (plan.threshold + xi[:, None] - scores) / plan.score_scale
    return np.where(margin > 0, 0.5 * np.exp(-np.abs(margin)), 1 - 0.5 * np.exp(-np.abs(margin)))


@pytest.mark.parametrize("epsilon", [1.0, 3.0])
def test_exact_halting_laws_of_random_score_series_stay_below_the_claim(epsilon):
    """Releases on steps with a score below the core give everything away; exact integration over ξ.

    Margins are short and noises small, so that every term of the theorem counts.
    """
    steps, mean, move = 3, weighted_mean(200, 150, 2), 2 * 199 / 200
    scales = 4 * move / epsilon, 8 * move / epsilon
    plan = Series(mean, steps, steps, *scales, 3 * scales[0], 4 * scales[1], mean.sensitivity / 0.5)
    claim = verify_above_threshold(plan, epsilon, 0.99)
    mu, rng = mean.sensitivity / plan.noise_multiplier, np.random.default_rng(6)
    xi = np.linspace(-40, 40, 8001) * plan.threshold_scale
    weights = np.exp(-np.abs(xi) / plan.threshold_scale)
    weights /= weights.sum()
    worst = 0.0
    for trial in range(150):
        first = plan.threshold + rng.normal(0, 1, steps) * plan.score_scale
        if trial % 3:
            first = mean.core + rng.choice([-1e-9, move / 2, 20.0, 60.0], steps)
        second = first + rng.choice([-move, 0.0, move], steps)
        clean = np.minimum(first, second) >= plan.mean.core
        laws = []
        for scores in (first, second):
            passed = np.cumprod(np.column_stack([np.ones(len(xi)), series(plan, scores, xi)]), axis=1)
            halted = passed[:, :-1] - passed[:, 1:]
            laws.append(np.append(weights @ halted, weights @ passed[:, -1]))
        for one, two in ((0, 1), (1, 0)):
            total = 0.0
            for count in range(steps + 1):
                p, q = laws[one][count], laws[two][count]
                if p == 0 or q == 0:
                    total += p
                elif clean[:count].all():
                    total += p * delta_for(mu * math.sqrt(count), epsilon - math.log(p / q))
                else:
                    total += p  # a release whose score was too low gives everything away
            worst = max(worst, total)
    assert 0.02 * claim < worst <= claim


def test_broken_plans_do_not_verify():
    plan = calibrate(1.0, DELTA, 2000, releases=50)
    for broken in (
        replace(plan, noise_multiplier=plan.noise_multiplier / 16),
        replace(plan, noise_multiplier=plan.noise_multiplier * 0.999),
        replace(plan, threshold_margin=plan.threshold_margin / 2),
        replace(plan, score_scale=plan.score_scale / 2),
        replace(plan, threshold_scale=plan.threshold_scale * 1.2),
    ):
        with pytest.raises(VerificationError, match="certified delta"):
            verify_above_threshold(broken, 1.0, DELTA)
    with pytest.raises(VerificationError, match="margins >= 0"):
        verify_above_threshold(replace(plan, score_margin=-1.0), 1.0, DELTA)


def test_too_small_a_batch_is_refused_with_the_size_that_would_do():
    with pytest.raises(Infeasible, match="cohort_size >= "):
        calibrate(1.0, DELTA, 100, releases=50)
