"""Pages of what is released outside of runs: an evaluation of a model, and statistics of a table."""

import math
from pathlib import Path
from typing import TYPE_CHECKING

from quoron.evaluating.evaluation import Evaluation, in_units
from quoron.reports import page, sections
from quoron.reports.page import Card, Raw, Section, Table
from quoron.reports.pictures import gauge
from quoron.reports.sections import Odds
from quoron_client.durable import replace_whole

if TYPE_CHECKING:  # whoever has some brings it
    from quoron.counting.told import Row, Statistics

FOOTER = "Made by quoron. Every figure on this page was released with noise within the promise, or is public."


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
