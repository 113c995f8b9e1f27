"""What a charge costs behind many: its ratio to one behind few, to reading the whole chain, and to what the disk takes.

    python benchmarks/lifetime_ledger.py --runs 10_000 --folder /a/folder/on/the/disk

A ledger in a file is filled with runs of three rows each (charge, release, end). Then, in turns within one run, each as
`quoron train` does it, from opening the file to closing it again: a charge behind a hundredth of the runs, one behind
all of them, one behind all of them in memory (`--memory`, a folder of a file system that flushes for nothing), and a
charge that reads the whole chain first, as a process does once. Beside them the physical limit: as many bytes written
and flushed in the same folder as often as a charge writes and flushes. Milliseconds, and those of processors: on a busy
machine only these compare.
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from quoron.training import lifetime
from quoron_server.storage import lifetime_ledger
from quoron_server.storage.lifetime_ledger import PopulationLedger
from quoron_server.storage.store import Store, canonical, row_hash

REPEATS = 100
READINGS = 9  # of the whole chain
PAGE = bytes(4096)


def fill(path: Path, runs: int) -> None:
    """Runs with rows as `quoron train` writes them, every other one Gaussian, in one transaction."""
    with Store(path) as database:
        ledger = PopulationLedger(database)
        ledger.limit("everyone", epsilon=1e6, delta=0.5, gaussian_share=0.5)
        head, rows = ledger.verify(), []
        for run in range(runs):
            promise = {"epsilon": 0.5, "delta": 1e-9, "mu": 0.1 if run % 2 else None, "variation": 1e-13 * (run % 2)}
            charge = promise | {"run": f"run-{run}", "group": "everyone", "adjacency": "replace-one"}
            for kind, payload in (
                ("charge", charge | {"statement": "what it guarantees, in a sentence. " * 5}),
                ("release", {"run": f"run-{run}", "model": "0" * 64}),
                ("end", {"run": f"run-{run}", "state": "complete"}),
            ):
                row = {"sequence": 1 + len(rows), "time": "2026-01-01T00:00:00+00:00", "kind": kind, "payload": payload}
                head = row_hash(head, row)
                rows.append(row | {"payload": canonical(payload), "hash": head})
        with database.transaction() as execute:
            for row in rows:
                lifetime_ledger._chain.insert(execute, row)


def timed(work: Callable[[], None]) -> tuple[float, float]:
    """Milliseconds, and those of processors."""
    began, spent = time.perf_counter(), time.process_time()
    work()
    return 1e3 * (time.perf_counter() - began), 1e3 * (time.process_time() - spent)


def bare(folder: Path) -> None:
    """What the disk alone takes for a charge: its writes and its six flushes."""
    book, journal, count = (folder / f"bare.{name}" for name in ("book", "journal", "count"))
    with open(book, "r+b" if book.exists() else "w+b", 0) as kept, open(journal, "w+b", 0) as new:
        new.write(bytes(32))
        os.fdatasync(new.fileno())
        place = os.open(folder, os.O_RDONLY)
        os.fdatasync(place)
        os.close(place)
        new.write(bytes(24) + PAGE + bytes(24) + PAGE)
        os.fdatasync(new.fileno())
        with open(count, "wb", 0) as number:
            number.write(bytes(21))
            os.fdatasync(number.fileno())
        os.fdatasync(new.fileno())
        kept.write(PAGE)
        kept.seek(0, os.SEEK_END)
        kept.write(PAGE)
        os.fdatasync(kept.fileno())
    journal.unlink()


def charge(path: Path, run: str) -> None:
    """As `quoron train` does it."""
    with lifetime.opened(path) as ledger:
        ledger.charge(run, "everyone", epsilon=0.1, delta=1e-9)


def from_the_start(path: Path, run: str) -> None:
    """The same in a process that has not read the chain yet."""
    lifetime._MEMORY.pop(path.resolve(), None)
    charge(path, run)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--folder", type=Path, help="where the disk is that is asked; else the usual temporary place")
    parser.add_argument("--memory", type=Path, default=Path("/dev/shm"))
    given = parser.parse_args()
    with TemporaryDirectory(dir=given.folder) as folder, TemporaryDirectory(dir=given.memory) as memory:
        disk = Path(folder)
        few, many, whole, unflushed = disk / "few", disk / "many", disk / "whole", Path(memory) / "many"
        for path in (few, many, whole, unflushed):
            fill(path, max(1, given.runs // 100) if path == few else given.runs)
            charge(path, "first")
        works: dict[str, Callable[[str], None]] = {
            "behind few": lambda run: charge(few, run),
            "behind all": lambda run: charge(many, run),
            "behind all, in memory": lambda run: charge(unflushed, run),
            "the disk alone": lambda run: bare(disk),
        }
        took: dict[str, list[tuple[float, float]]] = {name: [] for name in [*works, "read whole"]}
        for number in range(REPEATS):
            for name, work in works.items():
                took[name].append(timed(lambda work=work, run=f"{name} {number}": work(run)))  # type: ignore[misc]
        for number in range(READINGS):
            took["read whole"].append(timed(lambda run=f"whole {number}": from_the_start(whole, run)))  # type: ignore[misc]
        median, least = (
            {name: tuple(which(each[kind] for each in text) for kind in (0, 1)) for name, text in took.items()}
            for which in (statistics.median, min)
        )
        for name in took:
            text = " ".join(f"{each[name][0]:8.2f} ({each[name][1]:.2f})" for each in (median, least))
            print(f"{name:22} {text} ms (of processors): median, least of {len(took[name])}")
        print(f"behind all / behind few: {median['behind all'][1] / median['behind few'][1]:.2f} (processors)")
        print(f"behind all / the disk alone: {median['behind all'][0] / median['the disk alone'][0]:.2f} (clock)")
        print(f"{given.runs:,} runs; load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
