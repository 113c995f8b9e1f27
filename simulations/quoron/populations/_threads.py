"""Compiled loops over ranges on plain threads: an output depends on one user alone, so any split has the same bits."""

from collections.abc import Callable
from functools import partial
from itertools import pairwise

import numba
import numpy as np
from numpy.typing import NDArray

from quoron_client.compute.compiled import at_once, pieces

_SMALL = 1 << 17  # numbers below which another thread costs more than it saves


def in_ranges(loop: Callable[[int, int], object], offsets: NDArray[np.int64], width: int = 1) -> None:
    """Call `loop(first, last)` on ranges that cover 0 .. len(offsets) - 1 and share offsets[-1] * width numbers."""
    threads = 1 if int(offsets[-1]) * width < _SMALL else numba.get_num_threads()
    at_once([partial(loop, *ends) for ends in pairwise(pieces(offsets[1:], width, threads))], threads)
