"""`quoron.resume`: whatever a folder holds goes on, or is read."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from quoron.api import simulating
from quoron.arguments import entry_point
from quoron.engine.choice import Engine, Service, from_spec, inline_or_ray
from quoron.reports.summary import Summary, from_json
from quoron.run_folder import RunFolder
from quoron.simulation import comparison as comparisons
from quoron.simulation import run as runs
from quoron.simulation.comparison import Comparison
from quoron.simulation.run import SimulatedRun
from quoron_privacy.errors import ConfigError
from quoron_privacy.kernels.on_first_use import OnFirstUse
from quoron_server.rounds import Observer

if TYPE_CHECKING:
    from quoron.training import result as results
    from quoron.training import run as training
    from quoron.training import tuning
    from quoron.training.result import TrainedTable
else:  # simulations go on without them
    results = OnFirstUse("quoron.training.result")
    training = OnFirstUse("quoron.training.run")
    tuning = OnFirstUse("quoron.training.tuning")


@entry_point
def resume(
    directory: str | Path,
    observers: Sequence[Observer] = (),
    *,
    progress: bool | None = None,
    engine: str | Engine = "inline",
) -> "SimulatedRun | TrainedTable | Comparison":
    """Continue an interrupted run from its last committed round; a complete one is returned.

    A simulation goes on to identical bits; a run of `train` to the same promise, with noise of this start.

    Of a comparison the runs that are not complete are carried out, in processes of their own; `progress` says whether
    bars are shown of them on standard error.

    Any engine continues what any began, a simulation that is: a run of `train` is carried out here. One on a DataFrame
    goes on with the same call of `train`, as its table is stored nowhere.
    """
    where = from_spec(engine)
    if isinstance(where, Service) and where.clients is not None:
        raise ConfigError(f"Expected no clients to resume a run, got clients={where.clients}. Leave them out.")
    if comparisons.is_comparison(Path(directory)):
        request = comparisons.stored_request(Path(directory))
        return simulating.carried_out(request, Path(directory), inline_or_ray(where), progress)
    folder = RunFolder(Path(directory))
    with folder.resumable():
        if folder.is_search:
            return tuning.resume(folder)
        if folder.is_training:
            return training.resume(folder, observers, engine=inline_or_ray(where))
        prepared = runs.prepare(folder.config(), folder.path)
        return simulating.carry_out(where, prepared, folder, folder.path, observers)


def stored(directory: str | Path) -> "Summary | TrainedTable | Comparison":
    """Return what the folder of a complete run, or comparison, holds. RunError before it is complete."""
    if comparisons.is_comparison(Path(directory)):
        return comparisons.stored(Path(directory))
    folder = RunFolder(Path(directory))
    folder.config()
    if folder.is_search:
        return tuning.stored(folder)
    return results.stored(folder) if folder.is_training else from_json(folder.summary())
