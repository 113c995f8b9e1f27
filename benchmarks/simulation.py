"""One pass over a million synthetic users with the outlier filter: time by part, memory, filter against gradients.

    python benchmarks/simulation.py [--users 1000000]

Prints ratios taken within one run, and what the process used at its peak.
"""

import argparse
import resource
import tempfile
import time
from pathlib import Path

import quorate


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--users", type=int, default=1_000_000)
    parser.add_argument("--items", type=int, default=20)
    parser.add_argument("--dimension", type=int, default=50)
    chosen = parser.parse_args()
    config = {
        "population": {
            "kind": "synthetic",
            "users": chosen.users,
            "items_per_user": chosen.items,
            "dimension": chosen.dimension,
            "signal_norm": 3.0,
        },
        "domain": {"radius": 4.0},
        "problem": {"user_smoothness": "isotropic"},
        "algorithm": {"name": "filtered-sgd"},
    }
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        run = quorate.simulate(config, out=Path(folder) / "run")
    seconds = time.perf_counter() - began
    summary = run.summary
    clients, server = summary.seconds_clients, summary.seconds_server
    print(f"users {chosen.users:,}, items {chosen.items}, features {chosen.dimension}, cohort {run.plan.cost.messages}")
    print(f"whole call                 {seconds:8.1f} s")
    print(f"drawing users + gradients  {clients:8.1f} s")
    print(f"filter and update          {server:8.2f} s")
    print(f"filter / clients           {server / clients:8.3f}   (target < 1)")
    print(
        f"peak memory                {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:8.2f} GiB (target < 4)"
    )
    print(f"excess risk                {summary.excess_risk:8.2e}   (predicted {summary.predicted_excess_risk:.2e})")


if __name__ == "__main__":
    main()
