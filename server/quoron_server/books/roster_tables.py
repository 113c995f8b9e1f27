"""The tables of a roster: users, keys that were theirs, draws, and who was forgotten; and whose keys are used up."""

import hashlib
import time

import sqlalchemy as sa

from quoron_privacy.errors import ConfigError, LedgerError

SCHEMA = sa.MetaData()
USERS = sa.Table(
    "users",
    SCHEMA,
    sa.Column("user", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("fingerprint", sa.Text, nullable=False, unique=True),
    sa.Column("group", sa.Text, nullable=False),
    sa.Column("enrolled_at", sa.Text, nullable=False),
    sa.Column("name", sa.Text, nullable=False, server_default=""),
    sa.Column("software", sa.Text, nullable=False, server_default=""),
    sa.Column("state", sa.Text, nullable=False, server_default="active"),  # as was said; who was not seen is away
    sa.Column("why", sa.Text, nullable=False, server_default=""),
    sa.Column("seen", sa.BigInteger, nullable=False, default=lambda: int(time.time())),  # seconds since 1970
    sa.Column("people", sa.Integer, nullable=False, server_default="1"),  # users from `user` on, of one client
)
KEYS = sa.Table(  # that were somebody's: of no use any more, and never another user
    "rotated",
    SCHEMA,
    sa.Column("fingerprint", sa.Text, primary_key=True),
    sa.Column("user", sa.Integer, nullable=False),
    sa.Column("statement", sa.Text, nullable=False),  # signed by it and by the key that follows it
    sa.Column("time", sa.Text, nullable=False),
)
DRAWS = sa.Table(
    "draws",
    SCHEMA,
    sa.Column("run", sa.Text, primary_key=True),
    sa.Column("seed", sa.Text, nullable=False),
    sa.Column("active", sa.LargeBinary, nullable=False),  # who was: bits by user, compressed
)
GONE = sa.Table(  # users of whom nothing is kept but that they were
    "forgotten",
    SCHEMA,
    sa.Column("user", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("time", sa.Text, nullable=False),
    sa.Column("keys", sa.Integer, nullable=False),  # that were erased
    sa.Column("agreements", sa.Integer, nullable=False),
)
NOBODYS = sa.Table(  # digests of their keys, which say nothing of whose they were: never another user
    "nobodys",
    SCHEMA,
    sa.Column("digest", sa.Text, primary_key=True),
)
STANDING = sa.Index("users_standing", USERS.c.group, USERS.c.state, USERS.c.seen)
NAMES = sa.Index("users_names", USERS.c.name)
LATER = {  # columns of `users` that earlier versions lack
    "name": "TEXT NOT NULL DEFAULT ''",
    "software": "TEXT NOT NULL DEFAULT ''",
    "state": "TEXT NOT NULL DEFAULT 'active'",
    "why": "TEXT NOT NULL DEFAULT ''",
    "seen": "BIGINT NOT NULL DEFAULT 0",
    "people": "INTEGER NOT NULL DEFAULT 1",
}


class RotatedKey(LedgerError):
    """A key that its owner has put another one in the place of."""


class ForgottenKey(LedgerError):
    """A key of a user who has left, and was forgotten."""


def require_current(connection: sa.Connection, fingerprint: str) -> None:
    """RotatedKey or ForgottenKey of one that was somebody's."""
    forgotten = sa.select(NOBODYS).where(NOBODYS.c.digest == nobodys(fingerprint))
    if connection.execute(forgotten).first() is not None:
        raise ForgottenKey("Expected a key that is in use, got one of a user who has left and was forgotten.")
    gone = connection.execute(sa.select(KEYS.c.user).where(KEYS.c.fingerprint == fingerprint)).first()
    if gone is not None:
        raise RotatedKey(
            f"Expected a key that is in use, got one that user {gone.user} has put another in the place of."
        )


def nobodys(fingerprint: str) -> str:
    """The digest by which a forgotten key is known."""
    return hashlib.sha256(f"quoron nobody's {fingerprint}".encode()).hexdigest()


def require_unused(connection: sa.Connection, other: int, user: int) -> None:
    """ConfigError if `other` was ever in a run: then it is a user of its own, and what it was promised stands."""
    people = connection.scalar(sa.select(USERS.c.people).where(USERS.c.user == other)) or 1
    for name in ("slots", "agreed"):
        table = sa.table(name, sa.column("user"))
        any_of = table.c.user.between(other, other + people - 1)
        if connection.execute(sa.select(table.c.user).where(any_of).limit(1)).first() is not None:
            raise ConfigError(
                f"Expected a new key that was in no run, got that of user {other}. It is another user than user {user} "
                "for ever: replace the one by the other without a rotation, or rotate to a key that is new."
            )
