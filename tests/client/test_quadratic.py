"""The quadratic loss: every item has the public Hessian H, in averages, values and local passes alike."""

import numpy as np
import pytest

from client import reference
from quoron_client import L2Ball, make_loss
from quoron_client.compute.gradients import average_gradient, average_loss
from quoron_client.protocol.gradients import AverageGradient

LOSS = make_loss("quadratic", steep=0.8, flat=0.03, ridge=0.01, feature_norm=1.5)
H = np.array([0.81, 0.04, 0.04, 0.04])


def batch(sizes=(3, 1, 40, 0)):
    return reference.random_batch(np.random.default_rng(4), sizes, 4)


def test_its_constants_are_those_of_h():
    np.testing.assert_allclose(LOSS.quadratic_diagonal(4), H)
    assert LOSS.smoothness == pytest.approx(0.81)
    assert LOSS.lipschitz(L2Ball(2.0), 4) == pytest.approx(1.5 + 0.81 * 2.0)
    assert LOSS.start_gradient == 1.5


def test_gradients_and_losses_are_those_of_the_formula():
    items, rng = batch(), np.random.default_rng(1)
    points = rng.standard_normal((2, 4))
    found = average_gradient(LOSS, items, AverageGradient(points, (3.0, -2.0)))
    means = np.array(
        [rows.astype(np.float64).mean(axis=0) if len(rows) else np.zeros(4) for rows, _ in reference.users(items)]
    )
    np.testing.assert_allclose(found[:3], H * (3 * points[0] - 2 * points[1]) - means[:3], atol=1e-12)
    np.testing.assert_array_equal(found[3], 0.0)  # nobody's gradient is zero, whatever H
    expected = (H * points[0]) @ points[0] / 2 - means @ points[0]
    np.testing.assert_allclose(average_loss(LOSS, items, points[0])[:3], expected[:3], atol=1e-12)
