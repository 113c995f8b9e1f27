"""A Grid in this process whose ClientApps answer with functions of a test's own, one a user."""

from collections.abc import Callable, Iterable, Mapping

import numpy as np
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from flower.grids import FakeGrid
from quoron_client.flower.answering import answer_with

Gradient = Callable[[np.ndarray], np.ndarray]


class Killed(BaseException):
    """The ServerApp's process ends here."""


def plugged(gradients: Mapping[int, Gradient], *, first: int = 10, dies_at: int | None = None) -> FakeGrid:
    """User u is node `first + u` with key "u"; `dies_at` ends the server's process when so many questions have left."""
    app = ClientApp()

    @app.query("private")
    def private(message: Message, context: Context) -> Message:
        return answer_with(message, context, gradients[int(context.node_config["partition-id"])])

    def dies(message: Message, reply: Message) -> Iterable[Message]:
        if len(questions(grid)) == dies_at:
            raise Killed
        return [reply]

    configs = {first + user: {"partition-id": user, "num-partitions": len(gradients)} for user in gradients}
    keys = {first + user: f"{user}".encode() for user in gradients}
    grid = FakeGrid(app, configs, keys=keys, fault=dies)
    return grid


def questions(grid: FakeGrid) -> list[bytes]:
    """The questions that have left, in order."""
    asked = [message.content["quoron"].get("question") for message in grid.asked]
    return [each for each in asked if isinstance(each, bytes)]


def words(grid: FakeGrid) -> list[str]:
    """All that clients have sent, in words."""
    return [repr(reply.content) for reply in grid.received]
