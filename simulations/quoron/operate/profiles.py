"""Profiles: by name, where a coordinator or its database is, and the files that let an operator in.

    keep("trial", Profile("localhost:7444", token_file=Path("/keys/ada.token"), authority=Path("/keys/ca.pem")))
    with reached("trial").control() as control: ...

They are the tables of a TOML file, which holds paths and never a token. Without a name the environment comes first, as
containers set it, then the profile "default", then a coordinator on this machine.
"""

import difflib
import os
import re
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quoron import toml_text
from quoron_privacy.errors import ConfigError, IdentityError, RunError

if TYPE_CHECKING:  # the commands that do not connect start without gRPC
    from quoron.operate.control import Control

DEFAULT, LOOPBACK = "default", "127.0.0.1:7444"
VARIABLES = {
    "coordinator": "QUORON_CONTROL_ADDRESS",
    "database": "QUORON_DATABASE",
    "token": "QUORON_TOKEN",
    "token_file": "QUORON_TOKEN_FILE",
    "authority": "QUORON_AUTHORITY",
    "insecure": "QUORON_INSECURE",
    "insecure_anywhere": "QUORON_INSECURE_ANYWHERE",
}
_SWITCHES = {"1": True, "true": True, "0": False, "false": False}


@dataclass(frozen=True, slots=True)
class Profile:
    """Where a control plane is and what is shown to it; or a database that no coordinator has open."""

    coordinator: str = ""  # HOST:PORT
    database: str = ""  # URL
    token_file: Path | None = None  # else QUORON_TOKEN
    authority: Path | None = None  # that signed the coordinator's certificate
    insecure: bool = False
    insecure_anywhere: bool = False  # by the environment alone
    origin: str = "no profile"  # in words

    def token(self) -> str:
        """Return the token. Raises ConfigError for none or two, IdentityError for a file that cannot be read."""
        said = os.environ.get("QUORON_TOKEN", "").strip()
        if self.token_file is None:
            if not said:
                raise ConfigError(
                    f"Expected a token, got none of {self.origin} and none in QUORON_TOKEN. Make one (`quoron admin "
                    "tokens add`), and keep where it is: `quoron login HOST:PORT --token-file FILE`."
                )
            return said
        if said:
            raise ConfigError(
                f"Expected one token, got QUORON_TOKEN and the file {self.token_file} of {self.origin}. Leave one out."
            )
        try:
            return self.token_file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise IdentityError(
                f"Expected a token in {self.token_file}, got: {getattr(error, 'strerror', 'no text')}. Put it "
                "there, or name another: `quoron login HOST:PORT --token-file FILE`."
            ) from None

    def control(self) -> "Control":
        """Connect. Raises ConfigError for a database or without a token, IdentityError for unreadable files."""
        if self.database:
            raise ConfigError(
                f"Expected a coordinator, got the database of {self.origin}. Choose another profile with --profile, or "
                "make one: `quoron login HOST:PORT`."
            )
        from quoron.operate.control import Address, Control

        where = Address(self.coordinator, self.token(), self.authority, self.insecure, self.insecure_anywhere)
        return Control(where)


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
        near = difflib.get_close_matches(name, known, 1)
        raise ConfigError(
            f"Expected a profile of {place()}, {', '.join(sorted(known)) or 'which has none'}, got {name!r}. "
            + (f"Did you mean {near[0]!r}?" if near else f"`quoron login HOST:PORT --profile {name}` makes it.")
        )
    return known[name]


def keep(name: str, profile: Profile | None) -> None:
    """Write a profile, or with None remove it. Raises ConfigError for no name, RunError if the file is not written."""
    from quoron_client.durable import PRIVATE, replace_whole
    from quoron_server.books.durable import OWN, make_folder
    from quoron_server.service.folder_lock import locked

    if re.fullmatch(r"[\w.-]{1,64}", name) is None:
        raise ConfigError(f"Expected --profile as letters, digits, '.', '_' and '-', at most 64, got {name!r}.")
    path = place()
    try:
        make_folder(path.parent, mode=OWN)
        with locked(path.parent):
            known = {other: _table(held) for other, held in read().items() if other != name}
            known |= {} if profile is None else {name: _table(profile)}
            replace_whole(path, f"{toml_text.dumps(known)}\n".encode(), mode=PRIVATE)
    except OSError as error:
        raise RunError(
            f"Cannot write profiles to {path}: {error.strerror}. QUORON_CONFIG_HOME names another folder."
        ) from None


def reached(name: str | None, *, books: bool = False) -> Profile:
    """Return where a command goes: to a profile by name, as the environment says, to "default", or to this machine.

    `books`: a command that also works in a database, which QUORON_DATABASE then names. Raises ConfigError where two
    places are named.
    """
    said = {key: value for key, variable in VARIABLES.items() if (value := os.environ.get(variable))}
    if not books:
        said.pop("database", None)
    if name is not None:
        found = named(name)
        clash = [VARIABLES[key] for key in said if key != "token"]
        if clash:
            raise ConfigError(
                f"Expected a profile or the environment, got --profile {name} (or QUORON_PROFILE) and "
                f"{' and '.join(clash)}. Unset one of them."
            )
        return found
    if not said.keys() - {"token"}:
        return read().get(DEFAULT, Profile(LOOPBACK))
    if {"coordinator", "database"} <= said.keys():
        raise ConfigError(
            f"Expected a coordinator or a database, got QUORON_CONTROL_ADDRESS={said['coordinator']} and "
            "QUORON_DATABASE. Unset one of them."
        )
    files = [Path(said[key]) if key in said else None for key in ("token_file", "authority")]
    switches = [_switch(key, said.get(key, "0")) for key in ("insecure", "insecure_anywhere")]
    origin = f"the environment ({', '.join(VARIABLES[key] for key in said)})"
    coordinator, database = said.get("coordinator", LOOPBACK), said.get("database", "")
    return Profile("" if database else coordinator, database, *files, *switches, origin)


def _switch(key: str, value: str) -> bool:
    if value.lower() not in _SWITCHES:
        raise ConfigError(f"Expected {VARIABLES[key]} as 1 or 0, got {value!r}.")
    return _SWITCHES[value.lower()]


def _table(profile: Profile) -> dict[str, Any]:
    """What is stored of a profile."""
    held = {field.name: getattr(profile, field.name) for field in fields(profile) if field.name != "origin"}
    return {key: value if value is True else str(value) for key, value in held.items() if value}


def _profile(name: str, table: Any) -> Profile:
    """One table; ValueError for what is none."""
    known = {"coordinator", "database", "token_file", "authority", "insecure"}
    if not isinstance(table, dict) or not table.keys() <= known or ("coordinator" in table) is ("database" in table):
        raise ValueError(f"{name!r} is not a table of coordinator or database, token_file, authority and insecure")
    if any(not isinstance(value, bool if key == "insecure" else str) for key, value in table.items()):
        raise ValueError(f"{name!r} has something else than text, or than true or false for insecure")
    paths = {key: Path(table[key]) for key in ("token_file", "authority") if key in table}
    return replace(Profile(**{**table, **paths}), origin=f"the profile {name!r}")
