"""The table of what rounds cost, for a terminal, a page and the documentation: the same words in all three."""

from collections.abc import Sequence

from quoron.network import duration
from quoron.planning.projection import NAME, Costs
from quoron.reports.page import Section, Table
from quoron.reports.summary import size
from quoron_server.traffic import idle, once

DESCRIPTION = 1_200  # bytes of a run's announcement, about
FRONT = "●"  # behind a cost: on its front
LEGEND = (
    f"{FRONT} on the front: no other has as little of it with as little risk. Messages are answers asked for; bytes "
    "are of questions and answers, on the wire. Time is projected: what it leaves out is in docs/network.md."
)
EARLY = (
    "Over named networks a round ends once all have answered, as with `--early-ends`; without it each lasts its "
    "`--timeout` and a tenth."
)
HELD = (
    "held: the promise rests on secret cohorts, so no round may end early, and each lasts its whole time and a tenth."
)


def heads(rows: Sequence[Costs]) -> list[str]:
    """Of the columns."""
    return ["algorithm", "excess risk", "rounds", "messages", "bytes", "of them up", *(rows[0].seconds if rows else ())]


def cells(row: Costs) -> list[str]:
    """One line, column by column."""
    line = [row.algorithm, row.told, _marked(row, "rounds", f"{row.rounds:,.4g}"), f"{row.messages:,.10g}"]
    line += [_marked(row, "bytes", size(row.bytes_down + row.bytes_up)), size(row.bytes_up)]
    for network, seconds in row.seconds.items():
        words = "too slow" if seconds is None else duration(seconds) + (" held" if row.held else "")
        line.append(_marked(row, network, words))
    return line


def notes(rows: Sequence[Costs]) -> list[str]:
    """What stands below the table."""
    down, up = once(run=NAME, description=DESCRIPTION)
    hour = idle(seconds=3600)
    beside = (
        f"Beside the rounds a client takes some {size(down)} down and {size(up)} up to connect and to hear of the run, "
    )
    beside += f"and {size(hour)} an hour each way while it waits."
    return [LEGEND, EARLY, *([HELD] if any(row.held for row in rows) else []), beside]


def section(rows: Sequence[Costs]) -> Section:
    """The table with its notes; nothing where nothing is priced."""
    title = "What the rounds cost"
    listed = Table(title, heads(rows), [cells(row) for row in rows])
    return Section(title=title, tables=[listed], below=notes(rows)) if rows else Section()


def _marked(row: Costs, name: str, words: str) -> str:
    return f"{words} {FRONT}" if name in row.fronts else words
