"""The one-epoch family: the inequalities behind its bounds on every path, and predictions against measured risk."""

from dataclasses import replace

import numpy as np
import pytest

from audits.harness import Still
from contracts.scenes import PROBLEM
from one_epoch_reference import FAMILY, drive, made, planned, strategy
from problems import changed
from quoron_client.protocol.domains import Box, L2Ball
from quoron_client.protocol.questions import Answers
from quoron_privacy.noise.streams import SeededNoise
from quoron_server.algorithms.one_epoch import bounded_risk, isotropic_risk

every_algorithm = pytest.mark.parametrize("name", FAMILY)


def random_quadratic(rng):
    """(gradient, loss, ball, best, β): smoothness one, and a comparator that is mostly the minimiser in the ball."""
    d = rng.integers(1, 4)
    turn = np.linalg.qr(rng.standard_normal((d, d)))[0]
    spectrum = rng.uniform(0, 1, d)
    spectrum[0] = 1.0
    hessian, ball = turn @ np.diag(spectrum) @ turn.T, L2Ball(float(rng.uniform(0.3, 3)))
    slope, beta = rng.standard_normal(d) * rng.choice([0.1, 1.0]), 1 + float(rng.choice([0.01, 0.3, 10.0]))
    best = ball.project(rng.standard_normal(d) * 2)
    if rng.random() < 0.7:
        for _ in range(500):
            best = ball.project(best - (hessian @ best - slope))
    return (lambda x: hessian @ x - slope), (lambda x: x @ hessian @ x / 2 - slope @ x), ball, best, beta


def errors(rng, rounds, d):
    return rng.choice([0.0, 0.01, 1.0]) * rng.standard_normal((rounds, d))


def accelerated(rng, divide=2):
    """Both sides of srgd#u1, with the z-step Ŝ_t/(divide β)."""
    gradient, loss, ball, best, beta = random_quadratic(rng)
    rounds = rng.integers(1, 13)
    e = errors(rng, rounds, len(best))
    x = z = y = np.zeros(len(best))
    right = beta * best @ best
    for t in range(rounds):
        estimate = gradient(x) + e[t]
        right += (t + 1) * (t + 2) / 2 * e[t] @ e[t] / (2 * (beta - 1)) - (t + 1) * e[t] @ (z - best)
        z = ball.project(z - (t + 1) / (divide * beta) * estimate)
        y = ball.project(x - estimate / beta)
        x = (1 - 2 / (t + 3)) * y + 2 / (t + 3) * z
    return rounds * (rounds + 1) / 2 * (loss(y) - loss(best)), right


def plain(rng):
    """Both sides of the inequality of srgd#u4."""
    gradient, loss, ball, best, beta = random_quadratic(rng)
    e = errors(rng, rng.integers(1, 13), len(best))
    x, left, right = np.zeros(len(best)), 0.0, beta / 2 * best @ best
    for error in e:
        right += error @ error / (2 * (beta - 1)) - error @ (x - best)
        x = ball.project(x - (gradient(x) + error) / beta)
        left += loss(x) - loss(best)
    return left, right


def leader(rng):
    """Both sides of the inequality of srgd#u5."""
    gradient, loss, ball, best, beta = random_quadratic(rng)
    rounds, d = rng.integers(1, 13), len(best)
    sampling, noise = errors(rng, rounds, d), errors(rng, rounds, d)
    x, total, before, left, right = np.zeros(d), np.zeros(d), np.zeros(d), 0.0, beta / 2 * best @ best
    for q, xi in zip(sampling, noise, strict=True):
        right += (before - q) @ (before - q) / (2 * (beta - 1)) - q @ (x - best)
        total = total + gradient(x) + q
        x, before = ball.project(-(total + xi) / beta), xi
        left += loss(x) - loss(best)
    return left, right - before @ (x - best)


def anytime(rng, last=True):
    """Both sides of srgd#u7, of which the model is x_T; with `last` false, of x_T and the bound for x_{T-1}."""
    gradient, loss, ball, best, beta = random_quadratic(rng)
    beta *= rng.choice([0.1, 1.0])  # smoothness plays no part
    rounds = rng.integers(1, 13)
    e = errors(rng, rounds, len(best))
    x = z = np.zeros(len(best))
    right = beta * best @ best
    for t in range(rounds):
        released = (t + 1) * (gradient(x) + e[t])
        right += released @ released / (4 * beta) - (t + 1) * e[t] @ (z - best)
        z = ball.project(z - released / (2 * beta))
        x = (1 - 2 / (t + 3)) * x + 2 / (t + 3) * z
    if last:
        right += (rounds + 1) ** 2 * gradient(x) @ gradient(x) / (4 * beta)
    return (rounds + 1) * (rounds + 2) / 2 * (loss(x) - loss(best)), right


@pytest.mark.parametrize("both_sides", [accelerated, plain, leader, anytime])
def test_the_inequality_behind_a_bound_holds_on_every_path(both_sides):
    rng = np.random.default_rng(11)
    for _ in range(80):
        left, right = both_sides(rng)
        assert left <= right + 1e-9 * (1 + abs(right))


def test_the_bound_of_the_last_point_needs_the_gradient_that_nobody_is_asked_for():
    rng = np.random.default_rng(11)
    assert any(left > right + 1e-6 for left, right in (anytime(rng, last=False) for _ in range(1000)))


def test_the_inequality_fails_for_the_printed_z_step():
    rng = np.random.default_rng(11)
    assert any(left > right + 1e-6 for left, right in (accelerated(rng, divide=1) for _ in range(1000)))


class Parallel:
    """One coordinate a run: users' gradients h (x - c_u), with c_u around x* on every coordinate."""

    def __init__(self, curvature, optimum, spread, seed=3):
        self.curvature, self.optimum, self.spread = curvature, optimum, spread
        self.rng = np.random.default_rng(seed)

    def ask(self, question):
        task, k = question.task, len(question.cohort)
        centres = self.optimum + self.spread * self.rng.standard_normal((k, len(self.optimum)))
        values = sum(w * self.curvature * (x - centres) for w, x in zip(task.weights, task.points, strict=True))
        return Answers(values, np.zeros(k, np.uint8))


@every_algorithm
@pytest.mark.parametrize("part", ["all", "start", "users", "noise"])
def test_the_predicted_risk_is_the_measured_one_on_an_isotropic_quadratic(name, part):
    # 40,000 coordinates are as many runs: the mean square of their errors is within 5 %, seven standard deviations
    runs, rounds, cohort, h, beta = 40_000, 9, 3, 0.2, 0.5
    start, spread, scale = (float(part in ("all", one)) for one in ("start", "users", "noise"))
    spread, scale = spread or 1e-9, 0.3 * scale or 1e-9
    problem = replace(PROBLEM, users=rounds * cohort, dimension=runs, items_per_user=1, smoothness=0.0)
    problem = changed(problem, gradient_deviation=h * spread * runs**0.5, typical_curvature=h)
    problem = replace(problem, domain=L2Ball(max(start, 1e-9) * runs**0.5))
    plan = planned(name, replace(problem, smoothness=h, domain=Box(1e9)), rounds=rounds, factorisation="banded")
    suffix = 1 if plan.parameters.method == "anytime" else 4
    p = replace(plan.parameters, beta=beta, suffix=suffix, clip_norm=1e6, noise_scale=scale, sensitivity=scale)
    optimum = np.full(runs, start)
    noise = SeededNoise(5)
    if part in ("start", "users"):
        noise, p = Still(), replace(p, noise_scale=1.0, sensitivity=1.0)
    algorithm = made(replace(plan, parameters=p))
    model = algorithm.model(drive(algorithm, Parallel(h, optimum, spread), noise)[-1])
    measured = h / 2 * np.sum((model - optimum) ** 2)
    kernel = strategy("sqrt-toeplitz", rounds)[:, 0]
    if p.gradients == "independent":
        kernel = np.ones(rounds)
    [predicted] = isotropic_risk(
        problem, p.gradients, p.method, np.array([beta]), np.array([p.suffix]), cohort, np.array([scale]), kernel
    )
    assert measured == pytest.approx(predicted, rel=0.05)


class Stretched:
    """User u's loss is a quadratic around its own centre, with one Hessian of unequal eigenvalues for all."""

    hessian = np.array([0.2, 0.1, 0.01])
    optimum = np.array([0.5, -0.5, 0.5])

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)

    def ask(self, question):
        task, k = question.task, len(question.cohort)
        centres = self.optimum + self.rng.uniform(-0.4, 0.4, (k, 3))
        values = sum(w * self.hessian * (x - centres) for w, x in zip(task.weights, task.points, strict=True))
        return Answers(values, np.zeros(k, np.uint8))

    def excess(self, x):
        return (x - self.optimum) @ (self.hessian * (x - self.optimum)) / 2


@pytest.mark.parametrize(("name", "smooth"), [*((name, True) for name in FAMILY), ("dp-ftrl", False)])
@pytest.mark.parametrize("factor", [1.2, 8.0])
def test_the_proved_bound_is_above_the_measured_risk(name, smooth, factor):
    rounds, cohort, beta = 8, 20, 0.2 * factor
    deviation = float(np.sqrt(np.sum(Stretched.hessian**2) * 0.4**2 / 3))
    problem = changed(PROBLEM, users=rounds * cohort, items_per_user=1, domain=L2Ball(1.0), curvature="unknown")
    problem = changed(problem, smoothness=0.2 if smooth else None, gradient_deviation=deviation, lipschitz=0.5)
    clip = 0.5 if name in ("accelerated-sgd", "dp-ftrl") else 2.0  # never active
    plan = planned(name, problem, rounds=rounds, inverse_step=beta, clip_norm=clip, factorisation="banded")
    p = plan.parameters
    stds = p.noise_scale * np.linalg.norm(strategy("sqrt-toeplitz", rounds), axis=1)
    if p.gradients == "independent":
        stds = np.full(rounds, p.noise_scale)
    algorithm, risks = made(plan), []
    for seed in range(60):
        engine = Stretched(seed)
        risks.append(engine.excess(algorithm.model(drive(algorithm, engine, SeededNoise(seed))[-1])))
    bound = bounded_risk(problem, p.gradients, p.method, beta, clip, cohort, stds)
    assert np.mean(risks) <= bound


def by_theorem(problem, name, beta, clip, cohort, stds):
    """docs/privacy/srgd.md#u2 to srgd#u5, sum by sum."""
    radius, rounds, d = problem.radius, len(stds), problem.dimension
    gap = None if problem.beta is None else beta - problem.beta
    if name == "dp-ftrl":
        total = beta * radius**2 / 2
        for t in range(rounds):
            if gap is None:
                total += (clip**2 / 2 + clip * d**0.5 * stds[t]) / beta
            else:
                total += (problem.user_deviation**2 / cohort + (d * stds[t - 1] ** 2 if t else 0.0)) / (2 * gap)
        last = clip**2 / (2 * beta) if gap is None else radius * d**0.5 * stds[-1]
        return (total + last) / rounds
    if name == "accelerated-sgd":
        square = problem.user_deviation**2 / cohort + d * stds[0] ** 2
        return 2 * beta * radius**2 / (rounds * (rounds + 1)) + square * (rounds + 2) / (6 * gap)
    deviation = min(clip, (clip**2 / problem.items_per_user + problem.beliefs.heterogeneity**2) ** 0.5)
    if name == "online-to-batch":
        total = beta * radius**2 + ((rounds + 1) * problem.lipschitz) ** 2 / (4 * beta)
        for t in range(rounds):
            length = deviation * ((t + 1) / cohort) ** 0.5 + d**0.5 * stds[t]
            total += ((t + 1) * problem.lipschitz + length) ** 2 / (4 * beta) + radius * length
        return total / ((rounds + 1) * (rounds + 2) / 2)
    total = beta * radius**2 * (1.0 if name == "accelerated-srgd" else 0.5)
    for t in range(rounds):
        square = deviation**2 / (cohort * (t + 1)) + d * stds[t] ** 2 / (t + 1) ** 2
        length = deviation / (cohort * (t + 1)) ** 0.5 + d**0.5 * stds[t] / (t + 1)
        if name == "accelerated-srgd":
            total += (t + 1) * (t + 2) / 2 * square / (2 * gap) + (t + 1) * radius * length
        else:
            total += square / (2 * gap) + radius * length
    return total / (rounds * (rounds + 1) / 2 if name == "accelerated-srgd" else rounds)


@pytest.mark.parametrize(("name", "smooth"), [*((name, True) for name in FAMILY), ("dp-ftrl", False)])
@pytest.mark.parametrize("heterogeneity", [0.0, 0.3, 5.0])
def test_the_bound_that_ranks_plans_is_the_one_on_the_page(name, smooth, heterogeneity):
    problem = changed(PROBLEM, heterogeneity=heterogeneity, smoothness=0.25 if smooth else None)
    p = planned(name, replace(PROBLEM, smoothness=0.25), rounds=7).parameters
    stds = np.full(7, 0.3) if name == "accelerated-sgd" else np.linspace(0.2, 0.5, 7)
    found = bounded_risk(problem, p.gradients, p.method, 0.4, 0.7, 30, stds)
    assert found == pytest.approx(by_theorem(problem, name, 0.4, 0.7, 30, stds), rel=1e-12)
