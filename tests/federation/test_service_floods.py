"""Whoever has no credential takes neither the coordinator's memory nor a client's place."""

import asyncio
import contextlib
import json
import threading
from pathlib import Path

import grpc
import pytest

from federation.crowd import (
    HANGS,
    Peer,
    carried_out,
    coordinator,
    specification,
    until,
)
from quoron_protos.v1 import federation_pb2 as pb
from quoron_protos.v1 import federation_pb2_grpc
from quoron_server.plan import Plan
from quoron_server.service import Coordinator, doorkeeper, records, tokens
from quoron_server.service import coordinator as coordinators
from quoron_server.service import manager as managers
from quoron_server.specification import RunSpecification

METHODS = ("Submit", "List", "Watch", "Cancel", "Plan", "Model", "Ledger", "Limit")
SERVICE = "/" + coordinators.CONTROL_PLANE


def address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host, int(port)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("token", [None, "quoron_guess"])
def test_a_caller_without_a_token_is_turned_away_before_its_message_is_read(
    method: str, token: str | None, tmp_path: Path
) -> None:
    """The caller never sends one: only a coordinator that does not wait for it can answer."""

    async def scene() -> grpc.StatusCode:
        async with coordinator(tmp_path) as running, grpc.aio.insecure_channel(running.control) as channel:
            metadata = () if token is None else (("authorization", f"Bearer {token}"),)
            call = channel.stream_stream(f"{SERVICE}/{method}")(metadata=metadata)
            return await call.code()

    assert carried_out(scene()) == grpc.StatusCode.UNAUTHENTICATED


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


def test_idle_connections_to_the_control_plane_keep_nobody_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice as many as there are places, and none is ended for being slow: others come, and an operator stays."""
    patient = {**dict(coordinators._CONNECTION), "grpc.server_handshake_timeout_ms": 3_600_000}
    monkeypatch.setattr(coordinators, "_CONNECTION", tuple(patient.items()))
    monkeypatch.setattr(doorkeeper, "LOOK", 0.01)
    token = tokens.add(tmp_path / "tokens.json", name="ada", role="operator")
    shown = (("authorization", f"Bearer {token}"),)
    alone = (("grpc.use_local_subchannel_pool", 1),)

    async def list_runs(channel: grpc.aio.Channel) -> str:
        return (await federation_pb2_grpc.ControlPlaneStub(channel).List(pb.ListRequest(), metadata=shown)).json

    async def scene(running: Coordinator) -> None:
        async with (
            grpc.aio.insecure_channel(running.control, alone) as inside,
            grpc.aio.insecure_channel(running.control, alone) as later,
            grpc.aio.insecure_channel(running.control, alone) as probe,
            grpc.aio.insecure_channel(running.listen) as clients,
        ):
            await list_runs(inside)
            async with idle(running.control, 2 * coordinators.MOST_OPERATORS):
                assert await Peer(clients, "somebody").enrol() == 0
                await later.channel_ready()
                assert await list_runs(later) == '{"runs": []}'
                await probe.channel_ready()
                assert await probe.unary_unary(f"/{coordinators.HEALTH}/Check")(b"") == b"\x08\x01", "SERVING"
                assert await list_runs(inside) == '{"runs": []}'
                assert inside.get_state() == grpc.ChannelConnectivity.READY

    async def whole() -> None:
        async with coordinator(tmp_path) as running:
            await scene(running)

    carried_out(whole())


def test_files_are_left_for_operators_and_for_the_coordinator(monkeypatch: pytest.MonkeyPatch) -> None:
    for allowed in (256, 1024, 1 << 20):
        monkeypatch.setattr(coordinators.resource, "getrlimit", lambda _, allowed=allowed: (allowed, allowed))
        assert 1 <= coordinators.most_clients(10**6) <= max(1, allowed - coordinators.MOST_OPERATORS - 64)
    monkeypatch.setattr(coordinators.resource, "getrlimit", lambda _: (coordinators.resource.RLIM_INFINITY,) * 2)
    assert coordinators.most_clients(100_000) == 100_000


def test_an_operator_is_served_between_the_streams_of_a_flood(tmp_path: Path) -> None:
    """Thousands of calls with a wrong token, many at a time, on connections of their own."""
    token = tokens.add(tmp_path / "tokens.json", name="ada", role="operator")

    async def scene() -> None:
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
                listed = await federation_pb2_grpc.ControlPlaneStub(channel).List(
                    pb.ListRequest(), metadata=(("authorization", f"Bearer {token}"),)
                )
            assert listed.json == '{"runs": []}'
            await asyncio.gather(*flooding)

    carried_out(scene())


def test_auditors_who_ask_for_plans_keep_no_client_from_enrolling(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forty ask for a plan that takes for ever to make."""
    token, free, planning = tokens.add(tmp_path / "tokens.json", name="eve", role="auditor"), threading.Event(), [0]

    async def scene() -> int:
        async with coordinator(tmp_path) as running, contextlib.AsyncExitStack() as stack:
            wanted = specification("one-pass-dp-sgd")
            await running.manager.submit(wanted.as_text())
            made = records.make_plan

            def slow(wanted: RunSpecification) -> Plan:
                planning[0] += 1
                free.wait(HANGS)
                return made(wanted)

            monkeypatch.setattr(records, "make_plan", slow)
            asking, shown = [], (("authorization", f"Bearer {token}"),)
            for _ in range(10):  # connections of four calls
                options = (("grpc.use_local_subchannel_pool", 1),)
                channel = await stack.enter_async_context(grpc.aio.insecure_channel(running.control, options=options))
                stub = federation_pb2_grpc.ControlPlaneStub(channel)
                await stub.List(pb.ListRequest(), metadata=shown)
                asking += [
                    asyncio.ensure_future(stub.Plan(pb.RunReference(run="trial"), metadata=shown)) for _ in "four"
                ]
            await until(lambda: planning[0])
            try:
                async with grpc.aio.insecure_channel(running.listen) as mine:
                    user = await Peer(mine, "somebody").enrol()
            finally:
                free.set()
            plans = await asyncio.gather(*asking)
            assert {json.loads(plan.json)["algorithm"] for plan in plans} == {"one-pass-dp-sgd"}
            return user

    assert carried_out(scene()) == 0


def test_more_runs_than_places_wait_and_can_be_cancelled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run without a thread of its own could be neither carried out nor ended."""
    monkeypatch.setattr(managers.wire, "MOST_RUNS", 2)
    names = ["spring", "summer", "autumn", "winter"]

    async def scene() -> dict[str, str]:
        async with coordinator(tmp_path) as running, grpc.aio.insecure_channel(running.listen) as channel:
            for number in range(20):
                await Peer(channel, f"client-{number}").enrol()
            for name in names:
                await running.manager.submit(specification("one-pass-dp-sgd", name).as_text())
            await until(lambda: len(running.manager._active) == 2)
            assert list(running.manager._waiting) == ["autumn", "winter"]
            await running.manager.cancel("winter")
            await running.manager.cancel("spring")
            await until(lambda: "autumn" in running.manager._active)
            states = {"summer": "waiting"}
            while states["summer"] == "waiting":  # until its thread has said that it runs
                states = {each["run"]: each["state"] for each in await running.manager.records.runs()}
            return states

    states = carried_out(scene())
    assert states["spring"] == states["winter"] == "cancelled"
    assert states["summer"] == "running"
