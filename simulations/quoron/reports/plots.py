"""Predicted excess risk against rounds or ε, and costs of rounds: for a terminal, as SVG, and as a table of a page."""

from collections.abc import Sequence

from quoron.engine.network import duration
from quoron.planning.choosing import refusals, risk_words
from quoron.planning.plans import RoundsCurve
from quoron.planning.projection import NAME, Costs
from quoron.planning.questions import EpsilonCurve
from quoron.reports.page import Picture, Section, Table
from quoron.reports.pictures import LOG, Axis, Line, bar, chart
from quoron.results import size
from quoron_server.traffic import idle, once

AT_MOST, GUESSED = "predicted excess risk, at most", "guessed: nobody has measured it"


def rounds_section(name: str, curve: RoundsCurve, chosen: int) -> Section:
    """One line a number of rounds, with a bar on a logarithmic scale; `chosen` is the plan's number of rounds."""
    risks, rows = [risk for _, risk in curve.points], []
    for rounds, risk in curve.points:
        words = {"chosen": rounds == chosen, "least": rounds == curve.best, "fewest within 5 %": rounds == curve.enough}
        marks = ", ".join(word for word, holds in words.items() if holds)
        rows.append([f"{rounds:,}", f"{risk:.2g}", bar(risk, min(risks), max(risks)), marks])
    heads = ["rounds", "predicted excess risk" if curve.measured else "excess risk, a guess", LOG, ""]
    title, ends = f"How many rounds {name} needs", (curve.points[0][0], curve.points[-1][0])
    lines = [
        Line(name, curve.points) if curve.measured else Line(f"{name} ({GUESSED})", curve.points, "dashed"),
        Line("within 5 % of the best", [(end, 1.05 * min(risks)) for end in ends], "dashed"),
        Line("the plan", [(chosen, dict(curve.points)[chosen])], "dots", colour=7),
    ]
    drawn = chart(AT_MOST, lines, Axis("rounds", log=True), Axis(AT_MOST, log=True))
    return Section(title=title, tables=[Table(title, heads, rows)], pictures=[Picture(title, drawn)])


def epsilon_section(points: EpsilonCurve) -> Section:
    """One line an ε, with a bar on a logarithmic scale."""
    risks = [(epsilon, point.risk) for epsilon, point in points if point.risk is not None]
    ends, rows = (min((risk for _, risk in risks), default=1.0), max((risk for _, risk in risks), default=1.0)), []
    for epsilon, point in points:
        drawn = "" if point.risk is None else bar(point.risk, *ends)
        by = "infeasible" if point.plan is None else f"{point.algorithm}, {point.plan.cost.rounds:,} rounds"
        rows.append([f"{epsilon:.3g}", risk_words(point.predicted, point.guess), drawn, by])
    below = [f"Infeasible at ε = {epsilon:.3g}: {why}" for epsilon, each in points for why, _ in refusals([each])]
    bounds = {epsilon for epsilon, point in points if point.predicted is not None}
    guesses = [(epsilon, risk) for epsilon, risk in risks if epsilon not in bounds]
    lines, across = [Line(AT_MOST, risks), *([Line(GUESSED, guesses, "dots")] if guesses else [])], Axis("ε", log=True)
    pictures = [Picture(AT_MOST, chart(AT_MOST, lines, across, Axis(AT_MOST, log=True)))] if risks else []
    listed = [Table("Risk by ε", ["ε", "predicted excess risk", LOG, "by"], rows)]
    return Section(title="Risk by ε", tables=listed, pictures=pictures, below=below)


DESCRIPTION = 1_200  # bytes of a run's announcement, about
LEGEND = (
    "Messages are answers asked for; bytes are of questions and answers, on the wire. Time is projected: what it "
    "leaves out is in docs/comparing.md."
)
EARLY = (
    "Over named networks a round ends once all have answered, as with `--early-ends`; without it each lasts its "
    "`--timeout` and a tenth."
)
HELD = (
    "held: the guarantee rests on secret cohorts, so no round may end early, and each lasts its whole time and a tenth."
)


def section(rows: Sequence[Costs]) -> Section:
    """A line for each method with what its rounds cost, and notes; nothing where nothing is priced."""
    if not rows:
        return Section()
    lines = []
    for row in rows:
        late = " held" if row.held else ""
        moved = [size(row.bytes_down + row.bytes_up), size(row.bytes_up)]
        times = ["too slow" if seconds is None else duration(seconds) + late for seconds in row.seconds.values()]
        lines.append([row.algorithm, row.told, f"{row.rounds:,.4g}", f"{row.messages:,.10g}", *moved, *times])
    down, up = once(run=NAME, description=DESCRIPTION)
    hour = idle(seconds=3600)
    beside = (
        f"Beside the rounds a client takes some {size(down)} down and {size(up)} up to connect and to hear of the run, "
        f"and {size(hour)} an hour each way while it waits."
    )
    heads = ["algorithm", "excess risk", "rounds", "messages", "bytes", "of them up", *rows[0].seconds]
    title, held = "What the rounds cost", [HELD] if any(row.held for row in rows) else []
    return Section(title=title, tables=[Table(title, heads, lines)], below=[LEGEND, EARLY, *held, beside])
