"""Phased ERM: how far one user moves what fixed numbers of steps reach, what breaks that, and what plans refuse."""

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.scenes import PRIVACY, PROBLEM, make_plan
from problems import problem_of
from quoron_client.protocol.domains import L2Ball
from quoron_client.protocol.questions import Answers, Status
from quoron_privacy.accounts.gdp import mu_for
from quoron_privacy.errors import ConfigError
from quoron_privacy.noise.streams import SeededNoise
from quoron_server.algorithms import ALGORITHMS
from quoron_server.algorithms.phased_erm.method import Phase, PhasedERM, PhasedERMParameters, momentum
from quoron_server.algorithms.phased_erm.plan import ROUNDING, shift
from quoron_server.parameters import Kind
from quoron_server.wording import sentence

INFO = ALGORITHMS["phased-erm"]
CHECK = problem_of(users=50_000, items_per_user=50, dimension=10, domain=L2Ball(1.0), lipschitz=1.0, smoothness=1.0)
SMALLER, LARGER = 1 / 1.01, 2 / 1.02  # 1 / (β + λ) and 2 / (β + 2λ)


@pytest.mark.parametrize(
    ("rounds", "step", "moved", "scale"),
    [
        (10, SMALLER, 3.789e-4, 1.6005e-3),
        (100, SMALLER, 2.521e-3, 1.0651e-2),
        (1000, SMALLER, 4.000e-3, 1.6898e-2),
        (10, LARGER, 7.19e-4, 3.04e-3),
        (100, LARGER, 3.45e-3, 1.46e-2),
        (1000, LARGER, 4.00e-3, 1.69e-2),
    ],
)
def test_sensitivity_and_noise_are_the_notes_check_values(rounds, step, moved, scale):
    found = shift(CHECK, "gd", 50_000, rounds, step, 0.01)
    assert found == pytest.approx(moved, rel=4e-3 if step == LARGER else 2e-4)
    assert found / mu_for(1.0, 1e-6) == pytest.approx(scale, rel=4e-3 if step == LARGER else 2e-4)


@given(
    rounds=st.integers(1, 3000),
    step=st.floats(1e-9, 1.0),
    pull=st.floats(0.0, 1.0),
    users=st.integers(1, 10**6),
)
@settings(derandomize=True, deadline=None)
def test_the_closed_form_is_never_below_the_recursion_and_hardly_above(rounds, step, pull, users):
    distance = 0.0
    for _ in range(rounds):
        distance = (1 - step * pull) * distance + 2 * step / users
    found = shift(CHECK, "gd", users, rounds, step, pull)
    assert distance <= found <= distance * ROUNDING * (1 + 1e-6)


class Logistic:
    """One item a user, features of norm at most one; some users are absent, the same whatever is asked."""

    def __init__(self, seed, users, dimension, absent=0.2):
        rng = np.random.default_rng(seed)
        self.features = rng.standard_normal((users, dimension))
        self.features /= np.linalg.norm(self.features, axis=1, keepdims=True)
        self.away = np.random.default_rng(seed + 1).random((64, users)) < absent

    def ask(self, question):
        rows = self.features[question.cohort]
        values = -rows / (1 + np.exp(rows @ question.task.points[0]))[:, None]
        status = np.where(self.away[question.round][question.cohort], Status.MISSING, Status.ANSWERED).astype(np.uint8)
        return Answers(np.where(status[:, None] == Status.ANSWERED, values, 0.0), status)


class Silent(SeededNoise):
    """No Gaussian noise."""

    def stream(self, *labels):
        return Quiet()


class Quiet:
    def gaussian_steps(self, shape):
        return np.zeros(shape, np.int64)


def last_point(algorithm, engine):
    """The state after the last step of the first phase, its noise taken out."""
    state = algorithm.init()
    for _ in range(algorithm.parameters.phases[0].rounds):
        question = algorithm.request(state, SeededNoise(4))
        state = algorithm.update(state, engine.ask(question), Silent(1)).state
    return state


def one_phase(*, users, rounds, step, pull, solver="gd", dimension=3, smoothness=0.25, radius=1.0):
    """An algorithm of one phase over all users, with nearly no noise."""
    problem = problem_of(
        users=users,
        items_per_user=1,
        dimension=dimension,
        domain=L2Ball(radius),
        lipschitz=1.0,
        smoothness=smoothness,
    )
    moved = shift(problem, solver, users, rounds, step, pull)
    phase = Phase(0, users, rounds, step, pull, moved, 1e-6)
    plan = replace(make_plan("phased-erm"), problem=problem, parameters=PhasedERMParameters(solver, (phase,), 1.0))
    return PhasedERM(plan)


@given(
    seed=st.integers(0, 2**20),
    moved=st.integers(0, 39),
    sign=st.sampled_from([-1.0, 0.0, 1.0]),
    pull=st.sampled_from([0.0, 0.01, 1.0]),
    rounds=st.integers(1, 40),
)
@settings(derandomize=True, deadline=None, max_examples=60)
def test_replacing_one_user_moves_the_last_point_by_at_most_the_sensitivity(seed, moved, sign, pull, rounds):
    algorithm = one_phase(users=40, rounds=rounds, step=2 / (0.25 + 2 * pull), pull=pull)
    one, other = Logistic(seed, 40, 3), Logistic(seed, 40, 3)
    other.features[moved] *= sign if sign <= 0 else 1.0
    if sign > 0:
        other.features[moved] = np.roll(other.features[moved], 1)
    other.away[:, moved] ^= np.random.default_rng(seed).random(64) < 0.5  # its own absences may differ
    ends = [last_point(algorithm, engine).released for engine in (one, other)]
    assert np.linalg.norm(ends[0] - ends[1]) <= algorithm.parameters.phases[0].sensitivity * (1 + 1e-12) + 1e-14


class Linear:
    """Losses of slope ±1 on a line; with `looks` the others answer only up to a level."""

    def __init__(self, sign, *, looks=False, level=0.4995):
        self.sign, self.looks, self.level = sign, looks, level

    def ask(self, question):
        at, size = question.task.points[0, 0], len(question.cohort)
        values, status = np.full((size, 1), -1.0), np.zeros(size, np.uint8)
        own = question.cohort == 0
        values[own] = self.sign
        if self.looks and at > self.level:
            values[~own], status[~own] = 0.0, Status.MISSING
        return Answers(values, status)


@pytest.mark.parametrize("pull", [0.0, 0.01, 0.5])
def test_two_lines_use_all_of_the_sensitivity(pull):
    algorithm = one_phase(users=50, rounds=20, step=0.01, pull=pull, dimension=1)
    ends = [float(last_point(algorithm, Linear(sign)).released[0]) for sign in (-1.0, 1.0)]
    bound = algorithm.parameters.phases[0].sensitivity
    assert 0.99999 * bound < ends[0] - ends[1] <= bound


def test_absences_that_look_at_the_iterate_break_the_bound():
    """What the promise assumes away: others who answer up to a level only move the point 250 times as far."""
    algorithm = one_phase(users=1000, rounds=2, step=0.5, pull=0.01, dimension=1)
    ends = [float(last_point(algorithm, Linear(sign, looks=True)).released[0]) for sign in (-1.0, 1.0)]
    assert abs(ends[0] - ends[1]) == pytest.approx(0.4975, abs=2e-3)
    assert algorithm.parameters.phases[0].sensitivity == pytest.approx(0.0020, abs=1e-5)
    assert INFO.plan(PROBLEM, PRIVACY, INFO.options(), "calibrated", 7).guarantee.rests_on(Kind.UNMOVED_PARTICIPATION)


class Bowl:
    """Each user's loss is a quadratic with curvatures up to β about a centre of its own."""

    def __init__(self, seed, users, dimension, smoothness):
        rng = np.random.default_rng(seed)
        self.bends = smoothness * np.linspace(0.0, 1.0, dimension) ** 2
        self.centres = 0.3 * rng.standard_normal((users, dimension))
        self.absent = None

    def ask(self, question):
        values = self.bends * (question.task.points[0] - self.centres[question.cohort])
        status = np.zeros(len(values), np.uint8)
        if question.round == self.absent:
            values[0], status[0] = 0.0, Status.MISSING
        return Answers(values, status)


@pytest.mark.parametrize(("pull", "rounds"), [(0.05, 60), (0.5, 30), (0.002, 200)])
def test_the_accelerated_solver_is_as_close_to_the_minimiser_as_its_certificate_says(pull, rounds):
    smoothness, users = 0.25, 30
    algorithm = one_phase(users=users, rounds=rounds, step=1.0, pull=pull, solver="agd", dimension=6, radius=9.0)
    engine = Bowl(3, users, 6, smoothness)
    exact = engine.bends * engine.centres.mean(axis=0) / (engine.bends + pull)

    def gap(state):
        away = state.x - exact
        return float(np.sum((engine.bends + pull) * away**2) + pull * np.sum((state.z - exact) ** 2)) / 2

    state, gaps = algorithm.init(), []
    for _ in range(rounds - 1):
        gaps.append(gap(state))
        question = algorithm.request(state, SeededNoise(4))
        state = algorithm.update(state, engine.ask(question), Silent(1)).state
    share = momentum(pull, smoothness)
    for before, after in pairwise(gaps):
        assert after <= (1 - share) * before * (1 + 1e-9) + 1e-25
    missed = math.sqrt(2) / pull * (1 - share) ** (rounds / 2)
    assert np.linalg.norm(last_point(algorithm, engine).released - exact) <= missed


def test_one_absent_user_voids_the_certificate():
    algorithm = one_phase(users=30, rounds=400, step=1.0, pull=0.05, solver="agd", dimension=6, radius=9.0)
    engine = Bowl(3, 30, 6, 0.25)
    engine.centres[0] = 1.0
    exact = engine.bends * engine.centres.mean(axis=0) / (engine.bends + 0.05)
    missed = math.sqrt(2) / 0.05 * (1 - momentum(0.05, 0.25)) ** 200
    assert np.linalg.norm(last_point(algorithm, engine).released - exact) <= missed + 1e-9  # the noise's grid
    engine.absent = 399
    assert np.linalg.norm(last_point(algorithm, engine).released - exact) > 1e3 * (missed + 1e-9)


def test_the_accelerated_solver_is_refused_outside_simulation():
    make_plan("phased-erm").require_deployable(trust_clients=True)
    with pytest.raises(ConfigError, match="central-release"):
        make_plan("phased-erm").require_deployable(trust_clients=False)
    accelerated = make_plan("phased-erm/agd")
    assert "answers every one of its questions" in sentence(accelerated.guarantee)
    with pytest.raises(ConfigError, match="one absent client voids"):
        accelerated.require_deployable(trust_clients=True)
    assert INFO.gaussian(accelerated) is None


def tampered(name):
    plan = make_plan(name)
    p, problem = plan.parameters, plan.problem
    first, last = p.phases

    def phases(*each):
        return replace(plan, parameters=replace(p, phases=each))

    one_step = shift(problem, p.solver, first.users, 1, first.step_size, first.regularisation)
    return {
        "one step's sensitivity": phases(replace(first, sensitivity=one_step / 2), last),
        "a larger step with the smaller one's noise": phases(replace(first, step_size=1.01 * first.step_size), last),
        "a step that does not contract": phases(replace(first, step_size=10.0), last),
        "one round more": phases(replace(first, rounds=first.rounds + 1), last),
        "phases that share a user": phases(first, replace(last, first=last.first - 1)),
        "half the noise": phases(replace(first, release_scale=first.release_scale / 2), last),
        "less regularisation": phases(replace(first, regularisation=first.regularisation / 2), last),
        "no phase": replace(plan, parameters=replace(p, phases=())),
        "no assumption on absences": replace(plan, guarantee=replace(plan.guarantee, assumptions=())),
    }
