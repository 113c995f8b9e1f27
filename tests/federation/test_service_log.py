"""What strangers and hostile clients can write into a coordinator's log: a few lines; and each call has its status."""

import asyncio
import contextlib
import logging
from collections import Counter
from pathlib import Path

import grpc
import pytest

from federation.crowd import Peer, carried_out, coordinator
from quoron_client.federation.log_limit import LogLimit
from quoron_privacy.errors import LedgerError
from quoron_protos.v1 import federation_pb2 as pb
from quoron_server.service import client_plane
from quoron_server.service.manager import Manager

WORK = "/quoron.v1.ClientPlane/Work"
HELLO = pb.ClientMessage(hello=pb.Hello(protocol=2)).SerializeToString()


async def ended(call: grpc.aio.StreamStreamCall) -> tuple[grpc.StatusCode, str]:
    """How a call ends for a client that reads what it is told."""
    try:
        while await call.read() is not grpc.aio.EOF:
            pass
    except grpc.aio.AioRpcError:
        pass
    return await call.code(), await call.details()


async def say(call: grpc.aio.StreamStreamCall, data: bytes) -> None:
    """To a call that has ended already, nothing: how is read afterwards."""
    with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
        await call.write(data)


class TestEveryCallHasAStatus:
    def test_of_a_conversation_that_turns_to_nonsense_while_it_is_spoken_to(
        self, tmp_path: Path, our_logs: pytest.LogCaptureFixture, caplog: pytest.LogCaptureFixture
    ) -> None:
        async def scene() -> Counter[tuple[grpc.StatusCode, str]]:
            found: Counter[tuple[grpc.StatusCode, str]] = Counter()
            async with coordinator(tmp_path) as running, grpc.aio.insecure_channel(running.listen) as channel:
                await Peer(channel, "ada").enrol()
                for _ in range(30):
                    call = channel.stream_stream(WORK)(metadata=(("quoron-client", "ada"),))
                    for data in (HELLO, b"\xff\xff"):
                        await say(call, data)
                    found[await ended(call)] += 1
            return found

        with our_logs.at_level(logging.INFO):
            found = carried_out(scene())
        assert found == {(grpc.StatusCode.INVALID_ARGUMENT, client_plane.NONSENSE): 30}
        assert our_logs.text.count("refused ada: ") == 30
        assert "Traceback" not in caplog.text

    @pytest.mark.parametrize(
        ("error", "code"),
        [
            (LedgerError("another coordinator has owned postgresql://quoron@10.0.0.7/secret"), "UNAVAILABLE"),
            (ArithmeticError("the answer of ada"), "INTERNAL"),
        ],
        ids=["a database of another's", "an error that nobody foresaw"],
    )
    def test_and_one_that_says_nothing_of_what_went_wrong_inside(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, code: str
    ) -> None:
        async def broken(*_: object, **__: object) -> int:
            raise error

        async def scene() -> list[tuple[grpc.StatusCode, str]]:
            async with coordinator(tmp_path) as running, grpc.aio.insecure_channel(running.listen) as channel:
                peer = Peer(channel, "ada")
                await peer.enrol()
                await peer.hello()
                monkeypatch.setattr(running.manager.sessions, "consent", broken)
                await peer.send(consent=pb.Consent(run="trial"))
                found = [await ended(peer.call)]
                for method in ("user", "enrol"):
                    monkeypatch.setattr(Manager, method, broken)
                call = channel.stream_stream(WORK)(metadata=(("quoron-client", "ada"),))
                await say(call, HELLO)
                found.append(await ended(call))
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await peer.enrol()
                return [*found, (caught.value.code(), caught.value.details())]

        found = carried_out(scene())
        assert {each.name for each, _ in found} == {code}
        assert not any("ada" in words or "10.0.0.7" in words for _, words in found)


class TestTheLog:
    def test_keeps_to_a_few_lines_of_a_kind_a_minute_and_then_says_how_many_there_were(self) -> None:
        clock = iter(tenth / 10 for tenth in range(600 * 5))
        spare, seen = LogLimit(most=20, seconds=60.0, clock=clock.__next__), []
        for _ in range(600 * 5):
            record = logging.LogRecord("quoron", logging.INFO, "plane.py", 7, "refused %s", ("ada",), None)
            if spare.filter(record):
                seen.append(record.getMessage())
        assert len(seen) == 5 * 20
        assert seen.count("refused ada (and 580 more like it)") == 4
