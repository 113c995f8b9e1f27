"""`quoron declare`: ranges, categories and items per user that nobody knows, released for a stated ε."""

from typing import Annotated

import typer

from quoron.cli.common import Charged, Text
from quoron.cli.connection import shared_options

Columns = list[str] | None


@shared_options
def declare(
    charged: Charged,
    text: Text,
    table: Annotated[
        str, typer.Argument(metavar="TABLE", help="A table with one item a row: a file, a folder or a URL.")
    ],
    user: Annotated[str, typer.Option("--user", metavar="COLUMN", help="Column that says whose item a row is.")],
    epsilon: Annotated[float, typer.Option("--epsilon", help="What all of it costs, shared equally.")],
    delta: Annotated[float, typer.Option("--delta", help="δ of all ranges and categories together.")] = 1e-6,
    items: Annotated[bool, typer.Option("--items", help="Items per user.")] = False,
    numeric: Annotated[
        Columns, typer.Option("--numeric", metavar="COLUMN,...", help="Columns of which to tell the range; x*, x[0:9].")
    ] = None,
    dates: Annotated[
        Columns, typer.Option("--dates", metavar="COLUMN,...", help="Columns of dates of which to tell the years.")
    ] = None,
    categorical: Annotated[
        Columns,
        typer.Option(
            "--categorical", metavar="COLUMN,...", help="Columns of which to tell the categories, or classes."
        ),
    ] = None,
    most_votes: Annotated[
        int, typer.Option("--most-votes", metavar="K", help="Categories of a column that one user votes for.")
    ] = 1,
) -> None:
    """Release what a configuration has to declare of a table and nobody knows, as TOML with the cost of each line.

    All of it is charged to the group's lifetime account before anything is told, as training is. Asking again
    costs again.
    """
    from quoron import declare as declaring
    from quoron.sections import Privacy

    declared = declaring.declare(
        text.opened(table),
        user=user,
        privacy=Privacy(epsilon, delta, allow_large_delta=charged.allow_large_delta),
        items=items,
        numeric=_names(numeric),
        dates=_names(dates),
        categorical=_names(categorical),
        most_votes=most_votes,
        keep=charged.keep(),
    )
    typer.echo(declared.toml())


def _names(given: Columns) -> list[str]:
    return [name.strip() for each in given or () for name in each.split(",") if name.strip()]
