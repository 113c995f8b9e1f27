"""Counter-based random streams: the value at (seed, purpose, user, position) is a pure function of those four.

Nothing is stored and nothing is drawn in sequence, so a user's data does not depend on who else is asked, or when.

    >>> import numpy as np
    >>> words(seed=0, purpose=0, users=np.array([0])).tolist()
    [[1713891541, 3781805453, 3159862348, 2600524760]]

Source: Philox4x32-10 of Salmon, Moraes, Dror, Shaw (2011); the normals by Box and Muller (1958), with the logarithm,
sine and cosine as the float32 polynomials of Cephes. Only IEEE additions, products and square roots are used, no
library functions, so the bits are the same on every machine. This is simulated *data*; privacy noise never comes from
here.
"""

from enum import IntEnum

import numpy as np
from numba import njit
from numpy.typing import NDArray


class Purpose(IntEnum):
    """Which stream; no two share a value."""

    SIGNAL = 0  # direction of the optimum
    FEATURES = 1
    LABELS = 2
    SHIFT = 3  # a user's own deviation from the common signal
    USER = 4  # words 0 and 1: whether an outlier, how many items
    EVALUATION = 5  # features of the evaluation sample
    SPLIT = 6  # which users are held out
    DROPOUT = 7  # block r: who does not answer in round r


_M0, _M1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_W0, _W1 = np.uint32(0x9E3779B9), np.uint32(0xBB67AE85)
_HALF_WORD = np.uint64(32)


def words(*, seed: int, purpose: int, users: NDArray[np.int64], block: int = 0) -> NDArray[np.uint32]:
    """The four 32-bit words of each user at one block of a stream, shape (k, 4)."""
    return np.asarray(_words(np.uint64(seed), np.uint32(purpose), users, np.uint32(block)))


def uniforms(values: NDArray[np.uint32]) -> NDArray[np.float64]:
    """Words to numbers in (0, 1): the mid-points of 2³² cells."""
    return (values.astype(np.float64) + 0.5) * 2.0**-32


def normals(*, seed: int, purpose: int, user: int, count: int) -> NDArray[np.float32]:
    """The first `count` standard normals of one stream, float32."""
    out = np.empty(count, np.float32)
    fill_normals(np.uint64(seed), np.uint32(purpose), np.int64(user), out)
    return out


@njit(cache=True, forceinline=True, error_model="numpy")
def _philox(block, user, purpose, seed):  # type: ignore[no-untyped-def]
    c0, c1, c2, c3 = block, np.uint32(user), np.uint32(user >> 32), purpose
    k0, k1 = np.uint32(seed), np.uint32(seed >> _HALF_WORD)
    for _ in range(10):
        p0, p1 = _M0 * np.uint64(c0), _M1 * np.uint64(c2)
        c0, c2 = np.uint32(np.uint32(p1 >> _HALF_WORD) ^ c1 ^ k0), np.uint32(np.uint32(p0 >> _HALF_WORD) ^ c3 ^ k1)
        c1, c3 = np.uint32(p1), np.uint32(p0)
        k0, k1 = np.uint32(k0 + _W0), np.uint32(k1 + _W1)
    return c0, c1, c2, c3


@njit(cache=True)
def _words(seed, purpose, users, block):  # type: ignore[no-untyped-def]
    out = np.empty((users.size, 4), np.uint32)
    for i in range(users.size):
        out[i, 0], out[i, 1], out[i, 2], out[i, 3] = _philox(block, users[i], purpose, seed)
    return out


@njit(cache=True, forceinline=True, error_model="numpy")
def _gaussian_radius(word):  # type: ignore[no-untyped-def]
    # sqrt(-2 ln x): x = m 2^e with m in [sqrt(1/2), sqrt(2)), the polynomial is ln(m) around 1.
    x = np.float32(np.float32(word) * np.float32(2.0**-32) + np.float32(2.0**-33))
    bits = np.float32(x).view(np.int32)
    e = (bits - np.int32(0x3F3504F3)) >> np.int32(23)
    t = np.int32(bits - np.int32(e << np.int32(23))).view(np.float32) - np.float32(1.0)
    p = np.float32(7.0376836292e-2) * t - np.float32(1.1514610310e-1)
    p = p * t + np.float32(1.1676998740e-1)
    p = p * t - np.float32(1.2420140846e-1)
    p = p * t + np.float32(1.4249322787e-1)
    p = p * t - np.float32(1.6668057665e-1)
    p = p * t + np.float32(2.0000714765e-1)
    p = p * t - np.float32(2.4999993993e-1)
    p = p * t + np.float32(3.3333331174e-1)
    z = t * t
    log = p * t * z - np.float32(0.5) * z + t + np.float32(e) * np.float32(0.6931471805599453)
    return np.sqrt(np.float32(-2.0) * log)


@njit(cache=True, forceinline=True, error_model="numpy")
def _two_normals(radius_word, angle_word):  # type: ignore[no-untyped-def]
    # The two top bits choose a quadrant, the next 24 an angle in [-pi/4, pi/4).
    r = _gaussian_radius(radius_word)
    quadrant = angle_word >> np.uint32(30)
    t = np.float32(np.int32(angle_word << np.uint32(2)) >> np.int32(8)) * np.float32(np.pi / 4 * 2.0**-23)
    z = t * t
    sine = (np.float32(-1.9515295891e-4) * z + np.float32(8.3321608736e-3)) * z - np.float32(1.6666654611e-1)
    sine = sine * z * t + t
    cosine = (np.float32(2.443315711809948e-5) * z - np.float32(1.388731625493765e-3)) * z
    cosine = (cosine + np.float32(4.166664568298827e-2)) * z * z - np.float32(0.5) * z + np.float32(1.0)
    turned = quadrant & np.uint32(1)
    first = cosine if turned else sine
    second = sine if turned else cosine
    first = -first if quadrant & np.uint32(2) else first
    second = -second if (quadrant + np.uint32(1)) & np.uint32(2) else second
    return r * first, r * second


@njit(cache=True, error_model="numpy")
def fill_normals(seed, purpose, user, out):  # type: ignore[no-untyped-def]
    """Write the first len(out) normals of a stream into `out` (float32)."""
    blocks = out.size // 4
    for j in range(blocks):
        a, b, c, d = _philox(np.uint32(j), user, purpose, seed)
        out[4 * j], out[4 * j + 1] = _two_normals(a, b)
        out[4 * j + 2], out[4 * j + 3] = _two_normals(c, d)
    if 4 * blocks < out.size:
        a, b, c, d = _philox(np.uint32(blocks), user, purpose, seed)
        last = (*_two_normals(a, b), *_two_normals(c, d))
        for i in range(out.size - 4 * blocks):  # a slice would take a second to compile
            out[4 * blocks + i] = last[i]


@njit(cache=True, error_model="numpy")
def fill_uniforms(seed, purpose, user, out):  # type: ignore[no-untyped-def]
    """Write the first len(out) uniforms in (0, 1) of a stream into `out` (float64)."""
    for j in range((out.size + 3) // 4):
        lanes = _philox(np.uint32(j), user, purpose, seed)
        for i in range(min(4, out.size - 4 * j)):
            out[4 * j + i] = (lanes[i] + 0.5) * 2.0**-32
