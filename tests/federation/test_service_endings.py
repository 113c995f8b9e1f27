"""How runs end, and how they do not: secrets of failed runs, other versions, lost acknowledgements, cancellations."""

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from federation.crowd import Honest, carried_out, complete, coordinator, crowd, inline_model, specification
from quoron_privacy.errors import ConfigError, LedgerError, RunError
from quoron_privacy.noise.sources import SeededNoise
from quoron_server import rounds, serial
from quoron_server import runs as books
from quoron_server.books import ledger as ledgers
from quoron_server.books.database import Database
from quoron_server.books.ledger import Ledger
from quoron_server.books.registry import Registry
from quoron_server.service import Coordinator, records
from quoron_server.service import manager as managers
from quoron_server.wording import plan_json

NAME, USERS = "one-pass-dp-sgd", 20
TEXT = specification(NAME).as_text()


async def begun(folder: Path) -> None:
    """A coordinator comes, begins the run, asks its first question and leaves."""
    async with coordinator(folder) as running, crowd(running.listen, USERS):
        await running.manager.submit(TEXT)
        while not await asyncio.to_thread(spent, running):
            await asyncio.sleep(0.01)


def spent(running: Coordinator) -> bool:
    database = running._database
    return Ledger.begun(database, "trial") and bool(Ledger.within(database, "trial").spent()["rounds"])


async def seen(running: Coordinator) -> list[dict[str, object]]:
    """Every event of the run, as long as somebody may watch."""
    return [event async for event in (await running.manager.feed("trial")).watch()]


async def state_and_reason(running: Coordinator) -> tuple[str, str | None]:
    """State and reason, as `quoron runs` shows them."""
    (row,) = await running.manager.records.runs()
    assert await running.manager.records.status("trial") == row
    return row["state"], row["error"]


async def state(running: Coordinator) -> str:
    return (await running.manager.records.status("trial"))["state"]


def has_secrets(folder: Path) -> bool:
    with Database(f"sqlite:///{folder}/coordinator.sqlite") as database:
        try:
            return bool(Ledger.within(database, "trial").noise_key)
        except LedgerError:
            return False


async def taken_to_the_end(folder: Path) -> np.ndarray:
    async with coordinator(folder) as running, crowd(running.listen, USERS) as peers, asyncio.TaskGroup() as group:
        working = [group.create_task(peer.work(Honest.of(USERS))) for peer in peers]
        model = await complete(running)
        for task in working:
            task.cancel()
        return model


def failing(*arguments: object, **named: object) -> None:
    raise RunError("Expected another answer.")


def test_a_failed_run_keeps_no_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> list[dict[str, object]]:
        await begun(tmp_path)
        assert has_secrets(tmp_path)
        monkeypatch.setattr(rounds, "run", failing)
        async with coordinator(tmp_path) as running:
            return await seen(running)

    assert carried_out(scene())[-1]["how"] == "failed"
    assert not has_secrets(tmp_path)


@pytest.mark.parametrize("how", ["another plan", "no plan", "no specification", "no simulation"])
@pytest.mark.parametrize("cancelled", [False, True])
def test_a_run_of_another_version_is_left_as_it_is_until_that_version_comes_or_it_is_cancelled(
    how: str, cancelled: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*arguments: object) -> None:
        raise ConfigError("Expected another version.")

    async def scene() -> np.ndarray | None:
        await begun(tmp_path)
        with monkeypatch.context() as patch:
            if how == "another plan":
                patch.setattr(books, "plan_json", lambda plan: plan_json(plan) | {"novelty": 1})
            elif how == "no plan":
                patch.setattr(records, "make_plan", refused)
            elif how == "no specification":
                patch.setattr(managers.RunSpecification, "parse", refused)
            async with coordinator(tmp_path, allow_simulation=how != "no simulation") as running:
                events = await seen(running)
                assert [event["kind"] for event in events] == ["paused"]
                assert events[0]["error"]
                assert await state_and_reason(running) == ("paused", events[0]["error"])
                if cancelled:
                    assert (await running.manager.cancel("trial"))["state"] == "cancelled"
                    assert (await seen(running))[-1] == {"kind": "ended", "how": "cancelled", "error": None}
                    assert await state_and_reason(running) == ("cancelled", None)
        assert has_secrets(tmp_path) != cancelled
        return None if cancelled else await taken_to_the_end(tmp_path)

    model = carried_out(scene())
    if not cancelled:
        np.testing.assert_array_equal(model, inline_model(specification(NAME), tmp_path))


def another_question(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ledgers, "digest", lambda question: "another")


def another_noise(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SeededNoise, "export_key", lambda noise: b"another")


def another_kind_of_noise(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Ledger, "noise_key", b"k" * 32)  # of a run that is no simulation


def another_state(patch: pytest.MonkeyPatch) -> None:
    original = serial.decode

    def decode(like: Any, data: bytes) -> Any:
        another = type("Another", (type(like),), {})
        return original(another(*(getattr(like, item.name) for item in fields(like))), data)

    patch.setattr(serial, "decode", decode)


def another_charge(patch: pytest.MonkeyPatch) -> None:
    original = books.charge_of
    patch.setattr(books, "charge_of", lambda *given: original(*given) | {"epsilon": 14.0})


@pytest.mark.parametrize(
    "another", [another_question, another_noise, another_kind_of_noise, another_state, another_charge]
)
def test_whatever_shows_another_version_pauses_the_run_with_its_secrets_and_the_right_one_goes_on(
    another: Callable[[pytest.MonkeyPatch], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene() -> np.ndarray:
        await begun(tmp_path)
        with monkeypatch.context() as patch:
            another(patch)
            async with coordinator(tmp_path) as running:
                events = await seen(running)
                assert [event["kind"] for event in events] == ["paused"]
                assert await state_and_reason(running) == ("paused", events[0]["error"])
        assert has_secrets(tmp_path)
        return await taken_to_the_end(tmp_path)

    np.testing.assert_array_equal(carried_out(scene()), inline_model(specification(NAME), tmp_path))


@pytest.mark.parametrize("then", ["submit", "cancel"])
def test_a_run_whose_entry_was_never_acknowledged_can_be_submitted_again_or_cancelled(
    then: str, tmp_path: Path
) -> None:
    async def scene() -> None:
        async with coordinator(tmp_path) as running, contextlib.AsyncExitStack() as stack:
            await asyncio.to_thread(Registry(running._database).add_run, "trial", TEXT)
            assert [event["kind"] for event in await seen(running)] == ["paused"]  # and not "ended"
            if then == "cancel":
                assert (await running.manager.cancel("trial"))["state"] == "cancelled"
                return
            for peer in await stack.enter_async_context(crowd(running.listen, USERS)):
                stack.callback(asyncio.create_task(peer.work(Honest.of(USERS))).cancel)
            await running.manager.submit(TEXT)
            await complete(running)

    carried_out(scene())


def test_a_run_whose_model_is_released_is_complete_even_if_it_is_cancelled_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene() -> tuple[str, list[dict[str, object]]]:
        await begun(tmp_path)
        with Database(f"sqlite:///{tmp_path}/coordinator.sqlite") as database:
            Ledger.within(database, "trial").finish(np.zeros(3))
        original = managers.Manager._begin

        def cancelled_meanwhile(manager: managers.Manager, run: managers.Running) -> object:
            run.cancelled = True
            return original(manager, run)

        monkeypatch.setattr(managers.Manager, "_begin", cancelled_meanwhile)
        async with coordinator(tmp_path) as running:
            events = await seen(running)
            np.testing.assert_array_equal(await running.manager.records.model("trial"), np.zeros(3))
            return await state(running), events

    how, events = carried_out(scene())
    assert how == "complete"
    assert events[-1] == {"kind": "ended", "how": "complete", "error": None}


@pytest.mark.parametrize("most", [1000, 3])
def test_whoever_comes_back_hears_of_every_run_of_its_own_that_has_ended_up_to_the_latest_thousand(
    most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(managers, "MOST_TOLD", most)
    ended = {f"run-{number}": ("complete", "cancelled", "failed")[number % 3] for number in range(70)}

    def history(registry: Registry) -> None:
        registry.roster.away(1)
        for run, how in ended.items():
            registry.add_run(run, "{}")
            registry.fix_members(run, 1)
            registry.set_state(run, how)
        for run in ("another's", "open"):
            registry.add_run(run, "{}")
        registry.set_state("another's", "complete")
        registry.fix_members("open", 1)
        registry.roster.back(1)

    async def scene() -> dict[str, str]:
        async with coordinator(tmp_path) as running, crowd(running.listen, 2) as (peer, other):
            await asyncio.to_thread(history, Registry(running._database))
            await other.hello()
            await peer.hello()
            heard = [await peer.next("ended") for _ in range(min(most, len(ended)))]
            running.sessions.open("last", "{}", np.arange(2))
            running.sessions.close("last", "complete")
            assert (await peer.next("ended")).run == "last"
            assert (await other.next("ended")).run == "last"
            return {each.run: each.how for each in heard}

    assert carried_out(scene()) == dict(list(ended.items())[-most:])
