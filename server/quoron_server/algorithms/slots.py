"""Slots: every user's place in the run, fixed by public randomness before anything is asked.

    >>> partition(seed=1, users=6)
    array([4, 0, 1, 2, 5, 3])

A no-show keeps its slot: no user is moved, invited in its place, or asked again.
"""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray


@lru_cache(maxsize=2)
def partition(*, seed: int, users: int) -> NDArray[np.int64]:
    """A public random order of users 0 .. users-1, shape (users,), read-only; cohorts are consecutive slices of it."""
    order = np.random.Generator(np.random.Philox(key=seed)).permutation(users)
    order.flags.writeable = False
    return order
