"""The tables of a roster: users, keys that were theirs, draws, and who was forgotten."""

import time

import sqlalchemy as sa

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
