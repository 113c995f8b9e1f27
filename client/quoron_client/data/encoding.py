"""How the rows of a table become items: the whole of it, public, in one object.

    >>> import pyarrow as pa
    >>> from quoron_client.data import fused
    >>> rules = Encoding((Numeric("age", 0, 100), Categorical("ward", ("A", "B"))), label=Signs("sick"))
    >>> rules.names
    ('age', 'ward=A', 'ward=B', 'intercept')
    >>> table = pa.table({"age": ["50", "old"], "ward": ["B", "A"], "sick": [1, 0]})
    >>> fused.encoded(rules, table).kept.tolist()
    [True, False]

One row's numbers depend on that row alone, by declared ranges and vocabularies. No value of a row is an error: a row
that cannot be used (a feature or a weight that is no finite number, a label that is none of those declared) is left
out, or with `missing="midpoint"` a feature without a number is taken to be in the middle of its range. A column that is
not there, or is there twice, is an error: a table's columns are public.
"""

import json
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict, TypeAdapter, ValidationError, WrapSerializer

from quoron_client.data.dates import DateNumber, DatePart
from quoron_client.data.features import Categorical, Feature, Hashed, Numeric, apart, together
from quoron_client.data.kind import columns
from quoron_client.data.labels import (
    Balanced,
    Classes,
    ClassWeights,
    Comparison,
    Label,
    Positive,
    Range,
    Signs,
    Weight,
    check_class_weight,
    read_label,
)
from quoron_client.losses import Classification, Loss
from quoron_privacy.errors import CONTROL, ConfigError

if TYPE_CHECKING:  # a coordinator has rules, but no table
    import pyarrow as pa

Owners = NDArray[np.int64]

_HAIR = 1 - 2.0**-22  # below the bound, so that rounding to float32 cannot pass it

__all__ = [
    "Balanced",
    "Categorical",
    "ClassWeights",
    "Classes",
    "Comparison",
    "DateNumber",
    "DatePart",
    "Encoding",
    "Feature",
    "Hashed",
    "Label",
    "Numeric",
    "Positive",
    "Range",
    "Signs",
    "Weight",
    "read_label",
]


@dataclass(frozen=True, slots=True)
class Encoding:
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
    | weight and class weight                       | multiplied, each in [0, 1]                              |
    | column missing or repeated                    | DataError, whatever the rows                            |

    A feature whose column is a span, as in `spans`, becomes one of each of these columns, alike.

    Raises ConfigError for rules that cannot be meant, among them a label whose column is a feature too.
    """

    features: Annotated[tuple[Feature, ...], WrapSerializer(lambda features, handler: handler(together(features)))]
    label: Label | None = None  # None only for the linear loss
    intercept: bool = True
    normalize: bool = False
    feature_norm: float = 1.0  # the loss's
    weight: Weight | None = None
    missing: Literal["drop", "midpoint"] = "drop"
    class_weight: ClassWeights | Balanced | None = None  # beside `weight`; balanced: 1 until a release says more

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    def __post_init__(self) -> None:
        object.__setattr__(self, "features", apart(self.features))
        if not self.features and not self.intercept:
            raise ConfigError("Expected at least one feature or an intercept, got none.")
        if not (np.isfinite(self.feature_norm) and self.feature_norm > 0):
            raise ConfigError(f"Expected feature_norm > 0 and finite, got feature_norm={self.feature_norm}.")
        if self.missing not in ("drop", "midpoint"):
            raise ConfigError(f"Expected missing to be 'drop' or 'midpoint', got missing={self.missing!r}.")
        if self.label is not None and any(each.column == self.label.column for each in self.features):
            raise ConfigError(
                f"Expected features other than the label's own column, got {self.label.column!r} as both. Leave it "
                "out of the features: a model would read its answer off."
            )
        check_class_weight(self.class_weight, self.label)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the p features, in order."""
        return (
            *(name for feature in self.features for name in feature.names),
            *(("intercept",) if self.intercept else ()),
        )

    @property
    def dimension(self) -> int:
        """Number of features p."""
        return sum(feature.width for feature in self.features) + self.intercept

    @property
    def scale(self) -> float:
        """What all rows are multiplied by, without `normalize`: the feature norm by the largest that a row can have."""
        return self.feature_norm * _HAIR / math.sqrt(len(self.features) + self.intercept)

    @property
    def weighted(self) -> bool:
        """Whether rows count differently."""
        return self.weight is not None or self.class_weight is not None

    @property
    def columns(self) -> tuple[str, ...]:
        """The table's columns that are read, each once."""
        label = () if self.label is None else (self.label.column,)
        weight = () if self.weight is None else (self.weight.column,)
        return tuple(dict.fromkeys((*(feature.column for feature in self.features), *label, *weight)))

    def check(self, table: "pa.Table") -> None:
        """Raises DataError unless the table has every column once, of numbers or of text; looks at no value."""
        for each in self.features:
            each.check(table)
        for role in (self.label, self.weight):
            if role is not None:
                columns.check(table, role.column)

    def check_meant(self, user: str | None = None) -> None:
        """Raises ConfigError for rules without a feature, a column with two meanings, a user who is a feature, and for
        words that no model's file may hold."""
        if not self.features:
            raise ConfigError(
                "Expected features, got none: the model would be a constant. Declare population.numeric, "
                "population.categorical, population.hashed or population.dates."
            )
        listed = [getattr(each, "categories", ()) for each in self.features] + [getattr(self.label, "values", ())]
        words = [self.label and self.label.column, getattr(self.label, "value", ""), *(f.column for f in self.features)]
        words += chain.from_iterable(some for some in listed if not isinstance(some, range))
        odd = next((word for word in words if isinstance(word, str) and CONTROL.search(word)), None)
        if odd is not None:
            raise ConfigError(f"Expected names and values without control characters, got {odd!r}. Write it without.")
        plain = [each.title for each in self.features if each.middle is None]  # intervals may stand beside a number
        twice = [name for name, many in Counter(plain).items() if many > 1]
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
        roles = ["a feature"] * any(each.column == user for each in self.features)
        roles += [f"the {role}" for role, column in meanings.items() if column == user]
        if user is not None and roles:
            raise ConfigError(
                f"Expected the user column {user!r} to say whose a row is and nothing else, got it as {roles[0]} too: "
                "a model must not tell users apart. Leave it out."
            )

    def check_public(self) -> None:
        """Raises ConfigError where values would be taken from the data, and so become public."""
        for feature in self.features:
            if feature.is_open:
                raise ConfigError(f"Expected the public values of column {feature.column!r}, got none. List them.")
        check_class_weight(self.class_weight, self.label, looked=False)

    def check_loss(self, loss: Loss) -> None:
        """Raises ConfigError unless labels, their bound and the feature norm are what the loss takes."""
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
                "label_range = [low, high], in the label's own units."
            )
        if isinstance(label, Range) and (classes > 2 or isinstance(loss, Classification)):
            raise ConfigError(
                f"Expected classes for the {loss.name} loss, got the range of label {label.column!r}. Write a "
                f"comparison such as '{label.column} > {label.middle:g}', or take the loss least_squares."
            )
        if isinstance(label, Range) and bound is not None and label.bound != bound:
            raise ConfigError(f"Expected labels within the loss's label_bound={bound:g}, got bound={label.bound:g}.")

    def resolved(self, table: "pa.Table") -> "Encoding":
        """The same rules with every `from-data` vocabulary replaced by the values found. For simulation only."""
        found = (Categorical(f.column, columns.vocabulary(table, f.column)) if f.is_open else f for f in self.features)
        return replace(self, features=tuple(found))

    def as_json(self) -> dict[str, Any]:
        """Plain values that `from_json` reads."""
        return dict(_adapter().dump_python(self, mode="json"))

    @classmethod
    def from_json(cls, tree: Mapping[str, Any]) -> "Encoding":
        """The rules that `as_json` gave. Raises ConfigError naming the key that is wrong."""
        try:
            return _adapter().validate_json(json.dumps(tree, allow_nan=False), strict=True)
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False, include_input=False)[0]
            place = ".".join(map(str, first["loc"])) or "the whole"
            raise ConfigError(f"Expected the encoding of a table, got {place}: {first['msg']}. Correct it.") from None
        except (TypeError, ValueError) as error:
            raise ConfigError(f"Expected the encoding of a table as JSON, got {type(error).__name__}.") from None

    def in_unit_rows(self, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        """Rows (N, p) divided each by its own norm; then at most `feature_norm`."""
        norms = np.linalg.norm(rows.astype(np.float64), axis=1)
        scale = self.feature_norm * _HAIR / np.where(norms > 0, norms, 1.0)
        return (rows * scale[:, None]).astype(np.float32)


@cache
def _adapter() -> TypeAdapter[Encoding]:
    return TypeAdapter(Encoding)
