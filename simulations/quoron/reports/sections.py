"""What reports of all runs have in common: the promise in plain words, the model, how good it is, how it was made.

Nothing is drawn where there is nothing to see: a line that does not move is left out.

What (ε, δ) and μ mean for one person: how well the best test can tell whether data of theirs was what it is.

    >>> reading = Odds(1.0, 1e-6)
    >>> round(reading.right, 4), round(reading.found(0.05), 4)
    (0.7311, 0.1359)

Bounds, none of them an estimate. Statement and proof: docs/privacy/gaussian.md#odds.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np

from quoron.reports.page import ONLY, Picture, Section, Table
from quoron.reports.pictures import LOG, Axis, Line, bar, chart
from quoron.results import in_units, percent
from quoron.run_folder import FRAME, RunFolder
from quoron_client.data.encoding import outcomes

if TYPE_CHECKING:  # callers with one have imported it
    from quoron.evaluation.evaluation import Bin, Evaluation
    from quoron.model import Model
    from quoron.planning.plans import RoundsCurve
    from quoron.reports.summary import Summary


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

    def found(self, alarms: float) -> float:
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
        """The same for people, in three sentences."""
        said = [
            f"Suppose somebody knows everything about everybody else, and that either {_SWAPPED[adjacency]}: one as "
            "likely as the other. Having seen all that was released, and with any computer, they guess which of the "
            f"two it is and are right {percent(self.right)} of the time at most. Without having seen anything it is "
            "50 %.",
            f"If they may falsely accuse {percent(ALARMS)} of those whose data is not there, they find at most "
            f"{percent(self.found(ALARMS))} of those whose data is. Pointing at random finds {percent(ALARMS)}.",
        ]
        if self.epsilon <= LARGEST:
            said.append(
                "Whatever they believed before, the odds that they give to the truth rise by a factor of more than "
                f"{rounded_up(2 * math.exp(self.epsilon))} (twice e to the ε) with a chance of "
                f"{chance(2 * self.delta)} at most."
            )
        return said


def chance(share: float) -> str:
    """A small probability that is a bound, rounded up, to three digits.

    >>> chance(2e-6), chance(1.3e-7), chance(0.02)
    ('1 in 500,000', '1 in 7,690,000', '2 %')
    """
    if share >= 0.001:
        return percent(share)
    many = (1 + 1e-9) / max(share, 1e-300)
    unit = 10.0 ** (math.floor(math.log10(many)) - 2)
    return f"1 in {math.floor(many / unit) * unit:,.0f}"


def rounded_up(value: float) -> str:
    """A number that is a bound, to three digits."""
    unit = 10.0 ** (math.floor(math.log10(value)) - 2)
    return f"{math.ceil(value / unit - 1e-9) * unit:,.6g}"


Rows = Sequence[Mapping[str, Any]]
FEATURES, COLUMNS = 200, 12  # coefficients and columns that are shown
SPARE = (
    "This holds whatever else they know, now or later. It is about one person's data, all rows of it: what was learnt "
    "of people in general says as much of you whether you are in the table or not."
)
PLAIN = "docs/privacy/gaussian.md#odds"


def privacy(statement: str, adjacency: str, odds: Odds | None) -> list[Section]:
    """The promise in plain words with the best test's curve, and the formal sentence; `odds` None: no promise."""
    if odds is None:
        return [Section(title="What is guaranteed", statement=statement)]
    curve = [(100 * x, 100 * odds.found(x)) for x in (step / 200 for step in range(201))]
    drawn = chart(
        "Share of people found against share of people falsely accused",
        [
            Line("the best test that there can be, at most", curve),
            Line("pointing at random", [(0, 0), (100, 100)], "dashed"),
        ],
        Axis("falsely accused, %", ends=(0.0, 100.0)),
        Axis("found, %", ends=(0.0, 100.0)),
    )
    exact = f", which this run keeps with μ = {odds.mu:.4g}" if odds.mu is not None else ""
    known = f"Bounds, not estimates, of ({odds.epsilon:g}, {odds.delta:g}){exact}."
    return [
        Section(
            title="What this means for one person",
            note=[*odds.words(adjacency), SPARE, known],
            pictures=[Picture("Whom an attacker could find", drawn)],
            detail=True,
        ),
        Section(title="The formal guarantee", statement=f"{statement} What that means: {PLAIN}."),
    ]


def evaluation(found: "Evaluation") -> list[Section]:
    """Figures of users who were kept apart, each with its interval and baseline."""
    note = (
        f"Of {found.users:,} people, by numbers with noise that protects them, too. Intervals cover that noise, and "
        "that these people are a sample of more; a figure is useless where its interval is too wide to say anything."
    )
    bins = [[f"{100 * each.predicted:.0f} %", each.text()] for each in found.calibration]
    return [
        Section(
            title="How good the model is",
            note=[note],
            rows=found.rows(),
        ),
        Section(
            title="Do predicted chances come true?",
            tables=[Table("Observed against predicted", ["where the model says", "it was so for (95 %)"], bins)],
            pictures=_calibration(found.calibration),
        ),
    ]


def _calibration(bins: Sequence["Bin"]) -> list[Picture]:
    """What was predicted against what was so."""
    if not bins:
        return []
    ends, title = (0.0, 100.0), "Observed against predicted chances"
    points = [(100 * each.predicted, 100 * each.observed) for each in bins]
    reach = [(100 * each.low, 100 * each.high) for each in bins]
    lines = [
        Line("observed, with 95 % intervals", points, "dots", reach),
        Line("as predicted", [(0, 0), (100, 100)], "dashed"),
    ]
    return [Picture(title, chart(title, lines, Axis("predicted, %", ends=ends), Axis("observed, %", ends=ends)))]


def coefficients(model: "Model | None", most: int | None = FEATURES) -> Section:
    """What a model says: how far each column moves it, and each coefficient with its interval where there is one."""
    if model is None:
        return Section()
    classes, raw = outcomes(model.encoding.label), model.encoding.has_slopes
    table = model.coefficients()
    single = len(table[0][1]) == 1
    uncertain = (model.uncertainty or ()) if single else ()
    odds = model.loss.name == "logistic" and raw
    heads = ["feature", *(["coefficient"] if single else [f"for {each}" for each in classes])]
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
    listed = Table("Coefficients, in the columns' own units", heads, rows)
    return Section(title="What the model says", note=note, tables=[listed, *_spans(model)], detail=True)


def _reading(model: "Model", classes: Sequence[Any]) -> str:
    """How to read one coefficient."""
    if model.encoding.bends:
        return "Weights of polynomials and products of columns, each between -1 and 1: docs/train.md#models-that-bend."
    if model.encoding.normalize:
        return "Rows were divided by their own length: these are weights of encoded rows, and have no unit."
    if model.loss.name == "logistic" and len(classes) == 2:
        return (
            f"One unit more of a column multiplies the odds of “{classes[1]}” by “odds times”, the exponential of its "
            "coefficient. Of a column of words each value counts so by itself."
        )
    if classes:
        return "One unit more of a column adds its coefficient to the score of a class; the largest score decides."
    return "One unit more of a column adds its coefficient to the prediction, in the label's own unit."


def _straight(model: "Model") -> list[tuple[str, float]]:
    place, spans, coefficients = 0, [], np.asarray(model.coef_)
    for feature in model.encoding.features:
        own = coefficients[place : place + feature.width]
        place += feature.width
        ends = np.append(own, 0.0) if len(own) == 1 else own
        width = own[0] * (feature.high - feature.low) if feature.is_number else np.ptp(ends)
        spans.append((feature.column, float(width)))
    return spans


def _spans(model: "Model") -> list[Table]:
    """How far each column moves the score, from end to end of its range or between two of its values, at most."""
    if model.encoding.normalize or model.loss.outputs > 1:
        return []
    bent = model.shapes().items() if model.encoding.bends else ()
    spans = [(" and ".join(titles), float(np.ptp(effect))) for titles, effect in bent] or _straight(model)
    spans = sorted((each for each in spans if each[1]), key=lambda each: -abs(each[1]))[:COLUMNS]
    if len(spans) < 2:
        return []
    sizes = [abs(span) for _, span in spans]
    rows = [[name, in_units(span), bar(abs(span), min(sizes), max(sizes))] for name, span in spans]
    what = "score" if outcomes(model.encoding.label) else "prediction"
    return [Table("The columns that move it most, over their whole range", ["column", f"{what} by", LOG], rows)]


# Of the columns of rounds.parquet: a picture's title, what goes up, what it means, and each line's name.
PICTURES = (
    (
        "Private radius by round",
        "distance",
        "How far answers may be from the predicted gradient, learnt from noisy means; noise is scaled by it.",
        {"public.radius": "radius", "public.spread": "private estimate of the spread"},
    ),
    ("Users by round", "users", "", {"asked": "asked", "simulation.filtered": "filtered"}),
    (
        "Scores against the threshold",
        "users that are close",
        "To how many users of the cohort an answer is close. Below the threshold, noise aside, it is removed.",
        {f"simulation.score_{each}": each for each in ("min", "median", "max")} | {"simulation.threshold": "threshold"},
    ),
)


def rounds(rows: Rows, summary: "Summary | None" = None) -> Section:
    """Pictures of a run's rounds, each only where it moves; `summary` of a simulation."""
    pictures = [] if summary is None else _risk(summary, rows)
    for title, up, below, names in PICTURES:
        # Of a real run nothing that depends on private data may be shown, whatever there is.
        known = {key: _column(rows, key) for key in names if summary is not None or not private(key)}
        known = {key: points for key, points in known.items() if any(y for _, y in points)}
        if _moves(*known.values()):
            lines = [Line(names[key], points) for key, points in known.items()]
            only = ONLY * any(map(private, known))
            pictures.append(Picture(title + only, chart(title, lines, Axis("rounds"), Axis(up)), below))
    return Section(title="The run, round by round", pictures=pictures)


def private(column: str) -> bool:
    """Return whether a column of rounds.parquet is a figure of private data."""
    return column.startswith("simulation.")


def _column(rows: Rows, key: str) -> list[tuple[float, float]]:
    return [(row["round"] + 1.0, float(row[key])) for row in rows if row.get(key) is not None]


def _moves(*columns: Sequence[tuple[float, float]]) -> bool:
    """Whether any of these changes, by a thousandth at least."""
    return any(max(y) - min(y) > 1e-3 * max(map(abs, y)) for each in columns if len(y := [y for _, y in each]) > 1)


def risk_lines(summary: "Summary", rows: Rows) -> list[Line]:
    """Excess risk by round, and what was predicted; none where nobody could know it, or nothing moves."""
    risks = _column(rows, "simulation.excess_risk")
    if summary.excess_risk_initial is not None and risks:
        risks = [(0.0, summary.excess_risk_initial), *risks]
    if not _moves(risks):
        return []
    lines, across = [Line("excess risk of the current model", risks)], (risks[0][0], risks[-1][0])
    name, bound = "predicted: at most, in nine of ten tables like those measured", summary.predicted_excess_risk
    bound = bound and bound + summary.held_back
    if bound is None:
        name, bound = "a guess that nobody has measured", summary.guessed_excess_risk
    if bound:
        lines.append(Line(name, [(x, bound) for x in across], "dashed"))
    if summary.excess_risk:
        lines.append(Line("of the model that is released", [(across[1], summary.excess_risk)], "dots"))
    return lines


def _risk(summary: "Summary", rows: Rows) -> list[Picture]:
    if not (lines := risk_lines(summary, rows)):
        return []
    title, log = "Excess risk by round", all(y > 0 for line in lines for _, y in line.points)
    below = "Loss of the current model above the best model without privacy, on the population."
    return [Picture(title + ONLY, chart(title, lines, Axis("rounds"), Axis("excess risk", log=log)), below)]


def making(folder: RunFolder, rows: Sequence[tuple[str, str]], *, real: bool) -> list[Section]:
    """How the run was made, and how to make it again: the command, and the configuration that it went by."""
    try:
        source = (folder.path / "config.toml").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        source = ""
    name = "tune" if folder.is_search else "train" if real else "simulate"
    again = (
        f"quoron.{name} of a DataFrame" if f'"{FRAME}"' in source else f"quoron {name} {folder.path.name}/config.toml"
    )
    command = ("made again by", f"{again} (which draws new noise)" if real else again)
    return [Section(title="How it was made", rows=[*rows, command]), Section(title="Configuration", source=source)]


def rounds_section(name: str, curve: "RoundsCurve", chosen: int) -> Section:
    """One line a number of rounds, with a bar on a logarithmic scale; `chosen` is the plan's number of rounds."""
    risks, rows = [risk for _, risk in curve.points], []
    for rounds, risk in curve.points:
        words = {"chosen": rounds == chosen, "least": rounds == curve.best, "fewest within 5 %": rounds == curve.enough}
        marks = ", ".join(word for word, holds in words.items() if holds)
        rows.append([f"{rounds:,}", f"{risk:.2g}", bar(risk, min(risks), max(risks)), marks])
    heads = ["rounds", "predicted excess risk" if curve.measured else "excess risk, a guess", LOG, ""]
    title = f"How many rounds {name} needs"
    return Section(title=title, tables=[Table(title, heads, rows)])
