"""What people come for: the headings under which `quoron --help` and the command reference have the commands.

A new command joins by its name in one of them.
"""

from inspect import cleandoc
from typing import Any

import click
from typer.core import TyperGroup

GROUPS = {
    "Your own table": (
        *("train", "predict", "evaluate", "tune", "statistics", "declare"),
        *("example", "index", "resume", "report"),
    ),
    "Try and compare": ("plan", "simulate", "compare", "presets", "algorithms"),
    "A federation": (  # on this machine, its two sides, its operators
        *("local", "serve", "helper", "client", "leave", "silo"),
        *("submit", "runs", "watch", "cancel", "fetch", "certs", "tokens", "users", "health"),
    ),
    "Accounts and books": ("ledger", "backup", "restore", "continue-restored"),
}


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

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Plain text: where rich is not asked for."""
        limit = formatter.width - 6 - max(map(len, self.commands))
        for heading, names in (GROUPS | {"Commands": set(self.commands).difference(*GROUPS.values())}).items():
            there = [name for name in names if name in self.commands and not self.commands[name].hidden]
            if there:
                with formatter.section(heading):
                    formatter.write_dl([(name, self.commands[name].get_short_help_str(limit)) for name in there])


def _paragraphs(text: str) -> str:
    """Each on a line of its own, which a terminal breaks where it ends and not where the source does."""
    return "\n\n".join(" ".join(each.split()) for each in cleandoc(text).split("\n\n"))
