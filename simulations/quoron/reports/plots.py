"""Predicted excess risk against rounds or ε, and costs of rounds: for a terminal, as SVG, and as a table of a page."""

import math
from collections.abc import Mapping, Sequence

from quoron.engine.network import duration
from quoron.planning.choosing import risk_words
from quoron.planning.plans import RoundsCurve
from quoron.planning.projection import NAME, Costs
from quoron.planning.questions import EpsilonPoint
from quoron.reports.page import Bar, Section, Table
from quoron.reports.pictures import Axis, Line, alone, chart
from quoron.reports.summary import size
from quoron_privacy.errors import ConfigError
from quoron_server.traffic import idle, once

AT_MOST, GUESSED = "predicted excess risk, at most", "guessed: nobody has measured it"
WIDTH = 36  # characters of the longest bar
EIGHTHS = " ▏▎▍▌▋▊▉"


def rounds_section(name: str, curve: RoundsCurve, chosen: int) -> Section:
    """One line a number of rounds, with a bar on a logarithmic scale; `chosen` is the plan's number of rounds."""
    risks, rows = [risk for _, risk in curve.points], []
    for rounds, risk in curve.points:
        words = {"chosen": rounds == chosen, "least": rounds == curve.best, "fewest within 5 %": rounds == curve.enough}
        marks = ", ".join(word for word, holds in words.items() if holds)
        rows.append([f"{rounds:,}", f"{risk:.2g}", Bar(bar(risk, min(risks), max(risks))), marks])
    heads = ["rounds", "predicted excess risk" if curve.measured else "excess risk, a guess", "on a log scale", ""]
    title = f"How many rounds {name} needs"
    return Section(title=title, tables=[Table(title, heads, rows)])


def epsilon_section(points: Sequence[EpsilonPoint]) -> Section:
    """One line an ε, with a bar on a logarithmic scale, and accuracy where it can be spoken of."""
    heads, rows = ["ε", "predicted excess risk", "on a log scale", "accuracy (simulation only)", "by"], []
    risks = [point.risk for point in points if point.risk is not None]
    for point in points:
        drawn = Bar("" if point.risk is None else bar(point.risk, min(risks), max(risks)))
        right = "" if point.accuracy is None else f"{100 * point.accuracy:.1f} %"
        by = "infeasible" if point.algorithm is None else f"{point.algorithm}, {point.rounds:,} rounds"
        predicted = risk_words(point.predicted_excess_risk, point.guessed_excess_risk)
        rows.append([f"{point.epsilon:.3g}", predicted, drawn, right, by])
    if all(point.accuracy is None for point in points):
        heads, rows = [each for each in heads if "accuracy" not in each], [[*row[:3], row[4]] for row in rows]
    below = [f"Infeasible at ε = {each.epsilon:.3g}: {each.infeasible}" for each in points if each.infeasible]
    return Section(title="Risk by ε", tables=[Table("Risk by ε", heads, rows)], below=below)


def epsilon_svg(points: Sequence[EpsilonPoint]) -> bytes:
    """A picture of predicted excess risk against ε, and of accuracy where there is one. Equal points, equal bytes.

    Feasible points only; ConfigError where there are none.
    """
    feasible = [point for point in points if point.risk is not None]
    if not feasible:
        raise ConfigError("Expected an ε that is feasible to draw, got none. See the reasons with `quoron plan`.")
    every = [(point.epsilon, point.risk or 0.0) for point in feasible]
    guesses = [(point.epsilon, point.risk or 0.0) for point in feasible if point.predicted_excess_risk is None]
    lines, across = [Line(AT_MOST, every)], Axis("ε", log=True)
    drawn = [
        chart(AT_MOST, [*lines, Line(GUESSED, guesses, "dots")] if guesses else lines, across, Axis(AT_MOST, log=True))
    ]
    accuracies = [(point.epsilon, 100 * point.accuracy) for point in feasible if point.accuracy is not None]
    if len(accuracies) == len(feasible):
        label = "accuracy in %, simulation only"
        drawn.append(chart(label, [Line(label, accuracies)], across, Axis(label)))
    return alone(drawn)


def rounds_svg(curves: Mapping[str, RoundsCurve], *, chosen: Mapping[str, int]) -> bytes:
    """A picture of a curve for each algorithm, with the planned numbers of rounds marked. Equal curves, equal bytes."""
    lines = [
        Line(name if curve.measured else f"{name} ({GUESSED})", curve.points, "line" if curve.measured else "dashed")
        for name, curve in curves.items()
    ]
    if len(curves) == 1:
        (curve,) = curves.values()
        ends, least = (curve.points[0][0], curve.points[-1][0]), 1.05 * min(risk for _, risk in curve.points)
        lines.append(Line("within 5 % of the best", [(end, least) for end in ends], "dashed"))
    places = [(rounds, dict(curves[name].points)[rounds]) for name, rounds in chosen.items() if name in curves]
    lines.append(Line("the plan", places, "dots", colour=7))
    return alone([chart(AT_MOST, lines, Axis("rounds", log=True), Axis(AT_MOST, log=True))])


def bar(value: float, least: float, most: float, width: int = WIDTH) -> str:
    """A bar of blocks between one character (`least`) and `width` characters (`most`), logarithmic.

    >>> bar(1.0, 1.0, 100.0, 5), bar(10.0, 1.0, 100.0, 5), bar(100.0, 1.0, 100.0, 5)
    ('█', '███', '█████')
    """
    share = math.log(value / least) / math.log(most / least) if 0 < least < value else 0.0
    eighths = round(8 * (1 + (width - 1) * share))
    return "█" * (eighths // 8) + EIGHTHS[eighths % 8].strip()


DESCRIPTION = 1_200  # bytes of a run's announcement, about
FRONT = "●"  # behind a cost: on its front
LEGEND = (
    f"{FRONT} on the front: no other has as little of it with as little risk. Messages are answers asked for; bytes "
    "are of questions and answers, on the wire. Time is projected: what it leaves out is in docs/network.md."
)
EARLY = (
    "Over named networks a round ends once all have answered, as with `--early-ends`; without it each lasts its "
    "`--timeout` and a tenth."
)
HELD = (
    "held: the guarantee rests on secret cohorts, so no round may end early, and each lasts its whole time and a tenth."
)


def heads(rows: Sequence[Costs]) -> list[str]:
    """Of the columns."""
    return ["algorithm", "excess risk", "rounds", "messages", "bytes", "of them up", *(rows[0].seconds if rows else ())]


def cells(row: Costs) -> list[str]:
    """One line, column by column."""
    line = [row.algorithm, row.told, _marked(row, "rounds", f"{row.rounds:,.4g}"), f"{row.messages:,.10g}"]
    line += [_marked(row, "bytes", size(row.bytes_down + row.bytes_up)), size(row.bytes_up)]
    for network, seconds in row.seconds.items():
        words = "too slow" if seconds is None else duration(seconds) + (" held" if row.held else "")
        line.append(_marked(row, network, words))
    return line


def notes(rows: Sequence[Costs]) -> list[str]:
    """What stands below the table."""
    down, up = once(run=NAME, description=DESCRIPTION)
    hour = idle(seconds=3600)
    beside = (
        f"Beside the rounds a client takes some {size(down)} down and {size(up)} up to connect and to hear of the run, "
    )
    beside += f"and {size(hour)} an hour each way while it waits."
    return [LEGEND, EARLY, *([HELD] if any(row.held for row in rows) else []), beside]


def section(rows: Sequence[Costs]) -> Section:
    """The table with its notes; nothing where nothing is priced."""
    title = "What the rounds cost"
    listed = Table(title, heads(rows), [cells(row) for row in rows])
    return Section(title=title, tables=[listed], below=notes(rows)) if rows else Section()


def _marked(row: Costs, name: str, words: str) -> str:
    return f"{words} {FRONT}" if name in row.fronts else words
