"""Sections of a configuration: what all are, and the one that says what the rows of a table are and what they mean."""

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from quoron_client.data.encoding import AnyLabel, ByClass, read_label
from quoron_client.data.features import MAX_COLUMNS as MOST
from quoron_client.data.features import Vocabulary
from quoron_client.data.formats import Dialect, can_separate
from quoron_privacy.errors import ConfigError

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Fraction = Annotated[float, Field(ge=0, lt=1)]
Count = Annotated[int, Field(ge=1)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]


class Section(BaseModel):
    """One table of the configuration."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class OutlierSection(Section):
    """Users of a simulation who do not answer honestly."""

    share: Fraction = Field(default=0.0, description="share of users who are outliers")
    send: Literal["shifted", "huge", "nan", "inf", "missing", "zero"] = Field(
        default="shifted", description="what they send"
    )


class SiloSection(Section):
    """Clients that hold many users each."""

    sizes: Annotated[tuple[Count, ...], Field(min_length=1)] | Count = Field(
        description="how many silos, or how many users each has, as a list, which is public"
    )
    sums: bool = Field(
        default=False,
        description="each silo clips the rows of its own users and sends one sum: less to send, and its users trust it "
        "with that",
    )
    away: tuple[Count, ...] = Field(default=(), description="of a simulation: silos that never answer, from 1")
    hostile: tuple[Count, ...] = Field(
        default=(), description="of a simulation: silos that send as much as is taken of them, against the others"
    )


class Simulated(Section):
    """What every simulated population has."""

    items_per_user: Count | None = Field(
        default=None, description="nominal number m of items of a user, public; default: the population's, of a table 1"
    )
    outliers: OutlierSection = Field(
        default=OutlierSection(), description="of a simulation: users who do not answer honestly"
    )
    seed: Seed = Field(default=0, description="seed of the users (and which are held out), apart from the run's seed")
    silos: SiloSection | None = Field(
        default=None,
        description="clients that hold many users each (docs/silos.md); `silos = 3` is short for "
        "{ sizes = 3 }. Default: every user has a client of its own",
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


class Csv(Section):
    """How a table's text is written."""

    separator: str | None = Field(
        default=None, description="what separates cells, one character; default: what the header has"
    )
    decimal: Literal[".", ","] = Field(
        default=".", description="how numbers are written; with `','` they are `3,14` and `1.234,5`"
    )
    encoding: Literal["utf-8", "utf-16", "utf-16-le", "utf-16-be", "latin-1", "cp1252"] | None = Field(
        default=None, description="default: UTF-8, or UTF-16 where the file's first two bytes say so"
    )
    quoting: Literal["double", "none"] = Field(
        default="double",
        description="whether cells may stand in quotes, a quote in them being doubled; with `none` a quote is a letter "
        "like others, and every line end ends a row",
    )

    @field_validator("separator")
    @classmethod
    def _one_letter(cls, separator: str | None) -> str | None:
        if separator is not None and not can_separate(separator):
            raise ValueError("to be one character, such as ';' or a tab ($'\\t' in a shell)")
        return separator


class LabelSection(Section):
    """What is predicted, and what its values mean: `label = "ill"` is short for `label = { column = "ill" }`."""

    column: str = Field(
        description="a column of true/false, 0/1 or -1/+1, or a comparison such as 'arr_delay > 15', or a column that "
        "`positive`, `classes` or `range` speaks of"
    )
    positive: bool | int | str | None = Field(
        default=None, description="the label's value that counts as positive: a text, an integer or true; others do not"
    )
    classes: Vocabulary = Field(
        default=(), description="public values of the label: two, the first of them negative, or more for softmax"
    )
    range: tuple[float, float] | None = Field(
        default=None,
        description="public range [low, high] of a regression's label in its own units; values outside are held at "
        "the ends",
    )

    def read(self, bound: float = 1.0) -> AnyLabel:
        """Return what is meant, a regression's label scaled to [-bound, bound]. ConfigError as `read_label`."""
        return read_label(
            self.column, positive=self.positive, classes=tuple(self.classes), range=self.range, bound=bound
        )


class ColumnsSection(Section):
    """How the columns of a row become an item; in Python `columns=Columns(...)`."""

    numeric: dict[str, tuple[float, float]] = Field(
        default_factory=dict,
        description="numeric features, { column = [low, high] }, public; also by `x[0:9]`, which is x0 to x8, and by "
        "patterns: `x*`, and `*` for all columns that are not declared",
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
        "shares of classes that the data quality check estimates (docs/tables.md): 'balanced:5' holds the largest "
        "weight to 5 times the smallest, 'balanced' to 10 times; default: all alike",
    )
    missing: Literal["drop", "midpoint"] = Field(
        default="drop",
        description="what becomes of a row with a numeric feature that is no number: it is left out, or the feature is "
        "taken to be in the middle of its range; rows without a usable label are always left out",
    )
    intercept: bool = Field(default=True, description="add a constant feature")
    normalize: bool = Field(default=False, description="scale each row to the feature norm by its own length")
    csv: Csv = Field(default=Csv(), description="how a file of text is written, by its keys (docs/table-files.md)")

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


class TableSection(Simulated):
    """A file, or a folder of Parquet files, with one item a row and a column that names the user."""

    kind: Literal["table"] = "table"
    users: Count | None = Field(
        default=None,
        description="declared number of users, for `quoron train` with adjacency zero-out: slots without rows hold "
        "nobody. With replace-one the number of users in the table is public",
    )
    path: str = Field(
        description="a file (.csv, .tsv, .jsonl, these with .gz, .parquet, .feather), relative to the configuration "
        "file; `package:NAME.parquet` is one that ships with quoron: `storms`, `scorecard` or `flights`; a folder of "
        "Parquet files, or a URL such as `s3://bucket/visits`, is read piece by piece (docs/large-data.md)"
    )
    user: str = Field(description="column that says whose item a row is")
    label: LabelSection | None = Field(default=None, description="what is predicted; none for the linear loss only")
    columns: ColumnsSection = Field(
        default=ColumnsSection(),
        description="what the others mean; default: estimated within ε by `quoron train`",
    )
    test_fraction: Fraction = Field(default=0.2, description="share of users held out to measure the model")

    @property
    def dialect(self) -> Dialect:
        """How its text is written, as far as that is declared."""
        return Dialect(**self.columns.csv.model_dump())
