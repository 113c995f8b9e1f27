"""Arrays as signatures call them; how many numbers there are along which axis is said where one is named."""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]  # of any shape
Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]  # mostly with a row for each user
Integers = NDArray[np.int64]
Mask = NDArray[np.bool_]
