"""How the rows of a table become items: the keys of `columns=` and `label=`, and how a shell types them.

    >>> read("numeric", ["age=0:100,dose=-1:1"])
    {'age': (0.0, 100.0), 'dose': (-1.0, 1.0)}
    >>> read("categorical", ["ward=north,south", "grade=1,2,3"])
    {'ward': ['north', 'south'], 'grade': [1, 2, 3]}
    >>> written_out({"population": {"label": "ill", "columns": {"numeric": ["dose"]}}})
    {'population': {'label': {'column': 'ill'}, 'columns': {'numeric': {}, 'estimate': {'dose': 'number'}}}}

A new key is a line here, one of the docstring of `Columns` or `Label`, and the field of that name of `ColumnsSection`
or `LabelSection`, which checks it and says in the reference what it means. Of these `TYPED` are options of the
commands; all are set by `--set population.columns.KEY=`, in TOML. What is given is passed to the field as it is.
"""

import csv
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypedDict

from quoron_privacy.errors import ConfigError

SHORT = (  # tables that one value may stand for, and its key within
    ("population", "label", "column"),
    ("population", "silos", "sizes"),
    ("privacy", "min_cohort", "share"),
)


def _ranges(typed: str) -> dict[str, tuple[float, float] | None]:
    """`age=0:100,dose=0:5`; or `age,dose`, whose ranges nobody says."""
    named: dict[str, tuple[float, float] | None] = {}
    for part in _parts(typed):
        column, equals, ends = part.rpartition("=")
        if equals:
            low, high = map(float, ends.split(":"))
            named[column] = low, high
        else:
            named[part] = None
    return named


def _vocabularies(typed: str) -> dict[str, list[str] | list[int] | None]:
    """`ward=north,south`, or `ward,clinic`, whose values nobody says."""
    column, equals, listed = typed.partition("=")
    return {column: integers(_parts(listed))} if equals else dict.fromkeys(_parts(typed))


TYPED: dict[str, tuple[str, Callable[[str], dict[str, Any]]]] = {  # an option, how it is typed, and who reads that
    "numeric": ("COLUMN=LOW:HIGH,...", _ranges),
    "categorical": ("COLUMN=VALUE,...", _vocabularies),
}


def _parts(typed: str) -> list[str]:
    """Return what commas part; quotes keep one together."""
    return [part.strip() for part in next(csv.reader([typed], skipinitialspace=True), []) if part.strip()]


def integers(texts: Sequence[str]) -> list[str] | list[int]:
    """Return the texts as integers if all of them are integers, as a reader of the same file has them."""
    return [int(text) for text in texts] if all(map(_is_integer, texts)) else list(texts)


def _is_integer(text: str) -> bool:
    digits = text.removeprefix("-")
    return len(digits) < 19 and digits.isascii() and digits.isdigit() and str(int(text)) == text


class Columns(TypedDict, total=False):
    """How the rows of a table become items: what `columns=` takes, as does a mapping of the same keys.

        >>> columns = Columns(numeric={"age": (0, 100)}, categorical={"ward": ["north", "south"]})
        >>> columns == {"numeric": {"age": (0, 100)}, "categorical": {"ward": ["north", "south"]}}
        True

    Args:
        numeric: public range of each column of numbers.
        categorical: public values of a column of words; once for each column.
        hashed: columns of too many values to list, each hashed into so many buckets.
        dates: parts of a column of dates: month, weekday, day, hour, year:FIRST:LAST, days:FIRST:LAST, format:...;
            once for each column.
        exclude: columns that patterns and estimates leave out.
        estimate: columns whose range or values are estimated privately, for a part of ε; by default all, where no
            feature is declared.
        weight: what a row counts: a column, and the most that it says.
        missing: what becomes of a row where a number is missing.
        csv: how a file of text is written: its separator, decimal, encoding, quoting.
        intercept: whether there is a constant.
        normalize: whether rows are divided by their own length.
        curves: a model that bends: polynomials of every number up to this degree.
        pairs: and products of two columns whose degrees multiply to this at most.
    """

    numeric: Mapping[str, tuple[float, float]] | Sequence[str] | str
    categorical: Mapping[str, Sequence[str | int]] | Sequence[str]
    hashed: Mapping[str, int]
    dates: Mapping[str, Sequence[str] | Mapping[str, Any]] | Sequence[str]
    exclude: Sequence[str]
    estimate: Mapping[str, Literal["number", "category", "any"]]
    weight: Mapping[str, str | float]
    missing: Literal["drop", "midpoint"]
    csv: Mapping[str, str]
    intercept: bool
    normalize: bool
    curves: int
    pairs: int


class Label(TypedDict, total=False):
    """What is predicted, and what its values mean: what `label=` takes, beside the name of a column alone.

    Args:
        column: column to predict, or a comparison such as 'delay > 15'; needed.
        positive: the label's value that counts as positive.
        classes: public values of the label.
        range: public range of a label that is a number.
    """

    column: str
    positive: str | int | bool
    classes: Sequence[str | int | bool]
    range: tuple[float, float]


def read(name: str, typed: Sequence[str]) -> dict[str, Any]:
    """What an option of `TYPED` says of each column, typed once or several times; None of a column without a value.

    ConfigError for what cannot be meant, and for two kinds of one column.
    """
    metavar, parse = TYPED[name]
    kinds: dict[str, Any] = {}
    for text in typed:
        try:
            parsed = parse(text)
        except ValueError:
            raise ConfigError(f"Expected --{name} {metavar}, got --{name} {text!r}.") from None
        for column, value in parsed.items():
            if kinds.setdefault(column, value) != value:
                raise ConfigError(f"Expected one --{name} of {column}, got {kinds[column]} and {value}. Leave one out.")
    return kinds


def written_out(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return sections, not yet checked, with what is written short as it is checked.

    `label = "ill"` is `label = { column = "ill" }`, and so on; columns that are listed are a mapping; and numeric
    columns without a range are columns to estimate.
    """
    sections = dict(tree)
    for section, key, inner in SHORT:
        given = sections.get(section)
        if isinstance(given, Mapping) and isinstance(given.get(key), str | int | float | list | tuple):
            sections[section] = {**given, key: {inner: given[key]}}
    population = sections.get("population")
    if isinstance(population, Mapping) and isinstance(population.get("columns"), Mapping):
        sections["population"] = {**population, "columns": _columns_written_out(population["columns"])}
    return sections


def _columns_written_out(given: Mapping[str, Any]) -> dict[str, Any]:
    columns = dict(given)
    for key, meant in (("numeric", None), ("categorical", []), ("dates", ["month", "weekday"])):
        named = [columns[key]] if isinstance(columns.get(key), str) else columns.get(key)
        if isinstance(named, list | tuple) and all(isinstance(column, str) for column in named):
            named = dict.fromkeys(named)
        if isinstance(named, Mapping):
            columns[key] = {column: meant if said is None else said for column, said in named.items()}
    numeric, dates, estimate = columns.get("numeric"), columns.get("dates"), columns.get("estimate", {})
    if isinstance(dates, Mapping):
        columns["dates"] = {
            name: {"parts": said} if isinstance(said, list | tuple) else said for name, said in dates.items()
        }
    if isinstance(numeric, Mapping) and None in numeric.values() and isinstance(estimate, Mapping):
        estimated = {column: "number" for column, ends in numeric.items() if ends is None}
        columns["numeric"] = {column: ends for column, ends in numeric.items() if ends is not None}
        columns["estimate"] = {**estimate, **estimated}
    return columns
