"""What Flower sets in the process of a ServerApp, so that messages can be made in a test."""

import os
from collections.abc import Iterator
from importlib.metadata import version

import pytest
from flwr.supercore.task_identity import TaskIdentity

from flower.grids import FakeTime
from quoron_server.flower import engine, exchange, serving


@pytest.fixture(autouse=True, scope="package")
def _in_a_run() -> Iterator[None]:
    before = (TaskIdentity._task_id, TaskIdentity._run_id, TaskIdentity._node_id)
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1
    yield
    TaskIdentity._task_id, TaskIdentity._run_id, TaskIdentity._node_id = before


def pytest_configure() -> None:
    """With the Flower that scripts/test-flower-versions has asked for, or not at all."""
    wanted = os.environ.get("QUORON_FLOWER", version("flwr"))
    if wanted != version("flwr"):
        raise pytest.UsageError(f"Expected flwr {wanted}, got {version('flwr')}.")


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> FakeTime:
    """Nobody sleeps."""
    fake = FakeTime()
    for module in (engine, exchange, serving):
        monkeypatch.setattr(module, "time", fake)
    return fake
