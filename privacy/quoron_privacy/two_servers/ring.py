"""Arithmetic in ℤ/2⁶⁴: masks, sums that wrap around, and what an admissible row is, decided in whole numbers.

    >>> seed = bytes(range(32))
    >>> row = np.array([3, -4], np.int64)
    >>> masked = added(row, mask(seed, 2))
    >>> signed(masked - mask(seed, 2)).tolist()
    [3, -4]

np.uint64 throughout: it wraps around, which is the ring; no float and no signed sum is near. On the wire numbers are
little-endian. Statement and proof: docs/privacy/two-servers.md.
"""

from hashlib import blake2b
from math import prod

import numpy as np
from numpy.typing import NDArray

from quoron_privacy.errors import ConfigError
from quoron_privacy.two_servers.sheet import ADJACENCIES, KINDS, RoundSheet

Words = NDArray[np.uint64]
Integers = NDArray[np.int64]

_LOW = 17  # bits of a split: |z| <= 2³⁴ is two numbers below 2¹⁸


def signed(total: Words) -> Integers:
    """The integers in [-2⁶³, 2⁶³) that words stand for. Only of a sum that holds this server's own noise."""
    return words(total).view(np.int64)


def words(numbers: Words | Integers) -> Words:
    """Integers as words of the ring; ConfigError for anything but 64-bit integers."""
    made = np.ascontiguousarray(numbers)
    if made.dtype not in (np.dtype(np.uint64), np.dtype(np.int64)):
        raise ConfigError(f"Expected 64-bit integers, got {made.dtype}. Sums of the ring are never floats.")
    return made.view(np.uint64)


def added(*terms: Words | Integers) -> Words:
    """Their sum in the ring, each of shape (k,)."""
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
    """The first k words of ChaCha20 under a seed of 32 bytes, which serves one mask: uniform in the ring, (k,)."""
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


def fits(z: Integers, sheet: RoundSheet) -> bool:
    """Whether a row is no longer than rows of its kinds are: Σ z² <= s² U² in exact integers, in each block.

    Where two blocks with units U and V are one row, ‖(z/U, w/V)‖² <= s².
    """
    row = np.asarray(z)
    if row.dtype != np.dtype(np.int64) or row.shape != (sheet.length,):
        return False
    for parts in sheet.together:
        most = prod(block.unit**2 for block, _ in parts)
        found = sum(sum_of_squares(row[at]) * (most // block.unit**2) for block, at in parts)
        if found > most * KINDS[parts[0][0].kind].square_length[ADJACENCIES.index(sheet.adjacency)]:
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
    """A seed of 32 bytes from as many of the operating system's and what is masked.

    A machine that was restored, and whose randomness comes again, repeats a seed for the same row alone.
    """
    if len(own_randomness) != 32 or not any(own_randomness):
        raise ConfigError("Expected 32 bytes of the operating system's randomness, got others.")
    parts = run.encode(), str(round_).encode(), question_digest, np.asarray(z, "<i8").tobytes()
    text = b"".join(len(part).to_bytes(8, "little") + part for part in parts)
    return blake2b(text, key=own_randomness, digest_size=32, person=b"quoron-mask").digest()
