"""Slow, obvious versions of what the client computes: one item at a time, formulas from the definitions."""

import numpy as np

from quorate_client import ItemBatch, make_loss

SMOOTH = ("logistic", "least_squares", "huber", "smoothed_hinge", "linear")
ALL = (*SMOOTH, "hinge", "absolute")
MARGIN = ("logistic", "smoothed_hinge", "hinge")


def phi(loss, p, y):
    """φ(p, y), from its textbook definition."""
    z, r = y * p, p - y
    match loss.name:
        case "logistic":
            return float(np.logaddexp(0.0, -z))
        case "hinge":
            return max(0.0, 1 - z)
        case "smoothed_hinge":
            w = loss.width
            return 0.0 if z >= 1 else (1 - z) ** 2 / (2 * w) if z >= 1 - w else 1 - z - w / 2
        case "least_squares":
            return r * r / 2
        case "huber":
            t = loss.threshold
            return r * r / 2 if abs(r) <= t else t * (abs(r) - t / 2)
        case "absolute":
            return abs(r)
        case "linear":
            return -p
    raise AssertionError(loss.name)


def phi_slope(loss, p, y):
    """φ'(p, y), with subgradient 0 at kinks."""
    z, r = y * p, p - y
    match loss.name:
        case "logistic":
            return -y / (1 + np.exp(z)) if z < 700 else 0.0
        case "hinge":
            return -y if z < 1 else 0.0
        case "smoothed_hinge":
            return -y * min(max((1 - z) / loss.width, 0), 1)
        case "least_squares":
            return r
        case "huber":
            return min(max(r, -loss.threshold), loss.threshold)
        case "absolute":
            return np.sign(r)
        case "linear":
            return -1.0
    raise AssertionError(loss.name)


def gradient(loss, a, y, x):
    """One item's gradient."""
    a = a.astype(np.float64)
    return phi_slope(loss, a @ x, y) * a + loss.ridge * x


def users(batch):
    """Each user's rows and labels."""
    return [
        (batch.features[i:j], batch.labels[i:j]) for i, j in zip(batch.offsets[:-1], batch.offsets[1:], strict=True)
    ]


def average_gradient(loss, batch, points, weights):
    """Weighted gradients of every user's average loss, item by item."""
    out = np.zeros((batch.users, batch.dimension))
    for u, (rows, labels) in enumerate(users(batch)):
        for a, y in zip(rows, labels, strict=True):
            out[u] += sum(w * gradient(loss, a, y, x) for x, w in zip(points, weights, strict=True)) / len(rows)
    return out


def average_loss(loss, batch, x):
    """Every user's average loss, item by item."""
    out = np.zeros(batch.users)
    for u, (rows, labels) in enumerate(users(batch)):
        for a, y in zip(rows, labels, strict=True):
            out[u] += (phi(loss, a.astype(np.float64) @ x, y) + loss.ridge * (x @ x) / 2) / len(rows)
    return out


def hessian_bound(loss, rows):
    """Largest eigenvalue of curvature · mean(a aᵀ) + ridge · I, from the d × d matrix."""
    rows = rows.astype(np.float64)
    return loss.curvature * np.linalg.eigvalsh(rows.T @ rows / len(rows))[-1] + loss.ridge


def local_sgd(loss, batch, task):
    """Final iterates and sums of iterates, step by step."""
    out = np.zeros((batch.users, 2, batch.dimension))
    for u, (rows, labels) in enumerate(users(batch)):
        x, total = task.starts[u], np.zeros(batch.dimension)
        for a, y in zip(rows, labels, strict=True):
            x = task.domain.project(x - task.step_size * gradient(loss, a, y, x))
            total = total + x
        out[u] = x, total
    return out


def random_batch(rng, sizes, dimension, dtype=np.float32, loss=None, spread=1.0):
    """Users with `sizes[u]` items; rows about `spread` long; labels that suit the loss."""
    count = int(sum(sizes))
    features = (spread * rng.standard_normal((count, dimension)) / np.sqrt(dimension)).astype(dtype)
    labels = rng.uniform(-1, 1, count)
    if loss is None or loss.name in MARGIN:
        labels = np.where(labels > 0, 1.0, -1.0)
    return ItemBatch(features, labels, np.concatenate(([0], np.cumsum(sizes))).astype(np.int64))


def some_losses():
    """Each family, with bounds other than the defaults."""
    bounds = {"huber": {"threshold": 0.3, "label_bound": 2.0}, "smoothed_hinge": {"width": 0.4}}
    return [make_loss(name, ridge=0.05, feature_norm=1.5, **bounds.get(name, {})) for name in ALL]
