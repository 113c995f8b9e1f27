"""Pictures as SVG: lines on two axes, rankings, gauges of one number. Functions of numbers, in the page's own colours.

>>> chart("Risk", [Line("risk", [(1, 0.5), (2, 0.25)])], Axis("rounds"), Axis("risk")).count("<polyline")
1
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from typing import Literal

Point = tuple[float, float]
Reach = tuple[float | None, float | None]
Kind = Literal["line", "dashed", "dots", "band", "bars"]
Scale = Callable[[float], float]

WIDTH, HEIGHT, LINE = 360, 210, 20  # of a picture without its legend, and of a line of text in it
LABEL = 150  # width of a ranking's names, at most
WIDTHS = dict.fromkeys("fijltrI.,:;'|!()[] ", 4.4) | dict.fromkeys("mwMWOQGD@%—…", 11.5)  # of letters in these pictures
COLOURS = 12  # then they begin again, dashed
ALONE = """<style>svg{font-family:sans-serif;background:#fff}text{font-size:12px;fill:#4a5662}.end{text-anchor:end}
.mid{text-anchor:middle}.grid{stroke:#dde2e7}.shade{fill:#eef2f6}[class^=c]{fill:none;stroke-width:1.8;
stroke:hsl(var(--hue) 62% 38%)}.dot,.bar{fill:hsl(var(--hue) 62% 38%)}.band{stroke:none!important;opacity:.25}
{hues}</style>"""
HUES = "".join(f".c{place}{{--hue:{(210 + 137.5 * place) % 360:.0f}}}" for place in range(COLOURS))


@dataclass(frozen=True, slots=True)
class Line:
    """Points that belong together; `reach` is each one's interval, of a band its upper edge is `tops`."""

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
    words: Callable[[float], str] = lambda value: number(value)


def number(value: float) -> str:
    """A number on an axis, in few characters.

    >>> number(900), number(15_000_000), number(0.00002), number(0.25)
    ('900', '15M', '2e-05', '0.25')
    """
    if abs(value) < 1000:
        return f"{value:.3g}"
    for unit in ("k", "M", "G"):
        value /= 1000
        if abs(value) < 1000:
            return f"{value:.3g}{unit}"
    return f"{value / 1000:.3g}T"


def chart(
    title: str, lines: Sequence[Line], across: Axis, up: Axis, *, shades: Sequence[tuple[str, float, float]] = ()
) -> str:
    """Lines on two axes, with a legend where there are several; `shades` are grounds from one x to another, named."""
    every = [(x, y) for line in lines for x, y in line.points]
    ends = [end for line in lines for pair in line.reach for end in pair if end is not None and (end > 0 or not up.log)]
    left, right, top, bottom = _reach(across, [x for x, _ in every]), 0, 12, HEIGHT - 42
    low, high = _reach(up, [y for _, y in every] + ends)
    ticks = _ticks(low, high, log=up.log)
    margin = 14 + 6.6 * max(len(up.words(tick)) for tick in ticks)
    right = WIDTH - 10
    x_of, y_of = _scale(*left, margin, right, log=across.log), _scale(low, high, bottom, top + LINE - 6, log=up.log)
    drawn = [f'<text x="0" y="{top}">{_text(up.label)}</text>']
    for place, (name, start, end) in enumerate(shades):
        a, b = x_of(max(start, left[0])), x_of(min(end, left[1]))
        if place % 2 == 0:
            ground = f'y="{top + 14}" width="{b - a:.1f}" height="{bottom - top - 14}"'
            drawn.append(f'<rect class="shade" x="{a:.1f}" {ground}/>')
        drawn.append(f'<text class="mid" x="{(a + b) / 2:.1f}" y="{bottom - 5}">{_text(name)}</text>')
    for tick in ticks:
        y = y_of(tick)
        drawn.append(f'<line class="grid" x1="{margin:.1f}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>')
        drawn.append(f'<text class="end" x="{margin - 6:.1f}" y="{y + 4:.1f}">{_text(up.words(tick))}</text>')
    for tick in _ticks(*left, log=across.log):
        place = min(max(x_of(tick), margin + 8), right - 8)
        drawn.append(f'<text class="mid" x="{place:.1f}" y="{bottom + 16}">{_text(across.words(tick))}</text>')
    drawn.append(f'<text class="mid" x="{(margin + right) / 2:.1f}" y="{bottom + 34}">{_text(across.label)}</text>')
    for place, line in enumerate(lines):
        drawn.append(_line(line, place, x_of, y_of, bottom))
    height = float(HEIGHT)
    if len(lines) > 1:
        legend, height = _legend(lines, margin, HEIGHT + 8)
        drawn.append(legend)
    return _svg(title, "\n".join(drawn), height)


def ranking(title: str, rows: Sequence[tuple[str, float, Reach, str]], *, log: bool = False) -> str:
    """Names with a bar, or a dot with its interval where one has one, and words: (name, value, interval, words)."""
    reached = any(end is not None for _, _, reach, _ in rows for end in reach)
    ends = [each for _, value, reach, _ in rows for each in (value, *reach) if each is not None]
    ends = [each for each in ends if each > 0] if log else [*ends, 0.0]
    right = WIDTH - 12 - 6.6 * max(len(words) for *_, words in rows)
    low, high = _reach(Axis("", log=log), ends)
    label = min(LABEL, 12 + max(_wide(name) for name, *_ in rows))
    place = _scale(low, high, label, right, log=log)
    bottom, drawn = LINE * len(rows) + 4, []
    for tick in _ticks(low, high, log=log, many=3):
        x = place(tick)
        drawn.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{bottom}"/>')
        drawn.append(f'<text class="mid" x="{x:.1f}" y="{bottom + 14}">{number(tick)}</text>')
    for index, (name, value, (least, most), words) in enumerate(rows):
        y = LINE * index + 14
        drawn.append(f'<text class="end" x="{label - 8:.1f}" y="{y}">{_text(name, label - 10)}</text>')
        if most is not None:
            start = label if least is None or (log and least <= 0) else place(least)
            drawn.append(f'<line class="c0" x1="{start:.1f}" x2="{place(most):.1f}" y1="{y - 4}" y2="{y - 4}"/>')
        if reached:
            drawn.append(f'<circle class="c0 dot" cx="{place(value):.1f}" cy="{y - 4}" r="4"/>')
        else:
            a, b = sorted((label if log else place(0.0), place(value)))
            drawn.append(f'<rect class="c0 bar" x="{a:.1f}" y="{y - 9}" width="{max(b - a, 1):.1f}" height="10"/>')
        drawn.append(f'<text x="{right + 8:.1f}" y="{y}">{_text(words)}</text>')
    return _svg(title, "\n".join(drawn), bottom + 20)


def gauge(value: float, reach: Reach, ends: Point, *, beside: float | None = None) -> str:
    """One number between two ends, with its interval and a mark for what it is read beside: for a cell of a table."""
    place = _scale(*ends, 4, 136, log=False)

    def at(each: float) -> float:
        return place(min(max(each, ends[0]), ends[1]))

    drawn = '<line class="grid" x1="4" x2="136" y1="8" y2="8"/>'
    if beside is not None:
        drawn += f'<line class="c1" x1="{at(beside):.1f}" x2="{at(beside):.1f}" y1="1" y2="15"/>'
    if reach[0] is not None and reach[1] is not None:
        drawn += f'<line class="c0" x1="{at(reach[0]):.1f}" x2="{at(reach[1]):.1f}" y1="8" y2="8"/>'
    drawn += f'<circle class="c0 dot" cx="{at(value):.1f}" cy="8" r="4"/>'
    return f'<svg class="gauge" viewBox="0 0 140 16" aria-hidden="true">{drawn}</svg>'


def alone(pictures: Sequence[str]) -> bytes:
    """Pictures side by side as one file that looks the same wherever it is shown, on a white ground."""
    heights = [float(picture.split('viewBox="0 0 ')[1].split('"')[0].split()[1]) for picture in pictures]
    wide = (WIDTH + 20) * len(pictures)
    inner = "\n".join(
        picture.replace("<svg ", f'<svg x="{10 + (WIDTH + 20) * place}" y="8" width="{WIDTH}" height="{height:g}" ', 1)
        for place, (picture, height) in enumerate(zip(pictures, heights, strict=True))
    )
    size = f'viewBox="0 0 {wide} {max(heights) + 16:g}" width="{wide * 1.25:g}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}>{ALONE.replace("{hues}", HUES)}\n{inner}\n</svg>\n'.encode()


def _line(line: Line, place: int, x_of: Scale, y_of: Scale, bottom: float) -> str:
    """One line, its points, or what is below it."""
    colour = place if line.colour is None else line.colour
    style = f'class="c{colour % COLOURS}"'
    dashed = ' stroke-dasharray="5 3"' if line.kind == "dashed" or place >= COLOURS else ""
    places = [(x_of(x), y_of(y)) for x, y in line.points]
    drawn = []
    if line.kind == "band":
        edge = [(x_of(x), y_of(high or 0.0)) for (x, _), (_, high) in zip(line.points, line.reach, strict=True)]
        return f'<polygon class="c{colour % COLOURS} bar band" points="{_path(places + edge[::-1])}"/>'
    if line.kind == "bars":
        wide = max(1.0, 0.8 * min((b[0] - a[0] for a, b in pairwise(places)), default=40.0))
        return "".join(
            f'<rect class="c{colour % COLOURS} bar" x="{x - wide / 2:.1f}" y="{y:.1f}" width="{wide:.1f}" '
            f'height="{max(bottom - y, 0):.1f}"/>'
            for x, y in places
        )
    for (x, _), (low, high) in zip(places, line.reach, strict=False):
        if high is not None:
            under = bottom if low is None else y_of(low)
            drawn.append(f'<line {style} x1="{x:.1f}" x2="{x:.1f}" y1="{under:.1f}" y2="{y_of(high):.1f}"/>')
    if line.kind != "dots":
        drawn.append(f'<polyline {style}{dashed} points="{_path(places)}"/>')
    size = 3.6 if line.kind == "dots" else 2.4
    if line.kind == "dots" or (line.kind == "line" and len(places) <= 60):
        drawn += [f'<circle class="c{colour % COLOURS} dot" cx="{x:.1f}" cy="{y:.1f}" r="{size}"/>' for x, y in places]
    return "".join(drawn)


def _legend(lines: Sequence[Line], left: float, top: float) -> tuple[str, float]:
    """A line of text for each with its stroke, in two columns where they are many; and where they end."""
    drawn, start, columns = [], left, 2 if len(lines) > 4 else 1
    for place, line in enumerate(lines):
        left = start / columns + WIDTH / 2 * (place % columns)
        y, colour = top + LINE * (place // columns), place if line.colour is None else line.colour
        dashed = ' stroke-dasharray="5 3"' if line.kind == "dashed" or place >= COLOURS else ""
        x = f"{left + 10:.1f}"
        stroke = (
            f'<circle class="c{colour % COLOURS} dot" cx="{x}" cy="{y}" r="2.6"/>'
            if line.kind == "dots"
            else f'<line class="c{colour % COLOURS}"{dashed} x1="{left:.1f}" x2="{left + 20:.1f}" y1="{y}" y2="{y}"/>'
        )
        drawn.append(
            f'{stroke}<text x="{left + 26:.1f}" y="{y + 4}">{_text(line.name, (WIDTH - 30 - start) / columns)}</text>'
        )
    return "".join(drawn), top + LINE * -(-len(lines) // columns)


def _svg(title: str, drawn: str, height: float) -> str:
    label = escape(title, quote=True)
    return f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{label}">\n{drawn}\n</svg>'


def _wide(text: str) -> float:
    """About how much room a text takes."""
    return sum(WIDTHS.get(letter, 7.6 if letter.isascii() else 9.0) for letter in text)


def _text(text: str, room: float = WIDTH) -> str:
    """A text, shortened in its middle to about so much room; the whole of it is told to whoever points at it."""
    if _wide(text) <= room:
        return escape(text)
    kept = int(len(text) * room / _wide(text))
    while kept > 3 and _wide(text[: kept - kept // 3] + "…" + text[-(kept // 3) :]) > room:
        kept -= 1
    kept = max(kept, 3)
    return f"{escape(text[: kept - kept // 3])}…{escape(text[-(kept // 3) :])}<title>{escape(text)}</title>"


def _path(points: Sequence[Point]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


def _reach(axis: Axis, values: Sequence[float]) -> Point:
    """The ends of an axis, apart from each other, with some room about points that are drawn on it."""
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


def _ticks(low: float, high: float, *, log: bool, many: int = 5) -> list[float]:
    """Round numbers within a range, at least one."""
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
