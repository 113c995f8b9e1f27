"""Every user's average gradient and average loss, in one pass over the items.

    >>> import numpy as np
    >>> from quoron_client.data.items import ItemBatch
    >>> from quoron_client.losses import Linear
    >>> items = ItemBatch(np.eye(2), np.zeros(2), np.array([0, 1, 2]))
    >>> average_gradient(Linear(), items, AverageGradient(np.zeros((1, 2)), (1.0,)))
    array([[-1.,  0.],
           [ 0., -1.]])

Features may be stored as float32; all arithmetic is float64. Proofs that carry a difference through later gradient
steps need every step to be a contraction, which holds for the computed step only up to its rounding.

Loops of the softmax loss: K predictions and K sums over the same block of rows.
"""

from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from numba import float64, int64, intp

from quoron_client.compute.draws import NARROW, Keys, shifts_and_spread
from quoron_client.compute.enforcement import smoothness_scale
from quoron_client.compute.user_loops import (
    SHORT,
    accumulate,
    copied,
    pieces,
    predict,
    predict_both,
    user_loop,
    within,
)
from quoron_client.data.items import Items
from quoron_client.losses import Loss, Softmax
from quoron_client.losses.standard import exponential
from quoron_client.protocol.questions import AverageGradient
from quoron_privacy.arrays import Matrix, Vector
from quoron_privacy.errors import ConfigError, DataError
from quoron_privacy.kernels.compiled import helper, read_only, run, writable
from quoron_privacy.kernels.simd import (
    LINE,
    WIDTH,
    aligned,
    alike,
    first_lanes,
    fused,
    keep,
    keep_first,
    lanes,
    plus,
    prefetch,
    sum_of,
    sums_of,
    times,
)
from quoron_privacy.kernels.threads import at_once
from quoron_privacy.means.clipping import ClippedSum
from quoron_privacy.release import Sums

_MATRIX, _VECTOR = read_only(float64, 2), read_only(float64, 1)


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
    # Sums are 0 for a label that is a class, and NaN for any other. 0 · v makes them NaN where a score is not finite.
    for k in range(classes):
        for i in range(count):
            sums[i] += 0.0 * scores[k, i]
    # The largest score leaves first: no exponential overflows, and one of them is 1.
    for k in range(classes):
        for i in range(count):
            scores[k, i] = exponential(scores[k, i] - tops[i])
    for k in range(classes):
        for i in range(count):
            sums[i] += scores[k, i]
    for i in range(count):
        chosen[i] -= tops[i]


@user_loop(read_only(float64, 3), _VECTOR, _VECTOR, _MATRIX, _VECTOR, _MATRIX, _VECTOR, writable(float64, 3))
def class_gradients(
    features: Any,
    labels: Any,
    begins: Any,
    ends: Any,
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
    classes, dimension, flat = points.shape[1], features.shape[1], features.reshape(-1)
    scores, coefficients = np.zeros((classes, _BLOCK)), np.empty((classes, _BLOCK))
    totals = aligned(classes, dimension)
    tops, sums, chosen = np.empty(_BLOCK), np.empty(_BLOCK), np.empty(_BLOCK)
    for u in range(start, stop):
        begin, end = begins[u], ends[u]
        if begin == end:
            out[u] = 0.0
            continue
        # The rows of a block are read 2K times, K predictions and K sums, all but the first time from cache.
        for first in range(begin, end, _BLOCK):
            count = min(_BLOCK, end - first)
            coefficients[:] = 0.0
            for p in range(len(points)):
                for k in range(classes):
                    predict(flat, first, count, dimension, points[p, k], scores[k], 0)
                _chances(scores, labels, first, count, tops, sums, chosen)
                for k in range(classes):
                    for i in range(count):
                        # Compared and never an index: a label that is no class reads and writes nowhere else.
                        wanted = 1.0 if labels[first + i] == k else 0.0
                        coefficients[k, i] += weights[p] * (scores[k, i] / sums[i] - wanted)
            if item_weights.size > 0:
                for k in range(classes):
                    for i in range(count):
                        coefficients[k, i] *= item_weights[first + i]
            for k in range(classes):
                accumulate(flat, first, count, dimension, coefficients[k], 0, totals[k], first == begin)
        weight, own = user_weights[min(u, len(user_weights) - 1)], scale[min(u, len(scale) - 1)]
        share = own / (end - begin)
        for k in range(classes):
            for j in range(out.shape[2]):
                out[u, k, j] = weight * (share * totals[k, j] + own * shrink[k, j] - centre[k, j])


@user_loop(_MATRIX, _VECTOR, writable(float64, 1))
def class_losses(
    features: Any, labels: Any, begins: Any, ends: Any, point: Any, item_weights: Any, out: Any, start: int, stop: int
) -> None:
    """The average loss of every user."""
    flat, scores, values = features.reshape(-1), np.zeros((len(point), _BLOCK)), np.empty(_BLOCK)
    tops, sums, chosen = np.empty(_BLOCK), np.empty(_BLOCK), np.empty(_BLOCK)
    for u in range(start, stop):
        begin, end, summed = begins[u], ends[u], 0.0
        for first in range(begin, end, _BLOCK):
            count = min(_BLOCK, end - first)
            for k in range(len(point)):
                predict(flat, first, count, features.shape[1], point[k], scores[k], 0)
            _chances(scores, labels, first, count, tops, sums, chosen)
            # log Σ e^score less the label's score: the largest score is taken off both, and cancels.
            for i in range(count):
                values[i] = np.log(sums[i]) - chosen[i]
            if item_weights.size > 0:
                for i in range(count):
                    values[i] *= item_weights[first + i]
            for i in range(count):
                summed += values[i]
        out[u] = summed / max(end - begin, 1)


_BLOCK = 64  # items whose predictions are held at a time, of as many users as that makes
_NEAR = 2048  # numbers of their rows, at most, so that these are still in the nearest cache when they are added
_AHEAD = 48  # cache lines of a user that are asked for while others are summed
_HELD = 4096  # numbers of the rows that are summed at a time


def average_gradient(
    loss: Loss, batch: Items, task: AverageGradient, *, keys: Keys | None = None, scale: Vector | None = None
) -> Matrix:
    """Return w_u · (s_u · Σ_k weights[k] · ∇F_u(points[k]) - centre) for every user u, shape (k, d).

    F_u(x) = (1/m_u) Σ w_i φ_i(x) + ridge/2 · ‖x‖² over the user's m_u items; item weights w_i are in [0, 1]. The
    dimension d is the number of features times `loss.outputs`. The scale s_u is `smoothness_scale` with
    `task.user_smoothness`, else 1; it depends on no point, so a computed one may be passed as `scale` (k,). The weight
    w_u is min(1, √(m_u / reference_items)) with `task.reference_items`, else 1. Pass `batch` as `bounded` returns it. A
    `Convolution` draws from `keys` (k,), see `draws.user_keys`.

    A user without items gets zeros, a user with a non-finite feature or label gets NaN (see `work.answer`). The bits
    do not depend on threads nor on the other users. Raises `DataError` for points or a centre of another shape,
    `ConfigError` for reference_items below 1 and for a smoothing that does not fit the loss or has no keys.
    """
    own, classes = _prepared(loss, batch, task, keys, scale)
    dimension = batch.dimension * loss.outputs
    rows = np.zeros((batch.users, dimension))
    if classes:
        class_gradients(batch, *own, rows.reshape(batch.users, classes, -1))
    else:
        gradient_loop(batch, *own, rows, *_NOT_ADDED)
    return rows


def gradient_sums(
    loss: Loss,
    batch: Items,
    task: AverageGradient,
    reduction: ClippedSum,
    *,
    largest: float = np.inf,
    keys: Keys | None = None,
    scale: Vector | None = None,
) -> Sums:
    """Return what `reduction` makes of the users' `average_gradient`, without their rows ever being in memory.

    The same integers as those of the rows. Users without items, with anything non-finite, or with a coordinate beyond
    `largest` in magnitude have not answered. Raises as `average_gradient`, and `ConfigError` for a reduction's centre
    of another dimension and for a loss with several outputs.
    """
    own, classes = _prepared(loss, batch, task, keys, scale)
    if classes:
        raise ConfigError(f"Expected a loss with one output, got loss={loss.name!r}.")
    adding = (reduction.adding, reduction.around(batch.dimension), *reduction.scales, largest)
    few = max(4, _HELD // max(batch.dimension, 1))
    uniform = task.user_smoothness is None and task.reference_items is None and batch.weights is None
    plain = uniform and len(task.points) == 1 and task.smoothing is None and batch.dimension < SHORT
    bounds, threads = pieces(batch)
    # Each piece of users has sums of its own, in integers: adding them is exact in every order.
    totals, counts = np.zeros((len(bounds) - 1, batch.dimension), np.int64), np.zeros((len(bounds) - 1, 6), np.int64)

    def add(part: int, first: int, last: int) -> None:
        sums = (np.empty((few, batch.dimension)), *adding, totals[part], counts[part])
        if plain:
            reached = np.array([first])
            single_item_loop.over(batch, first, last, *own, *sums, reached)
            first = int(reached[0])
        if first < last:
            gradient_loop.over(batch, first, last, *own, *sums)

    at_once([partial(add, part, *ends) for part, ends in enumerate(pairwise(bounds))], threads)
    *cells, clipped, answered = counts.sum(axis=0)
    return Sums(totals.sum(axis=0), np.array(cells, np.int64), int(clipped), int(answered))


def _prepared(
    loss: Loss, batch: Items, task: AverageGradient, keys: Keys | None, scale: Vector | None
) -> tuple[tuple[Any, ...], int]:
    """Return a task's arguments for compiled loops, and the number of classes of a loss of several outputs, or 0."""
    points = np.ascontiguousarray(task.points, dtype=np.float64)
    weights = np.array(task.weights, dtype=np.float64)
    if points.ndim != 2 or len(points) not in (1, 2) or len(weights) != len(points):
        raise ConfigError(f"Expected one or two points, each with its weight, got {points.shape} and {weights.shape}.")
    dimension = _check_dimension(loss, batch, points.shape[1])
    if task.user_smoothness is None:
        scale = np.ones(1)
    elif scale is None:
        scale = smoothness_scale(loss, batch, task.user_smoothness)
    centre = np.zeros(dimension) if task.centre is None else np.ascontiguousarray(task.centre, dtype=np.float64)
    if centre.shape != (dimension,):
        raise DataError(f"Expected a centre with {dimension} coordinates, like the items, got {centre.shape}.")
    read = _padded(points.reshape(-1, batch.dimension))
    shrink = loss.quadratic_diagonal(dimension) * (weights @ points)
    user_weights = _user_weights(batch, task.reference_items)
    if isinstance(loss, Softmax):
        if task.smoothing is not None:
            loss.slopes_with(task.smoothing)
        by_class = (loss.classes, batch.dimension)
        parts = (read.reshape(len(points), loss.classes, -1), weights, batch.item_weights, shrink.reshape(by_class))
        return (*parts, scale, centre.reshape(by_class), user_weights), loss.classes
    slope = loss.slopes_with(task.smoothing).compiled.address
    shifts, spread = shifts_and_spread(batch, task.smoothing, keys)
    items = (slope, loss.parameter, shifts, spread, read, weights, batch.item_weights)
    return (*items, shrink, scale, centre, user_weights), 0


def average_loss(loss: Loss, batch: Items, point: Vector) -> Vector:
    """F_u(point) for every user u, shape (k,), as in `average_gradient`, but never scaled.

    A user without items gets zero, a user with a non-finite feature or label gets NaN. Raises `DataError` for a point
    of another dimension.
    """
    point = np.ascontiguousarray(point, dtype=np.float64)
    _check_dimension(loss, batch, len(point))
    out = np.empty(batch.users)
    read = _padded(point.reshape(-1, batch.dimension))
    if isinstance(loss, Softmax):
        class_losses(batch, read, batch.item_weights, out)
    else:
        _losses(batch, loss.values.compiled.address, loss.parameter, read[0], batch.item_weights, out)
    bent = 0.5 * float((loss.quadratic_diagonal(len(point)) * point) @ point)
    out += np.where(batch.counts > 0, bent, 0.0)
    return out


def _user_weights(batch: Items, reference_items: int | None) -> Vector:
    """w_u: how much each user counts for, by its number of items; one number where that is the same for all."""
    if reference_items is None:
        return np.ones(1)
    if not reference_items >= 1:
        raise ConfigError(f"Expected reference_items >= 1, got reference_items={reference_items}.")
    by_items: Vector = np.sqrt(np.minimum(1.0, batch.counts / reference_items))
    return by_items


def _check_dimension(loss: Loss, batch: Items, dimension: int) -> int:
    expected = loss.outputs * batch.dimension
    if dimension != expected:
        raise DataError(f"Expected points with {expected} coordinates, like the items, got {dimension}.")
    return expected


def _padded(points: Matrix) -> Matrix:
    """Return rows filled up with zeros, and aligned."""
    read: Matrix = aligned(*points.shape)
    read[:, : points.shape[1]] = points
    return read


@helper
def _square_norms(features: Any, first: int, count: int, out: Any) -> None:
    for i in range(count):
        squares = 0.0
        for j in range(features.shape[1]):
            squares += np.float64(features[first + i, j]) * np.float64(features[first + i, j])
        out[i] = squares


@helper
def _beyond_items(shrink: Any, centre: Any, weight: float, scale: float, dimension: int, out: Any) -> None:
    """w (s · ridge part - centre): what does not depend on a user's items."""
    whole, rest = dimension // WIDTH * WIDTH, dimension % WIDTH
    bent, less = alike(weight * scale), alike(-weight)
    for j in range(0, whole, WIDTH):
        keep(out, j, fused(bent, lanes(shrink, j), times(less, lanes(centre, j))))
    if rest > 0:
        value = times(less, first_lanes(centre, whole, rest))
        keep(out, whole, fused(bent, first_lanes(shrink, whole, rest), value))


@user_loop(
    intp, float64, _VECTOR, float64, _MATRIX, _VECTOR, _VECTOR, _VECTOR, _VECTOR, _VECTOR, _VECTOR,
    writable(float64, 2),
    intp, _VECTOR, float64, float64, float64, writable(int64, 1), writable(int64, 1),
)  # fmt: skip
def gradient_loop(
    features: Any,
    labels: Any,
    begins: Any,
    ends: Any,
    slope: int,
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
    add: int,
    around: Any,
    norm: float,
    unit: float,
    most: float,
    total: Any,
    counts: Any,
    start: int,
    stop: int,
) -> None:
    """Write average gradients of users `start` to `stop`, user u's into out[u], which stays as it is without items.

    With `add`, the address of a reduction's loop, `out` holds a few of them, which are added to `total` and `counts`
    when it is full: they are still in cache.

    Items are processed in blocks, across users: predictions, slopes, and then each user's sum.
    """
    dimension = features.shape[1]
    whole, rest = dimension // WIDTH * WIDTH, dimension % WIDTH
    # Views are made once: each costs a reference count, which shows at this speed.
    flat, x, y, rows = features.reshape(-1), points[0], points[-1], out.reshape(-1)
    summed, answered = aligned(1, dimension)[0], np.zeros(len(out) if add else 0, np.bool_)
    base, own_weight, own_scale = aligned(1, dimension)[0], np.nan, np.nan
    last_weight, last_scale = len(user_weights) - 1, len(scale) - 1  # 0 where all users have the same
    predicted, other, block_labels = np.zeros(_BLOCK), np.zeros(_BLOCK), np.zeros(_BLOCK)
    slopes, others, squares = np.zeros(_BLOCK), np.zeros(_BLOCK), np.empty(_BLOCK)
    parameters, both, zero = np.full(_BLOCK, parameter), len(points) == 2, alike(0.0)
    smoothed = spread > 0.0 or shifts.size > 0
    # As many items as keep their rows in the nearest cache from the prediction to the sum: memory is read once.
    block = min(_BLOCK, max(2, _NEAR // max(dimension, 1)))
    if block > 8:
        block = block // 8 * 8  # slopes are computed eight at a time
    # A user may end in a later block than it began in: `done` items of it are in `summed` already.
    u, done, gathered = start, 0, 0  # the user in work; how many of its items have been; rows that are not added yet
    while u < stop:
        # First pass over the block: predictions. (v, begun) runs ahead of (u, done), to where the block ends.
        v, begun, held = u, done, 0
        while v < stop and held < block:
            first = end = begins[v] + begun
            while v < stop and begins[v] + begun == end:  # neighbours in memory are read as one
                count = min(ends[v] - end, block - held - (end - first))
                end, begun = end + count, begun + count
                if end < ends[v]:
                    break
                v, begun = v + 1, 0
            count = end - first
            if both:
                predict_both(flat, first, count, dimension, x, y, predicted, other, held)
            else:
                predict(flat, first, count, dimension, x, predicted, held)
            copied(labels, first, count, block_labels, held)
            if smoothed:
                # Smoothing has a width that goes with ‖a‖: each item has a parameter or a shift of its own.
                _square_norms(features, first, count, squares)
                for i in range(count):
                    if spread > 0.0:
                        parameters[held + i] = max(spread * squares[i], NARROW)
                    else:
                        shift = shifts[first + i] * np.sqrt(squares[i])
                        predicted[held + i] += shift
                        other[held + i] += shift
            held += count
        # While this block is summed, memory fetches the next: about as many users as this one had.
        for w in range(max(v, u + 1), min(stop, 2 * v - u + 1)):  # whose items come next
            if begins[w] != ends[w - 1]:  # neighbours the processor asks for by itself, and better
                prefetch(labels, begins[w])
                held_there = (ends[w] - begins[w]) * dimension
                for j in range(0, min(LINE * _AHEAD, held_there), LINE):
                    prefetch(flat, begins[w] * dimension + j)
        # The link of the loss by its address: one call a block, whatever the loss, and no compiling for each of them.
        padded = (held + 7) // 8 * 8
        run(slope, (predicted, block_labels, parameters, slopes, padded))
        if both:
            run(slope, (other, block_labels, parameters, others, padded))
        for i in range(0, padded, WIDTH):
            # A non-finite feature makes its prediction non-finite, but a bounded slope may hide it: 0 · NaN does not.
            nothing = times(zero, plus(lanes(predicted, i), lanes(block_labels, i)))
            if both:
                nothing = fused(zero, lanes(other, i), fused(alike(weights[1]), lanes(others, i), nothing))
            keep(slopes, i, fused(alike(weights[0]), lanes(slopes, i), nothing))
        # Second pass over the same rows, now in cache: each user's sum, and what it becomes where the user ends.
        place = 0
        while u < v or (u == v and done < begun):
            begin = begins[u] + done
            count = min(ends[u] - begin, held - place)
            if item_weights.size > 0:
                for i in range(count):
                    slopes[place + i] *= item_weights[begin + i]
            # The sum of a user with one item is made where it is read.
            single = done == 0 and ends[u] - begin == 1
            factor = alike(slopes[place] if single else 0.0)
            if not single:
                accumulate(flat, begin, count, dimension, slopes, place, summed, done == 0)
            place, done = place + count, done + count
            if begin + count < ends[u]:
                break
            # The user ends here: w (s (sum / m + ridge part) - centre), with one rounding for each fused product.
            row, norm_squared = (gathered if add else u) * dimension, zero
            weight, own = user_weights[min(u, last_weight)], scale[min(u, last_scale)]
            # What is the same whatever a user's items are is computed again where it is not the last user's.
            if done > 0 and not (weight == own_weight and own == own_scale):
                own_weight, own_scale = weight, own
                _beyond_items(shrink, centre, weight, own, dimension, base)
            share = alike(weight * own / max(done, 1))
            # Without items a user answers zeros, not -centre: it did not take part.
            for j in range(0, whole if done > 0 else 0, WIDTH):
                value = fused(lanes(flat, begin * dimension + j), factor, zero) if single else lanes(summed, j)
                value = fused(share, value, lanes(base, j))
                norm_squared = fused(value, value, norm_squared)
                keep(rows, row + j, value)
            # The last few coordinates are not a whole register; what lies behind them is not ours to read or write.
            if rest > 0 and done > 0:
                value = lanes(summed, whole)
                if single:
                    value = fused(first_lanes(flat, begin * dimension + whole, rest), factor, zero)
                value = fused(share, value, lanes(base, whole))
                norm_squared = fused(value, value, norm_squared)
                keep_first(rows, row + whole, rest, value)
            if add:
                # Whether all is finite and within bounds is seen from the norm alone, nearly always.
                near = sum_of(norm_squared) <= min(most * most, 1e300) or within(rows, row, dimension, most)
                answered[gathered] = done > 0 and near
                gathered += 1
                # Rows leave as integers while they are still in cache: they are never all in memory.
                if gathered == len(out) or u == stop - 1:
                    run(add, (rows, gathered, dimension, around, answered, norm, unit, total, counts))
                    gathered = 0
            u, done = u + 1, 0


@user_loop(
    intp, float64, _VECTOR, float64, _MATRIX, _VECTOR, _VECTOR, _VECTOR, _VECTOR, _VECTOR, _VECTOR,
    writable(float64, 2),
    intp, _VECTOR, float64, float64, float64, writable(int64, 1), writable(int64, 1), writable(int64, 1),
)  # fmt: skip
def single_item_loop(
    features: Any,
    labels: Any,
    begins: Any,
    ends: Any,
    slope: int,
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
    add: int,
    around: Any,
    norm: float,
    unit: float,
    most: float,
    total: Any,
    counts: Any,
    reached: Any,
    start: int,
    stop: int,
) -> None:
    """Do what `gradient_loop` does with `add`, to the bit, as long as users have one item each: up to `reached`.

    For one point, unweighted users and items, no smoothing, and rows below `SHORT`: four users are done side by side.
    """
    dimension = features.shape[1]
    whole, rest, zero = dimension // WIDTH * WIDTH, dimension % WIDTH, alike(0.0)
    flat, x, rows, base = features.reshape(-1), points[0], out.reshape(-1), aligned(1, dimension)[0]
    predicted, answered = np.zeros(_BLOCK), np.zeros(len(out), np.bool_)
    block_labels, slopes, squares = np.zeros(_BLOCK), np.empty(_BLOCK), np.empty(_BLOCK)
    parameters, enough, weight = np.full(_BLOCK, parameter), min(most * most, 1e300), alike(weights[0])
    gathered, u = 0, start
    _beyond_items(shrink, centre, 1.0, 1.0, dimension, base)
    while u < stop:
        count, others = min(_BLOCK, len(out) // WIDTH * WIDTH, stop - u) // WIDTH * WIDTH, 0
        for i in range(count):
            others |= ends[u + i] - begins[u + i] - 1
        if count == 0 or others != 0:
            break
        for i in range(0, count, WIDTH):
            first, second = begins[u + i] * dimension, begins[u + i + 1] * dimension
            third, fourth = begins[u + i + 2] * dimension, begins[u + i + 3] * dimension
            # As in `predict`: one function of both made rounds of many items a tenth slower.
            a = b = c = d = zero
            for j in range(0, whole, WIDTH):
                at = lanes(x, j)
                a, b = fused(lanes(flat, first + j), at, a), fused(lanes(flat, second + j), at, b)
                c, d = fused(lanes(flat, third + j), at, c), fused(lanes(flat, fourth + j), at, d)
            if rest > 0:
                at = lanes(x, whole)
                a = fused(first_lanes(flat, first + whole, rest), at, a)
                b = fused(first_lanes(flat, second + whole, rest), at, b)
                c = fused(first_lanes(flat, third + whole, rest), at, c)
                d = fused(first_lanes(flat, fourth + whole, rest), at, d)
            keep(predicted, i, sums_of(a, b, c, d))
        for i in range(count):
            block_labels[i] = labels[begins[u + i]]
        for w in range(u + count, min(stop, u + 2 * count)):
            if begins[w] != ends[w - 1]:  # as in `gradient_loop`
                prefetch(labels, begins[w])
                for j in range(0, dimension, LINE):
                    prefetch(flat, begins[w] * dimension + j)
        run(slope, (predicted, block_labels, parameters, slopes, (count + 7) // 8 * 8))
        if gathered + count > len(out):
            run(add, (rows, gathered, dimension, around, answered, norm, unit, total, counts))
            gathered = 0
        for i in range(0, count, WIDTH):
            first, second = begins[u + i] * dimension, begins[u + i + 1] * dimension
            third, fourth = begins[u + i + 2] * dimension, begins[u + i + 3] * dimension
            into = (gathered + i) * dimension
            to, up, on = into + dimension, into + 2 * dimension, into + 3 * dimension
            # 0 · v is NaN where a prediction or a label is not finite, which a bounded slope may hide.
            nothing = times(zero, plus(lanes(predicted, i), lanes(block_labels, i)))
            keep(slopes, i, fused(weight, lanes(slopes, i), nothing))
            e, f, g, h = alike(slopes[i]), alike(slopes[i + 1]), alike(slopes[i + 2]), alike(slopes[i + 3])
            a = b = c = d = zero
            for j in range(0, whole, WIDTH):
                at = lanes(base, j)
                p, q = fused(lanes(flat, first + j), e, zero), fused(lanes(flat, second + j), f, zero)
                r, s = fused(lanes(flat, third + j), g, zero), fused(lanes(flat, fourth + j), h, zero)
                p, q, r, s = plus(p, at), plus(q, at), plus(r, at), plus(s, at)
                keep(rows, into + j, p)
                keep(rows, to + j, q)
                keep(rows, up + j, r)
                keep(rows, on + j, s)
                a, b, c, d = fused(p, p, a), fused(q, q, b), fused(r, r, c), fused(s, s, d)
            if rest > 0:
                at = lanes(base, whole)
                p = plus(fused(first_lanes(flat, first + whole, rest), e, zero), at)
                q = plus(fused(first_lanes(flat, second + whole, rest), f, zero), at)
                r = plus(fused(first_lanes(flat, third + whole, rest), g, zero), at)
                s = plus(fused(first_lanes(flat, fourth + whole, rest), h, zero), at)
                keep_first(rows, into + whole, rest, p)
                keep_first(rows, to + whole, rest, q)
                keep_first(rows, up + whole, rest, r)
                keep_first(rows, on + whole, rest, s)
                a, b, c, d = fused(p, p, a), fused(q, q, b), fused(r, r, c), fused(s, s, d)
            keep(squares, i, sums_of(a, b, c, d))
        for i in range(count):
            answered[gathered + i] = squares[i] <= enough or within(rows, (gathered + i) * dimension, dimension, most)
        u, gathered = u + count, gathered + count
    if gathered > 0:
        run(add, (rows, gathered, dimension, around, answered, norm, unit, total, counts))
    reached[0] = u


# Arguments of `gradient_loop` where rows are wanted, and not their sums.
_NOT_ADDED = (0, np.empty(0), 0.0, 0.0, 0.0, np.empty(0, np.int64), np.empty(0, np.int64))


@user_loop(intp, float64, _VECTOR, _VECTOR, writable(float64, 1))
def _losses(
    features: Any,
    labels: Any,
    begins: Any,
    ends: Any,
    value: int,
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
        begin, end, summed = begins[u], ends[u], 0.0
        for first in range(begin, end, _BLOCK):
            count = min(_BLOCK, end - first)
            for i in range(count):
                block_labels[i] = labels[first + i]
            predict(flat, first, count, features.shape[1], point, predictions, 0)
            run(value, (predictions, block_labels, parameters, block_values, count))
            if item_weights.size > 0:
                for i in range(count):
                    block_values[i] *= item_weights[first + i]
            for i in range(count):
                # A non-finite feature shows in its prediction; the value of a bounded loss may hide it.
                summed += block_values[i] if np.isfinite(predictions[i] + block_labels[i]) else np.nan
        out[u] = summed / max(end - begin, 1)
