"""Numbers in text: the compiled loop says what `cells.parsed` says, to the bit, of every text by itself."""

import struct

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quoron_client.data import cells

COMMAS = [".", ","]
TEXTS = st.one_of(
    st.floats().map(repr),
    st.floats(allow_nan=False, width=32).map(str),
    st.integers(-(10**25), 10**25).map(str),
    st.tuples(st.integers(0, 10**22), st.integers(-360, 330)).map("{0[0]}e{0[1]}".format),
    st.integers(1 << 53, 1 << 54).map(str),
    st.text("0123456789.,-+eE \t\x1c\u00a0\0x", max_size=9),
    st.from_regex(r"[-+]?\d{1,4}([.,]\d{3}){0,3}([.,]\d{0,5})?", fullmatch=True),
    st.sampled_from(["true", "True", "TRUE", "tRUE", "false", "FALSE", "", " ", "NA", "\uff11", "1\u2003", "1_000"]),
    st.text(max_size=5),
)


def bits(numbers: object) -> list[bytes]:
    return [struct.pack("d", each) for each in numbers]  # type: ignore[attr-defined]


@pytest.fixture(autouse=True)
def compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cells, "_FEW", 0)


class TestSaid:
    @given(texts=st.lists(TEXTS, min_size=1, max_size=20), decimal=st.sampled_from(COMMAS))
    def test_is_what_each_text_says_by_itself(self, texts: list[str], decimal: str) -> None:
        found = cells.numbers(pa.array(texts, pa.large_string()), decimal)
        assert bits(found) == bits(cells.parsed(each, decimal) for each in texts)

    @pytest.mark.parametrize("text", ["1.5", "1.23,4", "1234.567", ".5", "1.234.5", "1,234.5", "1.", "1.234."])
    def test_points_that_part_no_groups_of_three_are_no_numbers_with_a_comma(self, text: str) -> None:
        assert np.isnan([cells.parsed(text, ","), cells.numbers(pa.array([text], pa.large_string()), ",")[0]]).all()

    def test_is_the_same_for_any_pieces_slices_and_codes(self, monkeypatch: pytest.MonkeyPatch) -> None:
        texts = [f"{each}.{each}" if each % 5 else [None, "\u00a07", "x"][each % 3] for each in range(999)]
        column = pa.array(texts, pa.large_string())
        expected = bits(np.nan if each is None else cells.parsed(each) for each in texts)
        monkeypatch.setattr(cells, "_WIDTH", 1 << 20)
        for piece in (7, 1 << 17):
            monkeypatch.setattr(cells, "_PIECE", piece)
            assert bits(cells.numbers(column, ".")) == expected
        assert bits(cells.numbers(column.slice(5, 900), ".")) == expected[5:905]
        assert bits(cells.numbers(column.dictionary_encode().slice(5, 900), ".")) == expected[5:905]
        monkeypatch.setattr(cells, "_FEW", 10_000)
        assert bits(cells.numbers(column, ".")) == expected
