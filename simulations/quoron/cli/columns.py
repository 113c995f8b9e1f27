"""Options of the commands that take a table: those words of `quoron.table_columns` that are options."""

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer

import quoron
from quoron.table_columns import WORDS, Columns, DescribedTable, read
from quoron_privacy.errors import QuoronError

OPTIONS = {name.rpartition(".")[2]: name for name, word in WORDS.items() if word.option}
_EITHER = inspect.Parameter.POSITIONAL_OR_KEYWORD


def table_options(command: Callable[..., None]) -> Callable[..., None]:
    """The command, with an option for each of those words in place of its parameter `columns`."""
    parameters = list(inspect.signature(command, eval_str=True).parameters.values())
    place = next(at for at, each in enumerate(parameters) if each.name == "columns")
    parameters[place : place + 1] = map(_option, OPTIONS)

    @functools.wraps(command)
    def given(**options: Any) -> None:
        said = {name: options.pop(name) for name in OPTIONS}
        columns = {name: read(OPTIONS[name], typed) for name, typed in said.items() if typed}
        roles = {name: columns.pop(name) for name in ("user", "label") if name in columns}
        command(columns=DescribedTable(**roles, columns=Columns(**columns)), **options)  # type: ignore[typeddict-item]

    given.__dict__["__signature__"] = inspect.Signature(parameters)  # what typer reads
    return given


def _option(name: str) -> inspect.Parameter:
    word = WORDS[OPTIONS[name]]
    means, complete = f"{word.means[:1].upper()}{word.means[1:]}.", _columns if "COLUMN" in word.metavar else None
    option = typer.Option(metavar=word.metavar, help=means, autocompletion=complete)
    return inspect.Parameter(name, _EITHER, default=None, annotation=Annotated[list[str] | None, option])


def _columns(context: typer.Context, typed: str) -> list[str]:
    """Columns, by the header of the table that was named, that complete what is typed behind the last comma."""
    before, comma, last = typed.rpartition(",")
    try:  # an option that is still being typed leaves all words where they are
        names = quoron.read_table(str(context.params.get("source") or next(iter(context.args), ""))).names
    except QuoronError:  # a configuration, or nothing that can be read
        return []
    return [f"{before}{comma}{name}" for name in names if name.startswith(last)]
