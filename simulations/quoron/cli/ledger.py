"""`quoron ledger`: what was promised to every group of users over all runs, and the limit that no run may pass.

Each command opens one's own ledger, which `quoron train` charges; with --database a coordinator's, or with
--coordinator it asks the coordinator that has it open: a SQLite file belongs to one process at a time. What a
coordinator sends is verified here, row by row, before anything is made of it.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quoron.cli.common import say, showing
from quoron.cli.connection import Authority, Connection, Insecure, OwnToken, here, shared_options
from quoron_privacy.errors import BudgetExceeded, DataError, LedgerError, LedgerUnavailable
from quoron_privacy.kernels.on_first_use import OnFirstUse

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from quoron import run_folder
    from quoron.training import lifetime
    from quoron_privacy.accounts import lifetime as accounts
    from quoron_server.books import chain
    from quoron_server.books import database as databases
    from quoron_server.books import lifetime_ledger as ledgers
else:  # when a command is called
    run_folder = OnFirstUse("quoron.run_folder")
    lifetime = OnFirstUse("quoron.training.lifetime")
    accounts = OnFirstUse("quoron_privacy.accounts.lifetime")
    chain = OnFirstUse("quoron_server.books.chain")
    databases = OnFirstUse("quoron_server.books.database")
    ledgers = OnFirstUse("quoron_server.books.lifetime_ledger")

app = typer.Typer(
    name="ledger", help="Privacy over all runs: read, verify, export, limit, what fits, charge.", no_args_is_help=True
)

Url = Annotated[
    str | None,
    typer.Option(
        "--database",
        envvar="QUORON_DATABASE",
        help="Of a coordinator, sqlite:///FILE or postgresql://USER@HOST/NAME. None: one's own, QUORON_LEDGER.",
    ),
]
Asked = Annotated[
    str | None,
    typer.Option("--coordinator", metavar="HOST:PORT", help="Ask this control plane, and open no database."),
]
Group = Annotated[str, typer.Option("--population", metavar="NAME", help="Whose privacy budget.")]
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
Head = Annotated[str | None, typer.Option("--head", metavar="HASH", help="The head of an earlier export.")]


@dataclass(frozen=True, slots=True)
class Source:
    """Where a population's ledger is: in a database, or behind a running coordinator."""

    database: Url = None
    coordinator: Asked = None
    token_file: OwnToken = None
    authority: Authority = None
    insecure: Insecure = False

    def rows(self) -> "list[chain.Row]":
        """The chain, every row of it verified in this process; LedgerError if one is wrong."""
        if self.coordinator is not None:
            with self.connection(self.coordinator).open() as control:
                exported = control.ledger()
            chain.verify_export(json.dumps(exported))
            return list(exported["rows"])
        with self._population(self.open(create=False)) as population:
            return population.rows()

    def known(self) -> "ledgers.Known":
        """What the verified chain says of all groups."""
        return ledgers.known_of(self.rows())

    def verified(self, exported: Path | None, head: str | None) -> "tuple[list[chain.Row], str]":
        """Every row, of an export if there is one, verified up to a head that was kept; and the last one's."""
        if exported is None:
            rows = self.rows()
            return rows, chain.verify_rows(rows, head)
        last = chain.verify_export(text := _text(exported), head)
        return json.loads(text)["rows"], last

    def open(self, *, create: bool) -> "AbstractContextManager[databases.Database]":
        """The database; LedgerUnavailable says what to do beside a coordinator that holds it."""
        if self.database is None:
            return lifetime.opened_database(lifetime.place(None), create=create)
        try:
            return databases.Database(self.database, create=create, sole=False)
        except LedgerUnavailable as error:
            raise LedgerUnavailable(f"{error} Ask a running coordinator with --coordinator HOST:PORT.") from None

    def there(self, *, create: bool) -> "AbstractContextManager[ledgers.PopulationLedger]":
        """Of a database that is there: a limit in a new one, made by mistake elsewhere, would hold for nobody."""
        try:
            return self._population(self.open(create=create))
        except LedgerUnavailable:
            raise
        except LedgerError as error:
            raise LedgerError(f"{error} Where there is none yet, --create makes it.") from None

    @contextmanager
    def _population(
        self, opening: "AbstractContextManager[databases.Database]"
    ) -> Iterator["ledgers.PopulationLedger"]:
        with opening as opened:
            yield ledgers.PopulationLedger(opened)

    def connection(self, coordinator: str) -> Connection:
        """How the coordinator is reached."""
        return Connection(coordinator, self.token_file, self.authority, self.insecure)


@app.command()
@shared_options
def show(
    source: Source,
    group: Annotated[
        str | None, typer.Option("--population", metavar="NAME", help="Only this one, with its runs.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")] = False,
) -> None:
    """What is promised to each group, and what its limit leaves; with --population its runs."""
    from rich.markup import escape

    known = source.known()
    names = sorted({*known.held, *known.accounts}) if group is None else [group]
    totals = {name: _spent(known, name) for name in names}
    if as_json:
        say({name: _as_json(spent, known.accounts.get(name)) for name, spent in totals.items()}, as_json=True)
        return
    all_ = showing.table("group", "runs", "proved together: ε", "at δ", "limit", "counted against it", "still fits")
    for name, spent in totals.items():
        account = known.accounts.get(name)
        limit_words = (
            ("none", "", "") if account is None else (account.limit.words(), account.words(), account.left_words())
        )
        all_.add_row(escape(name), f"{spent.runs:,}", f"{spent.epsilon:.6g}", f"{spent.delta:.3g}", *limit_words)
    out = showing.console()
    out.print(all_)
    runs = known.held.get(group or "", [])
    if runs:
        each = showing.table("run", "charged")
        for charge in runs:
            by = " (another tool's)" if charge.run in known.elsewhere else ""
            each.add_row(escape(charge.run), escape(charge.words() + by))
        out.print(each)


@app.command()
@shared_options
def verify(
    source: Source,
    head: Head = None,
    exported: Annotated[Path | None, typer.Option("--export", help="Verify this export, and ask nobody.")] = None,
) -> None:
    """Check every row, and that the last is the one kept beside a SQLite file. Prints the head.

    With --head, that of an earlier export, also against somebody who writes beside the file, too.
    """
    typer.echo(source.verified(exported, head)[1])


@app.command()
@shared_options
def export(
    source: Source,
    file: Annotated[Path | None, typer.Option("--file", help="A file; standard output without.")] = None,
) -> None:
    """The whole verified chain as JSON. Keep it where the coordinator's operator cannot change it."""
    text = ledgers.export_of(source.rows())
    if file is None:
        typer.echo(text, nl=False)
    else:
        run_folder.write(file, text.encode())


@app.command()
@shared_options
def who(
    source: Source,
    head: Head = None,
    exported: Annotated[Path | None, typer.Option("--export", help="Of this export, and ask nobody.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
) -> None:
    """Who submitted, cancelled and limited what, and what was spent, with which code: of the verified chain, in order.

    `plan` is the digest of a run's plan, `code` the version that wrote the row. Rows of before are of nobody.
    """
    from rich.markup import escape

    rows, _ = source.verified(exported, head)
    shown = showing.table("time", "what", "by", "group", "run", "plan", "ε", "δ", "code")
    for act in chain.acts(rows):
        if as_json:
            say(act, as_json=True)
        told = act | {"plan": act.get("plan", "")[:12]}
        names = ("time", "what", "by", "group", "run", "plan", "epsilon", "delta", "software")
        shown.add_row(*(escape(str(told.get(name, ""))) for name in names))
    if not as_json:
        showing.console().print(shown)


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
    exceeded: Annotated[
        bool, typer.Option("--exceeded", help="Also below what is counted already: then no run fits any more.")
    ] = False,
    create: Create = False,
) -> None:
    """From now on refuse runs that would bring the group beyond (ε, δ). It is entered in the chain.

    A limit below what it would count of the charges so far is refused, unless --exceeded says that this is meant.
    """
    numbers = {"epsilon": epsilon, "delta": delta, "gaussian_share": gaussian_share}
    if source.coordinator is not None:
        with source.connection(source.coordinator).open() as control:
            words = control.limit(group, exceeded=exceeded, **numbers)
    else:
        with source.there(create=create) as population:
            words = population.limit(group, exceeded=exceeded, by=here(), **numbers).words()
    typer.echo(f"{group}: {words}")


@app.command()
@shared_options
def fits(
    source: Source,
    epsilon: Epsilon,
    delta: Delta = 0.0,
    group: Group = "everyone",
    mu: Mu = None,
    variation: Variation = 0.0,
    lost: Lost = 0.0,
    adjacency: Adjacency = "replace-one",
) -> None:
    """Whether a run with this promise would be admitted now, and what fits at most. Exit code 1 if it would not.

    It is what the limit counts that decides, which `show` says, not what is proved of all runs together.
    """
    account = source.known().accounts.get(group)
    own = accounts.gaussian(mu, lost)
    wanted = accounts.Charge("", group, epsilon, delta, adjacency=adjacency, variation=variation, **own)
    if account is None:
        typer.echo(f"{group}: {wanted.words()} fits, as there is no limit. Set one with `quoron ledger limit`.")
        return
    counted = f"counted so far: {account.words()}. {account.fitting(wanted)}"
    if not account.after(wanted).holds:
        raise BudgetExceeded(f"{group}: {wanted.words()} does not fit; {counted}")
    typer.echo(f"{group}: {wanted.words()} fits; {counted}")


@app.command()
@shared_options
def charge(
    source: Source,
    name: Annotated[str, typer.Argument(help="What it is known by from now on; a run of ours may not have it.")],
    epsilon: Epsilon,
    delta: Delta = 0.0,
    group: Group = "everyone",
    mu: Mu = None,
    variation: Variation = 0.0,
    lost: Lost = 0.0,
    adjacency: Adjacency = "replace-one",
    note: Annotated[str, typer.Option("--note", help="Which tool, which release: whatever a reader has to know.")] = "",
    spent: Annotated[
        bool, typer.Option("--spent", help="It has been spent already: enter it even beyond the limit.")
    ] = False,
    create: Create = False,
) -> None:
    """Enter what another tool spends on the same users: it counts against their limit as a run does, for good.

    Before that tool releases anything, so that the limit can still refuse it; afterwards with --spent.
    """
    promise: dict[str, Any] = {"epsilon": epsilon, "delta": delta, "mu": mu, "variation": variation, "lost": lost}
    promise |= {"adjacency": adjacency, "spent": spent}
    if source.coordinator is not None:
        with source.connection(source.coordinator).open() as control:
            words = control.charge(name, group, note=note, **promise)
    else:
        with source.there(create=create) as population:
            said: dict[str, Any] = {"statement": note, "elsewhere": True, "by": here()}
            words = population.charge(name, group, **said, **promise).words()
    typer.echo(f"{group}: {name} charged with {words}")


def _spent(known: "ledgers.Known", group: str) -> "accounts.Spent":
    """What a group's charges come to, at the limit's δ as long as they fit it: there, it and the limit compare."""
    held, account = known.held.get(group, []), known.accounts.get(group)
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
