"""Runs that tell who answers: counted exactly at any size, with names, and begun once enough clients are willing."""

import asyncio
import contextlib
import json
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from federation.conversation import GRADIENT, asked, converse, terms, values
from federation.crowd import (
    Honest,
    complete,
    coordinator,
    crowd,
    everybody,
    put_clock_forward,
    specification,
)
from quoron.federation.control import words
from quoron_client.federation import ClientState, Terms, session, work
from quoron_client.federation.config import PUBLIC_PARTICIPATION
from quoron_client.protocol.questions import Status
from quoron_client.protocol.wire import answer_to_wire
from quoron_privacy.errors import ConfigError, WireError
from quoron_protos.v1 import federation_pb2 as federation
from quoron_server.service.active_run import ActiveRun, RunStopped
from quoron_server.service.sessions import Sessions
from quoron_server.specification import (
    RunSpecification,
)
from quoron_server.storage.database import Database
from quoron_server.storage.lifetime_ledger import PopulationLedger
from quoron_server.storage.registry import Registry

NAME, ROUNDS = "recentred-sgd", 2
SECONDS = 4.0  # by a clock that a test puts forward


def wanted(users: int, **changes: object) -> RunSpecification:
    """Everybody is asked in both rounds."""
    problem = replace(specification("one-pass-dp-sgd").problem, users=users)
    min_cohort = {"min_cohort": 0.5, "min_cohort_epsilon": 2.0, "participation": "public"}
    options = {"rounds": ROUNDS, "rate": 1.0}
    return specification(NAME, **({"problem": problem, "options": options} | min_cohort | changes))


async def events_of(running: Any) -> list[dict[str, Any]]:
    return [event async for event in (await running.scheduler.feed("trial")).watch()]


def charged(folder: Path) -> list[str]:
    with Database(f"sqlite:///{folder}/coordinator.sqlite") as database:
        return [charge.run for charge in PopulationLedger(database).charges("everyone")]


@pytest.mark.slow
@pytest.mark.parametrize(("users", "stopped"), [(3, 2), (20, 11), (200, 101)])
async def test_a_run_without_its_min_cohort_ends_in_its_first_round_and_names_who_is_missing(
    users: int, stopped: int, tmp_path: Path
) -> None:
    """Below some 500 users a private count is refused: exact ones decide at any size, for nothing."""
    silent = range(users - stopped, users)
    shown: list[str] = []
    async with coordinator(tmp_path) as running, contextlib.AsyncExitStack() as stack:
        await running.scheduler.submit(wanted(users, early_ends=False, seconds=SECONDS).as_text())
        honest = await everybody(running, stack, users, silent=silent)
        while len(honest.asked) < users:
            await asyncio.sleep(0.001)
        while (session := running.sessions.runs.get("trial")) is not None:
            if session.open is not None and session.open.left == stopped:
                if (awaited := await running.scheduler.awaited("trial")) is not None:
                    shown.append(words(awaited))
                put_clock_forward(SECONDS)
            await asyncio.sleep(0.01)
        events = await events_of(running)
    assert [event["kind"] for event in events] == ["round", "ended"], "in its first round"
    assert events[0]["public"]["min_cohort"] == "not met"
    assert events[0]["public"]["answered"] == users - stopped
    assert events[0]["public"]["missing"] == [f"client-{user}" for user in silent]
    assert events[1]["how"] == "below-min-cohort"
    assert f"{users - stopped} messages came; missing: client-{silent[0]}, " in events[1]["error"]
    assert f"missing: client-{silent[0]}" in words(events[0])
    assert "answered" not in words(events[0])
    assert (" and others" in words(events[0])) == (stopped > 20)
    assert f"{users} users asked, {users - stopped} messages came, minimum cohort " in shown[0]
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
        await running.scheduler.submit(wanted(users, min_cohort=0.99).as_text())
        honest = Broken.of(users)
        for peer in await stack.enter_async_context(crowd(running.listen, users)):
            stack.callback(asyncio.create_task(peer.work(honest)).cancel)
        _, events = await complete(running), await events_of(running)
    told = {"min_cohort": "met", "answered": users, "absent": []}
    assert [{key: event["public"][key] for key in told} for event in events[:-1]] == [told] * ROUNDS


@pytest.mark.parametrize("participation", ["private", "public"])
async def test_without_enough_willing_clients_nobody_is_asked_and_nothing_is_charged(
    participation: str, tmp_path: Path
) -> None:
    users, there = 20, 9
    changes: dict[str, object] = {"waiting": 60.0, "participation": participation}
    if participation == "private":
        changes |= {"problem": replace(wanted(80).problem, users=80), "options": {"rounds": 2}}
        users = 80
    specified = (
        wanted(users, **changes)
        if participation == "public"
        else specification("one-pass-dp-sgd", min_cohort=0.5, min_cohort_epsilon=2.0, **changes)
    )
    async with coordinator(tmp_path) as running, contextlib.AsyncExitStack() as stack:
        await running.scheduler.submit(specified.as_text())
        honest = Honest.of(users)
        peers = await stack.enter_async_context(crowd(running.listen, users))
        for peer in peers[:there]:
            stack.callback(asyncio.create_task(peer.work(honest)).cancel)
        while (told := await running.scheduler.awaited("trial")) is None or told.get("willing") != there:
            await asyncio.sleep(0.001)
        assert (told["what"], told["needed"], told["members"]) == ("willing", users // 2, users)
        assert f"{there} of {users} members have agreed, {users // 2} are needed" in words(told)
        (listed,) = await running.scheduler.runs()
        assert (listed["connected"], listed["members"]) == (users, users)
        put_clock_forward(60.0)
        events = await events_of(running)
        assert honest.asked == []
        (event,) = events
    assert event["how"] == "below-min-cohort"
    assert f"No minimum cohort of willing clients: {there} of {users}" in event["error"]
    assert ("Missing: client-9, " in event["error"]) == (participation == "public"), "names are public or nobody's"
    assert charged(tmp_path) == []
    with Database(f"sqlite:///{tmp_path}/coordinator.sqlite") as database:
        assert Registry(database).run("trial").state == "below-min-cohort"


@pytest.mark.parametrize(("asked", "how"), [(False, "unasked"), (True, "cancelled")])
async def test_whoever_heard_of_a_run_hears_whether_anybody_was_asked(tmp_path: Path, asked: bool, how: str) -> None:
    """By that a client's record knows whether the run is charged."""
    async with coordinator(tmp_path) as running, crowd(running.listen, 3) as peers:
        await running.scheduler.submit(wanted(3, waiting=86400.0, seconds=86400.0).as_text())
        for peer in peers:
            await peer.next("run")
            if asked:
                await peer.send(consent=federation.Consent(run="trial", takes_part=True))
        if asked:
            await peers[0].next("question")
        await running.scheduler.cancel("trial")
        assert (await peers[0].next("ended")).how == how


async def test_when_each_client_agrees_shows_only_at_the_looks_at_all() -> None:
    """How long a client with private participation reads its file is a function of the file."""
    session = Sessions().open("trial", "{}", np.arange(3))
    run: Any = ActiveRun(wanted(3, min_cohort=1.0, seconds=3600.0, early_ends=False), None, None, None)
    waiting = asyncio.create_task(run.gather(session, asyncio.get_running_loop().time()))
    await asyncio.sleep(0)
    session.present |= {0, 2}
    assert run.willing == 0
    run.stop()
    with pytest.raises(RunStopped):
        await waiting


LASTING = 60.0
PUBLIC = {"participation": "public", "seconds": LASTING}
OWNER = {"accept_trust_models": ("central-broadcast", PUBLIC_PARTICIPATION), "one_user": True}


def missing(data, monkeypatch):
    """The file is gone when the client comes up."""
    data.unlink()


def of_another_kind(data, monkeypatch):
    pd.DataFrame({"something": [1, 2]}).to_csv(data, index=False)


def unusable(data, monkeypatch):
    table = pd.read_csv(data)
    table["age"] = np.nan
    table.to_csv(data, index=False)


def failing(data, monkeypatch):
    def fails(*_args, **_settings):
        raise FloatingPointError("of its data")

    monkeypatch.setattr(work, "answer", fails)


def infinite(data, monkeypatch):
    real = work.answer

    def far(*args, **settings):
        found = real(*args, **settings)
        found.values[:] = np.inf
        return found

    monkeypatch.setattr(work, "answer", far)


def fine(data, monkeypatch):
    pass


FAULTS = (missing, of_another_kind, unusable, failing, infinite)


async def sent_at_its_time(fake, question=None, ready=None):
    """The answer, which comes when half a round is over, and not before, though it may be `ready`."""
    await fake.to_say.put(said(asked() if question is None else question))
    while ready is not None and not ready.is_set():
        await asyncio.sleep(0.001)
    for passed in (0.0, 0.4 * LASTING):
        put_clock_forward(passed)
        for _ in range(20):
            await asyncio.sleep(0.001)
        assert fake.heard.empty(), "before its time"
    put_clock_forward(0.2 * LASTING)
    return await fake.hears("answer")


def said(question):
    return federation.ServerMessage(question=question)


def readiness(monkeypatch):
    """Set once an answer was computed."""
    ready, real = threading.Event(), work.Worker.reply

    def noticed(self, message, **settings):
        found = real(self, message, **settings)
        ready.set()
        return found

    monkeypatch.setattr(work.Worker, "reply", noticed)
    return ready


def answered(data, monkeypatch, fault):
    fault(data, monkeypatch)

    async def script(fake):
        assert await fake.announce("r", terms(**PUBLIC)), "it agrees by the terms alone"
        return await sent_at_its_time(fake, ready=readiness(monkeypatch))

    return converse(data, script, **OWNER)


@pytest.mark.parametrize("fault", [*FAULTS, fine])
def test_whatever_is_wrong_with_its_items_it_answers_at_its_time_with_zeros_of_the_length_of_an_answer(
    data, monkeypatch, fault
):
    sent = answered(data, monkeypatch, fault)
    found, status = values(sent)
    assert status == Status.ANSWERED
    assert found.any() == (fault is fine)
    assert sent.ByteSize() == asked_answer_size(data)


def asked_answer_size(data):
    """Of any answer to the question: name, digest, status and numbers are as long for all."""
    question = asked()
    return answer_to_wire("r", 0, question.digest, np.ones(GRADIENT.answer_shape(3)), Status.ANSWERED).ByteSize()


def test_one_that_is_not_ready_sends_zeros_and_never_what_is_ready_later(data, monkeypatch):
    going_on, real = threading.Event(), work.Worker._answers

    def slow(self, *arguments):
        going_on.wait()
        return real(self, *arguments)

    monkeypatch.setattr(work.Worker, "_answers", slow)

    async def script(fake):
        assert await fake.announce("r", terms(**PUBLIC))
        first = await sent_at_its_time(fake)
        later = await sent_at_its_time(fake, asked(number=1))
        going_on.set()
        again = await sent_at_its_time(fake)  # the same question, as a coordinator that was started again asks it
        return first, later, again

    first, later, again = converse(data, script, **OWNER)
    for sent in (first, later):
        found, status = values(sent)
        assert status == Status.ANSWERED
        assert not found.any()
    assert again.status != 0 or again == first, "nothing but the zeros that were kept"


def test_a_question_that_is_said_before_the_consent_has_no_answer_that_leaves_when_it_is_ready(data, monkeypatch):
    """Announced in another spelling, and asked in the same breath: it would have been answered once it was computed."""
    ready, told, real = readiness(monkeypatch), threading.Event(), work.Worker.consider
    announced = json.dumps(json.loads(terms(**PUBLIC)), separators=(",", ":"))

    def slow(self, *given):
        told.wait(5)  # seconds, where the answer would come only after the consent
        return real(self, *given)

    monkeypatch.setattr(work.Worker, "consider", slow)

    async def script(fake):
        announcement = federation.Announcement(run="r", description=announced)
        await fake.to_say.put(federation.ServerMessage(run=announcement))
        await fake.to_say.put(said(asked()))
        first = await fake.hears("answer"), ready.is_set()
        told.set()
        assert (await fake.hears("consent")).takes_part
        return first, await sent_at_its_time(fake, ready=ready)

    (answer, computed), later = converse(data, script, **OWNER)
    assert (answer.status, computed) == (federation.STATUS_MISSING, False), "of no items: nothing was computed"
    assert values(later)[1] == Status.ANSWERED, "asked again, after the consent"


def test_of_a_run_that_was_forgotten_nothing_tells_whether_an_answer_was_kept(data, monkeypatch):
    """Parts are evicted by other runs, and gone after a restart; its record knows what kind of run it was."""
    ready = readiness(monkeypatch)

    async def script(fake):
        assert await fake.announce("r", terms(**PUBLIC))
        kept = await sent_at_its_time(fake, ready=ready)
        workers[0].parts.clear()
        return kept, await fake.ask(asked())

    workers, real = [], work.Worker.consider
    monkeypatch.setattr(work.Worker, "consider", lambda self, *given: workers.append(self) or real(self, *given))
    kept, again = converse(data, script, **OWNER)
    assert values(kept)[1] == Status.ANSWERED
    assert again.status == federation.STATUS_MISSING


def test_no_client_takes_part_unless_its_owner_says_so(data):
    async def script(fake):
        return await fake.announce("r", terms(**PUBLIC))

    assert not converse(data, script)
    with ClientState(data.parent / "record.sqlite", epsilon=2.0, delta=1e-5) as record:
        assert record.spent == (0.0, 0.0)


def test_one_that_would_look_at_its_file_before_it_comes_up_is_refused(data):
    async def script(fake):
        raise AssertionError("it came up")

    with pytest.raises(ConfigError, match="--one-user"):
        converse(data, script, **(OWNER | {"one_user": False}))


@pytest.mark.parametrize("changes", [{"seconds": None}, {"adjacency": "zero-out"}, {"trust_model": "local"}])
def test_terms_that_cannot_be_kept_are_no_terms(changes):
    with pytest.raises(WireError, match="public participation"):
        Terms.read("r", terms(**(PUBLIC | changes)))


def test_the_audit_of_times_catches_a_client_that_answers_as_soon_as_it_is_done(data, monkeypatch):
    """It is heard though its clock stands still at the time when it was asked."""
    monkeypatch.setattr(session, "SENDS", 0.0)

    async def script(fake):
        assert await fake.announce("r", terms(**PUBLIC))
        return await fake.ask(asked())

    assert converse(data, script, **OWNER).status == federation.STATUS_ANSWERED
