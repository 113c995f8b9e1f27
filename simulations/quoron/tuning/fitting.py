"""A fit of an estimator: a run, or where it is given settings to try, a search for the best of them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quoron.config import Config
from quoron.model import Model
from quoron.planning.plans import Prepared
from quoron.run_folder import RunFolder
from quoron.training import run as training
from quoron.training.result import TrainedTable
from quoron.training.run import AnyPrepared
from quoron.tuning.effort import Effort
from quoron_privacy.kernels.on_first_use import OnFirstUse
from quoron_server.parameters import Assumption
from quoron_server.plan import RunPlan

if TYPE_CHECKING:
    from quoron.tuning import run
    from quoron.tuning.run import Choice
    from quoron.tuning.tables import TableSearch
else:
    run = OnFirstUse("quoron.tuning.run")  # only a fit that searches needs it

Vary = Mapping[str, Sequence[Any]]  # dotted keys, each with the values to try; "algorithm.name" among them


def prepare(
    config: Config, vary: Vary | None, effort: Effort, frame: Any, assumptions: Sequence[Assumption]
) -> "TableSearch | AnyPrepared":
    """What a fit is, planned and priced. Raises what `prepare` of either raises."""
    if vary:
        return run.prepared(config, vary, effort, frame, assumptions, seeded=False)
    return training.prepare(config, Path.cwd(), name="fit", frame=frame, assumptions=assumptions)


def carry_out(
    prepared: "TableSearch | AnyPrepared", folder: RunFolder
) -> "tuple[TrainedTable, RunPlan, tuple[str, ...], Choice | None]":
    """What came out, the plan with what was promised, what is said of it, and what was chosen, if anything was."""
    if isinstance(prepared, Prepared):
        done = training.carry_out(prepared, folder)
        return done, prepared.planned.plan, prepared.planned.remarks, None
    tuned = run.carry_out(prepared, folder)
    chosen = next(each for each in prepared.candidates if each.name == tuned.choice.name)
    return tuned, prepared.promised(chosen.planned.plan), prepared.remarks, tuned.choice


def rehearse(
    config: Config, vary: Vary | None, effort: Effort, frame: Any, simulation_seed: int
) -> "tuple[Model, RunPlan, int, Choice | None]":
    """With noise from a seed, for whoever holds the rows alone: nothing is charged, written or promised."""
    if not vary:
        return (*training.rehearse(config, simulation_seed=simulation_seed, frame=frame), None)
    found = run.prepared(config, vary, effort, frame, (), seeded=True)
    return run.rehearsed(found, simulation_seed)
