"""Clipping around a private prediction: the centre and the radius are public, so each round is one Gaussian."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.scenes import PRIVACY, PROBLEM, Quadratic, make_plan
from quorate_client.domains import L2Ball
from quorate_protos.errors import VerificationError
from quorate_server.accounting.gdp import delta_for
from quorate_server.algorithms import ALGORITHMS
from quorate_server.algorithms.tracking_sgd import TrackingSGD
from quorate_server.mechanisms.clipping import mean_sensitivity
from quorate_server.noise import SeededNoise
from quorate_server.plan import Privacy
from quorate_server.problem import Problem

NAME = "tracking-sgd"


def states(engine, noise=None):
    algorithm, noise = TrackingSGD(make_plan(NAME)), noise or SeededNoise(2)
    found = [algorithm.init()]
    while (question := algorithm.request(found[-1], noise)) is not None:
        found.append(algorithm.update(found[-1], engine.ask(question), noise).state)
    return found


def by_the_box(engine, noise):
    """The algorithm box of the module, line by line; the noise is the mechanism's own, at the same labels."""
    p, domain = make_plan(NAME).parameters, PROBLEM.domain
    order = TrackingSGD(make_plan(NAME))
    x, previous, estimate, radius = np.zeros(3), np.zeros(3), np.zeros(3), p.first_radius
    tail = []
    for t in range(p.rounds):
        question = order.request(replace(order.init(), round=t, x=x), noise)
        values = engine.ask(question).values
        step = x - previous
        if t > 0:
            uncertain = p.drift * np.linalg.norm(step) + np.sqrt(3) * p.noise_per_radius * radius
            radius = min(p.first_radius, 1.3 * np.sqrt(uncertain**2 + p.spread**2))
        centre = estimate + p.curvature * step
        centred = values - centre
        lengths = np.linalg.norm(centred, axis=1, keepdims=True)
        mean = (centred * np.minimum(1.0, radius / np.maximum(lengths, 1e-300))).sum(axis=0) / p.cohort_size
        drawn = noise.stream("release", t).gaussian_steps((3,)) * 2.0**-30 * radius * p.noise_per_radius
        estimate = centre + mean + drawn
        previous, x = x, domain.project(x - p.step_size * estimate)
        tail.append(x)
    return np.mean(tail[-p.suffix :], axis=0)


def test_the_run_is_the_algorithm_box():
    found = states(Quadratic())[-1]
    np.testing.assert_allclose(found.running, by_the_box(Quadratic(), SeededNoise(2)), atol=1e-8)


def test_the_radius_falls_to_the_spread_of_user_averages_and_never_rises_above_the_first():
    radii = [state.radius for state in states(Quadratic())[1:]]
    assert radii[0] == max(radii) == make_plan(NAME).parameters.first_radius
    assert radii[-1] < radii[0]


@given(user=st.integers(0, 479), row=st.lists(st.floats(-1e9, 1e9), min_size=3, max_size=3), round_=st.integers(0, 4))
@settings(derandomize=True, deadline=None, max_examples=40)
def test_given_the_past_one_user_moves_a_release_by_at_most_the_sensitivity_of_the_radius_in_use(user, row, round_):
    algorithm, noise = TrackingSGD(make_plan(NAME)), SeededNoise(2)
    before = states(Quadratic())[round_]
    answers = Quadratic().ask(algorithm.request(before, noise))
    spoiled = answers.values.copy()
    spoiled[user] = row
    one, two = (algorithm.update(before, replace(answers, values=v), noise).state for v in (answers.values, spoiled))
    assert one.radius == two.radius
    allowed = mean_sensitivity(one.radius, make_plan(NAME).parameters.cohort_size)
    grid = 2 * np.sqrt(3) * 2.0**-30 * one.radius * make_plan(NAME).parameters.noise_per_radius
    assert np.linalg.norm(one.estimate - two.estimate) <= allowed + grid + 1e-15


BROKEN = {
    "a quarter of the noise": lambda p: replace(p, noise_per_radius=p.noise_per_radius / 4),
    "a quarter of the noise, and of its claim": lambda p: replace(
        p, noise_per_radius=p.noise_per_radius / 4, mu=4.001 * p.mu
    ),
    "overlapping cohorts": lambda p: replace(p, rounds=p.rounds + 1),
}


@pytest.mark.parametrize("how", list(BROKEN))
def test_a_broken_plan_is_refused_before_it_runs(how):
    plan = make_plan(NAME)
    with pytest.raises(VerificationError):
        ALGORITHMS[NAME].make(replace(plan, parameters=BROKEN[how](plan.parameters)))


def test_the_promise_is_one_gaussian_of_any_radius():
    p = make_plan(NAME).parameters
    assert delta_for(p.mu, PRIVACY.epsilon) == pytest.approx(PRIVACY.delta, rel=1e-3)


def test_with_many_items_tracking_predicts_less_risk_than_a_fixed_clip():
    problem = Problem(
        users=300_000,
        items_per_user=500,
        dimension=10,
        domain=L2Ball(4.0),
        lipschitz=1.0,
        smoothness=0.25,
        gradient_deviation=0.46,
        curvature="isotropic",
        typical_curvature=0.021,
        least_curvature=0.016,
    )
    risks = {}
    for name in (NAME, "one-pass-dp-sgd"):
        info = ALGORITHMS[name]
        found = info.plan(problem, Privacy(1.0, 1e-6), info.options(), "calibrated", 1)
        risks[name] = found.predicted_excess_risk
    assert risks[NAME] < 0.8 * risks["one-pass-dp-sgd"]
