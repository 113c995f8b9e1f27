"""Which facts of a table nobody has declared: what is bought of which column, by names and types alone.

Names of columns are public, and so are types where a schema declares them (Arrow, Parquet). Of a CSV file and of a
pandas frame, whose types are made of values, a column's kind is bought as well.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from quoron.config import ALL, Config, TableSection, bought_of
from quoron.paths import dataset, table_file
from quoron.simulation.patterns import roles, with_columns
from quoron.training.votes import Want
from quoron.wildcards import WILD, left_out, meant
from quoron_client.data import columns, row_kinds, tables
from quoron_client.data.labels import Signs, read_label
from quoron_client.data.spans import is_span
from quoron_client.data.spans import named as spans_named
from quoron_client.data.tables import Opened
from quoron_privacy.errors import ConfigError, DataError


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is bought, and what is known without."""

    features: tuple[Want, ...]  # in the order of the table
    known: Mapping[str, tuple[float, float]]  # ranges that a type tells: of true and false
    label: Want | None
    items: Want | None
    left_out: tuple[str, ...]  # columns that cannot be features, each with why

    @property
    def all(self) -> tuple[Want, ...]:
        """Of everything, in one order."""
        return (*self.features, *(each for each in (self.label, self.items) if each is not None))


def wanted(config: Config, base: Path, source: Opened, frame: Any = None) -> Wanted:
    """What of the table nobody has declared. DataError for a column that is asked for and holds nothing to buy."""
    section, declared = config.population, with_columns(config, base, frame).population
    assert isinstance(section, TableSection)
    assert isinstance(declared, TableSection)
    header = list(source.names)
    if not header:
        raise ConfigError(
            "Expected declared columns of a table without a header, got none: what keys its rows have is private. "
            "Declare numeric or categorical."
        )
    roles = (section.user, *([label_of(section)] if section.label else []))
    for name in roles:
        columns.check_name(name, header, roles)
    features: list[Want] = []
    known: dict[str, tuple[float, float]] = {}
    left: list[str] = []
    for name, kind, named in _resolved(section, declared, header):
        type_ = source.schema.get(name)
        if not named and is_identifier(name):
            left.append(
                f"Column {name!r} is left out: its name is an identifier's. To use it declare it, or estimate it by "
                f"name (--estimate '{name}=any')."
            )
            continue
        if not named and (WILD in name or is_span(name)):
            left.append(f"Column {name!r} is left out: its name reads as a pattern of columns. Rename it.")
            continue
        try:
            dated = kind == "any" and row_kinds.is_day(columns.kind(source.empty([name]), name))
            if dated:
                row_kinds.kinds(source.empty([name]), name)
            else:
                columns.check(source.empty([name]), name)
        except DataError as error:
            if named:
                raise
            left.append(f"Column {name!r} is left out: {str(error).rstrip('.')}.")
            continue
        if dated:  # a frame's own type costs what not knowing it would
            features.append(Want(name, "any" if type_ is None else "date"))
        elif type_ is not None and pa.types.is_boolean(type_) and kind != "category":
            known[name] = (0.0, 1.0)
        elif kind == "any" and type_ is not None:
            features.append(Want(name, "any" if columns.is_text(type_) else "number"))  # text may say numbers and dates
        else:
            features.append(Want(name, kind))
    said = (
        section.numeric,
        section.hashed,
        section.dates,
        [name for name, some in section.categorical.items() if some],
    )
    if left and not (features or known or any(said)):
        raise ConfigError(f"Expected features, got none. {' '.join(left)}")
    items = Want("items per user", "items") if config.problem.items_per_user is None else None
    label = _label(section, source.schema)
    if label is not None:
        columns.check(source.empty([label.column]), label.column)
    return Wanted(tuple(features), known, label, items, tuple(left))


def is_identifier(name: str) -> bool:
    """Whether a column's name ends in a word `id`: after a sign, a digit or nothing, or told apart by its capital.

    `userid` is not one, as nothing in its letters tells it from `covid`; exclude such a column.

    >>> [name for name in ("id", "visit_id", "patientID", "UserId", "paid", "COVID", "userid") if is_identifier(name)]
    ['id', 'visit_id', 'patientID', 'UserId']
    """
    stem, end = name.strip()[:-2], name.strip()[-2:]
    before = stem[-1:]
    apart = before.lower() == before.upper()  # no letter, or of a script without capitals
    return end.lower() == "id" and (apart or end == "Id" or (end == "ID" and before.islower()))


def source_of(section: TableSection, base: Path, frame: Any = None) -> Opened:
    """What is read, in batches and as often as is needed: a file, a folder, a URL or a frame."""
    if frame is not None:
        return tables.opened(frame, section.dialect)
    return tables.opened(dataset(section.path, base) or table_file(section.path, base), section.dialect)


def label_of(section: TableSection) -> str:
    """The label's column."""
    assert section.label is not None
    return str(_read(section).column)


def _resolved(section: TableSection, declared: TableSection, header: list[str]) -> Iterator[tuple[str, Any, bool]]:
    """(column, kind, whether it is named or by a pattern of its own) in the order of the table."""
    own = roles(section)
    said_of = {name: kind for name, kind in bought_of(section).items() if name != section.label}
    named = [each for each in said_of if each != ALL]
    features = (*declared.numeric, *declared.categorical, *declared.hashed, *declared.dates)
    said = {name for given in features for name in spans_named(given)} - {*named}
    said |= left_out(
        [*section.numeric, *section.hashed, *section.dates, *section.categorical, *section.estimate],
        header,
        section.exclude,
    )
    found = meant(named, header, roles=own | said)
    kinds = {name: said_of[given] for given, some in zip(named, found, strict=True) for name in some}
    for name in kinds:
        columns.check_name(name, header, own)
        if name in section.numeric or name in section.hashed or name in section.dates:
            raise ConfigError(f"Expected {name!r} to be declared or bought, got both. Leave it out of one.")
        if name in own:
            raise ConfigError(f"Expected columns other than {', '.join(sorted(own))} as features, got {name!r}.")
    for name in dict.fromkeys(header):
        if name in kinds:
            yield name, kinds[name], True
        elif ALL in said_of and name not in own and name not in said:
            yield name, said_of[ALL], False


def _label(section: TableSection, types: Mapping[str, pa.DataType]) -> Want | None:
    if section.label is None:
        return None
    type_ = types.get(section.label)
    if not isinstance(_read(section), Signs) or (type_ is not None and pa.types.is_boolean(type_)):
        if section.label in section.estimate:
            raise ConfigError(f"Expected label {section.label!r} to be declared or bought, got both. Leave out one.")
        return None
    if isinstance(section.class_weight, dict):
        raise ConfigError(
            f"Expected the classes of label {section.label!r} beside a weight for each, got class_weight for "
            f"{', '.join(section.class_weight)}. Declare classes = [...], or say class_weight = 'balanced'."
        )
    return Want(section.label, "label")


def _read(section: TableSection) -> Any:
    assert section.label is not None
    return read_label(
        section.label,
        positive=section.positive,
        classes=tuple(section.classes),
        label_range=section.label_range,
    )
