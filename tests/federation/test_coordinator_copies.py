"""Copies of any of a coordinator's files, from any instant of its life: the limits of then, or a refusal by name.

An older store whose files agree with each other cannot tell that it is older. A client that has seen it can, and so
can whoever kept a head of the lifetime ledger. What neither can tell is on the page: docs/durability.md.
"""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest

import postgres_server
import warden
from quoron_client.durable import HighWaterMark
from quoron_client.federation.client_state import SeenStore, StoreClaim, objection
from quoron_client.protocol.questions import AverageGradient, Question
from quoron_client.protocol.wire import run_mark
from quoron_privacy.errors import LedgerError
from quoron_privacy.release import Release
from quoron_server.federation import RunStore
from quoron_server.storage.backup import accept
from quoron_server.storage.database import Database
from quoron_server.storage.ledger import Ledger
from quoron_server.storage.registry import OPEN

Files = dict[str, bytes]
NAMES = ("store.sqlite", "store.sqlite-wal", "store.sqlite-acknowledged")
FROM = ("older", "last", "nowhere")
WAYS = [way for way in product(FROM, repeat=3) if set(way) != {"last"}]


@dataclass(frozen=True)
class Life:
    """What there was at each instant, and what witnesses kept of the end."""

    instants: list[Files]
    closed: Files
    killed: Files
    seen: SeenStore
    charged: tuple[str, ...]
    counted: str


def one_run(store: RunStore, number: int) -> None:
    """Another user, a run of some rounds, and one of its ends; every fourth stays open."""
    store.settle()
    run, members = f"run {number}", number + 2
    store.registry.enrol(f"user {members}")
    store.registry.add_run(run, "{}")
    store.registry.fix_members(run, members)
    store.population.charge(run, "everyone", epsilon=0.5 + number / 100, delta=1e-6)
    ledger = Ledger.begin(store.database, run, plan="p" * 2000, config_digest="c", noise_key=b"k" * 32)
    store.database.checkpoint()
    store.registry.set_state(run, "running")
    ledger.commit(-1, b"state" * 500, (), {})
    for round_ in range(3):
        question = Question(round_, np.arange(members), AverageGradient(np.full((1, 2), float(round_)), (1.0,)))
        ledger.spend(question, users=members, gradient_evaluations=2 * members)
        store.registry.note_agreed(run, range(round_ + 1), epsilon=0.5, delta=1e-6)
        ledger.commit(round_, bytes([round_]) * 2500, (Release("gaussian", {"scale": 1.0}),), {"round": round_})
    if number % 4 == 3:
        return
    if number % 4 == 0:
        ledger.finish(np.ones(2))
    store.end(run, "failed" if number % 4 == 1 else "complete" if number % 4 == 0 else "cancelled")


@cache
def lived(runs: int) -> Life:
    """A coordinator that is stopped and started again after each run; looked at around each acknowledgement."""
    instants: list[Files] = []
    write = HighWaterMark.write
    with TemporaryDirectory(prefix=warden.prefix(), dir=postgres_server.quick_folder()) as name:
        place = Path(name)

        def look() -> Files:
            instants.append({each.name: each.read_bytes() for each in place.iterdir() if each.name in NAMES})
            return instants[-1]

        def written(tally: HighWaterMark, count: int, head: str = "") -> None:
            look()
            write(tally, count, head)
            look()

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(HighWaterMark, "write", written)
            for number in range(runs):
                with Database(f"sqlite:///{place}/store.sqlite") as database:
                    store = RunStore(database)
                    if number == 0:
                        for user in range(2):
                            store.registry.enrol(f"user {user}")
                        store.population.limit("everyone", epsilon=30.0, delta=1e-3)
                    one_run(store, number)
                    killed = look()
                    rows, head, _ = store.population.standing(0)
                    word, charges = database.incarnations[-1], store.population.charges("everyone")
                    counted = store.population.account("everyone").words()
        closed = look()
    names = tuple(charge.run for charge in charges)
    return Life(instants[:-2], closed, killed, SeenStore(word, word, rows, head), names, counted)


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder of its own in memory."""
    with TemporaryDirectory(prefix=warden.prefix(), dir=postgres_server.quick_folder()) as name:
        yield Path(name) / "store"


def put(place: Path, older: Files, last: Files, way: tuple[str, ...]) -> Path:
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    for name, source in zip(NAMES, way, strict=True):
        content = {"older": older, "last": last, "nowhere": {}}[source].get(name)
        if content is not None:
            (place / name).write_bytes(content)
    return place / NAMES[0]


def said(database: Database, life: Life) -> tuple[RunStore, StoreClaim]:
    """What a coordinator reads at its start and for each run, and what it then tells a client that has seen the end."""
    store = RunStore(database)
    store.settle()
    for row in store.registry.runs():
        if Ledger.begun(database, row.run):
            ledger = Ledger.within(database, row.run)
            _ = ledger.resume_point(), ledger.events(), ledger.releases(), ledger.spent(), ledger.finished
    rows, head, then = store.population.standing(life.seen.rows)
    charged = frozenset(run_mark(charge.run) for charge in store.population.charges("everyone"))
    return store, StoreClaim(database.incarnations, rows, head, then, charged)


def started(path: Path, life: Life) -> str:
    """How a start on these files goes: refused by name, as the original, or older and refused by every witness."""
    try:
        with Database(f"sqlite:///{path}") as database:
            store, found = said(database, life)
            if found.then == life.seen.head:
                assert store.population.account("everyone").words() == life.counted
                return "kept"
            assert objection(life.seen, found, life.seen.rows) is not None
            with pytest.raises(LedgerError, match="no row has the hash"):
                store.population.verify(life.seen.head)
            return "seen"
    except LedgerError:
        return "refused"


def taken(path: Path, life: Life) -> str:
    """The same after `quoron admin restore`, which takes a file for all that there is and says so."""
    try:
        accept(path)
        with Database(f"sqlite:///{path}", create=False) as database:
            store, found = said(database, life)
            assert not any(row.state in OPEN for row in store.registry.runs())
            lacking = found.lacks(life.charged)
            assert bool(lacking) == (
                {charge.run for charge in store.population.charges("everyone")} != set(life.charged)
            )
            if found.incarnations[0] != life.seen.root or lacking:
                return "seen"
            assert store.population.account("everyone").words() == life.counted
            return "kept"
    except LedgerError:
        return "refused"


@pytest.mark.parametrize(
    ("runs", "every", "least", "ways"),
    [pytest.param(4, 5, 20, 1, id="some"), pytest.param(9, 1, 200, 4, id="all", marks=pytest.mark.slow)],
)
def test_any_files_of_any_instant_keep_the_limits_or_are_refused_by_name_where_a_witness_is_newer(
    runs: int, every: int, least: int, ways: int, place: Path
) -> None:
    life, draw = lived(runs), np.random.default_rng(32)
    assert len(life.instants[::every]) >= least
    found = {"kept": 0, "seen": 0, "refused": 0}
    for older in life.instants[::every]:
        for index in draw.permutation(len(WAYS))[:ways]:
            last = life.closed if draw.random() < 0.5 else life.killed
            path = put(place, older, last, WAYS[index])
            how = started(path, life)
            found[how] += 1
            if how == "refused" and path.exists():
                path = put(place, older, last, WAYS[index])
                taken(path, life)
    assert min(found.values()) > 0


def test_all_files_of_an_instant_are_an_older_store_that_only_witnesses_refuse(place: Path) -> None:
    life = lived(4)
    how = [started(put(place, older, life.closed, ("older",) * 3), life) for older in life.instants[::9]]
    assert "refused" not in how[1:]
    assert how.count("seen") > len(how) // 2
    assert started(put(place, {}, life.closed, ("nowhere",) * 3), life) == "seen"  # begun anew
