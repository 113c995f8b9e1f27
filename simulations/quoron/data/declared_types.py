"""Declarations that the types of columns alone show to be a mistake: before anything is charged.

    >>> rules = Encoding((Numeric("age", 0, 100),), label=Classes("ill", ("no", "yes")))
    >>> check_types(rules, {"ill": pa.int64()})  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    quoron_privacy.errors.DataError: Expected classes that label 'ill' of type int64 can hold, got 'no' and 'yes'. ...

Types are those of Arrow and Parquet schemas, which are public as the names of columns are. Nothing here looks at a
value or at what was made of values: not of CSV, not of a pandas column, not at the values of a dictionary, not at a
column that is null throughout. What only values tell is estimated (docs/privacy/data-quality.md).
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pyarrow as pa

from quoron_client.data import columns
from quoron_client.data.encoding import Classes, Comparison, Encoding, Positive, Range, Signs
from quoron_client.data.features import Categorical, DateNumber, DatePart, Numeric, day_number
from quoron_privacy.errors import DataError

Types = Mapping[str, pa.DataType]
_NANOSECONDS = (-106_752, 106_751)  # days from 1970-01-01 that a 64-bit number of them reaches
_WHOLE = re.compile(r"-?(0|[1-9]\d*)", re.ASCII)


def check_types(rules: Encoding, types: Types) -> Encoding:
    """Return the rules; a label that is stored as true or false is predicted as true or false.

    DataError where a column of its type can hold nothing but one value, or none, of what is declared.
    """
    for feature in rules.features:
        kind = types.get(feature.column)
        if kind is None:
            continue
        what = f"feature {feature.column!r} of type {kind}"
        if isinstance(feature, Numeric):
            _check_range(what, *_reach(kind), feature.low, feature.high, "range")
        elif isinstance(feature, Categorical):
            _check_values(what, kind, feature.categories, 1, "categories")
        elif isinstance(feature, DatePart | DateNumber):
            _check_dates(what, kind, feature)
    label = rules.label
    kind = None if label is None else types.get(label.column)
    if label is None or kind is None:
        return rules
    what = f"label {label.column!r} of type {kind}"
    if isinstance(label, Signs) and columns.is_text(kind):
        raise DataError(
            f"Expected what the texts of {what} mean, got nothing declared. Write classes = [its values], or "
            "positive = the value that counts."
        )
    if isinstance(label, Signs) and pa.types.is_boolean(kind):
        return replace(rules, label=replace(label, truth=True))
    if isinstance(label, Classes):
        _check_values(what, kind, label.values, 2, "classes")
    elif isinstance(label, Positive):
        _check_values(what, kind, (label.value,), 1, "positive")
    elif isinstance(label, Range):
        _check_range(what, *_reach(kind), label.low, label.high, "range")
    elif isinstance(label, Comparison):
        _check_comparison(what, kind, label)
    return rules


def _reach(kind: pa.DataType) -> tuple[float, float]:
    """Return the least and the largest number that a column can hold; infinite where its type does not say."""
    if pa.types.is_boolean(kind):
        return 0.0, 1.0
    if pa.types.is_integer(kind):
        signed = pa.types.is_signed_integer(kind)
        return (-(2.0 ** (kind.bit_width - 1)) if signed else 0.0), 2.0 ** (kind.bit_width - signed) - 1
    return -math.inf, math.inf


def _holds(kind: pa.DataType, value: str | int | bool) -> bool:
    """Return whether a column can hold a value, as encoding compares it: text with text, integers with numbers."""
    if columns.is_text(kind):
        return True
    low, high = _reach(kind)
    if not isinstance(value, str):
        return low <= value <= high
    if pa.types.is_boolean(kind):
        return value in ("true", "false")
    if pa.types.is_integer(kind):
        return bool(_WHOLE.fullmatch(value)) and low <= int(value) <= high
    try:
        return not math.isnan(float(value))
    except ValueError:
        return False


def _check_values(what: str, kind: pa.DataType, values: Sequence[str | int | bool], least: int, key: str) -> None:
    held = [value for value in values if _holds(kind, value)]
    if len(held) < least:
        shown = " and ".join(repr(value) for value in values[:3]) + (" and more" if len(values) > 3 else "")
        raise DataError(f"Expected {key} that {what} can hold, got {shown}. Declare them as the table has them.")


def _check_dates(what: str, kind: pa.DataType, feature: DatePart | DateNumber) -> None:
    few = pa.types.is_integer(kind) and kind.bit_width < 32 and feature.format == "iso"
    if pa.types.is_boolean(kind) or few:
        raise DataError(
            f"Expected dates or times in {what}, whose values are none in ISO 8601. Declare the format, or the column "
            "as numeric or categorical."
        )
    if isinstance(feature, DateNumber) and pa.types.is_timestamp(kind) and kind.unit == "ns":
        least, most = (1677, 2262) if feature.part == "year" else _NANOSECONDS
        first = day_number(feature.column, feature.since) if feature.part == "days" else 0
        _check_range(what, least - first, most - first, feature.low, feature.high, feature.part)


def _check_range(what: str, least: float, most: float, low: float, high: float, key: str) -> None:
    if most <= low or least >= high:
        raise DataError(
            f"Expected a {key} within which {what} can vary, got [{low:g}, {high:g}]: all of it would be held at one "
            "end. Declare it in the column's own units."
        )


def _check_comparison(what: str, kind: pa.DataType, label: Comparison) -> None:
    least, most = _reach(kind)
    number, operator = label.number, label.operator
    always = {
        ">": number < least or number >= most,
        "<=": number < least or number >= most,
        ">=": number <= least or number > most,
        "<": number <= least or number > most,
        "==": not least <= number <= most,
        "!=": not least <= number <= most,
    }[operator]
    if always and math.isfinite(least):
        raise DataError(
            f"Expected a comparison that is now true and now false for {what}, got {operator} {number:g}. Compare "
            "with a number within."
        )
