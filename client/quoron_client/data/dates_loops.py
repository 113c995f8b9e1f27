"""What many texts say of a day and a time: the loop of `DatePart` and `DateNumber`.

A column's dates and times, value by value: what these features are made of.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numba import int64, uint8, void
from numpy.typing import NDArray

from quoron_client.data import columns, features
from quoron_privacy.errors import ConfigError, DataError
from quoron_privacy.kernels.compiled import njit, read_only, writable

NONE = -(2**62)  # no day, no time, no offset
# What stands at a place of a declared format; a sign that stands for itself is its own number.
YEAR, SHORT_YEAR, MONTH, DAY, ORDINAL, HOUR, HALF_HOUR = 256, 257, 258, 259, 260, 261, 262
MINUTE, SECOND, FRACTION, OFFSET, HALF, NAME, SHORT_NAME = 263, 264, 265, 266, 267, 268, 269
_NAMES = np.frombuffer(
    b"january  february march    april    may      june     july     august   septemberoctober  november december ",
    np.uint8,
).reshape(12, 9)
_LENGTHS = np.array([7, 8, 5, 5, 3, 4, 4, 6, 9, 7, 8, 8])
_MONTHS = np.array([31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31])
_DASH, _PLUS, _COLON, _BLANK = ord("-"), ord("+"), ord(":"), ord(" ")
_T, _W, _Z = ord("t"), ord("w"), ord("z")


def _helper(function: Any) -> Any:
    return njit(cache=True, nogil=True, error_model="numpy")(function)


@_helper
def _is_digit(sign: int) -> Any:
    return 48 <= sign <= 57


@_helper
def _lower(sign: int) -> Any:
    return sign + 32 if 65 <= sign <= 90 else sign


@_helper
def _run(data: Any, at: int, end: int) -> Any:
    """How many digits begin here."""
    many = 0
    while at + many < end and _is_digit(data[at + many]):
        many += 1
    return many


@_helper
def _number(data: Any, at: int, end: int, digits: int) -> Any:
    """The number of exactly so many digits; -1 where there are fewer."""
    if digits > end - at:
        return -1
    found = 0
    for i in range(at, at + digits):
        if not _is_digit(data[i]):
            return -1
        found = 10 * found + data[i] - 48
    return found


@_helper
def _is_leap(year: int) -> Any:
    return year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)


@_helper
def day_of(year: int, month: int, day: int) -> Any:
    """Days since 1970-01-01 in the Gregorian calendar, which is carried on without end; NONE for no such day."""
    if not 1 <= month <= 12 or day < 1 or day > _MONTHS[month - 1] + (month == 2 and _is_leap(year)):
        return NONE
    return _march(year - (month <= 2), (month + 9) % 12, day)


@_helper
def _march(year: int, month: int, day: int) -> Any:
    """Of a year that begins in March, so that a leap day is its last."""
    era = year // 400
    of_era = year - 400 * era
    return era * 146097 + of_era * 365 + of_era // 4 - of_era // 100 + (153 * month + 2) // 5 + day - 1 - 719468


@_helper
def _ordinal(year: int, day: int) -> Any:
    if day < 1 or day > 365 + _is_leap(year):
        return NONE
    return day_of(year, 1, 1) + day - 1


@_helper
def _week(year: int, week: int, day: int) -> Any:
    """Weeks begin on Monday; the first has the year's first Thursday."""
    if week < 1 or not 1 <= day <= 7:
        return NONE
    fourth = day_of(year, 1, 4)
    monday = fourth - (fourth + 3) % 7
    next_fourth = day_of(year + 1, 1, 4)
    if monday + 7 * (week - 1) >= next_fourth - (next_fourth + 3) % 7:
        return NONE
    return monday + 7 * (week - 1) + day - 1


@_helper
def _seconds(hour: int, minute: int, second: int) -> Any:
    """Of a day; 24:00 is the end of one, and a leap second the one before it again."""
    if hour < 0 or not 0 <= minute <= 59 or not 0 <= second <= 60 or hour > 24:
        return NONE
    if hour == 24 and (minute or second):
        return NONE
    return 3600 * hour + 60 * minute + min(second, 59)


@_helper
def _iso_day(data: Any, at: int, end: int) -> Any:
    """(the day that begins here, or NONE; where it ends)."""
    begin, sign = at, 1
    if at < end and (data[at] == _DASH or data[at] == _PLUS):
        sign = -1 if data[at] == _DASH else 1
        at += 1
        digits = _run(data, at, end)
        if digits < 4 or digits > 9 or at + digits >= end or data[at + digits] != _DASH:
            return NONE, begin
    else:
        digits = 4
    year = sign * _number(data, at, end, digits)
    if _run(data, at, min(end, at + digits)) < digits:
        return NONE, begin
    at += digits
    apart = at < end and data[at] == _DASH
    at += apart
    if at < end and _lower(data[at]) == _W:
        week = _number(data, at + 1, end, 2)
        at += 3
        if apart and (at >= end or data[at] != _DASH):
            return NONE, begin
        at += apart
        return _week(year, week, _number(data, at, end, 1)), at + 1
    digits = _run(data, at, end)
    if digits == 3:
        return _ordinal(year, _number(data, at, end, 3)), at + 3
    if digits != (2 if apart else 4):
        return NONE, begin
    month = _number(data, at, end, 2)
    at += 2
    if apart and (at >= end or data[at] != _DASH or _run(data, at + 1, end) != 2):
        return NONE, begin
    at += apart
    return day_of(year, month, _number(data, at, end, 2)), at + 2


@_helper
def _offset(data: Any, at: int, end: int) -> Any:
    """(seconds ahead of UTC, or NONE; where it ends)."""
    if at < end and _lower(data[at]) == _Z:
        return 0, at + 1
    if at >= end or (data[at] != _PLUS and data[at] != _DASH):
        return NONE, at
    sign, total, unit = -1 if data[at] == _DASH else 1, 0, 3600
    at += 1
    while unit >= 1:
        part = _number(data, at, end, 2)
        if part < 0 or part > (23 if unit == 3600 else 59):
            return NONE, at
        total += unit * part
        at += 2
        if at < end and data[at] == _COLON:
            at += 1
        elif at >= end or not _is_digit(data[at]):
            return sign * total, at
        unit //= 60
    return NONE, at


@_helper
def _iso_time(data: Any, at: int, end: int) -> Any:
    """(seconds of the day, offset): all of what is left. NONE for the former where it is no time."""
    hour, minute, second = _number(data, at, end, 2), 0, 0
    at += 2
    if hour < 0:
        return NONE, NONE
    apart = at < end and data[at] == _COLON
    if apart or (at < end and _is_digit(data[at])):
        minute = _number(data, at + apart, end, 2)
        at += 2 + apart
        if minute >= 0 and at < end and (data[at] == _COLON if apart else _is_digit(data[at])):
            second = _number(data, at + apart, end, 2)
            at += 2 + apart
            if second >= 0 and at < end and (data[at] == 46 or data[at] == 44):
                digits = _run(data, at + 1, end)
                at += 1 + digits
                if digits == 0:
                    return NONE, NONE
    if at > end:
        return NONE, NONE
    ahead = NONE
    if at < end:
        ahead, at = _offset(data, at, end)
        if ahead == NONE or at < end:
            return NONE, NONE
    return _seconds(hour, minute, second), ahead


@_helper
def _iso(data: Any, at: int, end: int) -> Any:
    """(day, seconds, offset) of a text in ISO 8601: a day, a day and a time, or a time."""
    if at < end and _lower(data[at]) == _T:
        seconds, ahead = _iso_time(data, at + 1, end)
        return NONE, seconds, ahead
    if end - at > 2 and data[at + 2] == _COLON:
        seconds, ahead = _iso_time(data, at, end)
        return NONE, seconds, ahead
    day, next_ = _iso_day(data, at, end)
    if day == NONE or next_ == end:
        return day, 0 if day != NONE else NONE, NONE
    if next_ > end or (_lower(data[next_]) != _T and data[next_] != _BLANK):
        return NONE, NONE, NONE
    seconds, ahead = _iso_time(data, next_ + 1, end)
    return (NONE, NONE, NONE) if seconds == NONE else (day, seconds, ahead)


@_helper
def _named(data: Any, at: int, end: int, letters: int) -> Any:
    """(the month whose name begins here, or 0; where it ends); `letters` of each name count, all of them if 0."""
    for month in range(12):
        many = letters if letters else _LENGTHS[month]
        same = at + many <= end
        for i in range(many):
            same = same and _lower(data[at + i]) == _NAMES[month, i]
        if same:
            return month + 1, at + many
    return 0, at


@_helper
def _by_format(data: Any, at: int, end: int, form: Any) -> Any:
    """(day, seconds, offset) of a text in a declared format."""
    year, month, day, ordinal = NONE, 1, 1, NONE
    hour, minute, second, half, ahead, number = NONE, 0, 0, 0, NONE, NONE
    for sign in form:
        if sign < 256:
            if at >= end or data[at] != sign:
                return NONE, NONE, NONE
            at += 1
            continue
        if sign == OFFSET:
            ahead, at = _offset(data, at, end)
            if ahead == NONE:
                return NONE, NONE, NONE
            continue
        if sign in (NAME, SHORT_NAME):
            month, at = _named(data, at, end, 3 if sign == SHORT_NAME else 0)
            if month == 0:
                return NONE, NONE, NONE
            continue
        if sign == HALF:
            if at + 2 > end or _lower(data[at + 1]) != 109 or _lower(data[at]) not in (97, 112):
                return NONE, NONE, NONE
            half, at = (0 if _lower(data[at]) == 97 else 12), at + 2
            continue
        most = 4 if sign == YEAR else 9 if sign == FRACTION else 3 if sign == ORDINAL else 2
        digits = min(_run(data, at, end), most)
        if digits == 0 or (sign in (YEAR, SHORT_YEAR) and digits < most):
            return NONE, NONE, NONE
        found = _number(data, at, end, digits)
        at += digits
        if sign == YEAR:
            year = found
        elif sign == SHORT_YEAR:
            year = found + (1900 if found >= 69 else 2000)
        elif sign == MONTH:
            month = found
        elif sign == DAY:
            day = found
        elif sign == ORDINAL:
            ordinal = found
        elif sign == HOUR:
            hour = found
        elif sign == HALF_HOUR:
            if not 1 <= found <= 12:
                return NONE, NONE, NONE
            hour = found % 12
        elif sign == MINUTE:
            minute = found
        elif sign == SECOND:
            second = found
    if at < end:
        return NONE, NONE, NONE
    hour += half
    if year != NONE:
        number = day_of(year, month, day) if ordinal == NONE else _ordinal(year, ordinal)
        if number == NONE:
            return NONE, NONE, NONE
    seconds = 0 if hour == NONE else _seconds(hour, minute, second)
    return (NONE, NONE, NONE) if seconds == NONE else (number, seconds, ahead)


@njit(
    void(
        read_only(uint8, 1),
        read_only(int64, 1),
        read_only(int64, 1),
        writable(int64, 1),
        writable(int64, 1),
        writable(int64, 1),
    ),
    cache=True,
    nogil=True,
    error_model="numpy",
)
def read(data: Any, ends: Any, form: Any, days: Any, seconds: Any, ahead: Any) -> None:
    """Days, seconds of the day and offsets (N,) of texts, bytes ends[i] to ends[i + 1] of `data`; NONE for none.

    Without a `form` they are in ISO 8601. Blanks around a text do not count.
    """
    for i in range(len(days)):
        first, last = ends[i], ends[i + 1]
        while first < last and (data[first] == _BLANK or 9 <= data[first] <= 13):
            first += 1
        while first < last and (data[last - 1] == _BLANK or 9 <= data[last - 1] <= 13):
            last -= 1
        if first == last:
            days[i], seconds[i], ahead[i] = NONE, NONE, NONE
        elif len(form):
            days[i], seconds[i], ahead[i] = _by_format(data, first, last, form)
        else:
            days[i], seconds[i], ahead[i] = _iso(data, first, last)


Whole = NDArray[np.int64]
_DAY = 86_400  # seconds
_FAR = 2**54  # seconds to either side of 1970 that numbers may say: beyond it float64 has no whole ones


@dataclass(frozen=True, slots=True, eq=False)
class Moments:
    """Of every row, its day and its time, each of which may be missing."""

    days: Whole  # (N,) since 1970-01-01; NONE for none
    seconds: Whole  # (N,) since the day began; NONE for none

    def hours(self) -> Whole:
        """From 0 to 23, (N,); -1 for none."""
        return np.where(self.seconds == NONE, -1, self.seconds // 3600)

    def weekdays(self) -> Whole:
        """From 0, Monday, to 6, (N,); -1 for none."""
        return np.where(self.days == NONE, -1, (self.days + 3) % 7)

    def months(self) -> Whole:
        """From 0, January, to 11, (N,); -1 for none."""
        return np.where(self.days == NONE, -1, self._months().view(np.int64) % 12)

    def days_of_month(self) -> Whole:
        """From 0 to 30, (N,); -1 for none."""
        first = self._months().astype("datetime64[D]")
        return np.where(self.days == NONE, -1, self._known() - first.view(np.int64))

    def years(self) -> NDArray[np.float64]:
        """As a calendar counts them, the year before 1 being 0, (N,); NaN for none."""
        return np.where(self.days == NONE, np.nan, self._months().view(np.int64) // 12 + 1970.0)

    def days_since(self, day: int) -> NDArray[np.float64]:
        """Since a day that is so many after 1970-01-01, (N,); NaN for none."""
        return np.where(self.days == NONE, np.nan, (self._known() - day).astype(np.float64))

    def _known(self) -> Whole:
        return np.where(self.days == NONE, 0, self.days)

    def _months(self) -> Any:
        return self._known().astype("datetime64[D]").astype("datetime64[M]")


def check(table: pa.Table, name: str, part: str) -> None:
    """Raises DataError unless the table has the column once, of a type that says this part; looks at no value."""
    kind = columns.kind(table, name)
    if columns.is_plain(kind):
        return
    is_day, is_time = pa.types.is_date(kind) or pa.types.is_timestamp(kind), pa.types.is_time(kind)
    if not is_day and not is_time:
        raise DataError(f"Expected column {name!r} to hold dates, times or text, got type {kind}. Convert it.")
    if is_time and part != "hour":
        raise DataError(
            f"Expected column {name!r} to hold dates for its {part}, got type {kind}, which has no day. Declare "
            "its hour alone."
        )
    if pa.types.is_timestamp(kind) and kind.tz:
        _zone(kind.tz, name)


def of(table: pa.Table, name: str, written: str, zone: str) -> Moments:
    """Of all rows of a column; values that say nothing have none. DataError as of `check`, and never for a value."""
    kind, values = columns.kind(table, name), columns.column(table, name)
    unit = features.unix(written)
    if columns.is_plain(kind):
        if unit is not None:
            return _of_seconds(columns.numbers(table, name), unit, zone)
        return _of_texts(columns.texts(table, name), features.form(written), zone)
    missing = columns.missing(values)
    if pa.types.is_date32(kind):
        days = columns.stored(values.cast(pa.int32()).cast(pa.int64()))
        return _moments(days, np.zeros_like(days), missing)
    if pa.types.is_time(kind):
        seconds = columns.stored(_int64(values)) // _PER_SECOND[kind.unit]
        return _moments(np.full_like(seconds, NONE), seconds % _DAY, missing)
    per = 1000 if pa.types.is_date64(kind) else _PER_SECOND[kind.unit]
    seconds = columns.stored(_int64(values)) // per
    own = kind.tz if pa.types.is_timestamp(kind) else None
    if own:
        seconds = _local(np.where(missing, 0, seconds), zone or own)
    return _moments(seconds // _DAY, seconds % _DAY, missing)


_PER_SECOND = {"s": 1, "ms": 1000, "us": 1_000_000, "ns": 1_000_000_000}


def _moments(days: Whole, seconds: Whole, missing: NDArray[np.bool_]) -> Moments:
    return Moments(np.where(missing, NONE, days), np.where(missing, NONE, seconds))


def _int64(values: pa.Array) -> pa.Array:
    """What is stored of dates and times, whatever they count."""
    return (values.cast(pa.int32()) if values.type.bit_width == 32 else values.view(pa.int64())).cast(pa.int64())


def _of_seconds(values: NDArray[np.float64], unit: int, zone: str) -> Moments:
    seconds = np.floor(values / unit)
    missing = ~(np.abs(seconds) < _FAR)
    local = _local(np.where(missing, 0, seconds).astype(np.int64), zone or "UTC")
    return _moments(local // _DAY, local % _DAY, missing)


def _of_texts(values: pa.Array, form: tuple[int, ...], zone: str) -> Moments:
    days, seconds, ahead = (np.empty(len(values), np.int64) for _ in range(3))
    read(*columns.letters(values), np.array(form, np.int64), days, seconds, ahead)
    missing = columns.missing(values)
    days[missing] = seconds[missing] = ahead[missing] = NONE
    told = (ahead != NONE) & (days != NONE)
    if zone and told.any():
        local = _local(_DAY * days[told] + seconds[told] - ahead[told], zone)
        days[told], seconds[told] = local // _DAY, local % _DAY
    late = seconds == _DAY  # 24:00
    days[late & (days != NONE)] += 1
    seconds[late] = 0
    return Moments(days, seconds)


def _local(seconds: Whole, zone: str) -> Whole:
    """What a clock in a zone shows, as seconds since its own 1970-01-01, at seconds since that of UTC, (N,)."""
    starts, offsets = features.clock(zone)
    ahead = offsets[np.maximum(np.searchsorted(starts, seconds, side="right") - 1, 0)]
    near = np.clip(seconds, -(2**62), 2**62)  # a timestamp in seconds may be all but beyond int64
    return near + ahead


def _zone(zone: str, name: str) -> None:
    try:
        features.check_zone(zone)
    except ConfigError as error:
        raise DataError(f"Expected a time zone of column {name!r} that is known, got type {zone!r}. {error}") from None
