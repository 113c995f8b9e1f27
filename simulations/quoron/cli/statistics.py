"""`quoron statistics`: counts, histograms, quantiles and means of a table, for a stated ε."""

import json
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from quoron.cli.common import Adjacency, Charged, Json, MostUsers, Text
from quoron.cli.connection import shared_options
from quoron.table_columns import WORDS, read

Listed = list[str] | None


@shared_options
def statistics(
    charged: Charged,
    text: Text,
    table: Annotated[
        str, typer.Argument(metavar="TABLE", help="A table with one item a row: a file, a folder or a URL.")
    ],
    questions: Annotated[
        list[str],
        typer.Argument(
            metavar="QUESTION...",
            help="'count by COLUMN', 'histogram of COLUMN in 10 bins', of dates 'in months', 'quantiles of COLUMN at "
            "0.1, 0.9', 'median of COLUMN', 'mean of COLUMN'; each with 'by COLUMN' for groups.",
        ),
    ],
    user: Annotated[str, typer.Option("--user", metavar="COLUMN", help="Column that says whose item a row is.")],
    epsilon: Annotated[float, typer.Option("--epsilon", help="What all of it costs together.")],
    delta: Annotated[float, typer.Option("--delta", help="δ of all of it together.")] = 1e-6,
    numeric: Annotated[
        Listed, typer.Option("--numeric", metavar=WORDS["numeric"].metavar, help="Public ranges; bought without.")
    ] = None,
    categorical: Annotated[
        Listed,
        typer.Option("--categorical", metavar=WORDS["categorical"].metavar, help="Public groups; bought without."),
    ] = None,
    items_per_user: Annotated[
        int | None, typer.Option(metavar="K", help="Let items weigh one each, up to K of a user; else users do.")
    ] = None,
    dates: Annotated[
        Listed,
        typer.Option(
            "--dates", metavar="COLUMN[=DAY:DAY]", help="Columns of dates, with their public range; bought without."
        ),
    ] = None,
    adjacency: Adjacency = "replace-one",
    users: MostUsers = None,
    as_json: Json = False,
) -> None:
    """Tell counts, histograms, quantiles and means of a table, each with its standard error and a 95 % interval.

    All questions share one price, which is charged to the group's lifetime account before anything is looked at. A
    user weighs one, whatever it holds. Asking again costs again.
    """
    from quoron.counting import door
    from quoron.sections import Privacy

    found = door.statistics(
        text.opened(table),
        questions,
        user=user,
        numeric={name: ends for name, ends in _said("numeric", numeric).items() if ends is not None},
        categorical={name: values for name, values in _said("categorical", categorical).items() if values},
        dates=_dates(dates or ()),
        items_per_user=items_per_user,
        users=users,
        privacy=Privacy(epsilon, delta, adjacency=adjacency, allow_large_delta=charged.allow_large_delta),
        keep=charged.keep(),
    )
    typer.echo(json.dumps(found.as_json(), ensure_ascii=False, allow_nan=False) if as_json else found.text())


def _dates(typed: Sequence[str]) -> dict[str, tuple[str, ...] | None]:
    """The first and the last day of each column, None where they are to be bought."""
    parted = [each.partition("=") for each in typed]
    return {name: tuple(ends.split(":")) if ends else None for name, _, ends in parted}


def _said(word: str, typed: Listed) -> dict[str, Any]:
    """What is declared by column; columns of which nothing is said are as if they were left out."""
    found = read(word, typed) if typed else {}
    return found if isinstance(found, dict) else {}
