"""One self-contained HTML page for a run: the promise, the summary, and plots. Nothing is loaded from elsewhere."""

from collections.abc import Mapping, Sequence
from html import escape
from importlib.util import find_spec
from string import Template
from typing import Any, Protocol

from quoron_privacy.errors import ConfigError
from quoron_privacy.kernels.on_first_use import OnFirstUse

Rows = Sequence[Mapping[str, Any]]
Lines = Sequence[tuple[str, str]]

WITHOUT = "Plots are drawn where matplotlib is: pip install 'quoron[plots]'."
plots = OnFirstUse("quoron.reports.plots")


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
    figures = plots.figures(summary, rounds) if drawing() else f"<p>{escape(WITHOUT)}</p>"
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


def drawing() -> bool:
    """Whether there is what draws plots: the extra `plots`."""
    return find_spec("matplotlib") is not None


def pictures() -> Any:
    """`quoron.reports.plots`; ConfigError where nothing can be drawn."""
    if not drawing():
        raise ConfigError("Expected matplotlib for a picture, got none. Install it: pip install 'quoron[plots]'.")
    return plots


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
