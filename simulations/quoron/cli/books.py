"""`quoron backup` and `quoron restore`: a copy of the books while they are used, and books put back from one."""

from pathlib import Path
from typing import Annotated

import typer

from quoron.cli.connection import shared_options
from quoron.cli.ledger import Source
from quoron_privacy.errors import ConfigError

_MAGIC = b"SQLite format 3\0"
Url = Annotated[
    str | None,
    typer.Option("--database", envvar="QUORON_DATABASE", help="sqlite:///FILE or postgresql://USER@HOST/NAME."),
]


@shared_options
def backup(
    source: Source,
    out: Annotated[Path | None, typer.Argument(help="A file that is not there yet; not with --coordinator.")] = None,
    with_secrets: Annotated[
        bool, typer.Option("--with-secrets", help="With what open runs need to go on: whoever reads it can undo noise.")
    ] = False,
) -> None:
    """Copy the books in one transaction, also while they are used; print the copy's SHA-256.

    PostgreSQL's are read beside a running coordinator. A SQLite file belongs to one process at a time: with
    --coordinator the one that has it writes the copy beside it, and nothing of it leaves that machine.
    """
    if source.coordinator is not None:
        if out is not None:
            raise ConfigError("Expected no file with --coordinator, got one: the copy is written beside its database.")
        with source.connection(source.coordinator).open() as control:
            name, digest = control.backup(with_secrets=with_secrets)
        print(f"{digest}  {name}")
        return
    if out is None:
        raise ConfigError("Expected a file to write the backup to, got none.")
    from quoron_server.books.backup import back_up

    with source.open(create=False) as opened:
        print(f"{back_up(opened, out, with_secrets=with_secrets)}  {out}")


def restore(
    source: Annotated[Path, typer.Argument(help="A backup; or a SQLite file without, or behind, its count.")],
    database: Url = None,
    continue_restored: Annotated[
        bool,
        typer.Option("--continue-restored", help="Let open runs go on: each is one more copy, and is charged as one."),
    ] = False,
    head: Annotated[
        str | None,
        typer.Option("--head", metavar="HASH", help="A kept head of the lifetime ledger: refuse what is older."),
    ] = None,
) -> None:
    """Put books back, as a new incarnation in which runs that were open are held; cancel them, or say that they go on.

    A SQLite file is taken in its place for all that there is; a backup needs a database without books.
    """
    from quoron_server.books import backup as books

    try:
        with source.open("rb") as opened:
            bare = opened.read(len(_MAGIC)) == _MAGIC
    except OSError as error:
        raise ConfigError(f"Expected a backup at {source}, cannot read it: {error.strerror}.") from None
    if bare:
        made = books.accept(source, continue_open=continue_restored, head=head)
    else:
        url = database or "sqlite:///coordinator.sqlite"
        made = books.restore(source, url, continue_open=continue_restored, head=head)
    print(f"restored as {made.incarnation}")
    for words, runs in (("held", made.held), ("goes on, as one more copy", made.continued)):
        for run in runs:
            print(f"{run}: {words}")
