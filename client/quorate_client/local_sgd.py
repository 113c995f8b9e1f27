"""One pass of projected SGD over each user's items, item by item.

    >>> import numpy as np
    >>> from quorate_client.domains import L2Ball
    >>> from quorate_client.losses import Linear
    >>> items = ItemBatch(np.eye(2), np.zeros(2), np.array([0, 2]))
    >>> local_sgd(Linear(), items, LocalSGD(np.zeros((1, 2)), 0.5, L2Ball(1.0)))
    array([[[0.5, 0.5],
            [1. , 0.5]]])

Source: the inner loop of phased SGD (Feldman, Koren, Talwar 2020). A step x ↦ Π(x - η ∇f(x)) is non-expansive for
convex f that are β-smooth with ηβ ≤ 2, so two starts never drift apart.
"""

from typing import Any

import numpy as np
from numba import boolean, float64
from numpy.typing import NDArray

from quorate_client._compiled import POINTWISE, read_only, user_loop, writable
from quorate_client.domains import L2Ball
from quorate_client.items import ItemBatch
from quorate_client.losses import Loss
from quorate_client.questions import LocalSGD
from quorate_protos.errors import DataError


def local_sgd(loss: Loss, batch: ItemBatch, task: LocalSGD, *, threads: int | None = None) -> NDArray[np.float64]:
    """For every user the final iterate and the sum of the iterates after each step, shape (k, 2, d).

    Items are taken in stored order, from `task.starts[u]`. `batch` is as `bounded` returns it. A user without items
    gets its start and zeros; one with a non-finite feature or label gets NaN. Raises `DataError` unless there is one
    start per user, of the items' dimension.
    """
    starts = np.ascontiguousarray(task.starts, dtype=np.float64)
    if starts.shape != (batch.users, batch.dimension):
        raise DataError(f"Expected starts of shape {(batch.users, batch.dimension)}, got {starts.shape}.")
    out = np.empty((batch.users, 2, batch.dimension))
    ball = isinstance(task.domain, L2Ball)
    size = task.domain.radius if isinstance(task.domain, L2Ball) else task.domain.half_width
    own = (loss.slopes.compiled, loss.parameter, loss.ridge, starts, task.step_size, ball, size, out)
    _passes(batch, *own, threads=threads)
    return out


@user_loop(POINTWISE, float64, float64, read_only(float64, 2), float64, boolean, float64, writable(float64, 3))
def _passes(
    features: Any,
    labels: Any,
    offsets: Any,
    slopes: Any,
    parameter: float,
    ridge: float,
    starts: Any,
    step: float,
    ball: bool,
    size: float,
    out: Any,
    start: int,
    stop: int,
) -> None:
    prediction, label, slope = np.empty(1), np.empty(1), np.empty(1)
    keep = 1.0 - step * ridge
    for u in range(start, stop):
        x, total = out[u, 0], out[u, 1]
        x[:] = starts[u]
        total[:] = 0.0
        for i in range(offsets[u], offsets[u + 1]):
            row = features[i]
            inner = 0.0
            for j in range(x.size):
                inner += row[j] * x[j]
            prediction[0], label[0] = inner, labels[i]
            slopes(prediction, label, parameter, slope)
            # A non-finite feature makes the prediction non-finite, but a bounded slope or the projection may hide it.
            move = step * slope[0] if np.isfinite(inner + labels[i]) else np.nan
            squares = 0.0
            for j in range(x.size):
                x[j] = keep * x[j] - move * row[j]
                squares += x[j] * x[j]
            if ball:
                norm = np.sqrt(squares)
                shrink = size / norm if norm > size else 1.0
                for j in range(x.size):
                    x[j] *= shrink
                    total[j] += x[j]
            else:
                for j in range(x.size):
                    if x[j] > size:
                        x[j] = size
                    elif x[j] < -size:
                        x[j] = -size
                    total[j] += x[j]
