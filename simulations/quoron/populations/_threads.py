"""Compiled loops over ranges on plain threads: an output depends on one user alone, so any split has the same bits."""

from collections.abc import Callable
from functools import partial
from itertools import pairwise

import numba
import numpy as np
from numpy.typing import NDArray

from quoron_privacy.kernels.threads import at_once

_SMALL, _LARGE = 1 << 17, 1 << 21  # numbers below which another thread costs more than it saves; of a range, at most


def in_ranges(loop: Callable[[int, int], object], offsets: NDArray[np.int64], width: int = 1) -> None:
    """Call `loop(first, last)` on ranges that cover 0 .. len(offsets) - 1, each of about as many numbers and not many.

    There are offsets[-1] * width numbers; what a loop needs beside its output is therefore little.
    """
    size = int(offsets[-1]) * width
    threads = 1 if size < _SMALL else numba.get_num_threads()
    shares = np.linspace(0, offsets[-1], max(threads, -(-size // _LARGE)) + 1)[1:-1]
    ends = {0, *np.searchsorted(offsets[1:], shares).tolist(), len(offsets) - 1}
    at_once([partial(loop, *each) for each in pairwise(sorted(ends))], threads)
