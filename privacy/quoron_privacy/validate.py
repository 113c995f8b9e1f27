"""Checks of public arguments; each error names the argument, its value and what was expected."""

import math

from quoron_privacy.errors import ConfigError


def positive(**values: float) -> None:
    """Each value is a finite number above zero."""
    for name, value in values.items():
        if not (_finite(value) and value > 0):
            raise ConfigError(f"Expected {name} > 0 and finite, got {name}={value}.")


def non_negative(**values: float) -> None:
    """Each value is a finite number, zero or above."""
    for name, value in values.items():
        if not (_finite(value) and value >= 0):
            raise ConfigError(f"Expected {name} >= 0 and finite, got {name}={value}.")


def probability(**values: float) -> None:
    """Each value lies strictly between 0 and 1."""
    for name, value in values.items():
        if not 0 < value < 1:
            raise ConfigError(f"Expected {name} in (0, 1), got {name}={value}.")


def count(**values: int) -> None:
    """Each value is an integer of at least 1."""
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ConfigError(f"Expected {name} to be an integer >= 1, got {name}={value!r}.")


def _finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer beyond every float
        return False
