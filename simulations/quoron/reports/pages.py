"""HTML pages of an evaluation, of statistics of a table, and of a simulation.

A simulation's page marks the figures that no real run could show.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quoron.evaluation.evaluation import Evaluation, in_units
from quoron.reports import page, sections
from quoron.reports.page import Card, Fact, Raw, Section, Table
from quoron.reports.pictures import gauge
from quoron.reports.sections import Odds
from quoron.reports.summary import OF_RELEASES, Summary
from quoron.run_folder import RunFolder
from quoron_client.durable import replace_whole

if TYPE_CHECKING:  # whoever has some brings it
    from quoron.releases.statistics import Row, Statistics

if TYPE_CHECKING:  # of a table, whoever has one brings it
    from quoron.model import Model


FOOTER = "Made by quoron. Every figure on this page was released with noise within the guarantee, or is public."


def evaluation(found: Evaluation, path: str | Path) -> Path:
    """Write the page of an evaluation, one file that loads nothing, and return its path."""
    return _written(Path(path), found, "How good a model is", sections.evaluation(found, (found.statement,)))


def statistics(found: "Statistics", path: str | Path) -> Path:
    """Write the page of statistics, a table for each question, and return its path."""
    asked = dict.fromkeys(row.question for row in found.figures)
    answers = [_answer(each, [row for row in found.figures if row.question == each]) for each in asked]
    told = Section(title="What was asked", tables=answers, warnings=found.remarks)
    return _written(Path(path), found, "Statistics of a table", [told])


def _answer(question: str, rows: "list[Row]") -> Table:
    inside = [end for row in rows for end in (row.value, row.low, row.high) if math.isfinite(end)]
    ends = min(0.0, *inside) if not rows[0].dated else min(inside), max(inside)
    ends = ends if ends[0] < ends[1] else (ends[0] - 1.0, ends[1] + 1.0)
    listed: list[list[str]] = []
    for row in rows:
        value, low, high = (row.shown(each, in_units) for each in (row.value, row.low, row.high))
        held = (max(row.low, ends[0]), min(row.high, ends[1]))
        name = " ".join(filter(None, (row.group, row.cell))) or "all"
        listed.append([name, value, f"{low} to {high}", Raw(gauge(row.value, held, ends))])
    return Table(question, ["", "value", "95 % interval", ""], listed)


def _written(path: Path, found: "Evaluation | Statistics", name: str, told: list[Section]) -> Path:
    odds = Odds(found.epsilon, found.delta)
    adjacency = "zero-out" if "adjacency zero-out" in found.statement else "replace-one"
    most = "at most; " if adjacency == "zero-out" else ""
    cards = [
        Card("people", f"{found.users:,}", f"{most}all rows of one person are protected together"),
        sections.risked(odds),
        Card("what it cost", f"ε = {found.epsilon:g}", f"at δ = {found.delta:g}, charged once"),
    ]
    made = page.document(
        name,
        lead="Figures with noise that protects everybody in the table, each with a 95 % interval.",
        parts=[Section(cards=cards), *told, *sections.privacy(found.statement, adjacency, odds)],
        simulated=found.statement.startswith("SIMULATED"),
        footer=FOOTER,
    )
    replace_whole(path, made.encode("utf-8"), mode=0o644)
    return path


SIMULATION_FOOTER = (
    "Made by quoron. What is marked “simulation only” depends on private data; no deployment may show it."
)
QUALITY = "excess risk", "that was predicted to be", "of that by the domain's bound", "held-out "  # rows begin so


def write_simulation(
    folder: RunFolder, summary: Summary, model: "Model | None", rows: Sequence[Mapping[str, Any]]
) -> Path:
    """Write report.html, and return its path; `rows` are those of rounds.parquet."""
    lead, parts = f"A simulation of {summary.algorithm}.", simulation_sections(folder, summary, model, rows)
    name = folder.path.resolve().name
    return folder.write_text(
        "report.html", page.document(name, lead=lead, parts=parts, simulated=True, footer=SIMULATION_FOOTER)
    )


def simulation_sections(
    folder: RunFolder, summary: Summary, model: "Model | None", rows: Sequence[Mapping[str, Any]] = ()
) -> list[Section]:
    """A simulation's sections."""
    odds = None if summary.epsilon is None else Odds(summary.epsilon, summary.delta, summary.mu, summary.variation)
    told = [Fact(label, text, private=label not in OF_RELEASES) for label, text in summary.rows()]
    good = [each for each in told if each.label.startswith(QUALITY) or each.label.endswith(", with 95 %")]
    made = [each for each in told if each not in good]
    if summary.choice is not None:
        made.insert(1, Fact("why this method", summary.choice))
    return [
        Section(cards=_simulation_cards(summary, odds), detail=True),
        Section(title="To take care of", warnings=summary.remarks_simulation_only, private=True),
        Section(title="How good the model is", rows=good, private=True),
        sections.coefficients(model),
        *sections.privacy(summary.statement, summary.adjacency, odds),
        sections.rounds(rows, summary),
        *sections.making(folder, made, real=False),
    ]


def _simulation_cards(summary: Summary, odds: Odds | None) -> list[Card]:
    """How good, how private, of whom, and how far from the best."""
    known: list[Card] = []
    if name := next((name for name in ("auc", "accuracy", "rmse") if name in summary.test), None):
        always = summary.test_baseline.get(name)
        beside = "on people held out" + ("" if always is None else f"; always the same answer {always:.4g}")
        known.append(Card("AUC" if name == "auc" else name, f"{summary.test[name]:.4g}", beside, private=True))
    risk = summary.excess_risk
    if risk is not None:
        predicted = summary.predicted_excess_risk
        beside = "over the best model without privacy"
        beside += "" if predicted is None else f"; predicted at most {predicted:.2g}"
        known.append(Card("excess risk", f"{risk:.2g}", beside, private=True))
    asked = Card("people asked", f"{summary.users_asked:,}", f"in {summary.rounds:,} rounds")
    return [*known, sections.risked(odds), asked]
