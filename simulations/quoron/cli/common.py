"""What commands share: options, how their texts are read, the display, and what prints results."""

import json
import math
import os
import re
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click
import typer

from quoron.toml_text import pairs
from quoron_privacy.errors import ConfigError, printable
from quoron_privacy.kernels.on_first_use import OnFirstUse

if TYPE_CHECKING:
    from rich.console import Console

    from quoron.cli import showing as showing
    from quoron_client.data.formats import Dialect
else:
    showing = OnFirstUse("quoron.cli.showing")  # for all commands, when one is called: it knows all that is shown


INTERRUPTED = 130
LONGEST = 36_500 * 86_400  # seconds; no calendar goes on for ever
RARE = "More options"  # the panel of what few need
CSV = ("separator", "decimal", "encoding", "quoting")


Csv = Annotated[
    list[str] | None,
    typer.Option(
        "--csv",
        metavar="KEY=VALUE",
        help="How the text is written: separator, decimal, encoding, quoting.",
        rich_help_panel=RARE,
    ),
]


def dialect(csv: list[str] | None) -> "Dialect":
    """Read how a table's text is written. ConfigError for a key or a value that none can have."""
    from quoron_client.data.formats import Dialect

    return Dialect(**keyed("--csv", csv, dict.fromkeys(CSV, lambda _, text: text)))


def keyed(
    option: str, given: list[str] | None, kinds: Mapping[str, Callable[[str, str], Any]], variables: str | None = None
) -> dict[str, Any]:
    """Read what `given` says as KEY=VALUE, or else the environment: `variables` and the key in capitals.

    The function of a key reads its value, and gets what it is called, too. ConfigError for an unknown key, or for two
    values of one.
    """
    typed = pairs(option, given or (), kinds, otherwise="Give one of them and its value.")
    said = {key: (f"{option} {key}", value) for key, value in typed.items()}
    for key in () if variables is None else kinds:
        if key not in said and os.environ.get(name := f"{variables}{key.upper()}"):
            said[key] = name, os.environ[name]
    return {key: kinds[key](*called) for key, called in said.items()}


def number(called: str, text: str) -> float:
    """Read a number. ConfigError for another text."""
    try:
        return float(text)
    except ValueError:
        raise ConfigError(f"Expected {called} as a number, got {text!r}.") from None


def whole(called: str, text: str, least: int = 1) -> int:
    """Read a whole number from `least` on. ConfigError for another text."""
    if not text.strip().isdecimal() or int(text) < least:
        raise ConfigError(f"Expected {called} as a whole number from {least} on, got {text!r}.")
    return int(text)


natural = partial(whole, least=0)


def seconds_of(option: str, text: str) -> float:
    """A time, such as 4w, 7d, 12h, 30m or 45s."""
    match = re.fullmatch(r"(\d{1,9})\s*([smhdw])", text.strip())
    units = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
    seconds = math.inf if match is None else int(match[1]) * units[match[2]]
    if seconds > LONGEST and text != "never":
        times = "a time such as 7d, 12h, 30m or 45s, a hundred years at most"
        raise ConfigError(f"Expected {option} as {times}, or never, got {text!r}.")
    return seconds


def bytes_of(option: str, text: str) -> int:
    """A number of bytes, such as 64MiB."""
    match = re.fullmatch(r"(\d{1,12})\s*([KMG]iB)?", text.strip())
    if match is None:
        raise ConfigError(f"Expected {option} as a number of bytes, KiB, MiB or GiB, got {text!r}.")
    return int(match[1]) << {None: 0, "KiB": 10, "MiB": 20, "GiB": 30}[match[2]]


Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Any key of docs/config-reference.md, such as budget.rounds=9."),
]
Json = Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")]
JsonLines = Annotated[bool, typer.Option("--json", help="JSON on standard output, one object a line.")]


def of_program(name: str) -> Any:
    """The value of an option of the program, which stands before the command."""
    return click.get_current_context().find_root().params.get(name)


def shows_progress(*, as_json: bool) -> bool:
    """Whether progress is shown: not with `quoron --quiet`, nor for a program that reads JSON."""
    return not of_program("quiet") and (not as_json or sys.stderr.isatty())


def err() -> "Console":
    """Standard error, for people."""
    from quoron.reports.terminal import Terminal

    return Terminal(stderr=True)


def say(result: Any, words: str = "", *, as_json: bool) -> None:
    """A line on standard output, as it comes: JSON, or in words."""
    from quoron_server.serial import dumps

    print(dumps(result) if as_json else words, flush=True)


def give_receipt(receipt: dict[str, Any], words: str, where: Path | None) -> None:
    """Show a receipt, after it is written where somebody wants it; RunError if it cannot be."""
    if where is not None:
        from quoron.run_folder import write
        from quoron_client.durable import PRIVATE

        again = "All is done: say the same again with another place."
        write(where, f"{json.dumps(receipt, indent=1)}\n".encode(), advice=again, mode=PRIVATE)
    print(printable(words))
