"""Declarations that cannot be meant are refused by name, by themselves and by a schema's types; values never are."""

from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

from quoron_client.data import tables
from quoron_client.data.declared import check_types, types_of
from quoron_client.data.encoding import (
    Classes,
    Comparison,
    Encoding,
    Numeric,
    Positive,
    Range,
    Signs,
)
from quoron_privacy.errors import DataError

AGE = Numeric("age", 0, 100)


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


@pytest.mark.parametrize(("label", "kind", "said"), WRONG)
def test_a_label_whose_type_can_hold_only_one_thing_or_none_is_refused(label, kind, said):
    with pytest.raises(DataError, match=said):
        check_types(Encoding((AGE,), label=label), {"y": kind})


def test_types_that_were_made_of_values_say_nothing(tmp_path):
    """One user's value changes the type of a pandas column, and what a CSV file is read as is always text."""
    whole = pd.DataFrame({"y": [True, False], "x": [1, 2], "c": pd.Categorical(["a", "b"])})
    for frame in (whole, whole.astype(object), whole.assign(y=[True, None])):
        assert types_of(frame, tables.read(frame).schema) == {}
    whole.to_csv(tmp_path / "people.csv", index=False)
    assert types_of(tmp_path / "people.csv", tables.opened(tmp_path / "people.csv").empty().schema) == {}
