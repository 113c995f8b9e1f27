"""The quadratic family: a public spectrum, an optimum in its flat direction, and rounds that grow as theory says."""

from pathlib import Path

import numpy as np
import pytest

from quoron import sources
from quoron.populations import Synthetic
from quoron.simulation.scene import setup
from quoron_client.compute.work import answer
from quoron_client.protocol.domains import Box, L2Ball
from quoron_client.protocol.gradients import AverageGradient
from quoron_privacy.errors import ConfigError


def population(**changes):
    arguments = {"users": 20_000, "items_per_user": 2, "dimension": 5, "domain": L2Ball(2.0), "seed": 7, "flat": 0.05}
    return Synthetic("quadratic", **(arguments | changes))


@pytest.mark.parametrize("changes", [{}, {"ridge": 0.1}, {"heterogeneity": 0.2, "steep": 3.0}])
def test_the_gradient_vanishes_at_the_optimum_and_deviates_as_declared(changes):
    # 40,000 items: false alarm below 1e-6
    crowd = population(**changes)
    gradients = answer(crowd.loss, crowd.items(np.arange(20_000)), AverageGradient(crowd.optimum[None], (1.0,))).values
    z = gradients.mean(axis=0) / (gradients.std(axis=0) / np.sqrt(20_000))
    assert np.abs(z).max() < 5.7
    known = crowd.knowledge
    between = np.sqrt(gradients.var(axis=0).sum())
    within = np.sqrt(known.gradient_deviation**2 - known.user_deviation**2)
    assert np.hypot(within / np.sqrt(2), known.user_deviation) == pytest.approx(between, rel=0.02)


def test_the_optimum_is_in_the_flat_directions_and_the_excess_is_the_quadratic():
    crowd = population()
    assert crowd.optimum[0] == 0.0
    assert np.linalg.norm(crowd.optimum) == pytest.approx(1.0)
    apart = np.array([0.1, -0.2, 0.05, 0.0, 0.3])
    expected = (apart[0] ** 2 + 0.05 * np.sum(apart[1:] ** 2)) / 2
    assert crowd.excess_risk(crowd.optimum + apart) == pytest.approx(expected, rel=1e-12)
    assert crowd.excess_risk(crowd.optimum) == 0.0


def test_plans_are_told_the_smoothness_and_not_the_spectrum():
    known = population().knowledge
    assert (known.user_smoothness, known.typical_curvature, known.least_curvature) == (1.0, None, None)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dimension": 1}, "dimension >= 2"),
        ({"flat": 0.0}, "flat > 0"),
        ({"signal_norm": 0.0}, "signal_norm"),
        ({"flat": 1.5}, "feature_norm"),
        ({"domain": L2Ball(0.9)}, "inside the domain"),
        ({"domain": Box(0.3)}, "inside the domain"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(changes, message):
    with pytest.raises(ConfigError, match=message):
        population(**changes)


def steps_to(target, flat, method):
    """Exact full gradients, from zero: how many until the excess is `target` of that at the start."""
    crowd = population(users=200, flat=flat)
    shift = crowd.loss.quadratic_diagonal(5) * crowd.optimum  # of the population, without sampling
    x = before = np.zeros(5)
    start, t = crowd.excess_risk(x), 0
    while crowd.excess_risk(x) > target * start:
        momentum = (t / (t + 3)) if method == "accelerated" else 0.0
        y = x + momentum * (x - before)
        before, x, t = x, y - (crowd.loss.quadratic_diagonal(5) * y - shift), t + 1
    return t


def test_descent_needs_one_over_flat_rounds_and_acceleration_its_square_root():
    plain = [steps_to(0.05, flat, "plain") * flat for flat in (0.04, 0.01, 0.0025)]
    fast = [steps_to(0.05, flat, "accelerated") * np.sqrt(flat) for flat in (0.04, 0.01, 0.0025)]
    np.testing.assert_allclose(plain, plain[-1], rtol=0.1)
    np.testing.assert_allclose(fast, fast[-1], rtol=0.15)


def test_the_preset_has_the_condition_that_it_says():
    config, _ = sources.resolve("flat-direction")
    made = setup(config, Path())
    assert made.problem.beta == 1.0
    assert made.problem.beliefs.curvature == "unknown"
    assert made.evaluate(np.zeros(20))["excess_risk"] == pytest.approx(0.00735 / 2)
