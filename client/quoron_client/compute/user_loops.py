"""Compiled loops over the users of a batch.

They take a range of users and release the interpreter lock, so that plain threads share the work. A user's result
depends on that user's items alone and is computed by one thread: every split gives the same bits.
"""

from collections.abc import Callable
from functools import cached_property, partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numba
import numpy as np
from numba import float64, int64, types
from numpy.typing import NDArray

from quoron_client.data.items import Items
from quoron_privacy.kernels.compiled import SUMS, read_only
from quoron_privacy.kernels.shipped import njit
from quoron_privacy.kernels.threads import all_threads, at_once

_SMALL = 1 << 19  # numbers in a batch that one thread reads in a few times what it takes to wake another
_LARGE, _PIECES = 1 << 21, 4  # numbers in a piece, at least, if there are several a thread; and how many at most


class UserLoop:
    """A compiled loop over the users of a batch.

    The function's arguments are features, labels, begins and ends (rows begins[u] to ends[u] are user u's), then its
    own (of the given numba types), then the first and one past the last user to do.
    """

    def __init__(self, function: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        self._function, self._arguments = function, arguments

    @cached_property
    def _float32(self) -> Any:
        return self._compile(numba.float32)

    @cached_property
    def _float64(self) -> Any:
        return self._compile(float64)

    def compile(self) -> None:
        """Compile for both precisions now, rather than at the first call."""
        _ = self._float32, self._float64

    def kept(self) -> bool:
        """Whether kernels of this loop are on disk; they may be of an older source or of another processor."""
        folder = str(njit(cache=True)(self._function).stats.cache_path)
        return any(Path(folder).glob(f"*.{self._function.__qualname__}-*.nbi"))

    def _compile(self, element: Any) -> Any:
        batch = (read_only(element, 2), read_only(float64, 1), read_only(int64, 1), read_only(int64, 1))
        return njit(types.void(*batch, *self._arguments, int64, int64), **SUMS)(self._function)

    def __call__(self, batch: Items, *arguments: Any, threads: int | None = None) -> None:
        """Run over all users of `batch` on `threads` threads.

        By default that is as many as numba was given, or one where starting threads costs more than it saves.
        """
        threads = threads_for(batch, threads)
        bounds = pieces(np.cumsum(batch.counts), batch.dimension, threads)
        at_once([partial(self.over, batch, first, last, *arguments) for first, last in pairwise(bounds)], threads)

    def over(self, batch: Items, first: int, last: int, *arguments: Any) -> None:
        """Run over users `first` to `last` on this thread."""
        loop: Any = self._float32 if batch.features.dtype == np.float32 else self._float64
        loop(batch.features, batch.labels, batch.begins, batch.ends, *arguments, first, last)


def threads_for(batch: Items, threads: int | None) -> int:
    """As many as given; else what numba was given, or one where the others would cost more than they save."""
    if threads is not None:
        return threads
    return 1 if batch.size < _SMALL else all_threads()


def pieces(so_far: NDArray[np.int64], width: int, threads: int) -> list[int]:
    """Where pieces of about equal size begin, of users whose sizes add up to `so_far` (k,) times `width`, and k.

    As many as threads, or a few times that where there is much to do: whoever is slower then takes fewer.
    """
    if threads == 1 or len(so_far) < threads:
        return [0, len(so_far)]
    number = min(_PIECES * threads, max(threads, int(so_far[-1]) * width // _LARGE))
    shares = [int(so_far[-1]) * part // number for part in range(1, number)]
    return [0, *so_far.searchsorted(shares).tolist(), len(so_far)]


def user_loop(*arguments: Any) -> Callable[[Callable[..., None]], UserLoop]:
    """Decorator for `UserLoop`; the arguments are the numba types of the loop's own arguments."""
    return lambda function: UserLoop(function, arguments)
