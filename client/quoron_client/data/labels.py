"""What a row's label is, by public rules only: a comparison, a positive value, classes, a range, or given signs.

>>> read_label("arr_delay > 15")
Comparison(column='arr_delay', operator='>', number=15.0)
>>> read_label("r2", positive="Y")
Positive(column='r2', value='Y')

A value that says nothing (null, NaN, infinite, text where a number is due, none of the declared classes) gives NaN.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BeforeValidator, ConfigDict, Field

from quoron_client.data.features import check_vocabulary
from quoron_client.data.kind import columns
from quoron_privacy.errors import ConfigError

if TYPE_CHECKING:  # a coordinator has rules, but no table
    import pyarrow as pa

Vector = NDArray[np.float64]

_COMPARISON = re.compile(r"\s*(?P<column>.+?)\s*(?P<operator>>=|<=|==|!=|>|<)\s*(?P<number>\S+)\s*")
_OPERATORS = {
    ">": np.greater,
    ">=": np.greater_equal,
    "<": np.less,
    "<=": np.less_equal,
    "==": np.equal,
    "!=": np.not_equal,
}
_CLOSED: ConfigDict = ConfigDict(extra="forbid")


@dataclass(frozen=True, slots=True)
class Comparison:
    """+1 where a numeric column compares so with the number, else -1."""

    column: str
    operator: Literal[">", ">=", "<", "<=", "==", "!="]
    number: float
    kind: Literal["comparison"] = field(default="comparison", repr=False)

    __pydantic_config__: ClassVar[ConfigDict] = _CLOSED

    def __post_init__(self) -> None:
        if self.operator not in _OPERATORS:
            raise ConfigError(f"Expected a comparison by {', '.join(_OPERATORS)}, got {self.operator!r}.")
        if not np.isfinite(self.number):
            raise ConfigError(f"Expected a label such as 'delay > 15' with a finite number, got {self.number}.")

    def of(self, table: "pa.Table") -> Vector:
        """Labels of all rows, shape (N,); NaN where there is none."""
        values = columns.numbers(table, self.column)
        return np.where(np.isnan(values), np.nan, _signs(_OPERATORS[self.operator](values, self.number)))


@dataclass(frozen=True, slots=True)
class Positive:
    """+1 for one value of a text, boolean or integer column, -1 for every other value."""

    column: str
    value: str | int | bool
    kind: Literal["positive"] = field(default="positive", repr=False)

    __pydantic_config__: ClassVar[ConfigDict] = _CLOSED

    def __post_init__(self) -> None:
        check_vocabulary(f"label {self.column!r}", (self.value,))

    def of(self, table: "pa.Table") -> Vector:
        """Labels of all rows, shape (N,); NaN where there is none."""
        if isinstance(self.value, str):
            missing = np.asarray(columns.texts(table, self.column).is_null().to_numpy(zero_copy_only=False))
        else:
            missing = np.isnan(columns.numbers(table, self.column))
        found = columns.places(table, self.column, (self.value,))
        return np.where(missing, np.nan, _signs(found == 0))


@dataclass(frozen=True, slots=True)
class Classes:
    """The place of a value among the declared ones: -1 and +1 for two classes, 0 to K - 1 for more."""

    column: str
    values: tuple[str | int | bool, ...]
    kind: Literal["classes"] = field(default="classes", repr=False)

    __pydantic_config__: ClassVar[ConfigDict] = _CLOSED

    def __post_init__(self) -> None:
        check_vocabulary(f"label {self.column!r}", tuple(self.values))
        if len(self.values) < 2:
            raise ConfigError(f"Expected two classes of label {self.column!r} or more, got {len(self.values)}.")

    def of(self, table: "pa.Table") -> Vector:
        """Labels of all rows, shape (N,); NaN where there is none."""
        found = columns.places(table, self.column, self.values)
        labels = _signs(found == 1) if len(self.values) == 2 else found.astype(np.float64)
        return np.where(found < 0, np.nan, labels)


@dataclass(frozen=True, slots=True)
class Range:
    """A number, [low, high] scaled linearly to [-bound, bound]; values outside are held at the ends."""

    column: str
    low: float
    high: float
    bound: float = 1.0  # the loss's label_bound
    kind: Literal["range"] = field(default="range", repr=False)

    __pydantic_config__: ClassVar[ConfigDict] = _CLOSED

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
        """Predictions or labels in the column's own units, same shape."""
        return self.middle + self.unit * predictions

    def of(self, table: "pa.Table") -> Vector:
        """Labels of all rows, shape (N,); NaN where there is none."""
        values = np.clip(columns.numbers(table, self.column), self.low, self.high)
        return np.clip((values - self.middle) / self.unit, -self.bound, self.bound)

    def outside(self, table: "pa.Table") -> NDArray[np.bool_]:
        """Which values were held at an end, shape (N,)."""
        values = columns.numbers(table, self.column)
        return np.asarray((values < self.low) | (values > self.high))


@dataclass(frozen=True, slots=True)
class Signs:
    """+1 for true, 1 and +1; -1 for false, 0 and -1."""

    column: str
    truth: bool = False  # whether the column's declared type is true/false: what is predicted is, too
    kind: Literal["signs"] = field(default="signs", repr=False)

    __pydantic_config__: ClassVar[ConfigDict] = _CLOSED

    def of(self, table: "pa.Table") -> Vector:
        """Labels of all rows, shape (N,); NaN where there is none."""
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
    label_range: tuple[float, float] | None = None,
    bound: float = 1.0,
) -> AnyLabel:
    """The label that a configuration means: `text` is a column, or alone a comparison such as 'delay > 15'.

    Raises ConfigError for a comparison without a finite number, and where two of the others are given.
    """
    given = {"positive": positive is not None, "classes": bool(classes), "label_range": label_range is not None}
    said = [name for name, is_given in given.items() if is_given]
    if len(said) > 1:
        raise ConfigError(
            f"Expected one of positive, classes and label_range for label {text!r}, got {' and '.join(said)}."
        )
    if positive is not None:
        return Positive(text, positive)
    if classes:
        return Classes(text, tuple(classes))
    if label_range is not None:
        return Range(text, *label_range, bound)
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
    """The values that are told apart, the one of lower scores first, as the column has them; () for a number.

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
    """What is predicted: the column, or where that is whether something holds, the statement."""
    match label:
        case Comparison():
            return f"{label.column} {label.operator} {label.number:g}"
        case Positive():
            return f"{label.column} = {in_words(label.value)}"
        case _:
            return label.column


def in_words(value: str | int | bool) -> str:
    """A value as text: true, false, and others as they are."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _by_class(given: object) -> object:
    numbers = [*given.values()] if isinstance(given, dict) else []
    plain = all(isinstance(each, int | float) and not isinstance(each, bool) for each in numbers)
    if isinstance(given, str):
        Balanced.declared(given)
    elif not (numbers and plain and all(0 < each < np.inf for each in numbers)):
        raise ValueError(f"to be {_BALANCED}, or a table of a number > 0 for each class")
    return given


_BALANCED = "'balanced', 'balanced:CAP' with a number >= 1"


ByClass = Annotated[str | dict[str, float], BeforeValidator(_by_class)]  # as a configuration says what classes count


@dataclass(frozen=True, slots=True)
class Balanced:
    """Class weights that wait for a release of the shares: classes are to weigh alike, within a ratio of `cap`."""

    cap: float

    __pydantic_config__: ClassVar[ConfigDict] = _CLOSED

    def __post_init__(self) -> None:
        if not (np.isfinite(self.cap) and self.cap >= 1):
            raise ConfigError(f"Expected a cap >= 1 and finite of balanced class weights, got {self.cap}.")

    @classmethod
    def declared(cls, text: str) -> "Balanced":
        """Return what `balanced`, which is `balanced:10`, or `balanced:CAP` means; ValueError for another text."""
        word, colon, cap = text.partition(":")
        try:
            number = float(cap) if colon else 10.0
        except ValueError:
            number = np.nan
        if word != "balanced" or not 1 <= number < np.inf:
            raise ValueError(f"to be {_BALANCED}, or a table of a number > 0 for each class")
        return cls(number)

    def by(self, shares: Sequence[float] | Vector, error: float) -> "ClassWeights":
        """What shares (K,) say that were released with this standard error: docs/privacy/table-health.md#h3.

        In inverse proportion to them, each held within [2 errors, 1] first; then no less than 1/cap of the largest.
        """
        held = seen(shares, error)
        counts = np.maximum(held.min() / held, 1.0 / self.cap)
        return ClassWeights(tuple(counts.tolist()))


@dataclass(frozen=True, slots=True)
class ClassWeights:
    """What a row counts by its class, place by place of `outcomes`: in (0, 1], the most of them 1."""

    counts: tuple[float, ...]

    __pydantic_config__: ClassVar[ConfigDict] = _CLOSED

    def __post_init__(self) -> None:
        if not (self.counts and all(0 < each <= 1 for each in self.counts) and max(self.counts) == 1):
            raise ConfigError(f"Expected class weights in (0, 1], the largest 1, got {self.counts}.")

    @classmethod
    def declared(cls, label: AnyLabel | None, weights: Mapping[str, float]) -> "ClassWeights":
        """Of declared weights by the classes' names: each divided by the largest. A class without one weighs 1."""
        values = outcomes(label)
        names = [in_words(each) for each in values]
        own = {_TRUTH.get(name, name) if set(values) == {0, 1} else name: each for name, each in weights.items()}
        known = [_TRUTH.get(name, name) if set(values) == {0, 1} else name for name in names]
        if len(own) != len(weights) or not set(own) <= set(known):
            wrong = next((name for name in weights if _TRUTH.get(name, name) not in known), "one class")
            raise ConfigError(
                f"Expected class_weight for classes among {', '.join(names) or 'those of a label'}, each once, got "
                f"{wrong!r}. Write them as the label has them."
            )
        if not all(np.isfinite(each) and each > 0 for each in weights.values()):
            raise ConfigError(
                f"Expected finite class weights > 0, got {dict(weights)}. Leave rows of a class out else."
            )
        found = [float(own.get(name, 1.0)) for name in known]
        return cls(tuple(each / max(found) for each in found))

    def of(self, labels: Vector) -> Vector:
        """Of encoded labels (N,), -1 and +1 or 0 to K - 1; NaN where there is none."""
        places = (labels > 0) if len(self.counts) == 2 else np.where(np.isnan(labels), 0.0, labels)
        return np.where(np.isnan(labels), np.nan, np.array(self.counts)[places.astype(np.int64)])

    def weighed(self, labels: Vector, weights: Vector) -> Vector:
        """The weights (N,) of items with these labels (N,), multiplied a part at a time."""
        found = weights.copy()
        for first in range(0, len(labels), _PART):
            found[first : first + _PART] *= self.of(labels[first : first + _PART])
        return found


@dataclass(frozen=True, slots=True)
class Weight:
    """What a row counts: its value in a column divided by `most`, values above held at 1."""

    column: str
    most: float

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    def __post_init__(self) -> None:
        if not (np.isfinite(self.most) and self.most > 0):
            raise ConfigError(f"Expected the most a weight of {self.column!r} can be, > 0 and finite, got {self.most}.")


def check_class_weight(weights: ClassWeights | Balanced | None, label: AnyLabel | None, *, looked: bool = True) -> None:
    """ConfigError unless they are one for each class; nor, where nobody looks at the table, may they wait for that."""
    classes = len(outcomes(label))
    if weights is not None and not (classes if isinstance(weights, Balanced) else len(weights.counts) == classes):
        raise ConfigError(
            f"Expected class_weight with a label of classes, one weight for each, got {classes or 'none'}. Let a "
            "column weigh rows: population.weight."
        )
    if isinstance(weights, Balanced) and not looked:
        raise ConfigError(
            "Expected class_weight with a weight for each class where nobody looks at the table, got 'balanced'. "
            "Write { class = weight }; for two classes (1 - share) / share is about balanced."
        )


def seen(shares: Sequence[float] | Vector, error: float) -> Vector:
    """Released shares (K,) as far as they are seen: held within [2 standard errors, 1]."""
    found: Vector = np.clip(np.asarray(shares, np.float64), min(2.0 * error, 1.0), 1.0)
    return found


_PART = 1 << 20
_TRUTH = {"false": "0", "true": "1", "-1": "0", "+1": "1"}  # names of the two values of what is true or false


def _signs(positive: NDArray[np.bool_]) -> Vector:
    return np.where(positive, 1.0, -1.0)
