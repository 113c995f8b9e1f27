"""SipHash-2-4 of many texts: the loop of `Hashed`."""

from typing import Any

import numpy as np
from numba import int64, uint8, uint64, void

from quoron_privacy.kernels.compiled import read_only, writable
from quoron_privacy.kernels.shipped import njit

_WORD = np.uint64
_C0, _C1 = _WORD(0x736F6D6570736575), _WORD(0x646F72616E646F6D)
_C2, _C3 = _WORD(0x6C7967656E657261), _WORD(0x7465646279746573)
_FINAL = _WORD(0xFF)


@njit(cache=True, nogil=True, inline="always")
def _turned(word: Any, by: int) -> Any:
    return (word << _WORD(by)) | (word >> _WORD(64 - by))


@njit(cache=True, nogil=True, inline="always")
def _round(a: Any, b: Any, c: Any, d: Any) -> Any:
    a, c = a + b, c + d
    b, d = _turned(b, 13) ^ a, _turned(d, 16) ^ c
    a = _turned(a, 32)
    c, a = c + b, a + d
    b, d = _turned(b, 17) ^ c, _turned(d, 21) ^ a
    return a, b, _turned(c, 32), d


@njit(cache=True, nogil=True)
def sip(data: Any, first: int, last: int, key: Any, other: Any) -> Any:
    """Return the hash of bytes `first` to `last` of `data` under a key of two words, little-endian as in the paper."""
    a, b, c, d = key ^ _C0, other ^ _C1, key ^ _C2, other ^ _C3
    whole = first + (last - first) // 8 * 8
    for at in range(first, whole, 8):
        word = _WORD(0)
        for i in range(8):
            word |= _WORD(data[at + i]) << _WORD(8 * i)
        d ^= word
        a, b, c, d = _round(a, b, c, d)
        a, b, c, d = _round(a, b, c, d)
        a ^= word
    word = _WORD((last - first) & 255) << _WORD(56)
    for i in range(last - whole):
        word |= _WORD(data[whole + i]) << _WORD(8 * i)
    d ^= word
    a, b, c, d = _round(a, b, c, d)
    a, b, c, d = _round(a, b, c, d)
    a ^= word
    c ^= _FINAL
    for _ in range(4):
        a, b, c, d = _round(a, b, c, d)
    return a ^ b ^ c ^ d


@njit(void(read_only(uint8, 1), read_only(int64, 1), uint64, uint64, int64, writable(int64, 1)), cache=True, nogil=True)
def buckets(data: Any, ends: Any, key: Any, other: Any, many: int, out: Any) -> None:
    """Into `out` (N,) the bucket of each text, bytes ends[i] to ends[i + 1] of `data`, below `many`."""
    for i in range(len(out)):
        out[i] = np.int64(sip(data, ends[i], ends[i + 1], key, other) % _WORD(many))
