"""Loops over the texts of a column: the number that each of them says, and SipHash-2-4 of each.

The number that every text of a column says, to the bits of `parsed`: compiled, without an interpreter.

    >>> bits, unsure = np.empty(3, np.uint64), np.empty(3, np.uint8)
    >>> numbers(np.array([0, 4, 7, 10]), np.frombuffer(b"1e-3.5 old", np.uint8), 46, -1, bits, unsure, 0, 3)
    >>> bits.view(np.float64).tolist(), unsure.tolist()
    ([0.001, 0.5, nan], [0, 0, 0])

A text of up to 19 digits is w 10^q with integers w < 10^19 and q. Its nearest float64 has the leading bits of w times
the leading 128 bits of 5^q. One of more digits is between two such numbers: it is known if these are the same float64.
If not, beyond the normal numbers, and where letters are no ASCII the loop says that it is not sure, and `parsed`
is asked. A text's number depends on its own bytes alone.

Source: Lemire (2021), Number parsing at a gigabyte per second, sections 5 to 8; its Theorem 1 and Mushtak & Lemire
(2023), Fast number parsing without fallback, show that 128 bits of 5^q suffice for q from -342 to 308.

SipHash-2-4 of many texts: the loop of `hashed`.
"""

from typing import Any

import numpy as np
from numba import int64, types, uint8, uint64, void

from quoron_privacy.kernels.compiled import SUMS, cfunc, helper, njit, read_only, run, writable

LEAST, MOST = -342, 308  # powers of ten that there are
_DIGITS = 19  # of a number below 2^64


def _powers() -> "np.ndarray[Any, np.dtype[np.uint64]]":
    """The leading 128 bits of 5^q as two numbers: rounded down, and of 5^q below 1 up."""
    found = []
    for power in range(LEAST, MOST + 1):
        five = 5 ** abs(power)
        if power >= 0:
            leading = (five << 128) >> five.bit_length()
        else:
            leading = (1 << (five.bit_length() * 2 + 128)) // five
            leading = (leading >> (leading.bit_length() - 128)) + 1
        found += [leading >> 64, leading & (2**64 - 1)]
    return np.array(found, np.uint64)


POWERS = _powers()
_NAN = np.uint64(0x7FF8000000000000)
_ONE = np.uint64(0x3FF0000000000000)
_SIGN = np.uint64(1 << 63)
_ZERO, _U1, _U3, _U9, _U10, _U32, _U52, _U63, _U64 = (np.uint64(each) for each in (0, 1, 3, 9, 10, 32, 52, 63, 64))
_LOW32 = np.uint64(0xFFFFFFFF)
_LOW9 = np.uint64(0x1FF)
_TRUE, _FALSE = tuple(b"true"), tuple(b"false")


@helper
def _product(a: Any, b: Any) -> Any:
    """(high, low) 64 bits of a b."""
    a1, a0, b1, b0 = a >> _U32, a & _LOW32, b >> _U32, b & _LOW32
    low, first, second = a0 * b0, a1 * b0, a0 * b1
    middle = (low >> _U32) + (first & _LOW32) + (second & _LOW32)
    return a1 * b1 + (first >> _U32) + (second >> _U32) + (middle >> _U32), a * b


@helper
def _nearest(digits: Any, power: Any, powers: Any) -> Any:
    """(bits of the float64 nearest to digits 10^power, whether they are sure), digits > 0."""
    if power < LEAST or power > MOST:
        return _ZERO, False
    step, shift = _U32, _ZERO
    while step:
        if digits >> (_U64 - step) == _ZERO:
            digits <<= step
            shift += step
        step >>= _U1
    high, low = _product(digits, powers[2 * (power - LEAST)])
    if high & _LOW9 == _LOW9:
        more, _ = _product(digits, powers[2 * (power - LEAST) + 1])
        low += more
        if low < more:
            high += _U1
    if low == ~_ZERO and (power < -27 or power > 55):
        return _ZERO, False
    upper = high >> _U63
    bits = high >> (upper + _U9)
    exponent = ((217706 * power) >> 16) + 1086 + int64(upper) - int64(shift)
    if exponent <= 0:  # below the normal numbers
        return _ZERO, False
    if low <= _U1 and -4 <= power <= 23 and bits & _U3 == _U1 and bits << (upper + _U9) == high:
        bits &= ~_U1  # halfway between two: to the even one
    bits = (bits + (bits & _U1)) >> _U1
    if bits >> np.uint64(53) != _ZERO:
        bits >>= _U1
        exponent += 1
    if exponent >= 0x7FF:
        return _ZERO, False
    return (bits & ~(_U1 << _U52)) | (uint64(exponent) << _U52), True


@helper
def _is(data: Any, begin: Any, end: Any, word: Any) -> Any:
    """Whether it is a word, written small, large or with a capital."""
    if end - begin != len(word):
        return False
    small, large = True, True
    for i in range(1, len(word)):
        small &= data[begin + i] == word[i]
        large &= data[begin + i] == word[i] - 32
    return (data[begin] == word[0] and small) or (data[begin] == word[0] - 32 and (small or large))


@helper
def _none(data: Any, begin: Any, end: Any) -> Any:
    """Of a text that says no number: but letters that are no ASCII may be white space."""
    for i in range(begin, end):
        if data[i] >= 128:
            return _NAN, False
    return _NAN, True


@helper
def _number(data: Any, begin: Any, end: Any, point: Any, group: Any, powers: Any) -> Any:
    """(bits, whether they are sure) of the text from `begin` to `end`."""
    while begin < end and (data[begin] == 32 or 9 <= data[begin] <= 13 or 28 <= data[begin] <= 31):
        begin += 1
    while begin < end and (data[end - 1] == 32 or 9 <= data[end - 1] <= 13 or 28 <= data[end - 1] <= 31):
        end -= 1
    at, sign = begin, _ZERO
    if at < end and (data[at] == 45 or data[at] == 43):
        sign = _SIGN if data[at] == 45 else _ZERO
        at += 1
    digits, many, power, seen = _ZERO, 0, 0, 0
    in_group, grouped, fraction = 0, False, False
    while at < end:
        letter = data[at]
        if 48 <= letter <= 57:
            seen += 1
            in_group += 1
            power -= fraction
            if many >= _DIGITS:
                many += 1
                power += 1
            elif many or letter > 48:
                digits = digits * _U10 + uint64(letter - 48)
                many += 1
        elif letter == point and not fraction and (not grouped or in_group == 3):
            fraction = True
        elif letter == group and not fraction and (in_group == 3 if grouped else 1 <= in_group <= 3):
            grouped, in_group = True, 0
        else:
            break
        at += 1
    if seen == 0:
        if _is(data, begin, end, _TRUE):
            return _ONE, True
        return (_ZERO, True) if _is(data, begin, end, _FALSE) else _none(data, begin, end)
    if grouped and not fraction and in_group != 3:
        return _none(data, begin, end)
    if at < end and (data[at] == 101 or data[at] == 69):
        at += 1
        down = at < end and data[at] == 45
        if at < end and (data[at] == 45 or data[at] == 43):
            at += 1
        first, raised = at, 0
        while at < end and 48 <= data[at] <= 57:
            raised = min(raised * 10 + int64(data[at] - 48), 1 << 32)
            at += 1
        if at == first:
            return _none(data, begin, end)
        power += -raised if down else raised
    if at < end:
        return _none(data, begin, end)
    if many == 0:
        return sign, True
    bits, sure = _nearest(digits, power, powers)
    if many > _DIGITS and sure:  # between what its first digits say, and one more
        other, sure = _nearest(digits + _U1, power, powers)
        sure = sure and other == bits
    return bits | sign, sure


def _loop(
    offsets: Any, data: Any, powers: Any, point: int, group: int, out: Any, unsure: Any, first: int, last: int
) -> None:
    for i in range(first, last):
        bits, sure = _number(data, offsets[i], offsets[i + 1], point, group, powers)
        out[i] = bits
        unsure[i] = 0 if sure else 1


_CPointer: Any = types.CPointer
_POINTERS: Any = [_CPointer(kind) for kind in (int64, uint8, uint64, uint64, uint8)]
_ADDRESS: Any = cfunc(void(*_POINTERS[:3], int64, int64, *_POINTERS[3:], int64, int64), cache=True)(_loop).address
_ARRAYS: Any = [read_only(int64, 1), read_only(uint8, 1), read_only(uint64, 1)]
_RESULTS: Any = [writable(uint64, 1), writable(uint8, 1)]


@njit(void(int64, *_ARRAYS, int64, int64, *_RESULTS, int64, int64), **SUMS)
def _call(
    at: int, offsets: Any, data: Any, powers: Any, point: int, group: int, out: Any, unsure: Any, first: int, last: int
) -> None:
    run(at, (offsets, data, powers, point, group, out, unsure, first, last))  # arrays as such would count references


def numbers(offsets: Any, data: Any, point: int, group: int, out: Any, unsure: Any, first: int, last: int) -> None:
    """Write the bits of what texts `first` to `last` say into `out`, and into `unsure` whether others have to say it.

    Text i is data[offsets[i]:offsets[i + 1]], as `pa.large_string` has it. `point` is the letter of a decimal point,
    `group` what may stand between groups of three digits, -1 for nothing.
    """
    _call(_ADDRESS, offsets, data, POWERS, point, group, out, unsure, first, last)


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
    """The hash of bytes `first` to `last` of `data` under a key of two words, little-endian as in the paper."""
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
