"""What a lifetime makes of runs on secret samples: their μ but for t, how many a limit admits, what ten come to.

    python benchmarks/lifetime_runs.py

Rounds on uniform cohorts, replace-one, with the noise that `dp-sgd-wor` plans for (ε, δ). The limit is (8ε, 100δ): as
Σ ε it admits eight, and ten of them are 10ε. Prints rows of the table of docs/privacy/lifetime.md.
"""

import time

from quoron_privacy.accounts import approximate_gdp, gdp, subsampling
from quoron_privacy.accounts.lifetime import Charge, Limit, compose
from quoron_privacy.accounts.pair import DominatingPair

RUNS = (  # ε, δ, rate, rounds
    (0.5, 1e-7, 0.05, 100),
    (0.5, 1e-7, 0.01, 1000),
    (0.5, 1e-7, 0.3, 20),
    (0.5, 1e-7, 0.01, 10),
    (1.0, 1e-6, 0.02, 300),
    (2.0, 1e-6, 0.1, 50),
    (0.1, 1e-8, 0.05, 100),
    (2.0, 1e-6, 0.001, 100),
)


def row(epsilon: float, delta: float, rate: float, rounds: int) -> str:
    """One run, in cells."""
    mu = subsampling.wor_round_mu(rate, rounds, epsilon, delta)
    start = time.process_time()
    points = approximate_gdp.points(DominatingPair.sampled(rate, mu, rounds, "replace-one").delta, epsilon, delta)
    seconds = time.process_time() - start
    run = Charge("run", "everyone", epsilon, delta, variation=1e-40, near=points)
    account, number = Limit("everyone", 8 * epsilon, 100 * delta, 1.0).account(), 0
    while (account := account.after(run)).holds:
        number += 1
    shown = [min(mu for mu, lost in points if lost <= share * delta * (1 + 1e-9)) for share in (0.3, 0.01, 0.001)]
    ten = compose([run] * 10)
    cells = [f"{gdp.mu_for(epsilon, delta):.4g}", *(f"{mu:.4g}" for mu in shown), f"{number}"]
    cells += [f"{ten.epsilon:.3g}", f"{10 * epsilon:g}"]
    print(f"  {seconds:.1f} s of a processor", flush=True)
    return f"| ({epsilon:g}, {delta:g}), {rate:g}, {rounds} | " + " | ".join(cells) + " |"


if __name__ == "__main__":
    for each in RUNS:
        print(row(*each), flush=True)
