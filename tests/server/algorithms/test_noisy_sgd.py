"""Clipped noisy SGD: its plans are re-checked, its rounds have the claimed sensitivity."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.scenes import PRIVACY, PROBLEM, Quadratic, make_plan
from problems import changed
from quoron_privacy.accounts.gdp import delta_for, mu_for
from quoron_privacy.errors import Infeasible, VerificationError
from quoron_privacy.noise.sources import SeededNoise
from quoron_server.algorithms import ALGORITHMS
from quoron_server.algorithms.noisy.method import NoisySGD
from quoron_server.plan import Privacy

PRIVATE = ["one-pass-dp-sgd", "dp-sgd-poisson", "dp-sgd-wor"]

BROKEN = {
    "a quarter of the noise": lambda p: replace(p, noise_scale=p.noise_scale / 4),
    "a quarter of the noise, and of its claim": lambda p: replace(
        p, noise_scale=p.noise_scale / 4, round_mu=4.001 * p.round_mu
    ),
    "half the sensitivity": lambda p: replace(p, sensitivity=p.sensitivity / 2),
    "twice the clip": lambda p: replace(p, clip_norm=2 * p.clip_norm),
    "another sampling": lambda p: replace(p, sampling="poisson" if p.sampling == "disjoint" else "disjoint"),
}


@pytest.mark.parametrize("name", PRIVATE)
@pytest.mark.parametrize("how", list(BROKEN))
def test_a_broken_plan_is_refused_before_it_runs(name, how):
    plan = make_plan(name)
    with pytest.raises(VerificationError):
        ALGORITHMS[name].make(replace(plan, parameters=BROKEN[how](plan.parameters)))


@pytest.mark.parametrize("name", ["dp-sgd-poisson", "dp-sgd-wor"])
def test_more_rounds_than_accounted_for_are_refused(name):
    plan = make_plan(name)
    with pytest.raises(VerificationError):
        ALGORITHMS[name].make(replace(plan, parameters=replace(plan.parameters, rounds=4 * plan.parameters.rounds)))


def test_overlapping_cohorts_are_refused():
    plan = make_plan("one-pass-dp-sgd")
    with pytest.raises(VerificationError, match="disjoint"):
        ALGORITHMS["one-pass-dp-sgd"].make(replace(plan, parameters=replace(plan.parameters, rounds=7)))


@given(user=st.integers(0, 399), row=st.lists(st.floats(-1e9, 1e9), min_size=3, max_size=3))
@settings(derandomize=True, deadline=None, max_examples=50)
def test_whatever_one_user_sends_moves_the_unnoised_mean_by_at_most_the_sensitivity(user, row):
    plan = make_plan("one-pass-dp-sgd")
    silent = NoisySGD(replace(plan, parameters=replace(plan.parameters, noise_scale=0.0, step_size=1.0)))
    question = silent.request(silent.init(), SeededNoise(1))
    answers = Quadratic().ask(question)
    spoiled = answers.values.copy()
    spoiled[user] = row
    moved = [
        silent.update(silent.init(), replace(answers, values=values), SeededNoise(1)).state.iterate
        for values in (answers.values, spoiled)
    ]
    assert np.linalg.norm(moved[0] - moved[1]) <= plan.parameters.sensitivity


def test_one_pass_spends_exactly_one_gaussian():
    p = make_plan("one-pass-dp-sgd").parameters
    assert delta_for(p.round_mu, PRIVACY.epsilon) == pytest.approx(PRIVACY.delta, rel=1e-3)
    assert p.sensitivity / p.noise_scale == pytest.approx(mu_for(PRIVACY.epsilon, PRIVACY.delta), rel=1e-3)


def test_the_whole_population_every_round_is_exact_composition():
    info = ALGORITHMS["dp-sgd-wor"]
    plan = info.plan(PROBLEM, PRIVACY, info.options(rounds=9, rate=1.0), "calibrated", 1)
    mu = plan.parameters.sensitivity / plan.parameters.noise_scale
    assert 3 * mu == pytest.approx(mu_for(PRIVACY.epsilon, PRIVACY.delta), rel=1e-3)


@pytest.mark.parametrize("name", [*PRIVATE, "phased-sgd"])
def test_less_epsilon_never_predicts_less_risk(name):
    info = ALGORITHMS[name]
    risks = [
        info.plan(PROBLEM, Privacy(epsilon, 1e-6), info.options(), "calibrated", 1).predicted_excess_risk
        for epsilon in (8.0, 2.0, 0.5)
    ]
    assert risks == sorted(risks)


def test_too_few_users_are_infeasible_and_the_error_says_how_many_would_do():
    info = ALGORITHMS["one-pass-dp-sgd"]
    with pytest.raises(Infeasible, match="n >= 20"):
        info.plan(replace(PROBLEM, users=15), PRIVACY, info.options(rounds=10), "calibrated", 1)


@pytest.mark.parametrize("name", ["filtered-sgd", "soft-filtered-sgd", "phased-sgd"])
def test_losses_that_are_not_smooth_are_infeasible_where_contraction_is_needed(name):
    info = ALGORITHMS[name]
    with pytest.raises(Infeasible, match="convex and smooth"):
        info.plan(replace(PROBLEM, smoothness=None), PRIVACY, info.options(), "calibrated", 1)


@pytest.mark.parametrize("name", PRIVATE)
def test_clipped_algorithms_take_rough_losses(name):
    info = ALGORITHMS[name]
    rough = changed(PROBLEM, smoothness=None, curvature="unknown", typical_curvature=None)
    plan = info.plan(rough, PRIVACY, info.options(), "calibrated", 1)
    info.verify(plan)
