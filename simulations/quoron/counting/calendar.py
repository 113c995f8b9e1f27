"""Dates as numbers, days since 1970-01-01, and in which month or year of a declared range each is.

>>> first, last = range_of("admitted", ("2023-11-05", "2024-01-31"))
>>> names("months", first, last), places("months", first, last, np.array([19675.0, 19722.0, 19723.0])).tolist()
(['2023-11', '2023-12', '2024-01'], [0, 1, 2])
"""

import datetime as dt
import math
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from quoron.arguments import shortened
from quoron_privacy.errors import ConfigError

Calendar = Literal["months", "years"]
_UNITS = {"months": "datetime64[M]", "years": "datetime64[Y]"}
_EPOCH = dt.date(1970, 1, 1).toordinal()


def range_of(column: str, ends: Any) -> tuple[float, float]:
    """Of a first and a last day, as texts or dates. ConfigError for others."""
    try:
        first, last = (each if isinstance(each, dt.date) else dt.date.fromisoformat(each) for each in ends)
        low, high = first.toordinal() - _EPOCH, last.toordinal() - _EPOCH
    except (TypeError, ValueError):
        low, high = 0, 0
    if not low < high:
        raise ConfigError(
            f"Expected dates[{column!r}] as (first day, last day) such as ('2020-01-01', '2024-12-31'), got "
            f"{shortened(ends)}."
        )
    return float(low), float(high)


def of_years(low: float, high: float) -> tuple[float, float]:
    """The days of these years, the last one's with them."""
    first, last = (min(max(math.floor(year), dt.MINYEAR), dt.MAXYEAR) for year in (low, high))
    return float(dt.date(first, 1, 1).toordinal() - _EPOCH), float(dt.date(last, 12, 31).toordinal() - _EPOCH)


def day(number: float) -> str:
    """A date in ISO 8601; of no end the sign of infinity."""
    return f"{number}" if math.isinf(number) else dt.date.fromordinal(math.floor(number) + _EPOCH).isoformat()


def names(unit: Calendar, low: float, high: float) -> list[str]:
    """Of the months or years from one day to another."""
    first, last = _unit(unit, np.array([low, high])).tolist()
    return [str(each) for each in np.arange(first, last + 1).astype(_UNITS[unit])]


def places(unit: Calendar, low: float, high: float, days: NDArray[np.float64]) -> NDArray[np.int64]:
    """Of days (N,) among these names; beyond the range at its end, and of no day at its beginning."""
    held = np.where(np.isnan(days), low, np.clip(days, low, high))
    return _unit(unit, held) - _unit(unit, np.array([low]))


def _unit(unit: Calendar, days: NDArray[np.float64]) -> NDArray[np.int64]:
    whole = np.floor(days).astype(np.int64).view("datetime64[D]").astype(_UNITS[unit])
    return np.asarray(whole.view(np.int64))
