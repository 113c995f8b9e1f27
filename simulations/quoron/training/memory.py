"""Memory for a run: checked before it is charged, and named in the error where it ends.

with memory_for("the rows of this table", f"{UNCHARGED} {ELSEWHERE}"):
    gathering.add(batch)
"""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from quoron.engine import inline
from quoron.engine.processors import free_memory
from quoron_client.protocol.questions import MomentAndGradient
from quoron_privacy.errors import RunError
from quoron_privacy.noise.streams import SeededNoise
from quoron_server.algorithms import ALGORITHMS
from quoron_server.plan import RunPlan
from quoron_server.serial import size

FEW = 1 << 24  # bytes that are taken without a question
BESIDE = 64  # bytes a row, of what else a round makes of all rows: norms, labels within bounds
UNCHARGED = "Nothing is charged now."
ONCE = "The run is charged, and will not be again: give the same command where there is more, and it goes on."
ELSEWHERE = (
    "Train on a machine with more, or write the table as Parquet and name its folder, or the file by a URL "
    "(file:///...): then it is read piece by piece, and its items lie on disk."
)
_CODED = 6  # times what is kept between two rounds, where it is written down
FEWER = "Choose an algorithm that reads sums alone, such as one-pass-dp-sgd, fewer features or a machine with more."
LESS = (
    "Choose fewer features or a machine with more; dp-ftrl with several epochs keeps less with a smaller "
    "algorithm.options.noise_memory."
)


@contextmanager
def memory_for(what: str, then: str) -> Iterator[None]:
    """Say by name where memory ends: what it was for, and what to do then."""
    try:
        yield
    except MemoryError as error:
        told = str(error) if type(error) is MemoryError else ""  # libraries say for how much: of values, perhaps
        raise RunError(f"Expected memory for {what}, got too little: {told or 'no more is given'}. {then}") from None


def make_sure_of_items(then: str, needed: int, more: int, *, begun: bool) -> None:
    """RunError unless there are `more` bytes for items, which are then `needed` in all; not where a run has begun."""
    if begun or more < FEW:
        return
    with memory_for(f"the items of this table ({needed:,} bytes)", then):
        if more > (left := free_memory()):
            raise MemoryError(f"{left:,} are left")
        np.empty(more, np.uint8)  # which the system may refuse, too


def make_sure_of_answers(plan: RunPlan) -> None:
    """Raise RunError unless there is memory for the plan's largest round: its answers, and what is kept between rounds.

    What is made of answers was at most 3.9 times as much, over all methods; most take twice. Of questions with a
    reduction, which all of a plan's have or none, no answers are kept; second moments of too many users are looked at
    again, a block at a time. What is kept is there before and after a round, and on its way into the store. It depends
    on the plan and on this machine.
    """
    algorithm = ALGORITHMS[plan.algorithm].make(plan)
    state = algorithm.init()
    question = algorithm.request(state, SeededNoise(0))  # whom it asks is looked at by nobody
    answers, kept = 0, _CODED * size(state)
    if question is not None and question.reduction is None:
        users, numbers = max(plan.schedule.cohorts), plan.schedule.answer_length
        answers = 4 * 8 * users * numbers
        if isinstance(question.task, MomentAndGradient):
            moments = min(8 * users * numbers, inline.MAX_BYTES)  # of moments; gradients are what other rounds ask for
            answers = 4 * (moments + 8 * users * plan.problem.dimension)
    what = f"the answers of a round ({answers:,} bytes) and what is kept between two ({kept:,} bytes)"
    with memory_for(what, f"{UNCHARGED} {FEWER if answers >= kept else LESS}"):
        if answers + kept > (left := free_memory()):
            raise MemoryError(f"{left:,} are left")
