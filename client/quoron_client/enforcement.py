"""Bringing a user's items within the public bounds that every guarantee assumes."""

from typing import Any

import numpy as np
from numba import float64

from quoron_client._compiled import user_loop, writable
from quoron_client.items import ItemBatch
from quoron_client.losses import Loss


def bounded(batch: ItemBatch, loss: Loss) -> ItemBatch:
    """`batch` with every feature row's norm at most loss.feature_norm and every label within its bound.

    Formal guarantee: for whatever the batch holds, every finite row of the result satisfies the bounds under which
    `loss.lipschitz` and `loss.smoothness` hold.

    | input                           | what happens                                                             |
    | ------------------------------- | ------------------------------------------------------------------------ |
    | row longer than feature_norm    | scaled down, a little more than the rounding of its stored type          |
    | row or label not finite         | the whole item becomes NaN; its user's answer is REJECTED, nothing raised |
    | row longer by float64 rounding  | kept: its computed norm is within the bound                              |

    Applying it twice changes nothing more. Nothing is copied where nothing changes.
    """
    labels = loss.bound_labels(batch.labels)
    factors, largest = np.empty(len(labels)), np.empty(len(labels))
    _factors(batch, loss.feature_norm, factors, largest)
    bad = np.isnan(factors)
    features = batch.features
    changed = np.flatnonzero(factors != 1.0)  # NaN is unequal to 1
    if len(changed):
        features = features.copy()
        # Divided by its largest entry first: that entry may be too large to square.
        rows = features[changed].astype(np.float64) / largest[changed, None]
        features[changed] = rows * factors[changed, None]
        labels = np.where(bad, np.nan, labels)
    return ItemBatch(features, labels, batch.offsets)


@user_loop(float64, writable(float64, 1), writable(float64, 1))
def _factors(
    features: Any,
    labels: Any,
    offsets: Any,
    bound: float,
    factors: Any,
    largest: Any,
    start: int,
    stop: int,
) -> None:
    """factor = 1: keep the row; NaN: not finite; otherwise the row becomes factor · (row / its largest magnitude)."""
    dimension = features.shape[1]
    rounding = 2.0 * np.finfo(features.dtype).eps + 4.0 * (dimension + 4) * np.finfo(np.float64).eps
    for i in range(offsets[start], offsets[stop]):
        squares = 0.0
        for j in range(dimension):
            squares += np.float64(features[i, j]) * np.float64(features[i, j])
        factors[i] = largest[i] = 1.0
        if np.sqrt(squares) <= bound and np.isfinite(labels[i]):
            continue
        top = 0.0
        for j in range(dimension):
            top = max(top, abs(np.float64(features[i, j])))
        scaled = 0.0
        for j in range(dimension):
            scaled += (features[i, j] / top) * (features[i, j] / top)
        usable = np.isfinite(scaled) and np.isfinite(top) and np.isfinite(labels[i])
        factors[i] = bound * (1.0 - rounding) / np.sqrt(scaled) if usable else np.nan
        largest[i] = top if usable else 1.0
