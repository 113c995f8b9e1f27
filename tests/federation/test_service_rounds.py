"""When a round ends, and when anything of it is told, does not depend on who answered or who was asked."""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from grpc import StatusCode

from cover import by_default
from federation.crowd import (
    HANGS,
    Honest,
    Peer,
    Without,
    carried_out,
    complete,
    coordinator,
    crowd,
    everybody,
    inline_model,
    no_deadline_is_waited_for,
    people,
    put_clock_forward,
    specification,
    until,
)
from quoron.engine.inline import InlineEngine
from quoron.federation.control import words
from quoron_client.protocol import wire
from quoron_client.protocol.questions import Answers, AverageGradient, Question, Status
from quoron_privacy.errors import ConfigError
from quoron_privacy.noise.streams import SeededNoise
from quoron_protos.v1 import federation_pb2 as pb
from quoron_server.algorithms import ALGORITHMS
from quoron_server.rounds import PAUSE
from quoron_server.service import Coordinator
from quoron_server.service.active_run import GrpcEngine
from quoron_server.service.sessions import RunSession, Sessions
from quoron_server.specification import RunSpecification, make_plan, require_deployable
from quoron_server.storage.database import Database
from quoron_server.storage.ledger import Ledger
from quoron_server.storage.registry import Registry

SIX, FIVE, SHORT = 6, 5, 3.0
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
        listeners = [Listener(user, answers_after.get(user, lambda _: 0.1), sessions) for user in range(SIX)]
        session: RunSession = sessions.open("run", "{}", np.arange(SIX))
        for listener in listeners:
            sessions.enter(listener)
            await sessions.consent(listener, pb.Consent(run="run", takes_part=True))
        seen = []
        task = AverageGradient(points=np.zeros((1, 2)), weights=(1.0,))
        for number, cohort in enumerate(cohorts):
            question = Question(number, np.array(cohort, np.int64), task)
            await sessions.ask(session, question, shape=(2,), seconds=SHORT, early_ends=early_ends)
            await asyncio.sleep(WORK)
            await asyncio.sleep(max(0.0, session.due - loop.time()))  # when the scheduler tells of it
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
    everyone = [list(range(SIX))] * FIVE
    usual, events = played(everyone, {}, early_ends=False)
    seen, events_then = played(everyone, {0: BEHAVIOURS[behaviour]}, early_ends=False)
    assert events == events_then
    assert {user: seen[user] for user in range(1, SIX)} == {user: usual[user] for user in range(1, SIX)}
    assert np.diff([when for _, when in seen[1]]) == pytest.approx((1 + PAUSE) * SHORT)


def test_with_early_ends_another_client_learns_from_the_clock_who_was_absent() -> None:
    """The fault that deadlines mend: 0.1 s when all have answered, 3 s when one has not."""
    everyone = [list(range(SIX))] * FIVE
    here, _ = played(everyone, {}, early_ends=True)
    absent, _ = played(everyone, {0: lambda _: None}, early_ends=True)
    assert np.diff([when for _, when in here[1]]) == pytest.approx(0.1 + WORK)
    assert np.diff([when for _, when in absent[1]]) == pytest.approx(SHORT + WORK)


def test_a_round_asked_again_of_others_takes_no_late_answer_of_those_who_were_asked_before() -> None:
    """After a write that failed: where coins draw cohorts, the second one may be without a user of the first."""

    async def scene() -> tuple[list[int], list[bool]]:
        sessions = Sessions()
        session, silent = sessions.open("run", "{}", np.arange(SIX)), Listener(0, lambda _: None, sessions)
        others = [Listener(user, lambda _: 0.1, sessions) for user in range(1, SIX)]
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
            answers = await sessions.ask(session, question, shape=(2,), seconds=SHORT)
            if 0 in cohort:
                answer(PAUSE * SHORT + 1.0)
            heard = (answers.status == Status.ANSWERED).tolist()
        return verdicts, heard

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        verdicts, heard = runner.run(scene())
    assert verdicts == [pb.VERDICT_NOT_ASKED]
    assert heard == [True] * 3


def drawn(rounds: int, seed: int) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [rng.choice(SIX, 3, replace=False).tolist() for _ in range(rounds)]


def test_the_clock_does_not_tell_who_was_in_a_cohort() -> None:
    """One user is slow. Neither a reader of events nor another client finds its rounds."""
    cohorts = drawn(40, seed=1)
    _, events = played(cohorts, {0: lambda _: 0.25}, early_ends=False)
    assert np.diff(events) == pytest.approx((1 + PAUSE) * SHORT)
    _, early = played(cohorts, {0: lambda _: 0.25}, early_ends=True)
    named = {number for number, took in enumerate(np.diff([0.0, *early])) if took > 0.2}
    assert named == {number for number, cohort in enumerate(cohorts) if 0 in cohort}, "the fault that deadlines mend"


async def test_a_round_that_all_have_answered_stays_open_and_is_told_after_the_rest(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The whole service: the ledger holds the round long before anybody hears of it."""
    seconds = HANGS / PAUSE  # so long that no machine takes a rest for a round's own work
    async with coordinator(tmp_path) as running:
        opening, until_due = [], running.sessions._until_due  # rounds that know when they open

        async def noted(session: RunSession, seconds: float) -> float:
            waiting = until_due(session, seconds)
            opening.append(session)
            return await waiting

        running.sessions._until_due = noted
        wanted = specification("one-pass-dp-sgd", early_ends=False, seconds=seconds)
        await running.scheduler.submit(wanted.as_text())
        async with contextlib.AsyncExitStack() as stack:
            await everybody(running, stack)
            await until(lambda: "trial" in running.sessions.runs and running.sessions.runs["trial"].open is not None)
            session = running.sessions.runs["trial"]
            first = session.open
            await until(lambda: not first.left)
            feed = await running.scheduler.feed("trial")
            assert session.open is first
            put_clock_forward(seconds)
            await until(lambda: session.open is not first)
            while not await asyncio.to_thread(running.scheduler.records.events, "trial"):
                await asyncio.sleep(0.001)
            assert feed._events == [], "committed, and told to nobody"
            await until(lambda: len(opening) == 2)
            put_clock_forward(PAUSE * seconds)
            await until(lambda: feed._events and session.open is not None)
            assert session.open.question.round == 1
            assert session.open.opened == pytest.approx(first.opened + (1 + PAUSE) * seconds, rel=0, abs=1e-9)
            assert "took longer" not in caplog.text


async def test_the_end_of_a_run_is_told_on_the_schedule_and_once(tmp_path: Path) -> None:
    async with coordinator(tmp_path) as running, contextlib.AsyncExitStack() as stack:
        await running.scheduler.submit(specification("one-pass-dp-sgd", early_ends=False, seconds=30.0).as_text())
        await everybody(running, stack)
        feed = await running.scheduler.feed("trial")
        hangs = time.monotonic() + HANGS
        while not (feed._events and feed._events[-1]["kind"] == "ended"):
            assert time.monotonic() < hangs
            await asyncio.sleep(0.01)
            put_clock_forward((1 + PAUSE) * 30.0)
        assert [event["kind"] for event in feed._events[-2:]] == ["round", "ended"]


@pytest.mark.parametrize("name", ["dp-sgd-wor", "dp-sgd-poisson", "recentred-sgd"])
def test_early_ends_are_refused_where_the_promise_rests_on_secret_cohorts(name: str) -> None:
    secret = {"simulation": False, "simulation_seed": None}
    wanted = specification(name, **secret)
    with pytest.raises(ConfigError, match="early_ends=false"):
        require_deployable(wanted, make_plan(wanted), allow_simulation=False)
    waits = specification(name, early_ends=False, **secret)
    require_deployable(waits, make_plan(waits), allow_simulation=False)
    seeded = specification(name)
    require_deployable(seeded, make_plan(seeded), allow_simulation=True)


ALGORITHM, USERS = "one-pass-dp-sgd", 20  # six rounds of three users, each asked once
SECONDS = 30.0  # of a round that somebody lets pass; nobody waits for it


def model_without(silent: Iterable[int], folder: Path) -> np.ndarray:
    """If these never answer."""
    engine = Without(people(USERS), dict.fromkeys(silent, Status.MISSING))
    return inline_model(specification(ALGORITHM), folder, engine=engine)


Play = Callable[[Coordinator, list[Peer], Honest], Awaitable[object]]


def play(
    folder: Path, script: Play, *, seconds: float = 60.0, silent: tuple[int, ...] = ()
) -> tuple[object, np.ndarray]:
    """Run a script against a coordinator with one run and greeted clients; what it returned, and the model."""

    async def scene() -> tuple[object, np.ndarray]:
        honest = Honest.of(USERS, silent)
        async with coordinator(folder) as running, crowd(running.listen, USERS) as peers:
            await running.scheduler.submit(specification(ALGORITHM, seconds=seconds).as_text())
            outcome = await script(running, peers, honest)
            return outcome, await complete(running)

    return carried_out(scene())


async def first_question(peers: list[Peer]) -> tuple[Peer, pb.Question]:
    """Everybody consents; whoever is asked first, and what."""
    for peer in peers:
        await peer.consents()
    waiting = {asyncio.create_task(peer.next("question")): peer for peer in peers}
    done, pending = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    task = min(done, key=lambda each: waiting[each].user)
    for other in (*pending, *(done - {task})):
        other.cancel()
    return waiting[task], task.result()


def test_clients_that_drop_out_are_missing_at_the_deadline_and_nothing_else_changes(tmp_path: Path) -> None:
    gone, working = (2, 5, 11), list[asyncio.Task[object]]()

    async def script(running: Coordinator, peers: list[Peer], honest: Honest) -> None:
        working.append(asyncio.create_task(no_deadline_is_waited_for(running, gone, SECONDS)))
        working.extend(asyncio.create_task(peer.work(honest)) for peer in peers)

    _, model = play(tmp_path, script, seconds=SECONDS, silent=gone)
    np.testing.assert_array_equal(model, model_without(gone, tmp_path))


def test_a_client_that_declines_after_it_was_asked_is_missing_at_once(tmp_path: Path) -> None:
    decliner = set()

    async def script(running: Coordinator, peers: list[Peer], honest: Honest) -> None:
        changed, _ = await first_question(peers)
        decliner.add(changed.user)
        await changed.send(consent=pb.Consent(run="trial", takes_part=False))
        for peer in peers:
            if peer is not changed:
                peer.call.cancel()
                await peer.hello()
                asyncio.get_running_loop().create_task(peer.work(honest))

    _, model = play(tmp_path, script, seconds=3600.0)
    np.testing.assert_array_equal(model, model_without(decliner, tmp_path))


async def test_answers_are_taken_once_and_only_from_those_asked_while_the_round_is_open(tmp_path: Path) -> None:
    """Verdicts of a right answer, the same again, another user's, a wrong digest, a wrong round, a closed round."""
    wanted = specification(ALGORITHM)
    honest = Honest.of(USERS)
    verdicts: list[int] = []
    async with coordinator(tmp_path) as running, crowd(running.listen, USERS) as peers:
        own: dict[int, pb.Answer] = {}

        async def tell(peer: Peer, answer: pb.Answer) -> None:
            await peer.send(answer=answer)
            verdicts.append((await peer.next("receipt")).verdict)

        async def taken(peer: Peer, answer: pb.Answer) -> None:
            await peer.send(answer=answer)
            await tell(peer, answer)  # of the one before nothing is said

        await running.scheduler.submit(wanted.as_text())
        for peer in peers:
            await peer.consents()
        plan = make_plan(wanted)
        algorithm, noise = ALGORITHMS[ALGORITHM].make(plan), SeededNoise(wanted.simulation_seed)
        cohort = algorithm.request(algorithm.init(), noise).cohort.tolist()
        bystander = peers[next(user for user in range(USERS) if user not in cohort)]
        first = peers[cohort[0]]
        answer = own[first.user] = honest(first.user, await first.next("question"))
        for name, other in (("digest", bytes(16)), ("round", 3), ("run", "another")):
            wrong = pb.Answer.FromString(answer.SerializeToString())
            setattr(wrong, name, other)
            await tell(first, wrong)
        await tell(bystander, answer)  # replayed by somebody else
        for user in cohort:
            await taken(peers[user], answer if user == first.user else honest(user, await peers[user].next("question")))
        second = [user for user in range(USERS) if user not in cohort]
        working = [asyncio.create_task(peers[user].work(honest)) for user in second]
        model = await complete(running)
        await asyncio.gather(*working)
        await tell(first, answer)  # the run is over
    no, twice = pb.VERDICT_NOT_ASKED, pb.VERDICT_DUPLICATE
    assert verdicts == [no, no, no, no, twice, twice, twice, no]
    np.testing.assert_array_equal(model, inline_model(wanted, tmp_path))


async def test_an_answer_after_the_deadline_is_late(tmp_path: Path) -> None:
    honest = Honest.of(USERS)
    async with coordinator(tmp_path) as running, crowd(running.listen, USERS) as peers:
        await running.scheduler.submit(specification(ALGORITHM, seconds=SECONDS).as_text())
        slow, question = await first_question(peers)
        answer = honest(slow.user, question)
        feed = (await running.scheduler.feed("trial")).watch()
        put_clock_forward(SECONDS)
        async for event in feed:
            if event["kind"] == "round":
                break
        await slow.send(answer=answer)
        verdict = (await slow.next("receipt")).verdict
        passing = asyncio.create_task(no_deadline_is_waited_for(running, range(USERS), SECONDS))
        await complete(running)
        passing.cancel()
        assert verdict == pb.VERDICT_LATE


def test_whoever_reconnects_is_asked_the_open_question_again_and_only_then(tmp_path: Path) -> None:
    async def script(running: Coordinator, peers: list[Peer], honest: Honest) -> None:
        slow, question = await first_question(peers)
        slow.call.cancel()
        await slow.hello()
        await slow.consents()
        again = await slow.next("question")
        assert (again.digest, again.round, again.run) == (question.digest, question.round, question.run)
        answer = honest(slow.user, again)
        for _ in range(2):
            await slow.send(answer=answer)
        assert (await slow.next("receipt")).verdict == pb.VERDICT_DUPLICATE
        slow.call.cancel()
        await slow.hello()  # it has answered: it is told of the run, and asked nothing
        await slow.next("run")
        await slow.send(consent=pb.Consent(run="trial", takes_part=True))
        await slow.send(answer=answer)
        assert (await slow.call.read()).receipt.verdict == pb.VERDICT_DUPLICATE
        for peer in peers:
            peer.call.cancel()
            await peer.hello()
            asyncio.get_running_loop().create_task(peer.work(honest))

    _, model = play(tmp_path, script)
    np.testing.assert_array_equal(model, inline_model(specification(ALGORITHM), tmp_path))


@pytest.mark.parametrize(
    "nonsense", by_default(["NaN", "wrong shape", "wrong type", "too long", "huge"], ["NaN", "wrong shape", "too long"])
)
async def test_a_nonsensical_answer_counts_as_rejected_and_nothing_is_said_of_it(nonsense: str, tmp_path: Path) -> None:
    liar = 11

    class Lying(Honest):
        def __call__(self, user: int, message: pb.Question) -> pb.Answer | None:
            answer = Honest.__call__(self, user, message)
            if user == liar:
                values = {
                    "NaN": np.full(3, np.nan),
                    "wrong shape": np.ones((3, 1)),
                    "wrong type": np.ones(3, np.float32),
                    "too long": np.ones(400),
                    "huge": np.full(3, 1e300),
                }[nonsense]
                answer.values.dtype, answer.values.data = values.dtype.name, values.tobytes()
                answer.values.shape[:] = values.shape
            return answer

    honest = Lying(InlineEngine(people(USERS), seed=7))
    async with coordinator(tmp_path) as running, crowd(running.listen, USERS) as peers:
        working = [asyncio.create_task(peer.work(honest)) for peer in peers]
        await running.scheduler.submit(specification(ALGORITHM).as_text())
        model = await complete(running)
        await asyncio.gather(*working)
        receipts = [receipt for peer in peers for receipt in peer.receipts]
    assert not receipts  # taken, like everybody's
    np.testing.assert_array_equal(model, model_without({liar}, tmp_path))


async def test_who_has_agreed_is_noted_before_anybody_is_asked() -> None:
    """Else a client that is started again in the open round is told of no such run, and takes back what it charged
    unless it was drawn: what is charged would tell of the draw."""
    noted: list[set[int]] = []
    session = SimpleNamespace(agreed={3, 5}, summed=(), stopped=False)

    async def asked(*given: object, **named: object) -> Answers:
        assert noted == [{3, 5}]
        session.agreed.add(8)  # in the middle of the round
        return Answers(np.zeros((1, 2)), np.zeros(1, np.uint8))

    loop, sessions = asyncio.get_running_loop(), SimpleNamespace(ask=asked)
    engine = GrpcEngine(sessions, session, loop, None, 1.0, note_agreed=noted.append)
    await asyncio.to_thread(engine.collect, SimpleNamespace(round=0), (2,))
    session.agreed.add(9)
    for back in (3, 4, 9):  # only of the last there is anything to say
        engine.note_of(back)
    assert noted == [{3, 5}, {8}, {9}]


NAME, EIGHTY, ROUNDS = "one-pass-dp-sgd", 80, 2


def wanted(**changes: object) -> RunSpecification:
    problem = replace(specification(NAME).problem, users=EIGHTY)
    min_cohort = {"min_cohort": 0.5, "min_cohort_epsilon": 2.0}
    return specification(NAME, problem=problem, options={"rounds": ROUNDS}, **(min_cohort | changes))


async def ending(running: Any) -> list[dict[str, Any]]:
    return [event async for event in (await running.scheduler.feed("trial")).watch()]


@pytest.mark.parametrize("share", [0.1, pytest.param(0.0, marks=pytest.mark.slow)])
def test_a_run_that_nobody_answers_ends_without_a_min_cohort_on_the_schedule(share: float, tmp_path: Path) -> None:
    """Not as complete, with a model that is noise: the fault that a minimum cohort mends."""
    seconds = HANGS / PAUSE  # so long that no machine takes a rest for a round's own work
    silent = range(round(share * EIGHTY), EIGHTY)

    async def scene() -> list[dict[str, Any]]:
        async with coordinator(tmp_path) as running, contextlib.AsyncExitStack() as stack:
            await running.scheduler.submit(wanted(early_ends=False, seconds=seconds).as_text())
            honest = await everybody(running, stack, EIGHTY, silent=silent)
            while not honest.asked:
                await asyncio.sleep(0.001)
            session, feed = running.sessions.runs["trial"], await running.scheduler.feed("trial")
            put_clock_forward(seconds)
            while session.open is not None or not await asyncio.to_thread(running.scheduler.records.events, "trial"):
                await asyncio.sleep(0.001)
            assert feed._events == [], "decided, and told to nobody"
            while "trial" in running.scheduler._active:
                put_clock_forward(PAUSE * seconds)
                await asyncio.sleep(0.01)
            assert {number for _, _, number, _ in honest.asked} == {0}, "nobody is asked again"
            assert (await running.scheduler.records.status("trial"))["state"] == "below-min-cohort"
            return await ending(running)

    events = carried_out(scene())
    assert [event["kind"] for event in events] == ["round", "ended"]
    assert events[0]["public"] == {"min_cohort": "not met"}
    assert events[1]["how"] == "below-min-cohort"
    assert "fewer than a share of 0.5" in events[1]["error"]
    with Database(f"sqlite:///{tmp_path}/coordinator.sqlite") as database:
        assert Ledger.unreleased(database) == set(), "its secrets are erased"
        assert Registry(database).run("trial").state == "below-min-cohort"

    async def again() -> list[dict[str, Any]]:
        async with coordinator(tmp_path) as running:
            return await ending(running)

    assert carried_out(again())[-1] == events[1]


@pytest.mark.slow
def test_what_is_awaited_is_the_same_whoever_has_answered(tmp_path: Path) -> None:
    async def seen(silent: range, folder: Path) -> dict[str, Any]:
        folder.mkdir()
        async with coordinator(folder) as running, contextlib.AsyncExitStack() as stack:
            await running.scheduler.submit(wanted(early_ends=False).as_text())
            honest = await everybody(running, stack, EIGHTY, silent=silent)
            while len(honest.asked) < EIGHTY // ROUNDS:
                await asyncio.sleep(0.001)
            await asyncio.sleep(0.05)
            awaited = await running.scheduler.awaited("trial")
            return {key: value for key, value in awaited.items() if key not in ("ends", "left")}

    one = carried_out(seen(range(0), tmp_path / "one"))
    assert one == carried_out(seen(range(EIGHTY), tmp_path / "other"))
    told = {"kind": "awaits", "what": "answers", "round": 0, "rounds": 2, "asked": 40, "min_cohort": 0.5}
    assert one == told | {"connected": EIGHTY}


def test_a_round_is_told_without_internals() -> None:
    event = {"kind": "round", "round": 2, "rounds": 9, "messages": 20}
    public = {"phase": 3, "radius": 0.25, "absent": [4], "answered": 19, "missing": ["ada"], "min_cohort": "met"}
    said = "round 3 of at most 9: 20 users asked, 19 messages came, minimum cohort met; missing: ada"
    assert words(event | {"public": public}) == said
    assert words(event | {"public": {"halted": True}}) == "round 3 of at most 9: 20 users asked, halted"
