"""The parts of a report: one HTML page that loads nothing, and reads well by people, by machines and on paper.

Whatever is text here is escaped here. `Raw` is what these functions made.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from importlib.metadata import PackageNotFoundError, metadata

from quoron.reports.style import POLICY, SCRIPT, STYLE


class Raw(str):
    """HTML that functions here made; all else is text, and escaped."""

    __slots__ = ()


_PROOF = re.compile(r"docs/([\w-]+(?:/[\w-]+)?)\.md(#\w+)?")
BADGE = Raw('<span class="badge">simulation only</span>')
SIMULATED = (
    "A simulation: its noise comes from a seed, so nothing on this page protects anybody. What is marked “simulation "
    "only” depends on private data besides, and no real run could show it."
)


@dataclass(frozen=True, slots=True)
class Fact:
    """A line of a summary; `private` where it depends on private data outside of releases."""

    label: str
    text: str | Raw
    private: bool = False


@dataclass(frozen=True, slots=True)
class Card:
    """What one should know first: a few words, a number, and what it is read beside."""

    label: str
    figure: str
    beside: str
    private: bool = False


def document(name: str, *, lead: str, parts: Iterable[str], simulated: bool, footer: str) -> str:
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
{"".join(parts)}
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


def section(title: str, *parts: str, private: bool = False) -> Raw:
    """A part of the page under its heading; nothing where there is nothing in it."""
    inner = "\n".join(part for part in parts if part)
    head = f"<h2>{_marked(private)}{text(title)}</h2>"
    return Raw(f"<section>\n{head}\n{inner}\n</section>\n" if inner else "")


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


def table(caption: str, heads: Sequence[str], rows: Sequence[Sequence[str | Raw]]) -> Raw:
    """A table whose rows begin with their names; on a narrow page it moves within its own frame."""
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
    """What is there for whoever wants to see it."""
    return Raw(f"<details><summary>{text(title)}</summary>{inner}</details>" if inner else "")


def verbatim(words: str) -> Raw:
    """A file's text."""
    return Raw(f'<pre tabindex="0">{text(words)}</pre>')


def _marked(private: bool) -> str:
    return f"{BADGE} " if private else ""


def _cell(words: str | Raw) -> str:
    return words if isinstance(words, Raw) else text(words)
