"""Audits of what a whole run of the one-epoch family shows, on worst-case neighbours, and of its broken twins.

The real algorithm object asks and steps; the observer reads the sums off the points that were sent out, and knows what
all other users answer there. Every false alarm has probability at most 1e-8 (`harness.FAILURE`).
"""

from dataclasses import replace

import numpy as np
import pytest

from audits.harness import epsilon_lower_bound
from one_epoch_reference import FAMILY, drive, made, released_sums, strategy
from papers.choquette_choo_lines import corollary_9
from quoron_client.protocol.domains import Box
from quoron_client.protocol.questions import Answers, Status
from quoron_privacy.accounts import gdp
from quoron_privacy.gaussian import mean_sensitivity
from quoron_privacy.noise.sources import SeededNoise
from quoron_privacy.prefix.noise import PrefixNoise
from quoron_server.algorithms import ALGORITHMS
from quoron_server.algorithms.slots import partition
from quoron_server.plan import Privacy
from quoron_server.problem import Problem

RUNS, ROUNDS, CLIP = 80_000, 8, 1.0
EPSILON, DELTA = 1.0, 1e-2
HUGE = 1e6  # what the own user sends: far beyond the clip
every_algorithm = pytest.mark.parametrize("name", FAMILY)


def planned(name, *, cohort=2, reserve=0, rounds=ROUNDS, factorisation="blt", epsilon=EPSILON, delta=DELTA):
    problem = Problem(
        users=rounds * cohort, items_per_user=1, dimension=1, domain=Box(1e9), lipschitz=CLIP, smoothness=0.25
    )
    info = ALGORITHMS[name]
    options = {"rounds": rounds, "inverse_step": 0.5, "clip_norm": CLIP, "factorisation": factorisation}
    plan = info.plan(problem, Privacy(epsilon, delta), info.options(**options, reserve=reserve), "calibrated", 3)
    info.verify(plan)
    return plan


def widened(plan, runs):
    """`runs` runs at once, one a coordinate: all is coordinatewise but the clip, and a row of ±C has norm C √runs."""
    wide = replace(plan.parameters, clip_norm=plan.parameters.clip_norm * np.sqrt(runs))
    return replace(plan, problem=replace(plan.problem, dimension=runs), parameters=wide)


class Others:
    """Everybody but the own user answers a public function of the points; the own user sends `own`, None if absent."""

    def __init__(self, plan, own, moment, reserve=0.0):
        p = plan.parameters
        self.plan, self.own, self.reserve, self.known = plan, own, reserve, []
        self.user = partition(seed=plan.seed, users=plan.problem.users)[moment * p.cohort_size]

    def ask(self, question):
        points, weights = question.task.points, question.task.weights
        answer = (
            sum(w * np.cos(9 * x) for w, x in zip(weights, points, strict=True)) * CLIP / 2 / sum(map(abs, weights))
        )
        values = np.tile(answer, (len(question.cohort), 1))
        status = np.full(len(values), Status.ANSWERED, dtype=np.uint8)
        divisor = self.plan.parameters.divisor
        values[divisor:] = self.reserve  # reserves know what hurts: they stand at the other end
        mine = question.cohort == self.user
        self.known.append(answer * (divisor - mine.any()) / divisor)
        values[mine] = 0.0 if self.own is None else self.own
        status[mine] = Status.ANSWERED if self.own is not None else Status.MISSING
        return Answers(values, status)


def statistic(plan, states, known, moment):
    """⟨C[:, moment], C (w - known)⟩, sufficient for the pair of worlds; w holds what each round added to the sums."""
    sums = released_sums(plan, states)
    if plan.parameters.gradients == "independent":
        return sums[moment] / (moment + 1) - known[moment]
    left = np.diff(sums, axis=0, prepend=0.0) - np.array(known)
    matrix = strategy(plan.parameters.factorisation, plan.parameters.rounds)
    return matrix[:, moment] @ (matrix @ left)


def world(plan, own, seed, moment=0, **engine):
    def draw(runs):
        wide = widened(plan, runs)
        others = Others(wide, own, moment, **engine)
        return statistic(wide, drive(made(wide), others, SeededNoise(seed)), others.known, moment)

    return draw


def audit(plan, ends=(HUGE, -HUGE), *, delta=DELTA, runs=RUNS, **keywords):
    worlds = (world(plan, own, 61 + i, **keywords) for i, own in enumerate(ends))
    return epsilon_lower_bound(*worlds, delta=delta, draws=runs)


def changed(plan, **numbers):
    return replace(plan, parameters=replace(plan.parameters, **numbers))


def less_noise(plan, factor):
    return changed(plan, noise_scale=plan.parameters.noise_scale / factor)


@every_algorithm
def test_a_run_never_exceeds_its_claimed_epsilon(name):
    assert 0.65 < audit(planned(name)) <= EPSILON


@every_algorithm
def test_a_user_of_a_later_round_is_protected_too(name):
    assert audit(planned(name), moment=5) <= EPSILON


@every_algorithm
def test_the_audit_catches_a_quarter_of_the_noise(name):
    assert audit(less_noise(planned(name), 4)) > EPSILON


@pytest.mark.parametrize("name", ["accelerated-srgd", "srgd", "dp-ftrl"])
@pytest.mark.parametrize("factorisation", ["blt", "tree"])
def test_the_audit_catches_a_forgotten_column_norm(name, factorisation):
    plan = planned(name, factorisation=factorisation)
    p = plan.parameters
    norm = PrefixNoise(p.rounds, p.sensitivity, p.noise_scale, factorisation).column_norm
    assert audit(less_noise(plan, norm)) > EPSILON


@every_algorithm
def test_the_audit_catches_a_missing_clip(name):
    assert audit(changed(planned(name), clip_norm=1e6), ends=(3 * CLIP, -3 * CLIP)) > EPSILON


@every_algorithm
def test_the_audit_catches_the_sensitivity_of_absence_for_a_replaced_user(name):
    assert audit(less_noise(planned(name), 2)) > EPSILON


class TestReserves:
    """Four asked, two count: when the own user is absent, a reserve at the other end of the ball steps in."""

    SWAP = (HUGE, None)

    @every_algorithm
    def test_an_absence_that_brings_in_a_reserve_is_protected(self, name):
        plan = planned(name, cohort=4, reserve=2)
        assert 0.65 < audit(plan, self.SWAP, reserve=-HUGE) <= EPSILON

    def test_the_audit_catches_zero_out_noise_with_reserves(self):
        plan = less_noise(planned("accelerated-srgd", cohort=4, reserve=2), 2)
        assert audit(plan, (HUGE, 0.0)) <= EPSILON  # a user that answers zero is protected by half the noise,
        assert audit(plan, self.SWAP, reserve=-HUGE) > EPSILON  # a user that is absent is not


def test_the_audit_catches_a_queue_in_which_everybody_moves_up():
    """One user a round, in a common queue: if the first is absent, every later round holds another user."""

    class Queue:
        def __init__(self, absent):
            self.absent = absent

        def ask(self, question):
            end = 1.0 if (question.round + self.absent) % 2 == 0 else -1.0
            return Answers(np.full((1, question.task.points.shape[1]), end * CLIP), np.zeros(1, np.uint8))

    plan = planned("accelerated-srgd", cohort=1)
    ends = (-1.0) ** np.arange(ROUNDS)  # the direction in which the two worlds differ

    def draw(absent):
        def sample(runs):
            wide = widened(plan, runs)
            added = np.diff(
                released_sums(wide, drive(made(wide), Queue(absent), SeededNoise(absent))), axis=0, prepend=0.0
            )
            matrix = strategy("blt", ROUNDS)
            return (matrix @ ends) @ (matrix @ added)

        return sample

    assert epsilon_lower_bound(draw(0), draw(1), delta=DELTA, draws=RUNS) > EPSILON


class TestCorollary9:
    """Zero-out and the tree, at the printed noise, against (ε, δ/2): the other half of δ pays for clipping."""

    EPSILON, DELTA = 4.0, 1e-2
    ENDS = (HUGE, 0.0)

    def plan(self, scale):
        return changed(
            planned("accelerated-srgd", factorisation="tree"),
            sensitivity=mean_sensitivity(CLIP, 2, "zero-out"),
            noise_scale=scale,
        )

    def test_the_audit_catches_the_noise_as_printed(self):
        printed = corollary_9(mean_sensitivity(CLIP, 2, "zero-out"), ROUNDS, self.EPSILON, 2 * self.DELTA)
        assert audit(self.plan(printed), self.ENDS, delta=self.DELTA) > self.EPSILON

    def test_the_tree_at_its_own_calibration_passes(self):
        noise = PrefixNoise.for_mu(
            rounds=ROUNDS,
            sensitivity=mean_sensitivity(CLIP, 2, "zero-out"),
            mu=gdp.mu_for(self.EPSILON, self.DELTA, gaussians=ROUNDS),
            dimension=1,
            factorisation="tree",
        )
        assert 2.5 < audit(self.plan(noise.scale), self.ENDS, delta=self.DELTA) <= self.EPSILON


class TestOneRunAtATime:
    """The same without widening: every run is an object of its own, with its own noise, made from a verified plan."""

    RUNS = 200

    def found(self, plan, make, draws=RUNS):
        def one_by_one(own, start):
            def draw(runs):
                out = np.empty(runs)
                for i in range(runs):
                    others = Others(plan, own, 2)
                    out[i] = statistic(plan, drive(make(plan), others, SeededNoise(start + i)), others.known, 2)[0]
                return out

            return draw

        return epsilon_lower_bound(one_by_one(HUGE, 0), one_by_one(-HUGE, 10**6), delta=DELTA, draws=draws)

    def test_the_promise_holds(self):
        assert self.found(planned("accelerated-srgd"), ALGORITHMS["accelerated-srgd"].make) <= EPSILON

    def test_an_eighth_of_the_noise_is_caught(self):
        assert self.found(less_noise(planned("accelerated-srgd"), 8), made) > EPSILON

    @pytest.mark.slow
    def test_a_quarter_of_the_noise_is_caught(self):
        assert self.found(less_noise(planned("accelerated-srgd"), 4), made, 4 * self.RUNS) > EPSILON
