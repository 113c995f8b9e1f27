"""The quadratic family: a public spectrum, an optimum in its flat direction, and rounds that grow as theory says."""

import numpy as np
import pytest

from quoron.populations import Synthetic
from quoron_client.compute.work import answer
from quoron_client.protocol.domains import L2Ball
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


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dimension": 1}, "dimension >= 2"),
        ({"flat": 0.0}, "flat > 0"),
        ({"flat": 1.5}, "feature_norm"),
        ({"domain": L2Ball(0.9)}, "inside the domain"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(changes, message):
    with pytest.raises(ConfigError, match=message):
        population(**changes)
