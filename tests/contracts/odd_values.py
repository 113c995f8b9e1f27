"""Values that somebody's row may hold, each of which has been some reader's undoing."""

import datetime
import enum
import fractions
import uuid
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd


class Hostile:
    """What can be done to whoever asks a value what it is."""

    def __str__(self) -> str:
        raise RuntimeError("no text")

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("no truth")

    def __hash__(self) -> int:
        return 7

    def __len__(self) -> int:
        raise RuntimeError("no length")


class Word(str, enum.Enum):  # noqa: UP042  # one whose text is not what it says
    """A category as a program may hold it."""

    A = "A"


TEXTS: tuple[str, ...] = (
    "", " ", "\n", "a\nb", "a\r\nb", "a\rb", "\r", '"', '""', 'a"b', '"a', 'a"', ",", ",,,\n,,", "\t", ";", "'", "\\",
    "\\N", "\\\n", "u03,1,0,A,1,yes,2,3\n" * 20, "u99,50,0,A,1,yes,2,x\nu98,50,0,A,1,yes,2,x\n",
    '\nu03,5,0,"A",1,yes,1,n\n', '",\n"' * 50, "\x00", "a\x00b", "\x00" * 300, "😀", "é" * 50, "\ufeff", "\u2028",
    "\x85", "\x1c", "\x1a", "\ufffd", "=1+1", "#", "NaN", "NA", "null", "None", "nan", "inf", "-inf", "1e400",
    "1e-400", "true", "True", "A", "7", "1", "1.0", " 1 ", "-0", "+5", "0x10", "1_000", "٣", "1,5", "1.000,5",
    "z" * 700, "line of a note\n" * 40, 'he said "no"\n' * 30, "\r\n" * 200,
)  # fmt: skip
NUMBERS: tuple[float, ...] = (
    0.0, -0.0, 1.0, 2.0, 0.5, -1.0, 1e308, -1e308, 5e-324, 2.0**53, 2.0**53 + 2, 1e22, 100.0, float("nan"),
    float("inf"), -float("inf"),
)  # fmt: skip
OBJECTS: tuple[Any, ...] = (
    *TEXTS, *NUMBERS, None, pd.NA, pd.NaT, True, False, np.True_, 0, 1, 2, -1, 2**53 + 1, 2**63, 2**70, -(2**70),
    10**400, 10**5000, np.float16(0.1), np.float32(0.1), np.float32("nan"), np.float64(0.1), np.longdouble(1),
    np.int8(3), np.uint64(2**63), np.str_("A"), Decimal(1), Decimal("1.50"), Decimal("NaN"), Decimal("sNaN"),
    Decimal("-Infinity"), Decimal("1e999999999"), Decimal("1e-999999"), Decimal(2**64), Decimal("0.1"),
    fractions.Fraction(1, 3), 1j, 1 + 0j, complex("nan"), b"A", b"\xff", b"", bytearray(b"A"), memoryview(b"7"),
    datetime.datetime(2020, 1, 1), datetime.date(2020, 1, 1), datetime.time(1), datetime.timedelta(1),
    pd.Timestamp("2020"), pd.Timestamp("2020", tz="UTC"), np.datetime64("2020"), np.datetime64("NaT"),
    np.timedelta64(1, "s"), pd.Timedelta(1), pd.Period("2020"), pd.Interval(0, 1), uuid.UUID(int=1), (1, 2), [1], {},
    {1}, {"A": 1}, object, np.array([1, 2]), np.array("A"), pd.Series([1]), range(3), Hostile(), Word.A, "\ud800",
    "A\udfff", ..., NotImplemented, int, lambda: "A",
)  # fmt: skip
