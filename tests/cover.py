"""Of many alike, those that run by default: the others are marked slow.

@pytest.mark.parametrize("name", by_default(ALGORITHMS, EVERY_QUESTION))
"""

from collections.abc import Collection, Iterable
from typing import Any

import pytest

# Algorithms that between them ask every kind of question, which is all that an engine sees of them.
EVERY_QUESTION = ("tracking-srgd", "whitened-tracking", "local-model", "outlier-iterates", "group-phased-sgd")


def by_default(names: Iterable[Any], chosen: Collection[Any]) -> list[Any]:
    """The names as parameters; those that are not among the chosen ones are left to `pytest -m slow`."""
    names = list(names)
    assert set(chosen) <= set(names), f"no such parameters: {set(chosen) - set(names)}"
    return [name if name in chosen else _later(name) for name in names]


def _later(name: Any) -> Any:
    return pytest.param(*(name if isinstance(name, tuple) else (name,)), marks=pytest.mark.slow)
