"""Dates and times, by their parts: which month, weekday, day or hour, or how many years or days as a number.

    >>> import pyarrow as pa
    >>> admitted = pa.table({"admitted": ["2024-02-29", "2024-03-01T13:30+01:00", "29.2.2024"]})
    >>> DatePart("admitted", "weekday").read(admitted).tolist()
    [3, 4, -1]
    >>> DateNumber("admitted", "days", 0, 366, since="2024-01-01").read(admitted).tolist()
    [59.0, 60.0, nan]

| a value                            | its day and time                                                        |
| ---------------------------------- | ----------------------------------------------------------------------- |
| a date                             | that day at 0:00                                                        |
| a timestamp without a time zone    | as it stands                                                            |
| a timestamp with one               | as a clock in its zone shows it; with `zone`, as one in that zone does  |
| a time                             | that time of no day: it has an hour, and nothing else                   |
| text, and whole numbers as text    | ISO 8601 or the declared format; what has an offset as a clock at that  |
|                                    | offset shows it, with `zone` as one in that zone does                   |
| numbers, with `format="unix"`     | seconds since 1970-01-01T00:00Z, as a clock in `zone` shows it, or UTC  |
| anything else                      | missing                                                                 |

The calendar is the Gregorian one without beginning or end. 24:00 is 0:00 of the next day. What a value says depends on
nothing but itself, the declaration and the type of its column.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import cache
from typing import TYPE_CHECKING, ClassVar, Literal
from zoneinfo import ZoneInfo

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict

from quoron_client.data.kind import Codes, Kind, Misfit, Vector
from quoron_privacy.errors import ConfigError
from quoron_privacy.kernels.on_first_use import OnFirstUse

if TYPE_CHECKING:  # a coordinator has rules, but no table
    import pyarrow as pa

    from quoron_client.data import moments
else:
    moments = OnFirstUse("quoron_client.data.moments")  # it brings pyarrow

Part = Literal["month", "weekday", "day", "hour"]
WORDS: dict[str, tuple[str, ...]] = {
    "month": tuple(
        "January February March April May June July August September October November December".split()  # noqa: SIM905
    ),
    "weekday": ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"),
    "day": tuple(map(str, range(1, 32))),
    "hour": tuple(map(str, range(24))),
}
_SIGNS = {  # of a declared format, as `strptime` has them; those of `dates_loops`
    "Y": 256, "y": 257, "m": 258, "d": 259, "j": 260, "H": 261, "I": 262, "M": 263, "S": 264, "f": 265, "z": 266,
    "p": 267, "B": 268, "b": 269,
}  # fmt: skip
_WHOLE = {"F": "%Y-%m-%d", "T": "%H:%M:%S", "R": "%H:%M", "D": "%m/%d/%y"}
_UNIX = {"unix": 1, "unix-ms": 1000, "unix-us": 1_000_000, "unix-ns": 1_000_000_000}  # in a second
_OFFSET = re.compile(r"([-+])(\d\d):?(\d\d)", re.ASCII)
_ZERO = timedelta()
_YEARS = 9999  # of a range, to either side of the year 0
_CLOSED: ConfigDict = ConfigDict(extra="forbid")


@dataclass(frozen=True, slots=True)
class DatePart(Kind):
    """One 0/1 column for each month, weekday, day of the month or hour of the day; a value without is all zeros."""

    column: str
    part: Part
    format: str = "iso"  # how text says it: "iso", a format such as "%d.%m.%Y %H:%M", or "unix", "unix-ms", ...
    zone: str = ""  # the clock that values are told by, of those that have an offset; "": the one they are written in

    __pydantic_config__: ClassVar[ConfigDict] = _CLOSED

    def __post_init__(self) -> None:
        if self.part not in WORDS:
            raise ConfigError(f"Expected {', '.join(WORDS)} of date {self.column!r}, got {self.part!r}.")
        _check(self.column, self.format, self.zone, self.part)

    @property
    def title(self) -> str:
        """The column and the part."""
        return f"{self.column} {self.part}"

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns it becomes."""
        return tuple(f"{self.column} {self.part}={word}" for word in WORDS[self.part])

    @property
    def width(self) -> int:
        """How many columns it becomes."""
        return len(WORDS[self.part])

    @property
    def misfit(self) -> Misfit:
        """What it is, what a value is that does not fit, in words, and the fix."""
        return "category", f"no {'time' if self.part == 'hour' else 'date'}, or missing", _fix(self.format)

    def check(self, table: "pa.Table") -> None:
        """Raises DataError unless the table has the column once, of a type that says this part; looks at no value."""
        moments.check(table, self.column, self.part)

    def read(self, table: "pa.Table") -> Codes:
        """The part of each value, shape (N,), from 0; -1 for none. Raises DataError as `check` does."""
        self.check(table)
        found = moments.of(table, self.column, self.format, self.zone)
        if self.part == "hour":
            return found.hours()
        if self.part == "weekday":
            return found.weekdays()
        return found.months() if self.part == "month" else found.days_of_month()


@dataclass(frozen=True, slots=True)
class DateNumber(Kind):
    """The year of a date, or the days since a declared one, [low, high] to [-1, 1]; others are held at the ends."""

    column: str
    part: Literal["year", "days"]
    low: float
    high: float
    since: str = ""  # the day that days are counted from, "2007-01-01"
    format: str = "iso"  # as of a `DatePart`
    zone: str = ""

    __pydantic_config__: ClassVar[ConfigDict] = _CLOSED

    def __post_init__(self) -> None:
        most = _YEARS if self.part == "year" else 366 * _YEARS
        if self.part not in ("year", "days") or not -most <= self.low < self.high <= most:
            raise ConfigError(
                f"Expected a public range low < high of the {self.part} of date {self.column!r}, got "
                f"[{self.low}, {self.high}]."
            )
        if self.part == "days":
            day_number(self.column, self.since)
        elif self.since:
            raise ConfigError(f"Expected no first day for years of date {self.column!r}, got {self.since!r}.")
        _check(self.column, self.format, self.zone, self.part)

    @property
    def title(self) -> str:
        """The column, and what is counted."""
        return f"{self.column} year" if self.part == "year" else f"{self.column} days since {self.since}"

    @property
    def names(self) -> tuple[str, ...]:
        """The name of the column it becomes."""
        return (self.title,)

    @property
    def is_number(self) -> bool:
        """Always."""
        return True

    @property
    def misfit(self) -> Misfit:
        """What it is, what a value is that does not fit, in words, and the fix."""
        return "number", f"outside [{self.low:g}, {self.high:g}], or no date", _fix(self.format)

    def check(self, table: "pa.Table") -> None:
        """Raises DataError unless the table has the column once, of a type that says this part; looks at no value."""
        moments.check(table, self.column, self.part)

    def read(self, table: "pa.Table") -> Vector:
        """Years, or whole days since the declared one, of all rows, shape (N,); NaN where a value is no date."""
        self.check(table)
        found = moments.of(table, self.column, self.format, self.zone)
        return found.years() if self.part == "year" else found.days_since(day_number(self.column, self.since))


def day_number(column: str, day: str) -> int:
    """Days from 1970-01-01 to a declared day. ConfigError for another text."""
    try:
        return date.fromisoformat(day).toordinal() - date(1970, 1, 1).toordinal()
    except (TypeError, ValueError):
        raise ConfigError(f"Expected a day such as '2007-01-31' for date {column!r}, got {day!r}.") from None


@cache
def form(written: str) -> tuple[int, ...]:
    """The signs of a format, as the loop reads them; none for ISO 8601. ConfigError for one that says no date."""
    if written == "iso":
        return ()
    text, signs, at = re.sub(r"%([FTRD])", lambda found: _WHOLE[found[1]], written), list[int](), 0
    while at < len(text):
        letter = text[at + 1 : at + 2] if text[at] == "%" else ""
        if text[at] == "%" and letter not in _SIGNS and letter != "%":
            raise ConfigError(
                f"Expected a format of {', '.join('%' + each for each in (*_SIGNS, *_WHOLE))}, or 'iso', "
                f"{', '.join(map(repr, _UNIX))}, got {written!r}."
            )
        signs += [_SIGNS[letter]] if letter in _SIGNS else [*(letter or text[at]).encode()]
        at += 1 + bool(letter)
    return tuple(signs)


def unix(written: str) -> int | None:
    """What a second is in values that count from 1970-01-01T00:00Z; None for text."""
    return _UNIX.get(written)


@cache
def clock(zone: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Seconds since 1970-01-01T00:00Z from which on a zone is so many seconds ahead of UTC: two arrays, both (k,).

    Before 1800 and from 2200 on it is what it is there. ConfigError for a zone that this machine does not know.
    """
    ahead = _ahead(zone)
    first, last = ((date(year, 1, 1) - date(1970, 1, 1)).days for year in (1800, 2200))
    starts, offsets = [86_400 * first], [ahead(86_400 * first)]
    for day in range(first + 1, last):  # no clock is put forward and back again within a day
        if ahead(86_400 * day) != offsets[-1]:
            before, after = 86_400 * (day - 1), 86_400 * day
            while after - before > 1:
                middle = (before + after) // 2
                before, after = (middle, after) if ahead(middle) == offsets[-1] else (before, middle)
            starts.append(after)
            offsets.append(ahead(86_400 * day))
    return np.array(starts, np.int64), np.array(offsets, np.int64)


def check_zone(zone: str) -> None:
    """ConfigError for a zone that this machine does not know."""
    _ahead(zone)


def _ahead(zone: str) -> Callable[[int], int]:
    """Seconds that a zone is ahead of UTC at a second since 1970-01-01T00:00Z."""
    fixed = _OFFSET.fullmatch(zone)
    if fixed is not None and int(fixed[2]) < 24 and int(fixed[3]) < 60:
        seconds = (3600 * int(fixed[2]) + 60 * int(fixed[3])) * (-1 if fixed[1] == "-" else 1)
        return lambda second: seconds
    if zone in ("UTC", "Z"):
        return lambda second: 0
    try:
        found = ZoneInfo("" if zone == "localtime" else zone)  # that is another one on another machine
    except (OSError, ValueError, LookupError):  # no such file; a name that is none; a key that is not there
        raise ConfigError(
            f"Expected a time zone such as 'Europe/Berlin', '+01:00' or 'UTC' that this machine knows, got {zone!r}. "
            "Install tzdata, or write an offset."
        ) from None
    begin = datetime(1970, 1, 1, tzinfo=UTC)
    return lambda second: int(
        ((begin + timedelta(seconds=second)).astimezone(found).utcoffset() or _ZERO).total_seconds()
    )


def _check(column: str, written: str, zone: str, part: str) -> None:
    """ConfigError for a zone, or a format, that cannot be meant, or that does not say the part."""
    if zone:
        check_zone(zone)
    if written == "iso" or unix(written) is not None:
        return
    signs = {letter for letter, sign in _SIGNS.items() if sign in form(written)}
    if part != "hour" and not signs & {"Y", "y"}:
        needed = "a year, %Y or %y"
    elif part == "hour" and not signs & {"H", "I"}:
        needed = "an hour, %H or %I"
    elif part not in ("hour", "year") and not signs & {"m", "b", "B", "j"}:
        needed = "a month, %m, %b or %B"
    elif part in ("weekday", "day", "days") and not signs & {"d", "j"}:
        needed = "a day, %d or %j"
    elif "I" in signs and "p" not in signs:
        needed = "%p beside %I"
    else:
        return
    raise ConfigError(f"Expected a format with {needed}, for the {part} of date {column!r}, got {written!r}.")


def _fix(written: str) -> str:
    said = "ISO 8601, such as 2024-01-31T13:30" if written == "iso" else repr(written)
    return f"Declare the format of its text, which is read as {said}."
