"""A loss of one's own, from outside this package: two scalar functions, and the constants that their author declares.

    from quoron_client.losses.own import Declaration

    def value(prediction, label, width): ...
    def slope(prediction, label, width): ...

    SOFT = Declaration(value=value, slope=slope, labels="numbers", curvature=1.0, slope_bound=1.0, convex=True)

A distribution names it among its entry points, and it is known by that name wherever it is installed:

    [project.entry-points."quoron.losses"]
    soft = "my_package.losses:SOFT"

Constants are checked on a grid of predictions and labels. That refutes wrong ones and proves none, so every promise
about such a loss names who vouches for them. See docs/losses.md.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.metadata import EntryPoint, entry_points
from types import new_class
from typing import Any, ClassVar, Literal, cast

import numpy as np

from quoron_client.losses._base import Classification, Loss, Regression, Vector
from quoron_privacy.errors import ConfigError
from quoron_privacy.kernels.compiled import Pointwise

GROUP = "quoron.losses"

Scalar = Callable[[float, float, float], float]

_POINTS = 4001  # of the grid's even part, for each of the labels
_LABELS = 21
_FIRST = 10.0  # predictions that any loss is tried at, before the domain is known
_SLACK = 1e-10  # of the largest slope: rounding of an author's formula


@dataclass(frozen=True, slots=True, kw_only=True)
class Declaration:
    """φ, its derivative, and what their author says of them for all predictions.

    `value` and `slope` take (prediction, label, width) and are compiled by numba: numbers, `math` and `numpy` scalars.
    `width` is a number that the run's configuration gives (`loss.width`). A constant may be a function of it.
    """

    value: Scalar  # φ
    slope: Scalar  # φ', by the prediction
    labels: Literal["signs", "numbers"]  # -1 and +1; or any number within `label_bound`
    curvature: float | Callable[[float], float]  # bound on |φ''|; or of (width)
    slope_bound: float | Scalar  # bound on |φ'|; or of (largest |prediction|, label bound, width)
    convex: bool

    def __post_init__(self) -> None:
        if self.labels not in ("signs", "numbers"):
            raise ConfigError(f"Expected labels='signs' or 'numbers' of a declared loss, got labels={self.labels!r}.")


class _Declared:
    """What a loss takes from its declaration."""

    __slots__ = ()
    name: ClassVar[str]
    declaration: ClassVar[Declaration]
    voucher: ClassVar[str]
    width: float
    feature_norm: float

    @property
    def unproved_constants(self) -> str:
        """The assumption that every promise about this loss names."""
        return f"the constants of loss {self.name!r} are vouched for by {self.voucher}, checked on a grid only"

    @property
    def parameter(self) -> float:
        """The width."""
        return self.width

    @property
    def curvature(self) -> float:
        """As declared."""
        given = self.declaration.curvature
        return _constant(self.name, "curvature", given(self.width) if callable(given) else given, zero=True)

    def slope_bound(self, largest_prediction: float) -> float:
        """As declared, once no point of a grid over these predictions refutes any constant; ConfigError if one does."""
        own = cast(Loss, self)
        _check(own, float(largest_prediction))
        return _declared_slope(own, float(largest_prediction))

    @property
    def start_loss(self) -> float | None:
        """Nobody says how low it goes."""
        return None

    @property
    def start_gradient(self) -> float:
        """R times the declared bound at prediction 0."""
        return self.feature_norm * self.slope_bound(0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class OfSigns(_Declared, Classification):
    """A declared loss with labels -1 and +1."""

    width: float = 1.0

    def __post_init__(self) -> None:
        Classification.__post_init__(self)
        _begin(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class OfNumbers(_Declared, Regression):
    """A declared loss with labels up to `label_bound`."""

    width: float = 1.0

    def __post_init__(self) -> None:
        Regression.__post_init__(self)
        _begin(self)


def declared_loss(name: str, declaration: Declaration, *, vouched_by: str) -> type[Loss]:
    """Return the family of losses that a declaration describes, to be called with its bounds.

    `vouched_by` says in every promise who stands in for the constants. Its losses raise ConfigError, with the point,
    where a grid refutes one.
    """
    voucher = "".join(each if each.isprintable() else " " for each in vouched_by)[:500]
    if not voucher.strip():
        raise ConfigError(f"Expected vouched_by to name who vouches for the constants of loss {name!r}, got nothing.")
    base: type = OfSigns if declaration.labels == "signs" else OfNumbers
    held = {
        "__slots__": (),
        "__doc__": f"{name}, vouched for by {voucher}.",
        "name": name,
        "declaration": declaration,
        "voucher": " ".join(voucher.split()),
        "convex": declaration.convex,
        "values": Pointwise.of_scalar(declaration.value),
        "slopes": Pointwise.of_scalar(declaration.slope),
    }
    return cast(type[Loss], new_class(name, (base,), exec_body=lambda namespace: namespace.update(held)))


def installed() -> tuple[str, ...]:
    """Return names of the losses that installed distributions bring."""
    return tuple(sorted({entry.name for entry in _entries()}))


@cache
def installed_loss(name: str) -> type[Loss]:
    """Return the loss that an installed distribution brings under this name.

    Raises ConfigError unless exactly one brings it, and for what cannot be imported or is no Declaration.
    """
    found = [entry for entry in _entries() if entry.name == name]
    if len(found) != 1:
        brought = ", ".join(_voucher(entry) for entry in found) or "none"
        raise ConfigError(
            f"Expected one installed distribution with a loss {name!r}, got {brought}. Remove the others."
        )
    try:
        declaration = found[0].load()
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
        raise ConfigError(f"Expected {found[0].value} to hold loss {name!r}, got {said}.") from error
    if not isinstance(declaration, Declaration):
        kind = type(declaration).__name__
        raise ConfigError(f"Expected {found[0].value} to be a Declaration, for loss {name!r}, got a {kind}.")
    return declared_loss(name, declaration, vouched_by=_voucher(found[0]))


@cache
def _entries() -> tuple[EntryPoint, ...]:
    return tuple(entry_points(group=GROUP))


def _voucher(entry: EntryPoint) -> str:
    """Author and distribution, as its metadata has them."""
    if entry.dist is None:
        return entry.value
    metadata = entry.dist.metadata
    author = next((metadata[key] for key in ("Author", "Author-email") if key in metadata), None)
    distribution = f"{metadata['Name']} {entry.dist.version}"
    return f"{author} ({distribution})" if author else distribution


def _begin(loss: Loss) -> None:
    width: float = cast(Any, loss).width
    Loss._positive("width", width)
    _ = loss.curvature
    _check(loss, _FIRST)


def _constant(name: str, what: str, value: Any, *, zero: bool) -> float:
    if not (np.isfinite(value) and (value > 0 or (zero and value == 0))):
        raise ConfigError(f"Expected {what} {'>=' if zero else '>'} 0 and finite of loss {name!r}, got {value}.")
    return float(value)


def _declared_slope(loss: Loss, largest: float) -> float:
    own = cast(Any, loss)
    given = own.declaration.slope_bound
    found = given(largest, getattr(loss, "label_bound", 1.0), own.width) if callable(given) else given
    return _constant(loss.name, "slope_bound", found, zero=largest == 0)


@lru_cache(maxsize=1024)
def _check(loss: Loss, largest: float) -> None:
    """ConfigError, with the point, where the grid of predictions up to `largest` refutes what is declared."""
    bound, most, steepest = getattr(loss, "label_bound", 1.0), loss.curvature or 0.0, _declared_slope(loss, largest)
    labels = np.array([-1.0, 1.0]) if isinstance(loss, Classification) else np.linspace(-bound, bound, _LABELS)
    for label in labels:
        at = _grid(float(label), largest)
        try:
            values, slopes = loss.value(at, label), loss.slope(at, label)
        except Exception as error:  # numba's own errors, and what an author's function raises
            said = " ".join(str(error).split()[:40])
            raise ConfigError(
                f"Expected value and slope of loss {loss.name!r} to be functions that numba compiles, got "
                f"{type(error).__name__}: {said}"
            ) from error
        slack = _SLACK * max(float(np.abs(slopes).max()), steepest)
        _refuse(loss, "finite values and slopes", ~np.isfinite(values + slopes), values, at, label)
        over = np.abs(slopes) > steepest * (1 + _SLACK)
        _refuse(loss, f"|slope| <= slope_bound={steepest:g}", over, slopes, at, label)
        gaps, changes = np.diff(at), np.diff(slopes)
        bent = np.abs(changes) > most * gaps + slack
        _refuse(loss, f"|change of slope| <= curvature={most:g} times the distance", bent, changes / gaps, at, label)
        if loss.convex:
            _refuse(loss, "slopes that never fall, as declared convex", changes < -slack, changes, at, label)
        # By the mean value theorem a step of the value has the slope of a point between.
        rounding = 1e-13 * (1 + np.abs(values[:-1]) + np.abs(values[1:])) / gaps
        apart = np.abs(np.diff(values) / gaps - slopes[:-1])
        wrong = apart > most * gaps + slack + rounding
        _refuse(loss, "slope to be the derivative of value", wrong, np.diff(values) / gaps, at, label)


def _grid(label: float, largest: float) -> Vector:
    """Predictions, even ones and some close to 0 and to the label, in order and distinct."""
    close = np.geomspace(1e-4, 1.0, 200) * min(largest, 1.0)
    tried = [np.linspace(-largest, largest, _POINTS), close, -close, label + close, label - close]
    return np.unique(np.clip(np.concatenate(tried), -largest, largest))


def _refuse(loss: Loss, wanted: str, wrong: Any, found: Vector, at: Vector, label: float) -> None:
    if np.any(wrong):
        i = int(np.argmax(wrong))
        raise ConfigError(
            f"Expected {wanted} of loss {loss.name!r}, got {found[i]:.6g} at prediction {at[i]:.6g} with label "
            f"{label:g}. Correct its declaration."
        )
