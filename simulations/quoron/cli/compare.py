"""`quoron compare`: algorithms and settings side by side, on the same users, with the same budget and seeds."""

from pathlib import Path
from typing import Annotated, Any

import typer

import quoron
from quoron.cli.columns import table_options
from quoron.cli.common import Epsilon, InlineOrRay, Json, Settings, Source, interruptible, showing, shows_progress
from quoron.table_columns import DescribedTable


@table_options
def compare(
    columns: DescribedTable,
    source: Source = "quickstart",
    epsilon: Epsilon = None,
    algorithms: Annotated[
        str | None, typer.Option(metavar="NAME,NAME", help="Which, auto among them; all that promise privacy without.")
    ] = None,
    vary: Annotated[
        list[str] | None,
        typer.Option("--vary", metavar="KEY=[V,V]", help="Any key with values to try, such as privacy.epsilon=[1, 4]."),
    ] = None,
    seeds: Annotated[
        str,
        typer.Option(
            metavar="NUMBER|auto",
            help="Runs of each, with seeds from run.seed on; auto: 3, 6, 12, 24, at most 48, "
            "until the best two are told apart.",
        ),
    ] = "5",
    engine: InlineOrRay = "inline",
    out: Annotated[Path | None, typer.Option(help="Folder of the comparison; what is complete in it stays.")] = None,
    settings: Settings = None,
    as_json: Json = False,
) -> None:
    """Simulate algorithms and settings side by side: excess risk with intervals, rounds, gradients, bytes."""
    from quoron.comparing.request import number_or_auto, sweep

    names = None if algorithms is None else [each.strip() for each in algorithms.split(",") if each.strip()]
    asked: dict[str, Any] = {"algorithms": names, "vary": sweep(vary or ()), "seeds": number_or_auto(seeds)}
    asked |= {"epsilon": epsilon, "out": out, "settings": settings or (), "engine": engine, **columns}
    with interruptible():
        comparison = quoron.compare(source, progress=shows_progress(as_json=as_json), **asked)
    showing.show(comparison, as_json=as_json)
