"""The parts of a report: one HTML page that loads nothing, and reads well by people, by machines and on paper.

Whatever is text here is escaped here. `Raw` is what these functions made.

How a page looks, light and dark, on a desk, a phone and paper; and its one script, which switches.
"""

import base64
import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from importlib.metadata import PackageNotFoundError, metadata
from typing import Any, NamedTuple

from quoron.reports.pictures import HUES

_DARK = """--ink: #e8ebee; --soft: #b1bac4; --paper: #14171a; --card: #1d2227; --line: #38414a; --accent: #8cc0f2;
  --tint: #1b2c3d; --mark: #f6c795; --mark-ground: #452a12; --good: #8fd6a4; --light: 68%; color-scheme: dark;"""
SCRIPT = """
const button = document.getElementById("theme"), root = document.documentElement;
const system = matchMedia("(prefers-color-scheme: dark)");
const dark = () => root.dataset.theme ? root.dataset.theme === "dark" : system.matches;
const told = () => button.setAttribute("aria-pressed", dark());
button.hidden = false;
button.addEventListener("click", () => { root.dataset.theme = dark() ? "light" : "dark"; told(); });
addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((each) => { each.open = true; }));
told();
"""
STYLE = f"""
:root {{ --ink: #1d262f; --soft: #4f5b67; --paper: #f7f8f9; --card: #fff; --line: #dde2e7; --accent: #1f5d9c;
  --tint: #e9f1f9; --mark: #84390c; --mark-ground: #fdeede; --good: #20693a; --light: 38%; color-scheme: light; }}
@media screen and (prefers-color-scheme: dark) {{ :root:not([data-theme="light"]) {{ {_DARK} }} }}
@media screen {{ :root[data-theme="dark"] {{ {_DARK} }} }}
* {{ box-sizing: border-box; }}
body {{ margin: 0 auto; max-width: 62rem; padding: 1.25rem 1rem 3rem; background: var(--paper); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif; overflow-wrap: anywhere; }}
header {{ display: flex; gap: 1rem; align-items: flex-start; justify-content: space-between; }}
h1 {{ margin: 0; font-size: 1.55rem; line-height: 1.25; }}
h2 {{ margin: 0 0 .6rem; font-size: 1.15rem; }}
h3 {{ margin: 1.2rem 0 .4rem; font-size: 1rem; }}
p {{ margin: .5rem 0; }}
a {{ color: var(--accent); }}
.soft, figcaption, footer, caption {{ color: var(--soft); font-size: .88rem; }}
button {{ flex: none; font: inherit; font-size: .85rem; padding: .3rem .8rem; border-radius: 2rem; cursor: pointer;
  color: var(--ink); background: var(--card); border: 1px solid var(--soft); }}
:focus-visible {{ outline: 3px solid var(--accent); outline-offset: 2px; }}
section {{ margin: 1rem 0; padding: 1.1rem 1.25rem 1.2rem; background: var(--card); border: 1px solid var(--line);
  border-radius: 12px; }}
blockquote {{ margin: .8rem 0; padding: .7rem 1rem; border-left: 4px solid var(--accent); background: var(--tint); }}
.simulated {{ margin: 1rem 0; padding: .7rem 1rem; border-radius: 8px; background: var(--mark-ground);
  color: var(--mark); }}
.badge {{ display: inline-block; padding: 0 .55rem; border-radius: 1rem; background: var(--mark-ground);
  color: var(--mark); font-size: .75rem; font-weight: 600; white-space: nowrap; vertical-align: .1em; }}
.cards {{ display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 10.4rem), 1fr)); gap: .75rem;
  margin: 1rem 0; padding: 0; list-style: none; }}
.cards li {{ padding: .8rem 1rem; background: var(--card); border: 1px solid var(--line); border-radius: 12px; }}
.cards b {{ display: block; font-size: 1.5rem; line-height: 1.3; font-variant-numeric: tabular-nums; }}
.cards span {{ color: var(--soft); font-size: .88rem; }} .cards .badge {{ color: var(--mark); font-size: .75rem; }}
.beside {{ display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 20rem), 1fr)); gap: 1.25rem; }}
.beside > * {{ min-width: 0; }}
figure {{ margin: .4rem 0 0; }} figure h3 {{ margin: 0 0 .4rem; }}
.wide {{ overflow-x: auto; margin: .6rem 0; max-width: 100%; }}
table {{ border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; overflow-wrap: normal; }}
caption {{ text-align: left; padding-bottom: .3rem; }}
th, td {{ padding: .38rem 1rem .38rem 0; border-bottom: 1px solid var(--line); text-align: left; vertical-align: top; }}
thead th {{ color: var(--soft); font-weight: 600; }} tbody th {{ font-weight: 500; overflow-wrap: anywhere; }}
.wide tbody th {{ min-width: 7rem; max-width: 20rem; }} .wide td {{ white-space: nowrap; }}
.facts {{ width: 100%; }} .facts th {{ width: 36%; color: var(--soft); }} .facts td {{ overflow-wrap: anywhere; }}
ul {{ padding-left: 1.2rem; margin: .5rem 0; }} li {{ margin: .25rem 0; }}
summary {{ cursor: pointer; color: var(--accent); padding: .2rem 0; }}
pre {{ margin: .5rem 0; padding: .8rem; overflow: auto; max-height: 24rem; background: var(--paper);
  border: 1px solid var(--line); border-radius: 8px; font-size: .82rem; }}
svg {{ display: block; width: 100%; max-width: 27rem; height: auto; }} svg.gauge {{ width: 140px; height: 16px; }}
svg text {{ fill: var(--soft); font-size: 12px; unicode-bidi: isolate; }}
.end {{ text-anchor: end; }} .mid {{ text-anchor: middle; }}
.grid {{ stroke: var(--line); }} .shade {{ fill: var(--tint); }}
{HUES}
svg [class^="c"] {{ stroke: hsl(var(--hue) 62% var(--light)); stroke-width: 1.9; fill: none; }}
svg .dot, svg .bar {{ fill: hsl(var(--hue) 62% var(--light)); }} svg .band {{ stroke: none; opacity: .25; }}
@media (max-width: 34rem) {{
  section {{ padding: .9rem .9rem 1rem; }} .facts, .facts tbody, .facts tr, .facts th, .facts td {{ display: block; }}
  .facts th {{ width: auto; padding-bottom: 0; border: 0; }} }}
@media print {{
  :root {{ --ink: #000; --soft: #333; --paper: #fff; --card: #fff; --line: #bbb; --accent: #123a63;
    --tint: #fff; --mark: #000; --mark-ground: #fff; --light: 32%; color-scheme: light; }}
  body {{ max-width: none; padding: 0; font-size: 11pt; }} button {{ display: none; }}
  .badge {{ border: 1px solid #000; }} .wide, pre {{ overflow: visible; max-height: none; }}
  pre {{ white-space: pre-wrap; }} figure, tr, .cards li {{ break-inside: avoid; }}
  section {{ border-width: 1px 0 0; border-radius: 0; padding: .8rem 0; }} }}
"""
_HASH = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
# Nothing is loaded, no other script is carried out, and nothing is sent: the browser sees to it.
POLICY = (
    f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{_HASH}'; base-uri 'none'; form-action 'none'"
)


class Raw(str):
    """HTML that functions here made; all else is text, and escaped."""

    __slots__ = ()


_PROOF = re.compile(r"docs/([\w-]+(?:/[\w-]+)?)\.md(#\w+)?")
BADGE = Raw('<span class="badge">simulation only</span>')
SIMULATED = (
    "A simulation: its noise comes from a seed, so nothing on this page protects anybody. What is marked “simulation "
    "only” depends on private data besides, and no real run could show it."
)


class Bar(str):
    """A cell that is drawn with letters, for a terminal alone; a cell that is Raw is for a page alone."""

    __slots__ = ()


class Fact(NamedTuple):
    """A label and what stands for it; `private` where it depends on private data outside of releases."""

    label: str
    text: str
    private: bool = False


class Card(NamedTuple):
    """What one should know first: a few words, a number, and what it is read beside."""

    label: str
    figure: str
    beside: str
    private: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """Rows that begin with their names; `brief` is how many columns a terminal shows, None for all."""

    caption: str
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    brief: int | None = None

    def without(self, kind: type[str]) -> tuple[list[str], list[list[str]]]:
        """Return heads and rows without the columns of this kind of cell, which another medium shows."""
        kept = [at for at in range(len(self.heads)) if not any(isinstance(row[at], kind) for row in self.rows)]
        return [self.heads[at] for at in kept], [[row[at] for at in kept] for row in self.rows]


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A part of a result, which a page and a terminal show alike; nothing where there is nothing in it."""

    title: str = ""
    cards: Sequence[Card] = ()  # without a heading
    note: Sequence[str] = ()
    warnings: Sequence[str] = ()
    rows: Sequence[tuple[Any, ...]] = ()  # a Fact, or a label and its text
    tables: Sequence[Table] = ()
    below: Sequence[str] = ()  # in small print
    statement: str = ""  # a promise
    picture: str = ""  # HTML, of a page alone
    private: bool = False  # depends on private data outside of releases: simulations only
    dense: bool = False  # on a terminal without lines around its rows
    detail: bool = False  # a terminal shows it only where details are asked for

    def html(self) -> Raw:
        """Return its HTML: pictures beside texts, and a table below them that needs the whole width."""
        if self.cards:
            return cards(self.cards)
        said = [*(paragraph(each) for each in self.note), bullets(self.warnings, private=self.private)]
        words = Raw("".join([*said, facts([Fact(*row) for row in self.rows])]))
        wide = any(len(each.heads) > 4 for each in self.tables)
        listed = Raw("".join(map(table, self.tables)))
        beside = words if wide else Raw(words + listed)
        drawn = side_by_side(beside, self.picture) if beside and self.picture else Raw(beside + self.picture)
        small = "".join(paragraph(each, soft=True) for each in self.below)
        inner = drawn + (listed if wide else "") + small + (formal(self.statement) if self.statement else "")
        head = f"<h2>{_marked(self.private)}{text(self.title)}</h2>"
        return Raw(f"<section>\n{head}\n{inner}\n</section>\n" if inner else "")


def document(name: str, *, lead: str, parts: Iterable[Section], simulated: bool, footer: str) -> str:
    """The page as HTML text."""
    banner = f'<p class="simulated" role="note">{text(SIMULATED)}</p>' if simulated else ""
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<title>{text(name)} · quoron</title>
<style>{STYLE}</style>
</head>
<body>
<header><h1><bdi>{text(name)}</bdi></h1>
<button type="button" id="theme" hidden aria-pressed="false">Dark</button></header>
<main>
{paragraph(lead, soft=True)}
{banner}
{"".join(part.html() for part in parts)}
</main>
<footer>{paragraph(footer)}</footer>
<script>{SCRIPT}</script>
</body>
</html>
"""


def text(words: object) -> str:
    """Words as they may stand anywhere in the page; half a character of a pair, which no file can hold, is replaced."""
    return escape(str(words).encode("utf-8", "replace").decode(), quote=True)


def paragraph(words: str, *, soft: bool = False) -> Raw:
    """A paragraph."""
    opening = '<p class="soft">' if soft else "<p>"
    return Raw(f"{opening}{text(words)}</p>")


def formal(words: str) -> Raw:
    """A promise, whose proofs are links where the package says where its documentation is."""
    found, where = text(words), documentation()
    if where:
        found = _PROOF.sub(rf'<a href="{text(where)}/\1.html\2" rel="noreferrer">\g<0></a>', found)
    return Raw(f"<blockquote><p>{found}</p></blockquote>")


@cache
def documentation() -> str | None:
    """The address of the documentation, as the installed package has it; None where it has none."""
    try:
        named = metadata("quoron").get_all("Project-URL") or []
    except PackageNotFoundError:
        return None
    known = [address.strip() for name, _, address in (each.partition(",") for each in named) if name == "Documentation"]
    return known[0].rstrip("/") if known else None


def bullets(lines: Iterable[str], *, private: bool = False) -> Raw:
    """A list."""
    drawn = "\n".join(f"<li>{_marked(private)}{text(line)}</li>" for line in lines)
    return Raw(f"<ul>\n{drawn}\n</ul>" if drawn else "")


def cards(every: Sequence[Card]) -> Raw:
    """What one should know first."""
    drawn = "\n".join(
        f"<li>{_marked(each.private)}<span>{text(each.label)}</span><b>{text(each.figure)}</b>"
        f"<span>{text(each.beside)}</span></li>"
        for each in every
    )
    return Raw(f'<ul class="cards">\n{drawn}\n</ul>'.replace(" %", "&nbsp;%"))


def facts(lines: Sequence[Fact]) -> Raw:
    """Labels and what stands for each, below one another on a phone."""
    drawn = "\n".join(
        f'<tr><th scope="row"><bdi>{text(each.label)}</bdi></th><td>{_marked(each.private)}{_cell(each.text)}</td></tr>'
        for each in lines
    )
    return Raw(f'<table class="facts">\n<tbody>\n{drawn}\n</tbody>\n</table>' if drawn else "")


def table(given: Table) -> Raw:
    """A table whose rows begin with their names; on a narrow page it moves within its own frame."""
    (heads, rows), caption = given.without(Bar), given.caption
    if not rows:
        return Raw("")
    head = "".join(f'<th scope="col">{text(each)}</th>' for each in heads)
    lines = []
    for row in rows:
        rest = "".join(f"<td>{_cell(each)}</td>" for each in row[1:])
        lines.append(f'<tr><th scope="row"><bdi>{_cell(row[0])}</bdi></th>{rest}</tr>')
    drawn = "\n".join(lines)
    return Raw(
        f'<div class="wide" tabindex="0" role="region" aria-label="{text(caption)}"><table>\n<caption>{text(caption)}'
        f"</caption>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{drawn}\n</tbody>\n</table></div>"
    )


def figure(title: str, drawn: str, *, below: str = "", private: bool = False) -> Raw:
    """A picture under its heading, with what it means."""
    said = f"<figcaption>{text(below)}</figcaption>" if below else ""
    return Raw(f"<figure><h3>{_marked(private)}{text(title)}</h3>{drawn}{said}</figure>")


def side_by_side(*parts: str) -> Raw:
    """Parts beside each other where there is room."""
    inner = "\n".join(f"<div>{part}</div>" for part in parts if part)
    return Raw(f'<div class="beside">{inner}</div>' if inner else "")


def folded(title: str, inner: str) -> Raw:
    """What opens when its title is chosen."""
    return Raw(f"<details><summary>{text(title)}</summary>{inner}</details>" if inner else "")


def _marked(private: bool) -> str:
    return f"{BADGE} " if private else ""


def _cell(words: str | Raw) -> str:
    return words if isinstance(words, Raw) else text(words)
