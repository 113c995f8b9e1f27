"""What is too long for one message travels in parts, to the same bits; nobody can make the other hold more for it."""

import asyncio
import itertools
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest

from federation.conversation import asked, converse, terms
from federation.crowd import (
    Peer,
    carried_out,
    complete,
    coordinator,
    crowd,
    from_items,
    inline_model,
    specification,
    until,
    write_items,
)
from federation.tls import transport
from quoron_client.federation import ClientConfig, run_client
from quoron_client.protocol import parts, wire
from quoron_client.protocol.gradients import AverageGradient
from quoron_client.protocol.questions import Question, Status
from quoron_privacy.errors import WireError
from quoron_protos.v1 import federation_pb2 as pb
from quoron_server.service import Coordinator

SOME = ("one-pass-dp-sgd", "phased-sgd", "tracking-srgd", "local-model")
LONG = 100  # numbers of an answer that takes 17 parts


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A message has 48 bytes, and so has a part."""
    monkeypatch.setattr(parts, "MOST", 48)


def answer(numbers: int = LONG, digest: bytes = bytes(16)) -> pb.Answer:
    return wire.answer_to_wire("r", 3, digest, np.arange(float(numbers)), Status.ANSWERED)


def heard(messages: Iterator[pb.ClientMessage], allowed: int | None = 10**6) -> list[object]:
    arriving = parts.Arriving[pb.ClientMessage]()
    return [arriving.take(each, lambda _: allowed) for each in messages]


def pieces(numbers: int = LONG) -> list[pb.ClientMessage]:
    return list(parts.said(answer(numbers)))


def cut(message: pb.ClientMessage, **changes: object) -> pb.ClientMessage:
    return pb.ClientMessage(part=pb.Part(**({"offset": message.part.offset, "data": message.part.data} | changes)))


@pytest.mark.usefixtures("small")
class TestParts:
    def test_put_together_are_what_was_said(self) -> None:
        *before, last = heard(iter(pieces()))
        assert set(before) == {None}
        assert last == answer()
        found = wire.answer_from_wire(answer(), (LONG,))[0]
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
        rest = (pb.ClientMessage(part=each) for each in parts.parts(data))
        with pytest.raises(WireError, match=message):
            heard(itertools.chain([pb.ClientMessage(answer=head)], rest))

    def test_that_are_no_message_are_refused(self) -> None:
        data = bytes(range(100))
        head = pb.ClientMessage(answer=pb.Answer(run="r", follows=pb.Follows(length=len(data))))
        with pytest.raises(WireError, match="got bytes that are none"):
            heard(itertools.chain([head], (pb.ClientMessage(part=each) for each in parts.parts(data))))


@pytest.mark.parametrize(("allowed", "most"), [(64 << 20, 3 << 20), (None, 1 << 20)])
def test_whoever_announces_much_and_sends_little_makes_the_other_hold_what_it_sent(
    allowed: int | None, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """64 MiB announced and 2 of them sent: nothing is held before it comes, and nothing of what nobody wants."""
    monkeypatch.setattr(parts, "MOST", 1 << 16)
    head = pb.ClientMessage(answer=pb.Answer(run="r", follows=pb.Follows(length=64 << 20)))
    arriving = parts.Arriving[pb.ClientMessage]()
    tracemalloc.start()
    arriving.take(head, lambda _: allowed)
    for offset in range(0, 2 << 20, 1 << 16):
        message = pb.ClientMessage.FromString(
            pb.ClientMessage(part=pb.Part(offset=offset, data=bytes(1 << 16))).SerializeToString()
        )
        assert arriving.take(message, lambda _: allowed) is None
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert held < most


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("secured", [False, True], ids=["insecure", "tls"])
def test_real_clients_in_parts_give_the_bits_of_their_tables(
    secured: bool, issued: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Questions and answers, in the clear and over mutual TLS."""
    wanted = specification("one-pass-dp-sgd", trust_clients=True)
    users = wanted.problem.users
    paths, parted = write_items(tmp_path, users), {"question": 0, "answer": 0}
    begin = parts.Arriving._begin

    def noted(arriving: parts.Arriving, head: parts.Long, allowed: int | None) -> None:
        parted["question" if isinstance(head, pb.Question) else "answer"] += 1
        begin(arriving, head, allowed)

    monkeypatch.setattr(parts.Arriving, "_begin", noted)

    def identity(user: int) -> dict[str, object]:
        if not secured:
            return {"insecure": True, "client_name": f"client-{user}"}
        own = {"certificate": issued / f"client-{user}.pem", "key": issued / f"client-{user}.key"}
        return own | {"authority": issued / "authority.pem"}

    async def scene() -> np.ndarray:
        stop = asyncio.Event()
        async with coordinator(tmp_path, **({"transport": transport(issued)} if secured else {})) as running:
            working = []
            for user, path in enumerate(paths):
                config = ClientConfig(
                    coordinator=running.listen,
                    data=path,
                    record=tmp_path / f"record-{user}.sqlite",
                    lifetime_epsilon=100.0,
                    lifetime_delta=0.5,
                    accept_exposures=("broadcast", "model"),
                    simulation_seed=wanted.simulation_seed,
                    one_user=True,
                    retry_seconds=0.01,
                    **identity(user),
                )
                working.append(asyncio.create_task(run_client(config, stop=stop)))
                await until(lambda user=user: running.sessions.connected == user + 1)
            await running.manager.submit(wanted.as_text())
            model = await complete(running)
            stop.set()
            await asyncio.gather(*working)
            return model

    np.testing.assert_array_equal(carried_out(scene()), inline_model(wanted, tmp_path, from_items(users)))
    assert parted["question"] == parted["answer"] > 0


def question_in_parts(message: pb.Question) -> list[pb.ServerMessage]:
    """As a coordinator says it."""
    head = pb.Question(run=message.run, round=message.round, digest=message.digest, seconds=message.seconds)
    tail = pb.Question.FromString(message.SerializeToString())
    for name in ("run", "round", "digest", "seconds"):
        tail.ClearField(name)
    data = tail.SerializeToString()
    head.follows.CopyFrom(parts.follows(data))
    return [pb.ServerMessage(question=head), *(pb.ServerMessage(part=each) for each in parts.parts(data))]


@pytest.mark.usefixtures("small")
def test_a_question_of_another_digest_than_its_name_says_is_refused() -> None:
    """An answer has none: that it arrives as it left is the transport's part."""
    head, first, *rest = question_in_parts(asked())
    first.part.data = bytes(len(first.part.data))
    arriving = parts.Arriving[pb.ServerMessage]()
    for each in (head, first, *rest[:-1]):
        arriving.take(each, lambda _: 10**6)
    with pytest.raises(WireError, match="bytes of the announced digest"):
        arriving.take(rest[-1], lambda _: 10**6)


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
    assert f"Expected at most 4,192 bytes to follow, got {much:,} announced" in caplog.text


async def wide_round(
    running: Coordinator, peers: list[Peer], numbers: int, answering: Callable[[Peer, pb.Question], object]
) -> np.ndarray:
    """One round of a question of so many numbers, to be answered by as many."""
    session = running.sessions.open("r", "{}", np.arange(len(peers)))

    async def works(peer: Peer) -> None:
        arriving = parts.Arriving[pb.ServerMessage]()
        await peer.send(consent=pb.Consent(run="r", takes_part=True))
        while (message := await peer.call.read()) is not grpc.aio.EOF:
            found = arriving.take(message, lambda _: wire.MAX_MESSAGE)
            if isinstance(found, pb.Question):
                await answering(peer, found)

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


def test_what_waits_for_a_reader_is_a_part_and_not_the_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "MOST", 1 << 14)
    users, numbers = 6, 40_000

    async def scene() -> tuple[object, int]:
        async with coordinator(tmp_path) as running, crowd(running.listen, users) as peers:
            return await wide_round(running, peers, numbers, echoes), running.sessions.backlog.peak

    answers, peak = carried_out(scene())
    np.testing.assert_array_equal(answers.values, np.arange(float(numbers)) + np.arange(users)[:, None])
    assert peak <= users * (parts.MOST + parts.BESIDE) + 1000 < 8 * numbers


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("what", ["out of order", "too long", "another message"])
def test_a_coordinator_ends_a_conversation_that_says_parts_wrong_and_no_other(what: str, tmp_path: Path) -> None:
    async def scene() -> tuple[object, str]:
        async with coordinator(tmp_path) as running, crowd(running.listen, 3) as peers:
            said: list[str] = []

            async def answering(peer: Peer, question: pb.Question) -> None:
                if peer.user:
                    await echoes(peer, question)
                    return
                head, first, second, *_ = parts.said(
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
            return answers, said[0]

    answers, said = carried_out(scene())
    assert list(answers.status) == [Status.MISSING, Status.ANSWERED, Status.ANSWERED]
    assert said.startswith("INVALID_ARGUMENT: Expected ")


@pytest.mark.usefixtures("small")
def test_an_answer_in_parts_that_nobody_waits_for_has_its_verdict_and_is_dropped(tmp_path: Path) -> None:
    """Twice the same, and one of another round: the conversation goes on. The one that is taken has no receipt."""

    async def scene() -> list[int]:
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
        return verdicts

    assert carried_out(scene()) == [pb.VERDICT_NOT_ASKED, pb.VERDICT_DUPLICATE]
