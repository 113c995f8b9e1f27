"""A program: one small run of `train` again and again, each on a disk that is full at another byte, in one process.

    python tests/filling.py FIRST STEP MOMENT...
    echo '{"charge": [1024, 512]}' | python tests/filling.py

From a moment on no file may grow beyond so many bytes (FIRST, FIRST + STEP, ... until there is room for all; or those).
SQLite's pages are of 512 bytes instead of 4,096, so that every byte of such a store is soon tried. What is
pure, the plan, is made once; words of the system come again in each life. Each is followed by a second start with room,
and what both left is looked at; the findings are printed as JSON, a line a life.
"""

import hashlib
import json
import os
import random
import resource
import sys
import tempfile
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from committed import committed
from quoron.planning.plans import Prepared
from quoron.reports import pages as reports
from quoron.run_folder import Identity, RunFolder, claim
from quoron.simulation import sources
from quoron.training import lifetime, result, run
from quoron.training.table import TableSetup
from quoron_privacy.errors import RunError
from quoron_server.storage import store
from quoron_server.storage.ledger import Ledger
from quoron_server.storage.lifetime_ledger import PopulationLedger

MOMENTS: dict[str, tuple[Any, str] | None] = {  # the call before which the disk fills; each writes what others do not
    "start": None,
    "charge": (PopulationLedger, "charge"),
    "round": (Ledger, "spend"),
    "finish": (Ledger, "finish"),
    "files": (result, "write"),
    "release": (PopulationLedger, "release"),
    "end": (PopulationLedger, "end"),
}
WATCHED = (*filter(None, MOMENTS.values()), (Ledger, "commit"))
ENOUGH = 1_000_000  # bytes; a run that this holds up is not held up by its disk
ALIKE = 50  # lives in a row that are wrong: it is not their disk, and the next would be, too
HARD = resource.getrlimit(resource.RLIMIT_FSIZE)[1]


def fill(room: int | None) -> None:
    """From now on no file of this process grows beyond so many bytes."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (HARD if room is None else room, HARD))


@dataclass
class Watched:
    """Calls of the store: those that it acknowledged, and the moment from which the disk is full."""

    moment: str = "start"
    room: int | None = None  # None: there is room, whatever the moment
    acknowledged: list[str] = field(default_factory=list)

    def begin(self, room: int | None) -> None:
        self.room, self.acknowledged = room, []
        fill(room if self.moment == "start" else None)

    def call(self, owner: Any, name: str) -> Callable[..., Any]:
        original = getattr(owner, name)

        def called(*given: Any, **named: Any) -> Any:
            if MOMENTS[self.moment] == (owner, name) and self.room is not None:
                fill(self.room)
            found = original(*given, **named)
            self.acknowledged.append(name)
            return found

        return called


@dataclass
class Life:
    """How one went: to its end or not, what is wrong, and what was to be seen of it but for how long a cut piece is."""

    moment: str
    room: int
    whole: bool = False
    wrong: str | None = None
    seen: list[Any] = field(default_factory=list)


def quick(folder: Path) -> tuple[Any, Callable[[], None]]:
    """The configuration, with small pages, one plan for all lives and a report of one line; and what begins a life."""
    store.SETTINGS = ("page_size=512", *store.SETTINGS)
    planned: list[Prepared[TableSetup]] = []
    plan = run._planned

    def once(config: Any, base: Path, identity: Identity, *given: Any, **named: Any) -> Prepared[TableSetup]:
        planned[:] = planned or [plan(config, base, identity, *given, **named)]
        scene, account = replace(planned[0].setup, identity=identity), partial(lifetime.opened, config.train.ledger)
        return replace(
            planned[0], config=config, setup=scene, digest=config.digest(), name=identity.run, account=account
        )

    def report(to: RunFolder, *_: Any) -> Path:
        to.write_text("report.html", "a report")
        return to.path / "report.html"

    numbers = count()

    def drawn(length: int) -> bytes:
        return hashlib.shake_128(str(next(numbers)).encode()).digest(length)

    def anew() -> None:
        nonlocal numbers
        numbers = count()

    run._planned, reports.write_training = once, report  # type: ignore[assignment]
    Identity.fresh = staticmethod(lambda name: Identity(f"{name}-{next(numbers)}", 7, "2026-01-01"))  # type: ignore[method-assign, assignment]
    os.urandom = random._urandom = drawn  # type: ignore[assignment, attr-defined]
    rows = "\n".join(f"{who},{10 * who % 97},{who % 2}" for who in range(60))
    (folder / "people.csv").write_text(f"who,age,ill\n{rows}\n", encoding="utf-8")
    (folder / "people.toml").write_text(
        '[population]\nkind = "table"\npath = "people.csv"\nuser = "who"\nlabel = "ill"\n'
        "columns.numeric = { age = [0, 100] }\n"
        '[privacy]\nepsilon = 8.0\ndelta = 1e-3\n[train]\ndata_quality = 0\n[algorithm]\nname = "one-pass-dp-sgd"\n'
        "[algorithm.options]\nrounds = 1\n",
        encoding="utf-8",
    )
    return sources.resolve(str(folder / "people.toml"), ())[0], anew


def start(config: Any, folder: Path) -> None:
    """As the same command does it in another process: from whatever is in the folder."""
    lifetime._MEMORY.clear()
    begun = RunFolder(folder / "run")
    if (begun.path / result.MODEL).is_file():
        run.resume(begun)
        return
    prepared = run.prepare(config, folder, name="run", folder=begun)
    run.carry_out(prepared, claim(config, "run"))


def lived(config: Any, watched: Watched, life: Life, folder: Path) -> str | None:
    """One life on a full disk, and one with room: what is wrong."""
    own = {"run": config.run.model_copy(update={"out": str(folder / "run")})}
    own |= {"train": config.train.model_copy(update={"ledger": str(folder / "life.sqlite")})}
    config, said = config.model_copy(update=own), ""
    watched.begin(life.room)
    try:
        start(config, folder)
        life.whole = True
    except RunError as error:
        said = str(error).replace(str(folder), "")
        if "damaged" in said:
            return f"refused as damaged: {error}"
    finally:
        fill(None)
    told, before = list(watched.acknowledged), committed(folder / "run")
    left = sorted(str(each.relative_to(folder)) for each in folder.rglob("*"))
    watched.begin(None)
    charged = _kinds(folder)
    life.seen = [life.whole, said, told, left, charged, len(before.rounds), before.state is None, before.model is None]
    if lost := [name for name in ("charge", "release", "end") if name in told and name not in charged]:
        return f"acknowledged and gone: {lost}"
    if (before.rounds or before.state or before.model) and "charge" not in charged:
        return "a round without a charge"
    if told.count("commit") > len(before.rounds) + 1:  # the first is of where rounds begin
        return "a round was acknowledged and is gone"
    start(config, folder)
    after = committed(folder / "run")
    if _kinds(folder) != ["charge", "release", "end"]:
        return f"the account says {_kinds(folder)}"
    if not after.goes_on_from(before) or len(after.rounds) != 1 or after.model is None:
        return "what was committed is another now"
    if remains := sorted(each.name for each in (folder / "run").iterdir() if each.name.endswith(".new")):
        return f"left behind: {remains}"
    return None


def _kinds(folder: Path) -> list[str]:
    lifetime._MEMORY.clear()
    if not (folder / "life.sqlite").is_file():
        return []
    with lifetime.opened(folder / "life.sqlite") as kept:
        kept.verify()
        return [row["kind"] for row in kept.rows()]


def main(*given: str) -> None:
    watched = Watched()
    for owner, name in WATCHED:
        setattr(owner, name, watched.call(owner, name))
    if not given:
        rooms, wanted = json.load(sys.stdin), False
    else:
        first, step, *moments = given
        rooms, wanted = {each: range(int(first), ENOUGH, int(step)) for each in moments or MOMENTS}, True
    with tempfile.TemporaryDirectory() as place:
        config, anew = quick(Path(place))
        for watched.moment, each in rooms.items():
            amiss = 0
            for room in each:
                life = Life(watched.moment, room)
                anew()
                with tempfile.TemporaryDirectory(dir=place) as folder:
                    try:
                        life.wrong = lived(config, watched, life, Path(folder))
                    except Exception:
                        life.wrong = traceback.format_exc(limit=-4)
                    finally:
                        fill(None)
                print(json.dumps(asdict(life)), flush=True)
                amiss = amiss + 1 if life.wrong else 0
                if wanted and (life.whole or amiss == ALIKE):
                    break


if __name__ == "__main__":
    main(*sys.argv[1:])
