"""What does not fit its declaration: the same rows as encoding leaves out or holds, by one row alone, user by user."""

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from client.reference_rows import marks_of, rows_of
from quoron_client.data import fused
from quoron_client.data.encoding import (
    Categorical,
    Classes,
    Comparison,
    DateNumber,
    DatePart,
    Encoding,
    Hashed,
    Numeric,
    Positive,
    Range,
    Signs,
    Weight,
)
from quoron_client.data.misfits import Tally, declared_columns, declared_labels

FEATURES = (
    *(Numeric("age", 0, 100), Categorical("ward", ("a", "b")), Numeric("dose", -1, 1)),
    *(DatePart("day", "weekday"), DateNumber("day", "year", 2000, 2020), Hashed("day", 4)),
)
LABELS = [
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


@given(
    drawn=st.lists(rows, min_size=1, max_size=8),
    label=st.sampled_from([*LABELS, None]),
    missing=st.sampled_from(["drop", "middle"]),
    weighted=st.booleans(),
)
def test_usable_rows_are_those_that_encoding_keeps_and_misfits_those_that_it_counts(drawn, label, missing, weighted):
    rules = Encoding(FEATURES, label=label, missing=missing, weight=Weight("w", 2.0) if weighted else None)
    table = table_of(drawn)
    (usable, unfit, places), encoded = marks_of(rules, table), fused.encoded(rules, table)
    np.testing.assert_array_equal(usable, encoded.kept)
    result, counts = dict(zip(declared_columns(rules), unfit.sum(axis=1).tolist(), strict=True)), encoded.counts
    for column, unfit in result.items():
        missed = counts.unusable.get(column.name, 0) + counts.filled.get(column.name, 0)
        held = counts.clipped.get(column.name, 0) + counts.unknown.get(column.name, (0, 0))[0]
        assert unfit == missed + held, column
    if isinstance(label, Range):
        assert (places >= 0).sum() == counts.labels_clipped["y"]
    elif label is not None:
        assert ((places >= 0) == ~np.isnan(label.of(table))).all()
        assert places.max() < len(declared_labels(rules))


@given(drawn=st.lists(rows, min_size=1, max_size=5), other=rows)
def test_a_row_is_judged_by_itself(drawn, other):
    rules = Encoding(FEATURES, label=Range("y", 0.0, 10.0))
    alone, among = (fused.marks_of(rules, table_of(each)) for each in (drawn, [*drawn, other]))
    np.testing.assert_array_equal(alone, among[:-1])


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
    rules = Encoding(FEATURES, label=Classes("y", ("0", "1", "2")))
    held, owners = [row for row, _ in drawn], np.array([owner for _, owner in drawn])
    tally = Tally(rules, 5)
    for part in (slice(0, cut), slice(cut, None)):
        if held[part]:
            tally.add(owners[part], fused.marks_of(rules, table_of(held[part])))
    expected = list(slowly(rules, held, owners, 5))
    for made, place in zip(tally.fitting(everybody=True), range(3), strict=True):
        np.testing.assert_allclose(made, [each[place] for each in expected])
    there = np.isin(np.arange(5), owners)
    for made, whole in zip(tally.fitting(everybody=False), tally.fitting(everybody=True), strict=True):
        np.testing.assert_array_equal(made, whole[there])
