"""Server optimisers against their formulas, and what every one of them keeps: the domain, resumption, the promise."""

import math

import numpy as np
import pytest

from contracts.scenes import PRIVACY, PROBLEM
from quoron_client.protocol.questions import Answers
from quoron_privacy.errors import ConfigError
from quoron_privacy.noise.streams import SeededNoise
from quoron_server.algorithms import ALGORITHMS
from quoron_server.algorithms.optimisers import LONGEST, Optimiser

GRADIENTS = np.random.default_rng(3).normal(size=(7, 4))


def path(optimiser: Optimiser) -> list[np.ndarray]:
    x, moments, points = np.ones(4), optimiser.start(4), []
    for t, gradient in enumerate(GRADIENTS):
        x, moments = optimiser.step(x, gradient, moments, step_size=0.1, t=t, rounds=7)
        points.append(x)
    return points


def test_momentum_is_a_geometric_sum_of_all_gradients():
    x = np.ones(4)
    for t in range(7):
        x = x - 0.1 * sum(0.8 ** (t - s) * GRADIENTS[s] for s in range(t + 1))
    np.testing.assert_allclose(path(Optimiser("momentum", momentum=0.8))[-1], x, rtol=1e-12)


@pytest.mark.parametrize("decay", [0.0, 0.01])
def test_adam_is_the_papers(decay):
    x = np.ones(4)
    for t in range(7):
        m = sum(0.1 * 0.9 ** (t - s) * GRADIENTS[s] for s in range(t + 1)) / (1 - 0.9 ** (t + 1))
        v = sum(0.001 * 0.999 ** (t - s) * GRADIENTS[s] ** 2 for s in range(t + 1)) / (1 - 0.999 ** (t + 1))
        x = x - 0.1 * (m / (np.sqrt(v) + 1e-8) + decay * x)
    np.testing.assert_allclose(path(Optimiser("adam", weight_decay=decay))[-1], x, rtol=1e-9)


def test_normalised_paths_follow_their_formula():
    factor, points = 1.0, [np.ones(4)]
    units = []
    for t in range(7):
        v = sum(0.001 * 0.999 ** (t - s) * GRADIENTS[s] ** 2 for s in range(t + 1)) / (1 - 0.999 ** (t + 1))
        units.append(GRADIENTS[t] / [max(math.sqrt(one) / 2, math.sqrt(np.median(v))) for one in v])
        along = [-units[s] @ points[s] / np.linalg.norm(points[s]) for s in range(t + 1)]
        alignment = sum(0.1 * 0.9 ** (t - s) * along[s] for s in range(t + 1)) / (1 - 0.9 ** (t + 1))
        if t >= 7 / 10:
            factor = np.clip(factor * np.exp(10 / 7 * np.clip(alignment / 1.75 - 1, -1, 1)), 1, LONGEST)
        steps = -0.1 * sum(units)
        points.append(factor * (np.ones(4) + steps))
    np.testing.assert_allclose(path(Optimiser("normalised")), points[1:], rtol=1e-9)


@pytest.mark.parametrize(("signal", "least", "most"), [(0.0, 1.0, 1.5), (0.3, 3.0, LONGEST)])
def test_normalised_paths_get_longer_where_releases_still_lead_on_and_not_by_noise(signal, least, most):
    random, factors = np.random.default_rng(5), []
    for _ in range(20):
        optimiser = Optimiser("normalised", second_momentum=0.99)
        x, moments = np.zeros(300), optimiser.start(300)
        for t in range(60):
            gradient = 1e-4 * (random.normal(size=300) - signal)
            x, moments = optimiser.step(x, gradient, moments, step_size=0.02, t=t, rounds=60)
            factor = math.exp(moments.first[1])
            assert 1 <= factor <= LONGEST * (1 + 1e-12)
        factors.append(factor)
    assert least <= np.mean(factors) <= most


def test_normalised_steps_of_releases_that_are_zero_stay_where_they_are():
    optimiser = Optimiser("normalised")
    x, moments = optimiser.step(np.ones(3), np.zeros(3), optimiser.start(3), step_size=0.1, t=0, rounds=1)
    np.testing.assert_array_equal(x, np.ones(3))
    assert np.isfinite([*moments.first, *moments.second]).all()


@pytest.mark.parametrize("name", ["one-pass-dp-sgd", "dp-sgd-wor", "dp-sgd-poisson"])
def test_steps_that_follow_releases_leave_the_guarantee_and_the_noise_as_they_are(name):
    info = ALGORITHMS[name]
    plans = [
        info.plan(PROBLEM, PRIVACY, info.options(rounds=4, optimiser=kind, step_size=0.1), "calibrated", 1)
        for kind in ("sgd", "normalised")
    ]
    plain, normalised = plans
    assert plain.guarantee == normalised.guarantee
    assert plain.parameters.noise == normalised.parameters.noise
    info.verify(normalised)


@pytest.mark.parametrize("name", ["one-pass-dp-sgd", "dp-sgd-wor", "dp-sgd-poisson"])
def test_a_step_that_no_plan_can_choose_has_to_be_given(name):
    info = ALGORITHMS[name]
    with pytest.raises(ConfigError, match="step_size with optimiser='adam'"):
        info.plan(PROBLEM, PRIVACY, info.options(rounds=4, optimiser="adam"), "calibrated", 1)
    with pytest.raises(ConfigError, match="suffix from 1 to 4"):
        info.plan(PROBLEM, PRIVACY, info.options(rounds=4, suffix=5), "calibrated", 1)


@pytest.mark.parametrize(
    ("schedule", "factors"),
    [
        ("linear", [1, 0.75, 0.5, 0.25]),
        ("cosine", [1, (1 + 0.5**0.5) / 2, 0.5, (1 - 0.5**0.5) / 2]),
        ((0.0, 2.0), [0, 2]),
    ],
)
def test_a_schedule_is_the_factors_of_the_steps(schedule, factors):
    made = Optimiser("adam", schedule=schedule)
    assert [made.rate(t, len(factors)) for t in range(len(factors))] == pytest.approx(factors)
    assert not made.plain


@pytest.mark.parametrize("name", ["one-pass-dp-sgd", "dp-sgd-wor", "dp-ftrl"])
def test_rounds_of_a_schedule_step_by_its_factors(name):
    info, unit = ALGORITHMS[name], {"inverse_step": 4.0} if name == "dp-ftrl" else {"step_size": 0.25}

    def points(**more):
        options = info.options(**{"rounds": 3, "optimiser": "momentum", "momentum": 0.0, "suffix": 1} | unit | more)
        algorithm = info.make(info_plan := ALGORITHMS[name].plan(PROBLEM, PRIVACY, options, "calibrated", 1))
        ALGORITHMS[name].verify(info_plan)
        state, found, noise = algorithm.init(), [], SeededNoise(3)
        while (question := algorithm.request(state, noise)) is not None:
            rows = np.full((len(question.cohort), PROBLEM.dimension), 1e-6)
            reduction = question.reduction
            answers = Answers(rows, np.zeros(len(rows), np.uint8))
            state = algorithm.update(
                state, answers if reduction is None else reduction.of(rows, answers.answered), noise
            )
            state = state.state
            found.append(getattr(state, "iterate", getattr(state, "x", None)))
        return np.diff(np.array([np.zeros(PROBLEM.dimension), *found]), axis=0)

    constant, linear = points(), points(schedule="linear")
    factors = np.array([1, 2 / 3, 1 / 3])[:, None]
    np.testing.assert_allclose(linear, factors * constant, rtol=1e-9)
    np.testing.assert_allclose(points(schedule=(1.0, 2 / 3, 1 / 3)), linear, rtol=1e-12)


@pytest.mark.parametrize(
    ("schedule", "words"),
    [((1.0,), "4 factors, one a round, got 1"), ((-1.0,) * 4, "factors >= 0"), ((0.0,) * 4, "not all zero")],
)
def test_factors_that_do_not_fit_are_refused(schedule, words):
    info = ALGORITHMS["dp-sgd-wor"]
    options = info.options(rounds=4, step_size=0.1, schedule=schedule)
    with pytest.raises(ConfigError, match=words):
        info.plan(PROBLEM, PRIVACY, options, "calibrated", 1)
