"""A minimum cohort's numbers: what its decisions cost, exactly, and how rarely it is wrong."""

import itertools
import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from quoron_privacy.accounts import gdp
from quoron_privacy.errors import Infeasible, VerificationError
from quoron_privacy.gaussian import SPARE
from quoron_privacy.histograms.min_cohort import (
    BETA,
    MinCohort,
    calibrate,
    chances,
    noisy_count,
    rest,
    verify,
)

REST = (0.95, 1e-6)
REACH = 40  # scales, of the noise that the reference sums over


def cell(k: np.ndarray, scale: float) -> np.ndarray:
    """P(⌊L⌋ = k), from the geometric law: the slow, obvious way."""
    if not scale:
        return np.where(k == 0, 1.0, 0.0)
    ratio = math.exp(-1 / scale)
    return 0.5 * (1 - ratio) * ratio ** np.where(k >= 0, k, -k - 1)


def passing(level: np.ndarray, scale: float) -> np.ndarray:
    """P(⌊L⌋ >= level), as a sum of cells."""
    reach = math.ceil(REACH * max(scale, 1.0)) + int(np.abs(level).max()) + 1
    grid = np.arange(-reach, reach + 1)
    above = np.cumsum(cell(grid, scale)[::-1])[::-1]
    return above[np.asarray(level) + reach]


def ending_laws(min_cohort: MinCohort, needed: list[int], counts: list[int]) -> np.ndarray:
    """P(the run ends in round t) for each t, and that it never does, summed over Ξ."""
    reach = math.ceil(REACH * min_cohort.threshold_scale)
    limits = np.arange(-reach, reach + 1)
    mass, going, ends = cell(limits, min_cohort.threshold_scale), np.ones(len(limits)), []
    for least, counted in zip(needed, counts, strict=True):
        passes = passing(limits + least - counted, min_cohort.count_scale)
        ends.append(float(mass @ (going * (1 - passes))))
        going = going * passes
    return np.array([*ends, float(mass @ going)])


def loss(min_cohort: MinCohort, counts: list[int], moves: tuple[int, ...]) -> float:
    """The largest log ratio of any event of the run's end between a dataset and a neighbour of it."""
    needed = [10] * len(counts)
    one = ending_laws(min_cohort, needed, counts)
    other = ending_laws(min_cohort, needed, [count + move for count, move in zip(counts, moves, strict=True)])
    return float(np.abs(np.log(one / other)).max())


def neighbours(min_cohort: MinCohort, rounds: int) -> list[tuple[int, ...]]:
    """How one user can move the counts: in at most r rounds, by one each, either way."""
    every = itertools.product((-1, 0, 1), repeat=rounds)
    return [moves for moves in every if sum(map(abs, moves)) <= min_cohort.participations]


SEVERAL = MinCohort(0.5, 1.0, 3, 3.2, 2 / (1 - 1 / 3.2), *REST)
ALONE = MinCohort(0.5, 1.0, 1, 0.0, 1.0, *REST)
TWICE = MinCohort(0.5, 1.0, 2, 0.0, 2.0, *REST)


@pytest.mark.parametrize("min_cohort", [SEVERAL, ALONE, TWICE], ids=["sparse vectors", "asked once", "asked twice"])
@pytest.mark.parametrize("counts", [[10, 10, 10], [20, 9, 10], [0, 10, 20], [11, 8, 15]], ids=str)
def test_no_neighbour_moves_the_end_of_a_run_by_more_than_epsilon(min_cohort: MinCohort, counts: list[int]) -> None:
    assert float(min_cohort.cost) == pytest.approx(1.0)
    worst = max(loss(min_cohort, counts, moves) for moves in neighbours(min_cohort, 3))
    assert worst <= min_cohort.epsilon * (1 + 1e-9)


def test_a_quarter_of_the_noise_moves_it_further() -> None:
    """The broken twin: the test above is sharp enough to see it."""
    for min_cohort in (SEVERAL, ALONE, TWICE):
        broken = replace(
            min_cohort, threshold_scale=min_cohort.threshold_scale / 4, count_scale=min_cohort.count_scale / 4
        )
        worst = max(loss(broken, [10, 10, 10], moves) for moves in neighbours(min_cohort, 3))
        assert worst > 1.5 * min_cohort.epsilon


def test_fresh_noise_for_one_round_is_not_enough_where_a_user_is_asked_in_three() -> None:
    assert max(loss(ALONE, [10, 10, 10], moves) for moves in neighbours(SEVERAL, 3)) > 2 * ALONE.epsilon


@given(
    share=st.floats(0.05, 0.95),
    epsilon=st.floats(0.02, 3.0),
    rounds=st.integers(1, 40),
    often=st.integers(1, 40),
    size=st.integers(1, 4000),
)
@settings(max_examples=80)
def test_whatever_is_calibrated_is_verified_and_is_wrong_at_most_as_often_as_said(
    share: float, epsilon: float, rounds: int, often: int, size: int
) -> None:
    left, delta = rest(5.0, 1e-6, epsilon)
    try:
        min_cohort = calibrate(share, epsilon, (size,) * rounds, participations=often, rest=(left, delta))
    except Infeasible:
        return
    verify(min_cohort, 5.0, 1e-6, (size,) * rounds, participations=often)
    assert max(chances(min_cohort, (size,) * rounds)) <= BETA


@pytest.mark.parametrize(
    ("min_cohort", "cohorts"),
    [(SEVERAL, (40, 60, 40)), (ALONE, (30,) * 5), (TWICE, (44, 50))],
    ids=["sparse vectors", "asked once", "asked twice"],
)
def test_chances_are_those_of_the_noise_and_nearly_no_more(min_cohort: MinCohort, cohorts: tuple[int, ...]) -> None:
    needed = [min_cohort.needed(size) for size in cohorts]
    fails = 1 - ending_laws(min_cohort, needed, list(cohorts))[-1]
    smallest = min(needed)
    passes = ending_laws(min_cohort, [smallest], [0])[-1]
    for found, exact in zip(chances(min_cohort, cohorts), (fails, passes), strict=True):
        assert exact * (1 - 1e-6) - 1e-15 <= found <= exact * 1.02 + 1e-14


def test_a_needed_share_is_the_decimal_number_that_was_written() -> None:
    min_cohort = replace(ALONE, share=0.1)
    assert [min_cohort.needed(asked) for asked in (1, 10, 11, 30)] == [1, 1, 2, 3]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"count_scale": 0.99}, "a cost of at most"),
        ({"participations": 1}, "participations >= 2"),
        ({"epsilon": 1.01}, "epsilon of algorithm and minimum cohort"),
        ({"rest_epsilon": 1.01}, "epsilon of algorithm and minimum cohort"),
        ({"rest_delta": 1e-6}, "delta with the samplers"),
    ],
)
def test_a_min_cohort_that_costs_more_than_it_says_is_not_verified(changes: dict[str, float], words: str) -> None:
    left, delta = rest(2.0, 1e-6, 1.0)
    sound = MinCohort(0.5, 1.0, 2, 0.0, 2.0, left, delta)
    verify(sound, 2.0, 1e-6, (50,) * 4, participations=2)
    with pytest.raises(VerificationError, match=words):
        verify(replace(sound, **changes), 2.0, 1e-6, (50,) * 4, participations=2)


@pytest.mark.parametrize("epsilon", [0.0005, 0.05, 1.0, 5.0])
def test_mu_is_worth_pure_epsilon(epsilon: float) -> None:
    """At the corner of the curve of (ε, 0) both meet.

    Elsewhere that of μ lies below (docs/privacy/min-cohort.md#q3).
    """
    mu = replace(ALONE, epsilon=epsilon).mu
    assert gdp.delta_for(mu, epsilon) > 0
    for alpha in np.linspace(0.001, 0.999, 999):
        gaussian = norm.cdf(norm.isf(alpha) - mu)
        pure = max(0.0, 1 - math.exp(epsilon) * alpha, math.exp(-epsilon) * (1 - alpha))
        assert gaussian <= pure + 1e-12


USERS, COHORT, CLIP = 4, 1, 3  # of a world that is small enough to go through every draw; u is user 0


def released(total: int, scale: float) -> np.ndarray:
    """The law of a cohort's sum with discrete Laplace noise, cut to -CLIP..CLIP."""
    noise = cell(np.arange(-60, 61), scale) + cell(np.arange(-60, 61) - 1, scale)  # of ⌊L⌋ and ⌊L⌋ + 1: symmetric
    law = np.zeros(2 * CLIP + 1)
    np.add.at(law, np.clip(np.arange(-60, 61) + total, -CLIP, CLIP) + CLIP, noise / 2)
    return law


def joint(
    min_cohort: MinCohort, items: tuple[int, ...], answers: tuple[bool, ...], scale: float, fixed: bool
) -> np.ndarray:
    """The joint law of two releases and of how the decisions went, over all secret draws: shape (cells, cells, 3)."""
    if fixed:
        draws = [(draw, 1.0) for draw in itertools.combinations(range(USERS), COHORT)]
    else:
        coins = [tuple(np.flatnonzero(each)) for each in itertools.product((0, 1), repeat=USERS)]
        draws = [(draw, 0.25 ** len(draw) * 0.75 ** (USERS - len(draw))) for draw in coins]
    weight, law = sum(chance for _, chance in draws), np.zeros((2 * CLIP + 1, 2 * CLIP + 1, 3))
    for (first, one), (second, two) in itertools.product(draws, repeat=2):
        sums, counts = ([sum(each[u] for u in draw) for draw in (first, second)] for each in (items, answers))
        releases = np.outer(*(released(total, scale) for total in sums))
        ends = ending_laws(min_cohort, [1, 1], counts)
        law += one * two / weight**2 * releases[:, :, None] * ends
    return law


def loss_of_a_release(scale: float, *totals: int) -> float:
    """The largest log ratio of any cell of a release, between any two of these sums."""
    laws = [np.log(released(total, scale)) for total in totals]
    return max(float(np.abs(one - other).max()) for one, other in itertools.combinations(laws, 2))


def amplified(share: float, epsilon: float) -> float:
    """What a round that costs ε given its cohort costs where the cohort is a secret random share."""
    return math.log1p(share * math.expm1(epsilon))


@pytest.mark.parametrize("fixed", [True, False], ids=["of a fixed size", "by coins"])
@pytest.mark.parametrize(
    "min_cohort",
    [
        pytest.param(replace(SEVERAL, participations=2), id="sparse vectors"),
        pytest.param(TWICE, id="fresh noise", marks=pytest.mark.slow),
    ],
)
def test_decisions_by_a_secret_cohort_cost_their_epsilon_beside_what_it_amplifies(
    min_cohort: MinCohort, fixed: bool
) -> None:
    """subsampling#k5, over all draws of four users: the own one is absent, replaced, or there without an item."""
    scale, q = 2.0, COHORT / USERS
    claimed = 2 * amplified(q, loss_of_a_release(scale, -1, 0, 1)) + float(min_cohort.cost)
    for items, here in (((0, 0, 0), (False,) * 3), ((1, 0, 0), (True, True, False)), ((1, -1, 1), (True,) * 3)):
        worlds = [
            joint(min_cohort, (own, *items), (answers, *here), scale, fixed)
            for own, answers in ((0, False), (1, True), (-1, True), (0, True))
        ]
        assert max(float(np.log(p / r).max()) for p, r in itertools.permutations(worlds, 2)) <= claimed * (1 + 1e-9)


def test_decisions_by_a_secret_cohort_are_not_amplified_themselves() -> None:
    """The broken twin of subsampling#k5 is exceeded: both from the same draw, amplified apart and added."""
    scale, q, nobody = 2.0, COHORT / USERS, (False,) * 3
    one, other = (joint(TWICE, (own, 0, 0, 0), (bool(own), *nobody), scale, True) for own in (1, 0))
    apart = 2 * amplified(q, loss_of_a_release(scale, 0, 1)) + 2 * amplified(q, float(TWICE.cost) / 2)
    claimed = 2 * amplified(q, loss_of_a_release(scale, 0, 1)) + float(TWICE.cost)
    found = float(np.log(one / other).max())
    # as docs/privacy/subsampling.md prints them
    assert (round(apart, 3), round(found, 3), round(claimed, 3)) == (0.601, 0.715, 1.301)


def gaussian(epsilon: float, rounds: int, often: int, size: int, *, free: float = 0.0) -> MinCohort:
    """Of a run of (1, 1e-6) whose rest is planned for ε_q less, or that leaves room for counts of μ = `free`."""
    whole, own = gdp.mu_for(1.0, 1e-6), gdp.mu_for(1.0 - epsilon, 1e-6)
    each = math.sqrt((whole**2 - own**2) / often)
    return calibrate(
        0.5,
        epsilon,
        (size,) * rounds,
        participations=often,
        rest=(1.0 - epsilon, 1e-6),
        free=(free,) * rounds,
        room=lambda spent: each,
    )


def laplace(epsilon: float, rounds: int, often: int, size: int) -> MinCohort:
    return calibrate(0.5, epsilon, (size,) * rounds, participations=often, rest=REST)


def for_nothing(epsilon: float, rounds: int, often: int, size: int) -> MinCohort:
    """Of a run of (ε, 1e-6), beside means of vectors of which one may be replaced."""
    free = (SPARE * gdp.mu_for(epsilon, 1e-6) / math.sqrt(often),) * rounds
    found = calibrate(0.5, 0.0, (size,) * rounds, participations=often, rest=(epsilon, 1e-6), free=free)
    assert found.epsilon == 0
    return found


PRINTED = {
    laplace: {0.05: (618, 710, 2422), 0.2: (156, 178, 606), 1.0: (32, 36, 122)},
    gaussian: {0.05: (146, 158, 1574), 0.2: (76, 82, 606)},
    for_nothing: {0.1: (436, 472, 4706), 1.0: (52, 56, 548), 4.0: (16, 16, 156)},
}


@pytest.mark.parametrize(("counted", "epsilon"), [(each, epsilon) for each in PRINTED for epsilon in PRINTED[each]])
def test_the_page_prints_the_smallest_cohorts_that_can_be_counted(
    counted: Callable[..., MinCohort], epsilon: float
) -> None:
    """The three tables of docs/privacy/min-cohort.md, at a share of one half."""
    for size, rounds, often in zip(PRINTED[counted][epsilon], (10, 100, 100), (1, 1, 100), strict=True):
        counted(epsilon, rounds, often, size)
        with pytest.raises(Infeasible):
            counted(epsilon, rounds, often, size - 1)


@given(
    free=st.floats(0, 3), each=st.floats(0.001, 3), rounds=st.integers(1, 200), size=st.integers(1, 3000)
)  # fmt: skip
@settings(max_examples=60)
def test_chances_of_gaussian_counts_are_those_of_the_normal_law(
    free: float, each: float, rounds: int, size: int
) -> None:
    min_cohort = MinCohort(0.5, 0.1, 1, 0.0, 0.0, *REST, each=each)
    sigma, needed = min_cohort.deviation(free), min_cohort.needed(size)
    assert 1 / math.hypot(free, each) <= sigma <= (1 + 1e-6) / math.hypot(free, each)  # no more than is paid for
    fails = -math.expm1(rounds * norm.logcdf((size - needed) / sigma))
    passes = norm.sf(needed / sigma)
    for found, exact in zip(chances(min_cohort, (size,) * rounds, free=(free,) * rounds), (fails, passes), strict=True):
        assert exact * (1 - 1e-9) <= found <= exact * (1 + 1e-8) + 1e-12


class Still:
    """A stream whose noise is a given number of steps."""

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def gaussian_steps(self, shape: int) -> np.ndarray:
        return np.full(shape, self.steps)


def test_one_user_is_a_whole_number_of_steps_of_a_counts_noise() -> None:
    """So that counts cost 1/σ, and nothing for the grid; where a float has no room for all the steps, too."""
    for mu in (1e-4, 0.03, 0.866, 4.0, 1300.0, 1.3 * 2.0**18, 2.0**20):
        deviation = MinCohort(0.5, 0.1, 1, 0.0, 0.0, *REST, each=mu).deviation(0.0)
        steps = round(2.0**30 / deviation)
        assert steps * 2.0**-30 <= mu < steps * 2.0**-30 * (1 + 1e-5) + 2.0**-29
        for users in (
            users for users in (0, 1, 2, 5, 999, 1000, *range(1700, 3200), 10**7) if (users + 1) * steps <= 2**52
        ):
            with_ = noisy_count(users + 1, deviation, Still(7 - steps))  # `steps` steps less noise, exactly
            assert with_ == noisy_count(users, deviation, Still(7)) == float(users * steps + 7) / steps


def squares(spare: float) -> float:
    """The farthest two rows of a user may be, with a count of spare · μ beside them, in units of μ²; over a grid."""
    turns, lengths, apart = np.linspace(0, np.pi, 13), np.linspace(0, 1, 11), 4.0  # ‖a - b‖² of two, at most
    one, other, turn = np.meshgrid(lengths, lengths, turns)
    there = (one**2 + other**2 - 2 * one * other * np.cos(turn)).max() / apart
    return float(max(there, (lengths**2).max() / apart + spare**2))


def test_a_count_that_costs_nothing_moves_no_two_rows_farther_apart() -> None:
    assert 0.999 < squares(SPARE) <= 1
    assert squares(1.01 * SPARE) > 1  # the broken twin


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"each": 0.1, "count_scale": 2.0}, "one kind of noise"),
        ({"each": -0.1}, "one kind of noise"),
        ({"threshold_scale": 2.0}, "a threshold without noise"),
        ({"each": 0.0}, "epsilon of algorithm and minimum cohort"),
    ],
)
def test_counts_of_two_kinds_of_noise_are_not_verified(changes: dict[str, float], words: str) -> None:
    left, delta = rest(2.0, 1e-6, 0.5)
    sound = MinCohort(0.5, 0.5, 2, 0.0, 0.0, left, delta, each=0.1)
    verify(sound, 1.99, 1e-6, (50,) * 4, participations=2)  # what run and counts cost together is asked elsewhere
    with pytest.raises(VerificationError, match=words):
        verify(replace(sound, **changes), 1.99, 1e-6, (50,) * 4, participations=2)


def test_what_others_leave_of_beta_is_all_that_a_min_cohort_may_be_wrong() -> None:
    rounds = 10
    given = {"participations": 1, "rest": REST, "free": (0.02,) * rounds}

    def smallest(beta: float) -> int:
        for size in range(400, 1000):
            with suppress(Infeasible):
                found = calibrate(0.5, 0.0, (size,) * rounds, beta=beta, **given)
                assert max(chances(found, (size,) * rounds, free=given["free"])) <= beta
                return size
        raise AssertionError

    assert smallest(BETA / 2) > smallest(BETA)
