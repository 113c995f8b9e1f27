"""Rows become items in one pass, to the bits of a slow reference: whatever the batches, the order and the threads."""

import math
import sys
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from client.reference_rows import items_of, marks_of, rows_of
from quoron_client.data import columns, first_rows, fused, gathering
from quoron_client.data import users as numbering
from quoron_client.data.encoding import (
    Categorical,
    Classes,
    ClassWeights,
    Comparison,
    Encoding,
    Numeric,
    Positive,
    Range,
    Signs,
    Weight,
)
from quoron_client.data.gathering import Gathering
from quoron_client.data.misfits import Tally
from quoron_client.data.users import group
from quoron_privacy.errors import DataError

FEATURES = (
    Numeric("a", -3, 11),
    Categorical("ward", ("x", "y", "1")),
    Numeric("b", -1e300, 1e300),
    Numeric("a", 0, 9, edges=(2.0, 6.0)),
    Categorical("b", (0, 1, 7)),
)
LABELS = [
    (Signs("y"), None),
    (Signs("y"), ClassWeights((0.25, 1.0))),
    (Comparison("y", ">", 1.0), None),
    (Positive("y", 1), None),
    (Classes("y", (0, 1, 2)), ClassWeights((1.0, 0.5, 0.1))),
    (Range("y", -1.0, 2.5), None),
    (None, None),
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
    label, by_class = draw(st.sampled_from(LABELS))
    rules = Encoding(
        FEATURES[: draw(st.integers(0, 5))],
        label=label,
        class_weight=by_class,
        weight=draw(st.sampled_from([None, Weight("w", 1.5)])),
        missing=draw(st.sampled_from(["drop", "middle"])),
        unit_rows=draw(st.booleans()),
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
        patch.setattr(gathering, "all_threads", lambda: threads)
        if small:
            patch.setattr(numbering, "_FIRST", 3)
            patch.setattr(gathering, "_STRETCH", 100)
        rows = Gathering(rules, "who", most)
        borders = [0, *sorted(min(cut, table.num_rows) for cut in cuts), table.num_rows]
        for first, last in pairwise(borders):
            rows.add(table.slice(first, last - first))
        gathered = rows.end()
        assert gathered.users == users
        tally = Tally(rules, users)
        tally.add(gathered.owners, gathered.marks)
        found = gathered.items(users + 2, zero_rows=zero_rows)
    for name in ("features", "labels", "offsets", "weights"):
        np.testing.assert_array_equal(getattr(found, name), getattr(wanted, name), err_msg=name)
    counts = np.bincount(owners, minlength=users)
    np.testing.assert_array_equal(tally.rows, np.minimum(counts, most))


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
    assert max(taken) <= 2000 * gathered._block.width


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


def test_rows_of_any_categories_are_left_out_while_a_table_is_read(monkeypatch):
    """Batches of a Feather file have dictionaries of their own, which Arrow cannot always make one of."""
    monkeypatch.setattr(first_rows, "_FIRST", 4)
    reading = first_rows.Reading(3, "who")
    for words in (["a", None], ["b", None], ["c", "d"], [*map(str, range(127))]):
        coded = pa.DictionaryArray.from_arrays(pa.array(range(len(words)), pa.int8()), pa.array(words))
        reading.add(pa.table({"who": ["x"] * len(words), "a": coded}))
    assert columns.texts(reading.table(), "a").to_pylist()[:3] == ["a", None, "b"]


def test_a_user_column_of_any_number_is_counted():
    for kind in (pa.decimal32(5, 1), pa.decimal64(12, 2), pa.decimal128(20, 2), pa.decimal256(50, 3), pa.uint64()):
        assert group(pa.table({"who": pa.array([2, 1, 2], kind)}), "who")[1].tolist() == [1, 0, 1]


@settings(max_examples=20)
@given(seed=st.integers(0, 2**32 - 1), users=st.sampled_from([1, 7, 300]), rows=st.integers(1, 3000))
def test_rows_are_put_in_order_where_they_are(seed, users, rows):
    """Of stretches of a few rows, in tables of any order."""
    draw = np.random.Generator(np.random.Philox(seed))
    table = pa.table({"a": draw.random(rows) * 1.2 - 0.1, "y": draw.integers(0, 2, rows), "w": draw.random(rows)})
    table = table.append_column("who", pa.array(draw.integers(0, users, rows)))
    rules = Encoding((Numeric("a", 0, 1),), label=Signs("y"), weight=Weight("w", 1.0))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gathering, "_STRETCH", 500)
        gathered = Gathering(rules, "who")
        gathered.add(table)
        done = gathered.end()
        found = done.items(done.users)
    wanted = fused.encoded(rules, table).batch(*group(table, "who"))
    for name in ("features", "labels", "offsets", "weights"):
        np.testing.assert_array_equal(getattr(found, name), getattr(wanted, name))
