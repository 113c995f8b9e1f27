"""One pass of projected SGD over each user's items, item by item.

    >>> import numpy as np
    >>> from quoron_client.data.items import ItemBatch
    >>> from quoron_client.protocol.domains import L2Ball
    >>> from quoron_client.losses import Linear
    >>> items = ItemBatch(np.eye(2), np.zeros(2), np.array([0, 2]))
    >>> local_sgd(Linear(), items, LocalSGD(np.zeros((1, 2)), 0.5, L2Ball(1.0)))
    array([[[0.5 , 0.5 ],
            [0.5 , 0.25]]])

Source: the inner loop of phased SGD (Feldman, Koren, Talwar 2020). A step x ↦ Π(x - η ∇f(x)) is non-expansive for
convex f that are β-smooth with ηβ ≤ 2, so two starts never drift apart.
"""

from typing import Any

import numpy as np
from numba import boolean, float64, intp
from numpy.typing import NDArray

from quoron_client.compute.draws import NARROW, Keys, shifts_and_spread
from quoron_client.compute.user_loops import copied, user_loop
from quoron_client.data.items import Items
from quoron_client.losses import Loss, Softmax
from quoron_client.losses.standard import exponential
from quoron_client.protocol.domains import L2Ball
from quoron_client.protocol.questions import LocalSGD
from quoron_privacy.errors import DataError
from quoron_privacy.kernels.compiled import helper, read_only, run, writable
from quoron_privacy.kernels.simd import (
    LINE,
    WIDTH,
    aligned,
    alike,
    first_lanes,
    fused,
    held,
    keep,
    keep_first,
    lanes,
    plus,
    pointer,
    prefetch,
    sum_of,
    times,
)

_SIDE = 16  # users whose passes run side by side, at most: one's next step waits for its last, others' need not
_NUMBERS = 1024  # of all their iterates together, so that these and their sums stay in the nearest cache


def local_sgd(loss: Loss, batch: Items, task: LocalSGD, *, keys: Keys | None = None) -> NDArray[np.float64]:
    """For every user the final iterate and the mean of the iterates after each step, shape (k, 2, d).

    Items are taken in stored order, from `task.starts[u]`, a point of the domain; an item's weight multiplies its loss,
    not the ridge. `batch` is as `bounded` returns it. A user without items gets its start and zeros; one with a
    non-finite feature or label gets NaN. A `Convolution` draws from `keys` (k,), see `draws.user_keys`. The bits do not
    depend on threads nor on the other users. Raises `DataError` unless there is one start per user, of the model's
    dimension, and `ConfigError` for a smoothing that does not fit the loss or has no keys.
    """
    starts, dimension = np.ascontiguousarray(task.starts, dtype=np.float64), loss.outputs * batch.dimension
    if starts.shape != (batch.users, dimension):
        raise DataError(f"Expected starts of shape {(batch.users, dimension)}, got {starts.shape}.")
    out = np.empty((batch.users, 2, dimension))
    ball = isinstance(task.domain, L2Ball)
    size = task.domain.radius if isinstance(task.domain, L2Ball) else task.domain.half_width
    if isinstance(loss, Softmax):
        if task.smoothing is not None:
            loss.slopes_with(task.smoothing)
        by_class = (loss.classes, batch.dimension)
        of_classes = (batch.item_weights, loss.ridge, starts.reshape(-1, *by_class), task.step_size, ball, size)
        _class_passes(batch, *of_classes, out.reshape(-1, 2, *by_class))
        return out
    slope = loss.slopes_with(task.smoothing).compiled.address
    shifts, spread = shifts_and_spread(batch, task.smoothing, keys)
    bend = loss.quadratic_diagonal(dimension)
    own = (slope, loss.parameter, shifts, spread, batch.item_weights, bend, starts, task.step_size, ball, size)
    _passes(batch, *own, out)
    return out


@helper
def _look(flat: Any, row: int, x: Any, at: int, dimension: int) -> tuple[float, float]:
    """⟨row, x⟩ and ‖x‖², of the iterate from x[at] on."""
    whole, rest = dimension // WIDTH * WIDTH, dimension % WIDTH
    inner = square = alike(0.0)
    for j in range(0, whole, WIDTH):
        now = lanes(x, at + j)
        inner, square = fused(lanes(flat, row + j), now, inner), fused(now, now, square)
    if rest > 0:
        now = lanes(x, at + whole)
        inner, square = fused(first_lanes(flat, row + whole, rest), now, inner), fused(now, now, square)
    return sum_of(inner), sum_of(square)


@helper
def _ball_step(
    flat: Any, row: int, following: int, dimension: int, keep_of: Any, kept: float, move: float,
    x: Any, total: Any, at: int,
) -> tuple[float, float]:  # fmt: skip
    """total += kept · x, x = keep · kept · x - move · row; and what `_look` says of the row that follows."""
    whole, rest, strides = dimension // WIDTH * WIDTH, dimension % WIDTH, dimension // (2 * WIDTH) * 2 * WIDTH
    k, m = alike(kept), alike(-move)
    inner = square = other = more = alike(0.0)
    # `kept` projects the iterate of the step before, whose length was not known until it was whole. Two registers at a
    # time, with sums of their own, which need not wait for one another.
    for j in range(0, strides, 2 * WIDTH):
        now, then = times(k, lanes(x, at + j)), times(k, lanes(x, at + j + WIDTH))
        keep(total, at + j, plus(now, lanes(total, at + j)))
        keep(total, at + j + WIDTH, plus(then, lanes(total, at + j + WIDTH)))
        now = fused(m, lanes(flat, row + j), times(lanes(keep_of, j), now))
        then = fused(m, lanes(flat, row + j + WIDTH), times(lanes(keep_of, j + WIDTH), then))
        keep(x, at + j, now)
        keep(x, at + j + WIDTH, then)
        inner, square = fused(lanes(flat, following + j), now, inner), fused(now, now, square)
        other, more = fused(lanes(flat, following + j + WIDTH), then, other), fused(then, then, more)
    for j in range(strides, whole, WIDTH):
        now = times(k, lanes(x, at + j))
        keep(total, at + j, plus(now, lanes(total, at + j)))
        now = fused(m, lanes(flat, row + j), times(lanes(keep_of, j), now))
        keep(x, at + j, now)
        inner, square = fused(lanes(flat, following + j), now, inner), fused(now, now, square)
    if rest > 0:
        j = whole
        now = times(k, lanes(x, at + j))
        keep(total, at + j, plus(now, lanes(total, at + j)))
        now = fused(m, first_lanes(flat, row + j, rest), times(lanes(keep_of, j), now))
        keep(x, at + j, now)
        inner, square = fused(first_lanes(flat, following + j, rest), now, inner), fused(now, now, square)
    return sum_of(plus(inner, other)), sum_of(plus(square, more))


@helper
def _box_step(
    flat: Any, row: int, following: int, dimension: int, keep_of: Any, size: float, move: float,
    x: Any, total: Any, at: int,
) -> float:  # fmt: skip
    """x = keep · x - move · row, held within the box, total += x; and ⟨row that follows, x⟩."""
    whole, rest = dimension // WIDTH * WIDTH, dimension % WIDTH
    m, most, inner = alike(-move), alike(size), alike(0.0)
    # A box is held to coordinate by coordinate, so here the projection does not wait for a length.
    for j in range(0, whole, WIDTH):
        now = held(fused(m, lanes(flat, row + j), times(lanes(keep_of, j), lanes(x, at + j))), most)
        keep(x, at + j, now)
        keep(total, at + j, plus(now, lanes(total, at + j)))
        inner = fused(lanes(flat, following + j), now, inner)
    if rest > 0:
        j = whole
        now = held(fused(m, first_lanes(flat, row + j, rest), times(lanes(keep_of, j), lanes(x, at + j))), most)
        keep(x, at + j, now)
        keep(total, at + j, plus(now, lanes(total, at + j)))
        inner = fused(first_lanes(flat, following + j, rest), now, inner)
    return sum_of(inner)  # type: ignore[no-any-return]


@helper
def _finish(
    x: Any, total: Any, at: int, shrink: float, counted: float, share: float, dimension: int, out: Any, place: int
) -> None:
    """shrink · x, and after it share · (total + counted · shrink · x)."""
    k, c, s = alike(shrink), alike(counted), alike(share)
    for j in range(0, dimension, WIDTH):
        now, few = times(k, lanes(x, at + j)), min(WIDTH, dimension - j)
        keep_first(out, place + j, few, now)
        keep_first(out, place + dimension + j, few, times(s, fused(c, now, lanes(total, at + j))))


@helper
def _smooth(
    features: Any,
    begins: Any,
    ends: Any,
    group: int,
    users: int,
    t: int,
    shifts: Any,
    spread: float,
    predictions: Any,
    parameters: Any,
) -> None:
    """Where to take the slopes of the users' items t, or with which parameters those of what stands for the loss."""
    for g in range(users):
        i = begins[group + g] + t
        if i < ends[group + g]:
            square = 0.0
            for j in range(features.shape[1]):
                square += np.float64(features[i, j]) * np.float64(features[i, j])
            if spread > 0.0:
                parameters[g] = max(spread * square, NARROW)
            else:
                predictions[g] += shifts[i] * np.sqrt(square)


@helper
def _into_ball(square: float, radius: float) -> float:
    """Return what the projection multiplies a point of that squared length by."""
    shrink: float = radius / max(np.sqrt(square), radius)
    return shrink


@user_loop(
    intp,
    float64,
    read_only(float64, 1),
    float64,
    read_only(float64, 1),
    read_only(float64, 1),
    read_only(float64, 2),
    float64,
    boolean,
    float64,
    writable(float64, 3),
)
def _passes(
    features: Any,
    labels: Any,
    begins: Any,
    ends: Any,
    slope: int,
    parameter: float,
    shifts: Any,
    spread: float,
    item_weights: Any,
    bend: Any,
    starts: Any,
    step: float,
    ball: bool,
    size: float,
    out: Any,
    start: int,
    stop: int,
) -> None:
    # One user's next step waits for its last, so a processor alone with a user would wait, too: a group takes its steps
    # side by side, user after user, and the slopes of a step are one call for all of them.
    dimension, flat, smoothed = features.shape[1], features.reshape(-1), spread > 0.0 or shifts.size > 0
    side = min(_SIDE, max(2, _NUMBERS // max(dimension, 1)))
    keep_of = aligned(1, dimension)[0]
    for j in range(dimension):
        keep_of[j] = 1.0 - step * bend[j]
    x, total = aligned(side, dimension).reshape(-1), aligned(side, dimension).reshape(-1)
    stride, begun, into = x.size // side, starts.reshape(-1), out.reshape(-1)
    shrinks, parameters, item_slopes = np.ones(side), np.full(side, parameter), np.empty(side)
    predictions, item_labels, inners, squares = np.zeros(side), np.zeros(side), np.zeros(side), np.zeros(side)
    for group in range(start, stop, side):
        users, longest = min(side, stop - group), begins[group] - begins[group]
        rows, iterates, sums, keeps = pointer(flat), pointer(x), pointer(total), pointer(keep_of)
        for g in range(users):
            u, at = group + g, g * stride
            longest = max(longest, ends[u] - begins[u])
            copied(pointer(begun), u * dimension, dimension, iterates, at)
            less = alike(-1.0 if ball and begins[u] < ends[u] else 0.0)  # a ball's start is added, and not to count
            for j in range(0, stride, WIDTH):
                keep(sums, at + j, times(less, lanes(iterates, at + j)))
            if begins[u] < ends[u]:
                inners[g], squares[g] = _look(rows, begins[u] * dimension, iterates, at, dimension)
        for t in range(longest):
            for g in range(users):
                i = begins[group + g] + t
                if i < ends[group + g]:
                    # In a ball what is kept is the iterate before its projection, whose factor is known only here.
                    shrinks[g] = _into_ball(squares[g], size) if ball and t > 0 else 1.0
                    predictions[g] = shrinks[g] * inners[g]
                    item_labels[g] = labels[i]
            if smoothed:
                _smooth(features, begins, ends, group, users, t, shifts, spread, predictions, parameters)
            run(slope, (predictions, item_labels, parameters, item_slopes, side))
            if item_weights.size > 0:
                for g in range(users):
                    i = begins[group + g] + t
                    if i < ends[group + g]:
                        item_slopes[g] *= item_weights[i]
            for g in range(users):
                i, end, at = begins[group + g] + t, ends[group + g], g * stride
                if i < end:
                    # Rows arrive while other users take their steps; after a user's last, those of the next group.
                    ahead = i + 2
                    if ahead >= end and group + side + g < stop:
                        ahead = min(begins[group + side + g] + ahead - end, ends[group + side + g] - 1)
                    for j in range(ahead * dimension, (ahead + 1) * dimension, LINE):
                        prefetch(flat, j)
                    # A non-finite feature makes the prediction so; a bounded slope or the projection may hide it.
                    move = step * item_slopes[g] + 0.0 * (predictions[g] + item_labels[g])
                    row, following = i * dimension, min(i + 1, end - 1) * dimension
                    if ball:
                        inners[g], squares[g] = _ball_step(
                            rows, row, following, dimension, keeps, shrinks[g], move, iterates, sums, at
                        )
                    else:
                        inners[g] = _box_step(rows, row, following, dimension, keeps, size, move, iterates, sums, at)
        for g in range(users):
            u, at, shrink, counted = group + g, g * stride, 1.0, 0.0
            # The last iterate is still as it was before its projection; sums of a ball lag one iterate behind.
            if ball and begins[u] < ends[u]:
                shrink, counted = _into_ball(squares[g], size), 1.0
            share = 1.0 / max(1.0, np.float64(ends[u] - begins[u]))
            _finish(iterates, sums, at, shrink, counted, share, dimension, pointer(into), 2 * u * dimension)


@helper
def _class_slopes(scores: Any, label: float) -> None:
    """Scores (K,) become chances less the label's; NaN unless they are finite and the label is a class number."""
    # `known` is 0 for a label that is a class, NaN for any other and for scores that are not finite: no branch, and no
    # label is ever an index.
    top, total, known = scores[0], 0.0, np.nan
    for k in range(scores.size):
        top = max(top, scores[k])
    for k in range(scores.size):
        known = 0.0 if label == k else known
    for k in range(scores.size):
        known += 0.0 * scores[k]
    for k in range(scores.size):
        scores[k] = exponential(scores[k] - top)
    for k in range(scores.size):
        total += scores[k]
    for k in range(scores.size):
        scores[k] = scores[k] / (total + known) - (1.0 if label == k else 0.0)


@user_loop(read_only(float64, 1), float64, read_only(float64, 3), float64, boolean, float64, writable(float64, 4))
def _class_passes(
    features: Any,
    labels: Any,
    begins: Any,
    ends: Any,
    item_weights: Any,
    ridge: float,
    starts: Any,
    step: float,
    ball: bool,
    size: float,
    out: Any,
    start: int,
    stop: int,
) -> None:
    """Of the softmax loss, user by user."""
    classes, dimension, keep = starts.shape[1], features.shape[1], 1.0 - step * ridge
    x, total, slopes = np.empty((classes, dimension)), np.empty((classes, dimension)), np.empty(classes)
    for u in range(start, stop):
        x[:] = starts[u]
        total[:] = 0.0
        for i in range(begins[u], ends[u]):
            for k in range(classes):
                inner = 0.0
                for j in range(dimension):
                    inner += features[i, j] * x[k, j]
                slopes[k] = inner
            _class_slopes(slopes, labels[i])
            # One item's step: against its gradient, then back into the domain. The mean is of what is within.
            square, shrink = 0.0, 1.0
            for k in range(classes):
                move = step * slopes[k] * (item_weights[i] if item_weights.size > 0 else 1.0)
                for j in range(dimension):
                    x[k, j] = keep * x[k, j] - move * features[i, j]
            if ball:
                for k in range(classes):
                    for j in range(dimension):
                        square += x[k, j] * x[k, j]
                shrink = _into_ball(square, size)
            for k in range(classes):
                for j in range(dimension):
                    now = shrink * x[k, j]
                    if not ball:
                        now = size if now > size else now
                        now = -size if now < -size else now
                    x[k, j] = now
            for k in range(classes):
                for j in range(dimension):
                    total[k, j] += x[k, j]
        steps = max(1.0, np.float64(ends[u] - begins[u]))
        out[u, 0] = x
        for k in range(classes):
            for j in range(dimension):
                out[u, 1, k, j] = total[k, j] / steps
