"""What is shown of a data holder's run, of an evaluation, of statistics of a table, and of a simulation.

Nothing on the page of a real run depends on private data but what it released. A simulation's page marks the figures
that no real run could show.

What (ε, δ) and μ mean for one person: how well the best test can tell whether data of theirs was what it is.

    >>> reading = Odds(1.0, 1e-6)
    >>> round(reading.right, 4), round(reading.power(0.05), 4)
    (0.7311, 0.1359)

Bounds, none of them an estimate. Statement and proof: docs/privacy/gaussian.md#odds.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np

from quoron.evaluation.evaluation import Evaluation
from quoron.reports import page
from quoron.reports.page import ONLY, Section, Table
from quoron.reports.summary import Choice, Summary
from quoron.results import in_units, percent
from quoron.run_folder import CARD, CHOICE, RunFolder
from quoron_client.data.encoding import outcomes

if TYPE_CHECKING:  # callers with one have imported it
    from quoron.model import Model
    from quoron.releases.statistics import Statistics
    from quoron.training.result import TrainingSummary
    from quoron.training.rows import TrainedRows

ALARMS = 0.05  # false alarm rate at which detection is reported
LARGEST = 10.0  # ε up to which a factor of odds is reported
_NORMAL = NormalDist()
_SWAPPED = {
    "replace-one": "your own data is in the table, or other data, that they know, in its place",
    "zero-out": "your data is in the table, or it was left out",
}


@dataclass(frozen=True, slots=True)
class Odds:
    """A promise, read. With `mu` all that is released is μ-GDP up to `variation`, which is nearly always less."""

    epsilon: float
    delta: float
    mu: float | None = None
    variation: float = 0.0

    def power(self, alarms: float) -> float:
        """Share of those whose data is there that any test finds at most, at this share of alarms (gaussian#od1)."""
        shift, rest = math.exp(min(self.epsilon, 700.0)), 1 - self.delta - alarms
        bounds = [1.0, shift * alarms + self.delta, 1 - max(rest, 0.0) / shift]
        if self.mu is not None:
            start = alarms + self.variation
            bounds.append((_NORMAL.cdf(_NORMAL.inv_cdf(start) + self.mu) if 0 < start < 1 else start) + self.variation)
        return min(bounds)

    @property
    def right(self) -> float:
        """Chance at most of a right guess between two tables that were as likely before (gaussian#od2)."""
        plain = 1 - (1 - self.delta) / (1 + math.exp(min(self.epsilon, 700.0)))
        return plain if self.mu is None else min(plain, _NORMAL.cdf(self.mu / 2) + self.variation)

    def words(self, adjacency: str) -> list[str]:
        """Return the same for people, in three sentences."""
        said = [
            f"Suppose somebody knows everything about everybody else, and that either {_SWAPPED[adjacency]}: one as "
            "likely as the other. Having seen all that was released, and with any computer, they guess which of the "
            f"two it is and are right {percent(self.right)} of the time at most. Without having seen anything it is "
            "50 %.",
            f"If they may falsely accuse {percent(ALARMS)} of those whose data is not there, they find at most "
            f"{percent(self.power(ALARMS))} of those whose data is. Pointing at random finds {percent(ALARMS)}.",
        ]
        if self.epsilon <= LARGEST:
            said.append(
                "Whatever they believed before, the odds that they give to the truth rise by a factor of more than "
                f"{rounded_up(2 * math.exp(self.epsilon))} (twice e to the ε) with a chance of "
                f"{chance(2 * self.delta)} at most."
            )
        return said


def chance(share: float) -> str:
    """Return a small probability that is a bound, rounded up, to three digits.

    >>> chance(2e-6), chance(1.3e-7), chance(0.02)
    ('1 in 500,000', '1 in 7,690,000', '2 %')
    """
    if share >= 0.001:
        return percent(share)
    many = (1 + 1e-9) / max(share, 1e-300)
    unit = 10.0 ** (math.floor(math.log10(many)) - 2)
    return f"1 in {math.floor(many / unit) * unit:,.0f}"


def rounded_up(value: float) -> str:
    """Return a number that is a bound, to three digits."""
    unit = 10.0 ** (math.floor(math.log10(value)) - 2)
    return f"{math.ceil(value / unit - 1e-9) * unit:,.6g}"


FEATURES, COLUMNS = 200, 12  # coefficients and columns that are shown
SPARE = (
    "This holds whatever else they know, now or later. It is about one person's data, all rows of it: what was learnt "
    "of people in general says as much of you whether you are in the table or not."
)
PLAIN = "docs/privacy/gaussian.md#odds"


def privacy(statement: str, adjacency: str, odds: Odds | None) -> list[Section]:
    """The promise in plain words, and the formal sentence; `odds` None: no promise."""
    if odds is None:
        return [Section(title="What is guaranteed", statement=statement)]
    exact = f", which this run keeps with μ = {odds.mu:.4g}" if odds.mu is not None else ""
    known = f"Bounds, not estimates, of ({odds.epsilon:g}, {odds.delta:g}){exact}."
    return [
        Section(
            title="What this means for one person",
            note=[*odds.words(adjacency), SPARE, known],
            detail=True,
        ),
        Section(title="The formal guarantee", statement=f"{statement} What that means: {PLAIN}."),
    ]


def evaluation(result: Evaluation) -> list[Section]:
    """Figures of held-out users, each with its interval and baseline."""
    note = (
        f"Of {result.users:,} people, by numbers with noise that protects them, too. Intervals cover that noise, and "
        "that these people are a sample of more; a figure is useless where its interval is too wide to say anything."
    )
    bins = [[f"{100 * group.predicted:.0f} %", group.text()] for group in result.calibration]
    return [
        Section(
            title="How good the model is",
            note=[note],
            rows=result.rows(),
        ),
        Section(
            title="Do predicted chances come true?",
            tables=[Table("Observed against predicted", ["where the model says", "it was so for (95 %)"], bins)],
        ),
    ]


def coefficients(model: "Model | None", most: int | None = FEATURES) -> Section:
    """What a model says: how far each column moves it, and each coefficient with its interval where there is one."""
    if model is None:
        return Section()
    classes, raw = outcomes(model.encoding.label), model.encoding.has_slopes
    table = model.coefficients()
    single = len(table[0][1]) == 1
    uncertain = (model.uncertainty or ()) if single else ()
    odds = model.loss.name == "logistic" and raw
    heads = ["feature", *(["coefficient"] if single else [f"for {name}" for name in classes])]
    heads += ["95 % interval"] if uncertain else []
    heads += ["odds times"] if odds else []
    rows: list[list[str]] = []
    for place, (name, values) in enumerate(table[:most]):
        reach = uncertain[place] if place < len(uncertain) else None
        row = [name, *map(in_units, values)]
        row += ["" if reach is None else " to ".join(map(in_units, reach))] if uncertain else []
        rows.append([*row, in_units(math.exp(min(max(values[0], -700), 700)))] if odds else row)
    more = len(table) - len(rows)
    note = [_reading(model, classes) + (f" {more:,} more are in the model's file." if more > 0 else "")]
    note += [f"Coefficients have {model.no_interval}."] if model.no_interval else []
    tables = [Table("Coefficients, in the columns' own units", heads, rows)]
    if model.encoding.bends and single and not model.encoding.normalize:
        spans = ((" and ".join(titles), float(np.ptp(effect))) for titles, effect in model.shapes().items())
        moving = [[name, in_units(span)] for name, span in sorted(spans, key=lambda span: -span[1])[:COLUMNS] if span]
        tables.append(Table("The columns that move it most, over their whole range", ["column", "by"], moving))
    return Section(title="What the model says", note=note, tables=tables)


def _reading(model: "Model", classes: Sequence[Any]) -> str:
    """Return how to read one coefficient."""
    if model.encoding.bends:
        return "Weights of polynomials and products of columns, each between -1 and 1: docs/train.md#models-that-bend."
    if model.encoding.normalize:
        return "Rows were divided by their own length: these are weights of encoded rows, and have no unit."
    if model.loss.name == "logistic" and len(classes) == 2:
        return (
            f"One unit more of a column multiplies the odds of “{classes[1]}” by “odds times”, the exponential of its "
            "coefficient. Values of a column of words are to be compared: divide one's “odds times” by another's."
        )
    if classes:
        return "One unit more of a column adds its coefficient to the score of a class; the largest score decides."
    return "One unit more of a column adds its coefficient to the prediction, in the label's own unit."


def release_sections(released: "Evaluation | Statistics") -> list[Section]:
    """Return the sections of an evaluation or of statistics."""
    adjacency = "zero-out" if "adjacency zero-out" in released.statement else "replace-one"
    most = "at most; " if adjacency == "zero-out" else ""
    rows = [
        ("people", f"{released.users:,}, {most}all rows of one person are protected together"),
        ("what it cost", f"ε = {released.epsilon:g} at δ = {released.delta:g}, charged once"),
    ]
    return [
        *(evaluation(released) if isinstance(released, Evaluation) else [_answers(released)]),
        Section(title="To take care of", warnings=[remark[:1].upper() + remark[1:] for remark in released.remarks]),
        Section(title="Of whom, and for what", rows=rows),
        *privacy(released.statement, adjacency, Odds(released.epsilon, released.delta)),
    ]


def _answers(statistics: "Statistics") -> Section:
    """Return a table for each question."""
    tables: dict[str, list[list[str]]] = {}
    for row in statistics.figures:
        value, low, high = (row.format(number, in_units) for number in (row.value, row.low, row.high))
        name = " ".join(filter(None, (row.group, row.cell))) or "all"
        tables.setdefault(row.question, []).append([name, value, f"{low} to {high}"])
    listed = [Table(question, [question, "value", "95 % interval"], rows) for question, rows in tables.items()]
    return Section(title="What was asked", tables=listed)


def write_simulation(folder: RunFolder, summary: Summary, model: "Model | None") -> None:
    """Write report.html."""
    parts, lead = simulation_sections(summary, model), f"A simulation of {summary.algorithm}."
    text = page.document(folder.path.resolve().name, parts, lead=lead, simulated=True)
    folder.write_text("report.html", text)


def simulation_sections(summary: Summary, model: "Model | None") -> list[Section]:
    """Return the sections of a simulation's report."""
    odds = None if summary.epsilon is None else Odds(summary.epsilon, summary.delta, summary.mu, summary.variation)
    why = [] if summary.choice is None else [("why this method", summary.choice)]
    return [
        Section(title=f"To take care of{ONLY}", warnings=summary.remarks_simulation_only),
        Section(title=f"How good the model is{ONLY}", rows=summary.quality()),
        coefficients(model),
        *privacy(summary.statement, summary.adjacency, odds),
        Section(title="How it was made", rows=[*summary.method(), *why, *summary.costs()]),
    ]


UNKNOWN = "It was not measured: no users were held out. Pass holdout=0.1 and metrics."
UNMEASURED = "Nobody was kept apart, so nobody knows: train with --holdout 0.1, or see “quoron evaluate”."
SECRET_TRIALS = (
    "Each trial took one of these settings at random. How the others did, how often each was tried and how many trials "
    "there were is known to nobody: that is why trying them all costs little more than one."
)


def write_training(folder: RunFolder, summary: "TrainingSummary", model: "Model") -> None:
    """Write report.html and the model card."""
    day = f" on {model.promise.made}" if model.promise is not None and model.promise.made is not None else ""
    lead = f"A model made with privacy for everybody in the table{day}, by {summary.algorithm}."
    parts, name = training_sections(folder, summary, model), folder.path.resolve().name
    folder.write_text(CARD, page.markdown(name, parts, lead=lead))
    folder.write_text("report.html", page.document(name, parts, lead=lead))


def write_rows(folder: RunFolder, trained: "TrainedRows[Any]", started: str) -> None:
    """Write report.html and the card of a model whose rows somebody else computes.

    It `started` at public weights or at zero.
    """
    promise, problem, measured = trained.guarantee, trained.plan.problem, trained.evaluation
    earlier = [(f"{label}, after {done} rounds", text) for done, part in trained.history for label, text in part.rows()]
    method = [
        ("algorithm", trained.plan.algorithm),
        ("users", f"{problem.users:,}, all items of one of them are protected together"),
        ("numbers trained", f"{problem.dimension:,}, from {started}"),
        *[row for row in trained.rows() if row[0] in ("rounds", "stopped early")],
    ]
    simulated = trained.statement.startswith("SIMULATED")
    odds = None if simulated else Odds(promise.epsilon, promise.delta)
    parts = [
        *(evaluation(measured) if measured else [Section(title="How good the model is", note=[UNKNOWN])]),
        Section(title="How good it was on the way", rows=earlier),
        *privacy(trained.statement, promise.adjacency, odds),
        Section(title="How it was made", rows=method),
    ]
    lead = f"A model made with privacy for every user, by {trained.plan.algorithm}."
    name = folder.path.resolve().name
    folder.write_text(CARD, page.markdown(name, parts, lead=lead))
    folder.write_text("report.html", page.document(name, parts, lead=lead, simulated=simulated))


def training_sections(
    folder: RunFolder, summary: "TrainingSummary", model: "Model", most: int | None = FEATURES
) -> list[Section]:
    """Return a run's sections, with so many coefficients at most."""
    odds = Odds(summary.epsilon, summary.delta, summary.mu, summary.variation)
    care = [_sentence(warning) for warning in (*summary.warnings, summary.unseen)]
    heads, estimates = ["column", "released"], [[bound.column, bound.text()] for bound in summary.estimates]
    measured, quality = summary.evaluation, summary.data_quality
    unmeasured = [Section(title="How good the model is", note=[summary.excess_risk() or UNMEASURED])]
    return [
        *(evaluation(measured) if measured else unmeasured),
        Section(title="To take care of", warnings=care),
        *(_search(folder) if folder.is_search else ()),
        coefficients(model, most),
        *privacy(summary.statement, summary.adjacency, odds),
        Section(title="What was charged, and what is left", rows=_charged(summary), detail=True),
        Section(
            title="How the table fits its declarations",
            note=[] if quality is None else ["Means over people, released with noise; ± is its standard deviation."],
            rows=[] if quality is None else quality.table(),
            detail=True,
        ),
        Section(title="What was estimated of the table", tables=[Table("Facts with noise", heads, estimates)]),
        Section(title="How it was made", rows=_method(summary, model), detail=True),
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


def _method(summary: "TrainingSummary", model: "Model") -> list[tuple[str, str]]:
    """Its method and its marks."""
    rows = summary.method()
    if summary.choice is not None:
        rows.insert(1, ("why this method", summary.choice))
    if model.promise is not None:
        rows += [("begun on", model.promise.made or ""), ("digest of its plan", model.promise.plan)]
    return [*rows, ("run in the account", summary.run), ("by quoron", summary.version)]


def _search(folder: RunFolder) -> list[Section]:
    """Return what a complete search tried, chose and cost: public numbers, and the score that was released."""
    choice, search = Choice(**folder.read_json(CHOICE)), folder.read_json("plan.json")["search"]
    rows = [[trial["name"], "chosen" if trial["name"] == choice.name else ""] for trial in search["candidates"]]
    rows += [[trial["name"], f"left out: {trial['why']}"] for trial in search["refused"]]
    lines = [
        *choice.rows(),
        ("people who scored every trial", f"{search['held_out']:,} of {search['users']:,}, who trained none"),
    ]
    table = Table("Settings", ["setting", ""], rows)
    return [Section(title="What was searched", note=[SECRET_TRIALS], rows=lines, tables=[table])]
