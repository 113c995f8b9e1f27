"""`quoron ledger`: the privacy budget of every population over all runs, and the limit that no run may pass.

A command opens one's own ledger, which `quoron train` charges; with `quoron --profile`, QUORON_PROFILE or
QUORON_DATABASE that of a database, or of a coordinator, which is asked: a SQLite file belongs to one process at a time.
What a coordinator sends is verified here, row by row, before anything is made of it.
"""

import json
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quoron.cli.common import number, of_program, say, showing
from quoron.cli.connection import connects, reached
from quoron_privacy.errors import BudgetExceeded, ConfigError, DataError, LedgerError, LedgerUnavailable
from quoron_privacy.kernels.on_first_use import OnFirstUse

if TYPE_CHECKING:
    from quoron.federation import offline_store
    from quoron.federation.control import Control
    from quoron_privacy.accounts import lifetime as accounts
    from quoron_server.storage import lifetime_ledger as ledgers
    from quoron_server.storage import store as chain
else:  # when a command is called
    offline_store = OnFirstUse("quoron.federation.offline_store")
    accounts = OnFirstUse("quoron_privacy.accounts.lifetime")
    chain = OnFirstUse("quoron_server.storage.store")
    ledgers = OnFirstUse("quoron_server.storage.lifetime_ledger")

app = typer.Typer(help="Privacy budgets over all runs: show, limit, charge, verify.", no_args_is_help=True)

Population = Annotated[str, typer.Option("--population", metavar="NAME", help="Whose privacy budget.")]
Create = Annotated[bool, typer.Option("--create", help="Make the database if there is none.")]
Epsilon = Annotated[float, typer.Option("--epsilon", help="ε of the guarantee to every user.")]
Delta = Annotated[float, typer.Option("--delta", help="Its δ.")]
Mu = Annotated[
    str | None,
    typer.Option(
        "--mu",
        metavar="MU[,VARIATION[,LOST]]",
        help="It is μ-GDP, up to a total VARIATION of its noise, and for replacing one user but for a chance LOST.",
    ),
]
Adjacency = Annotated[str, typer.Option("--adjacency", help="replace-one or zero-out.")]
Checkpoint = Annotated[str | None, typer.Option(metavar="HASH", help="The last hash of an earlier export.")]
Export = Annotated[Path | None, typer.Option("--export", metavar="FILE", help="Of this export, and ask nobody.")]


@app.command()
@connects
def show(
    population: Annotated[str | None, typer.Option(metavar="NAME", help="This one alone, with its charges.")] = None,
    history: Annotated[bool, typer.Option("--history", help="In order, who did what, by which version.")] = False,
    exported: Export = None,
    as_json: Annotated[bool, typer.Option("--json", help="JSON on standard output.")] = False,
) -> None:
    """Show the privacy budget of each population: its limit, what is spent of it, and what is left.

    With --history, `plan` is the digest of a run's plan and `code` the version that wrote the row.
    """
    from quoron.reports.page import Section, Table
    from quoron.reports.terminal import show as shown

    which, rows, _ = _verified(exported)
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
    lines = []
    for name, spent in totals.items():
        account = known.accounts.get(name)
        words = ("none", spent.words(), "no limit")
        if account is not None:
            words = (account.limit.words(), account.words(), account.left_words())
        lines.append((name, *words, f"{spent.runs:,}"))
    tables = [Table("Budgets", ["population", "limit", "spent", "left", "charges"], lines)]
    proved = []
    if history:
        heads = ["time", "what", "by", "population", "run", "plan", "ε", "δ", "code"]
        columns = (*heads[:6], "epsilon", "delta", "software")
        told = (act | {"plan": act.get("plan", "")[:12]} for act in acts)
        tables = [Table("History", heads, [[str(act.get(name, "")) for name in columns] for act in told])]
    elif population is not None:
        charges = [
            (charge.run, charge.words() + " (another tool's)" * (charge.run in known.elsewhere))
            for charge in known.held.get(population, ())
        ]
        tables.append(Table("Charges", ["charge", "of"], charges))
        proved = [f"All its charges together are proved to be {totals[population].words()}."]
    shown(showing.console(), [Section(note=[f"Ledger: {which}"], tables=tables), Section(note=proved)])


@app.command()
@connects
def verify(
    checkpoint: Checkpoint = None,
    exported: Export = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Write all of it there as JSON; - prints that alone.")
    ] = None,
) -> None:
    """Check every row, and that the last is the one kept beside a SQLite file. Prints the last row's hash.

    With --checkpoint, the hash of an earlier export, also against somebody who writes beside the file, too. Keep what
    --out writes where the coordinator's operator cannot change it.
    """
    from quoron import run_folder

    _, rows, last = _verified(exported, checkpoint)
    if out is not None and str(out) == "-":
        typer.echo(ledgers.export_of(rows), nl=False)
        return
    if out is not None:
        run_folder.write(out, ledgers.export_of(rows).encode())
    typer.echo(last)


@app.command()
@connects
def limit(
    epsilon: Annotated[float, typer.Option("--epsilon", help="The most that any user may lose over all runs.")],
    delta: Annotated[float, typer.Option("--delta", help="Its δ.")],
    population: Population = "everyone",
    gaussian_share: Annotated[float, typer.Option(help="Part for Gaussian runs, which add up as √(Σ μ²).")] = 0.0,
    exceeded: Annotated[bool, typer.Option("--exceeded", help="Also below what is counted already.")] = False,
    create: Create = False,
) -> None:
    """Refuse from now on runs that would bring the population beyond (ε, δ). It is entered in the chain.

    A limit below what it would count of the charges so far is refused, unless --exceeded says that this is meant.
    """
    numbers = {"epsilon": epsilon, "delta": delta, "gaussian_share": gaussian_share}
    with _store(create=create) as store:
        words = store.call("limit", group=population, exceeded=exceeded, **numbers)["limit"]
    typer.echo(f"{population}: {words}")


@app.command()
@connects
def charge(
    epsilon: Epsilon,
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="A new name, of no run of ours.")] = None,
    delta: Delta = 0.0,
    population: Population = "everyone",
    mu: Mu = None,
    adjacency: Adjacency = "replace-one",
    note: Annotated[str, typer.Option("--note", help="Which tool, which release: whatever a reader has to know.")] = "",
    spent: Annotated[bool, typer.Option("--spent", help="It is spent already: enter it beyond the limit too.")] = False,
    create: Create = False,
    dry: Annotated[bool, typer.Option("--dry-run", help="Enter nothing; exit code 1 if it would not fit.")] = False,
) -> None:
    """Enter what another tool spends on the same users: it counts against their limit as a run does, for good.

    Before that tool releases anything, so that the limit can still refuse it; afterwards with --spent. With --dry-run
    it says what still fits, without a NAME too: what the limit counts decides that, not what is proved of all runs.
    """
    gaussian, variation, lost = _gaussian(mu)
    promise: dict[str, Any] = {"epsilon": epsilon, "delta": delta, "variation": variation, "adjacency": adjacency}
    if dry:
        if spent or create:
            raise ConfigError("Expected --dry-run without --spent and --create, got both. Leave one out.")
        wanted = accounts.Charge("", population, **promise, **accounts.gaussian(gaussian, lost))
        account = ledgers.known_of(_verified()[1]).accounts.get(population)
        counted = "" if account is None else f"counted so far: {account.words()}. {account.fitting(wanted)}"
        if account is not None and not account.after(wanted).holds:
            raise BudgetExceeded(f"{population}: {wanted.words()} does not fit; {counted}")
        no_limit = "as there is no limit. Set one with `quoron ledger limit`."
        typer.echo(f"{population}: {wanted.words()} fits{f'; {counted}' if counted else f', {no_limit}'}")
        return
    if name is None:
        raise ConfigError("Expected a NAME for the charge, got none. With --dry-run it needs none.")
    promise |= {"mu": gaussian or 0.0, "lost": lost, "spent": spent}
    with _store(create=create) as store:
        words = store.call("charge", run=name, group=population, note=note, **promise)["charged"]
    typer.echo(f"{population}: {name} charged with {words}")


def _gaussian(text: str | None) -> tuple[float | None, float, float]:
    """Read μ, a total variation and a chance. ConfigError for another text."""
    numbers = [] if text is None else [number("--mu", part) for part in text.split(",")]
    if len(numbers) > 3:
        raise ConfigError(f"Expected --mu MU[,VARIATION[,LOST]], got {text!r}. Leave out what is more.")
    mu, variation, lost = (*numbers, 0.0, 0.0, 0.0)[:3]
    return (mu if numbers else None), variation, lost


def _verified(exported: Path | None = None, checkpoint: str | None = None) -> "tuple[str, list[chain.Row], str]":
    """Return which ledger it is, every row, verified in this process up to a hash that was kept, and the last hash."""
    if exported is not None:
        which = f"the export {exported}"
        try:
            text = exported.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(f"Expected an export of a population ledger at {exported}, cannot read it.") from error
    else:
        with _store() as store:
            which, text = store.name, json.dumps(store.call("ledger"))
    last = chain.verify_export(text, checkpoint)
    return which, json.loads(text)["rows"], last


@contextmanager
def _store(*, create: bool | None = None) -> "Iterator[Control | offline_store.OfflineStore]":
    """Open one's own ledger; or, where a profile or QUORON_DATABASE names one, a database or a coordinator.

    One that is there: a limit in a new one, made by mistake elsewhere, would hold for nobody.
    """
    from quoron.training import lifetime

    with ExitStack() as stack:
        try:
            if of_program("profile") or os.environ.get("QUORON_DATABASE"):
                store = stack.enter_context(reached(store=True).store(create=bool(create), sole=False))
            else:
                own = stack.enter_context(lifetime.opened(None, create=bool(create)))
                store = offline_store.OfflineStore(own, f"your own, {lifetime.place(None)}")
        except LedgerError as error:
            if create is not None and not isinstance(error, LedgerUnavailable):
                error.add_note("Where there is none yet, --create makes it.")
            raise
        yield store


def _spent(known: "ledgers.Known", population: str) -> "accounts.Spent":
    """What its charges come to, at the limit's δ as long as they fit it: there, it and the limit compare."""
    held, account = known.held.get(population, []), known.accounts.get(population)
    spent = accounts.compose(held)
    if account is None or spent.delta >= account.limit.delta:
        return spent
    return accounts.compose(held, account.limit.delta)


def _as_json(spent: "accounts.Spent", account: "accounts.Account | None") -> dict[str, Any]:
    if account is None:
        return asdict(spent) | {"limit": None, "counted": None, "fits": None}
    counted = account.epsilon, account.delta, float(account.square) ** 0.5, account.lost
    fits = account.largest_epsilon(0.0), account.largest_delta, account.largest_mu(0.0), account.largest_lost
    said = {"counted": map(float, counted), "fits": fits}
    numbers = {key: dict(zip(("epsilon", "delta", "mu", "lost"), of, strict=True)) for key, of in said.items()}
    return asdict(spent) | {"limit": account.limit.words()} | numbers
