import functools
import itertools
import math
from dataclasses import dataclass, fields, replace

import numpy as np
import pytest
from dp_accounting.pld import pld_pmf
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtr
from scipy.stats import binom

from cover import by_default
from quoron_privacy.accounts import composition
from quoron_privacy.accounts.subsampling import wor_profile
from quoron_privacy.errors import ConfigError, Infeasible, VerificationError
from quoron_privacy.robust import smooth_test, subsampled_test
from quoron_privacy.robust.outlier_mean import OutlierMean, score_step, weighted_mean
from quoron_privacy.robust.smooth_test import SmoothTest, core_for, ladder_mus, pair_divergence
from quoron_privacy.robust.smooth_test_loops import step_profile
from quoron_privacy.robust.subsampled_test import (
    SubsampledTest,
    calibrate,
    pair,
    sampling_rate,
    smallest_cohort,
    subsampled_delta,
    verify_subsampled,
)

DELTA = 1e-6
CELLS = np.concatenate([[-np.inf], np.linspace(-6, 9, 121), [np.inf]])
TABLE = (0.02, 0.3, 0.9)
GENTLE = tuple(map(float, ndtr(np.linspace(-3, 2, 80))))  # neighbouring levels all but alike
TOP = len(GENTLE) - 1


@dataclass(frozen=True)
class Moving(OutlierMean):
    """An aggregate of one shift at every score."""

    def shifts_at(self, scores: np.ndarray) -> np.ndarray:
        return np.full(len(scores), self.shifts[0])


def plan_for(users: int, size: int, mu: float, table: tuple[float, ...] = TABLE, releases: int = 1) -> SubsampledTest:
    """An accountant's input with shift μ at noise 1; the geometry of so small a cohort plays no part here."""
    mean = Moving("weighted", size, size, 1, 2, (mu,), (1.0,))
    floor = tuple(math.floor(p * 2**53) / 2**53 for p in table)
    return SubsampledTest(users, releases, mean, SmoothTest(size, size, floor), 1.0)


def outcome(chance: float, centre: float) -> np.ndarray:
    """Law of one release: silent, or a cell of N(centre, 1)."""
    return np.append(chance * np.diff(ndtr(CELLS - centre)), 1 - chance)


def sampled(batches: list[tuple[int, float]], table: tuple[float, ...]) -> np.ndarray:
    """Law when one of the batches, given as (level, centre), is drawn uniformly; level −1 never releases."""
    return np.mean([outcome(0.0 if level < 0 else table[level], centre) for level, centre in batches], axis=0)


def worlds(rng: np.random.Generator, users: int, size: int, mu: float) -> tuple[list, list]:
    """Batches of two neighbouring datasets: one user moves levels by at most 1 and centres by at most μ."""
    steps, places = rng.integers(0, 2, users), rng.choice([0.0, 1.0], users) * mu
    base, lowest = int(rng.integers(-1, 2)), int(rng.integers(0, size + 1))
    pairs = []
    for step, place in ((int(steps[0]), places[0]), (int(rng.integers(0, 2)), mu - places[0])):
        steps[0], places[0] = step, place
        batches = [
            (min(max(base + int(steps[list(b)].sum()) - lowest, -1), 2), float(places[list(b)].sum()))
            for b in itertools.combinations(range(users), size)
        ]
        pairs.append(batches)
    return pairs[0], pairs[1]


@pytest.mark.parametrize(
    ("users", "size"), by_default([(3, 1), (4, 2), (5, 2), (6, 3), (3, 3)], [(3, 1), (5, 2), (3, 3)])
)
@pytest.mark.parametrize("mu", [0.3, 1.5])
def test_no_tiny_instance_exceeds_the_accountant(users, size, mu):
    rng, plan, worst = np.random.default_rng(11), plan_for(users, size, mu), 0.0
    for epsilon in (0.1, 0.5, 1.5):
        claim = subsampled_delta(plan, epsilon)
        for _ in range(80):
            p, q = (sampled(batches, TABLE) for batches in worlds(rng, users, size, mu))
            for one, two in ((p, q), (q, p)):
                worst = max(worst, float(np.maximum(one - math.exp(epsilon) * two, 0).sum()) / claim)
    assert 0.5 < worst <= 1


@pytest.mark.parametrize(("users", "size"), by_default([(4, 2), (5, 2), (3, 3)], [(4, 2)]))
def test_two_adaptive_releases_stay_below_the_claim(users, size):
    """The second query is the best of several for every outcome of the first."""
    rng, mu, worst = np.random.default_rng(2), 0.7, 0.0
    plan = plan_for(users, size, mu, releases=2)
    laws = []
    for _ in range(40):
        p, q = (sampled(batches, TABLE) for batches in worlds(rng, users, size, mu))
        laws += [(p, q), (q, p)]
    for epsilon in (0.3, 1.0):
        claim = subsampled_delta(plan, epsilon)
        for first_p, first_q in laws[::4]:
            gains = [
                np.maximum(np.outer(first_p, p) - math.exp(epsilon) * np.outer(first_q, q), 0).sum(1) for p, q in laws
            ]
            worst = max(worst, float(np.max(gains, axis=0).sum()) / claim)
    assert 0.4 < worst <= 1  # the claim is for one who knows of another that it was not drawn


def test_real_cohorts_sampled_from_nine_users_stay_below_the_claim():
    """Answers on a line, the scores, weights and means of the mechanism itself, all nine cohorts of eight."""
    mean, table = weighted_mean(8, 6), (0.05, 0.4)
    sigma = mean.sensitivity / 0.8
    test = SmoothTest(8, 6, tuple(math.floor(p * 2**53) / 2**53 for p in table))
    plan = SubsampledTest(9, 1, mean, test, sigma)
    rng, worst, met = np.random.default_rng(4), 0.0, 0

    def batch(points: np.ndarray) -> tuple[float, float]:
        near = np.abs(points[:, None] - points) <= 1
        weights = np.clip((near.sum(1) - mean.ramp_low) / (mean.ramp_high - mean.ramp_low), 0, 1)
        centre = float(weights @ points / weights.sum()) if weights.sum() > 0 else 0.0
        return test.chance(int(near.sum())), centre / sigma

    claims = {epsilon: subsampled_delta(plan, epsilon) for epsilon in (0.3, 1.0)}
    for _ in range(250):
        points = rng.choice([0.0, 1.0, 2.0], 9, p=rng.dirichlet([6, 1, 0.5]))
        other = points.copy()
        points[0], other[0] = rng.choice([-1.0, 0.0, 1.0, 2.0, 9.0], 2, replace=False)
        p, q = (
            np.mean([outcome(*batch(np.array(chosen))) for chosen in itertools.combinations(values, 8)], axis=0)
            for values in (points, other)
        )
        met += p[-1] < 1
        for epsilon, claim in claims.items():
            for one, two in ((p, q), (q, p)):
                worst = max(worst, float(np.maximum(one - math.exp(epsilon) * two, 0).sum()) / claim)
    assert met > 100
    assert 0.05 < worst <= 1


@given(size=st.integers(40, 400), levels=st.integers(1, 9), seed=st.integers(0, 2**32 - 1))
@settings(derandomize=True, deadline=None, max_examples=40)
def test_the_profile_of_a_release_is_the_largest_of_all_pairs_of_levels(size, levels, seed):
    """None of the pairs that it skips matters, whatever the ladder's shape."""
    rng, core = np.random.default_rng(seed), core_for(size, levels)
    mean = weighted_mean(size, core)
    table = np.floor(np.sort(10 ** rng.uniform(-6, 0, levels + 1)) * 2.0**53) / 2.0**53
    mus = ladder_mus(mean, levels, mean.sensitivity / rng.uniform(0.05, 6))
    epsilons = np.concatenate([[0.0], rng.uniform(0, 4, 12)])
    found = np.empty(len(epsilons))
    step_profile(epsilons, table, np.log(table[1:] / table[:-1]), mus, found)
    for epsilon, value in zip(epsilons, found, strict=True):
        worst = table[0]
        for p, q in ((table[1:], table[1:]), (table[1:], table[:-1]), (table[:-1], table[1:])):
            worst = max(worst, pair_divergence(float(epsilon), p, q, mus[1:, None]).max())
        assert value == pytest.approx(min(worst, 1.0), rel=1e-9, abs=1e-14)


# Twins: an accountant that forgets one thing, and an instance whose exact divergence exceeds what it claims.


def test_a_sixteenth_of_the_noise_is_caught():
    claim = subsampled_delta(plan_for(2, 1, 0.3, GENTLE), 0.5)
    for factor, caught in ((1, False), (16, True)):
        p, q = (sampled([(TOP, centre), (TOP, 0.0)], GENTLE) for centre in (factor * 0.3, 0.0))
        assert (np.maximum(p - math.exp(0.5) * q, 0).sum() > claim) == caught


def test_a_release_without_its_test_is_caught():
    """The user drags a cohort that never agrees: without the test its aggregate moves by any distance."""
    p, q = (np.mean([outcome(1.0, centre), outcome(1.0, 0.0)], axis=0) for centre in (50.0, 0.0))
    assert np.maximum(p - math.exp(0.5) * q, 0).sum() > 2 * subsampled_delta(plan_for(2, 1, 0.3, GENTLE), 0.5)


def test_accounting_without_replacement_does_not_cover_draws_with_replacement():
    """A user drawn M times moves the mean M times as far. n = 4, K = 3, everybody else at 0."""
    users, size, mu, epsilon = 4, 3, 0.8, 2.0
    claim = subsampled_delta(plan_for(users, size, mu, GENTLE), epsilon)
    away = outcome(GENTLE[TOP], 0.0)
    drawn = binom.pmf(np.arange(size + 1), size, 1 / users)
    often = sum(chance * outcome(GENTLE[TOP], times * mu) for times, chance in enumerate(drawn))
    once = 0.75 * outcome(GENTLE[TOP], mu) + 0.25 * away
    assert np.maximum(often - math.exp(epsilon) * away, 0).sum() > 1.1 * claim
    assert np.maximum(once - math.exp(epsilon) * away, 0).sum() <= claim


def test_sampling_does_not_amplify_given_that_the_test_has_passed():
    """The printed step (10): conditioned on the test, it charges the Gaussian at rate γ = K/n.

    n = 6, K = 3, printed noise Lap(16/ε) at ε = 8. Five users' answers are out of reach of one another, the sixth is in
    reach of all: its cohorts score 7/3 and all others 1, below the threshold 12/5, so they are e^{2/3} times as likely
    to pass. In the other dataset it is out of reach as well. Given a pass it was drawn with chance γt/(1 − γ + γt).
    """
    rate, tilt, mu, epsilon = 3 / 6, math.exp((7 / 3 - 1) * 8 / 16), 0.5, 1.0
    passed = np.array([rate * tilt, 1 - rate]) / (1 - rate + rate * tilt)
    p = passed[0] * np.diff(ndtr(CELLS - mu)) + passed[1] * np.diff(ndtr(CELLS))
    q = np.diff(ndtr(CELLS))  # the other dataset: no cohort moves, so none is preferred
    exact = float(np.maximum(p - math.exp(epsilon) * q, 0).sum())
    printed = float(wor_profile(rate, mu, np.array([epsilon]))[0])
    assert exact > 1.5 * printed


def test_charging_the_gaussian_alone_claims_less_than_the_exact_truth():
    """A silent release says something too: 4 users, cohorts of 2, one level between the worlds, hardly a shift."""
    p, q = (
        sampled([(level, 0.0)] * 3 + [(0, 0.0)] * 3, TABLE) for level in (1, 0)
    )  # the user is in 3 of the 6 cohorts
    exact = float(np.maximum(p - math.exp(0.1) * q, 0).sum())
    gaussian_only = float(wor_profile(0.5, 0.01, np.array([0.1]))[0])
    assert exact > 100 * gaussian_only
    assert exact <= subsampled_delta(plan_for(4, 2, 0.01), 0.1)


# Calibration.


@pytest.mark.parametrize(
    ("epsilon", "edges"), [(1.0, (626, 1472, 3114)), (4.0, (176, 420, 884)), (8.0, (104, 230, 486))]
)
def test_smallest_cohorts_are_no_larger_than_published(epsilon, edges):
    for releases, edge in zip((10, 50, 200), edges, strict=True):
        assert 0.65 * edge <= smallest_cohort(epsilon, DELTA, releases) <= 1.05 * edge


def test_the_smallest_cohort_has_a_plan_and_a_smaller_one_is_refused():
    edge = smallest_cohort(4.0, DELTA, 10)
    plan = calibrate(4.0, DELTA, users=edge + 2, cohort_size=edge + 2, releases=10)
    assert verify_subsampled(plan, 4.0, DELTA) <= DELTA
    with pytest.raises(Infeasible, match="cohort_size >= "):
        calibrate(4.0, DELTA, users=edge - 4, cohort_size=edge - 4, releases=10)


NEAR = [  # ε, δ, T, γ
    (0.05, 1e-12, 1, 0.05),
    (0.5, 1e-12, 20, 0.05),
    (4.0, 1e-12, 2, 1.0),
    (4.0, 1e-8, 20, 0.3),
    (12.0, 1e-4, 200, 0.05),
]
SWEEP = [
    (epsilon, delta, releases, rate)
    for epsilon in (0.05, 0.5, 4.0, 12.0)
    for delta in (1e-12, 1e-8, 1e-4)
    for releases in (1, 20, 200)
    for rate in (1.0, 0.05)
]


def recomputed(epsilon: float, delta: float, releases: int, rate: float) -> float:
    """Share of the claimed ε that the second account finds of the plan of 2.5 times the smallest cohort."""
    size = round(2.5 * smallest_cohort(epsilon, delta, releases, rate=rate))
    asked = {"users": round(size / rate), "cohort_size": size, "releases": releases}
    made = pair(calibrate(epsilon, delta, **asked))
    assert 0.99 * delta <= made.delta(epsilon, delta) <= delta
    return made.epsilon(delta) / epsilon


@pytest.mark.parametrize(("epsilon", "delta", "releases", "rate"), by_default(NEAR, (NEAR[0], NEAR[3])))
def test_the_second_account_finds_the_epsilon_that_is_claimed(epsilon, delta, releases, rate):
    assert 0.99 <= recomputed(epsilon, delta, releases, rate) <= 1


@pytest.mark.slow
@pytest.mark.parametrize("case", SWEEP)
def test_the_second_account_finds_the_epsilon_that_is_claimed_wherever_there_is_a_plan(case):
    assert 0.99 <= recomputed(*case) <= 1


def test_both_accounts_agree_with_dp_accounting_where_its_rounding_allows():
    """All pairs of levels on an even lattice, made into a law and composed by dp-accounting."""
    plan, table, gap = small_plan(), np.array(small_plan().test.table), 2e-3
    mus = ladder_mus(plan.mean, len(table) - 1, plan.noise_multiplier)
    sizes, upper = np.arange(1500) * gap, np.full(1500, plan.rate * table[0])
    for place, value in enumerate(np.log1p(np.expm1(sizes) / plan.rate)):
        for p, q in ((table[1:], table[1:]), (table[1:], table[:-1]), (table[:-1], table[1:])):
            found = plan.rate * pair_divergence(float(value), p, q, mus[1:, None]).max()
            upper[place] = max(upper[place], found * (1 + 1e-12))
    lower = (-np.expm1(-sizes) + np.exp(-sizes) * upper)[:0:-1]
    both = np.minimum.accumulate(np.concatenate([lower, upper]))
    once = pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(gap, -1499, 1499, both)
    third = once.to_dense_pmf().self_compose(plan.releases, 1e-15).get_delta_for_epsilon(2.0)
    assert pair(plan).delta(2.0, DELTA) == pytest.approx(third, rel=5e-3)
    assert composition.SAFETY * subsampled_delta(plan, 2.0) == pytest.approx(third, rel=5e-3)


@functools.cache
def small_plan() -> SubsampledTest:
    return calibrate(2.0, DELTA, users=5000, cohort_size=500, releases=20)


def test_broken_plans_do_not_verify():
    plan = small_plan()
    for broken in (
        replace(plan, noise_multiplier=plan.noise_multiplier * 0.998),
        replace(plan, users=4000),
        replace(plan, releases=25),
        replace(plan, test=replace(plan.test, table=(1.0,))),
        replace(plan, test=replace(plan.test, table=plan.test.table[::2])),
    ):
        with pytest.raises(VerificationError, match="certified delta"):
            verify_subsampled(broken, 2.0, DELTA)


BENT = {  # where each is found, what it is called, and how it errs
    "a composition that finds too little": ([composition], "delta", lambda true: lambda *a, **k: 0.98 * true(*a, **k)),
    "shifts that are too small": (
        [smooth_test, subsampled_test],
        "ladder_mus",
        lambda true: lambda *a: 0.998 * true(*a),
    ),
}


@pytest.mark.parametrize("kind", BENT)
def test_a_calibration_that_errs_does_not_verify(kind, monkeypatch):
    where, name, wrong = BENT[kind]
    size = 500 + 2 * list(BENT).index(kind)  # calibrations are remembered
    with monkeypatch.context() as bent:
        for module in where:
            bent.setattr(module, name, wrong(getattr(module, name)))
        plan = calibrate(2.0, DELTA, users=4000, cohort_size=size, releases=20)
    with pytest.raises(VerificationError, match="certified delta"):
        verify_subsampled(plan, 2.0, DELTA)


def test_everybody_asked_means_no_amplification_and_one_who_was_not_drawn_reduces_it():
    assert sampling_rate(100, 100) == 1.0
    assert sampling_rate(101, 50) == 0.5
    assert sampling_rate(51, 50) == 1.0
    with pytest.raises(ConfigError, match=r"cohort_size in 1\.\.users=10"):
        sampling_rate(10, 11)
    with pytest.raises(ConfigError, match="delta >= 1e-13"):
        calibrate(1.0, 1e-14, users=10_000, cohort_size=1000, releases=10)
    with pytest.raises(ConfigError, match="forgiven >= 0"):
        calibrate(1.0, 1e-6, users=10_000, cohort_size=1000, releases=10, forgiven=-1)


def test_the_pair_of_one_release_is_its_profile_and_no_less():
    plan = calibrate(1.0, 1e-12, users=2000, cohort_size=1000, releases=1)
    table = np.array(plan.test.table)
    mus = ladder_mus(plan.mean, len(table) - 1, plan.noise_multiplier)
    made = pair(plan)
    for epsilon in (0.05, 0.4, 1.0, 1.3):
        inner, worst = math.log1p(math.expm1(epsilon) / plan.rate), table[0]
        for p, q in ((table[1:], table[1:]), (table[1:], table[:-1]), (table[:-1], table[1:])):
            worst = max(worst, pair_divergence(inner, p, q, mus[1:, None]).max())
        assert plan.rate * worst <= made.delta(epsilon, 1e-13) <= 1.01 * plan.rate * worst


class Higher(OutlierMean):
    """The twin: every level charged with the shift of the next."""

    def shifts_at(self, scores: np.ndarray) -> np.ndarray:
        return super().shifts_at(scores + score_step(self.cohort_size))


def test_rungs_that_are_charged_one_too_high_do_not_verify():
    plan = calibrate(1.0, DELTA, users=300, cohort_size=300, releases=3)
    broken = replace(plan, mean=Higher(**{field.name: getattr(plan.mean, field.name) for field in fields(plan.mean)}))
    noise = plan.noise_multiplier
    while subsampled_delta(replace(broken, noise_multiplier=noise), 1.0) <= DELTA:
        noise *= 0.99
    assert noise < 0.95 * plan.noise_multiplier
    with pytest.raises(VerificationError, match="certified delta"):
        verify_subsampled(replace(plan, noise_multiplier=noise / 0.99), 1.0, DELTA)


def test_a_test_that_is_never_silent_protects_only_those_who_are_not_drawn():
    # Cohorts below the threshold never release, those just above always do: told apart whenever the user is drawn.
    assert subsampled_delta(plan_for(100, 10, 0.5, (1.0,)), 1.0) >= 0.1
