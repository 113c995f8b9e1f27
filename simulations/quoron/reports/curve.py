"""Predicted excess risk against rounds, or against ε, drawn for a terminal and as an SVG picture."""

import io
import math
from collections.abc import Mapping, Sequence

from rich import box
from rich.table import Table

from quoron.planning.plans import RoundsCurve
from quoron.planning.questions import EpsilonPoint
from quoron_privacy.errors import ConfigError

WIDTH = 36  # characters of the longest bar
EIGHTHS = " ▏▎▍▌▋▊▉"


def table(curve: RoundsCurve, chosen: int) -> Table:
    """One line a number of rounds, with a bar on a logarithmic scale; `chosen` is the plan's number of rounds."""
    shown = Table(box=box.SIMPLE_HEAD)
    shown.add_column("rounds", justify="right")
    shown.add_column("predicted excess risk", justify="right")
    shown.add_column("on a log scale", no_wrap=True)
    shown.add_column("")
    risks = [risk for _, risk in curve.points]
    for rounds, risk in curve.points:
        words = {"chosen": rounds == chosen, "least": rounds == curve.best, "fewest within 5 %": rounds == curve.enough}
        told = ", ".join(word for word, holds in words.items() if holds)
        shown.add_row(f"{rounds:,}", f"{risk:.2g}", bar(risk, min(risks), max(risks)), told, style=_style(told))
    return shown


def epsilon_table(points: Sequence[EpsilonPoint]) -> Table:
    """One line an ε, with a bar on a logarithmic scale, and accuracy where it can be spoken of."""
    shown = Table(box=box.SIMPLE_HEAD)
    with_accuracy = any(point.accuracy is not None for point in points)
    for column in ("ε", "predicted excess risk"):
        shown.add_column(column, justify="right")
    shown.add_column("on a log scale", no_wrap=True)
    if with_accuracy:
        shown.add_column("accuracy (simulation only)", justify="right")
    shown.add_column("by")
    risks = [point.predicted_excess_risk for point in points if point.predicted_excess_risk is not None]
    for point in points:
        risk, words = point.predicted_excess_risk, "infeasible"
        cells = [f"{point.epsilon:.3g}", "" if risk is None else f"{risk:.2g}"]
        cells.append("" if risk is None else bar(risk, min(risks), max(risks)))
        if with_accuracy:
            cells.append("" if point.accuracy is None else f"{100 * point.accuracy:.1f} %")
        if point.algorithm is not None:
            words = f"{point.algorithm}, {point.rounds:,} rounds"
        shown.add_row(*cells, words)
    return shown


def bar(value: float, least: float, most: float, width: int = WIDTH) -> str:
    """A bar of blocks between one character (`least`) and `width` characters (`most`), logarithmic.

    >>> bar(1.0, 1.0, 100.0, 5), bar(10.0, 1.0, 100.0, 5), bar(100.0, 1.0, 100.0, 5)
    ('█', '███', '█████')
    """
    share = math.log(value / least) / math.log(most / least) if 0 < least < value else 0.0
    eighths = round(8 * (1 + (width - 1) * share))
    return "█" * (eighths // 8) + EIGHTHS[eighths % 8].strip()


def epsilon_svg(points: Sequence[EpsilonPoint]) -> bytes:
    """A picture of predicted excess risk against ε, and of accuracy where there is one. Equal points, equal bytes.

    Feasible points only; ConfigError where there are none.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    from quoron.reports.page import BLUE, ORANGE, STYLE

    known = [(point.epsilon, point.predicted_excess_risk, point.accuracy) for point in points]
    feasible = [each for each in known if each[1] is not None]
    if not feasible:
        raise ConfigError("Expected an ε that is feasible to draw, got none. See the reasons with `quoron plan`.")
    with mpl.rc_context(STYLE), mpl.rc_context({"svg.fonttype": "path", "svg.hashsalt": "epsilon"}):
        figure = Figure(figsize=(7.0, 3.8), layout="constrained", facecolor="white")
        axes = figure.add_subplot()
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        epsilons, risks, accuracies = zip(*feasible, strict=True)
        axes.plot(epsilons, risks, color=BLUE, marker="o", markersize=4)
        axes.set_xticks(epsilons, [f"{epsilon:.3g}" for epsilon in epsilons], minor=False)
        axes.set_xlabel("ε")
        axes.set_ylabel("predicted excess risk, at most", color=BLUE)
        if all(accuracy is not None for accuracy in accuracies):
            beside = axes.twinx()
            beside.plot(epsilons, [100 * each for each in accuracies], color=ORANGE, marker="s", markersize=4)
            beside.set_ylabel("accuracy in %, simulation only", color=ORANGE)
            beside.grid(visible=False)
        buffer = io.BytesIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()


def svg(curves: Mapping[str, RoundsCurve], *, chosen: Mapping[str, int]) -> bytes:
    """A picture of one curve for each algorithm, with the planned numbers of rounds marked.

    Text is outlined and the ground white: it looks the same wherever it is shown. Equal curves give equal bytes.
    """
    import matplotlib as mpl  # only who wants a picture waits for it
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, NullLocator

    from quoron.reports.page import BLUE, GREY, INK, ORANGE, STYLE

    colours = (BLUE, "#2f855a", "#805ad5", "#b7791f", INK, GREY, "#d53f8c")
    with mpl.rc_context(STYLE), mpl.rc_context({"svg.fonttype": "path", "svg.hashsalt": "rounds"}):
        figure = Figure(figsize=(7.0, 3.8), layout="constrained", facecolor="white")
        axes = figure.add_subplot()
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        for index, (name, curve) in enumerate(curves.items()):
            rounds, risks = zip(*curve.points, strict=True)
            axes.plot(rounds, risks, color=colours[index % len(colours)], marker="o", markersize=3, label=name)
            if len(curves) == 1:
                least = min(risks)
                axes.axhspan(least, 1.05 * least, color=ORANGE, alpha=0.25, linewidth=0, label="within 5 % of the best")
        places = [(rounds, dict(curves[name].points)[rounds]) for name, rounds in chosen.items() if name in curves]
        axes.plot(*zip(*places, strict=True), color=ORANGE, marker="D", linestyle="none", label="the plan", zorder=3)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xlabel("rounds")
        axes.set_ylabel("predicted excess risk, at most")
        axes.legend()
        buffer = io.BytesIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()


def _style(told: str) -> str | None:
    return "bold" if told.startswith("chosen") else None
