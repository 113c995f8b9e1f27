"""The fast rotation equals its definition, undoes itself, and keeps lengths."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quoron_privacy.errors import ConfigError
from quoron_privacy.means.rotation import coordinate_bound, padded, random_signs, rotate, rotate_back, walsh_hadamard
from quoron_privacy.noise.sources import SeededNoise

fast = settings(derandomize=True, deadline=None, max_examples=60)
PRECISION = {np.float32: 3e-6, np.float64: 1e-14}
both = pytest.mark.parametrize("kind", [np.float32, np.float64])


def slow(rows):
    """Level by level, as in a textbook."""
    out, h, length = rows.astype(np.float64), 1, rows.shape[1]
    while h < length:
        pairs = out.reshape(len(rows), -1, 2, h)
        out = np.stack([pairs[:, :, 0] + pairs[:, :, 1], pairs[:, :, 0] - pairs[:, :, 1]], axis=2).reshape(rows.shape)
        h *= 2
    return out / np.sqrt(length)


def test_the_reference_is_the_definition():
    entries = [[(-1) ** (i & j).bit_count() for j in range(16)] for i in range(16)]
    assert slow(np.eye(16)) * 4 == pytest.approx(np.array(entries), abs=1e-12)


@both
@pytest.mark.parametrize("power", range(18))
def test_the_transform_equals_the_reference_at_every_length(power, kind):
    rows = np.random.default_rng(power).normal(size=(3, 1 << power)).astype(kind)
    found = rows.copy()
    walsh_hadamard(found)
    assert np.abs(found - slow(rows)).max() < PRECISION[kind] * (power + 1)
    walsh_hadamard(found)
    assert np.abs(found - rows).max() < PRECISION[kind] * (power + 1)


@given(dimension=st.integers(1, 70), rows=st.integers(1, 4), seed=st.integers(0, 99))
@fast
def test_a_rotation_keeps_lengths_and_is_undone(dimension, rows, seed):
    rng = np.random.default_rng(seed)
    values, signs = rng.normal(size=(rows, dimension)), rng.choice([-1.0, 1.0], dimension)
    rotated = rotate(values, signs)
    assert rotated.shape == (rows, padded(dimension))
    assert np.linalg.norm(rotated, axis=1) == pytest.approx(np.linalg.norm(values, axis=1))
    assert rotate_back(rotated, signs) == pytest.approx(values, abs=1e-13)
    # Any row comes out as it would alone: its bits are a function of that row.
    assert np.array_equal(rotate(values[-1:], signs), rotated[-1:])


def test_rotated_coordinates_stay_within_their_bound():
    # One spiky row is the worst for an unrotated range. The bound fails with probability below 1e-9 / 2.
    values = np.zeros((50, 200))
    values[np.arange(50), np.arange(50)] = 3.0
    signs = random_signs(200, SeededNoise(1).stream("public"))
    bound = coordinate_bound(3.0, dimension=200, rows=50, failure=1e-9)
    assert np.abs(rotate(values, signs)).max() <= bound
    assert bound < 2.0


def test_signs_are_fair_and_repeat():
    signs = random_signs(10_000, SeededNoise(2).stream("public"))
    assert set(signs) == {-1.0, 1.0}
    assert abs(signs.sum()) < 600  # six standard deviations: false alarm below 1e-8
    assert np.array_equal(signs, random_signs(10_000, SeededNoise(2).stream("public")))


@pytest.mark.parametrize("rows", [np.ones((2, 6)), np.ones(8), np.ones((2, 8), np.int64), np.ones((8, 8)).T[:, ::2]])
def test_what_cannot_be_transformed_in_place_is_refused(rows):
    with pytest.raises(ConfigError, match="Expected"):
        walsh_hadamard(rows)
