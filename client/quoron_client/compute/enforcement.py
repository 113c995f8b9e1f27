"""Bringing a user's items within the public bounds that every guarantee assumes.

How much a user scales its own loss down so that every conceivable user is β_u-smooth.

The average Hessian of a generalised linear loss is at most curvature · (1/m) Σ a aᵀ + ridge · I at every point
(docs/privacy/losses.md#l1). This holds for weighted items, whose weights are at most 1, and for each of several
classes. So one eigenvalue of the user's second-moment matrix bounds it over the whole domain, independently of the
iterate. Bounds are certified: exact eigenvalues plus an allowance for rounding, never a power iteration's estimate,
which is too low. Nearly every user is within its bound, and a Cholesky factor shows it without eigenvalues. Where users
have equally many items and few numbers, sixteen are factored at a time in float32, with an allowance for its errors.
"""

from typing import Any

import numpy as np
from numba import float64
from numpy.typing import NDArray

from quoron_client.compute.user_loops import user_loop
from quoron_client.data.items import ItemBatch, Items
from quoron_client.losses import Loss
from quoron_privacy.errors import ConfigError
from quoron_privacy.kernels.compiled import helper, writable
from quoron_privacy.kernels.simd import SINGLES, fused, keep, over, single, singles, times, turned


def bounded(batch: ItemBatch, loss: Loss) -> ItemBatch:
    """`batch` with every feature row's norm at most loss.feature_norm, every label and weight within its bounds.

    Formal guarantee: for whatever the batch holds, every finite row of the result satisfies the bounds under which
    `loss.lipschitz` and `loss.smoothness` hold.

    | input                           | what happens                                                             |
    | ------------------------------- | ------------------------------------------------------------------------ |
    | row longer than feature_norm    | scaled down, a little more than the rounding of its stored type          |
    | entry beyond feature_bound      | held at it, then rounded towards zero                                    |
    | more than active_features       | the largest in magnitude stay, the first among equals; others become 0   |
    | row or label not finite         | the whole item becomes NaN; its user's answer is REJECTED, nothing raised |
    | label that is no class number   | the same, for a loss that counts classes                                 |
    | weight below 0 or above 1       | becomes 0 or 1; one that is not finite makes the whole item NaN          |
    | row longer by float64 rounding  | kept: its computed norm is within the bound                              |

    Applying it twice changes nothing more. Nothing is copied where nothing changes.
    """
    labels, weights = loss.bound_labels(batch.labels), batch.weights
    if np.array_equal(labels, batch.labels):
        labels = batch.labels
    if weights is not None:
        labels = np.where(np.isfinite(weights), labels, np.nan)
        if not np.all((weights >= 0) & (weights <= 1)):
            weights = np.clip(weights, 0.0, 1.0)
    factors = np.empty(len(labels))
    given = labels if labels is batch.labels else np.where(np.isnan(labels), np.nan, batch.labels)  # NaN: out of bounds
    _factors(ItemBatch(batch.features, given, batch.offsets), loss.feature_norm, factors)
    bad = np.isnan(factors)
    features = batch.features
    changed = np.flatnonzero(factors != 1.0)  # NaN is unequal to 1
    if len(changed):
        features = features.copy()
        # Divided by its largest entry first: that entry may be too large to square.
        rows = features[changed].astype(np.float64)
        rows /= np.where(bad[changed], 1.0, np.abs(rows).max(axis=1, initial=0.0))[:, None]
        features[changed] = rows * factors[changed, None]
        labels = np.where(bad, np.nan, labels)
    features = _fewer(_held(features, loss.feature_bound), loss.active_features)
    return ItemBatch(features, labels, batch.offsets, weights)


def _held(features: Any, bound: float | None) -> Any:
    """Return every entry within ±bound as its stored type can write it; NaN stays."""
    if bound is None or not np.any(np.abs(features) > bound):
        return features
    most = features.dtype.type(bound)
    if float(most) > bound:
        most = np.nextafter(most, features.dtype.type(0))
    return np.clip(features, -most, most)


def _fewer(features: Any, most: int | None) -> Any:
    """At most so many entries of a row that are not zero; NaN counts as the largest, so a row keeps its NaN."""
    if most is None or not len(features):
        return features
    crowded = np.flatnonzero(np.count_nonzero(features, axis=1) > most)
    if not len(crowded):
        return features
    features = features.copy()
    order = np.argsort(
        np.where(np.isnan(features[crowded]), -np.inf, -np.abs(features[crowded])), axis=1, kind="stable"
    )
    rows = features[crowded]
    np.put_along_axis(rows, order[:, most:], 0, axis=1)
    features[crowded] = rows
    return features


@user_loop(float64, writable(float64, 1))
def _factors(
    features: Any,
    labels: Any,
    begins: Any,
    ends: Any,
    bound: float,
    factors: Any,
    start: int,
    stop: int,
) -> None:
    """factor = 1: keep the row; NaN: not finite; otherwise the row becomes factor · (row / its largest magnitude)."""
    dimension = features.shape[1]
    rounding = 2.0 * np.finfo(features.dtype).eps + 4.0 * (dimension + 4) * np.finfo(np.float64).eps
    if start == stop:
        return
    for i in range(begins[start], ends[stop - 1]):  # of a batch, whose users lie side by side
        squares = 0.0
        for j in range(dimension):
            squares += np.float64(features[i, j]) * np.float64(features[i, j])
        factors[i] = 1.0
        if np.sqrt(squares) <= bound and np.isfinite(labels[i]):
            continue
        # Too long, or not finite, or so large that its square is: divided by its largest magnitude first, none of its
        # squares overflows.
        top = 0.0
        for j in range(dimension):
            top = max(top, abs(np.float64(features[i, j])))
        scaled = 0.0
        for j in range(dimension):
            scaled += (features[i, j] / top) * (features[i, j] / top)
        usable = np.isfinite(scaled) and np.isfinite(top) and np.isfinite(labels[i])
        factors[i] = bound * (1.0 - rounding) / np.sqrt(scaled) if usable else np.nan


_CHUNK = 256  # length of the pieces in which inner products are taken, a multiple of 16
_FEW = 1024  # numbers of a user, at most, of which those of sixteen are in the nearer caches


def smoothness_scale(loss: Loss, batch: Items, user_smoothness: float) -> NDArray[np.float64]:
    """s_u = min(1, user_smoothness / λ_u), shape (k,); λ_u bounds the user's average Hessian over the whole domain.

    s_u = 1 for a user without items and NaN for one with non-finite features. Raises `ConfigError` for a loss whose
    slope jumps, which no scaling makes smooth, and for user_smoothness that is not positive.
    """
    if not (np.isfinite(user_smoothness) and user_smoothness > 0):
        raise ConfigError(f"Expected user_smoothness > 0 and finite, got user_smoothness={user_smoothness}.")
    if loss.curvature is None:
        raise ConfigError(f"Expected a smooth loss with user_smoothness={user_smoothness}, got loss={loss.name!r}.")
    out = np.empty(batch.users)
    steepest = loss.largest_diagonal(batch.dimension * loss.outputs)
    _scales(batch, loss.curvature, steepest, float(user_smoothness), out)
    return out


@helper
def _gram(features: Any, begin: int, end: int, buffer: Any, gram: Any) -> None:
    """Lower triangle of A Aᵀ or Aᵀ A, whichever is smaller, for the user's rows A; padded with zeros to tiles of 4."""
    count, dimension = end - begin, features.shape[1]
    of_items = count <= dimension
    size, length = (count, dimension) if of_items else (dimension, count)
    gram[:] = 0.0
    # Piece by piece of the inner products: the rows' part is copied, as float64, to where it stays in cache.
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
        # Two rows by four at a time: eight sums in registers, six numbers read for them. Tiles reach over the diagonal;
        # nobody reads what lies above it.
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
    # The lower triangle of bound · I - gram, then elimination: a pivot that is not positive says no.
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
def _less_gram(numbers: Any, count: int, dimension: int, room: float, out: Any) -> None:
    """Lower triangle of room · I - gram, of `SINGLES` users side by side, as in `_gram`."""
    of_items = count <= dimension
    size, length = (count, dimension) if of_items else (dimension, count)
    across, along = (dimension * SINGLES, SINGLES) if of_items else (SINGLES, dimension * SINGLES)
    negative, spare = single(-1.0), single(room)
    # Two rows by two at a time: what is read of a user's numbers is used twice. All sixteen users at once.
    for i in range(0, size, 2):
        a, b = i, min(i + 1, size - 1)  # an odd last row is its own neighbour
        for k in range(0, i + 1, 2):
            c, d = k, min(k + 1, size - 1)
            ac = ad = bc = bd = single(0.0)
            for j in range(length):
                at = j * along
                p, q = singles(numbers, a * across + at), singles(numbers, b * across + at)
                r, s = singles(numbers, c * across + at), singles(numbers, d * across + at)
                ac, ad, bc, bd = fused(p, r, ac), fused(p, s, ad), fused(q, r, bc), fused(q, s, bd)
            keep(out, (a * size + c) * SINGLES, fused(ac, negative, spare if a == c else single(0.0)))
            keep(out, (a * size + d) * SINGLES, fused(ad, negative, spare if a == d else single(0.0)))
            keep(out, (b * size + c) * SINGLES, fused(bc, negative, spare if b == c else single(0.0)))
            keep(out, (b * size + d) * SINGLES, fused(bd, negative, spare if b == d else single(0.0)))


@helper
def _factored(work: Any, size: int) -> None:
    """Cholesky's elimination of `SINGLES` matrices side by side, in place: their pivots stay on the diagonal."""
    for k in range(size):
        # A user without a factor may go on with anything: it stays on its own.
        negative = over(single(-1.0), singles(work, (k * size + k) * SINGLES))
        for i in range(k + 1, size):
            factor = times(singles(work, (i * size + k) * SINGLES), negative)
            for j in range(k + 1, i + 1):
                at = (i * size + j) * SINGLES
                keep(work, at, fused(factor, singles(work, (j * size + k) * SINGLES), singles(work, at)))


@helper
def _all_below(
    flat: Any, starts: Any, count: int, dimension: int, room: float, numbers: Any, work: Any, out: Any
) -> None:
    """Set out[v] to 1 for users who are certainly below `room`, by float32 numbers; to 0 for users who may not be.

    User v's numbers begin at starts[v]. With n rows and columns of products of L numbers, u = 2⁻²⁴ and g = room: each
    entry of g I - gram is within (L + 4) u |a_i| |a_j| + u |entry| of the exact one, and what the factor multiplies to
    within (n + 4) u times its own absolute values of what was factored. Where all pivots are positive, squares of rows,
    and of the factor's, are at most g each, n g together: so no eigenvalue exceeds g (1 + n (n + L + 9) u).
    """
    size = count * dimension
    for part in range(0, size, SINGLES):
        turned(flat, starts, part, min(SINGLES, size - part), numbers, part * SINGLES)
    least, most = min(count, dimension), max(count, dimension)
    _less_gram(numbers, count, dimension, room * (1.0 - least * (least + most + 9) * 2.0**-23), work)
    _factored(work, least)
    for v in range(SINGLES):
        out[v] = 1.0 if 1e-20 < room < 1e20 else 0.0  # where nothing that matters is rounded to zero
    for k in range(least):
        for v in range(SINGLES):
            out[v] = out[v] if work[(k * least + k) * SINGLES + v] > 0.0 else 0.0


@helper
def _largest_eigenvalue(gram: Any, size: int) -> float:
    full = np.empty((size, size))
    for i in range(size):
        for j in range(i + 1):
            full[i, j] = full[j, i] = gram[i, j]
    return np.linalg.eigvalsh(full)[-1]  # type: ignore[no-any-return]


@helper
def _room(count: int, dimension: int, curvature: float, ridge: float, bound: float) -> tuple[float, float]:
    """Return what the gram's largest eigenvalue may be, and the relative allowance for rounding.

    Twice the allowance is taken off: whatever a quick test accepts, the eigenvalue would have accepted too.
    """
    # Rounding of the inner products and of the eigenvalues, relative to the largest one: at most this.
    slack = 1e-9 + 1e-15 * min(count, dimension) * max(count, dimension)
    return (bound - ridge) / (curvature / count) * (1.0 - 2.0 * slack), slack


@helper
def _scale_of(
    features: Any, begin: int, end: int, curvature: float, ridge: float, bound: float, buffer: Any, gram: Any, work: Any
) -> float:
    count, dimension = end - begin, features.shape[1]
    # Without items, or where the loss itself is straight, nothing but the ridge curves it.
    if count == 0 or curvature == 0.0:
        return min(1.0, bound / ridge) if count > 0 and ridge > 0.0 else 1.0
    size = min(count, dimension)
    tile = (size + 3) // 4 * 4
    buffer[size:tile] = 0.0
    _gram(features, begin, end, buffer, gram[:tile, :tile])
    norm = _frobenius(gram, size)
    if not np.isfinite(norm):
        return np.nan
    room, slack = _room(count, dimension, curvature, ridge, bound)
    # The cheap answers first: the Frobenius norm bounds the largest eigenvalue, a Cholesky factor shows that it is
    # below the room. A user who passes either would pass the eigenvalue, too: `_room` has seen to it.
    if norm <= room or _below(gram, size, room, work):
        return 1.0
    peak = curvature / count * _largest_eigenvalue(gram, size) * (1.0 + slack) + ridge
    return min(1.0, bound / peak)


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
    flat, numbers = features.reshape(-1), np.empty((_FEW + SINGLES) * SINGLES, np.float32)
    beside = np.empty(min(_FEW, tiles * tiles) * SINGLES, np.float32)
    starts, below = np.empty(SINGLES, np.int64), np.zeros(SINGLES)
    u = start
    # Users of equally many items stand together often enough: sixteen of them are tried at once, in float32.
    while u < stop:
        count, together = ends[u] - begins[u], 1
        if curvature > 0.0 and 0 < count * dimension <= _FEW:
            while together < SINGLES and u + together < stop and ends[u + together] - begins[u + together] == count:
                together += 1
        below[0] = 0.0
        if together > 1:
            for v in range(SINGLES):
                starts[v] = begins[min(u + v, u + together - 1)] * dimension  # where there are fewer, the last again
            room, _ = _room(count, dimension, curvature, ridge, bound)
            _all_below(flat, starts, count, dimension, room, numbers, beside, below)
        for v in range(together):
            if below[v] > 0.0:
                out[u + v] = 1.0
            else:
                one = u + v
                out[one] = _scale_of(features, begins[one], ends[one], curvature, ridge, bound, buffer, gram, work)
        u += together
