"""Declare, run, analyse and render experiments that check exponents claimed in papers.

An experiment (`Experiment`) is a declaration. `run` carries out its simulations and appends one JSON line a run, so
that an interrupted call goes on where it stopped. `analyse` fits slopes by least squares on log means, with a standard
error by bootstrap over seeds. `opening`, `details` and `picture` render what has been measured, however much that is.

`paper_claims.py` has the declarations and the command.
"""

import json
import math
import sys
import tempfile
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

import quoron
from quoron_privacy.errors import QuoronError
from quoron_server.rounds import Observer, RoundEvent

sys.path.append(str(Path(__file__).parent.parent / "scripts"))
from charts import Axis, Line, alone, chart

Measure = Literal["excess", "rounds", "gradients", "removed"]
Record = Mapping[str, Any]
Settings = tuple[str, ...]
Key = tuple[str, Settings, int]  # preset, settings, seed

SCOUTS = 2  # seeds that look for the worst signal or the fewest rounds; the others run only there
HALVINGS = range(-4, 9)  # the signals that are tried are 2^k times the claimed error
LARGEST_SIGNAL = 0.9  # of an item's norm
NEAR = 1.10  # a risk within ten per cent of the best is as good
TOLERANCE = 0.1  # a slope this far above the claim still confirms it
RESAMPLES = 2_000
FLOOR = 0.30  # worst excess of one gradient step on a linear loss, in units of radius times the gradient's error
DOMINATES = 2.0  # multiples of the statistical floor from which privacy is said to dominate
FEWEST_POINTS = 3  # of a fitted slope
LARGEST_ERROR = 0.15  # standard error of a slope that still decides something
MEMORY = Path("/dev/shm")  # where runs are kept while they last, if there is such a place: rounds are synced to disk


class Sizes(NamedTuple):
    """What a claim's formula depends on."""

    users: int  # n
    items: int  # m
    dimension: int  # d
    epsilon: float
    delta: float
    share: float = 0.0  # of users who are outliers


@dataclass(frozen=True)
class Row:
    """One algorithm in an experiment, and the claim made for it where that is not the experiment's."""

    label: str
    settings: Settings  # {n} stands for the number of users, {k} for that to the power 7/8
    claimed: Callable[[Sizes], float] | None = None
    unit: Callable[[Sizes], float] | None = None  # of signals; None: what is claimed
    against: "Row | None" = None  # the row's risk is divided by the risk of this one
    largest: int = 10**9  # no run has more users


@dataclass(frozen=True)
class Experiment:
    """A claim of a paper, the instance on which it is measured, and what would falsify it."""

    name: str
    paper: str
    claim: str
    place: str  # theorem, table or line
    measure: Measure
    across: Literal["users", "items", "share"]
    points: tuple[Sizes, ...]
    claimed: Callable[[Sizes], float]  # up to a constant; its slope over the points is the claimed exponent
    rows: tuple[Row, ...]
    falsified: str
    instance: str
    preset: str
    settings: Settings = ()
    scaled: Callable[[Sizes], Settings] = lambda _: ()  # settings that change with the point
    unmet: Callable[[Sizes], tuple[str, ...]] = lambda _: ()  # conditions of the theorem that a point breaks
    signals: bool = False  # whether the worst signal of the linear family is sought, in units of `Row.unit`
    rounds: tuple[int, ...] = ()  # the grid in which the fewest sufficient rounds are sought
    target: float | None = None  # a share of the start's excess is sufficient; None: near the grid's best
    exact: bool = False  # whether a smaller exponent falsifies the claim as well
    ceiling: bool = False  # the formula has no hidden constant: figures that are at most it confirm the claim
    seeds: int = 100  # at most


@dataclass(frozen=True)
class Task:
    """All runs of one row at one point."""

    preset: str
    settings: Settings
    unit: float = 0.0  # of signals; 0: the signal is the preset's
    rounds: tuple[int, ...] = ()
    target: float | None = None

    def variants(self) -> list[tuple[float, Settings]]:
        """The values over which the worst or the fewest is sought, each with its settings."""
        if self.unit:
            signals = [(k, self.unit * 2.0**k) for k in HALVINGS]
            return [
                (float(k), (*self.settings, f"population.signal_norm={signal:.4g}"))
                for k, signal in signals
                if signal <= LARGEST_SIGNAL
            ]
        if self.rounds:
            return [(float(t), (*self.settings, f"algorithm.options.rounds={t}")) for t in self.rounds]
        return [(0.0, self.settings)]


def task_of(experiment: Experiment, row: Row, sizes: Sizes) -> Task:
    """The runs of a row at a point; experiments that need the same runs share them."""
    settings = (
        f"population.users={sizes.users}",
        f"population.items_per_user={sizes.items}",
        f"population.dimension={sizes.dimension}",
        f"privacy.epsilon={sizes.epsilon:g}",
        f"privacy.delta={sizes.delta:g}",
        *((f"population.outliers.share={sizes.share:g}",) if sizes.share else ()),
        *experiment.settings,
        *experiment.scaled(sizes),
        *(
            text.replace("{n}", str(sizes.users)).replace("{k}", str(round(sizes.users**0.875)))
            for text in row.settings
        ),
    )
    unit = (row.unit or experiment.claimed)(sizes) if experiment.signals else 0.0
    return Task(experiment.preset, settings, unit, experiment.rounds, experiment.target)


# --- running


class Lines:
    """The JSON lines of all runs so far, by what was run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.records: dict[Key, Record] = {}
        for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
            try:
                record = json.loads(line)
                self.records[record["preset"], tuple(record["settings"]), record["seed"]] = record
            except (ValueError, KeyError):  # the last line of a call that was killed
                continue

    def forget(self, gone: Callable[[Record], bool]) -> None:
        """Rewrite the file without some records."""
        self.records = {key: record for key, record in self.records.items() if not gone(record)}
        text = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in self.records.values())
        self.path.write_text(text, encoding="utf-8")

    def measured(self, preset: str, settings: Settings, seed: int) -> Record:
        """What a run found; it is carried out, and its line appended, where it has not been."""
        key = preset, settings, seed
        if key not in self.records:
            record = {"preset": preset, "settings": list(settings), "seed": seed, **simulated(preset, settings, seed)}
            with self.path.open("a", encoding="utf-8") as file:  # one write: two processes append to one file
                file.write(json.dumps(record, ensure_ascii=False) + "\n")
            self.records[key] = record
        return self.records[key]


class Removals(Observer):
    """Count the answers that a filter removed, and notice a private test that failed (simulation only)."""

    removed, answers, failed = 0, 0, False

    def round_finished(self, event: RoundEvent) -> None:
        """Add one round."""
        self.answers += event.messages
        self.failed |= bool(event.public.get("halted", False)) or not event.public.get("released", True)
        self.removed += sum(int(event.diagnostics.get(name, 0)) for name in ("filtered", "removed", "removed_chains"))


def simulated(preset: str, settings: Settings, seed: int) -> dict[str, Any]:
    """The figures of one run, or why there is no plan for it."""
    removals = Removals()
    seeds = [f"run.seed={seed}", f"population.seed={seed}"]
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as folder:
        try:
            run = quoron.simulate(preset, out=Path(folder) / "run", settings=[*settings, *seeds], observers=[removals])
        except QuoronError as error:
            return {"refused": str(error)}
    found = run.summary
    return {
        "excess": float(f"{found.excess_in_domain:.6g}"),
        "start": float(f"{found.excess_risk_initial:.6g}"),
        "rounds": found.rounds,
        "gradients": found.gradient_evaluations,
        "removed": removals.removed,
        "answers": removals.answers,
        "failed": removals.failed,
        "seconds": round(found.seconds, 2),
    }


def measured(task: Task, path: Path, seeds: int) -> None:
    """Carry out a task: scouts first, then all seeds where they found the worst signal or enough rounds."""
    variants, lines = dict(task.variants()), Lines(path)
    values = list(variants)

    def runs(value: float, most: int) -> list[Record]:
        """Records of the first seeds; none where there is no plan."""
        found = [lines.measured(task.preset, variants[value], 1)]
        if "refused" in found[0]:
            return []
        return found + [lines.measured(task.preset, variants[value], seed) for seed in range(2, most + 1)]

    def height(place: int) -> float:
        found = runs(values[place], min(SCOUTS, seeds))
        return float(np.mean([record["excess"] for record in found])) if found else -math.inf

    if task.unit:  # uphill from a signal that is usually near the worst
        place = min(HALVINGS.index(2), len(values) - 1)
        step = 1 if place + 1 < len(values) and height(place + 1) > height(place) else -1
        while 0 <= place + step < len(values) and height(place + step) > height(place):
            place += step
        runs(values[place], seeds)
    elif task.target is None:
        for value in values:
            runs(value, seeds)
    else:
        for place, value in enumerate(values):
            if height(place) == -math.inf or height(place) > 1.3 * _wanted(task, runs(value, 1)):
                continue
            found = runs(value, seeds)
            if np.mean([record["excess"] for record in found]) <= _wanted(task, found):
                return


def _wanted(task: Task, found: Sequence[Record]) -> float:
    return (task.target or 0.0) * float(np.mean([record["start"] for record in found]))


def run(experiments: Sequence[Experiment], path: Path, seeds: int, processes: int, *, again: bool = False) -> None:
    """Carry out whatever is missing of some experiments; with `again`, all of them.

    What was refused is tried again, since plans may have changed.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    tasks: dict[Task, tuple[str, int]] = {}
    for experiment in experiments:
        for row in experiment.rows:
            for needed in (row, *([row.against] if row.against else [])):
                for sizes in (point for point in experiment.points if point.users <= needed.largest):
                    title = f"{experiment.name}, {needed.label}, {at(experiment, sizes)}"
                    tasks.setdefault(task_of(experiment, needed, sizes), (title, min(seeds, experiment.seeds)))
    own = {(task.preset, settings) for task in tasks for _, settings in task.variants()}
    Lines(path).forget(
        lambda record: (again or "refused" in record) and (record["preset"], tuple(record["settings"])) in own
    )
    waiting = [(task, most, title) for task, (title, most) in tasks.items()]
    if processes == 1:
        return _carry_out(waiting, path)
    context = get_context("spawn")  # a fork would copy threads
    workers = [context.Process(target=_carry_out, args=(waiting[k::processes], path)) for k in range(processes)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if any(worker.exitcode for worker in workers):
        raise RuntimeError("A process that ran experiments failed; what it had finished is kept.")
    return None


def _carry_out(waiting: Sequence[tuple[Task, int, str]], path: Path) -> None:
    for task, seeds, title in waiting:
        measured(task, path, seeds)
        print(title, flush=True)


# --- analysis


@dataclass(frozen=True)
class Point:
    """What one row has measured at one point: a value for each resample of the seeds, the plain mean first."""

    sizes: Sizes
    values: NDArray[np.float64]  # (1 + RESAMPLES,); NaN where nothing is sufficient
    seeds: int
    claimed: float
    record: Record  # of the first seed
    failed: float  # share of runs in which a private test failed
    excess: float

    @property
    def value(self) -> float:
        """The mean over seeds."""
        return float(self.values[0])

    def complete(self, seeds: int) -> bool:
        """Whether it has so many; scouts alone look for what nothing reaches."""
        return self.seeds >= seeds or math.isnan(self.value)

    @property
    def error(self) -> float:
        """Its standard error."""
        return float(np.nanstd(self.values[1:])) if self.seeds > 1 else math.nan


@dataclass(frozen=True)
class Finding:
    """One line of the opening table."""

    experiment: Experiment
    row: Row
    points: tuple[Point, ...]
    refused: Mapping[Sizes, str]
    claimed: float  # exponent
    slope: float
    error: float
    verdict: str
    regime: str


def analyse(experiment: Experiment, lines: Lines, seeds: int) -> list[Finding]:
    """The findings of an experiment, from the runs that there are."""
    return [_finding(experiment, row, lines, seeds) for row in experiment.rows]


def _finding(experiment: Experiment, row: Row, lines: Lines, seeds: int) -> Finding:
    draws = np.random.default_rng(0).random((RESAMPLES, seeds))
    points, refused = [], {}
    formula = row.claimed or experiment.claimed
    for sizes in experiment.points:
        found = _point(experiment, row, sizes, lines, draws)
        if isinstance(found, str):
            refused[sizes] = found
        elif found is not None:
            points.append(found)
    fitted = [point for point in points if point.value > 0]
    slope = error = math.nan
    if len(fitted) >= 2:
        values = np.array([point.values for point in fitted])
        heights = np.log(np.where(values > 0, values, values[:, :1]))
        slopes = np.polyfit(np.log([x_of(experiment, point.sizes) for point in fitted]), heights, 1)[0]
        slope = float(slopes[0])
        error = float(np.std(slopes[1:])) if min(point.seeds for point in fitted) > 1 else math.nan
    every = np.log([x_of(experiment, sizes) for sizes in experiment.points])
    claimed = float(np.polyfit(every, np.log([formula(sizes) for sizes in experiment.points]), 1)[0])
    inside = sum(not experiment.unmet(point.sizes) for point in fitted)
    verdict = judged(slope, error, claimed, len(fitted), inside, exact=experiment.exact)
    under = [p.value - 2 * np.nan_to_num(p.error) <= p.claimed for p in fitted]
    if experiment.ceiling and len(fitted) >= FEWEST_POINTS and all(under):
        verdict = "confirmed"
    none = [at(experiment, point.sizes) for point in points if point.value == 0]
    if none and experiment.exact and verdict == "confirmed":
        verdict = "not confirmed"
    regime = "no plan or too long to run" if refused else "not run yet"
    if points:
        regime = _regime(experiment, fitted, max(p.failed for p in points))
        regime += f"; none at {', '.join(none)}" if none else ""
    return Finding(experiment, row, tuple(points), refused, claimed, slope, error, verdict, regime)


def judged(slope: float, error: float, claimed: float, points: int, inside: int, *, exact: bool = False) -> str:
    """The verdict: upper bounds are confirmed by slopes that are not above the claim, equalities by those near it."""
    if points < FEWEST_POINTS or not error <= LARGEST_ERROR:  # of one seed it is NaN
        return "not measured"
    if slope <= claimed + TOLERANCE and not (exact and slope < claimed - TOLERANCE):
        return "confirmed"
    return "not confirmed" if inside >= FEWEST_POINTS else "outside its regime"


def _point(
    experiment: Experiment, row: Row, sizes: Sizes, lines: Lines, draws: NDArray[np.float64]
) -> Point | str | None:
    """A measured point, why there is none and will be none, or None where it has not been run."""
    if sizes.users > row.largest:
        return f"runs of more than {row.largest:,} users take too long."
    task = task_of(experiment, row, sizes)
    claimed = (row.claimed or experiment.claimed)(sizes)
    found: dict[float, list[Record]] = {}
    refusals, untried = [], False
    for value, settings in task.variants():
        records = [lines.records.get((task.preset, settings, seed)) for seed in range(1, draws.shape[1] + 1)]
        had = [record for record in records if record is not None]
        untried |= not had
        refusals += [record["refused"] for record in had if "refused" in record]
        if had and "refused" not in had[0]:
            found[value] = had
    if not found:
        return refusals[0] if refusals else None
    if task.rounds:
        values, best = _fewest(experiment, task, found, draws)
        if untried and (task.target is None or math.isnan(values[0])):
            return None
    else:
        best = max(found, key=lambda value: float(np.mean([record["excess"] for record in found[value][:SCOUTS]])))
        if {best - 1, best + 1} & {value for value, _ in task.variants()} - set(found):
            return None  # the worst signal was still being sought
        values = _resampled(found[best], _figure(experiment.measure), draws)
    if row.against is not None:
        other = _point(experiment, row.against, sizes, lines, draws)
        if not isinstance(other, Point):
            return other
        values = values / other.values
    had = found[best]
    failed = float(np.mean([bool(record["failed"]) for record in had]))
    excess = float(np.mean([record["excess"] for record in had]))
    return Point(sizes, values, len(had), claimed, had[0], failed, excess)


def _figure(measure: Measure) -> Callable[[Record], float]:
    if measure == "removed":
        return lambda record: record["removed"] / record["answers"]
    return lambda record: float(record[measure])


def _resampled(records: Sequence[Record], figure: Callable[[Record], float], draws: NDArray[np.float64]) -> Any:
    """The mean over seeds, and means over resamples of them; points with as many seeds use the same resamples."""
    figures, seeds = np.array([figure(record) for record in records]), len(records)
    return np.concatenate([[figures.mean()], figures[(draws[:, :seeds] * seeds).astype(int)].mean(axis=1)])


def _fewest(
    experiment: Experiment, task: Task, found: Mapping[float, list[Record]], draws: NDArray[np.float64]
) -> tuple[NDArray[np.float64], float]:
    """The fewest sufficient rounds, or the gradients that they take, for each resample; NaN: none is sufficient."""
    means = {t: _resampled(records, _figure("excess"), draws) for t, records in found.items()}
    best = min(means, key=lambda t: float(means[t][0]))
    if task.target is not None:
        limits = dict.fromkeys(means, np.full(1 + RESAMPLES, _wanted(task, found[best])))
    else:  # near the least risk, or no more than two standard errors of their difference above it
        errors, least = {t: np.std(mean[1:]) for t, mean in means.items()}, np.min(list(means.values()), axis=0)
        limits = {t: np.maximum(NEAR * least, least + 2 * math.hypot(errors[t], errors[best])) for t in means}
    values = np.full(1 + RESAMPLES, math.nan)
    for t in sorted(limits, reverse=True):
        if task.target is not None or t != task.rounds[-1]:  # at the end of the grid the risk may still be falling
            first = float(t) if experiment.measure == "rounds" else float(found[t][0]["gradients"])
            values = np.where(means[t] <= limits[t], first, values)
    return values, next((t for t in sorted(limits) if means[t][0] <= limits[t][0]), best)


def _regime(experiment: Experiment, points: Sequence[Point], failed: float) -> str:
    """What dominates the measured error, and how far it is from the floor and from the formula without constants."""
    if not points:
        return "no number of rounds in the grid suffices" if experiment.rounds else "no removal"
    texts = []
    ends = [points[0], points[-1]] if len(points) > 1 else [points[0]]
    if experiment.signals and experiment.measure == "excess" and not any(row.against for row in experiment.rows):
        above = [point.value / (FLOOR / math.sqrt(point.sizes.users * point.sizes.items)) for point in ends]
        names = ["privacy" if ratio >= DOMINATES else "statistics" for ratio in above]
        texts.append(f"{' to '.join(dict.fromkeys(names))}, {_span(above)} floors")
    if experiment.measure in ("excess", "rounds"):
        texts.append(f"{_span([point.value / point.claimed for point in ends])} formulas")
    if experiment.measure == "gradients":
        texts.append(f"{_span([point.record['rounds'] for point in ends])} rounds")
    if experiment.measure == "removed":
        texts.append(f"{_span([point.value / point.sizes.share for point in ends])} removals an outlier")
        texts.append(f"a test failed in up to {failed:.0%} of runs" if failed else "no test failed")
    return "; ".join(texts) or "—"


def _span(values: Sequence[float]) -> str:
    return " to ".join(dict.fromkeys(f"{value:.2g}" if value < 100 else f"{value:,.0f}" for value in values))


def x_of(experiment: Experiment, sizes: Sizes) -> float:
    """The number on the experiment's axis."""
    return float(getattr(sizes, experiment.across))


def at(experiment: Experiment, sizes: Sizes) -> str:
    """A point, in words."""
    if experiment.across == "share":
        return f"share = {sizes.share:g}"
    return f"n = {sizes.users:,}" if experiment.across == "users" else f"m = {sizes.items:,}"


# --- rendering

TITLES = {"excess": "excess risk", "rounds": "rounds", "gradients": "gradient evaluations", "removed": "share removed"}
AXES = {"users": "users n", "items": "items a user m", "share": "share of outliers"}


def picture(findings: Mapping[Experiment, Sequence[Finding]], columns: int = 2) -> bytes:
    """One SVG: a chart an experiment, measured points with two standard errors, the claimed slope dashed."""
    charts = (_chart(experiment, found) for experiment, found in findings.items())
    return alone([drawn for drawn in charts if drawn], columns)


def _chart(experiment: Experiment, findings: Sequence[Finding]) -> str | None:
    drawn: list[Line] = []
    for colour, finding in enumerate(findings):
        points = [point for point in finding.points if point.value > 0]
        if not points:
            continue
        across = [x_of(experiment, point.sizes) for point in points]
        spread = [2 * point.error if point.error > 0 else 0.0 for point in points]
        reach = [(max(p.value - s, p.value / 10), p.value + s) for p, s in zip(points, spread, strict=True)]
        values = [(x, point.value) for x, point in zip(across, points, strict=True)]
        drawn.append(Line(finding.row.label, values, reach=reach, colour=colour))
        middle = len(points) // 2
        scale = points[middle].value / points[middle].claimed
        claimed = [(x, point.claimed * scale) for x, point in zip(across, points, strict=True)]
        drawn.append(Line(f"claimed {finding.claimed:+.2f}", claimed, "dashed", colour=colour))
    if not drawn:
        return None
    ratio = any(row.against for row in experiment.rows)
    up = Axis(f"{experiment.name}: {'ratio of risks' if ratio else TITLES[experiment.measure]}", log=True)
    return chart(experiment.claim, drawn, Axis(AXES[experiment.across], log=True), up)


def opening(findings: Sequence[Finding], typeset: Callable[[str], str] = str) -> list[str]:
    """The opening table: a line for each claim and algorithm; the first of an experiment has its claim, typeset."""
    lines, seen = ["| claim | algorithm | claimed | measured ± error | verdict | regime |", "| --- " * 6 + "|"], set()
    for finding in findings:
        name = finding.experiment.name
        claim = name if name in seen else f"{name}: {typeset(finding.experiment.claim)}"
        seen.add(name)
        cells = finding.row.label, f"{finding.claimed:+.2f}", exponent(finding), f"**{finding.verdict}**"
        lines.append(f"| {claim} | {' | '.join(cells)} | {finding.regime} |")
    return lines


def exponent(finding: Finding) -> str:
    """The measured exponent and its standard error."""
    if math.isnan(finding.slope):
        return "—"
    return f"{finding.slope:+.2f}" + ("" if math.isnan(finding.error) else f" ± {finding.error:.2f}")


def details(
    experiment: Experiment,
    findings: Sequence[Finding],
    instance: str = "",
    typeset: Callable[[str], str] = str,
    usual: int = 0,
) -> list[str]:
    """The section of one experiment: what is claimed, on which instance, what would falsify it, and every point.

    `instance` names the experiment that has described the same one, `usual` is the number of seeds that needs no word.
    """
    text = f"{experiment.place}: {typeset(experiment.claim)}. "
    text += f"*Instance* as in {instance}." if instance else f"*Instance.* {typeset(experiment.instance)}"
    if experiment.falsified:
        text += f" *Falsified if* {typeset(experiment.falsified)}."
    points = [point for finding in findings for point in finding.points]
    if unmet := dict.fromkeys(words for point in points for words in experiment.unmet(point.sizes)):
        text += f" *Not met*: {', '.join(map(typeset, unmet))}."
    seeds = {point.seeds for point in points if not math.isnan(point.value)}
    if len(seeds) == 1 and seeds != {usual}:
        text += f" Seeds: {min(seeds)}."
    lines = [
        *(f"### {experiment.name}", "", *textwrap.wrap(text, 100, break_long_words=False, break_on_hyphens=False), ""),
        "| algorithm | " + " | ".join(at(experiment, sizes) for sizes in experiment.points) + " |",
        "| --- " * (len(experiment.points) + 1) + "|",
    ]
    for finding in findings:
        by_sizes = {point.sizes: point for point in finding.points}
        cells = [_cell(finding, by_sizes.get(sizes), sizes, seeds=len(seeds) != 1) for sizes in experiment.points]
        lines.append(f"| {finding.row.label} | {' | '.join(cells)} |")
    refused = [line for finding in findings for line in _refusals(experiment, finding)]
    return [*lines, "", *refused, *([""] if refused else [])]


def _refusals(experiment: Experiment, finding: Finding) -> list[str]:
    """At which points a row has no figure, with the reason at the first of them."""
    if not finding.refused:
        return []
    places = ", ".join(at(experiment, sizes) for sizes in finding.refused)
    why = next(iter(finding.refused.values())).splitlines()[0].partition(" Feasible here")[0]
    return [f"* No figure: {finding.row.label}, {places}: {why.removeprefix('Infeasible: ')}"]


def _cell(finding: Finding, point: Point | None, sizes: Sizes, *, seeds: bool) -> str:
    if point is None:
        return "none" if sizes in finding.refused else "not run"
    if math.isnan(point.value):
        return "out of reach" if finding.experiment.target else f"{finding.experiment.rounds[-1]} or more"
    error = "" if math.isnan(point.error) else f" ± {point.error:.1g}"
    notes = [f"{point.seeds} seeds"] if seeds else []
    notes += [f"{point.failed:.0%} failed"] if point.failed else []
    notes += [f"excess {point.excess:.2g}"] if finding.experiment.measure == "removed" else []
    form = ",.0f" if finding.experiment.measure in ("rounds", "gradients") else ".3g"
    return f"{point.value:{form}}{error}" + (f" ({', '.join(notes)})" if notes else "")
