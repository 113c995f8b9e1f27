"""Tokens of the control plane, each with a name and a role; the file keeps their hashes only.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "tokens.json"
    >>> token = add(file, name="ada", role="operator", valid=7 * 86400)
    >>> find(file, token).refusal(), find(file, "guess")
    (None, None)
    >>> remove(file, name="ada")
    >>> find(file, token)

A token is 256 random bits, so a plain SHA-256 hides it: there is nothing to guess with a dictionary. The file is read
for every call, so that a token removed is a token refused, and one that has an end is refused from then on, by the
clock of the coordinator. Expired tokens stay known until their name is given again, so that a caller who still uses
one learns why it fails. Concurrent changes take turns, and a change is on the disk once its call returns.
"""

import datetime as dt
import hashlib
import hmac
import json
import math
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast, get_args

from quoron_client.durable import PRIVATE, locked, replace_whole
from quoron_privacy.errors import ConfigError

Role = Literal["operator", "auditor"]
PREFIX = "quoron_"


def now() -> dt.datetime:
    """Return the time by which tokens end: this machine's."""
    return dt.datetime.now(dt.UTC)


@dataclass(frozen=True, slots=True)
class Token:
    """What is known of a token, but the token."""

    name: str
    role: Role
    sha256: str
    ends: dt.datetime | None = None

    def refusal(self) -> str | None:
        """Return why this token is refused, for its holder to read; None for a valid token."""
        if self.ends is not None and now() >= self.ends:
            return f"This token ended on {_day(self.ends)}, by the coordinator's clock. Ask the operator for another."
        return None

    def words(self) -> str:
        """Return how long it is good, for people."""
        if self.ends is None:
            return "no end"
        left = self.ends - now()
        if left <= dt.timedelta():
            return f"ended {_day(self.ends)}"
        days = left / dt.timedelta(days=1)
        return f"{days:.0f} days left" if days >= 2 else f"{24 * days:.1f} hours left"

    def as_json(self) -> dict[str, Any]:
        """As it is listed; without the hash."""
        ends = None if self.ends is None else self.ends.isoformat()
        return {"name": self.name, "role": self.role, "ends": ends, "good": self.refusal() is None}


def add(file: Path, *, name: str, role: str, valid: float = math.inf) -> str:
    """Return a new token, which is shown this once and is good for `valid` seconds.

    ConfigError if the name has one that is good, the role is unknown, or it would be over at once.
    """
    if role not in get_args(Role):
        raise ConfigError(f"Expected role to be operator or auditor, got role={role!r}.")
    if not valid > 0:
        raise ConfigError(f"Expected a token to be valid for some time, got {valid} seconds.")
    token = PREFIX + secrets.token_urlsafe(32)
    with locked(file.parent):
        stands = read(file)
        if name in stands and stands[name].refusal() is None:
            raise ConfigError(f"Expected a new name, but {file} has a token named {name!r}. Remove that one first.")
        ends = None if math.isinf(valid) else now() + dt.timedelta(seconds=valid)
        _write(file, stands | {name: Token(name, cast(Role, role), _hash(token), ends)})
    return token


def remove(file: Path, *, name: str) -> None:
    """Take a token back; ConfigError if there is none of that name."""
    with locked(file.parent):
        stands = read(file)
        if name not in stands:
            raise ConfigError(f"Expected one of the names {', '.join(stands) or '(none)'} in {file}, got {name!r}.")
        _write(file, {other: token for other, token in stands.items() if other != name})


def find(file: Path, token: str) -> Token | None:
    """Return what is known of a token, None if it never was one; compares with every entry, in constant time."""
    wanted, found = _hash(token), None
    for entry in read(file).values():
        if hmac.compare_digest(wanted, entry.sha256):
            found = entry
    return found


def read(file: Path) -> dict[str, Token]:
    """Return every token by name, also those that are over; ConfigError for a file that is none."""
    try:
        entries = json.loads(file.read_text(encoding="utf-8"))
        return {name: _token(name, entry) for name, entry in entries.items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise ConfigError(
            f"Expected a token file at {file}, got something unreadable. `quoron admin tokens` with --role makes one."
        ) from None


def _token(name: str, entry: dict[str, str]) -> Token:
    """One entry; ValueError, KeyError or TypeError for what is none."""
    if entry["role"] not in get_args(Role) or len(entry["sha256"]) != 64:
        raise ValueError
    ends = dt.datetime.fromisoformat(entry["ends"]) if "ends" in entry else None
    if ends is not None and ends.tzinfo is None:
        raise ValueError
    return Token(name, cast(Role, entry["role"]), entry["sha256"], ends)


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def _day(at: dt.datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M} UTC"


def _write(file: Path, tokens: dict[str, Token]) -> None:
    entries = {}
    for name, token in tokens.items():
        entries[name] = {"role": token.role, "sha256": token.sha256}
        entries[name] |= {} if token.ends is None else {"ends": token.ends.isoformat()}
    replace_whole(file, json.dumps(entries, indent=1).encode(), mode=PRIVATE)
