"""How text says a date and a time: what declarations of dates name, and reading asks."""

import re

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


def form(written: str) -> tuple[str, ...]:
    """Return a format's signs: fields such as %d, and letters; none for ISO 8601. ConfigError for one without date."""
    if written == "iso":
        return ()
    text, signs, at = re.sub(r"%([FTRD])", lambda found: _WHOLE[found[1]], written), list[str](), 0
    while at < len(text):
        letter = text[at + 1 : at + 2] if text[at] == "%" else ""
        if text[at] == "%" and letter not in (*SIGNS, "%"):
            raise ConfigError(
                f"Expected a format of {', '.join('%' + sign for sign in (*SIGNS, *_WHOLE))}, or 'iso', "
                f"{', '.join(map(repr, _UNIX))}, got {written!r}."
            )
        signs.append(f"%{letter}" if letter in SIGNS else text[at])
        at += 1 + bool(letter)
    return tuple(signs)


def unix(written: str) -> int | None:
    """Return how many units a second has in values that count from 1970-01-01T00:00Z; None for text."""
    return _UNIX.get(written)
