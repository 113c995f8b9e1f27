"""The command of one user's client, or of an organisation's that says that it is one user."""

import json
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from quoron.cli.common import Text
from quoron.cli.connection import (
    CLIENTS,
    Anywhere,
    Authority,
    Certificate,
    Insecure,
    Key,
    LogFormat,
    LogLevel,
    begin,
    check_environment,
    shared_options,
)
from quoron.cli.helper import HelperKey
from quoron_privacy.errors import RunError, printable


@shared_options
def client(
    text: Text,
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
        float, typer.Option(envvar="QUORON_LIFETIME_EPSILON", help="Most ε of a person over all runs, ever.")
    ] = 1.0,
    lifetime_delta: Annotated[
        float, typer.Option(envvar="QUORON_LIFETIME_DELTA", help="Most δ of a person over all runs, ever.")
    ] = 1e-5,
    accept: Annotated[
        list[str] | None,
        typer.Option(
            help="A trust model to take part in, once for each, and public-participation for runs that tell who "
            "answers. "
            "Replaces the default, which is broadcast and local; two-servers needs --helper-key."
        ),
    ] = None,
    helper_key: HelperKey = None,
    insecure: Insecure = False,
    insecure_anywhere: Anywhere = False,
    name: Annotated[str | None, typer.Option(envvar="QUORON_NAME", help="Who this is, with --insecure.")] = None,
    simulation_seed: Annotated[
        int | None, typer.Option(help="Take part in simulations with this seed: made-up data only.")
    ] = None,
    user: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN",
            envvar="QUORON_USER",
            help="Whose each row is: a silo, which answers for everybody in its file, each a user of the federation.",
        ),
    ] = None,
    people: Annotated[
        int | None,
        typer.Option(
            min=1,
            envvar="QUORON_PEOPLE",
            help="For how many it answers, for ever: the file may hold fewer. Default: as many as it holds at first.",
        ),
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
    log_format: LogFormat = "text",
    log_level: LogLevel = "info",
    check: Annotated[
        bool, typer.Option("--check", help="Only look whether the data can be one user's; nothing is sent.")
    ] = False,
) -> None:
    """Take part in a federation with one user's data, or a silo's, within the limits of each person."""
    import asyncio

    from quoron_client import federation
    from quoron_client.federation.own_table import check_one_user

    begin(log_format, log_level)
    dialect = text.dialect()
    if check:
        if user is not None:
            from quoron_client.federation.own_people import names_in

            print(f"{data}: {len(names_in(data, user, dialect)):,} people, by column {printable(user)}.")
            return
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
        helper_key=helper_key,
        accept_trust_models=tuple(accept or ("central-broadcast", "local")),
        simulation_seed=simulation_seed,
        one_user=one_user,
        items_per_user=items_per_user,
        user_column=user,
        people=people,
    )
    asyncio.run(_until_signalled(federation.run_client, config))


def leave(
    record: Annotated[Path, typer.Option(envvar="QUORON_RECORD", help="The durable record of this user's client.")],
    certificate: Annotated[Path | None, typer.Option(help="This user's certificate, which is erased too.")] = None,
    key: Annotated[Path | None, typer.Option(help="Its private key, which is erased too.")] = None,
    receipt: Annotated[Path | None, typer.Option(help="Write the receipt there too, as JSON.")] = None,
    for_good: Annotated[
        bool, typer.Option("--for-good", help="Do it: nothing takes it back. Without, what it would erase is shown.")
    ] = False,
) -> None:
    """Leave a federation: this user's client never answers again, and what it kept is erased but that it has left."""
    from quoron_client.federation import leaving

    if not for_good:
        print("This would erase, for good (--for-good does it):")
        for each in leaving.would_erase(record, certificate=certificate, key=key):
            print(f"  {each}")
        return
    done = leaving.leave(record, certificate=certificate, key=key)
    give_receipt(done.as_json(), done.words(), receipt)


def give_receipt(told: dict[str, Any], words: str, where: Path | None) -> None:
    """Show a receipt, after it is written where somebody wants it; RunError if it cannot be."""
    from quoron_client.durable import PRIVATE, replace_whole

    if where is not None:
        try:
            replace_whole(where, f"{json.dumps(told, indent=1)}\n".encode(), mode=PRIVATE)
        except OSError as error:
            raise RunError(
                f"Expected to write the receipt to {where}, cannot: {error.strerror}. All is done: say the same again "
                "with another place."
            ) from None
    print(printable(words))


async def _until_signalled(work: Callable[..., Awaitable[None]], config: Any) -> None:
    """`work` until SIGTERM or SIGINT."""
    import asyncio

    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await work(config, stop=stop)
