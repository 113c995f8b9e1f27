"""Silos for the tests of the service: real clients that hold the items of several people each."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import grpc
import numpy as np
import pyarrow.parquet as pq

from federation.crowd import SEED, Peer, from_items, items
from quoron.engine.inline import InlineEngine
from quoron_client.federation import ClientConfig, run_client
from quoron_client.protocol import wire
from quoron_client.protocol.questions import Answers, Question
from quoron_protos.v1 import federation_pb2 as pb
from quoron_server.service import Coordinator


def write_silos(folder: Path, sizes: Sequence[int]) -> list[Path]:
    """One file a silo, of the people of `crowd.items` in their order, with the column that names them."""
    table, paths, first = items(sum(sizes)), [], 0
    for number, size in enumerate(sizes):
        paths.append(folder / f"silo-{number}.parquet")
        pq.write_table(table.slice(4 * first, 4 * size), paths[-1])
        first += size
    return paths


def silo_config(path: Path, listen: str, **changes: object) -> ClientConfig:
    """A silo's client, for trials."""
    options: dict[str, object] = {
        "coordinator": listen,
        "data": path,
        "record": path.with_suffix(".sqlite"),
        "lifetime_epsilon": float("inf"),
        "lifetime_delta": 1.0,
        "accept_trust_models": ("central-release", "central-broadcast", "local", "none"),
        "insecure": True,
        "client_name": path.stem,
        "retry_seconds": 0.01,
        "simulation_seed": SEED,
        "user_column": "who",
    }
    return ClientConfig(**(options | changes))


@contextlib.asynccontextmanager
async def clients_of(
    configs: Sequence[ClientConfig], running: Coordinator, *, before: int = 0
) -> AsyncIterator[list[asyncio.Task[None]]]:
    """Clients that enrol one after the other, after as many as are there, and are stopped in the end."""
    stop, tasks = asyncio.Event(), []
    try:
        for number, config in enumerate(configs, before):
            tasks.append(asyncio.create_task(run_client(config, stop=stop)))
            while running.sessions.connected <= number:
                assert not tasks[-1].done(), tasks[-1].result()
                await asyncio.sleep(0.001)
        yield tasks
    finally:
        stop.set()
        await asyncio.gather(*tasks)


@dataclass
class HonestSilos:
    """Answers for the people of scripted silos as the inline engine does, and as a silo's client would say it."""

    people: Mapping[int, int]  # of each silo, by its first user
    engine: InlineEngine
    asked: list[tuple[int, int, tuple[int, ...]]] = field(default_factory=list)  # silo, round, users

    @classmethod
    def of(cls, sizes: Sequence[int]) -> "HonestSilos":
        firsts = np.cumsum([0, *sizes])[:-1].tolist()
        return cls(dict(zip(firsts, sizes, strict=True)), InlineEngine(from_items(sum(sizes)), seed=SEED))

    def rows(self, user: int, message: pb.Question) -> Answers:
        _, number, _, task = wire.question_from_wire(message)
        people = self.people[user]
        users = user + (wire.persons_of(message.persons, people=people) if people > 1 else np.zeros(1, np.int64))
        self.asked.append((user, number, tuple(users.tolist())))
        smoothing = getattr(task, "smoothing", None)
        if hasattr(smoothing, "seed"):
            task = replace(task, smoothing=replace(smoothing, seed=SEED))
        return self.engine.rows(Question(number, users, task))

    def __call__(self, user: int, message: pb.Question) -> pb.Answer | None:
        name, found = wire.question_name(message), self.rows(user, message)
        if not message.HasField("sums"):
            return wire.rows_to_wire(*name, found)
        return wire.sums_to_wire(*name, wire.reduction_from_wire(message.sums).of(found.values, found.answered))


Lie = Callable[[pb.Answer], pb.Answer | None]


@dataclass
class Lying(HonestSilos):
    """One of them says something else in place of what it would."""

    liar: int = -1
    lie: Lie | None = None

    def __call__(self, user: int, message: pb.Question) -> pb.Answer | None:
        answer = HonestSilos.__call__(self, user, message)
        return self.lie(answer) if user == self.liar and self.lie is not None and answer is not None else answer


@contextlib.asynccontextmanager
async def scripted(where: str, sizes: Sequence[int]) -> AsyncIterator[list[Peer]]:
    """Enrolled and greeted silos of so many people each, over one plaintext channel."""
    async with grpc.aio.insecure_channel(where) as channel:
        peers = [Peer(channel, f"silo-{number}", people=size if size > 1 else 0) for number, size in enumerate(sizes)]
        for peer, first in zip(peers, np.cumsum([0, *sizes]), strict=False):
            assert await peer.enrol() == first
        await asyncio.gather(*(peer.hello() for peer in peers))
        yield peers
