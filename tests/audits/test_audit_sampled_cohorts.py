"""Audits of cohorts by coins under replace-one: the exact likelihood ratio of whole runs, and of their broken twins.

The own user is at one end in one world and at the opposite one in the other, in each of two rounds. Every false alarm
has probability at most 1e-8 (`harness.FAILURE`).
"""

import math
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from audits.harness import delta_bounds
from problems import problem_of
from quoron_client.protocol.domains import L2Ball
from quoron_client.protocol.questions import Answers
from quoron_privacy.accounts import composition, subsampling
from quoron_privacy.noise.sources import SeededNoise
from quoron_server.algorithms import ALGORITHMS
from quoron_server.algorithms.noisy.method import NoisySGD
from quoron_server.plan import Plan, Privacy

EPSILON, DELTA = 1.0, 0.02  # a large δ, so that thousands of runs say something
USERS, RATE, ROUNDS, OWN = 40, 0.1, 2, 3
PROBLEM = problem_of(
    users=USERS,
    items_per_user=4,
    dimension=1,
    domain=L2Ball(1e9),
    lipschitz=1.0,
    smoothness=0.25,
    curvature="isotropic",
    typical_curvature=0.1,
    gradient_deviation=0.5,
)


def log_ratio(shown, shift, scale, rate=RATE):
    """ln P/Q of releases (k, T) by subsampling#k3, the own user's part `shift` to either side where it is there."""
    move = shown * shift / scale**2
    loss = shift**2 / (2 * scale**2)
    there = math.log(rate) - loss
    absent = math.log1p(-rate)
    return (np.logaddexp(absent, there + move) - np.logaddexp(absent, there - move)).sum(axis=1)


@cache
def planned(name: str) -> Plan:
    info = ALGORITHMS[name]
    extra = {"estimator": "clip", "sampling": "coins"} if name == "mean-sgd" else {}
    options = info.options(rounds=ROUNDS, rate=RATE, clip_norm=1.0, step_size=1e-3, **extra)
    return info.plan(PROBLEM, Privacy(EPSILON, DELTA, adjacency="replace-one"), options, "calibrated", 1)


def releases(algorithm, runs):
    """The releases of whole runs with the own user far out on one side and all others at zero, shape (runs, T)."""
    p, found = algorithm.parameters, np.empty((runs, ROUNDS))
    for run in range(runs):
        source, state = SeededNoise(1000 + run), algorithm.init()
        for round_ in range(ROUNDS):
            question = algorithm.request(state, source)
            values = np.where(question.cohort == OWN, 1e6, 0.0)[:, None]
            after = algorithm.update(state, Answers(values, np.zeros(len(values), np.uint8)), source).state
            found[run, round_] = (state.iterate - after.iterate)[0] / p.step_size
            state = after
    return found


def audited(plan, kind=None, *, runs=2500):
    algorithm = (kind or ALGORITHMS[plan.algorithm].maker)(plan)
    p = plan.parameters
    ratio = log_ratio(releases(algorithm, runs), 1 / p.cohort_size, p.noise_scale)
    return delta_bounds(ratio, epsilon=EPSILON)


@pytest.mark.parametrize("name", ["dp-sgd-poisson", "mean-sgd"])
def test_a_run_never_exceeds_its_claimed_delta_and_comes_near_it(name):
    low, high = audited(planned(name))
    assert low <= DELTA <= high < 3 * DELTA


@pytest.mark.parametrize("name", ["dp-sgd-poisson", "mean-sgd"])
def test_the_audit_catches_half_of_the_noise(name):
    p = (plan := planned(name)).parameters
    assert audited(replace(plan, parameters=replace(p, noise_scale=p.noise_scale / 2)))[0] > DELTA


class RealisedDivisor(NoisySGD):
    """Divides by how many were drawn."""

    def update(self, state, answers, noise):
        drawn = max(1, len(answers.status))
        scaled = Answers(np.clip(answers.values, -1, 1) * (self.parameters.cohort_size / drawn), answers.status)
        wide = replace(self.parameters, clip_norm=float(USERS))
        return NoisySGD(replace(self.plan, parameters=wide)).update(state, scaled, noise)


def test_the_audit_catches_a_divisor_that_is_the_realised_size():
    """Where few others are drawn the own part is then far larger than one over the expected number."""
    plan = planned("dp-sgd-poisson")
    p = plan.parameters
    rng, runs = np.random.default_rng(5), 200_000
    others = rng.binomial(USERS - 1, RATE, (runs, ROUNDS))
    here = rng.random((runs, ROUNDS)) < RATE
    noise = rng.normal(0, p.noise_scale, (runs, ROUNDS))
    shown = here / np.maximum(1, others + here) + noise
    law = lambda sign: _realised(shown, sign, p.noise_scale)  # noqa: E731
    assert delta_bounds(law(1.0) - law(-1.0), epsilon=EPSILON)[0] > DELTA
    # and what the broken algorithm releases is what was drawn above
    found = releases(RealisedDivisor(plan), 1000)
    assert found.mean() == pytest.approx(shown.mean(), abs=6 * shown.std() / math.sqrt(found.size))
    assert found.var() == pytest.approx(shown.var(), rel=0.3)


def _realised(shown, sign, scale):
    """ln of the density of releases when the divisor is 1 + Bin(39, q) with the own user there, who adds `sign`."""
    sizes = np.arange(USERS)
    chances = np.array([math.comb(USERS - 1, k) for k in sizes]) * RATE**sizes * (1 - RATE) ** (USERS - 1 - sizes)
    there = np.stack(
        [np.log(RATE * c) - (shown - sign / (1 + k)) ** 2 / (2 * scale**2) for k, c in enumerate(chances) if c > 1e-12]
    )
    absent = math.log1p(-RATE) - shown**2 / (2 * scale**2)
    return np.logaddexp(absent, np.logaddexp.reduce(there, axis=0)).sum(axis=1)


class TestTheAccountAlone:
    """The mechanism by many runs of more rounds, so that what an account forgets shows."""

    RUNS, RATE, ROUNDS = 200_000, 0.1, 20

    def found(self, mu):
        rng, size = np.random.default_rng(7), (self.RUNS, self.ROUNDS)
        shown = mu * (rng.random(size) < self.RATE) + rng.standard_normal(size)
        return delta_bounds(log_ratio(shown, mu, 1.0, self.RATE), epsilon=EPSILON)[0]

    def claimed(self, adjacency="replace-one"):
        return subsampling.poisson_round_mu(self.RATE, self.ROUNDS, EPSILON, DELTA, adjacency)

    def test_it_is_nearly_tight(self):
        assert 0.85 * DELTA < self.found(self.claimed()) <= DELTA

    def test_the_pair_of_absences_is_caught(self):
        assert self.found(self.claimed("zero-out")) > DELTA

    def test_half_of_the_shift_is_caught(self):
        """As if the μ of a user who is replaced in its cohort were twice that of one who is there against absent."""
        assert self.found(2 * self.claimed()) > DELTA

    def test_a_one_sided_profile_is_caught(self, monkeypatch):
        """Negative losses are forgotten: whoever has them is taken for one who has the least of all."""
        was = composition._law

        def one_sided(*given):
            law = was(*given)
            kept = law.places >= 0
            rest = 1 - np.exp(law.logs[kept]).sum() - law.lost
            return replace(
                law,
                places=np.append(law.places[0], law.places[kept]),
                logs=np.append(np.log(max(rest, 1e-300)), law.logs[kept]),
            )

        monkeypatch.setattr(composition, "_law", one_sided)
        subsampling.poisson_round_mu.cache_clear()
        try:
            wrong = self.claimed()
        finally:
            subsampling.poisson_round_mu.cache_clear()
        assert self.found(wrong) > DELTA
