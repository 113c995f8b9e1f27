"""Arrays as scikit-learn has them, X, y and whose each row is, as a table with the declarations that training needs.

    >>> users, label = owners(["ann", "ann", "bob"], 3), labels_in_range(np.array([1, 2, 9]), (0, 9))
    >>> table, section = table_of(np.array([[30.0], [31.0], [60.0]]), ("age",), label, users, (0, 100))
    >>> section["columns"]["numeric"], section["label"]["range"]
    ({'age': [0.0, 100.0]}, [0.0, 9.0])

Nothing here raises for the value of a row: what is no number, or no declared class, is missing, as in any other table.
What is taken from the data (`found_*`) is taken at the caller's request, and is not private.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike, NDArray

from quoron.simulation.wildcards import meant
from quoron_client.data import columns as cells
from quoron_privacy.errors import ConfigError, DataError, UsageError

Vector = NDArray[np.float64]
RandomState = int | np.random.RandomState | None
_EXACT = 2**53  # integers below it are what they are as float64 too


class InputError(UsageError, ValueError):
    """What scikit-learn calls a ValueError: arrays or constructor arguments that cannot be meant."""


@dataclass(frozen=True, slots=True)
class Label:
    """A label's column, and what the configuration says of it and of its classes' weights."""

    values: pa.Array
    declared: dict[str, Any]
    columns: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class Weights:
    """What each row counts (N,), and the public most of it."""

    values: Vector
    most: float


def numbers(values: NDArray[Any]) -> Vector:
    """Return numbers, text or objects as float64, same shape: NaN where a value is no number, by that value alone.

    InputError for an array of another type, such as dates.
    """
    if values.dtype.kind in "biuf":
        return values.astype(np.float64)
    if values.dtype.kind not in "OUST":
        raise InputError(f"Expected numbers or text, got an array of {values.dtype}. Convert it.")
    flat = np.fromiter(map(cells.number, values.ravel().tolist()), np.float64, values.size)
    return flat.reshape(values.shape)


def ranges(bounds: Any, names: Sequence[str]) -> tuple[Vector, Vector]:
    """Declared (low, high), numbers or (p,) each, or by names, patterns and spans, of p features: two (p,) arrays.

    InputError unless low < high, all finite, and every feature is declared once.
    """
    features = len(names)
    each = _by_name(bounds, names) if isinstance(bounds, Mapping) else None
    try:
        low, high = bounds if each is None else zip(*each, strict=True)
        ends = [np.broadcast_to(np.asarray(end, np.float64), (features,)) for end in (low, high)]
    except (TypeError, ValueError):
        raise InputError(
            f"Expected bounds=(low, high), or (lows, highs) with one of each for {features} features, got "
            f"bounds={bounds!r}."
        ) from None
    with np.errstate(all="ignore"):
        wrong = np.flatnonzero(~((ends[0] < ends[1]) & np.isfinite(ends[1] - ends[0])))
    if len(wrong):
        at = wrong[0]
        listed = each is None and any(np.ndim(end) for end in (low, high))
        fix = "Lists are (lows, highs), no pair a feature; leave" if listed else "Leave"
        raise InputError(
            f"Expected finite bounds with low < high, got [{ends[0][at]:g}, {ends[1][at]:g}] for feature {at}. "
            f"{fix} out a feature that cannot vary."
        )
    return ends[0], ends[1]


def _by_name(bounds: Mapping[str, Any], names: Sequence[str]) -> list[Any]:
    """Return what was declared of each feature in turn."""
    try:
        found = meant([*bounds], names, roles=())
    except ConfigError as error:
        raise InputError(f"Expected bounds by the names of the features. {error}") from None
    pairs = [(name, ends) for ends, some in zip(bounds.values(), found, strict=True) for name in some]
    declared, known = Counter(name for name, _ in pairs), set(names)
    wrong = next((name for name in (*declared, *names) if declared[name] != 1 or name not in known), None)
    if wrong is not None:
        how = f"{declared[wrong]} for feature" if wrong in known else "some for"
        raise InputError(
            f"Expected bounds for each of {len(names):,} features once and for nothing else, got {how} {wrong!r}. "
            "Write every feature, or patterns such as 'x*' that have none in common."
        )
    ends = dict(pairs)
    return [ends[name] for name in names]


def found_ranges(values: Vector) -> tuple[Vector, Vector]:
    """The least and the largest finite value of every column of (N, p); not private. A constant is in the middle."""
    usable = np.isfinite(values)
    low = np.min(values, axis=0, where=usable, initial=np.inf)
    high = np.max(values, axis=0, where=usable, initial=-np.inf)
    low, high = np.where(low <= high, low, 0.0), np.where(low <= high, high, 0.0)
    constant = low == high
    width = np.where(constant, np.maximum(1.0, np.abs(low)), 0.0)
    return low - width, high + width


def classes_of(declared: Sequence[Any] | NDArray[Any]) -> NDArray[Any]:
    """Different classes, sorted, (K,). InputError below two, or where they have no order."""
    try:
        found = np.unique(np.asarray(declared))
    except TypeError:
        raise InputError("Expected classes of one type, got several. Write all of them as text.") from None
    if found.ndim != 1 or len(found) < 2:
        few = "1 class" if len(found) == 1 else "no class"
        raise InputError(f"Expected two classes or more, got {few}. Declare classes=[...].")
    return found


def labels_of_classes(labels: NDArray[Any], classes: NDArray[Any]) -> Label:
    """Labels by their class, null where they are none of them. Text and whole numbers are stored as they are.

    InputError where labels are text and classes numbers, or the other way round: none could be found.
    """
    kinds = {"text" if each.dtype.kind in "UST" else "numbers" for each in (labels, classes) if each.dtype.kind != "O"}
    if len(kinds) > 1:
        raise InputError(f"Expected labels of the classes' type, got {labels.dtype} and classes of {classes.dtype}.")
    codes = np.full(len(labels), -1, np.int64)
    for place, value in enumerate(classes):
        codes[_equal(labels, value)] = place
    names = _names(classes)
    values = pa.array(names).take(pa.array(codes, mask=codes < 0))
    return Label(values, {"classes": names})


def labels_in_range(labels: NDArray[Any], label_range: Any) -> Label:
    """Labels that are numbers, with their declared (low, high). InputError unless low < high, both finite."""
    try:
        low, high = (float(end) for end in label_range)
    except (TypeError, ValueError):
        raise InputError(f"Expected label_range=(low, high), got label_range={label_range!r}.") from None
    if not (low < high and np.isfinite(high - low)):
        raise InputError(f"Expected a finite label_range with low < high, got label_range=({low:g}, {high:g}).")
    return Label(pa.array(numbers(np.asarray(labels))), {"range": [low, high]})


def weights(given: Any, rows: int) -> Vector:
    """Weights of rows, (N,); NaN where one is no number. InputError for another number of rows."""
    found = numbers(np.asarray(given))
    if found.shape != (rows,):
        raise InputError(f"Expected sample_weight with a number for each of {rows} rows, got shape {found.shape}.")
    return found


def largest(given: Vector) -> float:
    """Return the largest finite weight (N,); not private. InputError where none is above zero."""
    most = float(np.max(given, where=np.isfinite(given), initial=0.0))
    if most <= 0:
        raise InputError("Expected a sample_weight above zero where most_weight is not declared, got none.")
    return most


def class_weights(given: Any, classes: NDArray[Any], label: Label) -> dict[str, Any]:
    """What a configuration says of weights by class. InputError for a class that there is not, or another word."""
    if given is None or isinstance(given, str):
        return {} if given is None else {"class_weight": given}
    if not isinstance(given, Mapping):
        raise InputError(f"Expected class_weight to be a text or a mapping, got class_weight={given!r}.")
    names = dict(zip(classes.tolist(), label.declared["classes"], strict=True))
    wrong = [each for each in given if each not in names]
    if wrong:
        raise InputError(f"Expected class_weight for classes among {[*names]}, got {wrong[0]!r}.")
    return {"class_weight": {str(names[each]): weight for each, weight in given.items()}} if given else {}


def owners(groups: ArrayLike, rows: int) -> pa.Array:
    """Return whose each row is, (N,): of an array of numbers or text as stored, of others each name as text.

    InputError for another number of rows.
    """
    names = kept_types(groups, np.asarray(groups))
    if names.shape != (rows,):
        raise InputError(f"Expected groups with the user of each of {rows} rows, got shape {names.shape}.")
    return pa.array(names) if names.dtype.kind in "biuf" else cells.text_array(names.tolist())


def kept_types(values: Any, found: NDArray[Any]) -> NDArray[Any]:
    """Return what numpy made of values, or where it gave one type to all of a sequence, (N,), each as it was."""
    if hasattr(values, "dtype") or found.ndim != 1 or len({*map(type, values)}) < 2:
        return found
    held = np.empty(len(found), dtype=object)
    held[:] = values
    return held


def table_of(
    features: Vector,
    names: Sequence[str],
    label: Label,
    users: pa.Array,
    bounds: Any,
    weights: Weights | None = None,
) -> tuple[pa.Table, dict[str, Any]]:
    """Features (N, p), label, users and weights as a table, and the section of a configuration that describes it.

    DataError for two columns of one name.
    """
    if len(set(names)) < len(names):
        repeated = next(name for name in names if list(names).count(name) > 1)
        raise DataError(f"Expected columns of different names, got {repeated!r} twice. Rename them.")
    low, high = ranges(bounds, names)
    y, user = _unused("y", names), _unused("user", names)
    columns = {name: pa.array(features[:, place]) for place, name in enumerate(names)}
    numeric = {name: [float(a), float(b)] for name, a, b in zip(names, low, high, strict=True)}
    section: dict[str, Any] = {"kind": "table", "path": "arrays", "user": user}
    section |= {"label": {"column": y, **label.declared}, "columns": {"numeric": numeric, **label.columns}}
    if weights is not None:
        weight = _unused("weight", names)
        columns[weight] = pa.array(weights.values)
        section["columns"]["weight"] = {"column": weight, "most": weights.most}
    return pa.table({**columns, y: label.values, user: users}), section


def seed_of(random_state: RandomState) -> int | None:
    """None for secret noise. A generator gives its next number, as everywhere in scikit-learn."""
    if random_state is None:
        return None
    if isinstance(random_state, np.random.RandomState):
        return int(random_state.randint(2**31 - 1))
    if isinstance(random_state, Integral) and int(random_state) >= 0:
        return int(random_state)
    raise InputError(
        f"Expected random_state to be None (secret noise), a number >= 0 or a RandomState, got {random_state!r}."
    )


def _equal(labels: NDArray[Any], value: Any) -> NDArray[np.bool_]:
    if labels.dtype.kind != "O":
        return np.asarray(labels == value, np.bool_)
    return np.fromiter((_is(each, value) for each in labels), np.bool_, len(labels))


def _is(label: object, value: object) -> bool:
    try:
        return bool(label == value)
    except Exception:  # whatever somebody's object does, it is one label that is no class
        return False


def _names(classes: NDArray[Any]) -> list[str] | list[int]:
    """How the classes are called in the model's file: as they are if that is text or whole numbers, else 0 to K - 1."""
    named = classes.tolist()
    if all(isinstance(each, str) and each for each in named):
        return list(named)
    if all(isinstance(each, int) and not isinstance(each, bool) and abs(each) < _EXACT for each in named):
        return list(named)
    return list(range(len(named)))


def _unused(name: str, names: Sequence[str]) -> str:
    while name in names:
        name += "_"
    return name
