"""What a client computes for a task whose answer may be seen as it is (of the others there is `local_report`).

Bad data gives a status, never an exception.

Every user's second moment of the features, as a triangular factor.

    >>> import numpy as np
    >>> from quoron_client.data.items import ItemBatch
    >>> items = ItemBatch(np.array([[2.0, 2.0], [0.0, 2.0]]), np.zeros(2), np.array([0, 2]))
    >>> np.round(second_moment_factor(items) * np.sqrt(2), 12)
    array([[2., 2., 2.]])

The factor comes from reflections of the feature matrix itself (Householder 1958). Going through the moment would square
the condition number and fail for users with fewer items than features.

What a client does in a round of the local model: its average gradient, then a report that is private by itself.

Two kinds of report: noisy bits of one rotated coordinate, from which the coordinator finds where the gradients lie, and
the gradient clipped around a public centre with the client's own noise. A user sends one report in a run; a user who
sends two has spent both. Source: Bassily & Sun (2023), Algorithm 5, lines 6 and 7.
"""

from dataclasses import replace
from typing import Any

import numpy as np
from numba import boolean, float64

from quoron_client.compute.draws import Keys, user_keys
from quoron_client.compute.gradients import average_gradient, average_loss
from quoron_client.compute.local_iterates import local_sgd
from quoron_client.compute.user_loops import user_loop
from quoron_client.data.items import ItemBatch, Items
from quoron_client.losses import Loss
from quoron_client.protocol.questions import (
    ANSWERED,
    MISSING,
    REJECTED,
    Answers,
    AverageGradient,
    AverageLoss,
    LocalReport,
    LocalSGD,
    Matrix,
    MomentAndGradient,
    PlacedGradient,
    RangeReport,
    SecondMoment,
    Status,
    Task,
    Vector,
    VectorReport,
)
from quoron_client.randomisers import LocalRandomness, RangeBits, Users, VectorNoise, rotated_coordinates
from quoron_privacy.errors import ConfigError, DataError
from quoron_privacy.kernels.compiled import helper, read_only, writable
from quoron_privacy.release import packed


def second_moment_factor(batch: Items, *, rows: int | None = None) -> Matrix:
    """Return upper triangular U with Uᵀ U = (1/m_u) Σ w a aᵀ for every user, packed by rows, shape (k, d (d + 1) / 2).

    d is the number of features; weights w are 1 where a batch has none. With `rows`, of U so many rows alone: all that
    are not zero, where no user has more items (`release.packed`).

    A function of the moment alone, up to rounding: an echelon form, whose first rows, m_u at most, begin with positive
    numbers, each in a later column than the one before, and whose others are zero. A column whose part outside the span
    of the earlier ones is no more than rounding counts as inside it.

    A user without items gets zeros, one with a non-finite feature or label NaN (see `work.answer`). The bits do not
    depend on threads nor on the other users.
    """
    if batch.weights is not None:
        weighted = np.sqrt(batch.weights)[:, None] * batch.features.astype(np.float64)
        batch = replace(batch, features=weighted, weights=None)
    out = np.empty((batch.users, packed(batch.dimension, rows)))
    _factors(batch, out)
    return out


_EPSILON = 2.0**-52


@helper
def _load(features: Any, labels: Any, begin: int, end: int, columns: Any, norms: Any) -> bool:
    """Feature matrix of the rows, transposed, and its columns' norms; whether all is finite."""
    count, bad = end - begin, 0.0
    for i in range(count):
        bad += 0.0 * labels[begin + i]
        for j in range(norms.size):
            columns[j, i] = features[begin + i, j]
    for j in range(norms.size):
        squares = 0.0
        for i in range(count):
            squares += columns[j, i] * columns[j, i]
        norms[j] = np.sqrt(squares)
        bad += 0.0 * norms[j]
    return bad == 0.0


@helper
def _reflect(columns: Any, first: int, top: int, count: int, mirror: Any, factor: float) -> None:
    """Entries `top` and below of the columns from `first` on: c -= factor · ⟨mirror, c⟩ · mirror."""
    # Four columns at a time, so that the mirror is read once for them. Where fewer are left the last one is repeated,
    # and its sum is not used.
    last = len(columns) - 1
    for c in range(first, last + 1, 4):
        d, e, f = min(c + 1, last), min(c + 2, last), min(c + 3, last)
        cs = ds = es = fs = 0.0
        for i in range(top, count):
            cs += mirror[i] * columns[c, i]
            ds += mirror[i] * columns[d, i]
            es += mirror[i] * columns[e, i]
            fs += mirror[i] * columns[f, i]
        for i in range(top, count):
            columns[c, i] -= factor * cs * mirror[i]
        if c + 1 <= last:
            for i in range(top, count):
                columns[d, i] -= factor * ds * mirror[i]
        if c + 2 <= last:
            for i in range(top, count):
                columns[e, i] -= factor * es * mirror[i]
        if c + 3 <= last:
            for i in range(top, count):
                columns[f, i] -= factor * fs * mirror[i]


@user_loop(writable(float64, 2))
def _factors(features: Any, labels: Any, begins: Any, ends: Any, out: Any, start: int, stop: int) -> None:
    dimension, longest = features.shape[1], 0
    for u in range(start, stop):
        longest = max(longest, ends[u] - begins[u])
    columns, mirror, norms = np.empty((dimension, longest)), np.empty(longest), np.empty(dimension)
    for u in range(start, stop):
        begin, factor = begins[u], out[u]
        count = ends[u] - begin
        factor[:] = 0.0
        if count == 0:
            continue
        if not _load(features, labels, begin, begin + count, columns, norms):
            factor[:] = np.nan
            continue
        # A Householder QR: rounding stays that of the rows, where a Gram matrix would have squared it. A column of
        # which only rounding is left depends on those before it, and has no row of its own.
        rounding = 4.0 * (count + dimension) * _EPSILON
        unit = 1.0 / np.sqrt(np.float64(count))
        top = place = begin - begin  # a plain 0 has a type of its own, for which `_reflect` would be compiled again
        for c in range(dimension):
            if top == count or place == factor.size:
                break
            # Two loops: one that stores and sums picks its order of summation by where the arrays lie in memory.
            for i in range(top, count):
                mirror[i] = columns[c, i]
            squares = 0.0
            for i in range(top, count):
                squares += mirror[i] * mirror[i]
            norm = np.sqrt(squares)
            if norm > rounding * norms[c]:
                # The column's rest goes to -sign · norm in entry `top`: the sign that adds, nothing cancels.
                sign = 1.0 if mirror[top] >= 0.0 else -1.0
                mirror[top] += sign * norm
                _reflect(columns, c + 1, top, count, mirror, 1.0 / (norm * abs(mirror[top])))
                factor[place + c - top] = unit * norm
                for j in range(c + 1, dimension):
                    factor[place + j - top] = -sign * unit * columns[j, top]
                place += dimension - top
                top += 1


def answer(loss: Loss, batch: Items, task: Task, *, keys: Keys | None = None, scale: Vector | None = None) -> Answers:
    """Return each user's answer to `task`: values (k, *task.answer_shape(d)), and a status (k,).

    A user without items is `MISSING`, one with a non-finite feature or label is `REJECTED`; both rows are zero. Pass
    `batch` as `bounded` returns it. A `Convolution` draws from `keys` (k,), see `draws.user_keys`. Pass `scale` (k,) of
    `average_gradient` if it is known. Raises `DataError` or `ConfigError` only for a task that does not fit the batch's
    shape or the loss, or has no keys.
    """
    values: Matrix
    if isinstance(task, AverageGradient):
        values = average_gradient(loss, batch, task, keys=keys, scale=scale)
    elif isinstance(task, PlacedGradient):
        values = placed_gradient(loss, batch, task)
    elif isinstance(task, SecondMoment):
        values = _moment(batch, task)
    elif isinstance(task, MomentAndGradient):
        gradients = average_gradient(loss, batch, task.gradient, keys=keys)
        values = np.hstack([_moment(batch, task.moment), gradients])
    elif isinstance(task, AverageLoss):
        values = np.stack([average_loss(loss, batch, point) for point in task.points], axis=1)
    elif isinstance(task, LocalSGD):
        values = local_sgd(loss, batch, task, keys=keys)
    else:
        raise ConfigError(f"Expected a task whose answer may be seen as it is, got a {type(task).__name__}.")
    rows = values.reshape(batch.users, values[0].size if batch.users else 0)
    finite = np.empty(batch.users, np.bool_)
    _finite(batch, rows, finite)
    status = np.where(finite, ANSWERED, REJECTED)
    status[batch.counts == 0] = MISSING
    rows[status != ANSWERED] = 0.0
    return Answers(values, status)


def placed_gradient(loss: Loss, batch: Items, task: PlacedGradient) -> Matrix:
    """(1/divisor) Σ clip(∇f(x; z_p)) over each user's places that have an item, shape (k, d).

    An item's weight multiplies its loss, as ever. A user with a non-finite item at one of its places gets NaN; others
    of its items are not read. The bits do not depend on threads nor on the other users. Raises `DataError`
    unless there is one row of places per user.
    """
    places, held = np.asarray(task.places, np.int64), batch.counts
    if places.ndim != 2 or len(places) != batch.users:
        raise DataError(f"Expected a row of places for each of {batch.users} users, got shape {places.shape}.")
    total = np.zeros((batch.users, task.points.shape[1]))
    kept = (places >= 0) & (places < held[:, None])
    # Place by place, so that a user's sum has one order; no time for places that nobody has, however many are named.
    for place in np.flatnonzero(kept.any(axis=0)):
        column, there = places[:, place], np.flatnonzero(kept[:, place])
        rows = batch.begins[there] + column[there]
        weights = None if batch.weights is None else batch.weights[rows]
        single = ItemBatch(batch.features[rows], batch.labels[rows], np.arange(len(rows) + 1), weights)
        gradients = average_gradient(loss, single, AverageGradient(task.points, (1.0,)))
        total[there] += gradients if task.clip is None else _clipped(gradients, task.clip)
    return total / task.divisor


def _clipped(rows: Matrix, norm: float) -> Matrix:
    lengths = np.sqrt(np.sum(rows**2, axis=1))
    factors: Matrix = np.ones(len(rows))
    np.divide(norm, lengths, out=factors, where=lengths > norm)
    return rows * factors[:, None]


def _moment(batch: Items, task: SecondMoment) -> Matrix:
    if task.model_size != batch.dimension:
        raise DataError(f"Expected dimension={batch.dimension}, like the items, got dimension={task.model_size}.")
    if task.label_scale is not None:
        with np.errstate(invalid="ignore", over="ignore"):  # what is not finite is rejected
            rows = np.column_stack([batch.features.astype(np.float64), task.label_scale * batch.labels])
        batch = replace(batch, features=rows)
    return second_moment_factor(batch, rows=task.rows)


@user_loop(read_only(float64, 2), writable(boolean, 1))
def _finite(features: Any, labels: Any, begins: Any, ends: Any, rows: Any, finite: Any, start: int, stop: int) -> None:
    for u in range(start, stop):
        # 0 · v is 0 for finite v and NaN otherwise, and sums without a branch.
        total = 0.0
        for j in range(rows.shape[1]):
            total += 0.0 * rows[u, j]
        finite[u] = total == 0.0


def local_report(
    loss: Loss, batch: Items, task: LocalReport, randomness: LocalRandomness, *, round: int, users: Users
) -> Answers:
    """Return each user's report: values (k, *task.answer_shape(d)), and a status that is ANSWERED for everybody.

    Users without items or with non-finite ones report like a gradient of zero: a status of their own would tell the
    coordinator about their data. `batch` is as `bounded` returns it, `users` are the user numbers of its rows, (k,).
    The bits depend on (randomness, round, user, gradient) and not on who else is in the batch.
    """
    gradients = average_gradient(loss, batch, task.gradient, keys=user_keys(round, users))
    gradients[~np.isfinite(gradients).all(axis=1)] = 0.0
    values: Matrix
    if isinstance(task, RangeReport):
        coordinates = rotated_coordinates(gradients, task.signs, task.coordinates)
        bits = RangeBits(task.epsilon, task.bins, task.half_width)
        values = bits.randomise(coordinates, randomness, round=round, users=users).astype(np.float64)
    elif isinstance(task, VectorReport):
        noise = VectorNoise(task.epsilon, task.delta, task.radius)
        values = noise.randomise(gradients, task.centre, randomness, round=round, users=users)
    else:
        raise ConfigError(f"Expected a RangeReport or a VectorReport, got a {type(task).__name__}.")
    return Answers(values, np.full(batch.users, Status.ANSWERED, np.uint8))
