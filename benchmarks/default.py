"""What `auto` leaves of what there is to learn on made tables of many shapes and sizes, beside the methods that ever win.

    python benchmarks/default.py                       # the grid, draw 1: shapes × ε × users × columns with ν > 20
    python benchmarks/default.py --shape rare --users 3000 --columns 15 --epsilon 1 --draw 0
    python benchmarks/default.py --shape plain --users 9000 --algorithm auto --radius 30     # as if it had been declared
    python benchmarks/default.py --memory --users 100000 --columns 100 --shape plain --algorithm whitened-tracking

One JSON object for a cell and method, with what `cells.py` says of each name; shapes are those of `shapes.py`. A method
is left out where its plan has more than 15 million gradients, unless it is asked for by name. `--memory` tells the
largest that the process ever was, in megabytes, for which give one cell alone.
"""

import argparse
import json
import resource
import time
from collections.abc import Iterator

from cells import RIVALS, cell, nu
from shapes import SHAPES

from quoron_server.algorithms import ALGORITHMS

USERS, COLUMNS, EPSILONS = (1_000, 3_000, 20_000), (5, 15, 60), (0.5, 1.0, 4.0)
LEAST_NU = 20.0
MOST_GRADIENTS = 15_000_000
Named = tuple[str, int, int, float]  # shape, users, columns, ε


def named(chosen: argparse.Namespace) -> Iterator[Named]:
    """The cells that were asked for; of the grid those with enough ν."""
    for shape in chosen.shape or SHAPES:
        for columns in chosen.columns or COLUMNS:
            for users in chosen.users or USERS:
                for epsilon in chosen.epsilon or EPSILONS:
                    if (chosen.users and chosen.columns) or nu(users, columns, epsilon) > LEAST_NU:
                        yield shape, users, columns, epsilon


def main() -> None:
    """Print one JSON object for a cell and method."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--users", type=int, action="append")
    parser.add_argument("--columns", type=int, action="append")
    parser.add_argument("--epsilon", type=float, action="append")
    parser.add_argument("--shape", action="append", choices=SHAPES)
    parser.add_argument("--algorithm", action="append", choices=["auto", *ALGORITHMS])
    parser.add_argument("--radius", type=float)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--draw", type=int, default=1, help="of the tables; 0 is for whoever chooses a constant")
    parser.add_argument("--memory", action="store_true", help="tell the largest that the process ever was")
    chosen = parser.parse_args()
    algorithms = tuple(chosen.algorithm or ("auto", *RIVALS))
    for shape, users, columns, epsilon in named(chosen):
        began = time.perf_counter()
        for line in cell(
            *(shape, users, columns, epsilon),
            draw=chosen.draw,
            algorithms=algorithms,
            seeds=chosen.seeds,
            radius=chosen.radius,
            most_gradients=10**12 if chosen.algorithm else MOST_GRADIENTS,
        ):
            peak = {"megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10} if chosen.memory else {}
            print(json.dumps(line | {"seconds": round(time.perf_counter() - began, 1)} | peak), flush=True)


if __name__ == "__main__":
    main()
