"""The engine of a Flower run: each round's messages over a Grid, through a fleet that knows which node holds whom.

engine = FlowerEngine(grid, fleet, run="spring", problem=problem, seconds=600)
answers = engine.ask(question)
"""

import logging
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple, Protocol

import numpy as np
from flwr.app import Error, RecordDict
from flwr.serverapp import Grid
from numpy.typing import NDArray

from quoron_client.protocol.questions import FAR, Answers, Question, Status
from quoron_privacy.errors import RunError
from quoron_server.flower.exchange import Clock, Letter, Pulls, Told, heard, untold
from quoron_server.problem import Problem
from quoron_server.rounds import PAUSE, opening
from quoron_server.traffic import room_for, spill_folder

_AGAIN = 2  # times at most that a question is sent again which the SuperLink has lost
_log = logging.getLogger("quoron")


class NodeFailed(RunError):
    """A node that computes the answers of simulated users did not send them. The round can be asked again."""


class Asked(NamedTuple):
    """What the answer to a question to one user must name."""

    user: int
    run: str
    round: int
    digest: bytes


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """The rows of a cohort that one node answers for: all that is kept of what it was sent."""

    rows: NDArray[np.int64]
    asked: Asked | None = None


class Fleet(Protocol):
    """Which node holds whom, and how to read its replies."""

    def parts(self, question: Question, seconds: int) -> Iterable[tuple[Part, Letter]]:
        """What to ask, made when its turn comes; a row that is in no part is MISSING."""

    def read(self, reply: RecordDict, part: Part, shape: tuple[int, ...]) -> Answers | None:
        """The rows of a part, zeros with a status where there is no answer; None if it is no reply. Never raises."""


@dataclass(slots=True, eq=False)
class FlowerEngine:
    """Asks the nodes of a Grid. Raises SuperLinkAway, and NodeFailed if it is `demanding`; nothing else.

    Where a node stands for users, its failure is theirs and they are MISSING. Where it only computes what simulated
    users answer, its failure says nothing about them: a `demanding` engine does not let it into the result.
    """

    grid: Grid
    fleet: Fleet
    run: str
    problem: Problem
    seconds: float
    early_ends: bool = False
    demanding: bool = False
    told: Told = untold  # of nodes that have answered: where data are made up
    pulls: Pulls = field(default_factory=Pulls)
    last_asked: int = -1
    _due: float = -inf  # before which the next round does not open

    def ask(self, question: Question) -> Answers:
        """One row an asked user, in cohort order; who is not heard of in time is MISSING."""
        opens = opening(self._due, now := time.monotonic(), self.seconds)
        if opens > self._due > -inf:
            _log.warning("a round's own work took longer than %g s: give rounds more seconds", PAUSE * self.seconds)
        time.sleep(max(0.0, opens - now))
        self.last_asked = question.round
        shape = question.task.answer_shape(self.problem.dimension)
        users = len(question.cohort)
        values, status = room_for(users, shape, spill_folder()), np.full(users, Status.MISSING, np.uint8)
        due, clock, answered, asked = np.ones(users, np.bool_), Clock(), 0, 0
        group = f"{self.run}/{question.round}"
        for again in range(_AGAIN, -1, -1):
            parts, lost = list[Part](), set[int]()
            letters, told_of = self._letters(question, due, parts), lost if again else None
            for index, reply in heard(
                self.grid, letters, group=group, seconds=self.seconds, pulls=self.pulls, clock=clock, lost=told_of
            ):
                # Why there is no answer may be a function of the data: an error is shown to nobody.
                answers = None if isinstance(reply, Error) else self.fleet.read(reply, parts[index], shape)
                if answers is not None:
                    values[parts[index].rows], status[parts[index].rows] = answers.values, answers.status
                    answered += 1
                    self.told(answered, asked or len(parts))
            asked = asked or len(parts)
            due[:] = False
            for index in lost:  # a client that has answered gives the same answer again
                due[parts[index].rows] = True
            if not due.any() or clock.over:
                break
        if not self.early_ends:
            time.sleep(clock.left)
            self._due = clock.ends + PAUSE * self.seconds
        if self.demanding and answered < asked:
            raise NodeFailed(f"Expected answers of {asked} nodes in round {question.round}, got {answered}.")
        return Answers.checked(values, status, largest=FAR * question.task.honest(self.problem.bounds), own=True)

    def _letters(self, question: Question, due: NDArray[np.bool_], parts: list[Part]) -> Iterator[Letter]:
        """Whatever asks for rows that are `due`, and its part."""
        for part, letter in self.fleet.parts(question, max(1, round(self.seconds))):
            if due[part.rows].all():
                parts.append(part)
                yield letter
