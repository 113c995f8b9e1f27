"""Which answers of a round count when some may be missing: the first B in public slot order, of B + reserve asked.

    >>> import numpy as np
    >>> first_answered(np.array([True, False, True, True]), 2).tolist()
    [True, False, True, False]

The divisor is B whatever happened. Replacing a user, or its absence, swaps at most one counted answer for another, so a
mean of clipped answers moves by at most 2C/B: the replace-one sensitivity. How many answered is not released.
Reserves belong to their round: whoever was asked has taken part, used or not. Proof: docs/privacy/srgd.md, "Dropouts".
"""

import numpy as np
from numpy.typing import NDArray

from quoron_privacy.errors import count

Mask = NDArray[np.bool_]


def first_answered(answered: Mask, size: int) -> Mask:
    """The first `size` users that answered, in slot order; fewer if fewer did. Shapes (k,) and (k,)."""
    count(size=size)
    return answered & (np.cumsum(answered) <= size)
