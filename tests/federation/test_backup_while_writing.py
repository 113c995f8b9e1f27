"""A backup that is taken while charges are written holds what was there at one instant, and nothing by halves."""

import json
import threading
from itertools import pairwise
from pathlib import Path

import numpy as np

from quoron_client.protocol.questions import AverageGradient, Question
from quoron_server.federation import RunStore
from quoron_server.storage.backup import back_up, read, restore
from quoron_server.storage.database import Database
from quoron_server.storage.ledger import Ledger
from quoron_server.storage.registry import Registry
from quoron_server.storage.store import verify_rows


def whole_run(store: RunStore, number: int) -> None:
    """From its submission to its first round: each line of it is a transaction of its own."""
    run = f"run {number}"
    store.registry.add_run(run, "{}")
    store.registry.fix_members(run, 2)
    store.population.charge(run, "everyone", epsilon=1.0, delta=1e-6)
    ledger = Ledger.begin(store.database, run, plan="p", config_digest="c", noise_key=b"k")
    store.registry.set_state(run, "running")
    ledger.commit(-1, b"state", (), {})
    ledger.spend(Question(0, np.arange(2), AverageGradient(np.zeros((1, 2)), (1.0,))), users=2, gradient_evaluations=4)
    ledger.commit(0, b"state", (), {"round": 0})


def begun(url: str) -> RunStore:
    store = RunStore(Database(url))
    for name in ("ada", "ben"):
        store.registry.enrol(name)
    whole_run(store, 0)
    return store


def charged(rows: list[dict]) -> list[str]:
    return [json.loads(row["payload"])["run"] for row in sorted(rows, key=lambda row: row["sequence"])]


def torn(path: Path) -> list[str]:
    """What of a backup cannot have been there at one instant: each line of `whole_run` comes after those before it."""
    rows = read(path).rows
    known, charges = {row["run"] for row in rows["runs"]}, set(charged(rows["population"]))
    begun = {row["run"] for row in rows["run_ledgers"]}
    spent, running = {row["run"] for row in rows["spent"]}, {r["run"] for r in rows["runs"] if r["state"] == "running"}
    last: dict[str, int] = {}
    for row in rows["commits"]:
        last[row["run"]] = max(last.get(row["run"], -1), row["round"])
    chain = [row | {"payload": json.loads(row["payload"])} for row in rows["population"]]
    verify_rows(chain)
    order = [last.keys(), running, begun, charges, known]
    wrong = [str(later - earlier) for later, earlier in pairwise(order) if later - earlier]
    return wrong + [run for run, round_ in last.items() if round_ >= 0 and run not in spent]


def test_every_charge_of_before_it_began_is_in_it_and_a_prefix_of_all(database_url: str, tmp_path: Path) -> None:
    """A thread that charges as fast as it can; of PostgreSQL the backup has a connection of its own."""
    store, written, stop = begun(database_url), ["run 0"], threading.Event()

    def write() -> None:
        for number in range(1, 2000):
            if stop.is_set():
                return
            whole_run(store, number)
            written.append(f"run {number}")

    writer = threading.Thread(target=write)
    with store.database:
        beside = store.database if store.database.path else Database(database_url, create=False, sole=False)
        writer.start()
        try:
            before = []
            for number in range(6):
                before.append(list(written))
                back_up(beside, tmp_path / str(number))
        finally:
            stop.set()
            writer.join()
            beside.close()
    for number, acknowledged in enumerate(before):
        assert torn(tmp_path / str(number)) == []
        held = charged(read(tmp_path / str(number)).rows["population"])
        assert held[: len(acknowledged)] == acknowledged
        assert held == [f"run {each}" for each in range(len(held))]
    restore(tmp_path / "5", f"sqlite:///{tmp_path}/other.sqlite")
    with Database(f"sqlite:///{tmp_path}/other.sqlite", create=False) as database:
        assert {row.state for row in Registry(database).runs()} == {"cancelled"}
