"""Hostile users under two servers: what one sum and the median of three groups make of a mean.

    .venv/bin/python benchmarks/two_servers_groups.py

10,000 users hold vectors within a clip norm of one around a mean in 20 dimensions; ε = 1, δ = 10⁻⁶ against each server.
A hostile user sends the longest admissible row, or a vector of 10⁴ clip norms, which one coordinator would clip and
two cannot see. Printed is the root mean square error of the released mean over the clip norm, over `RUNS` seeds.
"""

import numpy as np

from quoron_privacy.accounts.gdp import mu_for
from quoron_privacy.means.clipping import clip_rows
from quoron_privacy.two_servers.noise import server_mu
from quoron_privacy.two_servers.specification import Block, MechanismSpec, RoundSpec, median

USERS, DIMENSION, GROUPS, RUNS = 10_000, 20, 3, 40
FAR = 1e4  # clip norms
UNIT = 1 << 29  # steps of a clip norm
MU = server_mu(MechanismSpec((RoundSpec((Block("sum", DIMENSION, UNIT, "clipped"),)),)))  # in proportion to them
NOISE = 2.0**30 / UNIT * MU / mu_for(1.0, 1e-6, gaussians=DIMENSION)  # of one server, in clip norms of one user


def mean(rows, servers, users, rng):
    """Released by so many servers, each with noise of its own."""
    noise = sum(rng.normal(size=DIMENSION) for _ in range(servers)) * NOISE
    return (rows.sum(axis=0) + noise) / users


def errors(hostile, far, seed):
    """Of one coordinator that clips, of one sum of two servers, of the median of three groups."""
    rng = np.random.default_rng(seed)
    truth = np.full(DIMENSION, 0.5 / DIMENSION**0.5)
    rows = clip_rows(truth + rng.normal(size=(USERS, DIMENSION)) * 0.05, 1.0)
    honest = rows.mean(axis=0)
    sent = rows.copy()
    sent[:hostile] = -truth / np.linalg.norm(truth) * (FAR if far else 1.0)
    group = rng.permutation(USERS) % GROUPS
    several = np.array([mean(sent[group == each], 2, (group == each).sum(), rng) for each in range(GROUPS)])
    made = mean(clip_rows(sent, 1.0), 1, USERS, rng), mean(sent, 2, USERS, rng), median(several)
    return [float(np.sqrt(np.mean((each - honest) ** 2))) for each in made]


if __name__ == "__main__":
    print("| hostile | each sends | one coordinator | two servers | median of three groups |")
    print("|---|---|---|---|---|")
    for hostile, far in ((0, False), (1, False), (1, True), (100, False), (100, True), (500, False), (500, True)):
        found = np.array([errors(hostile, far, seed) for seed in range(RUNS)])
        words = "-" if not hostile else f"{FAR:,.0f} clip norms" if far else "one clip norm"
        row = " | ".join(f"{each:.2g}" for each in np.sqrt((found**2).mean(axis=0)))
        print(f"| {hostile} ({hostile / USERS:.2%}) | {words} | {row} |")
