from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as stn

from quoron_privacy.errors import LedgerError
from quoron_server import serial


@dataclass(frozen=True)
class Everything:
    array: np.ndarray
    real: float
    integer: int
    flag: bool
    text: str
    nothing: None


PLAIN = Everything(np.zeros(1), 0.0, 0, True, "", None)


@dataclass(frozen=True)
class Outer:
    round: int
    inner: Any


@given(
    array=stn.arrays(
        st.sampled_from([np.float64, np.float32, np.int64, np.uint8, np.bool_]),
        stn.array_shapes(min_side=0, max_dims=3),
    ),
    real=st.floats(),
    integer=st.integers(-(2**63), 2**63 - 1),
    flag=st.booleans(),
    text=st.text(st.characters(exclude_categories=["Cs"])),
)
@settings(derandomize=True, deadline=None, max_examples=60)
def test_a_state_comes_back_bit_for_bit(array, real, integer, flag, text):
    state = Everything(array, real, integer, flag, text, None)
    again = serial.decode(PLAIN, serial.encode(state))
    assert again.array.dtype == array.dtype
    assert again.array.shape == array.shape
    assert again.array.tobytes() == array.tobytes()
    assert np.float64(again.real).tobytes() == np.float64(real).tobytes()
    assert (again.integer, again.flag, again.text, again.nothing) == (integer, flag, text, None)
    assert serial.encode(again) == serial.encode(state)


def test_zeros_are_stored_as_their_shape_and_a_negative_zero_as_it_is():
    zeros, signed = (replace(PLAIN, array=np.full((40, 50), value)) for value in (0.0, -0.0))
    assert len(serial.encode(zeros)) < 200 < 40 * 50 * 8 < len(serial.encode(signed))
    for state in (zeros, signed):
        again = serial.decode(PLAIN, serial.encode(state)).array
        assert again.flags.writeable
        assert (again.shape, again.tobytes()) == (state.array.shape, state.array.tobytes())


def test_a_state_within_a_state_comes_back_as_what_it_was():
    state = Outer(3, Outer(2, Everything(np.arange(4.0), 0.5, 7, False, "inner", None)))
    again = serial.decode(Outer(0, Outer(0, PLAIN)), serial.encode(state))
    assert (again.round, again.inner.round, again.inner.inner.text) == (3, 2, "inner")
    np.testing.assert_array_equal(again.inner.inner.array, np.arange(4.0))
    assert serial.encode(again) == serial.encode(state)


def test_a_state_of_another_class_is_refused_by_name_also_within_a_state():
    @dataclass(frozen=True)
    class Other:
        round: int
        inner: Any

    with pytest.raises(LedgerError, match="Expected a stored Other"):
        serial.decode(Other(1, None), serial.encode(PLAIN))
    with pytest.raises(LedgerError, match="Expected a stored Other in field inner, got 'Outer'"):
        serial.decode(Outer(0, Other(0, None)), serial.encode(Outer(3, Outer(2, None))))


def test_rubbish_is_refused_without_executing_it():
    with pytest.raises(LedgerError, match="unreadable"):
        serial.decode(PLAIN, b"\x80\x04cos\nsystem\n")


def test_objects_are_refused_by_field_name():
    with pytest.raises(LedgerError, match="field array"):
        serial.encode(Everything(np.array([object()]), 0.0, 0, True, "", None))
