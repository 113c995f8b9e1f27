"""Rows as items, to the bits of a slow reader: no value is an error, and one row is one row's business."""

import datetime
import hashlib
import json
import math
import struct
import sys
from dataclasses import dataclass, replace
from itertools import pairwise
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.odd_values import OBJECTS
from quoron.data import user_rows
from quoron.data.user_rows import group
from quoron_client.compute.enforcement import bounded
from quoron_client.compute.gradients import average_gradient
from quoron_client.data import columns, fused, tables
from quoron_client.data import features as spans
from quoron_client.data import users as numbering
from quoron_client.data.date_formats import WORDS
from quoron_client.data.encoding import (
    _HAIR,
    Classes,
    Comparison,
    Encoding,
    Positive,
    Range,
    Signs,
    Weight,
)
from quoron_client.data.features import Categorical, DateNumber, DatePart, Hashed, Numeric, grouped
from quoron_client.data.fused import Block, Gathering, RowCounts, declared_labels, put_in_order
from quoron_client.data.items import ItemBatch
from quoron_client.losses import LOSSES
from quoron_client.protocol.questions import AverageGradient
from quoron_privacy.errors import DataError


@dataclass
class Rows:
    """What all rows of a table become, and what of them does not fit."""

    features: np.ndarray
    labels: np.ndarray
    weights: np.ndarray | None
    kept: np.ndarray
    unfit: np.ndarray  # (K, N)
    places: np.ndarray  # (N,) among `declared_labels`, -1 for none


def rows_of(rules, table):
    """Of all rows of a table."""
    kept, unfit, blocks = np.ones(table.num_rows, bool), [], []
    with np.errstate(all="ignore"):
        for each in rules.features:
            if each.is_number:
                values = each.read(table)
                missing = np.isnan(values)
                unfit.append(~((values >= each.low) & (values <= each.high)))
                values[missing] = 0.5 * each.low + 0.5 * each.high
                scaled = (2.0 * values - each.low - each.high) / (each.high - each.low)
                blocks.append(np.clip(scaled, -1.0, 1.0).astype(np.float32)[:, None])
            else:
                codes = each.read(table)
                missing = codes < 0
                unfit.append(missing)
                block = np.zeros((len(codes), each.width), np.float32)
                block[np.flatnonzero(codes >= 0), codes[codes >= 0]] = 1.0
                blocks.append(block)
            if rules.missing == "drop" and each.is_number:
                kept &= ~missing
        labels, places = np.zeros(table.num_rows), np.full(table.num_rows, -1)
        if rules.label is not None:
            labels = rules.label.of(table)
            unfit.append(np.isnan(labels))
            kept &= ~np.isnan(labels)
            places = _places(rules.label, labels, table)
        weights = np.ones(len(labels)) if rules.weighted else None
        if rules.weight is not None:
            values = columns.numbers(table, rules.weight.column)
            unfit.append(~((values >= 0) & (values <= rules.weight.most)))
            kept &= values >= 0
            weights = weights * np.minimum(values / rules.weight.most, 1.0)
    if rules.intercept:
        blocks.append(np.ones((len(kept), 1), np.float32))
    features = np.hstack(blocks).astype(np.float64)
    if rules.normalize:
        norms = np.linalg.norm(features, axis=1)
        scale = (rules.feature_norm * _HAIR / np.where(norms > 0, norms, 1.0))[:, None]
    else:
        scale = rules.scale
    features = (features * scale).astype(np.float32)
    for each in (features, labels, weights):
        if each is not None:
            each[~kept] = 0.0
    return Rows(features, labels, weights, kept, np.array(unfit).reshape(len(unfit), table.num_rows), places)


def _places(label, raw, table):
    if isinstance(label, Range):
        values = columns.numbers(table, label.column)
        return np.select([values < label.low, values > label.high], [0, 1], -1)
    signs = label.kind != "classes" or len(label.values) == 2
    return np.array([-1 if np.isnan(each) else int(each > 0) if signs else int(each) for each in raw], np.int64)


def items_of(rules, table, owners, users, most, *, zero_rows):
    """The items of all users, one after the other: of each the first `most` rows, of these the usable ones."""
    rows, taken, counts, zero = rows_of(rules, table), [], [], []
    for user in range(users):
        own = [place for place in np.flatnonzero(owners == user)[:most] if rows.kept[place]]
        zero += [len(taken)] if not own and zero_rows else []
        taken += own or [0] * zero_rows
        counts.append(len(own) or int(zero_rows))
    features, labels = rows.features[taken].reshape(-1, rules.dimension), rows.labels[taken]
    weights = None if rows.weights is None else rows.weights[taken]
    for each in (features, labels, weights):
        if each is not None:
            each[zero] = 0.0
    return ItemBatch(features, labels, np.append(0, np.cumsum(counts)).astype(np.int64), weights)


def marks_of(rules, table):
    """(rows that can be used (N,), unfit ones (K, N), places of labels (N,)) as `fused` marks them."""
    rules.check(table)
    bits = np.unpackbits(fused.encoded(rules, table).marks, axis=1, bitorder="little")
    columns_, labels = len(rows_of(rules, table).unfit), len(declared_labels(rules)).bit_length()
    places = bits[:, 1 + columns_ : 1 + columns_ + labels] @ (1 << np.arange(labels)) - 1
    return bits[:, 0] == 0, bits[:, 1 : 1 + columns_].T == 1, places


RULES = Encoding(
    (Numeric("age", 0, 100), Numeric("size", -1, 1), Categorical("ward", ("A", "7")),
     Categorical("code", (1, 2))),
    label=Range("cost", 0, 10),
    weight=Weight("count", 4),
)  # fmt: skip
CELLS = [
    None,
    float("nan"),
    "",
    "old",
    " 5 ",
    "1e400",
    "true",
    3,
    -1,
    0.5,
    float("inf"),
    2**70,
    True,
    "A",
    "7",
    b"\xff",
]


def one_row(**values):
    row = {"age": 50.0, "size": 0.5, "ward": "A", "code": 1, "cost": 5.0, "count": 2}
    return pd.DataFrame({name: pd.Series([value], dtype=object) for name, value in (row | values).items()})


class TestNoValueIsAnError:
    @settings(derandomize=True, deadline=None, max_examples=30)
    @given(
        cells=st.lists(st.sampled_from(CELLS), min_size=6, max_size=6), missing=st.sampled_from(["drop", "midpoint"])
    )
    def test_in_any_column_of_a_data_frame(self, cells, missing):
        rules = Encoding(RULES.features, RULES.label, weight=RULES.weight, missing=missing)
        frame = pd.concat([one_row(), one_row(**dict(zip(RULES.columns, cells, strict=True))), one_row()])
        found = fused.encoded(rules, tables.read(frame, rules.columns))
        alone = fused.encoded(rules, tables.read(one_row(), rules.columns))
        for row in (0, 2):  # and nobody else's row is another for it
            assert found.kept[row]
            np.testing.assert_array_equal(found.features[row], alone.features[0])
            assert (found.labels[row], found.weights[row]) == (alone.labels[0], alone.weights[0])
        assert np.isfinite(found.features).all()
        assert np.isfinite(found.labels).all()
        assert np.linalg.norm(found.features.astype(float), axis=1).max() <= 1
        assert 0 <= found.weights.min() <= found.weights.max() <= 1


class TestUsers:
    TABLE = pa.table({"who": ["b", "a", "c", "b"], "age": [10.0, None, None, 20.0], "sick": [1, 0, 1, 0]})
    RULES = Encoding((Numeric("age", 0, 100),), Signs("sick"))

    def test_are_counted_before_rows_are_left_out(self):
        users, owners = group(self.TABLE, "who")
        encoded = fused.encoded(self.RULES, self.TABLE)
        batch = encoded.batch(users, owners)
        assert users == 3
        assert owners.tolist() == [1, 0, 2, 1]
        assert batch.offsets.tolist() == [0, 1, 3, 4]
        assert not batch.features[[0, 3]].any()
        assert batch.labels.tolist() == [0, 1, -1, 0]

    @pytest.mark.parametrize("name", LOSSES)
    def test_without_a_usable_row_have_a_gradient_of_exactly_zero(self, name):
        more = {"classes": 3} if name == "softmax" else {}
        loss = LOSSES[name](**more)
        rules = replace(self.RULES, label=Classes("sick", (0, 1, 2))) if more else self.RULES
        batch = bounded(fused.encoded(rules, self.TABLE).batch(*group(self.TABLE, "who")), loss)
        point = np.resize([0.7, -0.4], 2 * more.get("classes", 1))
        gradients = average_gradient(loss, batch, AverageGradient(point[None], (1.0,)))
        assert not (gradients[[0, 2]] - loss.quadratic_diagonal(len(point)) * point).any()
        assert gradients[1].any()
        ridged = LOSSES[name](ridge=0.5, **more)
        shrunk = average_gradient(ridged, batch, AverageGradient(point[None], (1.0,)))
        np.testing.assert_array_equal(shrunk[[0, 2]], [ridged.quadratic_diagonal(len(point)) * point] * 2)


FEATURES = (
    Numeric("a", -3, 11),
    Categorical("ward", ("x", "y", "1")),
    Numeric("b", -1e300, 1e300),
    Categorical("b", (0, 1, 7)),
)
LABELS = [
    Signs("y"),
    Comparison("y", ">", 1.0),
    Positive("y", 1),
    Classes("y", (0, 1, 2)),
    Range("y", -1.0, 2.5),
    None,
]
ODD = [math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, -1.0, 2.0, 7.0, 11.0, 11.000001, 5e-324, 1e300, -1.7e308]
SAID = ["", "x", "y", "1", " 7e1 ", "3,5", "nan", "true", "1e400", "-2", "0", "2.5", "é"]
TYPES = [pa.float64(), pa.float32(), pa.int8(), pa.int64(), pa.uint64(), pa.bool_(), pa.string(), pa.null()]


def column(draw, kind, rows):
    """Values of one type, some of them missing and none of them tame."""
    if pa.types.is_null(kind):
        return pa.nulls(rows)
    if pa.types.is_string(kind):
        each = st.sampled_from(SAID)
    elif pa.types.is_floating(kind):
        each = st.sampled_from(ODD) | st.floats(-12, 12, width=32)
    elif pa.types.is_boolean(kind):
        each = st.booleans()
    else:
        signed, bits = pa.types.is_signed_integer(kind), kind.bit_width
        low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
        each = st.sampled_from([low, high, 0, 1, 2, 7]) | st.integers(low, high)
    values = draw(st.lists(st.none() | each, min_size=rows, max_size=rows))
    if pa.types.is_floating(kind):
        values = [None if each is None else kind.to_pandas_dtype()(each) for each in values]
    found = pa.array(values, kind)
    return found.dictionary_encode() if draw(st.booleans()) and pa.types.is_string(kind) else found


@st.composite
def tables_and_rules(draw):
    rows = draw(st.integers(1, 40))
    kinds = {name: draw(st.sampled_from(TYPES)) for name in ("a", "b", "ward", "y", "w")}
    with np.errstate(all="ignore"):
        cells = {name: column(draw, kind, rows) for name, kind in kinds.items()}
    users = [*range(6)] if draw(st.booleans()) else [f"u{number}" for number in range(6)]
    who = pa.array(draw(st.lists(st.sampled_from(users), min_size=rows, max_size=rows)))
    if draw(st.booleans()):
        who = pa.DictionaryArray.from_arrays(pa.array([users.index(each) for each in who.to_pylist()]), pa.array(users))
    label = draw(st.sampled_from(LABELS))
    rules = Encoding(
        FEATURES[: draw(st.integers(0, 5))],
        label=label,
        weight=draw(st.sampled_from([None, Weight("w", 1.5)])),
        missing=draw(st.sampled_from(["drop", "midpoint"])),
        normalize=draw(st.booleans()),
    )
    table = pa.table({**cells, "who": who})
    order = pa.array(draw(st.permutations(range(rows))))
    first = draw(st.integers(0, rows - 1))  # so that columns begin within their memory, and within a byte
    return table.take(order).slice(first), rules


@given(given_=tables_and_rules(), threads=st.sampled_from([1, 2, 8]), piece=st.sampled_from([1, 40, 1 << 20]))
def test_rows_are_the_items_that_a_slow_reader_makes_of_them(given_, threads, piece):
    table, rules = given_
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fused, "all_threads", lambda: threads)
        patch.setattr(fused, "LEAST", 1)
        patch.setattr(fused, "PIECE", piece)
        found, (usable, unfit, places) = fused.encoded(rules, table), marks_of(rules, table)
    wanted = rows_of(rules, table)
    for name in ("features", "labels", "weights", "kept"):
        np.testing.assert_array_equal(getattr(found, name), getattr(wanted, name), err_msg=name)
    np.testing.assert_array_equal(usable, wanted.kept)
    np.testing.assert_array_equal(unfit, wanted.unfit)
    np.testing.assert_array_equal(places, wanted.places)


@given(
    given_=tables_and_rules(),
    cuts=st.lists(st.integers(0, 40), max_size=5),
    most=st.sampled_from([1, 2, 3, sys.maxsize]),
    zero_rows=st.booleans(),
    small=st.booleans(),
    threads=st.sampled_from([1, 2, 8]),
)
def test_batches_of_any_size_become_the_items_of_the_table(given_, cuts, most, zero_rows, small, threads):
    """Users whose rows are apart in several batches are one; those without a usable row, and slots, too."""
    table, rules = given_
    users, owners = group(table, "who", without_rows=True)
    wanted = items_of(rules, table, owners, users + 2, most, zero_rows=zero_rows)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fused, "all_threads", lambda: threads)
        if small:
            patch.setattr(numbering, "_FIRST", 3)
            patch.setattr(fused, "_STRETCH", 100)
        rows = Gathering(rules, "who", most)
        borders = [0, *sorted(min(cut, table.num_rows) for cut in cuts), table.num_rows]
        for first, last in pairwise(borders):
            rows.add(table.slice(first, last - first))
        gathered = rows.end()
        assert gathered.users == users
        tally = RowCounts(rules, users)
        tally.add(gathered.owners, gathered.block.marks)
        found = gathered.items(users + 2, zero_rows=zero_rows)
    for name in ("features", "labels", "offsets", "weights"):
        np.testing.assert_array_equal(getattr(found, name), getattr(wanted, name), err_msg=name)
    counts = np.bincount(owners, minlength=users)
    np.testing.assert_array_equal(tally.rows, np.minimum(counts, most))


@given(first=st.lists(st.booleans(), min_size=1, max_size=80), swaps=st.lists(st.integers(0, 79), max_size=3))
def test_rows_go_to_their_places_in_the_memory_they_are_in(first, swaps):
    """Those in front move up in their order, or one by one where there is none."""
    front = np.array(first)
    to = np.where(front, np.cumsum(front) - 1, front.sum() + np.cumsum(~front) - 1).astype(np.int32)
    for place in swaps:
        one, other = place % len(to), place // 2 % len(to)
        to[[one, other]] = to[[other, one]]
    block = Block.of(Encoding((Numeric("a", 0, 1), Numeric("b", 0, 1)), weight=Weight("w", 1.0)), len(to))
    for array in block.item:
        array[:] = np.arange(array.size).reshape(array.shape)
    wanted = [array[np.argsort(to)] for array in block.item]
    put_in_order(to, block)
    for found, array in zip(block.item, wanted, strict=True):
        np.testing.assert_array_equal(found, array)


def test_a_row_without_a_user_is_refused_and_so_is_a_table_without_rows():
    rules = Encoding((Numeric("a", 0, 1),))
    for who in ([None, "u"], ["", "u"], [None, 1.0], [math.nan, 1.0], [None, None]):
        rows = Gathering(rules, "who")
        rows.add(pa.table({"a": [0.5, 0.5], "who": pa.array(who)}))
        with pytest.raises(
            DataError, match=r"Expected a user in every row of column 'who', got some that are null or empty"
        ):
            rows.end()
    with pytest.raises(DataError, match="Expected a table with rows, got an empty one"):
        Gathering(rules, "who").end()


def test_of_one_user_with_very_many_rows_few_are_in_memory(monkeypatch):
    monkeypatch.setattr(numbering, "_FIRST", 1000)
    taken = []
    rows = Gathering(Encoding((Numeric("a", 0, 1),)), "who", 50, ask=lambda needed, _: taken.append(needed))
    batch = pa.table({"a": np.linspace(0, 1, 500), "who": np.zeros(500, np.int64)})
    for _ in range(200):
        rows.add(batch)
    gathered = rows.end()
    assert len(gathered.owners) == 50
    assert max(taken) <= 2000 * gathered.block.width


def test_of_a_user_with_a_long_name_few_rows_wait(monkeypatch):
    """A name may be as long as a cell: rows that wait are counted by their bytes, too."""
    monkeypatch.setattr(numbering, "_BYTES", 10_000)
    rows, waited = Gathering(Encoding((Numeric("a", 0, 1),)), "who"), []
    for name in ["x" * 5000, "y", "x" * 5000, "z"] * 10:
        rows.add(pa.table({"a": [0.5], "who": [name]}))
        waited.append(rows._numbering.waiting)
    gathered = rows.end()
    assert max(waited) <= 6
    assert (gathered.users, gathered.owners.tolist()) == (3, [0, 1, 0, 2] * 10)


@pytest.mark.parametrize("kind", [pa.float16(), pa.float32(), pa.float64()])
def test_a_user_of_zero_is_one_however_it_is_signed(kind):
    """Else a user could be two, each of whom has all that is promised of one."""
    who = pa.array(np.array([0.0, -0.0, 1.0, -0.0]), pa.float64()).cast(kind)
    for named in (who, who.dictionary_encode()):
        users, owners = group(pa.table({"who": named}), "who")
        assert (users, owners.tolist()) == (2, [0, 0, 1, 0])


def test_rows_of_any_categories_are_left_out_while_a_table_is_read():
    """Batches of an Arrow stream have dictionaries of their own, which Arrow cannot always make one of."""
    batches = []
    for words in (["a", None], ["b", None], ["c", "d"], [*map(str, range(127))]):
        coded = pa.DictionaryArray.from_arrays(pa.array(range(len(words)), pa.int8()), pa.array(words))
        batches.append(pa.record_batch({"who": ["x"] * len(words), "a": coded}))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batches[0].schema) as stream:
        for batch in batches:
            stream.write_batch(batch)
    read = tables.read(
        pa.ipc.open_stream(sink.getvalue()), keep=lambda table: user_rows.first_rows_of_users(table, "who", 3), most=4
    )
    assert columns.texts(read, "a").to_pylist()[:3] == ["a", None, "b"]


def test_a_user_column_of_any_number_is_counted():
    for kind in (pa.decimal32(5, 1), pa.decimal64(12, 2), pa.decimal128(20, 2), pa.decimal256(50, 3), pa.uint64()):
        assert group(pa.table({"who": pa.array([2, 1, 2], kind)}), "who")[1].tolist() == [1, 0, 1]


FITTING = (
    *(Numeric("age", 0, 100), Categorical("ward", ("a", "b")), Numeric("dose", -1, 1)),
    *(DatePart("day", "weekday"), DateNumber("day", "year", 2000, 2020), Hashed("day", 4)),
)
MEANT = [
    Signs("y"),
    Comparison("y", ">", 15.0),
    Positive("y", "1"),
    Classes("y", ("0", "1")),
    Classes("y", (0, 1, 2)),
    Range("y", 0.0, 10.0),
]
texts = st.sampled_from(
    ["50", "0", "1", "2", "-1", "130", "3,5", "old", "nan", "inf", "-inf", "", None, "true", "1e300"]
)
days = st.sampled_from(["2024-02-29", "2010-01-01T13:00Z", "1.2.2010", "1999-12-31", "", None])
rows = st.tuples(texts, st.sampled_from(["a", "b", "c", "", None]), texts, texts, texts, days)


def table_of(drawn) -> pa.Table:
    columns = zip(("age", "ward", "dose", "y", "w", "day"), zip(*drawn, strict=True), strict=True)
    return pa.table({name: pa.array(values, pa.string()) for name, values in columns})


def slowly(rules, drawn, owners, users):
    """Shares of each user, row by row."""
    found = rows_of(rules, table_of(drawn))
    for user in range(users):
        own = [place for place, owner in enumerate(owners) if owner == user]
        usable = [place for place in own if found.kept[place]]
        labels = [
            sum(found.places[place] == each for place in usable) / max(1, len(usable))
            for each in range(len(declared_labels(rules)))
        ]
        columns = [sum(unfit[place] for place in own) / max(1, len(own)) for unfit in found.unfit]
        yield float(not usable), labels, columns


@given(drawn=st.lists(st.tuples(rows, st.integers(0, 3)), min_size=1, max_size=9), cut=st.integers(0, 9))
def test_tallies_of_tables_that_come_one_after_the_other_are_shares_of_each_users_rows(drawn, cut):
    rules = Encoding(FITTING, label=Classes("y", ("0", "1", "2")))
    held, owners = [row for row, _ in drawn], np.array([owner for _, owner in drawn])
    tally = RowCounts(rules, 5)
    for part in (slice(0, cut), slice(cut, None)):
        if held[part]:
            tally.add(owners[part], fused.encoded(rules, table_of(held[part])).marks)
    expected = list(slowly(rules, held, owners, 5))
    for made, place in zip(tally.fitting(everybody=True), range(3), strict=True):
        np.testing.assert_allclose(made, [each[place] for each in expected])
    there = np.isin(np.arange(5), owners)
    for made, whole in zip(tally.fitting(everybody=False), tally.fitting(everybody=True), strict=True):
        np.testing.assert_array_equal(made, whole[there])


def test_types_that_were_made_of_values_say_nothing(tmp_path):
    """One user's value changes the type of a pandas column, and what a CSV file is read as is always text."""
    whole = pd.DataFrame({"y": [True, False], "x": [1, 2], "c": pd.Categorical(["a", "b"])})
    for frame in (whole, whole.astype(object), whole.assign(y=[True, None])):
        assert tables.opened(frame).schema == {}
    whole.to_csv(tmp_path / "people.csv", index=False)
    assert tables.opened(tmp_path / "people.csv").schema == {}


def codes(values, buckets: int = 64, column: str = "a"):
    table = pa.table({column: values}) if isinstance(values, pa.Array) else tables.read(values)
    return Hashed(column, buckets).read(table).tolist()


class TestTheHash:
    @given(st.lists(st.none() | st.text(), min_size=1), st.text(min_size=1, max_size=100), st.integers(2, 2**20))
    def test_is_what_its_definition_says(self, texts, column, buckets):
        key = hashlib.blake2b(column.encode(errors="replace"), digest_size=16).digest()
        words = [hashlib.blake2b((text or "").encode(), key=key, digest_size=8).digest() for text in texts]
        expected = [
            int.from_bytes(word, "little") % buckets if text else -1 for word, text in zip(words, texts, strict=True)
        ]
        assert codes(pa.array(texts, pa.large_string()), buckets, column) == expected

    def test_is_the_same_for_ever(self):
        """Models of today are read tomorrow."""
        assert codes(pa.array(["E11.9", "I10", "", None, "ä"]), 2**20, "code") == [1_046_066, 983_006, -1, -1, 428_283]


class TestAValue:
    def test_is_hashed_by_itself(self):
        """Whatever other rows hold: one user's cell moves nobody's number."""
        grouped = codes(pd.DataFrame({"a": pd.Series(OBJECTS, dtype=object)}))
        alone = [codes(pd.DataFrame({"a": pd.Series([each], dtype=object)}))[0] for each in OBJECTS]
        assert grouped == alone


class TestASpan:
    @given(
        st.lists(
            st.tuples(
                st.sampled_from(["x", "x0", "y1_", "", "z["]),
                st.sampled_from(["0", "00", "5", "95", "095", "12345678"]),
                st.integers(1, 130),
                st.sampled_from([1.0, 2.0]),
            ),
            max_size=6,
        )
    )
    def test_is_told_so_that_the_same_columns_come_back(self, runs: list[tuple[str, str, int, float]]) -> None:
        features = [
            Numeric(name, 0, high)
            for prefix, first, many, high in runs
            for name in spans.named(f"{prefix}[{first}:{int(first) + many}]")
        ]
        rules = Encoding(tuple(features), label=Signs("sick"))
        assert Encoding.from_json(json.loads(json.dumps(rules.as_json()))) == rules
        assert len(grouped(features)) <= len(features)


YEAR = DateNumber("a", "year", 0, 1)
NONE = (-1, -1, -1, -1, None, None)
ZONES = ("Europe/Berlin", "America/New_York", "Asia/Kathmandu", "Africa/Casablanca", "Australia/Lord_Howe", "UTC")
MOMENTS = st.datetimes(datetime.datetime(1, 1, 1), datetime.datetime(9999, 12, 31))


def said(values, **how):
    """The month, weekday, day, hour, year and day number of each value; of text, unless it is a column already."""
    column = values if isinstance(values, pa.Array | pa.ChunkedArray) else pa.array(values, pa.large_string())
    table = pa.table({"a": column})
    parts = [DatePart("a", part, **how).read(table).tolist() for part in WORDS]
    numbers = [DateNumber("a", "year", 0, 1, **how), DateNumber("a", "days", 0, 1, "1970-01-01", **how)]
    parts += [[None if np.isnan(v) else int(v) for v in each.read(table)] for each in numbers]
    return [*zip(*parts, strict=True)]


def expected(moment):
    """The same of a moment of Python's."""
    days = moment.toordinal() - datetime.date(1970, 1, 1).toordinal()
    return (moment.month - 1, moment.weekday(), moment.day - 1, moment.hour, moment.year, days)


class TestISO8601:
    @given(MOMENTS, st.sampled_from(["T", " ", "t"]), st.sampled_from(["auto", "hours", "minutes", "microseconds"]))
    def test_says_what_python_says(self, moment, apart, precision):
        basic = moment.strftime("%Y").zfill(4) + moment.strftime("%m%dT%H%M%S")
        texts = [
            moment.isoformat(apart, precision),
            basic,
            f" {moment.isoformat()}+05:45\n",
            f"{moment.isoformat()}-1130",
        ]
        assert said(texts) == [expected(moment)] * 4

    @given(st.lists(st.text("0123456789-+:TWZz. ,", max_size=30), max_size=8))
    @settings(max_examples=12)
    def test_of_any_signs_raises_nothing_and_is_that_of_each_alone(self, texts):
        assert said(texts) == [said([text])[0] for text in texts]


class TestADeclaredFormat:
    @given(
        MOMENTS.filter(lambda moment: moment.year >= 1000),
        st.sampled_from([
            "%d.%m.%Y %H:%M", "%m/%d/%Y %I:%M:%S %p", "%Y%j%H", "%d-%b-%Y %H", "%d %B %Y, %H h", "%F %T",
            "%Y-%m-%dT%H:%M:%S.%f", "100%% %d/%m/%Y %R", "é%d😀%m %Y %H",
        ]),
    )  # fmt: skip
    def test_says_what_python_says(self, moment, form):
        text = moment.strftime(form)
        assert said([text, f" {text} \n"], format=form) == [expected(moment)] * 2
        assert said([text + "x", text[:-1] + "?", "0" + text], format=form) == [NONE] * 3

    def test_with_an_offset_shows_the_clock_there(self):
        found = said(["2024-01-01 23:30 +01:00", "2024-01-01 23:30"], format="%Y-%m-%d %H:%M %z")
        assert found == [expected(datetime.datetime(2024, 1, 1, 23, 30)), NONE]


def same_moments():
    """The same moments, to the second, in every type that has them."""
    texts = ["2024-02-29 13:30:05", "1969-12-31 23:59:59", "1700-01-01 00:00:00", None, "2261-12-31 12:00:00"]
    moments = [None if text is None else datetime.datetime.fromisoformat(text) for text in texts]
    yield "text", pa.array(texts)
    yield "coded text", pa.array(texts).dictionary_encode()
    yield "bytes", pa.array([None if text is None else text.encode() for text in texts])
    for unit in ("s", "ms", "us", "ns"):
        yield unit, pa.array(moments, pa.timestamp(unit))
        yield f"{unit}, coded", pa.array(moments, pa.timestamp(unit)).dictionary_encode()
    yield "UTC", pa.array(moments, pa.timestamp("us", "UTC"))
    yield "zone", pa.array(moments, pa.timestamp("us")).cast(pa.timestamp("us", "+00:00"))
    yield (
        "pieces",
        pa.chunked_array([pa.array(moments[:2], pa.timestamp("s")), pa.array(moments[2:], pa.timestamp("s"))]),
    )
    yield "slice", pa.array([None, *moments], pa.timestamp("us")).slice(1)
    for frame in (
        pd.DataFrame({"a": pd.Series(moments, dtype="datetime64[ns]")}),
        pd.DataFrame({"a": pd.Series(moments, dtype="datetime64[s]")}),
        pd.DataFrame({"a": pd.Series(moments, dtype=object)}),
        pd.DataFrame({"a": pd.Series(moments, dtype="datetime64[us]").astype("category")}),
        pd.DataFrame({"a": pd.Series(moments, dtype="datetime64[ns]").dt.tz_localize("UTC")}),
    ):
        yield str(frame["a"].dtype), tables.read(frame).column("a").combine_chunks()


class TestEveryDoor:
    def test_says_the_same_of_the_same_moment(self):
        found = {name: said(column) for name, column in same_moments()}
        assert len(found) > 15
        for name, each in found.items():
            assert each == found["text"], name

    def test_says_the_same_of_the_same_day(self):
        days = [datetime.date(2024, 2, 29), datetime.date(1, 1, 1), None, datetime.date(9999, 12, 31)]
        found = said(pa.array(days, pa.date32()))
        assert found == said(pa.array(days, pa.date64())) == said([day and day.isoformat() for day in days])
        assert found == said(tables.read(pd.DataFrame({"a": pd.Series(days, dtype=object)})).column("a"))
        whole = pa.array([20240229, 10101, None, 99991231])
        assert said(whole)[::3] == found[::3]

    def test_says_an_hour_of_times(self):
        times = [datetime.time(13, 30), datetime.time(), None, datetime.time(23, 59, 59)]
        for kind in (pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns")):
            table = pa.table({"a": pa.array(times, kind)})
            assert DatePart("a", "hour").read(table).tolist() == [13, 0, -1, 23]
            with pytest.raises(DataError, match=r"hold dates for its year, got type time.*which has no day"):
                YEAR.read(table)


class TestAnyValue:
    @pytest.mark.parametrize("every", [4, pytest.param(1, id="all", marks=pytest.mark.slow)])
    def test_is_read_by_itself(self, every):
        """Whatever other rows hold: one user's cell moves nobody's number."""
        objects = [*OBJECTS, "2024-02-29", datetime.datetime(2024, 2, 29, 5, tzinfo=datetime.UTC)]
        grouped = tables.read(pd.DataFrame({"a": pd.Series(objects, dtype=object)})).column("a")
        alone = [tables.read(pd.DataFrame({"a": pd.Series([each], dtype=object)})).column("a") for each in objects]
        for how in ({}, {"format": "%d.%m.%Y %H"}, {"format": "unix"}):
            step = 3 * every if how else every
            assert said(grouped, **how)[::step] == [said(each, **how)[0] for each in alone[::step]]


class TestAZone:
    @given(st.lists(st.integers(-5_364_576_000, 2_145_916_800), min_size=1, max_size=20), st.sampled_from(ZONES))
    def test_shows_what_python_shows_from_1800_to_2037(self, seconds, zone):
        begin = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
        moments = [(begin + datetime.timedelta(seconds=each)).astimezone(ZoneInfo(zone)) for each in seconds]
        column = pa.array(seconds, pa.int64()).cast(pa.timestamp("s", zone))
        assert said(column) == [expected(each.replace(tzinfo=None)) for each in moments]


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


class TestNumbersInText:
    """Arrow, and `parsed` for the rest, say what `parsed` says, to the bit, of every text by itself."""

    @given(texts=st.lists(TEXTS, min_size=1, max_size=20), decimal=st.sampled_from(COMMAS))
    def test_is_what_each_text_says_by_itself(self, texts: list[str], decimal: str) -> None:
        found = columns.parsed_texts(pa.array(texts, pa.large_string()), decimal)
        assert bits(found) == bits(columns.parsed(each, decimal) for each in texts)

    @pytest.mark.parametrize("text", ["1.5", "1.23,4", "1234.567", ".5", "1.234.5", "1,234.5", "1.", "1.234."])
    def test_points_that_part_no_groups_of_three_are_no_numbers_with_a_comma(self, text: str) -> None:
        assert np.isnan(
            [columns.parsed(text, ","), columns.parsed_texts(pa.array([text], pa.large_string()), ",")[0]]
        ).all()

    def test_is_the_same_for_any_pieces_slices_and_codes(self, monkeypatch: pytest.MonkeyPatch) -> None:
        texts = [f"{each}.{each}" if each % 5 else [None, "\u00a07", "x"][each % 3] for each in range(999)]
        column = pa.array(texts, pa.large_string())
        expected = bits(np.nan if each is None else columns.parsed(each) for each in texts)
        monkeypatch.setattr(columns, "_WIDTH", 1 << 20)
        for piece in (7, 1 << 17):
            monkeypatch.setattr(columns, "_PIECE", piece)
            assert bits(columns.parsed_texts(column, ".")) == expected
        assert bits(columns.parsed_texts(column.slice(5, 900), ".")) == expected[5:905]
        assert bits(columns.parsed_texts(column.dictionary_encode().slice(5, 900), ".")) == expected[5:905]
