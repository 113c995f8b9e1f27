"""What reports of all runs have in common: the promise in plain words, the model, how good it is, how it was made.

Nothing is drawn where there is nothing to see: a line that does not move is left out.

What (ε, δ) and μ mean for one person: how well the best test can tell whether data of theirs was what it is.

    >>> reading = Odds(1.0, 1e-6)
    >>> round(reading.right, 4), round(reading.found(0.05), 4)
    (0.7311, 0.1359)

Bounds, none of them an estimate. Statement and proof: docs/privacy/gaussian.md#odds.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np

from quoron.evaluation.evaluation import in_units
from quoron.reports.page import Card, Fact, Raw, Section, Table, figure, folded, side_by_side, text
from quoron.reports.pictures import Axis, Line, Reach, chart, gauge, number, ranking
from quoron.run_folder import FRAME, RunFolder
from quoron_client.data.encoding import outcomes

if TYPE_CHECKING:  # whoever has one brings it
    from quoron.evaluation.evaluation import Bin, Evaluation
    from quoron.model import Model
    from quoron.reports.summary import Summary


ALARMS = 0.05  # false alarms at which it is told who is found
LARGEST = 10.0  # ε of which a factor of odds is told
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

    @property
    def percent(self) -> str:
        """The same, for people."""
        return percent(self.right)

    def words(self, adjacency: str) -> list[str]:
        """The same for people, in three sentences."""
        said = [
            f"Suppose somebody knows everything about everybody else, and that either {_SWAPPED[adjacency]}: one as "
            "likely as the other. Having seen all that was released, and with any computer, they guess which of the "
            f"two it is and are right {self.percent} of the time at most. Without having seen anything it is 50 %.",
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


def percent(share: float) -> str:
    """A share that is a bound: rounded up, to a tenth of a per cent.

    >>> percent(0.5), percent(0.73106), percent(0.99999)
    ('50 %', '73.2 %', '100 %')
    """
    return f"{min(math.ceil(1000 * share - 1e-9) / 10, 100):g} %"


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
SIMULATED = ("simulation.", "network.")  # columns of rounds.parquet that are figures of private data
FEATURES, COLUMNS = 200, 12  # coefficients and columns that are shown
SPARE = (
    "This holds whatever else they know, now or later. It is about one person's data, all rows of it: what was learnt "
    "of people in general says as much of you whether you are in the table or not."
)
PLAIN = "docs/privacy/gaussian.md#odds"


def risked(odds: Odds | None) -> Card:
    """What one person risks, in a number."""
    if odds is None:
        return Card("one person's privacy", "none", "this is the non-private reference")
    return Card("one person's privacy", odds.percent, "of guesses about a person right at most; blind ones 50 %")


def privacy(statement: str, adjacency: str, odds: Odds | None) -> list[Section]:
    """The promise in plain words with the best test's curve, and the formal sentence; `odds` None: no promise."""
    if odds is None:
        return [Section(title="What is guaranteed", statement=statement)]
    places = [step / 200 for step in range(201)]
    curve = [(100 * x, 100 * odds.found(x)) for x in places]
    share = Axis("falsely accused, %", ends=(0.0, 100.0))
    drawn = chart(
        "Share of people found against share of people falsely accused",
        [
            Line("the best test that there can be, at most", curve),
            Line("pointing at random", [(0, 0), (100, 100)], "dashed"),
        ],
        share,
        Axis("found, %", ends=(0.0, 100.0)),
    )
    exact = f", which this run keeps with μ = {odds.mu:.4g}" if odds.mu is not None else ""
    known = f"Bounds, not estimates, of ({odds.epsilon:g}, {odds.delta:g}){exact}."
    return [
        Section(
            title="What this means for one person",
            note=[*odds.words(adjacency), SPARE, known],
            picture=figure("Whom an attacker could find", drawn),
            detail=True,
        ),
        Section(title="The formal guarantee", statement=f"{statement} What that means: {PLAIN}."),
    ]


def evaluation(found: "Evaluation | None", elsewhere: Collection[str] = ()) -> list[Section]:
    """Figures of users who were kept apart, each with its interval and baseline; nothing where there are none.

    What the page says `elsewhere` is not said again.
    """
    if found is None:
        return []
    rows: list[list[str]] = []
    for each in found.figures:
        inside = [each.value, each.low, each.high, *([] if each.baseline is None else [each.baseline])]
        room = 0.15 * (max(inside) - min(inside)) or 1.0
        ends = (min(inside) - room, max(inside) + room)
        drawn = Raw(gauge(each.value, (each.low, each.high), ends, beside=each.baseline))
        name = f"{each.name} per {each.per}" + (f", {each.bound}" if each.bound else "")
        value, low, high = (_told(one) for one in (each.value, each.low, each.high))
        beside = "" if each.baseline is None else f"{_told(each.baseline)} ({each.baseline_name})"
        verdict = "useless: too wide to say anything" if each.useless else f"{each.better} is better"
        rows.append([name, value, f"{low} to {high}", drawn, beside, verdict])
    bins = [[f"{100 * each.predicted:.0f} %", each.text()] for each in found.calibration]
    said = (
        f"Of {found.users:,} people, by numbers with noise that protects them, too. "
        "Intervals cover that noise, and that these people are a sample of more."
    )
    heads = ["", "value", "95 % interval", "", "beside it", ""]
    return [
        Section(
            title="How good the model is",
            note=[said],
            warnings=[each[:1].upper() + each[1:] for each in found.remarks if each not in elsewhere],
            tables=[Table("Figures, each with what it is read beside", heads, rows)],
            statement="" if found.statement in elsewhere else found.statement,
        ),
        Section(
            title="Do predicted chances come true?",
            tables=[Table("Observed against predicted", ["where the model says", "it was so for (95 %)"], bins)],
            picture=_calibration(found.calibration),
        ),
    ]


def _told(value: float) -> str:
    """A share, or a number in the label's own units."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def best_figure(found: "Evaluation") -> Card | None:
    """The figure that one should know first."""
    order = "AUC", "accuracy", "rmse"
    each = next((each for name in order for each in found.figures if each.name == name), None)
    if each is None:
        return None
    value, low, high = (_told(one) for one in (each.value, each.low, each.high))
    beside = "" if each.baseline is None else f"; {each.baseline_name} {_told(each.baseline)}"
    verdict = " (too wide to say anything)" if each.useless else ""
    return Card(f"{each.name}, per {each.per}", value, f"95 %: {low} to {high}{beside}{verdict}")


def _calibration(bins: Sequence["Bin"]) -> Raw:
    """What was predicted against what was so."""
    if not bins:
        return Raw("")
    ends = (0.0, 100.0)
    points = [(100 * each.predicted, 100 * each.observed) for each in bins]
    reach = [(100 * each.low, 100 * each.high) for each in bins]
    lines = [
        Line("observed, with 95 % intervals", points, "dots", reach),
        Line("as predicted", [(0, 0), (100, 100)], "dashed"),
    ]
    drawn = chart(
        "Observed against predicted chances", lines, Axis("predicted, %", ends=ends), Axis("observed, %", ends=ends)
    )
    return figure("Observed against predicted chances", drawn)


def coefficients(model: "Model | None", most: int | None = FEATURES) -> Section:
    """What a model says: how far each column moves it, and each coefficient with its interval where there is one."""
    if model is None:
        return Section()
    classes, uncertain = outcomes(model.encoding.label), getattr(model, "uncertainty", None)
    values = np.atleast_2d(model.weights.reshape(model.loss.outputs, -1) if model.encoding.normalize else model.coef_)
    names = list(model.encoding.names if model.encoding.normalize else model.feature_names_out_)
    if not model.encoding.normalize:
        names.append("intercept")
        values = np.column_stack([values, np.atleast_1d(model.intercept_)])
    odds = model.loss.name == "logistic" and not model.encoding.normalize
    heads = ["feature", *([f"for {each}" for each in classes] if len(values) > 1 else ["coefficient"])]
    heads += ["95 % interval", ""] if uncertain and len(values) == 1 else []
    heads += ["odds times"] if odds else []
    rows: list[list[str]] = []
    for place, name in enumerate(names[:most]):
        row: list[str] = [name, *(in_units(value) for value in values[:, place])]
        if uncertain and len(values) == 1:
            row += _interval(values[0, place], uncertain[place] if place < len(uncertain) else None)
        rows.append([*row, in_units(math.exp(min(max(values[0, place], -700), 700)))] if odds else row)
    more = len(names) - len(rows)
    said = [_reading(model, classes)]
    said += [f"{more:,} more are in the model's file."] if more > 0 else []
    said += [f"Coefficients have {why}."] if (why := getattr(model, "no_interval", None)) else []
    return Section(
        title="What the model says",
        note=said,
        tables=[Table("Coefficients, in the columns' own units", heads, rows)],
        picture=_moved(model),
        detail=True,
    )


def _interval(value: float, reach: Reach | None) -> list[str]:
    if reach is None or None in reach:
        return ["", ""]
    low, high = (float(end or 0.0) for end in reach)
    most = 1.05 * max(abs(low), abs(high), abs(value), 1e-300)
    return [f"{in_units(low)} to {in_units(high)}", Raw(gauge(value, (low, high), (-most, most), beside=0.0))]


def _reading(model: "Model", classes: Sequence[Any]) -> str:
    """How to read one coefficient."""
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


def _moved(model: "Model") -> Raw:
    """How far each column moves the score, from end to end of its range or between its values."""
    if model.encoding.normalize or model.loss.outputs > 1:
        return Raw("")
    place, moved, coefficients = 0, [], np.asarray(model.coef_)
    for feature in model.encoding.features:
        own = coefficients[place : place + feature.width]
        place += feature.width
        span = (
            own[0] * (feature.high - feature.low)
            if feature.is_number
            else float(np.ptp(np.append(own, 0.0) if len(own) == 1 else own))
        )
        moved.append((feature.column, float(span)))
    moved = sorted(moved, key=lambda each: -abs(each[1]))
    if len(moved) < 2 or not any(span for _, span in moved):
        return Raw("")
    shown = [(name, span, (None, None), in_units(span)) for name, span in moved[:COLUMNS]]
    below = "Of numbers from the lower end of their declared range to the upper, of words between two values, at most."
    if len(moved) > COLUMNS:
        below += f" The {COLUMNS} of {len(moved):,} columns that move it most."
    what = "score" if outcomes(model.encoding.label) else "prediction"
    return figure(
        f"How far each column moves the {what}", ranking("Columns by how far they move the model", shown), below=below
    )


def rounds(rows: Rows, summary: "Summary | None" = None) -> Section:
    """Pictures of a run's rounds, each only where it moves; `summary` of a simulation."""
    if summary is None:  # of a real run nothing else may be shown, whatever there is
        rows = [{key: value for key, value in row.items() if not key.startswith(SIMULATED)} for row in rows]
    drawn = [_radius(rows), _cohort(rows), _scores(rows), _time(rows)]
    if summary is not None:
        drawn.insert(0, _risk(summary, rows))
    return Section(title="The run, round by round", picture=side_by_side(*drawn))


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


def _risk(summary: "Summary", rows: Rows) -> Raw:
    if not (lines := risk_lines(summary, rows)):
        return Raw("")
    log = all(y > 0 for line in lines for _, y in line.points)
    below = "Loss of the current model above the best model without privacy, on the population."
    return _by_round("Excess risk by round", lines, Axis("excess risk", log=log), below=below, private=True)


def _by_round(title: str, lines: Sequence[Line], up: Axis, *, below: str = "", private: bool = False) -> Raw:
    return figure(title, chart(title, lines, Axis("rounds"), up), below=below, private=private)


def _radius(rows: Rows) -> Raw:
    """The clip radius of a tracking method, and the spread that it is made of; both are released."""
    radius, spread = _column(rows, "public.radius"), _column(rows, "public.spread")
    if not (spread and _moves(radius)):
        return Raw("")
    lines = [Line("radius", radius), Line("private estimate of the spread", spread)]
    below = "How far answers may be from the predicted gradient, learnt from noisy means; noise is scaled by it."
    return _by_round("Private radius by round", lines, Axis("distance"), below=below)


def _cohort(rows: Rows) -> Raw:
    asked, filtered = _column(rows, "asked"), _column(rows, "simulation.filtered")
    if not _moves(asked) and not any(y for _, y in filtered):
        return Raw("")
    lines = [Line("asked", asked)] + ([Line("filtered", filtered, "bars")] if filtered else [])
    return _by_round("Users by round", lines, Axis("users"), private=bool(filtered))


def _scores(rows: Rows) -> Raw:
    low, median, high, least = (
        _column(rows, f"simulation.{name}") for name in ("score_min", "score_median", "score_max", "threshold")
    )
    if not (low and median and high and least and _moves(low, median, high)):
        return Raw("")
    lines = [
        Line("lowest to highest", low, "band", [(None, y) for _, y in high]),
        Line("median", median, colour=0),
        Line("threshold", least, "dashed", colour=1),
    ]
    below = "To how many users of the cohort an answer is close. Below the threshold, noise aside, it is removed."
    return _by_round("Scores against the threshold", lines, Axis("users that are close"), below=below, private=True)


def _time(rows: Rows) -> Raw:
    """Projected seconds of each round, part upon part."""
    parts = [key for key in (rows[0] if rows else ()) if key.startswith("network.") and key != "network.total"]
    below, lines = [0.0] * len(rows), []
    for part in parts:
        seconds = [float(row.get(part) or 0.0) for row in rows]
        if any(seconds):
            below = [start + more for start, more in zip(below, seconds, strict=True)]
            points = [(row["round"] + 1.0, top) for row, top in zip(rows, below, strict=True)]
            lines.append(Line(part.removeprefix("network."), points, "bars"))
    if not lines:
        return Raw("")
    said = "Wall-clock over the network that was given, part upon part; computing is as measured here, or as given."
    return _by_round("Projected time by round", lines[::-1], Axis("seconds", words=number), below=said, private=True)


def making(folder: RunFolder, done: Sequence[tuple[Any, ...]], *, real: bool) -> list[Section]:
    """How the run was made, and how to make it again: the command, and the configuration that it went by."""
    try:
        told = (folder.path / "config.toml").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        told = ""
    name = "tune" if folder.is_search else "train" if real else "simulate"
    again = f"quoron.{name} of a DataFrame" if f'"{FRAME}"' in told else f"quoron {name} {folder.path.name}/config.toml"
    command = Fact("made again by", f"{again} (which draws new noise)" if real else again)
    shown = folded("The configuration, as it was", f'<pre tabindex="0">{text(told)}</pre>') if told else ""
    return [Section(title="How it was made", rows=[*done, command]), Section(title="Configuration", picture=shown)]
