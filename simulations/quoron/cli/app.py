"""The command line. Results go to standard output, progress and errors to standard error.

Exit codes: 0 done, 1 the run failed, 2 the request is wrong, 3 it ended without a quorum, 130 interrupted (and
resumable). Commands import what they need when they are called, so that `--help` and completion answer at once.
"""

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from errno import ENOSPC, EPIPE
from functools import partial
from inspect import cleandoc
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click
import typer
from typer.core import TyperGroup

import quoron
from quoron.cli import books as cli_books
from quoron.cli import federation as cli_federation
from quoron.cli import helper as cli_helper
from quoron.cli import ledger as cli_ledger
from quoron.cli import local as cli_local
from quoron.cli import train as cli_train
from quoron.cli.columns import table_options
from quoron.cli.common import (
    INTERRUPTED,
    Address,
    Algorithm,
    Epsilon,
    ItemsPerUser,
    Json,
    Link,
    Out,
    Picture,
    Quiet,
    Run,
    Seed,
    Settings,
    Source,
    Workers,
    err,
    interruptible,
    networked,
    progress,
    showing,
)
from quoron.cli.compare import compare
from quoron.cli.connection import shared_options
from quoron.cli.health import health
from quoron.cli.tables import bounds, evaluate, index, stats
from quoron.cli.tune import tune
from quoron.table_columns import DescribedTable
from quoron_privacy.errors import ConfigError, Infeasible, QuoronError, RunError
from quoron_privacy.kernels.on_first_use import OnFirstUse

if TYPE_CHECKING:
    from quoron.api import resuming
    from quoron.cli import searches
    from quoron.engines import Engine
else:  # when a command is called
    resuming = OnFirstUse("quoron.api.resuming")
    searches = OnFirstUse("quoron.cli.searches")

# What people come for: the headings of `quoron --help` and of the command reference. A new command joins by its name.
GROUPS = {
    "Your own table": (
        *("train", "predict", "evaluate", "tune", "stats", "bounds"),
        *("example", "index", "resume", "report"),
    ),
    "Try and compare": ("plan", "simulate", "compare", "presets", "algorithms"),
    "A federation": (  # on this machine, its two sides, its operators
        *("local", "serve", "helper", "client", "leave", "silo"),
        *("submit", "runs", "watch", "cancel", "fetch", "certs", "tokens", "users", "health"),
    ),
    "Accounts and books": ("ledger", "backup", "restore", "continue-restored"),
}


Parse = Callable[[click.Context, list[str]], list[str]]


class Grouped(TyperGroup):
    """Commands in the order of their groups, under a heading each, in boxes or as plain text."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        told = {name: heading for heading, names in GROUPS.items() for name in names}
        self.commands = {name: self.commands[name] for name in [*told, *self.commands] if name in self.commands}
        for name, command in self.commands.items():
            command.rich_help_panel = told.get(name)  # type: ignore[attr-defined]  # Typer's own commands have it
            for each in (command, *getattr(command, "commands", {}).values()):
                each.help = each.help and _paragraphs(each.help)
                vars(each)["parse_args"] = partial(_once, each, each.parse_args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Plain text: where rich is not asked for."""
        limit = formatter.width - 6 - max(map(len, self.commands))
        for heading, names in (GROUPS | {"Commands": set(self.commands).difference(*GROUPS.values())}).items():
            there = [name for name in names if name in self.commands and not self.commands[name].hidden]
            if there:
                with formatter.section(heading):
                    formatter.write_dl([(name, self.commands[name].get_short_help_str(limit)) for name in there])


def _once(command: click.Command, parse: Parse, context: click.Context, args: list[str]) -> list[str]:
    """Parse arguments; UsageError for an option of one value that is given two, of which click would take the last."""
    order = command.make_parser(context).parse_args(args=list(args))[2]
    for option in {each for each in order if isinstance(each, click.Option) and not each.multiple}:
        names = {*option.opts, *option.secondary_opts}
        places = [place for place, word in enumerate(args) if word.partition("=")[0] in names]
        apart = [0 if option.is_flag or "=" in args[place] else 1 for place in places]  # the value is the next word
        typed = dict.fromkeys(" ".join(args[at : at + 1 + more]) for at, more in zip(places, apart, strict=True))
        if order.count(option) > 1 and len(typed) > 1:
            raise click.UsageError(f"Expected one {option.opts[0]}, got {' and '.join(typed)}. Leave one out.", context)
    return parse(context, args)


def _paragraphs(text: str) -> str:
    """Each on a line of its own, which a terminal breaks where it ends and not where the source does."""
    return "\n\n".join(" ".join(each.split()) for each in cleandoc(text).split("\n\n"))


app = typer.Typer(
    cls=Grouped,
    help="Models of tables in which people have many rows: everything that one of them holds is protected at once.",
    pretty_exceptions_enable=False,
)


def _print_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        print(f"quoron {version('quoron')}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _program(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help())


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """Options that say which engine carries a run out."""

    engine: Annotated[
        str,
        typer.Option(
            metavar="inline|ray|flower|service",
            help="Compute here, on a Ray cluster, Flower's nodes, or clients of a federation here: the same bits.",
        ),
    ] = "inline"
    workers: Workers = None
    address: Address = None
    nodes: Annotated[int | None, typer.Option(help="Flower: simulated SuperNodes, 50 unless told otherwise.")] = None
    cpus: Annotated[int | None, typer.Option(help="Flower: processors for them, all unless told otherwise.")] = None
    superlink: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Flower: use the SuperNodes of this federation instead.")
    ] = None
    authority: Annotated[Path | None, typer.Option(help="Flower: certificate that signs the SuperLink's, PEM.")] = None
    insecure: Annotated[bool, typer.Option("--insecure", help="Flower: a SuperLink without TLS.")] = False
    clients: Annotated[int | None, typer.Option(help="Service: so many of the users; all unless told.")] = None
    kills: Annotated[
        list[str] | None,
        typer.Option(
            "--kill-client",
            metavar="CLIENT@ROUND[:gone]",
            help="Service: kill its process then, and start it again or not.",
        ),
    ] = None
    slow: Annotated[
        str | None, typer.Option(metavar="[SHARE%:]SECONDS", help="Service: clients that take longer, as 10%:2s.")
    ] = None
    keep: Annotated[
        bool, typer.Option("--keep", help="Service: leave the federation in RUN/federation, to be operated.")
    ] = False

    def chosen(self) -> "Engine":
        """Return the engine. Raises ConfigError for an option that it does not have or refuses."""
        from quoron.engines import from_options

        return from_options(**asdict(self))


@app.command()
@table_options
@shared_options
def simulate(
    engine: EngineOptions,
    columns: DescribedTable,
    source: Source = "quickstart",
    epsilon: Epsilon = None,
    algorithm: Algorithm = None,
    items_per_user: ItemsPerUser = None,
    seed: Seed = None,
    out: Out = None,
    network: Link = None,
    settings: Settings = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Train privately over a simulated population, and show what it reached and what it cost."""
    with progress(as_json=as_json, quiet=quiet) as observer, interruptible():
        result = quoron.simulate(
            source,
            epsilon=epsilon,
            seed=seed,
            algorithm=algorithm,
            items_per_user=items_per_user,
            out=out,
            settings=(*(settings or ()), *networked(network)),
            observers=[observer],
            engine=engine.chosen(),
            **columns,
        )
    showing.show_result(result, as_json=as_json)


@app.command()
@shared_options
def resume(engine: EngineOptions, run: Run, as_json: Json = False, quiet: Quiet = False) -> None:
    """Continue an interrupted run or comparison; a simulation to identical bits on any engine, whichever began it."""
    bars = not quiet and (not as_json or sys.stderr.isatty())
    with progress(as_json=as_json, quiet=quiet) as observer, interruptible():
        result = quoron.resume(run, [observer], progress=bars, engine=engine.chosen())
    searches.show(result, as_json=as_json)


@app.command()
@table_options
def plan(
    columns: DescribedTable,
    source: Source = "quickstart",
    epsilon: Epsilon = None,
    algorithm: Algorithm = None,
    items_per_user: ItemsPerUser = None,
    network: Link = None,
    settings: Settings = None,
    risk: Annotated[
        str | None,
        typer.Option("--for-risk", metavar="RISK|SHARE%", help="Say how many users, or which ε, would do for it."),
    ] = None,
    accuracy: Annotated[
        float | None,
        typer.Option("--for-accuracy", metavar="0..1", help="The same for an accuracy; looks at the data."),
    ] = None,
    epsilons: Annotated[bool, typer.Option("--epsilons", help="Say what ε buys; with --plot, draw that.")] = False,
    picture: Picture = None,
    losses: Annotated[
        Path | None,
        typer.Option("--losses", metavar="FILE.json", help="Write the privacy loss, for an accountant of your own."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Say what a run would promise and cost, and how many rounds it needs, before any data is touched.

    A round is what papers count as a batch gradient step (docs/rounds.md).
    """
    _check_picture(picture)
    if losses is not None and not (losses.suffix == ".json" and losses.parent.is_dir()):
        raise ConfigError(f"Expected --losses to name a .json file in a folder that exists, got {losses}.")
    said = (*(settings or ()), *networked(network))
    asked: dict[str, Any] = {"epsilon": epsilon, "algorithm": algorithm, "items_per_user": items_per_user}
    asked |= {"risk": risk, "accuracy": accuracy, "epsilons": epsilons, "settings": said, **columns}
    try:
        planned = quoron.plan(source, **asked)
    except Infeasible as error:  # what would be feasible is told before it is said that this is not
        if error.advice is not None:
            if picture is not None and epsilons:
                showing.draw_epsilons(picture, error.advice)
            showing.show_answers(error.advice, as_json={"infeasible": str(error)} if as_json else None)
        raise
    if picture is not None and epsilons and planned.advice is not None:
        showing.draw_epsilons(picture, planned.advice)
    if picture is not None and not epsilons:
        showing.draw(picture, planned)
    if losses is not None:
        showing.write_losses(losses, planned)
    showing.show_plan(planned, as_json=as_json)


@app.command()
def algorithms(as_json: Json = False) -> None:
    """List the algorithms, their papers and what they protect.

    Each is theirs (the published steps; sizes, averages and noise are those of the plan), repaired (a published step is
    changed because a proof needs it) or ours (no paper prints these steps; those that are named come closest).
    """
    showing.show_algorithms(as_json=as_json)


@app.command(name="presets")
def list_presets() -> None:
    """List the ready configurations."""
    showing.show_presets()


@app.command()
def report(run: Run) -> None:
    """Write the report.html of a run or a comparison again, and print its path."""
    print(resuming.report(run))


cli_federation.register(app)
app.add_typer(cli_ledger.app, name="ledger")
app.add_typer(cli_local.app, name="local")
app.add_typer(cli_helper.app, name="helper")
app.command()(cli_books.backup)
app.command()(cli_books.restore)
app.command()(cli_books.continue_restored)
app.command()(cli_train.train)
app.command()(cli_train.predict)
app.command()(evaluate)
app.command()(cli_train.example)
app.command()(compare)
app.command()(tune)
app.command()(health)
app.command()(bounds)
app.command()(stats)
app.command()(index)


EXTRAS = {"flwr": "flower"} | dict.fromkeys(("grpc", "grpc_health", "grpc_reflection", "sqlalchemy"), "federation")


def invoke(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code; a QuoronError becomes its message, never a traceback."""
    try:
        code = int(app(args=list(arguments), prog_name="quoron", standalone_mode=False) or 0)
        sys.stdout.flush()
        return code
    except QuoronError as error:
        return _refuse(" ".join([str(error), *getattr(error, "__notes__", ())]), error.exit_code)
    except click.exceptions.NoArgsIsHelpError as error:  # a group without a command: its help is all there is to say
        print(error.ctx.get_help() if error.ctx else error.format_message(), file=sys.stderr)
        return error.exit_code
    except click.ClickException as error:
        return _refuse(error.format_message(), error.exit_code)
    except ModuleNotFoundError as error:
        if error.name not in EXTRAS:
            raise
        return _refuse(f"Expected {error.name}, got none. pip install 'quoron[{EXTRAS[error.name]}]'.", 2)
    except MemoryError as error:
        return _refuse(f"Expected more memory, got too little: {error or 'no more is given'}.", RunError.exit_code)
    except OSError as error:  # of files each says so itself
        if error.errno not in (EPIPE, ENOSPC) or error.filename is not None:
            raise
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 (at the end what is left is written again)
        if error.errno == EPIPE:  # whoever reads has had enough
            return RunError.exit_code
        return _refuse(f"Cannot write to standard output: {error.strerror}. Make room.", RunError.exit_code)
    except (KeyboardInterrupt, click.Abort):
        print("Interrupted.", file=sys.stderr)
        return INTERRUPTED


def _refuse(why: str, code: int) -> int:
    from rich.markup import escape

    err().print(f"[bold red]error:[/] {escape(why)}", soft_wrap=True, highlight=False)
    return code


def _check_picture(picture: Path | None) -> None:
    """Before any work: an SVG file in a folder that exists."""
    if picture is None:
        return
    if picture.suffix != ".svg":
        raise ConfigError(f"Expected --plot to name an .svg file, got {picture}.")
    if not picture.parent.is_dir():
        raise ConfigError(f"Expected --plot to name a file in a folder that exists, got {picture}.")
