"""Independent streams of uniform words, and samplers that are exact on an integer grid.

A stream is a function of (key, labels), and every start of a run has a label of its own (`noise.ahead.StartedNoise`):
what one start draws comes again in no other, but in simulations, whose bits follow from the seed. Samplers return whole
steps of a grid, never a rounded float: a release is then a post-processing of the exact continuous mechanism.
Statements, proofs and error budget: docs/privacy/noise.md.
"""

from collections.abc import Callable, Sequence
from math import prod
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from quoron_privacy.errors import ConfigError, count, positive, probability
from quoron_privacy.kernels.on_first_use import OnFirstUse

Words = NDArray[np.uint64]
Steps = NDArray[np.int64]

GRID_BITS = 30  # gaussian_steps counts in units of 2⁻³⁰ standard deviations
GAUSSIAN_SLACK = 2.0**-160  # total variation of one Gaussian sample (noise#n1)
LAPLACE_SLACK = 2.0**-160  # total variation of one Laplace sample (noise#n2)

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
        """⌊2³⁰ Z⌋ for independent standard normal Z, up to total variation GAUSSIAN_SLACK a sample (noise#n1).

        Rejection from a step-shaped proposal. What 64 bits do not decide, one proposal in 10¹⁴, 192 bits and sixty
        digits do. The number of rejections is independent of the values that are kept, so time says nothing about
        them; the oversample is fixed, and falls short with probability below 2⁻⁶⁰.
        """
        steps: Steps = samplers.gaussian_steps(self.words, samples_of(shape))
        return steps.reshape(shape)

    def laplace_steps(self, scale: float, shape: int | tuple[int, ...]) -> Steps:
        """⌊L⌋ for independent L ~ Laplace(scale), scale at most 2⁵⁰; total variation LAPLACE_SLACK each (noise#n2).

        |L|'s whole part is geometric, and the binary digits of a geometric variable are independent: digit i is one
        with chance 1 / (1 + exp(2^i / scale)). A word for each digit and one for the sign, whatever comes out; what 64
        bits do not decide, one word in 2⁶⁴, 192 do.
        """
        positive(scale=scale)
        if scale > 2.0**50:
            raise ConfigError(f"Expected scale <= 2**50 steps, got scale={scale}. Use a coarser grid.")
        steps: Steps = samplers.laplace_steps(self.words, float(scale), samples_of(shape))
        return steps.reshape(shape)

    def uniform_below(self, bound: int, size: int) -> Steps:
        """`size` independent exact uniform integers in {0, ..., bound - 1}; bound at most 2⁶³."""
        count(bound=bound)
        picks: Steps = samplers.below(self.words, np.full(size, bound, np.uint64))
        return picks

    def bernoulli(self, chance: float, shape: int | tuple[int, ...]) -> NDArray[np.bool_]:
        """Independent coins, True with probability exactly `chance`, a float in [0, 1].

        A word for each; one at ⌊2⁶⁴ chance⌋, which happens once in 2⁶⁴ times, is decided by as many more as it takes.
        """
        if not 0 <= chance <= 1:
            raise ConfigError(f"Expected chance in [0, 1], got chance={chance}.")
        coins: NDArray[np.bool_] = samplers.coins(self.words, chance, samples_of(shape))
        return coins.reshape(shape)

    def uniform(self, shape: int | tuple[int, ...]) -> NDArray[np.float64]:
        """Independent uniform multiples of 2⁻⁵³ in [0, 1)."""
        return ((self.words(samples_of(shape)) >> np.uint64(11)).astype(np.float64) * 2.0**-53).reshape(shape)

    def permutation(self, size: int) -> Steps:
        """An exact uniform permutation of range(size)."""
        order: Steps = samplers.shuffle(samplers.below(self.words, np.arange(1, size + 1, dtype=np.uint64)))
        return order

    def subset(self, size: int, chosen: int) -> Steps:
        """An exact uniform subset of range(size) with `chosen` members, ascending: sampling without replacement."""
        if not 0 <= chosen <= size:
            raise ConfigError(f"Expected 0 <= chosen <= size, got chosen={chosen}, size={size}.")
        bounds = np.arange(size - chosen + 1, size + 1, dtype=np.uint64)
        chosen_ones: NDArray[np.bool_] = samplers.floyd(samplers.below(self.words, bounds), size)
        return chosen_ones.nonzero()[0].astype(np.int64)

    def poisson_subset(self, size: int, rate: float) -> Steps:
        """Each member of range(size) independently with probability `rate`, ascending: Poisson sampling."""
        probability(rate=rate)
        return np.flatnonzero(self.bernoulli(rate, size)).astype(np.int64)

    def weighted_choice(self, weights: Sequence[int]) -> int:
        """Index i with probability exactly weights[i] / sum(weights); non-negative integers of any size."""
        if not weights or sum(weights) <= 0 or min(weights) < 0:
            raise ConfigError("Expected non-negative integer weights with a positive sum.")
        return int(samplers.weighted_choice(self.words, weights))


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
    """How far all the noise of a run is from exact, in total variation (noise#n3).

    A mechanism that is (ε, δ) with exact noise is (ε, δ + (1 + e^ε) · total_variation) with this noise.
    """
    return GAUSSIAN_SLACK * gaussians + LAPLACE_SLACK * laplaces


def samples_of(shape: int | tuple[int, ...]) -> int:
    """How many there are in an array of this shape."""
    return shape if isinstance(shape, int) else prod(shape)
