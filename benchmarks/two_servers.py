"""What two servers cost: excess risk beside one server's, one server's at μ/√2, and that of the local model.

    nice -n 19 python benchmarks/two_servers.py --users 100000 --epsilon 1 --epsilon 4 > cells.jsonl
    nice -n 19 python benchmarks/two_servers.py --users 1000000 --epsilon 1 --epsilon 4 --seeds 3 >> cells.jsonl
    python benchmarks/two_servers.py --summary cells.jsonl                  # the table of docs/results.md

The preset `one-pass`: logistic regression, 50 items a user, 10 features, all users alike, δ = 10⁻⁶. A line a run. In
the summary each cell is the mean over seeds with its standard error; `ratio` is two servers over one at μ/√2, which
theory says is 1, with its standard error; `local` is how many times as much the local model leaves.
"""

import argparse
import json
import math
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from statistics import fmean, stdev

import quoron
from quoron_privacy.accounts import gdp

DELTA = 1e-6
METHODS = "tracking-srgd", "recentred-sgd"


def quieter(epsilon: float) -> float:
    """ε of one server whose noise is as much as that of two at ε."""
    return gdp.epsilon_for(gdp.mu_for(epsilon, DELTA) / math.sqrt(2), DELTA)


def settings(name: str, how: str, users: int, epsilon: float) -> list[str]:
    """Of one cell."""
    own = {"two": ['privacy.trust_model="two-servers"'], "local": ['privacy.trust_model="local"']}.get(how, [])
    spent = quieter(epsilon) if how == "quieter" else epsilon
    everybody = ["algorithm.options.rate=1.0"] if name == "recentred-sgd" else []  # as two servers ask
    return [f"population.users={users}", f"privacy.epsilon={spent}", f'algorithm.name="{name}"', *own, *everybody]


def run(name: str, how: str, users: int, epsilon: float, seed: int) -> dict[str, object]:
    """One line."""
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        given = [*settings(name, how, users, epsilon), f"population.seed={seed}", f"run.seed={seed}"]
        made = quoron.simulate("one-pass", settings=given, out=Path(folder) / "run")
    of = {"algorithm": name, "how": how, "users": users, "epsilon": epsilon, "seed": seed}
    left = made.summary.excess_risk
    return of | {"excess_risk": left, "rounds": made.plan.cost.rounds, "seconds": time.perf_counter() - began}


def summary(lines: list[dict[str, object]]) -> None:
    """Means and standard errors, a line a cell."""
    cells: dict[tuple[object, ...], list[float]] = defaultdict(list)
    for each in lines:
        cells[each["users"], each["epsilon"], each["algorithm"], each["how"]].append(float(str(each["excess_risk"])))
    for (users, epsilon, name, how), risks in sorted(cells.items(), key=str):
        said = {"users": users, "epsilon": epsilon, "algorithm": name, "how": how, "seeds": len(risks)}
        said |= {"mean": fmean(risks), "error": error(risks)}
        alone, local = cells.get((users, epsilon, name, "quieter")), cells.get((users, epsilon, "local-model", "local"))
        if how == "two" and alone:
            ratio = fmean(risks) / fmean(alone)
            said |= {"ratio": ratio, "of": ratio * math.hypot(error(risks) / fmean(risks), error(alone) / fmean(alone))}
        if how == "two" and local:
            said |= {"local": fmean(local) / fmean(risks)}
        print(
            json.dumps({key: float(f"{each:.3g}") if isinstance(each, float) else each for key, each in said.items()})
        )


def error(risks: list[float]) -> float:
    """Of a mean."""
    return stdev(risks) / math.sqrt(len(risks)) if len(risks) > 1 else math.nan


def main() -> None:
    """See above."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--users", type=int, action="append")
    parser.add_argument("--epsilon", type=float, action="append")
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--algorithm", action="append", choices=[*METHODS, "local-model"])
    parser.add_argument("--summary", type=Path)
    asked = parser.parse_args()
    if asked.summary is not None:
        summary([json.loads(line) for line in asked.summary.read_text().splitlines()])
        return
    for users in asked.users or [100_000]:
        for epsilon in asked.epsilon or [1.0, 4.0]:
            for name in asked.algorithm or [*METHODS, "local-model"]:
                for how in ("local",) if name == "local-model" else ("one", "quieter", "two"):
                    for seed in range(asked.seeds):
                        print(json.dumps(run(name, how, users, epsilon, seed)), flush=True)
                        print(".", end="", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
