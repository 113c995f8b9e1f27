"""The days and times of a column's values: what `DatePart` and `DateNumber` are made of.

Text in ISO 8601 is read by Arrow, where all of a column is plain. Any other text is read once for each distinct value:
a regular expression finds its fields, and the fields say a day and a time.
"""

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from quoron_client.data import columns, date_formats
from quoron_privacy.errors import DataError

NONE = -(2**62)  # no day, no time
Whole = NDArray[np.int64]
_DAY = 86_400  # seconds
_FAR = 2**54  # seconds to either side of 1970 that numbers may say: beyond it float64 has no whole ones
_CALENDAR = 2**37  # seconds to either side of 1970, of which a zone says something: some 4,300 years
_BLANKS = " \t\n\v\f\r"
_AHEAD = r"[-+](?:[01]\d|2[0-3])(?::?[0-5]\d(?::?[0-5]\d)?)?"  # of UTC
_WIDTHS = {"Y": (4, 4), "y": (2, 2), "j": (1, 3), "f": (1, 9)}  # digits, at least and at most; of others one or two
_TIME = r"(?P<H_{0}>\d\d):(?P<M_{0}>\d\d)(?::(?P<S_{0}>\d\d)(?:[.,]\d+)?)?"
_BASIC_TIME = r"(?P<H_{0}>\d\d)(?:(?P<M_{0}>\d\d)(?:(?P<S_{0}>\d\d)(?:[.,]\d+)?)?)?"
_ISO_8601 = (  # groups of fields by the letters of `strptime`
    r"(?:(?P<Y_a>\d{4})-(?P<m_a>\d\d)-(?P<d_a>\d\d)|(?P<Y_b>\d{4})(?P<m_b>\d\d)(?P<d_b>\d\d))?"
    rf"(?:[Tt ](?:{_TIME.format('a')}|{_BASIC_TIME.format('b')})(?:[Zz]|{_AHEAD})?)?"
    rf"|{_TIME.format('c')}(?:[Zz]|{_AHEAD})?"
)
_PLAIN = (  # as Arrow reads it, but for the offset
    r"^(?P<t>\d{4}-(?:(?:0[1-9]|1[0-2])-(?:0[1-9]|1\d|2[0-8])|(?:0[13-9]|1[0-2])-(?:29|30)|(?:0[13578]|1[02])-31)"
    rf"[T ](?:[01]\d|2[0-3])(?::[0-5]\d(?::[0-5]\d(?:\.\d{{1,6}})?)?)?)(?:Z|{_AHEAD})?$"
)
_PERHAPS = r"^[-+:.,\dTtZz \t\n\v\f\r]+$"  # all that is in ISO 8601
_WORDS = {
    "B": [month.lower() for month in date_formats.WORDS["month"]],
    "b": [month[:3].lower() for month in date_formats.WORDS["month"]],
    "p": ["am", "pm"],
}


@dataclass(frozen=True, slots=True, eq=False)
class Moments:
    """Of every row, its day and its time, each of which may be missing."""

    days: Whole  # (N,) since 1970-01-01; NONE for none
    seconds: Whole  # (N,) since the day began; NONE for none

    def part(self, part: str) -> Whole:
        """The place of a month, a weekday, a day of the month or an hour in `date_formats.WORDS`, (N,); -1 for none."""
        if part == "hour":
            return np.where(self.seconds == NONE, -1, self.seconds // 3600)
        if part == "weekday":
            found = (self.days + 3) % 7
        elif part == "month":
            found = self._months().view(np.int64) % 12
        else:
            found = self._known() - self._months().astype("datetime64[D]").view(np.int64)
        return np.where(self.days == NONE, -1, found)

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
    """Raise DataError unless the table has the column once, of a type that says this part; reads no value."""
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
        try:
            _local(np.zeros(1, np.int64), kind.tz)
        except pa.ArrowInvalid:
            raise DataError(
                f"Expected a time zone of column {name!r} that this machine knows, got type {kind}. Install tzdata, or "
                "write an offset such as +01:00."
            ) from None


def of(table: pa.Table, name: str, written: str) -> Moments:
    """Of all rows of a column; values that say nothing have none. DataError as of `check`, and never for a value."""
    kind, values = columns.kind(table, name), columns.column(table, name)
    unit = date_formats.unix(written)
    if columns.is_plain(kind):
        if unit is not None:
            return _of_seconds(columns.numbers(table, name), unit)
        return _of_texts(columns.texts(table, name), date_formats.form(written))
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
        seconds = _local(np.where(missing, 0, seconds), own)
    return _moments(seconds // _DAY, seconds % _DAY, missing)


_PER_SECOND = {"s": 1, "ms": 1000, "us": 1_000_000, "ns": 1_000_000_000}


def _moments(days: Whole, seconds: Whole, missing: NDArray[np.bool_]) -> Moments:
    return Moments(np.where(missing, NONE, days), np.where(missing, NONE, seconds))


def _int64(values: pa.Array) -> pa.Array:
    """Return what is stored of dates and times, whatever they count."""
    return (values.cast(pa.int32()) if values.type.bit_width == 32 else values.view(pa.int64())).cast(pa.int64())


def _of_seconds(values: NDArray[np.float64], unit: int) -> Moments:
    seconds = np.floor(values / unit)
    missing = ~(np.abs(seconds) < _FAR)
    whole = np.where(missing, 0, seconds).astype(np.int64)
    return _moments(whole // _DAY, whole % _DAY, missing)


def _of_texts(values: pa.Array, form: tuple[str, ...]) -> Moments:
    if form:
        return _of_different(values, form)
    read = columns.cast(values, pa.timestamp("us"))
    if read is None:
        (texts,) = pc.extract_regex(values, _PLAIN).flatten()
        read = texts.cast(pa.timestamp("us"))
    seconds, missing = _numbers(read.view(pa.int64())) // _PER_SECOND["us"], columns.missing(read)
    found = _moments(seconds // _DAY, seconds % _DAY, missing)
    if read.null_count == values.null_count:
        return found
    perhaps = pc.and_(read.is_null(), pc.match_substring_regex(values, _PERHAPS))
    rest = _of_different(pc.if_else(perhaps, values, None), form)
    return Moments(np.where(missing, rest.days, found.days), np.where(missing, rest.seconds, found.seconds))


def _of_different(values: pa.Array, form: tuple[str, ...]) -> Moments:
    """Of any texts, each different one by its fields."""
    coded = values.dictionary_encode()
    found, places = _of_fields(_fields(coded.dictionary, form)), columns.codes(coded)
    return Moments(np.append(found.days, NONE)[places], np.append(found.seconds, NONE)[places])


def _numbers(values: pa.Array) -> Whole:
    """Whole numbers, (N,); NONE for null."""
    return columns.stored(pc.fill_null(values.cast(pa.int64()), NONE))


def _fields(texts: pa.Array, form: tuple[str, ...]) -> dict[str, Whole]:
    """What texts (N,) say, in ISO 8601 or in the declared form: for each letter of a field numbers (N,), or NONE."""
    found = pc.extract_regex(pc.ascii_trim(texts, _BLANKS), f"^(?:{_pattern(form) if form else _ISO_8601})$")
    fields = dict.fromkeys("YmdjHMSp", np.full(len(texts), NONE))
    for group, part in zip(found.type, found.flatten(), strict=True):
        letter, part = group.name[0], pc.if_else(pc.equal(part, ""), None, part)
        if letter in _WORDS:
            part = pc.index_in(pc.ascii_lower(part), pa.array(_WORDS[letter], part.type), skip_nulls=True)
        numbers = _numbers(part)
        if letter in "bB":
            numbers = numbers + 1
        elif letter == "y":
            numbers = numbers + np.where(numbers < 69, 2000, 1900)
        elif letter == "I":
            numbers = numbers % 12
        name = {"y": "Y", "I": "H", "b": "m", "B": "m"}.get(letter, letter)
        fields[name] = np.where(columns.missing(part), fields[name], numbers)
    return fields


def _pattern(form: tuple[str, ...]) -> str:
    """Return the regular expression of a declared form: fields take as many digits as there are, up to their most."""
    written = ""
    for place, sign in enumerate(form):
        letter, after = sign[1:], form[place + 1] if place + 1 < len(form) else ""
        if not letter:
            written += re.escape(sign)
            continue
        digits = after in (*"0123456789",) or after[1:] in (*"YymdjHIMSf",)  # follow: none of them may be taken
        least, most = _WIDTHS.get(letter, (1, 2))
        some = rf"\d{{{most if digits else least},{most}}}"
        if letter == "I":
            some = f"(?:0{'' if digits else '?'}[1-9]|1[0-2])"
        elif letter in _WORDS:
            some = "|".join("".join(f"[{char}{char.upper()}]" for char in word) for word in _WORDS[letter])
        elif letter == "z":
            some = "[Zz]" + ("" if digits or after == ":" else f"|{_AHEAD}")
        written += f"(?:{some})" if letter in "fz" else rf"(?P<{letter}{place}>{some})"
    return written


def _of_fields(fields: dict[str, Whole]) -> Moments:
    """The moments (N,) of what texts say; fields that are no day or no time, such as 30 February, say nothing."""
    year, month, day, ordinal, hour, minute, second, half = fields.values()
    dated, timed = year != NONE, (hour != NONE) | (half == 1)
    year = np.where(dated, year, 1970)
    month, day = (np.where(part == NONE, 1, part) for part in (month, day))
    within = np.clip(month, 1, 12)
    days = _first(year, within) + day - 1
    good = (month == within) & (day >= 1) & (days < _first(year, within + 1))
    new_year, next_year = _first(year, 1), _first(year, 13)
    of_year = new_year + ordinal - 1
    days = np.where(ordinal != NONE, of_year, days)
    good = ~dated | np.where(ordinal != NONE, (of_year >= new_year) & (of_year < next_year), good)
    hour, minute, second = hour + np.where(half == 1, 12, 0), np.maximum(minute, 0), np.maximum(second, 0)
    seconds = np.where(timed, 3600 * hour + 60 * minute + np.minimum(second, 59), 0)  # a leap second is the one before
    of_day = (hour >= 0) & (minute < 60) & (second <= 60) & ((hour < 24) | ((hour == 24) & (minute + second == 0)))
    good &= (~timed | of_day) & (dated | timed)
    late = seconds == _DAY  # 24:00 is 0:00 of the next day
    return Moments(np.where(good & dated, days + late, NONE), np.where(good, np.where(late, 0, seconds), NONE))


def _first(year: Whole, month: Whole | int) -> Whole:
    """Days since 1970-01-01 of the first of a month, from 1 to 13, in the Gregorian calendar without end."""
    return (12 * (year - 1970) + month - 1).astype("datetime64[M]").astype("datetime64[D]").view(np.int64)


def _local(seconds: Whole, zone: str) -> Whole:
    """Return what a clock in a zone shows, as seconds since its own 1970-01-01, at seconds since that of UTC, (N,)."""
    near = np.clip(seconds, -_CALENDAR, _CALENDAR)
    shown = pc.local_timestamp(pa.array(near, pa.int64()).cast(pa.timestamp("s", zone)))
    found: Whole = seconds + columns.stored(shown.view(pa.int64())) - near
    return found
