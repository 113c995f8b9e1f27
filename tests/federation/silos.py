"""Silos for the tests of the service: real clients that hold the items of several people each."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pyarrow.parquet as pq

from federation.crowd import SEED, items
from quoron_client.federation import ClientConfig, run_client


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
        "accept_exposures": ("model", "broadcast", "local", "none"),
        "insecure": True,
        "client_name": path.stem,
        "retry_seconds": 0.01,
        "simulation_seed": SEED,
        "user_column": "who",
    }
    return ClientConfig(**(options | changes))


@contextlib.asynccontextmanager
async def clients_of(configs: Sequence[ClientConfig], running) -> AsyncIterator[list[asyncio.Task[None]]]:
    """Clients that enrol one after the other, and are stopped in the end."""
    stop, tasks = asyncio.Event(), []
    try:
        for number, config in enumerate(configs):
            tasks.append(asyncio.create_task(run_client(config, stop=stop)))
            while running.sessions.connected <= number:
                assert not tasks[-1].done(), tasks[-1].result()
                await asyncio.sleep(0.001)
        yield tasks
    finally:
        stop.set()
        await asyncio.gather(*tasks)
