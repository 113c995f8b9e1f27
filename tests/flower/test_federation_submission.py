"""Submitting to a federation of Flower and serving it there, without Flower's processes."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from flwr.app import Context, RecordDict

from flower.federation import small
from flower.grids import FakeGrid, FakeTime
from flower.test_users import USERS, people
from quoron.federation import flower_app as federated
from quoron_privacy.errors import ConfigError
from quoron_server.flower import exchange, serving

WANTED = small("dp-sgd-wor", "trial", USERS)


@pytest.fixture(autouse=True)
def time(monkeypatch: pytest.MonkeyPatch) -> FakeTime:
    fake = FakeTime()
    for module in (exchange, serving):
        monkeypatch.setattr(module, "time", fake)
    return fake


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """The ServerApp's handler is for a process of its own."""
    logger = logging.getLogger("quoron")
    before, level = list(logger.handlers), logger.level
    yield
    logger.handlers, logger.level = before, level


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of a ServerApp for trials; the folder of its results."""
    monkeypatch.setenv("QUORON_DATABASE", f"sqlite:///{tmp_path}/store.sqlite")
    monkeypatch.setenv("QUORON_RESULTS", str(tmp_path / "results"))
    monkeypatch.setenv("QUORON_ALLOW_SIMULATION", "1")
    monkeypatch.delenv("QUORON_SUPERNODE_AUTH", raising=False)
    monkeypatch.delenv("QUORON_GROUP", raising=False)
    return tmp_path / "results"


def serve(
    folder: Path, text: str = WANTED.as_text(), *, waiting: object = 60.0, grid: FakeGrid | None = None
) -> FakeGrid:
    settings = {"specification": text, "waiting": waiting}
    grid = people(folder) if grid is None else grid
    federated.server_app(grid, Context(1, 1, {}, RecordDict(), settings))
    return grid


def test_authentication_alone_allows_no_simulation(
    environment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QUORON_ALLOW_SIMULATION", "0")
    monkeypatch.setenv("QUORON_SUPERNODE_AUTH", "1")
    with pytest.raises(ConfigError, match="simulation=false"):
        serve(tmp_path)


def test_a_run_whose_messages_no_client_takes_is_refused(
    environment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quoron_client.protocol.wire.MAX_WHOLE", 4100)
    with pytest.raises(ConfigError, match="Expected messages of at most 4,100 bytes"):
        serve(tmp_path)
