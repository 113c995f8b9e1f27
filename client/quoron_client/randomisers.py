"""Local randomisers: reports that are private before they leave the client.

A client's own random words: from the operating system for real people, from a seed for simulation.

    >>> users = np.array([3, 8])
    >>> both = SeededRandomness(7).words(round=0, users=users, first=0, size=4)
    >>> alone = SeededRandomness(7).words(round=0, users=users[1:], first=2, size=2)
    >>> bool((both[1, 2:] == alone[0]).all())
    True

In the local model the coordinator is the adversary, so the words never come from it. A user sends at most one report a
round: a second report on the same words would let their difference be read.

Source: Philox4x32-10 of Salmon, Moraes, Dror & Shaw (2011) for the seeded words, ChaCha20 for the others.

Unary randomised response for a number in a range: which bin holds it, one noisy bit a bin.

    bit j = [x lies in bin j], flipped with probability 1 / (e^(ε/2) + 1)

Replacing x changes two of the true bits, so a report is ε-differentially private for its user against every reader, and
no less than ε where the bins differ. With 1 / (e^ε + 1) it would be 2ε.

Source: Bassily & Sun (2023), Algorithm 2, step 2. Proof: docs/privacy/local-model.md#r1.

One coordinate a user of the randomised Hadamard rotation: all that a client of a range estimate has to know of it.

    >>> values = np.array([[1.0, 2.0, 3.0]])
    >>> [float(rotated_coordinates(values, np.array([1.0, -1.0, 1.0]), np.array([j]))[0]) for j in range(4)]
    [1.0, 3.0, -2.0, 0.0]

Row j of the transform is (-1)^popcount(i & j) / √d₂, so one coordinate costs d additions and no transform. The signs
are public and come with the question; the coordinator rotates back with the same ones.

The vector randomiser: a user's vector clipped around a public centre, with Gaussian noise of its own.

    report = centre + clip_C(x - centre) + N(0, σ² I),     σ = 2C / μ(ε, δ)

Source: Bassily & Sun (2023), Algorithm 1, line 2 and Theorem 4.3; there σ is the classical formula, valid for ε < 1
only. Proof: docs/privacy/local-model.md#r2.

Gaussian noise drawn by a client: exact on an integer grid, and calibrated by the client itself.

    >>> round(noise_scale(radius=1.0, epsilon=1.0, delta=1e-6, dimension=10), 2)
    8.45

The coordinator is the adversary here, so a client trusts no noise scale that it receives. Sampler and grid are those of
every release (docs/privacy/noise.md#n1, noise#n3 and noise#n4); the calibration is the analytic Gaussian mechanism for
a vector that one user moves by up to 2 radius (docs/privacy/local-model.md#r2).
"""

import math
import secrets
from dataclasses import dataclass, field
from decimal import ROUND_CEILING, Decimal, localcontext
from hashlib import blake2b
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from quoron_privacy.arrays import Matrix, Vector
from quoron_privacy.errors import ConfigError
from quoron_privacy.kernels.prebuilt import njit
from quoron_privacy.noise.samplers import SETTLING, gaussian_tables, propose_gaussian, settle_gaussian
from quoron_privacy.noise.streams import GRID_BITS, total_variation

Words = NDArray[np.uint64]
Users = NDArray[np.int64]

_M0, _M1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_W0, _W1 = np.uint32(0x9E3779B9), np.uint32(0xBB67AE85)
_HALF = np.uint64(32)


class LocalRandomness(Protocol):
    """Where a randomiser's words come from."""

    def words(self, *, round: int, users: Users, first: int, size: int) -> Words:
        """Words `first` to `first + size` of each user's stream of this round, shape (k, size); first + size <= 2³³."""


@dataclass(frozen=True, slots=True)
class SeededRandomness:
    """For simulation: each word is a function of (seed, round, user, position), and not of other users in a call."""

    seed: int

    def words(self, *, round: int, users: Users, first: int, size: int) -> Words:
        """See LocalRandomness."""
        label = f"{int(self.seed)}/{int(round)}".encode()
        key = int.from_bytes(blake2b(label, digest_size=8, person=b"quoron-local").digest(), "little")
        out = np.empty((len(users), size), np.uint64)
        fill_words(np.uint64(key), np.ascontiguousarray(users, np.int64), first, out)
        return out


def _fresh_cipher() -> Any:
    # planning and simulation need no cipher
    from cryptography.hazmat.primitives.ciphers import Cipher
    from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

    return Cipher(ChaCha20(secrets.token_bytes(32), bytes(16)), mode=None).encryptor()


@dataclass(frozen=True, slots=True, eq=False)
class SystemRandomness:
    """For deployment: ChaCha20 under a fresh key from the operating system. No word is ever given twice.

    It ignores its labels, so a report cannot be drawn again: keep what was sent, and send the same after a lost reply.
    """

    _cipher: Any = field(default_factory=_fresh_cipher, repr=False)

    def words(self, *, round: int, users: Users, first: int, size: int) -> Words:
        """See LocalRandomness."""
        del round, first
        stream = bytearray(8 * len(users) * size)
        self._cipher.update_into(bytes(len(stream)), stream)
        return np.frombuffer(stream, "<u8").astype(np.uint64, copy=False).reshape(len(users), size)


@njit(cache=True, inline="always")
def _philox(block, user, key):  # type: ignore[no-untyped-def]
    """Four 32-bit words, as two of 64 bits."""
    c0, c1 = np.uint32(block), np.uint32(block >> _HALF)
    c2, c3 = np.uint32(user), np.uint32(user >> _HALF)
    k0, k1 = np.uint32(key), np.uint32(key >> _HALF)
    for _ in range(10):
        p0, p1 = _M0 * np.uint64(c0), _M1 * np.uint64(c2)
        c0, c2 = np.uint32(np.uint32(p1 >> _HALF) ^ c1 ^ k0), np.uint32(np.uint32(p0 >> _HALF) ^ c3 ^ k1)
        c1, c3 = np.uint32(p1), np.uint32(p0)
        k0, k1 = np.uint32(k0 + _W0), np.uint32(k1 + _W1)
    return np.uint64(c0) | np.uint64(c1) << _HALF, np.uint64(c2) | np.uint64(c3) << _HALF


@njit(cache=True)
def fill_words(key, users, first, out):  # type: ignore[no-untyped-def]
    """Fill row u of `out` (users, words) with user u's words from number `first` on."""
    size = out.shape[1]
    for i in range(len(users)):
        user = np.uint64(users[i])
        for block in range(first // 2, (first + size + 1) // 2):
            even, odd = _philox(np.uint64(block), user, key)
            j = 2 * block - first
            if j >= 0:
                out[i, j] = even
            if j + 1 < size:
                out[i, j + 1] = odd


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
        """Return the bin of each value, shape (k,)."""
        with np.errstate(all="ignore"):
            places = np.nan_to_num((values + self.half_width) * (self.bins / (2 * self.half_width)), nan=self.bins / 2)
        return np.clip(np.floor(places), 0, self.bins - 1).astype(np.int64)

    def randomise(self, values: Vector, randomness: LocalRandomness, *, round: int, users: Users) -> NDArray[np.uint8]:
        """Return each user's report, zeros and ones of shape (k, bins); values and users have shape (k,)."""
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


Steps = NDArray[np.int64]

_ARITHMETIC = 1 + 1e-9  # rounding of clipped norms and of this calibration
_SETTLED = 1 << 32  # words from here on settle what three words do not decide
_WORDS = 1 << 18  # at a time, so that they stay in cache


def noise_scale(*, radius: float, epsilon: float, delta: float, dimension: int) -> float:
    """Return the σ a coordinate that makes one report of a vector within `radius` (ε, δ)-locally private.

    2 radius / μ with the largest μ that is (ε, δ), less what grid and sampler lack. Raises ConfigError outside
    0 < ε <= 15, 1e-12 <= δ < 1.
    """
    if not 0 < epsilon <= 15 or not 1e-12 <= delta < 1:
        raise ConfigError(f"Expected epsilon in (0, 15] and delta in [1e-12, 1), got {epsilon} and {delta}.")
    if not 1e-100 < radius < 1e100 or dimension < 1:
        raise ConfigError(f"Expected radius in (1e-100, 1e100) and dimension >= 1, got {radius} and {dimension}.")
    from quoron_privacy.accounts import gdp  # only here: SciPy takes longer to import than all the rest

    lacking = (1 + math.exp(epsilon)) * total_variation(gaussians=dimension)
    left = delta * (1 - 1e-9) - lacking
    mu = gdp.mu_for(epsilon, left) if left > 0 else 0.0
    usable = mu * (1 - 1e-12) - 2 * math.sqrt(dimension) * 2.0**-GRID_BITS
    if usable <= 0:
        raise ConfigError(f"Expected delta well above {lacking:.1g}, the resolution of the noise, got delta={delta}.")
    return 2 * radius * _ARITHMETIC / usable


def gaussian_steps(dimension: int, randomness: LocalRandomness, *, round: int, users: Users) -> Steps:
    """⌊2³⁰ Z⌋ for independent standard normal Z, shape (k, dimension); a user's row depends on that user alone.

    A fixed number of proposals a user, whatever they are, falls short with probability below 2⁻⁶⁰ and is then topped
    up; how many are rejected says nothing about those that are kept.
    """
    proposals = dimension + dimension // 32 + 2 * math.isqrt(dimension) + 12
    steps = np.empty((len(users), dimension), np.int64)
    rows, tables = max(1, _WORDS // (3 * proposals)), gaussian_tables()
    for start in range(0, len(users), rows):
        part, used = slice(start, start + rows), 0
        done = np.zeros(len(users[part]), np.int64)
        while len(short := np.flatnonzero(done < dimension)):
            words = randomness.words(round=round, users=users[part][short], first=used, size=3 * proposals)
            row = place = 0
            while True:
                row, place = _accept(words, short, tables, steps[part], done, row, place)
                if row == len(short):
                    break
                i, further = short[row], _SETTLED + 2 * (used + 3 * place)
                own = users[part][i : i + 1]
                more = randomness.words(round=round, users=own, first=further, size=SETTLING)[0]
                accepted, step = settle_gaussian(words[row, 3 * place : 3 * place + 3], more)
                if accepted and done[i] < dimension:
                    steps[part][i, done[i]] = step
                    done[i] += 1
                place += 1
            used += 3 * proposals
    return steps


@njit(cache=True)
def _accept(words, rows, tables, steps, done, row, place):  # type: ignore[no-untyped-def]
    """Appends accepted proposals (three words each) of words[r] to steps[rows[r]], of which done[rows[r]] are there.

    Begins at proposal `place` of row `row`, and returns row and place of the first that is not sure, or (rows, 0).
    """
    for r in range(row, len(rows)):
        i = rows[r]
        filled = done[i]
        for p in range(place, words.shape[1] // 3):
            accepted, step, sure = propose_gaussian(words[r, 3 * p], words[r, 3 * p + 1], words[r, 3 * p + 2], tables)
            if not sure:
                done[i] = filled
                return r, p
            if accepted and filled < steps.shape[1]:
                steps[i, filled] = step
                filled += 1
        done[i] = filled
        place = 0
    return len(rows), 0


@dataclass(frozen=True, slots=True)
class VectorNoise:
    """Reports of vectors within `radius` of a public centre.

    Formal guarantee: (`epsilon`, `delta`)-local differential privacy of one report, for every vector, all slack
    included.

    | input                        | what happens                                                     |
    | ---------------------------- | ---------------------------------------------------------------- |
    | farther than radius          | moved towards the centre until it is within                      |
    | anything not finite          | the centre is reported, with noise as for everybody: none can tell |
    """

    epsilon: float
    delta: float
    radius: float  # C

    def scale(self, dimension: int) -> float:
        """Return σ, per coordinate."""
        return noise_scale(radius=self.radius, epsilon=self.epsilon, delta=self.delta, dimension=dimension)

    def randomise(
        self, values: Matrix, centre: Vector, randomness: LocalRandomness, *, round: int, users: Users
    ) -> Matrix:
        """Return each user's report, shape (k, d), as values (k, d); centre (d,), public; users (k,)."""
        if values.ndim != 2 or centre.shape != values.shape[1:] or not np.isfinite(centre).all():
            raise ConfigError(f"Expected a finite centre of shape {values.shape[1:]}, got shape {centre.shape}.")
        step = self.scale(values.shape[1]) * 2.0**-GRID_BITS
        steps = gaussian_steps(values.shape[1], randomness, round=round, users=users)
        out = np.empty(values.shape)
        _report(np.ascontiguousarray(values, np.float64), centre, self.radius, step, steps, out)
        # A function of whole steps and of the public centre only: no low bit tells what was added to what.
        return out


@njit(cache=True)
def _report(values, centre, radius, step, steps, out):  # type: ignore[no-untyped-def]
    for i in range(len(values)):
        largest, finite = 0.0, True
        for j in range(values.shape[1]):
            difference = values[i, j] - centre[j]
            finite &= np.isfinite(difference)
            largest = max(largest, abs(difference))
            out[i, j] = difference
        if not finite or largest == 0.0:
            out[i] = 0.0
            largest = 1.0
        square = 0.0
        for j in range(values.shape[1]):
            square += (out[i, j] / largest) ** 2
        far = largest * np.sqrt(square) > radius  # an overflow counts as far
        for j in range(values.shape[1]):
            inside = out[i, j] / largest * (radius / np.sqrt(square)) if far else out[i, j]
            out[i, j] = centre[j] + (np.rint(inside / step) + steps[i, j]) * step


__all__ = [
    "LocalRandomness",
    "RangeBits",
    "SeededRandomness",
    "SystemRandomness",
    "VectorNoise",
]
