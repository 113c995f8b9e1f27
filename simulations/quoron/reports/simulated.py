"""What a simulation reached, as a page for people; figures that no real run could show are marked."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quoron.reports import page, sections
from quoron.reports.page import Card, Fact, Section
from quoron.reports.sections import Odds
from quoron.reports.summary import OF_RELEASES, Summary
from quoron.run_folder import RunFolder

if TYPE_CHECKING:  # of a table, whoever has one brings it
    from quoron.model import Model

FOOTER = "Made by quoron. What is marked “simulation only” depends on private data; no deployment may show it."
QUALITY = "excess risk", "that was predicted to be", "of that by the domain's bound", "held-out "  # rows begin so


def write_simulation(
    folder: RunFolder, summary: Summary, model: "Model | None", rows: Sequence[Mapping[str, Any]]
) -> Path:
    """Write report.html, and return its path; `rows` are those of rounds.parquet."""
    lead, parts = f"A simulation of {summary.algorithm}.", simulation_sections(folder, summary, model, rows)
    name = folder.path.resolve().name
    return folder.write_text("report.html", page.document(name, lead=lead, parts=parts, simulated=True, footer=FOOTER))


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
        Section(cards=_cards(summary, odds), detail=True),
        Section(title="To take care of", warnings=summary.remarks_simulation_only, private=True),
        Section(title="How good the model is", rows=good, private=True),
        sections.coefficients(model),
        *sections.privacy(summary.statement, summary.adjacency, odds),
        sections.rounds(rows, summary),
        *sections.making(folder, made, real=False),
    ]


def _cards(summary: Summary, odds: Odds | None) -> list[Card]:
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
