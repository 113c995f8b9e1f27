"""How a page looks, light and dark, on a desk, a phone and paper; and its one script, which switches."""

import base64
import hashlib

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
