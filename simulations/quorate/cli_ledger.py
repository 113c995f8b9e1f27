"""`quorate ledger`: what was promised to every group of users over all runs, and the limit that no run may pass.

PostgreSQL can be read while its coordinator runs; a SQLite file belongs to one process at a time.
"""

from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from quorate.folder import dumps, write
from quorate_protos.errors import DataError
from quorate_server.accounting.lifetime import Limit
from quorate_server.database import Database
from quorate_server.population_ledger import PopulationLedger, verify_export

app = typer.Typer(name="ledger", help="Privacy over all runs: read, verify, export, limit.", no_args_is_help=True)

Url = Annotated[
    str,
    typer.Option("--database", envvar="QUORATE_DATABASE", help="sqlite:///FILE or postgresql://USER@HOST/NAME."),
]
Group = Annotated[str, typer.Option("--group", help="The group of users.")]
Head = Annotated[str | None, typer.Option("--head", metavar="HASH", help="The head of an earlier export.")]
_DEFAULT = "sqlite:///coordinator.sqlite"


@app.command()
def show(
    database: Url = _DEFAULT,
    group: Annotated[str | None, typer.Option("--group", help="Only this group, with its runs.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")] = False,
) -> None:
    """What is promised to each group, and what its limit leaves; with --group its runs."""
    with Database(database, create=False, sole=False) as opened:
        ledger = PopulationLedger(opened)
        names = ledger.groups() if group is None else [group]
        limits = {name: ledger.limit_of(name) for name in names}
        totals = {name: ledger.spent(name, _delta(ledger, name, limits[name])) for name in names}
        runs = [] if group is None else ledger.charges(group)
    if as_json:
        told = {
            name: {
                "epsilon": spent.epsilon,
                "delta": spent.delta,
                "runs": spent.runs,
                "limit": _limit_words(limits[name]) or None,
            }
            for name, spent in totals.items()
        }
        typer.echo(dumps(told))
        return
    table = _table("group", "runs", "ε", "at δ", "limit")
    for name, spent in totals.items():
        told_limit = _limit_words(limits[name]) or "none"
        table.add_row(escape(name), f"{spent.runs:,}", f"{spent.epsilon:.6g}", f"{spent.delta:.3g}", told_limit)
    console = _console()
    console.print(table)
    if runs:
        each = _table("run", "charged")
        for charge in runs:
            each.add_row(escape(charge.run), escape(charge.words()))
        console.print(each)


@app.command()
def verify(
    database: Url = _DEFAULT,
    head: Head = None,
    exported: Annotated[Path | None, typer.Option("--export", help="Verify this export, not a database.")] = None,
) -> None:
    """Check every row; without --head, rows missing at the end cannot be noticed. Prints the head."""
    if exported is not None:
        found = verify_export(_text(exported), head)
    else:
        with Database(database, create=False, sole=False) as opened:
            found = PopulationLedger(opened).verify(head)
    typer.echo(found)


@app.command()
def export(
    database: Url = _DEFAULT,
    out: Annotated[Path | None, typer.Option("--out", help="A file; standard output without.")] = None,
) -> None:
    """The whole verified chain as JSON. Keep it where the coordinator's operator cannot change it."""
    with Database(database, create=False, sole=False) as opened:
        text = PopulationLedger(opened).export()
    if out is None:
        typer.echo(text, nl=False)
    else:
        write(out, text.encode())


@app.command()
def limit(
    epsilon: Annotated[float, typer.Option("--epsilon", help="The most that any user may lose over all runs.")],
    delta: Annotated[float, typer.Option("--delta", help="Its δ.")],
    group: Group = "everyone",
    gaussian_share: Annotated[
        float, typer.Option("--gaussian-share", help="Part kept for Gaussian runs, which add up as squares.")
    ] = 0.0,
    database: Url = _DEFAULT,
) -> None:
    """From now on refuse runs that would bring the group beyond (ε, δ). It is entered in the chain."""
    with Database(database, sole=False) as opened:
        set_ = PopulationLedger(opened).limit(group, epsilon=epsilon, delta=delta, gaussian_share=gaussian_share)
    typer.echo(f"{group}: {set_.words()}")


def _delta(ledger: PopulationLedger, group: str, limit: Limit | None) -> float | None:
    """The limit's δ as long as the charges fit it: there, what is spent and the limit can be compared."""
    return limit.delta if limit is not None and ledger.spent(group).delta < limit.delta else None


def _limit_words(limit: Limit | None) -> str:
    return "" if limit is None else limit.words()


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"Expected an export of a population ledger at {path}, cannot read it.") from error


def _table(*columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD)
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _console() -> Console:
    console = Console()
    return console if console.is_terminal else Console(width=160)
