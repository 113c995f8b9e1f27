"""Options that several commands share: how a control plane is reached, and by which files and tokens one is known."""

import logging
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from quoron.cli.common import of_program
from quoron.operate import profiles
from quoron_privacy.errors import ConfigError

CLIENTS, CONTROL = "127.0.0.1:7443", profiles.LOOPBACK
CERTIFICATE, KEY, AUTHORITY, REVOKED = "certificate.pem", "key.pem", "authority.pem", "revoked.json"  # in a --certs
VARIABLES = ("QUORON_CERTIFICATE", "QUORON_KEY", "QUORON_AUTHORITY", "QUORON_REVOKED")
LEVELS = ("debug", "info", "warning", "error")
Certs = Annotated[
    Path | None,
    typer.Option("--certs", envvar="QUORON_CERTS", metavar="FOLDER", help="Own certificate, key and authority."),
]
Authority = Annotated[
    Path | None, typer.Option(envvar="QUORON_AUTHORITY", help="Certificate that signs the other side's, PEM.")
]
Insecure = Annotated[bool, typer.Option("--insecure", help="Plaintext, for a trial on this machine.")]
Log = Annotated[
    str,
    typer.Option(
        envvar="QUORON_LOG", metavar="LEVEL[,json]", help=f"Lowest level that is logged: {', '.join(LEVELS)}."
    ),
]
METRICS = "Where /metrics and /healthz are, in plain HTTP, of 127.0.0.1 unless a host is given. Off by default."


def connects(command: Callable[..., None]) -> Callable[..., None]:
    """The command, marked as one that uses the profile of `quoron --profile`."""
    vars(command)["connects"] = True
    return command


def reached(*, books: bool = False) -> profiles.Profile:
    """Return where a command goes, as `profiles.reached`, by `quoron --profile` or without."""
    return profiles.reached(of_program("profile") or None, books=books)


@dataclass(frozen=True, slots=True)
class Files:
    """A party's own certificate, key and authority, as far as they are given, and lists of revoked certificates."""

    certificate: Path | None
    key: Path | None
    authority: Path | None
    revoked: tuple[Path, ...] = ()

    @classmethod
    def found(
        cls, certs: Path | None, *, insecure: bool = False, needed: Sequence[str] = (CERTIFICATE, KEY)
    ) -> "Files":
        """Take the files of a folder, or else those that the environment names.

        ConfigError for either with `insecure`, for both where they differ, and as `of`.
        """
        named = {name: os.environ[name] for name in VARIABLES if os.environ.get(name)}
        if insecure and (certs is not None or named):
            given = " and ".join([*([] if certs is None else [f"--certs {certs}"]), *named])
            raise ConfigError(
                f"Expected no certificates with --insecure, got {given}. Leave out --insecure, or unset these."
            )
        if certs is None:
            certificate, key, authority = (Path(named[name]) if name in named else None for name in VARIABLES[:3])
            lists = named.get(VARIABLES[3], "").split(os.pathsep)
            return cls(certificate, key, authority, tuple(Path(each) for each in lists if each))
        for name, file in zip(VARIABLES, (CERTIFICATE, KEY, AUTHORITY, REVOKED), strict=True):
            if name in named and not _same(Path(named[name]), certs / file):
                raise ConfigError(
                    f"Expected --certs or {name}, got --certs {certs} and {name}={named[name]}. Leave one out."
                )
        return cls.of(certs, needed=needed)

    @classmethod
    def of(cls, folder: Path, *, needed: Sequence[str] = (CERTIFICATE, KEY)) -> "Files":
        """Take the files of a folder. ConfigError without its authority or one that is `needed`."""
        there = {name: folder / name for name in (CERTIFICATE, KEY, AUTHORITY, REVOKED) if (folder / name).exists()}
        for name in (*needed, AUTHORITY):
            if name not in there:
                raise ConfigError(f"Expected {name} in {folder}, got none. `quoron admin certs` makes such folders.")
        lists = (there[REVOKED],) if REVOKED in there else ()
        return cls(there.get(CERTIFICATE), there.get(KEY), there[AUTHORITY], lists)

    def all(self) -> dict[str, Any]:
        """Certificate, key and authority by name. ConfigError without one."""
        found = {name: getattr(self, name) for name in ("certificate", "key", "authority")}
        if None in found.values():
            raise ConfigError(
                f"Expected --certs FOLDER, or {', '.join(VARIABLES[:3])} in its place, got not all of them."
            )
        return found


def _same(one: Path, other: Path) -> bool:
    return one.is_file() and other.is_file() and one.read_bytes() == other.read_bytes()


def anywhere(insecure: bool) -> bool:
    """Whether plaintext may go to any address, which only the environment says: inside a network that is trusted."""
    said = os.environ.get("QUORON_INSECURE_ANYWHERE", "")
    if said not in ("", "0", "1"):
        raise ConfigError(f"Expected QUORON_INSECURE_ANYWHERE as 1, got {said!r}. Set it to 1, or unset it.")
    return insecure and said == "1"


def begin(log: str, *, serves: bool = False) -> None:
    """As `log_limit.begin`, and where it `serves`, gRPC's core writes no line for every connection that is no TLS.

    GRPC_VERBOSITY=INFO shows them. ConfigError for a `log` that is no LEVEL[,json].
    """
    from quoron_client.federation import log_limit

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
