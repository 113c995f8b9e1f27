"""A log that nobody outside can fill: a few lines of each kind a minute, and then how many there were.

    >>> limit = LogLimit(most=1, seconds=60.0, clock=iter([0.0, 1.0, 2.0, 61.0]).__next__)
    >>> record = lambda: logging.LogRecord("quoron", logging.INFO, "plane.py", 7, "refused %s", ("ada",), None)
    >>> lines = [each for each in (record(), record(), record(), record()) if limit.filter(each)]
    >>> [each.getMessage() for each in lines]
    ['refused ada', 'refused ada (and 2 more like it)']

A kind is a place in the source. An exception in another library that serves a call is logged in one line.

Nor is there a core dump: what the system keeps of a process that crashes holds its keys.

>>> switch_off()
>>> import resource
>>> max(resource.getrlimit(resource.RLIMIT_CORE)) <= LEAST
True
"""

import json
import logging
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime

# Bytes. No dump is so short; and where Linux hands dumps to a program, it ignores a limit of 0, but not this one
# (fs/coredump.c: "we use cprm.limit of 1 here as a special value").
LEAST = 1


def switch_off() -> None:
    """For this process and all that it starts, for good, where the system has such a limit."""
    with suppress(ImportError, ValueError, OSError):  # no such limit, or a lower one, which nobody may raise
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (LEAST, LEAST))


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
        """Return whether to tell."""
        time_ = self._clock()
        kind = self._kinds.setdefault((record.name, record.pathname, record.lineno), _Kind(time_))
        if time_ - kind.began >= self._seconds:
            kind.began, kind.written = time_, 0
        if kind.written >= self._most:
            kind.held_back += 1
            return False
        kind.written += 1
        more, kind.held_back, library = kind.held_back, 0, record.name.partition(".")[0]
        if more or library in ("grpc", "asyncio"):
            said = record.getMessage().partition("\n")[0]
            if library != "quoron" and record.exc_info:
                said, record.exc_info, record.exc_text = f"{said}: {record.exc_info[1]!r}"[:500], None, None
            record.msg, record.args = said + (f" (and {more:,} more like it)" if more else ""), ()
        return True


class JsonLines(logging.Formatter):
    """One JSON object a line: time (UTC), level, message; of what has an event its name and fields, and any traceback.

    >>> record = logging.LogRecord("quoron", logging.INFO, "journal.py", 7, "run %s ended", ("summer",), None)
    >>> record.created, record.event, record.fields = 0.0, "ended", {"run": "summer"}
    >>> JsonLines().format(record)
    '{"time": "1970-01-01T00:00:00.000+00:00", "level": "INFO", "message": "run summer ended", "event": "ended", \
"run": "summer"}'
    """

    def format(self, record: logging.LogRecord) -> str:
        """Without a line break, whatever the record says."""
        when = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line = {"time": when, "level": record.levelname, "message": record.getMessage()}
        event = getattr(record, "event", None)
        if event is not None:
            line |= {"event": event} | record.__dict__["fields"]
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


def begin(level: str = "INFO", *, as_json: bool = False) -> None:
    """Of a process that serves or takes part: it leaves no dump, and logs onto standard error, within the limit."""
    switch_off()
    errors = logging.StreamHandler(sys.stderr)
    errors.addFilter(LogLimit())
    errors.setFormatter(JsonLines() if as_json else logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logging.basicConfig(level=level, handlers=[errors])
