import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from client import reference
from quoron_client import ItemBatch, second_moment_factor

STEADY = settings(derandomize=True, deadline=None, max_examples=60)
SHAPES = st.tuples(st.integers(1, 9), st.integers(1, 7))


def of_one(rows):
    rows = np.ascontiguousarray(rows)
    return second_moment_factor(ItemBatch(rows, np.zeros(len(rows)), np.array([0, len(rows)])))[0]


def unpacked(factor, dimension):
    matrix = np.zeros((dimension, dimension))
    matrix[np.triu_indices(dimension)] = factor
    return matrix


@STEADY
@given(seed=st.integers(0, 2**32 - 1), shape=SHAPES, largest=st.integers(0, 3))
def test_fast_factor_matches_exact_cholesky_whatever_the_rank(seed, shape, largest):
    # Small integers: zero, equal and dependent columns are common, and decided exactly by the reference.
    rows = np.random.default_rng(seed).integers(-largest, largest + 1, shape).astype(np.float32)
    np.testing.assert_allclose(of_one(rows), reference.second_moment_factor(rows), rtol=0, atol=1e-13)


@STEADY
@given(seed=st.integers(0, 2**32 - 1), sizes=st.lists(st.integers(0, 30), min_size=1, max_size=6), d=st.integers(1, 12))
def test_factors_square_is_the_second_moment_and_its_norm_that_of_the_features(seed, sizes, d):
    batch = reference.random_batch(np.random.default_rng(seed), sizes, d, np.float64)
    for factor, (rows, _) in zip(second_moment_factor(batch), reference.users(batch), strict=True):
        matrix = unpacked(factor, d)
        np.testing.assert_allclose(matrix.T @ matrix, rows.T @ rows / max(len(rows), 1), rtol=0, atol=2e-15 * (d + 3))
        assert np.all(np.diag(matrix) >= 0)
        np.testing.assert_array_equal(matrix[len(rows) :], 0.0)
        norms = np.linalg.norm(rows, axis=1)
        assert np.linalg.norm(factor) <= max(norms, default=0.0) * (1 + 1e-14)
        assert np.linalg.norm(factor) == pytest.approx(np.sqrt(np.mean(norms**2)) if len(norms) else 0.0, rel=1e-13)


def test_bits_do_not_depend_on_threads_nor_on_other_users():
    rng = np.random.default_rng(2)
    batch = reference.random_batch(rng, rng.integers(0, 30, 300), 11)
    one = second_moment_factor(batch, threads=1)
    for threads in (2, 5):
        np.testing.assert_array_equal(second_moment_factor(batch, threads=threads), one)
    for row, (rows, _) in list(zip(one, reference.users(batch), strict=True))[:30]:
        np.testing.assert_array_equal(of_one(rows), row)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_bad_items_give_nan_and_no_items_zeros(bad):
    for place in ("feature", "label"):
        batch = reference.random_batch(np.random.default_rng(3), (2, 0, 5, 3), 4)
        if place == "feature":
            batch.features[3, 2] = bad
        else:
            batch.labels[3] = bad
        out = second_moment_factor(batch)
        assert np.isnan(out[2]).all()
        np.testing.assert_array_equal(out[1], 0.0)
        assert np.isfinite(out[[0, 3]]).all()
