"""The public Python interface: train, plan, ask, simulate, compare, resume, report.

    import quoron

    run = quoron.train(visits, user="patient", label="ill", numeric={"age": (0, 100)}, epsilon=2.0)
    run.model.predict(new_visits)

    run = quoron.simulate("quickstart", epsilon=2.0)
    print(run.summary)

Wrong requests and failed runs raise QuoronError, with the thing, its value and the fix.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack

from quoron import config as configs
from quoron.config import Config
from quoron.engines import EngineChoice, comparison_sharing, training_sharing
from quoron.frames import Frame, framed, needed
from quoron.planning.plans import Planned
from quoron.planning.questions import Answers
from quoron.presets import preset
from quoron.reports.summary import from_json
from quoron.run_folder import FRAME, RunFolder, as_parquet, claim, write
from quoron.simulation import run as runs
from quoron.simulation.run import RunResult
from quoron_privacy.errors import ConfigError
from quoron_server.rounds import Observer

if TYPE_CHECKING:  # planning needs no table, and no database
    from quoron.comparing.comparison import Comparison
    from quoron.comparing.request import Request
    from quoron.model import Model
    from quoron.training.result import Trained

Source = str | Path | Config | Frame


class TableColumns(TypedDict, total=False):
    """How the rows of a DataFrame become items: the keys of the table section, docs/config-reference.md."""

    user: str  # column that says whose item a row is; needed
    label: str  # column, or a comparison such as "delay > 15"; needed but for the linear loss
    numeric: Mapping[str, tuple[float, float]]  # public range of each numeric column
    categorical: Mapping[str, Sequence[str | int]] | Sequence[str]  # public values of each categorical column
    positive: str | int | bool  # the label's value that counts as positive
    classes: Sequence[str | int]  # public values of the label
    label_range: tuple[float, float]  # public range of a label that is a number
    weight: Mapping[str, str | float]  # what a row counts: {"column": ..., "most": ...}
    missing: Literal["drop", "middle"]  # what becomes of a row where a number is missing
    intercept: bool  # whether there is a constant
    unit_rows: bool  # whether rows are divided by their own length


def train(
    source: Source,
    *,
    epsilon: float | None = None,
    delta: float | None = None,
    algorithm: str | None = None,
    items_per_user: int | None = None,
    population: str | None = None,
    ledger: str | Path | None = None,
    health: float | None = None,
    allow_large_delta: bool | None = None,
    out: str | Path | None = None,
    settings: Sequence[str] = (),
    observers: Sequence[Observer] = (),
    progress: bool | None = None,
    engine: str | EngineChoice = "inline",
    **columns: Unpack[TableColumns],
) -> "Trained":
    """Train for real on a table that you hold: secret noise, every user, one model that may be shown to anybody.

    Args:
        source: a TOML file's path, a `Config`, or a DataFrame with one item a row.
        epsilon, delta, algorithm, items_per_user, out: short for the keys privacy.epsilon, privacy.delta,
            algorithm.name, problem.items_per_user and run.out. Undeclared, a user's items are planned as 1.
        population, ledger: whose lifetime account is charged (train.population), and the file that keeps it.
        health: share of μ² for a look at how well the table fits its declarations (train.health), by default from 0.005
            to 0.05; 0: nobody looks. What it says is in `Trained.health` and in the summary's warnings.
        allow_large_delta: accept a δ above 1/n (privacy.allow_large_delta).
        settings: further `dotted.key=value` texts, as with `--set`.
        observers: told of every round, in public figures.
        progress: whether a bar is shown on standard error; by default if that is a terminal.
        engine: as of `simulate`, but for "flower".
        columns: for a DataFrame, how its rows become items, see `TableColumns`. Nothing of them is taken from the data.

    The plan reads nothing from the table but the number of users. The run is charged to the population's ledger before
    any value is looked at. Interrupted, it goes on with the same call and `out`, or `quoron resume`, for that charge:
    what is committed stands, what was under way is drawn anew.

    Raises:
        QuoronError: with the thing, its value and the fix; BudgetExceeded beyond the population's limit.
    """
    from quoron.reports.progress import display
    from quoron.training import run as training

    short = short_keys(
        epsilon=epsilon,
        delta=delta,
        algorithm=algorithm,
        out=out,
        items_per_user=items_per_user,
        population=population,
        ledger=ledger,
        health=health,
        allow_large_delta=allow_large_delta,
    )
    sharing = training_sharing(EngineChoice.of(engine) if isinstance(engine, str) else engine)
    config, name, frame = _described(source, columns, (*settings, *short))
    folder = None if config.run.out is None else RunFolder(Path(config.run.out))
    with display(quiet=not (sys.stderr.isatty() if progress is None else progress)) as shown:
        prepared = training.prepare(config, Path.cwd(), name=name, folder=folder, frame=frame)
        return training.carry_out(prepared, claim(config, name), (*observers, shown), sharing=sharing)


def simulate(
    source: Source = "quickstart",
    *,
    epsilon: float | None = None,
    delta: float | None = None,
    algorithm: str | None = None,
    seed: int | None = None,
    simulation_seed: int | None = None,
    items_per_user: int | None = None,
    network: str | None = None,
    out: str | Path | None = None,
    settings: Sequence[str] = (),
    observers: Sequence[Observer] = (),
    engine: str | EngineChoice = "inline",
    **columns: Unpack[TableColumns],
) -> RunResult:
    """Simulate a private training run and return its model, summary, plan and folder.

    Args:
        source: a preset's name, a path of a TOML file, a `Config`, or a DataFrame with one item a row.
        epsilon, delta, algorithm, seed, simulation_seed, items_per_user, network, out: short for the keys
            privacy.epsilon, privacy.delta, algorithm.name, run.seed (of slots), run.simulation_seed (of noise),
            problem.items_per_user, run.network and run.out.
        settings: further `dotted.key=value` texts, as with `--set`.
        observers: told of every round.
        engine: "inline" computes in this process, "flower" on 50 simulated nodes of Flower; the bits are the same.
            `EngineChoice.of("flower", nodes=..., cpus=...)` has other nodes, `superlink=` those of a federation;
            `EngineChoice.of(workers=4)` shares the users between processes, `EngineChoice.of("ray", address=...)`
            between the nodes of a Ray cluster.
        columns: for a DataFrame, how its rows become items, see `TableColumns`. Categorical columns given without
            values take those in the data, which thereby become public.

    Raises:
        QuoronError: with the thing, its value and the fix; see quoron_privacy.errors.
    """
    where = EngineChoice.of(engine) if isinstance(engine, str) else engine
    short = short_keys(
        epsilon=epsilon,
        delta=delta,
        algorithm=algorithm,
        seed=seed,
        simulation_seed=simulation_seed,
        out=out,
        network=network,
        items_per_user=items_per_user,
    )
    config, name, frame = _described(source, columns, (*settings, *short))
    table = None if frame is None else needed(frame, config)
    prepared = runs.prepare(config, Path.cwd(), frame=table)
    folder = claim(config, name)
    if table is None:
        return where.carry_out(prepared, folder, Path.cwd(), observers)
    if not folder.ledger.exists():
        write(folder.path / FRAME, as_parquet(table))
    return where.carry_out(prepared, folder, folder.path, observers)


def compare(
    source: Source = "quickstart",
    *,
    algorithms: Sequence[str] | None = None,
    vary: Mapping[str, Sequence[Any]] | None = None,
    seeds: int = 5,
    workers: int | None = None,
    engine: str | EngineChoice = "inline",
    epsilon: float | None = None,
    delta: float | None = None,
    seed: int | None = None,
    simulation_seed: int | None = None,
    items_per_user: int | None = None,
    network: str | None = None,
    out: str | Path | None = None,
    settings: Sequence[str] = (),
    progress: bool | None = None,
    **columns: Unpack[TableColumns],
) -> "Comparison":
    """Simulate several algorithms, and settings, on the same users with the same budget and seeds, and compare them.

    Args:
        source: a preset's name, a path of a TOML file, a `Config`, or a DataFrame with one item a row.
        algorithms: names, `auto` among them; default: all that promise privacy. Infeasible ones are told with why.
        vary: dotted keys, each with the values to try, such as `{"privacy.epsilon": [1, 4]}`; all combinations.
        seeds: runs of each, with seeds from run.simulation_seed and run.seed on; confidence intervals need two or more.
        workers: runs at once, each in a process that holds the users in memory; default: one a processor.
        engine: `EngineChoice.of("ray", workers=..., address=...)` carries out one run at a time on a Ray cluster
            instead, its users shared between so many workers; the bits are the same.
        epsilon, delta, seed, simulation_seed, items_per_user, network: as of `simulate`.
        out: the comparison's folder; default: runs/NAME-compare-1 or the next that is free. What is complete in it is
            not carried out again, so an interrupted comparison goes on, and one may be extended.
        settings: further `dotted.key=value` texts, as with `--set`.
        progress: whether bars are shown on standard error; by default if that is a terminal.
        columns: for a DataFrame, as of `simulate`.

    `Comparison.frame()` is a pandas DataFrame of one row a cell (an algorithm under a setting).

    Raises:
        QuoronError: with the thing, its value and the fix; RunError if a worker dies.
    """
    from quoron.comparing import comparison as comparisons
    from quoron.comparing.request import Request

    short = short_keys(
        epsilon=epsilon,
        delta=delta,
        seed=seed,
        simulation_seed=simulation_seed,
        network=network,
        items_per_user=items_per_user,
    )
    config, name, frame = _described(source, columns, (*settings, *short))
    table = None if frame is None else as_parquet(needed(frame, config))
    request = Request.of(config, algorithms=algorithms, vary=vary, seeds=seeds)
    where = EngineChoice.of(engine, workers=workers) if isinstance(engine, str) else engine
    comparison_sharing(where)
    folder = comparisons.claim(out, name)
    if table is not None:
        write(folder / FRAME, table)
    quiet = not (sys.stderr.isatty() if progress is None else progress)
    return _compared(request, folder, where, workers=workers, quiet=quiet)


def _compared(
    request: "Request", folder: Path, engine: EngineChoice, *, workers: int | None = None, quiet: bool
) -> "Comparison":
    from quoron.comparing import comparison as comparisons
    from quoron.reports.progress import runs_display

    with runs_display(quiet=quiet) as watcher:
        sharing = comparison_sharing(engine)
        return comparisons.carry_out(
            request, folder, watcher=watcher, workers=engine.workers or workers, sharing=sharing
        )


def plan(
    source: Source = "quickstart",
    *,
    epsilon: float | None = None,
    delta: float | None = None,
    algorithm: str | None = None,
    seed: int | None = None,
    items_per_user: int | None = None,
    network: str | None = None,
    settings: Sequence[str] = (),
    **columns: Unpack[TableColumns],
) -> Planned:
    """What a run would promise and cost, fixed before any data is touched; Infeasible if nothing satisfies it.

    Arguments are those of `simulate`. Of a DataFrame users are counted, and columns given without values are read.
    """
    short = short_keys(
        epsilon=epsilon, delta=delta, algorithm=algorithm, seed=seed, network=network, items_per_user=items_per_user
    )
    config, _, frame = _described(source, columns, (*settings, *short))
    table = None if frame is None else needed(frame, config)
    return runs.prepare(config, Path.cwd(), frame=table, compare=True).planned


def ask(
    source: Source = "quickstart",
    *,
    risk: str | float | None = None,
    accuracy: float | None = None,
    epsilons: bool = False,
    epsilon: float | None = None,
    delta: float | None = None,
    algorithm: str | None = None,
    items_per_user: int | None = None,
    settings: Sequence[str] = (),
    **columns: Unpack[TableColumns],
) -> Answers:
    """How many users, or which ε, would do for a risk or an accuracy, and what does each ε buy?

    Args:
        source, epsilon, delta, algorithm, items_per_user, settings, columns: as of `simulate`.
        risk: predicted excess risk, or a share of the bound on the start's such as "5%".
        accuracy: instead of a risk, in [0, 1]; what it is in risk is found on the data, so it is for simulations only.
        epsilons: whether to plan for several ε, from an eighth of the given one to eight times as much.
    """
    from quoron.simulation import asking

    short = short_keys(epsilon=epsilon, delta=delta, algorithm=algorithm, items_per_user=items_per_user)
    config, _, frame = _described(source, columns, (*settings, *short))
    table = None if frame is None else needed(frame, config)
    return asking.ask(config, Path.cwd(), frame=table, risk=risk, accuracy=accuracy, epsilons=epsilons)


def resume(
    directory: str | Path, observers: Sequence[Observer] = (), *, engine: str | EngineChoice = "inline"
) -> "RunResult | Trained | Comparison":
    """Continue an interrupted run from its last committed round; a complete one is returned.

    A simulation goes on to identical bits; a run of `train` to the same promise, with noise of this start.

    Of a comparison the runs that are not complete are carried out, in processes of their own.

    Any engine continues what any began, a simulation that is: a run of `train` is carried out here. One on a DataFrame
    goes on with the same call of `train`, as its table is stored nowhere.
    """
    from quoron.comparing import comparison as comparisons

    if comparisons.is_comparison(Path(directory)):
        request = comparisons.stored_request(Path(directory))
        where = EngineChoice.of(engine) if isinstance(engine, str) else engine
        return _compared(request, Path(directory), where, quiet=not sys.stderr.isatty())
    where = EngineChoice.of(engine) if isinstance(engine, str) else engine
    folder = RunFolder(Path(directory))
    if folder.is_training:
        from quoron.training import run as training

        return training.resume(folder, observers, sharing=training_sharing(where))
    return where.carry_out(runs.prepare(folder.config(), folder.path), folder, folder.path, observers)


def report(directory: str | Path) -> Path:
    """Write report.html of a complete run, or comparison, again, and return its path."""
    from quoron.comparing import comparison as comparisons
    from quoron.reports import page as report_page

    if comparisons.is_comparison(Path(directory)):
        comparisons.write_results(comparisons.stored(Path(directory)))
        return Path(directory) / "report.html"
    folder = RunFolder(Path(directory))
    folder.config()
    if folder.is_training:
        from quoron.training import run as training

        return training.report(folder)
    stored = folder.path / "model.json"
    tables = [("Coefficients", load(stored).table())] if stored.is_file() else []
    name = folder.path.resolve().name
    summary = from_json(folder.summary())
    remarks = summary.remarks_simulation_only
    page = report_page.page(summary, folder.rounds(), name=name, tables=tables, remarks=remarks)
    folder.write_text("report.html", page)
    return folder.path / "report.html"


def load(path: str | Path) -> "Model":
    """The model in a file, or in the folder of a run that has released one. DataError for anything else."""
    from quoron.model import Model
    from quoron.training.result import MODEL

    given = Path(path)
    return Model.load(given / MODEL if given.is_dir() else given)


def resolve(source: str | Path, settings: Sequence[str] = ()) -> tuple[Config, str]:
    """The configuration of a preset's name or a TOML file's path, and a name for its runs."""
    path = Path(source)
    if path.suffix == ".toml":
        return configs.load(path, settings), path.stem
    chosen = preset(str(source))
    config = configs.parse(chosen.text, f"preset {chosen.name}", settings)
    return configs.located(config, Path.cwd()), chosen.name


def _config(source: str | Path | Config, settings: Sequence[str]) -> tuple[Config, str]:
    if isinstance(source, Config):
        tree = configs.overlay(source.model_dump(mode="json", exclude_none=True), settings)
        return configs.located(configs.from_tree(tree), Path.cwd()), "run"
    return resolve(source, settings)


def short_keys(**values: Any) -> tuple[str, ...]:
    """`dotted.key=value` texts for the arguments that are not None; a ledger's path is relative to where we are."""
    if values.get("ledger") is not None:
        values["ledger"] = Path(values["ledger"]).expanduser().resolve()
    keys = {
        "epsilon": "privacy.epsilon",
        "delta": "privacy.delta",
        "algorithm": "algorithm.name",
        "seed": "run.seed",
        "simulation_seed": "run.simulation_seed",
        "out": "run.out",
        "network": "run.network",
        "items_per_user": "problem.items_per_user",
        "population": "train.population",
        "ledger": "train.ledger",
        "health": "train.health",
        "allow_large_delta": "privacy.allow_large_delta",
    }
    given = {keys[name]: value for name, value in values.items() if value is not None}
    return tuple(f"{key}={json.dumps(value, default=str)}" for key, value in given.items())


def _described(source: Source, columns: Mapping[str, Any], settings: Sequence[str]) -> tuple[Config, str, Frame | None]:
    """Configuration, name and DataFrame of a source; `columns` describe a DataFrame, and only that."""
    if not isinstance(source, str | Path | Config):
        return framed(columns, settings), "table", source
    if any(given is not None for given in columns.values()):
        raise ConfigError(f"Expected {', '.join(columns)} with a DataFrame only, got a configuration.")
    return *_config(source, settings), None
