"""A ball that nobody declared stops no model that users are enough for, and holds back what noise would carry away."""

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
import pytest

from quoron.config import from_tree
from quoron.planning.plans import choose
from quoron.populations import Numeric, TablePopulation, from_table
from quoron.simulation.inline import InlineEngine
from quoron.simulation.scene import problem
from quoron_client.protocol.domains import L2Ball
from quoron_privacy.noise.sources import SeededNoise
from quoron_server.algorithms import ALGORITHMS

ONLY = {"whitened-tracking": ALGORITHMS["whitened-tracking"]}
USERS, FEATURES = 5_000, 4


@cache
def careful() -> TablePopulation:
    """Columns that fill a twentieth of their declared ranges."""
    draw = np.random.Generator(np.random.Philox(8))
    names, numbers = [f"x{k}" for k in range(FEATURES - 1)], draw.normal(size=(2 * USERS, FEATURES - 1))
    ill = draw.random(2 * USERS) < 1 / (1 + np.exp(-1.5 * numbers[:, 0] + numbers[:, 1]))
    frame = pd.DataFrame(numbers, columns=names).assign(who=np.repeat(np.arange(USERS), 2), ill=ill)
    features = tuple(Numeric(name, -40, 40) for name in names)
    return from_table(frame, user="who", label="ill", features=features, domain=L2Ball(3.0), test_fraction=0.0)


def left(**domain: float) -> float:
    """Share of what there is to learn that `auto` leaves, beside the best without bounds."""
    config = _config(epsilon=4.0, **domain)
    people = replace(careful(), domain=L2Ball(domain.get("radius", 3.0)))
    plan = choose(config, problem(config, people), algorithms=ONLY).plan
    made, noise, engine = ONLY[plan.algorithm].make(plan), SeededNoise(2), InlineEngine(people)
    state = made.init()
    while (question := made.request(state, noise)) is not None:
        state = made.update(state, engine.ask(question), noise).state
    unbounded = replace(people, domain=L2Ball(1e5))
    return unbounded.excess_risk(made.model(state)) / unbounded.excess_risk(np.zeros(FEATURES))


def _config(epsilon: float, **domain: float) -> Any:
    table = {"kind": "table", "path": "-", "user": "-", "label": "- > 0", "numeric": {"-": [0, 1]}}
    return from_tree({"population": table, "privacy": {"epsilon": epsilon, "delta": 1e-6}, "domain": domain})


def radius(users: int, epsilon: float) -> float:
    people = careful()
    few = replace(people, training=people.training.of(np.arange(users)))
    wide = problem(_config(epsilon), few).wide
    assert wide is not None
    assert isinstance(wide.domain, L2Ball)
    return wide.domain.radius


def test_careful_ranges_are_no_worse_with_an_undeclared_ball_than_with_the_largest_and_a_small_one_stops_them() -> None:
    undeclared, largest = left(), left(radius=10_000.0)
    assert undeclared < 0.1
    assert undeclared == pytest.approx(largest, rel=0.1)
    assert left(radius=30.0) > 0.5


def test_more_users_and_more_epsilon_never_make_an_undeclared_ball_smaller() -> None:
    by_users = [radius(users, 1.0) for users in (20, 100, 300, 1_000, 5_000)]
    by_epsilon = [radius(1_000, epsilon) for epsilon in (0.01, 0.25, 1.0, 4.0, 15.0)]
    for found in (by_users, by_epsilon):
        assert found == sorted(found)
        assert found[0] == 30.0
    assert by_epsilon[-1] == 10_000.0


def test_a_declared_ball_is_the_ball() -> None:
    assert problem(_config(4.0, radius=30.0), replace(careful(), domain=L2Ball(30.0))).wide is None
