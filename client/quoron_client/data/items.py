"""The items of a batch of users, ragged, in one block of memory (compressed rows)."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quoron_privacy.errors import DataError

Features = NDArray[np.float32] | NDArray[np.float64]


class _Rows:
    """Rows begins[u] to ends[u] of a block of memory are user u's."""

    __slots__ = ()

    features: Features
    labels: NDArray[np.float64]
    begins: NDArray[np.int64]
    ends: NDArray[np.int64]
    weights: NDArray[np.float64] | None

    @property
    def users(self) -> int:
        """Number of users k."""
        return len(self.begins)

    @property
    def dimension(self) -> int:
        """Number of features d."""
        return int(self.features.shape[1])

    @property
    def counts(self) -> NDArray[np.int64]:
        """Number of items of each user (k,)."""
        return self.ends - self.begins

    @property
    def longest(self) -> int:
        """Most items of a user."""
        return int(self.counts.max(initial=0))

    @property
    def size(self) -> int:
        """Numbers that a reader of these users' items reads."""
        return int(self.counts.sum()) * self.dimension

    @property
    def item_weights(self) -> NDArray[np.float64]:
        """The weights (N,) as compiled loops take them; empty where all are 1."""
        return np.empty(0) if self.weights is None else self.weights

    def of(self, users: NDArray[np.int64]) -> "ItemBatch":
        """Return the items of some of its users (k,), in the given order: a copy."""
        begins, counts = self.begins[users], self.counts[users]
        offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        rows = np.arange(offsets[-1]) + np.repeat(begins - offsets[:-1], counts)
        features: Features = self.features[rows]
        weights = None if self.weights is None else self.weights[rows]
        return ItemBatch(features, self.labels[rows], offsets, weights)

    def seen(self, users: NDArray[np.int64]) -> "Items":
        """Return some of its users (k,), in the given order, where they are: nothing is copied."""
        if isinstance(self, ItemBatch) and len(users) == self.users and np.array_equal(users, np.arange(self.users)):
            return self
        return ItemView(self.features, self.labels, self.begins[users], self.ends[users], self.weights)


@dataclass(frozen=True, slots=True, eq=False)
class ItemBatch(_Rows):
    """Items offsets[u] to offsets[u + 1] belong to the batch's user u.

    A user without items is allowed here (offsets equal) and answers nothing; populations refuse such users by name.
    """

    features: Features  # (N, d), C-contiguous
    labels: NDArray[np.float64]  # (N,)
    offsets: NDArray[np.int64]  # (k + 1,), from 0 to N, non-decreasing
    weights: NDArray[np.float64] | None = None  # (N,), what each item's loss counts, in [0, 1]; None: all 1

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
        if self.weights is not None:
            _check_weights(self.weights, len(features))

    @property
    def begins(self) -> NDArray[np.int64]:  # type: ignore[override]
        """The first row of each user (k,)."""
        return self.offsets[:-1]

    @property
    def ends(self) -> NDArray[np.int64]:  # type: ignore[override]
        """One past the last row of each user (k,)."""
        return self.offsets[1:]

    def between(self, first: int, last: int) -> "ItemBatch":
        """Return the items of neighbouring users, from `first` until before `last`: nothing is copied."""
        rows = slice(self.offsets[first], self.offsets[last])
        weights = None if self.weights is None else self.weights[rows]
        offsets = self.offsets[first : last + 1] - self.offsets[first]
        return ItemBatch(self.features[rows], self.labels[rows], offsets, weights)

    def where(self, begins: NDArray[np.int64], ends: NDArray[np.int64]) -> "ItemView":
        """Return its rows as those of other users (k,): begins[u] to ends[u] are user u's. DataError for missing rows.

        Rows may be nobody's, or several users'.
        """
        if begins.shape != ends.shape or begins.dtype != np.int64 or ends.dtype != np.int64:
            raise DataError(f"Expected int64 begins and ends (k,), got {begins.shape} and {ends.shape}.")
        if np.any(begins < 0) or np.any(ends < begins) or np.any(ends > len(self.features)):
            raise DataError(f"Expected users' items among {len(self.features)}, got others.")
        return ItemView(self.features, self.labels, begins, ends, self.weights)


@dataclass(frozen=True, slots=True, eq=False)
class ItemView(_Rows):
    """Users whose items lie somewhere in a larger block of memory: rows begins[u] to ends[u] are user u's.

    Made by `ItemBatch` alone, whose checks hold for it. A loop over users reads it like a batch.
    """

    features: Features  # (N, d), of other users, too
    labels: NDArray[np.float64]  # (N,)
    begins: NDArray[np.int64]  # (k,)
    ends: NDArray[np.int64]  # (k,)
    weights: NDArray[np.float64] | None = None  # (N,)


Items = ItemBatch | ItemView


def _check_weights(weights: NDArray[np.float64], items: int) -> None:
    if weights.shape != (items,) or weights.dtype != np.float64:
        raise DataError(f"Expected float64 weights of shape ({items},), got {weights.dtype} of shape {weights.shape}.")
    if not (weights.flags.c_contiguous and weights.flags.aligned):
        raise DataError("Expected C-contiguous weights, got strided ones.")
