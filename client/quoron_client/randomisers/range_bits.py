"""Unary randomised response for a number in a range: which bin holds it, one noisy bit a bin.

    bit j = [x lies in bin j], flipped with probability 1 / (e^(ε/2) + 1)

Replacing x changes two of the true bits, so a report is ε-differentially private for its user whoever reads it, and no
less than ε where the bins differ. With 1 / (e^ε + 1) it would be 2ε.

Source: Bassily & Sun (2023), Algorithm 2, step 2. Proof: docs/privacy/local-model.md#r1.

One coordinate a user of the randomised Hadamard rotation: all that a client of a range estimate has to know of it.

    >>> values = np.array([[1.0, 2.0, 3.0]])
    >>> [float(rotated_coordinates(values, np.array([1.0, -1.0, 1.0]), np.array([j]))[0]) for j in range(4)]
    [1.0, 3.0, -2.0, 0.0]

Row j of the transform is (-1)^popcount(i & j) / √d₂, so one coordinate costs d additions and no transform. The signs
are public and come with the question; the coordinator rotates back with the same ones.
"""

from dataclasses import dataclass
from decimal import ROUND_CEILING, Decimal, localcontext

import numpy as np
from numpy.typing import NDArray

from quoron_client.randomisers.randomness import LocalRandomness, Users
from quoron_privacy.errors import ConfigError
from quoron_privacy.kernels.shipped import njit

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]


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


LARGEST_EPSILON = 40.0  # the flip chance stays above 2⁻³⁰, where 64 bits are plenty


@dataclass(frozen=True, slots=True)
class RangeBits:
    """`bins` bins of equal width on [-half_width, half_width].

    Formal guarantee: `epsilon`-local differential privacy of one report, exactly: the flip chance is a whole number of
    2⁻⁶⁴, rounded up.

    | input                    | what happens                              |
    | ------------------------ | ----------------------------------------- |
    | x outside the range      | counts for the bin at that end            |
    | x not a number           | counts as zero, so nobody can tell        |
    """

    epsilon: float
    bins: int  # t
    half_width: float  # a

    def __post_init__(self) -> None:
        if not 0 < self.epsilon <= LARGEST_EPSILON:
            raise ConfigError(f"Expected epsilon in (0, {LARGEST_EPSILON:g}], got epsilon={self.epsilon}.")
        if not 2 <= self.bins <= 1 << 16:
            raise ConfigError(f"Expected bins in [2, 65536], got bins={self.bins}.")
        if not (np.isfinite(self.half_width) and self.half_width > 0):
            raise ConfigError(f"Expected half_width > 0 and finite, got half_width={self.half_width}.")

    @property
    def flips(self) -> int:
        """⌈2⁶⁴ / (e^(ε/2) + 1)⌉: a word below it flips its bit."""
        with localcontext() as context:
            context.prec = 60
            chance = 2**64 / ((Decimal(self.epsilon) / 2).exp() + 1)
            # The 60 digits may err on either side; a 2⁻⁹⁶ of the chance covers them.
            return int((chance * (1 + Decimal(2) ** -96)).to_integral_value(ROUND_CEILING))

    def indices(self, values: Vector) -> NDArray[np.int64]:
        """The bin of each value, shape (k,)."""
        with np.errstate(all="ignore"):
            places = np.nan_to_num((values + self.half_width) * (self.bins / (2 * self.half_width)), nan=self.bins / 2)
        return np.clip(np.floor(places), 0, self.bins - 1).astype(np.int64)

    def randomise(self, values: Vector, randomness: LocalRandomness, *, round: int, users: Users) -> NDArray[np.uint8]:
        """Each user's report, zeros and ones of shape (k, bins); values and users have shape (k,)."""
        flips = np.uint64(self.flips)
        report = np.empty((len(values), self.bins), np.uint8)
        rows = max(1, (1 << 18) // self.bins)
        for start in range(0, len(values), rows):
            part = slice(start, start + rows)
            words = randomness.words(round=round, users=users[part], first=0, size=self.bins)
            report[part] = words < flips
            here = np.arange(len(words)), self.indices(values[part])
            report[part][here] ^= 1
        return report
