"""The command line. Results go to standard output, progress and errors to standard error.

Exit codes: 0 done, 1 the run failed, 2 the request is wrong, 130 interrupted (and resumable).
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import click
import typer
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from quoron import api, cli_federation, cli_ledger, curve_plot, runs
from quoron.cli_connection import shared_options
from quoron.cli_health import health
from quoron.engines import EngineChoice
from quoron.folder import RunFolder, claim, dumps, write
from quoron.planning import Candidate, Planned
from quoron.presets import presets
from quoron.progress import Display, display
from quoron.runs import Prepared, RunResult
from quoron.summary import size, time_rows
from quoron_protos.errors import ConfigError, Infeasible, QuoronError
from quoron_server.algorithms import ALGORITHMS, AlgorithmInfo

INTERRUPTED = 130

app = typer.Typer(
    help="User-level private federated optimisation, simulated on one machine.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Source = Annotated[str, typer.Argument(metavar="[PRESET|CONFIG.TOML]", help="A preset's name or a TOML file.")]
Run = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")]
Seed = Annotated[int | None, typer.Option(help="Seed of slots and simulated noise; short for run.seed.")]
Out = Annotated[Path | None, typer.Option(help="Run folder; short for run.out.")]
Settings = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Any key, such as privacy.epsilon=2.")
]
Json = Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")]
Picture = Annotated[
    Path | None, typer.Option("--plot", metavar="FILE.svg", help="Write predicted risk against rounds as a picture.")
]
Link = Annotated[
    str | None,
    typer.Option(
        "--network",
        metavar="rtt=80ms,up=1Mbps,...",
        help="Project wall-clock over such a network, and drop out as it says; short for run.network.",
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")]


@dataclass(frozen=True, slots=True)
class Engine:
    """Options that say which engine carries a run out."""

    engine: Annotated[
        str, typer.Option(metavar="inline|flower", help="Compute here, or on Flower's nodes; the bits are the same.")
    ] = "inline"
    nodes: Annotated[int | None, typer.Option(help="Flower: simulated SuperNodes, 50 unless told otherwise.")] = None
    cpus: Annotated[int | None, typer.Option(help="Flower: processors for them, all unless told otherwise.")] = None
    superlink: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Flower: use the SuperNodes of this federation instead.")
    ] = None
    authority: Annotated[Path | None, typer.Option(help="Flower: certificate that signs the SuperLink's, PEM.")] = None
    insecure: Annotated[bool, typer.Option("--insecure", help="Flower: a SuperLink without TLS.")] = False

    def choice(self) -> EngineChoice:
        """The engine; ConfigError for options that do not go together."""
        return EngineChoice.of(
            self.engine,
            nodes=self.nodes,
            cpus=self.cpus,
            superlink=self.superlink,
            authority=self.authority,
            insecure=self.insecure,
        )


@app.command()
@shared_options
def simulate(
    engine: Engine,
    source: Source = "quickstart",
    seed: Seed = None,
    out: Out = None,
    network: Link = None,
    settings: Settings = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Train privately over a simulated population, and show what it reached and what it cost."""
    chosen = engine.choice()
    config, name = api.resolve(source, (*(settings or ()), *api.short_keys(seed=seed, out=out, network=network)))
    with _progress(as_json=as_json, quiet=quiet) as observer:
        prepared = runs.prepare(config, Path.cwd())
        result = _carry_out(chosen, prepared, claim(config, name), Path.cwd(), observer)
    _show_result(result, as_json=as_json)


@app.command()
@shared_options
def resume(engine: Engine, run: Run, as_json: Json = False, quiet: Quiet = False) -> None:
    """Continue an interrupted run, with identical bits; on any engine, whichever began it."""
    chosen, folder = engine.choice(), RunFolder(run)
    with _progress(as_json=as_json, quiet=quiet) as observer:
        prepared = runs.prepare(folder.config(), folder.path)
        result = _carry_out(chosen, prepared, folder, folder.path, observer)
    _show_result(result, as_json=as_json)


@app.command()
def plan(
    source: Source = "quickstart",
    seed: Seed = None,
    network: Link = None,
    settings: Settings = None,
    picture: Picture = None,
    as_json: Json = False,
) -> None:
    """Say what a run would promise and cost, and how many rounds it needs, before any data is touched."""
    _check_picture(picture)
    config, _ = api.resolve(source, (*(settings or ()), *api.short_keys(seed=seed, network=network)))
    planned = runs.prepare(config, Path.cwd(), compare=True).planned
    if picture is not None:
        _draw(picture, planned)
    if as_json:
        print(dumps(planned.as_json()))
    else:
        _show_plan(planned)


@app.command()
def algorithms(as_json: Json = False) -> None:
    """List the algorithms, their papers and what they protect."""
    listed = [
        {
            "name": info.name,
            "summary": info.summary,
            "paper": info.paper,
            "algorithm_numbers": info.algorithm_numbers,
            "exposure": info.exposure,
            "adjacency": list(info.adjacency),
            "constants": list(info.constants),
            "theorem": info.theorem,
        }
        for info in ALGORITHMS.values()
    ]
    if as_json:
        print(dumps(listed))
        return
    table = _table("name", "what it does", "paper", "exposure", "theorem")
    for info in ALGORITHMS.values():
        table.add_row(*map(escape, (info.name, info.summary, _paper(info), info.exposure, info.theorem)))
    _out().print(table)


def _paper(info: AlgorithmInfo) -> str:
    """The paper with the numbers of its algorithms, where it numbers them."""
    numbers = info.algorithm_numbers.strip("- ")
    return f"{info.paper}, Algorithm{'s' if ',' in numbers else ''} {numbers}" if numbers else info.paper


@app.command(name="presets")
def list_presets() -> None:
    """List the ready configurations."""
    table = _table("name", "what it shows")
    for each in presets():
        table.add_row(escape(each.name), escape(each.summary))
    _out().print(table)


@app.command()
def report(run: Run) -> None:
    """Write a run's report.html again, and print its path."""
    print(api.report(run))


cli_federation.register(app)
app.add_typer(cli_ledger.app, name="ledger")
app.command()(health)


def invoke(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code; a QuoronError becomes its message, never a traceback."""
    try:
        return int(app(args=list(arguments), prog_name="quoron", standalone_mode=False) or 0)
    except QuoronError as error:
        _err().print(f"[bold red]error:[/] {escape(str(error))}", soft_wrap=True, highlight=False)
        return error.exit_code
    except click.ClickException as error:
        _err().print(f"[bold red]error:[/] {escape(error.format_message())}", soft_wrap=True, highlight=False)
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        _err().print("Interrupted.")
        return INTERRUPTED


def _check_picture(picture: Path | None) -> None:
    """Before any work: an SVG file in a folder that exists."""
    if picture is None:
        return
    if picture.suffix != ".svg":
        raise ConfigError(f"Expected --plot to name an .svg file, got {picture}.")
    if not picture.parent.is_dir():
        raise ConfigError(f"Expected --plot to name a file in a folder that exists, got {picture}.")


def _draw(picture: Path, planned: Planned) -> None:
    name = planned.plan.algorithm
    if planned.curve is None:
        raise Infeasible(f"a plot of {name}", "nothing is predicted for it", "calibrated constants")
    drawing = curve_plot.svg({name: planned.curve}, chosen={name: planned.plan.cost.rounds})
    write(picture, drawing, advice="Choose another place for --plot.")


def _progress(*, as_json: bool, quiet: bool) -> Display:
    return display(quiet=quiet or (as_json and not sys.stderr.isatty()))


def _carry_out(engine: EngineChoice, prepared: Prepared, folder: RunFolder, base: Path, observer: Display) -> RunResult:
    try:
        return engine.carry_out(prepared, folder, base, [observer])
    except KeyboardInterrupt:
        how = f"Interrupted. Continue with: quoron resume {folder.path}"
        _err().print(how, soft_wrap=True, highlight=False, markup=False)
        raise typer.Exit(INTERRUPTED) from None


def _show_result(result: RunResult, *, as_json: bool) -> None:
    if as_json:
        print(dumps(result.summary.as_json() | {"directory": str(result.directory)}))
        return
    out = _out()
    out.print(escape(result.summary.statement), soft_wrap=not out.is_terminal, highlight=False)
    _show_choice(out, result.planned)
    table = Table(box=box.SIMPLE, show_header=False)
    for label, text in result.summary.rows():
        table.add_row(escape(label), escape(text))
    out.print(table)
    for reason in _why_not(result):
        out.print(escape(reason), soft_wrap=not out.is_terminal, highlight=False, style="dim")
    out.print(
        f"Run folder {escape(str(result.directory))}; open {escape(str(result.directory / 'report.html'))}",
        soft_wrap=True,
        highlight=False,
    )


def _why_not(result: RunResult) -> list[str]:
    """Why the algorithms that an automatic choice could not take are infeasible."""
    automatic = result.config.algorithm.name == "auto"
    return [f"Not chosen: {each.reason}" for each in result.planned.candidates if each.reason and automatic]


def _show_choice(out: Console, planned: Planned) -> None:
    if planned.choice is not None:
        out.print(f"Chosen {escape(planned.choice)}", soft_wrap=not out.is_terminal, highlight=False)


def _show_plan(planned: Planned) -> None:
    out, chosen = _out(), planned.plan
    out.print(escape(chosen.guarantee.sentence()), soft_wrap=not out.is_terminal, highlight=False)
    _show_choice(out, planned)
    table = Table(box=box.SIMPLE, show_header=False)
    for label, text in plan_rows(planned):
        table.add_row(escape(label), escape(text))
    out.print(table)
    others = _table("algorithm", "predicted excess risk", "exposure", "rounds", "or why not")
    for each in sorted(planned.candidates, key=lambda each: (each.plan is None, each.predicted or 0.0)):
        others.add_row(*map(escape, _candidate_row(each, chosen.algorithm)))
    out.print(others)
    if planned.curve is not None:
        out.print(f"How many rounds {escape(chosen.algorithm)} needs:")
        out.print(curve_plot.table(planned.curve, chosen.cost.rounds))


def plan_rows(planned: Planned) -> list[tuple[str, str]]:
    """Label and text of each number of a plan, the algorithm's own parameters included."""
    chosen, baseline = planned.plan, planned.baseline
    cost = chosen.cost
    rows = [
        ("algorithm", chosen.algorithm),
        (
            "users, items, dimension",
            f"{chosen.problem.users:,}, {chosen.problem.items_per_user:,}, {chosen.problem.dimension:,}",
        ),
        ("rounds", f"{cost.rounds:,}"),
        ("messages", f"{cost.messages:,}"),
        ("gradient evaluations", f"{cost.gradient_evaluations:,}"),
    ]
    rows += [row for row in _parameter_rows(chosen.as_json()["parameters"]) if row not in rows]
    if chosen.predicted_excess_risk is not None:
        beside = (
            ""
            if baseline is None or baseline.predicted is None
            else f" ({baseline.algorithm}: {baseline.predicted:.2g})"
        )
        rows.append(("predicted excess risk", f"{chosen.predicted_excess_risk:.2g}{beside}"))
    if planned.network is not None:
        rows.append(("on the wire up, down", f"{size(planned.network.bytes_up)}, {size(planned.network.bytes_down)}"))
        rows += time_rows(planned.network.as_json())
    return rows


def _parameter_rows(parameters: Any, prefix: str = "") -> list[tuple[str, str]]:
    """Nested parameters as flat rows; entries of a list are numbered from 1."""
    if isinstance(parameters, dict):
        return [row for key, value in parameters.items() for row in _parameter_rows(value, _joined(prefix, key))]
    if isinstance(parameters, list | tuple) and any(isinstance(each, dict) for each in parameters):
        numbered = enumerate(parameters, start=1)
        return [row for number, value in numbered for row in _parameter_rows(value, f"{prefix} {number}")]
    text = f"{parameters:.6g}" if isinstance(parameters, float) else str(parameters)
    return [] if parameters is None else [(prefix, text)]


def _joined(prefix: str, key: str) -> str:
    words = key.replace("_", " ")
    return f"{prefix}: {words}" if prefix else words


def _candidate_row(each: Candidate, chosen: str) -> tuple[str, str, str, str, str]:
    name = f"{each.algorithm} (chosen)" if each.algorithm == chosen else each.algorithm
    if each.plan is None:
        return name, "", "", "", each.reason
    predicted = "not predicted" if each.predicted is None else f"{each.predicted:.2g}"
    return name, predicted, each.plan.guarantee.exposure, f"{each.plan.cost.rounds:,}", ""


def _table(*columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD)
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _out() -> Console:
    console = Console()
    return console if console.is_terminal else Console(width=160)


def _err() -> Console:
    return Console(stderr=True)
