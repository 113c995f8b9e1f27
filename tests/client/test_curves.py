"""Polynomials and products of columns: functions of one row, bounded, and equal to a slow reference."""

import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quoron_client.data import features as kinds
from quoron_client.data import fused
from quoron_client.data.encoding import Encoding
from quoron_client.data.features import Categorical, DateNumber, DatePart, Hashed, Numeric
from quoron_privacy.errors import ConfigError

FEATURES = (Numeric("age", 0, 100), Categorical("ward", ("A", "B")), Numeric("bmi", 10, 40))
CELLS = st.one_of(st.floats(-200, 200), st.sampled_from([None, math.nan, math.inf, 0.0, 100.0]))


def reference(rules: Encoding, row: dict[str, Any]) -> list[float] | None:
    """Return the features of one row by closed formulas of the polynomials; None where it cannot be used."""
    polynomials = [lambda v: v, lambda v: (3 * v**2 - 1) / 2, lambda v: (5 * v**3 - 3 * v) / 2]
    factors: list[list[tuple[int, float]]] = []
    for feature in rules.features:
        value = row[feature.column]
        if isinstance(feature, Categorical):
            factors.append([(1, float(value == category)) for category in feature.categories])
            continue
        if value is None or not math.isfinite(value):
            if rules.missing == "drop":
                return None
            value = (feature.low + feature.high) / 2
        held = min(max((2 * value - feature.low - feature.high) / (feature.high - feature.low), -1.0), 1.0)
        factors.append([(k + 1, float(polynomials[k](held))) for k in range(rules.curves)])
    made = [value for group in factors for _, value in group]
    for one in range(len(factors)):
        for other in range(one + 1, len(factors)):
            made += [a * b for k, a in factors[one] for q, b in factors[other] if k * q <= rules.pairs]
    return [rules.scale * value for value in (*made, *([1.0] if rules.intercept else []))]


@settings(derandomize=True, deadline=None, max_examples=60)
@given(
    rows=st.lists(st.tuples(CELLS, st.sampled_from(["A", "B", "C", None]), CELLS), min_size=1, max_size=6),
    degrees=st.tuples(st.integers(1, 3), st.integers(0, 4)),
    missing=st.sampled_from(["drop", "midpoint"]),
    intercept=st.booleans(),
)
def test_features_are_those_of_a_slow_reference_and_no_longer_than_the_feature_norm(rows, degrees, missing, intercept):
    rules = Encoding(FEATURES, missing=missing, intercept=intercept, curves=degrees[0], pairs=degrees[1])
    columns = dict(zip(("age", "ward", "bmi"), map(list, zip(*rows, strict=True)), strict=True))
    types = {"age": pa.float64(), "ward": pa.string(), "bmi": pa.float64()}
    table = pa.table({name: pa.array(values, types[name]) for name, values in columns.items()})
    found = fused.encoded(rules, table)
    for place, row in enumerate(table.to_pylist()):
        wanted = reference(rules, row)
        assert found.kept[place] == (wanted is not None)
        np.testing.assert_allclose(found.features[place], wanted or [0.0] * rules.dimension, atol=3e-6)
    assert np.linalg.norm(found.features.astype(np.float64), axis=1).max() <= rules.feature_norm
    assert rules.dimension == len(rules.names) == len(set(rules.names))


def test_the_longest_row_that_there_can_be_reaches_the_bound() -> None:
    for numbers, degrees in ((3, (4, 0)), (4, (3, 3)), (2, (8, 8))):
        rules = Encoding(
            tuple(Numeric(f"x{place}", 0, 1) for place in range(numbers)), curves=degrees[0], pairs=degrees[1]
        )
        ends = pa.table({f"x{place}": [1.0] for place in range(numbers)})  # every polynomial is 1 there
        assert np.linalg.norm(fused.encoded(rules, ends).features) == pytest.approx(1.0, abs=1e-6)


def test_normalized_rows_have_the_feature_norm() -> None:
    rules = Encoding(FEATURES, normalize=True, curves=3, pairs=2)
    found = fused.encoded(rules, pa.table({"age": [3.0, 99.0], "ward": ["A", None], "bmi": [11.0, 39.0]}))
    np.testing.assert_allclose(np.linalg.norm(found.features, axis=1), 1.0, atol=1e-6)


def test_degree_one_without_pairs_is_the_linear_model() -> None:
    terms = kinds.Terms.of(FEATURES, curves=1, pairs=0)
    assert terms.names == Encoding(FEATURES, intercept=False).names
    base, made = np.random.default_rng(0).uniform(-1, 1, (5, 4)), np.empty((5, 4), np.float32)
    fused.expand(base, terms.places, 1.0, made)
    np.testing.assert_array_equal(made, base.astype(np.float32))


def test_rules_are_read_back_as_they_were_written() -> None:
    rules = Encoding(FEATURES, curves=4, pairs=2)
    assert Encoding.from_json(rules.as_json()) == rules


def test_buckets_of_words_and_a_number_beside_others_of_its_column_are_in_no_product() -> None:
    features = (DateNumber("day", "year", 0, 9), DatePart("day", "month"), Hashed("name", 8), Numeric("age", 0, 9))
    names = kinds.Terms.of(features, curves=2, pairs=4).names
    products = [name for name in names if "*" in name]
    assert products
    assert not any("name" in name or name.count("day") > 1 for name in products)


def test_a_group_is_the_curve_of_a_column_or_the_products_of_two_and_columns_are_none():
    features = (Numeric("x", 0, 1), Categorical("ward", ("A", "B")), Numeric("z", 0, 1))
    rules = Encoding(features, curves=2, pairs=1)
    found = dict(zip(rules.names, rules.groups, strict=True))
    columns = dict.fromkeys(["x", "ward=A", "ward=B", "z", "intercept"], 0)
    products = {"x*ward=A": 3, "x*ward=B": 3, "x*z": 4, "ward=A*z": 5, "ward=B*z": 5}
    assert found == columns | {"x^2": 1, "z^2": 2} | products
    assert Encoding(features).groups == ()


@pytest.mark.parametrize("wrong", [{"curves": 0}, {"curves": 9}, {"pairs": -1}, {"pairs": 9}])
def test_degrees_that_mean_nothing_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match="Expected curves from 1 to 8 and pairs from 0 to 8"):
        Encoding(FEATURES, **wrong)


def test_more_features_than_anybody_can_pay_for_are_refused_before_they_are_listed() -> None:
    numbers = tuple(Numeric(f"x{place}", 0, 1) for place in range(400))
    words = tuple(Categorical(name, range(4_999)) for name in ("code", "other"))  # 25 million products
    for many in (numbers, words, (*words, *numbers)):
        with pytest.raises(ConfigError, match="Expected at most 5,000 features of curves=4 and pairs=2, got more"):
            _ = Encoding(many, curves=4, pairs=2).dimension
