"""The public Python interface: train, tune, plan, ask, simulate, compare, resume, report.

    import quoron

    run = quoron.train(visits, user="patient", label="ill", numeric={"age": (0, 100)}, epsilon=2.0)
    run.model.predict(new_visits)

    run = quoron.simulate("quickstart", epsilon=2.0)
    print(run.summary)

Wrong requests and failed runs raise QuoronError, with the thing, its value and the fix.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from quoron import engines
from quoron.config import Config, is_wanted
from quoron.engines import EngineChoice, comparison_sharing, training_sharing
from quoron.planning.plans import Planned
from quoron.reports.summary import from_json
from quoron.run_folder import FRAME, MODEL, RunFolder, as_parquet, claim, write
from quoron.sections import Keep, Method, Privacy, door, sections
from quoron.simulation import run as runs
from quoron.simulation.first_use import rounds_compiled_meanwhile
from quoron.simulation.patterns import unread_of
from quoron.simulation.run import RunResult
from quoron.sources import Settings, Source, described, needed
from quoron.table_columns import TableColumns
from quoron_privacy.errors import ConfigError
from quoron_privacy.kernels.on_first_use import OnFirstUse
from quoron_server.rounds import Observer

if TYPE_CHECKING:  # planning needs no table, and no database
    from quoron import model as models
    from quoron.comparing import comparison as comparisons
    from quoron.comparing import request as requests
    from quoron.comparing.comparison import Comparison
    from quoron.model import Model
    from quoron.planning import questions
    from quoron.planning.questions import Advice
    from quoron.reports import progress as bars
    from quoron.simulation import asking
    from quoron.training import run as training
    from quoron.training.result import TrainedTable
    from quoron.tuning import run as tuning
else:
    comparisons = OnFirstUse("quoron.comparing.comparison")
    models = OnFirstUse("quoron.model")
    requests = OnFirstUse("quoron.comparing.request")
    bars = OnFirstUse("quoron.reports.progress")
    questions = OnFirstUse("quoron.planning.questions")
    asking = OnFirstUse("quoron.simulation.asking")
    training = OnFirstUse("quoron.training.run")
    tuning = OnFirstUse("quoron.tuning.run")

_SECRET = ("simulation_seed", "seed")  # what a run for real draws by itself


@door
def train(
    source: Source,
    *,
    epsilon: float | None = None,
    evaluate: float | None = None,
    privacy: Privacy | None = None,
    method: Method | None = None,
    keep: Keep | None = None,
    settings: Settings = (),
    observers: Sequence[Observer] = (),
    progress: bool | None = None,
    engine: str | EngineChoice = "inline",
    **columns: Unpack[TableColumns],
) -> "TrainedTable":
    """Train for real on a table that you hold: secret noise, every user, one model that may be shown to anybody.

    Args:
        source: a DataFrame with one item a row, or the path of such a table; or a TOML file's path, a preset's name, a
            `Config`, which describe one.
        columns: of the table. What of them is not declared is bought within the promise (docs/train.md).
        epsilon: short for `privacy=Privacy(epsilon)`.
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
    sharing = training_sharing(_engine(engine))
    said = sections(privacy, method, keep, door="train", without=_SECRET, epsilon=epsilon, evaluate=evaluate)
    config, name, frame = described(source, columns, settings, said)
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
    said = sections(privacy, method, keep, door="plan_training", without=_SECRET, epsilon=epsilon, evaluate=evaluate)
    config, name, frame = described(source, columns, settings, said)
    prepared = training.prepare(config, Path.cwd(), name=name, frame=frame)
    planned = prepared.planned.beside(prepared.config) if compare else prepared.planned
    return replace(planned, remarks=(*planned.remarks, *prepared.scene.warnings))


@door
def simulate(
    source: Source = "quickstart",
    *,
    epsilon: float | None = None,
    simulation_seed: int | None = None,
    privacy: Privacy | None = None,
    method: Method | None = None,
    keep: Keep | None = None,
    settings: Settings = (),
    observers: Sequence[Observer] = (),
    engine: str | EngineChoice = "inline",
    **columns: Unpack[TableColumns],
) -> RunResult:
    """Simulate a private training run and return its model, summary, plan and folder.

    Args:
        source: a preset's name, a path of a TOML file, a `Config`; or a DataFrame with one item a row, or the path of
            such a table, and what its columns are.
        columns: of the table; categorical columns given without values take those in the data, which become public.
        epsilon, simulation_seed: short for those of `privacy`; the second is the seed of noise (run.simulation_seed).
        privacy, method, keep: the promise, the algorithm (its `seed` is that of slots), and the run's folder.
        settings: further keys: texts `dotted.key=value`, as with `--set`, or sections as mappings.
        observers: told of every round.
        engine: "inline" computes in this process, "flower" on 50 simulated nodes of Flower; the bits are the same.
            `EngineChoice.of("flower", nodes=..., cpus=...)` has other nodes, `superlink=` those of a federation;
            `EngineChoice.of(workers=4)` shares the users between processes, `EngineChoice.of("ray", address=...)`
            between the nodes of a Ray cluster; `EngineChoice.of("service", clients=200)` starts a coordinator and a
            client for each user on this machine (docs/local.md).

    Raises:
        QuoronError: with the thing, its value and the fix; see quoron_privacy.errors.
    """
    where = _engine(engine)
    said = sections(privacy, method, keep, door="simulate", epsilon=epsilon, simulation_seed=simulation_seed)
    config, name, frame = described(source, columns, settings, said)
    config, remark = _with_bought(config, frame)
    table, config = needed(frame, config)
    config, table = where.people(config, table)
    with rounds_compiled_meanwhile():
        prepared = runs.prepare(config, Path.cwd(), frame=table)
    if remark:
        planned = replace(prepared.planned, remarks=(*prepared.planned.remarks, remark))
        prepared = replace(prepared, planned=planned, remark=remark)
    folder = claim(config, name)
    if table is not None and not folder.ledger.exists():
        write(folder.path / FRAME, as_parquet(table))
    with folder.resumable():
        return engines.carry_out(where, prepared, folder, Path.cwd() if table is None else folder.path, observers)


@door
def compare(
    source: Source = "quickstart",
    *,
    algorithms: Sequence[str] | None = None,
    vary: Mapping[str, Sequence[Any]] | None = None,
    seeds: int = 5,
    evaluate: float | None = None,
    privacy: Privacy | None = None,
    keep: Keep | None = None,
    settings: Settings = (),
    progress: bool | None = None,
    engine: str | EngineChoice = "inline",
    **columns: Unpack[TableColumns],
) -> "Comparison":
    """Simulate several algorithms, and settings, on the same users with the same budget and seeds, and compare them.

    Args:
        source, privacy, settings, columns: as of `simulate`.
        algorithms: names, `auto` among them; default: all that promise privacy. Infeasible ones are told with why.
        vary: dotted keys, each with the values to try, such as `{"privacy.epsilon": [1, 4]}`; all combinations.
        seeds: runs of each, with seeds from run.simulation_seed and run.seed on; confidence intervals need two or more.
        evaluate: share of a table's users, of those that a simulation holds out, that tell how good each method's model
            is, privately: the same users whatever the method (docs/evaluation.md).
        keep: `out`: the comparison's folder; default: runs/NAME-compare-1 or the next that is free. What is complete in
            it is not carried out again, so an interrupted comparison goes on, and one may be extended.
        progress: whether bars are shown on standard error; by default if that is a terminal.
        engine: `EngineChoice.of(workers=...)`: runs at once, each in a process that holds the users in memory, one a
            processor unless told. `EngineChoice.of("ray", workers=..., address=...)` carries out one run at a time on a
            Ray cluster instead, its users shared between so many workers; the bits are the same.

    `Comparison.frame()` is a pandas DataFrame of one row a cell (an algorithm under a setting).

    Raises:
        QuoronError: with the thing, its value and the fix; RunError if a worker dies.
    """
    out = None if keep is None else keep.out
    said = sections(privacy, keep, door="compare", evaluate=evaluate)
    said.pop("run", None)  # of one run; the folder is the comparison's
    config, name, frame = described(source, columns, settings, said)
    _check_declared(config, "compare")
    table, config = needed(frame, config)
    request = requests.Request.of(config, algorithms=algorithms, vary=vary, seeds=seeds)
    where = _engine(engine)
    comparison_sharing(where)
    folder = comparisons.claim(out, name)
    if table is not None:
        write(folder / FRAME, as_parquet(table))
    return _compared(request, folder, where, progress)


def _compared(request: "requests.Request", folder: Path, engine: EngineChoice, progress: bool | None) -> "Comparison":
    quiet = not (sys.stderr.isatty() if progress is None else progress)
    with RunFolder(folder).resumable(), bars.runs_display(quiet=quiet) as watcher:
        sharing = comparison_sharing(engine)
        return comparisons.carry_out(request, folder, watcher=watcher, workers=engine.workers, sharing=sharing)


@door
def plan(
    source: Source = "quickstart",
    *,
    epsilon: float | None = None,
    privacy: Privacy | None = None,
    method: Method | None = None,
    settings: Settings = (),
    **columns: Unpack[TableColumns],
) -> Planned:
    """What a run would promise and cost, fixed before any data is touched; Infeasible if nothing satisfies it.

    Arguments are those of `simulate`. Of a DataFrame users are counted, and columns given without values are read.
    """
    said = sections(privacy, method, door="plan", epsilon=epsilon)
    config, _, frame = described(source, columns, settings, said)
    if is_wanted(config, simulated=True):
        return training.forecast(config, Path.cwd(), frame)
    table, narrowed = needed(frame, config)
    planned = runs.prepare(narrowed, Path.cwd(), frame=table, compare=True).planned
    return replace(planned, remarks=(*planned.remarks, *unread_of(config, Path.cwd(), frame)))


@door
def ask(
    source: Source = "quickstart",
    *,
    risk: str | float | None = None,
    accuracy: float | None = None,
    epsilons: bool = False,
    epsilon: float | None = None,
    privacy: Privacy | None = None,
    method: Method | None = None,
    settings: Settings = (),
    **columns: Unpack[TableColumns],
) -> "Advice":
    """How many users, or which ε, would do for a risk or an accuracy, and what does each ε buy?

    Args:
        source, epsilon, privacy, method, settings, columns: as of `simulate`.
        risk: predicted excess risk, or a share of the bound on the start's such as "5%".
        accuracy: instead of a risk, in [0, 1]; what it is in risk is found on the data, so it is for simulations only.
        epsilons: whether to plan for several ε, from an eighth of the given one to eight times as much.
    """
    said = sections(privacy, method, door="ask", epsilon=epsilon)
    config, _, frame = described(source, columns, settings, said)
    if risk is None and accuracy is None and not epsilons:
        return questions.Advice()
    _check_declared(config, "questions of how many users and which ε")
    table, config = needed(frame, config)
    return asking.ask(config, Path.cwd(), frame=table, risk=risk, accuracy=accuracy, epsilons=epsilons)


@door
def resume(
    directory: str | Path,
    observers: Sequence[Observer] = (),
    *,
    progress: bool | None = None,
    engine: str | EngineChoice = "inline",
) -> "RunResult | TrainedTable | Comparison":
    """Continue an interrupted run from its last committed round; a complete one is returned.

    A simulation goes on to identical bits; a run of `train` to the same promise, with noise of this start.

    Of a comparison the runs that are not complete are carried out, in processes of their own; `progress` says whether
    bars are shown of them on standard error.

    Any engine continues what any began, a simulation that is: a run of `train` is carried out here. One on a DataFrame
    goes on with the same call of `train`, as its table is stored nowhere.
    """
    where = _engine(engine)
    if where.clients is not None or where.keep:
        raise ConfigError("Expected neither clients nor keep to resume a run, got some. Leave them out.")
    if comparisons.is_comparison(Path(directory)):
        return _compared(comparisons.stored_request(Path(directory)), Path(directory), where, progress)
    folder = RunFolder(Path(directory))
    with folder.resumable():
        if folder.is_search:
            return tuning.resume(folder)
        if folder.is_training:
            return training.resume(folder, observers, sharing=training_sharing(where))
        prepared = runs.prepare(folder.config(), folder.path)
        return engines.carry_out(where, prepared, folder, folder.path, observers)


@door
def report(directory: str | Path) -> Path:
    """Write report.html of a complete run, or comparison, again, and return its path."""
    if comparisons.is_comparison(Path(directory)):
        comparisons.write_results(comparisons.stored(Path(directory)))
        return Path(directory) / "report.html"
    folder = RunFolder(Path(directory))
    folder.config()
    if folder.is_training or folder.is_search:
        return training.report(folder)
    model = load(folder.path) if (folder.path / MODEL).is_file() else None
    return runs.write_report(folder, from_json(folder.summary()), model, folder.rounds())


@door
def load(path: str | Path) -> "Model":
    """The model in a file, or in the folder of a run that has released one. DataError for anything else."""
    given = Path(path)
    return models.Model.load(given / MODEL if given.is_dir() else given)


def _with_bought(config: Config, frame: Any) -> tuple[Config, str]:
    """A configuration in which what nobody declared is bought with noise from the simulation's seed; and a remark."""
    if not is_wanted(config, simulated=True):
        return config, ""
    return training.simulated(config, Path.cwd(), frame)


def _check_declared(config: Config, door: str) -> None:
    """ConfigError for a table of which something is to be bought: by what would be left, and of what, nobody knows."""
    if is_wanted(config, simulated=True):
        raise ConfigError(
            f"Expected a table whose features are declared for {door}, got one of which some are to be bought. Declare "
            "them (numeric, categorical, hashed, dates), or take declared.toml of a run of quoron train; simulate and "
            "plan buy."
        )


def _engine(engine: str | EngineChoice) -> EngineChoice:
    return EngineChoice.of(engine) if isinstance(engine, str) else engine
