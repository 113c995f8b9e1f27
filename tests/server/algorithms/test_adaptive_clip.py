"""An adaptive clip: its shares cost nothing beside the mean, it finds the users wherever they are; its limits."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.scenes import PRIVACY, PROBLEM, make_plan
from quoron_client.protocol.questions import Answers
from quoron_privacy.errors import Infeasible, VerificationError
from quoron_privacy.means.free_counts import MeanAndCounts, Presence, weighted_row, weights_of
from quoron_privacy.noise.streams import SeededNoise
from quoron_server.algorithms import ALGORITHMS
from quoron_server.algorithms.noisy import REACH, AdaptiveClip
from quoron_server.plan import Privacy, RunPlan

NAMES = ["one-pass-dp-sgd/adaptive", "dp-sgd-wor/adaptive", "dp-sgd-poisson/adaptive"]
FIXED = [name.split("/")[0] for name in NAMES]


def planned(**options) -> RunPlan:
    info = ALGORITHMS["dp-sgd-wor"]
    wide = replace(PROBLEM, users=40_000, dimension=20)
    options = {"rounds": 60, "rate": 0.05, "clip": "adaptive", "step_size": 1e-3} | options
    return info.plan(wide, PRIVACY, info.options(**options), "calibrated", 1)


@pytest.mark.parametrize(("name", "fixed"), list(zip(NAMES, FIXED, strict=True)))
def test_shares_cost_nothing_beside_the_mean(name, fixed):
    p = make_plan(name).parameters
    whole = p.shares(PROBLEM.dimension)
    assert p.round_mu * (1 - 1e-6) <= whole.effective_mu <= p.round_mu * (1 + 1e-12)
    unit = p.noise_scale / p.sensitivity  # noise per unit of sensitivity is that of a fixed clip, but for the grid
    q = make_plan(fixed).parameters
    if (q.rounds, q.cohort_size) == (p.rounds, p.cohort_size):
        assert unit == pytest.approx(q.noise_scale / q.sensitivity, rel=1e-6)


@given(
    row=st.lists(st.floats(allow_nan=True, allow_infinity=True), min_size=3, max_size=3),
    radius=st.floats(1e-6, 1e6),
    name=st.sampled_from(NAMES),
)
@settings(derandomize=True, deadline=None, max_examples=60)
def test_whatever_one_user_sends_and_whatever_the_clip_mean_and_shares_move_within_one_sensitivity(row, radius, name):
    p = make_plan(name).parameters
    zero_out = p.adaptive.adjacency == "zero-out"
    honest = np.random.default_rng(1).normal(size=(p.cohort_size, 3))
    spoiled, there = honest.copy(), np.ones(p.cohort_size, bool)
    spoiled[7] = row
    absent = np.arange(p.cohort_size) != 7
    weights = weights_of(p.adaptive.adjacency, soft=True)
    sums = [
        p.reduction(radius).of(rows, answered)
        for rows, answered in ((spoiled, there), (honest, absent if zero_out else there))
    ]
    one, two = (weighted_row(each, p.cohort_size, weights, soft=True) for each in sums)
    assert np.linalg.norm(one - two) <= p.sensitivity


def test_secret_samples_and_epochs_take_a_round_with_shares_as_one_without():
    """The pair of a round is the same Gaussian one: neither the first nor the second account knows of shares."""
    for name, fixed in (("dp-sgd-wor/adaptive", "dp-sgd-wor"), ("dp-sgd-poisson/adaptive", "dp-sgd-poisson")):
        adaptive, plain = make_plan(name).parameters, make_plan(fixed).parameters
        assert adaptive.round_mu == pytest.approx(plain.round_mu, rel=1e-6)


@pytest.mark.parametrize("scale", [1e-4, 1e4])
@pytest.mark.parametrize("quantile", [0.5, 0.8])
def test_the_clip_comes_to_the_users_wherever_they_are(scale, quantile):
    """Rows of norm around `scale`, whose quantile is known; 1 is a ten-thousandfold wrong."""
    plan = planned(quantile=quantile, clip_norm=1.0)
    algorithm, noise, draw = ALGORITHMS["dp-sgd-wor"].make(plan), SeededNoise(2), np.random.default_rng(4)
    lengths = np.exp(0.3 * draw.normal(size=plan.problem.users))
    directions = draw.normal(size=(plan.problem.users, plan.problem.dimension))
    directions *= (scale * lengths / np.linalg.norm(directions, axis=1))[:, None]
    state = algorithm.init()
    while (question := algorithm.request(state, noise)) is not None:
        rows = directions[question.cohort]
        state = algorithm.update(state, Answers.checked(rows, np.zeros(len(rows), np.uint8), largest=1e30), noise).state
    assert state.radius == pytest.approx(1.1 * scale * np.quantile(lengths, quantile), rel=0.2)


@pytest.mark.parametrize("missing", [0.3, 0.7])
def test_users_who_never_answer_do_not_move_the_clip(missing):
    """Under replace-one rows tell who answers: shares are of those. Of all no share would reach one half."""
    plan = planned(clip_norm=1.0)
    algorithm, noise, draw = ALGORITHMS["dp-sgd-wor"].make(plan), SeededNoise(2), np.random.default_rng(4)
    state, radii = algorithm.init(), []
    while (question := algorithm.request(state, noise)) is not None:
        rows = draw.normal(size=(len(question.cohort), plan.problem.dimension))
        absent = draw.random(len(rows)) < missing
        answers = Answers.checked(rows, np.where(absent, 1, 0).astype(np.uint8), largest=1e30)
        state = algorithm.update(state, answers, noise).state
        radii.append(state.radius)
    assert state.presence.share == pytest.approx(1 - missing, abs=0.02)
    assert np.mean(radii[-20:]) == pytest.approx(1.1 * plan.problem.dimension**0.5, rel=0.15)


@given(
    told=st.tuples(*[st.floats(allow_nan=True, allow_infinity=True)] * 3),
    adjacency=st.sampled_from(["replace-one", "zero-out"]),
    quantile=st.floats(0.4, 0.95),
    scale=st.floats(1e-6, 0.2),
)
@settings(derandomize=True, deadline=None, max_examples=100)
def test_the_clip_stays_within_public_bounds_whatever_was_told(told, adjacency, quantile, scale):
    clip, first, presence = AdaptiveClip(quantile, adjacency), 0.3, Presence()
    radius = first
    for _ in range(50):
        radius, presence = clip.following(radius, MeanAndCounts(np.zeros(1), *told, 0), scale, presence, first)
        assert first / REACH <= radius <= first * REACH


def test_few_users_are_told_that_the_counts_would_say_nothing():
    info = ALGORITHMS["one-pass-dp-sgd"]
    options = info.options(rounds=20, clip="adaptive")
    few, privacy = replace(PROBLEM, users=120), Privacy(1.0, 1e-6)
    with pytest.raises(Infeasible, match="within a clip norm gets noise") as error:
        info.plan(few, privacy, options, "calibrated", 1)
    enough = int(str(error.value).split("n >= ")[1].split(",  ")[0].split(" ")[0].rstrip(",.").replace(",", ""))
    info.plan(replace(few, users=enough + 20), privacy, options, "calibrated", 1)


def test_coins_under_replace_one_take_rows_within_one_of_nobody():
    """Their account asks how far a row is from no row, and rows of replace-one are two."""
    info = ALGORITHMS["dp-sgd-poisson"]
    options = info.options(rounds=5, rate=0.1, clip="adaptive", step_size=0.1)
    plan = info.plan(PROBLEM, replace(PRIVACY, adjacency="replace-one"), options, "calibrated", 1)
    assert plan.guarantee.adjacency == "replace-one"
    assert plan.parameters.adaptive.adjacency == "zero-out"
    info.make(plan)
    two = replace(plan.parameters, adaptive=replace(plan.parameters.adaptive, adjacency="replace-one"))
    with pytest.raises(VerificationError):
        info.make(replace(plan, parameters=two))
