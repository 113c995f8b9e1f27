"""examples/loops/flower_strategy.py: a Strategy of Flower with our private mean in it."""

import runpy
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from flower.grids import FakeGrid
from quoron_privacy import SeededNoise

EXAMPLE = runpy.run_path(str(Path(__file__).parents[2] / "examples/loops/flower_strategy.py"))
app = ClientApp()


@app.train()
def halfway(message: Message, context: Context) -> Message:
    """Every user would have the model at (2, 2, 2); one in ten sends something endless, or nothing."""
    now = EXAMPLE["flat"](message.content.array_records["arrays"])
    if context.node_config["number"] % 10 == 3:
        raise ValueError("no answer")
    numbers = np.full(3, np.inf) if context.node_config["number"] % 10 == 7 else now + 0.5 * (2.0 - now)
    parts = {"weights": Array(numbers[:2].reshape(1, 2)), "bias": Array(numbers[2:])}
    return Message(RecordDict({"arrays": ArrayRecord(parts)}), reply_to=message)


class Answering(FakeGrid):
    """One that also answers at once."""

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        return list(self.pull_messages(self.push_messages(messages)))


def trained(**given: Any) -> tuple[Any, np.ndarray]:
    start = ArrayRecord({"weights": Array(np.zeros((1, 2))), "bias": Array(np.zeros(1))})
    of_run = {"epsilon": 8.0, "users": 200, "cohort": 100, "rounds": 12, "clip_norm": 4.0, "noise": SeededNoise(1)}
    strategy = EXAMPLE["PrivateFedAvg"](**of_run | given, arrays=start)
    grid = Answering(app, {number + 1: {"number": number} for number in range(200)})
    result = strategy.start(grid, start, num_rounds=12)
    return strategy, EXAMPLE["flat"](result.arrays)


def test_a_strategy_with_a_private_mean_learns_what_its_users_agree_on() -> None:
    strategy, model = trained()
    assert strategy.mean.guarantee.startswith("(8, 1e-06)-differential privacy for all items of any one user")
    assert np.abs(model - 2.0).max() < 0.5
    assert strategy.state.round == 12


def test_what_users_send_beyond_the_clip_norm_moves_the_model_no_farther() -> None:
    _, model = trained(clip_norm=0.01, noise=SeededNoise(2))
    assert np.linalg.norm(model) < 12 * 0.02
