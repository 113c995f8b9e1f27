"""Second moments of more users than are held at once: the same bits, however often and from wherever they are seen."""

import weakref
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
import pytest

from problems import problem_of
from quoron.data import TablePopulation, from_table
from quoron.engine import inline
from quoron.engine.inline import InlineEngine
from quoron_client.data.encoding import Encoding, Signs
from quoron_client.data.features import Numeric
from quoron_client.losses import Logistic
from quoron_client.protocol.domains import L2Ball
from quoron_client.protocol.questions import Answers, MomentAndGradient, Question
from quoron_privacy.means import free_counts
from quoron_privacy.noise.streams import SeededNoise
from quoron_server.algorithms import ALGORITHMS
from quoron_server.plan import Privacy, RunPlan

USERS, D = 150, 4
INFO = ALGORITHMS["whitened-tracking"]


@cache
def people() -> TablePopulation:
    draw = np.random.Generator(np.random.Philox(5))
    counts = draw.integers(1, 9, USERS)
    names, numbers = ("a", "b", "c"), draw.normal(size=(counts.sum(), 3))
    frame = pd.DataFrame(numbers, columns=names).assign(who=np.repeat(np.arange(USERS), counts), ill=numbers[:, 0] > 0)
    features = tuple(Numeric(name, -3, 3) for name in names)
    rules = Encoding(features, label=Signs("ill"))
    return from_table(frame, rules, user="who", loss=Logistic(), domain=L2Ball(30.0), test_fraction=0.0)


@cache
def plan() -> RunPlan:
    known = people().loss
    problem = problem_of(
        users=USERS,
        items_per_user=4,
        dimension=D,
        domain=L2Ball(30.0),
        lipschitz=1.0,
        smoothness=known.smoothness,
        start_gradient=known.start_gradient,
        feature_norm=1.0,
        link_curvature=known.curvature,
        sigmoid=True,
        intercept=True,
    )
    return INFO.plan(problem, Privacy(8.0, 1e-5), INFO.options())


def model(engine: Any) -> Any:
    made, noise = INFO.make(plan()), SeededNoise(7)
    state = made.init()
    while (question := made.request(state, noise)) is not None:
        state = made.update(state, engine.ask(question), noise).state
    return made.model(state)


@pytest.fixture
def held_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of seven users at a time."""
    monkeypatch.setattr(inline, "MAX_BYTES", 1000)
    monkeypatch.setattr(inline, "BLOCK", 7 * 8 * (D * (D + 1) // 2 + D))


def test_a_run_holds_one_block_at_a_time(held_in_blocks: None, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks: list[weakref.ref[Any]] = []
    most, honest = [], InlineEngine.rows

    def watched(self: InlineEngine, question: Question) -> Answers:
        most.append(sum(block() is not None for block in blocks))
        answers = honest(self, question)
        if isinstance(question.task, MomentAndGradient):
            blocks.append(weakref.ref(answers.values))
        return answers

    monkeypatch.setattr(InlineEngine, "rows", watched)
    monkeypatch.setattr(free_counts, "BLOCK", 60)
    model(InlineEngine(people()))
    assert len(blocks) > 5 * USERS / 7
    assert max(most) <= 2
