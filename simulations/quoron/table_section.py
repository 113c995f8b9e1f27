"""Sections of a configuration: what all are, and the one that says what the rows of a table are and what they mean.

>>> with_columns_listed({"numeric": ["age", "dose"], "ranges": {"age": [0, 100], "*": [0, 1]}})["numeric"]
{'age': [0, 100], 'dose': [0, 1]}
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from quoron.wildcards import ranged
from quoron_client.data.formats import Dialect, can_separate
from quoron_client.data.labels import ByClass
from quoron_client.data.spans import MOST, Vocabulary
from quoron_privacy.errors import ConfigError

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Fraction = Annotated[float, Field(ge=0, lt=1)]
Count = Annotated[int, Field(ge=1)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]


class Section(BaseModel):
    """One table of the configuration."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Simulated(Section):
    """What every simulated population has."""

    outlier_fraction: Fraction = Field(default=0.0, description="share of users who answer as `outlier_kind` says")
    outlier_kind: Literal["shifted", "huge", "nan", "inf", "missing", "zero"] = Field(
        default="shifted", description="what outlier users send"
    )
    seed: Seed = Field(default=0, description="seed of the users (and which are held out), apart from the run's seed")
    silos: Annotated[tuple[Count, ...], Field(min_length=1)] | Count | None = Field(
        default=None,
        description="clients that hold many users each, persons of theirs: how many, or their sizes as a list, which "
        "is public (docs/silos.md). Default: every user has a client of its own",
    )
    silo_sums: bool = Field(
        default=False,
        description="each silo clips its own persons' rows and sends one sum: less to send, and its own persons trust "
        "it with that",
    )
    silos_away: tuple[Count, ...] = Field(
        default=(), description="of a simulation: silos that never answer, by number from 1"
    )
    silos_hostile: tuple[Count, ...] = Field(
        default=(),
        description="of a simulation: silos that send as much as is taken of them, against the others",
    )


class Weighted(Section):
    """What a row counts in its user's average: a column's value divided by the most that it can be."""

    column: str = Field(description="column of the weights")
    most: Positive = Field(description="public largest weight, which counts 1; larger values are held at it")


class Dates(Section):
    """Which parts of a date or a time are features, and how they are written."""

    parts: tuple[Literal["month", "weekday", "day", "hour"], ...] = Field(
        default=(), description="one column of zeros and ones for each month, weekday, day of the month, hour"
    )
    year: tuple[int, int] | None = Field(default=None, description="the year as a number within [first, last]")
    days: tuple[str, str] | None = Field(
        default=None, description="days since the first of [first, last] as a number, both such as '2007-01-31'"
    )
    format: str = Field(
        default="iso", description="of text: ISO 8601, or one such as '%d.%m.%Y %H:%M'; 'unix', 'unix-ms' of numbers"
    )
    zone: str = Field(
        default="", description="the clock by which values with an offset are told, 'Europe/Berlin' or '+01:00'"
    )

    @model_validator(mode="after")
    def _something(self) -> Self:
        if len({*self.parts}) < len(self.parts) or not (self.parts or self.year or self.days):
            raise ValueError("to have parts, each once, or year, or days")
        return self


class TableSection(Simulated):
    """A file, or a folder of Parquet files, with one item a row and a column that names the user."""

    kind: Literal["table"] = "table"
    path: str = Field(
        description="a file (.csv, .tsv, .jsonl, these with .gz, .parquet, .feather), relative to the configuration "
        "file; `package:NAME.parquet` is one that ships with quoron: `storms`, `scorecard` or `flights`; a folder of "
        "Parquet files, or a URL such as `s3://bucket/visits`, is read piece by piece (docs/large-data.md)"
    )
    separator: str | None = Field(
        default=None, description="what separates cells of text, one character; default: what the header has"
    )
    decimal: Literal[".", ","] = Field(
        default=".", description="how numbers in text are written; with `','` they are `3,14` and `1.234,5`"
    )
    encoding: Literal["utf-8", "utf-16", "utf-16-le", "utf-16-be", "latin-1", "cp1252"] | None = Field(
        default=None, description="of text; default: UTF-8, or UTF-16 where the file's first two bytes say so"
    )
    quoting: Literal["double", "none"] = Field(
        default="double",
        description="whether cells may stand in quotes, a quote in them being doubled; with `none` a quote is a letter "
        "like others, and every line end ends a row",
    )
    user: str = Field(description="column that says whose item a row is")
    label: str | None = Field(
        default=None,
        description="a column of true/false, 0/1 or -1/+1, or a comparison such as 'arr_delay > 15', or a column that "
        "`positive`, `classes` or `label_range` speaks of; none for the linear loss only",
    )
    positive: bool | int | str | None = Field(
        default=None, description="the label's value that counts as positive: a text, an integer or true; others do not"
    )
    classes: Vocabulary = Field(
        default=(), description="public values of the label: two, the first of them negative, or more for softmax"
    )
    label_range: tuple[float, float] | None = Field(
        default=None,
        description="public range [low, high] of a regression's label in its own units; values outside are held at "
        "the ends",
    )
    numeric: dict[str, tuple[float, float]] = Field(
        default_factory=dict, description="numeric features, { column = [low, high] }, public; `x[0:9]`: x0 to x8; `x*`"
    )
    categorical: dict[str, Vocabulary] = Field(
        default_factory=dict,
        description="categorical features with their public values, { column = [values] }, or `'0:9'` for 0 to 8; an "
        "empty list takes the values in the data, which thereby become public",
    )
    estimate: dict[str, Literal["number", "category", "any"]] = Field(
        default_factory=dict,
        description="for `quoron train`, columns whose declaration is estimated within ε (docs/train.md), "
        "{ column = kind }: `number` for its range, `category` for its values, `any` for which of these it is, too; "
        "`x*`, and `*` for all of which nothing is said; the label's own name with `any` for what it is. "
        "`numeric = [columns]` is short for numbers. Default, where no feature is declared: all",
    )
    ranges: tuple[float, float] | dict[str, tuple[float, float]] | None = Field(
        default=None,
        description="of `numeric = [columns]`, or `'*'` for all others: one [low, high], or { column = [low, high] }, "
        "also by patterns, `*` for the rest",
    )
    hashed: dict[str, Annotated[int, Field(ge=2, le=MOST)]] = Field(
        default_factory=dict,
        description="features of too many values to list, { column = buckets }: each falls into one by a public hash",
    )
    dates: dict[str, Dates] = Field(
        default_factory=dict,
        description="dates and times, { column = ['month', 'weekday', 'day', 'hour'] }, or { column = { parts = [...], "
        "year = [2007, 2016], days = ['2007-01-01', '2016-12-31'], format = '%d.%m.%Y', zone = 'Europe/Berlin' } }",
    )
    exclude: tuple[str, ...] = Field(
        default=(),
        description="columns that patterns and estimates leave out, by name or by patterns of their own: `id*`",
    )
    weight: Weighted | None = Field(
        default=None,
        description="what a row counts, { column = name, most = number }: its value in the column divided by the "
        "public most, larger ones held at it; default: all count alike",
    )
    class_weight: ByClass | None = Field(
        default=None,
        description="what a row counts by its class: { class = number }, divided by the largest, or 'balanced', by the "
        "shares of classes that `quoron train` sees in its look at the table (docs/tables.md); default: all alike",
    )
    class_weight_cap: Annotated[float, Field(ge=1, allow_inf_nan=False)] = Field(
        default=10.0, description="balanced: the largest weight is at most so many times the smallest"
    )
    missing: Literal["drop", "midpoint"] = Field(
        default="drop",
        description="what becomes of a row with a numeric feature that is no number: it is left out, or the feature is "
        "taken to be in the middle of its range; rows without a usable label are always left out",
    )
    intercept: bool = Field(default=True, description="add a constant feature")
    normalize: bool = Field(default=False, description="scale each row to the feature norm by its own length")
    test_fraction: Fraction = Field(default=0.2, description="share of users held out to measure the model")

    @property
    def dialect(self) -> Dialect:
        """How its text is written, as far as that is declared."""
        return Dialect(self.separator, self.decimal, self.encoding, self.quoting)

    @field_validator("separator")
    @classmethod
    def _one_letter(cls, separator: str | None) -> str | None:
        if separator is not None and not can_separate(separator):
            raise ValueError("to be one character, such as ';' or a tab ($'\\t' in a shell)")
        return separator

    @field_validator("numeric", mode="before")
    @classmethod
    def _with_ranges(cls, given: object) -> object:
        named = _as_mapping(given)
        if not isinstance(named, dict):
            return named
        if None in named.values():
            raise ValueError(
                "to have a range for every column, as { column = [low, high] } or by ranges = [low, high], or released "
                "by `quoron bounds`"
            )
        return {column: tuple(ends) if isinstance(ends, list) else ends for column, ends in named.items()}

    @field_validator("categorical", mode="before")
    @classmethod
    def _by_name(cls, given: object) -> object:
        named = _as_mapping([given] if isinstance(given, str) else given)
        return {k: () if v is None else v for k, v in named.items()} if isinstance(named, dict) else named

    @field_validator("dates", mode="before")
    @classmethod
    def _by_part(cls, given: object) -> object:
        named = _as_mapping(given, ("month", "weekday"))
        if not isinstance(named, dict):
            return named
        said = {column: {"parts": each} if isinstance(each, list | tuple) else each for column, each in named.items()}
        return {column: _tuples(each) if isinstance(each, dict) else each for column, each in said.items()}

    @field_validator("ranges")
    @classmethod
    def _taken(cls, given: object) -> object:
        if given is not None:
            raise ValueError("to be beside numeric = [columns], whose ranges they are")
        return given

    @field_validator("numeric")
    @classmethod
    def _ordered(cls, ranges: dict[str, tuple[float, float]]) -> dict[str, tuple[float, float]]:
        for column, (low, high) in ranges.items():
            if not low < high:
                raise ConfigError(
                    f"Expected [low, high] with low < high for numeric column {column!r}, got [{low:g}, {high:g}]. "
                    "Declare the least value first."
                )
        return ranges


def _as_mapping(given: object, meant: object = None) -> object:
    """Columns that are listed, each with what is meant; anything else as it is."""
    listed = isinstance(given, list) and all(isinstance(each, str) for each in given)
    return dict.fromkeys(given, meant) if listed else given  # type: ignore[call-overload]


def with_columns_listed(population: Mapping[str, Any]) -> Mapping[str, Any]:
    """A section not yet checked, with ranges for numbers that are listed; those without are columns to estimate.

    ConfigError for a range of a column that is not listed.
    """
    return _with_bought(_with_ranges(population))


def _with_ranges(population: Mapping[str, Any]) -> Mapping[str, Any]:
    numeric, ranges = population.get("numeric", {}), population.get("ranges")
    listed = [numeric] if isinstance(numeric, str) else numeric
    named = dict.fromkeys(listed) if isinstance(listed, list | tuple) and all(map(_is_text, listed)) else listed
    if not isinstance(named, Mapping) or (ranges is None and numeric is named):
        return population
    bare = [column for column, ends in named.items() if ends is None]
    if isinstance(ranges, Mapping):
        named = {**named, **ranged(bare, ranges)}
    elif ranges is not None:
        if not bare:
            return population
        named = {**named, **dict.fromkeys(bare, ranges)}
    return {**population, "numeric": named, "ranges": None}


def _with_bought(population: Mapping[str, Any]) -> Mapping[str, Any]:
    numeric = population.get("numeric")
    if not isinstance(numeric, Mapping) or None not in numeric.values():
        return population
    said = {column: ends for column, ends in numeric.items() if ends is not None}
    bought = {column: "number" for column, ends in numeric.items() if ends is None}
    return {**population, "numeric": said, "estimate": {**population.get("estimate", {}), **bought}}


def _tuples(tree: Mapping[str, Any]) -> dict[str, Any]:
    """What a validator was given as lists, as fields take them."""
    return {key: tuple(value) if isinstance(value, list) else value for key, value in tree.items()}


def _is_text(value: object) -> bool:
    return isinstance(value, str)
