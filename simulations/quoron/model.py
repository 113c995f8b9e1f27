"""A released model: what it predicts for rows of a table, its coefficients in the columns' own units, and its file.

    model = quoron.load("runs/visits-1/model.json")
    model.predict(new_visits), model.coef_

The file is JSON that a person can read: the encoding of the columns, the numbers, the promise, the date. Reading one
carries nothing out. A digest of all that it says ties the weights to the promise and the plan: it finds what was
changed by accident, by an editor, a copy or a disk. It has no key, so whoever writes a file anew can give it any
promise: keep models where nobody else writes, and compare `promise.plan` with the run's plan, and the weights with the
lifetime ledger's line of the run, where that matters.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quoron.run_folder import write
from quoron_client.data import tables
from quoron_client.data.encoding import Encoding
from quoron_client.data.features import Numeric
from quoron_client.data.labels import Classes, Range, Signs
from quoron_client.losses import Loss, make_loss
from quoron_privacy.errors import DataError, QuoronError, UsageError
from quoron_server.plan import Plan
from quoron_server.serial import dumps
from quoron_server.specification import digest
from quoron_server.wording import sentence

FORMAT = "quoron model 2"
LONGEST = 1 << 30  # bytes of a file
Vector = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Promise:
    """What was promised when the model was released."""

    statement: str  # in one sentence
    epsilon: float
    delta: float
    adjacency: str
    algorithm: str
    plan: str  # digest of the plan
    made: str | None  # the day the run began; a federation does not tell


@dataclass(frozen=True, slots=True, eq=False)
class Model:
    """A linear model of encoded rows. `weights` are as trained; everything else is in the units of the table.

    What has a trailing underscore is named as in scikit-learn. Columns are taken by name, and clipped to the declared
    ranges, as in training: beyond them a model says what it says at their ends.
    """

    weights: Vector  # (d,), of encoded rows; with K > 2 classes K blocks of d / K, class by class
    encoding: Encoding
    loss: Loss
    promise: Promise | None  # None: nobody is protected

    @classmethod
    def released(cls, weights: Vector, encoding: Encoding, loss: Loss, plan: Plan, *, made: str | None) -> "Model":
        """The model that a run of `plan` released."""
        said = plan.guarantee
        protected = not said.seeded and said.exposure != "none"
        promise = Promise(sentence(said), said.epsilon, said.delta, said.adjacency, plan.algorithm, digest(plan), made)
        return cls(np.array(weights, np.float64), encoding, loss, promise if protected else None)

    @classmethod
    def fetched(cls, weights: Vector, plan: Mapping[str, Any]) -> "Model":
        """The model of a federation's run, by the plan that its coordinator tells. DataError if it tells no columns."""
        try:
            said, bounds = plan["guarantee"], dict(plan["loss"])
            loss, encoding = make_loss(bounds.pop("name"), **bounds), Encoding.from_json(plan["columns"])
            text = json.dumps(
                {name: value for name, value in plan.items() if name not in ("columns", "loss")}, sort_keys=True
            )
            fingerprint = hashlib.sha256(text.encode()).hexdigest()
            promise = Promise(
                plan["statement"],
                said["epsilon"],
                said["delta"],
                said["adjacency"],
                plan["algorithm"],
                fingerprint,
                None,
            )
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"Expected a plan with its columns and its loss, got one without ({error}).") from None
        protected = not said["seeded"] and said["exposure"] != "none"
        return cls(np.array(weights, np.float64), encoding, loss, promise if protected else None)

    @property
    def feature_names_in_(self) -> tuple[str, ...]:
        """The table's columns that it reads."""
        return tuple(feature.column for feature in self.encoding.features)

    @property
    def feature_names_out_(self) -> tuple[str, ...]:
        """A name for each coefficient: the column, or column=category, or the column's interval."""
        return tuple(name for feature in self.encoding.features for name in feature.names)

    @property
    def classes_(self) -> tuple[Any, ...]:
        """The classes, the one of lower scores first. UsageError for a model of numbers."""
        match self.encoding.label:
            case None | Range():
                raise UsageError(f"Expected a model of classes, got one of the {self.loss.name} loss for numbers.")
            case Classes(values=values):
                return tuple(values)
            case Signs():
                return (0, 1)
            case _:
                return (False, True)

    @property
    def coef_(self) -> Vector:
        """Change of the score (of a prediction, where the label is a number) for one unit of each feature: (p,), or
        (K, p) with K > 2 classes.

        UsageError where rows were divided by their own length: no single number says it then.
        """
        return self._raw()[0]

    @property
    def intercept_(self) -> Vector | float:
        """The score (the prediction) where every feature is zero; (K,) with K > 2 classes."""
        return self._raw()[1]

    def decision_function(self, table: Any) -> Vector:
        """Scores of the rows of a DataFrame, a pyarrow Table or a file, (N,): positive for the second class; (N, K).

        DataError for a missing column, and for rows that cannot be used, with their number and the first of them.
        """
        rows = self._encoded(table)
        scores = rows @ self._blocks.T
        return scores[:, 0] if len(self._blocks) == 1 else scores

    def predict_proba(self, table: Any) -> Vector:
        """Probabilities of the classes, (N, K). UsageError for losses that have none."""
        if self.loss.name not in ("logistic", "softmax"):
            raise UsageError(
                f"Expected the logistic or softmax loss for probabilities, got a model of {self.loss.name}. "
                "Use decision_function."
            )
        scores = self.decision_function(table)
        if scores.ndim == 1:
            scores = np.stack([np.zeros_like(scores), scores], axis=1)
        shifted = np.exp(scores - scores.max(axis=1, keepdims=True))
        return np.asarray(shifted / shifted.sum(axis=1, keepdims=True))

    def predict(self, table: Any) -> NDArray[Any]:
        """The label of each row, (N,): a class of `classes_`, or a number in the label's own units."""
        scores = self.decision_function(table)
        if self._range is not None:
            return np.asarray(self._range.in_units(scores))
        if self.encoding.label is None:
            return scores
        which = (scores > 0).astype(np.int64) if scores.ndim == 1 else np.argmax(scores, axis=1)
        return np.asarray(np.array(self.classes_)[which])

    def table(self) -> list[tuple[str, str]]:
        """Each coefficient with its name, for people; weights of encoded rows where there are none in raw units."""
        if self.encoding.unit_rows:
            named, values = self.encoding.names, self._blocks
        else:
            named = (*self.feature_names_out_, "intercept")
            values = np.column_stack([np.atleast_2d(self.coef_), np.atleast_1d(self.intercept_)])
        return [
            (name, ", ".join(f"{value:.7g}" for value in column)) for name, column in zip(named, values.T, strict=True)
        ]

    def as_text(self) -> str:
        """The file's text."""
        contents = {
            "format": FORMAT,
            "promise": None if self.promise is None else asdict(self.promise),
            "coefficients": dict(self.table()),
            "loss": {"name": self.loss.name, **self.loss.bounds},
            "encoding": self.encoding.as_json(),
            "weights": self.weights.tolist(),
        }
        plain = json.loads(dumps(contents))
        plain["digest"] = _digest(plain)
        text = json.dumps(plain, indent=1, ensure_ascii=False)
        short = re.sub(r"\[\s+([^\[\]{}]*?)\s+\]", _on_one_line, text)
        return (short if json.loads(short) == plain else text) + "\n"  # a name may hold brackets itself

    def save(self, path: str | Path) -> None:
        """Write the file, complete or not at all. RunError if it cannot be."""
        if not isinstance(path, str | Path):
            raise UsageError(f"Expected a path to save the model at, got {path!r}.")
        write(Path(path), self.as_text().encode(), advice="Choose another file.")

    @classmethod
    def load(cls, path: str | Path) -> "Model":
        """Read a file that `save` or a run wrote. DataError for anything else."""
        contents = _read(Path(path))
        if contents.get("format") != FORMAT:
            raise DataError(f"Expected a model file ({FORMAT}) at {str(path)!r}, got something else.")
        try:
            stated = contents.pop("digest")
            if stated != _digest(contents):
                raise ValueError("its digest is that of another")
            bounds = dict(contents["loss"])
            loss = make_loss(bounds.pop("name"), **bounds)
            encoding = Encoding.from_json(contents["encoding"])
            promise = None if contents["promise"] is None else _promised(contents["promise"])
            if not isinstance(contents["weights"], list) or {*map(type, contents["weights"])} - {int, float}:
                raise ValueError("weights that are no numbers")
            weights = np.array(contents["weights"], np.float64)
            model = cls(weights, encoding, loss, promise)
            expected = len(encoding.names) * model._scores
        except (QuoronError, LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
            told_of = f"{type(error).__name__}: {str(error)[:200]}"
            raise DataError(f"Expected a whole model file at {str(path)!r}, got a damaged one ({told_of}).") from None
        with np.errstate(all="ignore"):
            whole = weights.shape == (expected,) and all(np.isfinite(each).all() for each in model._numbers)
        if not whole:
            raise DataError(f"Expected {expected} finite weights in {str(path)!r}, got {weights.shape} or others.")
        return model

    @property
    def _scores(self) -> int:
        """Scores of a row: one, or one a class."""
        return self.loss.outputs

    @property
    def _numbers(self) -> tuple[Vector | float, ...]:
        """Its weights, and its coefficients where it has some."""
        return (self.weights,) if self.encoding.unit_rows else (self.weights, *self._raw())

    @property
    def _blocks(self) -> Vector:
        return self.weights.reshape(self._scores, -1)

    @property
    def _range(self) -> Range | None:
        return self.encoding.label if isinstance(self.encoding.label, Range) else None

    def _encoded(self, table: Any) -> Vector:
        """Rows as in training, (N, p) float64; every one of them usable."""
        features = replace(self.encoding, label=None, weight=None)
        encoded = features.encode(tables.read(table, features.columns))
        if not encoded.kept.all():
            bad = np.flatnonzero(~encoded.kept)
            raise DataError(
                f"Expected a usable value in every column of every row, got {len(bad)} rows without, the first is row "
                f"{bad[0]}. Fill or drop them, or train with population.missing='middle'."
            )
        return encoded.features.astype(np.float64)

    def _raw(self) -> tuple[Vector, Vector | float]:
        """Coefficients and intercept in raw units."""
        if self.encoding.unit_rows:
            raise UsageError(
                "Expected rows that were all divided by the same number, got population.unit_rows=true: there are no "
                "coefficients in the columns' units. `weights` are those of encoded rows."
            )
        weights, place = self._blocks * self.encoding.scale, 0
        coefficients, shift = [], np.zeros(len(weights))
        for feature in self.encoding.features:
            block = weights[:, place : place + len(feature.names)]
            place += len(feature.names)
            if isinstance(feature, Numeric) and not feature.edges:
                width = feature.high - feature.low
                shift -= block[:, 0] * (feature.low + feature.high) / width
                block = block * 2 / width
            coefficients.append(block)
        if self.encoding.intercept:
            shift += weights[:, place]
        coef = np.concatenate(coefficients, axis=1) if coefficients else np.zeros((len(weights), 0))
        if self._range is not None:
            coef, shift = coef * self._range.unit, shift * self._range.unit + self._range.middle
        return (coef, shift) if self._scores > 1 else (coef[0], float(shift[0]))


def _read(path: Path) -> dict[str, Any]:
    """The JSON object in a file, each key once and all numbers finite; DataError for anything else."""
    try:
        with path.open("rb") as file:
            data = file.read(LONGEST + 1)
    except (OSError, ValueError) as error:  # a name with a zero in it is a ValueError
        raise DataError(
            f"Expected a model file at {str(path)!r}, got: {getattr(error, 'strerror', None) or error}."
        ) from None
    if len(data) > LONGEST:
        raise DataError(f"Expected a model file of at most {LONGEST:,} bytes at {str(path)!r}, got a longer one.")
    try:
        contents = json.loads(data.decode(), object_pairs_hook=_once, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        contents = None
    if not isinstance(contents, dict):
        raise DataError(f"Expected a model file ({FORMAT}) at {str(path)!r}, got something else.")
    return contents


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key that is there twice")
    return found


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def _digest(contents: Mapping[str, Any]) -> str:
    """Of all that a file says, however it is laid out."""
    text = json.dumps(contents, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _promised(fields: Mapping[str, Any]) -> Promise:
    """A promise whose fields are what they should be; ValueError or TypeError for another."""
    promise = Promise(**fields)
    words = (promise.statement, promise.adjacency, promise.algorithm, promise.plan, promise.made or "")
    numbers = (promise.epsilon, promise.delta)
    if not all(isinstance(each, str) for each in words) or {*map(type, numbers)} - {int, float}:
        raise ValueError("a promise of other types")
    if not (0 < promise.epsilon < float("inf") and 0 <= promise.delta < 1):
        raise ValueError("a promise of no numbers")
    return promise


def _on_one_line(found: re.Match[str]) -> str:
    """A list of plain values. A line break is never within one."""
    return "[" + " ".join(line.strip() for line in found[1].split("\n")) + "]"
