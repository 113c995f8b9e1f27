"""Audits of phased ERM: the log-likelihood ratio of a phase's release, on lines, which use the whole sensitivity.

Every bound is wrong with probability at most `harness.FAILURE` = 1e-8.
"""

from dataclasses import replace

import numpy as np
import pytest

from audits.harness import delta_bounds
from problems import problem_of
from quoron_client.protocol.domains import L2Ball
from quoron_client.protocol.questions import Answers
from quoron_privacy.noise.sources import SeededNoise
from quoron_server.algorithms import ALGORITHMS
from quoron_server.algorithms.phased_erm.method import PhasedERM
from quoron_server.algorithms.phased_erm.plan import shift
from quoron_server.plan import Privacy

INFO = ALGORITHMS["phased-erm"]
USERS, ROUNDS, RUNS, EPSILON, DELTA, PULL = 10, 10, 4_000, 1.0, 0.05, 0.01
PROBLEM = problem_of(
    users=USERS, items_per_user=1, dimension=1, domain=L2Ball(1e6), lipschitz=1.0, smoothness=1.0, distance=1.0
)
SMALLER, LARGER = 1 / (1 + PULL), 2 / (1 + 2 * PULL)


def planned(step=LARGER):
    options = INFO.options(rounds=ROUNDS, phases=1, regularisation=PULL, step_size=step)
    return INFO.plan(PROBLEM, Privacy(EPSILON, DELTA), options, "calibrated", 1)


def log_ratios(plan):
    """ln P/Q of each run's release: the own user's line falls under P and climbs under Q, all others' are flat."""
    algorithm, source = PhasedERM(plan), SeededNoise(71)
    ends = []
    for sign in (-1.0, 1.0):
        state, values = algorithm.init(), np.zeros((USERS, 1))
        values[3] = sign
        answers = Answers(values, np.zeros(USERS, np.uint8))
        for _ in range(ROUNDS - 1):
            state = algorithm.update(state, answers, source).state
        ends.append((state, answers))
    scale = plan.parameters.phases[0].release_scale
    silent = [algorithm.update(*each, Labelled(None, 0)).state.released[0] for each in ends]
    drawn = np.array([algorithm.update(*ends[0], Labelled(source, k)).state.released[0] for k in range(RUNS)])
    return ((drawn - silent[1]) ** 2 - (drawn - silent[0]) ** 2) / (2 * scale**2)


class Labelled:
    """A noise source for one of many runs; without a source, no noise."""

    def __init__(self, source, run):
        self.source, self.run = source, run

    def stream(self, *labels):
        return self if self.source is None else self.source.stream(self.run, *labels)

    def gaussian_steps(self, shape):
        return np.zeros(shape, np.int64)


def broken(plan, scale):
    phase = plan.parameters.phases[0]
    return replace(plan, parameters=replace(plan.parameters, phases=(replace(phase, release_scale=scale),)))


@pytest.mark.parametrize("step", [SMALLER, LARGER])
def test_a_phase_never_exceeds_its_claimed_delta_and_comes_near_it(step):
    plan = planned(step)
    INFO.verify(plan)
    low, high = delta_bounds(log_ratios(plan), epsilon=EPSILON)
    assert 0.5 * DELTA < low <= DELTA
    assert high < 1.6 * DELTA


def test_the_audit_catches_the_noise_of_one_step():
    plan = planned()
    phase = plan.parameters.phases[0]
    share = shift(PROBLEM, "gd", USERS, 1, LARGER, PULL) / phase.sensitivity
    assert delta_bounds(log_ratios(broken(plan, share * phase.release_scale)), epsilon=EPSILON)[0] > DELTA


def test_the_audit_catches_a_larger_step_with_the_noise_of_a_smaller_one():
    plan, smaller = planned(), planned(SMALLER).parameters.phases[0].release_scale
    assert delta_bounds(log_ratios(broken(plan, smaller)), epsilon=EPSILON)[0] > DELTA


def test_the_audit_catches_the_sensitivity_of_a_user_left_out():
    plan = planned()
    halved = broken(plan, plan.parameters.phases[0].release_scale / 2)
    assert delta_bounds(log_ratios(halved), epsilon=EPSILON)[0] > DELTA
