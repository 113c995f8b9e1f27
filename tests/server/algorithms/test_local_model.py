"""local-model: one private report a user, no noise of the server, accelerated steps within their bound."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2

from contracts.scenes import PRIVACY, PROBLEM, Quadratic
from privacy import references
from problems import changed
from quoron_client.protocol.domains import L2Ball
from quoron_client.protocol.questions import VectorReport
from quoron_client.randomisers import VectorNoise
from quoron_privacy.noise.streams import SeededNoise
from quoron_server.algorithms import ALGORITHMS
from quoron_server.algorithms.acsa import response

INFO = ALGORITHMS["local-model"]
MANY_ITEMS = replace(PROBLEM, items_per_user=400_000)
LINEAR = changed(MANY_ITEMS, smoothness=0.0, link_curvature=0.0, curvature="unknown", typical_curvature=None)


class Silent:
    """A noise source that must not be asked."""

    def stream(self, *labels):
        raise AssertionError(f"the server drew {labels}")


def planned(problem=PROBLEM, privacy=PRIVACY, seed=7, **options):
    return INFO.plan(problem, privacy, INFO.options(**options), "calibrated", seed)


PLANS = {
    "usual": lambda: planned(rounds=6),
    "warm": lambda: planned(LINEAR, rounds=4),
}
every_plan = pytest.mark.parametrize("kind", list(PLANS))


def carried_out(plan, engine):
    algorithm = INFO.make(plan)
    state, questions = algorithm.init(), []
    while (question := algorithm.request(state, Silent())) is not None:
        questions.append(question)
        state = algorithm.update(state, engine.ask(question), Silent()).state
    return algorithm.model(state), questions


def slow_run(plan, engine):
    """The lines of the algorithm, with the same questions answered by the same clients."""
    p, d = plan.parameters, plan.problem.dimension
    x, a, centre, radius = np.zeros(d), np.zeros(d), np.zeros(d), p.first_radius
    _, questions = carried_out(plan, engine)
    asked = iter(questions)
    for _ in range(p.warm_ups):  # of a linear loss: they find the centre, and make no step
        question = next(asked)
        np.testing.assert_allclose(question.task.gradient.points[0], np.zeros(d), atol=0)
        np.testing.assert_allclose(question.task.centre, centre, atol=1e-12)
        assert (question.task.radius, len(question.cohort)) == (pytest.approx(radius), p.warm_users)
        centre = engine.ask(question).values.mean(axis=0)
        error = p.spread**2 * (1 + 1 / p.warm_users) + d * (radius * p.noise_scale) ** 2 / p.warm_users
        radius = min(p.first_radius, math.sqrt(chi2.ppf(0.98, d) / d * error))
    for t in range(p.steps):
        y = 2 / (t + 2) * x + t / (t + 2) * a
        question = next(asked)
        np.testing.assert_allclose(question.task.gradient.points[0], y, atol=1e-12)
        np.testing.assert_allclose(question.task.centre, centre, atol=1e-12)
        assert question.task.radius == pytest.approx(radius)
        estimate = engine.ask(question).values.mean(axis=0)  # no honest report is farther than `largest`
        x = plan.problem.domain.project(x - (t + 1) / (2 * p.inverse_step) * estimate)
        a = 2 / (t + 2) * x + t / (t + 2) * a
        following = 2 / (t + 3) * x + (t + 1) / (t + 3) * a
        error = p.spread**2 * (1 + 1 / p.users_a_step) + d * (radius * p.noise_scale) ** 2 / p.users_a_step
        drift = p.smoothness * np.linalg.norm(following - y) if t < p.steps - 1 else 0.0
        radius = min(p.first_radius, math.sqrt(chi2.ppf(0.98, d) / d * error) + drift)
        centre = estimate
    return a


@every_plan
def test_a_run_is_what_the_lines_of_the_algorithm_say(kind):
    plan, engine = PLANS[kind](), Quadratic()
    model, _ = carried_out(plan, engine)
    np.testing.assert_allclose(model, slow_run(plan, engine), atol=1e-10)


@every_plan
def test_the_server_draws_no_noise_and_every_interaction_is_a_round(kind):
    plan = PLANS[kind]()
    _, questions = carried_out(plan, Quadratic())
    assert [question.round for question in questions] == list(range(plan.cost.rounds))
    assert plan.cost.rounds == plan.parameters.steps + plan.parameters.warm_ups
    assert (plan.parameters.warm_ups > 0) == (kind == "warm")
    assert all(isinstance(question.task, VectorReport) for question in questions)


@every_plan
def test_a_user_sends_one_report(kind):
    plan = PLANS[kind]()
    _, questions = carried_out(plan, Quadratic())
    asked = np.concatenate([question.cohort for question in questions])
    _, often = np.unique(asked, return_counts=True)
    assert often.max() == often.min() == 1


class TestBudget:
    @every_plan
    def test_what_a_client_makes_of_the_question_is_within_the_promise(self, kind):
        """The client's own noise and flips, not the plan's idea of them."""
        plan = PLANS[kind]()
        _, questions = carried_out(plan, Quadratic())
        for question in questions:
            task = question.task
            scale = VectorNoise(task.epsilon, task.delta, task.radius).scale(3)
            assert scale == pytest.approx(task.radius * plan.parameters.noise_scale, rel=1e-6)
            delta = references.vector_delta(radius=task.radius, scale=scale, dimension=3, epsilon=PRIVACY.epsilon)
            assert 0.99 * PRIVACY.delta < delta <= PRIVACY.delta


class TestAcceleratedSteps:
    @given(seed=st.integers(0, 10**6), steps=st.integers(1, 12), margin=st.floats(1.01, 8.0))
    @settings(derandomize=True, deadline=None, max_examples=60)
    def test_the_gap_is_within_the_bound_for_whatever_errors(self, seed, steps, margin):
        """local-model#r6 holds on every path, linear error terms kept: quadratics, projections, any errors."""
        rng, d, smoothness = np.random.default_rng(seed), 3, 1.0
        basis = np.linalg.qr(rng.normal(size=(d, d)))[0]
        hessian = basis @ np.diag(rng.uniform(0, smoothness, d)) @ basis.T
        domain, beta = L2Ball(1.0), margin * smoothness
        best = domain.project(rng.normal(size=d))
        shift = hessian @ best

        def value(point):
            return 0.5 * point @ hessian @ point - shift @ point

        x = a = np.zeros(d)
        right = beta * best @ best
        for t in range(steps):
            share, length = 2 / (t + 2), (t + 1) / (2 * beta)
            y = share * x + (1 - share) * a
            error = rng.normal(size=d) * rng.exponential(0.5)
            right += (t + 1) ** 2 * (error @ error) / (4 * (beta - smoothness)) - (t + 1) * error @ (x - best)
            x = domain.project(x - length * (hessian @ y - shift + error))
            a = share * x + (1 - share) * a
        assert steps * (steps + 1) / 2 * (value(a) - value(best)) <= right + 1e-9

    def test_the_response_is_that_of_a_run(self):
        steps, beta, h, rng = 7, 2.0, 0.3, np.random.default_rng(1)
        errors = rng.normal(size=steps)
        x = a = 1.0
        path = []
        for t in range(steps):
            y = 2 / (t + 2) * x + t / (t + 2) * a
            path.append(y)
            x -= (t + 1) / (2 * beta) * (h * y + errors[t])
            a = 2 / (t + 2) * x + t / (t + 2) * a
        bias, weights, _ = response(steps, beta, h)
        assert a == pytest.approx(bias + weights @ errors)
        _, _, quiet = response(1, beta, h)
        assert quiet.tolist() == [path[0]] == [1.0]


def test_the_noise_source_of_the_run_changes_no_bit(tmp_path):
    plan, models = PLANS["usual"](), []
    for seed in (1, 2):
        algorithm, source = INFO.make(plan), SeededNoise(seed)
        state = algorithm.init()
        while (question := algorithm.request(state, source)) is not None:
            state = algorithm.update(state, Quadratic().ask(question), source).state
        models.append(algorithm.model(state))
    np.testing.assert_array_equal(*models)
