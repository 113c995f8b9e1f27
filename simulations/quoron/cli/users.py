"""`quoron users`: who takes part in a federation, who leaves, who comes in whose place, how a run drew its members."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from quoron.cli.client import give_receipt
from quoron.cli.connection import Connection, shared_options
from quoron.cli.tokens import Json
from quoron_privacy.errors import ConfigError, RunError, printable

users = typer.Typer(
    help="The users of a federation: list, retire, replace; how members were drawn.", no_args_is_help=True
)

Who = Annotated[list[str], typer.Argument(metavar="USER...", help="Number, name or fingerprint.")]


@users.command("list")
@shared_options
def list_users(
    connection: Connection,
    group: Annotated[str | None, typer.Option(help="Of this group only.")] = None,
    state: Annotated[str | None, typer.Option(metavar="active|away|retired", help="In this state only.")] = None,
    as_json: Json = False,
) -> None:
    """Number, name, group, state and why, when last seen, and what its client runs. A silo is one line."""
    with connection.open() as control:
        for each in control.users(group=group or "", state=state or ""):
            print(json.dumps(each, ensure_ascii=False) if as_json else printable(_line(each)))


def _line(user: dict[str, Any]) -> str:
    state = f"{user['state']}: {user['why']}" if user["why"] else user["state"]
    named = user["name"] or user["fingerprint"][:16]
    last = user["user"] + user["people"] - 1
    number = str(last) if user["people"] == 1 else f"{user['user']}-{last}"
    named += "" if user["people"] == 1 else f" ({user['people']:,} people)"
    return "\t".join((number, named, user["group"], state, f"seen {user['seen']}", user["software"])).rstrip()


@users.command()
@shared_options
def retire(connection: Connection, who: Who) -> None:
    """Members of no run that begins from now on. What was promised to them stands."""
    _change(connection, "retire", who)


@users.command()
@shared_options
def away(connection: Connection, who: Who) -> None:
    """Members of no run that begins until they are said to be back, whether they connect or not."""
    _change(connection, "away", who)


@users.command()
@shared_options
def back(connection: Connection, who: Who) -> None:
    """Take back that they are away or retired."""
    _change(connection, "back", who)


def _change(connection: Connection, action: str, who: list[str]) -> None:
    with connection.open() as control:
        for each in who:
            print(printable(control.change_user(action, each)))


@users.command()
@shared_options
def replace(
    connection: Connection,
    old: Annotated[str, typer.Argument(metavar="OLD", help="Number, name or fingerprint.")],
    new: Annotated[
        str | None, typer.Argument(metavar="[NEW]", help="Who has the seat: another user, enrolled.")
    ] = None,
    rotation: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="In place of NEW: a new key of the same user, signed by the old."),
    ] = None,
) -> None:
    """Give a user's seat to another, from the next run on; or, by its old key's signature, to its own new key."""
    if (new is None) == (rotation is None):
        raise ConfigError(f"Expected NEW or --rotation, got {'neither' if new is None else 'both'}.")
    try:
        statement = "" if rotation is None else rotation.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ConfigError(f"Expected a rotation in {rotation}, cannot read it: {error}.") from None
    with connection.open() as control:
        print(printable(control.change_user("replace", old, by=new or "", rotation=statement)))


@users.command()
def rotation(
    key: Annotated[Path, typer.Option(help="The old key, PEM: it says that the new one follows it.")],
    new_key: Annotated[Path, typer.Option(help="The new key, PEM.")],
    out: Annotated[Path, typer.Option(help="Where to write what both have signed, for the operator.")],
) -> None:
    """Sign a new key by the old one, where both are: the same user, with the same lifetime budget."""
    from quoron_client.durable import PUBLIC, replace_whole
    from quoron_client.protocol.rotation import sign

    text = sign(key, new_key)
    try:
        replace_whole(out, f"{text}\n".encode(), mode=PUBLIC)
    except OSError as error:
        raise RunError(f"Cannot write a rotation to {out}: {error.strerror}. Choose another place.") from None
    print(out)


@users.command()
@shared_options
def forget(
    connection: Connection,
    user: Annotated[str, typer.Argument(metavar="USER", help="Number, name or fingerprint.")],
    certificates: Annotated[
        Path | None,
        typer.Option("--certs", metavar="FOLDER", help="Revoke its key there, and erase its certificate and key."),
    ] = None,
    database: Annotated[
        str | None,
        typer.Option(help="In these books, which no process has open: sqlite:///FILE or postgresql://..."),
    ] = None,
    receipt: Annotated[Path | None, typer.Option(help="Write the receipt there too, as JSON.")] = None,
    for_good: Annotated[
        bool, typer.Option("--for-good", help="Do it: nothing takes it back. Without, who it would be is shown.")
    ] = False,
) -> None:
    """Erase who a user was that has left, and keep its key out for ever. What was promised and released stands."""
    from quoron.operate import closed_books, forgetting

    def ask(who: str, sure: bool) -> dict[str, Any]:
        if database is not None:
            return closed_books.forget(database, who, sure=sure)
        with connection.open() as control:
            return control.forget_user(who, sure=sure)

    if not for_good:
        print(printable(f"This would erase, for good (--for-good does it), who this was:\n  {_line(ask(user, False))}"))
        return
    done = forgetting.forget(ask, user, certificates=certificates)
    give_receipt(done.as_json(), done.words(), receipt)


@users.command()
@shared_options
def drawn(
    connection: Connection,
    run: Annotated[str, typer.Argument(metavar="RUN", help="Name of a run.")],
    as_json: Json = False,
) -> None:
    """Draw the members of a run again, here; exit code 1 if the coordinator's, or those on its chain, are others."""
    import numpy as np

    from quoron_server.books.drawing import Draw, draw, seed_of

    with connection.open() as control:
        told, chain = control.drawn(run), control.ledger()["rows"]
    active, members = (np.array(told[key], dtype=np.int64) for key in ("users", "drawn"))
    seed = seed_of(run, told["specification"])
    again = Draw(seed, active, draw(seed, active, len(members)))
    charged = (row["payload"] for row in chain if row["kind"] == "charge" and row["payload"]["run"] == run)
    noted = [("on the chain", each["drawn"]) for each in charged if "drawn" in each]
    if as_json:
        print(json.dumps(told | {"again": again.members.tolist()}))
    else:
        print(f"{run}: {len(members)} of {len(active)} active users, by seed {seed}")
        print(" ".join(map(str, members.tolist())))
    for words, wanted in (("that its seed draws", told), *noted):
        if again.members.tolist() != members.tolist() or not again.as_json().items() <= wanted.items():
            raise RunError(f"Expected the members of run {run} to be those {words}, got others.")
