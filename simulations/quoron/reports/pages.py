"""HTML pages of a data holder's run, of an evaluation, of statistics of a table, and of a simulation.

Nothing on the page of a real run depends on private data but what it released. A simulation's page marks the figures
that no real run could show.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quoron.evaluation.evaluation import Evaluation
from quoron.reports import page, sections
from quoron.reports.page import ONLY, Section, Table
from quoron.reports.sections import Odds
from quoron.reports.summary import Summary
from quoron.results import in_units, percent
from quoron.run_folder import CHOICE, RunFolder
from quoron_client.durable import replace_whole

if TYPE_CHECKING:  # callers with one have imported it
    from quoron.model import Model
    from quoron.releases.statistics import Statistics
    from quoron.training.result import TrainingSummary
    from quoron.training.rows import TrainedRows


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
) -> None:
    """Write report.html; `rows` are those of rounds.parquet."""
    parts, lead = simulation_sections(folder, summary, model, rows), f"A simulation of {summary.algorithm}."
    made = page.document(folder.path.resolve().name, parts, lead=lead, simulated=True)
    folder.write_text("report.html", made)


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


UNKNOWN = "It was not measured: no users were held out. Pass holdout=0.1 and metrics."
UNMEASURED = "Nobody was kept apart, so nobody knows: train with --holdout 0.1, or see “quoron evaluate”."
SECRET_TRIALS = (
    "Each trial took one of these settings at random. How the others did, how often each was tried and how many trials "
    "there were is known to nobody: that is why trying them all costs little more than one."
)


def write_training(
    folder: RunFolder, summary: "TrainingSummary", model: "Model", rows: Sequence[Mapping[str, Any]]
) -> None:
    """Write report.html; `rows` are those of rounds.parquet."""
    day = f" on {model.promise.made}" if model.promise is not None and model.promise.made is not None else ""
    lead = f"A model made with privacy for everybody in the table{day}, by {summary.algorithm}."
    parts, name = training_sections(folder, summary, model, rows), folder.path.resolve().name
    folder.write_text("report.html", page.document(name, parts, lead=lead))


def write_rows(folder: RunFolder, trained: "TrainedRows[Any]", started: str) -> None:
    """Write report.html of a model whose rows somebody else computes, which began at public weights or at zero."""
    promise, problem, measured = trained.guarantee, trained.plan.problem, trained.evaluation
    made = [
        ("algorithm", trained.plan.algorithm),
        ("users", f"{problem.users:,}, all items of one of them are protected together"),
        ("numbers trained", f"{problem.dimension:,}, from {started}"),
        *[row for row in trained.plan.rows() if row[0] == "rounds"],
    ]
    simulated = trained.statement.startswith("SIMULATED")
    odds = None if simulated else Odds(promise.epsilon, promise.delta)
    parts = [
        *(sections.evaluation(measured) if measured else [Section(title="How good the model is", note=[UNKNOWN])]),
        *sections.privacy(trained.statement, promise.adjacency, odds),
        Section(title="How it was made", rows=made),
    ]
    lead = f"A model made with privacy for every user, by {trained.plan.algorithm}."
    name = folder.path.resolve().name
    folder.write_text("report.html", page.document(name, parts, lead=lead, simulated=simulated))


def training_sections(
    folder: RunFolder,
    summary: "TrainingSummary",
    model: "Model",
    rows: Sequence[Mapping[str, Any]] = (),
    most: int | None = sections.FEATURES,
) -> list[Section]:
    """A run's sections, with so many coefficients at most."""
    odds = Odds(summary.epsilon, summary.delta, summary.mu, summary.variation)
    care = [_sentence(each) for each in (*summary.warnings, summary.unseen)]
    heads, estimates = ["column", "released"], [[each.column, each.text()] for each in summary.estimates]
    measured, quality = summary.evaluation, summary.data_quality
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
            note=[] if quality is None else ["Means over people, released with noise; ± is its standard deviation."],
            rows=[] if quality is None else quality.table(),
        ),
        Section(title="What was estimated of the table", tables=[Table("Facts with noise", heads, estimates)]),
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


def _made(summary: "TrainingSummary", model: "Model") -> list[tuple[str, str]]:
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
