"""Second moments of more users than are held at once: the same bits, however often and from wherever they are seen."""

from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
import pytest

from problems import problem_of
from quoron.populations import Numeric, TablePopulation, from_table
from quoron.sharding.engine import ShardedEngine
from quoron.sharding.shard import Settings, opened
from quoron.simulation import again
from quoron.simulation.inline import InlineEngine
from quoron_client.protocol.domains import L2Ball
from quoron_client.protocol.questions import Question
from quoron_client.protocol.whitened import MomentAndGradient
from quoron_privacy.noise.sources import SeededNoise
from quoron_server.algorithms import ALGORITHMS
from quoron_server.plan import Plan, Privacy

USERS, D = 150, 4
INFO = ALGORITHMS["whitened-tracking"]


@cache
def people() -> TablePopulation:
    draw = np.random.Generator(np.random.Philox(5))
    counts = draw.integers(1, 9, USERS)
    names, numbers = ("a", "b", "c"), draw.normal(size=(counts.sum(), 3))
    frame = pd.DataFrame(numbers, columns=names).assign(who=np.repeat(np.arange(USERS), counts), ill=numbers[:, 0] > 0)
    features = tuple(Numeric(name, -3, 3) for name in names)
    return from_table(frame, user="who", label="ill", features=features, domain=L2Ball(30.0), test_fraction=0.0)


@cache
def plan() -> Plan:
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


def in_two_shards() -> ShardedEngine:
    class Here:
        def __init__(self, letter: bytes) -> None:
            self.engine = opened(letter)

        def ask(self, question: Question, most: int) -> Any:
            del most
            return self.engine.ask(question)

        def close(self) -> None:
            pass

    return ShardedEngine.of(people(), 2, lambda _, letter: Here(letter), Settings(dropout=0.2))


FIRST = Question(0, np.random.default_rng(1).permutation(USERS), MomentAndGradient(D, np.full(D, 0.1)))


@pytest.fixture
def held_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of seven users at a time."""
    monkeypatch.setattr(again, "HELD", 1000)
    monkeypatch.setattr(again, "BLOCK", 7 * 8 * (D * (D + 1) // 2 + D))


@pytest.mark.parametrize("engine", [lambda: InlineEngine(people(), dropout=0.2), in_two_shards])
def test_blocks_that_are_computed_again_are_the_rows_that_would_be_held(engine: Any, request: Any) -> None:
    whole = InlineEngine(people(), dropout=0.2).ask(FIRST)
    request.getfixturevalue("held_in_blocks")
    answers = engine().ask(FIRST)
    assert isinstance(answers.values, again.RowsAgain)
    assert np.array_equal(answers.status, whole.status)
    assert len(set(whole.status.tolist())) == 2
    for rows in (slice(None), slice(0, 7), slice(3, 25), slice(140, 999), slice(5, 5)):
        assert np.array_equal(answers.values[rows], whole.values[rows])


def test_threads_that_look_at_the_same_time_see_the_same_rows(held_in_blocks: None) -> None:
    rows = InlineEngine(people()).ask(FIRST).values
    looks = [slice(first, first + 20) for first in range(0, USERS, 3)] * 4
    with ThreadPoolExecutor(8) as threads:
        seen = list(threads.map(rows.__getitem__, looks))
    assert all(np.array_equal(one, rows[look]) for one, look in zip(seen, looks, strict=True))


def test_a_run_on_blocks_is_the_run_on_rows_bit_for_bit(request: Any) -> None:
    held = model(InlineEngine(people()))
    request.getfixturevalue("held_in_blocks")
    assert np.array_equal(model(InlineEngine(people())), held)
    assert np.linalg.norm(held) > 0
