"""Audits of whole runs of accelerated ERM on worst-case neighbours, and of its broken twins.

Every run is a real object in one dimension; the statistic adds up the released gradients. The bounds are wrong with
probability at most `harness.FAILURE` = 1e-8, and seven sound mechanisms are tried. What simulation has no power for,
sampling with replacement and amplification given that a test has passed, is refuted by exact enumeration in
tests/privacy/robust/test_subsampled_lottery.py and refused by `verify` in the tests of plans.
"""

from dataclasses import replace
from functools import cache
from unittest.mock import patch

import numpy as np
import pytest

from audits.harness import epsilon_lower_bound
from quoron_client.protocol.domains import L2Ball
from quoron_client.protocol.questions import Answers
from quoron_privacy.noise.sources import SeededNoise
from quoron_server.algorithms import ALGORITHMS
from quoron_server.algorithms.accelerated_erm import tested
from quoron_server.algorithms.accelerated_erm.method import AcceleratedERM
from quoron_server.algorithms.slots import partition
from quoron_server.plan import Privacy
from quoron_server.problem import Problem

EPSILON, DELTA, USERS, ROUNDS, RUNS = 2.0, 1e-2, 600, 2, 400
PROBLEM = Problem(
    users=USERS, items_per_user=1, dimension=1, domain=L2Ball(1.0), lipschitz=1.0, smoothness=1.0, feature_norm=1.0
)
INFO = ALGORITHMS["accelerated-erm"]
KINDS = {
    "lottery": {"cohort": USERS},
    "random inclusion": {"cohort": USERS, "aggregate": "random"},
    "secret cohorts": {"cohort": 400},
    "threshold": {"test": "above-threshold"},
    "clip": {"test": "clip", "cohort": USERS},
}
every_kind = pytest.mark.parametrize("kind", KINDS)


@cache
def planned(kind):
    options = INFO.options(rounds=ROUNDS, phases=1, stages=1, radius=0.1, **KINDS[kind])
    return INFO.plan(PROBLEM, Privacy(EPSILON, DELTA), options, "calibrated", 5)


class Untested(AcceleratedERM):
    """Releases every step."""

    def _test(self, state, score, phase, noise):
        return True, ()


class World:
    """Others at fixed places, whatever is asked; the own user at its own."""

    def __init__(self, plan, others, own):
        order = partition(seed=plan.seed, users=USERS)
        self.places = np.empty(USERS)
        self.places[order] = np.append(own, others)

    def ask(self, question):
        return Answers(self.places[question.cohort][:, None], np.zeros(len(question.cohort), np.uint8))


def draws(plan, others, own, make, start):
    def sample(runs):
        algorithm, world, found = make(plan), World(plan, others, own), np.zeros(runs)
        for i in range(runs):
            noise, state = SeededNoise(start + i), algorithm.init()
            while (question := algorithm.request(state, noise)) is not None:
                update = algorithm.update(state, world.ask(question), noise)
                state = update.state
                found[i] += float(state.gradient[0]) if update.public["released"] else 0.0
        return found

    return sample


def audit(plan, others, ends, make=AcceleratedERM, runs=RUNS):
    worlds = (draws(plan, others, own, make, 10**7 * k) for k, own in enumerate(ends))
    return epsilon_lower_bound(*worlds, delta=DELTA, draws=runs)


def antipodal(plan):
    """Everybody in one place, the own user τ to either side of it: the largest shift of a full-weight answer."""
    return np.zeros(USERS - 1), (plan.parameters.phases[0].radius * 0.999, -plan.parameters.phases[0].radius * 0.999)


def halves():
    """Two far clusters of nearly half each: the own user decides which of them has a majority."""
    return np.repeat([0.0, 900.0], [USERS // 2 - 1, USERS // 2]), (900.0, 0.0)


def edge(plan):
    """So many answers far away that scores stand in the middle of the ladder; the own user with the rest, or gone."""
    mean, size = plan.parameters.phases[0].accounting.mean, plan.parameters.phases[0].cohort_size
    lost = next(k for k in range(size) if (size - k) ** 2 + k < size * (size + mean.core) / 2)
    return np.append(np.zeros(USERS - 1 - lost), 1e3 * np.arange(1, lost + 1)), (0.0, 5e5)


@every_kind
def test_a_run_never_exceeds_its_claimed_epsilon(kind):
    plan = planned(kind)
    INFO.verify(plan)
    assert audit(plan, *antipodal(plan), make=INFO.make) <= EPSILON


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["lottery", "threshold"])
def test_nor_where_tests_are_undecided(kind):
    plan = planned(kind)
    assert audit(plan, *edge(plan)) <= EPSILON


# Coins of random inclusion are the other twins' steps with other weights.
WHOLE = ["lottery", pytest.param("random inclusion", marks=pytest.mark.slow), "threshold"]


@pytest.mark.parametrize("kind", WHOLE)
def test_the_audit_catches_a_missing_test(kind):
    plan = planned(kind)
    assert audit(plan, *halves(), make=Untested, runs=400) > EPSILON


@pytest.mark.parametrize("kind", WHOLE)
def test_the_audit_catches_a_sixteenth_of_the_noise(kind):
    """With a threshold a 64th: most of ε pays for its tests, on which these neighbours do not differ."""
    plan = planned(kind)
    phase, share = plan.parameters.phases[0], 64 if kind == "threshold" else 16
    less = replace(plan.parameters, phases=(replace(phase, noise_scale=phase.noise_scale / share),))
    assert audit(replace(plan, parameters=less), *antipodal(plan), runs=600) > EPSILON


def test_the_audit_catches_a_quarter_of_the_noise_of_clipped_steps():
    plan = planned("clip")
    phase = plan.parameters.phases[0]
    less = replace(plan.parameters, phases=(replace(phase, noise_scale=phase.noise_scale / 4),))
    assert audit(replace(plan, parameters=less), *antipodal(plan), runs=600) > EPSILON


def test_the_audit_catches_a_clip_that_is_left_out():
    plan = planned("clip")
    with patch.object(tested, "clipped_mean", lambda values, answered, norm, size: (values.sum(axis=0) / size, 0)):
        assert audit(plan, np.zeros(USERS - 1), (1.0, -1.0)) > EPSILON


@pytest.mark.slow
def test_the_audit_catches_a_test_without_randomness():
    """Release exactly when the score reaches the middle of the ladder: one user decides whether anything is said."""
    plan = planned("lottery")
    others, ends = edge(plan)
    size = plan.parameters.phases[0].cohort_size
    scores = []
    for own in ends:
        rows = World(plan, others, own).places[:, None]
        phase = plan.parameters.phases[0]
        at = {"radius": phase.radius, "reference": np.zeros(1)}
        scores.append(phase.accounting.mean.observe(rows, np.ones(size, np.bool_), **at).score)
    cut = sum(scores) // 2

    class Certain(AcceleratedERM):
        def _test(self, state, score, phase, noise):
            return score > cut, ()

    assert audit(plan, others, ends, make=Certain, runs=900) > EPSILON
