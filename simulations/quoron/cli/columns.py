"""Options of the commands that take a table: one for each word of `quoron.table_columns`."""

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer

import quoron
from quoron.table_columns import TYPES, WORDS, DescribedTable, read
from quoron_privacy.errors import QuoronError


def table_options(command: Callable[..., None]) -> Callable[..., None]:
    """The command, with an option for each word of a table in place of its parameter `columns`."""
    parameters = list(inspect.signature(command, eval_str=True).parameters.values())
    place = next(at for at, each in enumerate(parameters) if each.name == "columns")
    parameters[place : place + 1] = map(_option, WORDS)

    @functools.wraps(command)
    def given(**options: Any) -> None:
        said = {name: options.pop(name) for name in WORDS}
        columns = {name: _value(name, typed) for name, typed in said.items() if typed not in (None, [], ())}
        command(columns=DescribedTable(**columns), **options)  # type: ignore[typeddict-item]

    given.__dict__["__signature__"] = inspect.Signature(parameters)  # what typer reads
    return given


def _option(name: str) -> inspect.Parameter:
    word, kind = WORDS[name], bool | None if TYPES[name] is bool else list[str] | None
    means = f"{word.means[:1].upper()}{word.means[1:]}."
    complete = _columns if word.metavar.startswith("COLUMN") else None
    option = typer.Option(metavar=None if TYPES[name] is bool else word.metavar, help=means, autocompletion=complete)
    either = inspect.Parameter.POSITIONAL_OR_KEYWORD
    return inspect.Parameter(name, either, default=None, annotation=Annotated[kind, option])


def _value(name: str, typed: Any) -> Any:
    return typed if isinstance(typed, bool) else read(name, typed)


def _columns(context: typer.Context, typed: str) -> list[str]:
    """Columns, by the header of the table that was named, that complete what is typed behind the last comma."""
    before, comma, last = typed.rpartition(",")
    try:  # an option that is still being typed leaves all words where they are
        names = quoron.read_table(str(context.params.get("source") or next(iter(context.args), ""))).names
    except QuoronError:  # a configuration, or nothing that can be read
        return []
    return [f"{before}{comma}{name}" for name in names if name.startswith(last)]
