"""What a helper tells those who watch over it, in Prometheus' text format: planned and public values, no others.

Of a run how far it is, by its plan; of users nothing, and not how many there were: whoever answers, the text is the
same (docs/two-servers.md#metrics).
"""

import asyncio
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, suppress
from functools import lru_cache

from quoron_privacy.two_servers.specification import Sheet
from quoron_server.books.database import Database
from quoron_server.books.store import software
from quoron_server.helper.books import CLOSED, EXPIRED, OPEN, RESTORED, HelpedRun
from quoron_server.helper.runs import Helped
from quoron_server.service import metrics as metrics_port
from quoron_server.service.metrics import DATABASE_TIMEOUT as PATIENCE
from quoron_server.service.metrics import FREE, Family, Sample, family, text

REFUSED = ("identity", "expired", "refused", "away", "error")  # calls, and why


def own(name: str, help_: str, samples: Iterable[Sample] | float, kind: str = "gauge") -> Family:
    """As `family`, of what only the second server has."""
    return family(f"second_server_{name}", help_, samples, kind)


class HelperMetrics:
    """The values of one helper, read when they are asked for."""

    def __init__(
        self,
        helped: Helped,
        database: Database,
        days_left: Callable[[], Mapping[str, float]],
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`days_left`: until the first certificate of a kind ends."""
        self._helped, self._database, self._days_left, self._clock = helped, database, days_left, clock
        self._started = clock()
        self._reading: asyncio.Future[list[tuple[HelpedRun, int]]] | None = None
        self.refused: Counter[str] = Counter()  # calls, by one of `REFUSED`
        self.on_time = True  # whether keys of runs that are over could be destroyed at the last look

    async def text(self) -> str:
        """All of it, as it is served. What the database says is left out while it does not answer."""
        if self._reading is None or self._reading.done():
            self._reading = asyncio.ensure_future(asyncio.to_thread(self._read))
            self._reading.add_done_callback(lambda done: done.cancelled() or done.exception())
        reading = self._reading
        await asyncio.wait({reading}, timeout=PATIENCE)
        stored = reading.result() if reading.done() and not reading.cancelled() and not reading.exception() else None
        return text([*self._of_process(up=stored is not None), *([] if stored is None else self._of_runs(stored))])

    def _read(self) -> list[tuple[HelpedRun, int]]:
        books = self._helped.books
        return [(run, books.rounds(run.run)) for run in books.runs()]

    def _of_process(self, *, up: bool) -> Iterator[Family]:
        yield family("build_info", "The code that runs here.", [({"version": software()}, 1)])
        yield family("start_time_seconds", "When this process started, as Unix time.", self._started)
        yield family("clock_seconds", "This machine's clock, as Unix time: keys end by it.", self._clock())
        up = up and not self._database.failing
        yield family("database_up", "Whether the database answers, and can be written.", int(up))
        yield own("keys_end", "Whether keys of runs that are over could be destroyed, at the last look.", self.on_time)
        refused: list[Sample] = [({"why": why}, self.refused[why]) for why in REFUSED]
        yield family("calls_refused_total", "Calls that were refused, since the start.", refused, "counter")
        free: list[Sample] = []
        books = self._database.path
        for place, path in (("books", books and books.parent), ("keys", self._helped.keys.folder)):
            with suppress(OSError):
                if path is not None:
                    free.append(({"place": place}, shutil.disk_usage(path).free // FREE * FREE))
        yield family("disk_free_bytes", "Room left, rounded down to 64 MiB.", free)
        days: list[Sample] = [({"of": of}, int(left // 1)) for of, left in self._days_left().items()]
        yield family("certificate_days_left", "Whole days to the end of the first certificate of a kind.", days)

    def _of_runs(self, stored: list[tuple[HelpedRun, int]]) -> Iterator[Family]:
        states = Counter(run.state for run, _ in stored)
        yield own("runs", "Runs by state.", [({"state": s}, states[s]) for s in (OPEN, CLOSED, EXPIRED, RESTORED)])
        open_ = [(run, answered) for run, answered in stored if run.state == OPEN]
        now = self._clock()
        for name, words, value in (
            ("rounds_answered", "Rounds of an open run whose list was answered.", lambda run, answered: answered),
            ("rounds_planned", "Rounds that it has.", lambda run, _: _rounds(run.sheet)),
            ("keys_seconds_left", "Until its keys are destroyed in any case.", lambda run, _: run.expires - now),
        ):
            yield own(f"run_{name}", words, [({"run": run.run}, value(run, n)) for run, n in open_])


@lru_cache(maxsize=64)
def _rounds(sheet: str) -> int:
    return len(Sheet.read(sheet).rounds)


class Watched:
    """The port of /metrics, /healthz and /alarms.yml, in a thread of its own. `with` opens and closes it."""

    def __init__(self, address: str, metrics: HelperMetrics, serving: Callable[[], bool]) -> None:
        self._given, self.address = (address, metrics, serving), address
        self._loop = asyncio.new_event_loop()

    def __enter__(self) -> "Watched":
        self._thread = threading.Thread(target=self._run, name="metrics", daemon=True)
        self._thread.start()
        address, metrics, serving = self._given
        listening = metrics_port.listen(address, metrics, serving=serving)
        try:
            self._server = asyncio.run_coroutine_threadsafe(listening, self._loop).result()
        except BaseException:
            self._stop()
            raise
        self.address = metrics_port.address_of(self._server)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._server.close)
        self._stop()

    def _stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _run(self) -> None:
        with closing(self._loop):
            self._loop.run_forever()
