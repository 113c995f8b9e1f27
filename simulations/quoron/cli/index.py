"""`quoron index`: who is where in a folder of Parquet files, found out once."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from quoron.cli.common import Quiet
from quoron_privacy.errors import ConfigError


def index(
    source: Annotated[
        str, typer.Argument(metavar="FOLDER|URL|TABLE.TOML", help="Parquet files, or a configuration that names them.")
    ],
    user: Annotated[
        str | None, typer.Option("--user", metavar="COLUMN", help="Column that says whose item a row is.")
    ] = None,
    anew: Annotated[bool, typer.Option("--anew", help="Throw away the index that there is, and make another.")] = False,
    quiet: Quiet = False,
) -> None:
    """Check a folder of Parquet files and number its users, once; whoever trains on it then reads only what is asked.

    Rows have to be sorted by user over all files, or every user's rows in one file, in any order. Interrupted, the same
    command goes on; after files or the index itself have changed it begins again. The index is kept in your own cache,
    where nobody else writes, never beside the data.
    """
    from quoron import config as configs
    from quoron import sources
    from quoron.datasets.index import renewed
    from quoron.paths import dataset

    if source.endswith(".toml"):
        section = sources.resolve(source)[0].population
        found = dataset(section.path, Path.cwd()) if isinstance(section, configs.TableSection) else None
        if found is None or not isinstance(section, configs.TableSection):
            raise ConfigError(
                f"Expected {source} to name a folder or a URL as population.path, got another population."
            )
        source, user = found, user or section.user
    if user is None:
        raise ConfigError("Expected --user, the column that says whose item a row is, got none.")
    made = renewed(source, user, anew=anew, watcher=None if quiet else _tell)
    order = "sorted by user" if made.sorted else "every user in one file"
    print(f"{made.users:,} users, {made.rows:,} rows, {len(made.files.parts):,} files, {order}: {made.folder}")


def _tell(done: int, of: int) -> None:
    print(f"piece {done} of {of}", file=sys.stderr, flush=True)
