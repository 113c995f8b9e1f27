"""How results print, tabulate and plot themselves. pandas and matplotlib are imported by the call that needs them."""

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from html import escape
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from quoron_privacy.errors import ConfigError
from quoron_server.plan import few, in_lines

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes as Axes
else:
    Axes = Any

M = TypeVar("M")
NO_MORE = {"extra": "forbid"}  # of what is `restored`: a key that it does not have is an error


class Printed(ABC):
    """A result that prints ten lines at most, and the same rows as a table in a notebook."""

    __slots__ = ()
    __pydantic_config__: ClassVar[Any] = NO_MORE

    @property
    def title(self) -> str:
        """Return the name of the class, with the result's folder or its number of users."""
        where, users = getattr(self, "directory", None), getattr(self, "users", None)
        return type(self).__name__ + (f" in {where}" if where else f" of {users:,} users" if users else "")

    @abstractmethod
    def rows(self) -> list[tuple[str, str]]:
        """Return the label and text of each line. A result with a `statement` prints it as the last one."""

    def as_json(self) -> dict[str, Any]:
        """Return the fields, and those of dataclasses in them, as mappings."""
        return dict(asdict(self))  # type: ignore[call-overload]  # every result is a dataclass

    def _lines(self) -> list[tuple[str, str]]:
        stated = getattr(self, "statement", None)
        return self.rows() + ([] if stated is None else [("statement", stated)])

    def __repr__(self) -> str:
        return in_lines(self.title, self._lines())

    def _repr_html_(self) -> str:
        rows = (f"<tr><th>{escape(label)}</th><td>{escape(text)}</td></tr>" for label, text in few(self._lines()))
        return f"<table><caption>{escape(self.title)}</caption>{''.join(rows)}</table>"


class Tabular(Printed):
    """A result that is a table, too: of the rounds of a run in its `directory`, or of its own."""

    __slots__ = ()

    def records(self) -> Sequence[Mapping[str, Any]]:
        """Return one mapping of column to value for each row of the table; of a run, rounds as in rounds.parquet."""
        from quoron.run_folder import RunFolder  # it brings pydantic

        return RunFolder(getattr(self, "directory")).rounds()  # noqa: B009 (of the subclasses without their own rows)

    def to_pandas(self) -> "pd.DataFrame":
        """Return `records` as a pandas DataFrame. ConfigError without pandas."""
        return _needed("pandas", "to_pandas", "pandas").DataFrame(list(self.records()))


class Release(Tabular):
    """Numbers that were released once with noise, and what was promised for them: `epsilon`, `delta`, `statement`."""

    __slots__ = ()


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Run(Tabular, Generic[M]):
    """A complete run, trained or simulated: its model, its privacy guarantee and its folder.

    Args:
        model: the `quoron.Model` of a table; of other users a torch module, a tree of JAX or an array of shape (d,).
        weights: the model's numbers, shape (d,).
        statement: the privacy guarantee in one sentence.
        directory: the run's folder.
    """

    model: M
    weights: NDArray[np.float64]
    statement: str
    directory: Path

    @property
    def title(self) -> str:
        """Return "Run in" the folder."""
        return f"Run in {self.directory}"

    def as_json(self) -> dict[str, Any]:
        """Return plain numbers and strings: those of the summary where there is one, and the folder."""
        summary = getattr(self, "summary", None)
        return ({} if summary is None else summary.as_json()) | {"directory": str(self.directory)}


def restored(kind: Any, contents: Any) -> Any:
    """Return a dataclass, or what else `kind` says, of what `as_json` gave. ValueError for values of other kinds."""
    return _adapter(kind).validate_json(json.dumps(contents), strict=True)


@cache
def _adapter(kind: Any) -> Any:
    from pydantic import TypeAdapter  # rarely needed

    return TypeAdapter(kind)


def axes(ax: Axes | None, **labels: str) -> Axes:
    """Return `ax`, or the Axes of a new figure, with xlabel and so on set. ConfigError without matplotlib."""
    chosen = (
        _needed("matplotlib.pyplot", "plot", "'quoron[plot]'").subplots(layout="constrained")[1] if ax is None else ax
    )
    chosen.set(**labels)
    return chosen


def axes_of(count: int) -> list[Axes]:
    """Return so many Axes of a new figure, three in a row. ConfigError without matplotlib."""
    wide, high = min(count, 3), -(-count // 3)
    pyplot = _needed("matplotlib.pyplot", "plot", "'quoron[plot]'")
    figure = pyplot.figure(layout="constrained", figsize=(4 * wide, 3 * high))
    return [figure.add_subplot(high, wide, place + 1) for place in range(count)]


def _needed(module: str, caller: str, install: str) -> Any:
    if find_spec(package := module.partition(".")[0]) is None:
        raise ConfigError(f"{caller} needs {package}. pip install {install}.")
    return import_module(module)


def short(value: float, unit: str = "") -> str:
    """Return a number in few characters, with its unit if it has one.

    >>> short(900), short(15_000_000), short(0.00002), short(2_500_000, "B")
    ('900', '15M', '2e-05', '2.5 MB')
    """
    prefix = ""
    for larger in "kMGT":
        if abs(value) < 1000:
            break
        value, prefix = value / 1000, larger
    return f"{value:.3g}{' ' if unit else ''}{prefix}{unit}"


def size(count: float) -> str:
    """Return a number of bytes, as `short` writes it."""
    return short(count, "B")


def in_units(value: float) -> str:
    """Return a number in the label's own units: 11,622 and 0.01162, never 1.162e+04."""
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e15 else f"{value:.4g}"


def percent(share: float) -> str:
    """Return a share that is a bound: rounded up, to a tenth of a per cent.

    >>> percent(0.5), percent(0.73106), percent(0.99999)
    ('50 %', '73.2 %', '100 %')
    """
    return f"{min(math.ceil(1000 * share - 1e-9) / 10, 100):g} %"
