"""Server optimisers against their formulas, and what every one of them keeps: the domain, resumption, the promise."""

import math

import numpy as np
import pytest

from contracts.scenes import PRIVACY, PROBLEM, make_plan
from quoron_privacy.errors import ConfigError
from quoron_server.algorithms import ALGORITHMS
from quoron_server.algorithms.optimisers import SGD, Optimiser

GRADIENTS = np.random.default_rng(3).normal(size=(7, 4))


def path(optimiser: Optimiser) -> list[np.ndarray]:
    x, moments, points = np.ones(4), optimiser.start(4), []
    for t, gradient in enumerate(GRADIENTS):
        x, moments = optimiser.step(x, gradient, moments, step_size=0.1, t=t)
        points.append(x)
    return points


def test_sgd_takes_the_gradient_and_remembers_nothing():
    np.testing.assert_array_equal(path(SGD)[-1], np.array(path(SGD)[-2]) - 0.1 * GRADIENTS[-1])
    assert SGD.start(4).first.shape == SGD.start(4).second.shape == (0,)


def test_momentum_is_a_geometric_sum_of_all_gradients():
    x = np.ones(4)
    for t in range(7):
        x = x - 0.1 * sum(0.8 ** (t - s) * GRADIENTS[s] for s in range(t + 1))
    np.testing.assert_allclose(path(Optimiser("momentum", momentum=0.8))[-1], x, rtol=1e-12)


@pytest.mark.parametrize("decay", [0.0, 0.01])
def test_adam_is_the_papers(decay):
    x = np.ones(4)
    for t in range(7):
        m = sum(0.1 * 0.9 ** (t - s) * GRADIENTS[s] for s in range(t + 1)) / (1 - 0.9 ** (t + 1))
        v = sum(0.001 * 0.999 ** (t - s) * GRADIENTS[s] ** 2 for s in range(t + 1)) / (1 - 0.999 ** (t + 1))
        x = x - 0.1 * (m / (np.sqrt(v) + 1e-8) + decay * x)
    np.testing.assert_allclose(path(Optimiser("adam", weight_decay=decay))[-1], x, rtol=1e-9)


def test_adam_without_memory_takes_steps_of_one_length():
    steps = np.diff([np.ones(4), *path(Optimiser("adam", momentum=0.0, second_momentum=0.0))], axis=0)
    np.testing.assert_allclose(np.abs(steps), 0.1, rtol=1e-6)


@pytest.mark.parametrize(
    "wrong", [{"momentum": 1.0}, {"second_momentum": -0.1}, {"stability": 0.0}, {"weight_decay": -1.0}]
)
def test_numbers_out_of_range_are_refused_by_name(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        Optimiser("adam", **wrong)


@pytest.mark.parametrize("name", ["one-pass-dp-sgd", "dp-sgd-wor", "dp-sgd-poisson"])
def test_a_step_that_no_plan_can_choose_has_to_be_given(name):
    info = ALGORITHMS[name]
    with pytest.raises(ConfigError, match="step_size with optimiser='adam'"):
        info.plan(PROBLEM, PRIVACY, info.options(rounds=4, optimiser="adam"), "calibrated", 1)
    with pytest.raises(ConfigError, match="suffix from 1 to 4"):
        info.plan(PROBLEM, PRIVACY, info.options(rounds=4, suffix=5), "calibrated", 1)


def test_an_optimiser_costs_no_noise_and_predicts_no_risk():
    info, plain = ALGORITHMS["one-pass-dp-sgd"], make_plan("one-pass-dp-sgd")
    plan = info.plan(PROBLEM, PRIVACY, info.options(rounds=6, optimiser="adam", step_size=0.1), "calibrated", 7)
    assert plan.releases() == plain.releases()
    assert plan.parameters.suffix == 1
    assert plan.predicted_excess_risk is None
    assert math.isfinite(plain.predicted_excess_risk)
