"""On Flower too the clock shows nothing of who answered: rounds are pushed on a schedule."""

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import pytest
from flwr.app import Message

from federation.crowd import specification
from flower.grids import FakeGrid, FakeTime, Rows, computing, spread
from quoron_client.protocol.gradients import AverageGradient
from quoron_client.protocol.questions import Question
from quoron_server.flower import engine as engines
from quoron_server.flower import exchange
from quoron_server.flower.engine import FlowerEngine
from quoron_server.flower.shards import Shards
from quoron_server.round_clock import PAUSE

NODES, ROUNDS, SECONDS = 5, 4, 60.0


@dataclass
class Timed(FakeGrid):
    """Remembers when each node was sent something; `silent` says who does not reply, by round."""

    clock: FakeTime = field(default_factory=FakeTime)
    silent: dict[int, int] = field(default_factory=dict)  # node by round
    sent: list[tuple[int, float]] = field(default_factory=list)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        messages = list(messages)
        self.sent += [(message.metadata.dst_node_id, self.clock.now) for message in messages]
        return super().push_messages(messages)


def asked_at(monkeypatch: pytest.MonkeyPatch, silent_rounds: set[int], *, early_ends: bool) -> dict[int, list[float]]:
    """When each node hears of each round, if the first node says nothing in some."""
    clock = FakeTime()
    for module in (exchange, engines):
        monkeypatch.setattr(module, "time", clock)
    grid = Timed(computing(Rows()), spread(NODES), clock=clock)
    fleet = Shards.found(grid, run="trial", seconds=60)
    first, now = min(grid.configs), [0]
    grid.fault = lambda message, reply: (
        [] if now[0] in silent_rounds and message.metadata.dst_node_id == first else [reply]
    )
    grid.sent.clear()
    engine = FlowerEngine(
        grid, fleet, "trial", specification("one-pass-dp-sgd").problem, SECONDS, early_ends=early_ends
    )
    for number in range(ROUNDS):
        now[0] = number
        task = AverageGradient(np.zeros((1, 3)), (1.0,))
        engine.ask(Question(number, np.arange(2 * NODES), task))
        clock.sleep(0.5)  # what the server computes
    return {node: [when for who, when in grid.sent if who == node] for node in grid.configs}


def test_a_round_is_pushed_on_the_schedule_whoever_was_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = asked_at(monkeypatch, set(), early_ends=False)
    silent = asked_at(monkeypatch, {0, 2}, early_ends=False)
    assert usual == silent
    for times in usual.values():
        assert np.diff(times) == pytest.approx((1 + PAUSE) * SECONDS)


def test_with_early_ends_the_next_push_tells_who_was_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fault that the schedule mends."""
    usual = asked_at(monkeypatch, set(), early_ends=True)
    silent = asked_at(monkeypatch, {0, 2}, early_ends=True)
    bystander = max(usual)
    assert max(np.diff(usual[bystander])) < 2.0
    assert np.diff(silent[bystander])[0] > SECONDS
