"""Ten million made-up users (10 items × 20 features), two algorithms: seconds, memory, what ten times as many take.

    python benchmarks/ten_million.py [--users 10000000] [SETTING ...]

Each run is a process of its own, from the import to the report's page, over a hundredth, a tenth and all of the users.
Seconds grow as a + b · users, with the least relative errors, which are printed: how far the model holds that projects
to ten times as many. Making users is also timed alone, for a sample of them.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter, process_time

import numpy as np

ALGORITHMS = ("tracking-srgd", "filtered-sgd")
SAMPLE = 200_000


def carried_out(algorithm: str, users: int, settings: list[str]) -> dict[str, float]:
    """One run in this process: wall and processor seconds, peak memory, excess risk."""
    began, busy = perf_counter(), process_time()
    import quoron  # counts: somebody who starts a run waits for it
    from quoron.engine.inline import CACHED

    changes = [f"population.users={users}", "population.items_per_user=10", "population.dimension=20", *settings]
    with tempfile.TemporaryDirectory() as folder:
        run = quoron.simulate("million", algorithm=algorithm, out=Path(folder) / "run", settings=changes)
    seconds, processor = perf_counter() - began, process_time() - busy
    peak = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())["VmHWM"]
    return {
        "seconds": seconds,
        "processor": processor,
        "megabytes": int(peak.split()[0]) / 1024,
        "excess_risk": run.summary.excess_risk or 0.0,
        "making": making(users, CACHED),
    }


def making(users: int, room: int) -> float:
    """Processor seconds to make all of them, from a sample, on one thread and `room` bytes at a time."""
    from quoron.data import Synthetic
    from quoron_client.protocol.domains import L2Ball

    population = Synthetic(
        family="logistic", users=users, items_per_user=10, dimension=20, domain=L2Ball(6.0), signal_norm=3.0
    )
    sample = np.random.default_rng(0).permutation(users)[:SAMPLE]
    pieces = np.array_split(sample, 1 + len(sample) * 10 * 88 // room)
    taken = []
    for _ in range(3):
        began = process_time()
        for piece in pieces:
            population.items(piece)
        taken.append(process_time() - began)
    return min(taken) * users / len(sample)


def apart(algorithm: str, users: int, settings: list[str]) -> dict[str, float]:
    """The same in a process of its own."""
    command = [sys.executable, __file__, *settings, "--one", algorithm, "--users", str(users)]
    found: dict[str, float] = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return found


def line(sizes: tuple[int, ...], values: list[float]) -> tuple[float, float]:
    """a and b of the a + b · size with the least relative errors."""
    design = np.stack([np.ones(len(sizes)), np.array(sizes, float)], axis=1) / np.array(values)[:, None]
    a, b = np.linalg.lstsq(design, np.ones(len(sizes)), rcond=None)[0]
    return float(a), float(b)


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("settings", nargs="*")
    parser.add_argument("--users", type=int, default=10_000_000)
    parser.add_argument("--one", choices=ALGORITHMS, help=argparse.SUPPRESS)
    given = parser.parse_args()
    settings = given.settings
    if given.one:
        print(json.dumps(carried_out(given.one, given.users, settings)))
        return
    sizes = (given.users // 100, given.users // 10, given.users)
    for algorithm in ALGORITHMS:
        apart(algorithm, sizes[0], settings)  # whatever is compiled once
        runs = [apart(algorithm, users, settings) for users in sizes]
        print(f"{algorithm}\n       users    seconds  processor  making them   peak MB  excess risk")
        for users, run in zip(sizes, runs, strict=True):
            text = f"{run['seconds']:11.1f}{run['processor']:11.1f}{run['making']:13.1f}{run['megabytes']:10.0f}"
            print(f"{users:12,}{text}{run['excess_risk']:13.2e}", flush=True)
        for name in ("seconds", "processor"):
            values = [run[name] for run in runs]
            a, b = line(sizes, values)
            off = ", ".join(f"{100 * ((a + b * n) / value - 1):+.0f} %" for n, value in zip(sizes, values, strict=True))
            text = f"{a:.1f} s and {1e6 * b:.2f} s a million (off by {off})"
            print(f"  {name:9s} {text}; {10 * sizes[-1]:,} users: {a + b * 10 * sizes[-1]:.0f} s", flush=True)


if __name__ == "__main__":
    main()
