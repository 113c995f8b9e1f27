"""What a curator's run released, as a page for people. Nothing on it depends on private data but the releases."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quoron.model import Model
from quoron.reports import page, sections
from quoron.reports.health import Health
from quoron.reports.page import Card, Fact, Raw, Section, Table
from quoron.reports.pictures import Reach, gauge
from quoron.reports.sections import Odds
from quoron.run_folder import CHOICE, RunFolder

if TYPE_CHECKING:
    from quoron.training.result import TrainingSummary

UNMEASURED = "Nobody was kept apart, so nobody knows: train with --holdout 0.1, or see “quoron evaluate”."
FOOTER = (
    "Made by quoron. All that this page says of the table was released with noise within the guarantee, or is public: "
    "it may be shown to anybody."
)

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
    name = folder.path.resolve().name
    return folder.write_text("report.html", page.document(name, lead=lead, parts=parts, simulated=False, footer=FOOTER))


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
    return [
        Section(cards=_cards(summary, odds)),
        *sections.evaluation(summary.evaluation, (summary.statement, *summary.warnings)),
        Section(title="To take care of", warnings=care),
        *(_search(folder) if folder.is_search else ()),
        sections.coefficients(model, most),
        *sections.privacy(summary.statement, summary.adjacency, odds),
        Section(title="What was charged, and what is left", rows=_charged(summary)),
        *_health(summary.health),
        Section(title="What was bought of the table", tables=[Table("Facts with noise", heads, bought)]),
        sections.rounds(rows),
        *sections.making(folder, _made(summary, model), real=True),
    ]


def _sentence(words: str) -> str:
    """Begun with a capital, unless it begins with the name of a setting."""
    return words if "." in words.partition(" ")[0] else words[:1].upper() + words[1:]


def _cards(summary: "TrainingSummary", odds: Odds) -> list[Card]:
    """How good, how private, of whom, and what is left."""
    best = None if summary.evaluation is None else sections.best_figure(summary.evaluation)
    if best is None:
        best = Card("how good is it?", "not measured", summary.foretold() or UNMEASURED)
    left = f"left: {summary.group_left}" if summary.group_left else "no limit is set; “quoron ledger limit” sets one"
    return [
        best,
        sections.risked(odds),
        Card("people who trained it", f"{summary.users:,}", "all rows of one person are protected together"),
        Card(f"spent by population {summary.group!r}", f"ε = {summary.group_epsilon:.3g}", left),
    ]


def _charged(summary: "TrainingSummary") -> list[Fact]:
    """This run's charge, and the account that it went to."""
    after = Odds(summary.group_epsilon, summary.group_delta, summary.group_mu, summary.group_variation)
    worth = f", μ = {summary.mu:.4g}" if summary.mu is not None else ""
    so_far = f"ε = {summary.group_epsilon:.4g} at δ = {summary.group_delta:.3g}: a guess about one person is right in "
    charged = [
        Fact("charged for this run", f"ε = {summary.epsilon:g}, δ = {summary.delta:g}{worth} ({summary.adjacency})"),
        Fact("charged to the population", summary.group),
        Fact("all of its releases together", f"{so_far}{after.percent} of cases at most"),
        Fact("limit", summary.group_limit),
    ]
    evaluated = summary.evaluation
    if evaluated is not None:
        of = f"of {evaluated.users:,} people who are not in this run"
        price = f"ε = {evaluated.epsilon:g}, δ = {evaluated.delta:g}, {of}"
        charged.insert(1, Fact("charged for the evaluation beside it", price))
    return charged


def _health(health: Health | None) -> list[Section]:
    """Shares of users, with noise."""
    if health is None:
        return []
    rows = []
    for line in health.lines:
        reach = (max(line.share - 2 * line.error, 0.0), min(line.share + 2 * line.error, 1.0))
        drawn = Raw(gauge(min(max(line.share, 0.0), 1.0), reach, (0.0, 1.0)))
        rows.append([line.what, line.text(health.users), drawn])
    said = "Means over people, released with noise; ± is its standard deviation, a bar two of them to either side."
    table = Table("Shares of people", ["what", "share", "from 0 to 100 %"], rows)
    return [Section(title="How the table fits its declarations", note=[said], tables=[table])]


def _made(summary: "TrainingSummary", model: Model) -> list[Fact]:
    """Its method and its marks."""
    elsewhere = [] if summary.evaluation is None else summary.evaluation.rows()
    elsewhere += [] if summary.health is None else summary.health.table()
    told = [
        Fact(*row)
        for row in summary.rows()
        if not (row in elsewhere or row[0].startswith(("estimated: ", "privacy budget of ")))
    ]
    if summary.choice is not None:
        told.insert(1, Fact("why this method", summary.choice))
    if model.promise is not None:
        told += [Fact("begun on", model.promise.made or ""), Fact("digest of its plan", model.promise.plan)]
    return [*told, Fact("run in the account", summary.run), Fact("by quoron", summary.version)]


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
    noise = choice["score_noise"]
    reach: Reach = (choice["score"] - 2 * noise, choice["score"] + 2 * noise)
    best = Raw(gauge(choice["score"], reach, (min(0.0, reach[0] or 0.0), max(1.0, reach[1] or 1.0))))
    rows = [[each["name"], "chosen" if each["name"] == choice["name"] else ""] for each in search["candidates"]]
    rows += [[each["name"], f"left out: {each['why']}"] for each in search["refused"]]
    lines = [
        *choice_rows(choice),
        ("the score from 0 to 1, with two deviations of its noise", best),
        ("people who scored every trial", f"{search['held_out']:,} of {search['users']:,}, who trained none"),
    ]
    table = Table("Settings", ["setting", ""], rows)
    return [Section(title="What was searched", note=[SECRET_TRIALS], rows=lines, tables=[table])]
