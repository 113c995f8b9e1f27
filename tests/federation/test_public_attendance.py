"""Runs that tell who answers: counted exactly at any size, with names, and begun once enough clients are willing."""

import asyncio
import contextlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from federation.crowd import (
    Honest,
    complete,
    coordinator,
    crowd,
    everybody,
    put_clock_forward,
    specification,
)
from quoron.operate.watching import words
from quoron_protos.v1 import federation_pb2 as federation
from quoron_server.books.database import Database
from quoron_server.books.lifetime_ledger import PopulationLedger
from quoron_server.books.registry import Registry
from quoron_server.service.attending import Gathering
from quoron_server.service.engine import RunStopped
from quoron_server.service.sessions import Sessions
from quoron_server.specification import (
    RunSpecification,
)

NAME, ROUNDS = "recentred-sgd", 2
SECONDS = 4.0  # by a clock that a test puts forward


def wanted(users: int, **changes: object) -> RunSpecification:
    """Everybody is asked in both rounds."""
    problem = replace(specification("one-pass-dp-sgd").problem, users=users)
    quorum = {"quorum": 0.5, "quorum_epsilon": 2.0, "attendance": "public"}
    options = {"rounds": ROUNDS, "rate": 1.0}
    return specification(NAME, **({"problem": problem, "options": options} | quorum | changes))


async def events_of(running: Any) -> list[dict[str, Any]]:
    return [event async for event in (await running.manager.feed("trial")).watch()]


def charged(folder: Path) -> list[str]:
    with Database(f"sqlite:///{folder}/coordinator.sqlite") as database:
        return [charge.run for charge in PopulationLedger(database).charges("everyone")]


@pytest.mark.parametrize(("users", "stopped"), [(3, 2), (20, 11), (200, 101)])
async def test_a_run_without_its_quorum_ends_in_its_first_round_and_names_who_is_missing(
    users: int, stopped: int, tmp_path: Path
) -> None:
    """Below some 500 users a private count is refused: exact ones decide at any size, for nothing."""
    silent = range(users - stopped, users)
    shown: list[str] = []
    async with coordinator(tmp_path) as running, contextlib.AsyncExitStack() as stack:
        await running.manager.submit(wanted(users, early_ends=False, seconds=SECONDS).as_text())
        honest = await everybody(running, stack, users, silent=silent)
        while len(honest.asked) < users:
            await asyncio.sleep(0.001)
        while (session := running.sessions.runs.get("trial")) is not None:
            if session.open is None or session.open.left == stopped:
                if session.open is not None and (awaited := await running.manager.awaited("trial")) is not None:
                    shown.append(words(awaited))
                put_clock_forward(SECONDS)
            await asyncio.sleep(0.01)
        events = await events_of(running)
    assert [event["kind"] for event in events] == ["round", "ended"], "in its first round"
    assert events[0]["public"]["quorum"] == "not met"
    assert events[0]["public"]["answered"] == users - stopped
    assert events[0]["public"]["missing"] == [f"client-{user}" for user in silent]
    assert events[1]["how"] == "without-quorum"
    assert f"{users - stopped} messages came; missing: client-{silent[0]}, " in events[1]["error"]
    assert f"missing: client-{silent[0]}" in words(events[0])
    assert "answered" not in words(events[0])
    assert (" and others" in words(events[0])) == (stopped > 20)
    assert f"{users} users asked, {users - stopped} messages came, quorum " in shown[0]
    assert charged(tmp_path) == ["trial"]


async def test_whoever_answers_is_counted_whatever_the_answer_holds(tmp_path: Path) -> None:
    """Answers that cannot be used are zero rows: counted, never told from others, with the bits of one process."""
    users = 3

    class Broken(Honest):
        def __call__(self, user: int, message: Any) -> Any:
            answer = super().__call__(user, message)
            if user == 1:
                answer.values.data = np.full(len(answer.values.data) // 8, np.nan).tobytes()
            return answer

    async with coordinator(tmp_path) as running, contextlib.AsyncExitStack() as stack:
        await running.manager.submit(wanted(users, quorum=0.99).as_text())
        honest = Broken.of(users)
        for peer in await stack.enter_async_context(crowd(running.listen, users)):
            stack.callback(asyncio.create_task(peer.work(honest)).cancel)
        _, events = await complete(running), await events_of(running)
    told = {"quorum": "met", "answered": users, "absent": []}
    assert [{key: event["public"][key] for key in told} for event in events[:-1]] == [told] * ROUNDS


@pytest.mark.parametrize("attendance", ["private", "public"])
async def test_without_enough_willing_clients_nobody_is_asked_and_nothing_is_charged(
    attendance: str, tmp_path: Path
) -> None:
    users, there = 20, 9
    changes: dict[str, object] = {"waiting": 60.0, "attendance": attendance}
    if attendance == "private":
        changes |= {"problem": replace(wanted(80).problem, users=80), "options": {"rounds": 2}}
        users = 80
    specified = (
        wanted(users, **changes)
        if attendance == "public"
        else specification("one-pass-dp-sgd", quorum=0.5, quorum_epsilon=2.0, **changes)
    )
    async with coordinator(tmp_path) as running, contextlib.AsyncExitStack() as stack:
        await running.manager.submit(specified.as_text())
        honest = Honest.of(users)
        peers = await stack.enter_async_context(crowd(running.listen, users))
        for peer in peers[:there]:
            stack.callback(asyncio.create_task(peer.work(honest)).cancel)
        while (told := await running.manager.awaited("trial")) is None or told.get("willing") != there:
            await asyncio.sleep(0.001)
        assert (told["what"], told["needed"], told["members"]) == ("willing", users // 2, users)
        assert f"{there} of {users} members have agreed, {users // 2} are needed" in words(told)
        (listed,) = await running.manager.runs()
        assert (listed["connected"], listed["members"]) == (users, users)
        put_clock_forward(60.0)
        events = await events_of(running)
        assert honest.asked == []
        (event,) = events
    assert event["how"] == "without-quorum"
    assert f"No quorum of willing clients: {there} of {users}" in event["error"]
    assert ("Missing: client-9, " in event["error"]) == (attendance == "public"), "names are public or nobody's"
    assert charged(tmp_path) == []
    with Database(f"sqlite:///{tmp_path}/coordinator.sqlite") as database:
        assert Registry(database).run("trial").state == "without-quorum"


@pytest.mark.parametrize(("asked", "how"), [(False, "unasked"), (True, "cancelled")])
async def test_whoever_heard_of_a_run_hears_whether_anybody_was_asked(tmp_path: Path, asked: bool, how: str) -> None:
    """By that a client's record knows whether the run is charged."""
    async with coordinator(tmp_path) as running, crowd(running.listen, 3) as peers:
        await running.manager.submit(wanted(3, waiting=86400.0, seconds=86400.0).as_text())
        for peer in peers:
            await peer.next("run")
            if asked:
                await peer.send(consent=federation.Consent(run="trial", takes_part=True))
        if asked:
            await peers[0].next("question")
        await running.manager.cancel("trial")
        assert (await peers[0].next("ended")).how == how


async def test_when_each_client_agrees_shows_only_at_the_looks_at_all() -> None:
    """How long a client with private attendance reads its file is a function of the file."""
    session = Sessions().open("trial", "{}", np.arange(3))
    gathering = Gathering(wanted(3, quorum=1.0, seconds=3600.0, early_ends=False), session)
    waiting = asyncio.create_task(gathering.wait(asyncio.get_running_loop().time()))
    await asyncio.sleep(0)
    session.present |= {0, 2}
    assert gathering.figures()["willing"] == 0
    gathering.stop()
    with pytest.raises(RunStopped):
        await waiting
