"""Gradient descent with outlier removal: the loop against a slow one, radius and test planned together, re-checks."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from contracts.scenes import PROBLEM, Quadratic, make_plan
from one_epoch_reference import drive
from problems import changed, problem_of
from quoron.config import from_tree
from quoron.simulation.problem import setup
from quoron_client.protocol.domains import L2Ball
from quoron_client.protocol.questions import Answers, AverageGradient, Question
from quoron_privacy.errors import Infeasible
from quoron_privacy.noise.streams import SeededNoise
from quoron_server.algorithms import ALGORITHMS
from quoron_server.algorithms.outlier_gd import OutlierGD
from quoron_server.plan import Privacy

INFO = ALGORITHMS["outlier-gd"]
SPREAD = math.sqrt(2 / 50)  # √(2/m) V of the notes


def reference(plan, engine, source):
    """The box, line by line, over all pairs."""
    p, problem = plan.parameters, plan.problem
    order = np.random.Generator(np.random.Philox(key=plan.seed)).permutation(problem.users)[: p.cohort_size]
    mean, x, r = p.accounting.mean, np.zeros(problem.dimension), np.zeros(problem.dimension)
    average, path = 0.0, []
    for t in range(p.rounds):
        rows = 0.2 * (x - engine.centres[order])
        distances = np.sqrt(((rows[:, None] - rows[None]) ** 2).sum(axis=-1))
        s = int((distances <= p.radius).sum())
        if p.accounting.test.decide(s, source.stream("test", t)):
            near = (distances <= mean.removal_radius * p.radius).sum(axis=1)
            weights = np.clip((near - mean.ramp_low) / (mean.ramp_high - mean.ramp_low), 0, 1)
            noise = source.stream("release", t).gaussian_steps(problem.dimension) * 2.0**-30 * p.noise_scale
            r = weights @ rows / weights.sum() + noise
            x = problem.domain.project(x - p.step_size * r)
        if p.rounds - t <= p.suffix:
            average = average + x / p.suffix
        path.append(x)
    return path, average


def test_a_run_is_the_algorithm_box_line_by_line():
    plan, engine = make_plan("outlier-gd"), Quadratic()
    algorithm = OutlierGD(plan)
    states = drive(algorithm, engine, SeededNoise(4))
    path, average = reference(plan, engine, SeededNoise(4))
    for state, x in zip(states[1:], path, strict=True):
        np.testing.assert_allclose(state.iterate, x, atol=1e-7)
    np.testing.assert_allclose(algorithm.model(states[-1]), average, atol=1e-7)
    assert not np.array_equal(path[-1], path[0])


class Scattered(Quadratic):
    """From one round on, nobody is near anybody."""

    def __init__(self, first):
        super().__init__()
        self.first = first

    def ask(self, question):
        answers = super().ask(question)
        if question.round >= self.first:
            answers.values[:, 0] += 100.0 * np.arange(len(answers.values))
        return Answers(answers.values, answers.status)


def test_a_step_that_is_withheld_moves_nothing():
    algorithm = OutlierGD(make_plan("outlier-gd"))
    states = drive(algorithm, Scattered(1), SeededNoise(4))
    for state in states[2:]:
        np.testing.assert_array_equal(state.iterate, states[1].iterate)
    assert np.isfinite(algorithm.model(states[-1])).all()


def gaussian_rows(users, spread, dimension, seed=3):
    return spread / math.sqrt(dimension) * np.random.default_rng(seed).standard_normal((users, dimension))


LARGE = problem_of(
    users=20_000,
    items_per_user=50,
    dimension=10,
    domain=L2Ball(1.0),
    lipschitz=1.0,
    smoothness=1.0,
    curvature="isotropic",
    typical_curvature=0.5,
    gradient_deviation=1.0,
)


@pytest.mark.parametrize("radius", [None, 1.52 * SPREAD])
def test_a_radius_passes_the_test_that_was_planned_with_it(radius):
    """Also one that leaves a few per cent of pairs out, where users differ as they do or by less."""
    plan = INFO.plan(LARGE, Privacy(4.0, 1e-6), INFO.options(rounds=8, radius=radius), "calibrated", 1)
    INFO.verify(plan)
    p = plan.parameters
    mean, everybody = p.accounting.mean, np.ones(p.cohort_size, np.bool_)
    rows = gaussian_rows(p.cohort_size, LARGE.user_deviation * (1.15 if radius is None else 1.0), 10)
    score = mean.observe(rows, everybody, radius=p.radius, reference=np.zeros(10)).score
    assert p.accounting.test.chance(score) > 0.9


def test_declared_outliers_are_forgiven_and_too_small_a_radius_is_named():
    loose = changed(LARGE, hostile_share=0.05)
    strict = INFO.plan(LARGE, Privacy(4.0, 1e-6), INFO.options(rounds=8), "calibrated", 1)
    made = INFO.plan(loose, Privacy(4.0, 1e-6), INFO.options(rounds=8), "calibrated", 1)
    assert made.parameters.accounting.mean.core < strict.parameters.accounting.mean.core - 1500
    with pytest.raises(Infeasible, match="of pairs beyond radius"):
        INFO.plan(LARGE, Privacy(1.0, 1e-6), INFO.options(rounds=8, radius=0.5 * SPREAD), "calibrated", 1)
    with pytest.raises(Infeasible, match="n >= "):
        INFO.plan(replace(PROBLEM, users=100), Privacy(1.0, 1e-6), INFO.options(), "calibrated", 1)


@pytest.mark.parametrize("family", ["logistic", "least_squares"])
@pytest.mark.parametrize("name", ["outlier-gd", "accelerated-erm"])
def test_nearly_all_pairs_of_users_are_within_the_radius_at_the_start(name, family):
    """Where residuals grow away from the optimum, users differ most at the start: a test that fails there halts."""
    users = {"family": family, "users": 20_000, "dimension": 30, "items_per_user": 10, "label_noise": 0.5}
    scene = setup(from_tree({"population": users, "domain": {"radius": 6.0}}), Path())
    parameters = ALGORITHMS[name].plan(scene.problem, Privacy(4.0, 1e-6), None, "calibrated", 0).parameters
    question = Question(0, np.arange(300), AverageGradient(np.zeros((1, 30)), (1.0,)))
    gradients = scene.engine.ask(question).values
    apart = np.linalg.norm(gradients[:, None] - gradients, axis=2)
    radius = parameters.radius if name == "outlier-gd" else parameters.phases[0].radius
    assert np.mean(apart > radius) < 0.005  # tests forgive as much
