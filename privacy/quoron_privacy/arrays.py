"""Arrays as signatures call them; how many numbers there are along which axis is said where one is named."""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]  # of any shape
Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]  # mostly with a row for each user
Integers = NDArray[np.int64]
Mask = NDArray[np.bool_]


def ascending(members: Integers, size: int) -> Integers:
    """Return different numbers below `size` in their order; where they are many of all, without comparing them."""
    if size > 32 * len(members):  # where it was measured to pay
        return np.sort(members)
    there = np.zeros(size, np.bool_)
    there[members] = True
    return there.nonzero()[0]
