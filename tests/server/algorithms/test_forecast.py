import re
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.scenes import make_plan
from problems import changed, problem_of
from quoron_client.protocol.domains import Box, L2Ball
from quoron_server.algorithms import ALGORITHMS, AlgorithmSpec
from quoron_server.algorithms.averaged_sgd import PhaseModel, averaging, excess_risks, released_excess

PROBLEM = problem_of(
    users=1000,
    items_per_user=5,
    dimension=4,
    domain=L2Ball(1.5),
    lipschitz=1.0,
    smoothness=0.5,
    curvature="isotropic",
    typical_curvature=0.2,
)


def averaging_by_definition(factor, rounds, suffix):
    """Follow the bias and each step's unit noise through the recursion, one by one."""
    weights = np.zeros(rounds)
    weights[rounds - suffix :] = 1 / suffix
    bias = sum(w * factor ** (t + 1) for t, w in enumerate(weights))
    variance = 0.0
    for s in range(rounds):
        variance += sum(weights[t] * factor ** (t - s) for t in range(s, rounds)) ** 2
    return bias, variance


@given(
    factor=st.one_of(
        st.floats(-1.5, 1.0), st.sampled_from([-1.0, 0.0, 1.0]), st.floats(1e-9, 1e-3).map(lambda x: 1 - x)
    ),
    rounds=st.integers(1, 40),
    data=st.data(),
)
@settings(derandomize=True, deadline=None, max_examples=200)
def test_averaging_factors_follow_the_recursion(factor, rounds, data):
    suffix = data.draw(st.integers(1, rounds))
    close = 2e-5 if abs(1 - factor) < 1e-3 else 1e-9
    assert averaging(factor, rounds, suffix) == pytest.approx(
        averaging_by_definition(factor, rounds, suffix), rel=close, abs=1e-12
    )


@pytest.mark.parametrize("suffix", [1, 2, 3, 97, 50_000])
@pytest.mark.parametrize("gap", [0.0, 1e-12, 1e-10, 1e-8, 1e-6, 1e-4, 1e-2])
def test_a_mean_of_few_of_many_iterates_is_averaged_without_cancellation(gap, suffix):
    """Exact sums of rational numbers would take hours: those of whole arrays in extended precision."""
    factor, rounds = 1 - gap, 100_000
    powers = np.longdouble(factor) ** np.arange(rounds + 1)
    reach = np.cumsum(powers)[np.minimum(np.arange(rounds), suffix - 1)]  # of the last step, the one before, ...
    late = np.concatenate([np.ones(suffix), powers[1 : rounds - suffix + 1]])  # how much of it is left in the suffix
    bias, variance = powers[rounds - suffix + 1] * reach[-1] / suffix, ((late * reach / suffix) ** 2).sum()
    assert averaging(factor, rounds, suffix) == pytest.approx((float(bias), float(variance)), rel=2e-5)


@given(
    first=st.lists(st.tuples(st.integers(1, 30), st.floats(0.01, 2.0), st.floats(0.0, 1.0)), min_size=1, max_size=4),
    second=st.lists(st.tuples(st.integers(1, 30), st.floats(0.01, 2.0), st.floats(0.0, 1.0)), min_size=1, max_size=4),
    curvature=st.sampled_from(["isotropic", "unknown"]),
    least=st.sampled_from([None, 0.1]),
)
@settings(derandomize=True, deadline=None, max_examples=60)
def test_risks_of_many_schedules_are_those_of_each(first, second, curvature, least):
    """Every first phase with every second one."""
    problem = changed(PROBLEM, curvature=curvature, least_curvature=least)
    rows = [PhaseModel(rounds, step, max(1, rounds // 2), noise, noise / 10) for rounds, step, noise in first]
    columns = [PhaseModel(rounds, step, 1, noise, noise / 10) for rounds, step, noise in second]

    def stacked(phases, axis):
        values = [np.array([getattr(phase, name) for phase in phases], float) for name in PhaseModel.__slots__]
        return PhaseModel(*(np.expand_dims(each, axis) for each in values))

    found = excess_risks(problem, [stacked(rows, 1), stacked(columns, 0)])
    expected = [[excess_risks(problem, [one, two]) for two in columns] for one in rows]
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_isotropic_prediction_is_the_measured_risk_of_a_quadratic():
    """Mean of 20,000 simulated runs; the standard error is far below the tolerance (false alarm < 1e-6)."""
    phases = [PhaseModel(6, 1.5, 3, 0.3, 0.05), PhaseModel(4, 0.5, 4, 0.3, 0.02)]
    h, d, runs = 0.2, PROBLEM.dimension, 20_000
    rng = np.random.default_rng(0)
    x = np.zeros((runs, d))
    x[:, 0] = PROBLEM.radius  # distance from the optimum at 0
    for phase in phases:
        total = np.zeros_like(x)
        for t in range(phase.rounds):
            noise = rng.standard_normal(x.shape) * np.sqrt(phase.step_variance / d)
            x = x - phase.step_size * (h * x + noise)
            total += x / phase.suffix if phase.rounds - t <= phase.suffix else 0.0
        x = total + phase.release_scale * rng.standard_normal(x.shape)
    measured = h / 2 * np.mean(np.sum(x * x, axis=1))
    assert excess_risks(PROBLEM, phases) == pytest.approx(measured, rel=0.05)


@pytest.mark.parametrize("dimension", [1, 2, 5, 40])
@pytest.mark.parametrize("domain", [L2Ball(1.0), Box(0.5)])
def test_projected_noise_adds_to_a_linear_loss_what_is_predicted_at_most(dimension, domain):
    """From corners, sides and inside, noise from a hundredth of the radius to a hundred times it; 5 standard errors."""
    problem = replace(PROBLEM, dimension=dimension, domain=domain, lipschitz=1.0, start_gradient=1.0, smoothness=0.0)
    draws = np.random.default_rng(11).standard_normal((20_000, dimension))
    gradient = np.full(dimension, -1 / np.sqrt(dimension))
    for start in (np.zeros(dimension), -gradient, np.eye(dimension)[0], np.full(dimension, 10.0), -9 * gradient):
        point = domain.project(start)
        for scale in (0.01, 0.1, 0.3, 1.0, 3.0, 100.0):
            added = (domain.project(point + scale * draws) - point) @ gradient
            assert added.mean() <= released_excess(problem, scale) + 5 * added.std() / np.sqrt(len(added))


def test_noise_counts_where_a_ridge_is_too_small_to_hold_a_linear_loss_inside():
    """From no ridge to one that holds it predictions change by steps as small as the ridge's."""
    linear = replace(PROBLEM, lipschitz=1.0, start_gradient=1.0, link_curvature=0.0, domain=L2Ball(2.0))
    ridges = (0.0, 1e-9, 1e-3, 0.1, 0.5, 1.0)
    added = [float(released_excess(replace(linear, smoothness=ridge), 0.1)) for ridge in ridges]
    assert added[0] == pytest.approx(added[1], rel=1e-6)
    assert added[1] > 0.03
    assert added[4] == pytest.approx(0.5 * linear.dimension * 0.01 / 2)  # β R = 1 = the start's gradient


class TestBounds:
    def test_every_algorithm_is_registered_with_a_factor_and_none_can_be_without(self):
        for info in ALGORITHMS.values():
            factors = (info.factor.known, info.factor.unknown)
            assert all(each is None or 0 < each < 1000 for each in factors)
        facts = {each.name: getattr(ALGORITHMS["sgd"], each.name) for each in fields(AlgorithmSpec)}
        del facts["factor"]
        with pytest.raises(TypeError, match="factor"):
            AlgorithmSpec(**facts)

    @pytest.mark.parametrize("name", ALGORITHMS)
    def test_a_plan_predicts_a_bound_exactly_where_one_was_measured(self, name):
        plan, info = make_plan(name), ALGORITHMS[name]
        times = info.factor.of(plan.problem)
        if times is None:
            assert plan.predicted_excess_risk is None
        elif plan.guessed_excess_risk is not None:
            assert plan.predicted_excess_risk == plan.guessed_excess_risk * times

    def test_what_no_table_and_no_made_problem_measured_has_no_factor(self):
        nothing = (
            *("filtered-sgd", "median-sgd", "sgd"),
            "mean-sgd",  # with ranges; with the last release as a centre it was measured
        )
        known = {name for name, info in ALGORITHMS.items() if info.factor.known is None}
        unknown = {name for name, info in ALGORITHMS.items() if info.factor.unknown is None}
        assert known == {*nothing, "local-model"}
        assert unknown == {*nothing, "dp-sgd-poisson"}

    def test_the_page_tells_the_registered_factors(self):
        page = (Path(__file__).parents[3] / "docs" / "results.md").read_text(encoding="utf-8")
        told = {name: rest for name, *rest in re.findall(r"^\| `([a-z-]+)` \| ([\d.]*) \| ([\d.]*) \|$", page, re.M)}
        registered = {name: (info.factor.unknown, info.factor.known) for name, info in ALGORITHMS.items()}
        measured = {name: factors for name, factors in registered.items() if any(factors)}
        assert {name: [f"{each:g}" if each else "" for each in factors] for name, factors in measured.items()} == told
