"""Whoever has no credential takes neither the coordinator's memory nor a client's place."""

import asyncio
import contextlib
import functools
import logging
import os
import re
import resource
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest

from federation.crowd import (
    HANGS,
    Honest,
    Peer,
    called,
    carried_out,
    complete,
    coordinator,
    crowd,
    inline_model,
    put_clock_forward,
    specification,
    until,
)
from federation.tls import channel, greeted, transport
from quoron.federation.control import words
from quoron.federation.log_limit import LogLimit
from quoron_privacy.errors import ConfigError, LedgerError
from quoron_protos.v1 import federation_pb2 as pb
from quoron_server.plan import RunPlan
from quoron_server.service import (
    Coordinator,
    ServeConfig,
    Transport,
    client_plane,
    control_plane,
    program,
    records,
    tokens,
)
from quoron_server.service import coordinator as coordinators
from quoron_server.service import scheduler as schedulers
from quoron_server.service.client_plane import ConnectionLimiter, RateLimit
from quoron_server.service.scheduler import RunScheduler
from quoron_server.specification import RunSpecification

SERVICE = "/" + coordinators.CONTROL_PLANE


def address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host, int(port)


async def test_a_caller_without_a_token_is_turned_away_before_its_message_is_read(tmp_path: Path) -> None:
    """The caller never sends one: only a coordinator that does not wait for it can answer."""
    async with coordinator(tmp_path) as running, grpc.aio.insecure_channel(running.control) as channel:
        for metadata in ((), (("authorization", "Bearer quoron_guess"),)):
            for method in ("Call", "Watch", "Model"):
                call = channel.stream_stream(f"{SERVICE}/{method}")(metadata=metadata)
                assert await call.code() == grpc.StatusCode.UNAUTHENTICATED


@contextlib.asynccontextmanager
async def idle(where: str, number: int):
    """So many connections that say nothing."""
    writers = []
    try:
        for _ in range(number):
            _, writer = await asyncio.open_connection(*address(where))
            writers.append(writer)
        yield
    finally:
        for writer in writers:
            writer.close()


async def test_idle_connections_to_the_control_plane_keep_nobody_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twice as many as there are places, and none is ended for being slow: others come, and an operator stays."""
    patient = {**dict(program._CONNECTION), "grpc.server_handshake_timeout_ms": 3_600_000}
    monkeypatch.setattr(program, "_CONNECTION", tuple(patient.items()))
    monkeypatch.setattr(client_plane, "POLL", 0.01)
    token = tokens.add(tmp_path / "tokens.json", name="ada", role="operator")
    alone = (("grpc.use_local_subchannel_pool", 1),)

    async def scene(running: Coordinator) -> None:
        async with (
            grpc.aio.insecure_channel(running.control, alone) as inside,
            grpc.aio.insecure_channel(running.control, alone) as later,
            grpc.aio.insecure_channel(running.control, alone) as probe,
            grpc.aio.insecure_channel(running.listen) as clients,
        ):
            await called(inside, token, "runs")
            async with idle(running.control, 2 * coordinators.MAX_OPERATORS):
                assert await Peer(clients, "somebody").enrol() == 0
                await later.channel_ready()
                assert await called(later, token, "runs") == {"runs": []}
                await probe.channel_ready()
                assert await probe.unary_unary(f"/{coordinators.HEALTH}/Check")(b"") == b"\x08\x01", "SERVING"
                assert await called(inside, token, "runs") == {"runs": []}
                assert inside.get_state() == grpc.ChannelConnectivity.READY

    async with coordinator(tmp_path) as running:
        await scene(running)


def test_files_are_left_for_operators_and_for_the_coordinator(monkeypatch: pytest.MonkeyPatch) -> None:
    for allowed in (256, 1024, 1 << 20):
        monkeypatch.setattr(resource, "getrlimit", lambda _, allowed=allowed: (allowed, allowed))
        many = ServeConfig(Transport(insecure=True), max_clients=10**6)
        assert 1 <= many.connections() <= max(1, allowed - coordinators.MAX_OPERATORS - 64)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY,) * 2)
    assert many.connections() == 10**6


@pytest.mark.slow
async def test_an_operator_is_served_between_the_streams_of_a_flood(tmp_path: Path) -> None:
    """Thousands of calls with a wrong token, many at a time, on connections of their own."""
    token = tokens.add(tmp_path / "tokens.json", name="ada", role="operator")
    async with coordinator(tmp_path) as running, contextlib.AsyncExitStack() as stack:
        refused = [0]

        async def flood() -> None:
            options = (("grpc.use_local_subchannel_pool", 1),)
            channel = await stack.enter_async_context(grpc.aio.insecure_channel(running.control, options=options))
            while refused[0] < 300:
                call = channel.stream_stream(f"{SERVICE}/Submit")(metadata=(("authorization", "Bearer wrong"),))
                assert await call.code() in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.UNAVAILABLE)
                refused[0] += 1

        flooding = [asyncio.create_task(flood()) for _ in range(12)]
        await until(lambda: refused[0] > 20)
        async with grpc.aio.insecure_channel(running.control) as channel:
            assert await called(channel, token, "runs") == {"runs": []}
        await asyncio.gather(*flooding)


async def test_auditors_who_ask_for_plans_keep_no_client_from_enrolling(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forty ask for a plan that takes for ever to make."""
    token, free, planning = tokens.add(tmp_path / "tokens.json", name="eve", role="auditor"), threading.Event(), [0]
    async with coordinator(tmp_path) as running, contextlib.AsyncExitStack() as stack:
        wanted = specification("one-pass-dp-sgd")
        await running.scheduler.submit(wanted.as_text())
        made = records.make_plan

        def slow(wanted: RunSpecification) -> RunPlan:
            planning[0] += 1
            free.wait(HANGS)
            return made(wanted)

        monkeypatch.setattr(records, "make_plan", slow)
        asking = []
        for _ in range(10):  # connections of four calls
            options = (("grpc.use_local_subchannel_pool", 1),)
            channel = await stack.enter_async_context(grpc.aio.insecure_channel(running.control, options=options))
            await called(channel, token, "runs")
            asking += [asyncio.create_task(called(channel, token, "plan", run="trial")) for _ in "four"]
        await until(lambda: planning[0])
        try:
            async with grpc.aio.insecure_channel(running.listen) as mine:
                user = await Peer(mine, "somebody").enrol()
        finally:
            free.set()
        plans = await asyncio.gather(*asking)
        assert {plan["algorithm"] for plan in plans} == {"one-pass-dp-sgd"}
        assert user == 0


async def test_more_runs_than_places_wait_and_can_be_cancelled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run without a thread of its own could be neither carried out nor ended."""
    monkeypatch.setattr(schedulers.wire, "MAX_RUNS", 2)
    names = ["spring", "summer", "autumn", "winter"]
    async with coordinator(tmp_path) as running, grpc.aio.insecure_channel(running.listen) as channel:
        for number in range(20):
            await Peer(channel, f"client-{number}").enrol()
        for name in names:
            await running.scheduler.submit(specification("one-pass-dp-sgd", name).as_text())
        await until(lambda: len(running.scheduler._active) == 2)
        assert list(running.scheduler._waiting) == ["autumn", "winter"]
        await running.scheduler.cancel("winter")
        await running.scheduler.cancel("spring")
        await until(lambda: "autumn" in running.scheduler._active)
        states = {"summer": "waiting"}
        while states["summer"] == "waiting":  # until its thread has said that it runs
            states = {each["run"]: each["state"] for each in await running.scheduler.records.runs()}
    assert states["spring"] == states["winter"] == "cancelled"
    assert states["summer"] == "running"


class Door:
    """A port of this process, and connections to it; each look is at all that have come."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self.stack, self.listening = stack, stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        self.port = self.listening.getsockname()[1]

    def come(self) -> tuple[socket.socket, str]:
        """A connection's far end, and what gRPC calls it."""
        far = self.stack.enter_context(socket.create_connection(("127.0.0.1", self.port), timeout=60))
        self.stack.enter_context(self.listening.accept()[0])
        return far, f"ipv4:127.0.0.1:{far.getsockname()[1]}"


def open_still(far: socket.socket) -> bool:
    far.setblocking(False)
    try:
        return bool(far.recv(1))
    except BlockingIOError:
        return True


@pytest.fixture
def door() -> Iterator[Door]:
    with contextlib.ExitStack() as stack:
        yield Door(stack)


class TestDoorkeeper:
    def test_ends_the_oldest_of_those_who_have_not_called(self, door: Door) -> None:
        keeper, come = ConnectionLimiter(4), []  # three places
        for _ in range(5):
            come.append(door.come())
            if len(come) == 1:
                keeper.admit(come[0][1], "ada")
            keeper.poll(door.port)
        assert [open_still(far) for far, _ in come] == [True, False, False, True, True]

    def test_ends_the_oldest_connections_of_one_client(self, door: Door) -> None:
        keeper, come = ConnectionLimiter(99, each=2), [door.come() for _ in range(6)]
        for (_, peer), who in zip(come, ("ada", "ben", "ada", "ada", "ada", "ben"), strict=True):
            keeper.admit(peer, who)
            keeper.admit(peer, who)  # a second call
        assert keeper.poll(door.port) == 2
        assert [open_still(far) for far, _ in come] == [False, True, False, True, True, True]

    @pytest.mark.parametrize(("most", "each", "members"), [(32, 12, 1), (40, 4, 3)])
    def test_no_member_and_no_few_of_them_fill_a_port(self, most: int, each: int, members: int, door: Door) -> None:
        keeper = ConnectionLimiter(most, each=each)
        come = [door.come() for _ in range(most)]
        for place, (_, peer) in enumerate(come):
            keeper.admit(peer, f"member-{place % members}")
        keeper.poll(door.port)
        assert sum(open_still(far) for far, _ in come) == each * members

    def test_a_file_that_is_no_socket_any_more_leaves_none_open(self, tmp_path: Path) -> None:
        with (tmp_path / "file").open("wb") as file:
            before = len(os.listdir("/dev/fd"))
            assert client_plane._far_end(file.fileno(), 1) is None
            assert not client_plane._end(file.fileno(), 1)
            assert len(os.listdir("/dev/fd")) == before


async def test_strangers_who_hold_connections_make_way_for_clients(
    issued: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forty say nothing, at a coordinator that takes sixteen connections, and waits for a handshake for ever."""
    patient = {**dict(program._CONNECTION), "grpc.server_handshake_timeout_ms": 3_600_000}
    monkeypatch.setattr(program, "_CONNECTION", tuple(patient.items()))
    monkeypatch.setattr(client_plane, "POLL", 0.01)
    async with (
        coordinator(tmp_path, transport=transport(issued), max_clients=16) as running,
        greeted(running.listen, issued, "client-0") as inside,
        channel(running.listen, issued, "client-1") as later,
    ):
        host, _, port = running.listen.rpartition(":")
        come = [await asyncio.open_connection(host, int(port)) for _ in range(40)]
        await until(lambda: sum(reader.at_eof() for reader, _ in come) >= 32)
        # As clients do, it tries again while gRPC still counts connections that have just been ended.
        await later.channel_ready()
        assert await Peer(later).enrol() == 1
        await inside.send(answer=pb.Answer(run="none"))
        await inside.next("receipt")
        assert sum(not reader.at_eof() for reader, _ in come) <= 8
        for _, writer in come:
            writer.close()


def test_a_run_of_more_users_than_may_be_connected_is_refused(issued: Path, tmp_path: Path) -> None:
    async def scene() -> None:
        async with coordinator(tmp_path, transport=transport(issued), max_clients=19) as running:
            await running.scheduler.submit(specification("one-pass-dp-sgd").as_text())

    with pytest.raises(ConfigError, match=r"at most 19 users.* got 20.*--set max_clients=20"):
        carried_out(scene())


def test_whoever_enrols_again_and_again_waits_and_others_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []

    class Watched(RateLimit):
        def wait(self, name: str, now: float) -> float:
            waited.append(super().wait(name, now))
            return waited[-1]

    monkeypatch.setattr(client_plane, "RateLimit", functools.partial(Watched, burst=3, seconds=50.0))
    monkeypatch.setattr(client_plane, "GREETING_SECONDS", 1e6)

    async def scene() -> None:
        async with coordinator(tmp_path) as running, grpc.aio.insecure_channel(running.listen) as plain:
            again = [asyncio.create_task(Peer(plain, "ada").enrol()) for _ in range(5)]
            await until(lambda: len([wait for wait in waited if wait > 0]) == 2)
            await until(lambda: sum(task.done() for task in again) == 3)
            assert await Peer(plain, "ben").enrol() == 1
            for _ in range(2):
                put_clock_forward(51.0)
            assert await asyncio.gather(*again) == [0] * 5

    carried_out(scene())


async def test_who_calls_is_known_before_an_enrolment_is_read(tmp_path: Path) -> None:
    async with coordinator(tmp_path) as running, grpc.aio.insecure_channel(running.listen) as plain:
        assert (
            await plain.stream_stream(f"/{client_plane.SERVICE}/Enrol")().code()
        ) == grpc.StatusCode.UNAUTHENTICATED  # nothing is ever sent


async def test_when_many_calls_are_refused_they_wait_and_an_operator_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_plane, "LATE", 50.0)
    monkeypatch.setattr(control_plane, "RateLimit", lambda **_: RateLimit(burst=2, seconds=50.0))
    token = tokens.add(tmp_path / "tokens.json", name="ada", role="operator")
    async with coordinator(tmp_path) as running, grpc.aio.insecure_channel(running.control) as plain:
        calls = [plain.stream_stream(f"/{coordinators.CONTROL_PLANE}/Call")() for _ in range(3)]
        asked = [asyncio.create_task(call.code()) for call in calls]
        await until(lambda: sum(task.done() for task in asked) == 2)
        assert await called(plain, token, "runs") == {"runs": []}
        assert sum(task.done() for task in asked) == 2
        put_clock_forward(50.0)
        assert await asyncio.gather(*asked) == [grpc.StatusCode.UNAUTHENTICATED] * 3


USERS = 20
WORK = "/quoron.v1.ClientPlane/Work"
ME = (("quoron-client", "client-0"),)
HELLO = pb.ClientMessage(hello=pb.Hello(protocol=2)).SerializeToString()


def announcement(length: int, run: str = "trial") -> pb.ServerMessage:
    return pb.ServerMessage(run=pb.Announcement(run=run, description="x" * length))


@pytest.mark.parametrize("how", ["many", "large"])
async def test_a_client_that_does_not_read_is_hung_up_on(how: str, tmp_path: Path) -> None:
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
        why, code = conversation.ending, conversation.code
    assert (why, code) == ("The client does not read.", grpc.StatusCode.UNAVAILABLE)
    assert sent < 1000


async def test_long_greetings_and_answers_are_refused_however_they_would_parse(tmp_path: Path) -> None:
    def padded(message: bytes, length: int) -> bytes:
        return message + b"\x0a\x00" * ((length - len(message)) // 2)  # empty fields of a known number

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
        assert codes == 3 * [grpc.StatusCode.INVALID_ARGUMENT]


async def test_whoever_does_not_say_hello_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_plane, "GREETING_SECONDS", 0.1)
    async with coordinator(tmp_path) as running, grpc.aio.insecure_channel(running.listen) as channel:
        await Peer(channel, "client-0").enrol()
        call = channel.stream_stream(WORK)(metadata=ME)
        found = await call.code(), await call.details()
    assert found == (grpc.StatusCode.DEADLINE_EXCEEDED, "Expected a hello within 0.1 seconds.")


@pytest.mark.parametrize("all_come", [True, False])
async def test_clients_enrolled_before_have_time_to_come_back_before_anybody_is_asked(
    tmp_path: Path, all_come: bool
) -> None:
    """A run submitted to a coordinator that has just come back: its clients come a little later, and all answer.

    Once the last of them is there nobody waits for the rest of that time.
    """
    wanted = specification("one-pass-dp-sgd")
    async with coordinator(tmp_path) as running, crowd(running.listen, USERS):
        pass
    async with coordinator(tmp_path, waiting=3600.0) as running, contextlib.AsyncExitStack() as stack:
        await running.scheduler.submit(wanted.as_text())
        await until(lambda: "trial" in running.sessions.runs)
        awaited = await running.scheduler.awaited("trial")
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
        model = await complete(running)
    np.testing.assert_array_equal(model, inline_model(wanted, tmp_path))


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
    async def test_of_a_conversation_that_turns_to_nonsense_while_it_is_spoken_to(
        self, tmp_path: Path, our_logs: pytest.LogCaptureFixture, caplog: pytest.LogCaptureFixture
    ) -> None:
        with our_logs.at_level(logging.INFO):
            found: Counter[tuple[grpc.StatusCode, str]] = Counter()
            async with coordinator(tmp_path) as running, grpc.aio.insecure_channel(running.listen) as channel:
                await Peer(channel, "ada").enrol()
                for _ in range(30):
                    call = channel.stream_stream(WORK)(metadata=(("quoron-client", "ada"),))
                    for data in (HELLO, b"\xff\xff"):
                        await say(call, data)
                    found[await ended(call)] += 1
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
    async def test_and_one_that_says_nothing_of_what_went_wrong_inside(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, code: str
    ) -> None:
        async def broken(*_: object, **__: object) -> int:
            raise error

        async with coordinator(tmp_path) as running, grpc.aio.insecure_channel(running.listen) as channel:
            peer = Peer(channel, "ada")
            await peer.enrol()
            await peer.hello()
            monkeypatch.setattr(running.scheduler.sessions, "consent", broken)
            await peer.send(consent=pb.Consent(run="trial"))
            found = [await ended(peer.call)]
            for method in ("stored", "enrol"):
                monkeypatch.setattr(RunScheduler, method, broken)
            call = channel.stream_stream(WORK)(metadata=(("quoron-client", "ada"),))
            await say(call, HELLO)
            found.append(await ended(call))
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await peer.enrol()
            found = [*found, (caught.value.code(), caught.value.details())]
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
