"""Slots: every user's place in the run, fixed by public randomness before anything is asked.

    >>> partition(seed=1, users=6)
    array([4, 0, 1, 2, 5, 3])

A no-show keeps its slot: nobody is moved, invited in its place, or asked again.
"""

from functools import lru_cache

import numpy as np
from numba import njit
from numpy.typing import NDArray

from quoron_privacy.lanes import prefetch

_MANY = 1 << 18  # users whose order no longer lies in the nearer caches
_WORDS, _AHEAD = 1 << 15, 64  # random words at a time, and exchanges whose places are asked for together


@lru_cache(maxsize=2)
def partition(*, seed: int, users: int) -> NDArray[np.int64]:
    """A public random order of users 0 .. users-1, shape (users,), read-only; cohorts are consecutive slices of it.

    It is numpy's `permutation`, which waits for memory at each user, and for many users the same order made in a third
    of the time.
    """
    random = np.random.Philox(key=seed)
    if _MANY <= users <= 2**32:
        order, picks, left = np.arange(users), np.empty(_AHEAD, np.int64), users - 1
        while left:
            left = _exchanged(random.random_raw(_WORDS), order, picks, left)
    else:
        order = np.random.Generator(random).permutation(users)
    order.flags.writeable = False
    return order


@njit(cache=True, nogil=True, error_model="numpy")
def _exchanged(words, order, picks, i):  # type: ignore[no-untyped-def]
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
