"""Which losses' Hessians are diagonally dominant for every item a client lets through, and what steps in a box do."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quoron_client import Box, ItemBatch, L2Ball, make_loss
from quoron_client.compute.enforcement import bounded

examples = settings(derandomize=True, deadline=None, max_examples=120)
SMOOTH = ("logistic", "least_squares", "huber", "smoothed_hinge", "linear")
BOUNDS = [  # of features: norm, largest entry, entries that are not zero
    {},
    {"feature_norm": 2.0},
    {"feature_norm": 2.0, "feature_bound": 0.7},
    {"active_features": 1},
    {"feature_norm": 3.0, "active_features": 2},
    {"feature_norm": 3.0, "feature_bound": 0.5, "active_features": 3},
    {"feature_norm": 2.0, "feature_bound": 0.9, "active_features": 4},
]


def rows_within(bounds: dict[str, float], dimension: int, rng: np.random.Generator) -> np.ndarray:
    """Features as clients bring them within the bounds: spread out, peaked, equal in magnitude."""
    loss = make_loss("logistic", **bounds)
    rows = rng.normal(size=(400, dimension)) * 10.0 ** rng.uniform(-2, 2, size=(400, 1))
    rows[100:200] = np.sign(rows[100:200]) * rng.uniform(0.1, 2, size=(100, 1))
    rows[200:300, 0] *= 10.0 ** rng.uniform(0, 2, size=100)
    angles = np.linspace(0, np.pi / 2, 100)
    rows[300:] = 100 * np.sin(angles)[:, None] / np.sqrt(max(dimension - 1, 1))
    rows[300:, 0] = 100 * np.cos(angles)
    return bounded(ItemBatch(rows, np.ones(400), np.array([0, 400])), loss).features


@pytest.mark.parametrize("name", SMOOTH)
@pytest.mark.parametrize("bounds", BOUNDS, ids=str)
@pytest.mark.parametrize("dimension", [1, 2, 3, 7])
def test_hessians_of_all_items_are_dominant_from_the_stated_ridge_on_with_the_stated_row_sums(
    name, bounds, dimension
) -> None:
    flat = make_loss(name, **bounds)
    needed = flat.min_dominant_ridge(dimension)
    assert needed is not None
    assert (flat.coordinate_smoothness(dimension) is not None) == (needed == 0)
    loss = make_loss(name, **bounds, ridge=needed)
    rows, curvature = rows_within(bounds, dimension, np.random.default_rng(dimension)), loss.curvature
    assert curvature is not None
    for weight in (1.0, 0.3):
        hessians = weight * curvature * rows[:, :, None] * rows[:, None, :] + loss.ridge * np.eye(dimension)
        diagonal = np.abs(np.einsum("ijj->ij", hessians))
        sums = np.abs(hessians).sum(axis=2)
        assert np.all(2 * diagonal >= sums * (1 - 1e-9))
        smoothness = loss.coordinate_smoothness(dimension)
        assert smoothness is not None
        assert sums.max() <= smoothness * (1 + 1e-9) + 1e-300


@pytest.mark.parametrize("name", ["hinge", "absolute", "softmax"])
def test_losses_without_a_hessian_or_with_blocks_are_never_dominant(name) -> None:
    loss = make_loss(name, ridge=100.0, active_features=1, **({"classes": 3} if name == "softmax" else {}))
    assert loss.min_dominant_ridge(6) is loss.coordinate_smoothness(6) is None


@pytest.mark.parametrize("name", ["logistic", "least_squares", "huber", "linear", "absolute"])
@pytest.mark.parametrize("bounds", BOUNDS, ids=str)
@pytest.mark.parametrize("domain", [Box(0.4), L2Ball(0.8)], ids=["box", "ball"])
def test_no_coordinate_of_an_items_gradient_exceeds_its_bound(name, bounds, domain) -> None:
    rng, loss = np.random.default_rng(2), make_loss(name, **bounds, ridge=0.3)
    rows, labels = rows_within(bounds, 5, rng), rng.choice([-1.0, 1.0], size=400)
    points = domain.project(rng.normal(size=(50, 5)) * 10.0 ** rng.uniform(-1, 1, size=(50, 1)))
    slopes = loss.slope(points @ rows.T, np.broadcast_to(labels, (50, 400)).copy())
    gradients = slopes[:, :, None] * rows + 0.3 * points[:, None, :]
    assert np.abs(gradients).max() <= loss.coordinate_lipschitz(domain, 5) * (1 + 1e-9)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_clients_hold_entries_and_keep_the_largest_of_them(dtype) -> None:
    loss = make_loss("logistic", feature_norm=10.0, feature_bound=0.7, active_features=2)
    rows = np.array([[0.1, -5.0, 2.0], [0.3, 0.3, 0.3], [0.0, 0.0, 0.2], [np.nan, 1.0, 1.0]], dtype)
    batch = bounded(ItemBatch(rows, np.ones(4), np.array([0, 4])), loss)
    assert batch.features.dtype == dtype
    assert np.abs(batch.features[:3]).max() <= 0.7
    np.testing.assert_allclose(batch.features[:3], [[0, -0.7, 0.7], [0.3, 0.3, 0], [0, 0, 0.2]], rtol=1e-6)
    assert np.isnan(batch.features[3]).any()
    assert np.isnan(batch.labels[3])
    again = bounded(batch, loss)
    np.testing.assert_array_equal(again.features, batch.features)
    same = ItemBatch(rows[2:3], np.ones(1), np.array([0, 1]))
    assert bounded(same, loss).features is same.features  # nothing changes, nothing is copied


def dominant(rng: np.random.Generator, dimension: int) -> np.ndarray:
    """A symmetric, diagonally dominant Hessian with row sums up to 1."""
    half = np.triu(rng.normal(size=(dimension, dimension)) * (rng.random((dimension, dimension)) < 0.7), 1)
    whole = half + half.T
    rows = np.abs(whole).sum(axis=1)
    whole[np.diag_indices(dimension)] = rows + rng.random(dimension) * rng.choice([0.0, 1.0])
    return whole / max(np.abs(whole).sum(axis=1).max(), 1e-300)


@examples
@given(st.integers(0, 2**32 - 1), st.integers(1, 5), st.floats(0, 2), st.floats(1e-3, 10))
def test_steps_and_projections_in_a_box_bring_no_points_farther_apart(seed, dimension, step, half_width) -> None:
    rng = np.random.default_rng(seed)
    hessian, other = dominant(rng, dimension), dominant(rng, dimension)
    x, y = rng.normal(size=(2, dimension)) * half_width
    if rng.random() < 0.5:
        y = x + rng.choice([-1.0, 1.0], dimension) * rng.random()  # a corner of a cube around x
    apart = np.abs(x - y).max()
    moved = (np.eye(dimension) - step * hessian) @ (x - y)
    clip = rng.random(dimension)[:, None]  # coordinates of gradients that are held: rows of H times [0, 1]
    held = (np.eye(dimension) - step * clip * hessian) @ (x - y)
    box = Box(half_width)
    assert max(np.abs(moved).max(), np.abs(held).max()) <= apart * (1 + 1e-12)
    assert np.abs(box.project(x) - box.project(y)).max() <= apart * (1 + 1e-12)
    # and two users' gradients move apart by at most β∞ times the distance, not twice that
    assert np.abs((hessian - other) @ (x - y)).max() <= apart * (1 + 1e-12)
    assert np.abs((clip * hessian - rng.random(dimension)[:, None] * other) @ (x - y)).max() <= apart * (1 + 1e-12)


def test_euclidean_projections_onto_balls_and_turned_boxes_may_bring_points_farther_apart() -> None:
    # The broken twins of a box: why other domains are refused.
    line = np.array([np.cos(np.pi / 8), np.sin(np.pi / 8)])  # a turned box of which one side has no width
    assert np.abs(line * (line @ np.ones(2))).max() > 1.2
    rng, ball, grown = np.random.default_rng(3), L2Ball(1.0), 0.0
    for _ in range(2000):
        x = rng.normal(size=4) * 2
        y = x + rng.choice([-1.0, 1.0], 4) * 1e-3
        grown = max(grown, np.abs(ball.project(x) - ball.project(y)).max() / np.abs(x - y).max())
    assert grown > 1.05


def test_a_dense_hessian_breaks_what_dominance_keeps() -> None:
    # The broken twin: φ'' a aᵀ with many features, without a ridge.
    row = np.full(9, 1 / 3.0)
    moved = (np.eye(9) - 1.5 * np.outer(row, row)) @ np.array([1.0, *-np.ones(8)])
    assert np.abs(moved).max() > 1.1
