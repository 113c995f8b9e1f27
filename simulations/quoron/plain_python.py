"""The text of a Python module that predicts as a model does and imports nothing but `math`.

    namespace = {}
    exec(as_python(quoron.load("runs/visits-1")), namespace)
    namespace["predict"]({"age": 41, "ward": "north"})

A row is a mapping of columns to numbers and texts. Numbers are held within the declared ranges as in training. Scores
differ from the model's by its rounding to float32, about 10⁻⁷ of the weights.
"""

from typing import TYPE_CHECKING, Any

import numpy as np

from quoron_client.data.encoding import Range, meaning, outcomes
from quoron_client.data.features import Categorical, Numeric
from quoron_privacy.errors import UsageError

if TYPE_CHECKING:
    from quoron.model import Model

_CODE = '''
import math


def _number(column, value, middle):
    """The value as a finite number; without one the middle, or where that is None a ValueError."""
    try:
        value = math.nan if value is None or "_" in str(value) else float(value)
    except ValueError:
        value = math.nan
    if math.isfinite(value):
        return value
    if middle is None:
        raise ValueError(f"Expected a number in {column!r}, got another value.")
    return middle


def _base(row):
    """Numbers in [-1, 1], and 0 or 1 for each category."""
    found = []
    for kind, column, values, middle in COLUMNS:
        value = row.get(column)
        if kind == "categories":
            same = [isinstance(value, str) == isinstance(each, str) and value == each for each in values]
            found += map(float, same)
            continue
        low, high = values
        found.append(min(max((2.0 * _number(column, value, middle) - low - high) / (high - low), -1.0), 1.0))
    return found


def scores(row):
    """Return the score of the second class, of each of several classes, or the predicted number, in a list."""
    powers = []
    for value in _base(row):
        powers.append([1.0, value])
        for k in range(1, DEGREE):
            powers[-1].append(((2 * k + 1) * value * powers[-1][k] - k * powers[-1][k - 1]) / (k + 1))
    features = [powers[i][k] * (powers[j][l] if j >= 0 else 1.0) for i, k, j, l in TERMS]
    return [constant + math.fsum(map(lambda a, b: a * b, weights, features)) for constant, weights in WEIGHTS]


def predict(row):
    """Return the label of a row, a mapping of columns to values."""
    found = scores(row)
    if not CLASSES:
        return found[0]
    if len(found) == 1:
        return CLASSES[found[0] > DECISION[1] - DECISION[0]]
    margins = [score - needed for score, needed in zip(found, DECISION)]
    return CLASSES[margins.index(max(margins))]
'''
_CHANCES = '''

def probabilities(row):
    """Return the probability of each class, in the order of CLASSES."""
    found = scores(row)
    found = [0.0, *found] if len(found) == 1 else found
    shares = [math.exp(score - max(found)) for score in found]
    return [share / sum(shares) for share in shares]
'''


def as_python(model: "Model") -> str:
    """Return the module's text. UsageError for rows divided by their length, dates and hashed columns."""
    encoding = model.encoding
    if encoding.normalize:
        raise UsageError("Expected rows that were all divided by the same number, got population.columns.normalize.")
    drop = encoding.missing == "drop"
    columns: list[tuple[Any, ...]] = []
    for feature in encoding.features:
        if isinstance(feature, Categorical):
            columns.append(("categories", feature.column, tuple(feature.categories), None))
        elif isinstance(feature, Numeric):
            middle = None if drop else 0.5 * feature.low + 0.5 * feature.high
            columns.append(("range", feature.column, (feature.low, feature.high), middle))
        else:
            raise UsageError(
                f"Expected numeric and categorical columns, got {feature.title!r}. Predict with quoron where it is "
                "installed, or train without dates and hashed columns."
            )
    width = encoding.base_width
    terms = encoding.terms.places if encoding.bends else [(place, 1, -1, 0) for place in range(width)]
    label = encoding.label
    unit, middle = (label.unit, label.middle) if isinstance(label, Range) else (1.0, 0.0)
    weights = model.weights.reshape(model.loss.outputs, -1) * (encoding.scale * unit)
    blocks = [
        (middle + (float(block[-1]) if encoding.intercept else 0.0), block[: len(terms)].tolist()) for block in weights
    ]
    decision = model.decision
    stated: dict[str, Any] = {
        "COLUMNS": columns,
        "DEGREE": encoding.curves,
        "TERMS": [tuple(map(int, term)) for term in terms],
        "WEIGHTS": blocks,
        "CLASSES": outcomes(label),
        "DECISION": None if decision is None else np.asarray(decision).tolist(),
    }
    title = f"Predict {'a score' if label is None else meaning(label)} for a row, by a model of quoron."
    said = "" if model.promise is None else f"\n\nAs stated by the model: {model.promise.statement}"
    numbers = "\n".join(f"{name} = {value!r}" for name, value in stated.items())
    chances = _CHANCES if model.loss.name in ("logistic", "softmax") else ""
    return f"{title + said!r}\n{_CODE}{chances}\n\n{numbers}\n"
