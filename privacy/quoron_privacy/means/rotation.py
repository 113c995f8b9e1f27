"""The randomised Hadamard rotation: public random signs, then an orthonormal fast Walsh-Hadamard transform.

    >>> rows = np.array([[1.0, 2.0, 3.0]])
    >>> rotated = rotate(rows, np.array([1.0, -1.0, 1.0]))
    >>> rotated.tolist()
    [[1.0, 3.0, -2.0, 0.0]]
    >>> rotate_back(rotated, np.array([1.0, -1.0, 1.0])).tolist()
    [[1.0, 2.0, 3.0]]

The signs are public and drawn before the data are seen. A rotated row is a function of that row and the signs alone, so
no guarantee rests on it; that its coordinates are small and even is what makes one-dimensional ranges useful
(docs/privacy/private-mean.md). The entry in row i, column j of the transform is (-1)^popcount(i & j) / √d₂.
"""

import math
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from quoron_privacy.errors import ConfigError
from quoron_privacy.kernels.on_first_use import OnFirstUse
from quoron_privacy.noise.streams import RandomStream

Floats = TypeVar("Floats", NDArray[np.float32], NDArray[np.float64])
Signs = NDArray[np.float64]

loops = OnFirstUse("quoron_privacy.means.rotation_loops")


def padded(dimension: int) -> int:
    """d₂, the least power of two that is at least `dimension`."""
    return 1 << (dimension - 1).bit_length()


def coordinate_bound(norm: float, *, dimension: int, rows: int, failure: float) -> float:
    """norm · √(2 ln(4 d₂ k / γ) / d₂): no coordinate of k rotated rows of that norm is larger, but with chance γ/2.

    Over random signs, for fixed rows: a coordinate is a Rademacher sum of variance norm² / d₂. For utility only.
    """
    length = padded(dimension)
    return norm * math.sqrt(2 * math.log(4 * length * rows / failure) / length)


def random_signs(dimension: int, stream: RandomStream) -> Signs:
    """Independent fair signs, shape (d,). Public: take them from public randomness."""
    return np.where(stream.bernoulli(0.5, dimension), 1.0, -1.0)


def rotate(values: Floats, signs: Signs) -> Floats:
    """H D x for every row x, padded with zeros: shape (k, d) to (k, d₂), the type of `values`; signs (d,)."""
    rows = np.ascontiguousarray(values)
    out = np.empty((len(rows), padded(rows.shape[1])), rows.dtype)
    loops.rotate(rows, signs.astype(rows.dtype), rows.dtype.type(out.shape[1] ** -0.5), out)
    return out


def rotate_back(rotated: Floats, signs: Signs) -> Floats:
    """Return the first d coordinates of D H y for every row y: shape (k, d₂) to (k, d). Undoes `rotate`.

    ConfigError where d₂ is no power of two.
    """
    rows = np.array(rotated, order="C", ndmin=2)
    length = rows.shape[-1]
    if rows.ndim != 2 or length < 1 or length & (length - 1):
        raise ConfigError(f"Expected rows of a power of two numbers, got shape {rows.shape}. Use rotate, which pads.")
    loops.transform(rows, rows.dtype.type(length**-0.5))
    return rows[:, : len(signs)] * signs.astype(rows.dtype)
