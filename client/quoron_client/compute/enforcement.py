"""Bringing a user's items within the public bounds that every guarantee assumes."""

from typing import Any

import numpy as np
from numba import float64
from numpy.typing import NDArray

from quoron_client.compute.user_loops import user_loop
from quoron_client.data.items import ItemBatch
from quoron_client.losses import Loss
from quoron_privacy.kernels.compiled import writable


def bounded(batch: ItemBatch, loss: Loss) -> ItemBatch:
    """`batch` with every feature row's norm at most loss.feature_norm, every label and weight within its bounds.

    Formal guarantee: for whatever the batch holds, every finite row of the result satisfies the bounds under which
    `loss.lipschitz` and `loss.smoothness` hold.

    | input                           | what happens                                                             |
    | ------------------------------- | ------------------------------------------------------------------------ |
    | row longer than feature_norm    | scaled down, a little more than the rounding of its stored type          |
    | entry beyond feature_bound      | held at it, then rounded towards zero                                    |
    | more than active_features       | the largest in magnitude stay, the first among equals; others become 0   |
    | row or label not finite         | the whole item becomes NaN; its user's answer is REJECTED, nothing raised |
    | label that is no class number   | the same, for a loss that counts classes                                 |
    | weight below 0 or above 1       | becomes 0 or 1; one that is not finite makes the whole item NaN          |
    | row longer by float64 rounding  | kept: its computed norm is within the bound                              |

    Applying it twice changes nothing more. Nothing is copied where nothing changes.
    """
    labels, weights = loss.bound_labels(batch.labels), batch.weights
    if np.array_equal(labels, batch.labels):
        labels = batch.labels
    if weights is not None:
        labels = np.where(np.isfinite(weights), labels, np.nan)
        if not np.all((weights >= 0) & (weights <= 1)):
            weights = np.clip(weights, 0.0, 1.0)
    factors = np.empty(len(labels))
    _factors(ItemBatch(batch.features, _or_nan(batch.labels, labels), batch.offsets), loss.feature_norm, factors)
    bad = np.isnan(factors)
    features = batch.features
    changed = np.flatnonzero(factors != 1.0)  # NaN is unequal to 1
    if len(changed):
        features = features.copy()
        # Divided by its largest entry first: that entry may be too large to square.
        rows = features[changed].astype(np.float64)
        rows /= np.where(bad[changed], 1.0, np.abs(rows).max(axis=1, initial=0.0))[:, None]
        features[changed] = rows * factors[changed, None]
        labels = np.where(bad, np.nan, labels)
    features = _fewer(_held(features, loss.feature_bound), loss.active_features)
    return ItemBatch(features, labels, batch.offsets, weights)


def _held(features: Any, bound: float | None) -> Any:
    """Every entry within ±bound as its stored type can write it; NaN stays."""
    if bound is None or not np.any(np.abs(features) > bound):
        return features
    most = features.dtype.type(bound)
    if float(most) > bound:
        most = np.nextafter(most, features.dtype.type(0))
    return np.clip(features, -most, most)


def _fewer(features: Any, most: int | None) -> Any:
    """At most so many entries of a row that are not zero; NaN counts as the largest, so a row keeps its NaN."""
    if most is None or not len(features):
        return features
    crowded = np.flatnonzero(np.count_nonzero(features, axis=1) > most)
    if not len(crowded):
        return features
    features = features.copy()
    order = np.argsort(
        np.where(np.isnan(features[crowded]), -np.inf, -np.abs(features[crowded])), axis=1, kind="stable"
    )
    rows = features[crowded]
    np.put_along_axis(rows, order[:, most:], 0, axis=1)
    features[crowded] = rows
    return features


def _or_nan(given: NDArray[np.float64], within: NDArray[np.float64]) -> NDArray[np.float64]:
    """Labels as they were given, but NaN where they have no place within their bound."""
    lost = np.isnan(within)
    return np.where(lost, np.nan, given) if lost.any() else given


@user_loop(float64, writable(float64, 1))
def _factors(
    features: Any,
    labels: Any,
    begins: Any,
    ends: Any,
    bound: float,
    factors: Any,
    start: int,
    stop: int,
) -> None:
    """factor = 1: keep the row; NaN: not finite; otherwise the row becomes factor · (row / its largest magnitude)."""
    dimension = features.shape[1]
    rounding = 2.0 * np.finfo(features.dtype).eps + 4.0 * (dimension + 4) * np.finfo(np.float64).eps
    if start == stop:
        return
    for i in range(begins[start], ends[stop - 1]):  # of a batch, whose users lie side by side
        squares = 0.0
        for j in range(dimension):
            squares += np.float64(features[i, j]) * np.float64(features[i, j])
        factors[i] = 1.0
        if np.sqrt(squares) <= bound and np.isfinite(labels[i]):
            continue
        # Too long, or not finite, or so large that its square is: divided by its largest magnitude first, none of its
        # squares overflows.
        top = 0.0
        for j in range(dimension):
            top = max(top, abs(np.float64(features[i, j])))
        scaled = 0.0
        for j in range(dimension):
            scaled += (features[i, j] / top) * (features[i, j] / top)
        usable = np.isfinite(scaled) and np.isfinite(top) and np.isfinite(labels[i])
        factors[i] = bound * (1.0 - rounding) / np.sqrt(scaled) if usable else np.nan
