"""Phases, weights, halting: what outlier-filter#f1's proof and phased SGD's proof assume of the loop."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.scenes import PROBLEM, Quadratic, make, make_plan
from quoron_client.protocol.domains import L2Ball
from quoron_client.protocol.questions import Answers, Status
from quoron_privacy.noise.streams import SeededNoise
from quoron_server.algorithms.localised.phased import Phase, PlainMean


def drive(algorithm, engine, noise=None):
    """All states of a run, first to last."""
    noise = noise or SeededNoise(4)
    states = [algorithm.init()]
    while (question := algorithm.request(states[-1], noise)) is not None:
        states.append(algorithm.update(states[-1], engine.ask(question), noise).state)
    return states


def unnoised(name):
    """The algorithm of a plan without release noise: what the sensitivity is about."""
    plan = make_plan(name)
    phases = tuple(replace(phase, release_scale=0.0) for phase in plan.parameters.phases)
    return replace(plan, parameters=replace(plan.parameters, phases=phases))


class Logistic:
    """One item a user, features in the unit ball: convex, 1-Lipschitz and ¼-smooth for every user."""

    def __init__(self, seed, features_scale=1.0):
        rng = np.random.default_rng(seed)
        self.features = rng.standard_normal((PROBLEM.users, PROBLEM.dimension))
        self.features *= features_scale / np.linalg.norm(self.features, axis=1, keepdims=True)

    def ask(self, question):
        rows = self.features[question.cohort]
        slopes = -1 / (1 + np.exp(rows @ question.task.points[0]))
        return Answers(rows * slopes[:, None], np.zeros(len(rows), dtype=np.uint8))


@given(seed=st.integers(0, 2**20), moved=st.integers(0, PROBLEM.users - 1), sign=st.sampled_from([-1.0, 1.0, 0.0]))
@settings(derandomize=True, deadline=None, max_examples=40)
def test_replacing_one_user_moves_no_release_of_phased_sgd_by_more_than_its_sensitivity(seed, moved, sign):
    plan = unnoised("phased-sgd")
    world, other = Logistic(seed), Logistic(seed)
    other.features[moved] *= sign if sign <= 0 else 1.0
    if sign > 0:
        other.features[moved] = np.roll(other.features[moved], 1)
    runs = [drive(PlainMean(plan), engine) for engine in (world, other)]
    ends = np.cumsum([phase.rounds for phase in plan.parameters.phases])
    for phase, end in zip(plan.parameters.phases, ends, strict=True):
        one, two = (states[end].released for states in runs)
        if np.any(one != two):  # the moved user's phase; what follows is post-processing
            assert np.linalg.norm(one - two) <= phase.sensitivity
            break


class Choosy:
    """Linear losses of slope ±1 on a line: up for the first half of the schedule, down for the rest.

    The user of round `own` pulls up or down. With `looks` the others stay away once the iterate is above the level.
    """

    def __init__(self, own, sign, *, looks, level=0.4995):
        self.own, self.sign, self.looks, self.level = own, sign, looks, level

    def ask(self, question):
        at = question.task.points[0, 0]
        if question.round == self.own:
            return Answers(np.array([[self.sign]]), np.array([Status.ANSWERED], np.uint8))
        absent = at > self.level if self.looks else question.round % 5 == 0
        pull = -1.0 if question.round < self.own else 1.0
        status = Status.MISSING if absent else Status.ANSWERED
        return Answers(np.array([[0.0 if absent else pull]]), np.array([status], np.uint8))


def moved_by_one_user(*, looks):
    """(how far one user of a thousand moves the last iterate of a phase, by how much at most it should)."""
    step, rounds, own = 1e-3, 1000, 499
    shift = 2 * PROBLEM.lipschitz * step * (1 + 1e-6)
    plan = unnoised("phased-sgd")
    phase = Phase(rounds, step, 1, shift, 0.0)
    problem = replace(plan.problem, users=rounds, dimension=1, domain=L2Ball(1.0))
    plan = replace(plan, problem=problem, parameters=replace(plan.parameters, cohort_size=1, phases=(phase,)))
    ends = [
        drive(PlainMean(plan), Choosy(own, sign, looks=looks))[-1].released
        for sign in (-PROBLEM.lipschitz, PROBLEM.lipschitz)
    ]
    return abs(float(ends[0][0] - ends[1][0])), shift


def test_absences_that_are_the_same_in_both_worlds_keep_contraction():
    moved, bound = moved_by_one_user(looks=False)
    assert 0.9 * bound < moved <= bound


def test_absences_that_look_at_the_iterate_break_contraction():
    """What the promise assumes away: others who answer below a level only, and one user who decides which side."""
    moved, bound = moved_by_one_user(looks=True)
    assert moved > 0.5 > 200 * bound


def test_a_phase_with_too_many_outliers_halts_and_releases_what_it_started_from():
    scattered = np.random.default_rng(1).standard_normal((PROBLEM.users, PROBLEM.dimension)) * 50

    class Scattered(Quadratic):
        def ask(self, question):
            answers = super().ask(question)
            return Answers(scattered[question.cohort], answers.status)

    states = drive(make("filtered-sgd"), Scattered())
    np.testing.assert_array_equal(states[-1].released, np.zeros(PROBLEM.dimension))


def test_phases_of_a_filter_shrink():
    phases = make_plan("filtered-sgd").parameters.phases
    assert all(later.step_size <= earlier.step_size for earlier, later in pairwise(phases))
