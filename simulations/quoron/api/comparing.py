"""`quoron.compare`: several algorithms and settings on the same users, with the same seeds."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack

from quoron.api.simulating import with_estimates
from quoron.arguments import PlanArguments, entry_point
from quoron.data.columns import Label
from quoron.engine.choice import Engine, Inline, Ray, inline_or_ray
from quoron.reports import terminal as bars
from quoron.run_folder import RunFolder
from quoron.simulation import comparison as comparisons
from quoron.simulation.comparison import Comparison, Request
from quoron.simulation.sources import Source, described, needed


@entry_point
def compare(
    source: Source = "quickstart",
    user: str | None = None,
    label: str | Label | None = None,
    *,
    algorithms: Sequence[str] | None = None,
    vary: Mapping[str, Sequence[Any]] | None = None,
    seeds: int = 5,
    out: str | Path | None = None,
    progress: bool | None = None,
    engine: str | Engine = "inline",
    **arguments: Unpack[PlanArguments],
) -> Comparison:
    """Simulate several algorithms, and settings, on the same users with the same budget and seeds, and compare them.

    Args:
        source, user, label, epsilon, delta, items_per_user, settings, columns: as of `simulate`. What is not declared
            is estimated once, with the source's ε, for all runs.
        algorithms: names, `auto` among them; default: all that promise privacy. Infeasible ones are told with why.
        vary: dotted keys, each with the values to try, such as `{"privacy.epsilon": [1, 4]}`; all combinations.
        seeds: runs of each, with seeds from run.seed on; confidence intervals need two or more.
        out: the comparison's folder; default: runs/NAME-compare-1 or the next that is free. What is complete in
            it is not carried out again, so an interrupted comparison goes on, and one may be extended.
        progress: whether bars are shown on standard error; by default in terminals and notebooks.
        engine: `Inline(workers=...)` of `quoron.engine`: runs at once, in processes that hold the users in memory, by
            default one a processor. `Ray(workers=..., address=...)` carries out one run at a time on a Ray cluster,
            with the users shared between the workers; the bits are the same.

    `Comparison.to_pandas()` is a pandas DataFrame of one row a cell (an algorithm under a setting).

    Raises:
        QuoronError: with the thing, its value and the fix; RunError if a worker dies.
    """
    chosen = inline_or_ray(engine)
    config, name, frame = described(source, user, label, arguments)
    config, _ = with_estimates(config, frame)
    table, config = needed(frame, config)
    request = Request.of(config, algorithms=algorithms, vary=vary, seeds=seeds)
    folder = comparisons.claim(out, name)
    if table is not None:
        RunFolder(folder).keep_table(table)
    return carried_out(request, folder, chosen, progress)


def carried_out(request: Request, folder: Path, engine: Inline | Ray, progress: bool | None) -> Comparison:
    """Carry out the runs of a comparison that are not complete in its folder, and return it."""
    with RunFolder(folder).resumable(), bars.display(progress) as watcher:
        return comparisons.carry_out(request, folder, watcher=watcher, engine=engine)
