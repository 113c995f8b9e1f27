"""The engine of a Flower run: each round's messages over a Grid, through a fleet that knows which node holds whom.

engine = FlowerEngine(grid, fleet, run="spring", problem=problem, seconds=600)
answers = engine.ask(question)
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
from flwr.app import RecordDict
from flwr.serverapp import Grid
from numpy.typing import NDArray

from quoron_client.questions import Answers, Question, Status
from quoron_protos.errors import RunError
from quoron_server.flower.exchange import Letter, heard
from quoron_server.flower.pulls import Pulls
from quoron_server.plausible import FAR, honest
from quoron_server.problem import Problem


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
    demanding: bool = False
    pulls: Pulls = field(default_factory=Pulls)

    def ask(self, question: Question) -> Answers:
        """One row an asked user, in cohort order; who is not heard of in time is MISSING."""
        shape = question.task.answer_shape(self.problem.dimension)
        users = len(question.cohort)
        values, status = np.zeros((users, *shape)), np.full(users, Status.MISSING, np.uint8)
        parts: list[Part] = []

        def letters() -> Iterator[Letter]:
            for part, letter in self.fleet.parts(question, max(1, round(self.seconds))):
                parts.append(part)
                yield letter

        group, answered = f"{self.run}/{question.round}", 0
        for index, reply in heard(self.grid, letters(), group=group, seconds=self.seconds, pulls=self.pulls):
            answers = self.fleet.read(reply, parts[index], shape)
            if answers is not None:
                values[parts[index].rows], status[parts[index].rows] = answers.values, answers.status
                answered += 1
        if self.demanding and answered < len(parts):
            raise NodeFailed(f"Expected answers of {len(parts)} nodes in round {question.round}, got {answered}.")
        return Answers.checked(values, status, largest=FAR * honest(self.problem, question.task))
