"""A column's dates and times, value by value: what `dates` is made of."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from quoron_client.data import clocks, columns, dates_loops
from quoron_client.data.dates_loops import NONE
from quoron_privacy.errors import ConfigError, DataError

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
    unit = clocks.unix(written)
    if columns.is_plain(kind):
        if unit is not None:
            return _of_seconds(columns.numbers(table, name), unit, zone)
        return _of_texts(columns.texts(table, name), clocks.form(written), zone)
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
    dates_loops.read(*columns.letters(values), np.array(form, np.int64), days, seconds, ahead)
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
    starts, offsets = clocks.clock(zone)
    ahead = offsets[np.maximum(np.searchsorted(starts, seconds, side="right") - 1, 0)]
    near = np.clip(seconds, -(2**62), 2**62)  # a timestamp in seconds may be all but beyond int64
    return near + ahead


def _zone(zone: str, name: str) -> None:
    try:
        clocks.check_zone(zone)
    except ConfigError as error:
        raise DataError(f"Expected a time zone of column {name!r} that is known, got type {zone!r}. {error}") from None
