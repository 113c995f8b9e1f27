"""What a data holder's run released, as a page for people. Nothing on it depends on private data but the releases."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quoron.model import Model
from quoron.reports import page, sections
from quoron.reports.page import Section, Table
from quoron.reports.sections import Odds
from quoron.results import percent
from quoron.run_folder import CHOICE, RunFolder

if TYPE_CHECKING:
    from quoron.training.result import TrainingSummary

UNMEASURED = "Nobody was kept apart, so nobody knows: train with --holdout 0.1, or see “quoron evaluate”."
SECRET_TRIALS = (
    "Each trial took one of these settings at random. How the others did, how often each was tried and how many trials "
    "there were is known to nobody: that is why trying them all costs little more than one."
)


def write_training(
    folder: RunFolder, summary: "TrainingSummary", model: Model, rows: Sequence[Mapping[str, Any]]
) -> Path:
    """Write report.html, and return its path; `rows` are those of rounds.parquet."""
    day = f" on {model.promise.made}" if model.promise is not None and model.promise.made is not None else ""
    lead = f"A model made with privacy for everybody in the table{day}, by {summary.algorithm}."
    parts = training_sections(folder, summary, model, rows)
    return folder.write_text("report.html", page.document(folder.path.resolve().name, parts, lead=lead))


def training_sections(
    folder: RunFolder,
    summary: "TrainingSummary",
    model: Model,
    rows: Sequence[Mapping[str, Any]] = (),
    most: int | None = sections.FEATURES,
) -> list[Section]:
    """A run's sections, with so many coefficients at most."""
    odds = Odds(summary.epsilon, summary.delta, summary.mu, summary.variation)
    care = [_sentence(each) for each in (*summary.warnings, summary.unseen)]
    heads, bought = ["column", "released"], [[each.column, each.text()] for each in summary.bought]
    measured, health = summary.evaluation, summary.health
    unmeasured = [Section(title="How good the model is", note=[summary.foretold() or UNMEASURED])]
    return [
        *(sections.evaluation(measured) if measured else unmeasured),
        Section(title="To take care of", warnings=care),
        *(_search(folder) if folder.is_search else ()),
        sections.coefficients(model, most),
        *sections.privacy(summary.statement, summary.adjacency, odds),
        Section(title="What was charged, and what is left", rows=_charged(summary)),
        Section(
            title="How the table fits its declarations",
            note=[] if health is None else ["Means over people, released with noise; ± is its standard deviation."],
            rows=[] if health is None else health.table(),
        ),
        Section(title="What was bought of the table", tables=[Table("Facts with noise", heads, bought)]),
        sections.rounds(rows),
        *sections.making(folder, _made(summary, model), real=True),
    ]


def _sentence(words: str) -> str:
    """Begun with a capital, unless it begins with the name of a setting."""
    return words if "." in words.partition(" ")[0] else words[:1].upper() + words[1:]


def _charged(summary: "TrainingSummary") -> list[tuple[str, str]]:
    """This run's charge, and the account that it went to."""
    after = Odds(summary.group_epsilon, summary.group_delta, summary.group_mu, summary.group_variation)
    worth = f", μ = {summary.mu:.4g}" if summary.mu is not None else ""
    so_far = f"ε = {summary.group_epsilon:.4g} at δ = {summary.group_delta:.3g}: a guess about one person is right in "
    charged = [
        ("charged for this run", f"ε = {summary.epsilon:g}, δ = {summary.delta:g}{worth} ({summary.adjacency})"),
        ("charged to the population", summary.group),
        ("all of its releases together", f"{so_far}{percent(after.right)} of cases at most"),
        ("limit", summary.group_limit),
        ("left", summary.group_left or "no limit is set; “quoron ledger limit” sets one"),
    ]
    evaluated = summary.evaluation
    if evaluated is not None:
        of = f"of {evaluated.users:,} people who are not in this run"
        price = f"ε = {evaluated.epsilon:g}, δ = {evaluated.delta:g}, {of}"
        charged.insert(1, ("charged for the evaluation beside it", price))
    return charged


def _made(summary: "TrainingSummary", model: Model) -> list[tuple[str, str]]:
    """Its method and its marks."""
    rows = summary.method()
    if summary.choice is not None:
        rows.insert(1, ("why this method", summary.choice))
    if model.promise is not None:
        rows += [("begun on", model.promise.made or ""), ("digest of its plan", model.promise.plan)]
    return [*rows, ("run in the account", summary.run), ("by quoron", summary.version)]


def choice_rows(choice: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What a search chose, its score and what it cost, of choice.json."""
    said, score = choice["price"], f"{choice['score']:.4g} ± {choice['score_noise']:.2g}"
    shown = f"{said['candidates']:,} settings shown one after the other: ε = {said['open_search_epsilon']:.4g}"
    return [
        ("chosen", choice["name"]),
        (f"its {choice['score_name']}", f"{score} (the best of several: rather too high)"),
        ("the whole search", f"ε = {said['epsilon']:.4g} at δ = {said['delta']:g}; trials: {said['trials']}"),
        ("one trial", f"ε = {said['trial_epsilon']:.4g} at the same δ"),
        ("in the open", shown),
    ]


def _search(folder: RunFolder) -> list[Section]:
    """What a complete search tried, chose and cost: public numbers, and the score that was released."""
    choice, search = folder.read_json(CHOICE), folder.read_json("plan.json")["search"]
    rows = [[each["name"], "chosen" if each["name"] == choice["name"] else ""] for each in search["candidates"]]
    rows += [[each["name"], f"left out: {each['why']}"] for each in search["refused"]]
    lines = [
        *choice_rows(choice),
        ("people who scored every trial", f"{search['held_out']:,} of {search['users']:,}, who trained none"),
    ]
    table = Table("Settings", ["setting", ""], rows)
    return [Section(title="What was searched", note=[SECRET_TRIALS], rows=lines, tables=[table])]
