"""Draw docs/images/architecture.svg and docs/images/round.svg: python scripts/make_diagrams.py

Boxes and arrows as SVG text on a white ground, so that they look the same on a light and on a dark page.
"""

import sys
from collections.abc import Sequence
from html import escape
from pathlib import Path

IMAGES = Path(__file__).parent.parent / "docs" / "images"
BLUE, ORANGE, GREY = "#1f6fb4", "#b8420f", "#7a8691"
LINE = 17  # of text
STYLE = f"""<style>svg{{font-family:sans-serif;background:#fff}}text{{font-size:13px;fill:#222;text-anchor:middle}}
.left{{text-anchor:start}}.name{{font-weight:bold}}.small{{font-size:12px;fill:#4a5662}}
.box{{fill:#eaf2fb;stroke:{BLUE}}}.store{{fill:#f4f4f4;stroke:{BLUE}}}.noisy{{fill:#fdf0e7;stroke:{ORANGE}}}
path{{stroke-width:1.4}}.arrow{{fill:none;stroke:{BLUE}}}
.wire{{fill:none;stroke:{ORANGE};stroke-dasharray:5 4}}
.lane{{stroke:{GREY};stroke-dasharray:2 4}}</style>"""
TIPS = "".join(
    f'<marker id="{name}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
    f'orient="auto-start-reverse"><path d="M0 0 8 4 0 8z" fill="{colour}"/></marker>'
    for name, colour in (("tip", BLUE), ("wiretip", ORANGE))
)


def text(x: float, y: float, words: str, kind: str = "") -> str:
    """One line of text, around x or from x on."""
    return f'<text x="{x:g}" y="{y:g}" class="{kind}">{escape(words)}</text>'


def box(x: float, y: float, width: float, height: float, lines: Sequence[str], kind: str = "box") -> str:
    """A box with its lines of text in the middle; the first is its name."""
    top = y + height / 2 - LINE * (len(lines) - 1) / 2 + 4
    drawn = [f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="6" class="{kind}"/>']
    for place, words in enumerate(lines):
        drawn.append(text(x + width / 2, top + LINE * place, words, "name" if place == 0 else "small"))
    return "\n".join(drawn)


def arrow(points: Sequence[tuple[float, float]], kind: str = "arrow", *, both: bool = False) -> str:
    """An arrow along some points."""
    tip = "wiretip" if kind == "wire" else "tip"
    path = "M" + " L".join(f"{x:g} {y:g}" for x, y in points)
    start = f' marker-start="url(#{tip})"' if both else ""
    return f'<path d="{path}" class="{kind}" marker-end="url(#{tip})"{start}/>'


def picture(title: str, width: int, height: int, drawn: Sequence[str]) -> str:
    """A whole file."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">\n'
        f"<title>{escape(title)}</title>{STYLE}<defs>{TIPS}</defs>\n"
        f'<rect width="{width}" height="{height}" fill="#fff"/>\n' + "\n".join(drawn) + "\n</svg>\n"
    )


def frame(x: float, y: float, width: float, height: float, name: str, words: str) -> str:
    """A package: a frame with its name and what it is."""
    return (
        f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="8" fill="none" stroke="{GREY}"/>'
        f'<text x="{x + 12:g}" y="{y + 20:g}" class="left"><tspan font-weight="bold">{name}</tspan>'
        f'<tspan dx="8" fill="#4a5662">{escape(words)}</tspan></text>'
    )


def architecture() -> str:
    """The five packages, and what calls what."""
    drawn = [
        frame(10, 10, 740, 146, "quoron", "functions, commands, adapters for torch, JAX, Flower, scikit-learn"),
        box(24, 44, 110, 100, ["api, cli", "entry points"]),
        box(160, 44, 190, 46, ["training, tuning", "releases, evaluation"]),
        box(160, 98, 190, 46, ["simulation, planning", "data, reports"]),
        box(376, 44, 170, 100, ["engine", "computes answers:", "inline, in processes,", "on Ray"]),
        box(566, 44, 170, 100, ["federation", "starts and operates", "our federation,", "Flower's"]),
        arrow([(134, 67), (156, 67)]),
        arrow([(134, 121), (156, 121)]),
        arrow([(350, 67), (372, 67)]),
        arrow([(350, 121), (372, 121)]),
        frame(10, 196, 420, 158, "quoron_server", "the coordinator"),
        box(24, 230, 112, 50, ["algorithms", "plan, method"]),
        box(160, 230, 116, 50, ["runs, rounds", "the round loop"]),
        box(300, 230, 116, 50, ["storage", "ledger, roster"], "store"),
        box(24, 292, 112, 50, ["flower", "ServerApp"]),
        box(160, 292, 116, 50, ["service", "gRPC, operators"]),
        box(300, 292, 116, 50, ["helper", "second server"]),
        arrow([(160, 255), (139, 255)]),
        arrow([(276, 255), (297, 255)]),
        arrow([(218, 292), (218, 283)]),
        frame(480, 196, 270, 158, "quoron_client", "one user's side"),
        box(492, 230, 124, 50, ["protocol", "questions, answers"]),
        box(630, 230, 110, 50, ["losses, data", "a user's items"]),
        box(492, 292, 124, 50, ["federation", "state, own limits"]),
        box(630, 292, 110, 50, ["compute", "gradients"]),
        arrow([(616, 317), (627, 317)]),
        arrow([(685, 292), (685, 283)]),
        arrow([(430, 255), (489, 255)]),
        arrow([(218, 342), (218, 376), (554, 376), (554, 345)], "wire", both=True),
        text(306, 370, "network: mutual TLS", "small"),
        box(
            10,
            420,
            520,
            60,
            ["quoron_privacy", "noise, accounts, means, robust means, selection: arrays in, arrays out"],
        ),
        box(550, 420, 200, 60, ["quoron_protos", "the wire format"]),
        arrow([(220, 156), (220, 192)]),
        arrow([(640, 156), (640, 192)]),
        arrow([(80, 354), (80, 416)]),
        arrow([(500, 354), (500, 416)]),
        arrow([(660, 354), (660, 416)]),
        arrow([(400, 354), (400, 398), (590, 398), (590, 416)]),
    ]
    return picture("Packages of quoron, and what calls what", 760, 490, drawn)


def one_round() -> str:
    """One round of a federation, from the charge to the released model."""
    operator, server, client = 100, 370, 650

    def step(number: int, x: float, y: float) -> str:
        return (
            f'<circle cx="{x:g}" cy="{y:g}" r="10" fill="{BLUE}"/>'
            f'<text x="{x:g}" y="{y + 4:g}" style="fill:#fff;font-size:12px">{number}</text>'
        )

    drawn = [
        *(f'<path d="M{x} 44 V{end}" class="lane"/>' for x, end in ((operator, 550), (server, 590), (client, 352))),
        box(20, 10, 160, 34, ["operator, analyst"]),
        box(270, 10, 200, 34, ["coordinator"]),
        box(550, 10, 200, 34, ["clients"]),
        box(
            270,
            62,
            200,
            64,
            ["plan, verify, charge", "charges the whole run to the", "ledger of the population"],
            "store",
        ),
        step(1, 270, 62),
        arrow([(operator, 94), (266, 94)]),
        text(183, 88, "submit a run with ε, δ", "small"),
        arrow([(470, 94), (546, 94)]),
        text(508, 88, "ε, δ", "small"),
        box(550, 62, 200, 64, ["agree, charge", "charges the whole run to the", "client's own limit"], "store"),
        step(2, 550, 62),
        f'<rect x="200" y="146" width="556" height="376" rx="8" fill="none" stroke="{GREY}" stroke-dasharray="6 4"/>',
        text(212, 166, "every round", "left name"),
        box(270, 180, 200, 50, ["sample a cohort", "secret, or in a public order"], "store"),
        step(3, 270, 180),
        arrow([(470, 205), (650, 205), (650, 228)]),
        text(560, 199, "question: point, clip C", "small"),
        box(550, 232, 200, 64, ["average gradient, clip", "of the client's items, to C;", "stored before it is sent"]),
        step(4, 550, 232),
        box(550, 306, 200, 46, ["noise: local", "each client, every answer"], "noisy"),
        arrow([(650, 352), (650, 378), (474, 378)]),
        text(560, 372, "answer: one vector", "small"),
        box(550, 404, 200, 46, ["noise: two-servers", "each server, every sum"], "noisy"),
        arrow([(550, 427), (474, 427)]),
        box(
            270,
            362,
            200,
            88,
            ["exact sum, absent = 0", "noise: central-broadcast,", "every round; central-release,", "at releases only"],
            "noisy",
        ),
        step(5, 270, 362),
        arrow([(server, 450), (server, 462)]),
        box(270, 466, 200, 46, ["commit, then release", "step to the next point"], "store"),
        step(6, 270, 466),
        arrow([(270, 489), (232, 489), (232, 205), (266, 205)]),
        arrow([(server, 512), (server, 540)]),
        box(270, 544, 200, 64, ["finish", "stores the model,", "erases the noise key"], "store"),
        step(7, 270, 544),
        arrow([(270, 576), (184, 576)]),
        text(227, 570, "fetch", "small"),
        box(20, 550, 160, 52, ["model", "and its guarantee (ε, δ)"]),
        text(490, 560, "Orange: noise, by trust model.", "left small"),
        text(490, 578, "Grey: written before anything is sent.", "left small"),
        text(490, 596, "Charges: in 1 and 2 only, for all rounds.", "left small"),
    ]
    return picture("One round of a federation, from the charge to the released model", 770, 622, drawn)


def main() -> int:
    """Write both, and say where."""
    for name, drawn in (("architecture", architecture()), ("round", one_round())):
        path = IMAGES / f"{name}.svg"
        path.write_text(drawn, encoding="utf-8")
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
