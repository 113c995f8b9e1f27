"""Integer rows of users, by what a round asks, and their exact sums and masks in ℤ/2⁶⁴.

    >>> spec = RoundSpec((Block("gradient", 2, 1 << 28, "clipped"),))
    >>> reduction = RingRows(spec, ClippedSum(norm=1.0, divisor=2))
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
from dataclasses import dataclass, field
from hashlib import blake2b
from math import prod
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from quoron_privacy.arrays import Integers, Mask, Matrix, Vector
from quoron_privacy.errors import ConfigError, RunError
from quoron_privacy.gaussian import check_norm
from quoron_privacy.kernels.on_first_use import OnFirstUse
from quoron_privacy.means.clipping import ChangeSum, ClippedSum, centred, changes
from quoron_privacy.means.free_counts import (
    COLUMN_PRESENCE,
    HERE,
    ColumnSum,
    ContrastSum,
    LengthSum,
    NormCountSum,
    ShapedMomentSum,
    VectorLengthSum,
    checked,
    factors_of,
    length_places,
    weights_of,
)
from quoron_privacy.release import Reduction, packed
from quoron_privacy.two_servers.specification import ADJACENCIES, COUNTING, KINDS, Block, RoundSpec

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
    first, *rest = (words(term) for term in terms)
    total = first.copy()
    for term in rest:
        if term.shape != total.shape:
            raise ConfigError(f"Expected terms of shape {total.shape}, got {term.shape}.")
        total += term
    return total


def less(total: Words | Integers, *terms: Words | Integers) -> Words:
    """`total` without them, in the ring."""
    made = words(total).copy()
    for term in terms:
        if term.shape != made.shape:
            raise ConfigError(f"Expected terms of shape {made.shape}, got {term.shape}.")
        made -= words(term)
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
        return sum(value * value for value in z.tolist())
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


# Of some users' numbers, which are checked, and who answered: rows, added to the last.
Add = Callable[[Matrix, Mask, Integers], None]


@dataclass(frozen=True, slots=True, eq=False)
class RingRows:
    """All that a round reads of users' answers, as rows of whole steps: the reduction's, on the plan's grid.

    | reduction                          | row of a user, in units U of its block                                  |
    | ---------------------------------- | ----------------------------------------------------------------------- |
    | ClippedSum, ChangeSum of it        | clip_C(v - c) / C                                                       |
    | NormCountSum, ClippedSum with      | (w c, w (1 - a), w 1[a <= ⅔] or w h, w) of free-presence#p3: c is v / C |
    | "shares" in the round              | scaled into the unit ball, v = Lᵀ g - c₀, and a is above ‖c‖            |
    | ShapedMomentSum                    | w (vec(A / B), 1) of free-presence#p2, w of the block's kind            |
    | ColumnSum                          | (m, s, q, z, √0.1) of free-presence#p6, weighted                        |
    | LengthSum, VectorLengthSum         | (ℓ, √¾) of free-presence#p1                                             |
    | ContrastSum                        | that of its own reduction, of contrasts                                 |

    ConfigError for others, and for rows of another kind or length than the plan's. Divisors of means are not used.
    """

    spec: RoundSpec  # what the plan says of the round
    reduction: Reduction
    chains: tuple[bytes, ...] = ()  # after the lists of the rounds before: with this round's they label noise
    _add: Add = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_add", _adding(self.reduction, self.spec))

    def rows(self, values: Matrix, answered: Mask) -> Integers:
        """Return each user's own sum, (users, k), which a client masks; zeros where it is longer than admitted."""
        sums = [self.of(values[i : i + 1], answered[i : i + 1]).total.view(np.int64) for i in range(len(values))]
        found = np.array(sums, np.int64).reshape(len(sums), self.spec.length)
        for row in found:
            if not fits(row, self.spec):  # a fault, which an answer does not show
                row[:] = 0
        return found

    def of(self, values: Matrix, answered: Mask) -> RingSums:
        """Return the exact sum."""
        here, width = np.ascontiguousarray(answered, np.bool_), max(np.shape(values)[-1], 1)
        total, one_by_one = np.zeros(self.spec.length, np.int64), Lock()

        def part(first: int, last: int) -> None:
            piece = np.zeros(self.spec.length, np.int64)
            self._add(values[first:last], here[first:last], piece)
            with one_by_one:
                total.__iadd__(piece)  # in the ring, so in any order

        if len(values) <= 1:  # a client's own row
            self._add(values, here, total)
        else:
            loops.in_pieces(part, len(values), width, max(1, BLOCK // width))
        return RingSums(total.view(np.uint64), None, int(np.count_nonzero(here)))


def _adding(reduction: Reduction, spec: RoundSpec) -> Add:
    match reduction:
        case ClippedSum() if len(spec.blocks) == 1:
            return _clipped(spec, reduction)
        case ChangeSum():
            add = _clipped(spec, reduction.own)
            return lambda rows, here, total: add(changes(checked(rows, 2)), here, total)
        case ClippedSum():  # with the shares that an adaptive clip follows
            return _norm_counts(spec, reduction.norm, None, reduction.centre)
        case NormCountSum():
            return _norm_counts(spec, reduction.radius, reduction.transform, reduction.centre)
        case ContrastSum():
            own, numbers = reduction.contrasts, reduction.contrasts.outputs * reduction.contrasts.features
            add = _adding(reduction.own, spec)
            return lambda rows, here, total: add(own.of(checked(rows, numbers)), here, total)
        case ShapedMomentSum():
            return _shaped_moments(spec, reduction)
        case ColumnSum():
            return _columns(spec, reduction)
        case LengthSum() | VectorLengthSum():
            return _lengths(spec, reduction)
    raise ConfigError(f"Expected a question whose answers two servers may sum, got one with {reduction!r:.99}.")


def _clipped(spec: RoundSpec, own: ClippedSum) -> Add:
    block = only(spec, "clipped")
    centre, norm = centred(own.centre, block.length), radius_of(own.norm)

    def add(rows: Matrix, here: Mask, total: Integers) -> None:
        none = np.zeros(6, np.int64)
        loops.added(checked(rows, block.length), centre, here, norm, float(block.unit), np.inf, total, none)

    return add


def _norm_counts(spec: RoundSpec, radius: float, transform: Matrix | None, centre: Vector | None) -> Add:
    """U is the unit of "sums", V that of "shares". A vector of several parts has Lᵀ of each."""
    if len(spec.blocks) != 2 or spec.blocks[0].kind not in COUNTING:
        raise ConfigError(f"Expected two blocks of a kind in {COUNTING}, got {spec.blocks}.")
    sums, shares = spec.blocks
    soft, d = sums.kind.startswith("soft"), sums.length
    weights, units = (
        np.array(weights_of(spec.adjacency, soft)),
        (radius_of(radius), float(sums.unit), float(shares.unit)),
    )
    around, zero = centred(centre, d), np.zeros(d)
    matrix = None if transform is None else np.ascontiguousarray(transform, np.float64)

    def add(rows: Matrix, here: Mask, total: Integers) -> None:
        if matrix is None:
            loops.add_norm_counts(checked(rows, d), around, here, *units, weights, soft, total[:d], total[d:])
            return
        rows, made = checked(rows, len(matrix), parts=True), np.empty((len(rows), d))
        if rows.shape[1] // len(matrix) * matrix.shape[1] != d:
            raise ConfigError(f"Expected vectors that give {d} numbers, got shape {rows.shape}.")
        loops.whitened(rows, matrix, around, made)
        loops.add_norm_counts(made, zero, here, *units, weights, soft, total[:d], total[d:])

    return add


def _shaped_moments(spec: RoundSpec, own: ShapedMomentSum) -> Add:
    matrix, radius = square(own.transform), radius_of(own.radius)
    numbers, kind = packed(len(matrix)), "moment" if spec.blocks[0].kind == "moment" else "shaped-moment"
    unit, weights = float(only(spec, kind, numbers + 1).unit), weights_of(spec.adjacency, kind == "moment")

    def add(rows: Matrix, here: Mask, total: Integers) -> None:
        own_rows = factors_of(rows, len(matrix))
        added, present = loops.sum_moments(own_rows, here, matrix, radius, unit * weights[0], ROOT)
        total[:-1] += added
        total[-1] += present * int(unit * weights[3])

    return add


def _columns(spec: RoundSpec, own: ColumnSum) -> Add:
    unit = only(spec, "columns", own.length + 1).unit

    def add(rows: Matrix, here: Mask, total: Integers) -> None:
        there = own.add(factors_of(rows, own.dimension), here, float(unit), total[:-1])
        total[-1] += there * int(COLUMN_PRESENCE * unit)

    return add


def _lengths(spec: RoundSpec, own: LengthSum | VectorLengthSum) -> Add:
    """Of factors the length of LᵀZᵀZL, of vectors that of Lᵀg."""
    unit, top = only(spec, "length", 2).unit, radius_of(own.top)
    if isinstance(own, LengthSum):
        square(own.transform)

    def add(rows: Matrix, here: Mask, total: Integers) -> None:
        usable, places = length_places(own.logs(rows), here, top)
        total[0] += (places * unit).astype(np.int64).sum()
        total[1] += int(HERE * unit) * np.count_nonzero(usable)

    return add


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
