"""How often intervals of coefficients cover those of the population: of one round, and why no others are told.

    python benchmarks/coefficient_intervals.py             # one-round-least-squares, some five minutes
    python benchmarks/coefficient_intervals.py --clipped   # what linearised intervals of whitened-tracking would do

The second is what nobody is told: final point and curvature of `whitened-tracking`, the noise of its gradients and
twice the users' spread, as if clipping moved nothing. Proof and figures: docs/privacy/one-round-least-squares.md#ui1.
"""

import argparse
import math

import numpy as np

from quoron_client import ItemBatch, answer, make_loss
from quoron_client.protocol.domains import L2Ball
from quoron_client.protocol.questions import Answers
from quoron_privacy.noise.streams import SeededNoise
from quoron_server.algorithms import ALGORITHMS
from quoron_server.algorithms.one_round import Solved
from quoron_server.algorithms.whitened.estimates import GradientModel
from quoron_server.algorithms.whitened.parameters import WhitenedParameters
from quoron_server.plan import Privacy, RunPlan
from quoron_server.problem import Beliefs, Problem

Vector = np.ndarray
KINDS = "uniform", "rare", "skewed", "strong"
SIZES = (3000, 3, 1, 8), (10_000, 4, 1, 1), (10_000, 4, 3, 4), (40_000, 12, 1, 2)  # n, d, items, ε
LOSS = make_loss("least_squares", label_bound=1.0, feature_norm=1.0)


def table(rng: np.random.Generator, users: int, features: int, items: int, kind: str) -> ItemBatch:
    """Rows of a norm of one at most, labels with users' own shifts and unequal variances.

    `strong` is `skewed` with more to learn: users in its tail are far from all others.
    """
    size = (users * items, features)
    rows = {
        "uniform": lambda: rng.uniform(-1, 1, size),
        "rare": lambda: np.where(rng.random(size) < 0.1, 1.0, -1.0),
        "skewed": lambda: 2 * rng.beta(0.5, 4.0, size) - 1,
    }["skewed" if kind == "strong" else kind]()
    rows[:, -1] = 1.0
    rows /= math.sqrt(features)
    truth = np.random.default_rng(1).normal(size=features) * (1.2 if kind == "strong" else 0.4)
    noise = 0.1 * np.repeat(rng.normal(size=users), items) + 0.2 * rng.normal(size=len(rows)) * (1 + rows[:, 0])
    return ItemBatch(rows, np.clip(rows @ truth + noise, -1, 1), np.arange(users + 1) * items)


def planned(name: str, users: int, features: int, items: int, epsilon: float) -> RunPlan:
    """Of such a table."""
    domain = L2Ball(30.0)
    problem = Problem(
        users=users,
        items_per_user=items,
        dimension=features,
        domain=domain,
        lipschitz=LOSS.lipschitz(domain, features),
        smoothness=LOSS.smoothness,
        start_gradient=LOSS.start_gradient,
        feature_norm=1.0,
        link_curvature=LOSS.curvature,
        beliefs=Beliefs(label_bound=1.0, intercept=True),
    )
    return ALGORITHMS[name].plan(problem, Privacy(epsilon, 1e-6))


def one_round(batch: ItemBatch, plan: RunPlan, seed: int) -> tuple[Vector, Vector] | None:
    """(middles, halves), or None where there are none."""
    made, noise, d = ALGORITHMS[plan.algorithm].make(plan), SeededNoise(seed), plan.problem.dimension
    update = made.update(made.init(), answer(LOSS, batch, made.request(made.init(), noise).task), noise)
    upper = np.zeros((d + 1, d + 1))
    upper[np.triu_indices(d + 1)] = update.public["moment"]
    solved = Solved.of(upper + np.triu(upper, 1).T, plan.parameters)
    if solved is None:
        return None
    along = [solved.along(each) for each in np.eye(d)]
    return solved.point, np.array([solved.reach(each, float(np.abs(each).sum()) / math.sqrt(d)) for each in along])


def clipped(batch: ItemBatch, plan: RunPlan, seed: int) -> tuple[Vector, Vector]:
    """The same of whitened-tracking, as if nothing was clipped."""
    made, noise = ALGORITHMS[plan.algorithm].make(plan), SeededNoise(seed)
    state = made.init()
    while (question := made.request(state, noise)) is not None:
        last, found = state, answer(LOSS, batch, question.task)
        state = made.update(state, Answers.checked(found.values, found.status, largest=1e9), noise).state
    law = plan.parameters_of(WhitenedParameters).law
    model = GradientModel.of(last.points, last.gradients, last.variances, last.walks, law=law)
    gradient, error = model.at(last.point, last.walk)
    curvature = float(law.at(last.point)[0][0])
    middle = last.transform @ (last.point - gradient / curvature)
    variance = (error + 4 * last.spread / (len(middle) * batch.users)) / curvature**2
    return middle, 1.96 * np.sqrt(variance * np.sum(last.transform**2, axis=1))


def main() -> None:
    """A line for each kind of table and size."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--clipped", action="store_true")
    parser.add_argument("--times", type=int, default=None, help="Repetitions; 200, or 20 of --clipped.")
    given = parser.parse_args()
    name = "whitened-tracking" if given.clipped else "one-round-least-squares"
    times = given.times or (20 if given.clipped else 200)
    print(f"{name}, {times} repetitions: share of coefficients covered, half of an interval, 1.96 errors, refused")
    for kind in KINDS:
        for users, features, items, epsilon in SIZES:
            large = table(np.random.default_rng(9), 400_000, features, items, kind)
            truth = np.linalg.lstsq(large.features.astype(float), large.labels, rcond=None)[0]
            plan, hits, halves, off, refused = planned(name, users, features, items, epsilon), [], [], [], 0
            for seed in range(times):
                batch = table(np.random.default_rng(100 + seed), users, features, items, kind)
                found = (clipped if given.clipped else one_round)(batch, plan, seed)
                if found is None:
                    refused += 1
                    continue
                hits.append(np.abs(found[0] - truth) <= found[1])
                halves.append(found[1])
                off.append(found[0] - truth)
            said = f"{kind:8} n={users:6,} d={features:2} m={items} ε={epsilon}:"
            if hits:
                error = 1.96 * math.sqrt(np.mean(np.square(off)))
                print(f"{said} {np.mean(hits):.3f} {np.mean(halves):.3f} {error:.3f} {refused}", flush=True)
            else:
                print(f"{said} none {refused}", flush=True)


if __name__ == "__main__":
    main()
