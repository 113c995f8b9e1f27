"""The synthetic item laws, as one compiled loop that writes any users' items from their streams.

    logistic       a uniform on the sphere of radius R,  y = +1 with probability sigmoid(<a, theta_u>), else -1
    least_squares  a uniform on the sphere of radius R,  y = <a, theta_u> + uniform noise in [-w, w]
    linear         z = theta_u + rho a, with a uniform on the unit sphere; no label (zero)
    quadratic      the same

theta_u = theta* + h v_u, with v_u uniform on the unit sphere: bounded, so that no label or norm ever needs clipping.
Every user's items come from that user's streams alone: the same bits for any cohort, order or thread count.
"""

from enum import IntEnum

import numpy as np
from numba import njit

from quoron.populations._streams import Purpose, fill_normals, fill_uniforms

# float32 rounding may lengthen a row by half a unit in the last place; this keeps it within its norm.
_SHRINK = 1.0 - 2.0**-23
_SHIFT, _LABELS = np.uint32(Purpose.SHIFT), np.uint32(Purpose.LABELS)


class Family(IntEnum):
    """Which item law."""

    LOGISTIC = 0
    LEAST_SQUARES = 1
    LINEAR = 2


@njit(cache=True, forceinline=True, error_model="numpy")
def _to_sphere(row, radius):  # type: ignore[no-untyped-def]
    total = 0.0
    for j in range(row.size):
        total += np.float64(row[j]) * row[j]
    if total == 0.0:  # probability about 1e-7 in one dimension, nil above
        row[0] = np.float32(radius)
    else:
        scale = radius / np.sqrt(total)
        for j in range(row.size):
            row[j] = np.float32(scale * row[j])


@njit(cache=True, error_model="numpy")
def user_signal(seed, user, signal, spread):  # type: ignore[no-untyped-def]
    """theta_u = signal + spread * v_u, shape (d,), float64."""
    own = signal.copy()
    if spread > 0.0:
        shift = np.empty(signal.size, np.float32)
        fill_normals(seed, _SHIFT, user, shift)
        _to_sphere(shift, 1.0)
        for j in range(signal.size):
            own[j] += spread * _SHRINK * shift[j]
    return own


@njit(cache=True, nogil=True, error_model="numpy")
def fill_items(  # type: ignore[no-untyped-def]
    seed, purpose, users, offsets, flipped, family, radius, noise, signal, spread, features, labels, first, last
):
    """Write items offsets[i] to offsets[i + 1] of users[i] for i in first .. last - 1; `radius` is R, for means rho.

    Where `flipped`, labels (for the linear family: items) change sign.
    """
    d = features.shape[1]
    flat = features.reshape(features.size)
    for i in range(first, last):
        start, stop = offsets[i], offsets[i + 1]
        fill_normals(seed, purpose, users[i], flat[start * d : stop * d])
        own = user_signal(seed, users[i], signal, spread)
        sign = -1.0 if flipped[i] else 1.0
        if family == Family.LINEAR:
            for item in range(start, stop):
                _to_sphere(features[item], radius * _SHRINK)
                for j in range(d):
                    features[item, j] = np.float32(sign * _SHRINK * (own[j] + features[item, j]))
                labels[item] = 0.0
        else:
            fill_uniforms(seed, _LABELS, users[i], labels[start:stop])
            for item in range(start, stop):
                _to_sphere(features[item], radius * _SHRINK)
                score = 0.0
                for j in range(d):
                    score += features[item, j] * own[j]
                if family == Family.LOGISTIC:
                    labels[item] = sign if labels[item] * (1.0 + np.exp(-score)) < 1.0 else -sign
                else:
                    labels[item] = sign * (score + noise * (2.0 * labels[item] - 1.0))
