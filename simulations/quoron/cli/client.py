"""The command of one user's client, or of an organisation's that says that it is one user."""

import json
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from quoron.cli.common import RARE, Csv, dialect, keyed, natural, whole
from quoron.cli.connection import CERTIFICATE, CLIENTS, KEY, Certs, Files, Insecure, Log, anywhere, begin
from quoron.cli.second_server import SecondServerKey
from quoron_privacy.errors import ConfigError, printable

Limit = Annotated[
    str, typer.Option(envvar="QUORON_LIMIT", metavar="EPSILON,DELTA", help="What a user may spend over all runs, ever.")
]

SETTINGS: dict[str, Callable[[str, str], Any]] = {  # a key of --set, and how it is read
    "users": whole,
    "items_per_user": whole,
    "name": lambda _, text: text,
    "seed": natural,
}


def client(
    data: Annotated[
        Path, typer.Option(envvar="QUORON_DATA", help="This user's items: .csv, .tsv, .jsonl, .parquet or .feather.")
    ],
    coordinator: Annotated[
        str, typer.Option(envvar="QUORON_COORDINATOR", metavar="HOST:PORT", help="Where the coordinator is.")
    ] = CLIENTS,
    certs: Certs = None,
    state: Annotated[
        Path, typer.Option(envvar="QUORON_STATE", help="Client state: a durable record of its answers. Keep it.")
    ] = Path("quoron-state.sqlite"),
    new_state: Annotated[
        bool,
        typer.Option(
            "--new-state",
            help="Once: accept an older or empty state; what others know counts as spent.",
            rich_help_panel=RARE,
        ),
    ] = False,
    accept_other_database: Annotated[
        bool,
        typer.Option(
            "--accept-other-database",
            help="Once: accept a coordinator's older or other database.",
            rich_help_panel=RARE,
        ),
    ] = False,
    limit: Limit = "1,1e-5",
    accept: Annotated[
        list[str] | None,
        typer.Option(
            help="A trust model to take part in, once for each, and public-participation for runs that tell who "
            "answers. Replaces the default, central-broadcast and local; two-servers needs --second-server-key."
        ),
    ] = None,
    second_server_key: SecondServerKey = None,
    insecure: Insecure = False,
    user: Annotated[
        str | None, typer.Option(metavar="COLUMN", envvar="QUORON_USER", help="Of a silo: whose each row is.")
    ] = None,
    one_user: Annotated[
        bool, typer.Option("--one-user", envvar="QUORON_ONE_USER", help="All rows are one user's, whosever they are.")
    ] = False,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="users=N, of a silo for ever (default: those in the file); items_per_user=N (ten times more is asked "
            "about); name=WHO, with --insecure; seed=N, for simulations of made-up data only. Also QUORON_USERS...",
            rich_help_panel=RARE,
        ),
    ] = None,
    csv: Csv = None,
    log: Log = "info",
    check: Annotated[
        bool, typer.Option("--check", help="Only check whether the data can be one user's; nothing is sent.")
    ] = False,
) -> None:
    """Take part in a federation with one user's data, or a silo's, within the limits of each user."""
    import asyncio

    from quoron_client import federation
    from quoron_client.federation.own_table import check_one_user

    begin(log)
    written, said = dialect(csv), keyed("--set", settings, SETTINGS, "QUORON_")
    items_per_user = said.get("items_per_user")
    if check:
        if user is not None:
            from quoron_client.federation.own_table import names_in

            print(f"{data}: {len(names_in(data, user, written)):,} users, by column {printable(user)}.")
            return
        check_one_user(data, one_user=one_user, items_per_user=items_per_user, dialect=written)
        print(f"{data}: {'one client, as you say' if one_user else 'the rows of one user, as far as they show'}.")
        return
    epsilon, delta = _limit(limit)
    own = Files.of(certs, insecure=insecure)
    config = federation.ClientConfig(
        coordinator=coordinator,
        data=data,
        dialect=written,
        record=state,
        new_record=new_state,
        other_database=accept_other_database,
        lifetime_epsilon=epsilon,
        lifetime_delta=delta,
        certificate=own.certificate,
        key=own.key,
        authority=own.authority,
        insecure=insecure,
        insecure_anywhere=anywhere(insecure),
        client_name=said.get("name"),
        second_server_key=second_server_key,
        accept_trust_models=tuple(accept or ("central-broadcast", "local")),
        simulation_seed=said.get("seed"),
        one_user=one_user,
        items_per_user=items_per_user,
        user_column=user,
        people=said.get("users"),
    )
    asyncio.run(_until_signalled(federation.run_client, config))


def _limit(text: str) -> tuple[float, float]:
    """Read ε and δ. ConfigError for another text."""
    try:
        epsilon, delta = map(float, text.split(","))
    except ValueError:
        raise ConfigError(f"Expected --limit EPSILON,DELTA, such as 1,1e-5, got {text!r}.") from None
    return epsilon, delta


def leave(
    state: Annotated[Path, typer.Option(envvar="QUORON_STATE", help="The state of this user's client.")],
    certs: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="This user's certificate and key, which are erased too.")
    ] = None,
    receipt: Annotated[Path | None, typer.Option(help="Write the receipt there too, as JSON.")] = None,
    yes: Annotated[
        bool, typer.Option("--yes", help="Do it, irrevocably. Without, only list what would be erased.")
    ] = False,
) -> None:
    """Leave a federation: the client never answers again, and what it kept is erased, except that it has left."""
    from quoron_client.federation import account

    own = {} if certs is None else {"certificate": certs / CERTIFICATE, "key": certs / KEY}
    if not yes:
        print("This would erase, irrevocably (--yes does it):")
        for what in account.would_erase(state, **own):
            print(f"  {what}")
        return
    done = account.leave(state, **own)
    give_receipt(done.as_json(), done.words(), receipt)


def give_receipt(told: dict[str, Any], words: str, where: Path | None) -> None:
    """Show a receipt, after it is written where somebody wants it; RunError if it cannot be."""
    if where is not None:
        from quoron.run_folder import write
        from quoron_client.durable import PRIVATE

        again = "All is done: say the same again with another place."
        write(where, f"{json.dumps(told, indent=1)}\n".encode(), advice=again, mode=PRIVATE)
    print(printable(words))


async def _until_signalled(work: Callable[..., Awaitable[None]], config: Any) -> None:
    """`work` until SIGTERM or SIGINT."""
    import asyncio

    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for signalled in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signalled, stop.set)
    await work(config, stop=stop)
