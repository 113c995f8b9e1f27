"""Memory and disk of a store of items: arrays that begin at a page, and a file without a name.

    scratch = Scratch()
    scratch.write([features, labels], at=0)

Both are such that disks write and read them without the system's cache: nothing else is pushed out of memory.

Whether what is read back from a scratch file is what was written there: sums that a disk cannot keep by chance.

    seal = Seal()
    kept = seal.of([features, labels])
    seal.of(read_back) == kept

Of every block of 8 KB a sum of products of its words, each moved by a secret word of this process (NH, Black et al.
1999): another block has another sum but with probability 2⁻³², whichever the two are, as long as nobody knows the
secret words, and a block with one changed bit always has another sum unless a secret word is just its opposite. The
sums' BLAKE2b is the seal. It runs at the speed of memory, several times faster than a digest of all bytes.
"""

import errno
import fcntl
import hashlib
import os
import secrets
import tempfile
import weakref
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quoron_privacy.errors import RunError
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


VIEWS = 1000  # arrays that are written at once, of those that systems allow
PAGE = 4096  # bytes: memory that disks read and write begins at a multiple
SCRATCH = "QUORON_SCRATCH"


def folder() -> Path:
    """Where such files are."""
    given = os.environ.get(SCRATCH)
    if given:
        return Path(given)
    return Path("/var/tmp") if os.access("/var/tmp", os.W_OK) else Path(tempfile.gettempdir())


@dataclass(frozen=True, slots=True, eq=False)
class RowBuffer:
    """Items side by side, with room for what comes."""

    features: NDArray[np.float32]  # (N, d)
    labels: NDArray[np.float64]  # (N,)
    weights: NDArray[np.float64]  # (N,), or empty where all count alike

    @classmethod
    def of(cls, rows: int, features: int, *, weighted: bool, memory: NDArray[np.uint8] | None = None) -> "RowBuffer":
        """Room for so many, in `memory` if there is some: `size` bytes."""
        whole = np.empty(cls.size(rows, features, weighted=weighted), np.uint8) if memory is None else memory
        at = -whole.ctypes.data % PAGE
        arrays: list[Any] = []
        for shape, kind in (((rows, features), np.float32), ((rows,), np.float64), ((rows * weighted,), np.float64)):
            size = int(np.prod(shape)) * np.dtype(kind).itemsize
            arrays.append(whole[at : at + size].view(kind).reshape(shape))
            at += -(-size // PAGE) * PAGE
        return cls(*arrays)

    @staticmethod
    def size(rows: int, features: int, *, weighted: bool) -> int:
        """Bytes that so many take, each array from the beginning of a page."""
        return rows * (4 * features + (16 if weighted else 8)) + 4 * PAGE

    def part(self, first: int, last: int) -> "RowBuffer":
        """Some of them."""
        return RowBuffer(self.features[first:last], self.labels[first:last], self.weights[first:last])

    @property
    def arrays(self) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
        """What there is of a row."""
        return (self.features, self.labels, self.weights)

    @property
    def width(self) -> int:
        """Bytes of a row."""
        return 4 * int(self.features.shape[1]) + (16 if len(self.weights) else 8)


def aligned(shape: tuple[int, ...], kind: Any) -> Any:
    """An array that begins at a page."""
    size = int(np.prod(shape)) * np.dtype(kind).itemsize
    whole = np.empty(size + PAGE, np.uint8)
    first = -whole.ctypes.data % PAGE
    return whole[first : first + size].view(kind).reshape(shape)


class ReusedMemory:
    """Memory for one chunk after the other: what the system clears afresh takes as long as reading does."""

    def __init__(self) -> None:
        self._free: list[NDArray[np.uint8]] = []

    def take(self, size: int) -> NDArray[np.uint8]:
        """Some bytes, always as many; they are given again when nothing that lies in them is used any more."""
        try:
            own = self._free.pop()
        except IndexError:
            own = np.empty(size, np.uint8)
        taken: NDArray[np.uint8] = np.frombuffer(own.data, np.uint8)  # what views of it keep alive, unlike a slice
        weakref.finalize(taken, self._free.append, own).atexit = False
        return taken


class Scratch:
    """A file in `folder()` that is gone when it is closed, or with the process. RunError where there is no room."""

    def __init__(self) -> None:
        try:
            self._file: Any = tempfile.TemporaryFile(prefix="quoron-", dir=folder(), buffering=0)  # noqa: SIM115
        except OSError as error:
            raise RunError(
                f"Cannot keep the items of a run in {folder()}: {error.strerror}. Set {SCRATCH} to a folder on a disk "
                "with room."
            ) from None
        self.close = weakref.finalize(self, self._file.close)
        _directly(self._file, True)

    def write(self, arrays: Iterable[NDArray[Any]], at: int) -> None:
        """Arrays one after the other from a place on."""
        try:
            self._all(os.pwritev, arrays, at)
        except OSError as error:
            raise RunError(
                f"Cannot keep the items of this run in {folder()}: {error.strerror}. Make room, or set {SCRATCH} to a "
                "folder on a disk with some."
            ) from None

    def read(self, arrays: Iterable[NDArray[Any]], at: int) -> None:
        """What is there, into arrays one after the other."""
        try:
            self._all(os.preadv, arrays, at)
        except OSError as error:
            raise RunError(
                f"Cannot read the items of this run back from {folder()}: {error.strerror}. Set {SCRATCH} to a folder "
                "on another disk, and resume the run."
            ) from None

    def _all(self, call: Any, arrays: Iterable[NDArray[Any]], at: int) -> None:
        left = deque(memoryview(array.data).cast("B") for array in arrays if array.size)
        while left:
            done = self._without_cache(call, [*islice(left, VIEWS)], at)
            if done == 0:
                raise RunError(f"Expected the items of this run in {folder()}, but the file has become shorter.")
            at += done
            while left and done >= len(left[0]):
                done -= len(left.popleft())
            if done:
                left[0] = left[0][done:]

    def _without_cache(self, call: Any, data: Any, at: int) -> int:
        """A call past the system's cache, where the disk takes that; else through it."""
        try:
            return int(call(self._file.fileno(), data, at))
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            _directly(self._file, False)
            return int(call(self._file.fileno(), data, at))


def unlike_written() -> RunError:
    """What to say of bytes that came back as others."""
    return RunError(
        f"Expected the items of this run back from {folder()} as they were written, got others: the disk or its "
        f"memory is not to be trusted. Set {SCRATCH} to a folder on another disk, and resume the run."
    )


def _directly(file: Any, wanted: bool) -> None:
    """Ask the disk past the system's cache, or through it, if it can be asked so."""
    flag = getattr(os, "O_DIRECT", 0)
    was = fcntl.fcntl(file.fileno(), fcntl.F_GETFL)
    with suppress(OSError):
        fcntl.fcntl(file.fileno(), fcntl.F_SETFL, was | flag if wanted else was & ~flag)
