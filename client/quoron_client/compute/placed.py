"""Gradients of single items at public places, each clipped on its own if asked, summed with a fixed divisor.

>>> import numpy as np
>>> from quoron_client.losses import Linear
>>> items = ItemBatch(np.eye(2), np.zeros(2), np.array([0, 1, 2]))
>>> task = PlacedGradient(np.zeros((1, 2)), np.array([[0, 1], [1, -1]]), 2.0)
>>> placed_gradient(Linear(), items, task)
array([[-0.5,  0. ],
       [ 0. ,  0. ]])
"""

import numpy as np
from numpy.typing import NDArray

from quoron_client.compute.gradients import average_gradient
from quoron_client.data.items import ItemBatch, Items
from quoron_client.losses import Loss
from quoron_client.protocol.gradients import AverageGradient
from quoron_client.protocol.placed import PlacedGradient
from quoron_privacy.errors import DataError

Matrix = NDArray[np.float64]


def placed_gradient(loss: Loss, batch: Items, task: PlacedGradient, *, threads: int | None = None) -> Matrix:
    """(1/divisor) Σ clip(∇f(x; z_p)) over each user's places that have an item, shape (k, d).

    An item's weight multiplies its loss, as ever. A user with a non-finite item at one of its places gets NaN; others
    of its items are not looked at. The bits do not depend on `threads` nor on the other users. Raises `DataError`
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
        gradients = average_gradient(loss, single, AverageGradient(task.points, (1.0,)), threads=threads)
        total[there] += gradients if task.clip is None else _clipped(gradients, task.clip)
    return total / task.divisor


def _clipped(rows: Matrix, norm: float) -> Matrix:
    lengths = np.sqrt(np.sum(rows**2, axis=1))
    factors: Matrix = np.ones(len(rows))
    np.divide(norm, lengths, out=factors, where=lengths > norm)
    return rows * factors[:, None]
