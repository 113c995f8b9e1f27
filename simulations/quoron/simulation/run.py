"""Carrying out a run in its folder: start, continue after any interruption, write what it found."""

import hashlib
import math
import resource
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from quoron.config import Config, TableSection
from quoron.data import Population
from quoron.paths import dataset, table_file
from quoron.planning import forecasts
from quoron.planning.choosing import LIKELY
from quoron.planning.plans import Plan, Prepared, choose
from quoron.reports.summary import Summary
from quoron.results import Axes, Run, axes
from quoron.run_folder import MODEL, RunFolder, flat
from quoron.simulation.problem import Setup, problem_for_real, setup, with_columns
from quoron_privacy.errors import ConfigError
from quoron_privacy.kernels.on_first_use import OnFirstUse
from quoron_server.algorithms import ALGORITHMS
from quoron_server.plan import RunPlan, check_delta
from quoron_server.rounds import Observer
from quoron_server.wording import sentence

if TYPE_CHECKING:  # planning needs neither
    import pyarrow as pa

    from quoron.data import Synthetic, TablePopulation
    from quoron.model import Model
    from quoron_server.storage.ledger import Ledger


pages = OnFirstUse("quoron.reports.pages")
RESIDENT = 1 if sys.platform == "darwin" else 1024  # bytes of what a system counts a process's memory in
COUNTED = "messages", "bytes_up", "bytes_down", "gradient_evaluations"  # of all rounds
LOOK = (
    "`quoron train` spends up to a twentieth of μ² on a data quality check first (train.data_quality), where the "
    "method is Gaussian as a whole: this plan does not."
)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class SimulatedRun(Run[Any]):
    """A complete run over simulated users; its model is an array of shape (d,) where they hold no table."""

    summary: Summary
    config: Config
    planned: Plan  # the run's plan and those of the other algorithms

    @property
    def plan(self) -> RunPlan:
        """Return the plan that was carried out."""
        return self.planned.plan

    def rows(self) -> list[tuple[str, str]]:
        """Return the rows of the summary."""
        return self.summary.rows()

    def plot(self, *, ax: Axes | None = None) -> Axes:
        """Return matplotlib Axes with excess risk by round. ConfigError where it was not measured."""
        key, summary = "simulation.excess_risk", self.summary
        risks = [(row["round"] + 1, row[key]) for row in self.records() if row.get(key) is not None]
        if not risks:
            raise ConfigError("Expected a run whose excess risk is measured in every round to plot, got another.")
        found = axes(ax, xlabel="rounds", ylabel="excess risk")
        found.plot(*zip((0, summary.excess_risk_initial), *risks, strict=True), label="current model")
        found.plot([risks[-1][0]], [float(summary.excess_risk or 0.0)], "o", label="released model")
        bound = summary.predicted_excess_risk
        if (predicted := summary.guessed_excess_risk if bound is None else bound + summary.held_back) is not None:
            name = "a guess that nobody has measured" if bound is None else f"predicted: at most, {LIKELY}"
            found.axhline(predicted, linestyle="--", label=name)
        found.legend()
        return found


UNUSED_HOLDOUT = "train.holdout is of `quoron train`: a simulation measures on population.test_fraction of the users."


def prepare(
    config: Config,
    folder: Path,
    *,
    frame: "pa.Table | None" = None,
    compare: bool = False,
    alternatives: bool = True,
    population: Population | None = None,
) -> Prepared[Setup]:
    """Read, check and plan; every wrong request is refused here. A table's relative path is relative to `folder`.

    What is prepared of a `frame` is planned, and not carried out, until it has the digest of its file.

    Without `alternatives` the refusal of a named algorithm does not say which others would do.
    With `compare` every algorithm is planned, not only the one that is named, for a plan to look at, with everybody in
    a table. Otherwise it is for a simulation, and its promise says so.
    """
    began = time.perf_counter()
    config = with_columns(config, folder, frame)
    instance = setup(config, folder, frame, population)
    problem = problem_for_real(config, instance.population) if compare else instance.problem
    if isinstance(config.population, TableSection):
        check_delta(config.privacy.delta, problem.users, allowed=config.privacy.allow_large_delta)
    planned = choose(config, problem, compare=compare, alternatives=alternatives)
    if isinstance(config.population, TableSection):
        planned = replace(planned, remarks=(*planned.remarks, *instance.population.knowledge.assumptions))
        if compare and config.train.data_quality != 0 and planned.plan.guarantee.servers is None:
            planned = replace(planned, remarks=(*planned.remarks, LOOK))
    instance = instance.settled(planned.plan)
    if not compare:
        unused = () if config.train.holdout is None else (UNUSED_HOLDOUT,)
        planned = replace(planned, plan=planned.plan.simulated(), remarks=(*planned.remarks, *unused))
    digest = fingerprint(config, folder) if frame is None else ""
    return Prepared(config, instance, planned, digest, began=began)


def carry_out(
    prepared: Prepared[Setup], folder: RunFolder, observers: Sequence[Observer] = (), *, report: bool = True
) -> SimulatedRun:
    """Run in `folder` from wherever its ledger stands, and write the run folder, report.html with `report`."""
    instance, run = prepared.setup, prepared.run
    with prepared.begin(folder) as ledger:
        before = sum(event["seconds_clients"] + event["seconds_server"] for event in ledger.events())
        run.carry_out(ledger, instance.engine, observers, evaluate=instance.evaluate)
        return _written(prepared, folder, ledger, before + time.perf_counter() - prepared.began, report=report)


def written(prepared: Prepared[Setup], folder: RunFolder, other: "Ledger | None" = None) -> SimulatedRun:
    """Return the same of a run that was carried out to its end elsewhere, in the folder's ledger or in `other`."""
    with prepared.begin(folder) as ledger:
        if other is not None:
            ledger.take_over(other)
        return _written(prepared, folder, ledger, time.perf_counter() - prepared.began)


def _written(
    prepared: Prepared[Setup], folder: RunFolder, ledger: "Ledger", seconds: float, *, report: bool = True
) -> SimulatedRun:
    """Return a complete run, and its folder."""
    weights = ledger.model
    summary, rows = _results(prepared, ledger, weights, seconds)
    folder.write_rounds(rows)
    folder.write_model(weights)
    released = _table_model(prepared, weights)
    if released is not None:
        folder.write_text(MODEL, released.as_text())
    folder.write_json("summary.json", summary.as_json())
    if report:
        pages.write_simulation(folder, summary, released)
    model = weights if released is None else released
    return SimulatedRun(model, weights, summary.statement, folder.path, summary, prepared.config, prepared.planned)


def notify(observers: Sequence[Observer], text: str) -> None:
    """Tell those observers that listen what a run waits for before its first round."""
    for observer in observers:
        if hasattr(observer, "waiting"):
            observer.waiting(text)


def begin(prepared: Prepared[Setup], folder: RunFolder) -> bool:
    """Begin a run's ledger if there is none, and say whether the run is complete. OtherVersion as in `carry_out`."""
    with prepared.begin(folder) as ledger:
        return ledger.finished


def _table_model(prepared: Prepared[Setup], weights: NDArray[np.float64]) -> "Model | None":
    """Return the model with the columns of a table, if there is one."""
    encoding = getattr(prepared.setup.population, "encoding", None)
    if encoding is None:
        return None
    from quoron.model import Model

    return Model.released(weights, encoding, prepared.setup.population.loss, prepared.planned.plan, made=None)


def fingerprint(config: Config, folder: Path, stored: bytes = b"") -> str:
    """Fingerprint of everything that decides the run's bits: the configuration and, of a table, its bytes.

    Of a folder of files it is their names, sizes and times of change. `stored` is the SHA-256 of a file, where known.
    """
    digest, section = hashlib.sha256(config.digest().encode()), config.population
    if stored:
        digest.update(stored)
    elif isinstance(section, TableSection):
        from quoron_client.data.files import Files, content  # they bring pyarrow

        source = dataset(section.path, folder)
        named = content(str(table_file(section.path, folder))) if source is None else Files.found(source).digest
        digest.update(named if isinstance(named, bytes) else bytes.fromhex(named))
    return digest.hexdigest()


def _results(
    prepared: Prepared[Setup], ledger: "Ledger", model: NDArray[np.float64], seconds: float
) -> tuple[Summary, list[dict[str, object]]]:
    config, instance, plan = prepared.config, prepared.setup, prepared.planned.plan
    events = ledger.events()
    first = min((round_ for round_, _ in ledger.releases()), default=math.inf)
    for event in events:
        event["public"] = _spent(plan, first, event["round"]) | event["public"]
    population, cost = instance.population, events[-1] if events else {}
    figures = _measured(instance.truth, model) if config.run.evaluate else {}
    remarks = figures.pop("remarks_simulation_only", ())
    worth = ALGORITHMS[plan.algorithm].gaussian(plan)
    filtered = [event["diagnostics"]["filtered"] for event in events if "filtered" in event["diagnostics"]]
    private = plan.guarantee.trust_model != "none"
    summary = Summary(
        algorithm=plan.algorithm,
        statement=sentence(plan.guarantee),
        rounds=len(events),
        **{name: cost.get(f"total_{name}", 0) for name in COUNTED},
        users_asked=min(plan.problem.users, sum(event["asked"] for event in events)),
        users_filtered_simulation_only=sum(filtered) if filtered else None,
        halted=any(event["public"].get("halted", False) for event in events),
        epsilon=plan.guarantee.epsilon if private else None,
        delta=plan.guarantee.delta if private else 0.0,
        adjacency=plan.guarantee.adjacency,
        trust_model=plan.guarantee.trust_model,
        predicted_excess_risk=plan.predicted_excess_risk,
        guessed_excess_risk=plan.guessed_excess_risk,
        forecast=forecasts.forecast_of(plan.problem, plan.predicted_excess_risk),
        afterwards=forecasts.forecast_of(plan.problem, events[-1]["public"].get("left") if events else None),
        **figures,
        remarks_simulation_only=(*remarks, *forecasts.capped(events)),
        simulation_seed=config.run.seed,
        seconds=seconds,
        peak_memory_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * RESIDENT,
        choice=prepared.planned.choice,
        users_held_out=getattr(population, "total_users", plan.problem.users) - plan.problem.users,
        mu=None if worth is None else worth.mu,
        variation=0.0 if worth is None else worth.variation,
    )
    return summary, [flat(event) for event in events]


def _measured(truth: "Synthetic | TablePopulation", model: NDArray[np.float64]) -> dict[str, Any]:
    """Return what a summary says of how good a model is, and what is amiss with it or with the data."""
    return truth.summary_fields(model) | {
        "excess_risk": truth.excess_risk(model),
        "excess_risk_initial": truth.excess_risk(np.zeros_like(model)),
        "test": truth.test_metrics(model),
        "test_without_privacy": truth.test_metrics(truth.optimum),
    }


def _spent(plan: RunPlan, first: float, round_: int) -> dict[str, float]:
    """Return ε that the releases up to a round draw on: a promise counts in full from the first release."""
    if plan.guarantee.trust_model == "none":
        return {}
    return {"epsilon_spent": plan.guarantee.epsilon if round_ >= first else 0.0}
