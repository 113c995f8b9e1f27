"""Commands and simulations plan before they run: the same few plans, test after test."""

from pathlib import Path

import pytest

from quoron.engine import processes
from worker_here import WorkerHere


@pytest.fixture(autouse=True)
def _planned(planned_once: None) -> None:
    """Every test here takes a plan for the same numbers from an earlier one; planners are tested elsewhere."""


@pytest.fixture
def workers_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Comparisons of this test start no process; `test_compare` and `test_sharding` do."""
    monkeypatch.setattr(processes, "Worker", lambda service, threads: WorkerHere(service))


@pytest.fixture
def account(ledger: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The lifetime account of this test's runs of rows, which may be simulations."""
    monkeypatch.setenv("QUORON_ALLOW_SIMULATION", "1")
    return ledger
