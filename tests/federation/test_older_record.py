"""A client whose record is older than what its coordinator has seen is refused by name, whoever put it back."""

import asyncio
from pathlib import Path

import pytest

from fake_coordinator import coordinator as scripted
from federation.conversation import asked, made, running, terms
from federation.crowd import Honest, carried_out, complete, coordinator, crowd, specification
from quoron_client.federation import ClientConfig, run_client
from quoron_client.protocol.questions import Status
from quoron_privacy.errors import LedgerError
from quoron_protos.v1 import federation_pb2 as pb
from quoron_protos.v1.federation_pb2_grpc import ClientPlaneStub

USERS = 20


def said(run: str = "before", epsilon: float = 0.75, delta: float = 1e-6) -> pb.Agreed:
    return pb.Agreed(run=run, epsilon=epsilon, delta=delta)


async def ended(config: ClientConfig) -> str:
    with pytest.raises(LedgerError) as refused:
        await run_client(config)
    return str(refused.value)


def test_a_coordinator_says_what_each_client_has_agreed_to_and_nothing_of_who_was_asked(tmp_path: Path) -> None:
    async def enrolled(listen: str, peers: list) -> list[list[tuple[str, float, float]]]:
        found = []
        for peer in peers:
            reply = await ClientPlaneStub(peer.channel).Enrol(pb.EnrolRequest(protocol=2), metadata=peer.metadata)
            found.append([(each.run, each.epsilon, each.delta) for each in reply.agreed])
        return found

    async def scene() -> None:
        wanted, honest = specification("one-pass-dp-sgd"), Honest.of(USERS, ())
        async with coordinator(tmp_path) as first, crowd(first.listen, USERS) as peers:
            await first.manager.submit(wanted.as_text())
            work = [asyncio.create_task(peer.work(honest)) for peer in peers]
            await complete(first)
            await asyncio.gather(*work)
            plan = await first.manager.records.plan("trial")
        async with coordinator(tmp_path) as second, crowd(second.listen, USERS + 1) as peers:
            found = await enrolled(second.listen, peers)
        factor = 2 if plan["guarantee"]["adjacency"] == "zero-out" else 1
        assert all(len(each) == 1 and each[0][:2] == ("trial", factor * wanted.epsilon) for each in found[:USERS])
        assert found[USERS] == []

    carried_out(scene())


def test_an_older_record_with_its_count_is_refused_by_name(data: Path) -> None:
    """Every file of a client, put back together: only the coordinator can tell."""

    async def scene() -> None:
        async with scripted() as fake:
            async with running(made(data, fake.port)):
                await fake.hears("hello")
            older = {each: each.read_bytes() for each in data.parent.glob("record.sqlite*")}
            async with running(made(data, fake.port)):
                await fake.hears("hello")
                assert await fake.announce("r", terms())
                assert (await fake.ask(asked())).status == Status.ANSWERED
            fake.agreed.append(said("r", 1.0))
            for each, content in older.items():
                each.write_bytes(content)
            assert "to know run 'r'" in await ended(made(data, fake.port))

    carried_out(scene())
