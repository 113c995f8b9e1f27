"""Slow, obvious versions of what the client computes: one item at a time, formulas from the definitions."""

from fractions import Fraction

import numpy as np

from quoron_client import Convolution, ItemBatch, Moreau, make_loss

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
        case "linear" | "quadratic":
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
        case "linear" | "quadratic":
            return -1.0
    raise AssertionError(loss.name)


def envelope_slope(loss, q, y, width):
    """Slope at q of min_p φ(p, y) + (p - q)² / (2 width), by bisection for the minimiser."""
    low, high = q - 10.0 * width, q + 10.0 * width  # slopes of the losses tried are below 10
    for _ in range(200):
        p = (low + high) / 2
        low, high = (p, high) if phi_slope(loss, p, y) + (p - q) / width < 0 else (low, p)
    return (q - (low + high) / 2) / width


def gradient(loss, a, y, x, smoothing=None, coordinate=0.0):
    """One item's gradient, or that of what stands for it; `coordinate` is of its point in the unit ball."""
    a = a.astype(np.float64)
    norm = np.linalg.norm(a)
    if isinstance(smoothing, Moreau) and norm > 0:
        return envelope_slope(loss, a @ x, y, smoothing.parameter * norm**2) * a + loss.quadratic_diagonal(len(x)) * x
    shift = smoothing.radius * norm * coordinate if isinstance(smoothing, Convolution) else 0.0
    return phi_slope(loss, a @ x + shift, y) * a + loss.quadratic_diagonal(len(x)) * x


def ball_coordinates(sizes, dimension, seed, keys):
    """First coordinates of points of the ball by Bailey's polar method, from SplitMix64 on Python's integers."""
    step, top = 0x9E3779B97F4A7C15, 2**64

    def mix(z):
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) % top
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) % top
        return z ^ (z >> 31)

    out = []
    for size, key in zip(sizes, keys, strict=True):
        user = mix((mix((seed + step) % top) + int(key)) % top)
        for item in range(size):
            state, square = mix((user + item * step) % top), 2.0
            while not 0 < square < 1:
                a = (mix((state + step) % top) >> 11) * 2.0**-52 - 1
                state = (state + 2 * step) % top
                b = (mix(state) >> 11) * 2.0**-52 - 1
                square = a * a + b * b
            student = a * np.sqrt((square ** (-2 / (dimension + 1)) - 1) / square)  # over √(d + 1)
            out.append(student / np.sqrt(1 + student**2))
    return np.array(out)


def users(batch):
    """Each user's rows and labels."""
    return [
        (batch.features[i:j], batch.labels[i:j]) for i, j in zip(batch.offsets[:-1], batch.offsets[1:], strict=True)
    ]


def average_gradient(loss, batch, points, weights, smoothing=None, coordinates=None):
    """Weighted gradients of every user's average loss, item by item."""
    out, shifts = np.zeros((batch.users, batch.dimension)), iter(_or_zeros(coordinates, batch))
    for u, (rows, labels) in enumerate(users(batch)):
        for a, y, s in zip(rows, labels, shifts, strict=False):
            both = zip(points, weights, strict=True)
            out[u] += sum(w * gradient(loss, a, y, x, smoothing, s) for x, w in both) / len(rows)
    return out


def _or_zeros(coordinates, batch):
    return np.zeros(len(batch.labels)) if coordinates is None else coordinates


def second_moment_factor(rows):
    """Packed factor of integer rows, by Cholesky's outer products in rational numbers: zero pivots are no rows."""
    moment = rows.astype(int).T @ rows.astype(int)
    rest = [[Fraction(int(entry), len(rows)) for entry in row] for row in moment]
    echelon, top = np.zeros((len(rest), len(rest))), 0
    for p in range(len(rest)):
        pivot, row = rest[p][p], rest[p][:]
        if not pivot:
            continue
        echelon[top, p:] = [float(row[j]) / np.sqrt(float(pivot)) for j in range(p, len(rest))]
        top += 1
        for i in range(len(rest)):
            for j in range(len(rest)):
                rest[i][j] -= row[i] * row[j] / pivot
    return echelon[np.triu_indices(len(rest))]


def average_loss(loss, batch, x):
    """Every user's average loss, item by item."""
    out = np.zeros(batch.users)
    for u, (rows, labels) in enumerate(users(batch)):
        for a, y in zip(rows, labels, strict=True):
            quadratic = (loss.quadratic_diagonal(len(x)) * x) @ x / 2
            out[u] += (phi(loss, a.astype(np.float64) @ x, y) + quadratic) / len(rows)
    return out


def hessian_bound(loss, rows):
    """Largest eigenvalue of curvature · mean(a aᵀ) + ridge · I, from the d × d matrix."""
    rows = rows.astype(np.float64)
    return loss.curvature * np.linalg.eigvalsh(rows.T @ rows / len(rows))[-1] + loss.ridge


def local_sgd(loss, batch, task, coordinates=None):
    """Final iterates and means of iterates, step by step."""
    out, shifts = np.zeros((batch.users, 2, batch.dimension)), iter(_or_zeros(coordinates, batch))
    for u, (rows, labels) in enumerate(users(batch)):
        x, total = task.starts[u], np.zeros(batch.dimension)
        for a, y, s in zip(rows, labels, shifts, strict=False):
            x = task.domain.project(x - task.step_size * gradient(loss, a, y, x, task.smoothing, s))
            total = total + x
        out[u] = x, total / max(1, len(labels))
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
