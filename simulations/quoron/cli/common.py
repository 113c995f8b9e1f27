"""What commands share: arguments, the display, what prints their results, and how an interruption is shown.

Options of the commands that take a table: those words of `quoron.data.columns` that are options.
"""

import math
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click
import typer

import quoron
from quoron.data.columns import TYPED, read
from quoron.presets import presets
from quoron.toml_text import assignment, pairs
from quoron_client.data.formats import is_table
from quoron_privacy.errors import ConfigError
from quoron_privacy.kernels.on_first_use import OnFirstUse

if TYPE_CHECKING:
    from rich.console import Console

    from quoron.cli import showing as showing
    from quoron.reports.terminal import Display
    from quoron_client.data.formats import Dialect
else:
    showing = OnFirstUse("quoron.cli.showing")  # for all commands, when one is called: it knows all that is shown


INTERRUPTED = 130
LONGEST = 36_500 * 86_400  # seconds; no calendar goes on for ever
RARE = "More options"  # the panel of what few need
CSV = ("separator", "decimal", "encoding", "quoting")


def sources(typed: str) -> list[tuple[str, str]]:
    """Presets and files that complete what is typed, each with what it shows."""
    ready = [(each.name, each.summary) for each in presets() if each.name.startswith(typed)]
    return ready + [(path, "") for path in files(typed)]


def files(typed: str) -> list[str]:
    """Tables and configurations that complete what is typed, and folders that may hold some."""
    folder = Path(typed) if typed.endswith("/") else Path(typed).parent
    found = folder.iterdir() if folder.is_dir() else ()
    named = [path for path in found if path.is_dir() or path.suffix == ".toml" or is_table(path)]
    known = [f"{path}/" if path.is_dir() else str(path) for path in named]
    return sorted(each for each in known if each.startswith(typed) and not Path(each).name.startswith("."))


def run_folders(typed: str) -> list[str]:
    """Folders below runs/ that complete what is typed."""
    found = (path.parent for name in ("config.toml", "comparison.json") for path in Path().glob(f"runs/*/{name}"))
    return sorted(str(folder) for folder in found if str(folder).startswith(typed))


Source = Annotated[
    str,
    typer.Argument(
        metavar="[PRESET|CONFIG.TOML|TABLE]",
        help="A preset's name, a TOML file, or a table with what its columns are.",
        autocompletion=sources,
    ),
]
User = Annotated[str | None, typer.Option(metavar="COLUMN", help="Column that says whose item a row is; needed.")]
Label = Annotated[
    str | None,
    typer.Option(metavar="COLUMN", help="Column to predict, or a comparison such as 'delay > 15'; needed."),
]
Numeric = Annotated[
    list[str] | None,
    typer.Option(metavar=TYPED["numeric"][0], help="Public range of each column of numbers."),
]
Categorical = Annotated[
    list[str] | None,
    typer.Option(metavar=TYPED["categorical"][0], help="Public values of a column of words; once for each column."),
]
Epsilon = Annotated[float | None, typer.Option(help="ε; short for privacy.epsilon. Required where noise is secret.")]
Delta = Annotated[float | None, typer.Option(help="δ; short for privacy.delta. 1e-06 without.")]
Algorithm = Annotated[
    str | None, typer.Option(metavar="NAME", help="Of `quoron show algorithms`. Without, a rule chooses.")
]
Run = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.", autocompletion=run_folders)]
Seed = Annotated[int | None, typer.Option(help="Seed of a simulation; short for run.seed.")]
Out = Annotated[Path | None, typer.Option(help="Run folder; short for run.out.")]
Csv = Annotated[
    list[str] | None,
    typer.Option(
        "--csv",
        metavar="KEY=VALUE",
        help="How the text is written: separator, decimal, encoding, quoting.",
        rich_help_panel=RARE,
    ),
]
ZeroOut = Annotated[int | None, typer.Option("--zero-out", help="Hide who is there at all: so many users at most.")]


def described(
    user: str | None, label: str | None, numeric: list[str] | None, categorical: list[str] | None
) -> dict[str, Any]:
    """Arguments of `quoron.train` that describe a table. ConfigError as of `quoron.data.columns.read`."""
    typed = {"numeric": numeric, "categorical": categorical}
    columns = {name: read(name, texts) for name, texts in typed.items() if texts}
    return {"user": user, "label": label, "columns": columns or None}


def opened(table: str, csv: list[str] | None) -> Any:
    """A table whose text is written as `csv` says; nothing of it is read yet."""
    return quoron.read_table(table, **csv_words(csv))


def dialect(csv: list[str] | None) -> "Dialect":
    """Read how a table's text is written. ConfigError for a key or a value that none can have."""
    from quoron_client.data.formats import Dialect

    return Dialect(**csv_words(csv))


def csv_words(csv: list[str] | None) -> dict[str, Any]:
    """Read what --csv says, by key. ConfigError as of `keyed`."""
    return keyed("--csv", csv, dict.fromkeys(CSV, lambda _, text: text))


def sweep(texts: Sequence[str]) -> dict[str, list[Any]]:
    """Keys and values of `key=[value, value]` texts; ConfigError for anything else.

    >>> sweep(["privacy.epsilon=[0.5, 1]"])
    {'privacy.epsilon': [0.5, 1]}
    """
    found: dict[str, list[Any]] = {}
    for text in texts:
        key, _, value = text.partition("=")
        read: Any = assignment(text) if value.strip().startswith("[") else None
        if read is None:
            raise ConfigError(f"Expected key=[value, value], such as 'privacy.epsilon=[0.5, 1, 2]', got {text!r}.")
        for part in key.strip().split("."):
            read = read[part.strip().strip('"')]
        if key.strip() in found:
            raise ConfigError(f"Expected each key once, got {key.strip()} again. Give all its values in one list.")
        found[key.strip()] = read
    return found


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
    found = re.fullmatch(r"(\d{1,9})\s*([smhdw])", text.strip())
    units = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
    seconds = math.inf if found is None else int(found[1]) * units[found[2]]
    if seconds > LONGEST and text != "never":
        times = "a time such as 7d, 12h, 30m or 45s, a hundred years at most"
        raise ConfigError(f"Expected {option} as {times}, or never, got {text!r}.")
    return seconds


def bytes_of(option: str, text: str) -> int:
    """A number of bytes, such as 64MiB."""
    found = re.fullmatch(r"(\d{1,12})\s*([KMG]iB)?", text.strip())
    if found is None:
        raise ConfigError(f"Expected {option} as a number of bytes, KiB, MiB or GiB, got {text!r}.")
    return int(found[1]) << {None: 0, "KiB": 10, "MiB": 20, "GiB": 30}[found[2]]


Population = Annotated[
    str | None, typer.Option(metavar="NAME", help="Whose privacy budget is charged.", rich_help_panel=RARE)
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Any key of docs/config-reference.md, such as budget.rounds=9."),
]
Page = Annotated[Path | None, typer.Option("--report", metavar="FILE.html", help="Write a page for people, besides.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")]
AnyEngine = Annotated[
    str,
    typer.Option(
        "--engine",
        metavar="NAME[:KEY=VALUE,...]",
        help="inline, ray, flower or service, as in service:clients=20; docs/config-reference.md.",
    ),
]
InlineOrRay = Annotated[
    str,
    typer.Option(
        "--engine", metavar="inline|ray[:KEY=VALUE,...]", help="As in inline:workers=4; docs/config-reference.md."
    ),
]


def of_program(name: str) -> Any:
    """The value of an option of the program, which stands before the command."""
    return click.get_current_context().find_root().params.get(name)


def check_page(path: Path | None) -> None:
    """ConfigError where no page could be written, before anything is charged."""
    if path is not None and (path.is_dir() or not path.absolute().parent.is_dir()):
        raise ConfigError(f"Expected --report as a file in a folder that is there, got {path}. Make the folder.")


def shows_progress(*, as_json: bool) -> bool:
    """Whether progress is shown: not with `quoron --quiet`, nor for a program that reads JSON."""
    return not of_program("quiet") and (not as_json or sys.stderr.isatty())


def progress(*, as_json: bool) -> "Display":
    """A bar or lines on standard error, where progress is shown."""
    from quoron.reports.terminal import display

    return display(shows_progress(as_json=as_json))


@contextmanager
def doubts() -> Iterator[None]:
    """Show what quoron warns of, such as a plan that is no better than not training, as lines on standard error."""
    with warnings.catch_warnings():
        warnings.simplefilter("always", UserWarning)

        def shown(message: Warning | str, *_: object, **__: object) -> None:
            err().print(f"Warning: {message}", soft_wrap=True, highlight=False, markup=False, style="yellow")

        warnings.showwarning = shown
        yield


@contextmanager
def interruptible() -> Iterator[None]:
    """Tell what an interruption says of how to go on."""
    try:
        yield
    except KeyboardInterrupt as stopped:
        for how in getattr(stopped, "__notes__", ()):
            err().print(how, soft_wrap=True, highlight=False, markup=False)
        raise typer.Exit(INTERRUPTED) from None


def err() -> "Console":
    """Standard error, for people."""
    from quoron.reports.terminal import Terminal

    return Terminal(stderr=True)


def say(found: Any, words: str = "", *, as_json: bool) -> None:
    """A line on standard output, as it comes: JSON, or in words."""
    from quoron_server.serial import dumps

    print(dumps(found) if as_json else words, flush=True)
