"""`quoron.tune` and `quoron.plan_tuning`: from what a door is given to a search, planned, priced and carried out."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack

from quoron.run_folder import RunFolder, claim
from quoron.sections import Keep, Method, Privacy, door, sections
from quoron.sources import Settings, Source, described
from quoron.table_columns import TableColumns
from quoron.tuning import run
from quoron.tuning.effort import Effort
from quoron.tuning.run import Tuned
from quoron.tuning.tables import TableSearch, prepare


@door
def tune(
    source: Source,
    *,
    epsilon: float | None = None,
    delta: float | None = None,
    items_per_user: int | None = None,
    vary: Mapping[str, Sequence[Any]] | None = None,
    algorithms: Sequence[str] | None = None,
    effort: Effort | None = None,
    privacy: Privacy | None = None,
    method: Method | None = None,
    keep: Keep | None = None,
    settings: Settings = (),
    **columns: Unpack[TableColumns],
) -> Tuned:
    """Train for real with several settings, and release the best by a private score, for little more than one run.

    Args:
        source, privacy, method, keep, settings, columns: as of `train`; (ε, δ) is the promise of the whole search. With
            `simulation_seed` in `privacy` it is a simulation, which promises nothing.
        epsilon, delta, items_per_user: as of `train`.
        vary: dotted keys, each with the values to try; all combinations.
        algorithms: names, `auto` among them; default: the one that is configured.
        effort: how many trials in the mean, of which law, whether the clock may tell how many there were, and the share
            of users that are held out to score every trial (docs/tuning.md).

    A secret number of trials each take one of the settings at random. Nothing is shown or kept of any but the best, and
    one charge is made before anything is looked at. Interrupted, it goes on with the same call and `keep.out`, or
    `quoron resume`: the same trials, nothing drawn anew.

    Raises:
        QuoronError: with the thing, its value and the fix; BudgetExceeded beyond the group's limit.
    """
    short = {"epsilon": epsilon, "delta": delta, "items_per_user": items_per_user}
    search, name = _search("tune", source, columns, settings, (privacy, method, keep), short, vary, algorithms, effort)
    folder = claim(search.config, name)
    with folder.resumable():
        return run.carry_out(search, folder)


@door
def plan_tuning(
    source: Source,
    *,
    epsilon: float | None = None,
    delta: float | None = None,
    items_per_user: int | None = None,
    vary: Mapping[str, Sequence[Any]] | None = None,
    algorithms: Sequence[str] | None = None,
    effort: Effort | None = None,
    privacy: Privacy | None = None,
    method: Method | None = None,
    keep: Keep | None = None,
    settings: Settings = (),
    **columns: Unpack[TableColumns],
) -> TableSearch:
    """What `tune`, called so, would promise, cost and try. Nothing is charged, and no value of the table is looked at.

    Arguments and errors are those of `tune`.
    """
    short = {"epsilon": epsilon, "delta": delta, "items_per_user": items_per_user}
    said = (privacy, method, keep)
    return _search("plan_tuning", source, columns, settings, said, short, vary, algorithms, effort)[0]


def _search(
    door: str,
    source: Source,
    columns: Mapping[str, Any],
    settings: Settings,
    asked: tuple[Privacy | None, Method | None, Keep | None],
    short: Mapping[str, Any],
    vary: Mapping[str, Sequence[Any]] | None,
    algorithms: Sequence[str] | None,
    effort: Effort | None,
) -> tuple[TableSearch, str]:
    """A search that is planned and priced, and a name for its runs."""
    privacy = asked[0]
    seeded = privacy is not None and privacy.simulation_seed is not None
    said = sections(*asked, door=door, without=("seed", "health", "evaluate"), **short)
    config, name, frame = described(source, columns, settings, said, secret=not seeded)
    folder = None if config.run.out is None else RunFolder(Path(config.run.out))
    identity = run.identity_of(folder, name)
    asked_for: dict[str, Any] = {"vary": vary, "algorithms": algorithms, "effort": effort or Effort()}
    return prepare(config, Path.cwd(), **asked_for, identity=identity, frame=frame, seeded=seeded), name
