"""What callers and slow readers can make the coordinator hold, and which runs it therefore refuses."""

import asyncio
import contextlib
import itertools
import os
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from federation.conversation import asked, converse, terms
from federation.crowd import (
    Peer,
    carried_out,
    coordinator,
    crowd,
    inline_model,
    no_deadline_is_waited_for,
    put_clock_forward,
    specification,
    until,
)
from federation.test_service_same_bits import federated
from one_answer import answer_from_wire
from quoron.federation.control import Control
from quoron_client.protocol import wire
from quoron_client.protocol.domains import L2Ball
from quoron_client.protocol.questions import (
    Answers,
    AverageGradient,
    LocalSGD,
    PlacedGradient,
    Question,
    RangeReport,
    Status,
    Task,
)
from quoron_privacy.errors import ConfigError, RunError, WireError
from quoron_protos.v1 import federation_pb2 as pb
from quoron_server import traffic
from quoron_server.algorithms.whitened.method import WhitenedTracking
from quoron_server.service import Coordinator, client_stream, tokens
from quoron_server.service.client_stream import Backlog
from quoron_server.service.sessions import RunSession, Sessions
from quoron_server.specification import LONGEST, make_plan, require_room

DIMENSION = 30_000  # 240 kB, one message, and more than the transport takes for one who does not read
QUESTION = 8 * DIMENSION + 200


async def answering(peer: Peer) -> None:
    with contextlib.suppress(grpc.aio.AioRpcError):
        while isinstance(message := await peer.call.read(), pb.ServerMessage):
            if message.WhichOneof("kind") == "question":
                values = np.full(DIMENSION, float(peer.user))
                answer = wire.answer_to_wire(*wire.question_name(message.question), values, Status.ANSWERED)
                await peer.send(answer=answer)


async def round_of(running: Coordinator, users: int, seconds: float) -> Answers:
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


async def test_a_crowd_that_does_not_read_loses_the_round_and_the_others_are_asked_within_the_cap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_stream, "_SLOW_CLOSING_SECONDS", 0.05)
    users, silent, most, seconds = 18, 6, 6 * QUESTION, 40.0

    async def patience_is_over(backlog: Backlog) -> None:
        """Those who do not read have all the space, and others wait for it."""
        await until(lambda: backlog._queue and {each.user for each in backlog._since} == set(range(silent)))
        put_clock_forward(seconds / 4)

    async with coordinator(tmp_path) as running, separate(running.listen, users) as peers:
        running.sessions.backlog.most = most
        await consented(running, peers)
        backlog = running.sessions.backlog
        working = [asyncio.create_task(answering(peer)) for peer in peers[silent:]]
        working.append(asyncio.create_task(patience_is_over(backlog)))
        working.append(asyncio.create_task(no_deadline_is_waited_for(running, range(silent), seconds)))
        answers = await round_of(running, users, seconds=seconds)
        for task in working:
            task.cancel()
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


async def comes(sessions: Sessions, listener: Listener) -> None:
    sessions.enter(listener)
    await sessions.consent(listener, pb.Consent(run="trial", takes_part=True))


@contextlib.asynccontextmanager
async def asked_of(sessions: Sessions, session: RunSession, number: int, users: int, order: list[int]):
    """A round in which all have been sent the question; the round is over at the end."""
    for each in sessions._here.values():
        each.order = order
    question = Question(number, np.arange(users), AverageGradient(np.ones((1, 2)), (1.0,)))
    asking = asyncio.create_task(sessions.ask(session, question, shape=(2,), seconds=600.0, early_ends=True))
    while len(order) < users:
        await asyncio.sleep(0)
    yield
    asking.cancel()
    await asyncio.wait({asking})


def test_who_left_a_question_unread_is_asked_once_a_round_and_from_then_on_after_the_others() -> None:
    async def scene() -> list[list[int]]:
        sessions, orders = Sessions(), [[], [], []]
        session = sessions.open("trial", "{}", np.arange(4))
        for user in range(4):
            await comes(sessions, Listener(user, orders[0]))
        for number, order in enumerate(orders):
            async with asked_of(sessions, session, number, 4, order):
                if number < 2:
                    sessions.backlog.slow[1] = asyncio.get_running_loop().time()  # as by `ClientStream.end_slow`
                    await comes(sessions, Listener(1, order))
        return orders

    first, *later = carried_out(scene())
    assert sorted(first) == [0, 1, 2, 3]
    for order in later:
        assert (sorted(order[:-1]), order[-1]) == ([0, 2, 3], 1)


async def test_questions_leave_in_a_secret_order_that_is_new_in_each_round() -> None:
    """A round over forty users leaves in the order of its rows, or in that of another round, with chance 1/40!."""
    sessions, orders, users = Sessions(), [[], []], 40
    session = sessions.open("trial", "{}", np.arange(users))
    for user in range(users):
        await comes(sessions, Listener(user, orders[0]))
    for number, order in enumerate(orders):
        async with asked_of(sessions, session, number, users, order):
            pass
    (first, second) = orders
    assert sorted(first) == sorted(second) == list(range(40))
    assert first != sorted(first)
    assert second not in (first, sorted(first))


class Writer(Listener):
    """A conversation that notes what it is sent among what is made."""

    def send(self, message: pb.ServerMessage, body: wire.Body | None = None) -> int:
        if message.WhichOneof("kind") == "question":
            self.order.append(("sent", self.user, b"".join(client_stream.packets(message, body))))
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
    monkeypatch.setattr("quoron_server.service.sessions._READY", ready)
    monkeypatch.setattr("quoron_client.protocol.wire.Body", Noting)

    async def scene() -> None:
        sessions = Sessions()
        session = sessions.open("trial", "{}", np.arange(12)[::-1])
        for user in here:
            await comes(sessions, Writer(user, seen))
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
    ready = 4 * (8 * task.numbers_down + 1)
    orders = set()
    for _ in range(4):
        seen = asked_while_made(task, monkeypatch, range(12), ready)
        assert [each[0] for each in seen] == (["made"] * 4 + ["sent"] * 4) * 3
        orders.add(tuple(each[1] for each in seen if each[0] == "sent"))
    assert len(orders) > 1  # four times the same of 12! orders: never
    for here in (range(3), range(1)):
        kinds = "".join(each[0][0] for each in asked_while_made(task, monkeypatch, here, ready))
        assert all(len(made) % 4 == 0 for made in kinds.split("s"))


@pytest.mark.parametrize("letters", [LONGEST + 1, LONGEST // 2 + 1, 4 * LONGEST])
async def test_what_is_too_long_is_refused_by_name_and_never_by_the_transport(letters: int, tmp_path: Path) -> None:
    """As bytes that the coordinator reads, as two bytes a letter, and as a message longer than it takes."""
    operator = tokens.add(tmp_path / "tokens.json", name="operator", role="operator")
    text = ("é" if letters < LONGEST else "x") * letters
    async with coordinator(tmp_path) as running:
        control = Control(running.control, operator, insecure=True)
        with control, pytest.raises(ConfigError, match=r"Expected a (specification|message)"):
            await asyncio.to_thread(control.submit, text)


WHITENED = "whitened-tracking"
voted = WhitenedTracking.voted


def test_second_moments_in_parts_and_on_disk_give_the_bits_of_the_inline_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A vector that travelled in parts, and was held on disk, is still clipped as one."""
    made: list[int] = []
    monkeypatch.setattr(WhitenedTracking, "voted", without_consequence)
    expected = inline_model(specification(WHITENED), tmp_path)
    monkeypatch.setattr(traffic, "HELD", 0)
    monkeypatch.setattr(wire, "MOST", 48)
    honest = np.memmap.__new__
    monkeypatch.setattr(np.memmap, "__new__", lambda *given, **more: made.append(1) or honest(*given, **more))
    model = carried_out(federated(WHITENED, tmp_path))
    np.testing.assert_array_equal(model, expected)
    assert len(made) >= make_plan(specification(WHITENED)).cost.rounds
    assert np.linalg.norm(model) > 0


def without_consequence(self: WhitenedTracking, state: Any, change: float, answered: int) -> Any:
    """Of a vote, so that a model of few users is seen."""
    update = voted(self, state, change, answered)
    return replace(update, state=replace(update.state, point=state.point))


def test_what_is_held_in_memory_is_bounded_whatever_is_asked_for(tmp_path: Path) -> None:
    few, many = traffic.HELD // 80, 10**6
    assert not isinstance(traffic.room_for(few, (10,), tmp_path), np.memmap)
    before = set(os.listdir("/proc/self/fd"))
    whole = traffic.room_for(many, (34,), tmp_path)
    assert isinstance(whole, np.memmap)
    assert list(tmp_path.iterdir()) == []
    assert len(set(os.listdir("/proc/self/fd")) - before) <= 1
    whole[7] = 1.0
    assert (whole[6:9].sum(), whole[-1, -1]) == (34.0, 0.0)
    del whole
    assert set(os.listdir("/proc/self/fd")) <= before


def test_no_room_on_disk_is_said_before_anybody_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(RunError, match=r"room for the answers of a round .* No space left on device.*QUORON_SCRATCH"):
        traffic.room_for(10**6, (100,), tmp_path)


def test_a_run_with_long_first_answers_needs_disk_for_them_and_memory_for_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan = make_plan(specification(WHITENED))
    users, numbers = plan.problem.users, plan.schedule.answer_length
    monkeypatch.setattr("quoron_server.specification.HELD", 8 * plan.problem.dimension * users)
    require_room(plan, 16 * users * plan.problem.dimension, 8 * users * numbers)
    with pytest.raises(ConfigError, match=rf"on this coordinator's disk, got {8 * users * numbers:,}"):
        require_room(plan, 1 << 40, 8 * users * numbers - 1)
    with pytest.raises(ConfigError, match="on this coordinator, twice"):
        require_room(plan, 16 * users * plan.problem.dimension - 1, 1 << 40)


LONG = 100  # numbers of an answer that takes 17 parts


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A message has 48 bytes, and so has a part."""
    monkeypatch.setattr(wire, "MOST", 48)


def answer(numbers: int = LONG, digest: bytes = bytes(16)) -> pb.Answer:
    return wire.answer_to_wire("r", 3, digest, np.arange(float(numbers)), Status.ANSWERED)


def heard(messages: Iterator[pb.ClientMessage], allowed: int | None = 10**6) -> list[object]:
    reassembler = wire.Reassembler[pb.ClientMessage]()
    return [reassembler.take(each, lambda _: allowed) for each in messages]


def pieces(numbers: int = LONG) -> list[pb.ClientMessage]:
    return list(wire.answer_messages(answer(numbers)))


def cut(message: pb.ClientMessage, **changes: object) -> pb.ClientMessage:
    return pb.ClientMessage(part=pb.Part(**({"offset": message.part.offset, "data": message.part.data} | changes)))


@pytest.mark.usefixtures("small")
class TestParts:
    def test_put_together_are_what_was_said(self) -> None:
        *before, last = heard(iter(pieces()))
        assert set(before) == {None}
        assert last.answer == answer()
        found = answer_from_wire(answer(), (LONG,))[0]
        np.testing.assert_array_equal(found, np.arange(float(LONG)))

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (lambda all_: [all_[0], *all_[2:]], "Expected the part at byte 0 of 818, got the one at 48"),
            (lambda all_: [*all_[:3], *all_[2:]], "Expected the part at byte 96 of 818, got the one at 48"),
            (lambda all_: [all_[0], all_[2], all_[1], *all_[3:]], "at byte 0 of 818, got the one at 48"),
            (
                lambda all_: [*all_[:2], cut(all_[2], data=bytes(47))],
                "48 bytes in the part at byte 48, got 47",
            ),
            (
                lambda all_: [*all_[:2], cut(all_[2], data=bytes(49))],
                "48 bytes in the part at byte 48, got 49",
            ),
            (lambda all_: [*all_[:2], cut(all_[2], data=b"")], "got 0"),
            (
                lambda all_: [*all_[:-1], cut(all_[-1], data=bytes(48))],
                "2 bytes in the part at byte 816, got 48",
            ),
            (lambda all_: [*all_[:2], all_[0]], "Expected the part at byte 48 of 818, got another message"),
            (lambda all_: [*all_[:2], pb.ClientMessage(consent=pb.Consent(run="r"))], "got another message"),
            (lambda all_: all_[1:], "Expected a message that parts follow, got a part"),
            (lambda all_: [*all_, all_[-1]], "Expected a message that parts follow, got a part"),
        ],
    )
    def test_out_of_order_missing_repeated_or_of_another_size_are_refused(
        self, change: Callable[[list[pb.ClientMessage]], list[pb.ClientMessage]], message: str
    ) -> None:
        with pytest.raises(WireError, match=message):
            heard(iter(change(pieces())))

    @pytest.mark.parametrize(
        ("head", "message"),
        [
            (
                pb.Answer(run="r", follows=pb.Follows(length=2**62)),
                "at most 1,000,000 bytes",
            ),
            (
                pb.Answer(run="r", follows=pb.Follows(length=0)),
                "for one message, got 0",
            ),
            (pb.Answer(run="r", follows=pb.Follows(length=900, digest=bytes(32))), "too long for one message"),
            (pb.Answer(values=answer().values, follows=pb.Follows(length=900)), "got both"),
        ],
    )
    def test_that_are_announced_as_they_cannot_be_are_refused_at_once(self, head: pb.Answer, message: str) -> None:
        with pytest.raises(WireError, match=message):
            heard(iter([pb.ClientMessage(answer=head)]))

    @pytest.mark.parametrize(
        ("end", "message"),
        [
            (pb.Answer(run="another", values=answer().values), "got another beginning"),
            (pb.Answer(digest=bytes(16), values=answer().values), "got another beginning"),
            (pb.Answer(values=answer().values, follows=pb.Follows(length=1)), "got another beginning"),
        ],
    )
    def test_that_end_what_they_do_not_follow_are_refused(self, end: pb.Answer, message: str) -> None:
        data = end.SerializeToString()
        head = pb.Answer(run="r", round=3, follows=pb.Follows(length=len(data)))
        rest = (pb.ClientMessage(part=each) for each in wire.chunks(data))
        with pytest.raises(WireError, match=message):
            heard(itertools.chain([pb.ClientMessage(answer=head)], rest))

    def test_that_are_no_message_are_refused(self) -> None:
        data = bytes(range(100))
        head = pb.ClientMessage(answer=pb.Answer(run="r", follows=pb.Follows(length=len(data))))
        with pytest.raises(WireError, match="got bytes that are none"):
            heard(itertools.chain([head], (pb.ClientMessage(part=each) for each in wire.chunks(data))))


@pytest.mark.parametrize(("allowed", "most"), [(64 << 20, 3 << 20), (None, 1 << 20)])
def test_whoever_announces_much_and_sends_little_makes_the_other_hold_what_it_sent(
    allowed: int | None, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """64 MiB announced and 2 of them sent: nothing is held before it comes, and nothing of what nobody wants."""
    monkeypatch.setattr(wire, "MOST", 1 << 16)
    head = pb.ClientMessage(answer=pb.Answer(run="r", follows=pb.Follows(length=64 << 20)))
    reassembler = wire.Reassembler[pb.ClientMessage]()
    tracemalloc.start()
    reassembler.take(head, lambda _: allowed)
    for offset in range(0, 2 << 20, 1 << 16):
        message = pb.ClientMessage.FromString(
            pb.ClientMessage(part=pb.Part(offset=offset, data=bytes(1 << 16))).SerializeToString()
        )
        assert reassembler.take(message, lambda _: allowed) is None
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert held < most


def question_in_parts(message: pb.Question) -> list[pb.ServerMessage]:
    """As a coordinator says it."""
    head = pb.Question(run=message.run, round=message.round, digest=message.digest, seconds=message.seconds)
    tail = pb.Question.FromString(message.SerializeToString())
    for name in ("run", "round", "digest", "seconds"):
        tail.ClearField(name)
    data = tail.SerializeToString()
    head.follows.CopyFrom(wire.continuation(data))
    return [pb.ServerMessage(question=head), *(pb.ServerMessage(part=each) for each in wire.chunks(data))]


@pytest.mark.usefixtures("small")
def test_a_question_of_another_digest_than_its_name_says_is_refused() -> None:
    """An answer has none: that it arrives as it left is the transport's part."""
    head, first, *rest = question_in_parts(asked())
    first.part.data = bytes(len(first.part.data))
    reassembler = wire.Reassembler[pb.ServerMessage]()
    for each in (head, first, *rest[:-1]):
        reassembler.take(each, lambda _: 10**6)
    with pytest.raises(WireError, match="bytes of the announced digest"):
        reassembler.take(rest[-1], lambda _: 10**6)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("much", [10**5, 2**62])
def test_a_client_hears_no_more_than_was_announced_and_goes_on(
    much: int, data: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def script(fake):
        announced = pb.ServerMessage(run=pb.Announcement(run="r", description=terms()))
        await fake.to_say.put(announced)
        assert (await fake.hears("consent")).takes_part
        head = pb.Question(run="r", digest=bytes(16), follows=pb.Follows(length=much, digest=bytes(32)))
        await fake.to_say.put(pb.ServerMessage(question=head))
        await fake.hears("hello")  # again
        for message in (announced, *question_in_parts(asked())):
            await fake.to_say.put(message)
        return await fake.hears("consent")

    assert converse(data, script).takes_part
    assert f"Expected at most 4,193 bytes to follow, got {much:,} announced" in caplog.text


async def wide_round(
    running: Coordinator, peers: list[Peer], numbers: int, answering: Callable[[Peer, pb.Question], object]
) -> np.ndarray:
    """One round of a question of so many numbers, to be answered by as many."""
    session = running.sessions.open("r", "{}", np.arange(len(peers)))

    async def works(peer: Peer) -> None:
        reassembler = wire.Reassembler[pb.ServerMessage]()
        await peer.send(consent=pb.Consent(run="r", takes_part=True))
        while (message := await peer.call.read()) is not grpc.aio.EOF:
            found = reassembler.take(message, lambda _: wire.MAX_MESSAGE)
            if found is not None and found.HasField("question"):
                await answering(peer, found.question)

    working = [asyncio.create_task(works(peer)) for peer in peers]
    await until(lambda: len(session.present) == len(peers))
    task = AverageGradient(np.arange(float(numbers))[None], (1.0,))
    question = Question(0, np.arange(len(peers)), task)
    answers = await running.sessions.ask(session, question, shape=(numbers,), seconds=600.0, early_ends=True)
    for each in working:
        each.cancel()
    await asyncio.gather(*working, return_exceptions=True)
    return answers


async def echoes(peer: Peer, question: pb.Question) -> None:
    task = wire.question_from_wire(question)[3]
    message = wire.answer_to_wire(question.run, question.round, question.digest, task.points[0] + peer.user, Status(0))
    await peer.answers(message)


async def test_what_waits_for_a_reader_is_a_part_and_not_the_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "MOST", 1 << 14)
    users, numbers = 6, 40_000
    async with coordinator(tmp_path) as running, crowd(running.listen, users) as peers:
        answers, peak = await wide_round(running, peers, numbers, echoes), running.sessions.backlog.peak
    np.testing.assert_array_equal(answers.values, np.arange(float(numbers)) + np.arange(users)[:, None])
    assert peak <= users * (wire.MOST + wire.BESIDE) + 1000 < 8 * numbers


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("what", ["out of order", "too long", "another message"])
async def test_a_coordinator_ends_a_conversation_that_says_parts_wrong_and_no_other(what: str, tmp_path: Path) -> None:
    async with coordinator(tmp_path) as running, crowd(running.listen, 3) as peers:
        said: list[str] = []

        async def answering(peer: Peer, question: pb.Question) -> None:
            if peer.user:
                await echoes(peer, question)
                return
            head, first, second, *_ = wire.answer_messages(
                wire.answer_to_wire(question.run, question.round, question.digest, np.zeros(LONG), Status(0))
            )
            if what == "too long":
                head.answer.follows.length = 10**9
            wrong = {"out of order": [head, second], "too long": [head], "another message": [head, first, head]}
            for message in wrong[what]:
                await peer.call.write(message)
            said.append(f"{(await peer.call.code()).name}: {await peer.call.details()}")
            current = running.sessions.runs["r"].open
            await until(lambda: current.left == 1)
            current.complete.set()

        answers = await wide_round(running, peers, LONG, answering)
        said = said[0]
    assert list(answers.status) == [Status.MISSING, Status.ANSWERED, Status.ANSWERED]
    assert said.startswith("INVALID_ARGUMENT: Expected ")


@pytest.mark.usefixtures("small")
async def test_an_answer_in_parts_that_nobody_waits_for_has_its_verdict_and_is_dropped(tmp_path: Path) -> None:
    """Twice the same, and one of another round: the conversation goes on. The one that is taken has no receipt."""
    verdicts: list[int] = []
    async with coordinator(tmp_path) as running, crowd(running.listen, 1) as (peer,):
        session = running.sessions.open("r", "{}", np.arange(1))
        await peer.send(consent=pb.Consent(run="r", takes_part=True))
        await until(lambda: session.present)
        question = Question(0, np.arange(1), AverageGradient(np.zeros((1, LONG)), (1.0,)))
        asking = asyncio.create_task(running.sessions.ask(session, question, shape=(LONG,), seconds=600.0))
        await until(lambda: session.asked)
        for digest in (bytes(16), session.asked[0].digest, session.asked[0].digest):
            value = wire.answer_to_wire("r", 0, digest, np.ones(LONG), Status.ANSWERED)
            await peer.answers(value)
        for _ in range(2):
            verdicts.append((await peer.next("receipt")).verdict)
        asking.cancel()
        await asyncio.wait({asking})
    assert verdicts == [pb.VERDICT_NOT_ASKED, pb.VERDICT_DUPLICATE]
