"""Where a run's random words come from: a seed, for simulations and tests, or a secret key.

    >>> noise = SeededNoise(7)
    >>> first, again = noise.stream("release", 3), noise.stream("release", 3)
    >>> bool((first.gaussian_steps(5) == again.gaussian_steps(5)).all())
    True

Both differ in their words only: samplers are `noise.streams`', so a simulation tests the code that a deployment runs.
"""

import operator
import secrets
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.random.bit_generator import ISeedSequence

from quoron_privacy.errors import ConfigError, RunError
from quoron_privacy.noise.streams import RandomStream, Words

_MOST_WORDS = 1 << 35  # of one ChaCha20 stream: 2³² blocks of 64 bytes


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


def _encode(*labels: str | int) -> bytes:
    """Injective: kind, length and text of each label."""
    texts = [("s", label) if isinstance(label, str) else ("i", str(operator.index(label))) for label in labels]
    return b"".join(b"%s%d:%s" % (kind.encode(), len(text.encode()), text.encode()) for kind, text in texts)
