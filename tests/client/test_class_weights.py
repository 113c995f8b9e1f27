"""What a row counts by its class: in (0, 1] whatever was declared, multiplied by its own weight."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quoron_client.data import fused
from quoron_client.data.encoding import (
    Classes,
    ClassWeights,
    Comparison,
    Encoding,
    Positive,
    Range,
    Signs,
    Weight,
    meaning,
    outcomes,
)
from quoron_client.data.features import Numeric

STEADY = settings(derandomize=True, deadline=None, max_examples=200)
AGE = (Numeric("age", 0, 100),)
TWO = Classes("ill", ("no", "yes"))


@STEADY
@given(st.data(), st.integers(2, 20))
def test_a_row_counts_its_own_weight_times_its_class_and_at_most_one(data, classes):
    numbers = data.draw(st.lists(st.floats(1e-6, 1e6), min_size=classes, max_size=classes))
    label = Classes("ill", tuple(range(classes)))
    weights = ClassWeights.declared(label, dict(zip(map(str, range(classes)), numbers, strict=True)))
    which = data.draw(st.lists(st.integers(-1, classes), min_size=1, max_size=30))
    visits = data.draw(st.lists(st.floats(width=32), min_size=len(which), max_size=len(which)))
    table = pa.table({"age": [50.0] * len(which), "ill": which, "visits": visits})
    plain = Encoding(AGE, label=label, weight=Weight("visits", 3.0))
    one, both = fused.encoded(plain, table), fused.encoded(replace(plain, class_weight=weights), table)
    assert np.array_equal(one.kept, both.kept)
    assert ((both.weights >= 0) & (both.weights <= 1)).all()
    counts = np.array([*weights.counts, 0.0, 0.0])[which]  # of no class: left out
    np.testing.assert_array_equal(both.weights, np.where(one.kept, one.weights * counts, 0.0))


@pytest.mark.parametrize(
    ("label", "values", "said"),
    [
        (TWO, ("no", "yes"), "ill"),
        (Classes("k", (False, True)), (False, True), "k"),
        (Signs("k", truth=True), (False, True), "k"),
        (Comparison("delay", ">", 15.0), (False, True), "delay > 15"),
        (Positive("r2", "Y"), (False, True), "r2 = Y"),
        (Range("cost", 0, 9), (), "cost"),
    ],
)
def test_every_kind_of_label_has_values_of_its_own_and_a_name(label, values, said):
    assert outcomes(label) == values
    assert [*map(type, outcomes(label))] == [*map(type, values)]
    assert meaning(label) == said
