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

from quoron_client.compute.compiled import LINE, POINTWISE, helper, prefetch, read_only, user_loop, writable
from quoron_client.compute.draws import NARROW, Keys, shifts_and_spread
from quoron_client.compute.smoothness import smoothness_scale
from quoron_client.data.items import ItemBatch
from quoron_client.losses import Loss, Softmax
from quoron_client.losses._exponential import exponential
from quoron_client.protocol.questions import AverageGradient
from quoron_privacy.errors import ConfigError, DataError

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

    F_u(x) = (1/m_u) Σ w_i φ_i(x) + ridge/2 · ‖x‖² over the user's m_u items; item weights w_i are in [0, 1]. d is the
    number of features times `loss.outputs`. s_u is `smoothness_scale` with `task.user_smoothness`, else 1; w_u is
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
    dimension = _check_dimension(loss, batch, points.shape[1])
    scale = np.ones(batch.users)
    if task.user_smoothness is not None:
        scale = smoothness_scale(loss, batch, task.user_smoothness, threads=threads)
    centre = np.zeros(dimension) if task.centre is None else np.ascontiguousarray(task.centre, dtype=np.float64)
    if centre.shape != (dimension,):
        raise DataError(f"Expected a centre with {dimension} coordinates, like the items, got {centre.shape}.")
    out = np.empty((batch.users, dimension))
    shrink = loss.bend(dimension) * (weights @ points)
    user_weights = _user_weights(batch, task.reference_items)
    if isinstance(loss, Softmax):
        if task.smoothing is not None:
            loss.slopes_with(task.smoothing)
        by_class = (loss.classes, batch.dimension)
        parts = (points.reshape(-1, *by_class), weights, batch.item_weights, shrink.reshape(by_class), scale)
        own_of_classes = (*parts, centre.reshape(by_class), user_weights, out.reshape(-1, *by_class))
        _class_gradients(batch, *own_of_classes, threads=threads)
        return out
    slopes = loss.slopes_with(task.smoothing).compiled
    shifts, spread = shifts_and_spread(batch, task.smoothing, keys, threads=threads)
    own = (slopes, loss.parameter, shifts, spread, points, weights, batch.item_weights, shrink, scale, centre)
    _gradients(batch, *own, user_weights, out, threads=threads)
    return out


def average_loss(
    loss: Loss,
    batch: ItemBatch,
    point: Vector,
    *,
    user_smoothness: float | None = None,
    threads: int | None = None,
) -> Vector:
    """F_u(point) for every user u, shape (k,), as in `average_gradient`; with `user_smoothness` scaled like it.

    A user without items gets zero, a user with a non-finite feature or label gets NaN. Raises `DataError` for a point
    of another dimension.
    """
    point = np.ascontiguousarray(point, dtype=np.float64)
    _check_dimension(loss, batch, len(point))
    out = np.empty(batch.users)
    if isinstance(loss, Softmax):
        _class_losses(batch, point.reshape(loss.classes, -1), batch.item_weights, out, threads=threads)
    else:
        _losses(batch, loss.values.compiled, loss.parameter, point, batch.item_weights, out, threads=threads)
    bent = 0.5 * float((loss.bend(len(point)) * point) @ point)
    out += np.where(np.diff(batch.offsets) > 0, bent, 0.0)
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


def _check_dimension(loss: Loss, batch: ItemBatch, dimension: int) -> int:
    expected = loss.outputs * batch.dimension
    if dimension != expected:
        raise DataError(f"Expected points with {expected} coordinates, like the items, got {dimension}.")
    return expected


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
    POINTWISE, float64, _VECTOR, float64, _MATRIX, _VECTOR, _VECTOR, _VECTOR, _VECTOR, _VECTOR, _VECTOR,
    writable(float64, 2),
)  # fmt: skip
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
    item_weights: Any,
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
    parameters, squares = np.empty(_BLOCK), np.empty(_BLOCK)
    parameters[:] = parameter
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
            if item_weights.size > 0:
                for i in range(count):
                    coefficients[i] *= item_weights[first + i]
            _accumulate(features, first, count, coefficients, total)
        share = scale[u] / (end - begin)
        for j in range(total.size):
            total[j] = user_weights[u] * (share * total[j] + scale[u] * shrink[j] - centre[j])


@user_loop(POINTWISE, float64, _VECTOR, _VECTOR, writable(float64, 1))
def _losses(
    features: Any,
    labels: Any,
    offsets: Any,
    values: Any,
    parameter: float,
    point: Any,
    item_weights: Any,
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
            if item_weights.size > 0:
                for i in range(count):
                    block_values[i] *= item_weights[first + i]
            for i in range(count):
                total += block_values[i] if np.isfinite(predictions[i] + block_labels[i]) else np.nan
        out[u] = total / max(end - begin, 1)


@helper
def _chances(scores: Any, labels: Any, first: int, count: int, tops: Any, sums: Any, chosen: Any) -> None:
    """Scores (K, count) become e^(score - top), their sums, and the labels' own scores less the top.

    An item whose scores are not finite, or whose label is no class number, has NaN for its sum.
    """
    classes = len(scores)
    for i in range(count):
        tops[i], sums[i], chosen[i] = scores[0, i], np.nan, np.nan
    for k in range(classes):
        for i in range(count):
            tops[i] = max(tops[i], scores[k, i])
            # A class number is compared, never used as a place.
            sums[i] = 0.0 if labels[first + i] == k else sums[i]
            chosen[i] = scores[k, i] if labels[first + i] == k else chosen[i]
    for k in range(classes):
        for i in range(count):
            sums[i] += 0.0 * scores[k, i]
    for k in range(classes):
        for i in range(count):
            scores[k, i] = exponential(scores[k, i] - tops[i])
    for k in range(classes):
        for i in range(count):
            sums[i] += scores[k, i]
    for i in range(count):
        chosen[i] -= tops[i]


@user_loop(read_only(float64, 3), _VECTOR, _VECTOR, _MATRIX, _VECTOR, _MATRIX, _VECTOR, writable(float64, 3))
def _class_gradients(
    features: Any,
    labels: Any,
    offsets: Any,
    points: Any,
    weights: Any,
    item_weights: Any,
    shrink: Any,
    scale: Any,
    centre: Any,
    user_weights: Any,
    out: Any,
    start: int,
    stop: int,
) -> None:
    """Of the softmax loss: K predictions and K sums over the same block of rows, which stays in the nearest cache."""
    classes, flat = points.shape[1], features.reshape(-1)
    scores, coefficients = np.zeros((classes, _BLOCK)), np.empty((classes, _BLOCK))
    tops, sums, chosen = np.empty(_BLOCK), np.empty(_BLOCK), np.empty(_BLOCK)
    for u in range(start, stop):
        begin, end = offsets[u], offsets[u + 1]
        out[u] = 0.0
        if begin == end:
            continue
        for first in range(begin, end, _BLOCK):
            count = min(_BLOCK, end - first)
            coefficients[:] = 0.0
            for p in range(len(points)):
                for k in range(classes):
                    _predict(features, flat, first, count, points[p, k], scores[k])
                _chances(scores, labels, first, count, tops, sums, chosen)
                for k in range(classes):
                    for i in range(count):
                        wanted = 1.0 if labels[first + i] == k else 0.0
                        coefficients[k, i] += weights[p] * (scores[k, i] / sums[i] - wanted)
            if item_weights.size > 0:
                for k in range(classes):
                    for i in range(count):
                        coefficients[k, i] *= item_weights[first + i]
            for k in range(classes):
                _accumulate(features, first, count, coefficients[k], out[u, k])
        share = scale[u] / (end - begin)
        for k in range(classes):
            for j in range(out.shape[2]):
                moved = share * out[u, k, j] + scale[u] * shrink[k, j] - centre[k, j]
                out[u, k, j] = user_weights[u] * moved


@user_loop(_MATRIX, _VECTOR, writable(float64, 1))
def _class_losses(
    features: Any, labels: Any, offsets: Any, point: Any, item_weights: Any, out: Any, start: int, stop: int
) -> None:
    flat, scores, values = features.reshape(-1), np.zeros((len(point), _BLOCK)), np.empty(_BLOCK)
    tops, sums, chosen = np.empty(_BLOCK), np.empty(_BLOCK), np.empty(_BLOCK)
    for u in range(start, stop):
        begin, end, total = offsets[u], offsets[u + 1], 0.0
        for first in range(begin, end, _BLOCK):
            count = min(_BLOCK, end - first)
            for k in range(len(point)):
                _predict(features, flat, first, count, point[k], scores[k])
            _chances(scores, labels, first, count, tops, sums, chosen)
            for i in range(count):
                values[i] = np.log(sums[i]) - chosen[i]
            if item_weights.size > 0:
                for i in range(count):
                    values[i] *= item_weights[first + i]
            for i in range(count):
                total += values[i]
        out[u] = total / max(end - begin, 1)
