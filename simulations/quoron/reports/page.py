"""One self-contained HTML page for a run: the promise, the summary, and plots. Nothing is loaded from elsewhere."""

import io
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from html import escape
from string import Template
from typing import Any, Protocol

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, LogFormatter

from quoron.network import Times
from quoron.reports.summary import Summary

Rows = Sequence[Mapping[str, Any]]
Lines = Sequence[tuple[str, str]]

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


class Reported(Protocol):
    """What every report begins with."""

    @property
    def statement(self) -> str:
        """The promise, in one sentence."""

    @property
    def choice(self) -> str | None:
        """Why the algorithm was chosen; None when it was named."""

    @property
    def epsilon(self) -> float | None:
        """ε; None without privacy."""

    def rows(self) -> list[tuple[str, str]]:
        """Label and text of each line."""


def page(
    summary: Reported,
    rounds: Rows,
    *,
    name: str,
    tables: Sequence[tuple[str, Lines]] = (),
    remarks: Sequence[str] = (),
    warnings: Sequence[str] = (),
) -> str:
    """The report as HTML text. `rounds` are the rows of rounds.parquet; `name` is the run's name.

    `tables` are further ones, each a title and its lines; `remarks` what is amiss, by a look at private data;
    `warnings` the same by what is public or released.
    """
    figures = "\n".join(_figure(plot, svg(plot, summary, rounds)) for plot in PLOTS if drawable(plot, rounds))
    further = "\n".join(f"<h2>{escape(title)}</h2>\n<table>\n{_lines(lines)}\n</table>" for title, lines in tables)
    choice = "" if summary.choice is None else f"<p>Chosen {escape(summary.choice)}</p>"
    statement, mark = escape(summary.statement), '<span class="mark">simulation only</span>'
    lines = _lines(summary.rows())
    amiss = "\n".join(f"<p>{mark} {escape(remark)}</p>" for remark in remarks)
    amiss += "\n".join(f"<p>{escape(warning[:1].upper() + warning[1:])}</p>" for warning in warnings)
    return PAGE.substitute(
        name=escape(name),
        statement=statement,
        choice=choice,
        rows=lines,
        remarks=amiss,
        tables=further,
        figures=figures,
    )


def _lines(lines: Lines) -> str:
    return "\n".join(f"<tr><th>{escape(label)}</th><td>{escape(text)}</td></tr>" for label, text in lines)


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
        axes.axhline(
            summary.predicted_excess_risk,
            color=ORANGE,
            linestyle="--",
            label="predicted: at most, in nine of ten problems",
        )
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

PAGE = Template("""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>$name · quoron</title>
<style>
:root { color-scheme: light; }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 64rem; padding: 2rem 1.25rem 4rem; background: #fbfbfa; color: #1f2933;
       font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
h1 { margin: 0 0 .25rem; font-size: 1.6rem; font-weight: 600; }
h2 { margin: 0 0 .5rem; font-size: 1.05rem; font-weight: 600; }
.statement { margin: 1rem 0 2rem; padding: .9rem 1.1rem; border-left: 4px solid #2b6cb0; background: #eef4fa;
             overflow-wrap: anywhere; }
table { width: 100%; border-collapse: collapse; margin-bottom: 2.5rem; font-variant-numeric: tabular-nums; }
th, td { padding: .4rem .6rem .4rem 0; border-bottom: 1px solid #e4e7eb; text-align: left; vertical-align: top; }
th { width: 40%; font-weight: 500; color: #52606d; }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr)); gap: 1.5rem; }
figure { margin: 0; padding: 1.1rem; background: #fff; border: 1px solid #e4e7eb; border-radius: 10px; }
figure svg { display: block; width: 100%; height: auto; }
figcaption { margin-top: .5rem; font-size: .88rem; color: #52606d; }
.mark { padding: .1rem .5rem; border-radius: 1rem; background: #fdf0e6; color: #8a3d10; white-space: nowrap;
        font-size: .75rem; font-weight: 500; }
footer { margin-top: 2rem; font-size: .88rem; color: #52606d; }
</style>
</head>
<body>
<h1>$name</h1>
<p class="statement">$statement</p>
$choice
<table>
$rows
</table>
$remarks
$tables
<div class="figures">
$figures
</div>
<footer>Made by quoron. What is marked “simulation only” depends on private data; no deployment may show it.</footer>
</body>
</html>
""")
