"""What commands print: a plan, the sections of a result's page, the tables of algorithms and presets.

What only a reader of proofs asks for stands in plan.json, on the page, and behind `quoron show RUN --details`.
"""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from quoron.api.simulating import algorithms
from quoron.planning.choosing import Candidate, refusals, risk_sentence, risk_words
from quoron.planning.plans import SURE, Plan
from quoron.presets import presets
from quoron.reports import pages
from quoron.reports.page import Section, Table
from quoron.reports.summary import Summary
from quoron.reports.terminal import Terminal
from quoron.reports.terminal import show as render
from quoron.results import Release, size
from quoron.run_folder import RunFolder
from quoron.simulation import comparison as compared
from quoron.simulation.comparison import Comparison
from quoron.simulation.run import SimulatedRun
from quoron_server.algorithms.spec import start_risk
from quoron_server.serial import dumps
from quoron_server.wording import domain_words

if TYPE_CHECKING:
    from quoron.training.result import TrainedTable

COEFFICIENTS = 4  # that are shown
DRY = (
    "Dry run: nothing is charged, and of the table only its users are counted. Next: the same without --dry-run. "
    "--json has every number and the theorem."
)


def show(result: Any, *, as_json: bool, dry: bool = False) -> None:
    """Print what has been carried out, without details; or what would be, and whether this is a `dry` run."""
    _put(lambda: [*sections_of(result), Section(below=[DRY] if dry else [])], result.as_json, as_json=as_json)


def _put(parts: Callable[[], list[Section]], plain: Callable[[], Any], *, as_json: bool) -> None:
    """Print sections, or as JSON the plain values."""
    if as_json:
        print(dumps(plain()))
    else:
        render(console(), parts())


def sections_of(result: Any, *, details: bool = False) -> list[Section]:
    """Return what a terminal shows of a result: the sections of its page, and where its files are."""
    if isinstance(result, SimulatedRun):
        planned, of_table = result.planned, result.config.population.kind == "table"
        below = infeasible(planned.candidates) if result.config.algorithm.name == "auto" else []
        return [
            warnings_section(planned.doubts),
            *pages.simulation_sections(result.summary, None),
            Section(warnings=planned.remarks if of_table else (), below=below),
            _files("Run folder", result.directory),
        ]
    if isinstance(result, Plan):
        return _of_plan(result)
    if isinstance(result, Comparison):
        listed = compared.comparison_sections(result.cells, result.request)
        return [*listed, Section(below=[SURE]), _files("Tables in", result.directory)]
    if isinstance(result, Release):
        return pages.release_sections(result)  # type: ignore[arg-type]  # the two that commands make
    if not hasattr(result, "summary"):  # a search, before it begins
        names = [candidate.name for candidate in result.candidates]
        searched = Section(note=[result.statement], rows=result.rows(), warnings=result.remarks, below=names)
        return [warnings_section(result.doubts), searched]
    most = None if details else COEFFICIENTS
    shown = pages.training_sections(RunFolder(result.directory), result.summary, result.model, most=most)
    model = result.directory / "model.json"
    return [*shown, Section(note=[f"Model {model}; predict with: quoron predict {model} NEW.csv"])]


def _files(what: str, folder: Path) -> Section:
    return Section(note=[f"{what} {folder}; open {folder / 'report.html'}"])


def show_stored(done: "Summary | TrainedTable | Comparison", folder: Path, *, as_json: bool, details: bool) -> None:
    """What a folder holds: ten lines, or with `details` all of them, and the path of its page if it has one."""
    page = folder / "report.html"
    where = {"report": str(page)} if page.is_file() else {}
    if as_json:
        print(dumps(done.as_json() | {"directory": str(folder)} | where))
        return
    if details:
        shown = pages.simulation_sections(done, None) if isinstance(done, Summary) else None
        render(console(), shown or sections_of(done, details=True), details=True)
    else:
        print(done)
    if where:
        print(page)


def _of_plan(planned: Plan) -> list[Section]:
    """Its promise, its numbers, what others would do or why they cannot, rounds curve, answers to questions."""
    chosen, why = planned.plan, [] if planned.choice is None else [f"Chosen {planned.choice}"]
    feasible = [candidate for candidate in planned.candidates if candidate.plan is not None]
    feasible.sort(key=lambda candidate: (candidate.predicted is None, candidate.predicted or candidate.guess or 0.0))
    listed = [_candidate_row(candidate, chosen.algorithm) for candidate in feasible]
    heads = ["algorithm", "predicted excess risk", "trust_model", "rounds", "messages", "payload"]
    others = Section(tables=[Table("Algorithms", heads, listed)], below=[SURE, *infeasible(planned.candidates)])
    return [
        warnings_section(planned.doubts),
        Section(note=[planned.statement, *why], rows=plan_rows(planned), warnings=planned.remarks),
        *([others] if len(planned.candidates) > 1 else []),
        *_of_rounds(planned),
        *([] if planned.advice is None else [Section(rows=planned.advice.rows())]),
    ]


def _of_rounds(planned: Plan) -> list[Section]:
    """One line a number of rounds."""
    if (curve := planned.curve) is None:
        return []
    marks = [("chosen", planned.plan.cost.rounds), ("least", curve.best), ("fewest within 5 %", curve.nearly_best)]
    rows = [
        [f"{rounds:,}", f"{risk:.2g}", ", ".join(word for word, at in marks if at == rounds)]
        for rounds, risk in curve.points
    ]
    heads = ["rounds", "predicted excess risk" if curve.measured else "excess risk, a guess", ""]
    title = f"How many rounds {planned.plan.algorithm} needs"
    return [Section(title=title, tables=[Table(title, heads, rows)])]


def show_algorithms(*, as_json: bool) -> None:
    """The registry, and what is refused with its reason: that offers nothing."""
    cells = [[r["name"], r["summary"], r["from"], ", ".join(r["trust_models"]), r["theorem"]] for r in algorithms()]
    heads = ["name", "what it does", "from", "trust_model", "theorem"]
    _put(lambda: [Section(tables=[Table("Algorithms", heads, cells)])], algorithms, as_json=as_json)


def show_presets(*, as_json: bool) -> None:
    """The ready configurations."""
    rows = [{"name": one.name, "summary": one.summary} for one in presets()]
    listed = Table("Presets", ["name", "what it shows"], [[*row.values()] for row in rows])
    _put(lambda: [Section(tables=[listed])], lambda: rows, as_json=as_json)


def infeasible(candidates: Iterable[Candidate]) -> list[str]:
    """One line for each reason, with the algorithms that it rules out."""
    return [f"Infeasible here: {', '.join(names)}: {reason}" for reason, names in refusals(candidates)]


def plan_rows(planned: Plan) -> list[tuple[str, str]]:
    """Label and text of each number of a plan but its algorithm's own parameters, which stand in its JSON."""
    chosen, cost = planned.plan, planned.plan.cost
    rows = [
        ("algorithm", chosen.algorithm),
        (
            "users, items, dimension",
            f"{chosen.problem.users:,}, {chosen.problem.items_per_user:,}, {chosen.problem.dimension:,}",
        ),
        ("models", domain_words(chosen.problem)),
        ("rounds", f"{cost.rounds:,}"),
        ("messages", f"{cost.messages:,}"),
        ("payload up, down", f"{size(cost.bytes_up)}, {size(cost.bytes_down)}"),
        ("gradient evaluations", f"{cost.gradient_evaluations:,}"),
    ]
    paid = chosen.guarantee.estimates
    for part in () if paid is None else paid.costs():
        shown = "" if part.least is None else f", shown from {part.least:,.0f} users on"
        rows.append((f"estimated: {part.what}", f"{part.share:.2g} of μ²: ± {part.error:,.0f} users{shown}"))
    if chosen.guarantee.data_quality is not None:
        quality, left = chosen.guarantee.data_quality, 1 - (0.0 if paid is None else paid.share)
        sees = f"sees {100 * min(quality.visible, 1):.2g} % of the users or more without a usable row"
        rows.append(
            (
                "a data quality check first",
                f"{quality.share * left:.2g} of μ²: "
                f"{sees if quality.visible <= 1 else 'too few users to see anything'}",
            )
        )
    if bound := risk_sentence(chosen.predicted_excess_risk, chosen.guessed_excess_risk):
        start = f"without training at most {start_risk(chosen.problem):.2g}"
        rows.append(("predicted excess risk", f"{bound}; {start}"))
    if planned.forecast is not None and (words := planned.forecast.words()):
        rows.append(("that is", words))
    return rows


def warnings_section(warnings: Iterable[str]) -> Section:
    """Return warnings for the first lines, such as that a plan is no better than not training."""
    return Section(warnings=[f"Warning: {doubt}" for doubt in warnings])


def _candidate_row(candidate: Candidate, chosen: str) -> tuple[str, ...]:
    name = f"{candidate.algorithm} (chosen)" if candidate.algorithm == chosen else candidate.algorithm
    assert candidate.plan is not None
    cost, trust = candidate.plan.cost, candidate.plan.guarantee.trust_model
    moved = f"{cost.rounds:,}", f"{cost.messages:,}", size(cost.bytes_up + cost.bytes_down)
    return name, risk_words(candidate.predicted, candidate.guess) or "not predicted", trust, *moved


def console() -> Console:
    """Standard output: as wide as the terminal, or wide enough for any table."""
    terminal = Terminal()
    return terminal if terminal.is_terminal else Terminal(width=160)
