"""What callers and slow readers can make the coordinator hold, and which runs it therefore refuses."""

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from federation.crowd import (
    Peer,
    carried_out,
    coordinator,
    no_deadline_is_waited_for,
    put_clock_forward,
    until,
)
from quoron_client.protocol import wire
from quoron_client.protocol.domains import L2Ball
from quoron_client.protocol.gradients import AverageGradient
from quoron_client.protocol.local_sgd import LocalSGD
from quoron_client.protocol.placed import PlacedGradient
from quoron_client.protocol.questions import Answers, Question, Status, Task
from quoron_client.protocol.reports import RangeReport
from quoron_protos.v1 import federation_pb2 as pb
from quoron_server.service import Coordinator, conversation
from quoron_server.service.conversation import Backlog
from quoron_server.service.sessions import Sessions

DIMENSION = 30_000  # 240 kB, one message, and more than the transport takes for one who does not read
QUESTION = 8 * DIMENSION + 200
NAME = "one-pass-dp-sgd"


async def answering(peer: Peer) -> None:
    with contextlib.suppress(grpc.aio.AioRpcError):
        while isinstance(message := await peer.call.read(), pb.ServerMessage):
            if message.WhichOneof("kind") == "question":
                asked = message.question
                values = np.full(DIMENSION, float(peer.user))
                answer = wire.answer_to_wire(asked.run, asked.round, asked.digest, values, Status.ANSWERED)
                await peer.send(answer=answer)


async def asked(running: Coordinator, users: int, seconds: float) -> Answers:
    """One question to everybody who has consented."""
    session = running.sessions.runs["trial"]
    question = Question(0, np.arange(users), AverageGradient(np.ones((1, DIMENSION)), (1.0,)))
    return await running.sessions.ask(session, question, shape=(DIMENSION,), seconds=seconds, early_ends=True)


async def consented(running: Coordinator, peers: list[Peer]) -> None:
    session = running.sessions.open("trial", "{}", np.arange(len(peers)))
    for peer in peers:
        await peer.send(consent=pb.Consent(run="trial", takes_part=True))
    await until(lambda: len(session.present) == len(peers))


@contextlib.asynccontextmanager
async def separate(where: str, users: int):
    """Clients with a connection each, so that one who does not read is in nobody's way."""
    async with contextlib.AsyncExitStack() as stack:
        own = (("grpc.use_local_subchannel_pool", 1), ("grpc.http2.bdp_probe", 0))  # a window of 64 kB that never grows
        peers = []
        for number in range(users):
            channel = await stack.enter_async_context(grpc.aio.insecure_channel(where, options=own))
            peers.append(Peer(channel, f"client-{number}"))
            await peers[-1].enrol()
        await asyncio.gather(*(peer.hello() for peer in peers))
        yield peers


def test_a_crowd_that_does_not_read_loses_the_round_and_the_others_are_asked_within_the_cap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conversation, "_LATE_PARTING_SECONDS", 0.05)
    users, silent, most, seconds = 18, 6, 6 * QUESTION, 40.0

    async def patience_is_over(backlog: Backlog) -> None:
        """Those who do not read have all the space, and others wait for it."""
        await until(lambda: backlog._queue and {each.user for each in backlog._since} == set(range(silent)))
        put_clock_forward(seconds / 4)

    async def scene() -> tuple[Answers, Backlog]:
        async with coordinator(tmp_path) as running, separate(running.listen, users) as peers:
            running.sessions.backlog.most = most
            await consented(running, peers)
            backlog = running.sessions.backlog
            working = [asyncio.create_task(answering(peer)) for peer in peers[silent:]]
            working.append(asyncio.create_task(patience_is_over(backlog)))
            working.append(asyncio.create_task(no_deadline_is_waited_for(running, range(silent), seconds)))
            answers = await asked(running, users, seconds=seconds)
            for task in working:
                task.cancel()
        return answers, backlog

    answers, backlog = carried_out(scene())
    np.testing.assert_array_equal(answers.status, [Status.MISSING] * silent + [Status.ANSWERED] * (users - silent))
    assert backlog.peak <= most + QUESTION
    assert backlog.bytes == 0


class Listener:
    """A conversation that notes what it is sent, and in which order others are."""

    def __init__(self, user: int, order: list[int]) -> None:
        self.user, self.order = user, order

    def send(self, message: pb.ServerMessage, body: wire.Body | None = None) -> int:
        if message.WhichOneof("kind") == "question":
            self.order.append(self.user)
        return message.ByteSize()

    def end(self, why: str, code: grpc.StatusCode = grpc.StatusCode.ABORTED) -> None:
        pass


def test_who_left_a_question_unread_is_asked_once_a_round_and_from_then_on_after_the_others() -> None:
    async def comes(sessions: Sessions, user: int, order: list[int]) -> None:
        sessions.enter(Listener(user, order))
        await sessions.consent(sessions._here[user], pb.Consent(run="trial", takes_part=True))

    async def scene() -> list[list[int]]:
        sessions, orders = Sessions(), [[], [], []]
        session = sessions.open("trial", "{}", np.arange(4))
        for user in range(4):
            await comes(sessions, user, orders[0])
        for number, order in enumerate(orders):
            for each in sessions._here.values():
                each.order = order
            question = Question(number, np.arange(4), AverageGradient(np.ones((1, 2)), (1.0,)))
            asking = asyncio.create_task(sessions.ask(session, question, shape=(2,), seconds=600.0, early_ends=True))
            while len(order) < 4:
                await asyncio.sleep(0)
            if number < 2:
                sessions.backlog.slow[1] = asyncio.get_running_loop().time()  # as by `Conversation.hang_up`
                await comes(sessions, 1, order)
            asking.cancel()
            await asyncio.wait({asking})
        return orders

    first, *later = carried_out(scene())
    assert sorted(first) == [0, 1, 2, 3]
    for order in later:
        assert (sorted(order[:-1]), order[-1]) == ([0, 2, 3], 1)


def test_questions_leave_in_a_secret_order_that_is_new_in_each_round() -> None:
    """A round over forty users leaves in the order of its rows, or in that of another round, with chance 1/40!."""

    async def scene() -> list[list[int]]:
        sessions, orders, users = Sessions(), [[], []], 40
        session = sessions.open("trial", "{}", np.arange(users))
        for user in range(users):
            sessions.enter(Listener(user, orders[0]))
            await sessions.consent(sessions._here[user], pb.Consent(run="trial", takes_part=True))
        for number, order in enumerate(orders):
            for each in sessions._here.values():
                each.order = order
            question = Question(number, np.arange(users), AverageGradient(np.ones((1, 2)), (1.0,)))
            asking = asyncio.create_task(sessions.ask(session, question, shape=(2,), seconds=600.0, early_ends=True))
            while len(order) < users:
                await asyncio.sleep(0)
            asking.cancel()
            await asyncio.wait({asking})
        return orders

    first, second = carried_out(scene())
    assert sorted(first) == sorted(second) == list(range(40))
    assert first != sorted(first)
    assert second not in (first, sorted(first))


class Writer(Listener):
    """A conversation that notes what it is sent among what is made."""

    def send(self, message: pb.ServerMessage, body: wire.Body | None = None) -> int:
        if message.WhichOneof("kind") == "question":
            self.order.append(("sent", self.user, b"".join(conversation.packets(message, body))))
        return 1


TASKS = {
    "the same for all": AverageGradient(np.ones((1, 2)), (1.0,)),
    "a number of each one's own": RangeReport(
        AverageGradient(np.ones((1, 16)), (1.0,)), 1.0, 4, 1.0, np.ones(16), np.arange(12)
    ),
    "a point of each one's own": LocalSGD(np.arange(24.0).reshape(12, 2), 0.1, L2Ball(1.0)),
    "items of each one's own": PlacedGradient(np.ones((1, 2)), np.arange(36).reshape(12, 3), 1.0, None, 3),
}


def asked_while_made(task: Task, monkeypatch: pytest.MonkeyPatch, here: range, ready: int) -> list[tuple]:
    """What is made and what leaves, in order, when twelve are asked of whom some are here."""
    seen: list[tuple] = []

    class Noting(wire.Body):
        @classmethod
        def of(cls, task: Task, *more: Any, **own: Any) -> wire.Body:
            seen.append(("made", 0 if task.own is None else getattr(task, task.own).tobytes()))
            return made(task, *more, **own)

    made = wire.Body.of
    monkeypatch.setattr("quoron_server.service.asking._READY", ready)
    monkeypatch.setattr("quoron_client.protocol.wire.Body", Noting)

    async def scene() -> None:
        sessions = Sessions()
        session = sessions.open("trial", "{}", np.arange(12)[::-1])
        for user in here:
            sessions.enter(Writer(user, seen))
            await sessions.consent(sessions._here[user], pb.Consent(run="trial", takes_part=True))
        asking = asyncio.create_task(
            sessions.ask(session, Question(0, np.arange(12), task), shape=(2,), seconds=600.0, early_ends=True)
        )
        while sum(each[0] == "sent" for each in seen) < len(here) and not asking.done():
            await asyncio.sleep(0)
        asking.cancel()
        await asyncio.wait({asking})

    carried_out(scene())
    monkeypatch.undo()
    return seen


@pytest.mark.parametrize("name", TASKS)
def test_every_question_is_made_before_the_first_leaves(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of users who are not here too: what a round does before anybody hears of it says nothing of who does."""
    task = TASKS[name]
    seen = asked_while_made(task, monkeypatch, range(5), 1 << 20)
    own = [0] if task.own is None else [row.tobytes() for row in getattr(task, task.own)]
    assert sorted(each[1] for each in seen[: len(own)]) == sorted(own)
    assert [each[0] for each in seen] == ["made"] * len(own) + ["sent"] * 5


@pytest.mark.parametrize("name", [each for each in TASKS if TASKS[each].own])
def test_what_does_not_fit_into_memory_is_made_in_batches_of_one_size_in_the_secret_order(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sizes follow from the question's shape, who is in which batch from the order alone, never from who is here."""
    task = TASKS[name]
    ready = 4 * (8 * task.numbers_down(task.model_size) + 1)
    orders = set()
    for _ in range(4):
        seen = asked_while_made(task, monkeypatch, range(12), ready)
        assert [each[0] for each in seen] == (["made"] * 4 + ["sent"] * 4) * 3
        orders.add(tuple(each[1] for each in seen if each[0] == "sent"))
    assert len(orders) > 1  # four times the same of 12! orders: never
    for here in (range(3), range(1)):
        kinds = "".join(each[0][0] for each in asked_while_made(task, monkeypatch, here, ready))
        assert all(len(made) % 4 == 0 for made in kinds.split("s"))
