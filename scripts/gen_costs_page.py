"""Write tables into docs/results.md: the cost of a message, a round and a run, as `quoron plan` prints it.

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

from quoron.engine.network import PRESETS, Counts, Network, Times, duration
from quoron.planning.projection import NAME
from quoron.reports import plots
from quoron.results import size
from quoron.simulation import run as runs
from quoron.simulation import sources
from quoron_client.protocol.questions import AverageGradient, Question
from quoron_server.traffic import CONNECTING, encoded, idle, once, traffic

PAGE = Path(__file__).parent.parent / "docs" / "results.md"
SOURCE = "few-rounds"
DIMENSIONS = (1, 10, 100, 1_000, 10_000, 100_000, 1_000_000)
COHORTS = (1, 10, 100, 1_000, 10_000, 100_000)
COLUMNS = ("algorithm", "excess risk", "rounds", "bytes", "phones")  # of all that a plan prints
MIX = "phones:0.9+datacentre:0.1"
ROUND, SECONDS = 100, 60  # the hundredth round


def counts(dimension: int, asked: int) -> Counts:
    """Of a round that asks for average gradients, without any computing."""
    question = Question(ROUND, np.zeros(asked, np.int64), AverageGradient(np.zeros((1, dimension)), (1.0,)))
    down, up = encoded(question, dimension)
    moved = traffic(messages=asked, down=down, up=up, run=NAME, seconds=SECONDS)
    return Counts(asked, moved.down, moved.up)


def in_time(network: Network, counted: Counts) -> str:
    """The time of a round's messages for people; the coordinator's own time is in another column."""
    if network.answer_seconds(counted) > network.deadline:
        return f"after the deadline of {duration(network.deadline)}"
    times: Times = network.project(counted)
    return duration(times.total - times.serving)


def messages() -> str:
    """One client's bytes and time by the number of columns."""
    lines = []
    for dimension in DIMENSIONS:
        one = counts(dimension, 1)
        told = [in_time(Network.parse(name), one) for name in PRESETS]
        lines.append([f"{dimension:,}", size(one.wire_down), size(one.wire_up), *told])
    return _table(["columns d", "down", "up", *PRESETS], lines)


def rounds() -> str:
    """The time of one round by its cohort."""
    lines = []
    for asked in COHORTS:
        counted = counts(10, asked)
        told = [in_time(Network.parse(name), counted) for name in (*PRESETS, MIX)]
        lines.append([f"{asked:,}", *told, duration(asked / Network().server)])
    return _table(["users asked", *PRESETS, f"`{MIX}`", "plus the coordinator"], lines)


def methods() -> str:
    """What `quoron plan` says of all methods."""
    config, folder = sources.resolve(SOURCE, [f"run.network={','.join(PRESETS)!r}"])
    rows = runs.prepare(config, folder, compare=True).planned.costs
    (table,) = plots.section(rows).tables
    places = [table.heads.index(name) for name in COLUMNS]
    return _table(COLUMNS, [[line[place] for place in places] for line in table.rows])


def beside() -> str:
    """What is spent once and while nothing happens."""
    down, up = once(run=NAME, description=plots.DESCRIPTION)
    pings = idle(seconds=3600)
    lines = [
        ["a connection: TLS handshake, enrolment", *map(size, CONNECTING)],
        [
            f"a run: announcement ({size(plots.DESCRIPTION)}), consent, end",
            size(down - CONNECTING[0]),
            size(up - CONNECTING[1]),
        ],
        ["an idle hour", size(pings), size(pings)],
    ]
    return _table(["for each client", "down", "up"], lines)


PARTS = {"messages": messages, "rounds": rounds, "methods": methods, "beside": beside}


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
