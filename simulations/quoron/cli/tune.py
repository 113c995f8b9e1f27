"""`quoron tune`: the best of several settings by a private score, for little more than the price of one run."""

from typing import Annotated, Any

import typer

import quoron
from quoron.cli import common
from quoron.cli.columns import table_options
from quoron.cli.common import RARE, Delta, Epsilon, Json, Out, Population, Settings, doubts, interruptible, showing
from quoron.cli.train import Table
from quoron.table_columns import DescribedTable


@table_options
def tune(
    source: Table,
    columns: DescribedTable,
    epsilon: Epsilon = None,
    delta: Delta = None,
    vary: Annotated[
        list[str] | None,
        typer.Option("--vary", metavar="KEY=[V,V]", help="Any key with values to try, such as loss.ridge=[0, 0.01]."),
    ] = None,
    algorithms: Annotated[
        str | None, typer.Option(metavar="NAME,NAME", help="Which, auto among them; the configured one without.")
    ] = None,
    trials: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE",
            help="mean=N, twice as many as settings without; most=N, five times the mean without; padded=1: always "
            "carry out the most, so that the clock tells not how many.",
            rich_help_panel=RARE,
        ),
    ] = None,
    holdout: Annotated[
        float | None,
        typer.Option(metavar="SHARE", help="Of users, held out to score every trial; 0.1 to 0.3 without."),
    ] = None,
    out: Out = None,
    settings: Settings = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show settings and price; charge nothing, and look at no value.")
    ] = False,
    as_json: Json = False,
    population: Population = None,
) -> None:
    """Train with several settings and release the best by a private score: one price, told before it begins."""
    from quoron.comparing.request import sweep

    names = None if algorithms is None else [each.strip() for each in algorithms.split(",") if each.strip()]
    asked: dict[str, Any] = {"vary": sweep(vary or ()), "algorithms": names, "holdout": holdout}
    tried = common.keyed("--trials", trials, {"mean": common.number, "most": common.whole, "padded": common.whole})
    asked |= {"n_trials": tried.get("mean"), "max_trials": tried.get("most"), "padded": "padded" in tried}
    asked |= {"epsilon": epsilon, "delta": delta, "out": out, "settings": settings or (), **columns}
    asked["population"] = population
    if dry_run:
        showing.show_search(quoron.tune(source, dry_run=True, **asked), as_json=as_json)
        return
    with interruptible(), doubts():
        tuned = quoron.tune(source, **asked)
    showing.show(tuned, as_json=as_json)
