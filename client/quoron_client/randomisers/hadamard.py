"""One coordinate a user of the randomised Hadamard rotation: all that a client of a range estimate has to know of it.

    >>> values = np.array([[1.0, 2.0, 3.0]])
    >>> [float(rotated_coordinates(values, np.array([1.0, -1.0, 1.0]), np.array([j]))[0]) for j in range(4)]
    [1.0, 3.0, -2.0, 0.0]

Row j of the transform is (-1)^popcount(i & j) / √d₂, so one coordinate costs d additions and no transform. The signs
are public and come with the question; the coordinator rotates back with the same ones.
"""

import numpy as np
from numpy.typing import NDArray

from quoron_privacy.errors import ConfigError
from quoron_privacy.kernels.shipped import njit

Matrix = NDArray[np.float64]
Vector = NDArray[np.float64]


def rotated_coordinates(values: Matrix, signs: Vector, coordinates: NDArray[np.int64]) -> Vector:
    """Coordinate coordinates[i] of H D values[i], shape (k,); values (k, d), signs (d,), coordinates (k,) below d₂."""
    dimension = values.shape[1]
    length = 1 << (dimension - 1).bit_length()
    if signs.shape != (dimension,) or coordinates.shape != (len(values),):
        shapes = f"{signs.shape} and {coordinates.shape}"
        raise ConfigError(f"Expected {dimension} signs and {len(values)} coordinates, got shapes {shapes}.")
    if len(coordinates) and not 0 <= coordinates.min() <= coordinates.max() < length:
        raise ConfigError(f"Expected coordinates in [0, {length}), got {coordinates.min()} to {coordinates.max()}.")
    out = np.empty(len(values))
    _coordinates(
        np.ascontiguousarray(values, np.float64),
        np.ascontiguousarray(signs, np.float64),
        np.ascontiguousarray(coordinates, np.int64),
        length**-0.5,
        out,
    )
    return out


@njit(cache=True)
def _coordinates(values, signs, coordinates, scale, out):  # type: ignore[no-untyped-def]
    for i in range(len(values)):
        total = 0.0
        for j in range(values.shape[1]):
            both = j & coordinates[i]
            for shift in (32, 16, 8, 4, 2, 1):
                both ^= both >> shift
            total += values[i, j] * signs[j] * (1 - 2 * (both & 1))
        out[i] = total * scale
