"""`quoron statistics`: counts, histograms, quantiles and means of a table, for a stated ε."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from quoron.cli.common import Decimal, Encoding, Json, Quoting, Separator
from quoron.table_columns import WORDS, read

Listed = list[str] | None


def statistics(
    table: Annotated[
        str, typer.Argument(metavar="TABLE", help="A table with one item a row: a file, a folder or a URL.")
    ],
    questions: Annotated[
        list[str],
        typer.Argument(
            metavar="QUESTION...",
            help="'count by COLUMN', 'histogram of COLUMN in 10 bins', 'quantiles of COLUMN at 0.1, 0.9', 'median of "
            "COLUMN', 'mean of COLUMN'; each with 'by COLUMN' for groups.",
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
    allow_large_delta: Annotated[
        bool, typer.Option("--allow-large-delta", help="Accept a δ above 1/n, n the number of users.")
    ] = False,
    group: Annotated[
        str | None, typer.Option("--group", metavar="NAME", help="Whose lifetime account is charged.")
    ] = None,
    ledger: Annotated[
        Path | None, typer.Option("--ledger", envvar="QUORON_LEDGER", help="The lifetime ledger, if not the usual one.")
    ] = None,
    separator: Separator = None,
    decimal: Decimal = ".",
    encoding: Encoding = None,
    quoting: Quoting = "double",
    as_json: Json = False,
) -> None:
    """Tell counts, histograms, quantiles and means of a table, each with its standard error and a 95 % interval.

    All questions share one price, which is charged to the group's lifetime account before anything is looked at. A
    user weighs one, whatever it holds. Asking again costs again.
    """
    from quoron import opened
    from quoron.counting import door
    from quoron.sections import Keep, Privacy

    found = door.statistics(
        opened(table, separator=separator, decimal=decimal, encoding=encoding, quoting=quoting),
        questions,
        user=user,
        numeric={name: ends for name, ends in _said("numeric", numeric).items() if ends is not None},
        categorical={name: values for name, values in _said("categorical", categorical).items() if values},
        items_per_user=items_per_user,
        privacy=Privacy(epsilon, delta, allow_large_delta=allow_large_delta),
        keep=Keep(group=group, ledger=ledger),
    )
    typer.echo(json.dumps(found.as_json(), ensure_ascii=False, allow_nan=False) if as_json else found.text())


def _said(word: str, typed: Listed) -> dict[str, Any]:
    """What is declared by column; columns of which nothing is said are as if they were left out."""
    found = read(word, typed) if typed else {}
    return found if isinstance(found, dict) else {}
