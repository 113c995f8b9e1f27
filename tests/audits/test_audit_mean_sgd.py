"""Audits of mean-sgd and recentred-sgd: log-likelihood ratios of whole runs on worst-case neighbours, and broken twins.

Everybody answers in each of two rounds, so the run is as exposed as its accounting says. Every bound is wrong with
probability at most `harness.FAILURE` = 1e-8.
"""

import math
from dataclasses import replace

import numpy as np
import pytest

from audits.harness import delta_bounds
from problems import problem_of
from quoron_client.protocol.domains import L2Ball
from quoron_client.protocol.questions import Answers
from quoron_privacy.noise.sources import SeededNoise
from quoron_server.algorithms import ALGORITHMS
from quoron_server.algorithms.mean.method import MeanSGD
from quoron_server.plan import Privacy

USERS, RUNS, HUGE = 8, 5_000, 1e6
EPSILON, DELTA = 1.0, 0.05  # a large δ, so that thousands of runs of two rounds say something
PROBLEM = problem_of(
    users=USERS,
    items_per_user=5000,
    dimension=1,
    domain=L2Ball(1e9),
    lipschitz=1.0,
    smoothness=0.25,
    curvature="isotropic",
    typical_curvature=0.1,
    gradient_deviation=0.5,
)


def sound(name="recentred-sgd", **more):
    info = ALGORITHMS[name]
    options = info.options(rounds=2, rate=1.0, step_size=1e-3, clip_norm=1.0, **more)
    return info.plan(PROBLEM, Privacy(EPSILON, DELTA), options, "calibrated", 1)


def log_ratio(algorithm, *, clips=True):
    """ln P/Q of each run's releases; the own user sends +HUGE under P and -HUGE under Q, all others their centre.

    Given the releases before it, one is normal with the own user's share C/B to either side and deviation C σ.
    """
    p, source = algorithm.parameters, SeededNoise(61)
    ratios = np.zeros(RUNS)
    for run in range(RUNS):
        state = algorithm.init()
        for _ in range(2):
            values = np.repeat(state.centre[None, :], USERS, axis=0)
            values[3] = HUGE if clips else state.centre + 3 * state.radius
            radius, centre = state.radius, state.centre[0]
            before = state.iterate[0]
            noise = Labelled(source, run)
            state = algorithm.update(state, Answers(values, np.zeros(USERS, np.uint8)), noise).state
            released = (before - state.iterate[0]) / p.step_size
            share = radius * (1 if clips else 3) / USERS
            ratios[run] += 2 * (released - centre) * share / (radius * p.noise_scale) ** 2
    return ratios


class Labelled:
    """A noise source for one of many runs."""

    def __init__(self, source, run):
        self.source, self.run = source, run

    def stream(self, *labels):
        return self.source.stream(self.run, *labels)


def audit(plan):
    return delta_bounds(log_ratio(MeanSGD(plan)), epsilon=EPSILON)


@pytest.mark.parametrize(("name", "more"), [("mean-sgd", {"estimator": "clip"}), ("recentred-sgd", {})])
def test_a_run_never_exceeds_its_claimed_delta_and_comes_near_it(name, more):
    low, high = audit(sound(name, **more))
    assert low <= DELTA
    assert low > 0.5 * DELTA
    assert high < 1.5 * DELTA


def test_the_audit_catches_a_quarter_of_the_noise():
    plan = sound()
    assert audit(broken(plan, noise_scale=plan.parameters.noise_scale / 4))[0] > DELTA


def test_the_audit_catches_a_second_round_that_is_not_charged():
    plan = sound()
    assert audit(broken(plan, noise_scale=plan.parameters.noise_scale / math.sqrt(2)))[0] > DELTA


def test_the_audit_catches_the_sensitivity_of_a_user_left_out():
    plan = sound()
    assert audit(broken(plan, noise_scale=plan.parameters.noise_scale / 2))[0] > DELTA


class Unclipped(MeanSGD):
    """Takes rows as they come, with the noise of a clipped row."""

    def update(self, state, answers, noise):
        wide = replace(state, radius=3 * state.radius)
        quiet = type(self)(broken(self.plan, noise_scale=self.parameters.noise_scale / 3))
        after = MeanSGD.update(quiet, wide, answers, noise)
        return replace(after, state=replace(after.state, radius=state.radius))


def test_the_audit_catches_a_clip_three_times_as_wide_as_the_noise():
    plan = sound("mean-sgd", estimator="clip")
    found = delta_bounds(log_ratio(Unclipped(plan), clips=False), epsilon=EPSILON)
    assert found[0] > DELTA


def broken(plan, **changed):
    return replace(plan, parameters=replace(plan.parameters, **changed))
