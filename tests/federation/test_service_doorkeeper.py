"""Whoever holds connections, enrolments or refused calls in numbers keeps no client and no operator out."""

import asyncio
import contextlib
import functools
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from federation.crowd import Peer, carried_out, coordinator, put_clock_forward, specification, until
from quoron_privacy.errors import ConfigError
from quoron_protos.v1 import federation_pb2 as pb
from quoron_protos.v1 import federation_pb2_grpc
from quoron_server.service import Transport, certificates, client_plane, control_plane, doorkeeper, tokens
from quoron_server.service import coordinator as coordinators
from quoron_server.service.doorkeeper import Doorkeeper
from quoron_server.service.rate_limit import RateLimit


class Door:
    """A port of this process, and connections to it; each look is at all that have come."""

    def __init__(self, stack: contextlib.ExitStack, host: str = "127.0.0.1") -> None:
        self.stack, self.host = stack, host
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.listening = stack.enter_context(socket.create_server((host, 0), family=family))
        self.port = self.listening.getsockname()[1]

    def come(self) -> tuple[socket.socket, str]:
        """A connection's far end, and what gRPC calls it."""
        far = self.stack.enter_context(socket.create_connection((self.host, self.port), timeout=60))
        self.stack.enter_context(self.listening.accept()[0])
        number = far.getsockname()[1]
        return far, f"ipv6:%5B{self.host}%5D:{number}" if ":" in self.host else f"ipv4:{self.host}:{number}"


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
        keeper, come = Doorkeeper(4), []  # three places
        for _ in range(5):
            come.append(door.come())
            if len(come) == 1:
                keeper.admit(come[0][1], "ada")
            keeper.look(door.port)
        assert [open_still(far) for far, _ in come] == [True, False, False, True, True]

    def test_ends_the_oldest_connections_of_one_client(self, door: Door) -> None:
        keeper, come = Doorkeeper(99, each=2), [door.come() for _ in range(6)]
        for (_, peer), who in zip(come, ("ada", "ben", "ada", "ada", "ada", "ben"), strict=True):
            keeper.admit(peer, who)
            keeper.admit(peer, who)  # a second call
        assert keeper.look(door.port) == 2
        assert [open_still(far) for far, _ in come] == [False, True, False, True, True, True]

    @pytest.mark.parametrize(("most", "each", "members"), [(32, 12, 1), (64, 4, 1), (40, 4, 3)])
    def test_no_member_and_no_few_of_them_fill_a_port(self, most: int, each: int, members: int, door: Door) -> None:
        keeper = Doorkeeper(most, each=each)
        come = [door.come() for _ in range(most)]
        for place, (_, peer) in enumerate(come):
            keeper.admit(peer, f"member-{place % members}")
        keeper.look(door.port)
        assert sum(open_still(far) for far, _ in come) == each * members

    def test_a_file_that_is_no_socket_any_more_leaves_none_open(self, tmp_path: Path) -> None:
        with (tmp_path / "file").open("wb") as file:
            before = len(os.listdir("/dev/fd"))
            assert doorkeeper._far_end(file.fileno(), 1) is None
            assert not doorkeeper._end(file.fileno(), 1)
            assert len(os.listdir("/dev/fd")) == before


@contextlib.contextmanager
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    one, other = socket.socketpair()
    with one, other:
        yield one, other


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An authority, a coordinator's certificate and two clients'."""
    path = tmp_path_factory.mktemp("certificates")
    certificates.make_authority(path, days=2)
    certificates.issue(path, "coordinator", coordinator=True, hosts=("127.0.0.1",), days=1)
    for number in range(2):
        certificates.issue(path, f"client-{number}", days=1)
    return path


def transport(folder: Path) -> Transport:
    return Transport(folder / "coordinator.pem", folder / "coordinator.key", folder / "authority.pem")


def channel(where: str, folder: Path, number: int) -> grpc.aio.Channel:
    pair = [(folder / f"client-{number}.{end}").read_bytes() for end in ("key", "pem")]
    credentials = grpc.ssl_channel_credentials((folder / "authority.pem").read_bytes(), *pair)
    return grpc.aio.secure_channel(where, credentials, (("grpc.use_local_subchannel_pool", 1),))


def test_strangers_who_hold_connections_make_way_for_clients(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forty say nothing, at a coordinator that takes sixteen connections, and waits for a handshake for ever."""
    patient = {**dict(coordinators._CONNECTION), "grpc.server_handshake_timeout_ms": 3_600_000}
    monkeypatch.setattr(coordinators, "_CONNECTION", tuple(patient.items()))
    monkeypatch.setattr(doorkeeper, "LOOK", 0.01)

    async def scene() -> None:
        async with (
            coordinator(tmp_path, transport=transport(folder), most_clients=16) as running,
            channel(running.listen, folder, 0) as own,
            channel(running.listen, folder, 1) as later,
        ):
            inside = Peer(own)
            await inside.enrol()
            await inside.hello()
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

    carried_out(scene())


def test_a_run_of_more_users_than_may_be_connected_is_refused(folder: Path, tmp_path: Path) -> None:
    async def scene() -> None:
        async with coordinator(tmp_path, transport=transport(folder), most_clients=19) as running:
            await running.manager.submit(specification("one-pass-dp-sgd").as_text())

    with pytest.raises(ConfigError, match=r"at most 19 users.* got 20.*--most-clients 20"):
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


def test_who_calls_is_known_before_an_enrolment_is_read(tmp_path: Path) -> None:
    async def scene() -> grpc.StatusCode:
        async with coordinator(tmp_path) as running, grpc.aio.insecure_channel(running.listen) as plain:
            return await plain.stream_stream(f"/{client_plane.SERVICE}/Enrol")().code()  # nothing is ever sent

    assert carried_out(scene()) == grpc.StatusCode.UNAUTHENTICATED


def test_when_many_calls_are_refused_they_wait_and_an_operator_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_plane, "LATE", 50.0)
    monkeypatch.setattr(control_plane, "RateLimit", lambda **_: RateLimit(burst=2, seconds=50.0))
    token = tokens.add(tmp_path / "tokens.json", name="ada", role="operator")

    async def scene() -> None:
        async with coordinator(tmp_path) as running, grpc.aio.insecure_channel(running.control) as plain:
            calls = [plain.stream_stream(f"/{coordinators.CONTROL_PLANE}/List")() for _ in range(3)]
            asked = [asyncio.create_task(call.code()) for call in calls]
            await until(lambda: sum(task.done() for task in asked) == 2)
            listed = await federation_pb2_grpc.ControlPlaneStub(plain).List(
                pb.ListRequest(), metadata=(("authorization", f"Bearer {token}"),)
            )
            assert listed.json == '{"runs": []}'
            assert sum(task.done() for task in asked) == 2
            put_clock_forward(50.0)
            assert await asyncio.gather(*asked) == [grpc.StatusCode.UNAUTHENTICATED] * 3

    carried_out(scene())
