"""Fixtures that several folders use."""

import gc
import logging
import os
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

import postgres_server as private
import warden

# Examples are the same in every run, and how long one takes says how busy the machine is. `EXAMPLES=1000` draws others.
slow = [HealthCheck.too_slow]
# `scripts/test-long --ci` runs them with twice as many: `--hypothesis-profile=thorough`.
for profile, examples in (("quoron", 30), ("thorough", 60)):
    settings.register_profile(
        profile, derandomize=True, max_examples=examples, deadline=None, suppress_health_check=slow
    )
more = {"max_examples": int(os.environ.get("EXAMPLES", "50")), "print_blob": True}
settings.register_profile("more", derandomize=False, deadline=None, suppress_health_check=slow, **more)
settings.load_profile("more" if "EXAMPLES" in os.environ else "quoron")
WARDEN = pytest.StashKey[object]()
VERIFIED: dict[int, object] = {}
PLANNED: dict[object, object] = {}


def pytest_configure(config: pytest.Config) -> None:
    """Temporary folders in memory where there is room: ledgers are flushed to the disk thousands of times."""
    gc.set_threshold(50_000, 20, 20)
    config.stash[WARDEN] = warden.start()
    os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "16")  # idle threads sleep: other tests use the processors
    os.environ.setdefault("QUORON_WAITING", "0")  # a coordinator that a test starts again waits for no clients
    folder = private.quick_folder()
    if folder is not None:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", folder)


def pytest_collection_finish() -> None:
    """Tests and libraries are millions of objects that last: a tenth of the time would be looking through them."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def core_dumps_stay() -> Iterator[None]:
    """A command that a test carries out in this process does not lower its limit for good, which nobody may raise."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("quoron.federation.log_limit.switch_off", lambda: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def profiles_of_these_tests(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Whoever runs the tests may have profiles of their own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QUORON_CONFIG_HOME", str(tmp_path_factory.mktemp("profiles")))
        yield


@pytest.fixture(scope="session", autouse=True)
def commands_once() -> Iterator[None]:
    """A program makes its commands once; hundreds of tests in one process would make the same ones again."""
    from typer import main

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(main, "get_command", cache(main.get_command))
        yield


@pytest.fixture
def our_logs(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """`caplog` with our own records alone: what gRPC, Flower or a compiler says is not for a test to count."""

    def ours(record: logging.LogRecord) -> bool:
        return record.name.split(".")[0] == "quoron"

    caplog.handler.addFilter(ours)
    yield caplog
    caplog.handler.removeFilter(ours)


@pytest.fixture
def verified_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan that has passed is not verified again for each of its runs, which takes longer than they do."""
    from quoron_server.algorithms.registered import RegisteredAlgorithm

    verify = RegisteredAlgorithm.verify

    def once(info: Any, plan: Any) -> None:
        if id(plan) not in VERIFIED:
            verify(info, plan)
            VERIFIED[id(plan)] = plan  # kept, so that no other plan gets its number

    monkeypatch.setattr(RegisteredAlgorithm, "verify", once)


@pytest.fixture
def planned_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan for the same numbers is not looked for again: many tests ask of the same few what all algorithms would do.

    Plans are pure functions of public numbers, and frozen; tests of planners themselves do without this.
    """
    from quoron_privacy.errors import QuoronError
    from quoron_server.algorithms.registered import RegisteredAlgorithm

    plan = RegisteredAlgorithm.plan

    def once(info: Any, *given: Any, **named: Any) -> Any:
        key = (info.name, info.planner, given, tuple(sorted(named.items())))
        if key not in PLANNED:
            try:
                PLANNED[key] = plan(info, *given, **named)
            except QuoronError as error:
                PLANNED[key] = error
        found = PLANNED[key]
        if isinstance(found, QuoronError):
            raise found.with_traceback(None)
        return found

    monkeypatch.setattr(RegisteredAlgorithm, "plan", once)


@pytest.fixture
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the lifetime account of this test's runs is: nothing is there yet."""
    path = tmp_path / "own" / "lifetime.sqlite"
    monkeypatch.setenv("QUORON_LEDGER", str(path))
    return path


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[private.PostgresServer]:
    """A private PostgreSQL server of this test session."""
    why = private.missing()
    if why is not None:
        pytest.skip(why)
    pytest.importorskip("psycopg", reason="psycopg is not installed: pip install '.[postgres]'")
    with private.running() as server:
        yield server


@pytest.fixture
def postgres(postgres_server: private.PostgresServer) -> str:
    """The URL of a fresh database on a real PostgreSQL server."""
    return postgres_server.new_database()


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of a fresh database, of each kind in turn."""
    if request.param == "sqlite":
        with tempfile.TemporaryDirectory(prefix=warden.prefix(), dir=private.quick_folder()) as folder:
            yield f"sqlite:///{folder}/store.sqlite"
    else:
        yield request.getfixturevalue("postgres")
