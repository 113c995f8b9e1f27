"""What a run as printed releases a neighbour's could have released, at no more than our accountant charges."""

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from contracts import scenes
from contracts.charges import charges
from contracts.neighbours import ABSENT, CORNERS, Pair, far
from contracts.replay import first_complaint, replay, scene
from cover import by_default
from problems import problem_of
from quoron_client.protocol.domains import L2Ball
from quoron_client.protocol.questions import Answers
from quoron_server.algorithm import Update
from quoron_server.algorithms import ALGORITHMS
from quoron_server.plan import Privacy, RunPlan

PRINTED = ("mean-sgd", "local-model")  # tests/papers replays Lowy et al. and audits the others


@cache
def plan(name: str) -> RunPlan:
    problem = problem_of(users=300, items_per_user=4, dimension=3, domain=L2Ball(2.0), lipschitz=1.0, smoothness=0.25)
    return ALGORITHMS[name].plan(problem, Privacy(4.0, 1e-6), None, "paper", 7)


@pytest.fixture(autouse=True)
def these_users(monkeypatch: pytest.MonkeyPatch) -> None:
    """For the helpers, which know one problem."""
    monkeypatch.setattr(scenes, "PROBLEM", plan(PRINTED[0]).problem)


def pairs(name: str) -> list[Pair]:
    """A user's farthest answers, and answers of any kind against none, from different rounds on."""
    rounds = range(0, plan(name).cost.rounds, max(1, plan(name).cost.rounds // 12))
    return [Pair(at, 0, far(0), far(1)) for at in rounds] + [
        Pair(at, at, ABSENT, 7 * at % CORNERS or 1) for at in rounds
    ]


@pytest.mark.parametrize("name", by_default(PRINTED, ["mean-sgd"]))
def test_a_neighbour_can_release_the_same_at_what_our_accountant_charges_and_uses_nearly_all(name: str) -> None:
    made = scene(ALGORITHMS[name].make(plan(name)))
    used = [
        cost / charged for pair in pairs(name) for _, cost, charged in charges(plan(name), replay(made, pair) or [])
    ]
    assert 0.99 < max(used) <= 1 + 1e-9


def test_replay_catches_a_central_run_as_printed_that_tells_what_it_was_sent() -> None:
    name = "mean-sgd"
    honest: Any = type(ALGORITHMS[name].make(plan(name)))

    class Telling(honest):  # type: ignore[misc]
        """Says in public what all answers are together."""

        def update(self, state: Any, answers: Answers, noise: Any) -> Update[Any]:
            update = super().update(state, answers, noise)
            return replace(update, public={**update.public, "sum": float(np.sum(answers.values))})

    assert first_complaint(scene(Telling(plan(name))), pairs(name))
