"""A client: whose data it answers from, and that this is so, before it says a word to a coordinator.

asyncio.run(run_client(ClientConfig(coordinator="localhost:7443", data=Path("mine.csv"), ...)))
"""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from quoron_client.federation.config import ClientConfig
from quoron_client.federation.record import Record
from quoron_client.federation.session import converse
from quoron_client.federation.work import Worker
from quoron_client.protocol.identity import check_identity, warn_of_readers
from quoron_privacy.kernels.on_first_use import OnFirstUse

if TYPE_CHECKING:
    from quoron_client.federation import masking
else:
    masking = OnFirstUse("quoron_client.federation.masking")  # of two servers alone


async def run_client(config: ClientConfig, *, stop: asyncio.Event | None = None) -> None:
    """Take part in a coordinator's runs until `stop` is set; without it, for ever. With a user column, take part for
    everybody in the file.

    Raises what `Worker.of` and `take_part` do.
    """
    await take_part(config, stop=stop, worker=Worker.of)


async def take_part(
    config: ClientConfig,
    *,
    stop: asyncio.Event | None = None,
    worker: Callable[[ClientConfig, Record], Worker],
) -> None:
    """As `run_client`, with what `worker` makes to answer in its name.

    Raises what `worker` and `session.converse` do, IdentityError for files that will not do at the start, LedgerError
    for a record that cannot be read.
    """
    if config.certificate is not None and config.key is not None and config.authority is not None:
        check_identity(config.certificate, config.key, config.authority)
    epsilon, delta = config.lifetime_epsilon, config.lifetime_delta
    choices = {"anew": config.new_record, "other_database": config.other_database}
    with Record.open(config.record, epsilon=epsilon, delta=delta, **choices) as record:
        for path in (config.record, config.key):
            warn_of_readers(path)
        works = await asyncio.to_thread(worker, config, record)
        if config.second_server_key is not None and config.certificate is not None:
            works.pinned = masking.Pinned.read(config.second_server_key, config.certificate)
        await converse(config, works, asyncio.Event() if stop is None else stop)
