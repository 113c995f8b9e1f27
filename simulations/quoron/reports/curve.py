"""Predicted excess risk against rounds, drawn for a terminal and as an SVG picture."""

import io
import math
from collections.abc import Mapping

from rich import box
from rich.table import Table

from quoron.planning.plans import RoundsCurve

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


def bar(value: float, least: float, most: float, width: int = WIDTH) -> str:
    """A bar of blocks between one character (`least`) and `width` characters (`most`), logarithmic.

    >>> bar(1.0, 1.0, 100.0, 5), bar(10.0, 1.0, 100.0, 5), bar(100.0, 1.0, 100.0, 5)
    ('█', '███', '█████')
    """
    share = math.log(value / least) / math.log(most / least) if 0 < least < value else 0.0
    eighths = round(8 * (1 + (width - 1) * share))
    return "█" * (eighths // 8) + EIGHTHS[eighths % 8].strip()


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
        axes.set_ylabel("predicted excess risk")
        axes.legend()
        buffer = io.BytesIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()


def _style(told: str) -> str | None:
    return "bold" if told.startswith("chosen") else None
