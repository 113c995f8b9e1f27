import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from client import reference
from quoron_client import ItemBatch, make_loss, smoothness_scale
from quoron_privacy.errors import ConfigError

STEADY = settings(derandomize=True, deadline=None, max_examples=60)


@STEADY
@given(
    seed=st.integers(0, 2**32 - 1),
    sizes=st.lists(st.integers(1, 30), min_size=1, max_size=6),
    dimension=st.integers(1, 24),
    user_smoothness=st.floats(1e-3, 1.5),
    ridge=st.sampled_from([0.0, 0.02]),
    rank=st.integers(1, 24),
    dtype=st.sampled_from([np.float32, np.float64]),
)
def test_scaled_hessian_never_exceeds_user_smoothness(seed, sizes, dimension, user_smoothness, ridge, rank, dtype):
    rng = np.random.default_rng(seed)
    loss = make_loss("least_squares", ridge=ridge)
    batch = reference.random_batch(rng, sizes, dimension, dtype, loss)
    batch.features[:, min(rank, dimension) :] = 0.0
    scale = smoothness_scale(loss, batch, user_smoothness)
    exact = np.array([reference.hessian_bound(loss, rows) for rows, _ in reference.users(batch)])
    assert np.all(scale * exact <= user_smoothness)
    assert np.all((scale > 0) & (scale <= 1))
    # Nor is anybody scaled down by more than the allowance for rounding.
    np.testing.assert_allclose(scale, np.minimum(1.0, user_smoothness / exact), rtol=1e-8)


@STEADY
@given(
    seed=st.integers(0, 2**32 - 1),
    size=st.integers(1, 12),
    factor=st.floats(1 - 1e-8, 1 + 1e-8),
    copies=st.sampled_from([1, 8, 11]),
)
def test_scale_has_no_step_where_the_quick_tests_hand_over(seed, size, factor, copies):
    rng = np.random.default_rng(seed)
    loss = make_loss("logistic")
    one = reference.random_batch(rng, [size], 6)
    exact = reference.hessian_bound(loss, one.features)
    features, offsets = np.tile(one.features, (copies, 1)), size * np.arange(copies + 1)
    scales = smoothness_scale(loss, ItemBatch(features, np.ones(len(features)), offsets), exact * factor)
    assert np.all(scales * exact <= exact * factor)
    np.testing.assert_allclose(scales, min(1.0, factor), rtol=3e-9)


@STEADY
@given(
    seed=st.integers(0, 2**32 - 1),
    runs=st.lists(st.tuples(st.integers(0, 25), st.integers(1, 20)), min_size=1, max_size=4),
    dimension=st.sampled_from([1, 2, 5, 8, 13, 60]),
    ridge=st.sampled_from([0.0, 0.05]),
    dtype=st.sampled_from([np.float32, np.float64]),
    unit=st.sampled_from([1e-18, 1e-9, 1.0, 1e9, 1e18]),  # of features: squares of the outer two are beyond float32
)
def test_users_looked_at_together_are_scaled_as_each_alone(seed, runs, dimension, ridge, dtype, unit):
    rng = np.random.default_rng(seed)
    loss = make_loss("logistic", ridge=ridge)
    sizes = [size for size, users in runs for _ in range(users)]  # runs of users of equally many items
    batch = reference.random_batch(rng, sizes, dimension, dtype, loss)
    batch.features[:] *= dtype(unit)
    exact = [reference.hessian_bound(loss, rows) for rows, _ in reference.users(batch) if len(rows)]
    bound = float(np.median(exact)) if exact else 0.1  # about half of them stay below
    if len(batch.features):
        batch.features[rng.integers(len(batch.features)), 0] = rng.choice([np.nan, np.inf, 1e30])
    together = smoothness_scale(loss, batch, bound)
    alone = [smoothness_scale(loss, batch.of(np.array([user])), bound)[0] for user in range(batch.users)]
    np.testing.assert_array_equal(together, alone)


def test_edge_users():
    batch = ItemBatch(np.array([[0.0, 0.0], [np.nan, 1.0], [np.inf, 0.0]]), np.ones(3), np.array([0, 0, 1, 2, 3]))
    scale = smoothness_scale(make_loss("logistic", ridge=0.5), batch, 0.25)
    np.testing.assert_allclose(scale, [1.0, 0.5, np.nan, np.nan], rtol=1e-8)
    np.testing.assert_array_equal(smoothness_scale(make_loss("linear"), batch, 0.25), 1.0)
    np.testing.assert_array_equal(smoothness_scale(make_loss("linear", ridge=0.5), batch, 0.25), [1, 0.5, 0.5, 0.5])


def test_losses_with_jumps_and_wrong_bounds_are_refused():
    batch = reference.random_batch(np.random.default_rng(2), (2,), 3)
    with pytest.raises(ConfigError, match=r"Expected a smooth loss with user_smoothness=0\.1, got loss='hinge'"):
        smoothness_scale(make_loss("hinge"), batch, 0.1)
    with pytest.raises(ConfigError, match="Expected user_smoothness > 0 and finite, got user_smoothness=0"):
        smoothness_scale(make_loss("logistic"), batch, 0)
