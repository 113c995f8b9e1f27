"""Audits of methods over items: all items of one user at opposite ends, or none; and of their broken twins.

Every false alarm has probability at most 1e-8 (`harness.FAILURE`).
"""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from scipy.special import logsumexp
from scipy.stats import binom

from audits.harness import delta_bounds, epsilon_lower_bound
from quoron_client.protocol.domains import Box
from quoron_client.protocol.questions import Answers
from quoron_privacy.accounts import item_sampling
from quoron_privacy.noise.sources import SeededNoise
from quoron_server.algorithms import ALGORITHMS
from quoron_server.algorithms.slots import partition
from quoron_server.plan import Privacy
from quoron_server.problem import Problem

EPSILON, DELTA, RUNS = 1.0, 1e-2, 60_000
ITEMS, PHASES = 8, 4


def problem(users=16, items=ITEMS, dimension=1):
    return Problem(
        users=users, items_per_user=items, dimension=dimension, domain=Box(1e9), lipschitz=1.0, smoothness=0.25
    )


class Own:
    """The own user's items all pull the same way, over their whole length; others have reached their optimum."""

    def __init__(self, user, sign, longest):
        self.user, self.sign, self.longest = user, sign, longest

    def ask(self, question):
        values = np.zeros((len(question.cohort), question.task.points.shape[1]))
        values[question.cohort == self.user] = self.sign * self.longest / np.sqrt(values.shape[1])
        return Answers(values, np.zeros(len(values), np.uint8))


def grouped(layout):
    info = ALGORITHMS["group-phased-sgd"]
    options = info.options(layout=layout, rounds=2 * PHASES, phases=PHASES, step_size=1.0)
    plan = info.plan(problem(), Privacy(EPSILON, DELTA), options, "calibrated", 3)
    info.verify(plan)
    return plan


def releases(plan, sign, seed):
    """The releases of `runs` runs at once, one a coordinate, without the phases' starts; shape (phases, runs)."""

    def draw(runs):
        longest = np.sqrt(runs)  # so that every coordinate pulls with length one
        wide = replace(plan, problem=replace(plan.problem, dimension=runs, lipschitz=float(longest)))
        algorithm, people = ALGORITHMS[plan.algorithm].maker(wide), Own(user, sign, longest)
        state, shown, noise = algorithm.init(), [np.zeros(runs)], SeededNoise(seed)
        while (question := algorithm.request(state, noise)) is not None:
            update = algorithm.update(state, people.ask(question), noise)
            state = update.state
            if update.releases:
                shown.append(state.released)
        steps = np.array([after - before for before, after in pairwise(shown)])
        return weights @ steps

    p = plan.parameters
    weights = np.array([phase.sensitivity / phase.release_scale**2 for phase in p.phases])
    first = 0
    if p.layout == "disjoint":  # a user of the least private phase, the only one that knows of it
        least = int(np.argmax(p.mus))
        weights *= np.arange(len(weights)) == least
        first = p.shares[least].first_user
    user = int(partition(seed=plan.seed, users=plan.problem.users)[first])
    return draw


def audit(plan):
    return epsilon_lower_bound(releases(plan, 1.0, 5), releases(plan, -1.0, 6), delta=DELTA, draws=RUNS)


def quieter(plan, factor):
    p = plan.parameters
    phases = tuple(replace(phase, release_scale=phase.release_scale / factor) for phase in p.phases)
    return replace(plan, parameters=replace(p, phases=phases))


@pytest.mark.parametrize("layout", ["spread", "disjoint"])
def test_a_run_never_exceeds_its_claimed_epsilon(layout):
    assert 0.6 < audit(grouped(layout)) <= EPSILON


@pytest.mark.parametrize("layout", ["spread", "disjoint"])
def test_the_audit_catches_a_quarter_of_the_noise(layout):
    assert audit(quieter(grouped(layout), 4)) > EPSILON


def test_the_audit_catches_spread_places_accounted_as_disjoint():
    p = (plan := grouped("spread")).parameters
    alone = tuple(replace(phase, release_scale=phase.sensitivity / p.mu) for phase in p.phases)  # as a user's only one
    assert audit(replace(plan, parameters=replace(p, phases=alone))) > EPSILON


class TestSampledItems:
    """The transcripts of `group-dp-sgd`, run by run, with the exact likelihood ratio of each."""

    USERS, PLACES, RATE, ROUNDS = 4, 3, 0.4, 2

    def plan(self, name):
        info = ALGORITHMS[name]
        options = info.options(rounds=self.ROUNDS, rate=self.RATE, clip_norm=1.0, step_size=1.0)
        wanted = Privacy(EPSILON, DELTA)
        return info.plan(problem(self.USERS, self.PLACES), wanted, options, "calibrated", 3)

    def transcripts(self, plan, sign, runs, seed):
        """What each round showed in units of an item's clip, shape (runs, rounds)."""
        unit, out = self.RATE * self.USERS * self.PLACES, np.empty((runs, self.ROUNDS))
        for run in range(runs):
            algorithm, noise = ALGORITHMS[plan.algorithm].maker(plan), SeededNoise(seed + run)
            state, people = algorithm.init(), Own(2, sign, 1e6)
            while (question := algorithm.request(state, noise)) is not None:
                before = algorithm.parameters.step_size
                after = algorithm.update(state, people.ask(question), noise).state
                held = state.running * 0 + (after.iterate - state.iterate)
                out[run, state.round] = -held[0] / before * unit
                state = after
        return out

    def ratio(self, shown, z, sign):
        """ln of the likelihood with the own items at one end over that without them, or with them at the other end."""
        j = np.arange(self.PLACES + 1)
        chances = binom.logpmf(j, self.PLACES, self.RATE)
        law = lambda side: logsumexp(chances - (shown[..., None] - side * j) ** 2 / (2 * z**2), axis=-1)  # noqa: E731
        return (law(1.0) - law(sign)).sum(axis=1)

    @pytest.mark.parametrize(("name", "other"), [("group-dp-sgd", -1.0), ("group-dp-sgd-zero-out", 0.0)])
    def test_a_run_keeps_its_promise_and_half_its_noise_is_caught(self, name, other):
        plan = self.plan(name)
        for factor, caught in ((1.0, False), (0.5, True)):
            p = replace(plan.parameters, noise_scale=plan.parameters.noise_scale * factor)
            shown = self.transcripts(replace(plan, parameters=p), 1.0, 1500, 0)
            ratio = self.ratio(shown, p.multiplier * factor, other)
            low, _ = delta_bounds(ratio, epsilon=EPSILON)
            assert (low > DELTA) == caught

    def shown(self, z, runs=200_000, seed=5):
        """The mechanism alone, by many runs."""
        rng = np.random.default_rng(seed)
        chosen = rng.binomial(self.PLACES, self.RATE, (runs, self.ROUNDS))
        return chosen + z * rng.standard_normal(chosen.shape)

    def found(self, z, other):
        return delta_bounds(self.ratio(self.shown(z), z, other), epsilon=EPSILON)[0]

    def calibrated(self, adjacency, items):
        return item_sampling.multiplier(self.RATE, items, self.ROUNDS, EPSILON, DELTA, adjacency)

    def test_the_account_is_nearly_tight(self):
        assert 0.8 * DELTA < self.found(self.calibrated("replace-one", self.PLACES), -1.0) <= DELTA
        assert 0.8 * DELTA < self.found(self.calibrated("zero-out", self.PLACES), 0.0) <= DELTA

    def test_the_audit_catches_the_noise_of_an_absence_for_a_replacement(self):
        assert self.found(self.calibrated("zero-out", self.PLACES), -1.0) > DELTA

    def test_the_audit_catches_the_noise_of_an_item_for_a_user(self):
        assert self.found(self.calibrated("replace-one", 1), -1.0) > DELTA
