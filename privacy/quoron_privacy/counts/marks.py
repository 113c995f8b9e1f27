"""Marks: a user's rows of one column as eight of them, and where on a scale that nobody declared they lie.

    >>> numbers, kinds = marks(np.array([3.0, 1.0, 2.0, np.nan]), np.array([0, 0, 0, 1]), users=3)
    >>> numbers[0].tolist()
    [1.0, 1.0, 1.0, 2.0, 2.0, 3.0, 3.0, 3.0]
    >>> [KINDS[kind] for kind in kinds[:, 0]]
    ['number', 'missing', 'missing']
    >>> [places(np.array(each)).item() - ZERO for each in (-1.0, 0.0, 1e-9, 1.0, 3.9, 4.0, 1e300)]
    [-21, 0, 6, 21, 21, 22, 52]

A user has the same number of marks whatever it holds: they are its own rows, sorted, at evenly spaced places. So a
count of marks is a whole number, one user adds at most `MARKS` to a column's, and what it adds depends on nobody else.
Statement and proofs: docs/privacy/bought-declarations.md.
"""

import numpy as np
from numpy.typing import NDArray

from quoron_privacy.errors import ConfigError, count

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Kinds = NDArray[np.int8]

MARKS = 8  # Q
KINDS = ("number", "date", "boolean", "text", "missing")
NUMBER, MISSING = 0, len(KINDS) - 1
LEAST_POWER, MAGNITUDES = -21, 52  # of four: from 4⁻²⁰ to 4³², smaller numbers are zero and larger ones in the last bin
ZERO = MAGNITUDES  # place of zero: before it the negative numbers, the largest first
PLACES = 2 * MAGNITUDES + 1


def marks(values: Floats, owners: Integers, users: int, kinds: Kinds | None = None) -> tuple[Floats, Kinds]:
    """(numbers, kinds), each (users, MARKS), of one column's rows: values (N,) of users owners (N,), and kinds (N,).

    Without `kinds` a finite value is a number and any other is missing; a row of kind `number` whose value is not
    finite is missing, too. Of a user with r rows mark i is row ⌊(2i + 1) r / 2 MARKS⌋ of them, by kind, then by value.
    Whoever has no rows is missing. A number whose kind says otherwise is kept: a date's, for example.
    """
    values, owners = np.asarray(values, np.float64), np.asarray(owners)
    count(users=users + 1)  # of those who are drawn there may be none, which tells of nobody
    if values.ndim != 1 or values.shape != owners.shape or owners.dtype.kind not in "iu":
        raise ConfigError(
            f"Expected values and whole owners of one shape (N,), got {values.shape}, {owners.dtype} {owners.shape}."
        )
    if len(owners) and (owners.min() < 0 or owners.max() >= users):
        raise ConfigError(f"Expected owners in 0 to {users - 1}, got others.")
    finite = np.isfinite(values)
    given = np.zeros(len(values), np.int8) if kinds is None else np.asarray(kinds, np.int8)
    own = np.where((given < 0) | (given > MISSING) | ((given == NUMBER) & ~finite), MISSING, given).astype(np.int8)
    held = np.where(finite, values, np.nan) + 0.0  # one zero
    order = _sorted(owners.astype(np.int64) * len(KINDS) + own, held)
    rows = np.bincount(owners, minlength=users)
    first = np.cumsum(rows) - rows
    place = (2 * np.arange(MARKS) + 1) * rows[:, None] // (2 * MARKS)
    numbers, found = np.full((users, MARKS), np.nan), np.full((users, MARKS), MISSING, np.int8)
    there = rows > 0
    taken = order[first[there, None] + place[there]]
    numbers[there], found[there] = held[taken], own[taken]
    return numbers, found


def _sorted(groups: Integers, held: Floats) -> Integers:
    """The order by group, and in each by what is held, NaN last; of equals in any order."""
    by_value = np.argsort(held)
    rank = np.empty(len(held), np.int64)
    rank[by_value] = np.arange(len(held))
    keys = groups * len(held) + rank
    keys.sort()
    order: Integers = by_value[keys % max(len(held), 1)]
    return order


def places(numbers: Floats) -> Integers:
    """The place of each number on the public scale of powers of four, 0 to PLACES - 1; NaN is at zero."""
    with np.errstate(all="ignore"):
        _, exponent = np.frexp(np.abs(numbers))
    power = (exponent.astype(np.int64) - 1) // 2  # 4^power <= |number| < 4^(power + 1)
    magnitude = np.where(np.isinf(numbers), MAGNITUDES, np.clip(power - LEAST_POWER, 0, MAGNITUDES))
    magnitude = np.where((numbers == 0) | np.isnan(numbers), 0, magnitude)
    found: Integers = ZERO + np.where(numbers < 0, -magnitude, magnitude)
    return found


def edge(magnitude: int) -> float:
    """The upper end of numbers of such a magnitude, 1 to MAGNITUDES; 0 is below which numbers are zero."""
    return 4.0 ** (magnitude + LEAST_POWER + 1)
