"""Pictures of the documentation as SVG: lines on two axes, and several of them as one file.

>>> chart("Risk", [Line("risk", [(1, 0.5), (2, 0.25)])], Axis("rounds"), Axis("risk")).count("<polyline")
1
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Literal

from quoron.results import short

Point = tuple[float, float]
Reach = tuple[float | None, float | None]
Kind = Literal["line", "dashed", "dots"]
Scale = Callable[[float], float]

WIDTH, HEIGHT, LINE = 360, 210, 20  # of a picture without its legend, and of a line of text in it
LETTER = 7.6  # width of a letter, about
COLOURS = 12  # then they begin again, dashed
HUES = "".join(f".c{place}{{--hue:{(210 + 137.5 * place) % 360:.0f}}}" for place in range(COLOURS))

ALONE = """<style>svg{font-family:sans-serif;background:#fff}text{font-size:12px;fill:#4a5662}.end{text-anchor:end}
.mid{text-anchor:middle}.grid{stroke:#dde2e7}[class^=c]{fill:none;stroke-width:1.8;stroke:hsl(var(--hue) 62% 38%)}
.dot{fill:hsl(var(--hue) 62% 38%)}{hues}</style>"""


@dataclass(frozen=True, slots=True)
class Line:
    """Points that belong together; `reach` is each one's interval."""

    name: str
    points: Sequence[Point]
    kind: Kind = "line"
    reach: Sequence[Reach] = ()
    colour: int | None = None  # None: its place among the lines


@dataclass(frozen=True, slots=True)
class Axis:
    """What an axis says; without `ends` they are those of the points."""

    label: str
    log: bool = False
    ends: Point | None = None


def chart(title: str, lines: Sequence[Line], across: Axis, up: Axis) -> str:
    """Return lines on two axes, with a legend where there are several."""
    every = [(x, y) for line in lines for x, y in line.points]
    ends = [end for line in lines for pair in line.reach for end in pair if end is not None and (end > 0 or not up.log)]
    left, right, top, bottom = _reach(across, [x for x, _ in every]), 0, 12, HEIGHT - 42
    low, high = _reach(up, [y for _, y in every] + ends)
    ticks = _ticks(low, high, log=up.log)
    margin = 14 + 6.6 * max(len(short(tick)) for tick in ticks)
    right = WIDTH - 10
    x_of, y_of = _scale(*left, margin, right, log=across.log), _scale(low, high, bottom, top + LINE - 6, log=up.log)
    drawn = [f'<text x="0" y="{top}">{_text(up.label)}</text>']
    for tick in ticks:
        y = y_of(tick)
        drawn.append(f'<line class="grid" x1="{margin:.1f}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>')
        drawn.append(f'<text class="end" x="{margin - 6:.1f}" y="{y + 4:.1f}">{_text(short(tick))}</text>')
    for tick in _ticks(*left, log=across.log):
        x = min(max(x_of(tick), margin + 8), right - 8)
        drawn.append(f'<text class="mid" x="{x:.1f}" y="{bottom + 16}">{_text(short(tick))}</text>')
    drawn.append(f'<text class="mid" x="{(margin + right) / 2:.1f}" y="{bottom + 34}">{_text(across.label)}</text>')
    for place, line in enumerate(lines):
        drawn.append(_line(line, place, x_of, y_of, bottom))
    height = float(HEIGHT)
    if len(lines) > 1:
        legend, height = _legend(lines, margin, HEIGHT + 8)
        drawn.append(legend)
    return _svg(title, "\n".join(drawn), height)


def _line(line: Line, place: int, x_of: Scale, y_of: Scale, bottom: float) -> str:
    """One line, its points, or what is below it."""
    style, dashed = _look(line, place)
    places = [(x_of(x), y_of(y)) for x, y in line.points]
    drawn = []
    for (x, _), (low, high) in zip(places, line.reach, strict=False):
        if high is not None:
            under = bottom if low is None else y_of(low)
            drawn.append(f'<line class="{style}" x1="{x:.1f}" x2="{x:.1f}" y1="{under:.1f}" y2="{y_of(high):.1f}"/>')
    if line.kind != "dots":
        drawn.append(f'<polyline class="{style}"{dashed} points="{_path(places)}"/>')
    size = 3.6 if line.kind == "dots" else 2.4
    if line.kind == "dots" or (line.kind == "line" and len(places) <= 60):
        drawn += [f'<circle class="{style} dot" cx="{x:.1f}" cy="{y:.1f}" r="{size}"/>' for x, y in places]
    return "".join(drawn)


def _legend(lines: Sequence[Line], left: float, top: float) -> tuple[str, float]:
    """Return a line of text for each with its stroke, and where they end."""
    drawn = []
    for place, line in enumerate(lines):
        y, style, dashed = top + LINE * place, *_look(line, place)
        drawn.append(
            f'<circle class="{style} dot" cx="{left + 10:.1f}" cy="{y}" r="2.6"/>'
            if line.kind == "dots"
            else f'<line class="{style}"{dashed} x1="{left:.1f}" x2="{left + 20:.1f}" y1="{y}" y2="{y}"/>'
        )
        drawn.append(f'<text x="{left + 26:.1f}" y="{y + 4}">{_text(line.name, WIDTH - 30 - left)}</text>')
    return "".join(drawn), top + LINE * len(lines)


def _look(line: Line, place: int) -> tuple[str, str]:
    """Return the class of a line's colour, and how it is dashed."""
    colour = place if line.colour is None else line.colour
    return f"c{colour % COLOURS}", ' stroke-dasharray="5 3"' if line.kind == "dashed" or place >= COLOURS else ""


def _svg(title: str, drawn: str, height: float) -> str:
    label = escape(title, quote=True)
    return f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{label}">\n{drawn}\n</svg>'


def _text(text: str, room: float = WIDTH) -> str:
    """Return a text, shortened in its middle to about so much room; the whole of it shows under the pointer."""
    fitting = int(room / LETTER)
    if len(text) <= fitting:
        return escape(text)
    end = fitting // 3
    return f"{escape(text[: fitting - end])}…{escape(text[-end:])}<title>{escape(text)}</title>"


def _path(points: Sequence[Point]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


def _reach(axis: Axis, values: Sequence[float]) -> Point:
    """Return the ends of an axis, apart from each other, with some room about points that are drawn on it."""
    if axis.ends is not None:
        return axis.ends
    values = [value for value in values if value > 0] if axis.log else values
    low, high = min(values, default=1.0), max(values, default=1.0)
    if axis.log:
        return low / 1.2, high * 1.2
    room = 0.04 * (high - low) or 0.5 * abs(high) or 1.0
    return (0.0 if low >= 0 and low < 0.5 * high else low - room), (0.0 if high <= 0 else high + room)


def _scale(low: float, high: float, start: float, end: float, *, log: bool) -> Scale:
    """From [low, high] to [start, end]; what is beside it, such as zero on a logarithmic axis, goes to its end."""
    if not log:
        return lambda value: start + (end - start) * (value - low) / (high - low)
    least, wide = math.log(low), math.log(high) - math.log(low)
    return lambda value: start + (end - start) * max(0.0, (math.log(max(value, low)) - least) / wide)


def _ticks(low: float, high: float, *, log: bool) -> list[float]:
    """Return round numbers within a range, at least one."""
    many = 5
    if log:
        first, last = math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9)
        powers = [10.0**power for power in range(first, last + 1, 1 + max(last - first, 0) // many)]
        if len(powers) > 1:
            return powers
        near = range(first - 1, last + 2)
        fine = [
            each for power in near for each in (10.0**power, 2 * 10.0**power, 5 * 10.0**power) if low <= each <= high
        ]
        return fine or [math.sqrt(low * high)]
    rough = (high - low) / many
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(unit * each for each in (1, 2, 5, 10) if unit * each >= rough * 0.999)
    return [step * place for place in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def alone(charts: Sequence[str], columns: int = 2) -> bytes:
    """Charts side by side as one file that looks the same wherever it is shown, on a white ground."""
    heights = [float(text.split('viewBox="0 0 ')[1].split('"')[0].split()[1]) for text in charts]
    tops = [8.0]
    for first in range(0, len(charts), columns):
        tops.append(tops[-1] + max(heights[first : first + columns]) + 24)
    inner = "\n".join(
        text.replace(
            "<svg ",
            f'<svg x="{10 + (WIDTH + 20) * (place % columns)}" y="{tops[place // columns]:g}" width="{WIDTH}" '
            f'height="{heights[place]:g}" ',
            1,
        )
        for place, text in enumerate(charts)
    )
    wide = (WIDTH + 20) * min(columns, max(len(charts), 1))
    size = f'viewBox="0 0 {wide} {tops[-1]:g}" width="{wide * 1.25:g}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}>{ALONE.replace("{hues}", HUES)}\n{inner}\n</svg>\n'.encode()
