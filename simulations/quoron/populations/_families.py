"""The synthetic item laws, as one compiled loop that writes any users' items from their streams.

    logistic       a uniform on the sphere of radius R,  y = +1 with probability sigmoid(<a, theta_u>), else -1
    least_squares  a uniform on the sphere of radius R,  y = <a, theta_u> + uniform noise in [-w, w]
    linear         z = theta_u + rho a, with a uniform on the unit sphere; no label (zero)
    quadratic      the same

theta_u = theta* + h v_u, with v_u uniform on the unit sphere: bounded, so that no label or norm ever needs clipping.
Every user's items come from that user's streams alone: the same bits for any cohort, order or thread count. As in
`_streams` only additions, products, quotients and square roots are used, so every machine makes the same bits.
"""

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from quoron.populations.streams import Purpose, fill_normals, fill_uniforms
from quoron_privacy.kernels.lanes import WIDTH, aligned, alike, fused, keep, lanes, sum_of, sums_of, times
from quoron_privacy.kernels.shipped import njit

# float32 rounding may lengthen a row by half a unit in the last place; this keeps it within its norm.
_SHRINK = 1.0 - 2.0**-23
_SHIFT, _LABELS = np.uint32(Purpose.SHIFT), np.uint32(Purpose.LABELS)
_TOGETHER = 256  # items whose scores are held at a time: in the nearest cache, and their rows as well
_LARGEST = 700.0  # an exponent; beyond it exp neither overflows nor matters


class Family(IntEnum):
    """Which item law."""

    LOGISTIC = 0
    LEAST_SQUARES = 1
    LINEAR = 2


@dataclass(frozen=True, slots=True)
class Law:
    """The law of one family's items."""

    family: Family
    radius: float  # R, for means rho
    noise: float  # w
    spread: float  # h
    signal: NDArray[np.float64]  # theta*, (d,)


def fill_items(
    streams: tuple[np.uint64, np.uint32],
    users: NDArray[np.int64],
    offsets: NDArray[np.int64],
    flipped: NDArray[np.bool_],
    law: Law,
    features: NDArray[np.float32],
    labels: NDArray[np.float64],
) -> None:
    """Write items offsets[i] to offsets[i + 1], less offsets[0], of users[i]; `streams` are a seed and a purpose.

    Where `flipped`, labels (for means: items) change sign.
    """
    seed, purpose = streams
    d = features.shape[1]
    fill_normals(seed, purpose, users, offsets * d, features.reshape(-1))
    shifts = np.empty((len(users) if law.spread else 0, d), np.float32)
    if law.spread:
        fill_normals(seed, _SHIFT, users, np.arange(len(users) + 1) * d, shifts.reshape(-1))
    if law.family != Family.LINEAR:
        fill_uniforms(seed, _LABELS, users, offsets, labels)
    numbers = float(law.radius), float(law.noise), float(law.spread)  # of one type each: another would be compiled for
    _shape(offsets, flipped, int(law.family), *numbers, law.signal, features, shifts, labels)


@njit(inline="always", error_model="numpy")
def exponential(x):  # type: ignore[no-untyped-def]
    """exp(x), relative error below 1e-9, held constant beyond +-700."""
    x = min(max(x, -_LARGEST), _LARGEST)
    shifted = x * 1.4426950408889634 + 6755399441055744.0  # 1.5 2^52: the nearest integer is in the last bits
    whole = shifted - 6755399441055744.0
    r = (x - whole * 0.6931471805599453) * 0.5  # within 0.174
    p = 1.0 / 720.0 + r * (1.0 / 5040.0 + r * (1.0 / 40320.0))
    p = 1.0 + r * (1.0 + r * (0.5 + r * (1.0 / 6.0 + r * (1.0 / 24.0 + r * (1.0 / 120.0 + r * p)))))
    power = np.int64(np.int64(np.float64(shifted).view(np.int64) << 52) + np.int64(0x3FF0000000000000))
    return p * p * power.view(np.float64)


@njit(cache=True, error_model="numpy")
def _to_sphere(flat, first, d, radius, mean, own, scores):  # type: ignore[no-untyped-def]
    """Rows of normals from row `first` on, as many as scores, become `radius` a + `mean` own, with |a| = 1.

    `radius` <a, own> goes into scores. Both sums of a row have one order, four numbers at a time; of four rows at a
    time, which changes no bit.
    """
    whole, fours, squares = d // WIDTH * WIDTH, scores.size // 4 * 4, np.empty(scores.size)
    for i in range(0, fours, 4):
        p = (first + i) * d
        q, r, s = p + d, p + 2 * d, p + 3 * d
        # Eight sums at once: one alone would wait for its own last addition at every number.
        a = b = c = e = at = bt = ct = et = alike(0.0)
        for j in range(0, whole, WIDTH):
            to = lanes(own, j)
            x, y = lanes(flat, p + j), lanes(flat, q + j)
            a, b, at, bt = fused(x, x, a), fused(y, y, b), fused(x, to, at), fused(y, to, bt)
            x, y = lanes(flat, r + j), lanes(flat, s + j)
            c, e, ct, et = fused(x, x, c), fused(y, y, e), fused(x, to, ct), fused(y, to, et)
        keep(squares, i, sums_of(a, b, c, e))
        keep(scores, i, sums_of(at, bt, ct, et))
    for i in range(fours, scores.size):
        begin = (first + i) * d
        square = score = alike(0.0)
        for j in range(begin, begin + whole, WIDTH):
            part = lanes(flat, j)
            square, score = fused(part, part, square), fused(part, lanes(own, j - begin), score)
        squares[i], scores[i] = sum_of(square), sum_of(score)
    for i in range(scores.size):
        begin = (first + i) * d
        for j in range(whole, d):
            number = np.float64(flat[begin + j])
            squares[i] += number * number
            scores[i] += number * own[j]
        if squares[i] == 0.0:  # probability about 1e-7 in one dimension, nil above
            flat[begin], squares[i], scores[i] = np.float32(1.0), 1.0, own[0]
    for i in range(scores.size):
        squares[i] = radius / np.sqrt(squares[i])
        scores[i] *= squares[i]
    for i in range(scores.size):
        begin, scale = (first + i) * d, squares[i]
        # The usual case needs no `own`: a multiplication a number.
        if mean == 0.0:
            for j in range(begin, begin + whole, WIDTH):
                keep(flat, j, times(lanes(flat, j), alike(scale)))
            for j in range(begin + whole, begin + d):
                flat[j] = np.float32(scale * flat[j])
        else:
            for j in range(d):
                flat[begin + j] = np.float32(scale * flat[begin + j] + mean * own[j])


@njit(cache=True, error_model="numpy")
def _label(labels, family, noise, scores):  # type: ignore[no-untyped-def]
    """Labels of uniforms (`labels`) and of the items' scores."""
    if family == Family.LINEAR:
        labels[:] = 0.0
    elif family == Family.LOGISTIC:
        for item in range(labels.size):
            labels[item] = 1.0 if labels[item] * (1.0 + exponential(-scores[item])) < 1.0 else -1.0
    else:
        for item in range(labels.size):
            labels[item] = scores[item] + noise * (2.0 * labels[item] - 1.0)


@njit(cache=True, error_model="numpy")
def _shifted(own, signal, spread, normals):  # type: ignore[no-untyped-def]
    """own = signal + spread v, v the direction of `normals` (d,)."""
    total = 0.0
    for j in range(signal.size):
        total += np.float64(normals[j]) * normals[j]
    if total == 0.0:
        normals[0], total = np.float32(1.0), 1.0
    for j in range(signal.size):
        own[j] = signal[j] + spread * _SHRINK / np.sqrt(total) * normals[j]


@njit(cache=True, nogil=True, error_model="numpy")
def _shape(  # type: ignore[no-untyped-def]
    offsets, flipped, family, radius, noise, spread, signal, features, shifts, labels
):
    """Make items of normals (`features`, and `shifts` (k, d) of users) and of uniforms (`labels`)."""
    d, means, first = features.shape[1], family == Family.LINEAR, offsets[0]
    flat, own, largest = features.reshape(features.size), aligned(1, d)[0], 0
    for j in range(d):
        own[j] = signal[j]
    if spread > 0.0 or means:  # each user has its own mean
        for i in range(flipped.size):
            largest = max(largest, offsets[i + 1] - offsets[i])
        scores = np.empty(largest)
        for i in range(flipped.size):
            start, stop = offsets[i] - first, offsets[i + 1] - first
            if spread > 0.0:
                _shifted(own, signal, spread, shifts[i])
            mean = 0.0 if not means else -_SHRINK if flipped[i] else _SHRINK
            own_scores = scores[: stop - start]
            _to_sphere(flat, start, d, radius * _SHRINK * (mean if means else 1.0), mean, own, own_scores)
            _label(labels[start:stop], family, noise, own_scores)
    else:
        scores = np.empty(_TOGETHER)
        for start in range(0, labels.size, _TOGETHER):
            stop = min(start + _TOGETHER, labels.size)
            _to_sphere(flat, start, d, radius * _SHRINK, 0.0, own, scores[: stop - start])
            _label(labels[start:stop], family, noise, scores)
    for i in range(flipped.size):
        for item in range(offsets[i] - first, offsets[i + 1] - first if flipped[i] else 0):
            labels[item] = -labels[item]
