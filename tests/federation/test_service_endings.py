"""How runs end, and how they do not: secrets of failed runs, other versions, lost acknowledgements, cancellations."""

import asyncio
import contextlib
import sqlite3
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import grpc
import numpy as np
import pytest

from cover import by_default
from federation.crowd import (
    called,
    carried_out,
    complete,
    coordinator,
    crowd,
    enrolled,
    everybody,
    fetched,
    inline_model,
    put_clock_forward,
    specification,
    until,
)
from operators import reaching
from postgres_server import PostgresServer
from quoron.cli import admin
from quoron.cli.app import invoke
from quoron.federation import control
from quoron_privacy.errors import ConfigError, LedgerError, LedgerUnavailable, RunError
from quoron_privacy.noise.streams import SeededNoise
from quoron_server import rounds, serial
from quoron_server import runs as run_module
from quoron_server.federation import RunStore
from quoron_server.service import Coordinator, client_plane, program, records, tokens
from quoron_server.service import scheduler as schedulers
from quoron_server.service.sessions import Sessions
from quoron_server.specification import make_plan
from quoron_server.storage import database as databases
from quoron_server.storage import ledger as ledgers
from quoron_server.storage import store
from quoron_server.storage.database import Database
from quoron_server.storage.ledger import Ledger
from quoron_server.storage.lifetime_ledger import PopulationLedger
from quoron_server.storage.registry import Registry
from quoron_server.wording import plan_json

NAME, USERS = "one-pass-dp-sgd", 20
TEXT = specification(NAME).as_text()


async def begun(folder: Path) -> None:
    """A coordinator comes, begins the run, asks its first question and leaves."""
    async with coordinator(folder) as running, crowd(running.listen, USERS):
        await running.scheduler.submit(TEXT)
        while not await asyncio.to_thread(spent, running):
            await asyncio.sleep(0.01)


def spent(running: Coordinator) -> bool:
    database = running._database
    return Ledger.begun(database, "trial") and bool(Ledger.within(database, "trial").spent()["rounds"])


async def seen(running: Coordinator) -> list[dict[str, object]]:
    """Every event of the run, as long as somebody may watch."""
    return [event async for event in (await running.scheduler.feed("trial")).watch()]


async def state_and_reason(running: Coordinator) -> tuple[str, str | None]:
    """State and reason, as `quoron runs` shows them."""
    (row,) = await running.scheduler.records.runs()
    assert await running.scheduler.records.status("trial") == row
    return row["state"], row["error"]


async def state(running: Coordinator) -> str:
    return (await running.scheduler.records.status("trial"))["state"]


def has_secrets(folder: Path) -> bool:
    with Database(f"sqlite:///{folder}/coordinator.sqlite") as database:
        try:
            return bool(Ledger.within(database, "trial").noise_key)
        except LedgerError:
            return False


async def taken_to_the_end(folder: Path) -> None:
    async with coordinator(folder) as running, contextlib.AsyncExitStack() as stack:
        await everybody(running, stack)
        np.testing.assert_array_equal(await complete(running), inline_model(specification(NAME), folder))


def failing(*arguments: object, **named: object) -> None:
    raise RunError("Expected another answer.")


async def test_a_failed_run_keeps_no_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    await begun(tmp_path)
    assert has_secrets(tmp_path)
    monkeypatch.setattr(rounds, "run", failing)
    async with coordinator(tmp_path) as running:
        assert (await seen(running))[-1]["how"] == "failed"
    assert not has_secrets(tmp_path)


def another_state(patch: pytest.MonkeyPatch) -> None:
    original = serial.decode

    def decode(like: Any, data: bytes) -> Any:
        another = type("Another", (type(like),), {})
        return original(another(*(getattr(like, item.name) for item in fields(like))), data)

    patch.setattr(serial, "decode", decode)


def another_charge(patch: pytest.MonkeyPatch) -> None:
    original = run_module.charge_of
    patch.setattr(run_module, "charge_of", lambda *given: original(*given) | {"epsilon": 14.0})


def refused(*arguments: object) -> None:
    raise ConfigError("Expected another version.")


OTHERS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "another plan": lambda patch: patch.setattr(run_module, "plan_json", lambda plan: plan_json(plan) | {"novelty": 1}),
    "no plan": lambda patch: patch.setattr(records, "make_plan", refused),
    "no specification": lambda patch: patch.setattr(schedulers.RunSpecification, "parse", refused),
    "no simulation": lambda _: None,
    "another question": lambda patch: patch.setattr(ledgers, "digest", lambda question: "another"),
    "another noise": lambda patch: patch.setattr(SeededNoise, "export_key", lambda noise: b"another"),
    "noise of no simulation": lambda patch: patch.setattr(Ledger, "noise_key", b"k" * 32),
    "another state": another_state,
    "another charge": another_charge,
}


@pytest.mark.parametrize(
    "how", by_default(OTHERS, [how for how in OTHERS if how not in ("no plan", "another noise", "no specification")])
)
@pytest.mark.parametrize("cancelled", by_default([False, True], [False]))
async def test_a_run_of_another_version_is_left_as_it_is_until_that_version_comes_or_it_is_cancelled(
    how: str, cancelled: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await begun(tmp_path)
    with monkeypatch.context() as patch:
        OTHERS[how](patch)
        async with coordinator(tmp_path, allow_simulation=how != "no simulation") as running:
            events = await seen(running)
            assert [event["kind"] for event in events] == ["paused"]
            assert events[0]["error"]
            assert await state_and_reason(running) == ("paused", events[0]["error"])
            if cancelled:
                assert (await running.scheduler.cancel("trial"))["state"] == "cancelled"
                assert (await seen(running))[-1] == {"kind": "ended", "how": "cancelled", "error": None}
                assert await state_and_reason(running) == ("cancelled", None)
    assert has_secrets(tmp_path) != cancelled
    if not cancelled:
        await taken_to_the_end(tmp_path)


@pytest.mark.parametrize("then", ["submit", "cancel"])
def test_a_run_whose_entry_was_never_acknowledged_can_be_submitted_again_or_cancelled(
    then: str, tmp_path: Path
) -> None:
    async def scene() -> None:
        async with coordinator(tmp_path) as running, contextlib.AsyncExitStack() as stack:
            await asyncio.to_thread(Registry(running._database).add_run, "trial", TEXT)
            assert [event["kind"] for event in await seen(running)] == ["paused"]  # and not "ended"
            if then == "cancel":
                assert (await running.scheduler.cancel("trial"))["state"] == "cancelled"
                return
            await everybody(running, stack, USERS)
            await running.scheduler.submit(TEXT)
            await complete(running)

    carried_out(scene())


async def test_a_run_whose_model_is_released_is_complete_even_if_it_is_cancelled_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await begun(tmp_path)
    with Database(f"sqlite:///{tmp_path}/coordinator.sqlite") as database:
        Ledger.within(database, "trial").finish(np.zeros(3))
    original = schedulers.RunScheduler._begin

    def cancelled_meanwhile(scheduler: schedulers.RunScheduler, run: schedulers.ActiveRun) -> object:
        run.cancelled = True
        return original(scheduler, run)

    monkeypatch.setattr(schedulers.RunScheduler, "_begin", cancelled_meanwhile)
    async with coordinator(tmp_path) as running:
        events = await seen(running)
        np.testing.assert_array_equal(await running.scheduler.records.model("trial"), np.zeros(3))
        how = await state(running)
    assert how == "complete"
    assert events[-1] == {"kind": "ended", "how": "complete", "error": None}


@pytest.mark.parametrize("most", [1000, 3])
async def test_whoever_comes_back_hears_of_every_run_of_its_own_that_has_ended_up_to_the_latest_thousand(
    most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_plane, "MAX_SENT", most)
    ended = {f"run-{number}": ("complete", "cancelled", "failed")[number % 3] for number in range(70)}

    def history(registry: Registry) -> None:
        registry.retire([1])
        for run, how in ended.items():
            registry.add_run(run, "{}")
            registry.fix_members(run, 1)
            registry.set_state(run, how)
        for run in ("another's", "open"):
            registry.add_run(run, "{}")
        registry.set_state("another's", "complete")
        registry.fix_members("open", 1)
        registry.back(1)

    async with coordinator(tmp_path) as running, crowd(running.listen, 2) as (peer, other):
        await asyncio.to_thread(history, Registry(running._database))
        await other.hello()
        await peer.hello()
        heard = [await peer.next("ended") for _ in range(min(most, len(ended)))]
        running.sessions.open("last", "{}", np.arange(2))
        running.sessions.close("last", "complete")
        assert (await peer.next("ended")).run == "last"
        assert (await other.next("ended")).run == "last"
        found = {each.run: each.how for each in heard}
    assert found == dict(list(ended.items())[-most:])


class Away:
    """A database that is away at its n-th write of a kind, once."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, owner: type, name: str, at: int, *, after: bool) -> None:
        original, calls = getattr(owner, name), []

        def failing(*arguments: object, **named: object) -> object:
            calls.append(name)
            if len(calls) == at and not after:
                raise LedgerUnavailable("Cannot use the ledger: connection lost. Try again.")
            result = original(*arguments, **named)
            if len(calls) == at:
                raise LedgerUnavailable("Cannot use the ledger: connection lost. Try again.")
            return result

        monkeypatch.setattr(owner, name, failing)


@pytest.mark.parametrize("after", by_default([False, True], [True]))
@pytest.mark.parametrize(("name", "at"), [("spend", 3), ("commit", 4), ("finish", 1), ("begin", 1)])
async def test_a_run_pauses_while_the_database_is_away_and_goes_on_with_the_same_bits(
    name: str, at: int, after: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Away(monkeypatch, Ledger, name, at, after=after)
    async with coordinator(tmp_path) as running, contextlib.AsyncExitStack() as stack:
        honest = await everybody(running, stack)
        await running.scheduler.submit(specification(NAME).as_text())
        model = await complete(running)
    monkeypatch.undo()
    np.testing.assert_array_equal(model, inline_model(specification(NAME), tmp_path))
    assert len({(user, digest) for user, _, _, digest in honest.asked}) == USERS - 2  # 18 of 20 are in a cohort


async def nobody_waits(running: Coordinator) -> None:
    """For the rest of a round that all have answered, nor for the next one to open."""
    while True:
        session, now = running.sessions.runs.get("trial"), asyncio.get_running_loop().time()
        if session is not None and (session.due > now if session.open is None else not session.open.left):
            put_clock_forward(5.0)
        await asyncio.sleep(0.005)


@pytest.mark.parametrize("cancelled", by_default([False, True], [True]))
async def test_a_run_that_is_stopped_before_a_round_opens_has_not_spent_it(
    cancelled: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    until_due, waits = Sessions._until_due, asyncio.Event()

    async def waiting(self: Sessions, session: Any, seconds: float) -> float:
        if session.last_asked == 1:
            waits.set()
            await asyncio.Event().wait()
        return await until_due(self, session, seconds)

    monkeypatch.setattr(Sessions, "_until_due", waiting)
    text = specification(NAME, early_ends=False, seconds=60.0).as_text()
    async with coordinator(tmp_path) as running, contextlib.AsyncExitStack() as stack:
        await everybody(running, stack)
        stack.callback(asyncio.create_task(nobody_waits(running)).cancel)
        await running.scheduler.submit(text)
        await waits.wait()
        ledger = Ledger.within(running._database, "trial")
        assert (ledger.spent()["rounds"], len(ledger.events())) == (3, 2)  # before anybody is asked
        if cancelled:
            await running.scheduler.cancel("trial")
    with Database(f"sqlite:///{tmp_path}/coordinator.sqlite") as database:
        ledger = Ledger.within(database, "trial")
        assert (ledger.spent()["rounds"], len(ledger.events())) == (2, 2)
    monkeypatch.undo()
    if not cancelled:
        async with coordinator(tmp_path) as running, contextlib.AsyncExitStack() as stack:
            await everybody(running, stack)
            stack.callback(asyncio.create_task(nobody_waits(running)).cancel)
            np.testing.assert_array_equal(await complete(running), inline_model(specification(NAME), tmp_path))


async def test_a_coordinator_whose_database_is_taken_over_ends_and_leaves_the_run_to_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = "Another process has owned the database."

    def refused(*arguments: object, **named: object) -> None:
        raise LedgerError(taken)

    async with coordinator(tmp_path) as running, contextlib.AsyncExitStack() as stack:
        await everybody(running, stack)
        for owner, name in ((Ledger, "commit"), (RunStore, "end")):
            monkeypatch.setattr(owner, name, refused)
        await running.scheduler.submit(specification(NAME).as_text())
        with pytest.raises(LedgerError, match=taken):
            await running.scheduler.lost
    monkeypatch.undo()
    await taken_to_the_end(tmp_path)


@pytest.mark.programs
async def test_a_run_on_postgresql_goes_on_after_itsdatabases_are_killed(
    postgres_server: PostgresServer, postgres: str, tmp_path: Path
) -> None:
    """Every connection is killed after every round; the run gives the bits of one without."""
    name = urlsplit(postgres).path[1:]
    kill = f"SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = '{name}'"
    async with coordinator(tmp_path, database=postgres) as running, contextlib.AsyncExitStack() as stack:
        await everybody(running, stack)
        await running.scheduler.submit(specification(NAME).as_text())
        async for event in (await running.scheduler.feed("trial")).watch():
            if event["kind"] == "round":
                await asyncio.to_thread(postgres_server.sql, kill)
        model = await complete(running)
    np.testing.assert_array_equal(model, inline_model(specification(NAME), tmp_path))


def test_whoever_asks_over_the_network_hears_nothing_of_where_the_database_is_or_what_it_holds(
    tmp_path: Path, our_logs: pytest.LogCaptureFixture
) -> None:
    token = tokens.add(tmp_path / "tokens.json", name="ada", role="operator")

    async def scene() -> list[tuple[grpc.StatusCode, str]]:
        async with coordinator(tmp_path) as running, grpc.aio.insecure_channel(running.control) as channel:
            with running.scheduler._store.database.writing() as connection:
                connection.execute("ALTER TABLE runs RENAME TO elsewhere")
                connection.execute("ALTER TABLE users RENAME TO people")
            found = []
            for call in (called(channel, token, "runs"), enrolled(running.listen, 1)):
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await call
                found.append((caught.value.code(), caught.value.details()))
            return found

    (operator, result), (client, said) = carried_out(scene())
    assert (operator, client) == (grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.UNAVAILABLE)
    for words in (result, said):
        assert not any(inside in words for inside in ("sqlite", "runs", "users", str(tmp_path)))
    assert "coordinator.sqlite" in our_logs.text
    assert "no such table: runs" in our_logs.text


def test_a_full_disk_is_told_as_a_pause_until_a_write_succeeds_though_the_store_can_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By `runs`, `watch`, /healthz, health and metrics; the run then goes on by itself, to the same bits."""
    monkeypatch.setattr(program, "POLL", 0.01)
    full = "The disk of the coordinator's ledger is full. Nothing is lost, and it goes on by itself once it can be"

    def no_room(*_: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    async def told(running: Coordinator) -> tuple[str, str]:
        request = "GET /healthz HTTP/1.1\r\n\r\n"
        return await fetched(running.metrics_address, request), await running.metrics.text()

    async def scene() -> np.ndarray:
        async with coordinator(tmp_path, metrics="0") as running, contextlib.AsyncExitStack() as stack:
            await running.scheduler.submit(specification(NAME).as_text())
            with monkeypatch.context() as disk:
                disk.setattr(Database, "_counted", no_room)
                joining = asyncio.create_task(everybody(running, stack))  # an enrolment is the write that fails
                await until(lambda: running.scheduler.records.away)
                assert [(each["state"], each["error"]) for each in await running.scheduler.runs()] == [
                    ("paused", f"{full} written.")
                ]
                awaited = await running.scheduler.awaited("trial")
                assert control.words(awaited) == f"paused: {full} written."
                health, metrics = await told(running)
                assert health.startswith("HTTP/1.1 503")
                assert "\nquoron_database_up 0.0\n" in metrics
                assert '\nquoron_runs{state="paused"} 1.0\n' in metrics
                for where in (running.listen, running.control):
                    await becomes("NOT_SERVING", where)
            for where in (running.listen, running.control):
                await becomes("SERVING", where)
            health, metrics = await told(running)
            assert health.startswith("HTTP/1.1 200")
            assert "\nquoron_database_up 1.0\n" in metrics
            await joining
            return await complete(running)

    np.testing.assert_array_equal(carried_out(scene()), inline_model(specification(NAME), tmp_path))


async def becomes(status: str, where: str) -> None:
    found = None
    while found != status:
        with contextlib.suppress(RunError):
            await asyncio.to_thread(admin.health, where, insecure=True)
            found = "SERVING"
            continue
        found = "NOT_SERVING"


def test_a_run_that_nobody_carries_out_is_cancelled_in_its_store_unless_a_process_has_it_open(
    database_url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(databases, "OWNED", "50ms")  # for a process that owns the store
    monkeypatch.setattr(store, "SETTINGS", ("busy_timeout=50", *store.SETTINGS))
    wanted, own = specification("one-pass-dp-sgd"), reaching(database=database_url)
    with Database(database_url) as database:
        run_store = RunStore(database)
        for user in range(wanted.problem.users):
            run_store.registry.enrol(f"supernode:{user}")
        run_store.registry.add_run("trial", wanted.as_text(), "flower")
        run_store.begin(wanted, make_plan(wanted))
        assert invoke([*own, "cancel", "trial"]) == 1
        assert "`quoron login HOST:PORT`" in capsys.readouterr().err
        assert run_store.registry.run("trial").state == "running"
    for _ in range(2):
        assert invoke([*own, "cancel", "trial"]) == 0
        assert capsys.readouterr().out == "trial: cancelled\n"
    assert invoke([*own, "cancel", "unknown"]) == 2
    assert "got 'unknown'" in capsys.readouterr().err
    with Database(database_url) as database:
        assert Ledger.unreleased(database) == set()
        assert [row["kind"] for row in PopulationLedger(database).rows()] == ["charge", "cancel", "end"]


def test_cancelling_in_a_store_that_is_not_there_makes_none(tmp_path: Path) -> None:
    assert invoke([*reaching(database=f"sqlite:///{tmp_path}/none.sqlite"), "cancel", "trial"]) == 1
    assert not list(tmp_path.iterdir())
