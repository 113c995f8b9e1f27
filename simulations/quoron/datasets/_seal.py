"""Whether what is read back from a scratch file is what was written there: sums that a disk cannot keep by chance.

    seal = Seal()
    kept = seal.of([features, labels])
    seal.of(read_back) == kept

Of every block of 8 KB a sum of products of its words, each moved by a secret word of this process (NH, Black et al.
1999): another block has another sum but with probability 2⁻³², whichever the two are, as long as nobody knows the
secret words, and a block with one changed bit always has another sum unless a secret word is just its opposite. The
sums' BLAKE2b is the seal. It runs at the speed of memory, several times faster than a digest of all bytes.
"""

import hashlib
import secrets
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quoron_privacy.kernels.shipped import njit

BLOCK = 2048  # words of four bytes
_HALF = BLOCK // 2


class Seal:
    """Seals by words of its own, which it never shows."""

    def __init__(self) -> None:
        self._words: NDArray[np.uint32] = np.frombuffer(secrets.token_bytes(4 * BLOCK), np.uint32)

    def of(self, arrays: Iterable[NDArray[Any]]) -> bytes:
        """The seal of arrays of whole words one after the other, 16 bytes: of their bytes and lengths alone."""
        whole = hashlib.blake2b(digest_size=16)
        for array in arrays:
            words = array.reshape(-1).view(np.uint32)
            sums = np.empty(-(-len(words) // BLOCK), np.uint64)
            _sums(words, self._words, sums)
            whole.update(len(words).to_bytes(8, "little") + sums.tobytes())
        return whole.digest()


@njit(cache=True, nogil=True, error_model="numpy")
def _sums(words: Any, secret: Any, sums: Any) -> None:
    """The sum of each block of words (N,), the last of which may be shorter."""
    for block in range(len(sums)):
        first = block * BLOCK
        left = min(BLOCK, len(words) - first)
        total = np.uint64(0)
        both = max(0, left - _HALF)
        for i in range(both):
            a = np.uint32(words[first + i] + secret[i])
            b = np.uint32(words[first + _HALF + i] + secret[_HALF + i])
            total += np.uint64(a) * np.uint64(b)
        for i in range(both, min(left, _HALF)):  # as if zeros followed
            total += np.uint64(np.uint32(words[first + i] + secret[i])) * np.uint64(secret[_HALF + i])
        sums[block] = total
