"""How long a comparison takes, and how much of the processors' time it turns into runs.

    python benchmarks/compare.py              # six algorithms, five seeds, 100,000 users with 20 items of 20 features

The share is the sum of what single runs took inside their workers over workers times the wall-clock: what is left are
imports, planning, and a worker that waits for the last.
"""

import argparse
import tempfile
import time
from pathlib import Path

from quoron import config as configs
from quoron.comparing import comparison as comparisons
from quoron.comparing import pool
from quoron.comparing.request import Request
from quoron.reports.progress import RunLines

NAMES = ("tracking-srgd", "mean-sgd", "phased-sgd", "one-pass-dp-sgd", "accelerated-srgd", "soft-filtered-sgd")
SHAPE = ("population.users=100000", "population.items_per_user=20", "population.dimension=20")


def main() -> None:
    given = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    given.add_argument("--seeds", type=int, default=5)
    given.add_argument("--workers", type=int, default=pool.processors())
    asked = given.parse_args()
    request = Request.of(configs.parse("", settings=SHAPE), algorithms=NAMES, seeds=asked.seeds)
    with tempfile.TemporaryDirectory() as folder, RunLines() as watcher:
        began = time.perf_counter()
        compared = comparisons.carry_out(request, Path(folder), watcher=watcher, workers=asked.workers)
        wall = time.perf_counter() - began
    inside = sum(row["seconds"] for row in compared.runs if row["infeasible"] is None)
    print(f"{len(compared.runs)} runs with {asked.workers} workers: {wall:.1f} s")
    print(f"share of the processors' time that runs took: {inside / (wall * asked.workers):.2f}")
    for row in compared.cells:
        text = row["infeasible"] or f"{row['excess_risk']:.2g}, {row['seconds']:.1f} s a run"
        print(f"  {row['algorithm']}: {text}")


if __name__ == "__main__":
    main()
