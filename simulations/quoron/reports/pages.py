"""HTML pages of an evaluation, of statistics of a table, and of a simulation.

A simulation's page marks the figures that no real run could show.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quoron.evaluation.evaluation import Evaluation
from quoron.reports import page, sections
from quoron.reports.page import ONLY, Section, Table
from quoron.reports.sections import Odds
from quoron.reports.summary import Summary
from quoron.results import in_units
from quoron.run_folder import RunFolder
from quoron_client.durable import replace_whole

if TYPE_CHECKING:  # callers with one have imported it
    from quoron.model import Model
    from quoron.releases.statistics import Statistics


def write_release(found: "Evaluation | Statistics", path: str | Path) -> Path:
    """Write the page of an evaluation or of statistics, one file that loads nothing, and return its path."""
    made = page.document(
        "How good a model is" if isinstance(found, Evaluation) else "Statistics of a table",
        release_sections(found),
        lead="Figures with noise that protects everybody in the table, each with a 95 % interval.",
        simulated=found.statement.startswith("SIMULATED"),
    )
    replace_whole(Path(path), made.encode("utf-8"), mode=0o644)
    return Path(path)


def release_sections(found: "Evaluation | Statistics") -> list[Section]:
    """The sections of an evaluation or of statistics."""
    adjacency = "zero-out" if "adjacency zero-out" in found.statement else "replace-one"
    most = "at most; " if adjacency == "zero-out" else ""
    rows = [
        ("people", f"{found.users:,}, {most}all rows of one person are protected together"),
        ("what it cost", f"ε = {found.epsilon:g} at δ = {found.delta:g}, charged once"),
    ]
    return [
        *(sections.evaluation(found) if isinstance(found, Evaluation) else [_answers(found)]),
        Section(title="To take care of", warnings=[each[:1].upper() + each[1:] for each in found.remarks]),
        Section(title="Of whom, and for what", rows=rows),
        *sections.privacy(found.statement, adjacency, Odds(found.epsilon, found.delta)),
    ]


def _answers(found: "Statistics") -> Section:
    """A table for each question."""
    tables: dict[str, list[list[str]]] = {}
    for row in found.figures:
        value, low, high = (row.shown(each, in_units) for each in (row.value, row.low, row.high))
        name = " ".join(filter(None, (row.group, row.cell))) or "all"
        tables.setdefault(row.question, []).append([name, value, f"{low} to {high}"])
    listed = [Table(question, [question, "value", "95 % interval"], rows) for question, rows in tables.items()]
    return Section(title="What was asked", tables=listed)


def write_simulation(
    folder: RunFolder, summary: Summary, model: "Model | None", rows: Sequence[Mapping[str, Any]]
) -> Path:
    """Write report.html, and return its path; `rows` are those of rounds.parquet."""
    parts, lead = simulation_sections(folder, summary, model, rows), f"A simulation of {summary.algorithm}."
    made = page.document(folder.path.resolve().name, parts, lead=lead, simulated=True)
    return folder.write_text("report.html", made)


def simulation_sections(
    folder: RunFolder, summary: Summary, model: "Model | None", rows: Sequence[Mapping[str, Any]] = ()
) -> list[Section]:
    """A simulation's sections."""
    odds = None if summary.epsilon is None else Odds(summary.epsilon, summary.delta, summary.mu, summary.variation)
    why = [] if summary.choice is None else [("why this method", summary.choice)]
    return [
        Section(title=f"To take care of{ONLY}", warnings=summary.remarks_simulation_only),
        Section(title=f"How good the model is{ONLY}", rows=summary.quality()),
        sections.coefficients(model),
        *sections.privacy(summary.statement, summary.adjacency, odds),
        sections.rounds(rows, summary),
        *sections.making(folder, [*summary.method(), *why, *summary.costs()], real=False),
    ]
