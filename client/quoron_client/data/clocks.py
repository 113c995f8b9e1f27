"""How text says a date and a time, and what a clock in a zone shows: what declarations of dates name, and reading asks.

>>> starts, ahead = clock("+01:00")
>>> ahead.tolist()
[3600]
"""

import re
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from functools import cache
from zoneinfo import ZoneInfo

import numpy as np
from numpy.typing import NDArray

from quoron_privacy.errors import ConfigError

WORDS: dict[str, tuple[str, ...]] = {
    "month": tuple(
        "January February March April May June July August September October November December".split()  # noqa: SIM905
    ),
    "weekday": ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"),
    "day": tuple(map(str, range(1, 32))),
    "hour": tuple(map(str, range(24))),
}
SIGNS = tuple("YymdjHIMSfzpBb")  # of a declared format, as `strptime` has them
_WHOLE = {"F": "%Y-%m-%d", "T": "%H:%M:%S", "R": "%H:%M", "D": "%m/%d/%y"}
_UNIX = {"unix": 1, "unix-ms": 1000, "unix-us": 1_000_000, "unix-ns": 1_000_000_000}  # in a second
_OFFSET = re.compile(r"([-+])(\d\d):?(\d\d)", re.ASCII)
_ZERO = timedelta()


def form(written: str) -> tuple[str, ...]:
    """Return a format's signs: fields such as %d, and letters; none for ISO 8601. ConfigError for one without date."""
    if written == "iso":
        return ()
    text, signs, at = re.sub(r"%([FTRD])", lambda found: _WHOLE[found[1]], written), list[str](), 0
    while at < len(text):
        letter = text[at + 1 : at + 2] if text[at] == "%" else ""
        if text[at] == "%" and letter not in (*SIGNS, "%"):
            raise ConfigError(
                f"Expected a format of {', '.join('%' + each for each in (*SIGNS, *_WHOLE))}, or 'iso', "
                f"{', '.join(map(repr, _UNIX))}, got {written!r}."
            )
        signs.append(f"%{letter}" if letter in SIGNS else text[at])
        at += 1 + bool(letter)
    return tuple(signs)


def unix(written: str) -> int | None:
    """Return how many units a second has in values that count from 1970-01-01T00:00Z; None for text."""
    return _UNIX.get(written)


@cache
def clock(zone: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return seconds since 1970-01-01T00:00Z from which on a zone is so many seconds ahead of UTC: two arrays (k,).

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
    """Raise ConfigError for a zone that this machine does not know."""
    _ahead(zone)


def _ahead(zone: str) -> Callable[[int], int]:
    """Return seconds that a zone is ahead of UTC at a second since 1970-01-01T00:00Z."""
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
