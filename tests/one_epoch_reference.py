"""The one-epoch family by definition: full noise matrices and the algorithm box, one user at a time."""

from itertools import pairwise
from math import comb

import numpy as np

from contracts.scenes import PRIVACY
from quoron_client.protocol.questions import Answers, Status
from quoron_privacy.prefix.strategies import nodes
from quoron_server.algorithms import ALGORITHMS

FAMILY = ["accelerated-srgd", "srgd", "accelerated-sgd", "dp-ftrl", "online-to-batch"]


class Users:
    """User u's loss is 0.1 ‖x - c_u‖²; some users never answer."""

    def __init__(self, users, dimension, seed=5, absent=()):
        self.centres = 0.3 + 0.1 * np.random.default_rng(seed).standard_normal((users, dimension))
        self.absent = set(absent)

    def gradient(self, user, x):
        return 0.2 * (x - self.centres[user])

    def ask(self, question):
        rows, status = [], []
        for user in question.cohort:
            parts = [
                w * self.gradient(user, x) for w, x in zip(question.task.weights, question.task.points, strict=True)
            ]
            missing = user in self.absent
            rows.append(np.zeros(len(parts[0])) if missing else sum(parts))
            status.append(Status.MISSING if missing else Status.ANSWERED)
        return Answers(np.array(rows), np.array(status, dtype=np.uint8))


def planned(name, problem, **options):
    info = ALGORITHMS[name]
    return info.plan(problem, PRIVACY, info.options(**options), "calibrated", 7)


def made(plan):
    """The algorithm of a plan that may be broken: nothing is verified."""
    return ALGORITHMS[plan.algorithm].maker(plan)


def drive(algorithm, engine, noise):
    """All states of a run, first to last."""
    states = [algorithm.init()]
    while (question := algorithm.request(states[-1], noise)) is not None:
        states.append(algorithm.update(states[-1], engine.ask(question), noise).state)
    return states


def released_sums(plan, states):
    """Ŝ_0, Ŝ_1, ... read off the iterates, which tells the same as long as no projection is active; shape (T, d)."""
    p, sums = plan.parameters, []
    for t, (before, after) in enumerate(pairwise(states)):
        if p.method in ("accelerated", "anytime"):
            sums.append(2 * p.beta * (before.z - after.z))
        elif p.method == "plain":
            sums.append(p.beta * (t + 1) * (before.iterate - after.iterate))
        else:
            sums.append(-p.beta * after.iterate)
    return np.array(sums)


def strategy(factorisation, rounds):
    """C of docs/privacy/prefix-noise.md, entry by entry."""
    matrix = np.eye(rounds)
    for t in range(rounds):
        for k in range(1, t + 1):
            if factorisation in ("sqrt-toeplitz", "banded"):  # alike up to 32 rounds
                matrix[t, t - k] = comb(2 * k, k) / 4**k
            elif factorisation == "blt":
                weights, decays = nodes(rounds, buffers=1 + (rounds - 1).bit_length() // 2)
                matrix[t, t - k] = sum(w * p ** (k - 1) for w, p in zip(weights, decays, strict=True))
            elif factorisation == "tree":
                node = max(2**j for j in range(20) if (t + 1) % 2**j == 0)
                matrix[t, t - k] = float(k < node)
    return matrix


def reference(plan, engine, noise):
    """The algorithm box of docs/privacy/srgd.md, one user at a time; (x_0 .. x_T, model)."""
    p, domain, d = plan.parameters, plan.problem.domain, plan.problem.dimension
    label = "release" if p.gradients == "independent" else "prefix"
    seeds = [noise.stream(label, t).gaussian_steps(d) * (p.noise_scale * 2.0**-30) for t in range(p.rounds)]
    correlated = seeds
    if p.gradients != "independent":
        correlated = np.linalg.solve(strategy(p.factorisation, p.rounds), np.array(seeds))
    order = np.random.Generator(np.random.Philox(key=plan.seed)).permutation(plan.problem.users)
    x, z, before, total = np.zeros(d), np.zeros(d), np.zeros(d), np.zeros(d)
    path = [x]
    for t in range(p.rounds):
        added = np.zeros(d)
        for user in order[t * p.cohort_size : (t + 1) * p.cohort_size]:
            if user in engine.absent:
                continue
            answer = engine.gradient(user, x)
            if p.gradients == "recursive":
                answer = (t + 1) * answer - t * engine.gradient(user, before)
            added += answer * min(1.0, p.clip_norm / np.sqrt(answer @ answer))
        mean = added / p.cohort_size
        if p.gradients == "independent":
            summed = (t + 1) * (mean + correlated[t])
        else:
            total = total + mean + correlated[t]
            summed = total
        before = x
        if p.method == "accelerated":
            z = domain.project(z - summed / (2 * p.beta))
            y = domain.project(x - summed / ((t + 1) * p.beta))
            x = (1 - 2 / (t + 3)) * y + 2 / (t + 3) * z
        elif p.method == "anytime":
            z = domain.project(z - summed / (2 * p.beta))
            x = x * (1 - 2 / (t + 3)) + 2 / (t + 3) * z
        elif p.method == "plain":
            x = domain.project(x - summed / ((t + 1) * p.beta))
        else:
            x = domain.project(-summed / p.beta)
        path.append(x)
    return np.array(path), y if p.method == "accelerated" else np.mean(path[-p.suffix :], axis=0)
