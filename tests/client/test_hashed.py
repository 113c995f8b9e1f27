"""A value's bucket is that of its text, by a public hash, and of nothing else."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.odd_values import OBJECTS
from quoron_client.data import hashed_loops, spans, tables
from quoron_client.data.encoding import Encoding, Hashed
from quoron_privacy.errors import ConfigError

MASK = 2**64 - 1
# Those of its authors, of 00, 01, ... under the key 00 01 ... 0f: by how many bytes there are.
VECTORS = {0: 0x726FDB47DD0E0E31, 1: 0x74F839C593DC67FD, 8: 0x93F5F5799A932462, 15: 0xA129CA6149BE45E5}


def siphash(key: bytes, data: bytes) -> int:
    """SipHash-2-4, written as its paper has it."""

    def turned(word: int, by: int) -> int:
        return (word << by | word >> (64 - by)) & MASK

    def rounds(many: int) -> None:
        nonlocal a, b, c, d
        for _ in range(many):
            a, b = (a + b) & MASK, turned(b, 13)
            b, a = b ^ a, turned(a, 32)
            c, d = (c + d) & MASK, turned(d, 16)
            d ^= c
            a, d = (a + d) & MASK, turned(d, 21)
            d ^= a
            c, b = (c + b) & MASK, turned(b, 17)
            b, c = b ^ c, turned(c, 32)

    k0, k1 = int.from_bytes(key[:8], "little"), int.from_bytes(key[8:], "little")
    a, b, c, d = k0 ^ 0x736F6D6570736575, k1 ^ 0x646F72616E646F6D, k0 ^ 0x6C7967656E657261, k1 ^ 0x7465646279746573
    padded = data + bytes(-(len(data) + 1) % 8) + bytes([len(data) % 256])
    for at in range(0, len(padded), 8):
        word = int.from_bytes(padded[at : at + 8], "little")
        d ^= word
        rounds(2)
        a ^= word
    c ^= 0xFF
    rounds(4)
    return a ^ b ^ c ^ d


def fast(key: bytes, data: bytes) -> int:
    words = np.frombuffer(key, "<u8")
    return int(hashed_loops.sip(np.frombuffer(data, np.uint8), 0, len(data), words[0], words[1]))


def codes(values, buckets: int = 64, column: str = "a"):
    table = pa.table({column: values}) if isinstance(values, pa.Array) else tables.read(values)
    return Hashed(column, buckets).read(table).tolist()


class TestTheHash:
    def test_is_that_of_its_authors(self):
        key, data = bytes(range(16)), bytes(range(64))
        for many, value in VECTORS.items():
            assert siphash(key, data[:many]) == fast(key, data[:many]) == value

    @given(st.binary(min_size=16, max_size=16), st.binary(max_size=300))
    def test_is_what_its_definition_says(self, key, data):
        assert fast(key, data) == siphash(key, data)

    def test_is_the_same_for_ever(self):
        """Models of today are read tomorrow."""
        assert codes(pa.array(["E11.9", "I10", "", None, "ä"]), 2**20, "code") == [757_107, 103_993, -1, -1, 203_989]


class TestAValue:
    def test_is_hashed_by_itself(self):
        """Whatever other rows hold: one user's cell moves nobody's number."""
        together = codes(pd.DataFrame({"a": pd.Series(OBJECTS, dtype=object)}))
        alone = [codes(pd.DataFrame({"a": pd.Series([each], dtype=object)}))[0] for each in OBJECTS]
        assert together == alone


class TestBuckets:
    @pytest.mark.parametrize("many", [1, 0, -5, 2**20 + 1, 2.0, True])
    def test_of_which_there_are_too_few_or_too_many_are_refused(self, many):
        with pytest.raises(ConfigError, match="Expected from 2 to 1,048,576 buckets for column 'a'"):
            Hashed("a", many)

    def test_of_a_million_are_told_in_a_line_and_many_millions_are_refused(self):
        rules = Encoding((Hashed("a", spans.MOST),))
        assert rules.dimension == spans.MOST + 1
        assert len(str(rules.as_json())) < 300
        with pytest.raises(ConfigError, match="at most 1,048,576 columns that declarations imply, got 1,048,578"):
            Encoding((Hashed("a", spans.MOST), Hashed("b", 2)))
