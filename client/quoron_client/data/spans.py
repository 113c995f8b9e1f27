"""Columns that are declared alike as one entry: `x[0:100000]` is x0, x1, ..., x99999, and `x[000:100]` x000 to x099.

    >>> named("pixel[08:11]")
    ('pixel08', 'pixel09', 'pixel10')
    >>> spanned(named("x[0:150]"))
    ['x[0:150]']

What stands in brackets are the first number and the one after the last, as Python slices are. Numbers have as many
digits as the first, if that begins with 0. So a run over 10⁵ columns is told in a line: in a configuration, to a
coordinator, to its clients and in a model's file.

Where a table's header is known, `x*` is every column whose name begins with x, but those that are named themselves, and
`*` is all the others. It is looked up once, and what is told from then on are the columns themselves. Categories that
are integers and count up are one text likewise.

    >>> resolved(["x*", "age"], ["who", "x1", "age", "x2"], roles={"who"})
    [('x1', 'x2'), ('age',)]
    >>> counted("0:50000")
    range(0, 50000)
"""

import re
from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Annotated, Any, TypeVar

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

from quoron_privacy.errors import ConfigError

T = TypeVar("T")
MOST = 1 << 20  # columns of one encoding: their names take some 100 MB, and whoever announces a run may name a span
LARGEST = 2**53  # integer categories below it are what they are as float64 too
WILD = "*"  # any characters, also none
LEAST = 100  # columns, or integers, in a row that are told as a span
_SPAN = re.compile(r"(.*)\[(\d{1,9}):(\d{1,9})\]", re.ASCII | re.DOTALL)
_COUNTED = re.compile(r"(-?\d{1,16}):(-?\d{1,16})", re.ASCII)
_NUMBERED = re.compile(r"(.*?)(\d{1,9})", re.ASCII | re.DOTALL)


def size(column: str) -> int | None:
    """How many columns a declared name stands for; None for one that is itself. ConfigError for none, or too many."""
    found = _SPAN.fullmatch(column)
    if found is None:
        return None
    many = int(found[3]) - int(found[2])
    if not 0 < many <= MOST:
        raise ConfigError(
            f"Expected from 1 to {MOST:,} columns as {column!r}, got {max(0, many):,}. Write [first:end]."
        )
    return many


def named(column: str) -> tuple[str, ...]:
    """The columns that a declared name stands for. ConfigError as `size`."""
    found, many = _SPAN.fullmatch(column), size(column)
    if found is None or many is None:
        return (column,)
    prefix, first = found[1], found[2]
    return tuple(prefix + _digits(int(first) + each, first) for each in range(many))


def spanned(names: Sequence[str]) -> list[str]:
    """The shortest list of declared names that stands for these, in this order: spans where 100 or more follow."""
    written: list[str] = []
    for prefix, first, some in _runs(names):
        short = len(some) >= LEAST and first is not None
        written += [f"{prefix}[{first}:{int(str(first)) + len(some)}]"] if short else some
    return written


def counted(text: str) -> range:
    """The integers that `0:50000` stands for, the first and the one after the last. ConfigError for another text."""
    found = _COUNTED.fullmatch(text)
    many = range(int(found[1]), int(found[2])) if found is not None else range(0)
    if not 0 < len(many) <= MOST or not -LARGEST < many[0] <= many[-1] < LARGEST:
        raise ConfigError(
            f"Expected values as a list, or from 1 to {MOST:,} integers as 'first:end' such as '0:50000', got {text!r}."
        )
    return many


def values(given: Any) -> Sequence[Any]:
    """Those of a list, or of a text as of `counted`, in a tree that is not checked yet; none of anything else."""
    try:
        found = counted(given) if isinstance(given, str) else given
    except ConfigError:
        return ()
    return found if isinstance(found, Sequence) else ()


def counting(values: Sequence[str | int]) -> range | None:
    """The same as a range, where they are `LEAST` integers or more of which each is one above that before it."""
    first = values[0] if values else ""
    if isinstance(values, range) or len(values) < LEAST or isinstance(first, str):
        return values if isinstance(values, range) else None
    many = range(first, first + len(values))
    return many if all(type(a) is int and a == b for a, b in zip(values, many, strict=True)) else None


class _Told:
    """How JSON tells public values: a list, or integers that count up as one text."""

    @staticmethod
    def __get_pydantic_core_schema__(source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        del source
        listed = handler(tuple[str | int | bool, ...])
        said = core_schema.plain_serializer_function_ser_schema(_said)
        return core_schema.no_info_wrap_validator_function(_read, listed, serialization=said)


Vocabulary = Annotated[tuple[str | int | bool, ...] | range, _Told()]


def _said(values: tuple[str | int | bool, ...] | range | str) -> tuple[str | int | bool, ...] | str:
    return f"{values.start}:{values.stop}" if isinstance(values, range) else values


def _read(given: Any, listed: core_schema.ValidatorFunctionWrapHandler) -> Any:
    if isinstance(given, str):
        try:
            return counted(given)
        except ConfigError:
            raise ValueError(f"to be a list, or from 1 to {MOST:,} integers such as '0:50000'") from None
    return given if isinstance(given, range) else listed(tuple(given) if isinstance(given, list) else given)


def resolved(
    declared: Sequence[str], header: Sequence[str], *, roles: Collection[str], without: Sequence[str] = ()
) -> list[tuple[str, ...]]:
    """What each declared name stands for in a table of these columns: itself, or the columns of a pattern in order.

    Nothing but names is looked at. In no pattern are columns that have a role of their own, the user's, the label's and
    the weight's, those that are named themselves, and those that names or patterns in `without` leave out. `*` is what
    no other pattern is. ConfigError for a pattern that stands for no column, or for one that another stands for too,
    and for what is left out and is no column, or is declared.
    """
    if not without and all(WILD not in each for each in declared):
        return [(each,) for each in declared]
    columns = _Header(header)
    left_out = {*roles, *_left_out(declared, columns, without)}
    wild = [place for place, each in enumerate(declared) if WILD in each]
    named_so = {name for each in declared if WILD not in each for name in named(each)}
    found: dict[int, tuple[str, ...]] = {}
    entry: dict[str, int] = {}
    for place in sorted(wild, key=lambda each: (declared[each] == WILD, each)):
        last = declared[place] == WILD
        some = _matched(declared[place], columns, left_out)
        found[place] = tuple(name for name in some if name not in named_so and not (last and name in entry))
        for name in found[place]:
            if entry.setdefault(name, place) != place:
                raise ConfigError(
                    f"Expected every column to be declared once, got {name!r} as {declared[entry[name]]!r} and as "
                    f"{declared[place]!r}. Write patterns that have no column in common, or name the column itself."
                )
    if len({declared[each] for each in wild}) < len(wild):
        twice = next(each for each in declared if WILD in each and declared.count(each) > 1)
        raise ConfigError(f"Expected every pattern once, got {twice!r} twice. Leave one out.")
    return [found.get(place, (each,)) for place, each in enumerate(declared)]


def meant(
    declared: Sequence[str], header: Sequence[str], *, roles: Collection[str], without: Sequence[str] = ()
) -> list[tuple[str, ...]]:
    """As `resolved`, and spans as their columns too."""
    found = zip(declared, resolved(declared, header, roles=roles, without=without), strict=True)
    return [some if WILD in given else named(given) for given, some in found]


def ranged(declared: Sequence[str], ranges: Mapping[str, T]) -> dict[str, T | None]:
    """What each declared name has of `ranges`, whose keys are names or patterns, too; None where there is none.

    A name's own comes before that of a pattern, and any pattern's before that of `*`. A key that a pattern among the
    names stands for is an entry of its own. ConfigError for a name of two, and for a key that no name has.
    """
    found: dict[str, T | None] = {}
    wild = [each for each in declared if WILD in each]
    own = [each for each in ranges if each not in declared and any(_fits(each, pattern) for pattern in wild)]
    patterns = [each for each in ranges if WILD in each and each != WILD]
    used = {*own}
    for each in (*declared, *own):
        fitting = [each] if each in ranges else [pattern for pattern in patterns if _fits(each, pattern)]
        if len(fitting) > 1:
            raise ConfigError(
                f"Expected one range of {each!r}, got those of {fitting[0]!r} and of {fitting[1]!r}. Write one of its "
                "own."
            )
        key = fitting[0] if fitting else WILD
        found[each] = ranges.get(key)
        used.add(key)
    unused = next((each for each in ranges if each not in used), None)
    if unused is not None:
        raise ConfigError(f"Expected ranges of columns that are numeric, got {unused!r}, which is none. Name it there.")
    return found


class _Header:
    """Names of columns, in order, and sorted so that those that begin, or end, alike are found at once."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(dict.fromkeys(names))
        self._place = {name: place for place, name in enumerate(self.names)}
        self._forward = sorted(self.names)
        self._backward = sorted(name[::-1] for name in self.names)

    def __contains__(self, name: str) -> bool:
        return name in self._place

    def fitting(self, pattern: str) -> list[str]:
        """Those that are the pattern with some text in place of each `*`, in order."""
        first, *_, last = pattern.split(WILD)
        some = self._beginning(self._forward, first)
        if last and not first:
            some = [each[::-1] for each in self._beginning(self._backward, last[::-1])]
        return sorted((each for each in some if _fits(each, pattern)), key=self._place.__getitem__)

    @staticmethod
    def _beginning(names: list[str], text: str) -> list[str]:
        begin = bisect_left(names, text)
        return names[begin : bisect_left(names, True, begin, key=lambda name: not name.startswith(text))]


def left_out(declared: Sequence[str], header: Sequence[str], without: Sequence[str]) -> set[str]:
    """The columns that names, spans and patterns in `without` leave out. ConfigError as of `resolved`."""
    return _left_out(declared, _Header(header), without)


def _left_out(declared: Sequence[str], header: _Header, without: Sequence[str]) -> set[str]:
    """Columns that are left out by name or by a pattern. ConfigError for one that is declared, and for no column."""
    found: set[str] = set()
    for each in without:
        if each in declared:
            raise ConfigError(f"Expected columns to exclude that nobody declares, got {each!r}. Leave it out of one.")
        said = (each,) if each in header or WILD in each else named(each)
        some = header.fitting(each) if WILD in each else [name for name in said if name in header]
        if not some:
            raise ConfigError(f"Expected columns that {each!r} excludes, got none in the table. Leave it out.")
        found |= {*some}
    return found


def _matched(pattern: str, header: _Header, left_out: Collection[str]) -> tuple[str, ...]:
    if _SPAN.fullmatch(pattern) is not None:
        raise ConfigError(f"Expected a pattern such as 'x*' or a span such as 'x[0:9]', got {pattern!r}: both in one.")
    some = [name for name in header.fitting(pattern) if name not in left_out]
    if some == [pattern]:
        return (pattern,)  # a column whose own name it is
    if not some:
        names = header.names
        first = ", ".join(map(repr, names[:5])) + (", ..." if len(names) > 5 else "")
        raise ConfigError(
            f"Expected columns that {pattern!r} stands for, got none among the {len(names):,} of the table: {first}. "
            "Letters count as they are written; '*' is any of them, also none."
        )
    odd = next((name for name in some if WILD in name or _SPAN.fullmatch(name) is not None), None)
    if odd is not None:
        raise ConfigError(
            f"Expected names without '*' or a span's brackets for the pattern {pattern!r}, got column {odd!r}, which "
            "could be meant in two ways. Rename it, exclude it, or write a pattern without it."
        )
    if len(some) > MOST:
        raise ConfigError(f"Expected at most {MOST:,} columns as {pattern!r}, got {len(some):,}. Declare fewer.")
    return tuple(some)


def _fits(name: str, pattern: str) -> bool:
    """Whether a name is the pattern with some text in place of each `*`; in time that is linear in both."""
    first, *between, last = pattern.split(WILD)
    if len(name) < len(first) + len(last) or not (name.startswith(first) and name.endswith(last)):
        return False
    place, end = len(first), len(name) - len(last)
    for part in between:
        found = name.find(part, place, end)
        if found < 0:
            return False
        place = found + len(part)
    return True


def _runs(names: Sequence[str]) -> Iterator[tuple[str, str | None, list[str]]]:
    """Names that count up, together: what they begin with, the digits of the first, and the names."""
    prefix, first, some = "", None, list[str]()
    for name in names:
        if first is not None and name == prefix + _digits(int(first) + len(some), first):
            some.append(name)
            continue
        if some:
            yield prefix, first, some
        found = _NUMBERED.fullmatch(name)
        good = found is not None and _digits(int(found[2]), found[2]) == found[2]
        prefix, first = (found[1], found[2]) if found is not None and good else ("", None)
        some = [name]
    if some:
        yield prefix, first, some


def _digits(number: int, like: str) -> str:
    return f"{number:0{len(like)}}" if like.startswith("0") and len(like) > 1 else str(number)
