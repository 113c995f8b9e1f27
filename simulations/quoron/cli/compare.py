"""`quoron compare`: algorithms and settings side by side, on the same users, with the same budget and seeds."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from quoron.cli.common import Address, Json, Link, Quiet, Settings, Source, interruptible

if TYPE_CHECKING:
    from quoron.comparing.request import Request
    from quoron.engines import EngineChoice


def compare(
    source: Source = "quickstart",
    algorithms: Annotated[
        str | None, typer.Option(metavar="NAME,NAME", help="Which, auto among them; all that promise privacy without.")
    ] = None,
    vary: Annotated[
        list[str] | None,
        typer.Option("--vary", metavar="KEY=[V,V]", help="Any key with values to try, such as privacy.epsilon=[1, 4]."),
    ] = None,
    seeds: Annotated[int, typer.Option(help="Runs of each, with seeds from run.simulation_seed and run.seed on.")] = 5,
    workers: Annotated[
        int | None,
        typer.Option(
            help="Runs at once, one a processor unless told otherwise; with the engine ray, workers of each run."
        ),
    ] = None,
    engine: Annotated[
        str,
        typer.Option(metavar="inline|ray", help="Runs side by side, or one by one on a Ray cluster: the same bits."),
    ] = "inline",
    address: Address = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the comparison; what is complete in it stays.")] = None,
    network: Link = None,
    settings: Settings = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Simulate algorithms and settings side by side: excess risk with intervals, rounds, gradients, bytes."""
    from quoron import api
    from quoron.comparing import comparison as comparisons
    from quoron.comparing.request import Request, sweep
    from quoron.engines import EngineChoice, comparison_sharing

    config, name = api.resolve(source, (*(settings or ()), *api.short_keys(network=network)))
    names = None if algorithms is None else [each.strip() for each in algorithms.split(",") if each.strip()]
    request = Request.of(config, algorithms=names, vary=sweep(vary or ()), seeds=seeds)
    chosen = EngineChoice.of(engine, workers=workers, address=address)
    comparison_sharing(chosen)
    carry_on(request, comparisons.claim(out, name), chosen, as_json=as_json, quiet=quiet)


def carry_on(request: "Request", folder: Path, engine: "EngineChoice", *, as_json: bool, quiet: bool) -> None:
    """Carry a comparison out from wherever its folder stands, and show it; when interrupted, say how to go on."""
    from quoron.cli import showing
    from quoron.comparing import comparison as comparisons
    from quoron.engines import comparison_sharing
    from quoron.reports.progress import runs_display

    silent = quiet or (as_json and not sys.stderr.isatty())
    with interruptible(folder), runs_display(quiet=silent) as watcher:
        sharing = comparison_sharing(engine)
        comparison = comparisons.carry_out(request, folder, watcher=watcher, workers=engine.workers, sharing=sharing)
    showing.show_comparison(comparison, as_json=as_json)
