"""Sources of a run's random words, their independent streams, and samplers that are exact on an integer grid.

    >>> noise = SeededNoise(7)
    >>> first, again = noise.stream("release", 3), noise.stream("release", 3)
    >>> bool((first.gaussian_steps(5) == again.gaussian_steps(5)).all())
    True

A stream is a function of (key, labels). `SeededNoise` (simulations and tests) and `SecureNoise` differ in their words
only, so a simulation tests the samplers that a deployment runs. Samplers return whole steps of a grid, never a rounded
float: a release is then a post-processing of the exact continuous mechanism.

Statements, proofs and error budget: docs/privacy/noise.md.
"""

import operator
import secrets
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from hashlib import blake2b
from math import prod
from typing import Any, Protocol

import numpy as np
from numpy.random.bit_generator import ISeedSequence
from numpy.typing import NDArray

from quoron_privacy.errors import ConfigError, RunError, count, positive, probability
from quoron_privacy.kernels.on_first_use import OnFirstUse

Words = NDArray[np.uint64]
Steps = NDArray[np.int64]
Labels = tuple[str | int, ...]

GRID_BITS = 30  # gaussian_steps counts in units of 2⁻³⁰ standard deviations
GAUSSIAN_SLACK = 2.0**-160  # total variation of one Gaussian sample (noise#n1)
LAPLACE_SLACK = 2.0**-160  # total variation of one Laplace sample (noise#n2)

samplers = OnFirstUse("quoron_privacy.noise.samplers")

_MOST_WORDS = 1 << 35  # of one ChaCha20 stream: 2³² blocks of 64 bytes


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
        """Return an exact uniform permutation of range(size)."""
        order: Steps = samplers.shuffle(samplers.below(self.words, np.arange(1, size + 1, dtype=np.uint64)))
        return order

    def subset(self, size: int, chosen: int) -> Steps:
        """Return an exact uniform subset of range(size), `chosen` members, ascending: sampled without replacement."""
        if not 0 <= chosen <= size:
            raise ConfigError(f"Expected 0 <= chosen <= size, got chosen={chosen}, size={size}.")
        bounds = np.arange(size - chosen + 1, size + 1, dtype=np.uint64)
        members: Steps = samplers.floyd(samplers.below(self.words, bounds), size)
        return members

    def poisson_subset(self, size: int, rate: float) -> Steps:
        """Return each member of range(size) independently with probability `rate`, ascending: Poisson sampling."""
        probability(rate=rate)
        return np.flatnonzero(self.bernoulli(rate, size)).astype(np.int64)

    def weighted_choice(self, weights: Sequence[int]) -> int:
        """Return index i with probability exactly weights[i] / sum(weights); non-negative integers of any size."""
        if not weights or sum(weights) <= 0 or min(weights) < 0:
            raise ConfigError("Expected non-negative integer weights with a positive sum.")
        return int(samplers.weighted_choice(self.words, weights))


class NoiseSource(Protocol):
    """The one injected source of a run."""

    def stream(self, *labels: str | int) -> RandomStream:
        """Return the stream of these labels, from its start; streams of different labels are independent."""

    def require_deployable(self) -> None:
        """Raise RunError unless the noise is fit to protect real people."""

    def export_key(self) -> bytes:
        """Return a key that rebuilds this source. Secret: with it and a start's nonce all noise can be subtracted."""

    def fingerprint(self) -> str:
        """Return a public name of the key (32 hexadecimal digits), by which errors and logs tell sources apart."""


def total_variation(*, gaussians: int = 0, laplaces: int = 0) -> float:
    """Return how far all the noise of a run is from exact, in total variation (noise#n3).

    A mechanism that is (ε, δ) with exact noise is (ε, δ + (1 + e^ε) · total_variation) with this noise.
    """
    return GAUSSIAN_SLACK * gaussians + LAPLACE_SLACK * laplaces


def samples_of(shape: int | tuple[int, ...]) -> int:
    """Return how many there are in an array of this shape."""
    return shape if isinstance(shape, int) else prod(shape)


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
            "Expected cryptographic noise, got SeededNoise: anyone who knows or guesses the seed can subtract the "
            "noise. Use SecureNoise.fresh() outside simulation."
        )

    def export_key(self) -> bytes:
        """Return the seed, as decimal text."""
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
        """Return a source with a new key from the operating system."""
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
        """Return the secret. Store it where the ledger lives and nowhere else; destroy it when the run is complete."""
        return self.key

    def fingerprint(self) -> str:
        """See NoiseSource."""
        return blake2b(b"", key=self.key, digest_size=16, person=b"quoron-name").hexdigest()


def _encode(*labels: str | int) -> bytes:
    """Injective: kind, length and text of each label."""
    texts = [("s", label) if isinstance(label, str) else ("i", str(operator.index(label))) for label in labels]
    return b"".join(b"%s%d:%s" % (kind.encode(), len(text.encode()), text.encode()) for kind, text in texts)


_Drawn = Future[tuple[RandomStream, Steps]]


class OtherStreams:
    """What a source of other streams says of itself: as `source`, which they are made of."""

    __slots__ = ()
    source: NoiseSource

    def require_deployable(self) -> None:
        """As the source."""
        self.source.require_deployable()

    def export_key(self) -> bytes:
        """Return the source's."""
        return self.source.export_key()

    def fingerprint(self) -> str:
        """Return the source's."""
        return self.source.fingerprint()


@dataclass(frozen=True, slots=True)
class StartedNoise(OtherStreams):
    """A source whose streams depend on a secret of one start of a run, which is kept in memory and nowhere else.

    Every start draws independent noise and coins, whatever is answered. So what one drew and did not commit says
    nothing of what a later one releases, and a store that is restored gives another run from there, not the noise that
    was shown. A real run that goes on keeps its privacy and what it has committed; a simulation keeps its bits.
    Statements and proofs: docs/privacy/restored-databases.md.
    """

    source: NoiseSource
    nonce: str = field(repr=False)

    @classmethod
    def fresh(cls, source: NoiseSource) -> "StartedNoise":
        """Of a start that has not been before."""
        return cls(source, secrets.token_hex(32))

    @classmethod
    def simulated(cls, source: NoiseSource) -> "StartedNoise":
        """Of every start of a simulation: all its bits are functions of the seed."""
        return cls(source, "simulation")

    def stream(self, *labels: str | int) -> RandomStream:
        """See NoiseSource."""
        return self.source.stream(*labels, "start", self.nonce)


def of_the_run(noise: NoiseSource) -> NoiseSource:
    """Return what all starts of a run draw from alike: for what has to stay when it goes on, and bears no noise."""
    return noise.source if isinstance(noise, StartedNoise) else noise


class NoiseAhead(OtherStreams, AbstractContextManager["NoiseAhead"]):
    """A source like `source`, with threads of its own for what is expected. A context manager, which ends them.

    Coming rounds' samples are drawn on other cores while users compute. A stream is a function of its labels, so they
    are bit-identical to those drawn when they are needed.

        >>> with NoiseAhead(SeededNoise(7), threads=2) as noise:
        ...     noise.expect(("release", 3), 5)
        ...     early = noise.stream("release", 3).gaussian_steps(5)
        >>> bool((early == SeededNoise(7).stream("release", 3).gaussian_steps(5)).all())
        True
    """

    def __init__(self, source: NoiseSource, *, threads: int) -> None:
        count(threads=threads)
        self.source, self.threads = source, threads
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="quoron-noise")
        self._drawn: dict[Labels, tuple[int, _Drawn]] = {}

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    def expect(self, labels: Labels, samples: int) -> None:
        """Begin with the first `samples` Gaussian steps of the stream of these labels, unless that was said before."""
        if labels not in self._drawn:
            self._drawn[labels] = samples, self._pool.submit(_draw, self.source, labels, samples)

    def stream(self, *labels: str | int) -> RandomStream:
        """See NoiseSource. What was drawn ahead is handed out once; asked again, the stream is drawn again."""
        found = self._drawn.pop(labels, None)
        if found is None:
            return self.source.stream(*labels)
        return _Early(lambda: self.source.stream(*labels), *found)


def _draw(source: NoiseSource, labels: Labels, samples: int) -> tuple[RandomStream, Steps]:
    stream = source.stream(*labels)
    return stream, stream.gaussian_steps(samples)


class _Early(RandomStream):
    """A stream whose first Gaussian samples are there already, if so many are asked for first."""

    __slots__ = ("_early", "_fresh", "_samples")

    def __init__(self, fresh: Callable[[], RandomStream], samples: int, early: _Drawn) -> None:
        super().__init__(self._begin)
        self._fresh, self._samples = fresh, samples
        self._early: _Drawn | None = early

    def _begin(self, size: int):  # type: ignore[no-untyped-def]
        """Something else is asked for first: the stream from its start."""
        self._early, self._draw = None, self._fresh().words
        return self._draw(size)

    def gaussian_steps(self, shape: int | tuple[int, ...]) -> Steps:
        """See RandomStream."""
        if self._early is not None and samples_of(shape) == self._samples:
            after, steps = self._early.result()
            self._early, self._draw = None, after.words
            return steps.reshape(shape)
        return super().gaussian_steps(shape)
