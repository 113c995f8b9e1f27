"""Products and sums of rows against plain ones, with the same bits however rows are taken together."""

import numpy as np
import pytest

from quoron_client.compute.products import accumulate, copied, predict, predict_both, within
from quoron_privacy.kernels.lanes import aligned

SHAPES = [(dimension, rows) for dimension in (1, 3, 4, 7, 20, 31, 32, 45, 100) for rows in (1, 2, 4, 5, 11)]


def example(dimension, rows, dtype=np.float32):
    rng = np.random.default_rng(dimension + 100 * rows)
    features = rng.standard_normal((rows + 2, dimension)).astype(dtype)
    points = aligned(2, dimension)
    points[:, :dimension] = rng.standard_normal((2, dimension))
    return features, points, rng.standard_normal(rows + 3)


@pytest.mark.parametrize(("dimension", "rows"), SHAPES)
def test_predictions_are_inner_products_with_the_bits_of_each_row_alone(dimension, rows):
    features, (x, y), _ = example(dimension, rows)
    flat, found, alone = features.reshape(-1), np.zeros(rows + 5), np.zeros(rows + 5)
    predict(flat, 1, rows, dimension, x, found, 2)
    for i in range(rows):
        predict(flat, 1 + i, 1, dimension, x, alone, 2 + i)
    np.testing.assert_array_equal(found, alone)
    exact = features[1 : rows + 1].astype(np.longdouble) @ x[:dimension]
    np.testing.assert_allclose(found[2 : rows + 2], exact.astype(float), rtol=0, atol=1e-13)
    both, other, second = np.zeros(rows + 5), np.zeros(rows + 5), np.zeros(rows + 5)
    predict_both(flat, 1, rows, dimension, x, y, both, other, 2)
    predict(flat, 1, rows, dimension, y, second, 2)
    np.testing.assert_array_equal(both, found)
    np.testing.assert_array_equal(other, second)


@pytest.mark.parametrize(("dimension", "rows"), SHAPES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_sum_of_rows_has_the_same_bits_in_one_go_and_row_by_row(dimension, rows, dtype):
    features, (total, piecewise), coefficients = example(dimension, rows, dtype)
    flat = features.reshape(-1)
    accumulate(flat, 1, rows, dimension, coefficients, 3, total, True)
    for i in range(rows):
        accumulate(flat, 1 + i, 1, dimension, coefficients, 3 + i, piecewise, i == 0)
    np.testing.assert_array_equal(total[:dimension], piecewise[:dimension])
    exact = coefficients[3 : rows + 3].astype(np.longdouble) @ features[1 : rows + 1]
    np.testing.assert_allclose(total[:dimension], exact.astype(float), rtol=0, atol=1e-13)
    accumulate(flat, 1, rows, dimension, coefficients, 3, total, False)
    np.testing.assert_allclose(total[:dimension], 2 * exact.astype(float), rtol=0, atol=1e-13)


def test_no_more_is_copied_than_is_asked_for():
    for count in range(10):
        out = np.zeros(14)
        copied(np.arange(20.0), 5, count, out, 2)
        np.testing.assert_array_equal(out, [0, 0, *range(5, 5 + count), *[0] * (12 - count)])


def test_numbers_are_within_a_bound_only_if_all_are_finite():
    numbers = np.array([9.0, 1.0, -2.0, 9.0])
    assert within(numbers, 1, 2, 2.0)
    assert not within(numbers, 1, 2, 1.9)
    for bad in (np.nan, np.inf, -np.inf):
        assert not within(np.array([0.0, bad]), 0, 2, np.inf)
