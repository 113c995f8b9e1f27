"""What `auto` leaves of what there is to learn, on made tables of many shapes and sizes, beside methods that ever win.

    python benchmarks/default.py > lines.jsonl         # all parts but the large cells, draw 1: within the hour
    python benchmarks/default.py --large --into large.jsonl      # thirty named large cells: hours, and 16 GB
    python benchmarks/default.py --summary lines.jsonl large.jsonl       # the table of docs/results.md
    python benchmarks/default.py --part growth
    python benchmarks/default.py --part epsilon --algorithm auto --shape plain --shape rare --columns 5
    python benchmarks/default.py --shape rare --users 3000 --columns 15 --epsilon 1 --draw 0
    python benchmarks/default.py --shape plain --users 9000 --algorithm auto --radius 30   # as if it had been declared
    python benchmarks/default.py --users 9000 --columns 10 --rounds 7 --algorithm whitened-tracking
    python benchmarks/default.py --memory --users 100000 --columns 100 --shape plain       # or --memory --files

    grid      shapes × ε × users × columns with ν > 20: `auto`, the four others, and a release that nobody can make
    epsilon   the same tables with ν > 100 at ε = 1, at ε = 8; of up to 3,000 users at both with sixteen seeds, since
              their runs differ by more than is asked for: by two seeds `sparse`, 1,000 × 5, falls 1.6 to 8.1 times
    growth    5,000 to 100,000 users of one pool, ten times, and the same held-out users
    mean      `mean` beside an oracle's radius, by `private_means.py`, in a bound of 1,000 times the spread
    classes   the tables of `classes.py` that come with quoron and scikit-learn, beside one against the rest

One JSON object for a cell and method, with what `cells.py` says of each name; shapes are those of `shapes.py`. A method
is left out, and its line says so, where its plan has more than 15 million gradients (60 million in a large cell),
unless it is asked for by name. `--into` appends each line to a file as it is found and carries out nothing that the
file has lines of, so that what was interrupted goes on. `--memory` tells by how much the process grew beyond what it
was when users were made, its peak in all, both in megabytes, and the processor time of a run, for which give one cell
and method alone; with `--files` rows lie in Parquet, and items on disk.
"""

import argparse
import contextlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import classes
import numpy as np
import private_means
from cells import RIVALS, cell, model, nu, plan_of, score, short, start_excess
from default_summary import summary
from shapes import SHAPES, on_disk, table

from quoron_server.algorithms import ALGORITHMS

USERS, COLUMNS, EPSILONS = (1_000, 3_000, 20_000), (5, 15, 60), (0.5, 1.0, 4.0)
LEAST_NU, SURE_NU = 20.0, 100.0
MOST_GRADIENTS, MANY_GRADIENTS = 15_000_000, 60_000_000  # of a rival's plan, and in a large cell
FAR_BOUND = 1e3  # of a mean, times the median distance from it
HIGH = 8.0  # ε that ought to do better than 1
SEEDS = 2
SEEDS_OF_CLASSES = 12  # accuracies of `digits` have a deviation of .012 from seed to seed
FEW, SEEDS_OF_FEW = 3_000, 16  # users, up to which falls of the risk are of so many seeds at either ε
GROWTH, RESAMPLED, POOL = (5_000, 10_000, 20_000, 50_000, 100_000), 10, 150_000
GROWING = (("plain", 5), ("careful", 10), ("rare", 10), ("single", 10), ("correlated", 30))
CLASSES = ("origin", "arrival", "storms", "degree", "digits")
PARTS = ("grid", "epsilon", "growth", "classes", "mean")
GRIDS = {"grid": (EPSILONS, ("auto", *RIVALS), LEAST_NU), "epsilon": ((HIGH,), ("auto",), SURE_NU)}
CELLS = ("users", "columns", "epsilon", "shape", "algorithm", "radius", "rounds")  # by which cells of grids are named
LARGE: tuple[tuple[str, int, int, float], ...] = (
    *(("plain", 100_000, 10, epsilon) for epsilon in (0.5, 1.0, 4.0)),
    *((shape, 100_000, 10, 1.0) for shape in ("careful", "rare", "heavy", "uncentred", "unequal", "noisy", "amounts")),
    *((shape, 100_000, 15, 1.0) for shape in ("onehot", "constant")),
    *(("plain", 4_000, 100, epsilon) for epsilon in (1.0, 4.0)),
    *((shape, 20_000, 100, 1.0) for shape in ("plain", "careful", "onehot", "sparse")),
    *(("plain", 20_000, columns, 1.0) for columns in (200, 300)),
    *(("correlated", 20_000, 300, 4.0), ("rare", 50_000, 200, 1.0), ("plain", 100_000, 100, 1.0)),
    *(("family", users, 10, 1.0) for users in (20_000, 300_000, 1_000_000)),
    *(("single", users, 100, 1.0) for users in (20_000, 100_000)),
    *(("single", 1_000_000, 10, 1.0), ("rare", 1_000_000, 10, 4.0), ("plain", 1_000_000, 100, 1.0)),
)
Line = dict[str, Any]
Name = tuple[Any, ...]


@dataclass(frozen=True)
class Job:
    """Cells of one table, for one process."""

    part: str
    shape: str
    columns: int
    users: tuple[int, ...]
    epsilons: tuple[float, ...]
    algorithms: tuple[str, ...] = ("auto", *RIVALS)
    seeds: int = SEEDS
    draw: int = 1
    radius: float | None = None
    rounds: int | None = None
    most_gradients: int = MOST_GRADIENTS
    least_nu: float = 0.0
    memory: bool = False
    files: bool = False


def carried_out(job: Job, done: frozenset[Name] = frozenset()) -> Iterator[Line]:
    """A line for each cell and method, but for those that are done."""

    def todo(*about: Any) -> tuple[str, ...]:
        return tuple(asked for asked in job.algorithms if (job.part, job.shape, *about, asked) not in done)

    if job.part == "growth":
        found = {name[:4] for name in done}
        users = tuple(each for each in job.users if (job.part, job.shape, each, job.columns) not in found)
        yield from grown(replace(job, users=users)) if users else ()
    elif job.part == "mean":
        names = {name[:5] for name in done}
        sizes = [each for each in private_means.SIZES if (job.part, job.shape, *each, 1.0) not in names]
        yield from private_means.mean_cells((job.shape,), tuple(sizes), bounds=(FAR_BOUND,), methods=("learnt",))
    elif job.memory:
        yield from (grown_by(job, users, epsilon) for users in job.users for epsilon in job.epsilons)
    elif job.part == "classes":
        for epsilon in job.epsilons:
            for method in todo(0, 0, epsilon):
                yield {"part": job.part, "asked": method} | classes.measured(job.shape, epsilon, method, job.seeds)
    else:
        for users in job.users:
            for epsilon in job.epsilons:
                least = min(epsilon, 1.0) if job.part == "epsilon" else epsilon
                if nu(users, job.columns, least) > job.least_nu and (left := todo(users, job.columns, epsilon)):
                    began = time.perf_counter()
                    for line in cell(
                        *(job.shape, users, job.columns, epsilon),
                        draw=job.draw,
                        algorithms=left,
                        seeds=job.seeds,
                        radius=job.radius,
                        rounds=job.rounds,
                        most_gradients=job.most_gradients,
                    ):
                        yield {"part": job.part} | line | {"seconds": round(time.perf_counter() - began, 1)}


def name_of(line: Line) -> Name:
    """By which a line is found again."""
    what = (line.get("shape") or line.get("task"), line.get("users", 0), line.get("columns", 0), line["epsilon"])
    return (line["part"], *what, line.get("asked", ""))


def grown(job: Job) -> Iterator[Line]:
    """What a model scores on the same held-out users, by how many of a pool it learnt from."""
    pool = table(job.shape, POOL, job.columns, job.draw)
    orders = [np.random.default_rng(number).permutation(pool.users) for number in range(RESAMPLED)]
    for users in job.users:
        scores: list[float] = []
        for number, order in enumerate(orders):
            people = replace(pool, users=users, training=pool.training.of(order[:users]))
            plan = plan_of(people, "auto", job.epsilons[0])
            scores.append(round(score(people.test_metrics(model(people, plan, number))), 5))
        values: Line = {"part": "growth", "shape": job.shape, "columns": job.columns, "epsilon": job.epsilons[0]}
        yield values | {"users": users, "algorithm": plan.algorithm, "auc": scores}


def grown_by(job: Job, users: int, epsilon: float) -> Line:
    """What a run takes, and leaves."""
    with tempfile.TemporaryDirectory() as folder:
        if job.files:
            os.environ["QUORON_MEMORY"] = "1"
        made = table if not job.files else partial(on_disk, folder=Path(folder))
        people = made(job.shape, users, job.columns, job.draw)
        plan = plan_of(people, job.algorithms[0], epsilon, job.radius, job.rounds)
        before, began = _peak(), time.process_time()
        models = [model(people, plan, seed) for seed in range(job.seeds)]
        values: Line = {"megabytes more": _peak() - before, "megabytes": _peak()}
        values["processor seconds"] = round((time.process_time() - began) / job.seeds)
        start = start_excess(people)
        left = [short(100 * people.excess_risk(each) / start) for each in models]
    about: Line = {"shape": job.shape, "users": users, "columns": job.columns, "epsilon": epsilon}
    return about | {"algorithm": plan.algorithm, "left": left} | values


def _peak() -> int:
    """Megabytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10


def jobs(parts: Iterable[str], chosen: argparse.Namespace) -> Iterator[Job]:
    """Of these parts, of what the command line names of them."""
    for part in parts:
        if part in GRIDS:
            yield from grid(part, chosen)
        elif part == "growth":
            for shape, columns in GROWING:
                yield Job(part, shape, columns, GROWTH, (1.0,), draw=chosen.draw)
        elif part == "classes":
            for name in CLASSES:
                yield Job(
                    part, name, 0, (), (1.0, 4.0), ("auto", "one-vs-rest"), seeds=chosen.seeds or SEEDS_OF_CLASSES
                )
        elif part == "mean":
            for shape in private_means.SHAPES:
                yield Job(part, shape, 0, (), ())
        elif part == "large":
            algorithms = tuple(chosen.algorithm or ("auto", *RIVALS))
            for shape, users, columns, epsilon in sorted(LARGE, key=lambda each: each[1] * each[2] ** 2):
                more = {"seeds": 1, "draw": chosen.draw, "most_gradients": MANY_GRADIENTS}
                yield Job(part, shape, columns, (users,), (epsilon,), algorithms, **more)


def grid(part: str, chosen: argparse.Namespace) -> Iterator[Job]:
    """Of its numbers where the command line names none, those with enough ν; the longest first."""
    epsilons, algorithms, least = GRIDS[part]
    for columns in chosen.columns or reversed(COLUMNS):
        for shape in chosen.shape or SHAPES:
            whole = Job(
                *(part, shape, columns, tuple(chosen.users or USERS), tuple(chosen.epsilon or epsilons)),
                algorithms=tuple(chosen.algorithm or algorithms),
                seeds=chosen.seeds or SEEDS,
                draw=chosen.draw,
                radius=chosen.radius,
                rounds=chosen.rounds,
                most_gradients=10**12 if chosen.algorithm else MOST_GRADIENTS,
                least_nu=0.0 if chosen.users and chosen.columns else least,
                memory=chosen.memory,
                files=chosen.files,
            )
            if part != "epsilon":
                yield whole
                continue
            few, many = (tuple(each for each in whole.users if (each <= FEW) is small) for small in (True, False))
            both, seeds = tuple(chosen.epsilon or (1.0, HIGH)), chosen.seeds or SEEDS_OF_FEW
            yield replace(whole, users=few, epsilons=both, seeds=seeds)
            yield replace(whole, users=many)


def arguments() -> argparse.ArgumentParser:
    """Of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--part", action="append", choices=PARTS)
    parser.add_argument("--large", action="store_true")
    parser.add_argument("--summary", type=Path, nargs="+", metavar="LINES")
    parser.add_argument("--users", type=int, action="append")
    parser.add_argument("--columns", type=int, action="append")
    parser.add_argument("--epsilon", type=float, action="append")
    parser.add_argument("--shape", action="append", choices=[*SHAPES, "family"])
    parser.add_argument("--algorithm", action="append", choices=["auto", *ALGORITHMS])
    parser.add_argument("--radius", type=float)
    parser.add_argument("--rounds", type=int, help="of a budget")
    parser.add_argument(
        "--seeds",
        type=int,
        help=f"unless told {SEEDS}, of falls of few users {SEEDS_OF_FEW}, of classes {SEEDS_OF_CLASSES}",
    )
    parser.add_argument("--into", type=Path, metavar="LINES", help="append to this file what it lacks")
    parser.add_argument("--draw", type=int, default=1, help="of the tables; 0 is for anyone who chooses a constant")
    parser.add_argument("--memory", action="store_true", help="tell what a run takes, of one cell")
    parser.add_argument("--files", action="store_true", help="with --memory: rows in Parquet, items on disk")
    parser.add_argument("--workers", type=int, default=2, help="processes; one where a cell is asked for, and if large")
    parser.add_argument("--turn", default="0/1", help=argparse.SUPPRESS)  # every so many of the jobs, from one on
    return parser


def main() -> None:
    """Print one JSON object for a cell and method, or the table."""
    parser = arguments()
    chosen = parser.parse_args()
    if chosen.summary:
        print(summary([line for path in chosen.summary for line in read(path)]))
        return
    named = [name for name in CELLS if getattr(chosen, name)]
    single = bool(named) and not chosen.large
    parts = ["large"] if chosen.large else chosen.part or (["grid"] if single else PARTS)
    for part in parts:
        known = CELLS if part in GRIDS else ("algorithm",) if part == "large" else ()
        if wrong := [f"--{name}" for name in named if name not in known]:
            parser.error(f"Part {part} has no {', '.join(wrong)}. Leave that out, or take --part {' or '.join(GRIDS)}.")
    todo = list(jobs(parts, chosen))
    if single or chosen.large or chosen.workers == 1:
        first, many = map(int, chosen.turn.split("/"))
        done = frozenset(map(name_of, read(chosen.into))) if chosen.into and chosen.into.exists() else frozenset()
        with contextlib.nullcontext(sys.stdout) if chosen.into is None else chosen.into.open("a") as file:
            for job in todo[first::many]:
                for line in carried_out(job, done):
                    file.write(json.dumps(line) + "\n")
                    file.flush()
        return
    turns = [f"{first}/{chosen.workers}" for first in range(chosen.workers)]
    command = [sys.executable, *sys.argv, "--workers", "1"]
    started = [subprocess.Popen([*command, "--turn", turn]) for turn in turns]
    ended = [each.wait() for each in started]
    if any(ended):
        sys.exit("Expected all lines, got a process that failed.")


def read(path: Path) -> list[Line]:
    """Of a file of lines."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


if __name__ == "__main__":
    main()
