"""What is projected is what a real federation on loopback moves, and about how long it takes over a slow link."""

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest

from federation.crowd import Honest, Peer, carried_out, complete, coordinator, specification
from federation.link import Link
from quoron.network import Network, Times
from quoron.planning.projection import by_round
from quoron_server.books.ledger import Ledger
from quoron_server.traffic import WINDOWS

EXACT = ["one-pass-dp-sgd", "srgd", "local-model", "phased-sgd", "tracking-srgd"]
FACTOR = 2.0  # measured over projected time, and the other way round
BUSY = 5.0  # times what the same run takes without a link: little, unless the machine does much else
OWN = (("grpc.use_local_subchannel_pool", 1),)  # a connection for every client


async def federated(
    name: str, folder: Path, *, seconds: float = 60.0, silent: range = range(0), **link: float
) -> tuple[list[dict[str, Any]], Link]:
    """The ledger's events of a run whose clients are behind a link, and what passed it."""
    wanted = specification(name, seconds=seconds)
    users = wanted.problem.users
    async with coordinator(folder) as running, Link(running.listen, **link).running() as between:
        channels = [grpc.aio.insecure_channel(between.address, options=OWN) for _ in range(users)]
        try:
            peers = [Peer(channel, f"client-{number}") for number, channel in enumerate(channels)]
            for peer in peers:
                await peer.enrol()
            await asyncio.gather(*(peer.hello() for peer in peers))
            honest = Honest.of(users, silent=silent)
            working = [asyncio.create_task(peer.work(honest)) for peer in peers]
            await running.manager.submit(wanted.as_text())
            await complete(running)
            await asyncio.gather(*working)
        finally:
            await asyncio.gather(*(channel.close() for channel in channels))
        return Ledger.within(running._database, "trial").events(), between


@pytest.mark.parametrize("name", EXACT)
def test_messages_and_bytes_are_those_that_pass_between_clients_and_coordinator(name: str, tmp_path: Path) -> None:
    events, link = carried_out(federated(name, tmp_path))
    rows = by_round(events, run="trial", network=None)
    passed = link.counted
    assert sum(row["wire_messages"] for row in rows) == sum(passed[kind] for kind in ("question", "answer"))
    windows = WINDOWS * passed["question"]  # what the link does not count; the kernel does (test_wire_bytes.py)
    assert sum(row["wire_down"] for row in rows) == passed["question bytes"] + windows
    assert sum(row["wire_up"] for row in rows) == passed["answer bytes"] + windows
    assert sum(event["asked"] for event in events) == passed["question"] == passed["answer"]
    assert not passed["receipt"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "silent"),
    [
        ("rtt=300ms", range(0)),
        ("rtt=200ms,up=10kbps,down=20kbps", range(0)),
        ("rtt=50ms,dropout=50%,deadline=2s", range(0, 20, 2)),  # 10 of 20 asked a round: nearly always one is missing
    ],
)
def test_time_is_as_projected_within_the_stated_factor(text: str, silent: range, tmp_path: Path) -> None:
    network = Network.parse(f"{text},compute=1e9items/s,ends=early")
    (all_alike,) = network.links
    link = {"delay": all_alike.rtt / 2, "up": all_alike.up, "down": all_alike.down}
    events, _ = carried_out(federated("dp-sgd-wor", tmp_path, seconds=network.deadline, silent=silent, **link))
    (tmp_path / "beside").mkdir()
    beside, _ = carried_out(federated("dp-sgd-wor", tmp_path / "beside"))  # what this machine takes without a link
    rows = by_round(events, run="trial", network=network)
    assert set(rows[0]) >= {f"network.{part}" for part in Times().as_json()}
    projected = sum(row["network.total"] - row["network.aggregating"] for row in rows)
    measured, machine = (sum(event["seconds_clients"] for event in each) for each in (events, beside))
    assert projected / FACTOR <= measured <= projected * FACTOR + BUSY * machine, (
        f"measured {measured:.2f} s, projected {projected:.2f} s, without a link {machine:.2f} s"
    )
