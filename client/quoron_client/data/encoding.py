"""How the rows of a table become items: the whole of it, public, in one object.

    >>> import pyarrow as pa
    >>> from quoron_client.data import fused
    >>> from quoron_client.data.features import Categorical, Numeric
    >>> rules = Encoding((Numeric("age", 0, 100), Categorical("ward", ("A", "B"))), label=Signs("sick"))
    >>> rules.names
    ('age', 'ward=A', 'ward=B', 'intercept')
    >>> table = pa.table({"age": ["50", "old"], "ward": ["B", "A"], "sick": [1, 0]})
    >>> fused.encoded(rules, table).kept.tolist()
    [True, False]

One row's numbers depend on that row alone, by declared ranges and vocabularies. No value of a row is an error. A row
that cannot be used (a feature or a weight that is no finite number, a label that is none of those declared) is left
out. With `missing="midpoint"` a feature without a number is taken to be in the middle of its range. A column that is
not there, or is there twice, is an error: a table's columns are public.

What a row's label is, by public rules only: a comparison, a positive value, classes, a range, or given signs.

>>> read_label("arr_delay > 15")
Comparison(column='arr_delay', operator='>', number=15.0)
>>> read_label("r2", positive="Y")
Positive(column='r2', value='Y')

A value that says nothing (null, NaN, infinite, text where a number is due, none of the declared classes) gives NaN.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, TypeAdapter, ValidationError, WrapSerializer

from quoron_client.data.features import (
    MAX_DEGREE,
    Declared,
    Feature,
    Terms,
    apart,
    check_vocabulary,
    columns,
    grouped,
)
from quoron_client.losses import Classification, Loss
from quoron_privacy.arrays import Vector
from quoron_privacy.errors import CONTROL, ConfigError

if TYPE_CHECKING:  # a coordinator has rules, but no table
    import pyarrow as pa


_COMPARISON = re.compile(r"\s*(?P<column>.+?)\s*(?P<operator>>=|<=|==|!=|>|<)\s*(?P<number>\S+)\s*")
_OPERATORS = {
    ">": np.greater,
    ">=": np.greater_equal,
    "<": np.less,
    "<=": np.less_equal,
    "==": np.equal,
    "!=": np.not_equal,
}


@dataclass(frozen=True, slots=True)
class Comparison(Declared):
    """+1 where a numeric column compares so with the number, else -1."""

    column: str
    operator: Literal[">", ">=", "<", "<=", "==", "!="]
    number: float
    kind: Literal["comparison"] = field(default="comparison", repr=False)

    def __post_init__(self) -> None:
        if self.operator not in _OPERATORS:
            raise ConfigError(f"Expected a comparison by {', '.join(_OPERATORS)}, got {self.operator!r}.")
        if not np.isfinite(self.number):
            raise ConfigError(f"Expected a label such as 'delay > 15' with a finite number, got {self.number}.")

    def of(self, table: "pa.Table") -> Vector:
        """Return labels of all rows, shape (N,); NaN where there is none."""
        values = columns.numbers(table, self.column)
        return np.where(np.isnan(values), np.nan, _signs(_OPERATORS[self.operator](values, self.number)))


@dataclass(frozen=True, slots=True)
class Positive(Declared):
    """+1 for one value of a text, boolean or integer column, -1 for every other value."""

    column: str
    value: str | int | bool
    kind: Literal["positive"] = field(default="positive", repr=False)

    def __post_init__(self) -> None:
        check_vocabulary(f"label {self.column!r}", (self.value,))

    def of(self, table: "pa.Table") -> Vector:
        """Return labels of all rows, shape (N,); NaN where there is none."""
        if isinstance(self.value, str):
            missing = np.asarray(columns.texts(table, self.column).is_null().to_numpy(zero_copy_only=False))
        else:
            missing = np.isnan(columns.numbers(table, self.column))
        found = columns.places(table, self.column, (self.value,))
        return np.where(missing, np.nan, _signs(found == 0))


@dataclass(frozen=True, slots=True)
class Classes(Declared):
    """The place of a value among the declared ones: -1 and +1 for two classes, 0 to K - 1 for more."""

    column: str
    values: tuple[str | int | bool, ...]
    kind: Literal["classes"] = field(default="classes", repr=False)

    def __post_init__(self) -> None:
        check_vocabulary(f"label {self.column!r}", tuple(self.values))
        if len(self.values) < 2:
            raise ConfigError(f"Expected two classes of label {self.column!r} or more, got {len(self.values)}.")

    def of(self, table: "pa.Table") -> Vector:
        """Return labels of all rows, shape (N,); NaN where there is none."""
        found = columns.places(table, self.column, self.values)
        labels = _signs(found == 1) if len(self.values) == 2 else found.astype(np.float64)
        return np.where(found < 0, np.nan, labels)


@dataclass(frozen=True, slots=True)
class Range(Declared):
    """A number, [low, high] scaled linearly to [-bound, bound]; values outside are held at the ends."""

    column: str
    low: float
    high: float
    bound: float = 1.0  # the loss's label_bound
    kind: Literal["range"] = field(default="range", repr=False)

    def __post_init__(self) -> None:
        if not (np.isfinite(self.low) and np.isfinite(self.high) and self.low < self.high):
            raise ConfigError(
                f"Expected a public range low < high of label {self.column!r}, got [{self.low}, {self.high}]."
            )
        if not (np.isfinite(self.high - self.low) and np.isfinite(self.bound) and self.bound > 0):
            raise ConfigError(f"Expected a finite range and bound > 0 of label {self.column!r}, got {self}.")

    @property
    def unit(self) -> float:
        """What one unit of a prediction is in the column's own units."""
        return 0.5 * (self.high - self.low) / self.bound

    @property
    def middle(self) -> float:
        """What a prediction of zero is in the column's own units."""
        return 0.5 * self.low + 0.5 * self.high

    def in_units(self, predictions: Vector) -> Vector:
        """Return predictions or labels in the column's own units, same shape."""
        return self.middle + self.unit * predictions

    def of(self, table: "pa.Table") -> Vector:
        """Return labels of all rows, shape (N,); NaN where there is none."""
        values = np.clip(columns.numbers(table, self.column), self.low, self.high)
        return np.clip((values - self.middle) / self.unit, -self.bound, self.bound)


@dataclass(frozen=True, slots=True)
class Signs(Declared):
    """+1 for true, 1 and +1; -1 for false, 0 and -1."""

    column: str
    truth: bool = False  # whether the column's declared type is true/false: what is predicted is, too
    kind: Literal["signs"] = field(default="signs", repr=False)

    def of(self, table: "pa.Table") -> Vector:
        """Return labels of all rows, shape (N,); NaN where there is none."""
        values = columns.numbers(table, self.column)
        labels: Vector = np.copysign(1.0, values - 0.5)
        labels[(values != 0.0) & (np.abs(values) != 1.0)] = np.nan
        return labels


AnyLabel = Comparison | Positive | Classes | Range | Signs
Label = Annotated[AnyLabel, Field(discriminator="kind")]


def read_label(
    text: str,
    *,
    positive: str | int | bool | None = None,
    classes: tuple[str | int | bool, ...] = (),
    range: tuple[float, float] | None = None,
    bound: float = 1.0,
) -> AnyLabel:
    """Return the label that a configuration means: `text` is a column, or alone a comparison such as 'delay > 15'.

    Raises ConfigError for a comparison without a finite number, and where two of the others are given.
    """
    given = {"positive": positive is not None, "classes": bool(classes), "range": range is not None}
    said = [name for name, is_given in given.items() if is_given]
    if len(said) > 1:
        raise ConfigError(f"Expected one of positive, classes and range for label {text!r}, got {' and '.join(said)}.")
    if positive is not None:
        return Positive(text, positive)
    if classes:
        return Classes(text, tuple(classes))
    if range is not None:
        return Range(text, *range, bound)
    parts = _COMPARISON.fullmatch(text)
    if parts is None:
        return Signs(text)
    try:
        number = float(parts["number"])
    except ValueError:
        number = np.nan
    if not np.isfinite(number):
        raise ConfigError(f"Expected a label such as 'delay > 15' with a finite number, got {text!r}.")
    return Comparison(parts["column"], parts["operator"], number)  # type: ignore[arg-type]  # the pattern's operators


def outcomes(label: AnyLabel | None) -> tuple[str | int | bool, ...]:
    """Return a label's values, the one of lower scores first, as the column has them; () for a number.

    Of a comparison and of one value among others they are false and true. Of -1 and +1 undeclared, 0 and 1.
    """
    match label:
        case None | Range():
            return ()
        case Classes(values=values):
            return tuple(values)
        case Signs(truth=False):
            return (0, 1)
        case _:
            return (False, True)


def meaning(label: AnyLabel) -> str:
    """Return what is predicted: the column, or where that is whether something holds, the statement."""
    match label:
        case Comparison():
            return f"{label.column} {label.operator} {label.number:g}"
        case Positive():
            return f"{label.column} = {in_words(label.value)}"
        case _:
            return label.column


def in_words(value: str | int | bool) -> str:
    """Return a value as text: true, false, and others as they are."""
    return str(value).lower() if isinstance(value, bool) else str(value)


@dataclass(frozen=True, slots=True)
class Weight(Declared):
    """What a row counts: its value in a column divided by `most`, values above held at 1."""

    column: str
    most: float

    def __post_init__(self) -> None:
        if not (np.isfinite(self.most) and self.most > 0):
            raise ConfigError(f"Expected the most a weight of {self.column!r} can be, > 0 and finite, got {self.most}.")


def seen(shares: Sequence[float] | Vector, error: float) -> Vector:
    """Released shares (K,) as far as they are seen: held within [2 standard errors, 1]."""
    found: Vector = np.clip(np.asarray(shares, np.float64), min(2.0 * error, 1.0), 1.0)
    return found


def _signs(positive: NDArray[np.bool_]) -> Vector:
    return np.where(positive, 1.0, -1.0)


Owners = NDArray[np.int64]

_HAIR = 1 - 2.0**-22  # below the bound, so that rounding to float32 cannot pass it


@dataclass(frozen=True, slots=True)
class Encoding(Declared):
    """Public rules by which rows become features (N, p), labels (N,) and weights (N,).

    Every row's features are scaled to a norm of at most `feature_norm`: all rows by the same number, or with
    `normalize` each by its own length, which uses the whole bound but is no longer linear in numeric features.

    Formal guarantee: a row's features, label, weight and whether it is kept are functions of that row alone.

    | input                                         | what happens                                            |
    | --------------------------------------------- | ------------------------------------------------------- |
    | number outside its declared range             | held at the nearer end                                  |
    | category that is not declared, or null        | all zeros                                               |
    | feature that is null, NaN, infinite or text   | the row is left out; `missing="midpoint"`: the middle     |
    | label that is none of those declared, or null | the row is left out                                     |
    | weight that is null, negative or not finite   | the row is left out                                     |
    | column missing or repeated                    | DataError, whatever the rows                            |

    A feature whose column is a span, as `features.named` has it, becomes one of each of these columns, alike.

    Raises ConfigError for rules that cannot be meant, among them a label whose column is a feature too.
    """

    features: Annotated[tuple[Feature, ...], WrapSerializer(lambda features, handler: handler(grouped(features)))]
    label: Label | None = None  # None only for the linear loss
    intercept: bool = True
    normalize: bool = False
    feature_norm: float = 1.0  # the loss's
    weight: Weight | None = None
    missing: Literal["drop", "midpoint"] = "drop"
    curves: int = 1  # the largest degree of a polynomial of a number
    pairs: int = 0  # the largest product of degrees of two columns that are multiplied; 0: none are

    def __post_init__(self) -> None:
        object.__setattr__(self, "features", apart(self.features))
        if not self.features and not self.intercept:
            raise ConfigError("Expected at least one feature or an intercept, got none.")
        if not (np.isfinite(self.feature_norm) and self.feature_norm > 0):
            raise ConfigError(f"Expected feature_norm > 0 and finite, got feature_norm={self.feature_norm}.")
        if self.missing not in ("drop", "midpoint"):
            raise ConfigError(f"Expected missing to be 'drop' or 'midpoint', got missing={self.missing!r}.")
        if self.label is not None and any(feature.column == self.label.column for feature in self.features):
            raise ConfigError(
                f"Expected features other than the label's own column, got {self.label.column!r} as both. Leave it "
                "out of the features: a model would read its answer off."
            )
        if not (1 <= self.curves <= MAX_DEGREE and 0 <= self.pairs <= MAX_DEGREE):
            raise ConfigError(
                f"Expected curves from 1 to {MAX_DEGREE} and pairs from 0 to {MAX_DEGREE}, got {self.curves} and "
                f"{self.pairs}."
            )

    @property
    def terms(self) -> Terms:
        """The features but the intercept, as functions of the columns."""
        return Terms.of(self.features, curves=self.curves, pairs=self.pairs)

    @property
    def bends(self) -> bool:
        """Whether features are more than the columns themselves."""
        return self.curves > 1 or self.pairs > 0

    @property
    def groups(self) -> tuple[int, ...]:
        """Of every feature 0 for a column, else the number of its curve or product; empty where all are columns."""
        if not self.bends:
            return ()
        found: dict[tuple[int, ...], int] = {}
        named = [0] * self.dimension
        for place, (of, (_, degree, other, _)) in enumerate(zip(self.terms.owners, self.terms.places, strict=True)):
            if degree > 1 or other >= 0:
                named[place] = found.setdefault(of, len(found) + 1)
        return tuple(named)

    @property
    def has_slopes(self) -> bool:
        """Whether a model has one coefficient for each column, in the column's own units."""
        return not (self.normalize or self.bends)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the p features, in order."""
        own = self.terms.names if self.bends else (name for feature in self.features for name in feature.names)
        return (*own, *(("intercept",) if self.intercept else ()))

    @property
    def dimension(self) -> int:
        """Number of features p."""
        return (len(self.terms.names) if self.bends else self.base_width) + self.intercept

    @property
    def base_width(self) -> int:
        """Number of columns that rows have before polynomials and products are made of them."""
        return sum(feature.width for feature in self.features)

    @property
    def scale(self) -> float:
        """What all rows are multiplied by, without `normalize`: the feature norm by the largest that a row can have."""
        most = self.terms.most if self.bends else len(self.features)
        return self.feature_norm * _HAIR / math.sqrt(most + self.intercept)

    @property
    def weighted(self) -> bool:
        """Whether rows count differently."""
        return self.weight is not None

    @property
    def columns(self) -> tuple[str, ...]:
        """The table's columns that are read, each once."""
        label = () if self.label is None else (self.label.column,)
        weight = () if self.weight is None else (self.weight.column,)
        return tuple(dict.fromkeys((*(feature.column for feature in self.features), *label, *weight)))

    def check(self, table: "pa.Table") -> None:
        """Raise DataError unless the table has every column once, of numbers or of text; reads no value."""
        for feature in self.features:
            feature.check(table)
        for role in (self.label, self.weight):
            if role is not None:
                columns.check(table, role.column)

    def check_meant(self, user: str | None = None) -> None:
        """Raise ConfigError for rules without a feature, a column with two meanings, a user who is a feature, and for
        words that no model's file may hold."""
        if not self.features:
            raise ConfigError(
                "Expected features, got none: the model would be a constant. Declare numeric, "
                "categorical, hashed or dates in population.columns."
            )
        listed = [getattr(feature, "categories", ()) for feature in self.features] + [getattr(self.label, "values", ())]
        words = [self.label and self.label.column, getattr(self.label, "value", ""), *(f.column for f in self.features)]
        words += chain.from_iterable(listed)
        odd = next((word for word in words if isinstance(word, str) and CONTROL.search(word)), None)
        if odd is not None:
            raise ConfigError(f"Expected names and values without control characters, got {odd!r}. Write it without.")
        twice = [name for name, many in Counter(feature.title for feature in self.features).items() if many > 1]
        if twice:
            raise ConfigError(
                f"Expected every feature once, got {twice[0]!r} twice: as numeric, categorical, hashed. Leave one out."
            )
        label, weight = self.label, self.weight
        if label is not None and weight is not None and label.column == weight.column:
            raise ConfigError(
                f"Expected a weight other than the label's own column, got {label.column!r} as both. Leave it out."
            )
        meanings = {"label": label and label.column, "weight": weight and weight.column}
        roles = ["a feature"] * any(feature.column == user for feature in self.features)
        roles += [f"the {role}" for role, column in meanings.items() if column == user]
        if user is not None and roles:
            raise ConfigError(
                f"Expected the user column {user!r} to say whose a row is and nothing else, got it as {roles[0]} too: "
                "a model must not tell users apart. Leave it out."
            )

    def check_loss(self, loss: Loss) -> None:
        """Raise ConfigError unless labels, their bound and the feature norm are what the loss takes."""
        label, classes, bound = self.label, getattr(loss, "classes", 2), getattr(loss, "label_bound", None)
        if self.feature_norm != loss.feature_norm:
            raise ConfigError(
                f"Expected the loss's feature_norm={loss.feature_norm:g}, got feature_norm={self.feature_norm:g}."
            )
        if label is None:
            if loss.name != "linear":
                raise ConfigError(f"Expected a label for the {loss.name} loss, got none.")
            return
        found = len(label.values) if isinstance(label, Classes) else 2
        if found != classes and not isinstance(label, Range):
            fix = "Take the loss softmax." if classes == 2 else "Declare as many classes of the label."
            raise ConfigError(f"Expected {classes} classes for the {loss.name} loss, got {found}. {fix}")
        if classes == 2 and loss.outputs > 1:  # its labels are 0 and 1, those of two classes -1 and +1
            raise ConfigError(f"Expected 3 classes or more for the {loss.name} loss, got 2. Take the loss logistic.")
        if bound is not None and isinstance(label, Signs):
            raise ConfigError(
                f"Expected the public range of label {label.column!r} for the {loss.name} loss, got none. Declare "
                "range = [low, high], in the label's own units."
            )
        if isinstance(label, Range) and (classes > 2 or isinstance(loss, Classification)):
            raise ConfigError(
                f"Expected classes for the {loss.name} loss, got the range of label {label.column!r}. Write a "
                f"comparison such as '{label.column} > {label.middle:g}', or take the loss least_squares."
            )
        if isinstance(label, Range) and bound is not None and label.bound != bound:
            raise ConfigError(f"Expected labels within the loss's label_bound={bound:g}, got bound={label.bound:g}.")

    def centred(self, weights: Vector, features: Sequence[bool]) -> Vector:
        """Return the same model (d,) with coefficients of values around zero, of these features that have values.

        What they have in common goes to the constant. A row that has one of the values is predicted alike.
        """
        if self.bends or not self.intercept:
            return weights
        found, place = weights.reshape(-1, self.dimension).copy(), 0
        for feature, chosen in zip(self.features, features, strict=True):
            own = slice(place, place + feature.width)
            if chosen and not feature.is_number:
                common = found[:, own].mean(axis=1)
                found[:, own] -= common[:, None]
                found[:, -1] += common
            place += feature.width
        return found.reshape(weights.shape)

    def as_json(self) -> dict[str, Any]:
        """Plain values that `from_json` reads."""
        return dict(_adapter().dump_python(self, mode="json"))

    @classmethod
    def from_json(cls, tree: Mapping[str, Any]) -> "Encoding":
        """Return the rules that `as_json` gave. Raises ConfigError naming the key that is wrong."""
        try:
            return _adapter().validate_json(json.dumps(tree, allow_nan=False), strict=True)
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False, include_input=False)[0]
            place = ".".join(map(str, first["loc"])) or "the whole"
            raise ConfigError(f"Expected the encoding of a table, got {place}: {first['msg']}. Correct it.") from None
        except (TypeError, ValueError) as error:
            raise ConfigError(f"Expected the encoding of a table as JSON, got {type(error).__name__}.") from None

    def in_unit_rows(self, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return rows (N, p) divided each by its own norm; then at most `feature_norm`."""
        norms = np.linalg.norm(rows.astype(np.float64), axis=1)
        scale = self.feature_norm * _HAIR / np.where(norms > 0, norms, 1.0)
        return (rows * scale[:, None]).astype(np.float32)


@cache
def _adapter() -> TypeAdapter[Encoding]:
    return TypeAdapter(Encoding)
