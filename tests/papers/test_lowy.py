"""Algorithms 1, 2 and 3 of Lowy, Liu & Asi (2024) are what their paper prints, and their plans say what that is worth.

Numbers are computed here from the paper's own lines (arXiv version of 25 October 2024, by page, line and theorem), not
by the code that is tested.
"""

import math
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from contracts import scenes
from contracts.neighbours import ABSENT, CORNERS, Pair, far
from contracts.replay import first_complaint, replay, scene
from contracts.scenes import Quadratic, empty_ledger
from contracts.test_algorithms import crashing, dying_after_every_write, require_planned
from flower.test_simulation_bits import flower
from problems import problem_of
from quoron_client.protocol.domains import L2Ball
from quoron_client.protocol.gradients import AverageGradient
from quoron_client.protocol.questions import Answers, Status
from quoron_privacy.errors import ConfigError, Infeasible, VerificationError
from quoron_privacy.noise.sources import SeededNoise
from quoron_privacy.robust.neighbour_counts import neighbour_counts
from quoron_server.algorithms import ALGORITHMS
from quoron_server.algorithms.accelerated_erm import acsa
from quoron_server.algorithms.printed.lowy_erm import PrintedERM, PrintedERMOptions, drawn, draws_near, included
from quoron_server.algorithms.printed.lowy_iterates import PrintedIterateOptions, PrintedIterates
from quoron_server.algorithms.slots import partition
from quoron_server.books.ledger import Ledger
from quoron_server.plan import Plan, Privacy
from quoron_server.rounds import run

ITERATES, ERM = ALGORITHMS["outlier-iterates"], ALGORITHMS["accelerated-erm"]
RADIUS = 2.0  # of the domain: the paper's R is twice that
SIZES = [(10**6, 100, 10, 1.0, 1e-6), (10**5, 40, 7, 8.0, 1e-9), (3 * 10**6, 1, 1000, 2.0, 1e-8)]  # n, m, d, ε, δ
every_size = pytest.mark.parametrize(("n", "m", "d", "epsilon", "delta"), SIZES)


def problem(n, m, d, smoothness=0.25):
    return problem_of(
        users=n,
        items_per_user=m,
        dimension=d,
        domain=L2Ball(RADIUS),
        lipschitz=3.0,
        smoothness=smoothness,
    )


def printed(info, n, m, d, epsilon, delta, smoothness=0.25, seed=7, **options):
    chosen = info.printed.options(**options)
    return info.plan(problem(n, m, d, smoothness), Privacy(epsilon, delta), chosen, "paper", seed)


# What is printed: Algorithm 1 (page 6) with Theorem B.1 (page 16).


@every_size
@pytest.mark.parametrize(("q", "power"), [(0.1, None), (0.07, 2.0)])
def test_every_number_of_algorithm_1_is_the_printed_one(n, m, d, epsilon, delta, q, power):
    plan = printed(ITERATES, n, m, d, epsilon, delta, shrink=q, power=power)
    parameters, big_l, big_r = plan.parameters, 3.0, 2 * RADIUS
    j = power or 1.0  # m <= n^J
    p, eta = j + 3 / 2, big_r / (big_l * math.sqrt(d * m * n * epsilon))  # Theorem B.1
    c = 100 * math.log(20 * n * m * math.exp(epsilon) / delta) / epsilon  # line 2
    assert 0 <= parameters.cohort_size - c < 6
    assert parameters.cohort_size % 6 == 0
    assert len(parameters.phases) == math.floor(math.log2(n))  # line 2
    for i, phase in enumerate(parameters.phases, 1):
        n_i = (1 - (1 / 2) ** q) * n / 2 ** (i * q)  # line 4, from here
        assert phase.users == phase.averaged == math.floor(n_i) // parameters.cohort_size  # N_i; line 8
        t_i = phase.users * m
        tau = 1000 * eta / 2 ** (p * i) * big_l * math.sqrt(t_i) * math.log(n * d * m)
        assert phase.step_size == pytest.approx(eta / 2 ** (p * i), rel=1e-12)
        assert phase.radius == pytest.approx(tau, rel=1e-12)
        sigma = 100 * tau * math.log(n / delta) ** 2 / (epsilon * parameters.cohort_size)  # line 22
        assert phase.release_scale == pytest.approx(sigma, rel=1e-12)
        assert phase.noise.scale == phase.release_scale
        mean, test = phase.release.mean, phase.release.test
        assert test.scale == 20 / epsilon  # line 10
        assert test.threshold == pytest.approx(4 * parameters.cohort_size / 5, rel=1e-12)  # line 11
        assert mean.removal_radius == pytest.approx(2, rel=2e-6)  # line 14
        assert (mean.ramp_low, mean.ramp_high) == (parameters.cohort_size / 2, 2 * parameters.cohort_size / 3)  # line 15
        assert mean.kind == "random"
    assert plan.cost.rounds == sum(phase.users for phase in parameters.phases)
    assert plan.cost.gradient_evaluations <= n * m  # Theorem B.1


def test_what_algorithm_1_leaves_open_is_named_and_said_with_the_paper_s_claim():
    plan = printed(ITERATES, *SIZES[0])
    assert {"q = 0.1", "J = 1"} <= set(plan.parameters.filled_in)
    assert plan.parameters.void == ()  # n = 1e6, δ = 1e-6, ε = 1, q = 0.1 satisfy the paper's condition
    assert (plan.parameters.epsilon, plan.parameters.delta) == (1.0, 1e-6)
    assert "the paper claims ε = 1" in plan.parameters.claim
    assert plan.parameters.simulation_only()
    assert plan.guarantee.proved is False


BROKEN_1 = [
    ((2**23 - 1, 1, 3, 1.06, 1e-12), {"shrink": 0.4}, 0.25, "Theorem B.1 needs n^(1-q) >= "),
    ((10**6, 100, 10, 1.0, 1e-6), {}, 1e9, "Theorem B.1 needs beta <= "),
    ((10**6, 100, 10, 1.0, 1e-6), {}, None, "Assumption 1.2"),
    ((10**6, 100, 10, 12.0, 1e-6), {}, 0.25, "epsilon <= 10"),
    ((10**6, 100, 10, 1.0, 1e-6), {"power": 0.1}, 0.25, "m <= n^J"),
    ((10**6, 1, 3, 1.0, 1e-12), {}, 0.25, "P(E_i, E'_i)"),
]


@pytest.mark.parametrize(("size", "options", "smoothness", "what"), BROKEN_1)
def test_numbers_that_break_a_condition_of_theorem_b_1_are_planned_and_the_plan_says_so(
    size, options, smoothness, what
):
    plan = printed(ITERATES, *size, smoothness=smoothness, **options)
    ITERATES.verify(plan)
    (said,) = plan.parameters.void
    assert what in said
    assert said in plan.parameters.remarks()


def test_algorithm_1_needs_a_user_for_every_chain_of_its_last_phase_and_the_hint_is_true():
    with pytest.raises(Infeasible) as refused:
        printed(ITERATES, 10**5, 10, 3, 4.0, 1e-6, shrink=0.3)
    enough = refused.value.users
    assert f"n >= {enough:,}" in refused.value.needs
    plan = printed(ITERATES, enough, 10, 3, 4.0, 1e-6, shrink=0.3)
    assert min(phase.users for phase in plan.parameters.phases) == 1
    with pytest.raises(Infeasible):
        printed(ITERATES, int(enough / 1.1) - 1, 10, 3, 4.0, 1e-6, shrink=0.3)
    with pytest.raises(Infeasible, match="a larger epsilon"):
        printed(ITERATES, 10**9, 10**4, 3, 0.01, 1e-12)


def test_the_condition_of_theorem_b_1_leaves_phases_with_fewer_users_than_chains():
    """It has log(n/δ) where line 2 has log(20 n m e^ε/δ)."""
    n, m, epsilon, delta, q = 2 * 10**5, 10**4, 8.0, 1e-6, 0.4
    assert n ** (1 - q) >= 100 / (1 - 0.5**q) * math.log(n / delta) / epsilon
    with pytest.raises(Infeasible):
        printed(ITERATES, n, m, 3, epsilon, delta, shrink=q)


# What is printed: Algorithm 2 (page 8), Algorithm 3 (page 9), Theorem C.3 (page 21), Theorem D.3 (page 24).


def require_phases_of_algorithm_3(plan, q, p, lam, beta, k_of):
    """Lines 2 and 4 of Algorithm 3; lines 4, 6 and 14 of Algorithm 2."""
    (n, m, d), big_l = (plan.problem.users, plan.problem.items_per_user, plan.problem.dimension), 3.0
    parameters = plan.parameters
    epsilon, delta = parameters.epsilon, parameters.delta
    tau = big_l * math.log(n * d * m) / math.sqrt(m)
    assert parameters.radius == pytest.approx(tau, rel=1e-12)
    assert len(parameters.phases) == math.floor(math.log2(n))
    first = 0
    for i, phase in enumerate(parameters.phases, 1):
        n_i = math.floor((1 - (1 / 2) ** q) * n / 2 ** (i * q))
        lam_i = lam * 2 ** (p * i)
        t_i = math.ceil((1 + math.sqrt(beta / lam_i)) * math.log(n * d * m))  # Θ̃ with the logarithm of Lemma D.2
        assert (phase.first, phase.users) == (first, n_i)
        assert phase.rounds == t_i
        assert phase.draws == math.ceil(k_of(n_i, t_i))
        assert phase.regularisation == pytest.approx(lam_i, rel=1e-12)
        assert phase.smoothness == pytest.approx(beta + lam_i, rel=1e-12)  # of F_i, line 6
        sigma = 1000 * tau * math.sqrt(t_i) * math.log(n * d * math.exp(epsilon) / delta) / (epsilon * n_i)
        assert phase.noise.scale == pytest.approx(sigma, rel=1e-12)
        assert phase.test.threshold == pytest.approx(4 * phase.draws / 5, rel=1e-12)
        assert (phase.test.threshold_scale, phase.test.score_scale) == (8 / epsilon, 16 / epsilon)
        first += n_i


@every_size
@pytest.mark.parametrize("q", [0.1, 0.3])
def test_every_number_of_algorithms_2_and_3_is_the_printed_one(n, m, d, epsilon, delta, q):
    plan = printed(ERM, n, m, d, epsilon, delta, shrink=q)
    lam = 3.0 / (2 * RADIUS) * (1 / math.sqrt(n * m) + math.sqrt(d) / (epsilon * n * math.sqrt(m)))  # Theorem C.3
    p = 3 * q + 2.5 + math.log(math.sqrt(m), n)

    def k_of(n_i, t_i):
        log = math.log(n_i**2 * m**2 * math.exp(epsilon) / delta)
        return 500 * log * (1 / epsilon + n_i * epsilon / math.sqrt(t_i * math.log(1 / delta)))

    require_phases_of_algorithm_3(plan, q, p, lam, 0.25, k_of)
    assert plan.parameters.smoothing is None
    assert plan.guarantee.epsilon == math.inf
    assert "no guarantee" in repr(plan)


@pytest.mark.parametrize(("n", "m", "d", "epsilon", "delta"), [(10**4, 10, 3, 4.0, 1e-6), (5 * 10**4, 2, 30, 8.0, 1e-9)])
def test_every_number_for_losses_that_are_not_smooth_is_that_of_theorem_d_3(n, m, d, epsilon, delta):
    plan, big_r = printed(ERM, n, m, d, epsilon, delta, smoothness=None), 2 * RADIUS
    r = math.sqrt(d) / (epsilon * n * math.sqrt(m)) * big_r
    assert plan.parameters.smoothing == pytest.approx(r, rel=1e-12)
    beta = 3.0 * math.sqrt(d) / r  # Lemma D.1
    assert beta == pytest.approx(3.0 / big_r * epsilon * n * math.sqrt(m), rel=1e-12)  # page 25
    lam = 1 / math.sqrt(m * n)  # page 24

    def k_of(n_i, t_i):  # page 25
        return n_i * epsilon / math.sqrt(t_i) + math.log(n * m * d * math.exp(epsilon) / delta) / epsilon

    require_phases_of_algorithm_3(plan, 0.1, 0.3 + 2.5 + math.log(math.sqrt(m), n), lam, beta, k_of)
    assert any("∇f_r" in said for said in plan.parameters.filled_in)


def test_constants_that_algorithm_3_hides_are_options():
    usual = printed(ERM, *SIZES[0])
    more = printed(ERM, *SIZES[0], radius_factor=2.0, rounds_factor=3.0, growth=4.0, stages=3)
    assert more.parameters.radius == 2 * usual.parameters.radius
    lam = more.parameters.phases[0].regularisation / 2**4
    assert [phase.regularisation for phase in more.parameters.phases[:3]] == [lam * 2 ** (4 * i) for i in (1, 2, 3)]
    assert len(more.parameters.phases[0].stages) == 3
    assert {"τ = 2 L log(ndm)/√m", "stages of AC-SA in a phase: 3", "p = 4"} <= set(more.parameters.filled_in)
    with pytest.raises(ConfigError, match="shrink"):
        printed(ERM, *SIZES[0], shrink=0.0)


GAPS = ("Lemmas A.8 and C.2", "The proof of Theorem C.1", "Lemma A.9", "Lemma C.4")
BROKEN_3 = [
    ((10**6, 100, 10, 1.0, 1e-9), {}, 0.25, ("K_i <= n_i",)),
    ((10**6, 100, 10, 1.0, 1e-6), {}, 0.25, ("K_i <= n_i", "δ < 1/(mn)")),
    ((200, 4, 3, 8.0, 1e-4), {}, 0.25, ("K_i <= n_i", "n^(1-q) > ")),
    ((10**6, 100, 10, 12.0, 1e-9), {"growth": 1.0}, 0.25, ("K_i <= n_i", "epsilon <= 10", "p >= 2.967")),
    ((200, 4, 3, 8.0, 1e-4), {}, None, ("K_i <= n_i", "n^(1-q) > ", "in units of L/R")),
]


@pytest.mark.parametrize(("size", "options", "smoothness", "what"), BROKEN_3)
def test_numbers_that_break_a_step_of_the_proofs_of_algorithm_3_are_planned_and_the_plan_says_so(
    size, options, smoothness, what
):
    plan = printed(ERM, *size, smoothness=smoothness, **options)
    ERM.verify(plan)
    void = plan.parameters.void
    assert len(void) == len(GAPS) + len(what)
    for words in (*GAPS, *what):
        assert sum(words in said for said in void) == 1
    mended = printed(ERM, *size, smoothness=smoothness, **options, one_threshold=True, stages=2)
    assert len(mended.parameters.void) == len(void) - 2


def test_more_steps_than_plans_have_and_phases_without_anybody_are_refused_by_name():
    with pytest.raises(Infeasible, match="printed T_i are 3,160,473 steps"):
        printed(ERM, 10**6, 100, 10, 1.0, 1e-9, smoothness=None)
    with pytest.raises(Infeasible) as refused:
        printed(ERM, 3, 4, 3, 8.0, 1e-4, shrink=1.0)
    assert "nobody" in str(refused.value)
