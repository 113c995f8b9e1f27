"""The coordinator leaves and comes back, its clients with it; and callers who would use up its memory."""

import asyncio
from pathlib import Path

import numpy as np

from federation.crowd import (
    SEED,
    carried_out,
    complete,
    coordinator,
    crowd,
    from_items,
    inline_model,
    specification,
    until,
    write_items,
)
from quoron.engine.processors import free_port
from quoron_client.federation import ClientConfig, run_client
from quoron_server.service import Coordinator

USERS = 20


async def connected(running: Coordinator, users: int) -> None:
    await until(lambda: running.sessions.connected >= users)


def test_clients_survive_an_orderly_stop_and_answer_the_next_coordinator(tmp_path: Path) -> None:
    wanted, paths = specification("one-pass-dp-sgd", trust_clients=True), write_items(tmp_path, USERS)

    def client(where: str, user: int, stop: asyncio.Event) -> asyncio.Task[None]:
        config = ClientConfig(
            coordinator=where,
            data=paths[user],
            record=tmp_path / f"record-{user}.sqlite",
            lifetime_epsilon=100.0,
            lifetime_delta=0.5,
            insecure=True,
            client_name=f"client-{user}",
            retry_seconds=0.05,
            simulation_seed=SEED,
        )
        return asyncio.create_task(run_client(config, stop=stop))

    async def scene() -> np.ndarray:
        stop = asyncio.Event()
        where = f"127.0.0.1:{free_port()}"
        async with coordinator(tmp_path, listen=where) as running:
            async with crowd(where, USERS):  # enrolled in order
                pass
            clients = [client(where, user, stop) for user in range(USERS)]
            await connected(running, USERS)
        async with coordinator(tmp_path, listen=where) as running:
            await connected(running, USERS)
            assert not any(each.done() for each in clients)
            await running.manager.submit(wanted.as_text())
            model = await complete(running)
            stop.set()
            await asyncio.gather(*clients)
            return model

    model = carried_out(scene())
    np.testing.assert_array_equal(model, inline_model(wanted, tmp_path, from_items(USERS)))
