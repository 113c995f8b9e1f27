"""`quoron.train` and `quoron.plan_training`: a model for real, of a table that somebody holds.

run = quoron.train(visits, user="patient", label="ill", numeric={"age": (0, 100)}, epsilon=2.0)
run.model.predict(new_visits)
"""

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

from quoron.engines import EngineChoice, training_sharing
from quoron.planning.plans import Planned
from quoron.reports import progress as bars
from quoron.run_folder import claim
from quoron.sections import Keep, Method, Privacy, door, sections
from quoron.sources import Settings, Source, described
from quoron.table_columns import TableColumns
from quoron.training import run as training
from quoron.training.result import TrainedTable
from quoron_server.rounds import Observer

_SECRET = ("simulation_seed", "seed")  # what a run for real draws by itself


@door
def train(
    source: Source,
    *,
    epsilon: float | None = None,
    delta: float | None = None,
    items_per_user: int | None = None,
    evaluate: float | None = None,
    privacy: Privacy | None = None,
    method: Method | None = None,
    keep: Keep | None = None,
    settings: Settings = (),
    observers: Sequence[Observer] = (),
    progress: bool | None = None,
    engine: str | EngineChoice = "inline",
    **columns: Unpack[TableColumns],
) -> TrainedTable:
    """Train for real on a table that you hold: secret noise, every user, one model that may be shown to anybody.

    Args:
        source: a DataFrame with one item a row, or the path of such a table; or a TOML file's path, a preset's name, a
            `Config`, which describe one.
        columns: of the table. What of them is not declared is bought within the promise (docs/train.md).
        epsilon, delta: the promise of the whole run; short for `privacy`. ε is needed, here, there, in `settings` or in
            a file; δ is 1e-6 unless given. Two values of one thing are refused.
        items_per_user: what a user typically holds, public; short for `method`'s. Planned as 1 unless given.
        evaluate: share of the users, such as 0.1, that are not trained on: they tell how good the model is, with
            intervals, for the same ε, as nobody is in both parts (docs/evaluation.md). `evaluation` of the result.
        privacy: the promise; `health` is the share of μ² for a look at how well the table fits its declarations, by
            default from 0.005 to 0.05; 0: nobody looks. What it says is in `health` of the result, and its warnings.
        method: the algorithm. Undeclared, a user's items are planned as 1.
        keep: the run's folder, and whose lifetime account is charged, in which file.
        settings: further keys: texts `dotted.key=value`, as with `--set`, or sections as mappings.
        observers: told of every round, in public figures.
        progress: whether a bar is shown on standard error; by default if that is a terminal.
        engine: as of `simulate`, but for "flower".

    The plan reads nothing from the table but the number of users. The run is charged to the group's account before
    any value is looked at. Interrupted, it goes on with the same call and `keep.out`, or `quoron resume`, for that
    charge: what is committed stands, what was under way is drawn anew.

    Raises:
        QuoronError: with the thing, its value and the fix; BudgetExceeded beyond the group's limit.
    """
    sharing = training_sharing(EngineChoice.of(engine))
    short: dict[str, Any] = {"epsilon": epsilon, "delta": delta, "items_per_user": items_per_user, "evaluate": evaluate}
    said = sections(privacy, method, keep, door="train", without=_SECRET, **short)
    config, name, frame = described(source, columns, settings, said, secret=True)
    with bars.display(quiet=not (sys.stderr.isatty() if progress is None else progress)) as shown:
        prepared = training.prepare(config, Path.cwd(), name=name, frame=frame)
        folder = claim(config, name)
        with folder.resumable():
            return training.carry_out(prepared, folder, (*observers, shown), sharing=sharing)


@door
def plan_training(
    source: Source,
    *,
    epsilon: float | None = None,
    delta: float | None = None,
    items_per_user: int | None = None,
    evaluate: float | None = None,
    privacy: Privacy | None = None,
    method: Method | None = None,
    keep: Keep | None = None,
    settings: Settings = (),
    compare: bool = False,
    **columns: Unpack[TableColumns],
) -> Planned:
    """What `train`, called so, would promise and cost. Nothing is charged, and no value of the table is looked at.

    Arguments and errors are those of `train`; with `compare` the plan stands beside what every other method would do.
    """
    short: dict[str, Any] = {"epsilon": epsilon, "delta": delta, "items_per_user": items_per_user, "evaluate": evaluate}
    said = sections(privacy, method, keep, door="plan_training", without=_SECRET, **short)
    config, name, frame = described(source, columns, settings, said, secret=True)
    prepared = training.prepare(config, Path.cwd(), name=name, frame=frame)
    planned = prepared.planned.beside(prepared.config) if compare else prepared.planned
    return replace(planned, remarks=(*planned.remarks, *prepared.scene.warnings))
