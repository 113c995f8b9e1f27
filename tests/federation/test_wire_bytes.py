"""Bytes that are told are those that the kernel counts on the coordinator's sockets, TLS and flow control included."""

import asyncio
import contextlib
import os
import socket
import struct
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from cover import by_default
from federation.crowd import Honest, Peer, carried_out, complete, coordinator, specification, until
from federation.link import Link
from federation.tls import transport
from quoron.simulation.run import by_round
from quoron_client.data.encoding import Encoding, Signs
from quoron_client.data.features import Numeric
from quoron_client.federation import session
from quoron_client.protocol import wire
from quoron_client.protocol.domains import L2Ball
from quoron_client.protocol.questions import Status
from quoron_protos.v1 import federation_pb2 as pb
from quoron_server.problem import Problem
from quoron_server.service import Coordinator
from quoron_server.specification import RunSpecification
from quoron_server.storage.ledger import Ledger
from quoron_server.traffic import CONNECTING, HTTP2, TLS, WINDOWS, once

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="counters of Linux")
CLIENTS, RUN = 2, "trial"
SECONDS = 600.0
WITHIN = 0.05


def counted(port: int) -> np.ndarray:
    """(acknowledged, received) by the kernel of every connection to `port`, at the end that listens, summed."""
    found = np.zeros(2, np.int64)
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if not os.readlink(f"/proc/self/fd/{number}").startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(number))) as each:
                if each.family in (socket.AF_INET, socket.AF_INET6) and each.getsockname()[1] == port:
                    each.getpeername()  # raises for one that listens
                    info = each.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
                    found += struct.unpack_from("=QQ", info, 120)  # tcpi_bytes_acked, tcpi_bytes_received
    return found


def of_dimension(dimension: int, rounds: int = 10) -> RunSpecification:
    problem = Problem(
        users=CLIENTS,
        items_per_user=4,
        dimension=dimension,
        domain=L2Ball(2.0),
        lipschitz=1.0,
        smoothness=0.25,
        feature_norm=1.0,
        link_curvature=1.0,
    )
    features = tuple(Numeric(f"x{j}", -1.0, 1.0) for j in range(dimension))
    return RunSpecification(
        run=RUN,
        algorithm="dp-sgd-wor",
        epsilon=15.0,
        delta=0.1,
        problem=problem,
        loss={"name": "logistic"},
        columns=Encoding(features, Signs("y"), intercept=False),
        seconds=SECONDS,
        early_ends=True,
        options={"rounds": rounds, "rate": 1.0},
        simulation=True,
        simulation_seed=0,
        allow_large_delta=True,
    )


@dataclass
class Counted:
    """What the kernel counted until everybody was welcome, and from then; what the store says; what was announced."""

    greeted: np.ndarray
    moved: np.ndarray
    events: list[dict]
    descriptions: list[int]  # bytes, of each client

    @property
    def announcing(self) -> np.ndarray:
        """(down, up) of the run's announcement to all, their consent, and its end, as told."""
        return sum(np.array(once(run=RUN, description=each)) - CONNECTING for each in self.descriptions)


async def answering(peer: Peer, descriptions: list[int]) -> None:
    """Answer numbers of the shape that is asked for until the run ends."""
    arriving = wire.Arriving[pb.ServerMessage]()
    while (heard := await peer.call.read()) is not grpc.aio.EOF:
        message = arriving.take(heard, lambda _: wire.MAX_MESSAGE)
        if message is None:
            continue
        kind = message.WhichOneof("kind")
        if kind == "run":
            descriptions.append(len(message.run.description.encode()))
            await peer.send(consent=pb.Consent(run=message.run.run, takes_part=True))
        elif kind == "question":
            name, number, digest, task = wire.question_from_wire(message.question)
            values = np.full(task.answer_shape(task.points.shape[1]), 1e-3)
            await peer.answers(wire.answer_to_wire(name, number, digest, values, Status.ANSWERED))
        elif kind == "ended":
            return


async def federated(wanted: RunSpecification, issued: Path, folder: Path) -> Counted:
    """A run whose clients have the connections of real ones."""
    async with contextlib.AsyncExitStack() as stack:
        running = await stack.enter_async_context(
            coordinator(folder, transport=transport(issued), max_message=64 << 20)
        )
        peers = [await greeted(stack, running, issued, user) for user in range(CLIENTS)]
        port = int(running.listen.rpartition(":")[2])
        before, descriptions = await settled(port), []
        working = [asyncio.create_task(answering(peer, descriptions)) for peer in peers]
        await running.manager.submit(wanted.as_text())
        await asyncio.gather(*working)
        after = await settled(port)
        return Counted(before, after - before, Ledger.within(running._database, RUN).events(), descriptions)


async def greeted(stack: contextlib.AsyncExitStack, running: Coordinator, issued: Path, user: int) -> Peer:
    authority, key, own = (
        (issued / name).read_bytes()
        for name in ("authority.pem", f"client-{user}/key.pem", f"client-{user}/certificate.pem")
    )
    credentials = grpc.ssl_channel_credentials(authority, key, own)
    channel = grpc.aio.secure_channel(running.listen, credentials, options=session._OPTIONS)
    peer = Peer(await stack.enter_async_context(channel))
    await peer.enrol()
    await peer.hello()
    return peer


async def settled(port: int) -> np.ndarray:
    """The counters once all that was said has been acknowledged: they stand still for two hundred looks."""
    last, same = counted(port), 0

    def still() -> bool:
        nonlocal last, same
        now = counted(port)
        same = same + 1 if np.array_equal(now, last) else 0
        last = now
        return same > 200

    await until(still)
    return last


def told(found: Counted) -> np.ndarray:
    """(down, up) of all rounds."""
    rows = by_round(found.events, run=RUN, seconds=round(SECONDS))
    return np.array([sum(row[f"wire_{way}"] for row in rows) for way in ("down", "up")])


@pytest.mark.parametrize("dimension", by_default([1, 6, 100, 1000, 3005], [6, 3005]))
def test_the_bytes_of_rounds_are_those_that_the_kernel_counts(dimension: int, issued: Path, tmp_path: Path) -> None:
    found = carried_out(federated(of_dimension(dimension), issued, tmp_path))
    np.testing.assert_allclose(told(found), found.moved - found.announcing, rtol=WITHIN)
    np.testing.assert_allclose(np.array(CONNECTING), found.greeted / CLIENTS, rtol=WITHIN)


@pytest.mark.slow
@pytest.mark.parametrize("dimension", [10**5, 10**6])  # both in parts, question and answer
def test_the_bytes_of_long_messages_are_those_that_the_kernel_counts(
    dimension: int, issued: Path, tmp_path: Path
) -> None:
    found = carried_out(federated(of_dimension(dimension, rounds=2), issued, tmp_path))
    np.testing.assert_allclose(told(found), found.moved, rtol=0.005)


@pytest.mark.slow
async def test_a_connection_on_which_nothing_is_said_costs_its_pings(issued: Path, tmp_path: Path) -> None:
    async with contextlib.AsyncExitStack() as stack:
        running = await stack.enter_async_context(coordinator(tmp_path, transport=transport(issued)))
        await greeted(stack, running, issued, 0)
        port = int(running.listen.rpartition(":")[2])
        before, clock = await settled(port), asyncio.get_running_loop().time
        begun = clock()
        await until(lambda: clock() - begun > 4.5 * wire.KEEPALIVE_SECONDS)
        moved, seconds = counted(port) - before, clock() - begun
    # One ping more or less: the two ends do not begin to count at the same moment.
    ping = HTTP2 + 8 + TLS  # both ends send one, and answer the other's
    expected = 2 * ping * int(seconds / wire.KEEPALIVE_SECONDS)
    np.testing.assert_allclose(moved, expected, rtol=0, atol=ping + HTTP2)


EXACT = ["one-pass-dp-sgd", "srgd", "local-model", "phased-sgd", "tracking-srgd"]
OWN = (("grpc.use_local_subchannel_pool", 1),)  # a connection for every client


async def linked(name: str, folder: Path) -> tuple[list[dict[str, Any]], Link]:
    """The ledger's events of a run whose clients are behind a link, and what passed it."""
    wanted = specification(name, seconds=60.0)
    users = wanted.problem.users
    async with coordinator(folder) as running, Link(running.listen).running() as between:
        channels = [grpc.aio.insecure_channel(between.address, options=OWN) for _ in range(users)]
        try:
            peers = [Peer(channel, f"client-{number}") for number, channel in enumerate(channels)]
            for peer in peers:
                await peer.enrol()
            await asyncio.gather(*(peer.hello() for peer in peers))
            honest = Honest.of(users)
            working = [asyncio.create_task(peer.work(honest)) for peer in peers]
            await running.manager.submit(wanted.as_text())
            await complete(running)
            await asyncio.gather(*working)
        finally:
            await asyncio.gather(*(channel.close() for channel in channels))
        return Ledger.within(running._database, "trial").events(), between


@pytest.mark.parametrize("name", EXACT)
def test_messages_and_bytes_are_those_that_pass_between_clients_and_coordinator(name: str, tmp_path: Path) -> None:
    events, link = carried_out(linked(name, tmp_path))
    rows = by_round(events, run="trial")
    passed = link.counted
    assert sum(row["wire_messages"] for row in rows) == sum(passed[kind] for kind in ("question", "answer"))
    windows = WINDOWS * passed["question"]  # what the link does not count; the kernel does (test_wire_bytes.py)
    assert sum(row["wire_down"] for row in rows) == passed["question bytes"] + windows
    assert sum(row["wire_up"] for row in rows) == passed["answer bytes"] + windows
    assert sum(event["asked"] for event in events) == passed["question"] == passed["answer"]
    assert not passed["receipt"]
