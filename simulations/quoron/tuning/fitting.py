"""A search for whoever has arrays and one line: an estimator that is given settings to try."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from quoron.config import Config
from quoron.model import Model
from quoron.run_folder import RunFolder
from quoron.training.start import Identity
from quoron.tuning import run
from quoron.tuning.effort import Effort
from quoron.tuning.run import Choice, Tuned
from quoron.tuning.searching import search
from quoron.tuning.tables import Table, TableSearch, prepare
from quoron_privacy.noise.sources import SeededNoise
from quoron_server.parameters import Assumption
from quoron_server.plan import Plan

Vary = Mapping[str, Sequence[Any]]


def prepared(
    config: Config,
    vary: Vary,
    effort: Effort | None,
    frame: Any,
    *,
    seeded: bool = False,
    assumptions: Sequence[Assumption] = (),
) -> TableSearch:
    """The search that an estimator's fit is: the values of `vary`, among them algorithms as "algorithm.name"."""
    names = {key: values for key, values in vary.items() if key == "algorithm.name"}.get("algorithm.name")
    return prepare(
        config,
        Path.cwd(),
        vary={key: values for key, values in vary.items() if key != "algorithm.name"},
        algorithms=names,
        effort=effort or Effort(),
        identity=Identity.fresh("fit"),
        frame=frame,
        seeded=seeded,
        assumptions=assumptions,
    )


def carried_out(found: TableSearch, folder: RunFolder) -> tuple[Tuned, Plan]:
    """The search in a folder, and the plan of what it chose with what the whole of it promises."""
    tuned = run.carry_out(found, folder)
    chosen = next(each for each in found.candidates if each.name == tuned.choice.name)
    return tuned, found.promised(chosen.planned.plan)


def rehearsed(found: TableSearch, simulation_seed: int) -> tuple[Model, Plan, int, Choice]:
    """With noise from a seed, for whoever holds the rows alone: nothing is charged, written or promised."""
    source, table = SeededNoise(simulation_seed), Table(found)
    best = search(found.price, source, lambda place, noise: table.perform(place, noise, source))
    candidate = found.candidates[best.candidate]
    held, plan = table.of(candidate), found.promised(candidate.planned.plan)
    model = Model.released(best.outcome.weights, held.encoding, candidate.declared.loss, plan, made=None)
    return model, plan, len(best.outcome.events), run.choice_of(found, best)
