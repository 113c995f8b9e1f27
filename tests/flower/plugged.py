"""A Grid in this process whose ClientApps answer with functions of a test's own, one a user."""

from collections.abc import Callable, Iterable, Mapping
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import Mod

from flower.grids import FakeGrid
from quoron.flower import train_privately
from quoron.training.rows import TrainedRows
from quoron_client.flower.answering import answer_with

USERS, DIMENSION, CLIP = 6, 3, 0.5

SMALL: dict[str, dict[str, Any]] = {  # options that keep the runs short
    "one-pass-dp-sgd": {"rounds": 3},
    "dp-ftrl": {"rounds": 3},
    "srgd": {"rounds": 3},
    "accelerated-srgd": {"rounds": 3},
    "accelerated-sgd": {"rounds": 3},
    "online-to-batch": {"rounds": 3},
    "dp-sgd-poisson": {"rounds": 3, "rate": 0.5},
    "dp-sgd-wor": {"rounds": 3, "rate": 0.5},
    "recentred-sgd": {"rounds": 3, "rate": 1.0},
}

Gradient = Callable[[np.ndarray], np.ndarray]


class Killed(BaseException):
    """The ServerApp's process ends here."""


def dying(rows: Callable[..., Any], at: int) -> Callable[..., Any]:
    """The same function of users and a point, but that its process ends at its call number `at`."""
    calls = count(1)

    def compute(users: np.ndarray, point: np.ndarray) -> Any:
        if next(calls) == at:
            raise Killed
        return rows(users, point)

    return compute


def plugged(
    gradients: Mapping[int, Gradient],
    *,
    first: int = 10,
    dies_at: int | None = None,
    mods: Iterable[Mod] = (),
    owners: Mapping[int, Mapping[str, Any]] | None = None,
) -> FakeGrid:
    """User u is node `first + u` with key "u", and a config of its owner's.

    `dies_at` ends the server's process when so many questions have left.
    """
    app = ClientApp(mods=[*mods])

    @app.query("private")
    def private(message: Message, context: Context) -> Message:
        return answer_with(message, context, gradients[int(context.node_config["partition-id"])])

    def dies(message: Message, reply: Message) -> Iterable[Message]:
        if len(questions(grid)) == dies_at:
            raise Killed
        return [reply]

    place, said_by = {"num-partitions": len(gradients)}, owners or {}
    configs = {first + user: {"partition-id": user, **place, **said_by.get(user, {})} for user in gradients}
    keys = {first + user: f"{user}".encode() for user in gradients}
    grid = FakeGrid(app, configs, keys=keys, fault=dies)
    return grid


def questions(grid: FakeGrid) -> list[bytes]:
    """The questions that have left, in order."""
    asked = [message.content["quoron"].get("question") for message in grid.asked]
    return [each for each in asked if isinstance(each, bytes)]


def words(grid: FakeGrid) -> list[str]:
    """All that clients have sent, in words."""
    return [repr(reply.content if reply.has_content() else reply.error) for reply in grid.received]


def pulls(user: int) -> Gradient:
    """The gradient of half the squared distance to a point of this user's own."""
    own = np.random.default_rng(user).normal(0.3, 0.1, DIMENSION)
    return lambda model: model - own


def people(users: int = USERS) -> dict[int, Gradient]:
    return {user: pulls(user) for user in range(users)}


def trained(grid: FakeGrid, folder: Path, name: str = "one-pass-dp-sgd", **changed: Any) -> TrainedRows[Any]:
    given = {"users": USERS, "dimension": DIMENSION, "epsilon": 8.0, "delta": 1e-3, "clip_norm": CLIP, "radius": 2.0}
    given |= {
        "algorithm": name,
        "options": SMALL.get(name, {}),
        "smoothness": 1.0,
        "seed": 5,
        "early_ends": True,
        "waiting": 0.01,
    }
    return train_privately(grid, out=folder, **given | changed)
