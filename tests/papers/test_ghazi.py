"""Ghazi, Kumar, Liu & Manurangsi as printed: every number is computed here from the paper's own lines.

`PYTHONPATH=tests python tests/papers/test_ghazi.py` writes the table of docs/papers/ghazi.md.
"""

import math
import re
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from audits.harness import epsilon_lower_bound
from contracts.test_algorithms import dying_after_every_write
from problems import problem_of
from quoron_client.protocol.domains import Box, L2Ball
from quoron_client.protocol.questions import Answers, Question
from quoron_privacy.accounts.gdp import delta_for
from quoron_privacy.accounts.pair import DominatingPair
from quoron_privacy.errors import ConfigError, Infeasible, VerificationError
from quoron_privacy.noise.streams import SeededNoise
from quoron_privacy.robust.coordinate_median import MedianParameters
from quoron_privacy.robust.coordinate_median import verify as verify_median
from quoron_privacy.robust.filter.concentration import score_error
from quoron_privacy.robust.filter.outlier_filter import FilterParameters
from quoron_privacy.robust.filter.outlier_filter import verify as verify_filter
from quoron_privacy.robust.filter.thresholds import LaplaceThreshold
from quoron_server.algorithms import ALGORITHMS
from quoron_server.algorithms.printed import ghazi
from quoron_server.plan import Budget, Privacy, RunPlan
from quoron_server.problem import Problem
from quoron_server.rounds import run
from quoron_server.storage.ledger import Ledger
from test_proof_pages import WORD, cited, members, names

Vector = NDArray[np.float64]
FILTER, MEDIANS = ALGORITHMS["filtered-sgd"], ALGORITHMS["median-sgd"]
PAGE = Path(__file__).parents[2] / "docs" / "papers" / "ghazi.md"


@dataclass(frozen=True)
class Size:
    """What the paper's formulas take."""

    users: int  # n
    items: int  # m
    dimension: int  # d
    epsilon: float
    delta: float = 1e-6


SIZES = (
    Size(2_000_000, 50, 10, 1.0),
    Size(20_000_000, 100, 100, 0.9),
    Size(10_000_000, 1_000, 1_000, 2.0),
    Size(100_000_000, 10_000, 100, 1.0),
)
RADIUS, LIPSCHITZ, BETA = 2.0, 1.5, 0.25  # D, G and β


def ball(size: Size) -> Problem:
    """Assumption 7."""
    return problem_of(
        users=size.users,
        items_per_user=size.items,
        dimension=size.dimension,
        domain=L2Ball(RADIUS),
        lipschitz=LIPSCHITZ,
        smoothness=BETA,
    )


def box(size: Size, beta: float = BETA) -> Problem:
    """Assumptions 21 and 22."""
    bounds = {"domain": Box(RADIUS), "coordinate_lipschitz": LIPSCHITZ, "coordinate_smoothness": beta}
    return replace(ball(size), smoothness=beta, **bounds)


def planned(info: Any, problem: Problem, size: Size, **options: Any) -> RunPlan:
    kind = info.options_for("paper")
    plan: RunPlan = info.plan(problem, Privacy(size.epsilon, size.delta), kind(**options), "paper", 5)
    return plan


@pytest.mark.parametrize("size", SIZES)
def test_every_number_of_algorithms_1_and_2_is_the_printed_one(size: Size) -> None:
    n, m, d, eps, delta = size.users, size.items, size.dimension, size.epsilon, size.delta
    p = planned(FILTER, ball(size), size).parameters
    # Section 3, "We further assume that the parameters in the algorithms are chosen in the following manner".
    batch = 300 * math.log(m * n / delta) ** 2 / eps ** (3 / 2)
    assert batch <= p.cohort_size < batch + 1
    eta = RADIUS / LIPSCHITZ * p.cohort_size * math.sqrt(m)
    eta *= min(1 / math.sqrt(n), eps / math.sqrt(d * math.log(1 / delta) * math.log(n * m * d)))
    assert p.temperature == pytest.approx(math.sqrt(m) / (20 * LIPSCHITZ * math.log(n * m * d)))
    # Algorithm 1: S = ⌈log(n/B)⌉; n_s = n/2^s; η_s = η/log^s m; σ_s = O(η_s G √(log(1/δ) log(nmd)) / (B √m ε)).
    phases = [s for s in range(1, math.ceil(math.log(n / p.cohort_size)) + 1) if n / 2**s >= p.cohort_size]
    assert [phase.rounds for phase in p.phases] == [int(n / 2**s / p.cohort_size) for s in phases]
    for s, phase in zip(phases, p.phases, strict=True):
        eta_s = eta / math.log(m) ** s
        sigma = eta_s * LIPSCHITZ * math.sqrt(math.log(1 / delta) * math.log(n * m * d))
        assert phase.step_size == pytest.approx(eta_s)
        assert phase.release_scale == pytest.approx(sigma / (p.cohort_size * math.sqrt(m) * eps))
    # Algorithm 2: c = 10 log(nm/δ)/ε; ĉ = c + Lap(4/ε); σ = 4 √(32 ĉ log(1/δ))/ε, noise Lap(2σ); F = 3B/4.
    assert p.cutoff == pytest.approx(10 * math.log(n * m / delta) / eps)
    assert p.cutoff_scale == 4 / eps
    assert p.laplace_scale * math.sqrt(7.0) == pytest.approx(2 * 4 * math.sqrt(32 * 7.0 * math.log(1 / delta)) / eps)
    assert p.threshold == 3 * p.cohort_size / 4
    assert (p.epsilon, p.delta) == (eps, delta)  # Theorem 8


@pytest.mark.parametrize("size", SIZES)
def test_every_number_of_algorithms_5_to_8_is_the_printed_one(size: Size) -> None:
    n, m, d, eps, delta = size.users, size.items, size.dimension, size.epsilon, size.delta
    p = planned(MEDIANS, box(size), size).parameters
    # Appendix C.2, the sentence that states the result, which Appendix D repeats.
    batch = 100 * math.log(m * n * d / delta) / eps
    assert batch <= p.cohort_size < batch + 1
    root = math.sqrt(d * math.log(1 / delta) * math.log(n * m * d))
    eta = RADIUS / LIPSCHITZ * min(p.cohort_size * math.sqrt(m) / math.sqrt(n), math.sqrt(m) * eps / root)
    assert p.temperature == pytest.approx(LIPSCHITZ * math.log(n * m * d) / math.sqrt(m))
    # Algorithm 5: n_s, η_s and S as in Algorithm 1; σ_s = O(η_s G √(d log(e^ε/δ) log(nmd)) / (√m ε)).
    phases = [s for s in range(1, math.ceil(math.log(n / p.cohort_size)) + 1) if n / 2**s >= p.cohort_size]
    assert [phase.rounds for phase in p.phases] == [int(n / 2**s / p.cohort_size) for s in phases]
    for s, phase in zip(phases, p.phases, strict=True):
        eta_s = eta / math.log(m) ** s
        sigma = eta_s * LIPSCHITZ * math.sqrt(d * math.log(math.exp(eps) / delta) * math.log(n * m * d))
        assert phase.step_size == pytest.approx(eta_s)
        assert phase.release_scale == pytest.approx(sigma / (math.sqrt(m) * eps))
    # v = 0.9 B + 2 log(T/δ)/ε; Algorithm 8 runs AboveThreshold(ε/2, v); Algorithm 3 draws Lap(2/ε') and Lap(4/ε').
    assert p.threshold == pytest.approx(0.9 * p.cohort_size + 2 * math.log(p.phases[0].rounds / delta) / eps)
    assert p.threshold_scale == pytest.approx(2 / (eps / 2))
    assert p.query_scale == pytest.approx(4 / (eps / 2))
    assert p.trim == (p.cohort_size - 1) // 2  # Remark 29: the median


def test_the_constants_of_the_proofs_stand_where_they_are_asked_for_and_are_named() -> None:
    size = SIZES[0]
    n, m, d, eps, delta = size.users, size.items, size.dimension, size.epsilon, size.delta
    p = planned(FILTER, ball(size), size, release_constant="proof").parameters
    # Lemma 10: within 100/τ + 4/τ of all survivors, at least B/2 of them; Lemma 12: (ε/2, δ/2); Proposition 16.
    shift = p.phases[0].step_size * 104 / p.temperature / (p.cohort_size / 2)
    assert p.phases[0].release_scale == pytest.approx(shift * math.sqrt(2 * math.log(1.25 / (delta / 2))) / (eps / 2))
    assert any("what Lemmas 3 and 10 ask for" in each for each in p.filled_in)
    assert not any("smaller than Lemmas" in each for each in p.void)
    p = planned(MEDIANS, box(size), size, release_constant="proof", temperature="reciprocal").parameters
    assert p.temperature == pytest.approx(math.sqrt(m) / (LIPSCHITZ * math.log(n * m * d)))
    # Lemma 36: ‖x_t - y_t‖∞ ≤ 6η/τ, so √d times that in ℓ2; ε/2 and δ/(2 e^ε) for the release.
    shift = math.sqrt(d) * 6 * p.phases[0].step_size / p.temperature
    release = shift * math.sqrt(2 * math.log(1.25 * 2 * math.exp(eps) / delta)) / (eps / 2)
    assert p.phases[0].release_scale == pytest.approx(release)
    assert "τ is the reciprocal of what is printed" in p.filled_in
    half = planned(MEDIANS, box(size), size, release_constant=0.5, temperature_constant=3.0).parameters
    whole = planned(MEDIANS, box(size), size).parameters
    assert half.phases[1].release_scale == pytest.approx(whole.phases[1].release_scale / 2)
    assert half.temperature == pytest.approx(3 * whole.temperature)


def test_the_printed_step_of_the_quickstart_is_kept_though_it_breaks_the_lemmas_own_condition() -> None:
    """Two million users of the quickstart, D = 6 and G = 1: η = 9,352.6."""
    p = planned(FILTER, replace(ball(SIZES[0]), domain=L2Ball(6.0), lipschitz=1.0), SIZES[0]).parameters
    assert p.phases[0].step_size * math.log(50) == pytest.approx(9352.6, abs=0.05)
    steep = p.phases[0].step_size * BETA
    assert f"Lemma 12 needs ηβ ≤ 2 for steps to contract, and ηβ = {steep:,.4g}." in p.void


VOID = {  # of `filtered-sgd`, by what breaks it and what does not
    "epsilon < 1": ({"epsilon": 1.5}, {"epsilon": 0.9}),
    "Section 3 assumes n ≥": ({"users": 2_000_000}, {"users": 20_000_000}),
    "log m =": ({"items": 7}, {"items": 8}),
}


@pytest.mark.parametrize("sentence", VOID)
def test_a_condition_is_said_to_be_broken_exactly_where_it_is(sentence: str) -> None:
    broken, kept = VOID[sentence]
    for change, expected in ((broken, True), (kept, False)):
        size = replace(Size(20_000_000, 100, 10, 0.95), **change)
        assert any(sentence in each for each in planned(FILTER, ball(size), size).parameters.void) == expected, change


@pytest.mark.parametrize("size", SIZES)
def test_the_noise_that_lemma_10_takes_for_impossible_is_that_of_many_users(size: Size) -> None:
    """Event E₂: |ν| ≤ 20 log²(mn/δ)/ε^1.5 for all of a batch but for a chance of δ/24, ν ~ Lap(2σ), ĉ = c."""
    p, log = planned(FILTER, ball(size), size).parameters, math.log(size.items * size.users / size.delta)
    sigma = 4 * math.sqrt(32 * 10 * log / size.epsilon * math.log(1 / size.delta)) / size.epsilon
    beyond = p.cohort_size * math.exp(-20 * log**2 / size.epsilon**1.5 / (2 * sigma))
    assert beyond > 20
    assert any(f"and {beyond:,.3g} of its {p.cohort_size:,} users" in each for each in p.void)
    assert not any("at most B/2" in each for each in p.void)  # event E₁ holds with the printed B
    small = planned(FILTER, ball(size), size, cohort_size=200).parameters
    assert any("at most B/2" in each for each in small.void)


def test_a_flat_problem_breaks_no_condition_on_steps() -> None:
    size, steep = Size(20_000_000, 100, 10, 0.9), ("Lemma 11", "Lemma 12", "Lemma 27", "Lemma 35")
    flat = replace(ball(size), smoothness=0.0), box(replace(size, users=200_000_000), 0.0)
    for info, problem in zip((FILTER, MEDIANS), flat, strict=True):
        assert not any(each.startswith(steep) for each in planned(info, problem, size).parameters.void)
    few = planned(MEDIANS, box(size), size, cohort_size=500).parameters.void
    assert "Lemma 34 needs B ≥ 100 log(T/δ)/ε, and B = 500." in few
    assert any(each.startswith("Lemma 11") for each in planned(FILTER, ball(size), size).parameters.void)
    assert any(each.startswith("Lemma 35") for each in planned(MEDIANS, box(size), size).parameters.void)


@pytest.mark.parametrize(("info", "make"), [(FILTER, ball), (MEDIANS, box)])
def test_too_few_users_are_told_the_number_that_two_printed_batches_take(
    info: Any, make: Callable[[Size], Problem]
) -> None:
    size = Size(1_000, 20, 5, 1.0)
    with pytest.raises(Infeasible, match="the printed cohort_size") as refused:
        planned(info, make(size), size)
    enough = refused.value.users
    assert enough is not None
    plan = planned(info, make(replace(size, users=enough)), size)
    assert plan.parameters.phases[0].rounds == 1
    with pytest.raises(Infeasible):
        planned(info, make(replace(size, users=int(0.99 * enough))), size)


def test_what_cannot_be_carried_out_is_refused_with_what_would_do() -> None:
    one = Size(2_000_000, 1, 10, 1.0)
    with pytest.raises(Infeasible, match="not defined at m=1; needs items_per_user >= 2"):
        planned(FILTER, ball(one), one)
    small = Size(20_000_000, 50, 10, 0.3)
    with pytest.raises(Infeasible, match="the most here") as refused:
        planned(FILTER, ball(small), small)
    enough = float(refused.value.needs.split("epsilon >= ")[1])
    planned(FILTER, ball(small), replace(small, epsilon=enough))
    with pytest.raises(Infeasible, match="a box"):
        planned(MEDIANS, ball(SIZES[0]), SIZES[0])


SMALL = Size(1_200, 20, 3, 1.0)


class Users:
    """User u's loss is (β/2) ‖x - c_u‖², β = 0.2; one may answer something else."""

    def __init__(self, tamper: Callable[[Vector, NDArray[np.uint8]], None] | None = None) -> None:
        self.centres = 0.3 + 0.1 * np.random.default_rng(5).standard_normal((SMALL.users, SMALL.dimension))
        self.tamper = tamper
        self.asked: list[NDArray[np.int64]] = []

    def ask(self, question: Question) -> Answers:
        self.asked.append(question.cohort)
        values = 0.2 * (question.task.points[0] - self.centres[question.cohort])
        status = np.zeros(len(values), np.uint8)
        if self.tamper is not None:
            self.tamper(values, status)
        return Answers.checked(values, status, largest=1e6)


@cache
def small(name: str) -> RunPlan:
    """A run of 10 rounds of 100 users in 3 phases; but for steps, τ and what would end it at once as printed."""
    info, problem = ALGORITHMS[name], (ball if name == "filtered-sgd" else box)(SMALL)
    plan = planned(info, problem, SMALL, cohort_size=100)
    assert any("cohort_size = 100 is an option's" in each for each in plan.parameters.void)
    calm = {"laplace_scale": 1e-3, "cutoff": 90.0} if name == "filtered-sgd" else {"threshold": -1e3}
    phases = tuple(replace(phase, step_size=0.3 / 2**s) for s, phase in enumerate(plan.parameters.phases))
    return replace(plan, parameters=replace(plan.parameters, temperature=2.0, phases=phases, **calm))


def states(plan: RunPlan, engine: Users, noise: SeededNoise | None = None) -> list[ghazi.State]:
    algorithm, noise = ALGORITHMS[plan.algorithm].printed.maker(plan), noise or SeededNoise(4)
    found = [algorithm.init()]
    while (question := algorithm.request(found[-1], noise)) is not None:
        found.append(algorithm.update(found[-1], engine.ask(question), noise).state)
    return found


def in_order(plan: RunPlan) -> list[list[NDArray[np.int64]]]:
    """Whom a run asks, phase by phase, batch by batch."""
    engine, noise = Users(), SeededNoise(4)
    states(plan, engine, noise)
    cohorts = iter(engine.asked)
    return [[next(cohorts) for _ in range(phase.rounds)] for phase in plan.parameters.phases]


def released(average: Vector, phase: Any, s: int) -> Vector:
    """x̄_s + ζ_s, not projected."""
    drawn: Vector = phase.noise.release(average, SeededNoise(4).stream("release", s))
    return drawn


def test_a_run_of_filtered_sgd_is_algorithms_1_and_2_line_by_line() -> None:
    plan, users = small("filtered-sgd"), Users()
    users.centres[::16] += 4.0  # whom the filter leaves out
    p, x, filtered, found = plan.parameters, np.zeros(SMALL.dimension), 0, states(plan, users)
    at = iter(found[1:])
    for s, batches in enumerate(in_order(plan)):
        start, iterates = x, []
        for batch in batches:
            q = 0.2 * (x - users.centres[batch])
            kappa = [np.exp(-p.temperature * np.linalg.norm(own - q, axis=1)).sum() for own in q]
            kept = q[np.array(kappa) > p.threshold]  # the noise is next to nothing
            filtered += len(q) - len(kept)
            x = x - p.phases[s].step_size * np.mean(kept, axis=0)
            x = x * min(1.0, RADIUS / np.linalg.norm(x))
            iterates.append(x)
            state = next(at)
            if len(iterates) < len(batches):
                np.testing.assert_allclose(state.iterate, x, atol=1e-12)
                np.testing.assert_array_equal(state.released, start)
        x = released(np.mean(iterates, axis=0), p.phases[s], s)
        np.testing.assert_allclose(state.released, x, atol=1e-9)
    assert filtered > 20
    assert len(found) == 1 + plan.cost.rounds


def test_a_run_of_median_sgd_is_algorithms_5_to_8_line_by_line() -> None:
    plan, users = small("median-sgd"), Users()
    users.centres[::9] += 9.0  # mean and median apart
    p, x, held, found = plan.parameters, np.zeros(SMALL.dimension), 0, states(plan, users)
    at = iter(found[1:])
    p, reach = replace(p, temperature=40.0), 1 / 40.0
    found = states(replace(plan, parameters=p), users)
    at = iter(found[1:])
    for s, batches in enumerate(in_order(plan)):
        iterates = []
        for batch in batches:
            q = np.clip(0.2 * (x - users.centres[batch]), -LIPSCHITZ, LIPSCHITZ)
            robust, mean = np.median(q, axis=0), np.mean(q, axis=0)
            far = np.abs(robust - mean) >= reach
            held += int(far.sum())
            estimate = np.where(far, robust + reach * np.sign(mean - robust), mean)
            x = np.clip(x - p.phases[s].step_size * estimate, -RADIUS, RADIUS)
            iterates.append(x)
            state = next(at)
            if len(iterates) < len(batches):
                np.testing.assert_allclose(state.iterate, x, atol=1e-9)
        x = released(np.mean(iterates, axis=0), p.phases[s], s)
        np.testing.assert_allclose(state.released, x, atol=1e-9)
    assert held > 0
    assert len(found) == 1 + plan.cost.rounds


def test_a_phase_of_median_sgd_that_fails_a_test_releases_its_initial_point_with_noise_and_the_run_goes_on() -> None:
    plan = small("median-sgd")
    first, second, *_ = plan.parameters.phases
    hard = replace(plan, parameters=replace(plan.parameters, threshold=1e6))
    found = states(hard, Users())
    assert len(found) == 1 + plan.cost.rounds
    one = released(np.zeros(SMALL.dimension), first, 0)
    np.testing.assert_array_equal(found[first.rounds].released, one)
    np.testing.assert_array_equal(found[first.rounds + second.rounds].released, released(one, second, 1))


def test_a_batch_whose_score_is_below_the_noisy_threshold_fails_and_one_above_passes() -> None:
    algorithm = ghazi.Medians(small("median-sgd"))
    algorithm.parameters = p = replace(algorithm.parameters, threshold=50.0)
    for round_ in range(40):
        noise, test = SeededNoise(round_), LaplaceThreshold(p.query_scale, p.threshold)
        shared = noise.stream("threshold", 0).laplace_steps(2.0**19, 1)[0] * test.grid  # Lap(2/ε'), half of Lap(4/ε')
        query = noise.stream("query", round_).laplace_steps(2.0**20, 1)[0] * test.grid
        edge = p.threshold - shared - query  # q + ν < Δ̂ fails
        assert algorithm.above_threshold(edge + 1e-4, noise, 0, round_)
        assert not algorithm.above_threshold(edge - 1e-4, noise, 0, round_)


def far_apart(values: Vector, status: NDArray[np.uint8]) -> None:
    values[:] = 1e5 * np.arange(values.size).reshape(values.shape)


def test_a_halt_of_algorithm_2_ends_the_run_with_the_last_release() -> None:
    plan = small("filtered-sgd")
    first = plan.parameters.phases[0].rounds
    engine = Users()
    engine.tamper = lambda values, status: far_apart(values, status) if len(engine.asked) > first else None
    found = states(plan, engine)
    assert len(found) == first + 2  # one batch of the second phase, and nobody is asked again
    assert found[-1].halted
    algorithm = FILTER.printed.maker(plan)
    np.testing.assert_array_equal(algorithm.model(found[-1]), found[first].released)
    np.testing.assert_array_equal(algorithm.iterate(found[-1]), found[first].released)
    assert np.abs(found[first].released).max() > 0


@pytest.mark.parametrize(
    ("cutoff", "outliers", "counts"),
    [(1e3, 100, [100]), (3.0, 2, [2, 4]), (4.5, 2, [2, 4, 6])],
)
def test_it_halts_when_everybody_is_filtered_or_as_many_as_the_cutoff(
    cutoff: float, outliers: int, counts: list[int]
) -> None:
    plan = small("filtered-sgd")
    quiet = {"cutoff": cutoff, "cutoff_scale": 1e-6, "laplace_scale": 1e-3 / math.sqrt(cutoff)}
    far = 1e5 * np.arange(1, 1 + outliers)[:, None]
    found = states(
        replace(plan, parameters=replace(plan.parameters, **quiet)),
        Users(lambda values, status: values.__setitem__(slice(outliers), far)),
    )
    assert found[-1].halted
    assert [state.count for state in found[1:]] == counts


def test_a_cutoff_that_is_negative_halts_at_once_though_its_root_is_not_defined() -> None:
    plan = small("filtered-sgd")
    found = states(replace(plan, parameters=replace(plan.parameters, cutoff=-5.0, cutoff_scale=0.1)), Users())
    assert len(found) == 2
    assert found[-1].halted
    assert not FILTER.printed.maker(plan).model(found[-1]).any()


def test_the_cutoff_is_drawn_from_the_printed_law() -> None:
    """c + Lap(4/ε): the largest gap between the laws is below 0.019 but for a chance of 1e-6 (DKW)."""
    p = small("filtered-sgd").parameters
    around, draws = LaplaceThreshold(p.cutoff_scale, p.cutoff), 40_000
    drawn = np.sort(around.limits(draws, SeededNoise(3).stream("cutoff", 0)) * around.grid - p.cutoff) / (4 / 1.0)
    law = np.where(drawn < 0, 0.5 * np.exp(np.minimum(drawn, 0)), 1 - 0.5 * np.exp(-np.maximum(drawn, 0)))
    assert np.abs(law - (np.arange(draws) + 0.5) / draws).max() < math.sqrt(math.log(2 / 1e-6) / (2 * draws))


# What our accountant finds.


def with_scales(plan: RunPlan, **factors: float) -> RunPlan:
    """The same claim for other noise."""
    p = plan.parameters
    changes = {name: getattr(p, name) * factor for name, factor in factors.items() if name != "release_scale"}
    release = factors.get("release_scale", 1.0)
    phases = tuple(replace(phase, release_scale=phase.release_scale * release) for phase in p.phases)
    return replace(plan, parameters=replace(p, phases=phases, **changes))


def test_the_epsilon_that_is_claimed_is_what_our_accountant_finds_and_half_of_any_noise_is_refused() -> None:
    size = Size(1_000_000, 100, 10, 1.0)
    plan = planned(MEDIANS, box(size, 1e-5), size)
    MEDIANS.verify(plan)
    assert 0.5 < plan.guarantee.epsilon < 3
    assert not plan.guarantee.proved
    for scale in ("release_scale", "threshold_scale"):
        with pytest.raises(VerificationError, match="Expected epsilon of at least"):
            MEDIANS.verify(with_scales(plan, **{scale: 0.5}))
    promise = replace(plan.guarantee, epsilon=plan.guarantee.epsilon * 0.999)
    with pytest.raises(VerificationError, match="Expected epsilon of at least"):
        MEDIANS.verify(replace(plan, guarantee=promise))
    with pytest.raises(VerificationError):
        MEDIANS.verify(replace(plan, guarantee=replace(plan.guarantee, proved=True)))


def test_no_guarantee_is_claimed_for_a_cutoff_that_sets_the_noise_of_every_decision() -> None:
    plan = planned(FILTER, ball(SIZES[1]), SIZES[1], release_constant="proof")
    FILTER.verify(plan)
    assert math.isinf(plan.guarantee.epsilon)
    assert "as printed: no guarantee, by our accountant; the paper claims ε = 0.9" in repr(plan)
    assert any("our accountant finds no ε" in each for each in plan.parameters.void)
    for claim in (plan.parameters.epsilon, 60.0):
        with pytest.raises(VerificationError, match="Expected epsilon of at least inf"):
            FILTER.verify(replace(plan, guarantee=replace(plan.guarantee, epsilon=claim)))


def test_nothing_is_found_where_steps_do_not_contract() -> None:
    size = Size(1_000_000, 100, 10, 1.0)
    plan = planned(MEDIANS, box(size, 1e3), size)
    assert math.isinf(plan.guarantee.epsilon)
    assert any("steps do not contract" in each for each in plan.parameters.void)


def test_nothing_is_found_off_a_box_or_where_hessians_may_not_be_dominant() -> None:
    size = Size(1_000_000, 100, 10, 1.0)
    problem = box(size, 1e-5)
    plan = planned(MEDIANS, problem, size)
    for other in (replace(problem, domain=L2Ball(RADIUS)), replace(problem, coordinate_smoothness=None)):
        assert math.isinf(ghazi.medians_epsilon(plan.parameters, other, size.delta))
        with pytest.raises(VerificationError, match="Expected epsilon of at least inf"):
            MEDIANS.verify(replace(plan, problem=other))


@pytest.mark.parametrize("excess", [0.0, 2.0**-52, 2.0**-50, 1e-12, 1e-9, 1e-4, 0.01])
def test_the_chance_that_a_bad_batch_passes_is_not_lost_in_cancellation_where_scales_are_nearly_equal(
    excess: float,
) -> None:
    """P(ν + L ≥ a) of two Laplace variables of scale 1 is e^{-a} (2 + a)/4, and more where one scale is larger."""
    size = Size(1_000_000, 100, 10, 1.0)
    p = planned(MEDIANS, box(size, 1e-5), size).parameters
    p = replace(p, threshold_scale=4.0, query_scale=4.0 * (1 + excess))
    assert ghazi._at_core(p, 0.99, 0.0, 1.0, 0.0, 0.0)[2] == 1.0  # which the threshold does not keep out
    for core in (0.6, 0.8, 0.9):
        far = (p.threshold - core * p.cohort_size - 2) / p.threshold_scale
        least = math.exp(-far) * (2 + far) / 4
        failure = ghazi._at_core(p, core, 0.0, 1.0, 0.0, 0.0)[2]
        assert least * (1 - 1e-9) <= failure <= least * (1 + 1e-9 + 2.2 * excess * (1 + far))


@pytest.mark.parametrize("start", [1.0, -1.9])
def test_what_floats_add_to_the_distance_of_two_late_averages_is_accounted_for(start: float) -> None:
    """Steps of the last phase of the fourth size are millions of ulps of the iterates, not more."""
    size = SIZES[3]
    p = planned(MEDIANS, box(size), size).parameters
    phase = p.phases[-1]
    estimates = np.random.default_rng(3).uniform(-LIPSCHITZ, LIPSCHITZ, (400, phase.rounds))
    far, worst = 2 * LIPSCHITZ / p.cohort_size, 0.0
    for gradients in estimates:  # the first round's estimate differs by what one user moves a mean
        averages = []
        for shift in (0.0, far):
            x, total = start, 0.0
            for t, gradient in enumerate(gradients):
                x = x - phase.step_size * (gradient + (shift if t == 0 else 0.0))
                total += x
            averages.append(total / phase.rounds)
        worst = max(worst, abs(averages[1] - averages[0]) - phase.step_size * far)
    assert worst > 100 * 1e-6 * math.sqrt(size.dimension) * phase.step_size * far  # a relative room is not enough
    assert worst < ghazi._rounding(p, phase, RADIUS)


def test_proof_gaps_and_statistics_without_the_assumed_property_are_named() -> None:
    size = Size(1_000_000, 100, 10, 1.0)
    void = planned(MEDIANS, box(size), size).parameters.void
    assert any("Lemma 34 is about fewer than B/3" in said for said in void)
    for epsilon in (2.0, 2.1):
        void = planned(MEDIANS, box(size), replace(size, epsilon=epsilon)).parameters.void
        assert any(said.startswith("Proposition 16") for said in void) == (epsilon > 2)


def test_what_is_found_is_what_the_theorem_says_of_one_core() -> None:
    """median-sgd#md2 again, by pairs; the chance that a batch passes by a sum over the threshold's noise."""
    size = Size(1_000_000, 100, 10, 1.0)
    for beta in (1e-5, 0.02):
        problem = box(size, beta)
        p = planned(MEDIANS, problem, size).parameters
        found, B = ghazi.medians_epsilon(p, problem, size.delta), p.cohort_size
        eta = max(phase.step_size for phase in p.phases)
        s = p.phases[0].release_scale * p.temperature / (math.sqrt(size.dimension) * p.phases[0].step_size)
        best = math.inf
        for part in np.linspace(0, 1, 201)[1:-1]:
            core = (B - p.trim + part * p.trim) / B
            r = -math.log(part)
            R = min(max(2 * r, 2 * p.temperature * p.clip_bound / B), 2 * r + 2)
            moved = max(2 * (B - 1) / B, (B - 1) * (1 - math.exp(-eta * beta * R)))
            test, margin = moved / p.threshold_scale, p.threshold - core * B - 2
            grid = np.linspace(-60, 60, 200_001) * p.threshold_scale
            law = np.exp(-np.abs(grid) / p.threshold_scale)
            tail = np.where(
                grid < margin,
                0.5 * np.exp(-np.maximum(margin - grid, 0) / p.query_scale),
                1 - 0.5 * np.exp(-np.maximum(grid - margin, 0) / p.query_scale),
            )
            if float((law * tail).sum() / law.sum()) <= size.delta:
                pair = DominatingPair.gaussian(R / s).and_(DominatingPair.response(test))
                best = min(best, max(test, pair.epsilon(size.delta)))
        assert found == pytest.approx(best, rel=2e-3)


def test_a_phase_with_one_noisy_bit_is_accepted_by_the_theorem_of_the_repaired_one_at_what_is_found() -> None:
    size = Size(1_000_000, 100, 10, 1.0)
    problem = box(size, 1e-5)
    p = planned(MEDIANS, problem, size).parameters
    found = ghazi.medians_epsilon(p, problem, size.delta)
    accepted = False
    for part in np.linspace(0, 1, 41)[1:-1]:
        numbers = MedianParameters(
            cohort_size=p.cohort_size,
            trim=p.trim,
            core=(p.cohort_size - p.trim + float(part) * p.trim) / p.cohort_size,
            test_scale=p.threshold_scale,
            threshold=p.threshold,
            eta_beta=max(phase.step_size for phase in p.phases) * 1e-5,
            theta=1.0,
            clip=p.temperature * p.clip_bound,
            room=1.0,
            noise_multiplier=p.phases[0].release_scale
            * p.temperature
            / (math.sqrt(size.dimension) * p.phases[0].step_size),
            score_error=1e-3,
        )
        with suppress(VerificationError):
            accepted |= verify_median(numbers, 1.01 * found, size.delta) <= size.delta
    assert accepted


@pytest.mark.parametrize(("twin", "caught"), [("sound", False), ("without the threshold's noise", True)])
def test_an_audit_of_the_tests_finds_no_more_than_the_threshold_costs(twin: str, caught: bool) -> None:
    """Thirty scores, all moved by 2: only their conjunction is released, which costs 2/λ (median-sgd#md2)."""
    epsilon, rounds, draws = 1.0, 30, 30_000
    scale, query = 4 / epsilon, 8 / epsilon

    def passes(score: float, name: str) -> Callable[[int], NDArray[np.generic]]:
        def sample(number: int) -> NDArray[np.generic]:
            test = LaplaceThreshold(query, 0.0)
            noise = SeededNoise(9)
            least = -test.limits((number, rounds), noise.stream(name, "query")).max(axis=1) * test.grid
            shared = noise.stream(name, "threshold").laplace_steps(scale / test.grid, number) * test.grid
            return (score + least + (0.0 if caught else shared) >= 0).astype(np.float64)

        return sample

    rare = query * math.log(rounds) / 2
    found = epsilon_lower_bound(passes(rare, "P"), passes(rare - 2, "Q"), delta=0.0, draws=2 * draws)
    claimed = 2 / scale
    assert (found > claimed) == caught
    assert found > 0.4 * claimed  # an audit that sees next to nothing would prove nothing


# Contracts over runs.


def execute(plan: RunPlan, folder: Path, engine: Users, ledger_type: type[Ledger] = Ledger) -> Vector:
    path = folder / "ledger.sqlite"
    if not path.exists():
        Ledger.create(path, plan="{}", config_digest="c", noise_key=b"11").close()
    with ledger_type.open(path) as ledger:
        algorithm = ALGORITHMS[plan.algorithm].printed.maker(plan)
        model: Vector = run(algorithm, engine, ledger, SeededNoise(11), budget=Budget(), simulation=True)
        return model


both = pytest.mark.parametrize("name", ["filtered-sgd", "median-sgd"])


@both
def test_the_same_seed_gives_the_same_bits_and_nobody_is_asked_twice(name: str, tmp_path: Path) -> None:
    models = []
    for folder in (tmp_path / "one", tmp_path / "other"):
        folder.mkdir()
        engine = Users()
        models.append(execute(small(name), folder, engine))
        asked = np.concatenate(engine.asked)
        assert len(np.unique(asked)) == len(asked) == small(name).cost.messages
    np.testing.assert_array_equal(*models)
    engine = Users()
    np.testing.assert_array_equal(execute(small(name), tmp_path / "one", engine), models[0])  # it is finished
    assert engine.asked == []


@both
def test_a_run_that_dies_after_every_write_comes_to_identical_bits(name: str, tmp_path: Path) -> None:
    for folder in ("whole", "dying"):
        (tmp_path / folder).mkdir()
    whole = execute(small(name), tmp_path / "whole", Users())
    model, deaths = dying_after_every_write(
        lambda dying: execute(small(name), tmp_path / "dying", Users(), ledger_type=dying)
    )
    np.testing.assert_array_equal(model, whole)
    assert deaths == 2 * small(name).cost.rounds + 2


@pytest.mark.parametrize("wrong", [0.0, -1.0])
def test_noise_that_is_none_or_negative_and_more_batches_than_users_are_no_guarantee(wrong: float) -> None:
    plan = planned(MEDIANS, box(SIZES[0]), SIZES[0])
    for scale in ("release_scale", "threshold_scale", "query_scale", "temperature"):
        with pytest.raises(VerificationError, match="Expected epsilon of at least inf"):
            MEDIANS.verify(with_scales(plan, **{scale: wrong}))
    with pytest.raises(VerificationError, match="Expected epsilon of at least inf"):
        MEDIANS.verify(replace(plan, problem=replace(plan.problem, users=1_000_000)))


@both
def test_a_run_as_printed_is_for_simulations_alone(name: str) -> None:
    with pytest.raises(ConfigError, match="calibrated constants"):
        small(name).require_deployable(trust_clients=True)


@both
def test_the_ledger_is_the_plans_and_a_halted_run_has_fewer_entries(name: str, tmp_path: Path) -> None:
    plan = small(name)
    execute(plan, tmp_path, Users())
    with Ledger.open(tmp_path / "ledger.sqlite") as ledger:
        written = ledger.releases()
    expected = [(each.rounds[-1], each.entry) for each in plan.releases()]
    assert written == expected
    if name == "filtered-sgd":
        (tmp_path / "halted").mkdir()
        execute(plan, tmp_path / "halted", Users(far_apart))
        with Ledger.open(tmp_path / "halted" / "ledger.sqlite") as ledger:
            assert ledger.releases() == []
            assert ledger.finished


FAULTS: dict[str, Callable[[Vector, NDArray[np.uint8]], None]] = {
    "NaN": lambda values, status: values.__setitem__(0, np.nan),
    "infinity": lambda values, status: values.__setitem__(0, np.inf),
    "1e300": lambda values, status: values.__setitem__(0, 1e300),
    "one is missing": lambda values, status: status.__setitem__(0, 1),
    "everyone is missing": lambda values, status: status.__setitem__(slice(None), 1),
    "everyone sends NaN": lambda values, status: values.__setitem__(slice(None), np.nan),
}


@both
@pytest.mark.parametrize("fault", FAULTS)
def test_nothing_users_send_stops_a_run_with_an_error(name: str, fault: str, tmp_path: Path) -> None:
    model = execute(small(name), tmp_path, Users(FAULTS[fault]))
    assert model.shape == (SMALL.dimension,)
    assert np.isfinite(model).all()


# The page.


def number(value: float) -> str:
    return "none" if math.isinf(value) else f"{value:,}" if isinstance(value, int) else f"{value:.3g}"


def rows() -> list[str]:
    """The table of docs/papers/ghazi.md: printed numbers, and those of calibrated plans, at four sizes."""
    found = []
    for name, make in (("filtered-sgd", ball), ("median-sgd", box)):
        for size in SIZES:
            info, problem = ALGORITHMS[name], make(size)
            ways = {"paper, 1": {}, 'paper, "proof"': {"release_constant": "proof"}}
            plans = {way: planned(info, problem, size, **options) for way, options in ways.items()}
            with suppress(Infeasible):
                plans["calibrated"] = info.plan(problem, Privacy(size.epsilon, size.delta))
            for way, plan in plans.items():
                p, first = plan.parameters, plan.parameters.phases[0]
                threshold = getattr(p, "threshold", None)
                if threshold is None:
                    threshold = p.filter.threshold if name == "filtered-sgd" else p.median.threshold
                at = f"{name}, {size.users:.0e}, {size.items:,}, {size.dimension:,}, {size.epsilon:g}"
                cells = (
                    at if way == "paper, 1" else "",
                    way,
                    number(p.cohort_size),
                    number(sum(phase.rounds for phase in p.phases)),
                    number(float(first.step_size)),
                    number(float(threshold)),
                    number(float(first.release_scale)),
                    number(float(plan.guarantee.epsilon)),
                )
                found.append(f"| {' | '.join(cells)} |")
    return found


def test_every_module_and_function_that_the_page_names_exists() -> None:
    for token in cited(PAGE):
        if "/" not in token:
            assert set(WORD.findall(token)) <= names(), token
        for owner, member in re.findall(r"([A-Z]\w*)\.([A-Za-z_]\w*)", token):
            assert member in members()[owner], token


def test_the_scales_of_the_proofs_keep_the_claim_in_the_law_that_our_theorem_covers_where_losses_are_flat() -> None:
    """outlier-filter#f1 with λ = 2σ at ĉ = c and an integer cutoff; with 1 for O(·) it does not hold."""
    size, flat = SIZES[0], replace(ball(SIZES[0]), smoothness=0.0)
    for constant, kept in (("proof", True), (1.0, False)):
        p = planned(FILTER, flat, size, release_constant=constant).parameters
        scale, centre = p.laplace_scale * math.sqrt(p.cutoff), math.ceil(p.cutoff)
        error = score_error(p.cohort_size, size.dimension) + scale * 2.0**-20
        decision = (1 + 2 * error) / scale * (1 + 1e-9)
        survivors = p.cohort_size - (2 * centre - 1)
        multiplier = p.phases[0].release_scale * p.temperature * (survivors + 1) / p.phases[0].step_size
        numbers = FilterParameters(
            cohort_size=p.cohort_size,
            decision_epsilon=decision,
            laplace_scale=scale,
            threshold=p.threshold,
            cutoff_centre=centre,
            cutoff_lattice=round(1 / p.cutoff_scale / decision),
            own_tail=20 * scale,
            others_tail=1 + 2 * error + 30 * scale,
            eta_beta=0.0,
            theta=p.temperature,
            noise_multiplier=multiplier,
            score_error=error,
        )
        with nullcontext() if kept else pytest.raises(VerificationError, match="certified delta"):
            assert verify_filter(numbers, size.epsilon, size.delta) < size.delta


@pytest.mark.parametrize(("constant", "broken"), [(1.0, True), ("proof", False)])
def test_with_one_for_the_open_constant_the_claim_is_false_of_two_worlds_with_linear_losses(
    constant: Any, broken: bool
) -> None:
    """One user's gradient is G or -G, the others' are 0: with the same noise, releases are so far apart.

    In a batch somebody is filtered with a chance below B exp(-(κ - F)/λ)/2, κ the least score: 2·10⁻⁴ in all.
    """
    size = Size(1_500_000, 50, 2, 0.95)
    plan = planned(FILTER, replace(ball(size), smoothness=0.0), size, release_constant=constant)
    p, found = plan.parameters, []
    for sign in (1, -1):
        algorithm, noise = FILTER.printed.maker(plan), SeededNoise(4)
        state, least = algorithm.init(), math.inf
        for round_ in range(p.phases[0].rounds):
            question = algorithm.request(state, noise)
            values = np.zeros((len(question.cohort), size.dimension))
            values[0, 0] = sign * LIPSCHITZ if round_ == 0 else 0.0
            update = algorithm.update(state, Answers(values, np.zeros(len(values), np.uint8)), noise)
            state, least = update.state, min(least, update.diagnostics["score_min"])
            assert update.diagnostics["filtered"] == 0
        scale = p.laplace_scale * math.sqrt(p.cutoff + 15 * p.cutoff_scale)  # ĉ is beyond with a chance of 2e-7
        filtered = p.phases[0].rounds * p.cohort_size * math.exp((p.threshold - least) / scale) / 2
        assert filtered < 2e-4
        found.append(state.released)
    mu = float(np.linalg.norm(found[0] - found[1])) / p.phases[0].release_scale
    assert (delta_for(mu, size.epsilon) - 1e-3 > 5e4 * size.delta) == broken
    assert broken or delta_for(mu, size.epsilon) < size.delta


@pytest.mark.slow
def test_the_table_on_the_page_is_what_these_plans_say() -> None:
    text = PAGE.read_text(encoding="utf-8")
    first = text.index("| filtered-sgd, ")
    assert text[first:].partition("\n\n")[0].splitlines() == rows()


if __name__ == "__main__":  # write the table again
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    first = next(at for at, line in enumerate(lines) if line.startswith("| filtered-sgd, "))
    last = next(at for at, line in enumerate(lines) if at > first and not line.startswith("| "))
    PAGE.write_text("\n".join([*lines[:first], *rows(), *lines[last:]]) + "\n", encoding="utf-8")
