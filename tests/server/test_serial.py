from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as stn

from quoron_protos.errors import LedgerError
from quoron_server import serial


@dataclass(frozen=True)
class Everything:
    array: np.ndarray
    real: float
    integer: int
    flag: bool
    text: str
    nothing: None


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
    again = serial.decode(Everything, serial.encode(state))
    assert again.array.dtype == array.dtype
    assert again.array.shape == array.shape
    assert again.array.tobytes() == array.tobytes()
    assert np.float64(again.real).tobytes() == np.float64(real).tobytes()
    assert (again.integer, again.flag, again.text, again.nothing) == (integer, flag, text, None)
    assert serial.encode(again) == serial.encode(state)


def test_bytes_of_another_class_are_refused_by_name():
    @dataclass(frozen=True)
    class Other:
        x: int

    with pytest.raises(LedgerError, match="Expected a stored Other"):
        serial.decode(Other, serial.encode(Everything(np.zeros(1), 0.0, 0, True, "", None)))


def test_rubbish_is_refused_without_executing_it():
    with pytest.raises(LedgerError, match="unreadable"):
        serial.decode(Everything, b"\x80\x04cos\nsystem\n")


def test_objects_are_refused_by_field_name():
    with pytest.raises(LedgerError, match="field array"):
        serial.encode(Everything(np.array([object()]), 0.0, 0, True, "", None))
