"""Profiles: by name, where a coordinator or its database is, and the files that let an operator in.

    keep("trial", Profile("localhost:7444", token_file=Path("/keys/ada.token"), authority=Path("/keys/ca.pem")))
    with reached("trial").control() as control: ...

They are the tables of a TOML file, which holds paths and never a token.
"""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quoron import toml_text
from quoron_privacy.errors import ConfigError, IdentityError, LedgerUnavailable, RunError, nearest

if TYPE_CHECKING:  # the commands that do not connect start without gRPC
    from quoron.federation.control import Control
    from quoron.federation.offline_store import OfflineStore


DEFAULT, LOOPBACK = "default", "127.0.0.1:7444"
_SAME = ("database", "token", "token_file", "authority", "insecure")
VARIABLES = {"coordinator": "QUORON_CONTROL_ADDRESS"} | {key: f"QUORON_{key.upper()}" for key in _SAME}
_STORED = {"coordinator": str, "database": str, "token_file": str, "authority": str, "insecure": bool}


@dataclass(frozen=True, slots=True)
class Profile:
    """Where a control plane is and what is shown to it; or a database that no coordinator has open."""

    coordinator: str = ""  # HOST:PORT
    database: str = ""  # URL
    token_file: Path | None = None  # else QUORON_TOKEN
    authority: Path | None = None  # that signed the coordinator's certificate
    insecure: bool = False
    origin: str = "no profile"  # in words

    def token(self) -> str:
        """Return the token. Raises ConfigError for none or two, IdentityError for a file that cannot be read."""
        said = os.environ.get("QUORON_TOKEN", "").strip()
        if (self.token_file is None) is not bool(said):
            raise ConfigError(
                f"Expected one token, got {'QUORON_TOKEN and ' if said else 'no QUORON_TOKEN and '}"
                f"{self.token_file or 'no file'} of {self.origin}. `quoron admin tokens` with --role makes one, and "
                "`quoron login HOST:PORT --token-file FILE` keeps where it is."
            )
        try:
            return said if self.token_file is None else self.token_file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "no text"
            raise IdentityError(
                f"Expected a token in {self.token_file}, got: {why}. Put it there, or use `quoron login` again."
            ) from None

    def control(self) -> "Control":
        """Connect. Raises ConfigError for a database or without a token, IdentityError for unreadable files."""
        if self.database:
            raise ConfigError(
                f"Expected a coordinator, got the database of {self.origin}. Choose another profile with `quoron "
                "--profile NAME`, or make one: `quoron login HOST:PORT`."
            )
        from quoron.federation.control import Control

        return Control(self.coordinator, self.token(), self.authority, self.insecure)

    @contextmanager
    def store(self, *, create: bool = False, sole: bool = True) -> "Iterator[Control | OfflineStore]":
        """Open the database, as its owner if `sole`; or connect to the coordinator."""
        if self.coordinator:
            with self.control() as control:
                yield control
            return
        from quoron.federation.offline_store import OfflineStore
        from quoron_server.storage.database import Database
        from quoron_server.storage.lifetime_ledger import PopulationLedger

        try:
            database = Database(self.database, create=create, sole=sole)
        except LedgerUnavailable as error:
            raise LedgerUnavailable(f"{error} Or ask its coordinator: `quoron login HOST:PORT`.") from None
        with database:
            yield OfflineStore(PopulationLedger(database), f"the database {database.name}", database)


def place() -> Path:
    """Return the file of profiles: in QUORON_CONFIG_HOME, else where the platform keeps a program's settings."""
    from platformdirs import user_config_path

    folder = os.environ.get("QUORON_CONFIG_HOME")
    return (Path(folder).expanduser() if folder else user_config_path("quoron")) / "profiles.toml"


def read() -> dict[str, Profile]:
    """Return every profile by name. Raises ConfigError for a file that is none."""
    path = place()
    try:
        tree = toml_text.parse(path.read_text(encoding="utf-8"), str(path))
        return {name: _profile(name, table) for name, table in tree.items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, ConfigError) as error:
        why = error if isinstance(error, ConfigError) else f"Expected profiles in {path}, got: {error}."
        raise ConfigError(f"{why} Correct the file, or remove it and use `quoron login` again.") from None


def named(name: str) -> Profile:
    """Return a profile. Raises ConfigError for an unknown one, with the nearest."""
    known = read()
    if name not in known:
        close = nearest(name, known, f"`quoron login HOST:PORT --profile {name}` makes it.")
        names = ", ".join(sorted(known)) or "which has none"
        raise ConfigError(f"Expected a profile of {place()}, {names}, got {name!r}. {close}")
    return known[name]


def save(name: str, profile: Profile) -> None:
    """Write a profile. Raises ConfigError for no name, RunError if the file is not written."""
    from quoron_client.durable import OWN, PRIVATE, locked, make_folder, replace_whole

    if re.fullmatch(r"[\w.-]{1,64}", name) is None:
        raise ConfigError(f"Expected --profile as letters, digits, '.', '_' and '-', at most 64, got {name!r}.")
    path = place()
    try:
        make_folder(path.parent, mode=OWN)
        with locked(path.parent):
            profiles = {**read(), name: profile}
            tree = {other: {key: getattr(entry, key) or None for key in _STORED} for other, entry in profiles.items()}
            replace_whole(path, f"{toml_text.dumps(tree)}\n".encode(), mode=PRIVATE)
    except OSError as error:
        why = f"{error.strerror}. QUORON_CONFIG_HOME names another folder."
        raise RunError(f"Cannot write profiles to {path}: {why}") from None


def reached(name: str | None, *, store: bool = False) -> Profile:
    """Return where a command goes: to a profile by name, as the environment says, to "default", or to this machine.

    `store`: a command that also works in a database, which QUORON_DATABASE then names. Raises ConfigError where two
    places are named.
    """
    said = {key: os.environ[variable] for key, variable in VARIABLES.items() if os.environ.get(variable)}
    if not store:
        said.pop("database", None)
    if name is not None and (clash := [VARIABLES[key] for key in said if key != "token"]):
        both = f"--profile {name} (or QUORON_PROFILE) and {' and '.join(clash)}"
        raise ConfigError(f"Expected a profile or the environment, got {both}. Leave one out.")
    if name is not None:
        return named(name)
    if not said.keys() - {"token"}:
        return read().get(DEFAULT, Profile(LOOPBACK))
    if {"coordinator", "database"} <= said.keys():
        both = f"QUORON_CONTROL_ADDRESS={said['coordinator']} and QUORON_DATABASE"
        raise ConfigError(f"Expected a coordinator or a database, got {both}. Unset one of them.")
    if said.get("insecure", "0") not in ("0", "1"):
        raise ConfigError(f"Expected {VARIABLES['insecure']} as 1 or 0, got {said['insecure']!r}.")
    token_file, authority = (Path(said[key]) if key in said else None for key in ("token_file", "authority"))
    plain = said.get("insecure") == "1"
    coordinator = "" if "database" in said else said.get("coordinator", LOOPBACK)
    origin = f"the environment ({', '.join(VARIABLES[key] for key in said)})"
    return Profile(coordinator, said.get("database", ""), token_file, authority, plain, origin)


def _profile(name: str, table: Any) -> Profile:
    """One table; ValueError for what is none."""
    good = isinstance(table, dict) and ("coordinator" in table) is not ("database" in table)
    if not good or any(not isinstance(value, _STORED.get(key, ())) for key, value in table.items()):
        raise ValueError(f"{name!r} is no table of coordinator or database, and token_file, authority, insecure")
    paths = {key: Path(table[key]) for key in ("token_file", "authority") if key in table}
    return Profile(**table | paths | {"origin": f"the profile {name!r}"})
