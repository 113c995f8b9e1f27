"""Whatever bytes clients send: the coordinator lives on, its state stands still, its replies say nothing of values."""

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest
from google.protobuf.message import DecodeError

from federation.crowd import Honest, Peer, carried_out, complete, coordinator, crowd, inline_model, specification
from quoron_client.protocol import wire
from quoron_client.protocol.questions import Status
from quoron_protos.v1 import federation_pb2 as pb
from quoron_server.service import Coordinator

NAME, USERS, FUZZERS = "one-pass-dp-sgd", 20, 4
WORK = "/quoron.v1.ClientPlane/Work"
HELLO = pb.ClientMessage(hello=pb.Hello(protocol=2)).SerializeToString()


def messages(rng: random.Random, template: pb.Answer, count: int, *, secret: float) -> Iterator[bytes]:
    """Random, truncated, flipped, replayed, of a wrong round, run or digest, of a wrong shape or type, not finite.

    None of them is an answer to the question of `template`, which was put to somebody else. What they hold as values
    is made of `secret`; everything else is the same for the same `rng`.
    """
    whole = pb.ClientMessage(answer=template).SerializeToString()
    for _ in range(count):
        kind = rng.randrange(10)
        if kind == 0:
            yield rng.randbytes(rng.randrange(200))
        elif kind == 1:
            yield whole[: rng.randrange(len(whole))]
        elif kind == 2:
            flipped = bytearray(whole)
            flipped[rng.randrange(12)] ^= 1 << rng.randrange(8)  # tags, lengths and the run's name
            yield bytes(flipped)
        else:
            answer = pb.Answer()
            answer.CopyFrom(template)
            values = np.full(rng.choice([1, 3, 4, 100]), rng.choice([secret, np.nan, np.inf, 1e300 * secret]))
            answer.values.CopyFrom(wire.array_to_wire(values))
            if kind == 3:
                answer.round = rng.getrandbits(32)
            elif kind == 4:
                answer.digest = rng.randbytes(rng.choice([0, 1, 16, 1000]))
            elif kind == 5:
                answer.run = "".join(rng.choices("abcé", k=rng.randrange(2 * wire.MAX_NAME)))
            elif kind == 6:
                answer.values.shape[:] = [rng.getrandbits(64) for _ in range(rng.randrange(9))]
            elif kind == 7:
                answer.values.dtype = rng.choice(["object", "float32", "", "int64", "<f8", "O" * 100])
            elif kind == 8:
                answer.ClearField(rng.choice(["run", "digest", "values"]))
            yield pb.ClientMessage(answer=answer).SerializeToString()


class Fuzzer:
    """One certificate's holder who sends anything, and writes down every reply."""

    def __init__(self, channel: grpc.aio.Channel, name: str) -> None:
        self._open = channel.stream_stream(WORK)
        self._metadata = (("quoron-client", name),)
        self.replies: list[bytes] = []

    async def send(self, contents: Iterator[bytes]) -> None:
        call = await self._greet()
        for content in contents:
            kind = _kind(content)
            await call.write(content)
            if kind == "answer":
                self.replies.append(await call.read())
                continue
            if kind == "nonsense":
                self.replies.append(f"{await call.code()} {await call.details()}".encode())
                call = await self._greet()
        call.cancel()

    async def _greet(self) -> grpc.aio.StreamStreamCall:
        call = self._open(metadata=self._metadata)
        await call.write(HELLO)
        await call.read()  # welcome
        await call.read()  # the run
        return call


def _kind(content: bytes) -> str:
    """What the protocol makes of it: an answer is replied to, nonsense ends the conversation, the rest is ignored."""
    try:
        message = pb.ClientMessage.FromString(content)
    except DecodeError:
        return "nonsense"
    return "nonsense" if len(message.answer.run) > wire.MAX_NAME else message.WhichOneof("kind") or "nothing"


def state(running: Coordinator) -> list[object]:
    """Everything that an answer could change."""
    session = running.sessions.runs["trial"]
    asked = sorted((user, each.round, each.digest, each.done) for user, each in session.asked.items())
    return [asked, session.open.left, session.open.values.tobytes(), session.open.status.tobytes()]


def fuzz(count: int, folder: Path) -> None:
    wanted = specification(NAME, seconds=3600.0)

    async def scene() -> tuple[list[list[bytes]], np.ndarray]:
        honest = Honest.of(USERS)
        async with (
            coordinator(folder) as running,
            crowd(running.listen, USERS) as peers,
            grpc.aio.insecure_channel(running.listen) as channel,
        ):
            await running.scheduler.submit(wanted.as_text())
            for peer in peers:
                await peer.consents()
            asked = [peer for peer in peers if peer.user in await cohort(running)]
            template = honest(asked[0].user, await asked[0].next("question"))
            while len(running.sessions.runs["trial"].asked) < len(asked):  # from then on nothing changes by itself
                await asyncio.sleep(0)
            others = [peer for peer in peers if peer not in asked][:FUZZERS]
            for other in others:
                other.call.cancel()
            before, runs, replies = state(running), await running.scheduler.records.runs(), []
            for secret in (1.0, -2.0):
                fuzzers = [Fuzzer(channel, other.name) for other in others]
                await asyncio.gather(
                    *(
                        fuzzer.send(messages(random.Random(seed), template, count // 2 // FUZZERS, secret=secret))
                        for seed, fuzzer in enumerate(fuzzers)
                    )
                )
                replies.append([reply for fuzzer in fuzzers for reply in fuzzer.replies])
            assert state(running) == before
            assert await running.scheduler.records.runs() == runs
            await asyncio.gather(*(other.hello() for other in others))
            working = [asyncio.create_task(peer.work(honest)) for peer in peers if peer is not asked[0]]
            await asked[0].send(answer=template)
            working.append(asyncio.create_task(asked[0].work(honest)))
            model = await complete(running)
            await asyncio.gather(*working)
            return replies, model

    replies, model = carried_out(scene(), within=3600.0)
    assert replies[0] == replies[1], "a reply depended on values"
    assert len(replies[0]) > count // 4
    np.testing.assert_array_equal(model, inline_model(wanted, folder))


async def cohort(running: Coordinator) -> set[int]:
    """Users of the open round, once there is one."""
    session = running.sessions.runs["trial"]
    while session.open is None:
        await asyncio.sleep(0)
    return set(session.open.cohort.rows)


def test_a_thousand_wrong_messages_change_nothing(tmp_path: Path) -> None:
    fuzz(1000, tmp_path)


@pytest.mark.slow
def test_a_hundred_thousand_wrong_messages_change_nothing(tmp_path: Path) -> None:
    fuzz(100_000, tmp_path)


async def test_a_message_beyond_the_cap_ends_its_conversation_alone(tmp_path: Path) -> None:
    async with coordinator(tmp_path) as running, crowd(running.listen, 2) as peers:
        huge = pb.Answer(run="trial", values=pb.Answer().values.__class__(data=bytes(running.config.max_message + 1)))
        await peers[0].send(answer=huge)
        code = await peers[0].call.code()
        await peers[1].send(answer=pb.Answer(run="trial"))
        found = code, (await peers[1].next("receipt")).verdict
    assert found == (grpc.StatusCode.RESOURCE_EXHAUSTED, pb.VERDICT_NOT_ASKED)


async def test_a_conversation_begins_with_a_hello_of_an_enrolled_client(tmp_path: Path) -> None:
    wrong, unknown = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.FAILED_PRECONDITION
    async with coordinator(tmp_path) as running, grpc.aio.insecure_channel(running.listen) as channel:
        codes = []
        known = Peer(channel, "known")
        await known.enrol()
        for name, first in (("known", b"\xff"), ("known", b""), ("known", None), ("stranger", HELLO)):
            call = channel.stream_stream(WORK)(metadata=(("quoron-client", name),))
            if first is not None:
                await call.write(first)
            await call.done_writing()
            codes.append(await call.code())
        nameless = channel.stream_stream(WORK)()
        assert [*codes, await nameless.code()] == [wrong, wrong, wrong, unknown, grpc.StatusCode.UNAUTHENTICATED]


def test_replies_to_the_asked_user_are_the_same_for_every_value(tmp_path: Path) -> None:
    """A right answer, and answers with NaN, infinity, another shape or type: each is taken without a word, and whoever
    sends it again hears that it was there already."""
    wanted = specification(NAME, seconds=3600.0)
    lies = [
        np.full(3, 0.1),
        np.full(3, np.nan),
        np.full(3, np.inf),
        np.ones((1, 3)),
        np.ones(3, np.float32),
        np.ones(0),
    ]

    async def receipt(values: np.ndarray, folder: Path) -> bytes:
        async with coordinator(folder) as running, crowd(running.listen, USERS) as peers:
            await running.scheduler.submit(wanted.as_text())
            for peer in peers:
                announced = await peer.next("run")
                await peer.send(consent=pb.Consent(run=announced.run, takes_part=True))
            first = peers[min(await cohort(running))]
            question = await first.next("question")
            answer = wire.answer_to_wire(question.run, question.round, question.digest, values, Status.ANSWERED)
            for _ in range(2):
                await first.send(answer=answer)
            return (await first.call.read()).receipt.SerializeToString()

    found = set()
    for number, values in enumerate(lies):
        (tmp_path / str(number)).mkdir()
        found.add(carried_out(receipt(values, tmp_path / str(number))))
    assert len(found) == 1
