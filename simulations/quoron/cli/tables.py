"""`quoron bounds`, `statistics`, `evaluate`, `index`: what else is asked of a table than a model of it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

import quoron
from quoron.cli.common import Csv, Json, Page, Population, ZeroOut, check_page, opened, showing
from quoron.data.columns import TYPED, read
from quoron_client.data.formats import is_folder

Listed = list[str] | None
Table = Annotated[str, typer.Argument(metavar="TABLE", help="A table with one item a row: a file, a folder or a URL.")]
User = Annotated[str, typer.Option(metavar="COLUMN", help="Column that says whose item a row is.")]


def bounds(
    table: Table,
    user: User,
    epsilon: Annotated[float, typer.Option(help="What all of it costs together.")],
    delta: Annotated[float, typer.Option(help="δ of all of it together.")] = 1e-6,
    items: Annotated[bool, typer.Option(help="Items per user.")] = False,
    numeric: Annotated[
        Listed, typer.Option(metavar="COLUMN,...", help="Columns of which to tell the range; x*, x[0:9].")
    ] = None,
    dates: Annotated[
        Listed, typer.Option(metavar="COLUMN,...", help="Columns of dates of which to tell the years.")
    ] = None,
    categorical: Annotated[
        Listed,
        typer.Option(metavar="COLUMN,...", help="Columns of which to tell the categories, or classes."),
    ] = None,
    population: Population = None,
    csv: Csv = None,
) -> None:
    """Estimate privately the bounds that a configuration has to declare of a table, as TOML.

    All of it is charged to the population's privacy budget before any value is read, as training is. Asking again
    costs again.
    """
    asked: dict[str, Any] = {"epsilon": epsilon, "delta": delta, "items": items}
    asked |= {"numeric": _names(numeric), "dates": _names(dates), "categorical": _names(categorical)}
    found = quoron.find_bounds(opened(table, csv), user=user, **asked, population=population)
    typer.echo(found.toml())


def _names(given: Listed) -> list[str]:
    return [name.strip() for each in given or () for name in each.split(",") if name.strip()]


def stats(
    table: Table,
    questions: Annotated[
        list[str],
        typer.Argument(
            metavar="QUESTION...",
            help="'count by COLUMN', 'histogram of COLUMN in 10 bins', 'quantiles of COLUMN at 0.1, 0.9', "
            "'median of COLUMN', 'mean of COLUMN'; each with 'by COLUMN' for groups.",
        ),
    ],
    user: User,
    epsilon: Annotated[float, typer.Option(help="What all of it costs together.")],
    delta: Annotated[float, typer.Option(help="δ of all of it together.")] = 1e-6,
    numeric: Annotated[
        Listed,
        typer.Option(metavar=TYPED["numeric"][0], help="Public ranges; estimated privately without."),
    ] = None,
    categorical: Annotated[
        Listed,
        typer.Option(metavar=TYPED["categorical"][0], help="Public groups; estimated privately without."),
    ] = None,
    items_per_user: Annotated[
        int | None, typer.Option(metavar="K", help="Let items weigh one each, up to K of a user; else users do.")
    ] = None,
    dates: Annotated[
        Listed,
        typer.Option(
            metavar="COLUMN[=DAY:DAY]", help="Columns of dates, with their public range; estimated privately without."
        ),
    ] = None,
    users: ZeroOut = None,
    report: Page = None,
    as_json: Json = False,
    population: Population = None,
    csv: Csv = None,
) -> None:
    """Tell counts, histograms, quantiles and means of a table, each with its standard error and a 95 % interval.

    All questions share one price, which is charged to the population's privacy budget before any value is read. A
    user weighs one, whatever it holds. Asking again costs again.
    """
    check_page(report)
    asked: dict[str, Any] = {"epsilon": epsilon, "delta": delta, "adjacency": _adjacency(users), "users": users}
    asked |= {name: _said(name, typed) for name, typed in (("numeric", numeric), ("categorical", categorical))}
    asked |= {"dates": _dates(dates or ()), "items_per_user": items_per_user, "population": population}
    found = quoron.statistics(opened(table, csv), questions, user=user, **asked)
    showing.show(found, as_json=as_json)
    _write(found, report)


def _write(found: Any, page: Path | None) -> None:
    """Write the page of what was released, where one is asked for."""
    from quoron.reports.pages import write_release

    if page is not None:
        write_release(found, page)


def _adjacency(users: int | None) -> Literal["replace-one", "zero-out"]:
    return "replace-one" if users is None else "zero-out"


def _dates(typed: Sequence[str]) -> dict[str, tuple[str, ...] | None]:
    """The first and the last day of each column, None where they are to be estimated."""
    parted = [each.partition("=") for each in typed]
    return {name: tuple(ends.split(":")) if ends else None for name, _, ends in parted}


def _said(word: str, typed: Listed) -> dict[str, Any]:
    """What is declared by column; columns of which nothing is said are as if they were left out."""
    return {name: said for name, said in read(word, typed or ()).items() if said}


def evaluate(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="A model file, or the folder of a run.")],
    table: Annotated[str, typer.Argument(metavar="TABLE", help="Rows with labels: a file, a folder or a URL.")],
    user: User,
    epsilon: Annotated[float, typer.Option(help="ε, charged beside whatever was charged before.")],
    delta: Annotated[float, typer.Option(help="δ.")] = 1e-6,
    items_per_user: Annotated[
        int, typer.Option(help="Above 1: figures per item as well, of so many rows of a user at most.")
    ] = 1,
    users: ZeroOut = None,
    report: Page = None,
    as_json: Json = False,
    population: Population = None,
    csv: Csv = None,
) -> None:
    """Say how good a model is for the users of a table, with 95 % intervals, private for every user as a whole."""
    rows = table if is_folder(table) else opened(table, csv)
    check_page(report)
    given: dict[str, Any] = {"epsilon": epsilon, "delta": delta, "adjacency": _adjacency(users), "users": users}
    found = quoron.evaluate(model, rows, user, items_per_user=items_per_user, **given, population=population)
    showing.show(found, as_json=as_json)
    _write(found, report)
