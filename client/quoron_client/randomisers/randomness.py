"""A client's own random words: from the operating system for real people, from a seed for simulation.

    >>> users = np.array([3, 8])
    >>> both = SeededRandomness(7).words(round=0, users=users, first=0, size=4)
    >>> alone = SeededRandomness(7).words(round=0, users=users[1:], first=2, size=2)
    >>> bool((both[1, 2:] == alone[0]).all())
    True

In the local model the coordinator is the adversary, so the words never come from it. A user sends at most one report a
round: a second report on the same words would let their difference be read.

Source: Philox4x32-10 of Salmon, Moraes, Dror & Shaw (2011) for the seeded words, ChaCha20 for the others.
"""

import secrets
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from quoron_privacy.errors import RunError
from quoron_privacy.kernels.shipped import njit

Words = NDArray[np.uint64]
Users = NDArray[np.int64]

_M0, _M1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_W0, _W1 = np.uint32(0x9E3779B9), np.uint32(0xBB67AE85)
_HALF = np.uint64(32)


class LocalRandomness(Protocol):
    """Where a randomiser's words come from."""

    def words(self, *, round: int, users: Users, first: int, size: int) -> Words:
        """Words `first` to `first + size` of each user's stream of this round, shape (k, size); first + size <= 2³³."""

    def require_deployable(self) -> None:
        """Raises RunError unless the words are fit to protect real people."""


@dataclass(frozen=True, slots=True)
class SeededRandomness:
    """For simulation: each word is a function of (seed, round, user, position), whoever else is asked in one go."""

    seed: int

    def words(self, *, round: int, users: Users, first: int, size: int) -> Words:
        """See LocalRandomness."""
        label = f"{int(self.seed)}/{int(round)}".encode()
        key = int.from_bytes(blake2b(label, digest_size=8, person=b"quoron-local").digest(), "little")
        out = np.empty((len(users), size), np.uint64)
        fill_words(np.uint64(key), np.ascontiguousarray(users, np.int64), first, out)
        return out

    def require_deployable(self) -> None:
        """Always refuses."""
        raise RunError(
            "Expected randomness from the operating system, got SeededRandomness: whoever knows or guesses the seed "
            "can undo a report. Use SystemRandomness() outside simulation."
        )


def _fresh_cipher() -> Any:
    # planning and simulation need no cipher
    from cryptography.hazmat.primitives.ciphers import Cipher
    from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

    return Cipher(ChaCha20(secrets.token_bytes(32), bytes(16)), mode=None).encryptor()


@dataclass(frozen=True, slots=True, eq=False)
class SystemRandomness:
    """For deployment: ChaCha20 under a fresh key from the operating system. No word is ever given twice.

    It ignores its labels, so a report cannot be drawn again: keep what was sent, and send the same after a lost reply.
    """

    _cipher: Any = field(default_factory=_fresh_cipher, repr=False)

    def words(self, *, round: int, users: Users, first: int, size: int) -> Words:
        """See LocalRandomness."""
        del round, first
        stream = bytearray(8 * len(users) * size)
        self._cipher.update_into(bytes(len(stream)), stream)
        return np.frombuffer(stream, "<u8").astype(np.uint64, copy=False).reshape(len(users), size)

    def require_deployable(self) -> None:
        """Accepts."""


@njit(cache=True, inline="always")
def _philox(block, user, key):  # type: ignore[no-untyped-def]
    """Four 32-bit words, as two of 64 bits."""
    c0, c1 = np.uint32(block), np.uint32(block >> _HALF)
    c2, c3 = np.uint32(user), np.uint32(user >> _HALF)
    k0, k1 = np.uint32(key), np.uint32(key >> _HALF)
    for _ in range(10):
        p0, p1 = _M0 * np.uint64(c0), _M1 * np.uint64(c2)
        c0, c2 = np.uint32(np.uint32(p1 >> _HALF) ^ c1 ^ k0), np.uint32(np.uint32(p0 >> _HALF) ^ c3 ^ k1)
        c1, c3 = np.uint32(p1), np.uint32(p0)
        k0, k1 = np.uint32(k0 + _W0), np.uint32(k1 + _W1)
    return np.uint64(c0) | np.uint64(c1) << _HALF, np.uint64(c2) | np.uint64(c3) << _HALF


@njit(cache=True)
def fill_words(key, users, first, out):  # type: ignore[no-untyped-def]
    """Fills row u of `out` (users, words) with user u's words from number `first` on."""
    size = out.shape[1]
    for i in range(len(users)):
        user = np.uint64(users[i])
        for block in range(first // 2, (first + size + 1) // 2):
            even, odd = _philox(np.uint64(block), user, key)
            j = 2 * block - first
            if j >= 0:
                out[i, j] = even
            if j + 1 < size:
                out[i, j + 1] = odd
