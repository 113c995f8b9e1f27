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

from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import ConfigDict

from quoron_client.data.clocks import SIGNS, check_zone, form, unix
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


def _check(column: str, written: str, zone: str, part: str) -> None:
    """ConfigError for a zone, or a format, that cannot be meant, or that does not say the part."""
    if zone:
        check_zone(zone)
    if written == "iso" or unix(written) is not None:
        return
    signs = {letter for letter, sign in SIGNS.items() if sign in form(written)}
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
