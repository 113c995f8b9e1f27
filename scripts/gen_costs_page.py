"""Write tables into docs/results.md: the cost of a message and a run, as `quoron plan` prints it.

The page's prose is its own; the text between marks is written here.

python scripts/gen_costs_page.py            # some ten seconds
python scripts/gen_costs_page.py --check    # whether the page is up to date
"""

import re
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import written

from quoron.planning.choosing import risk_words
from quoron.results import size
from quoron.simulation import run as runs
from quoron.simulation import sources
from quoron_client.protocol.questions import AverageGradient, Question
from quoron_server.traffic import encoded

PAGE = Path(__file__).parent.parent / "docs" / "results.md"
SOURCE = "few-rounds"
DIMENSIONS = (1, 10, 100, 1_000, 10_000, 100_000, 1_000_000)
ROUND = 100  # the hundredth


def messages() -> str:
    """One client's bytes by the number of columns, of a round that asks for average gradients."""
    lines = []
    for dimension in DIMENSIONS:
        question = Question(ROUND, np.zeros(1, np.int64), AverageGradient(np.zeros((1, dimension)), (1.0,)))
        down, up = encoded(question, dimension)
        lines.append([f"{dimension:,}", size(down), size(up)])
    return _table(["columns d", "down", "up"], lines)


def methods() -> str:
    """What `quoron plan` says of all methods, the least risk first."""
    config, folder = sources.resolve(SOURCE)
    found = [each for each in runs.prepare(config, folder, compare=True).planned.candidates if each.plan is not None]
    found.sort(key=lambda each: (each.predicted is None, each.predicted or each.guess or 0.0))
    lines = []
    for each in found:
        cost, risk = each.plan.cost, risk_words(each.predicted, each.guess) or "not predicted"
        moved = size(cost.bytes_up + cost.bytes_down)
        lines.append([each.algorithm, risk, f"{cost.rounds:,}", f"{cost.messages:,}", moved])
    return _table(["algorithm", "excess risk", "rounds", "messages", "payload"], lines)


PARTS = {"messages": messages, "methods": methods}


def page() -> str:
    """The page with these tables, its prose as it stands."""
    text = PAGE.read_text(encoding="utf-8")
    for name, made in PARTS.items():
        pattern = rf"(<!-- {name}: begin -->\n).*?(<!-- {name}: end -->)"
        begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->"
        text, found = re.subn(pattern, lambda _, made=made: f"{begin}{made()}\n{end}", text, flags=re.DOTALL)  # noqa: B023
        if found != 1:
            raise SystemExit(f"Expected the marks of {name} once in {PAGE}, got them {found} times.")
    return text


def _table(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    return "\n".join("| " + " | ".join(line) + " |" for line in (heads, ["---"] * len(heads), *lines))


if __name__ == "__main__":
    sys.exit(written.page(PAGE, page()))
