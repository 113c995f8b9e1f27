"""A client: whose data it answers from, and that this is so, before it says a word to a coordinator.

asyncio.run(run_client(ClientConfig(coordinator="localhost:7443", data=Path("mine.csv"), ...)))
"""

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from quoron_client.federation.config import PUBLIC_PARTICIPATION, TWO_SERVERS, ClientConfig
from quoron_client.federation.own_table import check_one_user
from quoron_client.federation.record import Record
from quoron_client.federation.record_file import welcomed
from quoron_client.federation.session import converse
from quoron_client.federation.work import SiloWorker, Worker
from quoron_client.protocol.identity import check_identity, warn_of_readers
from quoron_privacy.errors import ConfigError, DataError
from quoron_privacy.kernels.on_first_use import OnFirstUse

if TYPE_CHECKING:
    from quoron_client.federation import masking
else:
    masking = OnFirstUse("quoron_client.federation.masking")  # of two servers alone

_log = logging.getLogger("quoron.client")


async def run_client(config: ClientConfig, *, stop: asyncio.Event | None = None) -> None:
    """Take part in a coordinator's runs until `stop` is set; without it, for ever. With a user column, take part for
    everybody in the file: `SiloWorker`.

    Raises DataError, before it has ever enrolled, for a data file that cannot be read or looks like several people's. A
    client that accepts public participation does not look at its file before: it raises ConfigError unless `one_user`
    is declared. Otherwise raises as `take_part` does.
    """
    if config.user_column is not None:
        await take_part(config, stop=stop, worker=SiloWorker.of)
        return
    alone, items, dialect = config.one_user, config.items_per_user, config.dialect
    timely = [each for each in (PUBLIC_PARTICIPATION, TWO_SERVERS) if each in config.accept_trust_models]
    public = bool(timely)
    if public and not alone:
        raise ConfigError(
            f"Expected --one-user with --accept {timely[0]}, got none: a client that looks at its file before it comes "
            "up would tell of that, too. Say it once you know that all rows are one user's (quoron client --check)."
        )
    try:
        if not public:
            await asyncio.to_thread(check_one_user, config.data, one_user=alone, items_per_user=items, dialect=dialect)
    except DataError as error:
        if not await asyncio.to_thread(welcomed, config.record):
            raise
        # The coordinator draws members from those who connect: whether this one does may not be a function of its data.
        _log.warning("%s This client is enrolled already, so it connects all the same.", error)
    await take_part(config, stop=stop)


async def take_part(
    config: ClientConfig,
    *,
    stop: asyncio.Event | None = None,
    worker: Callable[[ClientConfig, Record], Worker] = Worker,
) -> None:
    """As `run_client`, for data that is one user's for sure, with whatever answers in its name.

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
