"""What commands share: arguments, the display, what prints their results, and how an interruption is told."""

import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

import quoron
from quoron.presets import presets
from quoron_client.data.formats import is_table
from quoron_privacy.errors import ConfigError
from quoron_privacy.kernels.on_first_use import OnFirstUse

if TYPE_CHECKING:
    from rich.console import Console

    from quoron.cli import showing as showing
    from quoron.reports.progress import Display
    from quoron_client.data.dialect import Dialect
else:
    showing = OnFirstUse("quoron.cli.showing")  # for all commands, when one is called: it knows all that is shown

INTERRUPTED = 130


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


def _run_folders(typed: str) -> list[str]:
    """Run folders below runs/ that complete what is typed."""
    return sorted(str(path.parent) for path in Path().glob("runs/*/config.toml") if str(path).startswith(typed))


Source = Annotated[
    str,
    typer.Argument(
        metavar="[PRESET|CONFIG.TOML|TABLE]",
        help="A preset's name, a TOML file, or a table with what its columns are.",
        autocompletion=sources,
    ),
]
Epsilon = Annotated[float | None, typer.Option(help="ε; short for privacy.epsilon. Required where noise is secret.")]
Delta = Annotated[float | None, typer.Option(help="δ; short for privacy.delta. 1e-06 without.")]
Algorithm = Annotated[str | None, typer.Option(metavar="NAME", help="Of `quoron algorithms`. Without, a rule chooses.")]
ItemsPerUser = Annotated[
    int | None, typer.Option(help="What a user typically holds, as planned; short for problem.items_per_user.")
]
Run = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.", autocompletion=_run_folders)]
Seed = Annotated[int | None, typer.Option(help="Seed of a simulation; short for run.seed.")]
Out = Annotated[Path | None, typer.Option(help="Run folder; short for run.out.")]
Separator = Annotated[
    str | None,
    typer.Option(metavar="CHARACTER", help="What separates cells of the table's text, if its header does not say."),
]
Decimal = Annotated[
    Literal[".", ","],
    typer.Option(metavar=".|,", help="How numbers in the table's text are written: 3.14, or 3,14 and 1.234,5."),
]
Encoding = Annotated[
    str | None, typer.Option(metavar="NAME", help="Of the table's text, if not UTF-8: utf-16, latin-1 or cp1252.")
]
Quoting = Annotated[
    Literal["double", "none"],
    typer.Option(metavar="double|none", help="Whether cells of the table's text may stand in quotes."),
]
Adjacency = Annotated[Literal["replace-one", "zero-out"], typer.Option(help="Whom the promise tells apart.")]
MostUsers = Annotated[int | None, typer.Option(help="With zero-out: the most users that the table may hold.")]


@dataclass(frozen=True, slots=True)
class Text:
    """How a table's text is written."""

    separator: Separator = None
    decimal: Decimal = "."
    encoding: Encoding = None
    quoting: Quoting = "double"

    def opened(self, table: str) -> Any:
        """The table; nothing of it is read yet."""
        return quoron.read_table(table, **asdict(self))


Csv = Annotated[
    list[str] | None,
    typer.Option("--csv", metavar="KEY=VALUE", help="How the text is written: separator, decimal, encoding, quoting."),
]


def dialect(csv: list[str] | None) -> "Dialect":
    """Read how a table's text is written. ConfigError for a key or a value that none can have."""
    from quoron_client.data.dialect import Dialect

    keys = ("separator", "decimal", "encoding", "quoting")
    return Dialect(**keyed("--csv", csv, dict.fromkeys(keys, lambda _, text: text)))


def keyed(
    option: str, given: list[str] | None, kinds: Mapping[str, Callable[[str, str], Any]], variables: str | None = None
) -> dict[str, Any]:
    """Read what `given` says as KEY=VALUE, or else the environment: `variables` and the key in capitals.

    The function of a key reads its value, and gets what it is called, too. ConfigError for an unknown key, or for two
    values of one.
    """
    said: dict[str, tuple[str, str]] = {}
    for text in given or ():
        key, equals, value = text.partition("=")
        if not equals or key not in kinds:
            near = get_close_matches(key, kinds, n=1, cutoff=0.5)
            meant = f"Did you mean {near[0]}=...?" if near else "Give one of them and its value."
            raise ConfigError(f"Expected {option} KEY=VALUE of {', '.join(kinds)}, got {text!r}. {meant}")
        if said.setdefault(key, (f"{option} {key}", value))[1] != value:
            raise ConfigError(f"Expected one {option} {key}, got {key}={said[key][1]} and {text}. Leave one out.")
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


def whole(called: str, text: str) -> int:
    """Read a whole number from 1 on. ConfigError for another text."""
    if not text.strip().isdecimal() or not int(text):
        raise ConfigError(f"Expected {called} as a whole number from 1 on, got {text!r}.")
    return int(text)


@dataclass(frozen=True, slots=True)
class Charged:
    """Whom a promise is charged to, and whether its δ may be large."""

    allow_large_delta: Annotated[
        bool, typer.Option("--allow-large-delta", help="Accept a δ above 1/n, n the number of users.")
    ] = False
    population: Annotated[str | None, typer.Option(metavar="NAME", help="Whose privacy budget is charged.")] = None
    ledger: Annotated[
        Path | None, typer.Option(envvar="QUORON_LEDGER", help="The file of privacy budgets, if not the usual one.")
    ] = None


Settings = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Any key, such as privacy.epsilon=2.")
]
Page = Annotated[Path | None, typer.Option("--report", metavar="FILE.html", help="Write a page for people, besides.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")]
Picture = Annotated[
    Path | None, typer.Option("--plot", metavar="FILE.svg", help="Write predicted risk against rounds as a picture.")
]
Link = Annotated[
    str | None,
    typer.Option(
        "--network",
        metavar="NAME|rtt=80ms,up=1Mbps,...",
        help="Project wall-clock over phones, hospitals, datacentre, a mix such as phones:0.9+datacentre:0.1 or links "
        "of your own, and drop out as it says; short for run.network. Plans and comparisons take several names.",
    ),
]
Workers = Annotated[
    int | None, typer.Option(help="Processes that share the users; the bits do not depend on how many there are.")
]
Address = Annotated[
    str | None,
    typer.Option(metavar="HOST:PORT|auto", help="Ray: the cluster, by default one of this machine for the run."),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")]


def check_page(path: Path | None) -> None:
    """ConfigError where no page could be written, before anything is charged."""
    if path is not None and (path.is_dir() or not path.absolute().parent.is_dir()):
        raise ConfigError(f"Expected --report as a file in a folder that is there, got {path}. Make the folder.")


def networked(link: str | None) -> tuple[dict[str, dict[str, str]], ...]:
    """The section that a network is a key of, if one is given."""
    return () if link is None else ({"run": {"network": link}},)


def progress(*, as_json: bool, quiet: bool) -> "Display":
    """A bar or lines on standard error; nothing for a program that reads JSON."""
    from quoron.reports.progress import display

    return display(quiet=quiet or (as_json and not sys.stderr.isatty()))


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
