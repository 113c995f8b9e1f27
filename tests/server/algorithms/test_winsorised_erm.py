"""Winsorised ERM: the box, the loop against a slow one, what plans cost, refuse, and are checked for."""

import math

import numpy as np
import pytest

from contracts.scenes import PROBLEM, Quadratic, make_plan
from one_epoch_reference import drive
from problems import problem_of
from quoron_client.protocol.domains import L2Ball
from quoron_privacy.accounts.gdp import mu_for
from quoron_privacy.errors import Infeasible
from quoron_privacy.means.private_range import crude_mean_users, range_epsilon
from quoron_privacy.noise.streams import SeededNoise
from quoron_server.algorithms import ALGORITHMS
from quoron_server.algorithms.centring import public_signs
from quoron_server.algorithms.winsorised import WinsorisedERM
from quoron_server.plan import Privacy

INFO = ALGORITHMS["winsorised-erm"]
STRICT = Privacy(1.0, 1e-6)
REF = problem_of(
    users=100_000,
    items_per_user=50,
    dimension=10,
    domain=L2Ball(1.0),
    lipschitz=1.0,
    smoothness=1.0,
    gradient_deviation=1.0,
    curvature="isotropic",
    typical_curvature=0.5,
)


def test_the_box_is_the_notes_check_value():
    plan = INFO.plan(REF, STRICT, INFO.options(rounds=64), "calibrated", 1)
    INFO.verify(plan)
    mean = plan.parameters.mean
    assert mean.crude.bins == 38
    assert mean.half_width == pytest.approx(0.11490, rel=1e-4)
    assert mean.crude.epsilon == pytest.approx(7.268e-4, rel=1e-3)
    assert mean.noise.scale == pytest.approx(3.113e-4, rel=1e-3)


@pytest.mark.parametrize(("dimension", "least"), [(10, 8_957), (100, 28_155)])
def test_the_least_number_of_users_for_ranges_is_the_notes(dimension, least):
    mu = mu_for(1.0, 1e-6) / 8
    assert crude_mean_users(dimension=dimension, bins=64, mu=mu, failure=1e-3 / 64) == least


def test_rounds_are_capped_by_the_price_of_ranges_at_every_number_of_users():
    """The row's K = n²/d is out of reach: at n = 1e5, d = 10 half of the budget pays for ranges of 7,976 rounds."""

    def share(users, rounds):
        epsilon = range_epsilon(users=users, bins=64, choices=16 * 64, failure=1e-3 / 2)
        return 16 * rounds * (epsilon / 2) ** 2 * (math.sqrt(math.pi / 2) / 1) ** 2 / mu_for(1.0, 1e-6) ** 2

    assert share(100_000, 7_976) == pytest.approx(0.5, rel=0.01)
    assert share(10**6, 8.0e5) == pytest.approx(0.5, rel=0.02)
    with pytest.raises(Infeasible, match="too few for a private range"):
        INFO.plan(REF, STRICT, INFO.options(rounds=20_000), "calibrated", 1)


def test_a_run_is_the_algorithm_box_line_by_line():
    plan, engine, source = make_plan("winsorised-erm"), Quadratic(), SeededNoise(4)
    algorithm = WinsorisedERM(plan)
    states = drive(algorithm, engine, source)
    order = np.random.Generator(np.random.Philox(key=plan.seed)).permutation(PROBLEM.users)
    hadamard = np.array([[1, 1, 1, 1], [1, -1, 1, -1], [1, 1, -1, -1], [1, -1, -1, 1]]) / 2
    x, p, total = np.zeros(3), plan.parameters, np.zeros(3)
    mean = p.mean
    for t in range(p.rounds):
        signs = public_signs(plan.seed, t, 3)
        rows = 0.2 * (x - engine.centres[order]) * signs
        rotated = np.hstack([rows, np.zeros((len(rows), 1))]) @ hadamard
        a = []
        stream = source.stream("range", t)
        for column in rotated.T:
            edges = np.linspace(-mean.crude.half_width, mean.crude.half_width, mean.crude.bins + 1)
            counts = np.histogram(np.clip(column, edges[0], edges[-1]), edges)[0]
            a.append((edges[:-1] + edges[1:])[mean.crude.choose(counts, stream)] / 2)
        z = a + np.clip(rotated - a, -mean.half_width, mean.half_width).mean(axis=0)
        z += source.stream("release", t).gaussian_steps(4) * mean.noise.step
        g = (hadamard @ z)[:3] * signs
        x = plan.problem.domain.project(x - p.step_size * g)
        if p.rounds - t <= p.suffix:
            total = total + x / p.suffix
        np.testing.assert_allclose(states[t + 1].iterate, x, atol=1e-7)
    np.testing.assert_allclose(algorithm.model(states[-1]), total, atol=1e-7)


def test_noise_of_a_step_grows_with_the_root_of_the_dimension_alone():
    """Linear losses whose optimum is on the boundary, at n = 2,000, m = 4,096, ε = 8."""
    found = []
    for dimension in (8, 32, 128):
        problem = problem_of(
            users=2000, items_per_user=4096, dimension=dimension, domain=L2Ball(1.0), lipschitz=1.0, smoothness=1e-6
        )
        plan = INFO.plan(problem, Privacy(8.0, 1e-6), INFO.options(), "calibrated", 1)
        found.append(math.sqrt(dimension) * plan.parameters.mean.noise.scale / math.sqrt(plan.parameters.rounds))
    assert 0.4 < float(np.polyfit(np.log([8, 32, 128]), np.log(found), 1)[0]) < 0.65


def test_a_given_half_width_is_the_box():
    plan = INFO.plan(REF, STRICT, INFO.options(rounds=64, radius=0.25), "calibrated", 1)
    INFO.verify(plan)
    assert plan.parameters.mean.half_width == 0.25
