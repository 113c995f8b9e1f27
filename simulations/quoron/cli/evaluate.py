"""`quoron evaluate MODEL TABLE`: how good a model is for the users of a table, privately, with intervals."""

from pathlib import Path
from typing import Annotated, Any

import typer

from quoron.cli.common import Adjacency, Charged, Json, MostUsers, Page, Text, check_page
from quoron.cli.connection import shared_options
from quoron_client.data.formats import is_folder


@shared_options
def evaluate(
    charged: Charged,
    text: Text,
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="A model file, or the folder of a run.")],
    table: Annotated[str, typer.Argument(metavar="TABLE", help="Rows with labels: a file, a folder or a URL.")],
    user: Annotated[str, typer.Option(help="The column that says whose a row is.")],
    epsilon: Annotated[float, typer.Option(help="ε, charged beside whatever was charged before.")],
    delta: Annotated[float, typer.Option(help="δ.")] = 1e-6,
    items_per_user: Annotated[
        int, typer.Option(help="Above 1: figures per item as well, of so many rows of a user at most.")
    ] = 1,
    adjacency: Adjacency = "replace-one",
    users: MostUsers = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say how wide intervals will be; charge nothing, and look at no value.")
    ] = False,
    report: Page = None,
    as_json: Json = False,
) -> None:
    """Say how good a model is for the users of a table, with 95 % intervals, private for every user as a whole."""
    from quoron import measure
    from quoron.cli import showing
    from quoron.reports import alone
    from quoron.sections import Privacy

    rows = table if is_folder(table) else text.opened(table)
    privacy = Privacy(epsilon, delta, adjacency=adjacency, allow_large_delta=charged.allow_large_delta)
    asked: dict[str, Any] = {"user": user, "privacy": privacy, "items_per_user": items_per_user, "users": users}
    if dry_run:
        print(f"{measure.foretold(model, rows, **asked)}. Nothing is charged, and no value was looked at.")
        return
    check_page(report)
    found = measure.evaluate(model, rows, keep=charged.keep(), **asked)
    showing.show_evaluation(found, as_json=as_json)
    if report is not None:
        alone.evaluation(found, report)
