"""`quoron ledger`: what was promised to every group of users over all runs, and the limit that no run may pass.

Each command opens the database, or with --coordinator asks the coordinator that has it open: a SQLite file belongs to
one process at a time. What a coordinator sends is verified here, row by row, before anything is made of it.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from quoron.cli.connection import Anywhere, Authority, Connection, Insecure, OwnToken, shared_options
from quoron_privacy.errors import DataError, LedgerError, LedgerUnavailable

if TYPE_CHECKING:  # imported by the commands when they are called
    from contextlib import AbstractContextManager

    from quoron_privacy.lifetime import Limit, Spent
    from quoron_server.books.database import Database
    from quoron_server.books.lifetime_ledger import Row

app = typer.Typer(name="ledger", help="Privacy over all runs: read, verify, export, limit.", no_args_is_help=True)

Url = Annotated[
    str,
    typer.Option("--database", envvar="QUORON_DATABASE", help="sqlite:///FILE or postgresql://USER@HOST/NAME."),
]
Asked = Annotated[
    str | None,
    typer.Option("--coordinator", metavar="HOST:PORT", help="Ask this control plane, and open no database."),
]
Own = Annotated[
    bool, typer.Option("--own", help="The ledger of `quoron train`: QUORON_LEDGER, else the platform's usual place.")
]
Group = Annotated[str, typer.Option("--group", help="The group of users; of `quoron train`, the population.")]
Head = Annotated[str | None, typer.Option("--head", metavar="HASH", help="The head of an earlier export.")]


@dataclass(frozen=True, slots=True)
class Source:
    """Where a population's ledger is: in a database, or behind a running coordinator."""

    database: Url = "sqlite:///coordinator.sqlite"
    own: Own = False
    coordinator: Asked = None
    token_file: OwnToken = None
    authority: Authority = None
    insecure: Insecure = False
    insecure_anywhere: Anywhere = False

    def rows(self) -> "list[Row]":
        """The chain, every row of it verified in this process; LedgerError if one is wrong."""
        from quoron_server.books.lifetime_ledger import PopulationLedger, verify_export

        if self.coordinator is not None:
            with self.connection(self.coordinator).open() as control:
                exported = control.ledger()
            verify_export(json.dumps(exported))
            return list(exported["rows"])
        with self.open(create=False) as opened:
            return PopulationLedger(opened).rows()

    def open(self, *, create: bool) -> "AbstractContextManager[Database]":
        """The database; LedgerUnavailable says what to do beside a coordinator that holds it."""
        from quoron_server.books.database import Database

        if self.own:
            from quoron.training import lifetime

            return lifetime.opened_database(lifetime.place(None), create=create)
        try:
            return Database(self.database, create=create, sole=False)
        except LedgerUnavailable as error:
            raise LedgerUnavailable(f"{error} Ask a running coordinator with --coordinator HOST:PORT.") from None

    def connection(self, coordinator: str) -> Connection:
        """How the coordinator is reached."""
        return Connection(coordinator, self.token_file, self.authority, self.insecure, self.insecure_anywhere)


@app.command()
@shared_options
def show(
    source: Source,
    group: Annotated[str | None, typer.Option("--group", help="Only this group, with its runs.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")] = False,
) -> None:
    """What is promised to each group, and what its limit leaves; with --group its runs."""
    from rich.markup import escape

    from quoron.reports.showing import console, table
    from quoron.simulation.folder import dumps
    from quoron_server.books.lifetime_ledger import charges_of, limits_of

    rows = source.rows()
    charges, limits = charges_of(rows).values(), limits_of(rows)
    names = sorted({charge.group for charge in charges} | set(limits)) if group is None else [group]
    totals = {name: _spent(rows, name) for name in names}
    if as_json:
        told = {
            name: {
                "epsilon": spent.epsilon,
                "delta": spent.delta,
                "runs": spent.runs,
                "mu": spent.mu,
                "variation": spent.variation,
                "limit": _limit_words(limits.get(name)) or None,
            }
            for name, spent in totals.items()
        }
        typer.echo(dumps(told))
        return
    all_ = table("group", "runs", "ε", "at δ", "limit")
    for name, spent in totals.items():
        told_limit = _limit_words(limits.get(name)) or "none"
        all_.add_row(escape(name), f"{spent.runs:,}", f"{spent.epsilon:.6g}", f"{spent.delta:.3g}", told_limit)
    out = console()
    out.print(all_)
    runs = [charge for charge in charges if charge.group == group]
    if runs:
        each = table("run", "charged")
        for charge in runs:
            each.add_row(escape(charge.run), escape(charge.words()))
        out.print(each)


@app.command()
@shared_options
def verify(
    source: Source,
    head: Head = None,
    exported: Annotated[Path | None, typer.Option("--export", help="Verify this export, and ask nobody.")] = None,
) -> None:
    """Check every row; without --head, rows missing at the end cannot be noticed. Prints the head."""
    from quoron_server.books.lifetime_ledger import verify_export, verify_rows

    typer.echo(verify_rows(source.rows(), head) if exported is None else verify_export(_text(exported), head))


@app.command()
@shared_options
def export(
    source: Source,
    out: Annotated[Path | None, typer.Option("--out", help="A file; standard output without.")] = None,
) -> None:
    """The whole verified chain as JSON. Keep it where the coordinator's operator cannot change it."""
    from quoron.simulation.folder import write
    from quoron_server.books.lifetime_ledger import export_of

    text = export_of(source.rows())
    if out is None:
        typer.echo(text, nl=False)
    else:
        write(out, text.encode())


@app.command()
@shared_options
def limit(
    source: Source,
    epsilon: Annotated[float, typer.Option("--epsilon", help="The most that any user may lose over all runs.")],
    delta: Annotated[float, typer.Option("--delta", help="Its δ.")],
    group: Group = "everyone",
    gaussian_share: Annotated[
        float, typer.Option("--gaussian-share", help="Part of ε and δ kept for Gaussian runs, which add up as √(Σ μ²).")
    ] = 0.0,
    create: Annotated[bool, typer.Option("--create", help="Make the database if there is none.")] = False,
) -> None:
    """From now on refuse runs that would bring the group beyond (ε, δ). It is entered in the chain."""
    from quoron_server.books.lifetime_ledger import PopulationLedger

    if source.coordinator is not None:
        with source.connection(source.coordinator).open() as control:
            words = control.limit(group, epsilon=epsilon, delta=delta, gaussian_share=gaussian_share)
    else:
        with _found(source, create=create) as opened:
            set_ = PopulationLedger(opened).limit(group, epsilon=epsilon, delta=delta, gaussian_share=gaussian_share)
            words = set_.words()
    typer.echo(f"{group}: {words}")


def _found(source: Source, *, create: bool) -> "AbstractContextManager[Database]":
    """A database that is there: a limit in a new one, made by mistake in another folder, would hold for nobody."""
    try:
        return source.open(create=create)
    except LedgerUnavailable:
        raise
    except LedgerError as error:
        raise LedgerError(f"{error} Where there is none yet, --create makes it.") from None


def _spent(rows: "list[Row]", group: str) -> "Spent":
    """What a group's charges come to, at the limit's δ as long as they fit it: there, it and the limit compare."""
    from quoron_privacy.lifetime import compose
    from quoron_server.books.lifetime_ledger import charges_of, limits_of

    held = [charge for charge in charges_of(rows).values() if charge.group == group]
    limit = limits_of(rows).get(group)
    spent = compose(held)
    return compose(held, limit.delta) if limit is not None and spent.delta < limit.delta else spent


def _limit_words(limit: "Limit | None") -> str:
    return "" if limit is None else limit.words()


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"Expected an export of a population ledger at {path}, cannot read it.") from error
