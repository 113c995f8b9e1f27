"""A question asked in pieces: of users who are read together, one after the other.

    engine = engine_for(population, seed=0)

What a user answers depends on that user and the question alone: any pieces put together again are the same bits.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import reduce
from operator import add
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from quoron.populations.users import Answering, Users
from quoron.simulation.again import looked_at_again
from quoron.simulation.inline import InlineEngine
from quoron_client.protocol.questions import Answers, Question, summed
from quoron_privacy.release import Sums

Indices = NDArray[np.int64]
Told = Answers | Sums


@runtime_checkable
class ReadTogether(Protocol):
    """Users whose items are on disk."""

    def pieces(self, users: Users) -> Iterator[Indices]:
        """Indices into `users` (k,) that are read together, in the order of reading."""


class Pieces:
    """The inline engine, asked piece by piece in the order in which items are read."""

    def __init__(self, engine: InlineEngine, people: ReadTogether) -> None:
        self._engine, self._people = engine, people

    def over(self, population: Any) -> "Pieces":
        """The same engine for other users."""
        return Pieces(self._engine.over(population), population)

    @property
    def item_gradients(self) -> int:
        """Gradients computed, for simulation only."""
        return self._engine.item_gradients

    def ask(self, question: Question) -> Told:
        """Sums of the question's reduction, if it has one; else answers of its cohort, in slot order."""
        return looked_at_again(self._told, question, self._engine.population.dimension) or self._told(question)

    def _told(self, question: Question) -> Any:
        if not len(question.cohort):
            return self._engine.ask(question)
        ask = self._engine.rows if question.reduction is None else self._engine.ask
        parts = ((own, ask(part_of(question, own))) for own in self._people.pieces(question.cohort))
        return together(question, parts, self._engine.population.dimension)

    def rows(self, question: Question) -> Answers:
        """Answers of the question's cohort, in slot order."""
        answers = self._told(replace(question, reduction=None))
        assert isinstance(answers, Answers)
        return answers


def engine_for(population: Answering, **settings: Any) -> InlineEngine | Pieces:
    """The engine of this process for a population; settings are those of `InlineEngine`."""
    engine = InlineEngine(population, **settings)
    return Pieces(engine, population) if isinstance(population, ReadTogether) else engine


def part_of(question: Question, own: Indices) -> Question:
    """The question to some slots of its cohort."""
    return replace(question, cohort=question.cohort[own], task=question.task.part(own))


def together(question: Question, parts: Iterator[tuple[Indices, Told]], dimension: int) -> Told:
    """The answers of parts, each with its slots, in the slots' order; or their sums."""
    if question.reduction is not None:
        return reduce(add, (summed(answers, question.reduction) for _, answers in parts))
    shape = question.task.answer_shape(dimension)
    values, status = np.zeros((len(question.cohort), *shape)), np.zeros(len(question.cohort), np.uint8)
    for own, answers in parts:
        assert isinstance(answers, Answers)
        values[own], status[own] = answers.values, answers.status
    return Answers(values, status)
