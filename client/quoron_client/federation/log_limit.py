"""A log that nobody outside can fill: a few lines of each kind a minute, and then how many there were.

    >>> limit = LogLimit(most=1, seconds=60.0, clock=iter([0.0, 1.0, 2.0, 61.0]).__next__)
    >>> record = lambda: logging.LogRecord("quoron", logging.INFO, "plane.py", 7, "refused %s", ("ada",), None)
    >>> lines = [each for each in (record(), record(), record(), record()) if limit.filter(each)]
    >>> [each.getMessage() for each in lines]
    ['refused ada', 'refused ada (and 2 more like it)']

A kind is a place in the source. What happens in other libraries while they serve a call is told in one line.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(slots=True)
class _Kind:
    """Lines of one place in the source, since the last minute began."""

    began: float
    written: int = 0
    held_back: int = 0  # to ourselves


class LogLimit(logging.Filter):
    """For a handler."""

    def __init__(self, *, most: int = 20, seconds: float = 60.0, clock: Callable[[], float] = time.monotonic) -> None:
        """At most so many lines of a kind in so many seconds."""
        super().__init__()
        self._most, self._seconds, self._clock = most, seconds, clock
        self._kinds: dict[tuple[str, str, int], _Kind] = {}  # as many as there are places in the source

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether to tell."""
        time_ = self._clock()
        kind = self._kinds.setdefault((record.name, record.pathname, record.lineno), _Kind(time_))
        if time_ - kind.began >= self._seconds:
            kind.began, kind.written = time_, 0
        if kind.written >= self._most:
            kind.held_back += 1
            return False
        kind.written += 1
        more, kind.held_back = kind.held_back, 0
        if more or record.name.partition(".")[0] in ("grpc", "asyncio"):
            self._shorten(record, more)
        return True

    def _shorten(self, record: logging.LogRecord, more: int) -> None:
        said = record.getMessage().partition("\n")[0]
        if record.name.partition(".")[0] != "quoron" and record.exc_info:
            said, record.exc_info, record.exc_text = f"{said}: {record.exc_info[1]!r}"[:500], None, None
        record.msg, record.args = said + (f" (and {more:,} more like it)" if more else ""), ()
