"""Compiled loops over ranges on plain threads: an output depends on one user alone, so any split has the same bits."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numba
import numpy as np
from numpy.typing import NDArray

_SMALL = 1 << 17  # numbers below which starting threads costs more than it saves


def in_ranges(loop: Callable[[int, int], object], offsets: NDArray[np.int64], width: int = 1) -> None:
    """Call `loop(first, last)` on ranges that cover 0 .. len(offsets) - 1 and share offsets[-1] * width numbers."""
    count, threads = len(offsets) - 1, numba.get_num_threads()
    if threads == 1 or int(offsets[-1]) * width < _SMALL:
        loop(0, count)
        return
    shares = np.linspace(0, offsets[-1], threads + 1)[1:-1]
    bounds = [0, *(int(b) for b in np.searchsorted(offsets, shares)), count]
    with ThreadPoolExecutor(threads) as pool:
        for part in [pool.submit(loop, *ends) for ends in pairwise(bounds)]:
            part.result()
