"""Declarations that cannot be meant are refused by name, by themselves and by a schema's types; values never are."""

from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from quoron_client.data import tables
from quoron_client.data.declared import check_types, types_of
from quoron_client.data.encoding import (
    Categorical,
    Classes,
    Comparison,
    Encoding,
    Numeric,
    Positive,
    Range,
    Signs,
    Weight,
)
from quoron_privacy.errors import ConfigError, DataError

AGE = Numeric("age", 0, 100)


@pytest.mark.parametrize(
    ("rules", "user", "said"),
    [
        (Encoding((), label=Signs("ill")), "who", "Expected features, got none"),
        (Encoding((AGE, Categorical("age", (1, 2)))), "who", "every feature once, got 'age' twice"),
        (Encoding((AGE, Numeric("who", 0, 9))), "who", "got it as a feature too"),
        (Encoding((AGE, Categorical("who", ("a",)))), "who", "got it as a feature too"),
        (Encoding((AGE,), label=Signs("who")), "who", "got it as the label too"),
        (Encoding((AGE,), label=Signs("ill"), weight=Weight("who", 1.0)), "who", "got it as the weight too"),
        (Encoding((AGE,), label=Signs("ill"), weight=Weight("ill", 1.0)), "who", "other than the label's own"),
    ],
)
def test_declarations_that_cannot_be_meant_are_refused_by_name(rules, user, said):
    with pytest.raises(ConfigError, match=said):
        rules.check_meant(user)


def test_a_number_may_be_a_feature_beside_its_own_intervals():
    Encoding((AGE, Numeric("age", 0, 100, edges=(30, 60))), label=Signs("ill")).check_meant("who")


WRONG: list[tuple[Any, pa.DataType, str]] = [
    (Signs("y"), pa.string(), "classes = "),
    (Signs("y"), pa.large_string(), "classes = "),
    (Classes("y", ("no", "yes")), pa.int64(), "classes that label 'y' of type int64 can hold"),
    (Classes("y", ("no", "yes")), pa.bool_(), "can hold"),
    (Classes("y", ("01", "02")), pa.int16(), "can hold"),
    (Classes("y", ("no", "1.5")), pa.float32(), "can hold"),
    (Classes("y", (0, 300)), pa.uint8(), "can hold"),
    (Classes("y", (1, 2)), pa.bool_(), "can hold"),
    (Positive("y", "died"), pa.int32(), "positive that label 'y'"),
    (Positive("y", 7), pa.bool_(), "positive that label 'y'"),
    (Comparison("y", ">", 15.0), pa.bool_(), "now true and now false"),
    (Comparison("y", ">=", 0.0), pa.uint16(), "now true and now false"),
    (Comparison("y", "<", -200.0), pa.int8(), "now true and now false"),
    (Range("y", 10, 20), pa.bool_(), "a label_range within which"),
    (Range("y", -5, 0), pa.uint64(), "a label_range within which"),
]
RIGHT: list[tuple[Any, pa.DataType]] = [
    (Signs("y"), pa.int64()),
    (Signs("y"), pa.bool_()),
    (Signs("y"), pa.float64()),
    (Signs("y"), pa.null()),
    (Signs("y"), pa.dictionary(pa.int8(), pa.string())),
    (Classes("y", ("no", "yes")), pa.string()),
    (Classes("y", ("0", "1")), pa.int64()),
    (Classes("y", ("true", "false")), pa.bool_()),
    (Classes("y", (1, 2)), pa.string()),
    (Classes("y", (1, 2)), pa.float64()),
    (Classes("y", (0, 1, 2)), pa.bool_()),
    (Positive("y", "true"), pa.bool_()),
    (Positive("y", True), pa.bool_()),
    (Comparison("y", ">", 0.5), pa.bool_()),
    (Comparison("y", ">", 15.0), pa.string()),
    (Comparison("y", ">", 1e300), pa.float64()),
    (Range("y", 0, 10), pa.string()),
    (Range("y", 0, 10), pa.int8()),
    (Range("y", 0, 10), pa.decimal128(5, 2)),
]


@pytest.mark.parametrize(("label", "kind", "said"), WRONG)
def test_a_label_whose_type_can_hold_only_one_thing_or_none_is_refused(label, kind, said):
    with pytest.raises(DataError, match=said):
        check_types(Encoding((AGE,), label=label), {"y": kind})


@pytest.mark.parametrize(("label", "kind"), RIGHT)
def test_what_may_be_meant_is_not_refused(label, kind):
    table = pa.schema([("y", kind), ("age", pa.float64())])
    check_types(Encoding((AGE,), label=label), types_of("people.parquet", table))


@pytest.mark.parametrize(
    ("feature", "kind", "wrong"),
    [
        (Numeric("x", 1000, 2000), pa.uint8(), True),
        (Numeric("x", 1, 2), pa.bool_(), True),
        (Numeric("x", -9, 0), pa.uint32(), True),
        (Numeric("x", 0, 100), pa.bool_(), False),
        (Numeric("x", 1000, 2000), pa.string(), False),
        (Categorical("x", ("north", "south")), pa.int64(), True),
        (Categorical("x", ("north", "7")), pa.int64(), False),
        (Categorical("x", (1000,)), pa.int8(), True),
        (Categorical("x", (1, 2)), pa.string(), False),
        (Categorical("x", "from-data"), pa.int8(), False),
    ],
)
def test_a_feature_that_its_type_makes_a_constant_is_refused(feature, kind, wrong):
    rules = Encoding((feature,), label=Signs("y"))
    if not wrong:
        check_types(rules, {"x": kind})
        return
    with pytest.raises(DataError, match=f"feature 'x' of type {kind}"):
        check_types(rules, {"x": kind})


def test_types_that_were_made_of_values_say_nothing(tmp_path):
    """One user's value changes the type of a pandas column, and what a CSV file is read as is always text."""
    whole = pd.DataFrame({"y": [True, False], "x": [1, 2], "c": pd.Categorical(["a", "b"])})
    for frame in (whole, whole.astype(object), whole.assign(y=[True, None])):
        assert types_of(frame, tables.read(frame).schema) == {}
    whole.to_csv(tmp_path / "people.csv", index=False)
    assert types_of(tmp_path / "people.csv", tables.opened(tmp_path / "people.csv").empty().schema) == {}


def test_a_schema_says_its_types_but_for_dictionaries_and_nulls(tmp_path):
    table = pa.table(
        {"y": [True, False], "c": pa.array(["a", "b"]).dictionary_encode(), "n": pa.nulls(2), "x": np.arange(2.0)}
    )
    pq.write_table(table, tmp_path / "people.parquet")
    for source, schema in (
        (table, table.schema),
        (tmp_path / "people.parquet", pq.read_schema(tmp_path / "people.parquet")),
    ):
        assert types_of(source, schema) == {"y": pa.bool_(), "x": pa.float64()}
