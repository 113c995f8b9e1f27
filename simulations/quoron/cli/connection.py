"""Options that several commands share: how a control plane is reached, and by which files and tokens one is known."""

import logging
import os
import re
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import parse_qs, urlsplit

import typer

from quoron.cli.common import RARE, of_program
from quoron.federation import profiles
from quoron.federation.profiles import Profile
from quoron_privacy.errors import ConfigError

if TYPE_CHECKING:
    from quoron_server.service.program import Program

CLIENTS, CONTROL = "127.0.0.1:7443", profiles.LOOPBACK
CERTIFICATE, KEY, AUTHORITY, REVOKED = "certificate.pem", "key.pem", "authority.pem", "revoked.json"  # in a --certs
LEVELS = ("debug", "info", "warning", "error")
Certs = Annotated[
    Path | None,
    typer.Option("--certs", envvar="QUORON_CERTS", metavar="FOLDER", help="Own certificate, key and authority."),
]
Insecure = Annotated[bool, typer.Option("--insecure", help="Plaintext, for a trial on this machine.")]
Log = Annotated[
    str,
    typer.Option(
        envvar="QUORON_LOG", metavar="LEVEL[,json]", help=f"Lowest level that is logged: {', '.join(LEVELS)}."
    ),
]


Simulations = Annotated[
    bool,
    typer.Option("--allow-simulation", help="Accept runs with seeded noise: made-up data only.", rich_help_panel=RARE),
]
METRICS = "Where /metrics and /healthz are, in plain HTTP, of 127.0.0.1 unless a host is given. Off by default."


def connects(command: Callable[..., None]) -> Callable[..., None]:
    """The command, marked as one that uses the profile of `quoron --profile`."""
    vars(command)["connects"] = True
    return command


def reached(*, store: bool = False) -> profiles.Profile:
    """Return where a command goes, as `profiles.reached`, by `quoron --profile` or without."""
    return profiles.reached(of_program("profile") or None, store=store)


@dataclass(frozen=True, slots=True)
class Files:
    """A party's own certificate, key and authority, and a list of revoked certificates, as far as they are given."""

    certificate: Path | None = None
    key: Path | None = None
    authority: Path | None = None
    revoked: Path | None = None

    @classmethod
    def of(cls, folder: Path | None, *, insecure: bool = False, needed: Sequence[str] = (CERTIFICATE, KEY)) -> "Files":
        """Take the files of a folder, or without one none.

        ConfigError for a folder with `insecure`, and for one without its authority or a file that is `needed`.
        """
        if folder is None:
            return cls()
        if insecure:
            raise ConfigError(f"Expected no certificates with --insecure, got --certs {folder}. Leave one out.")
        names = (CERTIFICATE, KEY, AUTHORITY, REVOKED)
        files = {name: folder / name for name in names if (folder / name).exists()}
        for name in (*needed, AUTHORITY):
            if name not in files:
                raise ConfigError(f"Expected {name} in {folder}, got none. `quoron admin certs` makes such folders.")
        return cls(*map(files.get, names))

    def all(self) -> dict[str, Any]:
        """Certificate, key and authority by name. ConfigError without one."""
        files = {name: getattr(self, name) for name in ("certificate", "key", "authority")}
        if None in files.values():
            raise ConfigError("Expected --certs FOLDER, got none. `quoron admin certs` makes such folders.")
        return files


def begin(log: str, *, serves: bool = False) -> None:
    """As `log_limit.begin`, and where it `serves`, gRPC's core writes no line for every connection that is no TLS.

    GRPC_VERBOSITY=INFO shows them. ConfigError for a `log` that is no LEVEL[,json].
    """
    from quoron.federation import log_limit

    level, comma, form = log.partition(",")
    if level not in LEVELS or form != ("json" if comma else ""):
        raise ConfigError(f"Expected --log as {', '.join(LEVELS)}, alone or with ,json, got {log!r}.")
    if serves:
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    log_limit.begin(level.upper(), as_json=bool(form))


def announce(line: str) -> None:
    """Print a line, or log it where nothing can be printed: a coordinator serves with a full disk under its output."""
    try:
        print(line, flush=True)
    except OSError as error:
        with suppress(OSError, ValueError):  # what is left of the line would be tried again at the end
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, sys.stdout.fileno())
            os.close(nowhere)
        logging.getLogger("quoron").warning("%s (standard output: %s)", line, error.strerror)


def run(program: "Program") -> None:
    """Run a server until SIGTERM or SIGINT, after a line that says where it listens."""
    import asyncio

    from quoron_server.service.program import LEAVING, serve

    asyncio.run(serve(program, ready=lambda running: announce(running.words()), timeout=LEAVING))


def login(
    target: Annotated[str, typer.Argument(metavar="HOST:PORT|DATABASE", help="A coordinator, or a URL.")],
    profile: Annotated[str, typer.Option(metavar="NAME", help="The profile's name.")] = profiles.DEFAULT,
    token_file: Annotated[Path | None, typer.Option(help="File with your token; else QUORON_TOKEN.")] = None,
    authority: Annotated[Path | None, typer.Option(help="Certificate that signs the coordinator's, PEM.")] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="Plaintext, for a trial on this machine.")] = False,
) -> None:
    """Connect to a coordinator, and keep as a profile where it is.

    Commands of operators use the profile "default", or that of --profile or QUORON_PROFILE. It is kept once the
    coordinator has accepted the token, or the database has opened. They are tables of a TOML file, whose place is
    printed, and which may be edited: it holds paths, and never a token.
    """
    files = {"token_file": token_file, "authority": authority}
    given = [f"--{key.replace('_', '-')}" for key, value in (files | {"insecure": insecure}).items() if value]
    if "://" in target:
        if given:
            raise ConfigError(f"Expected a database without {given[0]}, which is for a coordinator, got both.")
        entry = Profile(database=_opened(target))
    elif re.fullmatch(r"\S+:\d{1,5}", target):
        token_file, authority = (path and path.expanduser().absolute() for path in files.values())
        entry = Profile(target, "", token_file, authority, insecure, origin="these options")
        with entry.control() as control:
            control.runs()
    else:
        raise ConfigError(f"Expected HOST:PORT, sqlite:///FILE or postgresql://USER@HOST/NAME, got {target!r}.")
    profiles.save(profile, entry)
    print(f"{profile}: {entry.coordinator or entry.database}, in {profiles.place()}")
    if entry.coordinator and token_file is None:
        print("The token in QUORON_TOKEN was used and is not stored: set it for the commands that use this profile.")
    if (first := profiles.reached(None).origin).startswith("the environment"):
        print(f"Commands without --profile use {first} all the same, and with it refuse both: unset it.")


def _opened(url: str) -> str:
    """Return a database's URL, of a file that is absolute; ConfigError for a password, LedgerError if it is none."""
    from quoron_server.storage.database import Database, parse

    file, parts = parse(url), urlsplit(url)
    if file is None and (parts.password is not None or "password" in parse_qs(parts.query)):
        raise ConfigError("Expected a URL without its password, which is not stored, got one. Use a .pgpass file.")
    with Database(url, create=False, sole=False):
        return url if file is None else f"sqlite:///{file.absolute()}"
