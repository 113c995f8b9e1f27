"""What becomes of answers that are late, repeated, unasked for or nonsense, and of clients that come and go."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from federation.crowd import (
    Honest,
    Peer,
    carried_out,
    complete,
    coordinator,
    crowd,
    inline_model,
    no_deadline_is_waited_for,
    people,
    put_clock_forward,
    specification,
)
from quoron.simulation.inline import InlineEngine
from quoron_client.protocol.questions import Answers, Question, Status
from quoron_privacy.noise.sources import SeededNoise
from quoron_protos.v1 import federation_pb2 as pb
from quoron_server.algorithms import ALGORITHMS
from quoron_server.books.ledger import Ledger
from quoron_server.rounds import run
from quoron_server.service import Coordinator
from quoron_server.service.engine import GrpcEngine
from quoron_server.specification import make_plan

ALGORITHM, USERS = "one-pass-dp-sgd", 20  # six rounds of three users, each asked once
SECONDS = 30.0  # of a round that somebody lets pass; nobody waits for it


class Dropping:
    """The inline engine, without the users who never answer."""

    def __init__(self, silent: set[int], status: Status = Status.MISSING) -> None:
        self.inline, self.silent, self.status = InlineEngine(people(USERS), seed=7), silent, status

    def ask(self, question: Question) -> Answers:
        answers = self.inline.rows(question)
        values, status = answers.values.copy(), answers.status.copy()
        gone = np.isin(question.cohort, list(self.silent))
        values[gone], status[gone] = 0.0, self.status
        return Answers(values, status)


def model_without(silent: set[int], folder: Path) -> np.ndarray:
    wanted = specification(ALGORITHM)
    plan, noise = make_plan(wanted), SeededNoise(wanted.simulation_seed)
    folder.mkdir(exist_ok=True)
    with Ledger.create(folder / "w.sqlite", plan="{}", config_digest="c", noise_key=noise.export_key()) as ledger:
        return run(ALGORITHMS[ALGORITHM].make(plan), Dropping(silent), ledger, noise, simulation=True)


Play = Callable[[Coordinator, list[Peer], Honest], Awaitable[object]]


def play(
    folder: Path, script: Play, *, seconds: float = 60.0, silent: tuple[int, ...] = ()
) -> tuple[object, np.ndarray]:
    """Run a script against a coordinator with one run and greeted clients; what it returned, and the model."""

    async def scene() -> tuple[object, np.ndarray]:
        honest = Honest.of(USERS, silent)
        async with coordinator(folder) as running, crowd(running.listen, USERS) as peers:
            await running.manager.submit(specification(ALGORITHM, seconds=seconds).as_text())
            outcome = await script(running, peers, honest)
            return outcome, await complete(running)

    return carried_out(scene())


async def first_question(peers: list[Peer]) -> tuple[Peer, pb.Question]:
    """Everybody consents; whoever is asked first, and what."""
    for peer in peers:
        announced = await peer.next("run")
        await peer.send(consent=pb.Consent(run=announced.run, takes_part=True))
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
    np.testing.assert_array_equal(model, model_without(set(gone), tmp_path / "reference"))


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
    np.testing.assert_array_equal(model, model_without(decliner, tmp_path / "reference"))


def test_answers_are_taken_once_and_only_from_those_asked_while_the_round_is_open(tmp_path: Path) -> None:
    """Verdicts of a right answer, the same again, another user's, a wrong digest, a wrong round, a closed round."""
    wanted = specification(ALGORITHM)

    async def scene() -> tuple[list[int], np.ndarray]:
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

            await running.manager.submit(wanted.as_text())
            for peer in peers:
                announced = await peer.next("run")
                await peer.send(consent=pb.Consent(run=announced.run, takes_part=True))
            plan = make_plan(wanted)
            algorithm, noise = ALGORITHMS[ALGORITHM].make(plan), SeededNoise(wanted.simulation_seed)
            cohort = algorithm.request(algorithm.init(), noise).cohort.tolist()
            bystander = peers[next(user for user in range(USERS) if user not in cohort)]
            first = peers[cohort[0]]
            answer = own[first.user] = honest(first.user, await first.next("question"))
            wrong_digest = pb.Answer()
            wrong_digest.CopyFrom(answer)
            wrong_digest.digest = bytes(16)
            wrong_round = pb.Answer()
            wrong_round.CopyFrom(answer)
            wrong_round.round = 3
            wrong_run = pb.Answer()
            wrong_run.CopyFrom(answer)
            wrong_run.run = "another"
            for peer, each in (
                (first, wrong_digest),
                (first, wrong_round),
                (first, wrong_run),
                (bystander, answer),  # replayed by somebody else
            ):
                await tell(peer, each)
            for user in cohort:
                await taken(
                    peers[user], answer if user == first.user else honest(user, await peers[user].next("question"))
                )
            second = [user for user in range(USERS) if user not in cohort]
            working = [asyncio.create_task(peers[user].work(honest)) for user in second]
            model = await complete(running)
            await asyncio.gather(*working)
            await tell(first, answer)  # the run is over
            return verdicts, model

    verdicts, model = carried_out(scene())
    no, twice = pb.VERDICT_NOT_ASKED, pb.VERDICT_DUPLICATE
    assert verdicts == [no, no, no, no, twice, twice, twice, no]
    np.testing.assert_array_equal(model, inline_model(wanted, tmp_path))


def test_an_answer_after_the_deadline_is_late(tmp_path: Path) -> None:
    async def scene() -> int:
        honest = Honest.of(USERS)
        async with coordinator(tmp_path) as running, crowd(running.listen, USERS) as peers:
            await running.manager.submit(specification(ALGORITHM, seconds=SECONDS).as_text())
            slow, question = await first_question(peers)
            answer = honest(slow.user, question)
            feed = (await running.manager.feed("trial")).watch()
            put_clock_forward(SECONDS)
            async for event in feed:
                if event["kind"] == "round":
                    break
            await slow.send(answer=answer)
            verdict = (await slow.next("receipt")).verdict
            passing = asyncio.create_task(no_deadline_is_waited_for(running, range(USERS), SECONDS))
            await complete(running)
            passing.cancel()
            return verdict

    assert carried_out(scene()) == pb.VERDICT_LATE


def test_whoever_reconnects_is_asked_the_open_question_again_and_only_then(tmp_path: Path) -> None:
    async def script(running: Coordinator, peers: list[Peer], honest: Honest) -> None:
        slow, question = await first_question(peers)
        slow.call.cancel()
        await slow.hello()
        announced = await slow.next("run")
        await slow.send(consent=pb.Consent(run=announced.run, takes_part=True))
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


@pytest.mark.parametrize("nonsense", ["NaN", "wrong shape", "wrong type", "too long", "huge"])
def test_a_nonsensical_answer_counts_as_rejected_and_nothing_is_said_of_it(nonsense: str, tmp_path: Path) -> None:
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

    async def scene() -> tuple[list[pb.Receipt], np.ndarray]:
        honest = Lying(InlineEngine(people(USERS), seed=7))
        async with coordinator(tmp_path) as running, crowd(running.listen, USERS) as peers:
            working = [asyncio.create_task(peer.work(honest)) for peer in peers]
            await running.manager.submit(specification(ALGORITHM).as_text())
            model = await complete(running)
            await asyncio.gather(*working)
            return [receipt for peer in peers for receipt in peer.receipts], model

    receipts, model = carried_out(scene())
    assert not receipts  # taken, like everybody's
    np.testing.assert_array_equal(model, model_without({liar}, tmp_path / "reference"))


def test_who_has_agreed_is_noted_before_anybody_is_asked() -> None:
    """Else a client that is started again in the open round is told of no such run, and takes back what it charged
    unless it was drawn: what is charged would tell of the draw."""
    noted: list[set[int]] = []
    session = SimpleNamespace(agreed={3, 5}, summed=())

    async def asked(*given: object, **named: object) -> Answers:
        assert noted == [{3, 5}]
        session.agreed.add(8)  # in the middle of the round
        return Answers(np.zeros((1, 2)), np.zeros(1, np.uint8))

    async def play() -> None:
        loop, sessions = asyncio.get_running_loop(), SimpleNamespace(ask=asked)
        engine = GrpcEngine(sessions, session, loop, None, 1.0, note_agreed=noted.append)
        await asyncio.to_thread(engine.collect, SimpleNamespace(round=0), (2,))
        session.agreed.add(9)
        for back in (3, 4, 9):  # only of the last there is anything to say
            engine.note_of(back)

    asyncio.run(play())
    assert noted == [{3, 5}, {8}, {9}]
