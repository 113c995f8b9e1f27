"""`quoron admin users`: who takes part in a federation, leaves, or replaces whom; how members were drawn."""

import json
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from quoron.cli.client import give_receipt
from quoron.cli.connection import connects, reached
from quoron.cli.tokens import Json
from quoron_privacy.errors import ConfigError, RunError, printable

users = typer.Typer(help="The users of a federation: list, set, replace, forget.", no_args_is_help=True)

_ACTIONS = {"retired": "retire", "away": "away", "active": "back"}


@users.command("list")
@connects
def list_users(
    as_json: Json = False,
) -> None:
    """List number, name, population, state and why, when last seen, and what its client runs. A silo is one line."""
    with reached().control() as control:
        for each in control.users():
            print(json.dumps(each, ensure_ascii=False) if as_json else printable(_line(each)))


def _line(user: dict[str, Any]) -> str:
    state = f"{user['state']}: {user['why']}" if user["why"] else user["state"]
    named = user["name"] or user["fingerprint"][:16]
    last = user["user"] + user["people"] - 1
    number = str(last) if user["people"] == 1 else f"{user['user']}-{last}"
    named += "" if user["people"] == 1 else f" ({user['people']:,} people)"
    return "\t".join((number, named, user["group"], state, f"seen {user['seen']}", user["software"])).rstrip()


@users.command("set")
@connects
def set_users(
    who: Annotated[list[str], typer.Argument(metavar="USER...", help="Number, name or fingerprint.")],
    state: Annotated[Literal["retired", "away", "active"], typer.Argument(help="Of all of them.")],
) -> None:
    """Draw users for no run that begins from now on: retired for good, away until they are active again.

    What was promised to them stands. Users who are away are not drawn even if they connect.
    """
    with reached().control() as control:
        for user in who:
            print(printable(control.change_user(_ACTIONS[state], user)))


@users.command()
@connects
def replace(
    old: Annotated[str, typer.Argument(metavar="OLD", help="Number, name or fingerprint.")],
    new: Annotated[str | None, typer.Argument(metavar="[NEW]", help="Who has the seat: a user, enrolled.")] = None,
    rotation: Annotated[Path | None, typer.Option(metavar="FILE", help="A new key of OLD, signed by the old.")] = None,
) -> None:
    """Give a user's seat to another, from the next run on; or, by its old key's signature, to its own new key."""
    if (new is None) == (rotation is None):
        raise ConfigError(f"Expected NEW or --rotation, got {'neither' if new is None else 'both'}.")
    try:
        statement = "" if rotation is None else rotation.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ConfigError(f"Expected a rotation in {rotation}, cannot read it: {error}.") from None
    with reached().control() as control:
        print(printable(control.change_user("replace", old, by=new or "", rotation=statement)))


@users.command()
def rotation(
    key: Annotated[Path, typer.Option(help="The old key, PEM: it says that the new one follows it.")],
    new_key: Annotated[Path, typer.Option(help="The new key, PEM.")],
    out: Annotated[Path, typer.Option(help="Where to write what both have signed, for the operator.")],
) -> None:
    """Sign a new key by the old one, where both are: the same user, with the same lifetime budget."""
    from quoron_client.durable import PUBLIC, replace_whole
    from quoron_client.protocol.identity import sign

    text = sign(key, new_key)
    try:
        replace_whole(out, f"{text}\n".encode(), mode=PUBLIC)
    except OSError as error:
        raise RunError(f"Cannot write a rotation to {out}: {error.strerror}. Choose another place.") from None
    print(out)


@users.command()
@connects
def forget(
    user: Annotated[str, typer.Argument(metavar="USER", help="Number, name or fingerprint.")],
    certificates: Annotated[
        Path | None, typer.Option("--certs", metavar="FOLDER", help="Revoke its key there, and erase its files.")
    ] = None,
    receipt: Annotated[Path | None, typer.Option(help="Write the receipt there too, as JSON.")] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do it, for good; without, who it would be is shown.")] = False,
) -> None:
    """Erase who a user was that has left, and keep its key out for ever. What was promised and released stands."""
    from quoron.operate import forgetting

    def ask(who: str, sure: bool) -> dict[str, Any]:
        with reached(books=True).books() as books:
            return books.forget_user(who, sure=sure)

    if not yes:
        print(printable(f"This would erase, for good (--yes does it), who this was:\n  {_line(ask(user, False))}"))
        return
    done = forgetting.forget(ask, user, certificates=certificates)
    give_receipt(done.as_json(), done.words(), receipt)


@users.command()
@connects
def drawn(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Name of a run.")],
    as_json: Json = False,
) -> None:
    """Draw the members of a run again, here; exit code 1 if the coordinator's, or those on its chain, are others."""
    import numpy as np

    from quoron_server.books.drawing import Draw, draw, seed_of

    with reached().control() as control:
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
