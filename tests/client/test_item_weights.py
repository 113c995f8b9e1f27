"""Item weights: F_u(x) = (1/m_u) Σ w_i φ_i(x) + ridge/2 ‖x‖², w_i in [0, 1], within the constants of the loss."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from client import reference
from quoron_client import (
    AverageGradient,
    Box,
    ItemBatch,
    L2Ball,
    LocalSGD,
    SecondMoment,
    Status,
    answer,
    average_gradient,
    average_loss,
    bounded,
    local_sgd,
    make_loss,
    second_moment_factor,
    smoothness_scale,
)
from quoron_privacy.errors import DataError

STEADY = settings(derandomize=True, deadline=None, max_examples=40)
SIZES = (1, 5, 0, 40, 33, 20)
TRIED = (*reference.some_losses(), make_loss("softmax", classes=3, ridge=0.05, feature_norm=1.5))
by_name = pytest.mark.parametrize("loss", TRIED, ids=lambda loss: loss.name)


def weighted(rng, loss, sizes=SIZES, features=7, dtype=np.float32):
    batch = reference.random_batch(rng, sizes, features, dtype, loss)
    labels = rng.integers(0, 3, len(batch.labels)).astype(float) if loss.outputs > 1 else batch.labels
    weights = rng.uniform(0, 1, len(labels))
    weights[:: max(1, len(weights) // 5)] = rng.choice([0.0, 1.0])
    return ItemBatch(batch.features, labels, batch.offsets, weights)


def item_by_item(loss, batch):
    """Each item as a user without weight or ridge, and its weight over m_u."""
    alone = ItemBatch(batch.features, batch.labels, np.arange(len(batch.labels) + 1))
    counts = np.diff(batch.offsets)
    return replace(loss, ridge=0.0), alone, batch.weights / np.repeat(np.maximum(counts, 1), counts)


def summed(batch, rows):
    return np.array([rows[i:j].sum(axis=0) for i, j in zip(batch.offsets[:-1], batch.offsets[1:], strict=True)])


@by_name
def test_gradient_and_loss_are_the_stated_objective(loss):
    rng = np.random.default_rng(1)
    batch, d = weighted(rng, loss), 7 * loss.outputs
    points, (plain, alone, shares) = rng.standard_normal((2, d)), item_by_item(loss, batch)
    task = AverageGradient(points, (3.0, -2.0))
    items = average_gradient(plain, alone, task)
    expected = summed(batch, shares[:, None] * items) + loss.ridge * (3 * points[0] - 2 * points[1])
    expected[2] = 0.0  # nobody without items answers
    np.testing.assert_allclose(average_gradient(loss, batch, task), expected, rtol=1e-11, atol=1e-13)
    values = summed(batch, shares * average_loss(plain, alone, points[0]))
    values += np.where(np.diff(batch.offsets) > 0, loss.ridge / 2 * points[0] @ points[0], 0.0)
    np.testing.assert_allclose(average_loss(loss, batch, points[0]), values, rtol=1e-11)


@by_name
@pytest.mark.parametrize("domain", [L2Ball(0.5), Box(0.2)], ids=["ball", "box"])
def test_local_sgd_takes_weighted_steps(loss, domain):
    rng = np.random.default_rng(2)
    batch, d = weighted(rng, loss), 7 * loss.outputs
    starts = domain.project(rng.standard_normal((batch.users, d)))
    found = local_sgd(loss, batch, LocalSGD(starts, 0.3, domain))
    plain, _, _ = item_by_item(loss, batch)
    for u in range(batch.users):
        x, total, rows = starts[u], np.zeros(d), range(batch.offsets[u], batch.offsets[u + 1])
        for i in rows:
            own = ItemBatch(batch.features[i : i + 1], batch.labels[i : i + 1], np.array([0, 1]))
            slope = average_gradient(plain, own, AverageGradient(x[None], (1.0,)))[0]
            x = domain.project(x - 0.3 * (batch.weights[i] * slope + loss.ridge * x))
            total = total + x
        np.testing.assert_allclose(found[u], [x, total / max(1, len(rows))], rtol=1e-10, atol=1e-12)


@by_name
@STEADY
@given(seed=st.integers(0, 2**32 - 1))
def test_lipschitz_and_smoothness_of_the_loss_hold_for_every_weighted_user(loss, seed):
    rng = np.random.default_rng(seed)
    batch = bounded(weighted(rng, loss, dtype=np.float64), loss)
    domain, d = L2Ball(3.0), 7 * loss.outputs
    one, two = domain.project(5 * rng.standard_normal((2, d)))
    gradients = [average_gradient(loss, batch, AverageGradient(x[None], (1.0,))) for x in (one, two)]
    lengths = np.linalg.norm(np.concatenate(gradients), axis=1)
    assert lengths.max() <= loss.lipschitz(domain, d) * (1 + 1e-12)
    if loss.smoothness is None:
        return
    distance = np.linalg.norm(one - two)
    change = np.linalg.norm(gradients[0] - gradients[1], axis=1)
    assert change.max() <= loss.smoothness * distance * (1 + 1e-9)
    scaled = smoothness_scale(loss, batch, 0.1) * change  # the scale that weights leave as it is
    assert scaled.max() <= 0.1 * distance * (1 + 1e-9)


def test_second_moment_weighs_its_items_and_stays_within_the_feature_norm():
    rng, loss = np.random.default_rng(4), make_loss("logistic")
    batch = bounded(weighted(rng, loss, dtype=np.float64), loss)
    factors = second_moment_factor(batch)
    upper = np.triu_indices(7)
    for u, (rows, _) in enumerate(reference.users(batch)):
        w = batch.weights[batch.offsets[u] : batch.offsets[u + 1]]
        triangle = np.zeros((7, 7))
        triangle[upper] = factors[u]
        expected = (rows * w[:, None]).T @ rows / max(1, len(rows))
        np.testing.assert_allclose(triangle.T @ triangle, expected, atol=1e-12)
    assert np.linalg.norm(factors, axis=1).max() <= loss.feature_norm


def test_weights_are_brought_within_their_bounds_and_one_that_is_no_number_rejects_its_user():
    weights = np.array([0.5, 3.0, -1.0, np.nan, np.inf])
    batch = bounded(ItemBatch(np.ones((5, 1)), np.ones(5), np.arange(6), weights), make_loss("logistic"))
    np.testing.assert_array_equal(batch.weights[:3], [0.5, 1.0, 0.0])
    found = answer(make_loss("logistic"), batch, AverageGradient(np.zeros((1, 1)), (1.0,)))
    np.testing.assert_array_equal(found.values[:, 0], [-0.25, -0.5, 0.0, 0.0, 0.0])
    assert list(found.status) == [Status.ANSWERED] * 3 + [Status.REJECTED] * 2
    assert list(answer(make_loss("logistic"), batch, SecondMoment(1)).status) == list(found.status)


@pytest.mark.parametrize("weights", [np.ones(2), np.ones((3, 1)), np.ones(3, np.float32), np.ones(6)[::2]])
def test_weights_of_another_shape_or_kind_are_refused(weights):
    with pytest.raises(DataError, match=r"Expected .* weights"):
        ItemBatch(np.ones((3, 1)), np.ones(3), np.array([0, 3]), weights)
