"""Columns that are declared alike as one entry: `x[0:100000]` is x0, x1, ..., x99999, and `x[000:100]` x000 to x099.

    >>> named("pixel[08:11]")
    ('pixel08', 'pixel09', 'pixel10')
    >>> spanned(named("x[0:150]"))
    ['x[0:150]']

What stands in brackets are the first number and the one after the last, as Python slices are. Numbers have as many
digits as the first, if that begins with 0. So a run over 10⁵ columns is told in a line: in a configuration, to a
coordinator, to its clients and in a model's file.
"""

import re
from collections.abc import Iterator, Sequence

from quoron_privacy.errors import ConfigError

MOST = 1 << 20  # columns of one encoding: their names take some 100 MB, and whoever announces a run may name a span
_LEAST = 100  # columns in a row that are told as a span
_SPAN = re.compile(r"(.*)\[(\d{1,9}):(\d{1,9})\]", re.ASCII | re.DOTALL)
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
    told: list[str] = []
    for prefix, first, some in _runs(names):
        short = len(some) >= _LEAST and first is not None
        told += [f"{prefix}[{first}:{int(str(first)) + len(some)}]"] if short else some
    return told


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
