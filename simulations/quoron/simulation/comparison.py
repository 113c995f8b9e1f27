"""A comparison in its folder: start, continue after any interruption, and what came of it.

| file               | holds                                                                        |
| ------------------ | ---------------------------------------------------------------------------- |
| comparison.json    | what is compared                                                             |
| runs/NAME/         | one run folder for each run, by the fingerprint of all that decides its bits  |
| report.html        | all of it for people, one self-contained page                                 |

A folder may be used again, with more seeds, algorithms or values: runs that are there are not carried out again.

Processes carry out the runs (`Work`): programs of ours, so that a script without a `__main__` guard can compare,
and a worker that is killed is seen at once. A run that is cut off, because its parent process is gone, goes on later,
bit-identically. Excess risks are over the infimum over all models, so they mean the same in every method's domain.

>>> request = Request.of(Config(), algorithms=["recentred-sgd"], vary={"privacy.epsilon": [1, 4]}, seeds=2)
>>> [(cell.algorithm, cell.varied) for cell in request.cells()]
[('recentred-sgd', (('privacy.epsilon', 1),)), ('recentred-sgd', (('privacy.epsilon', 4),))]
"""

import hashlib
import json
import math
import pickle
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

import quoron
from quoron import config as configs
from quoron import toml_text
from quoron.arguments import overlay
from quoron.config import Config
from quoron.data import Population
from quoron.engine import processes
from quoron.engine.choice import INLINE, Inline
from quoron.engine.inline import InlineEngine
from quoron.engine.processes import Died
from quoron.engine.processors import processors
from quoron.planning.choosing import Candidate, refusals, risk_words
from quoron.planning.plans import SURE, Prepared
from quoron.reports import page as parts
from quoron.reports.page import ONLY, Section, Table
from quoron.reports.summary import Summary
from quoron.results import Axes, Tabular, axes, restored, short, size
from quoron.run_folder import RunFolder, write
from quoron.simulation import run as runs
from quoron.simulation.problem import Setup, make_domain, setup
from quoron_client.durable import make_folder
from quoron_privacy.errors import ConfigError, Infeasible, QuoronError, RunError, count
from quoron_server.algorithms import ALGORITHMS
from quoron_server.serial import dumps

if TYPE_CHECKING:
    from quoron.reports.terminal import Display

End = Literal["done", "refused", "failed"]  # of a run
SEEDS = 5  # runs of each cell, by default
OURS = ("algorithm.name", "run.seed", "run.out")  # keys that a comparison sets
Varied = tuple[tuple[str, Any], ...]


@dataclass(frozen=True, slots=True, eq=False)
class Cell:
    """One algorithm under one choice of the varied keys: as many runs as there are seeds."""

    algorithm: str  # a name of the registry, or auto
    varied: Varied  # key and value
    config: Config  # with the first seed

    def seeded(self, number: int) -> Config:
        """Return the configuration of the run with the given number, from 0."""
        return self.config.but(run={"seed": self.config.run.seed + number})

    @property
    def named(self) -> str:
        """For people: `recentred-sgd privacy.epsilon=4`."""
        return " ".join([self.algorithm, *(f"{key}={value_text(value)}" for key, value in self.varied)])


@dataclass(frozen=True, slots=True)
class Request:
    """One comparison. Its cells are in the order of the settings, then of the algorithms."""

    config: Config
    algorithms: tuple[str, ...]
    vary: tuple[tuple[str, tuple[Any, ...]], ...] = ()  # key and its values
    seeds: int = SEEDS

    @classmethod
    def of(
        cls,
        config: Config,
        *,
        algorithms: Sequence[str] | None = None,
        vary: Mapping[str, Sequence[Any]] | None = None,
        seeds: int = SEEDS,
    ) -> "Request":
        """Return a request that makes sense; ConfigError otherwise.

        `algorithms` are by default all that promise privacy and have the constants that are asked for.
        """
        private = tuple(name for name, info in ALGORITHMS.items() if info.trust_model != "none")
        names = private if algorithms is None else tuple(dict.fromkeys(algorithms))
        for name in names:
            if name != "auto" and name not in ALGORITHMS:
                known = ", ".join(("auto", *ALGORITHMS))
                raise ConfigError(f"Expected algorithms to be of {known}, got {name!r}.")
        if not names:
            raise ConfigError("Expected one algorithm or more to compare, got none. Leave them out for all.")
        count(seeds=seeds)
        swept = tuple((key, _values(key, values)) for key, values in (vary or {}).items())
        request = cls(config, names, swept, seeds)
        able = {cell.algorithm for cell in request.cells()}  # what does not check is refused now
        if algorithms is not None and (lacking := [name for name in names if name not in able]):
            raise ConfigError(
                f"Expected algorithm.constants to be one of {', '.join(ALGORITHMS[lacking[0]].constants)} for "
                f"{lacking[0]}, got others. Leave it out."
            )
        if not all(cell.config.run.evaluate for cell in request.cells()):
            raise ConfigError(
                "Expected run.evaluate for a comparison, which is of excess risks, got false. Leave it out."
            )
        return replace(request, algorithms=tuple(name for name in names if name in able))

    def cells(self) -> tuple[Cell, ...]:
        """Return every algorithm under every combination of values, but for constants that it does not have.

        ConfigError for a key or a value that is not one.
        """
        keys = [key for key, _ in self.vary]
        choices = [tuple(zip(keys, values, strict=True)) for values in product(*(values for _, values in self.vary))]
        own, cells = self.config.model_dump(mode="json", exclude_none=True), []
        for varied, name in product(choices, self.algorithms):  # another algorithm starts without options
            texts = [f"{key}={toml_text.literal(value)}" for key, value in (("algorithm.name", name), *varied)]
            config = configs.from_tree(overlay(own, texts))
            if name == "auto" or config.algorithm.constants in ALGORITHMS[name].constants:
                cells.append(Cell(name, varied, config))
        return tuple(cells)

    def as_json(self) -> dict[str, Any]:
        """Plain values, from which `from_json` makes it again."""
        return {
            "config": self.config.model_dump(mode="json", exclude_none=True),
            "algorithms": list(self.algorithms),
            "vary": {key: list(values) for key, values in self.vary},
            "seeds": self.seeds,
        }

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> "Request":
        """Return the request that `as_json` gave."""
        config = configs.from_tree(stored["config"])
        return cls.of(config, algorithms=stored["algorithms"], vary=stored["vary"], seeds=stored["seeds"])


def value_text(value: Any) -> str:
    """Return a value for people: bare words, numbers without trailing zeros."""
    return f"{value:g}" if isinstance(value, float) else str(value) if isinstance(value, str) else json.dumps(value)


def _values(key: str, values: Any) -> tuple[Any, ...]:
    if key in OURS:
        instead = "algorithms" if key == "algorithm.name" else "out" if key == "run.out" else "seeds"
        raise ConfigError(f"Expected keys other than {', '.join(OURS)} to vary, got {key}. Give {instead} instead.")
    if isinstance(values, str | Mapping) or not isinstance(values, Sequence) or len(values) == 0:
        raise ConfigError(f"Expected a list of values for {key}, such as [0.5, 1], got {values!r}.")
    texts = [json.dumps(value, default=str) for value in values]
    if len(set(texts)) < len(texts):
        raise ConfigError(f"Expected different values for {key}, got {list(values)!r}.")
    return tuple(values)


Rows = tuple[Mapping[str, Any], ...]
CONFIDENCE = 0.95
COSTS = ("rounds", "messages", "gradient_evaluations", "bytes_up", "bytes_down")
FORECASTS = ("predicted_excess_risk", "guessed_excess_risk")
PROMISE = ("epsilon", "delta", "adjacency", "trust_model")
ENDED = ("infeasible", "failed", "folder")


def run_row(
    cell: Cell,
    simulation_seed: int,
    folder: str,
    summary: Summary | None = None,
    *,
    infeasible: str | None = None,
    failed: str | None = None,
) -> Mapping[str, Any]:
    """One row of what became of one run; of an infeasible cell, of its first.

    The path `folder` is relative to the comparison's. Argument `infeasible` says why there is no plan, and `failed` why
    a run did not end well.
    """
    row = {**dict(cell.varied), "algorithm": cell.algorithm, "simulation_seed": simulation_seed}
    row |= {"taken": None, "excess_risk": None}
    if summary is not None:
        row |= {"taken": summary.algorithm, "excess_risk": summary.excess_risk}
        row |= {"excess_risk_at_start": summary.excess_risk_initial, "held_back": summary.held_back}
        row |= {name: getattr(summary, name) for name in (*FORECASTS, *COSTS, "users_asked", "halted", *PROMISE)}
        row |= {f"test_{name}": value for name, value in summary.test.items()}
        row |= {"seconds": summary.seconds}
    return row | {"infeasible": infeasible, "failed": failed, "folder": folder}


def cell_rows(runs: Rows, keys: Sequence[str]) -> Rows:
    """One row a cell: within each setting of `keys` the least mean excess risk first, cells without a result last.

    `behind_low` and `behind_high` are the interval of how much more a cell leaves than the setting's first, seed by
    seed, where they have two seeds in common. All of a setting's cells hold together with 95 %: each has its part of
    the 5 % (Bonferroni).
    """
    ranked: list[Mapping[str, Any]] = []
    for setting in _groups(runs, keys):
        cells = [(own, _cell_row(own, keys)) for own in _groups(setting, ["algorithm"])]
        cells.sort(key=lambda cell: (cell[1]["excess_risk"] is None, cell[1]["excess_risk"] or 0.0))
        done = [cell for cell in cells if cell[1]["excess_risk"] is not None]
        confidence = 1 - (1 - CONFIDENCE) / max(1, math.comb(len(done), 2))
        for place, (own, row) in enumerate(done):
            more = _differences(own, done[0][0]) if place else []
            row["behind_low"], row["behind_high"] = interval(more, confidence, least=-math.inf) or (None, None)
        ranked += [row for _, row in cells]
    return tuple(ranked)


def _groups(rows: Sequence[Mapping[str, Any]], keys: Sequence[str]) -> list[list[Mapping[str, Any]]]:
    """Return the rows with the same values of `keys`, in the order of each group's first."""
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault(json.dumps([row[key] for key in keys], default=str), []).append(row)
    return list(groups.values())


def _differences(runs: Sequence[Mapping[str, Any]], best: Sequence[Mapping[str, Any]]) -> list[float]:
    """Return how much more excess risk `runs` leave than those of the best cell, for every seed that both have."""
    other = {row["simulation_seed"]: row["excess_risk"] for row in best}
    pairs = ((row["excess_risk"], other.get(row["simulation_seed"])) for row in runs)
    return [risk - least for risk, least in pairs if risk is not None and least is not None]


def interval(
    values: Sequence[float], confidence: float = CONFIDENCE, *, least: float = 0.0
) -> tuple[float, float] | None:
    """Return a confidence interval for the mean by Student's t, held at `least`; None of one value.

    >>> [round(end, 3) for end in interval([1.0, 2.0, 3.0])]
    [0.0, 4.484]
    """
    if len(values) < 2:
        return None
    from scipy.stats import t

    mean, error = float(np.mean(values)), float(np.std(values, ddof=1)) / math.sqrt(len(values))
    reach = float(t.ppf((1 + confidence) / 2, len(values) - 1)) * error
    return max(mean - reach, least), mean + reach


def algorithm(row: Mapping[str, Any]) -> str:
    """Return the name of a cell's algorithm; of `auto` also what it took."""
    return f"auto ({row['taken']})" if row["algorithm"] == "auto" and row["taken"] else str(row["algorithm"])


def _cell_row(runs: Sequence[Mapping[str, Any]], keys: Sequence[str]) -> dict[str, Any]:
    """The row of one cell. Costs and figures are means over its runs; what its plan says is that of the first run."""
    done = [row for row in runs if row["taken"] is not None]
    risks = [row["excess_risk"] for row in done if row["excess_risk"] is not None]
    start = max((row["excess_risk_at_start"] or 0.0 for row in done), default=0.0)
    row = {key: runs[0][key] for key in (*keys, "algorithm")}
    row |= {"taken": None, "runs": len(done), "excess_risk": None, "low": None, "high": None, "of_start": None}
    if risks:
        row["excess_risk"] = float(np.mean(risks))
        row["low"], row["high"] = interval(risks) or (None, None)
        row["of_start"] = row["excess_risk"] / start if start else None
    for key in done[0] if done else ():
        values = [run[key] for run in done]
        if key in ("taken", *FORECASTS, *PROMISE):
            row[key] = values[0]
        elif key not in {*row, "simulation_seed", "users_asked", "excess_risk_at_start", *ENDED}:
            mean = values[0] if len(set(values)) == 1 else None if None in values else float(np.mean(values))
            row[key] = sum(values) if key == "halted" else mean
    return row | {
        "infeasible": runs[0]["infeasible"],
        "failed": next((run["failed"] for run in runs if run["failed"]), None),
    }


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """One run: a cell with one seed."""

    cell: Cell
    number: int  # of the seed, from 0
    config: Config
    folder: Path

    @property
    def named(self) -> str:
        """For people."""
        return f"{self.cell.named} seed {self.config.run.seed}"


def run_jobs(
    jobs: Sequence[Job], base: Path, *, engine: Inline, watcher: "Display"
) -> dict[Job, tuple[End, str | None]]:
    """Return what became of each job; relative paths are relative to `base`.

    When a plan is refused, so are all later runs of its cell. RunError if a worker dies, after the others are ended:
    what they did stays, and the same call goes on with it. However this function is left, no worker stays behind.
    """
    watcher.planned(len(jobs))
    if not jobs:
        return {}
    count = min(engine.workers or processors(), len(jobs))
    free, lock = SimpleQueue[processes.Worker](), threading.Lock()
    refused, ends = dict[Cell, str | None](), dict[Job, tuple[End, str | None]]()

    def carry_out_one(job: Job) -> None:
        how: End = "refused"
        why = refused.get(job.cell)
        if job.cell not in refused:
            worker = free.get()
            try:
                how, why = worker.ask((job.config, job.folder.resolve()))
            except Died as error:
                raise RunError(
                    f"A worker ended at {job.named}: try fewer workers, --engine inline:workers=1. Runs that are done "
                    f"are kept: give the same command again, or carry out that run alone. {error}"
                ) from None
            finally:
                free.put(worker)  # also one that is gone: no job waits for another
        with lock:
            if how == "refused":
                refused[job.cell] = why
            ends[job] = (how, why)
            watcher.ended(job, how, why)

    with ExitStack() as ending:
        service, threads = pickle.dumps(Work(base.resolve())), ThreadPoolExecutor(count)
        own = max(1, processors() // count)  # threads
        workers = [ending.enter_context(processes.Worker(service, own)) for _ in range(count)]
        for worker in workers:
            free.put(worker)
        ending.callback(threads.shutdown, cancel_futures=True)
        for worker in workers:
            ending.callback(worker.kill)  # first: who waits for an answer learns that there will be none
        for future in as_completed([threads.submit(carry_out_one, job) for job in jobs]):
            future.result()
    return ends


REQUEST = "comparison.json"
RUNS, REFUSED = "runs", "refused.txt"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Comparison(Tabular):
    """A complete comparison."""

    directory: Path
    request: Request
    cells: Rows  # one mapping a cell, best first within a setting; those without a result last
    runs: Rows  # one mapping a run, and one for each cell that is infeasible

    def rows(self) -> list[tuple[str, str]]:
        """Return the number of cells, and the excess risk of each."""
        risks = [(str(cell["algorithm"]), cell["excess_risk"]) for cell in self.cells]
        lines = [(name, "no result" if risk is None else f"excess risk {risk:.3g}") for name, risk in risks]
        return [("cells", f"{len(self.cells)}, best first"), *lines]

    def records(self) -> Rows:
        """Return one mapping a cell; `runs` has the single runs."""
        return self.cells

    def plot(self, *, ax: Axes | None = None) -> Axes:
        """Return matplotlib Axes with the mean excess risk of each cell, and its 95 % interval."""
        done = [cell for cell in self.cells if cell["excess_risk"] is not None]
        keys = dict(self.request.vary)
        names = [", ".join([cell["algorithm"], *(f"{key} = {cell[key]}" for key in keys)]) for cell in done]
        figures = [[cell[key] for key in ("excess_risk", "low", "high")] for cell in done]
        risks, low, high = np.array(figures, float).reshape(-1, 3).T  # no interval of one seed: NaN
        axis = axes(ax, xlabel="excess risk")
        axis.errorbar(risks, names, xerr=np.nan_to_num([risks - low, high - risks]), fmt="o")
        axis.invert_yaxis()  # best first
        return axis

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return {"directory": str(self.directory), "request": self.request.as_json(), "cells": list(self.cells)}


def is_comparison(folder: Path) -> bool:
    """Return whether a folder holds a comparison, complete or not."""
    return (folder / REQUEST).is_file()


def stored_request(folder: Path) -> Request:
    """Return what the comparison in a folder compares."""
    return Request.from_json(json.loads((folder / REQUEST).read_text(encoding="utf-8")))


def carry_out(request: Request, folder: Path, *, watcher: "Display", engine: Inline = INLINE) -> Comparison:
    """Every run that is not complete yet, in parallel processes; then what came of all of them, written and returned.

    A table's relative path is relative to `folder`. A run that fails is reported, and tried again by the next call.
    """
    setup(request.config, folder)  # a table that cannot be read is refused once, before any work
    write(folder / REQUEST, (dumps(request.as_json()) + "\n").encode())
    jobs = _jobs(request, folder)
    ends = run_jobs(_missing(jobs), folder, engine=engine, watcher=watcher)
    for job, (end, why) in ends.items():
        if end == "refused":
            make_folder(job.folder)
            write(job.folder / REFUSED, f"{why}\n".encode())
    failures = {job: str(why) for job, (end, why) in ends.items() if end == "failed"}
    comparison = _collected(request, folder, jobs, failures)
    page = comparison_page(comparison.cells, request, name=folder.resolve().name)
    write(folder / "report.html", page.encode())
    return comparison


def stored(folder: Path) -> Comparison:
    """Return a comparison as its folder holds it; RunError before it is complete."""
    request = stored_request(folder)
    jobs = _jobs(request, folder)
    if _missing(jobs):
        raise RunError(f"Expected {folder} to hold a complete comparison. Complete it with `quoron resume {folder}`.")
    return _collected(request, folder, jobs, {})


def _jobs(request: Request, folder: Path) -> list[Job]:
    """Return every run, named by all that decides its result: version, configuration, the table's bytes."""

    jobs = []
    for cell in request.cells():
        for place in range(request.seeds):
            config = cell.seeded(place)
            decides = f"{quoron.__version__} {runs.fingerprint(config, folder)}"
            digest = hashlib.sha256(decides.encode()).hexdigest()[:12]
            name = f"{cell.algorithm}-{digest}-seed-{config.run.seed}"
            jobs.append(Job(cell, place, config, folder / RUNS / name))
    return jobs


def _missing(jobs: Sequence[Job]) -> list[Job]:
    """Return those that are neither complete nor of a cell that is refused."""
    refused = {job.cell for job in jobs if _refusal(job) is not None}
    return [job for job in jobs if job.cell not in refused and not (job.folder / "summary.json").is_file()]


def _refusal(job: Job) -> str | None:
    path = job.folder / REFUSED
    return path.read_text(encoding="utf-8").strip() if path.is_file() else None


def _collected(request: Request, folder: Path, jobs: Sequence[Job], failures: Mapping[Job, str]) -> Comparison:
    refused = {job.cell: reason for job in jobs if (reason := _refusal(job)) is not None}
    collected = []
    for job in jobs:
        run = job.cell, job.config.run.seed, str(job.folder.relative_to(folder))
        if job.cell in refused:
            if job.number == 0:
                collected.append(run_row(*run, infeasible=refused[job.cell]))
        elif job in failures:
            collected.append(run_row(*run, failed=failures[job]))
        else:
            collected.append(run_row(*run, restored(Summary, RunFolder(job.folder).summary())))
    rows = tuple(collected)
    return Comparison(folder, request, cell_rows(rows, [key for key, _ in request.vary]), rows)


Row = Mapping[str, Any]


def comparison_page(cells: Sequence[Row], request: Request, *, name: str) -> str:
    """Return the page as HTML text; `cells` are the rows of `cell_rows`, and `name` is the folder's."""
    seeds = "one seed" if request.seeds == 1 else f"{request.seeds} seeds"
    lead = f"{len(request.cells())} cells of {seeds} each, simulated: noise comes from seeds, and protects nobody."
    lead += "" if request.seeds == 1 else " Excess risk is a mean over seeds with its 95 % interval (Student's t)."
    lead += f" It is over the least risk of any model, without privacy and without a bound. {SURE}"
    return parts.document(name, comparison_sections(cells, request), lead=lead, simulated=True)


def comparison_sections(cells: Sequence[Row], request: Request) -> list[Section]:
    """For each setting its cells by excess risk, and why others have no result."""
    keys = [key for key, _ in request.vary]
    sections = []
    for setting in dict.fromkeys(_setting(row, keys) for row in cells):
        rows = [row for row in cells if _setting(row, keys) == setting]
        done = [row for row in rows if row.get("excess_risk") is not None]
        sections.append(
            Section(
                title=(setting or "All cells") + ONLY,
                note=[best_words(rows)],
                tables=[_cells_table(done)],
                warnings=why_not(rows),
            )
        )
    return sections


def best_words(rows: Sequence[Row]) -> str:
    """Which cell of a setting leaves least, where the intervals of the differences say so; else that they do not.

    >>> rows = [{"algorithm": "a", "excess_risk": 1.0, "runs": 5, "behind_low": None},
    ...         {"algorithm": "b", "excess_risk": 1.1, "runs": 5, "behind_low": -0.1},
    ...         {"algorithm": "c", "excess_risk": 3.0, "runs": 5, "behind_low": 1.5}]
    >>> best_words(rows)
    'No difference shown after 5 seeds between a (mean excess risk 1) and b. a leaves less than c.'
    """
    ranked = [row for row in rows if row.get("excess_risk") is not None]
    if not ranked:
        return "Nothing has a result here."
    first, others = ranked[0], ranked[1:]
    risk = f"{first['excess_risk']:.2g}"
    if first["runs"] < 2:
        return f"Least here: {first['algorithm']}, {risk}. One seed says nothing about chance: give more (--seeds)."
    if not others:
        return f"Excess risk of {first['algorithm']}: {risk}."
    near = [row["algorithm"] for row in others if (row["behind_low"] or 0.0) <= 0]
    worse = [row["algorithm"] for row in others if row["algorithm"] not in near]
    if not near:
        return f"Least excess risk: {first['algorithm']}, {risk}, less than all others after {first['runs']} seeds."
    text = f"No difference shown after {first['runs']} seeds between {first['algorithm']} (mean excess risk {risk})"
    less = f" {first['algorithm']} leaves less than {', '.join(worse)}." if worse else ""
    return f"{text} and {', '.join(near)}.{less}"


def why_not(rows: Sequence[Row]) -> list[str]:
    """One line for each reason why cells have no result, with the algorithms that it rules out."""
    refused = [Candidate(row["algorithm"], None, row["infeasible"]) for row in rows if row.get("infeasible")]
    lines = [f"Infeasible: {', '.join(names)}: {reason}" for reason, names in refusals(refused)]
    return lines + [f"Failed: {row['algorithm']}: {row['failed']}" for row in rows if row.get("failed")]


def _setting(row: Row, keys: Sequence[str]) -> str:
    return ", ".join(f"{key} = {value_text(row[key])}" for key in keys)


def _cells_table(rows: Sequence[Row]) -> Table:
    """Return every cell; a terminal shows what it is ranked by and what it costs."""
    tests = [key for key in rows[0] if key.startswith("test_")] if rows else []
    heads = ["algorithm", "excess risk", "95 % interval"]
    heads += ["predicted at most", "rounds", "messages", "item gradients", "up"]
    brief = len(heads)
    heads += ["rank", "left of the start", "down", "trust_model"]
    heads += [f"held-out {key.removeprefix('test_').replace('_', ' ')}" for key in tests]
    lines = []
    for rank, row in enumerate(rows, start=1):
        cells = [algorithm(row), f"{row['excess_risk']:.2g}"]
        cells += ["" if row["low"] is None else f"{row['low']:.2g} to {row['high']:.2g}"]
        cells += [risk_words(row.get("predicted_excess_risk"), row.get("guessed_excess_risk"))]
        cells += [f"{row['rounds']:,.4g}", f"{row['messages']:,.10g}"]
        cells += [short(row["gradient_evaluations"]), size(row["bytes_up"]), str(rank)]
        cells += ["" if row["of_start"] is None else f"{100 * row['of_start']:.2g} %"]
        cells += [size(row["bytes_down"]), row["trust_model"]]
        cells += ["" if row.get(key) is None else f"{row[key]:.4g}" for key in tests]
        lines.append(cells)
    return Table("Every cell, by its excess risk", heads, lines, brief)


@dataclass(slots=True)
class Work:
    """Carries runs out, and keeps the last users and plan: the next run often has the same."""

    base: Path  # that relative paths are relative to
    last: Prepared[Setup] | None = None

    def __call__(self, run: tuple[Config, Path]) -> tuple[End, str | None]:
        """Carry out one run, all of its folder but the report; what became of it, and why."""
        config, folder = run
        try:
            prepared = self._prepared(config)
        except Infeasible as error:
            return "refused", f"{error.condition}; needs {error.needs}."
        except QuoronError as error:
            return "refused", str(error)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            instance = prepared.setup.remembering(prepared.planned.plan)
            runs.carry_out(replace(prepared, setup=instance), RunFolder(folder), report=False)
        except QuoronError as error:
            return "failed", str(error)
        return "done", None

    def _prepared(self, config: Config) -> Prepared[Setup]:
        if self.last is not None and _but_for_the_seed(config) == _but_for_the_seed(self.last.config):
            return reseeded(self.last, config, self.base)
        population, self.last = self._population(config), None
        self.last = runs.prepare(config, self.base, alternatives=False, population=population)
        return self.last

    def _population(self, config: Config) -> Population | None:
        """The last run's users, where the configuration makes the same, and the last plan left them their domain."""
        if self.last is None or _users(config) != _users(self.last.config):
            return None
        population = self.last.setup.population
        return population if population.domain == make_domain(config.domain, population.loss.feature_norm) else None


def reseeded(prepared: Prepared[Setup], config: Config, base: Path) -> Prepared[Setup]:
    """Return what `prepare` would give for the same configuration with other seeds: only slots and noise know them."""
    dropout = config.run.dropout
    engine = InlineEngine(prepared.setup.population, seed=config.run.seed, dropout=dropout)
    planned = replace(prepared.planned, plan=replace(prepared.planned.plan, seed=config.run.seed))
    instance = replace(prepared.setup, engine=engine)
    digest = runs.fingerprint(config, base)
    return Prepared(config, instance, planned, digest)


def _but_for_the_seed(config: Config) -> dict[str, Any]:
    return config.model_dump(exclude={"run": {"seed", "out"}})


def _users(config: Config) -> tuple[Any, ...]:
    """Return what decides the users."""
    return config.model_dump(include={"population", "loss", "domain"}), config.population.items_per_user
