"""The root finder against scipy's, which is too slow to import for it."""

import math

import pytest
import scipy.optimize
from hypothesis import given
from hypothesis import strategies as st

from quoron_privacy.accounts.roots import root

FUNCTIONS = {
    "line": lambda x, at: x - at,
    "cube": lambda x, at: (x - at) ** 3,
    "cliff": lambda x, at: math.tanh(1e4 * (x - at)),
    "exponential": lambda x, at: math.exp(3 * x) - math.exp(3 * at),
    "step": lambda x, at: 1.0 if x > at else -1.0,
    "tiny": lambda x, at: 1e-200 * math.sinh(x - at),
}


@given(
    name=st.sampled_from(sorted(FUNCTIONS)),
    at=st.floats(-5, 5),
    below=st.floats(0, 20),
    above=st.floats(0, 20),
    xtol=st.sampled_from([1e-300, 1e-15, 2e-12, 1e-4]),
    rtol=st.sampled_from([4 * 2.0**-52, 1e-13, 1e-6]),
)
def test_has_the_bits_of_scipys_brentq(
    name: str, at: float, below: float, above: float, xtol: float, rtol: float
) -> None:
    def function(x: float) -> float:
        return FUNCTIONS[name](x, at)

    low, high = at - below, at + above
    if function(low) * math.copysign(1, function(high)) > 0:
        return
    expected, _ = scipy.optimize.brentq(function, low, high, xtol=xtol, rtol=rtol, full_output=True, disp=False)
    assert root(function, low, high, xtol=xtol, rtol=rtol) == expected


def test_ends_of_the_same_sign_and_what_is_no_number_are_refused_with_their_values() -> None:
    with pytest.raises(ValueError, match=r"different signs at both ends, got f\(1.0\) = 1.0 and f\(2.0\) = 4.0"):
        root(lambda x: x * x, 1.0, 2.0)
    with pytest.raises(ValueError, match=r"Expected a number at 1.0, got nan"):
        root(lambda x: math.nan, 1.0, 2.0)
