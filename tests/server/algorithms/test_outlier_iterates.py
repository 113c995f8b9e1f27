"""Chains, isolated points, releases and promises of `outlier-iterates`, against loops that follow the paper's lines."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.scenes import PRIVACY, PROBLEM, Quadratic, make, make_plan
from quoron_client.protocol.questions import Answers, Status
from quoron_privacy.gaussian import GaussianNoise
from quoron_privacy.noise.streams import SeededNoise
from quoron_server.algorithms import ALGORITHMS
from quoron_server.algorithms.slots import partition

INFO = ALGORITHMS["outlier-iterates"]
every_variant = pytest.mark.parametrize("name", ["outlier-iterates", "outlier-iterates/broadcast"])


def drive(algorithm, engine, noise=None):
    """All states of a run, and all updates."""
    noise = noise or SeededNoise(4)
    states, updates = [algorithm.init()], []
    while (question := algorithm.request(states[-1], noise)) is not None:
        updates.append(algorithm.update(states[-1], engine.ask(question), noise))
        states.append(updates[-1].state)
    return states, updates


def by_loops(plan, centres, noise):
    """The model, chain by chain and item by item; every user is honest and has `items_per_user` equal items."""
    p, problem = plan.parameters, plan.problem
    order = partition(seed=plan.seed, users=problem.users)
    chains, x, asked = p.cohort_size, np.zeros(problem.dimension), 0
    for index, phase in enumerate(p.phases):
        y = []
        for j in range(chains):
            at, iterates = x, []
            for k in range(phase.users):
                centre = centres[order[asked + k * chains + j]]
                for _ in range(problem.items_per_user):
                    at = problem.domain.project(at - phase.step_size * 0.2 * (at - centre))
                    iterates.append(at)
            y.append(np.mean(iterates[-phase.averaged * problem.items_per_user :], axis=0))
        asked += phase.users * chains
        apart = np.array([np.linalg.norm(np.array(y) - a, axis=1) for a in y])
        score = np.sum(apart <= phase.radius)
        if not phase.release.test.decide(int(score), noise.stream("test", index)):
            continue
        mean = phase.release.mean
        heights = np.sum(apart <= phase.radius * mean.removal_radius, axis=1)
        weights = np.clip(heights - mean.ramp_low, 0, mean.ramp_high - mean.ramp_low)
        shift = np.average(np.array(y) - x, axis=0, weights=weights)
        gaussian = GaussianNoise(1.0, phase.release_scale)
        x = problem.domain.project(x + gaussian.release(shift, noise.stream("release", index)))
    return x


@every_variant
def test_the_model_is_that_of_chains_run_one_after_another(name):
    algorithm, engine = make(name), Quadratic()
    engine.centres[::7] += 3.0  # strangers, so that weights differ
    states, _ = drive(algorithm, engine, SeededNoise(1))
    expected = by_loops(algorithm.plan, engine.centres, SeededNoise(1))
    np.testing.assert_allclose(algorithm.model(states[-1]), expected, rtol=0, atol=1e-8)


@every_variant
def test_only_chains_of_one_user_promise_private_broadcasts(name):
    plan = make_plan(name)
    single = all(phase.users == 1 for phase in plan.parameters.phases)
    assert plan.guarantee.trust_model == ("central-broadcast" if single else "central-release")
    assert single == name.endswith("broadcast")
    assert plan.guarantee.proved
    assert plan.guarantee.assumptions == ()


class Breaks:
    """An engine in which the chain of slot 2 is broken in round 1, by any of the ways there are."""

    def __init__(self, how):
        self.inner, self.how = Quadratic(), how

    def ask(self, question):
        answers = self.inner.ask(question)
        values, status = answers.values.copy(), answers.status.copy()
        if question.round == 1:
            if self.how == "missing":
                values[2], status[2] = 0.0, Status.MISSING
            elif self.how == "outside the domain":
                values[2, 1] = 100.0
            else:
                values[2] = {"nan": np.nan, "inf": np.inf, "huge": 1e308}[self.how]
        return Answers(values, status)


HOW = ("missing", "outside the domain", "nan", "inf", "huge")


def test_a_broken_chain_is_an_isolated_point_for_the_phase_however_it_breaks():
    algorithm = make("outlier-iterates")
    runs = [drive(algorithm, Breaks(how)) for how in HOW]
    ends = np.cumsum([phase.users for phase in algorithm.parameters.phases])
    for states, updates in runs:
        assert [update.diagnostics["broken_chains"] for update in updates] == [0 < k < ends[0] for k in range(ends[-1])]
        assert updates[ends[0] - 1].diagnostics["removed_chains"] == 1
        np.testing.assert_array_equal(states[2].iterates[2], states[2].released)  # the next client learns nothing
        np.testing.assert_array_equal(algorithm.model(states[-1]), algorithm.model(runs[0][0][-1]))


@given(seed=st.integers(0, 2**20))
@settings(derandomize=True, deadline=None, max_examples=20)
def test_replacing_one_user_moves_the_released_mean_by_no_more_than_the_theorem_says(seed):
    """Nothing but that user's chain changes, whatever it sends; so outlier-mean#o1 applies to the chains' averages."""
    rng = np.random.default_rng(seed)
    algorithm = make("outlier-iterates")
    phase = algorithm.parameters.phases[0]
    users = phase.users * algorithm.parameters.cohort_size
    moved = partition(seed=7, users=PROBLEM.users)[rng.integers(users)]
    sent = rng.normal(size=3) * rng.choice([0.01, 0.3, 1.0])

    class Other(Quadratic):
        def ask(self, question):
            answers = super().ask(question)
            values = answers.values.copy()
            values[question.cohort == moved] = np.clip(sent, -2, 2)
            return Answers(values, answers.status)

    worlds = [drive(algorithm, engine)[0][phase.users - 1] for engine in (Quadratic(), Other())]
    questions = [algorithm.request(state, SeededNoise(4)) for state in worlds]
    last = [e.ask(q).values for e, q in zip((Quadratic(), Other()), questions, strict=True)]
    averages = [state.averages + (values[:, 1] / phase.averaged) for state, values in zip(worlds, last, strict=True)]
    assert np.count_nonzero((averages[0] != averages[1]).any(axis=1)) <= 1
    mean, everybody = phase.release.mean, np.ones(len(averages[0]), bool)
    at = {"radius": phase.radius, "reference": np.zeros(3)}
    seen = [mean.observe(y, everybody, **at) for y in averages]
    assert abs(seen[0].score - seen[1].score) <= 2 * (len(everybody) - 1)
    if min(s.score for s in seen) >= len(everybody) * mean.core:
        shifts = [mean.aggregate(y, s.weights, **at) for y, s in zip(averages, seen, strict=True)]
        most = phase.release.mean.sensitivity * phase.radius * (1 + mean.rounding_slack(3))
        assert np.linalg.norm(shifts[0] - shifts[1]) <= most


def narrow(**more):
    """Users of the scene differ far less than its Lipschitz constant says."""
    options = INFO.options(rounds=3, broadcast=True, radius_factor=0.3, **more)
    return INFO.make(INFO.plan(PROBLEM, PRIVACY, options, "calibrated", 7))


def test_a_phase_of_scattered_chains_releases_nothing_and_says_so():
    algorithm, engine = narrow(), Quadratic()
    engine.centres = np.random.default_rng(0).normal(size=engine.centres.shape) * 50
    states, updates = drive(algorithm, engine)
    np.testing.assert_array_equal(algorithm.model(states[-1]), np.zeros(3))
    assert [update.public["halted"] for update in updates] == [True] * 3
