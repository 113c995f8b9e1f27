"""Fixtures of a federation's tests, of which some are coroutines."""

import inspect
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from federation.crowd import carried_out
from federation.tls import USERS
from quoron_server.service import certificates
from quoron_server.storage.database import Database
from quoron_server.storage.registry import Registry
from server.helper_scene import Clock


def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """A test that is a coroutine is carried out, and fails if it hangs."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    carried_out(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}))
    return True


@pytest.fixture
def data(tmp_path):
    rng = np.random.default_rng(2)
    frame = pd.DataFrame(
        {"age": rng.uniform(0, 100, 7), "weight": rng.uniform(0, 200, 7), "sick": rng.integers(0, 2, 7)}
    )
    path = tmp_path / "mine.csv"
    frame.to_csv(path, index=False)
    return path


@pytest.fixture(scope="module")
def issued(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An authority, a coordinator's certificate, and certificates of twenty clients."""
    path = tmp_path_factory.mktemp("certificates")
    certificates.make_authority(path, days=2)
    certificates.issue(path, "coordinator", coordinator=True, hosts=("localhost", "127.0.0.1"), days=1)
    for user in range(USERS):
        certificates.issue(path, f"client-{user}", days=1)
    return path


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def registry(database_url, clock):
    with Database(database_url) as database:
        yield Registry(database, clock=clock)
