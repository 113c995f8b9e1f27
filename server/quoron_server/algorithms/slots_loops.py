"""The loop of `slots`: exchanges of a public random order, with memory asked for ahead."""

import numpy as np

from quoron_privacy.kernels.prebuilt import njit
from quoron_privacy.kernels.simd import prefetch


@njit(cache=True, nogil=True, error_model="numpy")
def exchanged(words, order, picks, i):  # type: ignore[no-untyped-def]
    """Exchange order[i] with one of order[0] .. order[i], then order[i - 1], as far as words last; where to go on.

    As numpy has it: of each half word, the lower one first, as many bits as i has; a number above i is passed over.
    """
    used, halves = 0, 2 * len(words)
    while i > 0 and used < halves:
        # Numbers of as many bits as i: half of them or more are at most i. Good until i has a bit fewer.
        mask = 1
        while mask < i:
            mask = 2 * mask + 1
        first, held, least = i, 0, mask >> 1
        while i > least and held < len(picks) and used < halves:
            # Picks first, exchanges later: memory has the time of a batch to bring what will be exchanged.
            pick = np.int64(words[used >> 1] >> np.uint64(32 * (used & 1))) & mask
            picks[held] = pick
            prefetch(order, pick)
            taken = int(pick <= i)  # no branch: which it is cannot be foreseen
            used, held, i = used + 1, held + taken, i - taken
        for k in range(held):
            order[first - k], order[picks[k]] = order[picks[k]], order[first - k]
    return i
