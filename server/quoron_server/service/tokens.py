"""Tokens of the control plane, each with a name and a role; the file keeps their hashes only.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "tokens.json"
    >>> token = add(file, name="ada", role="operator")
    >>> role_of(file, token), role_of(file, "guess")
    ('operator', None)

A token is 256 random bits, so a plain SHA-256 hides it: there is nothing to guess with a dictionary. The file is read
for every call, so that a token removed is a token refused. Whoever adds or removes takes turns with everybody else, and
what is reported is on the disk.
"""

import hashlib
import hmac
import json
import secrets
from pathlib import Path
from typing import Literal, cast, get_args

from quoron_privacy.errors import ConfigError
from quoron_server.books.durable import PRIVATE, replace_whole
from quoron_server.service.folder_lock import locked

Role = Literal["operator", "auditor"]
PREFIX = "quoron_"


def add(file: Path, *, name: str, role: str) -> str:
    """A new token, which is shown this once; ConfigError if the name is taken or the role unknown."""
    if role not in get_args(Role):
        raise ConfigError(f"Expected role to be operator or auditor, got role={role!r}.")
    token = PREFIX + secrets.token_urlsafe(32)
    with locked(file.parent):
        entries = _read(file)
        if name in entries:
            raise ConfigError(f"Expected a new name, but {file} has a token named {name!r}. Remove that one first.")
        _write(file, entries | {name: {"role": role, "sha256": _hash(token)}})
    return token


def remove(file: Path, *, name: str) -> None:
    """Forget a token; ConfigError if there is none of that name."""
    with locked(file.parent):
        entries = _read(file)
        if name not in entries:
            raise ConfigError(f"Expected one of the names {', '.join(entries) or '(none)'} in {file}, got {name!r}.")
        _write(file, {other: entry for other, entry in entries.items() if other != name})


def names(file: Path) -> dict[str, Role]:
    """Role of each token by name."""
    return {name: cast(Role, entry["role"]) for name, entry in _read(file).items()}


def role_of(file: Path, token: str) -> Role | None:
    """The role of a token, None if it is not one; compares with every entry, in constant time."""
    wanted, found = _hash(token), None
    for entry in _read(file).values():
        if hmac.compare_digest(wanted, entry["sha256"]):
            found = cast(Role, entry["role"])
    return found


def holder(file: Path, token: str) -> str:
    """The name under which a token was made, for logs and books; empty if it is not one."""
    return next((name for name, entry in _read(file).items() if hmac.compare_digest(_hash(token), entry["sha256"])), "")


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def _read(file: Path) -> dict[str, dict[str, str]]:
    try:
        entries = json.loads(file.read_text(encoding="utf-8"))
        well_formed = all(
            isinstance(entry["sha256"], str) and entry["role"] in get_args(Role) for entry in entries.values()
        )
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        well_formed = False
    if not well_formed:
        raise ConfigError(f"Expected a token file at {file}, got something unreadable. Make one: `quoron tokens add`.")
    return dict(entries)


def _write(file: Path, entries: dict[str, dict[str, str]]) -> None:
    replace_whole(file, json.dumps(entries, indent=1).encode(), mode=PRIVATE)
