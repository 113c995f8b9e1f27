"""What `quoron tune` and `quoron show` print: what a search would try and cost, what it chose, what a folder holds."""

from dataclasses import asdict
from pathlib import Path

from rich.markup import escape

from quoron.cli import one_screen, showing
from quoron.comparing.comparison import Comparison
from quoron.reports.summary import Summary
from quoron.simulation.run import SimulatedRun
from quoron.training.result import TrainedTable
from quoron.tuning.run import Tuned
from quoron.tuning.tables import TableSearch
from quoron_server.serial import dumps


def show(result: "SimulatedRun | TrainedTable | Comparison", *, as_json: bool, details: bool = False) -> None:
    """Whatever has been carried out, searches among it."""
    if isinstance(result, Tuned):
        show_tuned(result, as_json=as_json, details=details)
    else:
        showing.show(result, as_json=as_json, details=details)


def show_stored(done: "Summary | TrainedTable | Comparison", page: Path, *, as_json: bool, details: bool) -> None:
    """What a folder holds: ten lines, or with `details` all of them, and the path of its page."""
    if as_json:
        plain = done.summary.as_json() if isinstance(done, TrainedTable) else done.as_json()
        chosen = {"choice": asdict(done.choice)} if isinstance(done, Tuned) else {}
        print(dumps(plain | chosen | {"directory": str(page.parent), "report": str(page)}))
        return
    if not details:
        print(done)
    elif isinstance(done, Summary):
        showing.show_summary(done)
    else:
        show(done, as_json=False, details=True)
    print(page)


def show_tuned(tuned: Tuned, *, as_json: bool, details: bool = False) -> None:
    """A complete search: what was chosen and what it cost, then the chosen model as `show_trained` says it."""
    if as_json:
        print(dumps(tuned.summary.as_json() | {"choice": asdict(tuned.choice), "directory": str(tuned.directory)}))
        return
    showing.console().print(one_screen.pairs(tuned.choice.rows()))
    showing.show_trained(tuned, as_json=False, details=details)


def show_search(search: TableSearch, *, as_json: bool) -> None:
    """What a search would try and cost."""
    if as_json:
        print(dumps(search.as_json()))
        return
    out = showing.console()
    showing.say_doubts(out, search.doubts)
    for line in (one_screen.DRY, search.statement):
        out.print(escape(line), highlight=False)
    out.print(one_screen.pairs(search.rows()))
    for each in search.candidates:
        out.print(escape(each.name), style="dim", highlight=False)
    for remark in search.remarks:
        out.print(escape(remark), style="yellow", highlight=False)
