"""Every user's average gradient and average loss, in one pass over the items.

    >>> import numpy as np
    >>> from quoron_client.losses import Linear
    >>> items = ItemBatch(np.eye(2), np.zeros(2), np.array([0, 1, 2]))
    >>> average_gradient(Linear(), items, AverageGradient(np.zeros((1, 2)), (1.0,)))
    array([[-1.,  0.],
           [ 0., -1.]])

Features may be stored as float32; all arithmetic is float64. Proofs that carry a difference through later gradient
steps need every step to be a contraction, which holds for the computed step only up to its rounding.
"""

from typing import Any

import numpy as np
from numba import float64
from numpy.typing import NDArray

from quoron_client._compiled import LINE, POINTWISE, helper, prefetch, read_only, user_loop, writable
from quoron_client.draws import NARROW, Keys, shifts_and_spread
from quoron_client.items import ItemBatch
from quoron_client.losses import Loss
from quoron_client.questions import AverageGradient
from quoron_client.smoothness import smoothness_scale
from quoron_protos.errors import ConfigError, DataError

Matrix = NDArray[np.float64]
Vector = NDArray[np.float64]

_BLOCK = 32  # items whose predictions are held at a time, a multiple of 4
_AHEAD = 2048  # elements between the row in work and the one asked for, long enough to hide the memory's latency


def average_gradient(
    loss: Loss,
    batch: ItemBatch,
    task: AverageGradient,
    *,
    keys: Keys | None = None,
    threads: int | None = None,
) -> Matrix:
    """w_u · (s_u · Σ_k weights[k] · ∇F_u(points[k]) - centre) for every user u, shape (k, d).

    F_u is the average over the user's m_u items. s_u is `smoothness_scale` with `task.user_smoothness`, else 1; w_u is
    min(1, √(m_u / reference_items)) with `task.reference_items`, else 1. `batch` is as `bounded` returns it.
    A `Convolution` draws from `keys` (k,), see `draws.user_keys`.

    A user without items gets zeros, a user with a non-finite feature or label gets NaN (see `work.answer`). The bits
    do not depend on `threads` nor on the other users. Raises `DataError` for points or a centre of another dimension,
    `ConfigError` for reference_items below 1 and for a smoothing that does not fit the loss or has no keys.
    """
    points = np.ascontiguousarray(task.points, dtype=np.float64)
    weights = np.array(task.weights, dtype=np.float64)
    if points.ndim != 2 or len(points) not in (1, 2) or len(weights) != len(points):
        raise ConfigError(f"Expected one or two points, each with its weight, got {points.shape} and {weights.shape}.")
    _check_dimension(batch, points.shape[1])
    scale = np.ones(batch.users)
    if task.user_smoothness is not None:
        scale = smoothness_scale(loss, batch, task.user_smoothness, threads=threads)
    centre = np.zeros(batch.dimension) if task.centre is None else np.ascontiguousarray(task.centre, dtype=np.float64)
    if centre.shape != (batch.dimension,):
        raise DataError(f"Expected a centre with {batch.dimension} coordinates, like the items, got {centre.shape}.")
    out = np.empty((batch.users, batch.dimension))
    shrink = loss.ridge * (weights @ points)
    user_weights = _user_weights(batch, task.reference_items)
    slopes = loss.slopes_with(task.smoothing).compiled
    shifts, spread = shifts_and_spread(batch, task.smoothing, keys, threads=threads)
    own = (slopes, loss.parameter, shifts, spread, points, weights, shrink, scale, centre, user_weights, out)
    _gradients(batch, *own, threads=threads)
    return out


def average_loss(
    loss: Loss,
    batch: ItemBatch,
    point: Vector,
    *,
    user_smoothness: float | None = None,
    threads: int | None = None,
) -> Vector:
    """F_u(point) for every user u, shape (k,), ridge included; with `user_smoothness` scaled like the gradient.

    A user without items gets zero, a user with a non-finite feature or label gets NaN. Raises `DataError` for a point
    of another dimension.
    """
    point = np.ascontiguousarray(point, dtype=np.float64)
    _check_dimension(batch, len(point))
    out = np.empty(batch.users)
    _losses(batch, loss.values.compiled, loss.parameter, point, out, threads=threads)
    out += np.where(np.diff(batch.offsets) > 0, 0.5 * loss.ridge * float(point @ point), 0.0)
    if user_smoothness is not None:
        out *= smoothness_scale(loss, batch, user_smoothness, threads=threads)
    return out


def _user_weights(batch: ItemBatch, reference_items: int | None) -> Vector:
    """w_u: how much each user counts for, by its number of items."""
    if reference_items is None:
        return np.ones(batch.users)
    if not reference_items >= 1:
        raise ConfigError(f"Expected reference_items >= 1, got reference_items={reference_items}.")
    by_items: Vector = np.sqrt(np.minimum(1.0, np.diff(batch.offsets) / reference_items))
    return by_items


def _check_dimension(batch: ItemBatch, dimension: int) -> None:
    if dimension != batch.dimension:
        raise DataError(f"Expected points with {batch.dimension} coordinates, like the items, got {dimension}.")


@helper
def _ask_ahead(flat: Any, start: int, length: int) -> None:
    """Ask for as many elements as are in work now, of a row further on, so that they have arrived by then."""
    j = start + _AHEAD
    while j < start + _AHEAD + length:
        prefetch(flat, j)
        j += LINE


@helper
def _predict(features: Any, flat: Any, first: int, count: int, x: Any, out: Any) -> None:
    """⟨row, x⟩ for `count` rows, four at a time; the last group repeats its last row."""
    dimension, last = features.shape[1], first + count - 1
    for i in range(0, count, 4):
        _ask_ahead(flat, (first + i) * dimension, 4 * dimension)
        a, b = first + i, min(first + i + 1, last)
        c, d = min(first + i + 2, last), min(first + i + 3, last)
        at = bt = ct = dt = 0.0
        for j in range(dimension):
            at += features[a, j] * x[j]
            bt += features[b, j] * x[j]
            ct += features[c, j] * x[j]
            dt += features[d, j] * x[j]
        out[i], out[i + 1], out[i + 2], out[i + 3] = at, bt, ct, dt


@helper
def _predict_both(features: Any, flat: Any, first: int, count: int, x: Any, y: Any, out: Any) -> None:
    """Like `_predict`, for two points: each row is read and widened once."""
    dimension, last = features.shape[1], first + count - 1
    for i in range(0, count, 4):
        _ask_ahead(flat, (first + i) * dimension, 4 * dimension)
        a, b = first + i, min(first + i + 1, last)
        c, d = min(first + i + 2, last), min(first + i + 3, last)
        ax = bx = cx = dx = ay = by = cy = dy = 0.0
        for j in range(dimension):
            ax += features[a, j] * x[j]
            bx += features[b, j] * x[j]
            cx += features[c, j] * x[j]
            dx += features[d, j] * x[j]
            ay += features[a, j] * y[j]
            by += features[b, j] * y[j]
            cy += features[c, j] * y[j]
            dy += features[d, j] * y[j]
        out[0, i], out[0, i + 1], out[0, i + 2], out[0, i + 3] = ax, bx, cx, dx
        out[1, i], out[1, i + 1], out[1, i + 2], out[1, i + 3] = ay, by, cy, dy


@helper
def _accumulate(features: Any, first: int, count: int, coefficients: Any, total: Any) -> None:
    """total += Σ coefficient · row over `count` rows, four at a time; coefficients past `count` are zero."""
    last = first + count - 1
    for i in range(0, count, 4):
        a, b = first + i, min(first + i + 1, last)
        c, d = min(first + i + 2, last), min(first + i + 3, last)
        ca, cb, cc, cd = coefficients[i], coefficients[i + 1], coefficients[i + 2], coefficients[i + 3]
        for j in range(total.size):
            total[j] += (ca * features[a, j] + cb * features[b, j]) + (cc * features[c, j] + cd * features[d, j])


_MATRIX, _VECTOR = read_only(float64, 2), read_only(float64, 1)


@helper
def _square_norms(features: Any, first: int, count: int, out: Any) -> None:
    for i in range(count):
        squares = 0.0
        for j in range(features.shape[1]):
            squares += np.float64(features[first + i, j]) * np.float64(features[first + i, j])
        out[i] = squares


@user_loop(
    POINTWISE, float64, _VECTOR, float64, _MATRIX, _VECTOR, _VECTOR, _VECTOR, _VECTOR, _VECTOR, writable(float64, 2)
)
def _gradients(
    features: Any,
    labels: Any,
    offsets: Any,
    slopes: Any,
    parameter: float,
    shifts: Any,
    spread: float,
    points: Any,
    weights: Any,
    shrink: Any,
    scale: Any,
    centre: Any,
    user_weights: Any,
    out: Any,
    start: int,
    stop: int,
) -> None:
    predictions = np.empty((2, _BLOCK))
    # Views are made once: each costs a reference count, which shows at this speed.
    flat, predicted, x, y = features.reshape(-1), predictions[0], points[0], points[-1]
    block_labels, block_slopes, coefficients = np.empty(_BLOCK), np.empty(_BLOCK), np.empty(_BLOCK)
    parameters, squares = np.full(_BLOCK, parameter), np.empty(_BLOCK)
    for u in range(start, stop):
        begin, end, total = offsets[u], offsets[u + 1], out[u]
        total[:] = 0.0
        if begin == end:
            continue
        for first in range(begin, end, _BLOCK):
            count = min(_BLOCK, end - first)
            for i in range(count):
                block_labels[i] = labels[first + i]
            if len(points) == 1:
                _predict(features, flat, first, count, x, predicted)
            else:
                _predict_both(features, flat, first, count, x, y, predictions)
            if spread > 0.0 or shifts.size > 0:
                _square_norms(features, first, count, squares)
                for i in range(count):
                    if spread > 0.0:
                        parameters[i] = max(spread * squares[i], NARROW)
                    else:
                        for p in range(len(points)):
                            predictions[p, i] += shifts[first + i] * np.sqrt(squares[i])
            coefficients[:] = 0.0
            for p in range(len(points)):
                slopes(predictions[p, :count], block_labels[:count], parameters[:count], block_slopes[:count])
                for i in range(count):
                    # A non-finite feature makes its prediction non-finite, but a bounded slope may hide it.
                    good = np.isfinite(predictions[p, i] + block_labels[i])
                    coefficients[i] += weights[p] * block_slopes[i] if good else np.nan
            _accumulate(features, first, count, coefficients, total)
        share = scale[u] / (end - begin)
        for j in range(total.size):
            total[j] = user_weights[u] * (share * total[j] + scale[u] * shrink[j] - centre[j])


@user_loop(POINTWISE, float64, _VECTOR, writable(float64, 1))
def _losses(
    features: Any,
    labels: Any,
    offsets: Any,
    values: Any,
    parameter: float,
    point: Any,
    out: Any,
    start: int,
    stop: int,
) -> None:
    predictions, block_labels, block_values = np.empty(_BLOCK), np.empty(_BLOCK), np.empty(_BLOCK)
    parameters = np.full(_BLOCK, parameter)
    flat = features.reshape(-1)
    for u in range(start, stop):
        begin, end, total = offsets[u], offsets[u + 1], 0.0
        for first in range(begin, end, _BLOCK):
            count = min(_BLOCK, end - first)
            for i in range(count):
                block_labels[i] = labels[first + i]
            _predict(features, flat, first, count, point, predictions)
            values(predictions[:count], block_labels[:count], parameters[:count], block_values[:count])
            for i in range(count):
                total += block_values[i] if np.isfinite(predictions[i] + block_labels[i]) else np.nan
        out[u] = total / max(end - begin, 1)
