"""exp for compiled loops, written so that the compiler can do several at once (a call to the C library cannot be).

exp(t) = 2^k · exp(r) with k = round(t / log 2) and |r| ≤ log(2)/2, exp(r) by its Taylor polynomial of degree 13, whose
remainder is below 2^-56. Relative error at most 2^-52; the result is monotone to within that. Arguments beyond ±700 are
taken as ±700. NaN gives NaN.
"""

from math import factorial
from typing import Any

from numba import float64, int64
from numba.extending import intrinsic

from quoron_privacy.kernels.shipped import njit

_SHIFT = 1.5 * 2.0**52  # adding it rounds to an integer, which is then in the lowest bits
_LOG2_HIGH = float.fromhex("0x1.62e42fefa0000p-1")  # log 2 in two parts: k · _LOG2_HIGH is exact
_LOG2_LOW = float.fromhex("0x1.cf79abc9e3b39p-40")
_INVERSE = float.fromhex("0x1.71547652b82fep+0")  # 1 / log 2
_C2, _C3, _C4, _C5, _C6, _C7, _C8, _C9, _C10, _C11, _C12, _C13 = (1.0 / factorial(k) for k in range(2, 14))


def _reinterpreted(result: Any, argument: Any) -> Any:
    def generate(target: Any, builder: Any, signature: Any, values: Any) -> Any:
        return builder.bitcast(values[0], target.get_value_type(result))

    return result(argument), generate


_bits_of: Any = intrinsic(lambda context, value: _reinterpreted(int64, float64))
_number_of: Any = intrinsic(lambda context, bits: _reinterpreted(float64, int64))


def _exponential(t: float) -> float:
    t = min(max(t, -700.0), 700.0)
    shifted = t * _INVERSE + _SHIFT
    k = shifted - _SHIFT
    r = (t - k * _LOG2_HIGH) - k * _LOG2_LOW
    square = r * r
    fourth = square * square
    low = ((_C4 + _C5 * r) + (_C6 + _C7 * r) * square) * fourth + ((_C2 + _C3 * r) * square + r)
    high = (_C12 + _C13 * r) * fourth + ((_C8 + _C9 * r) + (_C10 + _C11 * r) * square)
    power: float = _number_of((_bits_of(shifted) + 1023) << 52)
    return (1.0 + (high * (fourth * fourth) + low)) * power


# No reordering: it would cancel the shift.
exponential = njit(cache=True, nogil=True, error_model="numpy")(_exponential)
