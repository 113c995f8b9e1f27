"""What a charge costs behind many: its ratio to one behind few, and to reading the whole chain.

    python benchmarks/lifetime_ledger.py --runs 10_000

A ledger in a file is filled with runs of three rows each (charge, release, end). Then, in turns within one run, each as
`quoron train` does it, from opening the file to closing it again: a charge behind a hundredth of the runs, one behind
all of them, and a charge that reads the whole chain first, as a process does once. Seconds, and processor seconds: on
a busy machine only these compare.
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from quoron.training import lifetime
from quoron_server.books import lifetime_ledger
from quoron_server.books.database import Database
from quoron_server.books.lifetime_ledger import PopulationLedger

REPEATS = 9


def fill(path: Path, runs: int) -> None:
    """Runs with rows as `quoron train` writes them, every other one Gaussian, in one transaction."""
    with Database(f"sqlite:///{path}") as database:
        ledger = PopulationLedger(database)
        ledger.limit("everyone", epsilon=1e6, delta=0.5, gaussian_share=0.5)
        head, rows = ledger.verify(), []
        for run in range(runs):
            promise = {"epsilon": 0.5, "delta": 1e-9, "mu": 0.1 if run % 2 else None, "variation": 1e-13 * (run % 2)}
            charge = promise | {"run": f"run-{run}", "group": "everyone", "adjacency": "replace-one"}
            for kind, payload in (
                ("charge", charge | {"statement": "what it promises, in a sentence. " * 5}),
                ("release", {"run": f"run-{run}", "model": "0" * 64}),
                ("end", {"run": f"run-{run}", "state": "complete"}),
            ):
                row = {"sequence": 1 + len(rows), "time": "2026-01-01T00:00:00+00:00", "kind": kind, "payload": payload}
                head = lifetime_ledger.row_hash(head, row)
                rows.append(row | {"payload": lifetime_ledger._canonical(payload), "hash": head})
        with database.writing() as connection:
            connection.execute(lifetime_ledger._chain.insert(), rows)


def timed(work: Callable[[], None]) -> tuple[float, float]:
    """Milliseconds, and those of processors."""
    began, spent = time.perf_counter(), time.process_time()
    work()
    return 1e3 * (time.perf_counter() - began), 1e3 * (time.process_time() - spent)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10_000)
    given = parser.parse_args()
    with TemporaryDirectory() as folder:
        few, many = (Path(folder) / f"{name}.sqlite" for name in ("few", "many"))
        fill(few, max(1, given.runs // 100))
        fill(many, given.runs)

        def charge(path: Path, run: str) -> None:
            with lifetime.opened(path) as ledger:
                ledger.charge(run, "everyone", epsilon=0.1, delta=1e-9)

        def from_the_start(path: Path, run: str) -> None:
            lifetime._memory.cache_clear()
            charge(path, run)

        for path in (few, many):
            charge(path, "first")
        works = {"behind few": (charge, few), "behind all": (charge, many), "read whole": (from_the_start, many)}
        took: dict[str, list[tuple[float, float]]] = {name: [] for name in works}
        for number in range(REPEATS):
            for name, (work, path) in works.items():
                took[name].append(timed(lambda work=work, path=path, run=f"{name} {number}": work(path, run)))  # type: ignore[misc]
        median = {
            name: tuple(statistics.median(each[which] for each in told) for which in (0, 1))
            for name, told in took.items()
        }
        for name, (wall, processor) in median.items():
            print(f"{name}: {wall:8.1f} ms, {processor:8.1f} of processors")
        for name in ("behind all", "read whole"):
            print(f"{name} / behind few: {median[name][1] / median['behind few'][1]:.2f} (processors)")
        print(f"{given.runs:,} runs; load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
