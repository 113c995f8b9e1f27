"""How the rows of a table become items, in the words of every door and every command: one list, `TableColumns`.

    >>> read("numeric", ["age=0:100,dose=-1:1"])
    {'age': (0.0, 100.0), 'dose': (-1.0, 1.0)}
    >>> read("categorical", ["ward=north,south", "grade=1,2,3"])
    {'ward': ['north', 'south'], 'grade': [1, 2, 3]}

**A new word is one line here**, and the field of that name of `config.TableSection`, which checks it and says in the
reference what it means. From the line come the keyword of `quoron.train`, `plan`, `simulate`, ... (their signatures,
docstrings, and what is said of a misspelt one), and how it is typed in a shell: as an option of the commands where it
is an `option`, and behind `--set population.WORD=`. What is given is passed to the field as it is: lists of columns,
ranges and values are understood there.
"""

import csv
import inspect
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypedDict, get_args, get_origin, get_type_hints

from quoron_privacy.errors import ConfigError


def _text(typed: str) -> str:
    return typed


def _ends(typed: str) -> tuple[float, float]:
    """`0:100`."""
    low, high = map(float, typed.split(":"))
    return low, high


def _ranges(typed: str) -> dict[str, Any] | list[str]:
    """`age=0:100,dose=0:5`; or `age,dose`, whose ranges nobody says."""
    named = {}
    for each in _parts(typed):
        column, equals, ends = each.rpartition("=")
        named[column if equals else each] = _ends(ends) if equals else None
    return list(named) if not any(named.values()) else named


def _one_or_many(typed: str) -> dict[str, Any] | tuple[float, float]:
    """`0:1` for all; or `age=0:100,x*=0:1`."""
    return dict(map(_named_ends, _parts(typed))) if "=" in typed else _ends(typed)


def _named_ends(typed: str) -> tuple[str, tuple[float, float]]:
    column, _, ends = typed.rpartition("=")
    return column, _ends(ends)


def _buckets(typed: str) -> dict[str, int]:
    """`code=64,drug=256`."""
    named = (each.rpartition("=") for each in _parts(typed))
    return {column: int(many) for column, _, many in named}


def _dates(typed: str) -> dict[str, Any]:
    """`admitted=month,weekday`, or `admitted=weekday,year:2007:2016,days:2007-01-01:2016-12-31,format:%d.%m.%Y`."""
    column, _, listed = typed.partition("=")
    said: dict[str, Any] = {"parts": [each for each in _parts(listed) if ":" not in each]}
    for key, _, value in (each.partition(":") for each in _parts(listed) if ":" in each):
        first, _, last = value.partition(":")
        said[key] = [int(first), int(last)] if key == "year" else [first, last] if key == "days" else value
    return {column: said}


def _estimated(typed: str) -> dict[str, str]:
    """`age=number,ward=category`, or `x*` and `*`, of which nobody says what they are."""
    named = (each.partition("=") for each in _parts(typed))
    return {column: kind or "any" for column, _, kind in named}


def _vocabularies(typed: str) -> dict[str, Any] | list[str]:
    """`ward=north,south`, or `ward,clinic`, whose values nobody says."""
    column, equals, listed = typed.partition("=")
    return {column: _values(listed)} if equals else _parts(typed)


def _values(typed: str) -> list[str] | list[int]:
    """`north,south`; `1,2,3` are integers, if all of them are."""
    return integers(_parts(typed))


def _value(typed: str) -> str | int | bool:
    """`yes`, `1`, `true`."""
    return {"true": True, "false": False}.get(typed, integers([typed])[0])


def _most(typed: str) -> dict[str, str | float]:
    """`nights=14`."""
    column, _, most = typed.rpartition("=")
    return {"column": column, "most": float(most)}


def _by_class(typed: str) -> str | dict[str, float]:
    """`balanced`; `no=1,yes=5`."""
    named = (each.rpartition("=") for each in _parts(typed))
    return typed if typed == "balanced" else {name: float(weight) for name, _, weight in named}


def _parts(typed: str) -> list[str]:
    """What commas part; quotes keep one together."""
    return [each.strip() for each in next(csv.reader([typed], skipinitialspace=True), []) if each.strip()]


def integers(texts: Sequence[str]) -> list[str] | list[int]:
    """The same as integers if all of them are some, as whoever reads the same file takes them for such."""
    return [int(text) for text in texts] if all(map(_is_integer, texts)) else list(texts)


def _is_integer(text: str) -> bool:
    digits = text.removeprefix("-")
    return len(digits) < 19 and digits.isascii() and digits.isdigit() and str(int(text)) == text


@dataclass(frozen=True, slots=True)
class Word:
    """What a word of a table means, and how it is typed in a shell."""

    means: str
    metavar: str = "TEXT"
    read: Callable[[str], Any] = _text  # ValueError for what cannot be meant
    option: bool = False  # of the commands; else reached by --set population.WORD


class TableColumns(TypedDict, total=False):
    """How the rows of a table become items, beside user and label: see docs/config-reference.md."""

    numeric: Annotated[
        Mapping[str, tuple[float, float]] | Sequence[str] | str,
        Word("public range of each column of numbers", "COLUMN=LOW:HIGH,...", _ranges, True),
    ]
    categorical: Annotated[
        Mapping[str, Sequence[str | int]] | Sequence[str],
        Word("public values of a column of words; once for each column", "COLUMN=VALUE,...", _vocabularies, True),
    ]
    ranges: Annotated[
        tuple[float, float] | Mapping[str, tuple[float, float]],
        Word("ranges of columns of numbers that are listed without", "LOW:HIGH|COLUMN=LOW:HIGH,...", _one_or_many),
    ]
    hashed: Annotated[
        Mapping[str, int],
        Word("columns of too many values to list, each hashed into so many buckets", "COLUMN=BUCKETS,...", _buckets),
    ]
    dates: Annotated[
        Mapping[str, Sequence[str] | Mapping[str, Any]] | Sequence[str],
        Word(
            "parts of a column of dates: month, weekday, day, hour, year:FIRST:LAST, days:FIRST:LAST, format:..., "
            "zone:...; once for each column",
            "COLUMN=PART,...",
            _dates,
        ),
    ]
    exclude: Annotated[Sequence[str], Word("columns that patterns and estimates leave out", "COLUMN,...", _parts)]
    estimate: Annotated[
        Mapping[str, Literal["number", "category", "any"]],
        Word(
            "columns whose range or values are estimated privately, for a part of ε; by default all, where no feature "
            "is declared",
            "COLUMN=KIND,...",
            _estimated,
            True,
        ),
    ]
    positive: Annotated[str | int | bool, Word("the label's value that counts as positive", "VALUE", _value)]
    classes: Annotated[Sequence[str | int | bool], Word("public values of the label", "VALUE,VALUE,...", _values)]
    label_range: Annotated[tuple[float, float], Word("public range of a label that is a number", "LOW:HIGH", _ends)]
    weight: Annotated[
        Mapping[str, str | float], Word("what a row counts: a column, and the most that it says", "COLUMN=MOST", _most)
    ]
    class_weight: Annotated[
        Literal["balanced"] | Mapping[str | int | bool, float],
        Word(
            "what a row counts by its class: a weight for each, or 'balanced'", "balanced|CLASS=NUMBER,...", _by_class
        ),
    ]
    class_weight_cap: Annotated[float, Word("balanced: the most that one class weighs of another", "NUMBER", float)]
    missing: Annotated[
        Literal["drop", "midpoint"], Word("what becomes of a row where a number is missing", "drop|midpoint")
    ]
    separator: Annotated[str, Word("what separates cells of text, if the header does not say", "CHARACTER")]
    decimal: Annotated[Literal[".", ","], Word("how numbers in text are written, 3.14 or 3,14", ".|,")]
    encoding: Annotated[str, Word("of text, if not UTF-8: utf-16, latin-1 or cp1252", "NAME")]
    quoting: Annotated[Literal["double", "none"], Word("whether cells of text may stand in quotes", "double|none")]
    intercept: Annotated[bool, Word("whether there is a constant", "true|false")]
    normalize: Annotated[bool, Word("whether rows are divided by their own length", "true|false")]


class DescribedTable(TableColumns, total=False):
    """All that is said of a table."""

    user: Annotated[str, Word("column that says whose item a row is; needed", "COLUMN", option=True)]
    label: Annotated[
        str, Word("column to predict, or a comparison such as 'delay > 15'; needed", "COLUMN", option=True)
    ]


_FIRST = ("user", "label")
TYPES: dict[str, Any] = get_type_hints(DescribedTable)
WORDS: dict[str, Word] = {
    name: get_args(get_type_hints(DescribedTable, include_extras=True)[name])[-1]
    for name in (*_FIRST, *TableColumns.__annotations__)
}


def read(name: str, typed: Sequence[str]) -> Any:
    """The value of a word that was typed so, once or several times. ConfigError for what cannot be meant."""
    word = WORDS[name]
    option = f"--{name.replace('_', '-')}" if word.option else f"--set population.{name}"
    found: list[Any] = []
    for each in typed:
        try:
            found.append(word.read(each))
        except ValueError:
            given = f"{option}{' ' if word.option else '='}"
            raise ConfigError(f"Expected {given}{word.metavar}, got {given}{each!r}.") from None
    if len(found) > 1 and not all(isinstance(each, dict | list) for each in found):
        raise ConfigError(f"Expected {option} once, got it {len(found)} times.")
    if any(isinstance(each, dict) for each in found):
        columns: dict[str, Any] = {}
        for column, value in ((column, value) for each in found for column, value in _as_columns(each).items()):
            if columns.setdefault(column, value) != value:
                raise ConfigError(
                    f"Expected one {option} of {column}, got {columns[column]} and {value}. Leave one out."
                )
        return columns
    return found[0] if len(found) == 1 else [one for each in found for one in each]


def _as_columns(given: Mapping[str, Any] | Sequence[str]) -> Mapping[str, Any]:
    """Columns whose range or values nobody says, beside those of others."""
    return given if isinstance(given, Mapping) else dict.fromkeys(given)


def shown(signature: inspect.Signature) -> inspect.Signature:
    """Return the same with each name in place of `**columns: Unpack[TableColumns]`, or of another such list."""
    own = [each for each in signature.parameters.values() if _listed(each) is None]
    if len(own) == len(signature.parameters):
        return signature
    (listed,) = filter(None, map(_listed, signature.parameters.values()))
    words, hints = [], get_type_hints(listed)
    for name in sorted(hints, key=TableColumns.__annotations__.__contains__):
        needed = name in listed.__required_keys__
        default, kind = inspect.Parameter.empty if needed else None, hints[name] if needed else hints[name] | None
        words.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind))
    return signature.replace(parameters=[*own, *words])


def described(text: str | None, signature: inspect.Signature) -> str | None:
    """A docstring that says what every word means, where it says `columns:`."""
    if text is None or not of_tables(signature):
        return text
    lines = []
    for line in text.splitlines():
        indent = line[: len(line) - len(line.lstrip())]
        if line.lstrip().startswith("columns:"):
            for name in TableColumns.__annotations__:
                word = WORDS[name]
                lines += textwrap.wrap(
                    f"{name}: {word.means}.", 120, initial_indent=indent, subsequent_indent=indent + "    "
                )
        else:
            lines.append(line)
    return "\n".join(lines)


def of_tables(signature: inspect.Signature) -> bool:
    """Whether its further words are those of a table."""
    return any("numeric" in getattr(_listed(each), "__annotations__", ()) for each in signature.parameters.values())


def _listed(parameter: inspect.Parameter) -> Any:
    """The list of words that `**columns: Unpack[...]` stands for; None for another parameter."""
    is_rest = parameter.kind is inspect.Parameter.VAR_KEYWORD and get_origin(parameter.annotation) is not None
    return get_args(parameter.annotation)[0] if is_rest else None
