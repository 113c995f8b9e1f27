"""Server optimisers against their formulas, and what every one of them keeps: the domain, resumption, the promise."""

import numpy as np
import pytest

from contracts.scenes import PRIVACY, PROBLEM
from quoron_privacy.errors import ConfigError
from quoron_server.algorithms import ALGORITHMS
from quoron_server.algorithms.optimisers import Optimiser

GRADIENTS = np.random.default_rng(3).normal(size=(7, 4))


def path(optimiser: Optimiser) -> list[np.ndarray]:
    x, moments, points = np.ones(4), optimiser.start(4), []
    for t, gradient in enumerate(GRADIENTS):
        x, moments = optimiser.step(x, gradient, moments, step_size=0.1, t=t)
        points.append(x)
    return points


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


@pytest.mark.parametrize("name", ["one-pass-dp-sgd", "dp-sgd-wor", "dp-sgd-poisson"])
def test_a_step_that_no_plan_can_choose_has_to_be_given(name):
    info = ALGORITHMS[name]
    with pytest.raises(ConfigError, match="step_size with optimiser='adam'"):
        info.plan(PROBLEM, PRIVACY, info.options(rounds=4, optimiser="adam"), "calibrated", 1)
    with pytest.raises(ConfigError, match="suffix from 1 to 4"):
        info.plan(PROBLEM, PRIVACY, info.options(rounds=4, suffix=5), "calibrated", 1)
