"""A value's bucket is that of its text, by a public hash, and of nothing else."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chi2

from contracts.odd_values import OBJECTS
from quoron_client.data import fused, hashed_loops, spans, tables
from quoron_client.data.encoding import Encoding, Hashed, Signs
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

    def test_spreads_values_evenly(self):
        """Of fixed values, by Pearson's statistic; as if at random it would be larger once in 10⁶."""
        found = np.bincount(codes(pa.array([f"code {each}" for each in range(64_000)])), minlength=64)
        assert np.sum((found - 1000) ** 2 / 1000) < chi2.isf(1e-6, 63)
        other = codes(pa.array([f"code {each}" for each in range(1000)]), column="b")
        assert np.mean(np.array(other) == codes(pa.array([f"code {each}" for each in range(1000)]))) < 0.06

    def test_is_the_same_for_ever(self):
        """Models of today are read tomorrow."""
        assert codes(pa.array(["E11.9", "I10", "", None, "ä"]), 2**20, "code") == [757_107, 103_993, -1, -1, 203_989]


class TestAValue:
    def test_has_one_bucket_through_every_door(self, tmp_path):
        texts = ["7", "x", None, "-12", "é" * 30]
        frame = pd.DataFrame({"a": texts})
        frame.to_csv(tmp_path / "a.csv", index=False)
        frame.to_parquet(tmp_path / "a.parquet")
        found = codes(pa.array(texts))
        for other in (
            frame, frame.astype("category"), tmp_path / "a.csv", tmp_path / "a.parquet",
            pa.array(texts, pa.string_view()), pa.array(texts).dictionary_encode(), pa.array(["", *texts]).slice(1),
            pa.array([None if each is None else each.encode() for each in texts]),
        ):  # fmt: skip
            given_ = tables.read(pa.table({"a": other})) if isinstance(other, pa.Array) else other
            assert codes(given_) == found
        numbers = [7, None, -12]
        for kind in (pa.int8(), pa.int64(), pa.float32(), pa.decimal128(5, 1), pa.decimal256(60, 2)):
            assert codes(pa.array(numbers, kind)) == [found[0], -1, found[3]]

    def test_is_hashed_by_itself(self):
        """Whatever other rows hold: one user's cell moves nobody's number."""
        together = codes(pd.DataFrame({"a": pd.Series(OBJECTS, dtype=object)}))
        alone = [codes(pd.DataFrame({"a": pd.Series([each], dtype=object)}))[0] for each in OBJECTS]
        assert together == alone

    def test_that_is_missing_is_all_zeros(self):
        rules = Encoding((Hashed("a", 8),), Signs("sick"), intercept=False)
        found = fused.encoded(rules, pa.table({"a": ["x", None, ""], "sick": [0, 1, 0]}))
        assert found.kept.all()
        assert np.count_nonzero(found.features, axis=1).tolist() == [1, 0, 0]
        assert rules.names[7] == "a in bucket 7 of 8"

    def test_of_no_rows_is_none(self):
        assert codes(pa.array([], pa.string())) == []
        assert codes(pa.nulls(3)) == [-1] * 3


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
