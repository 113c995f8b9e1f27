"""Feasibility edges and noise of the outlier filters against published tables, and how long a plan takes.

    python benchmarks/plans.py [--preset quickstart]

The tables were found by another implementation of the same theorems; a ratio below 1 needs fewer users, or less noise,
than the table.

Planning is timed as `quoron plan` does it: every candidate and the rounds curve, in a process of its own with compiled
kernels on disk, in seconds of processor time. The yardstick is what the same process spent on its imports. The second
planning in one process has no kernels to load, and what searches remember.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from time import process_time

FRESH = "--fresh"  # this process plans, and prints its seconds
STARTED = process_time()

from quoron.config import Config  # noqa: E402
from quoron.planning import plans as planning  # noqa: E402
from quoron.simulation import sources  # noqa: E402
from quoron.simulation.problem import setup  # noqa: E402
from quoron_privacy.errors import QuoronError  # noqa: E402
from quoron_privacy.robust.filter import outlier_filter  # noqa: E402
from quoron_server.algorithms import ALGORITHMS, RegisteredAlgorithm  # noqa: E402
from quoron_server.plan import Privacy  # noqa: E402
from quoron_server.problem import Problem  # noqa: E402

IMPORTS = process_time() - STARTED

DELTA = 1e-6
# epsilon -> (B_min, Ξ at 1.5, 2, 4, 10 times B_min), at step · smoothness = 1
HARD = {
    0.5: (15_506, 68, 42.7, 29.6, 24),
    1.0: (6_652, 29.4, 21.5, 15.1, 12.2),
    2.0: (2_559, 19, 11.8, 7.9, 6.4),
    4.0: (1_121, 8.2, 5.6, 4.2, 3.4),
    8.0: (471, 5, 3.6, 2.3, 1.9),
}


def edges() -> None:
    """Least cohorts and noise factors against the tables."""
    for name, theorem, table in (("outlier filter", outlier_filter, HARD),):
        print(f"\n{name}: ours / table at step · smoothness = 1, delta = {DELTA:g}")
        print("epsilon    B_min  ratio   noise factor ratio at 1.5x, 2x, 4x, 10x the table's B_min")
        for epsilon, (edge, *factors) in table.items():
            ours = theorem.smallest_cohort(epsilon, DELTA, 1.0)
            ratios = []
            for multiple, factor in zip((1.5, 2, 4, 10), factors, strict=True):
                size = int(multiple * edge)
                found = theorem.calibrate(epsilon, DELTA, size, 1.0, 10 * size)
                ratios.append(found.noise_factor / factor)
            print(f"{epsilon:7g} {ours:8,} {ours / edge:6.2f}   " + "  ".join(f"{ratio:5.2f}" for ratio in ratios))


def seconds(action: Callable[[], object]) -> float:
    """Processor time of a call."""
    began = process_time()
    action()
    return process_time() - began


def planned(info: RegisteredAlgorithm, config: Config, known: Problem) -> None:
    """One candidate, re-checked, where it is feasible."""
    if config.privacy.adjacency in info.guarantees.adjacency:
        with suppress(QuoronError):
            privacy = Privacy(config.privacy.epsilon, config.privacy.delta)
            info.verify(info.plan(known, privacy, info.options(), "calibrated", config.run.seed))


def fresh(preset: str) -> dict[str, list[float]]:
    """Seconds of each part of a planning, the first and the second time in this process."""
    config, _ = sources.resolve(preset)
    found = {"set-up": [seconds(lambda: setup(config, Path.cwd()))]}
    known = setup(config, Path.cwd()).problem
    for _ in range(2):
        for name, info in ALGORITHMS.items():
            if info.trust_model != "none":
                found.setdefault(name, []).append(seconds(lambda info=info: planned(info, config, known)))
        chosen = planning.choose(config, known).plan
        info = ALGORITHMS[chosen.algorithm]
        curve = seconds(lambda info=info, chosen=chosen: planning.rounds_curve(info, config, known, {}, chosen))
        found.setdefault(f"curve of {info.name}", []).append(curve)
    return {"imports": [IMPORTS]} | found


def main() -> None:
    parser = argparse.ArgumentParser(description="Plans: feasibility edges, noise, and how long planning takes.")
    parser.add_argument("--preset", default="quickstart")
    parser.add_argument(FRESH, action="store_true", help="plan in this process and print its seconds as JSON")
    options = parser.parse_args()
    if options.fresh:
        print(json.dumps(fresh(options.preset)))
        return
    edges()
    command = [sys.executable, __file__, FRESH, "--preset", options.preset]
    runs = [json.loads(subprocess.run(command, check=True, capture_output=True).stdout) for _ in range(4)][1:]
    # Each figure is the least of three processes; the one before them compiled what was not on disk.
    least = {name: [min(each) for each in zip(*(run[name] for run in runs), strict=True)] for name in runs[0]}
    [imports] = least["imports"]
    print(f"\nplanning {options.preset}: over the imports, which took {imports:.2f} s; first and second in a process")
    for name, times in least.items():
        print(f"{name:28s} " + "  ".join(f"{took / imports:6.3f}" for took in times))
    for which in range(2):
        total = sum(times[which] for name, times in least.items() if len(times) == 2)
        print(f"{'all planning, first' if which == 0 else 'all planning, second':28s} {total / imports:6.3f}")


if __name__ == "__main__":
    main()
