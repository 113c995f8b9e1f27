"""Whether the cost of a round grows as it should: slopes of time and memory against users, items and features.

    python benchmarks/growth.py [--repeats 5]

Each of n, m and d is varied over two decades, the others fixed, for users kept in memory and for users made when they
are asked. Time is the least processor seconds of a question whose answers are clipped and summed, less those of a
question to one user with one item; its slope against n m d should be 1 within 0.05. A user and an item cost something
by themselves, a clip and a slope: grids begin where that is small beside their numbers, and a fit of
n (a + m (b + c d)) to all times says how much it is, so that slopes over smaller users follow. Memory is the peak of a
process of its own, less that of one without users (Linux).
"""

import argparse
import subprocess
import sys
from pathlib import Path
from time import process_time

import numpy as np
from scipy.optimize import nnls

from quoron.data import Synthetic
from quoron.engine.inline import InlineEngine
from quoron_client.protocol.domains import L2Ball
from quoron_client.protocol.questions import AverageGradient, Question
from quoron_privacy.means.clipping import ClippedSum

BASE = {
    "users": {"users": 1_000, "items": 20, "features": 50},
    "items": {"users": 200, "items": 20, "features": 50},
    "features": {"users": 200, "items": 20, "features": 50},
}  # what is fixed while another varies
GRIDS = {
    "users": (4_000, 12_000, 40_000, 120_000, 400_000),
    "items": (200, 600, 2_000, 6_000, 20_000),
    "features": (200, 600, 2_000, 6_000, 20_000),
}


def seconds(shape: dict[str, int], *, kept: bool, repeats: int) -> float:
    """Least processor seconds of a question to everybody."""
    users, items, features = shape.values()
    population = Synthetic(
        family="logistic", users=users, items_per_user=items, dimension=features, domain=L2Ball(5.0), in_memory=kept
    )
    engine, task = InlineEngine(population), AverageGradient(np.full((1, features), 0.1), (1.0,))
    question = Question(0, np.arange(users), task, reduction=ClippedSum(0.1, users))
    found = []
    for _ in range(repeats + 1):
        began = process_time()
        engine.ask(question)
        found.append(process_time() - began)
    return min(found[1:])


def peak(shape: dict[str, int], *, kept: bool) -> float:
    """Megabytes of a process of its own, at most."""
    command = [sys.executable, __file__, "--peak", *(str(each) for each in shape.values()), str(int(kept))]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def slope(sizes: tuple[int, ...], values: list[float]) -> float:
    """Of values against sizes, both as logarithms."""
    return float(np.polyfit(np.log(sizes), np.log(values), 1)[0])


def costs(shapes: list[dict[str, int]], times: list[float]) -> list[float]:
    """Nanoseconds a, b and c, none negative, of the n (a + m (b + c d)) whose relative errors are least."""
    n, m, d = np.array([list(shape.values()) for shape in shapes], float).T
    found, _ = nnls(np.stack([n, n * m, n * m * d], axis=1) / np.array(times)[:, None], np.ones(len(times)))
    return [1e9 * each for each in found.tolist()]


def main() -> None:
    """Print the figures and the slopes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    given = parser.parse_args()
    nobody = peak(BASE["users"] | {"users": 1}, kept=False)
    for kept in (True, False):
        print("users kept in memory" if kept else "users made when asked")
        shapes, times = [], []
        question = seconds(BASE["users"] | {"users": 1, "items": 1}, kept=kept, repeats=20 * given.repeats)
        for name, sizes in GRIDS.items():
            varied = [BASE[name] | {name: size} for size in sizes]
            taken = [seconds(shape, kept=kept, repeats=given.repeats) - question for shape in varied]
            shapes, times = shapes + varied, times + taken
            text = "".join(f"{1e3 * each:10.1f}" for each in taken)
            others = ", ".join(f"{size:,} {other}" for other, size in BASE[name].items() if other != name)
            print(f"  {name:9s}{text} ms, slope {slope(sizes, taken):.3f} ({others})", flush=True)
        text = "a question costs {:.0f} µs, a user {:.0f} ns, an item {:.1f} and a number {:.2f}"
        print("  " + text.format(1e6 * question, *costs(shapes, times)), flush=True)
        sizes = GRIDS["users"]
        grown = [peak(BASE["users"] | {"users": size}, kept=kept) - nobody for size in sizes]
        print(f"  memory   {''.join(f'{each:10.0f}' for each in grown)} MB by users", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--peak"]:
        *shape, kept = (int(each) for each in sys.argv[2:6])
        seconds(dict(zip(BASE["users"], shape, strict=True)), kept=bool(kept), repeats=1)
        status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
        print(int(status["VmHWM"].split()[0]) / 1024)
    else:
        main()
