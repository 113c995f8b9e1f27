"""`quoron.simulate`, `plan`, `compare` and `resume`: what runs would reach, and whatever a folder holds.

run = quoron.simulate("quickstart", epsilon=2.0)
print(run.summary)
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from quoron.arguments import PlanArguments, SimulationArguments, entry_point
from quoron.config import Config, TableSection, estimates_bounds
from quoron.data.columns import Label
from quoron.engine.choice import Engine, Inline, Ray, Service, from_spec, inline_or_ray, shared
from quoron.planning.plans import Plan, Prepared, RequiredSize, required_size, risk_of
from quoron.reports import terminal as bars
from quoron.reports.summary import Summary
from quoron.results import restored
from quoron.run_folder import RunFolder, claim, claim_for
from quoron.simulation import comparison as comparisons
from quoron.simulation import run as runs
from quoron.simulation.comparison import Comparison, Request
from quoron.simulation.problem import Setup, estimates_rate, problem_for_real, setup
from quoron.simulation.run import SimulatedRun
from quoron.simulation.sources import Frame, Source, described, needed
from quoron.simulation.wildcards import source_of, unread
from quoron_privacy.errors import ConfigError
from quoron_privacy.kernels.on_first_use import OnFirstUse
from quoron_server.algorithms import ALGORITHMS
from quoron_server.rounds import Observer

if TYPE_CHECKING:
    from quoron.training import result as results
    from quoron.training import run as training
    from quoron.training import tuning
    from quoron.training.result import TrainedTable
else:
    training = OnFirstUse("quoron.training.run")
    tuning = OnFirstUse("quoron.training.tuning")
    results = OnFirstUse("quoron.training.result")


@entry_point
def simulate(
    source: Source = "quickstart",
    user: str | None = None,
    label: str | Label | None = None,
    *,
    progress: bool | None = None,
    observers: Sequence[Observer] = (),
    engine: str | Engine = "inline",
    **arguments: Unpack[SimulationArguments],
) -> SimulatedRun:
    """Simulate a private training run and return its model, summary, plan and folder.

    Args:
        source: a preset's name, a path of a TOML file, a `Config`; or a DataFrame with one item a row, or the path of
            such a table, and what its columns are.
        user, label: of the table.
        columns: as of `train`.
        epsilon, delta, adjacency: the guarantee. Without ε it is the source's, else 1: nothing is spent. Two values of
            one thing are refused, but for a source's.
        algorithm, options, items_per_user, out: as of `train`.
        seed: of the noise and of all else that a simulation draws; 0 unless given.
        settings: further keys: texts `dotted.key=value`, as with `--set`, or sections as mappings. "run.evaluate=false"
            measures nothing: no excess risk, no figures on held-out users.
        progress: whether a bar is shown on standard error; by default in terminals and notebooks.
        observers: objects whose methods are called with the plan, with every round and with the model.
        engine: "inline", "ray", "flower" or "service", with keys as in "inline:workers=4", or an engine of
            `quoron.engine`; the bits are the same. `Inline(workers=4)` shares the users between processes,
            `Ray(address=...)` between the nodes of a Ray cluster, `Flower(nodes=..., cpus=...)` between simulated nodes
            of Flower; `Service(clients=200)` starts a coordinator and a client for each user on this machine
            (docs/local.md).

    Raises:
        QuoronError: with the thing, its value and the fix; see quoron_privacy.errors.
    """
    where = from_spec(engine)
    config, name, frame = described(source, user, label, arguments)
    config, remark = with_estimates(config, frame)
    table, config = needed(frame, config)
    if isinstance(where, Service):
        from quoron.federation.client_items import cut

        config, table = cut(config, Path.cwd(), table, where.clients)
    prepared = runs.prepare(config, Path.cwd(), frame=table)
    if remark:
        planned = replace(prepared.planned, remarks=(*prepared.planned.remarks, remark))
        prepared = replace(prepared, planned=planned, remark=remark)
    folder = claim(config, name)
    if table is not None:
        prepared = replace(prepared, digest=runs.fingerprint(prepared.config, folder.path, folder.write_table(table)))
    base = Path.cwd() if table is None else folder.path
    with folder.resumable(), bars.display(progress) as bar:
        return carry_out(where, prepared, folder, base, [bar, *observers])


def carry_out(
    engine: Engine, prepared: Prepared[Setup], folder: RunFolder, base: Path, observers: Sequence[Observer] = ()
) -> SimulatedRun:
    """Carry a simulation out from the last committed round; a table's relative path is relative to `base`."""
    if isinstance(engine, Inline | Ray):
        with shared(prepared, engine) as prepared:
            return runs.carry_out(prepared, folder, observers)
    if isinstance(engine, Service):
        from quoron.federation import engine as local

        return local.simulate(prepared, folder, base, observers, engine)
    from quoron.federation import flower_simulation

    return flower_simulation.simulate(prepared, folder, observers, engine)


@entry_point
def plan(
    source: Source = "quickstart",
    user: str | None = None,
    label: str | Label | None = None,
    *,
    risk: str | float | None = None,
    **arguments: Unpack[PlanArguments],
) -> Plan:
    """Return what a run would promise and cost, fixed before any data is touched.

    Args:
        source, user, label, ...: as of `simulate`. Of a DataFrame users are counted. What `train` would promise for a
            table says `train(..., dry_run=True)`.
        risk: an excess risk, or a share of the start's such as "5%": how many users, or which ε, would do for it is in
            `advice` of the result. Its columns have to be declared.

    Raises:
        Infeasible: if nothing satisfies it; with what would.
    """
    config, _, frame = described(source, user, label, arguments)
    frame = frame.read_all() if hasattr(frame, "read_all") else frame  # a RecordBatchReader can be read only once
    planned = _planned(config, frame)
    return planned if risk is None else replace(planned, advice=_advice(config, frame, str(risk)))


def _advice(config: Config, frame: Frame, risk: str) -> RequiredSize:
    """Return what would do for a risk, as `plan` says."""
    if estimates_bounds(config):
        raise ConfigError(f"Expected declared columns to ask what would do for risk={risk!r}, got none. Declare them.")
    table, config = needed(frame, config)
    problem = problem_for_real(config, setup(config, Path.cwd(), table).population)
    return required_size(config, problem, risk_of(risk, problem))


def _planned(config: Config, frame: Frame) -> Plan:
    """Return the plan of a simulation, and what other algorithms would do."""
    if _estimates(config) and (forecast := training.forecast(config, Path.cwd(), frame)) is not None:
        return forecast
    found, narrowed = needed(frame, config)
    planned = runs.prepare(narrowed, Path.cwd(), frame=found, compare=True).planned
    table = config.population
    left = unread(table, source_of(table, Path.cwd(), frame).names) if isinstance(table, TableSection) else ()
    return replace(planned, remarks=(*planned.remarks, *left))


def with_estimates(config: Config, frame: Any) -> tuple[Config, str]:
    """Return a configuration with private bounds, with noise of the simulation's seed, and a remark."""
    return training.simulated(config, Path.cwd(), frame) if _estimates(config) else (config, "")


def _estimates(config: Config) -> bool:
    """Return whether a simulation estimates something first, as a real run does."""
    return estimates_bounds(config) or estimates_rate(config)


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
        algorithms: names, `auto` among them; default: all that promise privacy. Infeasible ones have a reason.
        vary: dotted keys, each with the values to try, such as `{"privacy.epsilon": [1, 4]}`; all combinations.
        seeds: runs of each, with seeds from run.seed on; confidence intervals need two or more.
        out: the comparison's folder; default: runs/NAME-compare-1 or the next that is free. What is complete in
            it is not carried out again, so an interrupted comparison goes on, and one may be extended.
        progress: whether bars are shown on standard error; by default in terminals and notebooks.
        engine: `Inline(workers=...)` of `quoron.engine`: runs at once, in processes that hold the users in memory, by
            default one a processor.

    `Comparison.to_pandas()` is a pandas DataFrame of one row a cell (an algorithm under a setting).

    Raises:
        QuoronError: with the thing, its value and the fix; RunError if a worker dies.
    """
    chosen = _inline(engine)
    config, name, frame = described(source, user, label, arguments)
    config, _ = with_estimates(config, frame)
    table, config = needed(frame, config)
    request = Request.of(config, algorithms=algorithms, vary=vary, seeds=seeds)
    folder = claim_for(out, f"{name}-compare", comparisons.is_comparison, "a comparison").path
    if table is not None:
        RunFolder(folder).write_table(table)
    return carried_out(request, folder, chosen, progress)


def _inline(engine: str | Engine) -> Inline:
    chosen = from_spec(engine)
    if not isinstance(chosen, Inline):
        raise ConfigError(f"Expected the engine inline for a comparison, got {type(chosen).__name__}. Leave it out.")
    return chosen


def carried_out(request: Request, folder: Path, engine: Inline, progress: bool | None) -> Comparison:
    """Carry out the runs of a comparison that are not complete in its folder, and return it."""
    with RunFolder(folder).resumable(), bars.display(progress) as watcher:
        return comparisons.carry_out(request, folder, watcher=watcher, engine=engine)


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

    Of a comparison the runs that are not complete are carried out, in processes of their own. `progress` is as of
    `simulate`.

    Any engine continues what any began, a simulation that is: a run of `train` is carried out here. One on a DataFrame
    goes on with the same call of `train`, as its table is stored nowhere.
    """
    where = from_spec(engine)
    if isinstance(where, Service) and where.clients is not None:
        raise ConfigError(f"Expected no clients to resume a run, got clients={where.clients}. Leave them out.")
    if comparisons.is_comparison(Path(directory)):
        request = comparisons.stored_request(Path(directory))
        return carried_out(request, Path(directory), _inline(where), progress)
    folder = RunFolder(Path(directory))
    with folder.resumable(), bars.display(progress) as shown:
        if folder.is_search:
            return tuning.resume(folder)
        if folder.is_training:
            return training.resume(folder, [*observers, shown], engine=inline_or_ray(where))
        prepared = runs.prepare(folder.config(), folder.path)
        return carry_out(where, prepared, folder, folder.path, [shown, *observers])


def stored(directory: str | Path) -> "Summary | TrainedTable | Comparison":
    """Return what the folder of a complete run, or comparison, holds. RunError before it is complete."""
    if comparisons.is_comparison(Path(directory)):
        return comparisons.stored(Path(directory))
    folder = RunFolder(Path(directory))
    folder.config()
    if folder.is_search:
        return tuning.stored(folder)
    return results.stored(folder) if folder.is_training else restored(Summary, folder.summary())


def algorithms() -> list[dict[str, Any]]:
    """Return a mapping for each algorithm: its name, what it does, its paper, what it protects and its theorem.

    >>> [row["name"] for row in algorithms() if "local" in row["trust_models"]]
    ['local-model']
    """
    same = ("name", "summary", "paper", "trust_model")
    rows: list[dict[str, Any]] = []
    for info in ALGORITHMS.values():
        own = info.guarantees
        offered: dict[str, Any] = {"trust_models": info.trust_models, "one_server": own.one_server}
        offered |= {"adjacency": own.adjacency, "constants": info.constants, "theorem": own.theorem}
        offered |= {"relation": info.origin.relation, "from": str(info.origin), "changed": info.origin.note}
        rows.append({key: getattr(info, key) for key in same} | offered)
    return rows
