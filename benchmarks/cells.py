"""One cell of `default.py`: a table, an ε and a method, and what its models leave of what there is to learn.

left      per cent of F(0) - F* for each seed, F the user-averaged training risk, F* its minimum without bounds
oracle    the same of one Gaussian gradient at the optimum, whitened by the true Hessian there, users clipped to the
          radius that is best in hindsight: nobody can release that
nu        nμ/√d, μ that of (ε, δ): how far users stand out of the noise
forecast  the plan's predicted excess risk over F(0) - F*, in per cent
told      the same bound for each seed by what its run released; None where none is told
auc       of held-out users (of classes accuracy, of numbers the negative root of the mean square), and best auc of
          the minimum
"""

import math
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from shapes import table

from quoron.config import from_tree
from quoron.data import TablePopulation
from quoron.data.table import TrainingObjective
from quoron.engine.inline import InlineEngine
from quoron.planning.plans import choose
from quoron.simulation.problem import problem
from quoron_client.losses import Softmax
from quoron_client.protocol.domains import L2Ball
from quoron_client.protocol.questions import summed
from quoron_privacy.accounts.gdp import mu_for
from quoron_privacy.errors import QuoronError
from quoron_privacy.noise.streams import SeededNoise
from quoron_server.algorithms import ALGORITHMS
from quoron_server.plan import RunPlan
from quoron_server.rounds import Engine

DELTA = 1e-6
NARROW = {"recentred-sgd": 10.0, "dp-sgd-wor": 10.0}  # radius; the others are told none
RIVALS = ("whitened-tracking", "tracking-srgd", "recentred-sgd", "dp-sgd-wor")  # that ever win
RADII = 12  # that the oracle tries
FLAT = 1e-9  # of the Hessian's largest eigenvalue: a direction in which nothing is to be learnt
BLOCK, ENOUGH = 10_000, 50_000  # users whose gradients are held at a time, and whose slopes are looked at


def nu(users: int, columns: int, epsilon: float, delta: float = DELTA) -> float:
    """nμ/√d."""
    return users * mu_for(epsilon, delta) / math.sqrt(columns)


def plan_of(
    people: TablePopulation,
    algorithm: str,
    epsilon: float,
    radius: float | None = None,
    rounds: int | None = None,
    *,
    options: Mapping[str, Any] | None = None,
    hostile_share: float = 0.0,
) -> RunPlan:
    """As a person gets it who declares no radius, but for the algorithms that need one."""
    radius = NARROW.get(algorithm) if radius is None else radius
    tree: dict[str, Any] = {
        "population": {
            "kind": "table",
            "path": "-",
            "user": "-",
            "label": "- > 0",
            "columns": {"numeric": {"-": [0, 1]}},
        },
        "algorithm": {"name": algorithm, **({"options": dict(options)} if options else {})},
        "privacy": {"epsilon": epsilon, "delta": DELTA},
        "domain": {} if radius is None else {"radius": radius},
        "budget": {} if rounds is None else {"rounds": rounds},
        "problem": {"adversarial_share": hostile_share} if hostile_share else {},
    }
    config = from_tree(tree)
    narrow = L2Ball(3.0 / people.loss.feature_norm if radius is None else radius)
    return choose(config, problem(config, replace(people, domain=narrow)), alternatives=False).plan


def model(people: TablePopulation, plan: RunPlan, seed: int, engine: Engine | None = None) -> np.ndarray:
    """Of one run, in this process."""
    return ended(people, plan, seed, engine)[0]


def ended(
    people: TablePopulation, plan: RunPlan, seed: int, engine: Engine | None = None
) -> tuple[np.ndarray, Mapping[str, Any]]:
    """The model of one run, and what its last round made public."""
    made, noise = ALGORITHMS[plan.algorithm].make(plan), noise_of(people, plan, seed)
    engine = InlineEngine(people) if engine is None else engine
    state = made.init()
    while (question := made.request(state, noise)) is not None:
        answers = engine.ask(question)
        answers = answers if question.reduction is None else summed(answers, question.reduction)
        update = made.update(state, answers, noise)
        state = update.state
    return np.asarray(made.model(state)), update.public


def noise_of(people: TablePopulation, plan: RunPlan, seed: int) -> SeededNoise:
    """Another for every table, ε and method, so that the mean over cells is one over so many draws of noise."""
    labels = np.ascontiguousarray(people.training.of(np.arange(min(people.users, 100))).labels)
    name = f"{plan.algorithm} {people.users} {people.dimension} {plan.guarantee.epsilon:g} {seed}"
    return SeededNoise(zlib.crc32(name.encode(), zlib.crc32(labels.tobytes())))


def start_excess(people: TablePopulation) -> float:
    """F(0) - F*."""
    return people.excess_risk(np.zeros(people.dimension))


def oracle(people: TablePopulation, epsilon: float) -> float:
    """Excess risk of the oracle release, by quadratics at the optimum, at most that of the start.

    With users clipped to C in coordinates in which the Hessian is the identity, the release is b + noise, b the mean
    of what is left of their gradients, and moves by A per step: who is clipped answers to steps less. Its root is
    A⁻¹(b + noise) away, at a risk of ½ (‖A⁻¹b‖² + (2C/(nμ))² ‖A⁻¹‖²_F). A radius of 0 has no root.
    """
    best, n = people.optimum, people.users
    _, _, hessian = TrainingObjective(people.training, people.loss).expansion(best)
    values, basis = np.linalg.eigh(hessian)
    kept = values > FLAT * values[-1]
    whiten = basis[:, kept] / np.sqrt(values[kept])
    d = int(kept.sum())
    radii, left, slopes, counted = np.empty(0), np.empty(0), np.empty(0), 0
    for first in range(0, n, BLOCK):
        users = np.arange(first, min(first + BLOCK, n))
        gradients, rows, bends, owners = _curved(people, best, users)
        gradients = gradients @ whiten
        lengths = np.linalg.norm(gradients, axis=1)
        if not len(radii):
            radii = np.quantile(lengths, np.linspace(0.15, 1.0, RADII)) * 1.01
            left, slopes = np.zeros((RADII, d)), np.zeros((RADII, d, d))
        shares = np.minimum(1.0, radii[:, None] / np.maximum(lengths, 1e-300))
        left += shares @ gradients
        if first >= ENOUGH:  # the mean slope is known well enough
            continue
        rows, counted = rows @ whiten, counted + len(users)
        units = gradients / np.maximum(lengths, 1e-300)[:, None]
        along = np.zeros((len(users), d))
        np.add.at(along, owners, (bends * np.einsum("ij,ij->i", rows, units[owners]))[:, None] * rows)
        for k, share in enumerate(shares):
            slopes[k] += rows.T @ ((share[owners] * bends)[:, None] * rows)
            clipped = share < 1
            slopes[k] -= units[clipped].T @ (share[clipped, None] * along[clipped])
    pull = people.loss.ridge * whiten.T @ whiten
    noise = 2 / (n * mu_for(epsilon, DELTA))
    risks = [start_excess(people)]
    for radius, bias, slope in zip(radii, left / n, slopes / counted, strict=True):
        whole = slope + pull
        if np.linalg.cond(whole) < 1e8:
            inverse = np.linalg.inv(whole)
            risks.append(0.5 * float(np.sum((inverse @ bias) ** 2) + (noise * radius) ** 2 * np.sum(inverse**2)))
    return min(risks)


def _curved(people: TablePopulation, point: np.ndarray, users: np.ndarray) -> tuple[np.ndarray, ...]:
    """Gradients (k, D) of users, and their Hessians as sums of b z zᵀ: rows z (N, D), bends b and owners (N,)."""
    items, loss = people.training.of(users), people.loss
    features, labels = items.features.astype(np.float64), loss.bound_labels(items.labels)
    scores = TrainingObjective(items, loss).scores(point)
    owners = np.repeat(np.arange(len(users)), items.counts)
    weights = (np.ones(len(labels)) if items.weights is None else items.weights) / items.counts[owners]
    slopes = np.asarray(loss.slope(scores, labels))
    if isinstance(loss, Softmax):
        chances = loss.chances(scores)
        gradients = (slopes[:, :, None] * features[:, None, :]).reshape(len(labels), -1)
        apart = np.eye(loss.outputs)[None] - chances[:, None, :]  # e_k - p, of each class k
        rows = (apart[:, :, :, None] * features[:, None, None, :]).reshape(len(labels) * loss.outputs, -1)
        bends, held = (weights[:, None] * chances).ravel(), np.repeat(owners, loss.outputs)
    else:
        gradients, rows, held, nudge = slopes[:, None] * features, features, owners, 1e-5
        bends = weights * (loss.slope(scores + nudge, labels) - loss.slope(scores - nudge, labels)) / (2 * nudge)
    summed_up = np.zeros((len(users), gradients.shape[1]))
    np.add.at(summed_up, owners, weights[:, None] * gradients)
    return summed_up + loss.ridge * point, rows, np.maximum(bends, 0.0), held


def score(figures: Mapping[str, float]) -> float:
    """AUC, accuracy or the negative root of the mean square: larger is better."""
    return next((figures[name] for name in ("auc", "accuracy") if name in figures), -figures.get("rmse", math.nan))


def short(value: float) -> float:
    """Three digits."""
    return float(f"{value:.3g}")


def told(people: TablePopulation, epsilon: float) -> dict[str, Any]:
    """What holds of a cell whatever the method."""
    start = start_excess(people)
    return {
        "users": people.users,
        "columns": people.dimension,
        "epsilon": epsilon,
        "nu": short(nu(people.users, people.dimension, epsilon)),
        "oracle": short(100 * oracle(people, epsilon) / start),
        "start": short(start),
        "best auc": round(score(people.test_metrics(people.optimum)), 4),
    }


def run(people: TablePopulation, plan: RunPlan, seeds: int) -> dict[str, Any]:
    """What a plan's models leave, and what it foretold."""
    start = start_excess(people)
    runs = [ended(people, plan, seed) for seed in range(seeds)]
    models, told = [each for each, _ in runs], [public.get("left") for _, public in runs]
    foretold = plan.predicted_excess_risk
    return {
        "algorithm": plan.algorithm,
        "left": [short(100 * people.excess_risk(each) / start) for each in models],
        "auc": [round(score(people.test_metrics(each)), 4) for each in models],
        "forecast": None if foretold is None else short(100 * foretold / start),
        "told": [None if each is None else short(100 * each / start) for each in told],
    }


def cell(
    shape: str,
    users: int,
    columns: int,
    epsilon: float,
    *,
    draw: int = 0,
    algorithms: tuple[str, ...] = ("auto", *RIVALS),
    seeds: int = 2,
    radius: float | None = None,
    rounds: int | None = None,
    most_gradients: int = 15_000_000,
) -> Iterator[dict[str, Any]]:
    """A line for each method; one whose plan has more than `most_gradients` is left out, `auto`'s is not repeated."""
    people = table(shape, users, columns, draw)
    about = {"shape": shape, "draw": draw} | told(people, epsilon)
    lines: list[dict[str, Any]] = []
    for asked in algorithms:
        values = about | {"asked": asked}
        try:
            plan = plan_of(people, asked, epsilon, radius, rounds)
        except QuoronError as error:
            yield values | {"refused": str(error)[:200]}
            continue
        taken = next((each for each in lines if each.get("algorithm") == plan.algorithm), None)
        if taken is not None and plan.algorithm not in NARROW:
            lines.append(taken | values)
        elif asked == "auto" or plan.cost.gradient_evaluations <= most_gradients:
            lines.append(values | run(people, plan, seeds))
        else:
            yield values | {"left out": f"{plan.cost.gradient_evaluations:,} gradients"}
            continue
        yield lines[-1]
