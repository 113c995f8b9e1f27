"""The text of a model's file: one JSON object, each key once, all numbers finite, with a digest of all that it says."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from quoron_privacy.errors import CONTROL, DataError

Intervals = tuple[tuple[float, float] | None, ...]  # (low, high) of each coefficient, the intercept last; None: unknown
LONGEST = 1 << 30  # bytes of a file
_PIECE = 1 << 20  # bytes that are read at a time


def read(path: Path, format_: str) -> dict[str, Any]:
    """The JSON object in a file, each key once, all numbers finite, no control characters. DataError."""
    try:
        with path.open("rb") as file:
            data = bytearray()
            while len(data) <= LONGEST and (more := file.read(_PIECE)):  # a size asked for is memory taken
                data += more
    except (OSError, ValueError) as error:  # a name with a zero in it is a ValueError
        raise DataError(
            f"Expected a model file at {str(path)!r}, got: {getattr(error, 'strerror', None) or error}."
        ) from None
    if len(data) > LONGEST:
        raise DataError(f"Expected a model file of at most {LONGEST:,} bytes at {str(path)!r}, got a longer one.")
    try:
        contents = json.loads(data.decode(), object_pairs_hook=_once, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        contents = None
    if not isinstance(contents, dict):
        raise DataError(f"Expected a model file ({format_}) at {str(path)!r}, got something else.")
    _check_text(contents, path)
    return contents


def _check_text(contents: Any, path: Path) -> None:
    """DataError for a text, anywhere, that would move a terminal's cursor or turn the order of other words."""
    left = [contents]
    while left:
        each = left.pop()
        if isinstance(each, str) and CONTROL.search(each):
            raise DataError(
                f"Expected a model file without control characters at {str(path)!r}, got the text {each[:60]!r}. Do "
                "not trust it; ask its author for another."
            )
        left += [*each, *each.values()] if isinstance(each, dict) else each if isinstance(each, list) else []


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key that is there twice")
    return found


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def digest(contents: Mapping[str, Any]) -> str:
    """Of all that a file says, however it is laid out."""
    text = json.dumps(contents, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def intervals_of(stored: Any) -> Intervals | None:
    """Intervals of coefficients as they were kept; ValueError or TypeError for what is none."""
    if stored is None:
        return None
    found = tuple(None if each is None else (float(each[0]), float(each[1])) for each in stored)
    if not all(-float("inf") < each[0] <= each[1] < float("inf") for each in found if each is not None):
        raise ValueError("intervals that are none")
    return found
