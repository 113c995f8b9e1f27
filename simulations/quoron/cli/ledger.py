"""`quoron ledger`: the privacy budget of every population over all runs, and the limit that no run may pass.

A command opens one's own ledger, which `quoron train` charges; with --profile, QUORON_PROFILE or QUORON_DATABASE that
of a database, or of a coordinator, which is asked: a SQLite file belongs to one process at a time. What a coordinator
sends is verified here, row by row, before anything is made of it.
"""

import json
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quoron.cli.common import say, showing
from quoron.cli.connection import Connection, shared_options
from quoron_privacy.errors import BudgetExceeded, ConfigError, DataError, LedgerError, LedgerUnavailable
from quoron_privacy.kernels.on_first_use import OnFirstUse

if TYPE_CHECKING:
    from quoron import run_folder
    from quoron.operate import closed_books
    from quoron.operate.control import Control
    from quoron.training import lifetime
    from quoron_privacy.accounts import lifetime as accounts
    from quoron_server.books import chain
    from quoron_server.books import lifetime_ledger as ledgers
else:  # when a command is called
    run_folder = OnFirstUse("quoron.run_folder")
    closed_books = OnFirstUse("quoron.operate.closed_books")
    lifetime = OnFirstUse("quoron.training.lifetime")
    accounts = OnFirstUse("quoron_privacy.accounts.lifetime")
    chain = OnFirstUse("quoron_server.books.chain")
    ledgers = OnFirstUse("quoron_server.books.lifetime_ledger")

app = typer.Typer(
    name="ledger", help="Privacy budgets over all runs: show, limit, charge, verify, export.", no_args_is_help=True
)

Population = Annotated[str, typer.Option("--population", metavar="NAME", help="Whose privacy budget.")]
Create = Annotated[bool, typer.Option("--create", help="Make the database if there is none.")]
Epsilon = Annotated[float, typer.Option("--epsilon", help="ε of the promise to every user.")]
Delta = Annotated[float, typer.Option("--delta", help="Its δ.")]
Mu = Annotated[float | None, typer.Option("--mu", help="Everything that is released is μ-GDP with exact noise.")]
Variation = Annotated[
    float, typer.Option("--variation", help="With --mu: how far the noise is from exact, in total variation.")
]
Lost = Annotated[
    float,
    typer.Option("--lost", help="With --mu, which then is for replacing one user: the chance but for which it is so."),
]
Adjacency = Annotated[str, typer.Option("--adjacency", help="replace-one or zero-out.")]
Checkpoint = Annotated[
    str | None, typer.Option("--checkpoint", metavar="HASH", help="The last hash of an earlier export.")
]
Export = Annotated[Path | None, typer.Option("--export", metavar="FILE", help="Of this export, and ask nobody.")]


@app.command()
@shared_options
def show(
    connection: Connection,
    population: Annotated[
        str | None, typer.Option("--population", metavar="NAME", help="This one alone, with its charges.")
    ] = None,
    history: Annotated[
        bool, typer.Option("--history", help="In order, who submitted, cancelled, limited and charged what.")
    ] = False,
    checkpoint: Checkpoint = None,
    exported: Export = None,
    as_json: Annotated[bool, typer.Option("--json", help="JSON on standard output.")] = False,
) -> None:
    """Show the privacy budget of each population: its limit, what is spent of it, and what is left.

    With --history, `plan` is the digest of a run's plan and `code` the version that wrote the row.
    """
    from rich.markup import escape

    which, rows, _ = _verified(connection, exported, checkpoint)
    if history:
        acts = [act for act in chain.acts(rows) if population in (None, act.get("population"))]
    known = ledgers.known_of(rows)
    names = sorted({*known.held, *known.accounts}) if population is None else [population]
    totals = {name: _spent(known, name) for name in names}
    if as_json:
        budgets = {name: _as_json(spent, known.accounts.get(name)) for name, spent in totals.items()}
        for line in acts if history else [budgets]:
            say(line, as_json=True)
        return
    tables = [showing.table("population", "limit", "spent", "left", "charges")]
    for name, spent in totals.items():
        account = known.accounts.get(name)
        words = ("none", spent.words(), "no limit")
        if account is not None:
            words = (account.limit.words(), account.words(), account.left_words())
        tables[0].add_row(*map(escape, (name, *words, f"{spent.runs:,}")))
    if population is not None and known.held.get(population):
        tables.append(showing.table("charge", "of"))
        for charge in known.held[population]:
            by = " (another tool's)" if charge.run in known.elsewhere else ""
            tables[-1].add_row(escape(charge.run), escape(charge.words() + by))
    if history:
        tables = [showing.table("time", "what", "by", "population", "run", "plan", "ε", "δ", "code")]
        for act in acts:
            told = act | {"plan": act.get("plan", "")[:12]}
            columns = ("time", "what", "by", "population", "run", "plan", "epsilon", "delta", "software")
            tables[0].add_row(*(escape(str(told.get(name, ""))) for name in columns))
    out = showing.console()
    out.print(f"Ledger: {escape(which)}", soft_wrap=True, highlight=False)
    for table in tables:
        out.print(table)
    if population is not None and not history:
        proved = totals[population]
        out.print(f"All its charges together are proved to be ε = {proved.epsilon:.6g} at δ = {proved.delta:.3g}.")


@app.command()
@shared_options
def verify(connection: Connection, checkpoint: Checkpoint = None, exported: Export = None) -> None:
    """Check every row, and that the last is the one kept beside a SQLite file. Prints the last row's hash.

    With --checkpoint, the hash of an earlier export, also against somebody who writes beside the file, too.
    """
    typer.echo(_verified(connection, exported, checkpoint)[2])


@app.command()
@shared_options
def export(
    connection: Connection,
    file: Annotated[Path | None, typer.Option("--file", help="A file; standard output without.")] = None,
) -> None:
    """Write the whole verified chain as JSON. Keep it where the coordinator's operator cannot change it."""
    text = ledgers.export_of(_verified(connection)[1])
    if file is None:
        typer.echo(text, nl=False)
    else:
        run_folder.write(file, text.encode())


@app.command()
@shared_options
def limit(
    connection: Connection,
    epsilon: Annotated[float, typer.Option("--epsilon", help="The most that any user may lose over all runs.")],
    delta: Annotated[float, typer.Option("--delta", help="Its δ.")],
    population: Population = "everyone",
    gaussian_share: Annotated[
        float, typer.Option("--gaussian-share", help="Part of ε and δ kept for Gaussian runs, which add up as √(Σ μ²).")
    ] = 0.0,
    exceeded: Annotated[
        bool, typer.Option("--exceeded", help="Also below what is counted already: then no run fits any more.")
    ] = False,
    create: Create = False,
) -> None:
    """Refuse from now on runs that would bring the population beyond (ε, δ). It is entered in the chain.

    A limit below what it would count of the charges so far is refused, unless --exceeded says that this is meant.
    """
    numbers = {"epsilon": epsilon, "delta": delta, "gaussian_share": gaussian_share}
    with _books(connection, create=create) as books:
        words = books.limit(population, exceeded=exceeded, **numbers)
    typer.echo(f"{population}: {words}")


@app.command()
@shared_options
def charge(
    connection: Connection,
    epsilon: Epsilon,
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="What it is known by from now on; no run of ours may have it.")
    ] = None,
    delta: Delta = 0.0,
    population: Population = "everyone",
    mu: Mu = None,
    variation: Variation = 0.0,
    lost: Lost = 0.0,
    adjacency: Adjacency = "replace-one",
    note: Annotated[str, typer.Option("--note", help="Which tool, which release: whatever a reader has to know.")] = "",
    spent: Annotated[
        bool, typer.Option("--spent", help="It has been spent already: enter it even beyond the limit.")
    ] = False,
    create: Create = False,
    dry: Annotated[
        bool, typer.Option("--dry-run", help="Enter nothing, and say whether it would fit: exit code 1 if not.")
    ] = False,
) -> None:
    """Enter what another tool spends on the same users: it counts against their limit as a run does, for good.

    Before that tool releases anything, so that the limit can still refuse it; afterwards with --spent. With --dry-run
    it says what still fits, without a NAME too: what the limit counts decides that, not what is proved of all runs.
    """
    promise: dict[str, Any] = {"epsilon": epsilon, "delta": delta, "variation": variation, "adjacency": adjacency}
    if dry:
        if spent or create:
            raise ConfigError("Expected --dry-run without --spent and --create, got both. Leave one out.")
        wanted = accounts.Charge("", population, **promise, **accounts.gaussian(mu, lost))
        account = ledgers.known_of(_verified(connection)[1]).accounts.get(population)
        typer.echo(_fitting(population, wanted, account))
        return
    if name is None:
        raise ConfigError("Expected a NAME for the charge, got none. With --dry-run it needs none.")
    promise |= {"mu": mu, "lost": lost, "spent": spent}
    with _books(connection, create=create) as books:
        words = books.charge(name, population, note=note, **promise)
    typer.echo(f"{population}: {name} charged with {words}")


def _verified(
    connection: Connection, exported: Path | None = None, checkpoint: str | None = None
) -> "tuple[str, list[chain.Row], str]":
    """Return which ledger it is, every row, verified in this process up to a hash that was kept, and the last hash."""
    if exported is not None:
        which, text = f"the export {exported}", _text(exported)
    else:
        with _books(connection) as books:
            which, text = books.name, json.dumps(books.ledger())
    last = chain.verify_export(text, checkpoint)
    return which, json.loads(text)["rows"], last


@contextmanager
def _books(connection: Connection, *, create: bool | None = None) -> "Iterator[Control | closed_books.StoredBooks]":
    """Open one's own ledger; or, where a profile or QUORON_DATABASE names one, a database or a coordinator.

    One that is there: a limit in a new one, made by mistake elsewhere, would hold for nobody.
    """
    with ExitStack() as stack:
        try:
            if connection.profile or os.environ.get("QUORON_DATABASE"):
                books = stack.enter_context(connection.books(create=bool(create), sole=False))
            else:
                opened = lifetime.opened_database(path := lifetime.place(None), create=bool(create))
                books = closed_books.StoredBooks(stack.enter_context(opened), f"your own, {path}")
        except LedgerError as error:
            if create is not None and not isinstance(error, LedgerUnavailable):
                error.add_note("Where there is none yet, --create makes it.")
            raise
        yield books


def _fitting(population: str, wanted: "accounts.Charge", account: "accounts.Account | None") -> str:
    """Say that a charge fits and what fits at most. Raises BudgetExceeded if it does not."""
    if account is None:
        return f"{population}: {wanted.words()} fits, as there is no limit. Set one with `quoron ledger limit`."
    counted = f"counted so far: {account.words()}. {account.fitting(wanted)}"
    if not account.after(wanted).holds:
        raise BudgetExceeded(f"{population}: {wanted.words()} does not fit; {counted}")
    return f"{population}: {wanted.words()} fits; {counted}"


def _spent(known: "ledgers.Known", population: str) -> "accounts.Spent":
    """What its charges come to, at the limit's δ as long as they fit it: there, it and the limit compare."""
    held, account = known.held.get(population, []), known.accounts.get(population)
    spent = accounts.compose(held)
    return (
        accounts.compose(held, account.limit.delta)
        if account is not None and spent.delta < account.limit.delta
        else spent
    )


def _as_json(spent: "accounts.Spent", account: "accounts.Account | None") -> dict[str, Any]:
    totals = asdict(spent)
    if account is None:
        return totals | {"limit": None, "counted": None, "fits": None}
    return totals | {
        "limit": account.limit.words(),
        "counted": {
            "epsilon": float(account.epsilon),
            "delta": float(account.delta),
            "mu": float(account.square) ** 0.5,
            "lost": float(account.lost),
        },
        "fits": {
            "epsilon": account.largest_epsilon(0.0),
            "delta": account.largest_delta,
            "mu": account.largest_mu(0.0),
            "lost": account.largest_lost,
        },
    }


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"Expected an export of a population ledger at {path}, cannot read it.") from error
