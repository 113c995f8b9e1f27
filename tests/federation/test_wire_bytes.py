"""Bytes and messages that a run's events say are those that pass between its clients and the coordinator."""

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest

from cover import by_default
from federation.crowd import Honest, Peer, carried_out, complete, coordinator, specification
from federation.link import Link
from quoron_server.storage.ledger import Ledger

BESIDE = 20  # bytes of a message beside what is counted: the run's name, the seconds, the field that holds it
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
            await running.scheduler.submit(wanted.as_text())
            await complete(running)
            await asyncio.gather(*working)
        finally:
            await asyncio.gather(*(channel.close() for channel in channels))
        return Ledger.within(running._database, "trial").events(), between


@pytest.mark.parametrize("name", by_default(EXACT, ["one-pass-dp-sgd", "local-model"]))
def test_messages_and_bytes_are_those_that_pass_between_clients_and_coordinator(name: str, tmp_path: Path) -> None:
    events, link = carried_out(linked(name, tmp_path))
    passed = link.counted
    for way, kind in (("down", "question"), ("up", "answer")):
        beside = passed[f"{kind} bytes"] - sum(event[f"encoded_{way}"] for event in events)
        assert 0 < beside <= BESIDE * passed[kind]
        assert sum(event["messages"] for event in events) == passed[kind]
    assert sum(event["asked"] for event in events) == passed["question"] == passed["answer"]
    assert not passed["receipt"]
