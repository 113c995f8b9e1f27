"""Columns that are declared by a pattern: `x*` is every column of a table's header whose name begins with x.

    >>> resolved(["x*", "age"], ["who", "x1", "age", "x2"], roles={"who"})
    [('x1', 'x2'), ('age',)]

Those that are named themselves are left out, and `*` is all the others.
"""

from collections.abc import Collection, Sequence

from quoron_client.data.features import MAX_COLUMNS as MOST
from quoron_client.data.features import is_span, named
from quoron_privacy.errors import ConfigError

WILD = "*"  # any characters, also none


def resolved(
    declared: Sequence[str], header: Sequence[str], *, roles: Collection[str], without: Sequence[str] = ()
) -> list[tuple[str, ...]]:
    """What each declared name stands for in a table of these columns: itself, or the columns of a pattern in order.

    Nothing but names is looked at. In no pattern are columns that have a role of their own, the user's, the label's and
    the weight's, those that are named themselves, and those that names or patterns in `without` leave out. `*` is what
    no other pattern is. ConfigError for a pattern that stands for no column, or for one that another stands for too,
    and for what is left out and is no column, or is declared; also where no column has a role: such a header may be
    somebody's row.
    """
    if not without and all(WILD not in each for each in declared):
        return [(each,) for each in declared]
    if roles and {*roles}.isdisjoint(header):
        raise ConfigError(
            f"Expected a header with {', '.join(map(repr, sorted(roles)))} to find patterns of columns in, got "
            "another, which may be somebody's row and is not shown. Write the names of the columns above the rows."
        )
    columns = tuple(dict.fromkeys(header))
    excluded = {*roles, *left_out(declared, columns, without)}
    wild = [place for place, each in enumerate(declared) if WILD in each]
    named_so = {name for each in declared if WILD not in each for name in named(each)}
    found: dict[int, tuple[str, ...]] = {}
    entry: dict[str, int] = {}
    for place in sorted(wild, key=lambda each: (declared[each] == WILD, each)):
        last = declared[place] == WILD
        some = _matched(declared[place], columns, excluded)
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


def meant(declared: Sequence[str], header: Sequence[str], *, roles: Collection[str]) -> list[tuple[str, ...]]:
    """As `resolved`, and spans as their columns too."""
    found = zip(declared, resolved(declared, header, roles=roles), strict=True)
    return [some if WILD in given else named(given) for given, some in found]


def left_out(declared: Sequence[str], header: Sequence[str], without: Sequence[str]) -> set[str]:
    """Columns that are left out by name or by a pattern. ConfigError for one that is declared, and for no column."""
    names = {*header} if without else set[str]()
    found: set[str] = set()
    for each in without:
        if each in declared:
            raise ConfigError(f"Expected columns to exclude that nobody declares, got {each!r}. Leave it out of one.")
        said = (each,) if each in names else named(each)
        some = _fitting(each, header) if WILD in each else [name for name in said if name in names]
        if not some:
            raise ConfigError(f"Expected columns that {each!r} excludes, got none in the table. Leave it out.")
        found |= {*some}
    return found


def _fitting(pattern: str, header: Sequence[str]) -> list[str]:
    first = pattern.partition(WILD)[0]
    return [name for name in header if name.startswith(first) and _fits(name, pattern)]


def _matched(pattern: str, header: Sequence[str], without: Collection[str]) -> tuple[str, ...]:
    if is_span(pattern):
        raise ConfigError(f"Expected a pattern such as 'x*' or a span such as 'x[0:9]', got {pattern!r}: both in one.")
    some = [name for name in _fitting(pattern, header) if name not in without]
    if some == [pattern]:
        return (pattern,)  # a column whose own name it is
    if not some:
        raise ConfigError(
            f"Expected columns that {pattern!r} stands for, got none among the {len(header):,} of the table. "
            "Letters count as they are written; '*' is any of them, also none."
        )
    odd = next((name for name in some if WILD in name or is_span(name)), None)
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
