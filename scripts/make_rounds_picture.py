"""Draw docs/images/rounds.svg: predicted excess risk against rounds of six algorithms on the preset few-rounds."""

import sys
from pathlib import Path

from charts import Axis, Line, alone, chart

import quoron

AT_MOST = "predicted excess risk, at most"
PICTURE = Path(__file__).parent.parent / "docs" / "images" / "rounds.svg"
ALGORITHMS = ("accelerated-srgd", "srgd", "accelerated-sgd", "tracking-srgd", "one-pass-dp-sgd", "phased-sgd")


def main() -> int:
    """Plan, draw, and say where."""
    planned = {name: quoron.plan("few-rounds", algorithm=name) for name in ALGORITHMS}
    curves = {name: each.curve for name, each in planned.items() if each.curve is not None}
    lines = [Line(name, curve.points, "line" if curve.measured else "dashed") for name, curve in curves.items()]
    chosen = [(rounds := planned[name].plan.cost.rounds, dict(curves[name].points)[rounds]) for name in curves]
    lines.append(Line("the plan", chosen, "dots", colour=7))
    PICTURE.parent.mkdir(parents=True, exist_ok=True)
    PICTURE.write_bytes(alone([chart(AT_MOST, lines, Axis("rounds", log=True), Axis(AT_MOST, log=True))]))
    print(PICTURE)
    return 0


if __name__ == "__main__":
    sys.exit(main())
