"""mean-sgd, recentred-sgd: a round is μ-GDP as claimed, a run costs what the accountant says, plans are re-checked."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2

from contracts.scenes import PRIVACY, PROBLEM, Quadratic
from privacy import first_account
from problems import changed
from quoron_privacy.errors import Infeasible
from quoron_privacy.means import private_range
from quoron_privacy.noise.streams import SeededNoise, total_variation
from quoron_server.algorithms import ALGORITHMS, centring
from quoron_server.algorithms.noisy import schedule_of
from quoron_server.plan import Privacy
from renyi import renyi_ceiling

MEAN, RECENTRED = ALGORITHMS["mean-sgd"], ALGORITHMS["recentred-sgd"]
MANY_ITEMS = replace(PROBLEM, items_per_user=400_000)  # users so alike that a private range pays for itself


def planned(problem=PROBLEM, privacy=PRIVACY, info=RECENTRED, **options):
    return info.plan(problem, privacy, info.options(**options), "calibrated", 7)


def made(plan):
    return ALGORITHMS[plan.algorithm].make(plan)


# A short plan of each way to find centres and to draw cohorts.
SHORT = {
    "ranges": lambda: planned(MANY_ITEMS, info=MEAN, rounds=4, rate=1.0),
    "the last release": lambda: planned(rounds=4, rate=0.25),
}


def slow_ball(row, radius):
    length = math.sqrt(sum(value * value for value in row))
    return row if length <= radius else row * (radius / length)


def slow_run(plan, engine, source):
    """Lines of the algorithm, one after the other, one user at a time."""
    p, d = plan.parameters, plan.problem.dimension
    x, total, centre, radius = np.zeros(d), np.zeros(d), np.zeros(d), p.first_radius
    for t in range(p.rounds):
        cohort = range(plan.problem.users)
        if p.cohort_size < plan.problem.users:
            stream, n = source.stream("cohort", t), plan.problem.users
            coins = p.sampling != "without-replacement"
            cohort = stream.poisson_subset(n, p.cohort_size / n) if coins else stream.subset(n, p.cohort_size)
        rows = 0.2 * (x - engine.centres[list(cohort)])
        if p.crude is not None:
            signs = np.where(SeededNoise(plan.seed).stream("public signs", t).bernoulli(0.5, d), 1.0, -1.0)
            centre = p.crude.release(rows, np.ones(len(rows), bool), signs, source.stream("range", t))
        mean = sum(slow_ball(row - centre, radius) for row in rows) / p.cohort_size
        noise = source.stream("release", t).gaussian_steps(d) * 2.0**-30 * p.noise_scale * radius
        estimate = centre + mean + noise
        before, x = x, plan.problem.domain.project(x - p.step_size * estimate)
        if t >= p.rounds - p.suffix:
            total = total + x
        if p.crude is None:
            error = p.spread**2 + p.spread**2 / p.cohort_size + d * (radius * p.noise_scale) ** 2
            reach = math.sqrt(chi2.ppf(0.98, d) / d)
            radius = min(p.first_radius, reach * math.sqrt(error) + p.smoothness * np.linalg.norm(x - before))
            centre = estimate
    return total / p.suffix


def fast_run(plan, engine, source):
    algorithm = made(plan)
    state, radii = algorithm.init(), []
    while (question := algorithm.request(state, source)) is not None:
        update = algorithm.update(state, engine.ask(question), source)
        state = update.state
        radii.append(update.public["radius"])
    return algorithm.model(state), radii


@pytest.mark.parametrize("short", SHORT.values(), ids=SHORT)
def test_a_run_is_what_the_lines_of_the_algorithm_say(short):
    plan, engine = short(), Quadratic()
    model, _ = fast_run(plan, engine, SeededNoise(3))
    np.testing.assert_allclose(model, slow_run(plan, engine, SeededNoise(3)), atol=1e-6)


class TestAccounting:
    @pytest.mark.parametrize(("info", "rate"), [(MEAN, 1.0), (MEAN, 0.25), (RECENTRED, 1.0)])
    def test_the_whole_run_spends_all_of_epsilon_but_two_per_cent(self, info, rate):
        problem = replace(MANY_ITEMS, users=20_000)
        plan = planned(problem, Privacy(2.0, 1e-5), info, rate=rate, rounds=9)
        p = plan.parameters
        gaussian = p.noise.sensitivity / p.noise_scale
        choices = 4 * private_range.bounded_range_mu(p.crude.epsilon) ** 2 if info is MEAN else 0.0
        delta = 1e-5 - (1 + math.exp(2.0)) * total_variation(gaussians=9 * plan.problem.dimension)
        known = schedule_of("without-replacement", 20_000, p.cohort_size, 9).rate
        spent = first_account.wor_epsilon(known, 9, math.sqrt(choices + gaussian**2), delta)
        assert 0.98 * 2.0 <= spent <= 2.0

    @pytest.mark.parametrize("adjacency", ["replace-one", "zero-out"])
    def test_with_coins_it_is_that_of_users_there_against_absent(self, adjacency):
        wanted = Privacy(2.0, 1e-5, adjacency=adjacency)
        plan = planned(replace(PROBLEM, users=20_000), wanted, rate=0.05, rounds=9)
        p = plan.parameters
        ALGORITHMS[plan.algorithm].verify(plan)
        assert plan.guarantee.adjacency == adjacency
        assert p.noise.sensitivity == pytest.approx(1 / p.cohort_size, rel=1e-6)
        delta = 1e-5 - (1 + math.exp(2.0)) * total_variation(gaussians=9 * plan.problem.dimension)
        spent = first_account.poisson_epsilon(0.05, 9, p.noise.sensitivity / p.noise_scale, delta, adjacency)
        assert 0.998 * 2.0 <= spent <= 2.0

    def test_what_nothing_is_proved_of_is_refused(self):
        absent = Privacy(8.0, 1e-3, adjacency="zero-out")
        with pytest.raises(Infeasible, match="nothing is proved of a private range under zero-out"):
            planned(PROBLEM, absent, MEAN)

    def test_an_independent_ceiling_by_renyi_divergences_is_above(self):
        drawn = ALGORITHMS["dp-sgd-wor"]
        p = planned(replace(PROBLEM, users=20_000), Privacy(2.0, 1e-5), drawn, rate=0.1, rounds=16).parameters
        rate = schedule_of("without-replacement", 20_000, 2000, 16).rate
        assert 2.0 <= renyi_ceiling(rate, 16, p.round_mu**2 / 2, 1e-5) < 12.0

    def test_a_curious_client_knows_that_it_was_not_asked_itself_which_tells_nothing_of_coins(self):
        for sampling, known in (("without-replacement", 1), ("poisson", 0), ("poisson-replaced", 0)):
            assert schedule_of(sampling, 100 + known, 10, 1).rate == 0.1
            assert schedule_of(sampling, 101, 101, 1).rate == 1.0


def variances_step_by_step(problem, smoothness, rounds, step, sampling, unit, spread, first):
    """Predicted variances of the releases of one candidate, round by round."""
    h = problem.beliefs.isotropic or 0.0
    start = problem.lipschitz if problem.start_gradient is None else problem.start_gradient
    radius, far, variances = first, problem.radius, []
    for t in range(rounds):
        variances.append(sampling + problem.dimension * (unit * radius) ** 2)
        gradient = h * far if h else min(start, problem.radius * math.sqrt(smoothness / (step * (t + 1))))
        moved = min(2 * problem.radius, step * (gradient + math.sqrt(variances[-1])))
        reach = centring.margin(problem.dimension) * math.sqrt(spread**2 + variances[-1])
        radius = min(first, reach + smoothness * moved)
        far *= abs(1 - step * h)
    return variances


@given(
    wanted=st.lists(st.tuples(st.integers(1, 30), st.floats(0.0, 1.0), st.floats(1e-3, 1.0)), min_size=1, max_size=3),
    steps=st.lists(st.floats(1e-2, 5.0), min_size=1, max_size=3),
    curvature=st.sampled_from(["isotropic", "unknown"]),
)
@settings(derandomize=True, deadline=None, max_examples=50)
def test_variances_of_many_candidates_are_those_of_each_step_by_step(wanted, steps, curvature):
    problem = changed(PROBLEM, curvature=curvature)
    rounds, samplings, units = (np.array(column) for column in zip(*wanted, strict=True))
    suffixes = np.stack([rounds, np.maximum(1, rounds // 3)], axis=1)
    found, grid = np.zeros((len(wanted), len(steps), 2)), np.tile(steps, (len(wanted), 1))
    bends = float(problem.beliefs.isotropic or 0.0), problem.distance, problem.start, 0.3
    facts = *bends, 0.2, centring.margin(problem.dimension), 0.7
    centring.loops.sgd_variances(facts, rounds, grid, suffixes, samplings, problem.dimension * units**2, found)
    for w, (total, sampling, unit) in enumerate(wanted):
        for k, step in enumerate(steps):
            each = variances_step_by_step(problem, 0.3, total, step, sampling, unit, 0.2, 0.7)
            expected = [np.mean(each[-suffix:]) for suffix in suffixes[w]]
            np.testing.assert_allclose(found[w, k], expected, rtol=1e-12)
