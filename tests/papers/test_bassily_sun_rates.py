"""Rates of Bassily & Sun (2023) on linear losses, where nothing curved doubles an exponent: plans reach them.

The loss is -⟨z, x⟩ on the ball of radius 1, a user's mean item θ + N(0, I/(dm)). For every n and m the signal ‖θ‖ is
the worst of several around the error of one gradient. Seeds are fixed. With others the mean of an excess, about a sum
of d = 20 squares, over 10 seeds would vary by a tenth of itself, and a slope over a factor of 30 by .042. For two
numbers of items users are the same but for their scale, and 93 % of the variance is theirs: that slope would vary by
less than .01. Each bound below is more than five deviations from what was measured: a false alarm of less than 1e-6.
"""

import math
from functools import cache

import numpy as np
import pytest

from problems import problem_of
from quoron_client.protocol.domains import L2Ball
from quoron_client.protocol.questions import Answers
from quoron_client.randomisers import SeededRandomness, VectorNoise
from quoron_privacy.accounts import gdp
from quoron_privacy.errors import Infeasible
from quoron_privacy.noise.streams import SeededNoise
from quoron_server.algorithms import ALGORITHMS
from quoron_server.algorithms.centring import margin
from quoron_server.plan import Privacy

pytestmark = pytest.mark.slow

DELTA, WORST = 1e-6, 0.3003  # WORST: max over a of a (1 - a/√(1 + a²)), at a = 0.79
SIGNALS = 0.4, 0.8, 1.6, 3.2  # of ‖θ‖, in units of the error of one gradient


def problem(users, items, dimension):
    return problem_of(
        users=users,
        items_per_user=items,
        dimension=dimension,
        domain=L2Ball(1.0),
        lipschitz=1.0,
        smoothness=0.0,
        gradient_deviation=1.0,
        feature_norm=1.0,
        link_curvature=0.0,
    )


@cache
def planned(name, users, items, dimension, epsilon):
    return ALGORITHMS[name].plan(problem(users, items, dimension), Privacy(epsilon, DELTA), None, "calibrated", 7)


def answers(rows, question, seed):
    task, own = question.task, rows[question.cohort]
    if name_of := getattr(task, "spends", (0.0, 0.0))[0]:  # of the local model: a report with noise of its own
        noise = VectorNoise(name_of, task.delta, task.radius)
        own = noise.randomise(own, task.centre, SeededRandomness(seed), round=question.round, users=question.cohort)
    return Answers(own, np.zeros(len(own), np.uint8))


def excess(plan, signal, seed):
    """F(x) - min F of one run: ‖θ‖ - ⟨θ, x⟩."""
    n, m, d = plan.problem.users, plan.problem.items_per_user, plan.problem.dimension
    rows = np.random.default_rng(seed).standard_normal((n, d)) / -math.sqrt(m * d)
    rows[:, 0] -= signal
    algorithm, noise = ALGORITHMS[plan.algorithm].maker(plan), SeededNoise(seed)
    state = algorithm.init()
    while (question := algorithm.request(state, noise)) is not None:
        state = algorithm.update(state, answers(rows, question, seed), noise).state
    return signal * (1 - algorithm.model(state)[0])


@cache
def worst(name, users, items, dimension, epsilon, error, seeds):
    """The worst mean excess of several signals around an error of the gradient."""
    plan = planned(name, users, items, dimension, epsilon)
    return max(np.mean([excess(plan, signal * error, seed) for seed in range(seeds)]) for signal in SIGNALS)


def central_error(users, items, dimension, epsilon, radius):
    """√(s²/n + d (2C/(nμ))²): of one release of all users around the right centre, which no plan undercuts."""
    noise = 2 * radius / (users * gdp.mu_for(epsilon, DELTA))
    return math.sqrt(1 / (users * items) + dimension * noise**2)


def claimed(users, items, dimension, epsilon):
    """Theorem 3.1: RL/√(nm) + RL √(d ln(1/δ))/(√m nε)."""
    return 1 / math.sqrt(users * items) + math.sqrt(dimension * math.log(1 / DELTA) / items) / (users * epsilon)


def slope(risks, sizes):
    (low, high), (few, many) = risks, sizes
    return math.log(high / low) / math.log(many / few)


D, EPSILON, USERS, ITEMS = 20, 4.0, (1_000, 30_000), (4, 256)  # users at 16 items of each, items of 3,000 users
CENTRAL = pytest.mark.parametrize("name", ["recentred-sgd", "mean-sgd"])


def risk(name, users, items):
    """(measured, the least that one release of all users leaves)."""
    plan = planned(name, users, items, D, EPSILON).parameters
    radius = plan.first_radius if name == "mean-sgd" else min(1.0, margin(D) / math.sqrt(items))
    error = central_error(users, items, D, EPSILON, radius)
    return worst(name, users, items, D, EPSILON, error, 10), WORST * error


@CENTRAL
def test_the_risk_falls_with_users_and_items_as_claimed(name):
    with_users = slope([risk(name, n, 16)[0] for n in USERS], USERS)
    with_items = slope([risk(name, 3_000, m)[0] for m in ITEMS], ITEMS)
    assert with_users <= slope([claimed(n, 16, D, EPSILON) for n in USERS], USERS) + 0.1
    assert with_items <= -0.5 + 0.1


def local_risk(users, items):
    """(measured, the least that one report of every user around the right centre leaves), 10 columns."""
    radius = min(1.0, margin(10) / math.sqrt(items))
    scale = 2 * radius / gdp.mu_for(EPSILON, DELTA)
    error = math.sqrt((1 / items + 10 * scale**2) / users)
    return worst("local-model", users, items, 10, EPSILON, error, 10), WORST * error


def test_the_risk_of_the_local_model_falls_with_users_as_claimed_and_its_forecast_with_items():
    """Theorem 3.2: RL √(d/(nmε²)). Of 10 columns a mean would vary by .14 of itself, and the slope in n by .06."""

    def forecast(users, items):
        return planned("local-model", users, items, 10, EPSILON).guessed_excess_risk

    assert slope([local_risk(n, 16)[0] for n in USERS], USERS) <= -0.5 + 0.1
    assert slope([forecast(n, 16) for n in USERS], USERS) <= -0.5 + 0.1
    assert slope([forecast(10_000, m) for m in ITEMS], ITEMS) <= -0.5 + 0.1
    for n, m in [*((n, 16) for n in USERS), *((10_000, m) for m in ITEMS)]:
        measured, least = local_risk(n, m)
        assert measured <= 4.5 * least
        assert measured <= forecast(n, m)


@CENTRAL
def test_the_risk_is_near_that_of_one_release_around_the_right_centre_and_no_higher_than_forecast(name):
    for n, m in [*((n, 16) for n in USERS), *((3_000, m) for m in ITEMS)]:
        measured, least = risk(name, n, m)
        assert measured <= 4 * least
        assert measured <= 1.2 * planned(name, n, m, D, EPSILON).guessed_excess_risk


MORE = {  # (users, items, columns, ε), each better than the one before
    "users": [(n, 16, 10, 1.0) for n in (100, 1_000, 10_000, 10**5, 10**6, 10**7)],
    "items": [(10_000, m, 10, 1.0) for m in (1, 16, 256, 10**4, 10**6)],
    "epsilon": [(10_000, 16, 10, epsilon) for epsilon in (0.01, 0.1, 1.0, 4.0, 15.0)],
    "fewer columns": [(10_000, 16, d, 1.0) for d in (1_000, 100, 10, 1)],
}


@pytest.mark.parametrize("more", list(MORE))
@pytest.mark.parametrize("name", ["recentred-sgd", "mean-sgd", "local-model"])
def test_more_of_anything_never_makes_a_forecast_worse(name, more):
    """Far outside of what the plans were tuned on. 5 %: that much may a plan leave for fewer answers."""
    last = math.inf
    for size in MORE[more]:
        try:
            found = planned(name, *size).guessed_excess_risk
        except Infeasible:
            assert last == math.inf, f"{size} is infeasible, and less was not"
            continue
        assert found <= 1.05 * last
        last = found
