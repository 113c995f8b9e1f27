"""Write docs/command-reference.md from the commands themselves; with `--check`, only say if it is up to date."""

import inspect
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import click
import typer
import written
from typer.models import ArgumentInfo

from quoron.cli.app import GROUPS, app

PAGE = Path(__file__).parent.parent / "docs" / "command-reference.md"
HEAD = """# Commands

Generated from `quoron.cli` by `scripts/gen_command_reference.py`; do not edit by hand.

Every command has `--help`. Exit codes: 0 done, 1 the run failed, 2 the request is wrong, 130 interrupted.
Two options of every command stand before it, as in `quoron --profile NAME runs`. An operator's command
uses the profile of `quoron login` that `--profile` (or QUORON_PROFILE) names, and `--quiet` shows no progress.
`quoron --version` says which quoron this is, and `quoron --install-completion` teaches the shell to complete.
"""


def page() -> str:
    """The whole page."""
    commands = [*_commands(typer.main.get_command(app), "quoron")]
    index = "\n".join(_index(heading, commands) for heading in GROUPS)
    return "\n".join([HEAD, index, *(_section(name, each) for name, each in commands)])


def _index(heading: str, commands: Sequence[tuple[str, click.Command]]) -> str:
    """The commands of a group, each with its first line."""
    held = [(name, each) for name, each in commands if name.split()[1] in GROUPS[heading]]
    lines = [f"* [`{name}`](#{name.replace(' ', '-')}): {_first_line(each)}" for name, each in held]
    return "\n".join([f"**{heading}**", "", *lines, ""])


def _commands(command: click.Command, name: str) -> Iterator[tuple[str, click.Command]]:
    if isinstance(command, click.Group):
        for inner in command.commands.values():
            yield from _commands(inner, f"{name} {inner.name}")
        if not command.invoke_without_command:
            return
    if name != "quoron":
        yield name, command


def _first_line(command: click.Command) -> str:
    return " ".join(_help(command).split("\n\n")[0].split())


def _help(command: click.Command) -> str:
    return inspect.cleandoc(command.help or "").replace("\b\n", "")


def _section(name: str, command: click.Command) -> str:
    context = click.Context(command, info_name=name)
    usage = " ".join(piece for each in command.get_params(context) for piece in each.get_usage_pieces(context))
    told = _argument_helps(command)
    rows = [_row(each, context, told) for each in command.get_params(context) if not each.opts[0].startswith("--help")]
    table = "\n".join(["| option | meaning | default |", "| --- | --- | --- |", *rows]) + "\n" if rows else ""
    return f"## {name}\n\n    {f'{name} [OPTIONS] {usage}'.strip()}\n\n{_help(command)}\n\n{table}"


def _argument_helps(command: click.Command) -> dict[str, str]:
    """What each argument is, from the annotations: some versions of click forget it."""
    parameters = inspect.signature(command.callback).parameters.values() if command.callback else ()
    marks = [(each.name, mark) for each in parameters for mark in getattr(each.annotation, "__metadata__", ())]
    return {name: mark.help or "" for name, mark in marks if isinstance(mark, ArgumentInfo)}


def _row(parameter: click.Parameter, context: click.Context, helps: dict[str, str]) -> str:
    told = parameter.to_info_dict()
    words = ", ".join([*parameter.opts, *parameter.secondary_opts])
    metavar = parameter.make_metavar(context)
    if parameter.param_type_name == "argument":
        words = metavar
    elif not (told.get("is_flag") or told.get("count")):
        words = f"{words} {metavar}"
    default = "required" if parameter.required else _default(parameter.default, flag=bool(told.get("is_flag")))
    meaning = getattr(parameter, "help", None) or helps.get(parameter.name or "", "")
    return f"| {_code(words)} | {_cell(meaning)} | {default} |"


def _default(value: object, *, flag: bool) -> str:
    return "" if value in (None, (), []) or callable(value) or flag else _code(str(value))


def _code(text: str) -> str:
    return f"`{_cell(text)}`"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    sys.exit(written.page(PAGE, page()))
