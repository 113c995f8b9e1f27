"""Rows as items: no value is an error, one row is one row's business, and what a type is depends on no value."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quoron_client.compute.enforcement import bounded
from quoron_client.compute.gradients import average_gradient
from quoron_client.data import fused, tables
from quoron_client.data.encoding import (
    Categorical,
    Classes,
    Comparison,
    Encoding,
    Numeric,
    Range,
    Signs,
    Weight,
    read_label,
)
from quoron_client.data.users import group
from quoron_client.losses import LOSSES, Hinge, LeastSquares, Linear, Logistic
from quoron_client.protocol.gradients import AverageGradient
from quoron_privacy.errors import ConfigError, DataError

RULES = Encoding(
    (Numeric("age", 0, 100), Numeric("size", -1, 1, edges=(0.0,)), Categorical("ward", ("A", "7")),
     Categorical("code", (1, 2))),
    label=Range("cost", 0, 10),
    weight=Weight("count", 4),
)  # fmt: skip
WORDS = [
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
    @settings(derandomize=True, deadline=None, max_examples=60)
    @given(cells=st.lists(st.sampled_from(WORDS), min_size=6, max_size=6), missing=st.sampled_from(["drop", "middle"]))
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


class TestTypes:
    def test_do_not_depend_on_one_users_values(self):
        """The same values as integers, floats, text and mixed objects are the same items."""
        codes = [1, 2, 3, 2]
        kinds = [codes, [float(c) for c in codes], [str(c) for c in codes], [*codes[:3], "2"]]
        rules = Encoding((Categorical("code", (1, 2)), Categorical("word", ("1", "2"))), Comparison("n", ">=", 2))
        found = [
            fused.encoded(rules, tables.read(pd.DataFrame({"code": kind, "word": kind, "n": kind}), rules.columns))
            for kind in kinds
        ]
        for each in found:
            np.testing.assert_array_equal(each.features, found[0].features)
            np.testing.assert_array_equal(each.labels, [-1, 1, 1, 1])
        assert found[0].counts.unknown == {"code": (1, 1), "word": (1, 1)}

    @pytest.mark.parametrize("kind", [pa.timestamp("s"), pa.list_(pa.int64()), pa.duration("s")])
    def test_that_are_neither_numbers_nor_text_are_refused_by_the_schema(self, kind):
        rules = Encoding((Numeric("age", 0, 1),), Signs("sick"))
        with pytest.raises(DataError, match="Expected column 'age' to hold numbers or text, got type"):
            rules.check(pa.table({"age": pa.nulls(0, kind), "sick": pa.nulls(0)}))


class TestLabels:
    TABLE = pa.table({
        "x": [1.0, 2.0, None, 3.0],
        "r2": ["Y", "N", None, ""],
        "flag": [True, False, None, True],
        "word": ["true", "False", "maybe", ""],
        "sign": [-1, 0, 7, 1],
    })  # fmt: skip

    @pytest.mark.parametrize(
        ("text", "given", "said"),
        [
            ("a > nan", {}, "with a finite number"), ("a > __import__", {}, "with a finite number"),
            ("a", {"positive": 1, "classes": (1, 2)}, "one of positive, classes and label_range"),
            ("a", {"classes": (1,)}, "two classes of label 'a' or more"),
            ("a", {"classes": (1, "b")}, "all text or all integers"), ("a", {"classes": ("b", "b")}, "got one twice"),
            ("a", {"positive": ""}, "it means missing"), ("a", {"positive": 2**53}, "Write them as text"),
            ("a", {"label_range": (3.0, 3.0)}, "a public range low < high of label 'a'"),
        ],
    )  # fmt: skip
    def test_that_cannot_be_meant_are_refused(self, text, given, said):
        with pytest.raises(ConfigError, match=said):
            read_label(text, **given)

    @pytest.mark.parametrize(
        ("label", "loss", "said"),
        [
            (None, Logistic(), "a label for the logistic loss"),
            (Signs("y"), LeastSquares(), r"label_range = \[low, high\]"),
            (Range("y", 0, 2), Logistic(), "such as 'y > 1'"),
            (Range("y", 0, 2), LeastSquares(label_bound=2.0), "label_bound=2"),
            (Classes("y", (1, 2, 3)), Hinge(), "Expected 2 classes for the hinge loss, got 3. Take the loss softmax"),
            (Signs("y"), Logistic(feature_norm=2.0), "feature_norm=2"),
        ],
    )
    def test_that_the_loss_does_not_take_are_refused_with_the_fix(self, label, loss, said):
        with pytest.raises(ConfigError, match=said):
            Encoding((Numeric("x", 0, 1),), label).check_loss(loss)
        Encoding((Numeric("x", 0, 1),), None).check_loss(Linear())


class TestRules:
    @pytest.mark.parametrize(
        ("changes", "said"),
        [
            ({"later": 1}, "later: Unexpected keyword"), ({"intercept": "yes"}, "intercept: "),
            ({"missing": "zero"}, "missing: "), ({"label": {"kind": "magic", "column": "y"}}, "label: "),
            ({"features": [{"column": "a", "low": 2.0, "high": 1.0}]}, "public range low < high"),
            ({"features": [{"column": "a", "low": float("nan"), "high": 1.0}]}, "as JSON"),
            ({"features": [{"column": "a", "low": -1e308, "high": 1e308}]}, "a smaller range"),
            ({"features": [{"column": "a", "low": 0.0, "high": 1.0, "edges": [2.0, 1.0]}]}, "increasing edges"),
            ({"feature_norm": 0.0}, "feature_norm > 0"), ({"weight": {"column": "w", "most": -1.0}}, "a weight of 'w'"),
            ({"features": [], "intercept": False}, "at least one feature or an intercept"),
        ],
    )  # fmt: skip
    def test_that_cannot_be_meant_are_refused_by_name(self, changes, said):
        with pytest.raises(ConfigError, match=said):
            Encoding.from_json(RULES.as_json() | changes)

    def test_without_public_values_are_for_simulation_only(self):
        rules = Encoding((Categorical("ward", "from-data"),))
        with pytest.raises(ConfigError, match="the public values of column 'ward'"):
            rules.check_public()
        assert rules.resolved(pa.table({"ward": ["B", None, "A"]})).features == (Categorical("ward", ("A", "B")),)


class TestUsers:
    TABLE = pa.table({"who": ["b", "a", "c", "b"], "age": [10.0, None, None, 20.0], "sick": [1, 0, 1, 0]})
    RULES = Encoding((Numeric("age", 0, 100),), Signs("sick"))

    def test_are_counted_before_rows_are_left_out(self):
        users, owners = group(self.TABLE, "who")
        encoded = fused.encoded(self.RULES, self.TABLE)
        batch = encoded.batch(users, owners)
        assert users == 3
        assert owners.tolist() == [1, 0, 2, 1]
        assert encoded.users_without(users, owners) == 2
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
