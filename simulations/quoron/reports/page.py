"""A result as a list of sections, and its HTML page: one file that loads nothing, in light and dark, and on paper.

    Section(title="Rounds", rows=[("algorithm", "tracking-srgd")])

`quoron.reports.terminal` prints the same sections. All texts are escaped here.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

_DARK = """--ink: #e8ebee; --soft: #b1bac4; --paper: #14171a; --card: #1d2227; --line: #38414a; --accent: #8cc0f2;
  --tint: #1b2c3d; --mark: #f6c795; --mark-ground: #452a12; color-scheme: dark;"""
STYLE = f"""
:root {{ --ink: #1d262f; --soft: #4f5b67; --paper: #f7f8f9; --card: #fff; --line: #dde2e7; --accent: #1f5d9c;
  --tint: #e9f1f9; --mark: #84390c; --mark-ground: #fdeede; color-scheme: light; }}
@media screen and (prefers-color-scheme: dark) {{ :root {{ {_DARK} }} }}
* {{ box-sizing: border-box; }}
body {{ margin: 0 auto; max-width: 62rem; padding: 1.25rem 1rem 3rem; background: var(--paper); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif; overflow-wrap: anywhere; }}
h1 {{ margin: 0; font-size: 1.55rem; line-height: 1.25; }}
h2 {{ margin: 0 0 .6rem; font-size: 1.15rem; }}
p, ul {{ margin: .5rem 0; }}
.soft, footer, caption {{ color: var(--soft); font-size: .88rem; }}
section {{ margin: 1rem 0; padding: 1.1rem 1.25rem 1.2rem; background: var(--card); border: 1px solid var(--line);
  border-radius: 12px; }}
blockquote {{ margin: .8rem 0; padding: .7rem 1rem; border-left: 4px solid var(--accent); background: var(--tint); }}
.simulated {{ padding: .7rem 1rem; border-radius: 8px; background: var(--mark-ground); color: var(--mark); }}
.badge {{ padding: 0 .55rem; border-radius: 1rem; background: var(--mark-ground); color: var(--mark);
  font-size: .75rem; font-weight: 600; white-space: nowrap; }}
.wide {{ overflow-x: auto; margin: .6rem 0; max-width: 100%; }}
table {{ border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; }}
caption {{ text-align: left; padding-bottom: .3rem; }}
th, td {{ padding: .38rem 1rem .38rem 0; border-bottom: 1px solid var(--line); text-align: left; vertical-align: top; }}
thead th {{ color: var(--soft); font-weight: 600; }} tbody th {{ font-weight: 500; min-width: 7rem; }}
.wide tbody th {{ max-width: 20rem; }} .wide td {{ white-space: nowrap; }}
.facts {{ width: 100%; }} .facts th {{ width: 36%; color: var(--soft); }}
@media print {{
  :root {{ --ink: #000; --soft: #333; --paper: #fff; --card: #fff; --line: #bbb; --accent: #123a63;
    --tint: #fff; --mark: #000; --mark-ground: #fff; color-scheme: light; }}
  body {{ max-width: none; padding: 0; font-size: 11pt; }} .badge {{ border: 1px solid #000; }}
  .wide {{ overflow: visible; white-space: pre-wrap; }} tr {{ break-inside: avoid; }} }}
"""
# Nothing is loaded, no script is carried out, and nothing is sent: the browser sees to it.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
ONLY = " (simulation only)"  # ends a title or a label of what depends on private data outside of releases
MARKED = re.compile(r"[\\`*_\[\]|~]")
BADGE = '<span class="badge">simulation only</span>'
SIMULATED = (
    "A simulation: its noise comes from a seed, so nothing on this page protects anybody. What is marked “simulation "
    "only” depends on private data besides: no deployment may show it."
)
FOOTER = (
    "Made by quoron. All that this page says of a table was released with noise within the guarantee, or is public: it "
    "may be shown to anybody."
)


@dataclass(frozen=True, slots=True)
class Table:
    """Rows that begin with their names; `brief` is how many columns a terminal shows, None for all."""

    caption: str
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    brief: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A part of a result, which a page and a terminal show alike; nothing where there is nothing in it."""

    title: str = ""
    note: Sequence[str] = ()
    warnings: Sequence[str] = ()
    rows: Sequence[tuple[str, str]] = ()  # labels and their texts
    tables: Sequence[Table] = ()
    below: Sequence[str] = ()  # in small print
    statement: str = ""  # a privacy guarantee
    detail: bool = False  # a terminal shows it only where details are asked for


def document(name: str, parts: Iterable[Section], *, lead: str, simulated: bool = False) -> str:
    """Return the page of a result as HTML text; that of a simulation says so instead of its footer."""
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
<h1><bdi>{text(name)}</bdi></h1>
<main>
<p class="soft">{text(lead)}</p>
{banner}
{"".join(map(_section, parts))}
</main>
<footer><p>{text("Made by quoron." if simulated else FOOTER)}</p></footer>
</body>
</html>
"""


def markdown(name: str, parts: Iterable[Section], *, lead: str) -> str:
    """Return a model card in Markdown: the same."""
    lines = [f"# {_plain(name)}", _plain(lead)]
    for part in parts:
        tables = [Table("", ["", ""], part.rows), *part.tables] if part.rows else part.tables
        inner = [*map(_plain, part.note), "\n".join(f"* {_plain(words)}" for words in part.warnings)]
        inner += [_lines(listed) for listed in tables if listed.rows]
        inner += [*map(_plain, part.below), f"> {_plain(part.statement)}" if part.statement else ""]
        if inner := [block for block in inner if block]:
            lines += [f"## {_plain(part.title)}" if part.title else "", *inner]
    return "\n\n".join(block for block in (*lines, _plain(FOOTER)) if block) + "\n"


def _lines(listed: Table) -> str:
    heads, rows = listed.heads, [listed.heads, ["---"] * len(listed.heads), *listed.rows]
    cells = [[_plain(cell) for cell in (*row, *[""] * (len(heads) - len(row)))] for row in rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in cells)


def _plain(words: object) -> str:
    """Words as they may stand in a line of Markdown: what a name holds makes no heading, link or tag."""
    shown = escape(str(words).encode("utf-8", "replace").decode(), quote=False)
    return MARKED.sub(r"\\\g<0>", " ".join(shown.split()))


def text(words: object) -> str:
    """Return words as they may stand in a page; half a character of a pair, which no file can hold, is replaced."""
    return escape(str(words).encode("utf-8", "replace").decode(), quote=True)


def _section(part: Section) -> str:
    inner = [f"<p>{text(words)}</p>" for words in part.note]
    if part.warnings:
        inner.append(f"<ul>{_each('li', part.warnings)}</ul>")
    if part.rows:
        inner.append(f'<table class="facts">{_body(part.rows)}</table>')
    inner += [_table(listed) for listed in part.tables if listed.rows]
    inner += [f'<p class="soft">{text(words)}</p>' for words in part.below]
    if part.statement:
        inner.append(f"<blockquote><p>{text(part.statement)}</p></blockquote>")
    head = f"<h2>{_marked(part.title)}</h2>" if part.title else ""
    return "\n".join(["<section>", head, *inner, "</section>\n"]) if inner else ""


def _table(listed: Table) -> str:
    """On a narrow page it moves within its own frame."""
    head = "".join(f'<th scope="col">{text(words)}</th>' for words in listed.heads)
    caption = text(listed.caption)
    return (
        f'<div class="wide" tabindex="0" role="region" aria-label="{caption}"><table>\n<caption>{caption}</caption>\n'
        f"<thead><tr>{head}</tr></thead>\n{_body(listed.rows)}</table></div>"
    )


def _body(rows: Iterable[Sequence[str]]) -> str:
    """Return rows that begin with their names, which may be written from right to left."""
    lines = [f'<tr><th scope="row"><bdi>{_marked(name)}</bdi></th>{_each("td", cells)}</tr>' for name, *cells in rows]
    return "\n".join(["<tbody>", *lines, "</tbody>"])


def _each(tag: str, texts: Iterable[str]) -> str:
    return "".join(f"<{tag}>{text(words)}</{tag}>" for words in texts)


def _marked(words: str) -> str:
    return f"{BADGE} {text(words.removesuffix(ONLY))}" if words.endswith(ONLY) else text(words)
