"""A run with a quorum in the service: who answers it gets a model, a run that nobody answers ends as what it is."""

import asyncio
import contextlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from federation.crowd import (
    HANGS,
    Honest,
    carried_out,
    coordinator,
    crowd,
    put_clock_forward,
    specification,
)
from quoron.operate.watching import words
from quoron_server.books.database import Database
from quoron_server.books.ledger import Ledger
from quoron_server.books.registry import Registry
from quoron_server.round_clock import PAUSE
from quoron_server.specification import RunSpecification

NAME, USERS, ROUNDS = "one-pass-dp-sgd", 80, 2


def wanted(**changes: object) -> RunSpecification:
    problem = replace(specification(NAME).problem, users=USERS)
    quorum = {"quorum": 0.5, "quorum_epsilon": 2.0}
    return specification(NAME, problem=problem, options={"rounds": ROUNDS}, **(quorum | changes))


async def ending(running: Any) -> list[dict[str, Any]]:
    return [event async for event in (await running.manager.feed("trial")).watch()]


@pytest.mark.parametrize("share", [0.0, 0.1])
def test_a_run_that_nobody_answers_ends_without_a_quorum_on_the_schedule(share: float, tmp_path: Path) -> None:
    """Not as complete, with a model that is noise: the fault that a quorum mends."""
    seconds = HANGS / PAUSE  # so long that no machine takes a rest for a round's own work
    silent = range(round(share * USERS), USERS)

    async def scene() -> list[dict[str, Any]]:
        async with coordinator(tmp_path) as running, contextlib.AsyncExitStack() as stack:
            await running.manager.submit(wanted(early_ends=False, seconds=seconds).as_text())
            honest = Honest.of(USERS, silent)
            for peer in await stack.enter_async_context(crowd(running.listen, USERS)):
                stack.callback(asyncio.create_task(peer.work(honest)).cancel)
            while not honest.asked:
                await asyncio.sleep(0.001)
            session, feed = running.sessions.runs["trial"], await running.manager.feed("trial")
            put_clock_forward(seconds)
            while session.open is not None or not await asyncio.to_thread(running.manager.records.events, "trial"):
                await asyncio.sleep(0.001)
            assert feed._events == [], "decided, and told to nobody"
            while "trial" in running.manager._active:
                put_clock_forward(PAUSE * seconds)
                await asyncio.sleep(0.01)
            assert {number for _, _, number, _ in honest.asked} == {0}, "nobody is asked again"
            assert (await running.manager.records.status("trial"))["state"] == "without-quorum"
            return await ending(running)

    events = carried_out(scene())
    assert [event["kind"] for event in events] == ["round", "ended"]
    assert events[0]["public"] == {"quorum": "not met"}
    assert events[1]["how"] == "without-quorum"
    assert "fewer than a share of 0.5" in events[1]["error"]
    with Database(f"sqlite:///{tmp_path}/coordinator.sqlite") as database:
        assert Ledger.unreleased(database) == set(), "its secrets are erased"
        assert Registry(database).run("trial").state == "without-quorum"

    async def again() -> list[dict[str, Any]]:
        async with coordinator(tmp_path) as running:
            return await ending(running)

    assert carried_out(again())[-1] == events[1]


def test_what_is_awaited_is_the_same_whoever_has_answered(tmp_path: Path) -> None:
    async def seen(silent: range, folder: Path) -> dict[str, Any]:
        folder.mkdir()
        async with coordinator(folder) as running, contextlib.AsyncExitStack() as stack:
            await running.manager.submit(wanted(early_ends=False).as_text())
            honest = Honest.of(USERS, silent)
            peers = await stack.enter_async_context(crowd(running.listen, USERS))
            for peer in peers:
                stack.callback(asyncio.create_task(peer.work(honest)).cancel)
            while len(honest.asked) < USERS // ROUNDS:
                await asyncio.sleep(0.001)
            await asyncio.sleep(0.05)
            awaited = await running.manager.awaited("trial")
            return {key: value for key, value in awaited.items() if key not in ("ends", "left")}

    one = carried_out(seen(range(0), tmp_path / "one"))
    assert one == carried_out(seen(range(USERS), tmp_path / "other"))
    told = {"kind": "awaits", "what": "answers", "round": 0, "rounds": 2, "asked": 40, "quorum": 0.5}
    assert one == told | {"connected": USERS}


def test_a_round_is_told_without_internals() -> None:
    event = {"kind": "round", "round": 2, "rounds": 9, "messages": 20}
    public = {"phase": 3, "radius": 0.25, "absent": [4], "answered": 19, "missing": ["ada"], "quorum": "met"}
    said = "round 3 of at most 9: 20 users asked, 19 messages came, quorum met; missing: ada"
    assert words(event | {"public": public}) == said
    assert words(event | {"public": {"halted": True}}) == "round 3 of at most 9: 20 users asked, halted"
