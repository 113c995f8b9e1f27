"""Independent streams of uniform words, and samplers that are exact on an integer grid.

A stream is a function of (key, labels), and every start of a run has a label of its own (`noise.ahead.StartedNoise`):
what one start draws comes again in no other, but in simulations, whose bits follow from the seed. Samplers return whole
steps of a grid, never a rounded float: a release is then a post-processing of the exact continuous mechanism.
Statements, proofs and error budget: docs/privacy/noise.md.
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import accumulate
from math import isqrt, prod
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from quoron_privacy.errors import ConfigError, count, positive, probability
from quoron_privacy.kernels.on_first_use import OnFirstUse

Words = NDArray[np.uint64]
Steps = NDArray[np.int64]

GRID_BITS = 30  # gaussian_steps counts in units of 2⁻³⁰ standard deviations
GAUSSIAN_SLACK = 2.0**-160  # total variation of one Gaussian sample (theorem N1)
LAPLACE_SLACK = 2.0**-160  # total variation of one Laplace sample (theorem N2)

_LAPLACES = 1 << 12  # Laplace samples at a time, so that their words stay in cache
_BLOCK = 1 << 16  # samples at a time, so that the words stay in cache

samplers = OnFirstUse("quoron_privacy.noise.samplers")


class RandomStream:
    """One stream of independent uniform 64-bit words, and the samplers on top. Each call moves the stream forward."""

    __slots__ = ("_draw",)

    def __init__(self, draw: Callable[[int], Words]) -> None:
        self._draw = draw

    def words(self, size: int) -> Words:
        """`size` uniform words, shape (size,)."""
        return self._draw(size)

    def gaussian_steps(self, shape: int | tuple[int, ...]) -> Steps:
        """⌊2³⁰ Z⌋ for independent standard normal Z, up to total variation GAUSSIAN_SLACK a sample (theorem N1).

        Rejection from a step-shaped proposal. What 64 bits do not decide, one proposal in 10¹⁴, 192 bits and sixty
        digits do. The number of rejections is independent of the values that are kept, so time says nothing about
        them; the oversample is fixed, and falls short with probability below 2⁻⁶⁰.
        """
        size = samples_of(shape)
        steps = np.empty(size, np.int64)
        done = 0
        while done < size:
            block = steps[done : done + _BLOCK]
            proposals = len(block) + len(block) // 32 + 2 * isqrt(len(block)) + 12
            done += self._fill(self.words(3 * proposals).reshape(proposals, 3), block)
        return steps.reshape(shape)

    def _fill(self, words: Words, steps: Steps) -> int:
        """Fills `steps` with accepted proposals, words (proposals, 3), and returns how many."""
        bins, at, done = samplers.gaussian_bins(), 0, 0
        while True:
            at, done = samplers.accept_gaussian(words, at, bins, steps, done)
            if at == len(words):
                return int(done)
            accepted, step = samplers.settle_gaussian(words[at], self.words(samplers.SETTLING))
            if accepted and done < len(steps):
                steps[done] = step
                done += 1
            at += 1

    def laplace_steps(self, scale: float, shape: int | tuple[int, ...]) -> Steps:
        """⌊L⌋ for independent L ~ Laplace(scale), scale at most 2⁵⁰; total variation LAPLACE_SLACK each (theorem N2).

        |L|'s whole part is geometric, and the binary digits of a geometric variable are independent: digit i is one
        with chance 1 / (1 + exp(2^i / scale)). A word for each digit and one for the sign, whatever comes out; what 64
        bits do not decide, one word in 2⁶⁴, 192 do.
        """
        positive(scale=scale)
        if scale > 2.0**50:
            raise ConfigError(f"Expected scale <= 2**50 steps, got scale={scale}. Use a coarser grid.")
        chances, levels = samplers.laplace_digits(float(scale))
        steps = np.empty(samples_of(shape), np.int64)
        for start in range(0, len(steps), _LAPLACES):
            block = steps[start : start + _LAPLACES]
            words = self.words(len(block) * (len(levels) + 1)).reshape(len(block), -1)
            if samplers.add_digits(words, levels, block):
                for sample, digit in np.argwhere(words[:, 1:] == levels):
                    if int.from_bytes(self.words(2).astype("<u8").tobytes(), "little") < chances[digit] % 2**128:
                        block[sample] ^= 1 << digit  # it was left at zero
        return steps.reshape(shape)

    def uniform_below(self, bound: int, size: int) -> Steps:
        """`size` independent exact uniform integers in {0, ..., bound - 1}; bound at most 2⁶³."""
        count(bound=bound)
        return self._below(np.full(size, bound, np.uint64))

    def bernoulli(self, chance: float, shape: int | tuple[int, ...]) -> NDArray[np.bool_]:
        """Independent coins, True with probability exactly `chance`, a float in [0, 1].

        A word for each; one at ⌊2⁶⁴ chance⌋, which happens once in 2⁶⁴ times, is decided by as many more as it takes.
        """
        if not 0 <= chance <= 1:
            raise ConfigError(f"Expected chance in [0, 1], got chance={chance}.")
        level, rest = divmod(Fraction(chance) * 2**64, 1)
        words = self.words(samples_of(shape))
        coins = words < np.uint64(level) if level < 2**64 else np.ones(len(words), np.bool_)
        if rest:
            for tie in np.flatnonzero(words == np.uint64(level)):
                coins[tie] = self.weighted_choice((rest.denominator - rest.numerator, rest.numerator))
        return coins.reshape(shape)

    def uniform(self, shape: int | tuple[int, ...]) -> NDArray[np.float64]:
        """Independent uniform multiples of 2⁻⁵³ in [0, 1)."""
        return ((self.words(samples_of(shape)) >> np.uint64(11)).astype(np.float64) * 2.0**-53).reshape(shape)

    def permutation(self, size: int) -> Steps:
        """An exact uniform permutation of range(size)."""
        order: Steps = samplers.shuffle(self._below(np.arange(1, size + 1, dtype=np.uint64)))
        return order

    def subset(self, size: int, chosen: int) -> Steps:
        """An exact uniform subset of range(size) with `chosen` members, ascending: sampling without replacement."""
        if not 0 <= chosen <= size:
            raise ConfigError(f"Expected 0 <= chosen <= size, got chosen={chosen}, size={size}.")
        bounds = np.arange(size - chosen + 1, size + 1, dtype=np.uint64)
        chosen_ones: NDArray[np.bool_] = samplers.floyd(self._below(bounds), size)
        return chosen_ones.nonzero()[0].astype(np.int64)

    def poisson_subset(self, size: int, rate: float) -> Steps:
        """Each member of range(size) independently with probability `rate`, ascending: Poisson sampling."""
        probability(rate=rate)
        return np.flatnonzero(self.bernoulli(rate, size)).astype(np.int64)

    def weighted_choice(self, weights: Sequence[int]) -> int:
        """Index i with probability exactly weights[i] / sum(weights); non-negative integers of any size."""
        totals = list(accumulate(weights))
        if not totals or totals[-1] <= 0 or min(weights) < 0:
            raise ConfigError("Expected non-negative integer weights with a positive sum.")
        length = -(-totals[-1].bit_length() // 64)
        limit = (1 << 64 * length) // totals[-1] * totals[-1]
        while True:
            number = int.from_bytes(self.words(length).astype("<u8").tobytes(), "little")
            if number < limit:
                return bisect_right(totals, number % totals[-1])

    def _below(self, bounds: Words) -> Steps:
        """Exact uniform integers below each bound (1 to 2⁶³), rejecting an incomplete multiple of it."""
        excess = (np.uint64(0) - bounds) % bounds  # 2⁶⁴ mod bound: words below it are rejected
        words = self.words(len(bounds))
        while (rejected := (words < excess).nonzero()[0]).size:
            words[rejected] = self.words(len(rejected))
        return (words % bounds).astype(np.int64)


class NoiseSource(Protocol):
    """The one injected source of a run."""

    def stream(self, *labels: str | int) -> RandomStream:
        """The stream of these labels, from its start; streams of different labels are independent."""

    def require_deployable(self) -> None:
        """Raises RunError unless the noise is fit to protect real people."""

    def export_key(self) -> bytes:
        """What rebuilds this source after a crash. Secret: with it and a start's nonce all noise can be subtracted."""

    def fingerprint(self) -> str:
        """A public name of the key (32 hexadecimal digits), by which errors and logs tell sources apart."""


def total_variation(*, gaussians: int = 0, laplaces: int = 0) -> float:
    """How far all the noise of a run is from exact, in total variation (theorem N3).

    A mechanism that is (ε, δ) with exact noise is (ε, δ + (1 + e^ε) · total_variation) with this noise.
    """
    return GAUSSIAN_SLACK * gaussians + LAPLACE_SLACK * laplaces


def samples_of(shape: int | tuple[int, ...]) -> int:
    """How many there are in an array of this shape."""
    return shape if isinstance(shape, int) else prod(shape)
