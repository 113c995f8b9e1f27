"""The public Python interface: plan, simulate, resume, report.

    import quoron

    run = quoron.simulate("quickstart", epsilon=2.0)
    print(run.summary)

Wrong requests and failed runs raise QuoronError, with the thing, its value and the fix.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from quoron import config as configs
from quoron import runs
from quoron.config import Config, Table
from quoron.engines import EngineChoice
from quoron.folder import RunFolder, as_parquet, claim, write
from quoron.planning import Planned
from quoron.presets import preset
from quoron.runs import RunResult
from quoron.summary import from_json
from quoron_protos.errors import ConfigError, DataError
from quoron_server.rounds import Observer

Frame = Any  # a pandas or polars DataFrame, or a pyarrow Table
Source = str | Path | Config | Frame
FRAME = "population.parquet"


def simulate(
    source: Source = "quickstart",
    *,
    epsilon: float | None = None,
    delta: float | None = None,
    algorithm: str | None = None,
    seed: int | None = None,
    out: str | Path | None = None,
    network: str | None = None,
    settings: Sequence[str] = (),
    user: str | None = None,
    label: str | None = None,
    numeric: Mapping[str, tuple[float, float]] | None = None,
    categorical: Mapping[str, Sequence[str | int]] | Sequence[str] | None = None,
    observers: Sequence[Observer] = (),
    engine: str = "inline",
    nodes: int | None = None,
    cpus: int | None = None,
    superlink: str | None = None,
    authority: str | Path | None = None,
    insecure: bool = False,
) -> RunResult:
    """Simulate a private training run and return its model, summary, plan and folder.

    Args:
        source: a preset's name, a path of a TOML file, a `Config`, or a DataFrame with one item a row.
        epsilon, delta, algorithm, seed, out, network: short for the keys privacy.epsilon, privacy.delta,
            algorithm.name, run.seed, run.out and run.network.
        settings: further `dotted.key=value` texts, as with `--set`.
        user, label, numeric, categorical: for a DataFrame, as in the table section of the configuration. Categorical
            columns given without values take those in the data, which thereby become public.
        observers: told of every round.
        engine: "inline" computes in this process, "flower" on Flower's nodes; the bits are the same.
        nodes, cpus: for flower, simulated SuperNodes (50) and processors for them (all).
        superlink, authority, insecure: for flower, use the SuperNodes of the federation at this host:port instead;
            the certificate that signed its own, or True for plaintext.

    Raises:
        QuoronError: with the thing, its value and the fix; see quoron_protos.errors.
    """
    where = EngineChoice.of(engine, nodes=nodes, cpus=cpus, superlink=superlink, authority=authority, insecure=insecure)
    short = short_keys(epsilon=epsilon, delta=delta, algorithm=algorithm, seed=seed, out=out, network=network)
    settings = (*settings, *short)
    if isinstance(source, str | Path | Config):
        if any(given is not None for given in (user, label, numeric, categorical)):
            raise ConfigError(
                "Expected user, label, numeric and categorical with a DataFrame only, got a configuration."
            )
        config, name = _config(source, settings)
        prepared = runs.prepare(config, Path.cwd())
        return where.carry_out(prepared, claim(config, name), Path.cwd(), observers)
    config, table = _framed(source, user, label, numeric, categorical, settings)
    prepared = runs.prepare(config, Path.cwd(), frame=table)
    folder = claim(config, "table")
    if not folder.ledger.exists():
        write(folder.path / FRAME, as_parquet(table))
    return where.carry_out(prepared, folder, folder.path, observers)


def plan(
    source: str | Path | Config = "quickstart",
    *,
    epsilon: float | None = None,
    delta: float | None = None,
    algorithm: str | None = None,
    seed: int | None = None,
    network: str | None = None,
    settings: Sequence[str] = (),
) -> Planned:
    """What a run would promise and cost, fixed before any data is touched; Infeasible if nothing satisfies it."""
    short = short_keys(epsilon=epsilon, delta=delta, algorithm=algorithm, seed=seed, network=network)
    config, _ = _config(source, (*settings, *short))
    return runs.prepare(config, Path.cwd(), compare=True).planned


def resume(
    directory: str | Path,
    observers: Sequence[Observer] = (),
    *,
    engine: str = "inline",
    nodes: int | None = None,
    cpus: int | None = None,
    superlink: str | None = None,
    authority: str | Path | None = None,
    insecure: bool = False,
) -> RunResult:
    """Continue an interrupted run from its last committed round, with identical bits; a complete one is returned.

    Any engine continues what any began; the arguments that choose one are those of `simulate`.
    """
    where = EngineChoice.of(engine, nodes=nodes, cpus=cpus, superlink=superlink, authority=authority, insecure=insecure)
    folder = RunFolder(Path(directory))
    return where.carry_out(runs.prepare(folder.config(), folder.path), folder, folder.path, observers)


def report(directory: str | Path) -> Path:
    """Write report.html of a complete run again, and return its path."""
    from quoron import report_page  # it brings matplotlib

    folder = RunFolder(Path(directory))
    folder.config()
    page = report_page.page(from_json(folder.summary()), folder.rounds(), name=folder.path.resolve().name)
    folder.write_text("report.html", page)
    return folder.path / "report.html"


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
    """`dotted.key=value` texts for the arguments that are not None."""
    keys = {
        "epsilon": "privacy.epsilon",
        "delta": "privacy.delta",
        "algorithm": "algorithm.name",
        "seed": "run.seed",
        "out": "run.out",
        "network": "run.network",
    }
    given = {keys[name]: value for name, value in values.items() if value is not None}
    return tuple(f"{key}={json.dumps(value, default=str)}" for key, value in given.items())


def _framed(
    frame: Frame,
    user: str | None,
    label: str | None,
    numeric: Mapping[str, tuple[float, float]] | None,
    categorical: Mapping[str, Sequence[str | int]] | Sequence[str] | None,
    settings: Sequence[str],
) -> tuple[Config, pa.Table]:
    if user is None or label is None:
        raise ConfigError(f"Expected user and label with a DataFrame, got user={user!r} and label={label!r}.")
    try:
        table = pa.table(frame)
    except (TypeError, ValueError, pa.ArrowInvalid) as error:
        raise DataError(
            f"Expected a preset's name, a path, a Config or a DataFrame, got {type(frame).__name__} ({error})."
        ) from None
    population = {
        "kind": Table.model_fields["kind"].default,
        "path": FRAME,
        "user": user,
        "label": label,
        "numeric": {column: list(ends) for column, ends in (numeric or {}).items()},
        "categorical": {column: list(values) for column, values in _vocabularies(categorical).items()},
    }
    return configs.from_tree(configs.overlay({"population": population}, settings)), table


def _vocabularies(
    categorical: Mapping[str, Sequence[str | int]] | Sequence[str] | None,
) -> Mapping[str, Sequence[str | int]]:
    """Public values of each categorical column; none for those given by name only."""
    return categorical if isinstance(categorical, Mapping) else dict.fromkeys(categorical or (), ())
