from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from client import reference
from quoron_client import AverageGradient, ItemBatch, average_gradient, average_loss, make_loss
from quoron_client.compute.gradients import gradient_sums
from quoron_privacy.errors import ConfigError, DataError
from quoron_privacy.means.clipping import ClippedSum

by_name = pytest.mark.parametrize("loss", reference.some_losses(), ids=lambda loss: loss.name)
STEADY = settings(derandomize=True, deadline=None, max_examples=30)
RAGGED = (3, 0, 1, 33, 64, 4, 65, 2, 7, 129, 0)  # around the kernel's groups of 4 and blocks of 64


def at(*points, weights=None, user_smoothness=None):
    points = np.array(points, dtype=np.float64)
    return AverageGradient(points, weights or (1.0,) * len(points), user_smoothness)


@by_name
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("dimension", [1, 3, 17, 40])
def test_fast_gradients_and_losses_match_item_by_item_sums(loss, dtype, dimension):
    rng = np.random.default_rng(dimension)
    batch = reference.random_batch(rng, RAGGED, dimension, dtype, loss)
    x, z = rng.standard_normal((2, dimension))
    for task in (at(x), at(x, z, weights=(1.0, -0.7))):
        expected = reference.average_gradient(loss, batch, task.points, task.weights)
        np.testing.assert_allclose(average_gradient(loss, batch, task), expected, rtol=0, atol=5e-15)
    expected = reference.average_loss(loss, batch, x)
    np.testing.assert_allclose(average_loss(loss, batch, x), expected, rtol=0, atol=5e-15)


@STEADY
@given(
    seed=st.integers(0, 2**32 - 1),
    sizes=st.lists(st.integers(0, 40), min_size=1, max_size=8),
    reference_items=st.none() | st.integers(1, 60),
    user_smoothness=st.none() | st.floats(0.01, 1.0),
)
def test_a_row_is_the_plain_row_less_the_centre_times_the_users_weight(seed, sizes, reference_items, user_smoothness):
    rng = np.random.default_rng(seed)
    loss = make_loss("logistic", ridge=0.1)
    batch = reference.random_batch(rng, sizes, 5)
    plain = at(*rng.standard_normal((2, 5)), weights=(3.0, -2.0), user_smoothness=user_smoothness)
    centre = rng.standard_normal(5)
    found = average_gradient(loss, batch, replace(plain, centre=centre, reference_items=reference_items))
    for row, plainly, size in zip(found, average_gradient(loss, batch, plain), sizes, strict=True):
        if size == 0:
            np.testing.assert_array_equal(row, 0.0)
        else:
            weight = 1.0 if reference_items is None else min(1.0, np.sqrt(size / reference_items))
            np.testing.assert_allclose(row, weight * (plainly - centre), rtol=0, atol=5e-15)


@by_name
def test_a_users_bits_do_not_depend_on_the_other_users(loss):
    rng = np.random.default_rng(6)
    batch = reference.random_batch(rng, RAGGED, 13, np.float32, loss)
    task = at(
        *rng.standard_normal((2, 13)), weights=(1.0, -0.5), user_smoothness=None if loss.smoothness is None else 0.2
    )
    task = replace(task, centre=rng.standard_normal(13), reference_items=20)
    together = average_gradient(loss, batch, task)
    for row, (features, labels) in zip(together, reference.users(batch), strict=True):
        alone = ItemBatch(features, labels, np.array([0, len(labels)]))
        np.testing.assert_array_equal(average_gradient(loss, alone, task)[0], row)


def test_bits_do_not_depend_on_the_number_of_threads():
    rng = np.random.default_rng(7)
    loss = make_loss("logistic", ridge=0.01)
    batch = reference.random_batch(rng, rng.integers(0, 40, 900), 20)
    task = at(*rng.standard_normal((2, 20)), weights=(1.0, -0.5), user_smoothness=0.02)
    one = average_gradient(loss, batch, task, threads=1)
    for threads in (2, 3, 7):
        np.testing.assert_array_equal(average_gradient(loss, batch, task, threads=threads), one)
    losses = [average_loss(loss, batch, task.points[0], user_smoothness=0.02, threads=threads) for threads in (1, 2)]
    np.testing.assert_array_equal(*losses)


@pytest.mark.parametrize("name", reference.SMOOTH)
@pytest.mark.parametrize("user_smoothness", [None, 0.03])
def test_a_gradient_step_is_a_contraction_up_to_rounding(name, user_smoothness):
    rng = np.random.default_rng(8)
    loss = make_loss(name, ridge=0.02)
    batch = reference.random_batch(rng, [6] * 200, 8, np.float32, loss, spread=0.9)
    worst = max(reference.hessian_bound(loss, rows) for rows, _ in reference.users(batch))
    beta = worst if user_smoothness is None else user_smoothness
    assert name == "linear" or beta <= worst
    for distance in (1.0, 1e-6, 1e-12):
        x = rng.standard_normal(8)
        z = x + distance * rng.standard_normal(8)
        gap = np.linalg.norm(x - z)
        at_x, at_z = (average_gradient(loss, batch, at(p, user_smoothness=user_smoothness)) for p in (x, z))
        for eta in (1 / beta, 2 / beta):
            after = np.linalg.norm((x - eta * at_x) - (z - eta * at_z), axis=1)
            # The step moves by eta times the gradient, whose coordinates carry a few units of rounding at size 1.
            assert np.all(after <= gap * (1 + 1e-14) + (1 + eta) * 4e-15)


def test_a_user_without_items_gets_zeros_and_a_bad_item_gives_nan():
    loss = make_loss("hinge", ridge=0.1)  # a slope that is zero for large margins would hide an infinite feature
    for bad in (np.nan, np.inf, -np.inf):
        batch = reference.random_batch(np.random.default_rng(9), (2, 0, 5, 3), 4)
        batch.features[3, 1] = bad
        gradient, value = average_gradient(loss, batch, at(np.ones(4))), average_loss(loss, batch, np.ones(4))
        np.testing.assert_array_equal(gradient[1], 0.0)
        assert value[1] == 0.0
        assert np.isnan(gradient[2]).all()
        assert np.isnan(value[2])
        assert np.isfinite(gradient[[0, 3]]).all()
        assert np.isfinite(value[[0, 3]]).all()


def test_shapes_that_do_not_fit_are_refused():
    batch = reference.random_batch(np.random.default_rng(11), (2, 5), 4)
    loss = make_loss("logistic")
    with pytest.raises(DataError, match="Expected points with 4 coordinates, like the items, got 3"):
        average_gradient(loss, batch, at(np.ones(3)))
    with pytest.raises(DataError, match="Expected points with 4 coordinates, like the items, got 5"):
        average_loss(loss, batch, np.ones(5))
    with pytest.raises(DataError, match=r"Expected a centre with 4 coordinates, like the items, got \(3,\)"):
        average_gradient(loss, batch, replace(at(np.ones(4)), centre=np.ones(3)))
    with pytest.raises(ConfigError, match="Expected reference_items >= 1, got reference_items=0"):
        average_gradient(loss, batch, replace(at(np.ones(4)), reference_items=0))
    with pytest.raises(ConfigError, match=r"Expected one or two points, each with its weight, got \(3, 4\)"):
        average_gradient(loss, batch, at(*np.ones((3, 4))))


def crowd_of(rng, sizes, dimension, loss=None):
    """Ragged users, one of whom holds a NaN and one infinity, if there are as many."""
    batch = reference.random_batch(rng, sizes, dimension, np.float32, loss or make_loss("logistic"))
    for row, bad in ((0, np.nan), (len(batch.labels) - 1, np.inf)):
        if 0 <= row < len(batch.labels):
            batch.features[row, dimension - 1] = bad
    return batch


@STEADY
@given(
    seed=st.integers(0, 2**32 - 1),
    sizes=st.lists(st.integers(0, 150), min_size=1, max_size=30),
    dimension=st.integers(1, 40),
    norm=st.floats(1e-3, 10),
    threads=st.integers(1, 3),
    largest=st.sampled_from([np.inf, 0.5, 0.0]),
    centred=st.booleans(),
)
def test_sums_are_exactly_those_of_rows(seed, sizes, dimension, norm, threads, largest, centred):
    rng, loss = np.random.default_rng(seed), make_loss("logistic", ridge=0.01)
    batch = crowd_of(rng, sizes, dimension, loss)
    x, z = rng.standard_normal((2, dimension))
    reduction = ClippedSum(norm, 8, 0.1 * z if centred else None)
    task = at(x, z, weights=(1.0, -0.9), user_smoothness=0.3)
    rows = average_gradient(loss, batch, task)
    with np.errstate(invalid="ignore"):
        there = (batch.counts > 0) & np.isfinite(rows).all(axis=1) & (np.abs(rows).max(axis=1) <= largest)
    expected = reduction.of(rows, there)
    found = gradient_sums(loss, batch, task, reduction, largest=largest, threads=threads)
    np.testing.assert_array_equal(found.total, expected.total)
    np.testing.assert_array_equal(found.cells, expected.cells)
    assert (found.clipped, found.answered) == (expected.clipped, expected.answered)


def test_sums_of_several_classes_and_centres_of_another_dimension_are_refused():
    batch = reference.random_batch(np.random.default_rng(3), RAGGED, 4)
    with pytest.raises(ConfigError, match="one output"):
        gradient_sums(make_loss("softmax", classes=3), batch, at(np.ones(12)), ClippedSum(1.0, 9))
    with pytest.raises(ConfigError, match="centre"):
        gradient_sums(make_loss("logistic"), batch, at(np.ones(4)), ClippedSum(1.0, 9, np.ones(3)))
