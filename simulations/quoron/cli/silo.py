"""`quoron admin silo`: what a silo's state says of its users, to the silo only, and how a user leaves."""

import json
from dataclasses import asdict
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from quoron.cli.client import give_receipt
from quoron.cli.common import Csv, dialect
from quoron_privacy.errors import ConfigError, RunError, printable
from quoron_privacy.kernels.on_first_use import OnFirstUse

if TYPE_CHECKING:
    from quoron.operate import silo_page
    from quoron_client import durable
    from quoron_client.federation import account as accounts
    from quoron_client.federation import own_table as own_people
    from quoron_client.federation import record as records
else:  # when a command is called
    silo_page = OnFirstUse("quoron.operate.silo_page")
    durable = OnFirstUse("quoron_client.durable")
    accounts = OnFirstUse("quoron_client.federation.account")
    own_people = OnFirstUse("quoron_client.federation.own_table")
    records = OnFirstUse("quoron_client.federation.record")

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
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
    out: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Write it for a data protection officer: HTML, JSON and CSV.")
    ] = None,
) -> None:
    """What each user has spent, by the names in --data or those given; without either, how many have spent what.

    With --out it is a page, a table of runs and JSON of what was promised, without any name. Where names are given,
    persons.csv has a line for each, too.
    """
    with _opened(record) as kept:
        names = _names(person, data, user, csv)
        told = accounts.account(kept, record)
        found = None if names is None else accounts.of_each(kept, names)
    if out is not None:
        _write(out, told, found)
    elif as_json:
        plain = told.as_json() if found is None else [asdict(each) for each in found]
        print(json.dumps(plain, ensure_ascii=False))
    elif found is None:
        print(f"{told.persons:,} persons, of whom {len(told.departures):,} have left; {len(told.runs):,} runs")
        for spent in told.spending:
            print(f"ε = {spent.epsilon:g}\tδ = {spent.delta:g}\t{spent.persons:,} persons")
    else:
        for line in found:
            print(printable(_line(line)))


def _write(out: Path, told: "accounts.Account", found: "list[accounts.PersonAccount] | None") -> None:
    files = {
        "account.html": silo_page.document(told),
        "account.json": json.dumps(told.as_json(), ensure_ascii=False, indent=1) + "\n",
        "runs.csv": told.runs_csv(),
    }
    if found is not None:
        files["persons.csv"] = accounts.persons_csv(found)
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            durable.replace_whole(out / name, content.encode("utf-8", "replace"), mode=durable.PRIVATE)
    except OSError as error:
        raise RunError(
            f"Expected to write the account to {out}, cannot: {error.strerror}. Give another folder."
        ) from None
    for name in files:
        print(out / name)


def _line(found: "accounts.PersonAccount") -> str:
    if found.number is None:
        return f"{found.name}\tunknown to this state: nothing was ever answered with these rows"
    left = "" if found.left is None else f"\thas left, {found.left[:10]}"
    return f"{found.name}\tε = {found.epsilon:g}\tδ = {found.delta:g}\t{len(found.runs)} runs{left}"


@silo.command()
def forget(
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
            (found,) = accounts.of_each(kept, [person])
            print(printable(_line(found)))
            print("--yes has this user leave, irrevocably: no answer has its rows any more.")
            return
        done = accounts.depart(kept, record, person)
    give_receipt(done.as_json(), done.words(), receipt)


def _opened(record: Path) -> "records.Record":
    """A record that is there; an older copy is refused, as by the client."""
    if not record.is_file():
        raise ConfigError(f"Expected a silo's state, got {record}, which is not there. Give --state.")
    return records.Record.open(record, epsilon=inf, delta=inf)


def _names(given: list[str] | None, data: Path | None, user: str | None, csv: list[str] | None) -> list[str] | None:
    """Whom is asked about; None for nobody in particular."""
    if given and data is not None:
        raise ConfigError("Expected names or --data, got both. Give one.")
    if data is None and user is None:
        return given or None
    if data is None or user is None:
        raise ConfigError("Expected --data and --user together, the table and its column of names, got one. Give both.")
    return own_people.names_in(data, user, dialect(csv))
