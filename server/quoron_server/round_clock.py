"""When a round ends and the next one opens, at times that tell nobody who answered or who was asked.

A round takes answers for its whole `seconds`, also when everybody has answered long before. Then the coordinator has
PAUSE of that time for its own work, and only when it is over does anything leave: the next question, the round's event.
Work that takes longer shows, but rounded up to whole pauses.

    due = due_at(opened, seconds)
    opens = opening(due, now, seconds)

With early ends, which an operator has to accept, a round ends once everybody was heard of. Whoever sees when learns
whether somebody was absent. See docs/network.md#when-rounds-end.
"""

import math

PAUSE = 0.1  # of a round's seconds


def due_at(opened: float, seconds: float) -> float:
    """The time at which a round that opened at `opened` is over for everybody else, its answers and its work."""
    return opened + (1 + PAUSE) * seconds


def opening(due: float, now: float, seconds: float) -> float:
    """When the next round opens, from `now` on: at `due`, or whole pauses after it. -inf as `due`: at once."""
    if math.isinf(due):
        return now
    late = max(0, math.ceil((now - due) / (PAUSE * seconds)))
    return due + late * PAUSE * seconds
