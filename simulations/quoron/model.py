"""A released model: what it predicts for rows of a table, its coefficients in the columns' own units, and its file.

    model = quoron.load("runs/visits-1/model.json")
    model.predict(new_visits), model.coef_

The file is JSON that a person can read: the encoding of the columns, the numbers, the promise, the date. Reading one
carries nothing out. A digest of all that it says ties the weights to the guarantee and the plan: it finds what was
changed by accident, by an editor, a copy or a disk. It has no key, so an author who writes a file again can state any
guarantee: that of a loaded model is **as stated by its author**, and nothing here has checked it. Keep models where
nobody else writes, and compare `promise.plan` with the run's plan, and the weights with the lifetime ledger's line of
the run, where that matters.

The text of a model's file is one JSON object, each key once, all numbers finite, with a digest of all that it says.
`predictions` of the rows of a file are a table.
"""

import hashlib
import io
import json
import re
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from quoron.arguments import entry_point
from quoron.evaluation.evaluation import Evaluation
from quoron.results import NO_MORE, Printed, axes_of, restored
from quoron.run_folder import MODEL, ROWS, as_parquet, digest, write
from quoron_client.data import features as spans
from quoron_client.data import fused, tables
from quoron_client.data.encoding import Encoding, Range, in_words, meaning, outcomes, seen
from quoron_client.losses import Loss, make_loss
from quoron_privacy.errors import CONTROL, ConfigError, DataError, QuoronError, UsageError
from quoron_server import wording
from quoron_server.plan import RunPlan
from quoron_server.serial import dumps

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Intervals = tuple[tuple[float, float] | None, ...]  # (low, high) of each coefficient, the intercept last; None: unknown
LONGEST = 1 << 30  # bytes of a file
_PIECE = 1 << 20  # bytes that are read at a time


def read(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file, each key once, all numbers finite, no control characters. DataError."""
    try:
        with path.open("rb") as file:
            data = bytearray()
            while len(data) <= LONGEST and (more := file.read(_PIECE)):  # a size asked for is memory taken
                data += more
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
    if not isinstance(contents, dict) or contents.get("format") != FORMAT:
        raise DataError(f"Expected a model file ({FORMAT}) at {str(path)!r}, got something else.")
    _check_text(contents, path)
    return contents


def _check_text(contents: Any, path: Path) -> None:
    """Raise DataError for a text, anywhere, that would move a terminal's cursor or turn the order of other words."""
    stack = [contents]
    while stack:
        value = stack.pop()
        if isinstance(value, str) and CONTROL.search(value):
            raise DataError(
                f"Expected a model file without control characters at {str(path)!r}, got the text {value[:60]!r}. Do "
                "not trust it; ask its author for another."
            )
        stack += [*value, *value.values()] if isinstance(value, dict) else value if isinstance(value, list) else []


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    unique = dict(pairs)
    if len(unique) != len(pairs):
        raise ValueError("a key that is there twice")
    return unique


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


FORMAT = "quoron model 6"
Vector = NDArray[np.float64]
Threshold = float | Literal["share"]


@dataclass(frozen=True, slots=True)
class Promise:
    """What was promised when the model was released; of a model that was loaded, as stated by its author."""

    statement: str  # in one sentence
    epsilon: float
    delta: float
    adjacency: str
    algorithm: str
    plan: str  # digest of the plan
    made: str | None  # the day the run began; a federation does not tell

    __pydantic_config__: ClassVar[Any] = NO_MORE


@dataclass(frozen=True, slots=True)
class LabelShares:
    """The classes' shares of the table's labels, as a look with noise released them (docs/privacy/data-quality.md)."""

    shares: tuple[float, ...]  # (K,): noise may carry one below zero
    error: float  # standard deviation of each

    __pydantic_config__: ClassVar[Any] = NO_MORE

    def __post_init__(self) -> None:
        if not (self.error > 0 and np.isfinite((*self.shares, self.error)).all()):
            raise ValueError("shares of labels that are no numbers")


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Model(Printed):
    """A linear model of encoded rows. `weights` are as trained; everything else is in the units of the table.

    What has a trailing underscore is named as in scikit-learn. Columns are taken by name, and clipped to the declared
    ranges, as in training: beyond them a model says what it says at their ends.
    """

    weights: Vector  # (d,), of encoded rows; with K > 2 classes K blocks of d / K, class by class
    encoding: Encoding
    loss: Loss
    promise: Promise | None  # None: nobody is protected
    label_shares: LabelShares | None = None  # None: nobody looked, or the label is a number
    threshold: Threshold = 0.5  # what `predict` decides by where nothing else is said
    evaluation: Evaluation | None = None  # what held-out users said of it; None: nobody was held out
    uncertainty: Intervals | None = None  # (low, high) of coefficients, the intercept last, 95 %
    no_interval: str | None = None  # why there are none, in words
    forecast: str | None = None  # how far it is off the best model at most, in words, as predicted and released

    def rows(self) -> list[tuple[str, str]]:
        """Return what is predicted, of which columns, how well, and the guarantee."""
        label, promise = self.encoding.label, self.promise
        names = ", ".join(self.feature_names_in_)
        lines = [("label", "none" if label is None else label.column), ("loss", self.loss.name)]
        lines += [("columns", f"{len(self.feature_names_in_):,}: {names}"), ("coefficients", f"{self.weights.size:,}")]
        lines += [] if self.forecast is None else [("expected", self.forecast)]
        lines += [] if self.evaluation is None else self.evaluation.rows()[:3]
        return [*lines, ("guarantee", "none" if promise is None else promise.statement)]

    @classmethod
    def released(
        cls,
        weights: Vector,
        encoding: Encoding,
        loss: Loss,
        plan: RunPlan,
        *,
        made: str | None,
        shares: LabelShares | None = None,
    ) -> "Model":
        """Return the model that a run of `plan` released, with `shares` of the labels where it released them, too."""
        terms = plan.guarantee
        protected = not terms.seeded and terms.trust_model != "none"
        numbers = terms.epsilon, terms.delta, terms.adjacency
        promise = Promise(wording.sentence(terms), *numbers, plan.algorithm, wording.digest(plan), made)
        return cls(np.array(weights, np.float64), encoding, loss, promise if protected else None, shares)

    @classmethod
    def fetched(cls, weights: Vector, plan: Mapping[str, Any]) -> "Model":
        """The model of a federation's run, by the plan that its coordinator tells. DataError if it tells no columns."""
        try:
            terms, bounds = plan["guarantee"], dict(plan["loss"])
            loss, encoding = make_loss(bounds.pop("name"), **bounds), Encoding.from_json(plan["columns"])
            text = json.dumps(
                {name: value for name, value in plan.items() if name not in ("columns", "loss")}, sort_keys=True
            )
            fingerprint = hashlib.sha256(text.encode()).hexdigest()
            claims = (plan["statement"], terms["epsilon"], terms["delta"], terms["adjacency"], plan["algorithm"])
            promise = Promise(*claims, fingerprint, None)
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"Expected a plan with its columns and its loss, got one without ({error}).") from None
        protected = not terms["seeded"] and terms["trust_model"] != "none"
        return cls(np.array(weights, np.float64), encoding, loss, promise if protected else None)

    @property
    def feature_names_in_(self) -> tuple[str, ...]:
        """The table's columns that it reads."""
        return tuple(dict.fromkeys(feature.column for feature in self.encoding.features))

    @property
    def feature_names_out_(self) -> tuple[str, ...]:
        """A name for each coefficient: the column, or column=category."""
        names = self.encoding.names
        return names[:-1] if self.encoding.intercept else names

    @property
    def classes_(self) -> tuple[Any, ...]:
        """The classes, the one of lower scores first, as the column has them; of a comparison false and true.

        UsageError for a model of numbers.
        """
        classes = outcomes(self.encoding.label)
        if not classes:
            raise UsageError(f"Expected a model of classes, got one of the {self.loss.name} loss for numbers.")
        return classes

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
        scores = self._encoded(table) @ self._blocks.T
        return scores[:, 0] if len(self._blocks) == 1 else scores

    def predict_proba(self, table: Any) -> Vector:
        """Probabilities of the classes, (N, K), in a table weighed as in training. UsageError for losses without."""
        self._check_probable()
        scores = self.decision_function(table)
        if scores.ndim == 1:
            scores = np.stack([np.zeros_like(scores), scores], axis=1)
        shifted = np.exp(scores - scores.max(axis=1, keepdims=True))
        return np.asarray(shifted / shifted.sum(axis=1, keepdims=True))

    def predict(self, table: Any, *, threshold: Threshold | None = None) -> NDArray[Any]:
        """Return the label of each row, (N,): a class of `classes_`, or a number in the label's own units.

        `threshold`, by default the model's own: the probability from which a row is of the second class; or "share",
        for each class its released share of the labels, which gives rare classes their due (docs/tables.md).
        UsageError where it cannot be meant.
        """
        scores = self.decision_function(table)
        if self._range is not None or self.encoding.label is None:
            if threshold is not None:
                raise UsageError(f"Expected no threshold for a model of numbers, got threshold={threshold!r}.")
            return scores if self._range is None else np.asarray(self._range.in_units(scores))
        return np.asarray(np.array(self.classes_)[self.places(scores, threshold)])

    def places(self, scores: Vector, threshold: Threshold | None = None) -> NDArray[np.int64]:
        """The class that scores (N,) or (N, K) decide for, as a place in `classes_`, (N,). UsageError as `predict`."""
        needed = self._needed(self.threshold if threshold is None else threshold)
        if scores.ndim == 1:
            return np.asarray(scores > needed[1] - needed[0], np.int64)
        return np.asarray(np.argmax(scores - needed, axis=1))

    def always(self, threshold: Threshold | None = None) -> Any:
        """The one class that is predicted for every row that there can be, by the coefficients; None: not only one."""
        needed, blocks = self._needed(self.threshold if threshold is None else threshold), self._blocks
        if self.encoding.normalize and np.ptp(needed) > 0:
            return None  # rows are of different lengths
        if len(blocks) == 1:
            blocks = np.concatenate([np.zeros_like(blocks), blocks])
        for place, value in enumerate(self.classes_):
            lead = self.lowest_score(np.delete(blocks[place] - blocks, place, axis=0))
            margin = lead - np.delete(needed[place] - needed, place)
            if np.all(margin > 0) or (len(blocks) == 2 and place == 0 and np.all(margin >= 0)):
                return value
        return None

    def coefficients(self) -> list[tuple[str, Vector]]:
        """Return each coefficient's name and value, (1,), or one a class, (K,).

        They are weights of encoded rows where there are none in the columns' own units.
        """
        if not self.encoding.has_slopes:
            return list(zip(self.encoding.names, self._blocks.T, strict=True))
        values = np.column_stack([np.atleast_2d(self.coef_), np.atleast_1d(self.intercept_)])
        return list(zip((*self.feature_names_out_, "intercept"), values.T, strict=True))

    def shapes(self, points: int = 41) -> dict[tuple[str, ...], Vector]:
        """Return what every column adds to the score by its value, and every pair of columns beyond both alone.

        By the titles of one column, (points,) from end to end of the range of a number or one for each category; of
        two, (first, second), whose means over either column are zero. UsageError for models of several scores, and
        where rows were normalized.
        """
        if self.loss.outputs > 1 or self.encoding.normalize:
            raise UsageError("Expected a model of one score whose rows were not normalized, got another.")
        features, terms = self.encoding.features, self.encoding.terms
        effects: dict[tuple[str, ...], Vector] = {}
        firsts = np.cumsum([0, *(feature.width for feature in features)])
        weights = self._blocks[0] * self.encoding.scale * (1.0 if self._range is None else self._range.unit)
        unit, line = np.eye(firsts[-1], dtype=np.float32), np.linspace(-1, 1, points, dtype=np.float32)[:, None]
        grids = [
            line * unit[first] if feature.is_number else unit[first : first + feature.width]
            for first, feature in zip(firsts, features, strict=False)
        ]
        owners = np.array([(*owner, -1)[:2] for owner in terms.owners], np.int64).reshape(-1, 2)
        for one, other in dict.fromkeys(map(tuple, owners.tolist())):
            chosen = np.flatnonzero((owners == (one, other)).all(axis=1))
            rows = grids[one] if other < 0 else (grids[one][:, None] + grids[other][None]).reshape(-1, firsts[-1])
            expanded = np.empty((len(rows), len(chosen)), np.float32)
            fused.expand(rows, terms.places[chosen], 1.0, expanded)
            effect = expanded @ weights[chosen]
            if other < 0:
                effects[(features[one].title,)] = effect
                continue
            pair = effect.reshape(len(grids[one]), len(grids[other]))
            own, others = pair.mean(axis=1), pair.mean(axis=0) - pair.mean()  # the part that is either column's alone
            effects[(features[one].title,)] += own
            effects[(features[other].title,)] += others
            effects[(features[one].title, features[other].title)] = pair - own[:, None] - others
        return effects

    def plot(self, *, most: int = 6) -> "Figure":
        """Return a matplotlib Figure of the columns and pairs that move the score most, at most so many.

        Raises what `shapes` raises, and ConfigError without matplotlib.
        """
        drawn = sorted(self.shapes().items(), key=lambda shape: -float(np.ptp(shape[1])))[:most]
        by_title = {feature.title: feature for feature in self.encoding.features}
        grid = axes_of(len(drawn))
        for ax, (titles, effect) in zip(grid, drawn, strict=True):
            features = [by_title[title] for title in titles]
            ends = [(axis.low, axis.high) if axis.is_number else (-0.5, axis.width - 0.5) for axis in features]
            if len(titles) == 2:
                image = ax.imshow(effect.T, origin="lower", aspect="auto", extent=(*ends[0], *ends[1]))
                ax.figure.colorbar(image, ax=ax)
                ax.set(xlabel=titles[0], ylabel=titles[1])
            elif features[0].is_number:
                ax.plot(np.linspace(*ends[0], len(effect)), effect)
                ax.set(xlabel=titles[0], ylabel="adds to the score")
            else:
                ax.barh(features[0].names, effect)
                ax.set(xlabel="adds to the score")
        return cast("Figure", grid[0].figure)

    def as_json(self) -> dict[str, Any]:
        """Return all that its file says but the digest."""
        known = {name: ", ".join(f"{value:.7g}" for value in values) for name, values in self.coefficients()}
        return {
            "format": FORMAT,
            "promise": None if self.promise is None else asdict(self.promise),
            "coefficients": known,
            "loss": {"name": self.loss.name, **self.loss.bounds},
            "encoding": self.encoding.as_json(),
            "label_shares": None if self.label_shares is None else asdict(self.label_shares),
            "threshold": self.threshold,
            "forecast": self.forecast,
            "uncertainty": self.uncertainty,
            "no_interval": self.no_interval,
            "evaluation": None if self.evaluation is None else self.evaluation.as_json(),
            "weights": self.weights.tolist(),
        }

    def as_text(self) -> str:
        """Return the file's text."""
        plain = json.loads(dumps(self.as_json()))
        plain["digest"] = digest(plain)
        text = json.dumps(plain, indent=1, ensure_ascii=False)
        short = re.sub(r"\[\s+([^\[\]{}]*?)\s+\]", _on_one_line, text)
        return (short if json.loads(short) == plain else text) + "\n"  # a name may hold brackets itself

    def as_python(self) -> str:
        """Return the text of a module with `predict(row)` that needs nothing but Python, see `quoron.plain_python`.

        UsageError for rows divided by their length, dates and hashed columns.
        """
        from quoron.plain_python import as_python  # rarely needed

        return as_python(self)

    def save(self, path: str | Path) -> None:
        """Write the file, complete or not at all. RunError if it cannot be."""
        if not isinstance(path, str | Path):
            raise UsageError(f"Expected a path to save the model at, got {path!r}.")
        write(Path(path), self.as_text().encode(), advice="Choose another file.")

    @classmethod
    def load(cls, path: str | Path) -> "Model":
        """Read a file that `save` or a run wrote. DataError for anything else."""
        contents = read(Path(path))
        try:
            stated = contents.pop("digest")
            if stated != digest(contents):
                raise ValueError("its digest is that of another")
            if not isinstance(contents["weights"], list) or {*map(type, contents["weights"])} - {int, float}:
                raise ValueError("weights that are no numbers")
            weights = np.array(contents["weights"], np.float64)
            bounds = dict(contents["loss"])
            loss = make_loss(bounds.pop("name"), **bounds)
            said = contents["encoding"]["features"]
            if sum(spans.span_size(line["column"]) or 1 for line in said) > len(weights):  # a line may say a million
                raise ValueError(f"more columns than its {len(weights)} weights are of")
            encoding = Encoding.from_json(contents["encoding"])
            expected = encoding.dimension * loss.outputs
            if weights.shape != (expected,):
                raise ValueError(f"Expected {expected} finite weights, got {len(weights)}")
            promise = restored(Promise | None, contents["promise"])
            if promise is not None:
                _check_promise(promise)
            shares = restored(LabelShares | None, contents["label_shares"])
            if shares is not None and len(shares.shares) != len(outcomes(encoding.label)):
                raise ValueError("shares of other labels")
            forecast, why_not = contents["forecast"], contents["no_interval"]
            for words in (forecast, why_not):
                if words is not None and not (isinstance(words, str) and words.isprintable()):
                    raise ValueError("words that are no line of text")
            measured, reach = restored(Evaluation | None, contents["evaluation"]), contents["uncertainty"]
            if measured is not None and not measured.figures:
                raise ValueError("an evaluation that is none")
            reach = restored(Intervals | None, reach)
            if any(not -np.inf < ends[0] <= ends[1] < np.inf for ends in reach or () if ends is not None):
                raise ValueError("intervals that are none")
            known = (weights, encoding, loss, promise, shares, contents["threshold"], measured)
            model = cls(*known, reach, why_not, forecast)
            _ = model.decision  # of a threshold that can be meant
        except (
            *(QuoronError, LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError),
        ) as error:
            told_of = f"{type(error).__name__}: {str(error)[:200]}"
            raise DataError(f"Expected a whole model file at {str(path)!r}, got a damaged one ({told_of}).") from None
        with np.errstate(all="ignore"):
            whole = all(np.isfinite(array).all() for array in model._numbers)
        if not whole:
            raise DataError(f"Expected {expected} finite weights in {str(path)!r}, got others.")
        return model

    def stated(self) -> str:
        """Return what is said of a loaded model's guarantee, which nothing but its file says."""
        if self.promise is None:
            return "The model's author states no guarantee for anybody whom it was trained on."
        return f"The model's guarantee, as stated by its author: {self.promise.statement}"

    @property
    def decision(self) -> Vector | None:
        """What `predict` takes from each class's score before the largest one decides, (K,); None: a number."""
        return self._needed(self.threshold) if outcomes(self.encoding.label) else None

    def _needed(self, threshold: Threshold) -> Vector:
        """What is taken from each class's score before the largest one decides, (K,); 0 and logit t for two classes."""
        classes, number = len(self.classes_), isinstance(threshold, int | float) and not isinstance(threshold, bool)
        if threshold == 0.5 and number:
            return np.zeros(classes)
        if threshold != "share" and not (number and 0 < threshold < 1):
            raise UsageError(f"Expected a threshold in (0, 1) or 'share', got threshold={threshold!r}.")
        self._check_probable()
        if threshold != "share":
            if classes > 2:
                raise UsageError(f"Expected threshold='share' with {classes} classes, got threshold={threshold!r}.")
            return np.array([0.0, np.log(threshold) - np.log1p(-threshold)])
        if self.label_shares is None:
            raise UsageError(
                "Expected shares of the labels for threshold='share', got a model without: nobody looked at its table. "
                "Give a probability, such as the share of positives that you know."
            )
        return np.log(seen(self.label_shares.shares, self.label_shares.error))

    def _check_probable(self) -> None:
        if self.loss.name not in ("logistic", "softmax"):
            raise UsageError(
                f"Expected the logistic or softmax loss for probabilities, got a model of {self.loss.name}. "
                "Use decision_function."
            )

    def lowest_score(self, blocks: Vector) -> Vector:
        """Return the least score (k,) of any row that there can be by weights (k, p) of encoded rows."""
        place, lowest = 0, np.zeros(len(blocks))
        scaled = blocks * (1.0 if self.encoding.normalize else self.encoding.scale)
        if self.encoding.bends:  # every feature lies between -1 and 1
            place = blocks.shape[1] - self.encoding.intercept
            lowest -= np.abs(scaled[:, :place]).sum(axis=1)
        for feature in () if self.encoding.bends else self.encoding.features:
            block = scaled[:, place : place + feature.width]
            place += feature.width
            lowest += -np.abs(block).sum(axis=1) if feature.is_number else np.minimum(block.min(axis=1), 0.0)
        return np.asarray(lowest + scaled[:, place:].sum(axis=1))

    @property
    def _numbers(self) -> tuple[Vector | float, ...]:
        """Its weights, and its coefficients where it has some."""
        return (self.weights, *self._raw()) if self.encoding.has_slopes else (self.weights,)

    @property
    def _blocks(self) -> Vector:
        return self.weights.reshape(self.loss.outputs, -1)

    @property
    def _range(self) -> Range | None:
        return self.encoding.label if isinstance(self.encoding.label, Range) else None

    def _encoded(self, table: Any) -> Vector:
        """Return rows as in training, (N, p) float64; every one of them usable."""
        features = replace(self.encoding, label=None, weight=None)
        encoded = fused.encoded(features, tables.read(table, features.columns))
        if not encoded.kept.all():
            bad = np.flatnonzero(~encoded.kept)
            raise DataError(
                f"Expected a usable value in every column of every row, got {len(bad)} rows without, the first is row "
                f"{bad[0]}. Fill or drop them, or train with population.columns.missing='midpoint'."
            )
        return encoded.features.astype(np.float64)

    def _raw(self) -> tuple[Vector, Vector | float]:
        """Coefficients and intercept in raw units."""
        if self.encoding.bends:
            raise UsageError(
                "Expected a model with one coefficient for each column, got one of curves: `shapes` says what a column "
                "does. `weights` are those of encoded rows."
            )
        if self.encoding.normalize:
            raise UsageError(
                "Expected rows that were all divided by the same number, got population.columns.normalize=true: there "
                "are no coefficients in the columns' units. `weights` are those of encoded rows."
            )
        weights, place = self._blocks * self.encoding.scale, 0
        coefficients, shift = [], np.zeros(len(weights))
        for feature in self.encoding.features:
            block = weights[:, place : place + len(feature.names)]
            place += len(feature.names)
            if feature.is_number:
                width = feature.high - feature.low
                shift -= block[:, 0] * (feature.low + feature.high) / width
                block = block * 2 / width
            coefficients.append(block)
        if self.encoding.intercept:
            shift += weights[:, place]
        coef = np.concatenate(coefficients, axis=1) if coefficients else np.zeros((len(weights), 0))
        if self._range is not None:
            coef, shift = coef * self._range.unit, shift * self._range.unit + self._range.middle
        return (coef, shift) if self.loss.outputs > 1 else (coef[0], float(shift[0]))


def _check_promise(promise: Promise) -> None:
    """Raise ValueError for a guarantee that none can be."""
    words = (promise.statement, promise.adjacency, promise.algorithm, promise.plan, promise.made or "")
    if not (all(map(str.isprintable, words)) and 0 < promise.epsilon < float("inf") and 0 <= promise.delta < 1):
        raise ValueError("a guarantee of no words or no numbers")


def _on_one_line(match: re.Match[str]) -> str:
    """Return a list of plain values. A line break is never within one."""
    return "[" + " ".join(line.strip() for line in match[1].split("\n")) + "]"


@entry_point
def load(path: str | Path) -> Model:
    """Return the model in a file, or in the folder of a run that has released one. DataError for anything else.

    Its guarantee, `promise`, is as stated by its author, who can write any into the file.
    """
    given = Path(path)
    if (given / ROWS).is_file():
        raise DataError(
            f"Expected the model of a table, got {given} of a run on rows. Load a network with "
            f"quoron.torch.load({str(given)!r}, module) or quoron.jax.load({str(given)!r}, params)."
        )
    return Model.load(given / MODEL if given.is_dir() else given)


MANY = 20  # rows that are rarely all of one class


def predictions(model: Model, table: Any, *, scores: bool, threshold: Threshold | None = None) -> pa.Table:
    """The label of each row of a table, as its own column has it and by its name; of a comparison, true and false.

    With `scores` a column of probabilities, or of scores, of each class, by its name.
    """
    rows, label = tables.read(table, model.feature_names_in_), model.encoding.label
    name = "prediction" if label is None else meaning(label)
    columns = {name: pa.array(model.predict(rows, threshold=threshold))}
    if scores:
        try:
            values, word = model.predict_proba(rows), "probability"
        except UsageError:
            values, word = model.decision_function(rows), "score"
        if values.ndim == 1:  # of a number, or the second class
            columns[word] = pa.array(values)
        else:
            named = zip(model.classes_, values.T, strict=True)
            columns |= {f"{word}_{in_words(value)}": pa.array(column) for value, column in named}
    return pa.table(columns)


def one_for_all(model: Model, table: pa.Table, threshold: Threshold | None = None) -> str | None:
    """Return a warning if many of the caller's rows are all predicted to be of one class; None else."""
    classes = outcomes(model.encoding.label)
    if not classes or table.num_rows < MANY or len(table.column(0).unique()) > 1:
        return None
    name, value = table.column_names[0], in_words(table.column(0)[0].as_py())
    fix = "" if threshold == "share" or model.label_shares is None else " With --threshold share rare classes count."
    certain = ", as any other rows would be" if model.always(threshold) is not None else ""
    return f"All {table.num_rows:,} rows are predicted {name}: {value}{certain}.{fix}"


def unread(model: Model, rows: pa.Table) -> list[str]:
    """Return warnings on numbers that half of the caller's rows or more are missing, and on words unknown to the model.

    Unless rows with unknown words were trained on, the model predicts for them from the constant and the other columns,
    without any of the words that it always had beside them.
    """
    warnings = []
    for feature in model.encoding.features:
        values = feature.read(rows)
        numbers = values.dtype.kind == "f"
        missing = int(np.count_nonzero(np.isnan(values) if numbers else values < 0))
        if not missing or (numbers and 2 * missing < rows.num_rows):
            continue
        what, so = (
            "no number or date",
            "the middle of its range is taken. Write it as in the table that was trained on.",
        )
        if not numbers:
            what, so = feature.misfit[1], "such rows are told well only if the table that was trained on had some."
        warnings.append(f"Column {feature.column!r} is {what} in {missing:,} of {rows.num_rows:,} rows: {so}")
    return warnings


def write_predictions(table: pa.Table, out: Path | None) -> None:
    """As CSV on standard output, or into a .csv or .parquet file, complete or not at all."""
    import pyarrow.csv

    if out is not None and out.suffix not in (".csv", ".parquet"):
        raise ConfigError(f"Expected --out to name a .csv or .parquet file, got {out}.")
    if out is not None and out.suffix == ".parquet":
        write(out, as_parquet(table), advice="Choose another file.")
        return
    buffer = io.BytesIO()
    pyarrow.csv.write_csv(table, buffer)
    if out is None:
        sys.stdout.write(buffer.getvalue().decode())
    else:
        write(out, buffer.getvalue(), advice="Choose another file.")
