"""What private training reaches on the tables that ship: rows by table and ε, figures on users held out.

    python benchmarks/tables.py                       # all three, ε = 1, 2, 4, 8, seeds 0 to 2
    python benchmarks/tables.py --table storms --epsilon 4 --seeds 1

`auto` is what a person gets who names no algorithm. Beside it: the best of the algorithms listed (by the figure
itself, which nobody could know in advance), the optimum without privacy, and always giving the same answer.
"""

import argparse
import json
import tempfile
from pathlib import Path
from statistics import mean

import quoron
from quoron.reports.summary import Summary
from quoron_privacy.errors import QuoronError

TABLES = {  # preset, figure, whether more of it is better
    "flights": ("auc", True),
    "scorecard": ("rmse", False),
    "storms": ("auc", True),
}
ALGORITHMS = (
    "whitened-tracking",
    "tracking-srgd",
    "recentred-sgd",
    "dp-sgd-wor",
    "one-pass-dp-sgd",
    "accelerated-srgd",
    "outlier-iterates",
)


def figures(table: str, epsilon: float, algorithm: str, seeds: int) -> list[Summary] | None:
    """One summary a seed; None where the algorithm cannot keep the promise here."""
    done = []
    for seed in range(seeds):
        with tempfile.TemporaryDirectory() as folder:
            try:
                run = quoron.simulate(
                    table,
                    epsilon=epsilon,
                    algorithm=algorithm,
                    seed=seed,
                    out=Path(folder) / "run",
                    settings=["privacy.trust_model=central-release"],
                )
            except QuoronError:
                return None
            done.append(run.summary)
    return done


def measured(table: str, epsilon: float, seeds: int) -> dict[str, object]:
    """One row."""
    figure, more = TABLES[table]
    chosen = figures(table, epsilon, "auto", seeds)
    each = {name: figures(table, epsilon, name, seeds) for name in ALGORITHMS}
    reached = {name: mean(s.test[figure] for s in found) for name, found in each.items() if found}
    best = (max if more else min)(reached, key=lambda name: reached[name])
    result = chosen or each[best]
    assert result is not None
    return {
        "table": table,
        "epsilon": epsilon,
        "figure": figure,
        "auto": None if chosen is None else round(mean(s.test[figure] for s in chosen), 4),
        "auto_algorithm": None if chosen is None else chosen[0].algorithm,
        "best": round(reached[best], 4),
        "best_algorithm": best,
        "without_privacy": round(result[0].test_unbounded.get(figure, result[0].test_without_privacy[figure]), 4),
        "same_answer": round(result[0].test_baseline.get(figure, 0.5), 4),
    }


def main() -> None:
    """Print one JSON object a row."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--table", action="append", choices=TABLES)
    parser.add_argument("--epsilon", action="append", type=float)
    parser.add_argument("--seeds", type=int, default=3)
    chosen = parser.parse_args()
    for table in chosen.table or TABLES:
        for epsilon in chosen.epsilon or (1.0, 2.0, 4.0, 8.0):
            print(json.dumps(measured(table, epsilon, chosen.seeds)), flush=True)


if __name__ == "__main__":
    main()
