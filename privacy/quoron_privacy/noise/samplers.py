"""Exact samplers of `noise.streams`, as functions of uniform words: Gaussian, Laplace, coins, choices and subsets.

`draw(n)` gives n words. A Gaussian is a flat proposal on each of 255 bins and rejection (noise#n1). Proofs:
docs/privacy/noise.md.
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import cache, lru_cache
from itertools import accumulate, takewhile
from math import isqrt

import numpy as np
from numba.cpython.unsafe.numbers import leading_zeros, trailing_zeros
from numpy.typing import NDArray

from quoron_privacy.kernels.prebuilt import njit
from quoron_privacy.noise.streams import GRID_BITS, Steps, Words

Draw = Callable[[int], Words]
Tables = tuple[Words, NDArray[np.uint8], NDArray[np.float64]]

SETTLING = 6  # more words for a proposal that three do not decide: 128 bits each for bin, place and coin
_BIN_BITS = 4  # the Gaussian proposal is flat on bins of width 1/16
_PIECES = 128  # of [0, 1), each with an exponential of its middle
_UNSURE = 2.0**-48  # a coin so near to its chance is settled: more than what floats and cut digits can be wrong by

_LAPLACES = 1 << 12  # Laplace samples at a time, so that their words stay in cache
_BLOCK = 1 << 16  # samples at a time, so that the words stay in cache
_MOST_DIGITS = 120  # a digit of odds exp(-2^i / scale) below e⁻¹²⁰ < 2⁻¹⁷³ counts as zero


@cache  # ten milliseconds that planning needs not wait
def bin_levels() -> tuple[Decimal, ...]:
    """P(bin <= k) for k = 0..254, where P(bin = k) ∝ exp(-(k/16)²/2), to 80 digits."""
    with localcontext() as context:
        context.prec = 90
        heights = [(-(Decimal(k * k) / 2 ** (2 * _BIN_BITS + 1))).exp() for k in range(256)]
        total = sum(heights)
        return tuple(part / total for part in accumulate(heights[:255]))


@cache
def gaussian_bins() -> Words:
    """⌊2⁶⁴ P(bin <= k)⌋ for k = 0..254, and 2⁶⁴ - 1 after them."""
    with localcontext() as context:
        context.prec = 90
        bins = np.array([*(int(2**64 * level) for level in bin_levels()), 2**64 - 1], np.uint64)
    bins.setflags(write=False)
    return bins


@cache
def gaussian_tables() -> Tables:
    """What `propose_gaussian` reads: `gaussian_bins()` with more at its end, the first bins of cells, exponentials.

    A cell (ones, byte) is all words of so many bytes of ones and this byte then. Its bin is the least of its words'; in
    no cell are there more than seven others. Piece j has exp(-(j + 1/2) / 128).
    """
    bins = np.append(gaussian_bins(), np.full(3, 2**64 - 1, np.uint64))
    cells = [(ones, byte) for ones in range(8) for byte in range(256)]
    least = [2**64 - (256 - byte) * 2 ** (56 - 8 * ones) for ones, byte in cells]
    firsts = np.searchsorted(bins[:255], np.array(least, np.uint64)).astype(np.uint8)
    with localcontext() as context:
        context.prec = 90
        exponentials = np.array([float((-(j + Decimal("0.5")) / _PIECES).exp()) for j in range(_PIECES)])
    for table in (bins, firsts, exponentials):
        table.setflags(write=False)
    return bins, firsts, exponentials


@njit(cache=True, inline="always")
def propose_gaussian(which, inside, coin, tables):  # type: ignore[no-untyped-def]
    """(whether to accept, ⌊2³⁰ Z⌋, whether both are sure) from three words: a proposal of noise#n1, in fixed time.

    `tables` is `gaussian_tables()`. What is not sure is for `settle_gaussian`: the words' further bits might change it.
    """
    bins, firsts, exponentials = tables
    # No branch below looks at a secret: which values are drawn must not show in the time it takes.
    ones = leading_zeros(~which | np.uint64(1)) >> np.uint64(3)  # type: ignore[call-arg]
    byte = (which >> (np.uint64(56) - (ones << np.uint64(3)))) & np.uint64(255)
    k = np.int64(firsts[np.int64(ones << np.uint64(8) | byte)])
    for level in range(2, -1, -1):  # binary search: k = number of thresholds < word
        k += np.int64(which > bins[k + (1 << level) - 1]) << level
    w = np.float64(np.int64(inside >> np.uint64(11))) * 2.0**-53
    t = 2.0 ** -(2 * _BIN_BITS + 1) * (w * (2 * k + w))
    piece = np.int64(_PIECES * t)
    r = t - (piece + 0.5) / _PIECES
    # Density over proposal, exp(-t), one at w = 0: the piece's by Taylor's polynomial of r.
    accept = exponentials[piece] * ((1.0 - r) + r * r * ((0.5 - r * (1 / 6)) + r * r * (1 / 24 - r * (1 / 120))))
    inner = np.int64(inside >> np.uint64(64 - GRID_BITS + _BIN_BITS))
    magnitude = (k << (GRID_BITS - _BIN_BITS)) | inner
    step = magnitude ^ -np.int64(inside & np.uint64(1))  # sign bit set: -magnitude - 1, the floor
    margin = np.float64(np.int64(coin >> np.uint64(11))) * 2.0**-53 - accept
    return margin < 0.0, step, (abs(margin) > _UNSURE) & (which != bins[k])


def settle_gaussian(words: Words, more: Words) -> tuple[bool, int]:
    """(whether to accept, ⌊2³⁰ Z⌋) of a proposal whose three words, shape (3,), are not sure, with SETTLING more.

    Bin, place and coin go on where their words end, by 128 bits each, and are decided with sixty digits.
    """
    which, inside, coin = (int(word) for word in words)
    tails = [Decimal(int(more[2 * i]) << 64 | int(more[2 * i + 1])) for i in range(3)]
    with localcontext() as context:
        context.prec = 90
        tails = [tail / 2**128 for tail in tails]
        k = bisect_right(bin_levels(), (which + tails[0]) / 2**64)
        w, chance = ((word + tail) / 2**53 for word, tail in ((inside >> 11, tails[1]), (coin >> 11, tails[2])))
        accepted = chance < (-w * (2 * k + w) / 2 ** (2 * _BIN_BITS + 1)).exp()
    magnitude = k << (GRID_BITS - _BIN_BITS) | inside >> (64 - GRID_BITS + _BIN_BITS)
    return accepted, -magnitude - 1 if inside & 1 else magnitude


@njit(cache=True, nogil=True)
def accept_gaussian(words: Words, at: int, tables: Tables, steps: Steps, done: int) -> tuple[int, int]:
    """Appends accepted proposals from number `at` on (words: proposals × 3) to the `done` first steps.

    Returns the number of the first proposal that is not sure, or of all, and how many steps there are now.
    """
    for i in range(at, len(words)):
        accepted, step, sure = propose_gaussian(words[i, 0], words[i, 1], words[i, 2], tables)
        if not sure:
            return i, done
        if accepted and done < len(steps):
            steps[done] = step
            done += 1
    return len(words), done


@lru_cache(maxsize=256)
def laplace_digits(scale: float) -> tuple[tuple[int, ...], Words]:
    """⌊2¹⁹² / (1 + exp(2^i / scale))⌋ for the digits i = 0, 1, ... of a geometric magnitude, and ⌊2⁶⁴ / ...⌋."""
    with localcontext() as context:
        context.prec = 90
        powers = takewhile(lambda power: power < _MOST_DIGITS, (2**i / Decimal(scale) for i in range(64)))
        chances = tuple(int(2**192 / (1 + power.exp())) for power in powers)
    levels = np.array([chance >> 128 for chance in chances], np.uint64)
    levels.setflags(write=False)
    return chances, levels


@njit(cache=True, nogil=True)
def add_digits(words: Words, levels: Words, steps: Steps) -> int:
    """⌊L⌋ from a word for the sign and one for each digit, words (samples, 1 + digits); in fixed time.

    Returns how many words are at their level: such digits are left at zero.
    """
    unsure = 0
    for i in range(len(steps)):
        magnitude = np.int64(0)
        for digit in range(len(levels)):
            word = words[i, digit + 1]
            magnitude |= np.int64(word < levels[digit]) << digit
            unsure += word == levels[digit]
        steps[i] = magnitude ^ -np.int64(words[i, 0] & np.uint64(1))  # sign bit set: -magnitude - 1, the floor
    return unsure


def gaussian_steps(draw: Draw, size: int) -> Steps:
    """⌊2³⁰ Z⌋ for `size` independent standard normal Z."""
    steps = np.empty(size, np.int64)
    done = 0
    while done < size:
        block = steps[done : done + _BLOCK]
        proposals = len(block) + len(block) // 32 + 2 * isqrt(len(block)) + 12
        done += _fill(draw, draw(3 * proposals).reshape(proposals, 3), block)
    return steps


def _fill(draw: Draw, words: Words, steps: Steps) -> int:
    """Fills `steps` with accepted proposals, words (proposals, 3), and returns how many."""
    tables, at, done = gaussian_tables(), 0, 0
    while True:
        at, done = accept_gaussian(words, at, tables, steps, done)
        if at == len(words):
            return int(done)
        accepted, step = settle_gaussian(words[at], draw(SETTLING))
        if accepted and done < len(steps):
            steps[done] = step
            done += 1
        at += 1


def laplace_steps(draw: Draw, scale: float, size: int) -> Steps:
    """⌊L⌋ for `size` independent L ~ Laplace(scale)."""
    chances, levels = laplace_digits(scale)
    steps = np.empty(size, np.int64)
    for start in range(0, size, _LAPLACES):
        block = steps[start : start + _LAPLACES]
        words = draw(len(block) * (len(levels) + 1)).reshape(len(block), -1)
        if add_digits(words, levels, block):
            for sample, digit in np.argwhere(words[:, 1:] == levels):
                if int.from_bytes(draw(2).astype("<u8").tobytes(), "little") < chances[digit] % 2**128:
                    block[sample] ^= 1 << digit  # it was left at zero
    return steps


def coins(draw: Draw, chance: float, size: int) -> NDArray[np.bool_]:
    """`size` independent coins, True with probability exactly `chance`."""
    level, rest = divmod(Fraction(chance) * 2**64, 1)
    words = draw(size)
    heads = words < np.uint64(level) if level < 2**64 else np.ones(size, np.bool_)
    if rest:
        for tie in np.flatnonzero(words == np.uint64(level)):
            heads[tie] = weighted_choice(draw, (rest.denominator - rest.numerator, rest.numerator))
    return heads


def weighted_choice(draw: Draw, weights: Sequence[int]) -> int:
    """Return index i with probability exactly weights[i] / sum(weights)."""
    totals = list(accumulate(weights))
    length = -(-totals[-1].bit_length() // 64)
    limit = (1 << 64 * length) // totals[-1] * totals[-1]
    while True:
        number = int.from_bytes(draw(length).astype("<u8").tobytes(), "little")
        if number < limit:
            return bisect_right(totals, number % totals[-1])


def below(draw: Draw, bounds: Words) -> Steps:
    """Return exact uniform integers below each bound (1 to 2⁶³), rejecting an incomplete multiple of it."""
    words = draw(len(bounds))
    left = (words < bounds).nonzero()[0]  # words below 2⁶⁴ mod bound are rejected: a division for few of them
    while (left := left[words[left] < (np.uint64(0) - bounds[left]) % bounds[left]]).size:
        words[left] = draw(len(left))
    return (words % bounds).astype(np.int64)


@njit(cache=True)
def shuffle(picks: Steps) -> Steps:
    """Fisher–Yates from picks[i] uniform in {0, ..., i}."""
    order = np.arange(len(picks))
    for i in range(len(picks) - 1, 0, -1):
        order[i], order[picks[i]] = order[picks[i]], order[i]
    return order


@njit(cache=True)
def _marked(taken: Words, count: int) -> Steps:
    members, found = np.empty(count, np.int64), 0
    for place in range(len(taken)):
        left = taken[place]
        while left != 0:
            members[found] = 64 * place + trailing_zeros(left)  # type: ignore[call-arg]
            left &= left - np.uint64(1)
            found += 1
    return members


@njit(cache=True)
def floyd(picks: Steps, size: int) -> Steps:
    """Floyd's sampling without replacement from picks[i] uniform in {0, ..., size - len(picks) + i}, ascending."""
    taken = np.zeros(size // 64 + 1, np.uint64)
    for i in range(len(picks)):
        member = picks[i]
        if taken[member >> 6] >> np.uint64(member & 63) & np.uint64(1):
            member = size - len(picks) + i
        taken[member >> 6] |= np.uint64(1) << np.uint64(member & 63)
    return _marked(taken, len(picks))


@njit(cache=True)
def ascending(members: Steps, size: int) -> Steps:
    """Return different numbers below `size` in their order, without comparing them."""
    taken = np.zeros(size // 64 + 1, np.uint64)
    for member in members:
        taken[member >> 6] |= np.uint64(1) << np.uint64(member & 63)
    return _marked(taken, len(members))
