"""Proposals of one standard normal variable on the grid, and what decides those that three words do not.

Source: noise#n1, a flat proposal on each of 255 bins and rejection; docs/privacy/noise.md.
"""

from bisect import bisect_right
from decimal import Decimal, localcontext
from functools import cache
from itertools import accumulate

import numpy as np

from quoron_privacy.kernels.shipped import njit
from quoron_privacy.noise.streams import GRID_BITS, Steps, Words

SETTLING = 6  # more words for a proposal that three do not decide: 128 bits each for bin, place and coin
_BIN_BITS = 4  # the Gaussian proposal is flat on bins of width 1/16
_UNSURE = 2.0**-48  # a coin so near to its chance is settled: more than what floats and cut digits can be wrong by


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


@njit(cache=True, inline="always")
def propose_gaussian(which, inside, coin, bins):  # type: ignore[no-untyped-def]
    """(whether to accept, ⌊2³⁰ Z⌋, whether both are sure) from three words: a proposal of noise#n1, in fixed time.

    `bins` is `gaussian_bins()`. What is not sure is for `settle_gaussian`: the words' further bits might change it.
    """
    k = 0
    # No branch below looks at a secret: which values are drawn must not show in the time it takes.
    for level in range(7, -1, -1):  # binary search: k = number of thresholds < word
        k += (which > bins[k + (1 << level) - 1]) << level
    w = (inside >> np.uint64(11)) * 2.0**-53
    accept = np.exp(-(2.0 ** -(2 * _BIN_BITS + 1)) * (w * (2 * k + w)))  # density over proposal, one at w = 0
    inner = np.int64(inside >> np.uint64(64 - GRID_BITS + _BIN_BITS))
    magnitude = (np.int64(k) << (GRID_BITS - _BIN_BITS)) | inner
    step = magnitude ^ -np.int64(inside & np.uint64(1))  # sign bit set: -magnitude - 1, the floor
    margin = (coin >> np.uint64(11)) * 2.0**-53 - accept
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
def accept_gaussian(words: Words, at: int, bins: Words, steps: Steps, done: int) -> tuple[int, int]:
    """Appends accepted proposals from number `at` on (words: proposals × 3) to the `done` first steps.

    Returns the number of the first proposal that is not sure, or of all, and how many steps there are now.
    """
    for i in range(at, len(words)):
        accepted, step, sure = propose_gaussian(words[i, 0], words[i, 1], words[i, 2], bins)
        if not sure:
            return i, done
        if accepted and done < len(steps):
            steps[done] = step
            done += 1
    return len(words), done
