"""The command of one user's client, or of an organisation's that says that it is one user."""

import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from quoron.cli.common import Decimal, Encoding, Quoting, Separator
from quoron.cli.connection import (
    CLIENTS,
    Anywhere,
    Authority,
    Certificate,
    Insecure,
    Key,
    check_environment,
    limit_log,
)


def client(
    data: Annotated[
        Path, typer.Option(envvar="QUORON_DATA", help="This user's items: .csv, .tsv, .jsonl, .parquet or .feather.")
    ],
    coordinator: Annotated[
        str, typer.Option(envvar="QUORON_COORDINATOR", metavar="HOST:PORT", help="Where the coordinator is.")
    ] = CLIENTS,
    certificate: Certificate = None,
    key: Key = None,
    authority: Authority = None,
    record: Annotated[
        Path, typer.Option(envvar="QUORON_RECORD", help="Durable record of what was answered; keep it.")
    ] = Path("quoron-record.sqlite"),
    new_record: Annotated[
        bool,
        typer.Option(
            "--new-record", help="Once: an older or empty record is all that is left; count what is known as spent."
        ),
    ] = False,
    other_books: Annotated[
        bool,
        typer.Option(
            "--other-books", help="Once: take a coordinator's books that are older than those seen, or others."
        ),
    ] = False,
    lifetime_epsilon: Annotated[
        float, typer.Option(envvar="QUORON_LIFETIME_EPSILON", help="Most ε over all runs, ever.")
    ] = 1.0,
    lifetime_delta: Annotated[
        float, typer.Option(envvar="QUORON_LIFETIME_DELTA", help="Most δ over all runs, ever.")
    ] = 1e-5,
    accept: Annotated[
        list[str] | None,
        typer.Option(
            help="An exposure to take part in, once for each, and public-attendance for runs that tell who answers. "
            "Replaces the default, which is broadcast and local."
        ),
    ] = None,
    insecure: Insecure = False,
    insecure_anywhere: Anywhere = False,
    name: Annotated[str | None, typer.Option(envvar="QUORON_NAME", help="Who this is, with --insecure.")] = None,
    simulation_seed: Annotated[
        int | None, typer.Option(help="Take part in simulations with this seed: made-up data only.")
    ] = None,
    one_user: Annotated[
        bool,
        typer.Option(
            "--one-user",
            envvar="QUORON_ONE_USER",
            help="All rows are one user's, whosever they are: promises are about this client as a whole.",
        ),
    ] = False,
    items_per_user: Annotated[
        int | None,
        typer.Option(min=1, envvar="QUORON_ITEMS_PER_USER", help="What a person holds; ten times more is asked about."),
    ] = None,
    separator: Separator = None,
    decimal: Decimal = ".",
    encoding: Encoding = None,
    quoting: Quoting = "double",
    check: Annotated[
        bool, typer.Option("--check", help="Only look whether the data can be one user's; nothing is sent.")
    ] = False,
) -> None:
    """Take part in a federation with one user's data, within that user's own limits."""
    import asyncio

    from quoron_client import federation
    from quoron_client.data.dialect import Dialect
    from quoron_client.federation import core_dumps
    from quoron_client.federation.own_table import check_one_user

    core_dumps.switch_off()
    dialect = Dialect(separator, decimal, encoding, quoting)
    if check:
        check_one_user(data, one_user=one_user, items_per_user=items_per_user, dialect=dialect)
        print(f"{data}: {'one client, as you say' if one_user else 'the rows of one person, as far as they show'}.")
        return
    check_environment(plaintext=insecure or insecure_anywhere)
    config = federation.ClientConfig(
        coordinator=coordinator,
        data=data,
        dialect=dialect,
        record=record,
        new_record=new_record,
        other_books=other_books,
        lifetime_epsilon=lifetime_epsilon,
        lifetime_delta=lifetime_delta,
        certificate=certificate,
        key=key,
        authority=authority,
        insecure=insecure,
        insecure_anywhere=insecure_anywhere,
        client_name=name,
        accept_exposures=tuple(accept or ("broadcast", "local")),
        simulation_seed=simulation_seed,
        one_user=one_user,
        items_per_user=items_per_user,
    )
    limit_log()
    asyncio.run(_until_signalled(federation.run_client, config))


async def _until_signalled(work: Callable[..., Awaitable[None]], config: Any) -> None:
    """`work` until SIGTERM or SIGINT."""
    import asyncio

    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await work(config, stop=stop)
