"""The items of a batch of users, ragged, in one block of memory (compressed rows)."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quoron_protos.errors import DataError

Features = NDArray[np.float32] | NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class ItemBatch:
    """Items offsets[u] to offsets[u + 1] belong to the batch's user u.

    A user without items is allowed here (offsets equal) and answers nothing; populations refuse such users by name.
    """

    features: Features  # (N, d), C-contiguous
    labels: NDArray[np.float64]  # (N,)
    offsets: NDArray[np.int64]  # (k + 1,), from 0 to N, non-decreasing

    def __post_init__(self) -> None:
        features, labels, offsets = self.features, self.labels, self.offsets
        if features.ndim != 2 or labels.shape != (len(features),):
            raise DataError(f"Expected features (N, d) and labels (N,), got {features.shape} and {labels.shape}.")
        if offsets.ndim != 1 or len(offsets) == 0 or offsets[0] != 0 or offsets[-1] != len(features):
            raise DataError(f"Expected offsets from 0 to {len(features)}, got shape {offsets.shape}.")
        # Compiled loops read this memory without looking: what they rely on is settled here.
        if features.dtype not in (np.float32, np.float64) or labels.dtype != np.float64 or offsets.dtype != np.int64:
            found = f"{features.dtype}, {labels.dtype} and {offsets.dtype}"
            raise DataError(f"Expected float32 or float64 features, float64 labels and int64 offsets, got {found}.")
        if not all(array.flags.c_contiguous and array.flags.aligned for array in (features, labels, offsets)):
            raise DataError("Expected C-contiguous features, labels and offsets, got strided ones.")
        if np.any(offsets[1:] < offsets[:-1]):
            raise DataError("Expected non-decreasing offsets, got a user with a negative number of items.")

    @property
    def users(self) -> int:
        """Number of users k."""
        return len(self.offsets) - 1

    @property
    def dimension(self) -> int:
        """Number of features d."""
        return int(self.features.shape[1])
