"""Our model and data, in plain numpy: two layers that learn which points lie inside a ring. Nothing of quoron here."""

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
INPUTS, HIDDEN = 2, 8
SIZES = (INPUTS * HIDDEN, HIDDEN, HIDDEN, 1)
DIMENSION = sum(SIZES)


def first_model(seed: int = 0) -> Array:
    """Weights to start from, flattened, shape (DIMENSION,)."""
    random = np.random.default_rng(seed)
    return np.concatenate([random.normal(0, 1, SIZES[0]), np.zeros(HIDDEN), random.normal(0, 0.5, HIDDEN), [0.0]])


def items(seed: int, count: int = 200) -> tuple[Array, Array]:
    """Made-up points, shape (count, 2), and whether each is inside a ring, 0 or 1."""
    points = np.random.default_rng(seed).uniform(-1.5, 1.5, (count, INPUTS))
    return points, (np.linalg.norm(points, axis=1) < 1.2).astype(np.float64)


def average_gradient(model: Array, points: Array, labels: Array) -> Array:
    """Gradient of the average logistic loss at `model`, shape (DIMENSION,)."""
    _, _, second, _ = _unpack(model)
    hidden, chance = _forward(model, points)
    wrong = (chance - labels) / len(labels)
    back = wrong[:, None] * second * (1 - hidden**2)
    return np.concatenate([(points.T @ back).ravel(), back.sum(axis=0), hidden.T @ wrong, [wrong.sum()]])


def local_update(model: Array, points: Array, labels: Array, steps: int, step_size: float = 1.0) -> Array:
    """What `steps` steps of local SGD take away from `model`, shape (DIMENSION,)."""
    local = model
    for batch in np.array_split(np.arange(len(labels)), steps):
        local = local - step_size * average_gradient(local, points[batch], labels[batch])
    return model - local


def accuracy(model: Array, points: Array, labels: Array) -> float:
    """Share of points that are on the side the model says."""
    return float(np.mean((_forward(model, points)[1] > 0.5) == (labels > 0.5)))


def _forward(model: Array, points: Array) -> tuple[Array, Array]:
    first, bias, second, shift = _unpack(model)
    hidden = np.tanh(points @ first + bias)
    return hidden, 1 / (1 + np.exp(-(hidden @ second + shift)))


def _unpack(model: Array) -> tuple[Array, Array, Array, Array]:
    first, bias, second, shift = np.split(model, np.cumsum(SIZES)[:-1])
    return first.reshape(INPUTS, HIDDEN), bias, second, shift
