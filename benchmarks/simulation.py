"""One pass over a million synthetic users with the outlier filter: time by part, memory, filter against gradients.

    python benchmarks/simulation.py [SETTING ...]      for example population.users=100_000

Prints ratios taken within one run, and what the process used at its peak.
"""

import sys
import tempfile
import time
from pathlib import Path

import pyarrow.parquet as pq

import quoron
from quoron import Keep


def main(settings: list[str]) -> None:
    """Run the preset `million` and print where its time went."""
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        run = quoron.simulate("million", settings=settings, keep=Keep(Path(folder) / "run"))
        seconds = time.perf_counter() - began
        rounds = pq.read_table(run.directory / "rounds.parquet").to_pydict()
    clients, server = sum(rounds["seconds_clients"]), sum(rounds["seconds_server"])
    problem, summary = run.plan.problem, run.summary
    shape = f"{problem.items_per_user} items, {problem.dimension} features"
    print(f"{problem.users:,} users, {shape}, {summary.rounds} rounds")
    print(f"whole call, plan and report included  {seconds:8.1f} s")
    print(f"drawing users and their gradients     {clients:8.1f} s")
    print(f"filter, update and ledger             {server:8.2f} s")
    print(f"filter / gradients                    {server / clients:8.3f}     (target < 1)")
    print(f"peak memory                           {summary.peak_memory_bytes / 2**30:8.2f} GiB (target < 4)")
    print(f"excess risk                           {summary.excess_risk:8.2e}")
    print(f"guessed by the plan                   {summary.guessed_excess_risk:8.2e}")


if __name__ == "__main__":
    main(sys.argv[1:])
