"""Integer rows of users, by what a round asks, and their exact sums and masks in ℤ/2⁶⁴.

    >>> spec = RoundSpec((Block("gradient", 2, 1 << 28, "clipped"),))
    >>> reduction = ClippedRows(spec, norm=1.0)
    >>> rows = reduction.rows(np.array([[0.6, 0.8], [np.nan, 0.0]]), np.array([True, True]))
    >>> (rows[0] / 2**28).round(6).tolist(), rows[1].tolist()
    ([0.6, 0.8], [0, 0])

A row is what one user masks: weights, the root of two of a moment's entries and all else stand *in* it, so that nothing
but a sum of whole steps is left to do. Everything is cut towards zero; a row that is not finite, or not there, is the
zero row. Words are np.uint64, which wraps around: no float and no signed sum is near. On the wire numbers are
little-endian.

What two rows of a kind are apart, and proofs: docs/privacy/two-servers.md#rows.
"""

from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from math import prod
from threading import Lock
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from quoron_privacy.arrays import Integers, Mask, Matrix, Vector
from quoron_privacy.errors import ConfigError, RunError
from quoron_privacy.gaussian import check_norm
from quoron_privacy.kernels.on_first_use import OnFirstUse
from quoron_privacy.means.clipping import centred, changes
from quoron_privacy.means.free_presence import COLUMN_PRESENCE as COLUMN_HERE
from quoron_privacy.means.free_presence import HERE, SPAN, ColumnSum, checked, moment_logs, vector_logs, weights_of
from quoron_privacy.release import packed
from quoron_privacy.two_servers.specification import ADJACENCIES, KINDS, Block, RoundSpec

Words = NDArray[np.uint64]

_LOW = 17  # bits of a split: |z| <= 2³⁴ is two numbers below 2¹⁸

loops = OnFirstUse("quoron_privacy.means.clipping_loops")

ROOT = 1.4142135623730949  # below √2
BLOCK = 1 << 18  # numbers that are looked at together


def signed(total: Words) -> Integers:
    """Return the integers in [-2⁶³, 2⁶³) that words stand for. Only of a sum that holds this server's own noise."""
    return words(total).view(np.int64)


def words(numbers: Words | Integers) -> Words:
    """Return integers as words of the ring; ConfigError for anything but 64-bit integers."""
    made = np.ascontiguousarray(numbers)
    if made.dtype not in (np.dtype(np.uint64), np.dtype(np.int64)):
        raise ConfigError(f"Expected 64-bit integers, got {made.dtype}. Sums of the ring are never floats.")
    return made.view(np.uint64)


def added(*terms: Words | Integers) -> Words:
    """Return their sum in the ring, each of shape (k,)."""
    first, *rest = (words(each) for each in terms)
    total = first.copy()
    for each in rest:
        if each.shape != total.shape:
            raise ConfigError(f"Expected terms of shape {total.shape}, got {each.shape}.")
        total += each
    return total


def less(total: Words | Integers, *terms: Words | Integers) -> Words:
    """`total` without them, in the ring."""
    made = words(total).copy()
    for each in terms:
        if each.shape != made.shape:
            raise ConfigError(f"Expected terms of shape {made.shape}, got {each.shape}.")
        made -= words(each)
    return made


def mask(seed: bytes, k: int) -> Words:
    """Return the first k words of ChaCha20 under a seed of 32 bytes for one mask: uniform in the ring, (k,).

    >>> masked = added(np.array([3, -4], np.int64), mask(bytes(range(32)), 2))
    >>> signed(masked - mask(bytes(range(32)), 2)).tolist()
    [3, -4]
    """
    return np.frombuffer(_stream(seed, 0, 8 * k), "<u8").astype(np.uint64, copy=False)


def salt_of(seed: bytes) -> bytes:
    """Sixteen bytes of the same cipher from elsewhere in its stream: as random as a mask, and no part of any."""
    return bytes(_stream(seed, 1, 16))


def _stream(seed: bytes, part: int, size: int) -> bytearray:
    # planning and simulation need no cipher
    from cryptography.hazmat.primitives.ciphers import Cipher
    from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

    if len(seed) != 32:
        raise ConfigError(f"Expected a seed of 32 bytes, got {len(seed)}. Use seed_for.")
    nonce = bytes(8) + part.to_bytes(8, "little")  # behind the counter of blocks
    stream = bytearray(size)
    Cipher(ChaCha20(seed, nonce), mode=None).encryptor().update_into(bytes(size), stream)
    return stream


def fits(z: Integers, spec: RoundSpec) -> bool:
    """Return whether a row is no longer than rows of its kinds are: Σ z² <= s² U² in exact integers, in each block.

    Where two blocks with units U and V are one row, ‖(z/U, w/V)‖² <= s².
    """
    row = np.asarray(z)
    if row.dtype != np.dtype(np.int64) or row.shape != (spec.length,):
        return False
    for parts in spec.together:
        most = prod(block.unit**2 for block, _ in parts)
        found = sum(sum_of_squares(row[at]) * (most // block.unit**2) for block, at in parts)
        if found > most * KINDS[parts[0][0].kind].square_length[ADJACENCIES.index(spec.adjacency)]:
            return False
    return True


def sum_of_squares(z: Integers) -> int:
    """Σ z², exact, of any 64-bit integers: numbers beyond 2³⁵ are squared as Python's integers."""
    if not len(z):
        return 0
    if int(z.max()) >= 1 << 35 or int(z.min()) <= -(1 << 35):
        return sum(each * each for each in z.tolist())
    # |z| = high 2¹⁷ + low, high < 2¹⁸ and low < 2¹⁷: sums of 2²⁶ products are below 2⁶³
    magnitude = np.abs(z)
    high, low = magnitude >> _LOW, magnitude & ((1 << _LOW) - 1)
    squares, products, rest = int(high @ high), int(high @ low), int(low @ low)
    return (squares << 2 * _LOW) + (products << _LOW + 1) + rest


def seed_for(own_randomness: bytes, run: str, round_: int, question_digest: bytes, z: Integers) -> bytes:
    """Return a seed of 32 bytes from as many of the operating system's and what is masked.

    A machine that was restored, and whose randomness comes again, repeats a seed for the same row alone.
    """
    if len(own_randomness) != 32 or not any(own_randomness):
        raise ConfigError("Expected 32 bytes of the operating system's randomness, got others.")
    parts = run.encode(), str(round_).encode(), question_digest, np.asarray(z, "<i8").tobytes()
    text = b"".join(len(part).to_bytes(8, "little") + part for part in parts)
    return blake2b(text, key=own_randomness, digest_size=32, person=b"quoron-mask").digest()


@dataclass(frozen=True, slots=True, eq=False)
class RingSums:
    """A sum of rows in the ring. An engine hands out one with the second server's noise, and the chain that labels it.

    Not a number before the coordinator's own noise is in: no float, no comparison, no log.
    """

    total: Words  # (k,); (groups · k,) of several groups, one after the other
    chain: bytes | None = None  # None until the second server's noise is in
    answered: int = 0  # rows that are in it: both servers know whose
    asked: int = 0  # users that were asked and count: where there are groups, user number i of them is in i mod groups

    def __add__(self, other: "RingSums") -> "RingSums":
        if self.chain is not None or other.chain is not None:
            raise RunError("Expected sums without noise to add to one another, got one that holds the second server's.")
        return RingSums(self.total + other.total, None, self.answered + other.answered, self.asked + other.asked)


class RingReduction(Protocol):
    """All that a round reads of users' answers, as rows of whole steps."""

    @property
    def spec(self) -> RoundSpec:
        """What the plan says of the round."""

    @property
    def chains(self) -> tuple[bytes, ...]:
        """Those after the lists of the rounds before: they label the second server's noise, with this round's."""

    def rows(self, values: Matrix, answered: Mask) -> Integers:
        """Return the row of each user, (users, k): what a client masks."""

    def of(self, values: Matrix, answered: Mask) -> RingSums:
        """Return the exact sum."""


class RowByRow:
    """A reduction whose row of one user is the sum over that user alone."""

    __slots__ = ()

    def rows(self: RingReduction, values: Matrix, answered: Mask) -> Integers:
        """See RingReduction; the zero row where it were longer than admitted."""
        sums = [self.of(values[i : i + 1], answered[i : i + 1]).total.view(np.int64) for i in range(len(values))]
        return admitted(np.array(sums, np.int64).reshape(len(sums), self.spec.length), self.spec)


@dataclass(frozen=True, slots=True, eq=False)
class ClippedRows(RowByRow):
    """⌊U clip_C(v - c) / C⌋, of the kind "clipped"; v is a vector, or the change of a number of which both are sent."""

    spec: RoundSpec  # one block of d numbers
    norm: float  # C
    centre: Vector | None = None  # c, (d,); None is zero
    chains: tuple[bytes, ...] = ()
    change: bool = False  # whether v is the first of two numbers less the second

    def of(self, values: Matrix, answered: Mask) -> RingSums:
        """See RingReduction."""
        block = only(self.spec, "clipped")
        centre, norm = centred(self.centre, block.length), radius_of(self.norm)
        if self.change:
            values = changes(checked(values, 2))

        def add(rows: Matrix, here: Mask, total: Integers) -> None:
            none = np.zeros(6, np.int64)
            loops.added(rows, centre, here, norm, float(block.unit), np.inf, total, none)

        return summed(add, checked(values, block.length), answered, self.spec)


@dataclass(frozen=True, slots=True, eq=False)
class NormCountRows(RowByRow):
    """⌊(U w c, V w (1 - a), V w 1[a <= ⅔] or V w h, V w)⌋ of free-presence#p3, of a kind that counts norms.

    c = v / C scaled into the unit ball, v = Lᵀ g - c₀, a above ‖c‖; U is the unit of "sums", V that of "shares". A
    vector of several parts has Lᵀ of each.
    """

    spec: RoundSpec  # "sums" of d numbers, "shares" of three
    radius: float  # C
    transform: Matrix | None = None  # L, (p, d); None for none
    centre: Vector | None = None  # c₀, (d,); None is zero
    chains: tuple[bytes, ...] = ()

    def of(self, values: Matrix, answered: Mask) -> RingSums:
        """See RingReduction."""
        sums, shares = self.spec.blocks
        soft, d = sums.kind.startswith("soft"), sums.length
        weights = np.array(weights_of(self.spec.adjacency, soft))
        centre, zero, norm = centred(self.centre, d), np.zeros(d), radius_of(self.radius)
        matrix = None if self.transform is None else np.ascontiguousarray(self.transform, np.float64)
        given = checked(values, d) if matrix is None else checked(values, len(matrix), parts=True)
        if matrix is not None and given.shape[1] // len(matrix) * matrix.shape[1] != d:
            raise ConfigError(f"Expected vectors that give {d} numbers, got shape {given.shape}.")

        def add(rows: Matrix, here: Mask, total: Integers) -> None:
            around = centre
            if matrix is not None:
                made, around = np.empty((len(rows), d)), zero
                loops.whitened(rows, matrix, centre, made)
                rows = made
            units = norm, float(sums.unit), float(shares.unit)
            loops.add_norm_counts(rows, around, here, *units, weights, soft, total[:d], total[d:])

        return summed(add, given, answered, self.spec)


@dataclass(frozen=True, slots=True, eq=False)
class MomentRows(RowByRow):
    """⌊U vec(ZᵀZ)⌋, Z a triangular factor over R scaled into the unit ball; of the kind "moment"."""

    spec: RoundSpec  # one block of d (d + 1) / 2 numbers
    dimension: int  # d
    norm: float  # R
    chains: tuple[bytes, ...] = ()

    def of(self, values: Matrix, answered: Mask) -> RingSums:
        """See RingReduction."""
        block, norm, d = only(self.spec, "moment", packed(self.dimension)), radius_of(self.norm), self.dimension

        def add(rows: Matrix, here: Mask, total: Integers) -> None:
            total += loops.sum_unit_moments(rows, here, norm, float(block.unit), d, ROOT)

        return summed(add, checked(values, block.length), answered, self.spec)


@dataclass(frozen=True, slots=True, eq=False)
class ShapedMomentRows(RowByRow):
    """⌊U w (vec(A / B), 1)⌋ of free-presence#p2, A = LᵀZᵀZL scaled into the ball of radius B."""

    spec: RoundSpec  # one block of d (d + 1) / 2 + 1 numbers, "shaped-moment"
    transform: Matrix  # L, (d, d)
    radius: float  # B
    chains: tuple[bytes, ...] = ()

    def of(self, values: Matrix, answered: Mask) -> RingSums:
        """See RingReduction."""
        numbers, radius = packed(len(self.transform)), radius_of(self.radius)
        block, weights = only(self.spec, "shaped-moment", numbers + 1), weights_of(self.spec.adjacency)
        unit, matrix = float(block.unit), square(self.transform)

        def add(rows: Matrix, here: Mask, total: Integers) -> None:
            added, present = loops.sum_moments(rows, here, matrix, radius, unit * weights[0], ROOT)
            total[:-1] += added
            total[-1] += present * int(unit * weights[3])

        return summed(add, checked(values, numbers), answered, self.spec)


@dataclass(frozen=True, slots=True, eq=False)
class ColumnRows(RowByRow):
    """⌊U (m, s, q, z, √0.1)⌋ of free-presence#p6, weighted."""

    spec: RoundSpec  # one block of 6k + 1 numbers, "columns"
    windows: Matrix  # (2, k)
    scale: float
    constant: bool
    chains: tuple[bytes, ...] = ()

    def of(self, values: Matrix, answered: Mask) -> RingSums:
        """See RingReduction."""
        own = ColumnSum(1, self.windows, self.scale, self.constant)
        block = only(self.spec, "columns", own.length + 1)

        def add(rows: Matrix, here: Mask, total: Integers) -> None:
            present = own.add(rows, here, float(block.unit), total[:-1])
            total[-1] += present * int(COLUMN_HERE * block.unit)

        return summed(add, checked(values, own.numbers), answered, self.spec)


@dataclass(frozen=True, slots=True, eq=False)
class LengthRows(RowByRow):
    """⌊U (ℓ, √¾)⌋ of free-presence#p1: of factors the length of LᵀZᵀZL, of `vectors` that of Lᵀg."""

    spec: RoundSpec  # one block of two numbers, "length"
    transform: Matrix  # L
    top: float
    vectors: bool = False
    chains: tuple[bytes, ...] = ()

    def of(self, values: Matrix, answered: Mask) -> RingSums:
        """See RingReduction."""
        unit, longest = only(self.spec, "length", 2).unit, np.log(radius_of(self.top))
        logs_of, transform = (vector_logs, self.transform) if self.vectors else (moment_logs, square(self.transform))

        def add(rows: Matrix, here: Mask, total: Integers) -> None:
            logs = logs_of(rows, transform)
            usable = here & (logs > -np.inf)  # nor NaN
            fall = np.clip(longest - np.where(usable, logs, 0.0), 0.0, SPAN)
            total[0] += np.where(usable, (fall / SPAN - 0.5) * unit, 0.0).astype(np.int64).sum()
            total[1] += int(HERE * unit) * np.count_nonzero(usable)

        return summed(add, values, answered, self.spec)


def only(spec: RoundSpec, kind: str, length: int | None = None) -> Block:
    """Return the one block of a round; ConfigError for another kind or length."""
    kinds = [(block.kind, block.length) for block in spec.blocks]
    if len(kinds) != 1 or kinds[0][0] != kind or length not in (None, kinds[0][1]):
        raise ConfigError(f"Expected one block of the kind {kind!r} with length {length}, got {kinds}.")
    return spec.blocks[0]


def radius_of(norm: float) -> float:
    """Return the radius that a server has sent: ConfigError for what is none, which says nothing of any data."""
    check_norm(norm)
    return float(norm)


def square(transform: Matrix) -> Matrix:
    """Return the transform that a server has sent, (d, d): loops read that much. ConfigError for another shape."""
    if transform.ndim != 2 or transform.shape[0] != transform.shape[1]:
        raise ConfigError(f"Expected a transform of shape (d, d), got {transform.shape}.")
    return np.ascontiguousarray(transform, np.float64)


def admitted(rows: Integers, spec: RoundSpec) -> Integers:
    """`rows`, with zeros for those that are longer than the spec admits: a fault, which nobody is to notice."""
    for row in rows:
        if not fits(row, spec):
            row[:] = 0
    return rows


def summed(add: Callable[[Matrix, Mask, Integers], None], values: Matrix, answered: Mask, spec: RoundSpec) -> RingSums:
    """Return what `add` adds of some rows at a time; in the ring, so in any order."""
    here = np.ascontiguousarray(answered, np.bool_)
    made, one_by_one = np.zeros(spec.length, np.int64), Lock()

    def part(first: int, last: int) -> None:
        piece = np.zeros(spec.length, np.int64)
        add(values[first:last], here[first:last], piece)
        with one_by_one:
            made.__iadd__(piece)

    if len(values) == 1:  # a client's own row
        add(values, here, made)
    else:
        loops.in_pieces(part, len(values), values.shape[1], max(1, BLOCK // max(values.shape[1], 1)))
    return RingSums(made.view(np.uint64), None, int(np.count_nonzero(here)))
