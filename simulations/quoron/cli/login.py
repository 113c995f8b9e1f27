"""`quoron login`: keeps under a name where a coordinator is and what lets you in, for the commands of operators."""

import os
import re
from pathlib import Path
from typing import Annotated

import typer

from quoron.cli.common import showing
from quoron.operate import profiles
from quoron.operate.profiles import Profile
from quoron_privacy.errors import ConfigError


def login(
    target: Annotated[
        str | None, typer.Argument(metavar="[HOST:PORT|DATABASE]", help="A coordinator, or a URL.")
    ] = None,
    profile: Annotated[str, typer.Option(metavar="NAME", help="The profile's name.")] = profiles.DEFAULT,
    token_file: Annotated[Path | None, typer.Option(help="File with your token; else QUORON_TOKEN.")] = None,
    authority: Annotated[Path | None, typer.Option(help="Certificate that signs the coordinator's, PEM.")] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="Plaintext, for a trial on this machine.")] = False,
    remove: Annotated[bool, typer.Option("--remove", help="Remove the profile.")] = False,
) -> None:
    """Connect to a coordinator, and keep as a profile where it is; without HOST:PORT, list the profiles.

    Commands of operators use the profile "default", or that of --profile or QUORON_PROFILE. It is kept once the
    coordinator has accepted the token, or the database has opened. The file holds paths, and never a token.
    """
    files = {"token_file": token_file, "authority": authority}
    given = [f"--{key.replace('_', '-')}" for key, value in (files | {"insecure": insecure}).items() if value]
    if remove:
        if target is not None or given:
            raise ConfigError(f"Expected --remove alone or with --profile, got it with {target or given[0]}.")
        profiles.named(profile)
        profiles.keep(profile, None)
        print(f"{profile}: removed")
        return
    if target is None:
        if given or profile != profiles.DEFAULT:
            raise ConfigError(f"Expected HOST:PORT with {(*given, '--profile')[0]}, got none.")
        _list()
        return
    if "://" in target:
        if given:
            raise ConfigError(f"Expected a database without {given[0]}, which is for a coordinator, got both.")
        made = Profile(database=_opened(target))
    elif re.fullmatch(r"\S+:\d{1,5}", target):
        token_file, authority = (path and path.expanduser().absolute() for path in files.values())
        made = Profile(target, "", token_file, authority, insecure, origin="these options")
        with made.control() as control:
            control.runs()
    else:
        raise ConfigError(f"Expected HOST:PORT, sqlite:///FILE or postgresql://USER@HOST/NAME, got {target!r}.")
    profiles.keep(profile, made)
    print(f"{profile}: {made.coordinator or made.database}, in {profiles.place()}")
    if made.coordinator and token_file is None:
        print("The token in QUORON_TOKEN was used and is not stored: set it for the commands that use this profile.")
    if (first := profiles.reached(None).origin).startswith("the environment"):
        print(f"Commands without --profile use {first} all the same, and with it refuse both: unset it.")


def _opened(url: str) -> str:
    """Return a database's URL, of a file that is absolute; ConfigError for a password, LedgerError if it is none."""
    from quoron_server.books.database import Database, parse

    parsed = parse(url)
    if parsed.password is not None or "password" in parsed.query:
        raise ConfigError("Expected a URL without its password, which is not stored, got one. Use a .pgpass file.")
    with Database(url, create=False, sole=False) as database:
        return f"sqlite:///{Path(parsed.database or '').absolute()}" if database.path is not None else url


def _list() -> None:
    """Print the profiles, and where a command goes that names none."""
    from rich.markup import escape

    shown = showing.table("profile", "coordinator or database", "authority", "token")
    for name, held in sorted(profiles.read().items()):
        authority = "plaintext" if held.insecure else str(held.authority or "")
        token = "" if held.database else str(held.token_file or "QUORON_TOKEN")
        shown.add_row(*map(escape, (name, held.coordinator or held.database, authority, token)))
    showing.console().print(shown)
    used = profiles.reached(os.environ.get("QUORON_PROFILE") or None)
    print(f"Without --profile: {used.coordinator or used.database}, of {used.origin}.")
