"""Algorithms 1, 2 and 3 of Lowy, Liu & Asi (2024) are what their paper prints, and their plans say what that is worth.

Numbers are computed here from the paper's own lines (arXiv version of 25 October 2024, by page, line and theorem), not
by the code that is tested.
"""

import json
import math
import re
import shutil
import sqlite3
from contextlib import closing, suppress
from dataclasses import replace
from functools import cache
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import scipy
import scipy.optimize
from flwr.supercore.task_identity import TaskIdentity
from scipy.spatial.distance import cdist

from contracts import scenes
from contracts.charges import charges
from contracts.neighbours import ABSENT, CORNERS, Pair, far, threshold
from contracts.replay import first_complaint, replay, scene
from contracts.scenes import Quadratic, empty_ledger
from contracts.test_algorithms import Crash, crashing, require_planned
from contracts.test_tampering import tampered
from cover import by_default
from flower.grids import FakeTime
from flower.test_simulation_bits import flower
from papers.lowy_table import PAGE, ROUGH, SMOOTH, TABLES, table
from papers.lowy_table import problem as small_problem
from problems import problem_of
from quoron.cli.app import invoke
from quoron.run_folder import RunFolder
from quoron_client.protocol.domains import L2Ball
from quoron_client.protocol.questions import AverageGradient, Status
from quoron_privacy.errors import ConfigError, Infeasible, RunError, VerificationError
from quoron_privacy.noise.streams import SeededNoise
from quoron_privacy.robust.outlier_mean import neighbour_counts
from quoron_server.algorithms import ALGORITHMS, acsa
from quoron_server.algorithms.printed.lowy_erm import AboveThreshold, PrintedERM, drawn, draws_near, included
from quoron_server.algorithms.printed.lowy_iterates import PrintedIterates
from quoron_server.algorithms.slots import partition
from quoron_server.flower import exchange
from quoron_server.plan import Privacy, RunPlan
from quoron_server.rounds import run
from quoron_server.storage.ledger import Ledger

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
    chains = parameters.cohort_size
    assert 0 <= chains - c < 6
    assert chains % 6 == 0
    assert len(parameters.phases) == math.floor(math.log2(n))  # line 2
    for i, phase in enumerate(parameters.phases, 1):
        n_i = (1 - (1 / 2) ** q) * n / 2 ** (i * q)  # line 4, from here
        assert phase.users == phase.averaged == math.floor(n_i) // chains  # N_i; line 8
        t_i = phase.users * m
        tau = 1000 * eta / 2 ** (p * i) * big_l * math.sqrt(t_i) * math.log(n * d * m)
        assert phase.step_size == pytest.approx(eta / 2 ** (p * i), rel=1e-12)
        assert phase.radius == pytest.approx(tau, rel=1e-12)
        sigma = 100 * tau * math.log(n / delta) ** 2 / (epsilon * chains)  # line 22
        assert phase.release_scale == pytest.approx(sigma, rel=1e-12)
        assert phase.noise.scale == phase.release_scale
        mean, test = phase.release.mean, phase.release.test
        assert test.scale == 20 / epsilon  # line 10
        assert test.threshold == pytest.approx(4 * chains / 5, rel=1e-12)  # line 11
        assert mean.removal_radius == pytest.approx(2, rel=2e-6)  # line 14
        assert (mean.ramp_low, mean.ramp_high) == (
            parameters.cohort_size / 2,
            2 * parameters.cohort_size / 3,
        )  # line 15
        assert mean.kind == "random"
    assert plan.cost.rounds == sum(phase.users for phase in parameters.phases)
    assert plan.cost.gradient_evaluations <= n * m  # Theorem B.1


def test_what_algorithm_1_leaves_open_is_named_and_said_with_the_paper_s_claim():
    plan = printed(ITERATES, *SIZES[0])
    assert {"q = 0.1", "J = 1"} <= set(plan.parameters.filled_in)
    assert "an average iterate is the mean of the points after each step" in plan.parameters.filled_in
    assert plan.parameters.void == ()  # n = 1e6, δ = 1e-6, ε = 1, q = 0.1 satisfy the paper's condition
    assert (plan.parameters.epsilon, plan.parameters.delta) == (1.0, 1e-6)
    assert "the paper claims ε = 1" in plan.parameters.remarks()[0]
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


def test_losses_that_are_not_convex_are_planned_and_the_plan_says_so():
    size = problem(10**6, 100, 10)
    for info in (ITERATES, ERM):
        plan = info.plan(replace(size, convex=False), Privacy(1.0, 1e-9), info.printed.options(), "paper")
        assert sum("Assumption 1.1 fails: the losses are not convex." in said for said in plan.parameters.void) == 1


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


@pytest.mark.parametrize(("epsilon", "holds"), [(0.25, True), (1.0, True), (2.5, True), (10.0, False)])
def test_the_gaussian_mechanism_of_lemma_a_6_holds_where_algorithm_1_uses_it_and_not_for_every_epsilon(epsilon, holds):
    """Theorem B.1 uses it at ε/4; the exact δ of a Gaussian with the σ of Definition A.5, over what it was given."""
    delta = np.append(np.logspace(-30, -1e-3, 3000), 0.06)
    mu = epsilon / np.sqrt(2 * np.log(2 / delta))  # Δ/σ
    least = scipy.special.ndtr(mu / 2 - epsilon / mu) - np.exp(epsilon) * scipy.special.ndtr(-mu / 2 - epsilon / mu)
    used = least / delta
    assert (used.max() < 1 / 3) == holds
    if not holds:
        assert f"{used[-1]:.1f} times" in PAGE.read_text(encoding="utf-8")


def test_what_the_last_display_of_the_proof_of_theorem_b_1_leaves_out_fits_into_delta():
    """ζ = δ/(10 e^ε): ζ(2 e^{ε/2} + 1) of the display, and δ/n + ζ of (4), in units of δ (pages 17 and 18)."""
    for epsilon in np.linspace(0, 10, 101):
        zeta = math.exp(-epsilon) / 10
        assert zeta * (2 * math.exp(epsilon / 2) + 1) + 1 / 2 + zeta < 1  # n >= 2


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


@pytest.mark.parametrize(
    ("n", "m", "d", "epsilon", "delta"), [(10**4, 10, 3, 4.0, 1e-6), (5 * 10**4, 2, 30, 8.0, 1e-9)]
)
def test_every_number_for_losses_that_are_not_smooth_is_that_of_theorem_d_3(n, m, d, epsilon, delta):
    plan, big_r = printed(ERM, n, m, d, epsilon, delta, smoothness=None), 2 * RADIUS
    r = math.sqrt(d) / (epsilon * n * math.sqrt(m)) * big_r
    assert plan.parameters.smoothing == pytest.approx(r, rel=1e-12)
    algorithm = ERM.make(plan)
    question = algorithm.request(algorithm.init(), SeededNoise(1))
    assert question.task.smoothing.radius == plan.parameters.smoothing
    beta = 3.0 * math.sqrt(d) / r  # Lemma D.1
    assert beta == pytest.approx(3.0 / big_r * epsilon * n * math.sqrt(m), rel=1e-12)  # page 25
    lam = 1 / math.sqrt(m * n)  # page 24

    def k_of(n_i, t_i):  # page 25
        return n_i * epsilon / math.sqrt(t_i) + math.log(n * m * d * math.exp(epsilon) / delta) / epsilon

    require_phases_of_algorithm_3(plan, 0.1, 0.3 + 2.5 + math.log(math.sqrt(m), n), lam, beta, k_of)
    assert any("∇f_r" in said for said in plan.parameters.filled_in)


def test_constants_that_algorithm_3_hides_are_options():
    usual = printed(ERM, *SIZES[0])
    more = printed(ERM, *SIZES[0], radius_factor=2.0, rounds_factor=3.0, growth=4.0)
    assert more.parameters.radius == 2 * usual.parameters.radius
    lam = more.parameters.phases[0].regularisation / 2**4
    assert [phase.regularisation for phase in more.parameters.phases[:3]] == [lam * 2 ** (4 * i) for i in (1, 2, 3)]
    assert "α = 2/(t+1) and γ = 4(β + λ_i)/(t(t+1)) in step t of AC-SA" in more.parameters.filled_in
    assert {"τ = 2 L log(ndm)/√m", "p = 4"} <= set(more.parameters.filled_in)
    for wrong in ({"shrink": 0.0}, {"shrink": 60.0}, {"growth": 1e3}, {"rounds_factor": 1e50}):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            printed(ERM, *SIZES[0], **wrong)
    for wrong in ({"shrink": 60.0}, {"power": 1e3}, {"power": -1.0}):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            printed(ITERATES, *SIZES[0], **wrong)


GAPS = ("Lemmas A.8, A.9 and C.2", "amplifies by sampling", "Lemma A.9", "Lemma C.4")
BROKEN_3 = [
    ((10**6, 100, 10, 1.0, 1e-9), {}, 0.25, ("K_i <= n_i",)),
    ((10**6, 100, 10, 1.0, 1e-6), {}, 0.25, ("K_i <= n_i", "δ < 1/(mn)")),
    ((200, 4, 3, 8.0, 1e-4), {}, 0.25, ("K_i <= n_i", "n^(1-q) > ")),
    ((10**6, 100, 10, 12.0, 1e-9), {"growth": 1.0}, 0.25, ("K_i <= n_i", "epsilon <= 10", "p >= 2.967")),
    ((200, 4, 3, 8.0, 1e-4), {}, None, ("K_i <= n_i", "n^(1-q) > ", "log(nmde^ε/δ)/ε = 1,562", "in units of L/R")),
    (
        (10**5, 1, 3, 0.5, 1e-9),
        {"rounds_factor": 1e-3},
        None,
        ("n^(1-q) > ", "log(nmde^ε/δ)/ε = ", "T_i K_i >= n_i", "in units of L/R"),
    ),
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


def test_noise_alone_ends_a_run_of_theorem_d_3_after_some_steps_as_the_page_says():
    """All agree: s = K. A step passes unless Lap(16/ε) falls K/5 short of Lap(8/ε) (Algorithm 2, lines 4, 6, 7)."""
    chances = []
    for n, m, d, epsilon in ROUGH[:3]:
        phase = ERM.plan(small_problem((n, m, d, epsilon), None), Privacy(epsilon, 1e-9), None, "paper").parameters
        phase = phase.phases[0]
        margin, (a, b) = phase.draws / 5, (8 / epsilon, 16 / epsilon)
        chances.append((b**2 * math.exp(-margin / b) - a**2 * math.exp(-margin / a)) / (b**2 - a**2) / 2)
        assert (1 - chances[-1]) ** phase.rounds < 1e-100
    assert f"{min(chances):.2f} to {max(chances):.2f}" in PAGE.read_text(encoding="utf-8")


def test_more_steps_than_plans_have_and_phases_without_anybody_are_refused_by_name():
    with pytest.raises(Infeasible, match="printed T_i are 3,160,473 steps"):
        printed(ERM, 10**6, 100, 10, 1.0, 1e-9, smoothness=None)
    with pytest.raises(Infeasible, match="steps, and plans have"):
        printed(ERM, 10**6, 100, 10, 1.0, 1e-9, smoothness=1e30)
    with pytest.raises(Infeasible) as refused:
        printed(ERM, 3, 4, 3, 8.0, 1e-4, shrink=1.0)
    assert "nobody" in str(refused.value)


# What the printed numbers are worth.


def theorem_o5(plan, phase, delta):
    """The least ε of outlier-mean#o5 with #o2 for one phase, from their statements (docs/privacy/outlier-mean.md)."""
    c, b = plan.parameters.cohort_size, 20 / plan.parameters.epsilon
    a, ramp_high, step = c // 2, 2 * c // 3, 2 * (c - 1) / c
    k = math.floor(4 * c / 5 - step - b * math.log(1 / (2 * delta)))
    assert ramp_high <= k - 1
    flips = np.arange(61)
    chances = scipy.stats.binom.pmf(flips, c - k, 1 / (ramp_high - a))
    mu = phase.radius / k * (4 + 2 * flips * (2 - max(a + k - c, 0) / c)) / phase.release_scale

    def gaussian(epsilon):  # δ_G, mixed over flips
        e = np.asarray(epsilon)[..., None]
        return (scipy.special.ndtr(mu / 2 - e / mu) - np.exp(e) * scipy.special.ndtr(-mu / 2 - e / mu)) @ chances

    u = np.linspace(-30, 10, 4001)
    tails = [np.where(v > 0, np.exp(-np.abs(v)) / 2, 1 - np.exp(-np.abs(v)) / 2) for v in (u, u + step / b)]

    def missing(epsilon):
        return np.max(tails[0] * gaussian(epsilon - np.log(tails[0] / tails[1]))) - delta

    least = step / b  # what a decision costs by itself
    return least if missing(least) <= 0 else scipy.optimize.brentq(missing, least, 10 * least, xtol=1e-12)


@pytest.mark.parametrize(
    "size", [(10**6, 100, 10, 1.0, 1e-6), (10**6, 100, 10, 1.0, 1e-9), (2 * 10**4, 4, 3, 10.0, 1e-3)]
)
def test_our_epsilon_of_algorithm_1_is_that_of_theorem_o5_and_a_tenth_of_the_claim(size):
    plan = printed(ITERATES, *size)
    found = plan.guarantee.epsilon
    phases = plan.parameters.phases
    assert np.ptp([phase.release_scale / phase.radius for phase in phases]) < 1e-12  # all cost the same
    own = theorem_o5(plan, phases[0], size[-1])
    assert own * (1 - 1e-5) <= found <= own * 1.001
    assert 0.09 < found / plan.parameters.epsilon < 0.11


@pytest.mark.parametrize("epsilon", [0.05, 1.0, 15.0])
@pytest.mark.parametrize("delta", by_default([1e-12, 1e-3, 0.1], [1e-3]))
def test_theorem_o5_finds_an_epsilon_of_algorithm_1_for_all_that_can_be_asked_for(epsilon, delta):
    plan = printed(ITERATES, 10**8, 2, 3, epsilon, delta)
    ITERATES.verify(plan)
    assert 0.09 < plan.guarantee.epsilon / epsilon < 0.12


def worst_of_scores(plan, epsilon):
    """Largest divergence at ε, either order, over integer scores that one user can be apart, and silence with it.

    Line 11 as it is drawn, S + L >= ⌈Cθ⌉ with L of scale Cb; shifts are those of outlier-mean#o2 at the core, and
    below it the means may be anywhere.
    """
    phase, size = plan.parameters.phases[0], plan.parameters.cohort_size
    mean, scale = phase.release.mean, size * 20 / plan.parameters.epsilon
    mus, limit = np.array(mean.shifts) / phase.release.noise_multiplier, math.ceil(4 * size**2 / 5)
    scores = np.unique(np.append(np.arange(size, size**2, 997), size * mean.core + np.arange(-2 * size, 2 * size)))
    worst = 0.0
    for apart in (0, 1, size, 2 * (size - 1)):
        ends = np.minimum(scores + apart, size**2), scores
        pass_ = [scipy.stats.laplace.sf((limit - end) / scale) for end in ends]
        fail = [scipy.stats.laplace.cdf((limit - end) / scale) for end in ends]
        for one, other in ((0, 1), (1, 0)):
            at = (epsilon + np.log(pass_[other] / pass_[one]))[:, None]
            spoken = scipy.special.ndtr(mus / 2 - at / mus) - np.exp(at) * scipy.special.ndtr(-mus / 2 - at / mus)
            spoken = np.where(scores >= size * mean.core, spoken @ np.array(mean.chances), 1.0)
            silent = np.maximum(fail[one] - math.exp(epsilon) * fail[other], 0)
            worst = max(worst, float(np.max(pass_[one] * spoken + silent)))
    return worst


def test_no_two_scores_that_one_user_can_be_apart_cost_more_than_our_epsilon_of_algorithm_1():
    plan = small_1()
    assert worst_of_scores(plan, plan.guarantee.epsilon) <= plan.guarantee.delta * (1 + 1e-9)
    assert worst_of_scores(plan, 0.97 * plan.guarantee.epsilon) > plan.guarantee.delta


def with_noise(plan, factor, stated):
    """Every phase with so many times its noise; its mechanism says that it has `stated` times as much."""
    phases = []
    for phase in plan.parameters.phases:
        release = replace(phase.release, noise_multiplier=phase.release.noise_multiplier * stated)
        phases.append(replace(phase, release_scale=phase.release_scale * factor, release=release))
    return replace(plan, parameters=replace(plan.parameters, phases=tuple(phases)))


def test_a_printed_plan_with_half_the_noise_or_another_test_is_refused():
    plan = small_1()
    ITERATES.verify(plan)
    ITERATES.verify(with_noise(plan, 1.1, 1.099))
    for broken in (with_noise(plan, 0.5, 0.499), with_noise(plan, 0.5, 1.0)):
        with pytest.raises(VerificationError):
            ITERATES.verify(broken)
    phases = plan.parameters.phases
    for change in ({"scale": 1.0}, {"threshold": 0.7 * plan.parameters.cohort_size}):
        release = replace(phases[0].release, test=replace(phases[0].release.test, **change))
        other = replace(plan.parameters, phases=(replace(phases[0], release=release), *phases[1:]))
        with pytest.raises(VerificationError):
            ITERATES.verify(replace(plan, parameters=other))
    with pytest.raises(VerificationError):
        ITERATES.verify(replace(plan, guarantee=replace(plan.guarantee, epsilon=0.99 * plan.guarantee.epsilon)))


@pytest.mark.parametrize("wrong", [0.0, -1.0, 1e-300])
def test_a_radius_that_no_outlier_mean_takes_is_refused_before_anybody_is_asked(wrong):
    plan = small_1()
    radii = [parameters for where, parameters in tampered(plan.parameters, wrong) if where.endswith("radius")]
    assert len(radii) >= 2
    for parameters in radii:
        with pytest.raises(VerificationError, match="Expected radius in"):
            ITERATES.verify(replace(plan, parameters=parameters))


@pytest.mark.parametrize("name", ["3", "3, not smooth"])
def test_a_plan_of_algorithm_3_that_claims_any_epsilon_or_a_proof_is_refused(name):
    plan = PLANS[name]()
    ERM.verify(plan)
    assert plan.guarantee.epsilon == math.inf
    for claim in (plan.parameters.epsilon, 60.0, 1e308):
        with pytest.raises(VerificationError, match="Expected epsilon of at least inf"):
            ERM.verify(replace(plan, guarantee=replace(plan.guarantee, epsilon=claim)))
    for change in ({"proved": True}, {"proved": True, "epsilon": 10.0}):
        with pytest.raises(VerificationError):
            ERM.verify(replace(plan, guarantee=replace(plan.guarantee, **change)))


WITHOUT = """
[population]
kind = "synthetic"
family = "logistic"
users = 500
items_per_user = 1
dimension = 3
signal_norm = 1.0

[domain]
radius = 2.0

[privacy]
epsilon = 10.0
delta = 1e-3

[algorithm]
name = "accelerated-erm"
constants = "paper"
options = { rounds_factor = 0.15 }
"""
PROMISES = r"\([\d.]+, [\de.-]+\)-differential privacy|ε = [\d.]+, δ = [\de.-]+, replace-one"


@pytest.fixture
def without(monkeypatch, tmp_path):
    """A configuration whose printed numbers have no guarantee."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    (tmp_path / "without.toml").write_text(WITHOUT)
    return tmp_path


def said(capsys, *arguments):
    """What a command that succeeds prints."""
    assert invoke(arguments) == 0
    return capsys.readouterr().out


@pytest.mark.usefixtures("without")
def test_a_plan_a_run_and_its_report_say_that_there_is_no_guarantee_and_never_an_epsilon_as_if_there_were(capsys):
    planned = said(capsys, "plan", "without.toml")
    assert "our accountant finds: no guarantee." in planned
    assert "As printed, for simulations only: the paper claims ε = 10, δ = 0.001." in planned
    assert "Lemma A.9 draws the threshold once" in planned
    ran = said(capsys, "--quiet", "simulate", "without.toml", "--out", "run")
    assert re.search("privacy of one user +none was found for the numbers that the paper prints", ran)
    assert "our accountant finds: no guarantee." in ran
    said(capsys, "show", "run")
    report = Path("run/report.html").read_text(encoding="utf-8")
    assert "our accountant finds: no guarantee." in report
    for text in (planned, ran, report):
        assert not re.search(PROMISES, text)
    kept = RunFolder(Path("run")).read_json("plan.json")
    for stored in (json.loads(said(capsys, "plan", "without.toml", "--json")), kept):
        assert stored["guarantee"]["epsilon"] is None
        assert stored["guarantee"]["proved"] is False
        assert stored["parameters"]["epsilon"] == 10.0  # the claim
    assert RunFolder(Path("run")).summary()["epsilon"] is None


def changed_json(name, *path, value):
    def change(folder):
        stored = json.loads((folder / name).read_text(encoding="utf-8"))
        inner = stored
        for key in path[:-1]:
            inner = inner[key]
        assert inner[path[-1]] != value
        inner[path[-1]] = value
        (folder / name).write_text(json.dumps(stored), encoding="utf-8")

    return change


def changed_ledger(statement):
    def change(folder):
        with closing(sqlite3.connect(folder / "ledger.sqlite")) as raw, raw:
            assert raw.execute(statement).rowcount == 1

    return change


NULL = '"guarantee": {"epsilon": null'
ONE = '"guarantee": {"epsilon": 1.0'
CHANGES = {  # what is done to a run's folder: what reads it, and what it says
    "plan's epsilon": (changed_json("plan.json", "guarantee", "epsilon", value=1.0), "plan", "plan.json as it was"),
    "plan's proof": (changed_json("plan.json", "guarantee", "proved", value=True), "plan", "plan.json as it was"),
    "claim": (changed_json("plan.json", "parameters", "epsilon", value=1.0), "plan", "plan.json as it was"),
    "summary's epsilon": (changed_json("summary.json", "epsilon", value=1.0), "show", "summary.json as it was"),
    "statement": (changed_json("summary.json", "statement", value="(1, 0)-DP"), "show", "summary.json as it was"),
    "ledger's plan": (
        changed_ledger(f"UPDATE run_ledgers SET plan = replace(plan, '{NULL}', '{ONE}') WHERE plan LIKE '%{NULL}%'"),
        "resume",
        "something in it has changed",
    ),
    "seal": (changed_ledger("UPDATE run_ledgers SET seal = NULL"), "resume", "something in it has changed"),
    "last commit": (changed_ledger("DELETE FROM commits WHERE round = 17"), "resume", "something in it has changed"),
    "release": (
        changed_ledger("UPDATE commits SET releases = '[]' WHERE round = 0"),
        "resume",
        "something in it has changed",
    ),
}


@pytest.mark.usefixtures("without")
def test_any_change_of_the_files_of_a_run_without_a_guarantee_is_noticed_by_what_reads_them(capsys):
    said(capsys, "--quiet", "simulate", "without.toml", "--out", "run")
    for number, (change, reader, words) in enumerate(CHANGES.values()):
        folder = Path(f"copy-{number}")
        shutil.copytree("run", folder)
        change(folder)
        if reader == "plan":
            with pytest.raises(RunError, match=words):
                RunFolder(folder).read_json("plan.json")
        else:
            assert invoke([reader, str(folder)]) == 1
            assert words in capsys.readouterr().err


def test_a_user_who_is_drawn_twice_moves_the_score_by_more_than_any_theorem_allows():
    """Why nothing is found for Algorithm 2, which draws users with replacement."""
    rows, often = np.array([[0.0], [0.0], [0.0]]), np.array([1, 2, 5])
    before = int(often @ draws_near(rows, often, 1.0))
    after = int(often @ draws_near(np.array([[0.0], [9.0], [0.0]]), often, 1.0))
    size = int(often.sum())
    assert before - after == 24  # a pair with each of the six others, in both orders, for each of two draws
    assert before - after > 2 * (size - 1)
    plan = printed(ERM, *SIZES[0])
    assert plan.parameters.phases[0].draws > 200 * plan.parameters.phases[0].users
    assert ERM.printed.epsilon(plan.parameters, plan.problem, 1e-6) == math.inf


# What is printed is what runs.


@cache
def small_1() -> RunPlan:
    """Thirty-odd rounds of Algorithm 1."""
    return printed(ITERATES, 20_000, 4, 3, 10.0, 1e-3)


@cache
def small_3(smoothness=0.25, **options) -> RunPlan:
    """Some dozen rounds of Algorithm 3."""
    factor = 0.15 if smoothness else 0.01
    return printed(ERM, 500, 1, 3, 10.0, 1e-3, smoothness=smoothness, rounds_factor=factor, **options)


class Users(Quadratic):
    """As many as a plan has, with gradients at places of their own where these are given."""

    def __init__(self, plan, places=None, tamper=None):
        super().__init__(tamper)
        shape = plan.problem.users, plan.problem.dimension
        self.centres = 0.3 + 0.1 * np.random.default_rng(5).standard_normal(shape)
        self.places = np.zeros(shape) if places is None else places

    def ask(self, question):
        answers = super().ask(question)
        if isinstance(question.task, AverageGradient):
            return replace(answers, values=answers.values + self.places[question.cohort])
        return answers


class Labelled(SeededNoise):
    """Notes what is drawn."""

    def __init__(self, seed):
        super().__init__(seed)
        object.__setattr__(self, "seen", [])

    def stream(self, *labels):
        self.seen.append(labels)
        return super().stream(*labels)


def drive(algorithm, engine, noise, rounds=10**6):
    """The last state, and all updates."""
    state, updates = algorithm.init(), []
    while len(updates) < rounds and (question := algorithm.request(state, noise)) is not None:
        updates.append(algorithm.update(state, engine.ask(question), noise))
        state = updates[-1].state
    return state, updates


def algorithm_1(plan, engine, noise):
    """Algorithm 1, chain by chain and item by item, as on page 6."""
    p, order = plan.parameters, partition(seed=plan.seed, users=plan.problem.users)
    c, x, asked, removed = p.cohort_size, np.zeros(plan.problem.dimension), 0, 0
    for i, phase in enumerate(p.phases):
        averages = []
        for j in range(c):
            at, steps = x, []
            for k in range(phase.users):
                for _ in range(plan.problem.items_per_user):
                    gradient = 0.2 * (at - engine.centres[order[asked + k * c + j]])
                    at = plan.problem.domain.project(at - phase.step_size * gradient)
                    steps.append(at)
            averages.append(np.mean(steps, axis=0))
        asked += phase.users * c
        averages = np.array(averages)
        apart = cdist(averages, averages)
        if not phase.release.test.decide(int(np.sum(apart <= phase.radius)), noise.stream("test", i)):
            return np.zeros_like(x), removed
        h = np.sum(apart <= 2 * phase.radius, axis=1)
        chances = np.where(h < c / 2, 0, np.where(h >= 2 * c / 3, 1, (h - c / 2) / (c / 6)))
        coins = noise.stream("inclusion", i).uniform_below(c // 6, c)
        chosen = coins < np.rint(chances * c / 6)
        removed += int(np.sum(~chosen))
        x = x + phase.noise.release(averages[chosen].mean(axis=0) - x, noise.stream("release", i))
    return x, removed


@pytest.mark.parametrize(("share", "removes", "halts"), [(1.0, False, False), (3e-6, True, False), (1e-6, False, True)])
def test_algorithm_1_runs_as_its_lines_say(monkeypatch, share, removes, halts):
    """With the printed τ no chain is removed; with a millionth of it some are, or the run halts with 0."""
    plan = small_1()
    phases = tuple(
        replace(phase, radius=share * phase.radius, release_scale=0.01 * share * phase.release_scale)
        for phase in plan.parameters.phases[:4]
    )
    plan = replace(plan, parameters=replace(plan.parameters, phases=phases))
    monkeypatch.setattr(scenes, "PROBLEM", plan.problem)
    engine, noise = Users(plan), SeededNoise(4)
    engine.centres[::50, 0] += np.linspace(0, 2, len(engine.centres[::50]))
    expected, removed = algorithm_1(plan, engine, noise)
    algorithm = PrintedIterates(plan)
    state, updates = drive(algorithm, engine, noise)
    np.testing.assert_allclose(algorithm.model(state), expected, rtol=1e-6, atol=1e-10)
    ended = [update for update in updates if "halted" in update.public]
    assert [update.public["halted"] for update in ended] == ([True] if halts else [False] * 4)
    assert np.all(algorithm.model(state) == 0) == halts
    if not halts:
        assert sum(update.diagnostics["removed_chains"] for update in ended) == removed
        assert (removed > 10) == removes


def algorithms_2_and_3(plan, engine, noise):
    """Algorithms 2 and 3, draw by draw, as on pages 8 and 9: the model, draws left out, and steps."""
    p, x_i, at, removed = plan.parameters, np.zeros(plan.problem.dimension), 0, 0
    order = partition(seed=plan.seed, users=plan.problem.users)
    for phase in p.phases:
        x = ag = x_i
        users = order[phase.first :][: phase.users]
        for t in range(1, phase.rounds + 1):
            places = noise.stream("cohort", at).uniform_below(phase.users, phase.draws)  # line 3
            md = acsa.middle(x, ag, t, phase.shape)
            own = 0.2 * (md - engine.centres[users]) + engine.places[users]
            q = own[places]
            apart = cdist(q, q)
            h = np.sum(apart <= 2 * p.radius, axis=1)  # lines 6 and 10
            limit = phase.test.draw_limit(noise.stream("limit", at))
            if not phase.test.decide(int(h.sum()), limit, noise.stream("test", at)):
                return np.zeros_like(x), removed, at + 1  # line 18
            k, stream, kept = phase.draws, noise.stream("include", at), []
            for place in np.unique(places):  # line 11
                mine = np.flatnonzero(places == place)
                height = h[mine[0]]
                if k / 2 < height < 2 * k / 3:
                    mine = mine[stream.uniform_below(k, len(mine)) < 6 * height - 3 * k]
                elif height < 2 * k / 3:
                    mine = mine[:0]
                kept += mine.tolist()
            removed += k - len(kept)
            noisy = phase.noise.release(q[kept].mean(axis=0), noise.stream("release", at))  # lines 13 and 14
            whole = noisy + phase.regularisation * (md - x_i)  # line 15
            x, ag = acsa.step(x, ag, md, whole, t, phase.shape, plan.problem.domain)
            at += 1
        x_i = ag
    return x_i, removed, at


@pytest.mark.parametrize("crowd", ["near", "apart", "split"])
def test_algorithms_2_and_3_run_as_their_lines_say(monkeypatch, crowd):
    """Users all near one another; some on the ramp and beyond it; two halves, at which the run halts with 0."""
    plan = printed(ERM, 2000, 4, 3, 10.0, 1e-3, rounds_factor=0.5)
    phases = tuple(
        replace(
            phase,
            draws=61,
            noise=replace(phase.noise, scale=1e-4 * phase.noise.scale),
            test=AboveThreshold(61, 0.8 * 61, 0.01, 0.02),
        )
        for phase in plan.parameters.phases
    )
    plan = replace(plan, parameters=replace(plan.parameters, phases=phases))
    monkeypatch.setattr(scenes, "PROBLEM", plan.problem)
    places, order = np.zeros((plan.problem.users, plan.problem.dimension)), np.arange(plan.problem.users)
    reach = 2 * plan.parameters.radius
    if crowd == "apart":
        places[order % 14 == 0, 0] = -0.5 * reach  # sees the first of the two clusters alone
        places[order % 14 >= 9, 0] = 0.9 * reach
    if crowd == "split":
        places[order % 2 == 0, 0] = 3 * reach
    engine, noise = Users(plan, places), SeededNoise(4)
    expected, removed, steps = algorithms_2_and_3(plan, engine, noise)
    algorithm = PrintedERM(plan)
    state, updates = drive(algorithm, engine, noise)
    np.testing.assert_allclose(algorithm.model(state), expected, rtol=1e-9, atol=1e-12)
    assert len(updates) == steps == (1 if crowd == "split" else plan.cost.rounds)
    assert (removed > 20) == (crowd == "apart")
    assert state.halted == (crowd == "split")
    assert np.all(algorithm.model(state) == 0) == (crowd == "split")


def test_a_threshold_is_drawn_in_every_step_as_printed():
    plan, noise = small_3(), Labelled(3)
    drive(PrintedERM(plan), Users(plan), noise)
    assert len({labels for labels in noise.seen if labels[0] == "limit"}) == plan.cost.rounds


def test_draws_with_replacement_are_uniform_and_as_many_as_printed():
    """Each count is binomial: beyond 7 standard deviations with probability below 1e-9 in all."""
    counts = drawn(SeededNoise(1).stream("cohort", 0), 50, 2**22 + 50_000)
    assert counts.sum() == 2**22 + 50_000
    expected = counts.sum() / 50
    assert np.max(np.abs(counts - expected)) < 7 * math.sqrt(expected)
    assert np.ptp(counts) > 0


@pytest.mark.parametrize("spread", [0.1, 1.0, 30.0])
def test_neighbours_among_draws_are_those_of_users_who_are_there_so_many_times(spread):
    own = np.random.default_rng(2)
    rows, often = spread * own.standard_normal((40, 3)), own.integers(1, 9, 40)
    expanded = np.repeat(rows, often, axis=0)
    slow = neighbour_counts(expanded, np.ones(len(expanded), np.bool_), [2.0])[0]
    np.testing.assert_array_equal(np.repeat(draws_near(rows, often, 2.0), often), slow)


def test_a_draw_joins_by_the_printed_ramp():
    """Below K/2 none, from 2K/3 on all; halfway between half of them (7 standard deviations: below 1e-11)."""
    size, often = 600, np.array([10**6] * 5)
    joined = included(np.array([299, 300, 350, 400, 600]), often, size, SeededNoise(1).stream("include", 0))
    assert joined[[0, 1, 3, 4]].tolist() == [0, 0, 10**6, 10**6]
    assert abs(joined[2] - 500_000) < 7 * 500


# Contracts.


@pytest.fixture
def crowded(monkeypatch):
    """As many users as Algorithm 1 needs, for the helpers of the contracts."""
    monkeypatch.setattr(scenes, "PROBLEM", small_1().problem)


class Unnoised(PrintedIterates):
    """Releases the mean as it is."""

    def update(self, state, answers, noise):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("quoron_privacy.gaussian.GaussianNoise.release", lambda self, value, stream: value)
            return super().update(state, answers, noise)


class Telling(PrintedIterates):
    """Says in public what the test has seen."""

    def update(self, state, answers, noise):
        update = super().update(state, answers, noise)
        return replace(update, public={**update.public, "score": update.diagnostics.get("score")})


def replayed():
    rounds = range(0, small_1().cost.rounds, 5)
    return [Pair(at, 0, far(0), far(1)) for at in rounds] + [
        Pair(at, at, ABSENT, 7 * at % CORNERS or 1) for at in rounds
    ]


@pytest.mark.usefixtures("crowded")
def test_a_neighbour_can_release_the_same_as_algorithm_1_at_what_our_accountant_charges():
    made = scene(ITERATES.make(small_1()))
    assert not any(replay(made, pair) is None for pair in replayed())


def crowds(plan):
    """Pairs in the last phases, whose chains are one user long and whose τ is far below the domain."""
    slot = 3 * plan.parameters.cohort_size // 4
    for at in range(plan.cost.rounds - 3, plan.cost.rounds):
        for second in (threshold(0, 1), threshold(0, 2), threshold(1, 1), ABSENT):
            yield Pair(at, slot, threshold(0, 0), second, crowded=True, turn=0)


@pytest.mark.usefixtures("crowded")
def test_a_crowd_as_loose_as_the_printed_test_lets_pass_costs_at_most_what_our_accountant_charges():
    plan = small_1()
    made = scene(ITERATES.make(plan))
    used = [cost / charged for pair in crowds(plan) for _, cost, charged in charges(plan, replay(made, pair) or [])]
    assert 0.5 < max(used) <= 1 + 1e-9
    quiet = PrintedIterates(with_noise(plan, 0.5, 1.0))  # as `verify` would refuse it
    assert "apart" in first_complaint(scene(quiet), crowds(plan))


def test_a_decision_of_algorithm_1_tells_as_much_as_our_accountant_says_and_hardly_more():
    """Chances at all scores that one user can be apart: their ratio is nearly all of the ε that is found."""
    plan = small_1()
    test, size = plan.parameters.phases[0].release.test, plan.parameters.cohort_size
    scores = np.arange(size, size**2 + 1, 7)
    one = np.array([test.chance(int(score)) for score in scores])
    other = np.array([test.chance(int(score) + 2 * (size - 1)) for score in scores])
    likely = one > 1e-3  # δ
    ratios = np.concatenate([np.log(other / one)[likely], np.log((1 - one) / (1 - other))[1 - other > 1e-3]])
    assert 0.99 * plan.guarantee.epsilon < ratios.max() <= plan.guarantee.epsilon


@pytest.mark.usefixtures("crowded")
@pytest.mark.parametrize("twin", [Unnoised, Telling])
def test_replay_catches_a_broken_algorithm_1(twin):
    assert first_complaint(scene(twin(small_1())), replayed())


def carried_out(plan, path, engine, ledger_type=Ledger):
    """One run, fresh or resumed."""
    info = ALGORITHMS[plan.algorithm]
    if not path.exists():
        path.write_bytes(empty_ledger())
    with ledger_type.open(path) as ledger:
        return run(info.make(plan), engine, ledger, SeededNoise(11), simulation=True)


PLANS = {"1": small_1, "3": small_3, "3, not smooth": lambda: small_3(smoothness=None)}
every_plan = pytest.mark.parametrize("name", PLANS)


@pytest.fixture
def inside_flower(monkeypatch):
    """What Flower sets in the process of a ServerApp, and a clock that nobody waits for."""
    for name in ("task_id", "run_id", "node_id"):
        monkeypatch.setattr(TaskIdentity, f"_{name}", 1)
    monkeypatch.setattr(exchange, "time", FakeTime())


@pytest.mark.usefixtures("inside_flower")
@every_plan
def test_engines_agree_and_the_ledger_holds_what_was_planned(name, monkeypatch, tmp_path):
    plan = PLANS[name]()
    monkeypatch.setattr(scenes, "PROBLEM", plan.problem)
    here = carried_out(plan, tmp_path / "here", Users(plan))
    there = carried_out(plan, tmp_path / "there", flower(Users(plan), plan.problem))
    np.testing.assert_array_equal(here, there)
    with Ledger.open(tmp_path / "here") as ledger:
        assert len(ledger.events()) == plan.cost.rounds
        require_planned(plan, ledger.releases(), ledger.events())


@every_plan
def test_a_run_that_dies_goes_on_to_identical_bits(name, monkeypatch, tmp_path):
    plan = PLANS[name]()
    monkeypatch.setattr(scenes, "PROBLEM", plan.problem)
    whole = carried_out(plan, tmp_path / "whole", Users(plan))
    for at in (plan.cost.rounds // 2 + 1, plan.cost.rounds + 2):
        path = tmp_path / str(at)
        with pytest.raises(Crash):
            carried_out(plan, path, Users(plan), crashing(at, after=at % 2 == 1))
        np.testing.assert_array_equal(carried_out(plan, path, Users(plan)), whole)


@every_plan
def test_a_run_in_which_nobody_answers_halts_in_its_first_phase_with_0(name, monkeypatch, tmp_path):
    plan = PLANS[name]()
    monkeypatch.setattr(scenes, "PROBLEM", plan.problem)

    def silent(values, status):
        status[:] = Status.MISSING

    model = carried_out(plan, tmp_path / "run", Users(plan, tamper=silent))
    assert np.all(model == 0)
    with Ledger.open(tmp_path / "run") as ledger:
        first = plan.parameters.phases[0]
        assert len(ledger.events()) == (first.users if name == "1" else 1)
        assert ledger.finished


@pytest.mark.parametrize("name", ["1", "3"])
def test_nothing_that_one_user_sends_stops_a_run(name, monkeypatch):
    plan = PLANS[name]()
    monkeypatch.setattr(scenes, "PROBLEM", plan.problem)
    tamper = scenes.SeveralFaults("all", tuple(scenes.ONE_USERS)) if name == "1" else scenes.ONE_USERS[4]
    algorithm = ALGORITHMS[plan.algorithm].make(plan)
    state, updates = drive(algorithm, Users(plan, tamper=tamper), SeededNoise(4))
    assert len(updates) == plan.cost.rounds
    assert np.isfinite(algorithm.model(state)).all()
    sent = [update.public for update in updates]
    assert sent == [update.public for update in drive(algorithm, Users(plan), SeededNoise(4))[1]]


# The page.


@pytest.mark.parametrize("which", [*list(TABLES)[:2], pytest.param("Theorem D.3", marks=pytest.mark.slow)])
def test_the_page_s_table_is_what_plans_say(which):
    """`python tests/papers/lowy_table.py` writes the tables as they should be."""
    assert table(which) in PAGE.read_text(encoding="utf-8")


def test_what_the_page_says_of_draws_and_gradients_of_algorithm_3_is_so():
    shares, ratios = [], []
    for n, m, d, epsilon in SMOOTH:
        plan = ERM.plan(small_problem((n, m, d, epsilon), 0.25), Privacy(epsilon, 1e-9), constants="paper")
        shares += [phase.draws / phase.users for phase in plan.parameters.phases]
        # Theorem 3.2 (page 9) with L = 1, R = 2, β = 1/4.
        bound = 1 + epsilon * 0.5**0.25 * min((m * n) ** 0.125, (epsilon**2 * n**2 * m / d) ** 0.125)
        bound = m * n * bound + math.sqrt(0.5) * (
            n**0.25 * m**1.25 / epsilon + (n * epsilon**-1) ** 0.5 * m**1.25 / d**0.25
        )
        ratios.append(sum(phase.rounds * phase.draws for phase in plan.parameters.phases) * m / bound)
    assert f"{min(shares):,.0f} to {round(max(shares), -2):,.0f} times $n_i$" in PAGE.read_text(encoding="utf-8")
    assert "3,200 to 3,800 times the bound" in PAGE.read_text(encoding="utf-8")
    assert 3200 < min(ratios) < max(ratios) < 3800


def test_functions_that_the_page_names_are_there():
    """`P.` and such are modules that the section above a table names."""
    modules: dict[str, str] = {}
    named = 0
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        modules |= dict(re.findall(r"`([A-Z])` is `([a-z_.]+)`", line))
        for letter, words in re.findall(r"`([A-Z])\.([\w.]+)`", line):
            parts = f"{modules[letter]}.{words}".split(".")
            for at in range(len(parts), 0, -1):
                with suppress(ModuleNotFoundError):
                    found = import_module(".".join(("quoron_server.algorithms", *parts[:at])))
                    break
            for part in parts[at:]:
                found = getattr(found, part)
            named += 1
    assert named > 35


@pytest.mark.parametrize("epsilon", [0.5, 15.0])
@pytest.mark.parametrize("delta", [1e-12])
@pytest.mark.parametrize("q", [0.05, 0.3])
def test_theorem_o5_covers_algorithm_1_at_the_fewest_users_that_it_takes(epsilon, delta, q):
    with pytest.raises(Infeasible) as refused:
        printed(ITERATES, 1000, 1, 3, epsilon, delta, shrink=q)
    plan = printed(ITERATES, refused.value.users, 1, 3, epsilon, delta, shrink=q)
    assert plan.guarantee.epsilon < 0.12 * epsilon
