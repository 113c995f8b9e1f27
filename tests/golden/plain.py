"""What golden files hold of a result: numbers of twelve digits, texts, lists and mappings."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

DIGITS = 12
LONGEST = 8  # numbers of a list that are written one by one


def plain(value: Any) -> Any:
    """Numbers, texts, lists and mappings; floats with twelve digits, long lists by length, ends and sum."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {"": type(value).__name__} | {
            field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)
        }
    if isinstance(value, Mapping):
        return {str(key): plain(part) for key, part in value.items()}
    if isinstance(value, np.ndarray):
        return plain(value.ravel().tolist())
    if isinstance(value, list | tuple):
        if len(value) > LONGEST and all(isinstance(part, int | float) for part in value):
            return [len(value), plain(value[0]), plain(value[-1]), plain(math.fsum(value))]
        return [plain(part) for part in value]
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else str(value)
    return value if isinstance(value, bool | int | str | None) else str(value)
