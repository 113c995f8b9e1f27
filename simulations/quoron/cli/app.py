"""The command line. Results go to standard output, progress and errors to standard error.

Exit codes: 0 done, 1 the run failed, 2 the request is wrong, 3 it ended below its minimum cohort, 130 interrupted (and
resumable). Commands import what they need when they are called, so that `--help` and completion answer at once.
"""

import os
import shlex
import sys
from collections.abc import Callable, Sequence
from errno import ENOSPC, EPIPE
from functools import partial
from inspect import cleandoc
from typing import Annotated, Any

import click
import typer
from click.core import ParameterSource
from typer.core import TyperGroup

from quoron.cli import admin as cli_admin
from quoron.cli import federation as cli_federation
from quoron.cli import ledger as cli_ledger
from quoron.cli import tables as cli_tables
from quoron.cli.common import INTERRUPTED, err
from quoron_privacy.errors import QuoronError, RunError

# What people come for: the headings of `quoron --help` and of the command reference. A new command joins by its name.
GROUPS = {
    "Your own table": (
        *("train", "predict", "evaluate", "tune", "stats", "bounds"),
        *("example", "resume", "show"),
    ),
    "Try and compare": ("plan", "simulate", "compare"),
    "A federation": (  # on this machine, its two sides, its operators
        *("local", "serve", "second-server", "client", "leave"),
        *("login", "submit", "runs", "watch", "cancel", "fetch", "admin"),
    ),
    "Privacy budgets": ("ledger",),
}


Parse = Callable[[click.Context, list[str]], list[str]]


class Grouped(TyperGroup):
    """Commands in the order of their groups, under a heading each."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        headings = {name: heading for heading, names in GROUPS.items() for name in names}
        self.commands = {name: self.commands[name] for name in [*headings, *self.commands] if name in self.commands}
        for name, command in self.commands.items():
            command.rich_help_panel = headings.get(name)  # type: ignore[attr-defined]  # Typer's own commands have it
            for below in _below(command):
                below.help = below.help and _paragraphs(below.help)
                vars(below)["parse_args"] = partial(_once, below, below.parse_args)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse arguments, as the commands do."""
        return _once(self, super().parse_args, ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; an interruption says how to go on."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as stopped:
            for how in getattr(stopped, "__notes__", ()):
                err().print(how, soft_wrap=True, highlight=False, markup=False)
            raise


def _below(command: click.Command) -> list[click.Command]:
    """A command, and all those of its group, but for a `Grouped` one, which has seen to them."""
    inside = {} if isinstance(command, Grouped) else getattr(command, "commands", {})
    return [command, *(one for inner in inside.values() for one in _below(inner))]


def _once(command: click.Command, parse: Parse, context: click.Context, args: list[str]) -> list[str]:
    """Parse arguments.

    UsageError for an option of one value that is given two, of which click would take the last, for an option of the
    program behind its command, and for a profile where the command uses none.
    """
    try:
        order = command.make_parser(context).parse_args(args=list(args))[2]
    except click.NoSuchOption as error:
        raise _misplaced(error.option_name, context, args) or error from None
    for option in {option for option in order if isinstance(option, click.Option) and not option.multiple}:
        names = {*option.opts, *option.secondary_opts}
        places = [place for place, word in enumerate(args) if word.partition("=")[0] in names]
        apart = [0 if option.is_flag or "=" in args[place] else 1 for place in places]  # the value is the next word
        typed = dict.fromkeys(" ".join(args[at : at + 1 + more]) for at, more in zip(places, apart, strict=True))
        if order.count(option) > 1 and len(typed) > 1:
            raise click.UsageError(f"Expected one {option.opts[0]}, got {' and '.join(typed)}. Leave one out.", context)
    left = parse(context, args)
    root = context.find_root()
    given = root.get_parameter_source("profile") is ParameterSource.COMMANDLINE
    if given and not isinstance(command, click.Group) and not getattr(command.callback, "connects", False):
        named = root.params["profile"]
        own = f"Write: {context.command_path} --profile {named}" if command.name == "login" else "Leave it out."
        raise click.UsageError(f"Expected no profile before {context.command_path}, got {named!r}. {own}", context)
    return left


def _misplaced(name: str, context: click.Context, args: list[str]) -> click.UsageError | None:
    """The error for an option of the program that stands behind its command, with the words in order; else None."""
    options = {word: option for option in context.find_root().command.params for word in option.opts}
    if name not in options or context.parent is None:
        return None
    place = next(at for at, word in enumerate(args) if word.partition("=")[0] == name)
    last = place + 1 + (not options[name].is_flag and "=" not in args[place])  # type: ignore[attr-defined]
    words = ["quoron", *args[place:last], *context.command_path.split()[1:], *args[:place], *args[last:]]
    return click.UsageError(f"Expected {name} before the command, got it behind. Write: {shlex.join(words)}", context)


def _paragraphs(text: str) -> str:
    """Each on a line of its own, which a terminal breaks where it ends and not where the source does."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in cleandoc(text).split("\n\n"))


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
    profile: Annotated[
        str | None,
        typer.Option(envvar="QUORON_PROFILE", metavar="NAME", help="Of `quoron login`, whom a command connects to."),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help())


admin = typer.Typer(cls=Grouped, help="Set up and keep a federation.", no_args_is_help=True)
for command in (cli_federation.certs, *cli_admin.COMMANDS):
    admin.command()(command)
admin.add_typer(cli_admin.users, name="users")
admin.add_typer(cli_admin.silo, name="silo")
app.add_typer(admin, name="admin")
app.add_typer(cli_ledger.app, name="ledger")
app.add_typer(cli_federation.local, name="local")
app.add_typer(cli_federation.second, name="second-server")
for command in (*cli_federation.COMMANDS, *cli_tables.COMMANDS):
    app.command()(command)


EXTRAS = {"flwr": "flower"} | dict.fromkeys(("grpc", "grpc_health", "prometheus_client"), "federation")


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
        if error.errno == EPIPE:  # the reader has had enough
            return RunError.exit_code
        return _refuse(f"Cannot write to standard output: {error.strerror}. Make room.", RunError.exit_code)
    except (KeyboardInterrupt, click.Abort):
        print("Interrupted.", file=sys.stderr)
        return INTERRUPTED


def _refuse(why: str, code: int) -> int:
    from rich.markup import escape

    err().print(f"[bold red]error:[/] {escape(why)}", soft_wrap=True, highlight=False)
    return code
