"""Metrics of a second server in Prometheus' text format: planned and public values, no others.

It says how far a run is, by its plan; of users nothing, not even how many there were. The text is the same for any set
of users who answer (docs/two-servers.md#metrics).
"""

import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import lru_cache

from quoron_privacy.two_servers.specification import MechanismSpec
from quoron_server.second_server.runs import Helped
from quoron_server.second_server.store import CLOSED, EXPIRED, OPEN, RESTORED, HelpedRun
from quoron_server.service.metrics import Family, ServerMetrics, family
from quoron_server.storage.database import Database

REFUSED = ("identity", "expired", "refused", "away", "error")  # calls, and why
Stored = list[tuple[HelpedRun, int]]  # of each run its answered rounds


class SecondServerMetrics(ServerMetrics[Stored]):
    """The values of one second server."""

    def __init__(self, helped: Helped, database: Database, days_left: Callable[[], Mapping[str, float]]) -> None:
        super().__init__(database, days_left)
        self._helped = helped
        self.refused: Counter[str] = Counter()  # calls, by one of `REFUSED`
        self.on_time = True  # whether the keys of finished runs could be destroyed when it was last tried

    def _read(self) -> Stored:
        store = self._helped.store
        return [(run, store.rounds(run.run)) for run in store.runs()]

    def _free(self) -> Mapping[str, int]:
        with suppress(OSError):
            return {"keys": shutil.disk_usage(self._helped.keys.folder).free}
        return {}

    def _own(self, stored: Stored | None) -> Iterator[Family]:
        words = "Whether the keys of finished runs could be destroyed when it was last tried."
        yield family("second_server_keys_end", words, self.on_time)
        refused = [({"why": why}, self.refused[why]) for why in REFUSED]
        yield family("calls_refused_total", "Calls that were refused, since the start.", refused, "counter")
        if stored is None:
            return
        states = Counter(run.state for run, _ in stored)
        runs = [({"state": state}, states[state]) for state in (OPEN, CLOSED, EXPIRED, RESTORED)]
        yield family("second_server_runs", "Runs by state.", runs)
        open_ = [(run, answered) for run, answered in stored if run.state == OPEN]
        now = self._clock()
        for name, words, value in (
            ("rounds_answered", "Rounds of an open run whose list was answered.", lambda run, answered: answered),
            ("rounds_planned", "Rounds that it has.", lambda run, _: _rounds(run.spec)),
            ("keys_seconds_left", "Until its keys are destroyed in any case.", lambda run, _: run.expires - now),
        ):
            yield family(f"second_server_run_{name}", words, [({"run": run.run}, value(run, n)) for run, n in open_])


@lru_cache(maxsize=64)
def _rounds(spec: str) -> int:
    return len(MechanismSpec.read(spec).rounds)
