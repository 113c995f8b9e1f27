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

from quoron_client.compute.compiled import LINE, helper, prefetch, read_only, user_loop, writable
from quoron_client.compute.draws import NARROW, Keys, shifts_and_spread
from quoron_client.data.items import Items
from quoron_client.losses import Loss, Softmax
from quoron_client.losses._exponential import exponential
from quoron_client.protocol.domains import L2Ball
from quoron_client.protocol.questions import LocalSGD
from quoron_privacy.calls import run
from quoron_privacy.errors import DataError

_SIDE = 16  # users whose passes run side by side, at most: one's next step waits for its last, others' need not
_NUMBERS = 2048  # of all their iterates together, so that these and their sums stay in the nearest cache


def local_sgd(
    loss: Loss, batch: Items, task: LocalSGD, *, keys: Keys | None = None, threads: int | None = None
) -> NDArray[np.float64]:
    """For every user the final iterate and the mean of the iterates after each step, shape (k, 2, d).

    Items are taken in stored order, from `task.starts[u]`, a point of the domain; an item's weight multiplies its loss,
    not the ridge. `batch` is as `bounded` returns it. A user without items gets its start and zeros; one with a
    non-finite feature or label gets NaN. A `Convolution` draws from `keys` (k,), see `draws.user_keys`. The bits do not
    depend on `threads` nor on the other users. Raises `DataError` unless there is one start per user, of the model's
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
        _class_passes(batch, *of_classes, out.reshape(-1, 2, *by_class), threads=threads)
        return out
    slope = loss.slopes_with(task.smoothing).compiled.address
    shifts, spread = shifts_and_spread(batch, task.smoothing, keys, threads=threads)
    bend = loss.bend(dimension)
    own = (slope, loss.parameter, shifts, spread, batch.item_weights, bend, starts, task.step_size, ball, size)
    _passes(batch, *own, out, threads=threads)
    return out


@helper
def _aligned(rows: int, columns: int) -> Any:
    """Array whose rows start on cache lines: a row read across lines takes twice as long."""
    stride = (columns + 7) // 8 * 8
    flat = np.empty(rows * stride + 8)
    first = (-(flat.ctypes.data // 8)) % 8
    return flat[first : first + rows * stride].reshape(rows, stride)


@helper
def _begin(begins: Any, ends: Any, starts: Any, group: int, users: int, x: Any, total: Any) -> int:
    """Set out from the starts; the most items that one user of the group has."""
    longest = 0
    for g in range(users):
        longest = max(longest, ends[group + g] - begins[group + g])
        for j in range(starts.shape[1]):
            x[g, j] = starts[group + g, j]
            total[g, j] = 0.0
    return longest


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
    """What the projection multiplies a point of that squared length by."""
    shrink: float = radius / max(np.sqrt(square), radius)
    return shrink


@helper
def _finish(
    begins: Any, ends: Any, group: int, users: int, x: Any, total: Any, ball: bool, size: float, out: Any
) -> None:
    for g in range(users):
        u, square, shrink, counted = group + g, 0.0, 1.0, 0.0
        steps = max(1.0, np.float64(ends[u] - begins[u]))
        if ball and begins[u] < ends[u]:
            for j in range(out.shape[2]):
                square += x[g, j] * x[g, j]
            shrink, counted = _into_ball(square, size), 1.0
        for j in range(out.shape[2]):
            out[u, 0, j] = shrink * x[g, j]
            out[u, 1, j] = (total[g, j] + counted * (shrink * x[g, j])) / steps


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
    # No loop stores and sums at once: its order of summation would depend on where the arrays lie in memory.
    dimension, flat, keep = features.shape[1], features.reshape(-1), 1.0 - step * bend
    smoothed = spread > 0.0 or shifts.size > 0
    side = min(_SIDE, max(2, _NUMBERS // max(dimension, 1)))
    x, total = _aligned(side, dimension), _aligned(side, dimension)
    shrinks, parameters, item_slopes = np.ones(side), np.full(side, parameter), np.empty(side)
    predictions, item_labels = np.zeros(side), np.zeros(side)
    for group in range(start, stop, side):
        users = min(side, stop - group)
        for t in range(_begin(begins, ends, starts, group, users, x, total)):
            for g in range(users):
                i = begins[group + g] + t
                if i < ends[group + g]:
                    # The next row arrives while the other users take their steps.
                    for j in range((i + 1) * dimension, (i + 2) * dimension, LINE):
                        prefetch(flat, j)
                    inner = square = 0.0
                    for j in range(dimension):
                        inner += features[i, j] * x[g, j]
                        square += x[g, j] * x[g, j]
                    # In a ball what is kept is the iterate before its projection, whose factor is known only here.
                    shrinks[g] = _into_ball(square, size) if ball and t > 0 else 1.0
                    predictions[g] = shrinks[g] * inner
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
                i = begins[group + g] + t
                if i < ends[group + g]:
                    # A non-finite feature makes the prediction so; a bounded slope or the projection may hide it.
                    move = step * item_slopes[g] if np.isfinite(predictions[g] + item_labels[g]) else np.nan
                    if ball:
                        kept, counted = shrinks[g], shrinks[g] if t > 0 else 0.0  # a start is not counted
                        for j in range(dimension):
                            now = x[g, j]
                            total[g, j] += counted * now
                            x[g, j] = keep[j] * kept * now - move * features[i, j]
                    else:
                        for j in range(dimension):
                            now = keep[j] * x[g, j] - move * features[i, j]
                            now = size if now > size else now
                            now = -size if now < -size else now
                            total[g, j] += now
                            x[g, j] = now
        _finish(begins, ends, group, users, x, total, ball, size, out)


@helper
def _class_slopes(scores: Any, label: float) -> None:
    """Scores (K,) become chances less the label's; NaN unless they are finite and the label is a class number."""
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
