"""Where a cost that falls and then rises along a list is least. It proposes; theorems decide."""

from collections.abc import Callable, Sequence
from typing import TypeVar

Option = TypeVar("Option")


def cheapest(options: Sequence[Option], cost: Callable[[Option], float]) -> tuple[Option, float]:
    """The cheapest of `options` and its cost, by golden section; each cost is asked for once."""
    values: dict[int, float] = {}

    def at(place: int) -> float:
        if place not in values:
            values[place] = cost(options[place])
        return values[place]

    low, high = 0, len(options) - 1
    while high - low > 2:
        step = max(1, round(0.382 * (high - low)))
        left, right = low + step, max(low + step + 1, high - step)
        low, high = (low, right) if at(left) <= at(right) else (left, high)
    best = min(range(low, high + 1), key=at)
    return options[best], at(best)
