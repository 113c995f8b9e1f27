"""How many rounds are enough, measured: the smallest sufficient T against n, and its slope beside theory.

    python benchmarks/rounds.py [--algorithm accelerated-srgd] [--seeds 3] [PRESET ...]

For each preset and n in 10⁴, 10⁵, 10⁶ every T of a grid is run, everything else chosen by the plan for that T. A T is
sufficient when its mean excess risk over the seeds is within 10 % of the best mean, or no more than two standard errors
of their difference above it. Theory allows n^(1/4) rounds when
the best model is inside the domain (few-rounds) and √n when it is on the boundary, up to logarithms.
"""

import argparse
import math
import tempfile
from pathlib import Path
from statistics import fmean, stdev

import numpy as np

import quoron
from quoron import Keep, Method
from quoron_privacy.errors import Infeasible

USERS = (10_000, 100_000, 1_000_000)
GRID = [round(2 ** (k / 2)) for k in range(4, 17)]  # 4 to 256 in steps of √2
NEAR = 1.10
THEORY = {"few-rounds": "1/4", "few-rounds-boundary": "1/2"}


def main() -> None:
    """Print the measured risks, the smallest sufficient T for each n, and the slope."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("presets", nargs="*", default=list(THEORY))
    parser.add_argument("--algorithm", default="accelerated-srgd")
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    for preset in given.presets:
        print(f"\n{preset}, {given.algorithm}, mean excess risk of {given.seeds} seeds ± standard error")
        enough = {users: sufficient(preset, given.algorithm, users, given.seeds) for users in USERS}
        slope, _ = np.polyfit(np.log(list(enough)), np.log(list(enough.values())), 1)
        text = ", ".join(f"n={users:,}: T={rounds}" for users, rounds in enough.items())
        print(f"smallest sufficient: {text}; slope {slope:.2f} (theory {THEORY.get(preset, 'unknown')})", flush=True)


def sufficient(preset: str, algorithm: str, users: int, seeds: int) -> int:
    """The smallest T whose mean excess risk is within 10 % of the best mean, or cannot be told from it."""
    risks, errors = {}, {}
    for rounds in GRID:
        try:
            found = [excess_risk(preset, algorithm, users, rounds, seed) for seed in range(1, seeds + 1)]
        except Infeasible as error:
            print(f"n={users:<9,} T={rounds:<5} {error}")
            continue
        risks[rounds] = fmean(found)
        errors[rounds] = stdev(found) / math.sqrt(seeds) if seeds > 1 else 0.0
        print(f"n={users:<9,} T={rounds:<5} {risks[rounds]:.2e} ± {errors[rounds]:.0e}", flush=True)
    best = min(risks, key=risks.__getitem__)

    def near(rounds: int) -> bool:
        above = 2 * math.hypot(errors[rounds], errors[best])
        return risks[rounds] <= max(NEAR * risks[best], risks[best] + above)

    return min(filter(near, risks))


def excess_risk(preset: str, algorithm: str, users: int, rounds: int, seed: int) -> float:
    """Of one run of exactly `rounds` rounds, over the best model of the preset's domain."""
    settings = [f"population.users={users}", f"algorithm.name={algorithm}", f"algorithm.options={{rounds={rounds}}}"]
    with tempfile.TemporaryDirectory() as folder:
        run = quoron.simulate(
            preset, method=Method(seed=seed), keep=Keep(Path(folder) / "run"), simulation_seed=seed, settings=settings
        )
    return run.summary.excess_in_domain or 0.0


if __name__ == "__main__":
    main()
