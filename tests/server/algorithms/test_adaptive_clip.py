"""An adaptive clip: its cost is in the round's μ, it finds the users wherever they are, its limits are told."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.scenes import PRIVACY, PROBLEM, make_plan
from quoron_client.protocol.questions import Answers, Question
from quoron_privacy.errors import ConfigError, Infeasible, VerificationError
from quoron_privacy.means.radius_cells import RadiusCells
from quoron_privacy.noise.sources import SeededNoise
from quoron_server.algorithms import ALGORITHMS
from quoron_server.algorithms.noisy.method import REACH, AdaptiveClip
from quoron_server.plan import Plan, Privacy
from sums import clipped_residuals

NAMES = ["one-pass-dp-sgd/adaptive", "dp-sgd-wor/adaptive", "dp-sgd-poisson/adaptive"]


def planned(**options) -> Plan:
    info = ALGORITHMS["dp-sgd-wor"]
    wide = replace(PROBLEM, users=40_000, dimension=20)
    options = {"rounds": 60, "rate": 0.05, "clip": "adaptive", "step_size": 1e-3} | options
    return info.plan(wide, PRIVACY, info.options(**options), "calibrated", 1)


@pytest.mark.parametrize("name", NAMES)
def test_mean_and_counts_together_are_what_the_round_is_charged(name):
    p = make_plan(name).parameters
    both = math.hypot(p.noise.effective_mu(PROBLEM.dimension), p.adaptive.cells.effective_mu)
    assert both <= p.round_mu * (1 + 1e-12)
    assert both == pytest.approx(p.round_mu, rel=1e-6)


BROKEN = {
    "counts with a quarter of the noise": lambda p: replace(
        p, adaptive=replace(p.adaptive, cells=replace(p.adaptive.cells, scale=p.adaptive.cells.scale / 4))
    ),
    "counts of more users than are asked": lambda p: replace(
        p, adaptive=replace(p.adaptive, cells=replace(p.adaptive.cells, divisor=10 * p.cohort_size))
    ),
    "no counts, with noise for unit rows": lambda p: replace(p, adaptive=None, clip_norm=2.0),
    "half the sensitivity": lambda p: replace(p, sensitivity=p.sensitivity / 2),
    "the gradient has all of mu": lambda p: replace(p, noise_scale=p.noise_scale * math.sqrt(0.95)),
}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("how", list(BROKEN))
def test_a_broken_plan_is_refused_before_it_runs(name, how):
    plan = make_plan(name)
    with pytest.raises(VerificationError):
        ALGORITHMS[plan.algorithm].make(replace(plan, parameters=BROKEN[how](plan.parameters)))


@given(
    row=st.lists(st.floats(allow_nan=True, allow_infinity=True), min_size=3, max_size=3),
    radius=st.floats(1e-6, 1e6),
)
@settings(derandomize=True, deadline=None, max_examples=60)
def test_whatever_one_user_sends_and_whatever_the_clip_mean_and_counts_move_within_their_sensitivities(row, radius):
    p = make_plan("one-pass-dp-sgd/adaptive").parameters
    honest = np.random.default_rng(1).normal(size=(p.cohort_size, 3))
    spoiled = honest.copy()
    spoiled[7] = row
    there = np.ones(p.cohort_size, bool)
    found = [clipped_residuals(rows, None, there, radius, radius, p.cohort_size) for rows in (honest, spoiled)]
    assert np.linalg.norm(found[0][0] - found[1][0]) <= p.sensitivity
    assert np.linalg.norm(found[0][1] - found[1][1]) / p.cohort_size <= p.adaptive.cells.sensitivity


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
    assert state.radius == pytest.approx(scale * np.quantile(lengths, quantile), rel=0.35)


def test_the_clip_stays_within_public_bounds_whoever_answers_what():
    plan = make_plan("one-pass-dp-sgd/adaptive")
    first, adaptive = plan.parameters.clip_norm, plan.parameters.adaptive
    assert isinstance(adaptive, AdaptiveClip)
    for counts in ([adaptive.cells.divisor, 0, 0, 0], [0, 0, 0, adaptive.cells.divisor], [0, 0, 0, 0]):
        radius = first
        for t in range(90):
            radius = adaptive.following(radius, np.array(counts), SeededNoise(1).stream("cells", t), first)
            assert first / REACH <= radius <= first * REACH


def test_few_users_are_told_that_the_counts_would_say_nothing():
    info = ALGORITHMS["one-pass-dp-sgd"]
    options = info.options(rounds=20, clip="adaptive")
    few, privacy = replace(PROBLEM, users=400), Privacy(1.0, 1e-6)
    with pytest.raises(Infeasible, match="within a clip norm gets noise") as error:
        info.plan(few, privacy, options, "calibrated", 1)
    enough = int(str(error.value).split("n >= ")[1].split(",  ")[0].split(" ")[0].rstrip(",.").replace(",", ""))
    info.plan(replace(few, users=enough + 20), privacy, options, "calibrated", 1)


@pytest.mark.parametrize("quantile", [0.3, 0.99])
def test_a_quantile_that_the_counts_cannot_find_is_refused(quantile):
    with pytest.raises(ConfigError, match="quantile"):
        planned(quantile=quantile)


def test_absent_users_count_nowhere_and_the_divisor_stays():
    plan = make_plan("one-pass-dp-sgd/adaptive")
    algorithm, noise = ALGORITHMS["one-pass-dp-sgd"].make(plan), SeededNoise(5)
    state = algorithm.init()
    question = algorithm.request(state, noise)
    assert isinstance(question, Question)
    none = Answers(np.zeros((len(question.cohort), 3)), np.ones(len(question.cohort), np.uint8))
    counted: list[np.ndarray] = []
    original = RadiusCells.release

    def release(cells: RadiusCells, counts: np.ndarray, stream: object) -> object:
        counted.append(counts)
        return original(cells, counts, stream)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(RadiusCells, "release", release)
        algorithm.update(state, none, noise)
    np.testing.assert_array_equal(counted[0], 0)
