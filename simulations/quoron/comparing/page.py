"""One self-contained HTML page for a comparison: rankings and sweeps, for light and dark, desk and phone.

Nothing is loaded from elsewhere, and there is no script: pictures are inline SVG in the page's own colours.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from html import escape
from string import Template
from typing import Any

from quoron.comparing.cells import costs_of as costs_of
from quoron.comparing.request import Request, shown
from quoron.planning.choosing import Candidate, refusals, risk_words
from quoron.planning.plans import SURE
from quoron.reports import costs
from quoron.reports.summary import NOTICED, size

Row = Mapping[str, Any]
Point = tuple[float, float, float | None, float | None]  # x, mean, low, high

WIDTH, LINE = 400, 22  # of a picture, and of a line in it
LEFT, RIGHT = 136, 334  # ends of the axis of a ranking
COLOURS = 12  # then they begin again, dashed
RANKINGS: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("excess_risk", "Excess risk", lambda value: f"{value:.2g}"),
    ("rounds", "Rounds", lambda value: f"{value:,.0f}"),
    ("gradient_evaluations", "Item gradients", lambda value: short(value)),
    ("bytes_up", "Bytes from clients", size),
)


def page(cells: Sequence[Row], request: Request, *, name: str) -> str:
    """The page as HTML text; `cells` are the rows of `quoron.comparing.cells`, and `name` is the folder's."""
    keys = [key for key, _ in request.vary]
    settings = list(dict.fromkeys(_setting(row, keys) for row in cells))
    by_setting = [(each, [row for row in cells if _setting(row, keys) == each]) for each in settings]
    sweeps = "\n".join(_sweeps(cells, request))
    parts = "\n".join(_part(setting, rows) for setting, rows in by_setting)
    return PAGE.substitute(name=escape(name), lead=escape(_lead(request)), sweeps=sweeps, parts=parts)


def best_words(rows: Sequence[Row]) -> str:
    """Which cell of a setting has the least mean excess risk, and which others may be as good.

    >>> best_words([{"algorithm": "a", "excess_risk": 1.0, "low": 0.8, "high": 1.2, "runs": 5},
    ...             {"algorithm": "b", "excess_risk": 1.1, "low": 0.9, "high": 1.3, "runs": 5}])
    'Least excess risk: a, 1. The interval of b overlaps with its.'
    """
    ranked = [row for row in rows if row.get("excess_risk") is not None]
    if not ranked:
        return "Nothing has a result here."
    first = ranked[0]
    near = [
        row["algorithm"]
        for row in ranked[1:]
        if None not in (row["low"], first["high"]) and row["low"] <= first["high"]
    ]
    sentence = f"Least excess risk: {first['algorithm']}, {first['excess_risk']:.2g}."
    if first["high"] is None:
        return f"{sentence} One seed says nothing about chance: give --seeds 5."
    if not near:
        return sentence
    many = len(near) > 1
    return f"{sentence} The interval{'s' * many} of {', '.join(near)} overlap{'s' * (not many)} with its."


def held_words(rows: Sequence[Row]) -> str:
    """Which cells' models a domain holds back, and what of their excess risk that is; nothing where none is.

    >>> held_words([{"algorithm": "a", "taken": "a", "excess_risk": 1.0, "held_back": 0.5}])
    'Held back by the bound of their domain: a (0.5 of its 1). A larger domain.radius costs these methods noise.'
    """
    held = [
        f"{algorithm(row)} ({row['held_back']:.2g} of its {row['excess_risk']:.2g})"
        for row in rows
        if row.get("excess_risk") is not None and (row.get("held_back") or 0.0) > NOTICED * row["excess_risk"]
    ]
    if not held:
        return ""
    return (
        f"Held back by the bound of their domain: {', '.join(held)}. A larger domain.radius costs these methods noise."
    )


def why_not(rows: Sequence[Row]) -> list[str]:
    """One line for each reason why cells have no result, with the algorithms that it rules out."""
    refused = [Candidate(row["algorithm"], None, row["infeasible"]) for row in rows if row.get("infeasible")]
    lines = [f"Infeasible: {', '.join(names)}: {reason}" for reason, names in refusals(refused)]
    return lines + [f"Failed: {row['algorithm']}: {row['failed']}" for row in rows if row.get("failed")]


def short(value: float) -> str:
    """A count in few characters.

    >>> short(900), short(15_000_000)
    ('900', '15M')
    """
    for unit in ("", "k", "M", "G"):
        if value < 1000:
            return f"{value:.3g}{unit}"
        value /= 1000
    return f"{value:.3g}T"


def _lead(request: Request) -> str:
    seeds = "one seed" if request.seeds == 1 else f"{request.seeds} seeds"
    sentence = f"{len(request.cells())} cells of {seeds} each, simulated: noise comes from seeds, and protects nobody."
    interval = "" if request.seeds == 1 else " Excess risk is a mean over seeds with its 95 % interval (Student's t)."
    return sentence + interval + f" It is over the least risk of any model, without privacy and without a bound. {SURE}"


def _setting(row: Row, keys: Sequence[str]) -> str:
    return ", ".join(f"{key} = {shown(row[key])}" for key in keys)


def _part(setting: str, rows: Sequence[Row]) -> str:
    """Everything about one setting: pictures, table, refusals."""
    done = [row for row in rows if row.get("excess_risk") is not None]
    head = f"<h2>{escape(setting)}</h2>" if setting else ""
    pictures = "\n".join(_ranking(done, *ranking) for ranking in RANKINGS) if done else ""
    refused = "\n".join(f"<li>{escape(line)}</li>" for line in why_not(rows))
    return (
        f"<section>{head}<p>{escape(best_words(rows))} {escape(held_words(rows))}</p>\n"
        f'<div class="figures">{pictures}</div>\n{_table(done)}\n{_costs(rows)}\n<ul>{refused}</ul></section>'
    )


def _costs(rows: Sequence[Row]) -> str:
    """What rounds cost over each network, with the fronts marked."""
    priced = costs_of(rows)
    if not priced:
        return ""
    lines = [costs.heads(priced), *(costs.cells(row) for row in priced)]
    drawn = [
        "<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in line) + "</tr>"
        for tag, line in zip(("th", *["td"] * len(priced)), lines, strict=True)
    ]
    below = "".join(f"<p>{escape(note)}</p>" for note in costs.notes(priced))
    return f'<h3>What the rounds cost</h3><div class="wide"><table>{"".join(drawn)}</table></div>{below}'


def _table(rows: Sequence[Row]) -> str:
    if not rows:
        return ""
    tests = [key for key in rows[0] if key.startswith("test_")]
    heads = [
        "",
        "algorithm",
        "excess risk",
        "95 % interval",
        "left of the start",
        "predicted at most",
        "rounds",
        "item gradients",
    ]
    heads += ["up", "down", "exposure", *(f"held-out {key.removeprefix('test_').replace('_', ' ')}" for key in tests)]
    lines = []
    for rank, row in enumerate(rows, start=1):
        interval = "" if row["low"] is None else f"{row['low']:.2g} to {row['high']:.2g}"
        left = "" if row["of_start"] is None else f"{100 * row['of_start']:.2g} %"
        cells = [str(rank), algorithm(row), f"{row['excess_risk']:.2g}", interval, left]
        cells += [risk_words(row.get("predicted_excess_risk"), row.get("guessed_excess_risk")), f"{row['rounds']:,.4g}"]
        cells += [short(row["gradient_evaluations"]), size(row["bytes_up"]), size(row["bytes_down"]), row["exposure"]]
        cells += ["" if row.get(key) is None else f"{row[key]:.4g}" for key in tests]
        lines.append("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>")
    head = "".join(f"<th>{escape(each)}</th>" for each in heads)
    return f'<div class="wide"><table><tr>{head}</tr>\n' + "\n".join(lines) + "</table></div>"


def algorithm(row: Row) -> str:
    """The name of a cell's algorithm; of `auto` also what it took."""
    return f"auto ({row['taken']})" if row["algorithm"] == "auto" and row["taken"] else str(row["algorithm"])


def _ranking(rows: Sequence[Row], key: str, title: str, words: Callable[[float], str]) -> str:
    """A picture of one figure of every cell, least first: a dot with its interval, or a bar, on a logarithmic axis."""
    ranked = sorted((row for row in rows if row.get(key) is not None and row[key] > 0), key=lambda row: row[key])
    if not ranked:
        return ""
    ends = [row[key] for row in ranked]
    if key == "excess_risk":
        ends += [row[end] for row in ranked for end in ("low", "high") if row[end] is not None and row[end] > 0]
    scale = _log_scale(min(ends), max(ends), LEFT, RIGHT)
    height = LINE * (len(ranked) + 1) + 6
    drawn = [_gridline(scale(10.0**power), height) for power in _powers(min(ends), max(ends))]
    for index, row in enumerate(ranked):
        y, value = LINE * index + LINE * 0.6, row[key]
        drawn.append(f'<text x="{LEFT - 8}" y="{y + 4:.0f}" class="label">{escape(algorithm(row)[:24])}</text>')
        if key == "excess_risk":
            if row["low"] is not None:
                low = scale(row["low"]) if row["low"] > 0 else LEFT
                drawn.append(
                    f'<line x1="{low:.1f}" x2="{scale(row["high"]):.1f}" y1="{y:.1f}" y2="{y:.1f}" class="reach"/>'
                )
            drawn.append(f'<circle cx="{scale(value):.1f}" cy="{y:.1f}" r="4.5" class="dot"/>')
        else:
            drawn.append(f'<line x1="{LEFT}" x2="{scale(value):.1f}" y1="{y:.1f}" y2="{y:.1f}" class="bar"/>')
        drawn.append(f'<text x="{RIGHT + 8}" y="{y + 4:.0f}">{escape(words(value))}</text>')
    drawn += [_tick(scale(10.0**power), height - 4, 10.0**power) for power in _powers(min(ends), max(ends))]
    return _figure(title, "\n".join(drawn), height + 8)


def _sweeps(cells: Sequence[Row], request: Request) -> list[str]:
    """For each varied key of numbers, excess risk against it, one picture for each choice of the other keys."""
    pictures = []
    for key, values in request.vary:
        if len(values) < 2 or not all(
            isinstance(value, int | float) and not isinstance(value, bool) for value in values
        ):
            continue
        others = [other for other, _ in request.vary if other != key]
        for setting in dict.fromkeys(_setting(row, others) for row in cells):
            rows = [row for row in cells if _setting(row, others) == setting and row.get("excess_risk")]
            lines: dict[str, list[Point]] = {}
            for row in sorted(rows, key=lambda row: row[key]):
                lines.setdefault(row["algorithm"], []).append(
                    (float(row[key]), row["excess_risk"], row["low"], row["high"])
                )
            if lines:
                pictures.append(_sweep(f"Excess risk against {key}" + (f" ({setting})" if setting else ""), key, lines))
    return ['<div class="figures">', *pictures, "</div>"] if pictures else []


def _sweep(title: str, key: str, lines: Mapping[str, Sequence[Point]]) -> str:
    left, right, top, bottom = 54, WIDTH - 12, 10, 236
    points = [point for line in lines.values() for point in line]
    xs, ys = [x for x, *_ in points], [y for _, y, *_ in points]
    ys += [end for _, _, low, high in points for end in (low, high) if end is not None and end > 0]
    across = _scale(min(xs), max(xs), left, right)
    down = _log_scale(min(ys), max(ys), bottom, top)
    drawn = []
    for power in _powers(min(ys), max(ys)):
        y = down(10.0**power)
        drawn.append(f'<line x1="{left}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}" class="grid"/>')
        drawn.append(f'<text x="{left - 6}" y="{y + 4:.1f}" class="label">{10.0**power:g}</text>')
    for x in sorted(set(xs)):
        drawn.append(f'<text x="{across(x):.1f}" y="{bottom + 16}" class="middle">{x:g}</text>')
    drawn.append(f'<text x="{(left + right) / 2:.0f}" y="{bottom + 32}" class="middle">{escape(key)}</text>')
    y = bottom + 52
    for index, (name, line) in enumerate(lines.items()):
        style = f'class="c{index % COLOURS}"' + (' stroke-dasharray="5 3"' if index >= COLOURS else "")
        places = [(across(x), down(mean)) for x, mean, *_ in line]
        drawn.append(f'<polyline points="{" ".join(f"{a:.1f},{b:.1f}" for a, b in places)}" {style}/>')
        for (a, b), (_, _, low, high) in zip(places, line, strict=True):
            if high is not None:
                under = down(low) if low else bottom
                drawn.append(f'<line x1="{a:.1f}" x2="{a:.1f}" y1="{under:.1f}" y2="{down(high):.1f}" {style}/>')
            drawn.append(f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3" {style}/>')
        column, row = left + 172 * (index % 2), y + 18 * (index // 2)
        drawn.append(f'<line x1="{column}" x2="{column + 18}" y1="{row - 4}" y2="{row - 4}" {style}/>')
        drawn.append(f'<text x="{column + 24}" y="{row}">{escape(name)}</text>')
    return _figure(title, "\n".join(drawn), y + 18 * ((len(lines) + 1) // 2))


def _figure(title: str, drawn: str, height: float) -> str:
    label = escape(title, quote=True)
    svg = f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{label}">\n{drawn}\n</svg>'
    return f"<figure><h3>{label}</h3>{svg}</figure>"


def _gridline(x: float, height: float) -> str:
    return f'<line x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{height - 16:.0f}" class="grid"/>'


def _tick(x: float, y: float, value: float) -> str:
    return f'<text x="{x:.1f}" y="{y:.0f}" class="middle">{value:g}</text>'


def _powers(least: float, most: float) -> list[int]:
    """Powers of ten within a range, or beside it if there is none; every second one where they are many."""
    first, last = math.ceil(math.log10(least) - 1e-9), math.floor(math.log10(most) + 1e-9)
    return list(range(first, last + 1, 1 + (last - first) // 5)) if first <= last else []


def _log_scale(least: float, most: float, start: float, end: float) -> Callable[[float], float]:
    """From [least, most] to [start, end], with some room at both ends."""
    low, high = math.log10(least) - 0.08, math.log10(most) + 0.08
    return lambda value: start + (end - start) * (math.log10(value) - low) / (high - low)


def _scale(least: float, most: float, start: float, end: float) -> Callable[[float], float]:
    """Logarithmic where positive numbers span a factor of four or more, else linear."""
    if least > 0 and most >= 4 * least:
        return _log_scale(least, most, start, end)
    span = (most - least) or 1.0
    room = 0.04 * (end - start)
    return lambda value: start + room + (end - start - 2 * room) * (value - least) / span


# Hues a golden angle apart: neighbours in the list are far apart in colour, however many there are.
_LINES = "\n".join(f".c{index} {{ --hue: {(210 + 137.5 * index) % 360:.0f}; }}" for index in range(COLOURS))

PAGE = Template(
    """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>$name · quoron</title>
<style>
:root { color-scheme: light dark; --ink: #1f2933; --soft: #52606d; --paper: #fbfbfa; --card: #fff; --line: #e4e7eb;
        --blue: #2b6cb0; --bar: #9db8d6; --light: 38%; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e9ec; --soft: #a3adb8; --paper: #14171a; --card: #1c2126; --line: #333b44; --blue: #74aee8;
          --bar: #3d5f85; --light: 66%; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 76rem; padding: 1.5rem 1rem 4rem; background: var(--paper); color: var(--ink);
       font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
h1 { margin: 0 0 .25rem; font-size: 1.6rem; font-weight: 600; overflow-wrap: anywhere; }
h2 { margin: 2.5rem 0 .5rem; font-size: 1.2rem; font-weight: 600; }
h3 { margin: 0 0 .5rem; font-size: 1rem; font-weight: 600; overflow-wrap: anywhere; }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 23rem), 1fr)); gap: 1rem; }
figure { margin: 0; padding: 1rem; background: var(--card); border: 1px solid var(--line); border-radius: 10px; }
svg { display: block; width: 100%; max-width: 34rem; height: auto; }
svg text { fill: var(--soft); font-size: 12px; } svg .label { text-anchor: end; fill: var(--ink); }
svg .middle { text-anchor: middle; } svg line { stroke-width: 1.5; }
.grid { stroke: var(--line); } .dot { fill: var(--blue); } .reach { stroke: var(--blue); }
svg .bar { stroke: var(--bar); stroke-width: 11; }
[class^="c"] { fill: none; stroke: hsl(var(--hue) 62% var(--light)); stroke-width: 1.8; }
circle[class^="c"] { fill: hsl(var(--hue) 62% var(--light)); }
$colours
.wide { overflow-x: auto; margin: 1rem 0; }
table { border-collapse: collapse; font-size: .88rem; font-variant-numeric: tabular-nums; white-space: nowrap; }
th, td { padding: .35rem .9rem .35rem 0; border-bottom: 1px solid var(--line); text-align: left; }
th { font-weight: 500; color: var(--soft); }
ul { padding-left: 1.2rem; font-size: .9rem; color: var(--soft); overflow-wrap: anywhere; }
footer { margin-top: 2rem; font-size: .88rem; color: var(--soft); }
</style>
</head>
<body>
<h1>$name</h1>
<p>$lead</p>
$sweeps
$parts
<footer>Made by quoron. All of it depends on simulated data that nobody protects; no deployment may show it.</footer>
</body>
</html>
""".replace("$colours", _LINES)
)
