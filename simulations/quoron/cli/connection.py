"""Options that several commands share: how a control plane is reached, and by which files and tokens one is known."""

import functools
import inspect
import logging
import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import click
import typer
from click.core import ParameterSource

from quoron.operate import profiles
from quoron_privacy.errors import ConfigError

if TYPE_CHECKING:  # the commands that do not connect start without gRPC
    from quoron.operate.closed_books import StoredBooks
    from quoron.operate.control import Control

CLIENTS, CONTROL = "127.0.0.1:7443", profiles.LOOPBACK
Certificate = Annotated[
    Path | None, typer.Option(envvar="QUORON_CERTIFICATE", help="Own certificate, PEM.", show_envvar=True)
]
Key = Annotated[Path | None, typer.Option(envvar="QUORON_KEY", help="Own private key, PEM.")]
Authority = Annotated[
    Path | None, typer.Option(envvar="QUORON_AUTHORITY", help="Certificate that signs the other side's, PEM.")
]
Insecure = Annotated[bool, typer.Option("--insecure", help="Plaintext, for a trial on this machine.")]
Anywhere = Annotated[
    bool, typer.Option("--insecure-anywhere", help="Plaintext on any address: only inside a network you trust.")
]
LogFormat = Annotated[
    Literal["text", "json"],
    typer.Option(envvar="QUORON_LOG_FORMAT", metavar="text|json", help="The log, on standard error: lines or JSON."),
]
LogLevel = Annotated[
    Literal["debug", "info", "warning", "error"],
    typer.Option(envvar="QUORON_LOG_LEVEL", metavar="debug|info|warning|error", help="The least that is logged."),
]
ProfileName = Annotated[
    str | None,
    typer.Option("--profile", envvar="QUORON_PROFILE", metavar="NAME", help="Of `quoron login`; else its `default`."),
]


@dataclass(frozen=True, slots=True)
class Connection:
    """The profile that a command uses: `quoron.operate.profiles` says what counts without one."""

    profile: ProfileName = None

    def open(self) -> "Control":
        """Connect, as `Profile.control`."""
        return profiles.reached(self.profile or None).control()

    def books(self, **how: bool) -> "AbstractContextManager[Control | StoredBooks]":
        """Connect or open a database, as `Profile.books`."""
        return profiles.reached(self.profile or None, books=True).books(**how)


def shared_options(command: Callable[..., None]) -> Callable[..., None]:
    """The command, with options of its own in place of each parameter that is a dataclass: the fields of that."""
    parameters = inspect.signature(command, eval_str=True).parameters.values()
    kinds: dict[str, Any] = {each.name: each.annotation for each in parameters if is_dataclass(each.annotation)}
    shared = {name: inspect.signature(kind, eval_str=True).parameters for name, kind in kinds.items()}

    @functools.wraps(command)
    def given(**options: Any) -> None:
        said = {name: kinds[name](**{each: options.pop(each) for each in fields}) for name, fields in shared.items()}
        command(**said, **options)

    own = [each for each in parameters if each.name not in kinds]
    all_of_them = [*own, *(each for fields in shared.values() for each in fields.values())]
    given.__dict__["__signature__"] = inspect.Signature(all_of_them)  # what typer reads
    return given


def check_environment(*, plaintext: bool) -> None:
    """ConfigError for plaintext while the environment names TLS files: whoever typed the one may not know the other."""
    context = click.get_current_context()
    named = [
        str(each.envvar)
        for each in context.command.params
        if each.name in ("certificate", "key", "authority", "revoked")
        and context.get_parameter_source(each.name) is ParameterSource.ENVIRONMENT
    ]
    if plaintext and named:
        raise ConfigError(
            f"Expected no {' or '.join(named)} in the environment with --insecure, got {len(named)}. Unset "
            f"{'it' if len(named) == 1 else 'them'} for plaintext, or leave --insecure away for TLS."
        )


def begin(form: str, level: str, *, serves: bool = False) -> None:
    """As `log_limit.begin`, and where it `serves`, gRPC's core writes no line for every connection that is no TLS.

    GRPC_VERBOSITY=INFO shows them.
    """
    from quoron_client.federation import log_limit

    if serves:
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    log_limit.begin(level.upper(), as_json=form == "json")


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
