"""The time by which certificates are valid: this machine's, unless it was put back while this process runs.

A clock that was put back makes good certificates ones that begin in the future, and would shut out every client. A
monotonic clock tells that it was; who was let in before stays, and runs wait until the clock is right.
"""

import datetime as dt
import time

_SLACK = 300.0  # seconds; a clock that is kept right is never put back so far
_BEGAN = time.time() - time.monotonic()


def _wall() -> float:
    return time.time()


def put_back() -> float:
    """Seconds by which this machine's clock was put back since this process began; 0 for a few minutes."""
    behind = _BEGAN - (_wall() - time.monotonic())
    return behind if behind > _SLACK else 0.0


def now() -> dt.datetime:
    """The time, as if the clock had not been put back."""
    return dt.datetime.fromtimestamp(_wall() + put_back(), dt.UTC)
