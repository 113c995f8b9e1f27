"""scikit-learn estimators whose fit is private for every user as a whole: pip install 'quoron[sklearn]'.

    model = PrivateLogisticRegression(epsilon=2.0, bounds=(0, 100), classes=[0, 1], population="clinic")
    model.fit(X, y, groups=patients)
    model.model_.promise.statement

All rows of one group are protected together. A fit is `quoron.train` on the arrays: secret noise, charged to the
population's privacy budget before it trains. What is not private is said by a named warning.

Nothing raises for the value of a row: what is no number, or no declared class, is missing, as in any other table. What
is taken from the data (`found_ranges`, classes) is taken at the caller's request, and is not private.

**Scores have no noise.** The method `score`, cross-validation and searches such as GridSearchCV read private rows and
report what they see. Neither a score nor the choice of the best setting is covered by `guarantee_`, and every fit of a
search is charged. docs/sklearn.md
"""

import shutil
import tempfile
import warnings
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike, NDArray

from quoron import config as configs
from quoron.arguments import Setting, layers_of, one_value, overlay, plain, sections
from quoron.evaluation.evaluation import Evaluation
from quoron.model import Model, Threshold
from quoron.run_folder import RunFolder
from quoron.simulation.wildcards import meant
from quoron.training import run as training
from quoron.training.data_quality import DataQualityReport
from quoron.training.result import DoubtfulModel
from quoron_client.data import columns as cells
from quoron_client.data.features import MAX_INTEGER
from quoron_privacy.errors import ConfigError, DataError, RunError, UsageError
from quoron_server.parameters import Assumption, Kind
from quoron_server.plan import EVERYONE, Guarantee
from quoron_server.wording import assumption_text

try:
    from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_consistent_length, check_is_fitted, column_or_1d, validate_data
except ModuleNotFoundError as missing:
    if missing.name != "sklearn":
        raise
    raise ModuleNotFoundError(
        "Expected scikit-learn for quoron.sklearn, found none. Install it: pip install 'quoron[sklearn]'.",
        name="sklearn",
    ) from None

__all__ = [
    "DataDependentBounds",
    "DoubtfulModel",
    "InputError",
    "NoiseFromSeed",
    "PrivateLinearRegression",
    "PrivateLogisticRegression",
    "PrivateRidge",
    "UnfitRows",
]

Vector = NDArray[np.float64]
Bounds = tuple[ArrayLike, ArrayLike] | Mapping[str, tuple[float, float]]


RandomState = int | np.random.RandomState | None
_AS_OF_TRAIN = "epsilon", "delta", "algorithm", "population", "ledger", "data_quality", "holdout"


class InputError(UsageError, ValueError):
    """What scikit-learn calls a ValueError: arrays or constructor arguments that cannot be meant."""


@dataclass(frozen=True, slots=True)
class Label:
    """A label's column, and what the configuration says of it."""

    values: pa.Array
    declared: dict[str, Any]


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
    named = _by_name(bounds, names) if isinstance(bounds, Mapping) else None
    try:
        low, high = bounds if named is None else zip(*named, strict=True)
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
        listed = named is None and any(np.ndim(end) for end in (low, high))
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
    kinds = {"text" if part.dtype.kind in "UST" else "numbers" for part in (labels, classes) if part.dtype.kind != "O"}
    if len(kinds) > 1:
        raise InputError(f"Expected labels of the classes' type, got {labels.dtype} and classes of {classes.dtype}.")
    codes = np.full(len(labels), -1, np.int64)
    for place, value in enumerate(classes):
        codes[_equal(labels, value)] = place
    names = _names(classes)
    values = pa.array(names).take(pa.array(codes, mask=codes < 0))
    return Label(values, {"classes": names})


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
    weights: tuple[Vector, float] | None = None,
) -> tuple[pa.Table, dict[str, Any]]:
    """Features (N, p), label and users as a table, and the section of a configuration that describes it.

    `weights` are what each row counts (N,), and the most that it can be. DataError for two columns of one name.
    """
    if len(set(names)) < len(names):
        repeated = next(name for name in names if list(names).count(name) > 1)
        raise DataError(f"Expected columns of different names, got {repeated!r} twice. Rename them.")
    low, high = ranges(bounds, names)
    y, user = _unused("y", names), _unused("user", names)
    columns = {name: pa.array(features[:, place]) for place, name in enumerate(names)}
    numeric = {name: [float(a), float(b)] for name, a, b in zip(names, low, high, strict=True)}
    section: dict[str, Any] = {"kind": "table", "path": "arrays", "user": user}
    section |= {"label": {"column": y, **label.declared}, "columns": {"numeric": numeric}}
    if weights is not None:
        weight = _unused("weight", names)
        columns[weight] = pa.array(weights[0])
        section["columns"]["weight"] = {"column": weight, "most": weights[1]}
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
    return np.fromiter((_is(label, value) for label in labels), np.bool_, len(labels))


def _is(label: object, value: object) -> bool:
    try:
        return bool(label == value)
    except Exception:  # whatever somebody's object does, it is one label that is no class
        return False


def _names(classes: NDArray[Any]) -> list[str] | list[int]:
    """How the classes are called in the model's file: as they are if that is text or whole numbers, else 0 to K - 1."""
    named = classes.tolist()
    if all(isinstance(name, str) and name for name in named):
        return list(named)
    if all(isinstance(name, int) and not isinstance(name, bool) and abs(name) < MAX_INTEGER for name in named):
        return list(named)
    return list(range(len(named)))


def _unused(name: str, names: Sequence[str]) -> str:
    while name in names:
        name += "_"
    return name


class DataDependentBounds(UserWarning):
    """Ranges or classes were not declared and are those of the data: the promise holds if they were public before."""


class UnfitRows(UserWarning):
    """Many rows do not fit what was declared, by the private look at the table that a fit has paid for."""


class NoiseFromSeed(UserWarning):
    """The noise comes from a seed, which protects nobody: there is no promise, and nothing is charged."""


@dataclass(kw_only=True, eq=False, repr=False)
class _PrivateLinear(BaseEstimator, ABC):  # type: ignore[misc]  # scikit-learn has no types
    """What all of them share: from arrays to a run, and from its model to scikit-learn's attributes."""

    epsilon: float | None = None  # ε of one fit, for all rows of one user at once; needed unless noise has a seed
    delta: float = 1e-6  # δ
    bounds: Bounds | None = None  # public (low, high), numbers or (p,), or by name {"x*": (0, 1)}; held within
    unit: str = "user"  # whom the promise is for: a user, all of a group's rows; or "row", each a user of its own
    items_per_user: int | None = None  # rows that a user typically has; None: planned as 1
    most_weight: float | None = None  # public largest sample_weight, which counts 1; larger ones are held at it
    population: str | None = None  # whose privacy budget is charged; None: "everyone", or "rows" by row
    ledger: str | Path | None = None  # the file of the accounts; None: as QUORON_LEDGER or the platform says
    fit_intercept: bool = True  # whether there is a constant
    radius: float | None = None  # of the ball that scaled coefficients live in (domain.radius); None: by the method
    missing: str = "midpoint"  # what a number that is missing is taken to be, of its bounds; "drop": rows are left out
    curves: int = 1  # polynomials of every feature up to this degree; beyond 1 there is no coef_
    pairs: int = 0  # products of two features whose degrees multiply to this at most; beyond 0 there is no coef_
    algorithm: str = "auto"  # a name from `quoron show algorithms`
    rounds: int | None = None  # exactly so many batch gradient steps; None: as many as the plan finds best
    max_rounds: int | None = None  # of these at most so many; not with rounds
    holdout: float | None = None  # share of the users that are held out, to say how good the model is; None: nobody
    data_quality: float | None = (
        None  # share of μ² for a private check of how well the rows fit; None: by the plan; 0: none
    )
    settings: Sequence[Setting] = ()  # further keys of the configuration, as in "algorithm.options.rounds=3"
    out: str | Path | None = None  # a folder that keeps a run folder for every fit; None: none is kept
    random_state: RandomState = None  # None: secret noise. A number: noise from a seed, which protects nobody

    __metadata_request__fit = {"groups": True}  # noqa: RUF012  # scikit-learn reads it by this name

    def fit(self, X: Any, y: Any, groups: Any = None, sample_weight: Any = None) -> Self:
        """Train on rows X (N, p), labels y (N,) and whose each row is, groups (N,); the estimator itself.

        A row counts sample_weight (N,) divided by `most_weight`; one that is negative or no number is left out.

        Raises:
            InputError: a ValueError, for arrays and arguments that cannot be meant, such as missing groups.
            QuoronError: with the thing, its value and the fix; Infeasible with too few users, BudgetExceeded beyond
                the population's limit.
        """
        seed = seed_of(self.random_state)
        if seed is None and self.epsilon is None:
            configs.require_epsilon(overlay({}, self.settings).get("privacy", {}), f"{type(self).__name__}.fit")
        features = self._features(X, reset=True)
        labels = self._checked_labels(y, len(features))
        users = self._users(groups, len(features))
        names = self._names()
        bounds, taken = self.bounds, []
        if bounds is None:
            bounds = found_ranges(features)
            taken.append(Assumption(Kind.FEATURE_RANGES_PUBLIC))
        label = self._label(labels, taken)
        weights = self._weights(sample_weight, len(features), taken)
        table, section = table_of(features, names, label, users, bounds, weights)
        if taken:
            said = "; ".join(map(assumption_text, taken))
            message = f"Not declared, and so not private: {said}. Give them to the constructor."
            warnings.warn(message, DataDependentBounds, stacklevel=2)
        config = self._config(section)
        assumptions = [Assumption(Kind.ROWS_ARE_USERS)] if self.unit == "row" and seed is None else []
        assumptions += taken if seed is None else []
        if seed is None:
            self._train(config, table, assumptions)
        else:
            message = f"The noise of random_state={self.random_state!r} protects nobody: guarantee_ is None."
            warnings.warn(message, NoiseFromSeed, stacklevel=2)
            fitted = training.simulate_training(config, simulation_seed=seed, frame=table)
            self.model_, self.plan_, self.n_rounds_ = fitted
            self.data_quality_: DataQualityReport | None = None
            self.guarantee_: Guarantee | None = None
            self.folder_: Path | None = None
        self.evaluation_: Evaluation | None = self.model_.evaluation
        self._publish(self.model_)
        return self

    def _train(self, config: configs.Config, table: Any, assumptions: Sequence[Assumption]) -> None:
        prepared = training.prepare(config, Path.cwd(), name="fit", frame=table, assumptions=assumptions)
        try:
            if self.out is not None:
                Path(self.out).mkdir(parents=True, exist_ok=True)
            folder = Path(tempfile.mkdtemp(prefix="fit-", dir=self.out))  # mode 0700
        except OSError as error:
            place = self.out or tempfile.gettempdir()
            raise RunError(f"Cannot make a folder in {place}: {error.strerror}. Choose another with out=.") from None
        with ExitStack() as ending:
            ending.callback(shutil.rmtree, folder)
            trained, self.plan_ = training.carry_out(prepared, RunFolder(folder)), prepared.planned.plan
            if self.out is not None:
                ending.pop_all()  # the folder stays
        self.model_, self.data_quality_ = trained.model, trained.data_quality
        for amiss in () if trained.data_quality is None else trained.data_quality.warnings:
            warnings.warn(amiss[:1].upper() + amiss[1:], UnfitRows, stacklevel=3)
        for doubt in trained.summary.doubts:
            if trained.data_quality is None or doubt not in trained.data_quality.warnings:
                warnings.warn(doubt[:1].upper() + doubt[1:], DoubtfulModel, stacklevel=3)
        self.guarantee_, self.n_rounds_ = self.plan_.guarantee, trained.summary.rounds
        self.folder_ = None if self.out is None else folder

    def _features(self, X: Any, *, reset: bool) -> Vector:
        checked = validate_data(self, X, reset=reset, dtype=None, ensure_all_finite=False)
        return numbers(np.asarray(checked))

    def _checked_labels(self, y: Any, rows: int) -> NDArray[Any]:
        if y is None:
            raise InputError(f"{type(self).__name__} requires y to be passed, but the target y is None.")
        labels = np.asarray(column_or_1d(y, warn=True))
        labels = kept_types(y, labels) if labels.dtype.kind == "U" else labels
        check_consistent_length(labels, np.empty(rows))
        return labels

    def _users(self, groups: Any, rows: int) -> Any:
        if self.unit not in ("user", "row"):
            raise InputError(f"Expected unit to be 'user' or 'row', got unit={self.unit!r}.")
        if self.unit == "row":
            if groups is not None:
                raise InputError("Expected no groups with unit='row', got some. Leave out one of the two.")
            groups = np.arange(rows)
        elif groups is None:
            raise InputError(
                "Expected the user of every row, got no groups. Call fit(X, y, groups=users), or declare unit='row' if "
                "every row is of another person."
            )
        if rows < 2:
            raise InputError(f"Expected two users or more, got n_samples={rows}.")
        return owners(groups, rows)

    def _weights(self, given: Any, rows: int, taken: list[Assumption]) -> tuple[Vector, float] | None:
        """Return what each row counts (N,), NaN where that is no number, and the public most of it."""
        if given is None:
            return None
        found, most = numbers(np.asarray(given)), self.most_weight
        if found.shape != (rows,):
            raise InputError(f"Expected sample_weight with a number for each of {rows} rows, got shape {found.shape}.")
        if most is None:
            most = float(np.max(found, where=np.isfinite(found), initial=0.0))
            taken.append(Assumption(Kind.LARGEST_WEIGHT_PUBLIC))
            if most <= 0:
                raise InputError("Expected a sample_weight above zero where most_weight is not declared, got none.")
        return found, most

    def _names(self) -> list[str]:
        found = getattr(self, "feature_names_in_", None)
        return [f"x{i}" for i in range(self.n_features_in_)] if found is None else [str(name) for name in found]

    def _config(self, section: dict[str, Any]) -> configs.Config:
        tree = self._tree(section)
        one_value(("constructor", _other(tree, type(self)()._tree(section))), *layers_of(self.settings))
        return configs.from_tree(overlay(tree, self.settings))

    def _tree(self, section: dict[str, Any]) -> dict[str, dict[str, Any]]:
        """Return the sections of a configuration that the constructor's arguments stand for."""
        by_row = self.unit == "row"
        columns = section["columns"] | {"intercept": bool(self.fit_intercept), "missing": self.missing}
        columns |= {"curves": self.curves, "pairs": self.pairs}
        asked = sections({name: getattr(self, name) for name in _AS_OF_TRAIN}) | {
            "population": section | {"columns": columns, "items_per_user": 1 if by_row else self.items_per_user},
            "loss": self._loss(section),
            "domain": {"radius": self.radius},
            "budget": {"rounds": self.rounds, "max_rounds": self.max_rounds},
        }
        asked.setdefault("train", {}).setdefault("population", "rows" if by_row else EVERYONE)
        return {name: {k: plain(v, k) for k, v in table.items() if v is not None} for name, table in asked.items()}

    def _loss(self, section: Mapping[str, Any]) -> dict[str, Any]:
        """Return the section of the configuration that names the loss, for the table that `section` describes."""
        del section
        return {"name": "least_squares", "ridge": getattr(self, "alpha", 0.0)}

    @abstractmethod
    def _label(self, labels: NDArray[Any], taken: list[Assumption]) -> Label:
        """Return the label's column, and in `taken` what was taken from the data."""

    def _publish(self, model: Model) -> None:
        for name in ("coef_", "intercept_"):  # of an earlier fit, and of a model of curves there are none
            self.__dict__.pop(name, None)
        if model.encoding.has_slopes:
            self.coef_, self.intercept_ = model.coef_, model.intercept_

    def _rows(self, X: Any) -> Any:
        """Return rows to predict for, as the model's table. InputError where one cannot be used."""
        check_is_fitted(self)
        features = self._features(X, reset=False)
        bad = np.flatnonzero(~np.isfinite(features).all(axis=1))
        if len(bad) and self.model_.encoding.missing == "drop":
            raise InputError(
                f"Expected numbers in every row to predict for, got {len(bad)} rows with NaN or infinity, the first is "
                f"row {bad[0]}. Fill them, or fit with missing='midpoint'."
            )
        return pa.table({name: pa.array(features[:, place]) for place, name in enumerate(self._names())})

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True  # filled, or the row is left out: no error tells of a value
        tags.input_tags.string = True  # text that is a number is one; other text is missing
        tags.target_tags.single_output = True
        return tags


def _other(given: Mapping[str, Any], usual: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is not as usual."""
    return {
        key: _other(value, usual[key]) if isinstance(value, Mapping) and key in usual else value
        for key, value in given.items()
        if usual.get(key) != value
    }


@dataclass(kw_only=True, eq=False, repr=False)
class PrivateLogisticRegression(ClassifierMixin, _PrivateLinear):  # type: ignore[misc]  # scikit-learn has no types
    """Logistic regression, private for every user. With three classes or more it is multinomial.

    Formal guarantee: `guarantee_`, (epsilon, delta) for all rows of one user, for `coef_`, `intercept_` and all else
    that a fit leaves. Scores, cross-validation and searches such as GridSearchCV are not private: they look at rows
    without noise, and each of their fits is charged.

    Attributes:
        coef_, intercept_: in the features' own units, (1, p) and (1,), or (K, p) and (K,).
        classes_, n_features_in_, feature_names_in_: as in scikit-learn; names of a DataFrame only.
        guarantee_: what is promised; None with noise from a seed. plan_: everything that was fixed before the data.
        model_: the model as a file that people can read, `model_.save(path)`. n_rounds_: rounds taken.
        data_quality_: how well the rows fit what was declared, by a private check; None: there was none.
        evaluation_: with `evaluate`, private figures of users that were held out, with intervals; else None.
        folder_: the run folder in `out`; None where none is kept.
    """

    classes: Sequence[Any] | None = None  # public values of the label; rows with another one are left out
    alpha: float = 0.0  # adds alpha/2 times the squared norm of the scaled coefficients to the average loss
    threshold: Threshold = 0.5  # of `predict`: a probability, or "share" for each class's released share

    def _loss(self, section: Mapping[str, Any]) -> dict[str, Any]:
        return super()._loss(section) | {"name": "logistic" if len(section["label"]["classes"]) == 2 else "softmax"}

    def _label(self, labels: NDArray[Any], taken: list[Assumption]) -> Label:
        found: Any = self.classes
        if found is None:
            with np.errstate(invalid="ignore"):  # it casts infinity to a whole number, to find that it is none
                check_classification_targets(labels)
            found = labels
            taken.append(Assumption(Kind.CLASSES_PUBLIC))
        self.classes_ = classes_of(found)
        return labels_of_classes(labels, self.classes_)

    def _publish(self, model: Model) -> None:
        super()._publish(model)
        if model.encoding.has_slopes:
            self.coef_, self.intercept_ = np.atleast_2d(model.coef_), np.atleast_1d(model.intercept_)

    def decision_function(self, X: Any) -> Vector:
        """Scores, (N,) and positive for the second class, or (N, K). Features beyond their bounds count as these."""
        rows = self._rows(X)
        return self.model_.decision_function(rows)

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the class of each row, (N,)."""
        scores = self.decision_function(X)
        return np.asarray(self.classes_[self.model_.places(scores, self.threshold)])

    def predict_proba(self, X: Any) -> Vector:
        """Probabilities of the classes, (N, K)."""
        rows = self._rows(X)
        return self.model_.predict_proba(rows)

    def predict_log_proba(self, X: Any) -> Vector:
        """Logarithms of the probabilities, (N, K)."""
        return np.asarray(np.log(self.predict_proba(X)))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.poor_score = True  # a few hundred users are few: noise is what protects them
        return tags


@dataclass(kw_only=True, eq=False, repr=False)
class PrivateLinearRegression(RegressorMixin, _PrivateLinear):  # type: ignore[misc]  # scikit-learn has no types
    """Least squares, private for every user.

    `coef_` is (p,) and `intercept_` a number, in the label's units. Everything else, and what is not private, as of
    `PrivateLogisticRegression`.
    """

    label_range: tuple[float, float] | None = None  # public (low, high) of the label; values outside are held

    def _label(self, labels: NDArray[Any], taken: list[Assumption]) -> Label:
        values, label_range = numbers(labels), self.label_range
        if label_range is None:
            if not np.isfinite(values).all():
                raise InputError("Expected finite y where label_range is not declared, got NaN, infinity or text.")
            taken.append(Assumption(Kind.LABEL_RANGE_PUBLIC))
            ends = found_ranges(values[:, None])
            return Label(pa.array(values), {"range": [float(end[0]) for end in ends]})
        try:
            low, high = (float(end) for end in label_range)
        except (TypeError, ValueError):
            raise InputError(f"Expected label_range=(low, high), got label_range={label_range!r}.") from None
        if not (low < high and np.isfinite(high - low)):
            raise InputError(f"Expected a finite label_range with low < high, got label_range=({low:g}, {high:g}).")
        return Label(pa.array(values), {"range": [low, high]})

    def predict(self, X: Any) -> Vector:
        """Return the number of each row, (N,), in the label's units. Features beyond their bounds count as these."""
        rows = self._rows(X)
        return np.asarray(self.model_.predict(rows), np.float64)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.regressor_tags.poor_score = True  # as of the classifiers
        return tags


@dataclass(kw_only=True, eq=False, repr=False)
class PrivateRidge(PrivateLinearRegression):
    """Least squares with a penalty, private for every user; else as `PrivateLinearRegression`."""

    alpha: float = 0.01  # adds alpha/2 times the squared norm of the scaled coefficients to the average loss
