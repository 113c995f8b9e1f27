"""All randomness of the server: independent streams of uniform words, and samplers that are exact on an integer grid.

    >>> noise = SeededNoise(7)
    >>> first, again = noise.stream("release", 3), noise.stream("release", 3)
    >>> bool((first.gaussian_steps(5) == again.gaussian_steps(5)).all())
    True

A stream is a function of (key, labels), and every start of a run has a label of its own (`noise_ahead.StartedNoise`):
what one start draws comes again in no other, but in simulations, whose bits follow from the seed. `SeededNoise` and
`SecureNoise` differ in their words only; the samplers are shared, so a simulation tests the code that a deployment
runs. Samplers return whole steps of a grid, never a rounded float: a release is then a post-processing of the exact
continuous mechanism. Statements, proofs and error budget: docs/privacy/noise.md.
"""

import operator
import secrets
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import cache, lru_cache
from hashlib import blake2b
from itertools import accumulate, takewhile
from math import isqrt, prod
from typing import Any, Protocol

import numpy as np
from numba import njit
from numpy.random.bit_generator import ISeedSequence
from numpy.typing import NDArray

from quoron_privacy.errors import ConfigError, RunError
from quoron_privacy.validate import count, positive, probability

Words = NDArray[np.uint64]
Steps = NDArray[np.int64]

GRID_BITS = 30  # gaussian_steps counts in units of 2⁻³⁰ standard deviations
GAUSSIAN_SLACK = 2.0**-160  # total variation of one Gaussian sample (noise#n1)
LAPLACE_SLACK = 2.0**-160  # total variation of one Laplace sample (noise#n2)

_MOST_DIGITS = 120  # a digit of odds exp(-2^i / scale) below e⁻¹²⁰ < 2⁻¹⁷³ counts as zero in `laplace_steps`
_LAPLACES = 1 << 12  # Laplace samples at a time, so that their words stay in cache
_BIN_BITS = 4  # the Gaussian proposal is flat on bins of width 1/16
_BLOCK = 1 << 16  # samples at a time, so that the words stay in cache
_MOST_WORDS = 1 << 35  # of one ChaCha20 stream: 2³² blocks of 64 bytes
SETTLING = 6  # more words for a proposal that three do not decide: 128 bits each for bin, place and coin
_UNSURE = 2.0**-48  # a coin so near to its chance is settled: more than what floats and cut digits can be wrong by


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
        bins, at, done = gaussian_bins(), 0, 0
        while True:
            at, done = _accept_gaussian(words, at, bins, steps, done)
            if at == len(words):
                return done
            accepted, step = settle_gaussian(words[at], self.words(SETTLING))
            if accepted and done < len(steps):
                steps[done] = step
                done += 1
            at += 1

    def laplace_steps(self, scale: float, shape: int | tuple[int, ...]) -> Steps:
        """⌊L⌋ for independent L ~ Laplace(scale), scale at most 2⁵⁰; total variation LAPLACE_SLACK each (noise#n2).

        |L|'s whole part is geometric, and the binary digits of a geometric variable are independent: digit i is one
        with chance 1 / (1 + exp(2^i / scale)). A word for each digit and one for the sign, whatever comes out; what 64
        bits do not decide, one word in 2⁶⁴, 192 do.
        """
        positive(scale=scale)
        if scale > 2.0**50:
            raise ConfigError(f"Expected scale <= 2**50 steps, got scale={scale}. Use a coarser grid.")
        chances, levels = _laplace_digits(float(scale))
        steps = np.empty(samples_of(shape), np.int64)
        for start in range(0, len(steps), _LAPLACES):
            block = steps[start : start + _LAPLACES]
            words = self.words(len(block) * (len(levels) + 1)).reshape(len(block), -1)
            if _laplace(words, levels, block):
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
        return _shuffle(self._below(np.arange(1, size + 1, dtype=np.uint64)))

    def subset(self, size: int, chosen: int) -> Steps:
        """An exact uniform subset of range(size) with `chosen` members, ascending: sampling without replacement."""
        if not 0 <= chosen <= size:
            raise ConfigError(f"Expected 0 <= chosen <= size, got chosen={chosen}, size={size}.")
        bounds = np.arange(size - chosen + 1, size + 1, dtype=np.uint64)
        return _floyd(self._below(bounds), size).nonzero()[0].astype(np.int64)

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


class _Key(ISeedSequence):
    """A key of Philox as it is. `Philox(key=...)` does the same and first asks the system for entropy that it drops."""

    def __init__(self, key: bytes) -> None:
        self._words = np.frombuffer(key, "<u8").astype(np.uint64)

    def generate_state(self, *_: Any, **__: Any) -> Words:
        return self._words


@dataclass(frozen=True, slots=True)
class SeededNoise:
    """Reproducible noise for simulations and tests: Philox, keyed by a hash of the seed and the labels."""

    seed: int

    def stream(self, *labels: str | int) -> RandomStream:
        """See NoiseSource."""
        key = blake2b(_encode(self.seed, *labels), digest_size=16, person=b"quoron-seeded").digest()
        return RandomStream(np.random.Philox(_Key(key)).random_raw)  # type: ignore[arg-type]  # numpy documents it

    def require_deployable(self) -> None:
        """Always refuses."""
        raise RunError(
            "Expected cryptographic noise, got SeededNoise: whoever knows or guesses the seed can subtract the noise. "
            "Use SecureNoise.fresh() outside simulation."
        )

    def export_key(self) -> bytes:
        """The seed, as decimal text."""
        return str(self.seed).encode()

    def fingerprint(self) -> str:
        """See NoiseSource."""
        return blake2b(self.export_key(), digest_size=16, person=b"quoron-name").hexdigest()


@dataclass(frozen=True, slots=True, eq=False)
class SecureNoise:
    """Cryptographic noise: ChaCha20 under a key for each stream, derived from a 256-bit secret by keyed BLAKE2b.

    >>> SecureNoise.fresh()
    SecureNoise()
    """

    key: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if len(self.key) != 32:
            raise ConfigError(f"Expected a noise key of 32 bytes, got {len(self.key)}. Use SecureNoise.fresh().")
        if not any(self.key):
            raise ConfigError("Expected a secret noise key, got zero bytes. Use SecureNoise.fresh().")

    @classmethod
    def fresh(cls) -> "SecureNoise":
        """A source with a new key from the operating system."""
        return cls(secrets.token_bytes(32))

    def stream(self, *labels: str | int) -> RandomStream:
        """See NoiseSource. One stream gives at most 2³⁵ words."""
        # planning and simulation need no cipher
        from cryptography.hazmat.primitives.ciphers import Cipher
        from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

        key = blake2b(_encode(*labels), key=self.key, digest_size=32, person=b"quoron-secure").digest()
        cipher = Cipher(ChaCha20(key, bytes(16)), mode=None).encryptor()  # a key serves one stream: the nonce is fixed
        left = _MOST_WORDS

        def draw(size: int) -> Words:
            nonlocal left
            left -= size
            if left < 0:
                raise RunError(f"Expected at most 2**35 words of one stream, got {-left:,} more. Use another label.")
            stream = bytearray(8 * size)
            cipher.update_into(bytes(8 * size), stream)
            return np.frombuffer(stream, "<u8").astype(np.uint64, copy=False)

        return RandomStream(draw)

    def require_deployable(self) -> None:
        """Accepts."""

    def export_key(self) -> bytes:
        """The secret. Store it where the ledger lives and nowhere else; destroy it when the run is complete."""
        return self.key

    def fingerprint(self) -> str:
        """See NoiseSource."""
        return blake2b(b"", key=self.key, digest_size=16, person=b"quoron-name").hexdigest()


def total_variation(*, gaussians: int = 0, laplaces: int = 0) -> float:
    """How far all the noise of a run is from exact, in total variation (noise#n3).

    A mechanism that is (ε, δ) with exact noise is (ε, δ + (1 + e^ε) · total_variation) with this noise.
    """
    return GAUSSIAN_SLACK * gaussians + LAPLACE_SLACK * laplaces


def samples_of(shape: int | tuple[int, ...]) -> int:
    """How many there are in an array of this shape."""
    return shape if isinstance(shape, int) else prod(shape)


def _encode(*labels: str | int) -> bytes:
    """Injective: kind, length and text of each label."""
    texts = [("s", label) if isinstance(label, str) else ("i", str(operator.index(label))) for label in labels]
    return b"".join(b"%s%d:%s" % (kind.encode(), len(text.encode()), text.encode()) for kind, text in texts)


@lru_cache(maxsize=256)
def _laplace_digits(scale: float) -> tuple[tuple[int, ...], Words]:
    """⌊2¹⁹² / (1 + exp(2^i / scale))⌋ for the digits i = 0, 1, ... of a geometric magnitude, and ⌊2⁶⁴ / ...⌋."""
    with localcontext() as context:
        context.prec = 90
        powers = takewhile(lambda power: power < _MOST_DIGITS, (2**i / Decimal(scale) for i in range(64)))
        chances = tuple(int(2**192 / (1 + power.exp())) for power in powers)
    levels = np.array([chance >> 128 for chance in chances], np.uint64)
    levels.setflags(write=False)
    return chances, levels


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
def _accept_gaussian(words: Words, at: int, bins: Words, steps: Steps, done: int) -> tuple[int, int]:
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


@njit(cache=True, nogil=True)
def _laplace(words: Words, levels: Words, steps: Steps) -> int:
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


@njit(cache=True)
def _shuffle(picks: Steps) -> Steps:
    """Fisher–Yates from picks[i] uniform in {0, ..., i}."""
    order = np.arange(len(picks))
    for i in range(len(picks) - 1, 0, -1):
        order[i], order[picks[i]] = order[picks[i]], order[i]
    return order


@njit(cache=True)
def _floyd(picks: Steps, size: int) -> NDArray[np.bool_]:
    """Floyd's sampling without replacement from picks[i] uniform in {0, ..., size - len(picks) + i}."""
    taken = np.zeros(size, np.bool_)
    for i in range(len(picks)):
        pick = picks[i]
        taken[size - len(picks) + i if taken[pick] else pick] = True
    return taken
