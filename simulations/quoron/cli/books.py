"""A copy of the books while they are used, books put back from one, and runs that go on in restored books."""

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import click
import typer
from click.core import ParameterSource

from quoron.cli.connection import connects, reached
from quoron_privacy.errors import ConfigError

_MAGIC = b"SQLite format 3\0"


@connects
def backup(
    out: Annotated[Path | None, typer.Argument(help="Of a database: a file that is not there yet.")] = None,
    with_secrets: Annotated[bool, typer.Option("--with-secrets", help="What open runs need: it undoes noise.")] = False,
) -> None:
    """Copy the books in one transaction, also while they are used; print the copy's SHA-256.

    PostgreSQL's are read beside a running coordinator. A SQLite file belongs to one process at a time: the coordinator
    that has it is asked, and writes the copy beside it; nothing of it leaves that machine.
    """
    with reached(books=True).books(sole=False) as books:
        name, digest = books.backup(out, with_secrets=with_secrets)
    print(f"{digest}  {name}")


def restore(
    source: Annotated[Path, typer.Argument(help="A backup; or a SQLite file without, or behind, its count.")],
    database: Annotated[
        str, typer.Option(envvar="QUORON_DATABASE", help="sqlite:///FILE or postgresql://USER@HOST/NAME.")
    ] = "sqlite:///coordinator.sqlite",
    continue_restored: Annotated[
        bool, typer.Option("--continue", help="Let running runs go on: each is one more copy, charged as one.")
    ] = False,
    checkpoint: Annotated[
        str | None, typer.Option(metavar="HASH", help="Of `ledger verify`: refuse older books.")
    ] = None,
    lost: Annotated[
        list[str] | None,
        typer.Option("--lost-copy", metavar="WORD", help="Incarnation restored from the same copy, used and lost."),
    ] = None,
) -> None:
    """Put books back, as a new incarnation in which runs that were open are held; cancel them, or say that they go on.

    A SQLite file, of a coordinator or of a run folder, is taken in its place for all that there is; a backup needs a
    database without books. `quoron runs RUN --continue` lets a held run go on later.
    """
    from quoron.training.copies import charge_copy
    from quoron_server.books import backup

    try:
        with source.open("rb") as opened:
            bare = opened.read(len(_MAGIC)) == _MAGIC
    except OSError as error:
        raise ConfigError(f"Expected a backup at {source}, cannot read it: {error.strerror}.") from None
    how: dict[str, Any] = {"continue_open": continue_restored, "head": checkpoint, "lost": lost or ()}
    if not bare:
        made = backup.restore(source, database, **how)
    elif click.get_current_context().get_parameter_source("database") is ParameterSource.COMMANDLINE:
        raise ConfigError(
            f"Expected no --database with {source}, a SQLite file that is taken in its place, got one. Back it up "
            "then, and restore the backup there."
        )
    else:
        made = backup.accept(source, **how, charge=partial(charge_copy, source.parent))
    print(f"restored as {made.incarnation}")
    for words, runs in (("held", made.held), ("goes on, as one more copy", made.continued)):
        for run in runs:
            print(f"{run}: {words}")
