r"""The configuration of a run: TOML in, checked and frozen objects out.

    >>> config = parse('[privacy]\nepsilon = 2.0')
    >>> config.privacy.epsilon, config.population.kind
    (2.0, 'synthetic')

Every key has a default, but for a table's path and user. Unknown keys are refused. The reference page,
docs/config-reference.md, is generated from these classes. Errors name the dotted key, the value and the fix.
"""

import hashlib
import json
from collections.abc import Container, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from quoron import toml_text
from quoron.arguments import POPULATION, Setting, overlay
from quoron.data.columns import written_out
from quoron.paths import PACKAGED, is_url
from quoron_client.data.encoding import AnyLabel, read_label
from quoron_client.data.features import MAX_COLUMNS as MOST
from quoron_client.data.features import MAX_DEGREE
from quoron_client.data.formats import Dialect
from quoron_privacy.errors import ConfigError
from quoron_server.plan import EVERYONE

Key = tuple[str, ...]

_EXPECTED = {
    "int_type": "to be an integer",
    "int_parsing": "to be an integer",
    "int_from_float": "to be an integer",
    "float_type": "to be a number",
    "float_parsing": "to be a number",
    "finite_number": "to be finite",
    "string_type": "to be a string in quotes",
    "bool_type": "to be true or false",
    "dict_type": "to be a table, such as {a = 1}",
    "model_type": "to be a table, such as {a = 1}",
    "tuple_type": "to be a list, such as [1, 2]",
    "list_type": "to be a list, such as [1, 2]",
}
_KINDS = (
    "bool",
    "int",
    "float",
    "str",
    "constrained-float",
    "constrained-int",
    "literal",
    "tuple",
    "dict",
)  # pydantic's, in a union
_BOUNDS = {"greater_than": ">", "greater_than_equal": ">=", "less_than": "<", "less_than_equal": "<="}


def explain(error: ValidationError, model: type[BaseModel]) -> str:
    """One sentence for each thing wrong, in the order of the configuration."""
    told: dict[tuple[Key, str], str] = {}
    for found in error.errors():
        detail: dict[str, Any] = dict(found)
        kind = detail["loc"][-1:]
        if kind and str(kind[0]).partition("[")[0] in _KINDS:  # one of several that the value might have been
            whole = {**detail, "loc": detail["loc"][:-1]}
            key, _ = _locate(whole["loc"], model)
            before = told.get((key, repr(detail["input"])))
            one = _expected(detail)
            told[key, repr(detail["input"])] = (
                f"Expected {'.'.join(key)} {one}, got {'.'.join(key)}={detail['input']!r}."
                if before is None
                else before.replace(", got ", f" or {one.removeprefix('to be ')}, got ", 1)
            )
        else:
            told[tuple(map(str, detail["loc"])), repr(detail["input"])] = _sentence(detail, model)
    return "\n".join(told.values())


def _unknown(key: Key, owner: type[BaseModel] | None) -> str:
    """The sentence for a key that does not exist, with the one of that name in a table or the closest, else all."""
    parent, fields = ".".join(key[:-1]), owner.model_fields if owner else {}
    tables = ((name, table) for name, field in fields.items() for table in models(field.annotation))
    close = [f"{name}.{key[-1]}" for name, table in tables if key[-1] in table.model_fields]
    close = close or get_close_matches(key[-1], fields, n=1, cutoff=0.5)
    if close:
        return f"Unknown key {'.'.join(key)}; did you mean {'.'.join((*key[:-1], close[0]))}?"
    where = f"[{parent}]" if parent else "a configuration"
    return f"Unknown key {'.'.join(key)}. Known in {where}: {', '.join(sorted(fields)) or 'nothing'}."


def _sentence(detail: Mapping[str, Any], model: type[BaseModel]) -> str:
    key, owner = _locate(detail["loc"], model)
    dotted, kind, value, context = ".".join(key), detail["type"], detail["input"], detail.get("ctx", {})
    if kind == "extra_forbidden":
        return _unknown(key, owner)
    if kind == "missing" and isinstance(detail["loc"][-1], int):
        whole, many = ".".join(key[:-1]), detail["loc"][-1] + 1
        return f"Expected {whole} to have {many} entries, got {whole}={list(value)!r}."
    if kind == "missing":
        field = owner.model_fields.get(key[-1]) if owner else None
        meaning = f" ({field.description})" if field and field.description else ""
        return f"Missing key {dotted}{meaning}; set it in the file or with --set {dotted}=VALUE."
    if kind == "union_tag_not_found":
        return f"Missing key {dotted}.kind; set it to one of {context['discriminator_options']}."
    if kind == "union_tag_invalid":
        return f"Expected {dotted}.kind to be one of {context['expected_tags']}, got {dotted}.kind={context['tag']!r}."
    if kind == "value_error":
        return f"Expected {dotted} {context['error']}, got {dotted}={value!r}."
    return f"Expected {dotted} {_expected(detail)}, got {dotted}={value!r}."


def _expected(detail: Mapping[str, Any]) -> str:
    """Return what the value should have been."""
    kind, context = detail["type"], detail.get("ctx", {})
    if kind in _BOUNDS:
        return f"{_BOUNDS[kind]} {next(iter(context.values())):g}"
    if kind in ("literal_error", "enum"):
        return f"to be {context['expected']}"
    if kind == "too_long":
        return f"to have {context['max_length']} entries"
    return _EXPECTED.get(kind, f"to be valid ({detail['msg']})")


def _locate(location: tuple[str | int, ...], model: type[BaseModel]) -> tuple[Key, type[BaseModel] | None]:
    """Return the dotted key without pydantic's union tags, and the section that owns its last part."""
    key: list[str] = []
    sections: tuple[type[BaseModel], ...] = (model,)
    owner: type[BaseModel] | None = model
    for position, part in enumerate(location):
        tagged = [section for section in sections if _tag(section) == part]
        if len(sections) > 1 and tagged:
            sections = (tagged[0],)
            continue
        if str(part).startswith(("tuple[", "dict[")):  # one of several that a value might have been
            continue
        key.append(str(part))
        owner = sections[0] if len(sections) == 1 else None
        if position + 1 < len(location):
            sections = models(owner.model_fields[str(part)].annotation) if owner and part in owner.model_fields else ()
    return tuple(key), owner


def models(annotation: Any) -> tuple[type[BaseModel], ...]:
    """Return the model classes an annotation mentions."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return (annotation,)
    return tuple(section for part in getattr(annotation, "__args__", ()) for section in models(part))


def _tag(section: type[BaseModel]) -> object:
    return section.model_fields["kind"].default if "kind" in section.model_fields else None


Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Fraction = Annotated[float, Field(ge=0, lt=1)]
Share = Annotated[float, Field(gt=0, lt=1)]
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


class LabelSection(Section):
    """What is predicted, and what its values mean: `label = "ill"` is short for `label = { column = "ill" }`."""

    column: str = Field(
        description="a column of true/false, 0/1 or -1/+1, or a comparison such as 'arr_delay > 15', or a column that "
        "`positive`, `classes` or `range` speaks of"
    )
    positive: bool | int | str | None = Field(
        default=None, description="the label's value that counts as positive: a text, an integer or true; others do not"
    )
    classes: tuple[str | int | bool, ...] = Field(
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
    categorical: dict[str, tuple[str | int | bool, ...]] = Field(
        default_factory=dict,
        description="categorical features with their public values, { column = [values] }; an empty "
        "list has them estimated privately, within ε",
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
        "year = [2007, 2016], days = ['2007-01-01', '2016-12-31'], format = '%d.%m.%Y' } }",
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
    missing: Literal["drop", "midpoint"] = Field(
        default="drop",
        description="what becomes of a row with a numeric feature that is no number: it is left out, or the feature is "
        "taken to be in the middle of its range; rows without a usable label are always left out",
    )
    intercept: bool = Field(default=True, description="add a constant feature")
    normalize: bool = Field(default=False, description="scale each row to the feature norm by its own length")
    curves: int = Field(
        default=1,
        ge=1,
        le=MAX_DEGREE,
        description="curves: polynomials of every number up to this degree (docs/train.md#models-that-bend)",
    )
    pairs: int = Field(
        default=0,
        ge=0,
        le=MAX_DEGREE,
        description="and products of two columns whose degrees multiply to this at most; 0: none",
    )
    csv: Csv = Field(default=Csv(), description="how a file of text is written, by its keys (docs/tables.md)")


class TableSection(Simulated):
    """A file, or a folder of Parquet files, with one item a row and a column that names the user."""

    kind: Literal["table"] = "table"
    users: Count | None = Field(
        default=None,
        description="declared number of users, for `quoron train` with adjacency zero-out: slots without rows hold "
        "nobody. With replace-one the number of users in the table is public",
    )
    path: str = Field(
        description="a file (.csv, .tsv, these with .gz, .parquet), relative to the configuration "
        "file; `package:NAME.parquet` is one that ships with quoron: `storms`, `scorecard` or `flights`; a folder of "
        "Parquet files, or a URL such as `s3://bucket/visits`, is read piece by piece (docs/tables.md)"
    )
    user: str = Field(description="column that says whose item a row is")
    label: LabelSection | None = Field(default=None, description="what is predicted; none for the linear loss only")
    columns: ColumnsSection = Field(
        default=ColumnsSection(),
        description="what the others mean; default: estimated within ε by `quoron train`",
    )
    model: Literal["linear", "curves", "auto"] | None = Field(
        default=None,
        description="linear; curves: columns.curves and pairs by a public rule; auto: those, or linear where noise is "
        "larger (docs/train.md#models-that-bend)",
    )
    test_fraction: Fraction = Field(default=0.2, description="share of users held out to measure the model")

    @property
    def dialect(self) -> Dialect:
        """How its text is written, as far as that is declared."""
        return Dialect(**self.columns.csv.model_dump())


ALL = "*"  # every column of which nothing is said


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
    curvature: tuple[Positive, Positive] = Field(
        default=(1.0, 0.01),
        description="quadratic: curvature of every item's loss along the first coordinate, and along all others, where "
        "the optimum lies",
    )
    heterogeneity: NonNegative = Field(
        default=0.0, description="spread between users' own parameters; 0 is i.i.d. users"
    )
    unequal_items: bool = Field(
        default=False, description="draw each user's number of items uniformly from 1 to 2m - 1"
    )


class LossSection(Section):
    """The loss of one item. Its bounds are enforced on every item, so that they hold for every conceivable user."""

    name: str = Field(
        default="auto",
        description="which loss: logistic, least_squares, huber, smoothed_hinge, hinge, absolute, linear, softmax, "
        "quadratic (of the synthetic family), or one that an installed package brings (docs/losses.md); auto: that of "
        "a synthetic family; of a table least_squares with a label's range, softmax with three classes or more, else "
        "logistic",
    )
    feature_norm: Positive = Field(default=1.0, description="features are scaled down to this Euclidean norm R")
    label_bound: Positive = Field(default=1.0, description="regression labels are clipped to [-bound, bound]")
    width: Positive = Field(
        default=1.0,
        description="width of the smooth part: Huber's threshold, the hinge's rounding, or that of a package's loss",
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


class DomainSection(Section):
    """The set that models live in, centred at zero."""

    kind: Literal["l2-ball", "box"] = Field(default="l2-ball", description="Euclidean ball, or box")
    radius: Positive | None = Field(
        default=None,
        description="radius of the ball, or half width of the box. Default: 3 / feature_norm; for a table, with "
        "methods whose noise does not depend on it, none: nothing but a method's own caps bounds its models",
    )


class ProblemSection(Section):
    """Public knowledge about the users, fixed without looking at them."""

    user_smoothness: Literal["item", "isotropic"] | Positive = Field(
        default="item",
        description="bound on the Hessian of a user's average loss, enforced by scaling on the client: the item's own "
        "bound, the bound for features spread evenly in all directions, or a number",
    )
    gradient_deviation: Positive | None = Field(
        default=None,
        description="standard deviation of an item's gradient, to predict risk; default: the Lipschitz bound",
    )

    adversarial_share: Annotated[float, Field(ge=0, lt=0.5)] | None = Field(
        default=None,
        description="declared share of users that may send anything, which makes some methods clip more and so learn "
        "less (docs/results.md); default: of synthetic users the share of outliers, else 0",
    )
    label_rate: Share | tuple[Share, Share] | None = Field(
        default=None,
        description="of two classes, the share of positive labels where it is publicly known, or the least and the "
        "largest that it may be: it steers forecasts and what they are read beside, never noise",
    )

    participation: Annotated[float, Field(ge=1 / 32, le=1)] | None = Field(
        default=None,
        description="share of those asked who are expected to answer, for methods with an option of that name; "
        "default: 1",
    )


class MinCohortSection(Section):
    """A minimum cohort (docs/federation.md)."""

    share: Share | Literal["none"] | None = Field(
        default=None,
        description="share of those asked who must answer, by a noisy count; 'none' declares that nobody checks. "
        "Default: none, but 0.5 with `quoron submit`",
    )
    epsilon: Positive | None = Field(
        default=None,
        description="of privacy.epsilon, for a minimum cohort that costs something, at most; default: a twentieth",
    )
    participation: Literal["private", "public"] = Field(
        default="private",
        description="whether it may show who answers: public counts answers exactly, at any number of users, and names "
        "who is missing; under replace-one, and where cohorts are public (docs/federation.md)",
    )


class TwoServersSection(Section):
    """What two servers promise (docs/two-servers.md)."""

    epsilon: Positive | None = Field(
        default=None,
        description="ε against each of the servers, privacy.epsilon being that against everybody else; default: "
        "privacy.epsilon against each, and less against everybody else",
    )
    groups: Literal[1, 3, 5, 7, 9] = Field(
        default=1,
        description="public groups of users whose means' median is taken: fewer than half as many adversarial users "
        "move it no further than honest ones do, for 2.0 (three groups) to 3.7 times the noise",
    )


class PrivacySection(Section):
    """The promise wanted for one whole user."""

    epsilon: Positive = Field(
        default=1.0, description="ε; of simulations 1 without. Where noise is secret there is no default: give one"
    )
    delta: Share = Field(default=1e-6, description="δ")
    allow_large_delta: bool = Field(default=False, description="accept a δ above 1/n of a table's or a federation's n")
    adjacency: Literal["replace-one", "zero-out"] = Field(
        default="replace-one",
        description="the adjacency to guarantee: a user's data replaced, or only left out (weaker)",
    )
    min_cohort: MinCohortSection = Field(
        default=MinCohortSection(),
        description="how many of those asked must answer in every round, or the run ends without a model: "
        "`min_cohort = 0.5` is short for { share = 0.5 }",
    )
    trust_model: Literal["central-release", "central-broadcast", "two-servers", "local"] | None = Field(
        default=None,
        description="what is trusted at most (docs/trust.md): `central-release`, the coordinator and the clients, who "
        "see iterates without noise; `central-broadcast`, the coordinator; `two-servers`, that two servers do not "
        "collude; `local`, nobody. A stricter one may be chosen. Default: what the algorithm usually has; a federation "
        "needs `central-release` said where an algorithm has only that",
    )
    two_servers: TwoServersSection = Field(
        default=TwoServersSection(), description="what two servers guarantee beside epsilon, with that trust model"
    )

    @property
    def trusts_clients(self) -> bool:
        """Whether clients may see iterates without noise."""
        return self.trust_model == "central-release"


class AlgorithmSection(Section):
    """Which algorithm, with which constants."""

    name: str = Field(
        default="auto", description="a name from `quoron show algorithms`, or auto: a rule chooses, docs/choosing.md"
    )
    constants: Literal["calibrated", "paper"] = Field(
        default="calibrated",
        description="calibrated with proof, or exactly as the paper prints them, in simulations: docs/papers/README.md",
    )
    options: dict[str, Any] = Field(default_factory=dict, description="options of that algorithm")


class BudgetSection(Section):
    """Limits that a run is refused for, before it exceeds them; rounds are also planned for."""

    rounds: Count | None = Field(
        default=None,
        description="rounds of adaptive interaction, which papers count as batch gradient steps "
        "(docs/rounds.md#rounds-in-the-papers); the plan takes exactly so many",
    )
    max_rounds: Count | None = Field(
        default=None,
        description="the most rounds (batch gradient steps) that the plan may take, of which it takes as many as "
        "leave the least predicted error; not with rounds",
    )
    gradient_evaluations: Count | None = Field(default=None, description="item gradients")
    answers_per_user: Count | None = Field(default=None, description="questions that one user is asked")
    bytes_per_user: Count | None = Field(
        default=None,
        description="numbers that one user sends and receives, in bytes, if it is asked as often as anybody",
    )


class RunSection(Section):
    """One run of the plan."""

    seed: Seed = Field(
        default=0, description="public: of who is asked when; of a simulation also of noise and of what users draw"
    )
    out: str | None = Field(default=None, description="run folder; default: runs/<name>-<number>")
    evaluate: bool = Field(
        default=True,
        description="whether a simulation measures its model: excess risk by round, figures on held-out users, and "
        "what is amiss with the data",
    )
    dropout: Annotated[float, Field(ge=0, lt=1)] = Field(
        default=0.0, description="probability that an asked user does not answer in a round of a simulation"
    )


class TrainSection(Section):
    """Training for real on a table that one machine holds: `quoron train`. Simulations leave it alone."""

    population: Annotated[str, Field(pattern=POPULATION.pattern)] = Field(
        default=EVERYONE,
        description="whose privacy budget is charged: a name for the users in the table, the same in all runs on them",
    )
    ledger: str | None = Field(
        default=None,
        description="file of the lifetime ledger; default: QUORON_LEDGER, else where the platform keeps programs' data",
    )
    data_quality: Annotated[float, Field(ge=0, le=0.5)] | None = Field(
        default=None,
        description="share of μ² for the private data quality check before training (docs/train.md); 0: none",
    )
    holdout: Annotated[float, Field(gt=0, lt=1)] | None = Field(
        default=None,
        description="share of the users that are not trained on, but tell how good the model is (docs/evaluation.md)",
    )


class Config(Section):
    """A complete configuration."""

    population: Annotated[SyntheticSection | TableSection, Field(discriminator="kind")] = SyntheticSection()
    loss: LossSection = LossSection()
    domain: DomainSection = DomainSection()
    problem: ProblemSection = ProblemSection()
    privacy: PrivacySection = PrivacySection()
    algorithm: AlgorithmSection = AlgorithmSection()
    budget: BudgetSection = BudgetSection()
    run: RunSection = RunSection()
    train: TrainSection = TrainSection()

    def but(self, **sections: Section | Mapping[str, Any]) -> "Config":
        """Return the same with other sections, or other values of keys of its own, which are not checked."""
        changed = {
            name: said if isinstance(said, Section) else getattr(self, name).model_copy(update=said)
            for name, said in sections.items()
        }
        return self.model_copy(update=changed)

    def as_toml(self) -> str:
        """Return the configuration with every default written out."""
        return toml_text.dumps(self.model_dump(mode="json")) + "\n"

    def digest(self) -> str:
        """Fingerprint of everything that decides the run's bits; where run and table are kept is left out."""
        tree = self.model_dump(mode="json", exclude={"run": {"out"}, "population": {"path"}, "train": {"ledger"}})
        return hashlib.sha256(json.dumps(tree, sort_keys=True).encode()).hexdigest()


def from_tree(tree: Mapping[str, Any]) -> Config:
    """The checked configuration of nested tables; raises ConfigError naming each wrong key, its value and the fix."""
    try:
        config = Config.model_validate_json(json.dumps(_completed(written_out(tree)), default=str))
    except ValidationError as error:
        raise ConfigError(explain(error, Config)) from None
    adjacency = config.privacy.adjacency  # by default an option decides
    for section, key, value in (
        ("budget", "rounds", config.budget.rounds),
        ("privacy", "adjacency", None if adjacency == "replace-one" else adjacency),
        ("problem", "participation", config.problem.participation),
    ):
        option = config.algorithm.options.get(key)
        if None not in (value, option) and value != option:
            raise ConfigError(
                f"Expected one value of {key}, got {section}.{key}={value} and algorithm.options.{key}={option}. Leave "
                "one out, or set both alike where a file or a preset has one."
            )
    return config


def parse(text: str, source: str = "the configuration", settings: Sequence[Setting] = ()) -> Config:
    """Return the configuration of a TOML text, with settings laid over it."""
    return from_tree(overlay(toml_text.parse(text, source), settings))


def read(path: Path) -> toml_text.Tree:
    """Return the sections of a file; ConfigError if it cannot be read."""
    try:
        return toml_text.parse(path.read_text(encoding="utf-8"), str(path))
    except OSError as error:
        raise ConfigError(f"Expected a readable configuration file, got {path} ({error.strerror}).") from None
    except UnicodeDecodeError:
        raise ConfigError(f"Expected {path} to be UTF-8 text, got other bytes.") from None


def require_epsilon(given: Container[str], door: str, how: str = "epsilon=, --epsilon, ") -> None:
    """ConfigError where noise is secret and ε is not among `given`, keys of privacy: simulations have a default."""
    if "epsilon" not in given:
        raise ConfigError(
            f"Expected epsilon for {door}, which spends it, got none. Give {how}--set privacy.epsilon=, or "
            "privacy.epsilon in a configuration file."
        )


def estimates_bounds(config: Config) -> bool:
    """Return whether something of a table is to be estimated: of a named column, or of all where none is declared."""
    return isinstance(config.population, TableSection) and bool(estimated_columns(config.population))


def estimated_columns(section: TableSection) -> dict[str, str]:
    """Columns and patterns of which something is estimated, each with its kind."""
    columns = section.columns
    if not (columns.estimate or columns.numeric or columns.categorical or columns.hashed or columns.dates):
        return {ALL: "any"} if section.label is not None else {}
    return {**columns.estimate, **{name: "category" for name, values in columns.categorical.items() if not values}}


def located(config: Config, folder: Path) -> Config:
    """The same configuration with the paths of a table and of a lifetime ledger made absolute, relative to `folder`."""
    if config.train.ledger is not None:
        ledger = str((folder / Path(config.train.ledger).expanduser()).resolve())
        config = config.but(train={"ledger": ledger})
    if not isinstance(config.population, TableSection) or config.population.path.startswith(PACKAGED):
        return config
    if is_url(config.population.path):
        return config
    return config.but(population={"path": str((folder / config.population.path).resolve())})


def _completed(tree: Mapping[str, Any]) -> Mapping[str, Any]:
    """A population without a kind is synthetic, and a loss left to us follows from what a table's label is."""
    population, loss = tree.get("population"), tree.get("loss", {})
    if not isinstance(population, Mapping):
        return tree
    label, found = population.get("label"), {**tree, "population": {"kind": "synthetic", **population}}
    if not (isinstance(label, Mapping) and isinstance(loss, Mapping) and loss.get("name", "auto") == "auto"):
        return found
    classes = label.get("classes")
    several = isinstance(classes, list | tuple) and len(classes) > 2
    chosen = "least_squares" if label.get("range") else "softmax" if several else "auto"
    return {**found, "loss": {**loss, "name": chosen}}
