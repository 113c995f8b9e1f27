"""Private bounds of the columns that a table's owner did not declare, inside the run's own ε.

    prepared = planned(config, base, identity, frame, assumptions)   # a forecast, which is charged as a whole
    found = release(prepared, own)                                   # committed once a run, before it is visible
    config = declared(prepared.config, found)                        # what the run goes on with

Names of columns are public, and so are types where a schema declares them (Arrow, Parquet): they say which facts are
missing. Of a CSV file and of a pandas frame, whose types depend on values, a column's kind is estimated as well. The
declarations (ranges, values, the label's kind) are a function of released numbers alone, as is what could not be
estimated, with its fix.

Which columns, which method and which numbers come afterwards depend on what was released; what each part may cost does
not. Statement and proof: docs/privacy/private-bounds.md#b1. The mechanism: quoron_privacy.histograms.private_bounds.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, floor, hypot, isnan
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from quoron import config as configs
from quoron import toml_text
from quoron.config import ALL, Config, TableSection, estimated_columns
from quoron.data import columns as table_columns
from quoron.data import index
from quoron.data.users import Declared
from quoron.evaluation.scores import held_users
from quoron.paths import dataset
from quoron.planning.plans import Plan, Prepared, privacy_of
from quoron.run_folder import Identity
from quoron.simulation.problem import RARE, bent, encoding_of, estimates_rate, loss_of, make_domain
from quoron.simulation.problem import problem as problem_of
from quoron.simulation.wildcards import KINDS as FEATURES
from quoron.simulation.wildcards import WILD, left_out, meant, roles, source_of, unread, with_columns
from quoron.training import column_bounds, data_quality, evaluated
from quoron.training.column_bounds import Bounds, Fact, Released, spelt
from quoron.training.memory import ELSEWHERE, ONCE, UNCHARGED, memory_for
from quoron.training.result import EstimatedBound
from quoron.training.table import check_section, slots
from quoron_client.data import columns, tables
from quoron_client.data.encoding import Encoding, Signs
from quoron_client.data.features import is_span
from quoron_client.data.features import named as spans_named
from quoron_client.data.tables import Opened
from quoron_client.data.users import Numbering
from quoron_privacy.errors import ConfigError, DataError, Infeasible, NothingReleased
from quoron_privacy.histograms.private_bounds import HOLDERS, KINDS, EstimatedBounds, weights
from quoron_privacy.noise.streams import NoiseSource, SecureNoise
from quoron_privacy.release import Release
from quoron_server.algorithms import ALGORITHMS
from quoron_server.parameters import Assumption
from quoron_server.problem import Problem


@dataclass(frozen=True, slots=True)
class Facts:
    """What is estimated, and what a type says without."""

    features: tuple[Fact, ...]  # in the order of the table
    known: Mapping[str, tuple[float, float]]  # ranges that a type tells: of true and false
    label: Fact | None
    items: Fact | None
    left_out: tuple[str, ...]  # columns that cannot be features, each with why

    @property
    def all(self) -> tuple[Fact, ...]:
        """Of everything, in one order."""
        return (*self.features, *(fact for fact in (self.label, self.items) if fact is not None))


def facts_of(config: Config, base: Path, source: Opened, frame: Any = None) -> Facts:
    """Return what of the table is not declared. DataError for a column that is asked for and holds nothing to buy."""
    section, declared = config.population, with_columns(config, base, frame).population
    assert isinstance(section, TableSection)
    assert isinstance(declared, TableSection)
    header = list(source.names)
    roles = (section.user, *([] if section.label is None else [str(section.label.read().column)]))
    for name in roles:
        columns.check_name(name, header, roles)
    features: list[Fact] = []
    known: dict[str, tuple[float, float]] = {}
    notes: list[str] = []
    for name, kind, named in _resolved(section, declared, header):
        columns.check_name(name, header)  # there twice, it would be left out with what it says
        type_ = source.schema.get(name)
        if not named and is_identifier(name):
            notes.append(
                f"Column {name!r} is left out: its name is an identifier's. To use it declare it, or estimate it by "
                f"name (--set 'population.columns.estimate.\"{name}\"=any')."
            )
            continue
        if not named and (WILD in name or is_span(name)):
            notes.append(f"Column {name!r} is left out: its name reads as a pattern of columns. Rename it.")
            continue
        try:
            dated = kind == "any" and column_bounds.is_day(columns.kind(source.empty([name]), name))
            if dated:
                column_bounds.row_kinds(source.empty([name]), name)
            else:
                columns.check(source.empty([name]), name)
        except DataError as error:
            if named:
                raise
            notes.append(f"Column {name!r} is left out: {str(error).rstrip('.')}.")
            continue
        if dated:  # a frame's own type costs what not knowing it would
            features.append(Fact(name, "any" if type_ is None else "date"))
        elif type_ is not None and pa.types.is_boolean(type_) and kind != "category":
            known[name] = (0.0, 1.0)
        elif kind == "any" and type_ is not None:
            features.append(Fact(name, "any" if columns.is_text(type_) else "number"))  # text may say numbers and dates
        else:
            features.append(Fact(name, kind))
    given = section.columns
    listed = (given.numeric, given.hashed, given.dates, [name for name, words in given.categorical.items() if words])
    if notes and not (features or known or any(listed)):
        raise ConfigError(f"Expected features, got none. {' '.join(notes)}")
    estimates_columns, items = bool(estimated_columns(section)), None
    if estimates_columns and section.items_per_user is None:
        items = Fact("items per user", "items")
    label = _label_fact(section, source.schema) if estimates_columns else None
    if label is None and section.label is not None and estimates_rate(config):
        read = section.label.read()
        label = Fact(read.column, "rate", read)
    if label is not None:
        columns.check(source.empty([label.column]), label.column)
    return Facts(tuple(features), known, label, items, tuple(notes))


def is_identifier(name: str) -> bool:
    """Return whether a column's name ends in a word `id`: after a sign, a digit or nothing, or with a capital.

    `userid` is not one, as nothing in its letters tells it from `covid`; exclude such a column.

    >>> [name for name in ("id", "visit_id", "patientID", "UserId", "paid", "COVID", "userid") if is_identifier(name)]
    ['id', 'visit_id', 'patientID', 'UserId']
    """
    stem, end = name.strip()[:-2], name.strip()[-2:]
    before = stem[-1:]
    separate = before.lower() == before.upper()  # no letter, or of a script without capitals
    return end.lower() == "id" and (separate or end == "Id" or (end == "ID" and before.islower()))


def _resolved(section: TableSection, declared: TableSection, header: list[str]) -> Iterator[tuple[str, Any, bool]]:
    """(column, kind, whether it is named or by a pattern of its own) in the order of the table."""
    own, given = roles(section), section.columns
    label = None if section.label is None else section.label.column
    kinds_of = {name: kind for name, kind in estimated_columns(section).items() if name != label}
    named = [name for name in kinds_of if name != ALL]
    features = [name for kind in FEATURES for name in getattr(declared.columns, kind)]
    declared_names = {name for feature in features for name in spans_named(feature)} - {*named}
    mentioned = [name for kind in (*FEATURES, "estimate") for name in getattr(given, kind)]
    declared_names |= left_out(mentioned, header, given.exclude)
    matches = meant(named, header, roles=own | declared_names)
    kinds = {name: kinds_of[entry] for entry, matched in zip(named, matches, strict=True) for name in matched}
    for name in kinds:
        columns.check_name(name, header, own)
        if name in given.numeric or name in given.hashed or name in given.dates:
            raise ConfigError(f"Expected {name!r} to be declared or estimated, got both. Leave it out of one.")
        if name in own:
            raise ConfigError(f"Expected columns other than {', '.join(sorted(own))} as features, got {name!r}.")
    for name in dict.fromkeys(header):
        if name in kinds:
            yield name, kinds[name], True
        elif ALL in kinds_of and name not in own and name not in declared_names:
            yield name, kinds_of[ALL], False


def _label_fact(section: TableSection, types: Mapping[str, pa.DataType]) -> Fact | None:
    if section.label is None:
        return None
    label = section.label.column
    type_ = types.get(label)
    if not isinstance(section.label.read(), Signs) or (type_ is not None and pa.types.is_boolean(type_)):
        if label in section.columns.estimate:
            raise ConfigError(f"Expected label {label!r} to be declared or estimated, got both. Leave out one.")
        return None
    return Fact(label, "label")


MAX_CLASSES = 20  # of a label; with more it is a number, or nothing
MIN_SHARE = 0.8  # of the users with a label: at least so many hold the reported classes

YEARS = 12  # over more, months and weekdays are not looked at
MAX_SHOWN = 8  # values of a column, in words
LONG = 48  # letters of each
SIGNS = ({"0", "1"}, {"-1", "1"}, {"false", "true"})
_OTHER = {"0": "1", "1": "0", "-1": "1", "false": "true", "true": "false"}
_MISSING, _TEXT = len(KINDS) - 1, KINDS.index("text")


@dataclass(frozen=True, slots=True)
class Estimates:
    """What was estimated, as declarations."""

    features: Mapping[str, Bounds]  # by column, in the order of the table
    label: Mapping[str, Any] = field(default_factory=dict)  # keys of the table's section
    items: int | None = None
    rate: float | None = None  # of a label of two classes: the share of one of them
    missing: tuple[str, ...] = ()  # what was estimated and tells little or nothing, in words with its fix
    weights: tuple[float, float] = (1.0, 1.0)  # of a vote for a name of the label, and of another column

    @classmethod
    def of(
        cls, facts: Facts, released: Released, *, paid: EstimatedBounds, widest: int, known: bool, text: bool = False
    ) -> "Estimates":
        """Read the releases. NothingReleased where no model can be made of them; `known`: other features are known.

        `text`: the table's schema says that its label is text, whose values have to be listed even if they are signs.
        """
        least = HOLDERS * paid.errors(columns=paid.columns, names=1).places
        named = max(sum("names" in part for part in released.values()), 1)
        own = weights(named, 0 if facts.label is not None and spelt(facts.label, released) else None)
        shared = paid.threshold(named, own[-1])
        features = [_bounds(fact, released[fact.column], least, shared, widest) for fact in facts.features]
        columns = {bounds.name: bounds for bounds in features if bounds.value is not None}
        missing = [f"Column {part.name!r} is left out: {part.problem}" for part in features if part.value is None]
        if not (columns or facts.known or known):
            raise NothingReleased(f"No feature is left. {' '.join(missing)}")
        label: Mapping[str, Any] = {}
        if facts.label is not None and facts.label.what == "label":
            label, rare = _label(facts.label.column, released[facts.label.column], paid, own)
            if text and not label:
                label = _spelt([word for word, _ in released[facts.label.column]["names"]])
            missing += rare
        items = None if facts.items is None else column_bounds.typical_items(released[facts.items.column])
        rate = None if facts.label is None else _rate(released[facts.label.column], paid, own)
        missing += _unread(released)
        return cls(columns, label, items, rate, tuple(missing), (own[0], own[-1]))


@dataclass(frozen=True, slots=True, eq=False)
class Declarations:
    """What was estimated for a run, and what it cost."""

    paid: EstimatedBounds
    estimates: Estimates
    facts: Facts

    def lines(self) -> tuple[EstimatedBound, ...]:
        """Of everything that was paid for, what was found; the label first."""
        numbers = sum(fact.may_be_number for fact in self.facts.all)
        errors = self.paid.errors(columns=numbers, names=1)
        return tuple(
            EstimatedBound(
                fact.column,
                self._value(fact),
                errors.names / self.estimates.weights[not fact.is_label] if self._named(fact) else errors.cells,
            )
            for fact in sorted(self.facts.all, key=lambda fact: not fact.is_label)
        )

    @property
    def columns(self) -> frozenset[str]:
        """Those whose range or values were estimated."""
        return frozenset(fact.column for fact in self.facts.all if fact.what != "rate")

    @property
    def left_out(self) -> tuple[str, ...]:
        """Columns that are no features, each with why."""
        return (*self.facts.left_out, *self.estimates.missing)

    def toml(self, config: Config) -> str:
        """Return the sections that say of the table what was found, for a configuration of another run."""
        tree = config.model_dump(mode="json", exclude_none=True)
        columns = {key: value for key, value in tree["population"]["columns"].items() if value not in ({}, [])}
        text = toml_text.dumps({"population": tree["population"] | {"columns": columns}, "problem": tree["problem"]})
        head = [
            f"# Estimated with {self.paid.share:.2g} of the μ² of a run, and public since: anyone who declares it in "
            "another run pays nothing for it.",
            *(toml_text.comment(f"{line.column}: {line.text()}") for line in self.lines()),
            *map(toml_text.comment, self.left_out),
        ]
        return "\n".join([*head, text]) + "\n"

    def _named(self, fact: Any) -> bool:
        label = fact.what == "rate" or (fact.what == "label" and "classes" in self.estimates.label)
        bounds = self.estimates.features.get(fact.column)
        return label or (bounds is not None and bounds.kind == "categorical")

    def _value(self, fact: Any) -> str:
        estimates, column = self.estimates, fact.column
        if fact.what == "items":
            return str(estimates.items)
        if fact.what == "rate":
            rate = estimates.rate
            return (
                "no share of its classes" if rate is None else f"{100 * min(rate, 1 - rate):.2g} % of the rarer class"
            )
        if fact.what == "label":
            texts = (f"{key} = {_short(value)}" for key, value in estimates.label.items())
            return ", ".join(texts) or "0 and 1, or false and true"
        if column not in estimates.features:
            return "nothing that enough users have"
        kind, value = estimates.features[column].kind, estimates.features[column].value
        if kind == "dates":
            return ", ".join(["dates", *value.get("parts", ()), "years {} to {}".format(*value["year"])])
        return "[{:.4g}, {:.4g}]".format(*value) if kind == "numeric" else _short(value)


def integers(words: Sequence[str]) -> list[str | int]:
    """Texts as integers, ascending, if all of them are some."""
    values = table_columns.integers(words)
    return sorted(int(name) for name in values) if isinstance(values[0], int) else [*values]


def _bounds(fact: Fact, released: Mapping[str, Any], least: float, shared: float, widest: int) -> Bounds:
    """Return what was released of a feature, of at most so many categories; `least`, `shared`: votes that it takes."""
    column, votes, kind = fact.column, released.get("votes"), released.get("kind")
    if words := [word for word, _ in released.get("names", [])][:widest]:
        return Bounds("categorical", column, integers(words))
    if votes and max(votes[:_MISSING]) < least:
        what, fix = ("a number", "Buy what it is (any), declare") if fact.what == "number" else ("anything", "Declare")
        few = f"fewer than {least:,.0f} users have {what} there, as far as noise tells. {fix} it, or leave it."
        return Bounds("numeric", column, None, few)
    if kind == "boolean":
        return Bounds("numeric", column, (0.0, 1.0))
    low, high = released.get("range", (0.0, 0.0))
    if kind == "date" and "range" in released:
        return Bounds("dates", column, _dates(low, high))
    if low < high and released["held"] > least / 2:
        return Bounds("numeric", column, (low, high))
    if kind == "number":
        far = "its numbers lie too far apart for a range. Declare one, or leave it."
        return Bounds("numeric", column, None, far)
    rare = (
        f"no word of it has {shared:,.0f} users' votes or more. List its values, or let a hash sort "
        f"them (hashed: {column} = 64); of numbers say how they are written (decimal), or write them with a point and "
        f"nothing else; of dates and times their parts and format (dates: {column}); or leave it."
    )
    return Bounds("categorical", column, None, rare)


def _unread(released: Released) -> list[str]:
    """That words which were estimated hold bytes that are no UTF-8, and so are not what their writer meant."""
    words_of = {column: [word for word, _ in part.get("names", [])] for column, part in released.items()}
    return [
        f"Column {column!r} holds bytes that are no UTF-8, which its words have signs for: declare how the text is "
        "written (encoding: latin-1, cp1252 or utf-16)."
        for column, words in words_of.items()
        if any(columns.UNREAD[0] <= letter <= columns.UNREAD[1] for word in words for letter in str(word))
    ]


def _dates(low: float, high: float) -> dict[str, Any]:
    """Of dates between these years their parts, where a few years are distinguished, else the year."""
    first, last = floor(low), max(ceil(high), floor(low) + 1)
    return {"year": [first, last]} if last - first > YEARS else {"parts": ["month", "weekday"], "year": [first, last]}


def _label(
    column: str, released: Mapping[str, Any], paid: EstimatedBounds, own: Sequence[float]
) -> tuple[dict[str, Any], list[str]]:
    """Keys of the table's section that say what the label is, and that it is rare; names had weights `own`, its first.

    One name alone for nearly everybody is one of two signs, or told apart from whatever else there is.
    """
    names, votes = [word for word, _ in released.get("names", [])], released["votes"]
    named = sum(vote for _, vote in released.get("names", []))
    total = max(paid.users - votes[_MISSING], 1.0)
    least = HOLDERS * paid.errors(columns=paid.columns, names=1).places
    if not names and max(votes[:_MISSING]) < least:
        raise NothingReleased(
            f"Fewer than {least:,.0f} users have a label {column!r}, as far as noise tells: there is nothing to learn. "
            "Choose another column, or declare its classes."
        )
    is_number = released.get("kind") == "number"
    if len(names) >= 2 and len(names) <= MAX_CLASSES and (named >= MIN_SHARE * total or not is_number):
        classes = sorted(names, key=_as_classes)
        keys = {} if set(map(str.lower, names)) in SIGNS else {"classes": integers(classes)}
        return keys, _numbers(column, names)
    if len(names) == 1 and named >= MIN_SHARE * total:
        errors = paid.errors(columns=paid.columns, names=1)
        error = hypot(errors.names / own[0], errors.places)
        sign = any(names[0].lower() in pair for pair in SIGNS)
        if total - named >= 5 * error:
            return {} if sign else {"positive": integers(names)[0]}, []
        few = (
            f"The label {column!r} is {names[0]!r} for all users but {max(total - named, 0):,.0f} (± {error:,.0f}), as "
            "far as noise tells: the model learns of these few alone, and nothing if there are none."
        )
        if not sign:
            return {"positive": integers(names)[0]}, [few]
        return {}, [f"{few} If the other value is none of 0, 1, -1, true and false, declare its classes."]
    if is_number and "range" in released and released["range"][0] < released["range"][1]:
        return {"range": list(released["range"])}, []
    values, shared = f"{len(names) or 'no'} value{'s' * (len(names) > 1)}", paid.threshold(len(own), own[0])
    raise NothingReleased(
        f"The label {column!r} has {values} with {shared:,.0f} users' votes or more, where 2 to {MAX_CLASSES} would be "
        "classes, and is no number. Declare its classes, positive = a value, or its range; of numbers also how "
        "they are written (decimal)."
    )


def _as_classes(name: str) -> tuple[str, str]:
    """What words of a label are sorted by: of Yes and no the second is Yes."""
    return name.casefold(), name


def _numbers(column: str, names: Sequence[str]) -> list[str]:
    """That classes are numbers, perhaps a quantity of few values; nothing of 0, 1, ..., as programs number classes."""
    values = sorted(columns.parsed(name) for name in names)
    if len(values) < 3 or any(map(isnan, values)) or values == [*range(len(values))]:
        return []
    return [
        f"The label {column!r} is taken for {len(values)} classes, as enough users share these numbers: their order "
        "says nothing to the model, and rows with any other are left out. If it is a quantity, declare range = "
        f"[{values[0]:g}, {values[-1]:g}], or wider."
    ]


def _rate(released: Mapping[str, Any], paid: EstimatedBounds, own: Sequence[float]) -> float | None:
    """Return the share of the second of two classes, as far as it is seen; None of other labels."""
    names, votes = [word for word, _ in released.get("names", [])], [vote for _, vote in released.get("names", [])]
    missing = released["votes"][_MISSING] if "votes" in released else 0.0
    total = sum(votes) if len(votes) == 2 else max(paid.users - missing, 1.0)
    if not 1 <= len(votes) <= 2 or not (len(votes) == 2 or votes[0] >= MIN_SHARE * total):
        return None
    least = min(2 * paid.errors(columns=paid.columns, names=1).names / own[0] / total, 0.5)
    share = float(min(max(votes[0] / total, least), 1 - least))
    if len(names) == 2:
        return share if names[0] == str(integers(sorted(names, key=_as_classes))[-1]) else 1 - share
    return 1 - share if names[0].lower() in ("0", "-1", "false") else share


def _spelt(names: Sequence[str]) -> dict[str, Any]:
    """Classes of a label whose texts are signs: one that was not seen is written as the other is."""
    first = names[0]
    other = _OTHER[first.lower()]
    other = other.upper() if first.isupper() else other.title() if first.istitle() else other
    return {"classes": sorted(names if len(names) > 1 else (first, other), key=str.lower)}


def _short(value: Any) -> str:
    if not isinstance(value, list | tuple):
        return str(value)
    texts = [f"{entry:.4g}" if isinstance(entry, float) else str(entry) for entry in value[:MAX_SHOWN]]
    shown = [text if len(text) <= LONG else f"{text[: LONG - 3]}..." for text in texts]
    return ", ".join(shown) + (f" and {len(value) - MAX_SHOWN} more" if len(value) > MAX_SHOWN else "")


WIDEST = 32  # categories of one column, at most
DEAREST_RATE = 0.1  # of μ², for the rate of a declared label
Owners = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class UndeclaredSetup:
    """The users of a table of which something is estimated before the run is planned; no other value is read yet."""

    source: Opened
    owners: Owners  # (N,) whose each row is
    users: int  # slots, those that are held out among them
    users_digest: bytes  # of their names: slots are theirs in all that follows
    facts: Facts
    base: Path
    frame: Any
    identity: Identity
    assumptions: tuple[Assumption, ...]
    widest: int  # categories of a column, at most, that still leave a plan
    paid: EstimatedBounds  # what the forecast of the run estimates
    warnings: tuple[str, ...] = ()  # none before it is planned


def prepared(
    config: Config, base: Path, identity: Identity, frame: Any, assumptions: Sequence[Assumption]
) -> tuple[UndeclaredSetup, Plan] | None:
    """The table, and the forecast that its run is charged by; None where all that is missing is a rate of no use.

    Raises what `load_rows` raises, and what `choose` does.
    """
    section = check_section(config)
    frame = frame.read_all() if isinstance(frame, pa.RecordBatchReader) else frame  # which can be read only once
    source = source_of(section, base, frame)
    facts = facts_of(config, base, source, frame)
    with memory_for("the user column of this table", f"{UNCHARGED} {ELSEWHERE}"):
        count, owners, users_digest = _owners_of(section, base, source, frame)
    users = slots(config, count)
    if facts.label is not None and facts.label.what == "rate" and not _rate_pays(config, facts, users):
        facts = replace(facts, label=None)
    if not facts.all:
        return None
    planned, widest, paid = forecast(config, facts, users, identity.seed, assumptions)
    planned = replace(planned, remarks=(*planned.remarks, *unread(section, source.names)))
    known = source, owners, users, users_digest, facts, base, frame, identity, tuple(assumptions), widest, paid
    return UndeclaredSetup(*known), planned


def _rate_pays(config: Config, facts: Facts, users: int) -> bool:
    """Return whether a label's rate costs little, and so many users get curves where half of the labels are positive.

    Else it says nothing.
    """
    even, trained = _assumed(config, facts, 1).but(problem={"label_rate": 0.5}), users
    trained -= held_users(users, config.train.holdout)
    table = bent(even, trained).population
    assert isinstance(table, TableSection)
    alone = replace(facts, features=(), items=None)
    return table.columns.curves > 1 and plan_estimates(config, alone, trained).share <= DEAREST_RATE


def _owners_of(section: TableSection, base: Path, source: Opened, frame: Any) -> tuple[int, Owners, bytes]:
    """Return how many users there are, whose each row is, and a digest of who they are, as in training on them."""
    files = dataset(section.path, base) if frame is None else None
    if files is not None:
        users_index = index.opened(files, section.user)
        owners = [np.repeat(*users_index.runs(piece)) for piece in users_index.pieces]
        return users_index.users, np.concatenate(owners), users_index.digest.encode()
    numbering = Numbering(section.user)
    numbering.add(tables.read(source, [section.user]))
    numbers = numbering.numbers()
    users, ranks = numbering.ranks(without_rows=True)
    return users, ranks[numbers].astype(np.int64), numbering.digest


def forecast(
    config: Config, facts: Facts, users: int, seed: int, assumptions: Sequence[Assumption]
) -> tuple[Plan, int, EstimatedBounds]:
    """The whole plan if every column becomes one number, the most categories a column that leave one, what is paid.

    `users` are all, those that are held out among them. Raises what `choose` raises, before anything is charged.
    """
    trained = users - held_users(users, config.train.holdout)
    paid = plan_estimates(config, facts, trained)

    def at(width: int) -> Plan:
        planned, encoding = _of_width(config.but(run={"seed": seed}), facts, trained, paid, width)
        planned = evaluated.with_held_out(planned, config, encoding, users)
        return replace(planned, plan=planned.plan.as_curated(assumptions))

    plan, widest = at(1), WIDEST if any(feature.what != "number" for feature in facts.features) else 1
    if facts.label is not None and facts.label.what == "label":  # whatever is found, its held-out users are enough
        evaluated.measured_by(plan.plan.guarantee, config, users, classes=MAX_CLASSES, estimates=True)
    while widest > 1:
        try:
            wide = at(widest)
        except Infeasible:
            widest //= 2
        else:
            return _with_remarks(plan, facts, paid, wide), widest, paid
    return _with_remarks(plan, facts, paid, plan), widest, paid


def plan_estimates(config: Config, facts: Facts, users: int) -> EstimatedBounds:
    """Return what private bounds cost; Infeasible where that tells nothing, or leaves nothing."""
    privacy = privacy_of(config)
    return column_bounds.planned(facts.all, users, privacy.epsilon, privacy.delta, config.privacy.adjacency)


def _of_width(config: Config, facts: Facts, trained: int, paid: EstimatedBounds, width: int) -> tuple[Plan, Encoding]:
    likely = _assumed(config, facts, width)
    problem, encoding = _public(likely, trained)
    return within(likely, problem, encoding, paid)[0], encoding


def _assumed(config: Config, facts: Facts, width: int) -> Config:
    """Return what may be found: columns of words have so many categories, all others are numbers."""
    wide = [f"{place}" for place in range(width)]
    features = {
        fact.column: Bounds("numeric", fact.column, (-1.0, 1.0))
        if fact.what == "number"
        else Bounds("categorical", fact.column, wide)
        for fact in facts.features
    }
    return configured(config, facts, Estimates(features, items=None if facts.items is None else 1))


def within(config: Config, problem: Problem, encoding: Any, paid: EstimatedBounds) -> tuple[Plan, str | None]:
    """Return the plan of a run on a declared table, with a data quality check if any; why there is none.

    Raises what `choose` raises: Infeasible too where no method is Gaussian as a whole.
    """
    whole = config.privacy
    left = config.but(privacy={"epsilon": paid.rest_epsilon})
    registry, named = {name: info for name, info in ALGORITHMS.items() if info.may_be_gaussian}, config.algorithm.name
    while named == "auto" or named in registry or named not in ALGORITHMS:
        planned, why = data_quality.plan(left, problem, encoding, registry)
        if ALGORITHMS[planned.plan.algorithm].gaussian(planned.plan) is not None:
            break
        del registry[planned.plan.algorithm]
    else:
        raise ConfigError(
            f"Expected a method that is Gaussian as a whole where bounds are estimated privately, got algorithm.name="
            f"{named!r}. Declare the columns, or leave the method to the rule."
        )
    promised = replace(planned.plan.guarantee, epsilon=whole.epsilon, delta=whole.delta, estimates=paid)
    plan = replace(planned.plan, guarantee=promised)
    ALGORITHMS[plan.algorithm].verify(plan)
    return replace(planned, plan=plan), why


def release(
    setup: UndeclaredSetup, noise: NoiseSource | None = None, among: Owners | None = None
) -> tuple[Released, tuple[Release, ...]]:
    """Return what is estimated `among` users (k,), or of all, with the noise of this start alone, and its entries.

    Call it once the run is charged.
    """
    source = SecureNoise.fresh() if noise is None else noise
    with memory_for("the rows that are looked at", ONCE):
        return column_bounds.release(
            setup.paid, setup.facts.all, setup.source, setup.owners, setup.users, source, among
        )


def read(prepared: Prepared[UndeclaredSetup], released: Released) -> tuple[Declarations, Config]:
    """Return what was released, as declarations, each with its cost, and the configuration with them.

    NothingReleased where no model can be made of it.
    """
    setup, section = prepared.setup, prepared.config.population
    assert isinstance(section, TableSection)
    given = section.columns
    known = bool(given.numeric or given.hashed or given.dates or any(map(bool, given.categorical.values())))
    type_ = setup.source.schema.get(setup.facts.label.column) if setup.facts.label is not None else None
    text = type_ is not None and columns.is_text(type_)
    estimates = Estimates.of(setup.facts, released, paid=setup.paid, widest=setup.widest, known=known, text=text)
    return Declarations(setup.paid, estimates, setup.facts), configured(prepared.config, setup.facts, estimates)


def configured(config: Config, facts: Facts, estimates: Estimates) -> Config:
    """Return the configuration with estimates in place of what was not declared."""
    section = config.population
    assert isinstance(section, TableSection)
    tree = config.model_dump(mode="json", exclude_none=True)
    given = tree["population"]["columns"]
    words = {name: values for name, values in given["categorical"].items() if values}
    given |= {"estimate": {}, "numeric": {**given["numeric"], **facts.known}, "categorical": words}
    for bounds in estimates.features.values():
        given[bounds.kind][bounds.name] = bounds.value
    if estimates.label:
        tree["population"]["label"] |= estimates.label
    if estimated_columns(section) and "missing" not in section.columns.model_fields_set:
        given["missing"] = "midpoint"
    if estimates.items is not None:
        tree["population"]["items_per_user"] = estimates.items
    if estimates.rate is not None:
        tree["problem"].setdefault("label_rate", estimates.rate)
    return configs.from_tree(tree)


def _public(config: Config, users: int) -> tuple[Problem, Encoding]:
    """Return the problem and the encoding of a declared table of so many users, reading no value."""
    config = bent(config, users)
    assert isinstance(config.population, TableSection)
    loss = loss_of(config)
    encoding = encoding_of(config.population, loss)
    domain, items = make_domain(config.domain, config.loss.feature_norm), config.population.items_per_user
    return problem_of(config, Declared.of_rows(encoding, loss, domain, users=users, items_per_user=items)), encoding


def _with_remarks(planned: Plan, facts: Facts, paid: EstimatedBounds, wide: Plan) -> Plan:
    """Return the forecast with what is estimated, in words."""
    number = len(facts.all)
    few, them = ("1 fact of the table is", "it") if number == 1 else (f"{number} facts of the table are", "them")
    remarks = [
        f"{few} not declared: estimating {them} takes {100 * paid.share:.3g} % of what ε pays for, which leaves "
        f"epsilon={paid.rest_epsilon:.3g} of {planned.plan.guarantee.epsilon:g} for training, whatever is found."
    ]
    low, high = planned.plan.problem.dimension, wide.plan.problem.dimension
    label = None if facts.label is None else facts.label.what
    assumed = {None: [], "label": ["a label of two classes"]}.get(
        label, [f"a rarer class of {100 * RARE:g} % of labels"]
    )
    assumed += [f"{low:,} numbers, the fewest"] * (high > low)
    if assumed:
        most = f"; {high:,} at most" if high > low else ""
        if high > low and wide.forecast is not None:
            most = f"; the most, {high:,}, leave {wide.forecast.excess_risk:.2g}"
        remarks.append(f"Before that the forecast is for {' and '.join(assumed)}{most}.")
    return replace(planned, remarks=(*planned.remarks, *remarks, *facts.left_out))
