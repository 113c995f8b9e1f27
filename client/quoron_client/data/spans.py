"""Columns that are declared alike as one entry: `x[0:100000]` is x0, x1, ..., x99999, and `x[000:100]` x000 to x099.

    >>> named("pixel[08:11]")
    ('pixel08', 'pixel09', 'pixel10')
    >>> spanned(named("x[0:150]"))
    ['x[0:150]']

What stands in brackets are the first number and the one after the last, as Python slices are. Numbers have as many
digits as the first, if that begins with 0. So a run over 10⁵ columns is told in a line: in a configuration, to a
coordinator, to its clients and in a model's file.

Categories that are integers and count up are one text likewise.

    >>> counted("0:50000")
    range(0, 50000)
"""

import re
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

from quoron_privacy.errors import ConfigError

MOST = 1 << 20  # columns of one encoding: their names take some 100 MB, and whoever announces a run may name a span
LARGEST = 2**53  # integer categories below it are what they are as float64 too
LEAST = 100  # columns, or integers, in a row that are told as a span
_SPAN = re.compile(r"(.*)\[(\d{1,9}):(\d{1,9})\]", re.ASCII | re.DOTALL)
_COUNTED = re.compile(r"(-?\d{1,16}):(-?\d{1,16})", re.ASCII)
_NUMBERED = re.compile(r"(.*?)(\d{1,9})", re.ASCII | re.DOTALL)


def is_span(name: str) -> bool:
    """Whether a name stands for columns that count up."""
    return _SPAN.fullmatch(name) is not None


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
