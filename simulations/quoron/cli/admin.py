"""`quoron admin`: copies of the database, whether a coordinator serves, a silo's state, the users of a federation."""

import json
from dataclasses import asdict
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import click
import typer
from click.core import ParameterSource

from quoron.cli.common import Csv, JsonLines, dialect, give_receipt, seconds_of
from quoron.cli.connection import CONTROL, Certs, Files, Insecure, connects, reached
from quoron_privacy.errors import ConfigError, RunError, printable
from quoron_privacy.kernels.on_first_use import OnFirstUse

if TYPE_CHECKING:  # the other commands start without gRPC
    from quoron_client.federation import account as accounts
    from quoron_client.federation import client_state as records
    from quoron_client.federation import own_table as own_people
    from quoron_server.service import tokens as stored
else:  # when a command is called
    accounts = OnFirstUse("quoron_client.federation.account")
    own_people = OnFirstUse("quoron_client.federation.own_table")
    records = OnFirstUse("quoron_client.federation.client_state")
    stored = OnFirstUse("quoron_server.service.tokens")


_MAGIC = b"SQLite format 3\0"


@connects
def backup(
    out: Annotated[Path | None, typer.Argument(help="Of a database: a file that is not there yet.")] = None,
) -> None:
    """Copy the database in one transaction, also while it is used; print the copy's SHA-256.

    PostgreSQL's are read beside a running coordinator. A SQLite file belongs to one process at a time: the coordinator
    that has it is asked, and writes the copy beside it; nothing of it leaves that machine.
    """
    with reached(store=True).store(sole=False) as store:
        name, digest = store.backup(out)
    print(f"{digest}  {name}")


def restore(
    source: Annotated[Path, typer.Argument(help="A backup; or a SQLite file without, or behind, its count.")],
    database: Annotated[
        str, typer.Option(envvar="QUORON_DATABASE", help="sqlite:///FILE or postgresql://USER@HOST/NAME.")
    ] = "sqlite:///coordinator.sqlite",
    checkpoint: Annotated[
        str | None, typer.Option(metavar="HASH", help="Of `ledger verify`: refuse an older database.")
    ] = None,
) -> None:
    """Restore a database. Runs that were open end, as they may have released more since; their charges stay.

    A SQLite file, of a coordinator or of a run folder, is taken in its place for all that there is; a backup needs an
    empty database.
    """
    from quoron_server.storage import backup

    try:
        with source.open("rb") as opened:
            bare = opened.read(len(_MAGIC)) == _MAGIC
    except OSError as error:
        raise ConfigError(f"Expected a backup at {source}, cannot read it: {error.strerror}.") from None
    if not bare:
        restored = backup.restore(source, database, head=checkpoint)
    elif click.get_current_context().get_parameter_source("database") is ParameterSource.COMMANDLINE:
        raise ConfigError(
            f"Expected no --database with {source}, a SQLite file that is taken in its place, got one. Back it up "
            "then, and restore the backup there."
        )
    else:
        restored = backup.accept(source, head=checkpoint)
    print(f"restored as {restored.incarnation}")
    for run in restored.ended:
        print(f"{run}: ended")


TIMEOUT = 5.0  # seconds to wait for an answer


def health(
    address: Annotated[
        str,
        typer.Argument(
            envvar="QUORON_CONTROL_ADDRESS", metavar="HOST:PORT", help="Where a coordinator listens, either port."
        ),
    ] = CONTROL,
    certs: Certs = None,
    insecure: Insecure = False,
) -> None:
    """Exit with 0 if a coordinator serves there, and with 1 if not."""
    import grpc
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    from quoron_client.protocol import check_plaintext

    own, secure = Files.of(certs, insecure=insecure, needed=()), None
    check_plaintext(address, insecure=insecure)
    if not insecure:
        from quoron_client.protocol.identity import read

        if own.authority is None or (own.certificate is None) != (own.key is None):
            got = f"certificate={own.certificate}, key={own.key}, authority={own.authority}"
            raise ConfigError(
                f"Expected --certs FOLDER, with its certificate and key or neither, or --insecure, got {got}."
            )
        files = own.authority, own.key, own.certificate
        secure = grpc.ssl_channel_credentials(*(read(path) if path else None for path in files))
    with grpc.insecure_channel(address) if secure is None else grpc.secure_channel(address, secure) as channel:
        try:
            service: Any = health_pb2_grpc.HealthStub(channel)
            reply = service.Check(health_pb2.HealthCheckRequest(), timeout=TIMEOUT)
        except grpc.RpcError as error:
            code = error.code().name if isinstance(error, grpc.Call) else "UNKNOWN"
            raise RunError(f"Expected a coordinator that serves at {address}, got {code}. Is it running?") from None
    status = str(health_pb2.HealthCheckResponse.ServingStatus.Name(reply.status))
    if status != "SERVING":
        raise RunError(f"Expected a coordinator that serves at {address}, got status {status}.")
    print(status)


silo = typer.Typer(
    help="A silo's own state: what each of its users has spent; a user leaves.",
    no_args_is_help=True,
)

Kept = Annotated[Path, typer.Option("--state", envvar="QUORON_STATE", help="The state of the silo's client.")]


@silo.command()
def show(
    record: Kept,
    person: Annotated[list[str] | None, typer.Argument(metavar="[USER...]", help="Of these, by name.")] = None,
    data: Annotated[Path | None, typer.Option(help="The silo's table, which has the names.")] = None,
    user: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="The column of it that says whose each row is.")
    ] = None,
    csv: Csv = None,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON, all of it.")] = False,
) -> None:
    """What each user has spent, by the names in --data or those given; without either, how many have spent what.

    With --json it has the runs and what was promised in each, without any name, or a line for each name.
    """
    with _opened(record) as kept:
        names = _names(person, data, user, csv)
        sums = accounts.account(kept, record)
        persons = None if names is None else accounts.of_each(kept, names)
    if as_json:
        plain = sums if persons is None else [asdict(line) for line in persons]
        print(json.dumps(plain, ensure_ascii=False))
    elif persons is None:
        print(f"{sums['persons']:,} persons, of whom {len(sums['departures']):,} have left; {len(sums['runs']):,} runs")
        for spent in sums["spending"]:
            print(f"ε = {spent['epsilon']:g}\tδ = {spent['delta']:g}\t{spent['persons']:,} persons")
    else:
        for line in persons:
            print(printable(_person_line(line)))


def _person_line(person: "accounts.PersonAccount") -> str:
    if person.number is None:
        return f"{person.name}\tunknown to this state: nothing was ever answered with these rows"
    left = "" if person.left is None else f"\thas left, {person.left[:10]}"
    return f"{person.name}\tε = {person.epsilon:g}\tδ = {person.delta:g}\t{len(person.runs)} runs{left}"


@silo.command("forget")
def forget_person(
    person: Annotated[str, typer.Argument(metavar="USER", help="By its name, as the table writes it.")],
    record: Kept,
    receipt: Annotated[Path | None, typer.Option(help="Write the receipt there too, as JSON.")] = None,
    yes: Annotated[
        bool, typer.Option("--yes", help="Do it, irrevocably. Without, only print what the user has spent.")
    ] = False,
) -> None:
    """Have a user leave: no answer has its rows any more, in runs that go on too; what was released stays."""
    with _opened(record) as kept:
        if not yes:
            (account,) = accounts.of_each(kept, [person])
            print(printable(_person_line(account)))
            print("--yes has this user leave, irrevocably: no answer has its rows any more.")
            return
        done = accounts.depart(kept, record, person)
    give_receipt(done.as_json(), done.words(), receipt)


def _opened(record: Path) -> "records.ClientState":
    """A record that is there; an older copy is refused, as by the client."""
    if not record.is_file():
        raise ConfigError(f"Expected a silo's state, got {record}, which is not there. Give --state.")
    return records.ClientState(record, epsilon=inf, delta=inf)


def _names(given: list[str] | None, data: Path | None, user: str | None, csv: list[str] | None) -> list[str] | None:
    """Whom is asked about; None for nobody in particular."""
    if given and data is not None:
        raise ConfigError("Expected names or --data, got both. Give one.")
    if data is None and user is None:
        return given or None
    if data is None or user is None:
        raise ConfigError("Expected --data and --user together, the table and its column of names, got one. Give both.")
    return own_people.names_in(data, user, dialect(csv))


users = typer.Typer(help="The users of a federation: list, set, forget.", no_args_is_help=True)

_ACTIONS = {"retired": "retire", "active": "back"}


@users.command("list")
@connects
def list_users(
    as_json: JsonLines = False,
) -> None:
    """List number, name, population, state and why, when last seen, and what its client runs. A silo is one line."""
    with reached().control() as control:
        for user in control.users():
            print(json.dumps(user, ensure_ascii=False) if as_json else printable(_line(user)))


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
    state: Annotated[Literal["retired", "active"], typer.Argument(help="Of all of them.")],
) -> None:
    """Draw users for no run that begins from now on, until they are set active again; what was promised stands."""
    with reached().control() as control:
        for user in who:
            print(printable(control.call("change_user", action=_ACTIONS[state], user=user)["said"]))


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
    from quoron.federation import forgetting

    def ask(who: str, sure: bool) -> dict[str, Any]:
        with reached(store=True).store() as store:
            return store.call("forget_user", user=who, sure=sure)

    if not yes:
        print(printable(f"This would erase, for good (--yes does it), who this was:\n  {_line(ask(user, False))}"))
        return
    done = forgetting.forget(ask, user, certificates=certificates)
    give_receipt(done.as_json(), done.words(), receipt)


@users.command()
@connects
def drawn(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Name of a run.")],
    as_json: JsonLines = False,
) -> None:
    """Draw the members of a run again, here; exit code 1 if the coordinator's, or those on its chain, are others."""
    import numpy as np

    from quoron_server.silos import Draw, draw, seed_of

    with reached().control() as control:
        claimed, chain = control.call("drawn", run=run), control.call("ledger")["rows"]
    active, members = (np.array(claimed[key], dtype=np.int64) for key in ("users", "drawn"))
    seed = seed_of(run, claimed["specification"])
    again = Draw(seed, active, draw(seed, active, len(members)))
    charged = (row["payload"] for row in chain if row["kind"] == "charge" and row["payload"]["run"] == run)
    noted = [("on the chain", event["drawn"]) for event in charged if "drawn" in event]
    if as_json:
        print(json.dumps(claimed | {"again": again.members.tolist()}))
    else:
        print(f"{run}: {len(members)} of {len(active)} active users, by seed {seed}")
        print(" ".join(map(str, members.tolist())))
    for words, wanted in (("that its seed draws", claimed), *noted):
        if again.members.tolist() != members.tolist() or not again.as_json().items() <= wanted.items():
            raise RunError(f"Expected the members of run {run} to be those {words}, got others.")


def tokens(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="Whose it is.")] = None,
    role: Annotated[str | None, typer.Option(help="Make a token: operator or auditor.")] = None,
    valid: Annotated[str, typer.Option(metavar="TIME", help="How long it is good, such as 12h, 7d or 4w.")] = "never",
    out: Annotated[Path | None, typer.Option(help="Write the token there instead of showing it.")] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Take the token back, at once.")] = False,
    file: Annotated[
        Path, typer.Option("--file", envvar="QUORON_TOKENS", help="Where tokens are kept, as hashes.")
    ] = Path("tokens.json"),
    as_json: JsonLines = False,
) -> None:
    """List the tokens of the control plane, those that are over too; or make one, which is shown this once."""
    if name is None and role is None and not remove:
        for entry in stored.read(file).values():
            print(json.dumps(entry.as_json()) if as_json else printable(f"{entry.name}\t{entry.role}\t{entry.words()}"))
        return
    if name is None or remove is (role is not None):
        got = " and ".join([*filter(None, (name, role and f"--role {role}")), *(["--remove"] if remove else [])])
        raise ConfigError(f"Expected a NAME with --role or with --remove, got {got}.")
    if role is None:
        stored.remove(file, name=name)
        return
    token = stored.add(file, name=name, role=role, valid=seconds_of("--valid", valid))
    if out is None:
        print(token)
        return
    from quoron.run_folder import write
    from quoron_client.durable import PRIVATE

    try:
        write(out, f"{token}\n".encode(), advice="Choose another place.", mode=PRIVATE)
    except RunError:
        stored.remove(file, name=name)  # nobody has seen it
        raise


COMMANDS = (health, backup, restore, tokens)
