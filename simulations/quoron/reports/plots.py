"""Pictures: of a run's rounds, of risk against rounds and against ε. They need matplotlib, the extra `plots`."""

import io
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from html import escape
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, FuncFormatter, LogFormatter, NullLocator

from quoron.network import Times
from quoron.planning.plans import RoundsCurve
from quoron.planning.questions import EpsilonPoint
from quoron.reports.summary import Summary
from quoron_privacy.errors import ConfigError

Rows = Sequence[Mapping[str, Any]]

AT_MOST = "predicted excess risk, at most"
INK, BLUE, ORANGE, GREY = "#1f2933", "#2b6cb0", "#c05621", "#9aa5b1"
PARTS = tuple(part.name for part in fields(Times))
COLOURS = (GREY, BLUE, "#2f855a", ORANGE, "#805ad5", INK)  # of the parts of a round's time
STYLE: Any = {  # matplotlib types this as a literal of all its settings
    "axes.edgecolor": GREY,
    "axes.grid": True,
    "axes.labelcolor": INK,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "font.family": "sans-serif",
    "font.size": 10,
    "grid.color": "#e4e7eb",
    "legend.frameon": False,
    "svg.fonttype": "none",
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
}


@dataclass(frozen=True, slots=True)
class Plot:
    """One figure; `simulation` marks what no real deployment could show."""

    title: str
    draw: Callable[[Axes, Any, Rows], None]  # the summary is of the kind whose columns it needs
    needs: tuple[str, ...]  # columns of rounds.parquet, without which the plot is left out
    simulation: bool
    meaning: str


def figures(summary: Any, rounds: Rows) -> str:
    """Every plot for which the rounds hold something, as HTML."""
    return "\n".join(_figure(plot, svg(plot, summary, rounds)) for plot in PLOTS if drawable(plot, rounds))


def drawable(plot: Plot, rounds: Rows) -> bool:
    """Whether the rounds hold what the plot shows."""
    return all(any(row.get(key) is not None for row in rounds) for key in plot.needs)


def svg(plot: Plot, summary: Any, rounds: Rows) -> str:
    """One plot as an SVG element that scales to the width it is given."""
    with mpl.rc_context(STYLE), mpl.rc_context({"svg.hashsalt": plot.title}):
        figure = Figure(figsize=(6.0, 3.4))
        figure.subplots_adjust(left=0.15, right=0.97, bottom=0.15, top=0.95)  # a layout by itself draws all twice
        plot.draw(figure.add_subplot(), summary, rounds)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    text = buffer.getvalue()
    text = re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)
    return re.sub(r'<svg [^>]*?(viewBox="[^"]*")[^>]*>', _opening(plot), text, count=1)


def _opening(plot: Plot) -> str:
    spaces = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
    return rf'<svg {spaces} \1 role="img" aria-label="{escape(plot.title, quote=True)}">'


def _figure(plot: Plot, drawing: str) -> str:
    mark = '<span class="mark">simulation only</span>' if plot.simulation else ""
    head = f"<h2>{escape(plot.title)} {mark}</h2>"
    return f"<figure>{head}{drawing}<figcaption>{escape(plot.meaning)}</figcaption></figure>"


@contextmanager
def _picture(name: str) -> Iterator[tuple[Axes, io.BytesIO]]:
    """Axes to draw risks on, and where the picture is afterwards."""
    with mpl.rc_context(STYLE), mpl.rc_context({"svg.fonttype": "path", "svg.hashsalt": name}):
        figure, buffer = Figure(figsize=(7.0, 3.8), layout="constrained", facecolor="white"), io.BytesIO()
        axes = figure.add_subplot()
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        yield axes, buffer
        figure.savefig(buffer, format="svg", metadata={"Date": None})


def epsilon_svg(points: Sequence[EpsilonPoint]) -> bytes:
    """A picture of predicted excess risk against ε, and of accuracy where there is one. Equal points, equal bytes.

    Feasible points only; ConfigError where there are none.
    """
    feasible = [(point.epsilon, point.risk, point.accuracy) for point in points if point.risk is not None]
    guesses = [(point.epsilon, point.risk) for point in points if point.predicted_excess_risk is None and point.risk]
    if not feasible:
        raise ConfigError("Expected an ε that is feasible to draw, got none. See the reasons with `quoron plan`.")
    with _picture("epsilon") as (axes, buffer):
        epsilons, risks, accuracies = zip(*feasible, strict=True)
        axes.plot(epsilons, risks, color=BLUE, marker="o", markersize=4)
        axes.set_xticks(epsilons, [f"{epsilon:.3g}" for epsilon in epsilons], minor=False)
        axes.set_xlabel("ε")
        for epsilon, risk in guesses:
            axes.plot(epsilon, risk, color=BLUE, marker="o", markersize=4, markerfacecolor="white")
        axes.set_ylabel(AT_MOST if not guesses else f"{AT_MOST}; hollow: guessed", color=BLUE)
        if all(accuracy is not None for accuracy in accuracies):
            beside = axes.twinx()
            beside.plot(epsilons, [100 * each for each in accuracies], color=ORANGE, marker="s", markersize=4)
            beside.set_ylabel("accuracy in %, simulation only", color=ORANGE)
            beside.grid(visible=False)
    return buffer.getvalue()


def rounds_svg(curves: Mapping[str, RoundsCurve], *, chosen: Mapping[str, int]) -> bytes:
    """A picture of one curve for each algorithm, with the planned numbers of rounds marked.

    Text is outlined and the ground white: it looks the same wherever it is shown. Equal curves give equal bytes.
    """
    colours = (BLUE, "#2f855a", "#805ad5", "#b7791f", INK, GREY, "#d53f8c")
    with _picture("rounds") as (axes, buffer):
        for index, (name, curve) in enumerate(curves.items()):
            rounds, risks = zip(*curve.points, strict=True)
            axes.plot(
                rounds,
                risks,
                color=colours[index % len(colours)],
                marker="o",
                markersize=3,
                linestyle="-" if curve.measured else ":",
                label=name,
            )
            if len(curves) == 1:
                least = min(risks)
                axes.axhspan(least, 1.05 * least, color=ORANGE, alpha=0.25, linewidth=0, label="within 5 % of the best")
        places = [(rounds, dict(curves[name].points)[rounds]) for name, rounds in chosen.items() if name in curves]
        axes.plot(*zip(*places, strict=True), color=ORANGE, marker="D", linestyle="none", label="the plan", zorder=3)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xlabel("rounds")
        guessed = not all(curve.measured for curve in curves.values())
        axes.set_ylabel(f"{AT_MOST}; dotted: guessed" if guessed else AT_MOST)
        axes.legend()
    return buffer.getvalue()


def _column(rounds: Rows, x: str, y: str) -> tuple[list[float], list[float]]:
    pairs = [(row[x], row[y]) for row in rounds if row.get(y) is not None]
    return [float(left) for left, _ in pairs], [float(right) for _, right in pairs]


def _risk(axes: Axes, summary: Summary, rounds: Rows, x: str, label: str) -> None:
    places, risks = _column(rounds, x, "simulation.excess_risk")
    if x == "round":
        places = [place + 1 for place in places]
    if summary.excess_risk_initial is not None:
        places, risks = [0.0, *places], [summary.excess_risk_initial, *risks]
    axes.plot(places, risks, color=BLUE, marker="o", markersize=3, label="excess risk")
    if summary.predicted_excess_risk is not None:
        label = "predicted: at most, in nine of ten problems"
        axes.axhline(summary.predicted_excess_risk + summary.held_back, color=ORANGE, linestyle="--", label=label)
    elif summary.guessed_excess_risk is not None:
        label = "a guess that nobody has measured"
        axes.axhline(summary.guessed_excess_risk, color=ORANGE, linestyle=":", label=label)
    if summary.excess_risk is not None and summary.excess_risk > 0 and places:
        axes.plot(places[-1], summary.excess_risk, color=ORANGE, marker="D", linestyle="none", label="released")
    if all(risk > 0 for risk in risks):
        axes.set_yscale("log")
        for each in (axes.yaxis.set_major_formatter, axes.yaxis.set_minor_formatter):
            each(LogFormatter())  # 1e-05 as in texts: setting powers of ten would take a quarter of the page
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.set_xlabel(label)
    axes.set_ylabel("excess risk")
    axes.legend()


def _risk_by_round(axes: Axes, summary: Summary, rounds: Rows) -> None:
    _risk(axes, summary, rounds, "round", "rounds")


def _risk_by_gradients(axes: Axes, summary: Summary, rounds: Rows) -> None:
    _risk(axes, summary, rounds, "total_gradient_evaluations", "item gradients")


def _privacy(axes: Axes, summary: Summary, rounds: Rows) -> None:
    places, spent = _column(rounds, "round", "public.epsilon_spent")
    axes.step([place + 1 for place in places], spent, where="post", color=BLUE, label="spent")
    if summary.epsilon is not None:
        axes.axhline(summary.epsilon, color=ORANGE, linestyle="--", label="promised")
    axes.set_ylim(0, 1.15 * max([*spent, summary.epsilon or 0.0]))
    axes.set_xlabel("rounds")
    axes.set_ylabel("ε")
    axes.legend()


def _cohort(axes: Axes, summary: Summary, rounds: Rows) -> None:
    del summary
    places, asked = _column(rounds, "round", "asked")
    axes.step([place + 1 for place in places], asked, where="mid", color=BLUE, label="asked")
    filtered = _column(rounds, "round", "simulation.filtered")
    if filtered[0]:
        axes.bar([place + 1 for place in filtered[0]], filtered[1], color=ORANGE, label="filtered (simulation only)")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("rounds")
    axes.set_ylabel("users")
    axes.legend()


def _radius(axes: Axes, summary: Summary, rounds: Rows) -> None:
    """The clip radius of a tracking method, and the spread that it was made from; both are released."""
    for column, colour, label in (("public.radius", BLUE, "radius"), ("public.spread", ORANGE, "spread of users")):
        places, values = _column(rounds, "round", column)
        axes.plot([place + 1 for place in places], values, color=colour, marker="o", markersize=3, label=label)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("round")
    axes.set_ylabel("norm")
    axes.legend(frameon=False)


def _scores(axes: Axes, summary: Summary, rounds: Rows) -> None:
    del summary
    places, median = _column(rounds, "round", "simulation.score_median")
    places = [place + 1 for place in places]
    low, high = (_column(rounds, "round", f"simulation.score_{end}")[1] for end in ("min", "max"))
    axes.fill_between(places, low, high, color=BLUE, alpha=0.2, linewidth=0, label="lowest to highest")
    axes.plot(places, median, color=BLUE, label="median")
    threshold = _column(rounds, "round", "simulation.threshold")
    axes.plot([place + 1 for place in threshold[0]], threshold[1], color=ORANGE, linestyle="--", label="threshold")
    axes.set_xlabel("rounds")
    axes.set_ylabel("concentration score")
    axes.legend()


def _time(axes: Axes, summary: Summary, rounds: Rows) -> None:
    """Projected seconds of each round, part upon part."""
    del summary
    places, below = [row["round"] + 1 for row in rounds], [0.0] * len(rounds)
    for part, colour in zip(PARTS, COLOURS, strict=True):
        seconds = [float(row.get(f"network.{part}") or 0.0) for row in rounds]
        if any(seconds):
            axes.bar(places, seconds, bottom=below, color=colour, width=1.0, label=part)
        below = [low + more for low, more in zip(below, seconds, strict=True)]
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(EngFormatter(unit="s", sep=" "))
    axes.set_xlabel("rounds")
    axes.set_ylabel("projected time")
    axes.legend()


PLOTS = (
    Plot(
        "Excess risk by round",
        _risk_by_round,
        ("simulation.excess_risk",),
        True,
        "Loss of the current model above the best model without privacy, on the population.",
    ),
    Plot(
        "Excess risk by gradients",
        _risk_by_gradients,
        ("simulation.excess_risk",),
        True,
        "The same against item gradients computed by all users together.",
    ),
    Plot(
        "Privacy spent",
        _privacy,
        ("public.epsilon_spent",),
        False,
        "ε that the releases so far draw on: the promise counts in full from its first release.",
    ),
    Plot(
        "Private radius by round",
        _radius,
        ("public.radius", "public.spread"),
        False,
        "How far from the predicted gradient answers may be, learnt from what noisy means tell; noise is scaled by it.",
    ),
    Plot("Cohort by round", _cohort, ("asked",), False, "Users asked in each round."),
    Plot(
        "Scores against the threshold",
        _scores,
        ("simulation.score_min", "simulation.score_median", "simulation.score_max", "simulation.threshold"),
        True,
        "To how many users of the cohort an answer is close. Below the threshold, noise aside, it is removed.",
    ),
    Plot(
        "Projected time by round",
        _time,
        ("network.total",),
        True,
        "Wall-clock over the network that was given, by part; computing is measured here unless a speed was given.",
    ),
)
