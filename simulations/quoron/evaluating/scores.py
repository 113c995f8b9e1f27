"""One number in [0, 1] a user, higher is better: what a model is chosen by, and what is bounded of everybody.

The mean over a user's rows: of classes whether the model is right; of numbers 1 - min(1, |error| / bound)².
"""

import numpy as np
from numpy.typing import NDArray

from quoron_client.data.encoding import Encoding
from quoron_client.data.items import ItemBatch
from quoron_client.losses import Loss

Vector = NDArray[np.float64]


def scores(weights: Vector, loss: Loss, items: ItemBatch) -> Vector:
    """Scores of encoded items (N, p) by a model's weights (K p,): (N,), or (N, K) with more than two classes."""
    found: Vector = items.features.astype(np.float64) @ weights.reshape(loss.outputs, -1).T
    return found[:, 0] if loss.outputs == 1 else found


def primary(weights: Vector, loss: Loss, encoding: Encoding, items: ItemBatch, *, bound: float = 1.0) -> Vector:
    """The score of each user (k,), in [0, 1]; 0 for whoever has no rows.

    `bound` is that of errors of numbers, as a share of the declared range of the label.
    """
    raise NotImplementedError  # filled next
