"""How rounds grow with conditioning: the fewest that leave a tenth of the start's excess, on the quadratic family.

    python benchmarks/exponents.py [--seeds 2] [--users 2000 6000 20000]

The instance is rescaled with the number of users, h as below. Descent needs T h constant, acceleration T √h.
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np

import quoron
from quoron import Keep

FLAT = {2_000: 5.7e-2, 6_000: 1.63e-2, 20_000: 7.35e-3, 60_000: 4.1e-3}
ROUNDS = tuple(round(8 * 2 ** (k / 2)) for k in range(15))
METHODS = {
    "dp-sgd-wor": ("T h", 1.0, ["algorithm.options.rate=1.0"]),
    "accelerated-srgd": ("T √h", 0.5, []),
}


def excess(name: str, users: int, rounds: int, more: list[str], seeds: int) -> float:
    """Mean excess risk of a method with so many rounds."""
    settings = [f"population.users={users}", f"population.flat={FLAT[users]}", f"algorithm.name={name}"]
    if name != "dp-sgd-wor":
        settings.append("algorithm.options={}")
    found = []
    for seed in range(seeds):
        with tempfile.TemporaryDirectory() as folder:
            options = [
                *settings,
                *more,
                f"algorithm.options.rounds={rounds}",
                f"run.seed={seed}",
                f"run.simulation_seed={seed}",
            ]
            result = quoron.simulate("flat-direction", keep=Keep(Path(folder) / "run"), settings=options)
            found.append(result.summary.excess_risk)
    return float(np.mean(found))


def main() -> None:
    """Print one line for each method and number of users."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--users", type=int, nargs="+", default=[2_000, 6_000, 20_000])
    arguments = parser.parse_args()
    for name, (law, power, more) in METHODS.items():
        for users in arguments.users:
            wanted, risks = 0.1 * FLAT[users] / 2, {}
            for rounds in ROUNDS:
                risks[rounds] = excess(name, users, rounds, more, arguments.seeds)
                if risks[rounds] <= wanted:
                    product = rounds * FLAT[users] ** power
                    print(f"{name} n={users:,}: T={rounds}, {law}={product:.2g}", flush=True)
                    break
            else:
                print(f"{name} n={users:,}: {wanted:.2g} is out of reach, {min(risks.values()):.2g} is not", flush=True)


if __name__ == "__main__":
    main()
