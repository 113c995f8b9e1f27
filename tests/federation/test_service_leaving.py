"""The coordinator leaves and comes back, its clients with it; and callers who would use up its memory."""

import asyncio
import contextlib
import re
from pathlib import Path

import grpc
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
    put_clock_forward,
    specification,
    until,
)
from quoron.operate.watching import words
from quoron_protos.v1 import federation_pb2 as pb
from quoron_server.service import Coordinator, client_plane

USERS = 20
WORK = "/quoron.v1.ClientPlane/Work"
ME = (("quoron-client", "client-0"),)
HELLO = pb.ClientMessage(hello=pb.Hello(protocol=2)).SerializeToString()


async def connected(running: Coordinator, users: int) -> None:
    await until(lambda: running.sessions.connected >= users)


def announcement(length: int, run: str = "trial") -> pb.ServerMessage:
    return pb.ServerMessage(run=pb.Announcement(run=run, description="x" * length))


@pytest.mark.parametrize("how", ["many", "large"])
def test_a_client_that_does_not_read_is_hung_up_on(how: str, tmp_path: Path) -> None:
    async def scene() -> tuple[str | None, grpc.StatusCode, int]:
        async with coordinator(tmp_path) as running, crowd(running.listen, 1) as (peer,):
            conversation = running.sessions._here[peer.user]
            for number in range(64):  # one for each run is no sign of it
                conversation.send(announcement(1 << 16, str(number)))
            assert conversation.ending is None
            sent = 0
            while conversation.ending is None:
                conversation.send(announcement(1 << 16 if how == "large" else 1, "again"))
                sent += 1
            await until(lambda: not running.sessions.connected)
            return conversation.ending, conversation.code, sent

    why, code, sent = carried_out(scene())
    assert (why, code) == ("The client does not read.", grpc.StatusCode.UNAVAILABLE)
    assert sent < 1000


def test_long_greetings_and_answers_are_refused_however_they_would_parse(tmp_path: Path) -> None:
    def padded(message: bytes, length: int) -> bytes:
        return message + b"\x0a\x00" * ((length - len(message)) // 2)  # empty fields of a known number

    async def scene() -> list[grpc.StatusCode]:
        async with coordinator(tmp_path) as running, grpc.aio.insecure_channel(running.listen) as channel:
            long = pb.EnrolRequest(protocol=2, software="x" * 5000).SerializeToString()
            codes = [await channel.unary_unary("/quoron.v1.ClientPlane/Enrol")(long, metadata=ME).code()]
            await Peer(channel, "client-0").enrol()
            call = channel.stream_stream(WORK)(metadata=ME)
            await call.write(padded(HELLO, 5000))
            codes.append(await call.code())
            call = channel.stream_stream(WORK)(metadata=ME)
            await call.write(HELLO)
            await call.read()
            await call.write(padded(b"", 60_000))
            await call.write(padded(b"", 70_000))
            codes.append(await call.code())
            return codes

    assert carried_out(scene()) == 3 * [grpc.StatusCode.INVALID_ARGUMENT]


def test_whoever_does_not_say_hello_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_plane, "GREETING_SECONDS", 0.1)

    async def scene() -> tuple[grpc.StatusCode, str]:
        async with coordinator(tmp_path) as running, grpc.aio.insecure_channel(running.listen) as channel:
            await Peer(channel, "client-0").enrol()
            call = channel.stream_stream(WORK)(metadata=ME)
            return await call.code(), await call.details()

    assert carried_out(scene()) == (grpc.StatusCode.DEADLINE_EXCEEDED, "Expected a hello within 0.1 seconds.")


@pytest.mark.parametrize("all_come", [True, False])
def test_clients_enrolled_before_have_time_to_come_back_before_anybody_is_asked(tmp_path: Path, all_come: bool) -> None:
    """A run submitted to a coordinator that has just come back: its clients come a little later, and all answer.

    Once the last of them is there nobody waits for the rest of that time.
    """
    wanted = specification("one-pass-dp-sgd")

    async def scene() -> np.ndarray:
        async with coordinator(tmp_path) as running, crowd(running.listen, USERS):
            pass
        async with coordinator(tmp_path, gathering=3600.0) as running, contextlib.AsyncExitStack() as stack:
            await running.manager.submit(wanted.as_text())
            await until(lambda: "trial" in running.sessions.runs)
            awaited = await running.manager.awaited("trial")
            assert (awaited["kind"], awaited["what"]) == ("awaits", "clients")
            assert re.match(r"awaits clients that come back after the coordinator's start, \d+ s left", words(awaited))
            honest = Honest.of(USERS)
            *others, last = await stack.enter_async_context(crowd(running.listen, USERS))
            for peer in others:
                stack.callback(asyncio.create_task(peer.work(honest)).cancel)
            await until(lambda: len(running.sessions.runs["trial"].present) == USERS - 1)
            put_clock_forward(1800.0)  # looks whether all are there
            assert not honest.asked
            if not all_come:
                put_clock_forward(1800.0)
                await until(lambda: honest.asked)
            stack.callback(asyncio.create_task(last.work(honest)).cancel)
            return await complete(running)

    np.testing.assert_array_equal(carried_out(scene()), inline_model(wanted, tmp_path))
