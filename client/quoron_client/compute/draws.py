"""Random points for convolution smoothing, each a function of (seed, round, user, item) alone.

    >>> import numpy as np
    >>> from quoron_client.data.items import ItemBatch
    >>> items = ItemBatch(np.ones((3, 2)), np.zeros(3), np.array([0, 2, 3]))
    >>> both = ball_coordinates(items, seed=7, keys=user_keys(0, np.array([5, 9])))
    >>> alone = ItemBatch(np.ones((1, 2)), np.zeros(1), np.array([0, 1]))
    >>> bool(both[2] == ball_coordinates(alone, seed=7, keys=user_keys(0, np.array([9])))[0])
    True

A loss φ(⟨a, x⟩, y) sees a shift r u only through r ⟨a, u⟩, which for u uniform in the unit ball has the law of
r ‖a‖ u_1, by symmetry. One coordinate per item therefore stands for the whole point: the gradient
φ'(⟨a, x⟩ + r ‖a‖ u_1, y) · a has the law of ∇f(x + r u). With two points in a question both get the item's one shift.

The numbers are those of a counter hashed by SplitMix64 (Steele, Lea & Flood 2014), with no hidden state. Where the seed
is public so are they: no guarantee rests on them.
"""

from typing import Any

import numpy as np
from numba import float64, uint64
from numpy.typing import NDArray

from quoron_client.compute.user_loops import user_loop
from quoron_client.data.items import Items
from quoron_client.protocol.smoothing import Convolution, Moreau, Smoothing
from quoron_privacy.arrays import Vector
from quoron_privacy.errors import ConfigError
from quoron_privacy.kernels.compiled import helper, read_only, writable

Keys = NDArray[np.uint64]

NARROW = 1e-300  # least width of a smoothed kink, for an item without features, whose gradient is zero anyway

_STEP = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_S30, _S27, _S31, _S11 = np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(11)


def user_keys(round_number: int, users: NDArray[np.int64]) -> Keys:
    """Return the keys for the draws of `users` (k,) in one round, shape (k,)."""
    with np.errstate(over="ignore"):  # numbers are taken modulo 2^64
        keys: Keys = _mixed(_mixed(np.array([round_number], np.uint64)) + users.astype(np.uint64) * _STEP)
    return keys


def ball_coordinates(batch: Items, *, seed: int, keys: Keys) -> Vector:
    """Return the first coordinate of a uniform point of the unit ball in d dimensions, for every item, shape (N,).

    Independent between items, users, rounds and seeds; `keys` (k,) are of `user_keys`. The bits of a user's coordinates
    depend on the seed and its key alone. Raises `ConfigError` unless there is one key per user.
    """
    if keys.shape != (batch.users,):
        raise ConfigError(f"Expected one key per user, {batch.users}, got keys of shape {keys.shape}.")
    out = np.empty(len(batch.labels))
    _coordinates(batch, np.uint64(seed), np.ascontiguousarray(keys, np.uint64), out)
    return out


def shifts_and_spread(batch: Items, smoothing: Smoothing | None, keys: Keys | None) -> tuple[Vector, float]:
    """Return a smoothing's arguments for compiled loops; without smoothing (empty, 0).

    Shifts (N,) of an item's prediction per unit of its feature norm, of a `Convolution`; and the width of the smoothed
    kink per unit of squared feature norm, of `Moreau`. Raises `ConfigError` for a `Convolution` without keys.
    """
    if isinstance(smoothing, Convolution):
        if keys is None:
            raise ConfigError("Expected keys, one per user, for a task with a Convolution, got none.")
        return smoothing.radius * ball_coordinates(batch, seed=smoothing.seed, keys=keys), 0.0
    return np.empty(0), smoothing.parameter if isinstance(smoothing, Moreau) else 0.0


def _mixed(z: Any) -> Any:
    z = (z ^ (z >> _S30)) * _FIRST
    z = (z ^ (z >> _S27)) * _SECOND
    return z ^ (z >> _S31)


_mix = helper(_mixed)


@helper
def _signed(bits: Any) -> float:
    """Uniform in [-1, 1), of the 53 highest bits."""
    return np.float64(bits >> _S11) * 2.0**-52 - 1.0


@user_loop(uint64, read_only(uint64, 1), writable(float64, 1))
def _coordinates(
    features: Any, labels: Any, begins: Any, ends: Any, seed: Any, keys: Any, out: Any, start: int, stop: int
) -> None:
    # (u_1 / √(1 - u_1²)) · √ν is Student's t with ν = d + 1 degrees of freedom, here by its polar method (Bailey 1994):
    # the ball is the sphere in two more dimensions without two coordinates.
    power = -2.0 / (features.shape[1] + 1.0)
    for u in range(start, stop):
        key = _mix(_mix(seed + _STEP) + keys[u])
        for i in range(begins[u], ends[u]):
            state = _mix(key + np.uint64(i - begins[u]) * _STEP)
            a = square = 1.0
            while not 0.0 < square < 1.0:
                a = _signed(_mix(state + _STEP))
                state += _STEP + _STEP
                b = _signed(_mix(state))
                square = a * a + b * b
            tangent = (square**power - 1.0) * (a * a / square)
            out[i] = np.copysign(np.sqrt(tangent / (1.0 + tangent)), a)
