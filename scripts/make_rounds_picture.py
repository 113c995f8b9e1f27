"""Draw docs/images/rounds.svg: predicted excess risk against rounds of six algorithms on the preset few-rounds."""

import sys
from pathlib import Path

import quoron
from quoron.reports.plots import rounds_svg

PICTURE = Path(__file__).parent.parent / "docs" / "images" / "rounds.svg"
ALGORITHMS = ("accelerated-srgd", "srgd", "accelerated-sgd", "tracking-srgd", "one-pass-dp-sgd", "phased-sgd")


def main() -> int:
    """Plan, draw, and say where."""
    planned = {name: quoron.plan("few-rounds", algorithm=name) for name in ALGORITHMS}
    curves = {name: each.curve for name, each in planned.items() if each.curve is not None}
    chosen = {name: planned[name].plan.cost.rounds for name in curves}
    PICTURE.parent.mkdir(parents=True, exist_ok=True)
    PICTURE.write_bytes(rounds_svg(curves, chosen=chosen))
    print(PICTURE)
    return 0


if __name__ == "__main__":
    sys.exit(main())
