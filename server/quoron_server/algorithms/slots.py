"""Slots: every user's place in the run, fixed by public randomness before anything is asked.

    >>> partition(seed=1, users=6)
    array([4, 0, 1, 2, 5, 3])

A no-show keeps its slot: no user is moved, invited in its place, or asked again.
"""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from quoron_privacy.kernels.on_first_use import OnFirstUse

loops = OnFirstUse("quoron_server.algorithms.slots_loops")

MANY = 1 << 18  # users whose order no longer lies in the nearer caches
_WORDS, _AHEAD = 1 << 15, 64  # random words at a time, and exchanges whose places are asked for together


@lru_cache(maxsize=2)
def partition(*, seed: int, users: int) -> NDArray[np.int64]:
    """A public random order of users 0 .. users-1, shape (users,), read-only; cohorts are consecutive slices of it.

    It is numpy's `permutation`, which waits for memory at each user, and for many users the same order made in a third
    of the time.
    """
    random = np.random.Philox(key=seed)
    if MANY <= users <= 2**32:
        order, picks, left = np.arange(users), np.empty(_AHEAD, np.int64), users - 1
        while left:
            left = loops.exchanged(random.random_raw(_WORDS), order, picks, left)
    else:
        order = np.random.Generator(random).permutation(users)
    order.flags.writeable = False
    return order
