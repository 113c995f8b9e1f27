"""Rows as items: no value is an error, one row is one row's business, and what a type is depends on no value."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quoron_client.compute.enforcement import bounded
from quoron_client.compute.gradients import average_gradient
from quoron_client.data import columns, fused, tables
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

    def test_bytes_that_are_no_text_are_one_value_of_their_row(self, tmp_path):
        path = tmp_path / "table.csv"
        path.write_bytes(b"age,sick\n50,1\n5\xff,0\n70,\xfe\n60,0\n")
        rules = Encoding((Numeric("age", 0, 100),), Signs("sick"), intercept=False)
        assert fused.encoded(rules, tables.read(path, rules.columns)).kept.tolist() == [True, False, False, True]
        raw = pa.array([b"50", b"5\xff"]).view(pa.string())
        assert np.isnan(columns.numbers(pa.table({"age": raw}), "age")).tolist() == [False, True]

    @pytest.mark.parametrize("word", ["", "NA", "nan", "inf", "old", "1e400", "0x10", "1_000", "٣"])
    def test_text_that_is_no_number_leaves_its_row_out(self, word, tmp_path):
        path = tmp_path / "table.csv"
        path.write_text(f"age,sick\n50,1\n{word},0\n 7e1 ,true\n", encoding="utf-8")
        rules = Encoding((Numeric("age", 0, 100),), Signs("sick"), intercept=False)
        found = fused.encoded(rules, tables.read(path, rules.columns))
        assert found.kept.tolist() == [True, False, True]
        np.testing.assert_allclose(found.features[:, 0], [0, 0, 0.4], atol=1e-6)
        assert found.labels.tolist() == [1, 0, 1]
        assert (found.counts.dropped, found.counts.unusable) == (1, {"age": 1, "sick": 0})

    def test_the_middle_stands_for_a_missing_number_and_for_no_label(self):
        rules = Encoding((Numeric("age", 0, 40),), Signs("sick"), missing="middle", intercept=False)
        found = fused.encoded(rules, pa.table({"age": [None, 40.0, 0.0], "sick": [1, None, 0]}))
        assert found.kept.tolist() == [True, False, True]
        np.testing.assert_allclose(found.features[:, 0], [0, 0, -1], atol=1e-6)

    def test_that_is_too_large_for_any_step_is_held_at_an_end(self):
        rules = Encoding((Numeric("age", -8e307, 8e307),), Range("cost", 0, 1), weight=Weight("n", 5e-324))
        found = fused.encoded(
            rules, pa.table({"age": [1.7e308, -1.7e308], "cost": [1.7e308, -1.7e308], "n": [1.7e308, 0.0]})
        )
        assert np.sign(found.features[:, 0]).tolist() == [1, -1]
        assert found.labels.tolist() == [1, -1]
        assert found.weights.tolist() == [1, 0]

    @pytest.mark.parametrize("count", [None, -1.0, float("inf"), "x"])
    def test_a_row_with_an_impossible_weight_is_left_out(self, count):
        frame = pd.concat([one_row(), one_row(count=count), one_row(count=9)])
        found = fused.encoded(RULES, tables.read(frame, RULES.columns))
        assert found.kept.tolist() == [True, False, True]
        assert found.weights.tolist() == [0.5, 0, 1]
        assert found.counts.clipped["count"] == 1


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

    def test_do_not_depend_on_how_many_categories_chunks_have(self):
        """Arrow makes no one dictionary of some; a frame's chunks may each have one of its own."""
        words = [[5, None], [7, None], [*range(100, 200)]]
        chunks = [
            pa.DictionaryArray.from_arrays(pa.array(range(len(each)), pa.int8()), pa.array(each)) for each in words
        ]
        table = pa.table({"a": pa.chunked_array(chunks)})
        expected = [5, np.nan, 7, np.nan, *range(100, 200)]
        np.testing.assert_array_equal(columns.numbers(table, "a"), expected)
        assert columns.texts(table, "a").to_pylist()[:4] == ["5", None, "7", None]

    def test_of_a_zero_do_not_depend_on_its_sign(self):
        held = pa.table({"a": [0.0, -0.0, 1.0], "b": ["-0", "0.0", "-0.0"]})
        assert columns.places(held, "a", (0, 1)).tolist() == [0, 0, 1]
        assert columns.places(held, "b", (0, 1)).tolist() == [0, 0, 0]

    def test_of_a_column_of_nothing_but_nulls_fit(self):
        found = fused.encoded(RULES, pa.table({name: pa.nulls(3) for name in RULES.columns}))
        assert not found.kept.any()
        assert not found.features.any()

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
        ("label", "expected"),
        [
            (Comparison("x", ">", 1.5), [-1, 1, None, 1]),
            (Positive("r2", "Y"), [1, -1, None, None]),
            (Positive("flag", True), [1, -1, None, 1]),
            (Positive("word", True), [1, -1, None, None]),
            (Positive("x", 2), [-1, 1, None, -1]),
            (Positive("x", "2"), [-1, 1, None, -1]),
            (Classes("r2", ("N", "Y")), [1, -1, None, None]),
            (Classes("x", (1, 3)), [-1, None, None, 1]),
            (Classes("x", (3, 2, 1)), [2, 1, None, 0]),
            (Range("x", 1, 3), [-1, 0, None, 1]),
            (Range("x", 1.5, 2.5, bound=4.0), [-4, 0, None, 4]),
            (Signs("sign"), [-1, -1, None, 1]),
            (Signs("flag"), [1, -1, None, 1]),
        ],
    )
    def test_are_what_their_kind_says(self, label, expected):
        found = fused.encoded(Encoding((), label), self.TABLE)
        assert found.kept.tolist() == [value is not None for value in expected]
        assert found.labels.tolist() == [0 if value is None else value for value in expected]
        assert Encoding.from_json(json.loads(json.dumps(Encoding((), label).as_json()))).label == label

    def test_outside_their_range_are_counted(self):
        found = fused.encoded(Encoding((), Range("x", 0, 2.5)), self.TABLE)
        assert (found.counts.labels_clipped, found.labels.max()) == ({"x": 1}, 1)

    def test_of_a_range_go_back_to_their_units(self):
        label = Range("x", -3, 9, bound=0.5)
        np.testing.assert_allclose(label.in_units(label.of(self.TABLE)), [1, 2, np.nan, 3])

    @pytest.mark.parametrize(
        ("text", "given", "expected"),
        [
            ("delay > 15", {}, Comparison("delay", ">", 15.0)),
            ("odd name<=-2e0", {}, Comparison("odd name", "<=", -2.0)),
            ("sick", {}, Signs("sick")),
            ("r2", {"positive": "Y"}, Positive("r2", "Y")),
            ("r2", {"classes": ("a", "b", "c")}, Classes("r2", ("a", "b", "c"))),
            ("cost", {"label_range": (0.0, 9.0), "bound": 2.0}, Range("cost", 0.0, 9.0, 2.0)),
        ],
    )
    def test_are_read_from_a_configuration(self, text, given, expected):
        assert read_label(text, **given) == expected

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
    def test_survive_json(self):
        assert Encoding.from_json(json.loads(json.dumps(RULES.as_json()))) == RULES

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

    def test_have_names_and_a_dimension_that_agree_with_the_features(self):
        assert RULES.names == (
            "age", "size in [-inf, 0)", "size in [0, inf)", "ward=A", "ward=7", "code=1", "code=2", "intercept",
        )  # fmt: skip
        assert RULES.dimension == 8 == fused.encoded(RULES, tables.read(one_row(), RULES.columns)).features.shape[1]

    def test_refuse_the_labels_own_column_among_the_features(self):
        with pytest.raises(ConfigError, match="got 'delay' as both"):
            Encoding((Numeric("delay", 0, 1),), Comparison("delay", ">", 15))

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

    def test_weights_follow_their_rows_and_a_user_without_one_has_weight_zero(self):
        rules = Encoding((Numeric("age", 0, 100),), Signs("sick"), weight=Weight("count", 8))
        table = self.TABLE.append_column("count", pa.array([2.0, 3.0, 4.0, 16.0]))
        batch = fused.encoded(rules, table).batch(*group(table, "who"))
        assert batch.weights.tolist() == [0, 0.25, 1, 0]
        assert batch.labels.tolist() == [0, 1, -1, 0]
        assert batch.of(np.array([1])).weights.tolist() == [0.25, 1]

    @pytest.mark.parametrize("who", [["a", None], ["a", ""], [1.0, float("nan")]])
    def test_own_every_row(self, who):
        with pytest.raises(DataError, match="Expected a user in every row of column 'who', got some"):
            group(pa.table({"who": who}), "who")

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
