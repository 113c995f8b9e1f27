"""When a round ends, and when anything of it is told, does not depend on who answered or who was asked."""

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from grpc import StatusCode

from federation.crowd import (
    HANGS,
    carried_out,
    coordinator,
    everybody,
    put_clock_forward,
    specification,
    until,
)
from quoron_client.protocol import wire
from quoron_client.protocol.gradients import AverageGradient
from quoron_client.protocol.questions import Question, Status
from quoron_privacy.errors import ConfigError
from quoron_protos.v1 import federation_pb2 as pb
from quoron_server.round_clock import PAUSE
from quoron_server.service.sessions import RunSession, Sessions
from quoron_server.specification import make_plan, require_deployable

USERS, ROUNDS, SECONDS = 6, 5, 3.0
WORK = 0.01  # seconds that the coordinator computes after a round


class VirtualLoop(asyncio.SelectorEventLoop):
    """Nothing is waited for: when there is nothing to do, it is the time of what comes next."""

    def __init__(self) -> None:
        super().__init__()
        self.now, select = 0.0, self._selector.select

        def at_once(timeout: float | None = None) -> Any:
            self.now += timeout or 0.0
            return select(0)

        self._selector.select = at_once

    def time(self) -> float:
        return self.now


@dataclass
class Listener:
    """One client's conversation: when it is asked, and what it then does."""

    user: int
    answers_after: Callable[[int], float | None]  # seconds, by round; None: never
    sessions: Sessions
    asked: list[tuple[int, float]] = field(default_factory=list)  # round, time

    def send(self, message: pb.ServerMessage, body: wire.Body | None = None) -> int:
        if message.WhichOneof("kind") == "question":
            loop, asked = asyncio.get_running_loop(), message.question
            self.asked.append((asked.round, loop.time()))
            delay = self.answers_after(asked.round)
            if delay is not None:
                name, number, digest = wire.question_name(asked)
                answer = wire.answer_to_wire(name, number, digest, np.zeros(2), Status.ANSWERED)
                loop.call_later(delay, self.sessions.answer, self.user, answer)
        return 1

    def end(self, why: str, code: StatusCode = StatusCode.ABORTED) -> None:
        raise AssertionError(why)


def played(cohorts: list[list[int]], answers_after: dict[int, Callable[[int], float | None]], *, early_ends: bool):
    """(what each user saw of the clock, when each round was told): a run of some rounds, in virtual time."""

    async def scene() -> tuple[dict[int, list[tuple[int, float]]], list[float]]:
        sessions, loop = Sessions(), asyncio.get_running_loop()
        listeners = [Listener(user, answers_after.get(user, lambda _: 0.1), sessions) for user in range(USERS)]
        session: RunSession = sessions.open("run", "{}", np.arange(USERS))
        for listener in listeners:
            sessions.enter(listener)
            await sessions.consent(listener, pb.Consent(run="run", takes_part=True))
        seen = []
        task = AverageGradient(points=np.zeros((1, 2)), weights=(1.0,))
        for number, cohort in enumerate(cohorts):
            question = Question(number, np.array(cohort, np.int64), task)
            await sessions.ask(session, question, shape=(2,), seconds=SECONDS, early_ends=early_ends)
            await asyncio.sleep(WORK)
            await asyncio.sleep(max(0.0, session.due - loop.time()))  # when the manager tells of it
            seen.append(loop.time())
        return {each.user: each.asked for each in listeners}, seen

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(scene())


BEHAVIOURS: dict[str, Callable[[int], float | None]] = {
    "answers at once": lambda number: 0.0,
    "answers slowly": lambda number: 0.25,
    "never answers": lambda number: None,
    "answers too late": lambda number: 3.5,
    "is there every other round": lambda number: None if number % 2 else 0.0,
}


@pytest.mark.parametrize("behaviour", BEHAVIOURS)
def test_the_clock_is_the_same_whether_a_user_answers_or_not(behaviour: str) -> None:
    everyone = [list(range(USERS))] * ROUNDS
    usual, events = played(everyone, {}, early_ends=False)
    seen, events_then = played(everyone, {0: BEHAVIOURS[behaviour]}, early_ends=False)
    assert events == events_then
    assert {user: seen[user] for user in range(1, USERS)} == {user: usual[user] for user in range(1, USERS)}
    assert np.diff([when for _, when in seen[1]]) == pytest.approx((1 + PAUSE) * SECONDS)


def test_with_early_ends_another_client_learns_from_the_clock_who_was_absent() -> None:
    """The fault that deadlines mend: 0.1 s when all have answered, 3 s when one has not."""
    everyone = [list(range(USERS))] * ROUNDS
    here, _ = played(everyone, {}, early_ends=True)
    absent, _ = played(everyone, {0: lambda _: None}, early_ends=True)
    assert np.diff([when for _, when in here[1]]) == pytest.approx(0.1 + WORK)
    assert np.diff([when for _, when in absent[1]]) == pytest.approx(SECONDS + WORK)


def test_a_round_asked_again_of_others_takes_no_late_answer_of_those_who_were_asked_before() -> None:
    """After a write that failed: where coins draw cohorts, the second one may be without a user of the first."""

    async def scene() -> tuple[list[int], list[bool]]:
        sessions = Sessions()
        session, silent = sessions.open("run", "{}", np.arange(USERS)), Listener(0, lambda _: None, sessions)
        others = [Listener(user, lambda _: 0.1, sessions) for user in range(1, USERS)]
        for listener in (silent, *others):
            sessions.enter(listener)
            await sessions.consent(listener, pb.Consent(run="run", takes_part=True))
        verdicts: list[int] = []

        def answer(when: float) -> None:
            late = wire.answer_to_wire("run", 0, session.asked[0].digest, np.zeros(2), Status.ANSWERED)
            loop.call_later(when, lambda: verdicts.append(sessions.answer(0, late)))

        loop, task = asyncio.get_running_loop(), AverageGradient(points=np.zeros((1, 2)), weights=(1.0,))
        heard = []
        for cohort in ([0, 1, 2], [2, 3, 4]):
            question = Question(0, np.array(cohort, np.int64), task, drawn=True)
            answers = await sessions.ask(session, question, shape=(2,), seconds=SECONDS)
            if 0 in cohort:
                answer(PAUSE * SECONDS + 1.0)
            heard = (answers.status == Status.ANSWERED).tolist()
        return verdicts, heard

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        verdicts, heard = runner.run(scene())
    assert verdicts == [pb.VERDICT_NOT_ASKED]
    assert heard == [True] * 3


def drawn(rounds: int, seed: int) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [rng.choice(USERS, 3, replace=False).tolist() for _ in range(rounds)]


def test_the_clock_does_not_tell_who_was_in_a_cohort() -> None:
    """One user is slow. Neither a reader of events nor another client finds its rounds."""
    cohorts = drawn(40, seed=1)
    _, events = played(cohorts, {0: lambda _: 0.25}, early_ends=False)
    assert np.diff(events) == pytest.approx((1 + PAUSE) * SECONDS)
    _, early = played(cohorts, {0: lambda _: 0.25}, early_ends=True)
    named = {number for number, took in enumerate(np.diff([0.0, *early])) if took > 0.2}
    assert named == {number for number, cohort in enumerate(cohorts) if 0 in cohort}, "the fault that deadlines mend"


def test_a_round_that_all_have_answered_stays_open_and_is_told_after_the_rest(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The whole service: the ledger holds the round long before anybody hears of it."""
    seconds = HANGS / PAUSE  # so long that no machine takes a rest for a round's own work

    async def scene() -> None:
        async with coordinator(tmp_path) as running:
            opening, until_due = [], running.sessions._until_due  # rounds that know when they open

            async def noted(session: RunSession, seconds: float) -> float:
                waiting = until_due(session, seconds)
                opening.append(session)
                return await waiting

            running.sessions._until_due = noted
            wanted = specification("one-pass-dp-sgd", early_ends=False, seconds=seconds)
            await running.manager.submit(wanted.as_text())
            async with contextlib.AsyncExitStack() as stack:
                await everybody(running, stack)
                await until(
                    lambda: "trial" in running.sessions.runs and running.sessions.runs["trial"].open is not None
                )
                session = running.sessions.runs["trial"]
                first = session.open
                await until(lambda: not first.left)
                feed = await running.manager.feed("trial")
                assert session.open is first
                put_clock_forward(seconds)
                await until(lambda: session.open is not first)
                while not await asyncio.to_thread(running.manager.records.events, "trial"):
                    await asyncio.sleep(0.001)
                assert feed._events == [], "committed, and told to nobody"
                await until(lambda: len(opening) == 2)
                put_clock_forward(PAUSE * seconds)
                await until(lambda: feed._events and session.open is not None)
                assert session.open.question.round == 1
                assert session.open.opened == pytest.approx(first.opened + (1 + PAUSE) * seconds, rel=0, abs=1e-9)
                assert "took longer" not in caplog.text

    carried_out(scene())


def test_the_end_of_a_run_is_told_on_the_schedule_and_once(tmp_path: Path) -> None:
    async def scene() -> None:
        async with coordinator(tmp_path) as running, contextlib.AsyncExitStack() as stack:
            await running.manager.submit(specification("one-pass-dp-sgd", early_ends=False, seconds=30.0).as_text())
            await everybody(running, stack)
            feed = await running.manager.feed("trial")
            hangs = time.monotonic() + HANGS
            while not (feed._events and feed._events[-1]["kind"] == "ended"):
                assert time.monotonic() < hangs
                await asyncio.sleep(0.01)
                put_clock_forward((1 + PAUSE) * 30.0)
            assert [event["kind"] for event in feed._events[-2:]] == ["round", "ended"]

    carried_out(scene())


@pytest.mark.parametrize(
    "name", ["dp-sgd-wor", "dp-sgd-poisson", "recentred-sgd", "group-dp-sgd", "group-dp-sgd-zero-out"]
)
def test_early_ends_are_refused_where_the_promise_rests_on_secret_cohorts(name: str) -> None:
    secret = {"simulation": False, "simulation_seed": None}
    wanted = specification(name, **secret)
    with pytest.raises(ConfigError, match="early_ends=false"):
        require_deployable(wanted, make_plan(wanted), allow_simulation=False)
    waits = specification(name, early_ends=False, **secret)
    require_deployable(waits, make_plan(waits), allow_simulation=False)
    seeded = specification(name)
    require_deployable(seeded, make_plan(seeded), allow_simulation=True)
