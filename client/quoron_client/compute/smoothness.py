"""How much a user scales its own loss down so that every conceivable user is β_u-smooth.

The average Hessian of a generalised linear loss is at most curvature · (1/m) Σ a aᵀ + ridge · I at every point (for
weighted items too, whose weights are at most 1, and for each of several classes: docs/losses.md), so one
eigenvalue of the user's second-moment matrix bounds it over the whole domain, independently of the iterate. Bounds are
certified: exact eigenvalues plus an allowance for rounding, never a power iteration's estimate, which is too low.
"""

from typing import Any

import numpy as np
from numba import float64
from numpy.typing import NDArray

from quoron_client.compute.compiled import helper, user_loop, writable
from quoron_client.data.items import Items
from quoron_client.losses import Loss
from quoron_privacy.errors import ConfigError

_CHUNK = 256  # length of the pieces in which inner products are taken, a multiple of 16


def smoothness_scale(
    loss: Loss, batch: Items, user_smoothness: float, *, threads: int | None = None
) -> NDArray[np.float64]:
    """s_u = min(1, user_smoothness / λ_u), shape (k,); λ_u bounds the user's average Hessian over the whole domain.

    s_u = 1 for a user without items and NaN for one with non-finite features. Raises `ConfigError` for a loss whose
    slope jumps, which no scaling makes smooth, and for user_smoothness that is not positive.
    """
    if not (np.isfinite(user_smoothness) and user_smoothness > 0):
        raise ConfigError(f"Expected user_smoothness > 0 and finite, got user_smoothness={user_smoothness}.")
    if loss.curvature is None:
        raise ConfigError(f"Expected a smooth loss with user_smoothness={user_smoothness}, got loss={loss.name!r}.")
    out = np.empty(batch.users)
    steepest = loss.steepest(batch.dimension * loss.outputs)
    _scales(batch, loss.curvature, steepest, float(user_smoothness), out, threads=threads)
    return out


@helper
def _gram(features: Any, begin: int, end: int, buffer: Any, gram: Any) -> None:
    """Lower triangle of A Aᵀ or Aᵀ A, whichever is smaller, for the user's rows A; padded with zeros to tiles of 4."""
    count, dimension = end - begin, features.shape[1]
    of_items = count <= dimension
    size, length = (count, dimension) if of_items else (dimension, count)
    gram[:] = 0.0
    for first in range(0, length, _CHUNK):
        width = min(_CHUNK, length - first)
        padded = (width + 15) // 16 * 16
        if of_items:
            for i in range(size):
                row = features[begin + i]
                for j in range(width):
                    buffer[i, j] = row[first + j]
        else:
            for j in range(width):
                row = features[begin + first + j]
                for i in range(size):
                    buffer[i, j] = row[i]
        buffer[:size, width:padded] = 0.0
        for i in range(0, size, 2):
            a, b = buffer[i, :padded], buffer[i + 1, :padded]
            for k in range(0, i + 1, 4):
                p, q = buffer[k, :padded], buffer[k + 1, :padded]
                r, s = buffer[k + 2, :padded], buffer[k + 3, :padded]
                ap = aq = ar = at = bp = bq = br = bt = 0.0
                for j in range(padded):
                    ap += a[j] * p[j]
                    aq += a[j] * q[j]
                    ar += a[j] * r[j]
                    at += a[j] * s[j]
                    bp += b[j] * p[j]
                    bq += b[j] * q[j]
                    br += b[j] * r[j]
                    bt += b[j] * s[j]
                gram[i, k] += ap
                gram[i, k + 1] += aq
                gram[i, k + 2] += ar
                gram[i, k + 3] += at
                gram[i + 1, k] += bp
                gram[i + 1, k + 1] += bq
                gram[i + 1, k + 2] += br
                gram[i + 1, k + 3] += bt


@helper
def _frobenius(gram: Any, size: int) -> float:
    total = 0.0
    for i in range(size):
        for j in range(i):
            total += 2.0 * gram[i, j] * gram[i, j]
        total += gram[i, i] * gram[i, i]
    return np.sqrt(total)  # type: ignore[no-any-return]


@helper
def _below(gram: Any, size: int, bound: float, work: Any) -> bool:
    """Whether bound · I - gram has a Cholesky factor, so that no eigenvalue exceeds the bound, up to rounding."""
    for i in range(size):
        for j in range(i):
            work[i, j] = -gram[i, j]
        work[i, i] = bound - gram[i, i]
    for k in range(size):
        if not work[k, k] > 0.0:
            return False
        for i in range(k + 1, size):
            factor = work[i, k] / work[k, k]
            # Column k is kept unscaled, so work[j, k] for j ≤ i is what this update needs.
            for j in range(k + 1, i + 1):
                work[i, j] -= factor * work[j, k]
    return True


@helper
def _largest_eigenvalue(gram: Any, size: int) -> float:
    full = np.empty((size, size))
    for i in range(size):
        for j in range(i + 1):
            full[i, j] = full[j, i] = gram[i, j]
    return np.linalg.eigvalsh(full)[-1]  # type: ignore[no-any-return]


@user_loop(float64, float64, float64, writable(float64, 1))
def _scales(
    features: Any,
    labels: Any,
    begins: Any,
    ends: Any,
    curvature: float,
    ridge: float,
    bound: float,
    out: Any,
    start: int,
    stop: int,
) -> None:
    dimension, largest = features.shape[1], 0
    for u in range(start, stop):
        largest = max(largest, min(ends[u] - begins[u], dimension))
    tiles = (largest + 3) // 4 * 4
    buffer, gram, work = np.zeros((tiles, _CHUNK)), np.empty((tiles, tiles)), np.empty((tiles, tiles))
    for u in range(start, stop):
        begin, end = begins[u], ends[u]
        count = end - begin
        if count == 0 or curvature == 0.0:
            out[u] = min(1.0, bound / ridge) if count > 0 and ridge > 0.0 else 1.0
            continue
        size = min(count, dimension)
        tile = (size + 3) // 4 * 4
        buffer[size:tile] = 0.0
        _gram(features, begin, end, buffer, gram[:tile, :tile])
        # Rounding of the inner products and of the eigenvalues, relative to the largest one: at most this.
        slack = 1e-9 + 1e-15 * size * max(count, dimension)
        unit = curvature / count
        norm = _frobenius(gram, size)
        if not np.isfinite(norm):
            out[u] = np.nan
            continue
        # Twice the slack in the two quick tests: whatever they accept, the eigenvalue would have accepted too.
        room = (bound - ridge) / unit * (1.0 - 2.0 * slack)
        if norm <= room or _below(gram, size, room, work):
            out[u] = 1.0
        else:
            peak = unit * _largest_eigenvalue(gram, size) * (1.0 + slack) + ridge
            out[u] = min(1.0, bound / peak)
