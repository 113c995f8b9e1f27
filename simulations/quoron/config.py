"""The configuration of a run: TOML in, checked and frozen objects out.

    >>> config = parse('[privacy]\\nepsilon = 2.0')
    >>> config.privacy.epsilon, config.population.kind
    (2.0, 'synthetic')

Every key has a default, but for a table's path and user. Unknown keys are refused. The reference page,
docs/config-reference.md, is generated from these classes.
"""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from quoron import toml_text
from quoron._explain import explain
from quoron.network import Network, several
from quoron.paths import PACKAGED, is_url
from quoron.sections import Setting, overlay
from quoron_client.data.dialect import Dialect, can_separate
from quoron_client.data.labels import ByClass
from quoron_client.data.spans import MOST, Vocabulary, ranged, values
from quoron_privacy.errors import ConfigError
from quoron_server.budget import EVERYONE

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


class SyntheticSection(Simulated):
    """Users drawn on demand from a counter-based generator: ten million of them need no memory."""

    kind: Literal["synthetic"] = "synthetic"
    family: Literal["logistic", "least_squares", "linear", "quadratic"] = Field(
        default="logistic", description="how labels are drawn"
    )
    users: Count = Field(default=300_000, description="number of users n")
    items_per_user: Count = Field(default=50, description="items of each user m")
    dimension: Count = Field(default=10, description="number of features d")
    signal_norm: NonNegative = Field(
        default=3.0, description="Euclidean norm of the true parameter (linear: of the mean, quadratic: of the optimum)"
    )
    label_noise: NonNegative = Field(default=0.1, description="least squares: labels are off by at most this")
    steep: Positive = Field(
        default=1.0, description="quadratic: curvature of every item's loss along the first coordinate"
    )
    flat: Positive = Field(default=0.01, description="quadratic: curvature along all others, where the optimum lies")
    heterogeneity: NonNegative = Field(
        default=0.0, description="spread between users' own parameters; 0 is i.i.d. users"
    )
    unequal_items: bool = Field(
        default=False, description="draw each user's number of items uniformly from 1 to 2m - 1"
    )
    in_memory: bool = Field(
        default=False,
        description="make all users once and keep them (4 n m d bytes) rather than whenever they are asked: for "
        "several passes; the numbers are the same",
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
    buy: dict[str, Literal["number", "category", "any"]] = Field(
        default_factory=dict,
        description="for `quoron train`, columns whose declaration is bought within ε (docs/train.md), "
        "{ column = kind }: `number` for its range, `category` for its values, `any` for which of these it is, too; "
        "`x*`, and `*` for all of which nothing is said. `numeric = [columns]` is short for numbers. Default, where no "
        "feature is declared: all",
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
        default=(), description="columns that patterns leave out, by name or by patterns of their own: `id*`"
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
    missing: Literal["drop", "middle"] = Field(
        default="drop",
        description="what becomes of a row with a numeric feature that is no number: it is left out, or the feature is "
        "taken to be in the middle of its range; rows without a usable label are always left out",
    )
    intercept: bool = Field(default=True, description="add a constant feature")
    unit_rows: bool = Field(default=False, description="scale each row to the feature norm by its own length")
    test_fraction: Fraction = Field(default=0.2, description="share of users held out to measure the model")

    @property
    def dialect(self) -> Dialect:
        """How its text is written, as far as that is declared."""
        return Dialect(self.separator, self.decimal, self.encoding, self.quoting)

    @field_validator("separator")
    @classmethod
    def _one_letter(cls, separator: str | None) -> str | None:
        if separator is not None and not can_separate(separator):
            raise ValueError("to be one character, such as ';' or a tab")
        return separator

    @field_validator("numeric", mode="before")
    @classmethod
    def _with_ranges(cls, given: object) -> object:
        named = dict.fromkeys(given) if isinstance(given, list) else given
        if not isinstance(named, dict):
            return named
        if None in named.values():
            raise ValueError(
                "to have a range for every column, as { column = [low, high] } or by ranges = [low, high], or released "
                "by `quoron declare`"
            )
        return {column: tuple(ends) if isinstance(ends, list) else ends for column, ends in named.items()}

    @field_validator("categorical", mode="before")
    @classmethod
    def _by_name(cls, given: object) -> object:
        named = dict.fromkeys([given] if isinstance(given, str) else given) if isinstance(given, list | str) else given
        return {k: () if v is None else v for k, v in named.items()} if isinstance(named, dict) else named

    @field_validator("dates", mode="before")
    @classmethod
    def _by_part(cls, given: object) -> object:
        named = dict.fromkeys(given, ("month", "weekday")) if isinstance(given, list) else given
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
                raise ValueError(f"to hold [low, high] with low < high, the lower end first, for column {column!r}")
        return ranges


class FlightsSection(Simulated):
    """Flights out of New York in 2013; the user is the aircraft, the label `arr_delay > 15`. Ships with quoron.

    A fifth of the aircraft is held out; the loss is logistic.
    """

    kind: Literal["flights"] = "flights"


class CubeSection(Simulated):
    """Means of coins on a box, for which a lower bound is known (docs/privacy/linf-filter.md); the loss is linear.

    Items are -A or A in each coordinate, A the loss's `feature_bound`, by default 1. The domain has to be a box.
    """

    kind: Literal["cube"] = "cube"
    users: Count = Field(default=40_000, description="number of users n")
    items_per_user: Count = Field(default=100, description="items of each user m")
    dimension: Count = Field(default=20, description="number of coordinates d")
    spread: Positive | None = Field(
        default=None,
        description="every coordinate's mean is drawn from [-spread, spread]; default: where the lower bound for this "
        "epsilon is largest",
    )


class LossSection(Section):
    """The loss of one item. Its bounds are enforced on every item, so that they hold for every conceivable user."""

    name: str = Field(
        default="auto",
        description="which loss: logistic, least_squares, huber, smoothed_hinge, hinge, absolute, linear, softmax, "
        "quadratic (of the synthetic family), or one that an installed package brings (docs/losses.md); auto: that of "
        "a synthetic family; of a table least_squares with a label_range, softmax with three classes or more, else "
        "logistic",
    )
    feature_norm: Positive = Field(default=1.0, description="features are scaled down to this Euclidean norm R")
    label_bound: Positive = Field(default=1.0, description="regression labels are clipped to [-bound, bound]")
    width: Positive = Field(
        default=1.0,
        description="width of the smooth part: Huber's threshold, the hinge's rounding, or that of a package's loss",
    )
    classes: Annotated[int, Field(ge=2, le=10_000)] | None = Field(
        default=None, description="number of classes of the softmax loss, whose labels are 0, 1, ..., classes - 1"
    )
    ridge: NonNegative = Field(default=0.0, description="adds ridge/2 times the squared norm of the model")
    feature_bound: Positive | None = Field(
        default=None, description="every feature is held within [-bound, bound], beside feature_norm; default: by it"
    )
    active_features: Count | None = Field(
        default=None,
        description="at most so many features of an item that are not zero, the largest; makes Hessians diagonally "
        "dominant, docs/losses.md. Default: all",
    )

    @field_validator("name")
    @classmethod
    def _known(cls, name: str) -> str:
        if name not in ("auto", "logistic"):
            from quoron_client.losses import loss_names  # heavy

            names = ("auto", *loss_names())
            if name not in names:
                raise ValueError(f"to be {', '.join(map(repr, names[:-1]))} or {names[-1]!r}")
        return name


class DomainSection(Section):
    """The set that models live in, centred at zero."""

    kind: Literal["l2-ball", "box"] = Field(default="l2-ball", description="Euclidean ball, or box")
    radius: Positive | None = Field(
        default=None,
        description="radius of the ball, or half width of the box. Default: 3 / feature_norm; for a table, with "
        "methods whose noise does not depend on it, 30 / feature_norm, or as much more as n, d and epsilon allow",
    )


class ProblemSection(Section):
    """Public knowledge about the users, fixed without looking at them."""

    items_per_user: Count | None = Field(default=None, description="nominal m; default: the population's public value")
    user_smoothness: str | float = Field(
        default="item",
        description="bound on the Hessian of a user's average loss, enforced by scaling on the client: the item's own "
        "bound, the bound for features spread evenly in all directions, or a number",
    )
    gradient_deviation: Positive | None = Field(
        default=None,
        description="standard deviation of an item's gradient, to predict risk; default: the Lipschitz bound",
    )

    hostile_share: Annotated[float, Field(ge=0, lt=0.5)] | None = Field(
        default=None,
        description="declared share of users that may send anything; default: of synthetic users their "
        "outlier_fraction, else 0",
    )

    @field_validator("user_smoothness", mode="before")
    @classmethod
    def _bound_or_rule(cls, value: object) -> object:
        number = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf
        if not number and value not in ("item", "isotropic"):
            raise ValueError("to be 'item', 'isotropic' or a number > 0")
        return value


class PrivacySection(Section):
    """The promise wanted for one whole user."""

    epsilon: Positive = Field(default=1.0, description="ε")
    delta: Annotated[float, Field(gt=0, lt=1)] = Field(default=1e-6, description="δ")
    allow_large_delta: bool = Field(default=False, description="accept a δ above 1/n of a table's or a federation's n")
    adjacency: Literal["replace-one", "zero-out"] = Field(
        default="replace-one", description="the adjacency to promise: a user's data replaced, or only left out (weaker)"
    )
    quorum: Annotated[float, Field(gt=0, lt=1)] | Literal["none"] | None = Field(
        default=None,
        description="share of those asked who must answer in every round, by a noisy count, or the run ends without a "
        "model; 'none' declares that nobody checks. Default: none, but 0.5 with `quoron submit`",
    )
    quorum_epsilon: Positive | None = Field(
        default=None,
        description="of epsilon, for a quorum that costs something, at most; default: a twentieth of epsilon",
    )
    trust_server: bool = Field(
        default=True, description="whether the coordinator may see answers; false leaves exposure `local` only"
    )


class AlgorithmSection(Section):
    """Which algorithm, with which constants."""

    name: str = Field(
        default="auto", description="a name from `quoron algorithms`, or auto: a rule chooses, docs/choosing.md"
    )
    constants: Literal["calibrated", "paper"] = Field(
        default="calibrated", description="proved and calibrated, or as printed in the paper (for comparison, unproved)"
    )
    trust_clients: bool = Field(
        default=False,
        description="accept exposure `model` in a real federation: clients see un-noised iterates, and are trusted to "
        "tell nobody, to send true gradients, and to answer or not whatever the iterate is",
    )
    options: dict[str, Any] = Field(default_factory=dict, description="options of that algorithm")


class BudgetSection(Section):
    """Limits that a run is refused for, before it exceeds them; rounds are also planned for."""

    rounds: Count | None = Field(
        default=None, description="rounds of adaptive interaction; the plan takes exactly so many"
    )
    gradient_evaluations: Count | None = Field(default=None, description="item gradients")
    epsilon: Positive | None = Field(default=None, description="ε spent")


class RunSection(Section):
    """One run of the plan."""

    seed: Seed = Field(default=0, description="public seed of slots: who is asked when; never of noise")
    simulation_seed: Seed = Field(
        default=0, description="of a simulation: seed of its noise and of what its users draw, which protects nobody"
    )
    out: str | None = Field(default=None, description="run folder; default: runs/<name>-<number>")
    network: str | None = Field(
        default=None,
        description="network to project time over, such as 'phones' or 'rtt=80ms,up=1Mbps,down=10Mbps,dropout=5%'; "
        "plans and comparisons take several, as in 'phones,hospitals,datacentre'; docs/network.md",
    )

    @field_validator("network")
    @classmethod
    def _readable(cls, network: str | None) -> str | None:
        if network is not None:
            several(network)
        return network

    @property
    def networks(self) -> dict[str, Network]:
        """The networks by their texts; none, one or, of names and mixes, several."""
        return {} if self.network is None else several(self.network)

    @property
    def link(self) -> Network | None:
        """The network of a run, if one is given; ConfigError for several."""
        if len(self.networks) > 1:
            raise ConfigError(
                f"Expected one network for a run, got {self.network!r}. Plans and comparisons take several."
            )
        return next(iter(self.networks.values()), None)

    @property
    def dropout(self) -> float:
        """Probability that an asked user does not answer; several networks are names and mixes, which have none."""
        return max((network.dropout for network in self.networks.values()), default=0.0)


class TrainSection(Section):
    """Training for real on a table that one machine holds: `quoron train`. Simulations leave it alone."""

    group: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9 ._-]{0,63}$")] = Field(
        default=EVERYONE,
        description="name for the people in the table: all runs on the same people are charged to one name",
    )
    ledger: str | None = Field(
        default=None,
        description="file of the lifetime ledger; default: QUORON_LEDGER, else where the platform keeps programs' data",
    )
    health: Annotated[float, Field(ge=0, le=0.5)] | None = Field(
        default=None,
        description="share of μ² for a noisy look at the table before training (docs/train.md); 0: nobody looks",
    )
    buying: Annotated[float, Field(gt=0, le=0.9)] | None = Field(
        default=None,
        description="share of μ² for declarations that are bought; default: by the number of users and of columns",
    )
    users: Count | None = Field(
        default=None,
        description="declared number of users, for adjacency zero-out: slots without rows hold nobody. With "
        "replace-one the number of users in the table is public",
    )


class Config(Section):
    """A complete configuration."""

    population: Annotated[
        SyntheticSection | TableSection | FlightsSection | CubeSection, Field(discriminator="kind")
    ] = SyntheticSection()
    loss: LossSection = LossSection()
    domain: DomainSection = DomainSection()
    problem: ProblemSection = ProblemSection()
    privacy: PrivacySection = PrivacySection()
    algorithm: AlgorithmSection = AlgorithmSection()
    budget: BudgetSection = BudgetSection()
    run: RunSection = RunSection()
    train: TrainSection = TrainSection()

    def as_toml(self) -> str:
        """The configuration with every default written out."""
        return toml_text.dumps(self.model_dump(mode="json")) + "\n"

    def digest(self) -> str:
        """Fingerprint of everything that decides the run's bits; where run and table are kept is left out."""
        tree = self.model_dump(mode="json", exclude={"run": {"out"}, "population": {"path"}, "train": {"ledger"}})
        return hashlib.sha256(json.dumps(tree, sort_keys=True).encode()).hexdigest()


def from_tree(tree: Mapping[str, Any]) -> Config:
    """The checked configuration of nested tables; raises ConfigError naming each wrong key, its value and the fix."""
    try:
        return Config.model_validate_json(
            json.dumps(_with_loss(_with_bought(_with_ranges(_with_kind(tree)))), default=str)
        )
    except ValidationError as error:
        raise ConfigError(explain(error, Config)) from None


def parse(text: str, source: str = "the configuration", settings: Sequence[Setting] = ()) -> Config:
    """The configuration of a TOML text, with settings laid over it."""
    return from_tree(overlay(toml_text.parse(text, source), settings))


def read(path: Path) -> toml_text.Tree:
    """The sections of a file; ConfigError if it cannot be read."""
    try:
        return toml_text.parse(path.read_text(encoding="utf-8"), str(path))
    except OSError as error:
        raise ConfigError(f"Expected a readable configuration file, got {path} ({error.strerror}).") from None
    except UnicodeDecodeError:
        raise ConfigError(f"Expected {path} to be UTF-8 text, got other bytes.") from None


def located(config: Config, folder: Path) -> Config:
    """The same configuration with the paths of a table and of a lifetime ledger made absolute, relative to `folder`."""
    if config.train.ledger is not None:
        ledger = str((folder / Path(config.train.ledger).expanduser()).resolve())
        config = config.model_copy(update={"train": config.train.model_copy(update={"ledger": ledger})})
    if not isinstance(config.population, TableSection) or config.population.path.startswith(PACKAGED):
        return config
    if is_url(config.population.path):
        return config
    path = str((folder / config.population.path).resolve())
    return config.model_copy(update={"population": config.population.model_copy(update={"path": path})})


def _with_kind(tree: Mapping[str, Any]) -> Mapping[str, Any]:
    """A population without a kind is synthetic, as the default is."""
    population = tree.get("population")
    if isinstance(population, Mapping) and "kind" not in population:
        return {**tree, "population": {"kind": "synthetic", **population}}
    return tree


def _with_bought(tree: Mapping[str, Any]) -> Mapping[str, Any]:
    """Columns of numbers without a range are columns whose range is bought."""
    population = tree.get("population")
    numeric = population.get("numeric") if isinstance(population, Mapping) else None
    if isinstance(numeric, list | tuple):
        numeric = dict.fromkeys(numeric)
    if not isinstance(population, Mapping) or not isinstance(numeric, Mapping) or None not in numeric.values():
        return tree
    said = {column: ends for column, ends in numeric.items() if ends is not None}
    bought = {column: "number" for column, ends in numeric.items() if ends is None}
    return {**tree, "population": {**population, "numeric": said, "buy": {**population.get("buy", {}), **bought}}}


def _with_ranges(tree: Mapping[str, Any]) -> Mapping[str, Any]:
    """Columns of numbers that are listed have their range of `ranges`. ConfigError for a range of no such column."""
    population = tree.get("population")
    if not isinstance(population, Mapping):
        return tree
    numeric, ranges = population.get("numeric", {}), population.get("ranges")
    listed = [numeric] if isinstance(numeric, str) else numeric
    named = dict.fromkeys(listed) if isinstance(listed, list | tuple) and all(map(_is_text, listed)) else listed
    if not isinstance(named, Mapping) or (ranges is None and numeric is named):
        return tree
    bare = [column for column, ends in named.items() if ends is None]
    if isinstance(ranges, Mapping):
        named = {**named, **ranged(bare, ranges)}
    elif ranges is not None:
        if not bare:
            return tree
        named = {**named, **dict.fromkeys(bare, ranges)}
    return {**tree, "population": {**population, "numeric": named, "ranges": None}}


def _tuples(tree: Mapping[str, Any]) -> dict[str, Any]:
    """What a validator was given as lists, as fields take them."""
    return {key: tuple(value) if isinstance(value, list) else value for key, value in tree.items()}


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _with_loss(tree: Mapping[str, Any]) -> Mapping[str, Any]:
    """A loss that is left to us follows from what a table's label is declared to be."""
    population, loss = tree.get("population"), tree.get("loss", {})
    if not (isinstance(population, Mapping) and isinstance(loss, Mapping)):
        return tree
    many = len(values(population.get("classes")))
    chosen = "least_squares" if population.get("label_range") else "softmax" if many > 2 else None
    name = loss.get("name", "auto")
    if chosen and name == "auto":
        name, loss = chosen, {**loss, "name": chosen}
    if many > 2 and name == "softmax" and loss.get("classes") is None:
        loss = {**loss, "classes": many}
    return {**tree, "loss": loss} if loss else tree
