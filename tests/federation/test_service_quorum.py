"""A run with a quorum in the service: who answers it gets a model, a run that nobody answers ends as what it is."""

import asyncio
import contextlib
import re
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
from federation.test_service_cli import TABLE
from quoron.cli.app import invoke
from quoron.operate.watching import words
from quoron_server.books.database import Database
from quoron_server.books.ledger import Ledger
from quoron_server.books.registry import Registry
from quoron_server.round_clock import PAUSE
from quoron_server.service import tokens
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


def test_watch_says_what_is_awaited_and_what_came_of_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    token = tokens.add(tmp_path / "tokens.json", name="ada", role="operator")
    (tmp_path / "ada.token").write_text(token)

    async def scene() -> int:
        async with coordinator(tmp_path) as running, contextlib.AsyncExitStack() as stack:
            await running.manager.submit(wanted().as_text())
            access = ["--coordinator", running.control, "--insecure", "--token-file", str(tmp_path / "ada.token")]
            watching = asyncio.create_task(asyncio.to_thread(invoke, ["watch", "trial", *access]))
            said = ""
            while "awaits users" not in said:
                said += capsys.readouterr().out
                await asyncio.sleep(0.01)
            assert f"awaits users: 0 of {USERS} are active in group everyone (0 away, 0 retired); quorum 0.5 of" in said
            honest = Honest.of(USERS, range(USERS))
            for peer in await stack.enter_async_context(crowd(running.listen, USERS)):
                stack.callback(asyncio.create_task(peer.work(honest)).cancel)
            while "s left" not in said:
                said += capsys.readouterr().out
                await asyncio.sleep(0.01)
            asked = f"round 1 of at most {ROUNDS}: {USERS // ROUNDS} users asked, quorum 0.5 of those asked, "
            assert re.search(rf"^{asked}\d+ s left; \d+ connected in the last 50 s$", said, re.MULTILINE)
            put_clock_forward(60.0)
            return await watching

    assert carried_out(scene()) == 3
    said = capsys.readouterr()
    assert f"round 1 of at most {ROUNDS}: {USERS // ROUNDS} users asked, quorum not met" in said.out
    assert "without-quorum: Round 1 of at most 2 was without a quorum" in said.out
    assert "has ended without a quorum" in said.err


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


def test_submit_declares_a_quorum_unless_told_otherwise(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text(TABLE)
    nowhere = ["--coordinator", "127.0.0.1:1", "--insecure", "--token-file", str(tmp_path / "token")]
    (tmp_path / "token").write_text("quoron_x")
    asked = ["submit", str(file), "--run", "trial", *nowhere]
    assert invoke([*asked, "--users", "5"]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "users in every round" in said
    assert "--quorum none" in said
    assert invoke([*asked, "--users", "5000"]) == 1  # planned, and nobody there to take it
    assert "Cannot reach" in capsys.readouterr().err
    assert invoke([*asked, "--users", "5", "--quorum", "none"]) == 1
    for wrong in ("1.5", "0", "half"):
        assert invoke([*asked, "--users", "5000", "--quorum", wrong]) == 2
        assert "privacy.quorum" in capsys.readouterr().err


def test_a_round_is_told_without_internals() -> None:
    event = {"kind": "round", "round": 2, "rounds": 9, "messages": 20}
    public = {"phase": 3, "radius": 0.25, "absent": [4], "answered": 19, "missing": ["ada"], "quorum": "met"}
    said = "round 3 of at most 9: 20 users asked, 19 messages came, quorum met; missing: ada"
    assert words(event | {"public": public}) == said
    assert words(event | {"public": {"halted": True}}) == "round 3 of at most 9: 20 users asked, halted"
