import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quoron_privacy.kernels import threads
from quoron_privacy.robust.filter import concentration
from quoron_privacy.robust.filter.concentration import (
    DECAY_ERROR,
    REACH,
    RESOLUTION,
    cohort_scores,
    decide,
    filtered_mean,
    lower_bounds,
    middle,
    observe,
    score_error,
    scores,
    scores_of,
    upper_bounds,
)
from quoron_privacy.robust.filter.concentration_loops import decay


def real_scores(gradients, tau, norm="l2"):
    """The score as written on paper, in extended precision."""
    rows = np.asarray(gradients, dtype=np.longdouble)
    total = np.empty(len(rows), dtype=np.longdouble)
    for i, row in enumerate(rows):
        with np.errstate(over="ignore"):  # only where extended precision is double precision
            apart = np.abs(rows - row)
            lengths = np.sqrt((apart**2).sum(axis=1)) if norm == "l2" else apart.max(axis=1)
            total[i] = np.exp(-np.longdouble(tau) * lengths).sum()
    return total


def reference_scores(gradients, tau, norm="l2"):
    """The arithmetic of `concentration.scores` step by step, all pairs at once: equal to it bit by bit."""
    rows = np.asarray(gradients, dtype=np.float64)
    with np.errstate(over="ignore"):
        squares, largest = np.zeros((2, len(rows), len(rows)))
        for k in range(rows.shape[1]):
            apart = np.abs(np.subtract.outer(rows[:, k], rows[:, k]))
            squares += apart**2
            largest = np.maximum(largest, apart)
        y = np.minimum(tau * (np.sqrt(squares) if norm == "l2" else largest), 25.0) / 256
    tail = 1 / 120 - y * (1 / 720) * (1 - y * (1 / 7 - y * (1 / 56)))
    power = 1 - y * (1 - y * (1 / 2 - y * (1 / 6 - y * (1 / 24 - y * tail))))
    for _ in range(8):
        power = power * power
    return (np.floor(power * 2.0**34 + 0.5) * 2.0**-34).sum(axis=1)


def reference_decisions(gradients, answered, tau, thresholds, step):
    """All pairs of the rows that take part, compared with the thresholds in integers."""
    present = np.flatnonzero(answered & np.isfinite(gradients).all(axis=1))
    kept = np.zeros(len(gradients), dtype=bool)
    kept[present] = np.rint(reference_scores(gradients[present], tau) / step) > thresholds[present]
    return kept


KINDS = ("gaussian", "clusters", "outliers", "duplicates", "huge", "line", "offset", "sphere")


def cohort(kind, users, dimension, rng):
    """A (users, dimension) matrix of finite rows; distances of ordinary users are about 1."""
    rows = rng.normal(size=(users, dimension)) / np.sqrt(2 * dimension)
    some = rng.random(users) < rng.choice([0.02, 0.2, 0.5])
    if kind == "clusters":
        rows[some] += rng.normal(size=dimension) * rng.choice([1.0, 5.0, 100.0])
    elif kind == "outliers":
        rows[some] *= 10.0 ** rng.uniform(0, 12, size=(some.sum(), 1))
    elif kind == "duplicates":
        rows = rows[rng.integers(0, max(1, users // 3), size=users)]
    elif kind == "huge":
        rows[some] = rng.choice([1e150, -1e150, 1e300, -1e300, 1.7e308], size=(some.sum(), dimension))
    elif kind == "line":
        rows = np.linspace(0, rng.choice([0.1, 3.0, 1e4]), users)[:, None] * np.ones(dimension)
    elif kind == "offset":
        rows += rng.choice([1e3, 1e8, 1e15, 1e200])
    elif kind == "sphere":
        rows /= np.maximum(np.sqrt((rows**2).sum(axis=1, keepdims=True)), 1e-9)
    return rows


examples = settings(derandomize=True, deadline=None, max_examples=60)
cohorts = {
    "seed": st.integers(0, 2**32 - 1),
    "users": st.integers(1, 150),
    "dimension": st.integers(1, 9),
    "kind": st.sampled_from(KINDS),
    "tau": st.sampled_from([1e-3, 0.2, 1.0, 30.0]),
}
norms = pytest.mark.parametrize("norm", ["l2", "linf"])


@norms
@examples
@given(**cohorts)
def test_scores_equal_the_step_by_step_reference_bit_by_bit(norm, seed, users, dimension, kind, tau):
    rows = cohort(kind, users, dimension, np.random.default_rng(seed))
    expected, some = reference_scores(rows, tau, norm), np.arange(users)[::2]
    assert np.array_equal(scores(rows, tau, norm=norm), expected)
    if norm == "l2":
        assert np.array_equal(scores_of(rows, some, tau), expected[some])


@norms
@examples
@given(**cohorts)
def test_computed_scores_lie_within_score_error_of_real_ones(norm, seed, users, dimension, kind, tau):
    rows = cohort(kind, users, dimension, np.random.default_rng(seed))
    error = np.abs(scores(rows, tau, norm=norm) - real_scores(rows, tau, norm)).max()
    assert error <= score_error(users, dimension)


def test_exponential_lies_within_its_certified_relative_error():
    x = np.concatenate([np.linspace(0, 25, 20_001)[:-1], np.geomspace(1e-300, 1, 2001)])
    computed = np.array([decay(value) for value in x], dtype=np.longdouble)
    assert np.abs(computed * np.exp(x.astype(np.longdouble)) - 1).max() <= DECAY_ERROR
    assert decay(0.0) == 1.0
    assert 0 < decay(np.inf) < RESOLUTION / 2  # rounds to an entry of exactly zero


@examples
@given(**cohorts, magnitude=st.sampled_from([0.0, 1.0, 1e6, 1e9, 1e150, 1e300]))
def test_replacing_one_user_moves_no_other_score_by_more_than_one(seed, users, dimension, kind, tau, magnitude):
    rng = np.random.default_rng(seed)
    rows = cohort(kind, users, dimension, rng)
    replaced, own = rows.copy(), rng.integers(users)
    replaced[own] = rng.normal(size=dimension) * magnitude
    change = np.abs(np.delete(scores(rows, tau) - scores(replaced, tau), own))
    assert change.max(initial=0.0) <= 1.0  # of the computed scores, without any slack


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_non_finite_and_missing_rows_are_isolated(bad):
    rng = np.random.default_rng(5)
    rows, answered = rng.normal(size=(100, 6)), rng.random(100) < 0.8
    rows[3, 2], rows[~answered] = bad, bad
    present = answered & np.isfinite(rows).all(axis=1)
    result = cohort_scores(rows, answered, 0.5)
    assert np.array_equal(result[present], scores(rows[present], 0.5))
    assert (result[~present] == 1.0).all()
    assert (cohort_scores(rows, np.zeros(100, dtype=bool), 0.5) == 1.0).all()


# Later rounds: the same users, asked at two points. Users are logistic or Huber with one to three items; any such user
# is β-smooth with β the largest average squared feature norm times the curvature of the link (1/4 and 1).


def gradients_at(point, features, labels, link):
    margins = np.einsum("umd,d->um", features, point)
    slopes = -labels / (1 + np.exp(labels * margins)) if link == "logistic" else np.clip(margins - labels, -1.0, 1.0)
    return np.einsum("um,umd->ud", slopes, features) / features.shape[1]


def population(rng, link):
    users, items, dimension = rng.integers(2, 60), rng.integers(1, 4), rng.integers(1, 5)
    features = rng.normal(size=(users, items, dimension)) * rng.choice([0.0, 0.3, 2.0], size=(users, items, 1))
    labels = rng.choice([-1.0, 1.0], size=(users, items))
    beta = (features**2).sum(axis=2).mean(axis=1).max() * (0.25 if link == "logistic" else 1.0)
    start = rng.normal(size=dimension) * rng.choice([0.1, 1.0])
    return features, labels, beta, start, start + rng.normal(size=dimension) * 10.0 ** rng.uniform(-4, 0.5)


@settings(derandomize=True, deadline=None, max_examples=200)
@given(
    seed=st.integers(0, 2**32 - 1),
    link=st.sampled_from(["logistic", "huber"]),
    tau=st.sampled_from([0.1, 1.0, 10.0]),
)
def test_later_scores_move_by_at_most_the_smoothness_bound(seed, link, tau):
    features, labels, beta, here, there = population(np.random.default_rng(seed), link)
    users, gap = len(features), np.linalg.norm(here - there)
    before = scores(gradients_at(here, features, labels, link), tau)
    after = scores(gradients_at(there, features, labels, link), tau)
    slack = 2 * score_error(users, features.shape[2]) + 1e-12 * users
    assert np.abs(before - after).max() <= (users - 1) * -np.expm1(-tau * beta * gap) + slack


def assert_bracketed(rows, tau):
    exact, view = reference_scores(rows, tau), observe(rows, middle(rows))
    for ends in ([REACH / tau], concentration._ends(view, tau)):
        lower = lower_bounds(rows, tau, view.centre, ends)
        assert (lower <= exact).all()
        assert (lower >= 1.0).all()
    for seen in (view, observe(rows, rows[-1])):
        upper = upper_bounds(seen, tau)
        assert (exact <= upper).all()
        assert (upper <= len(rows)).all()


@settings(derandomize=True, deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 2**32 - 1),
    users=st.one_of(st.sampled_from([1, 2, 3]), st.integers(1, 200)),
    dimension=st.integers(1, 9),
    kind=st.sampled_from(KINDS),
    tau=st.sampled_from([1e-100, 1e-3, 0.2, 1.0, 30.0, 1e12, 1e100]),
)
def test_bounds_bracket_the_computed_score(seed, users, dimension, kind, tau):
    assert_bracketed(cohort(kind, users, dimension, np.random.default_rng(seed)), tau)


def test_lower_bounds_allow_for_a_mean_that_cannot_be_written_down():
    # Near 2⁵² neighbouring numbers are 1 apart: a shell whose mean lies at 0.2 is seen from 0 instead, and the last
    # user, far away on the other side, seems closer to it than it is.
    offsets = np.random.default_rng(0).permutation(np.repeat([-1.0, 0.0, 1.0], [500, 700, 800]))
    rows = 2.0**52 + np.append(offsets, -100.0)[:, None]
    assert middle(rows)[0] == 2.0**52
    assert_bracketed(rows, 0.01)


def random_round(seed):
    """Answers, who answered, τ, thresholds and step of one arbitrary round; many thresholds lie exactly at scores."""
    rng = np.random.default_rng(seed)
    users = int(rng.choice([1, 2, 3, rng.integers(4, 160)]))
    rows = cohort(KINDS[seed % len(KINDS)], users, int(rng.integers(1, 8)), rng)
    answered = rng.random(users) < rng.choice([0.0, 0.7, 1.0, 1.0, 1.0])
    tau, step = rng.choice([0.05, 0.5, 5.0]), rng.choice([2.0**-8, 1.0, 86.0 / 2**20])
    noisy = np.rint((rng.uniform(0, users + 1) - rng.laplace(size=users) * rng.choice([0.1, 3.0])) / step)
    at_scores = np.rint(reference_scores(rows, tau) / step) - rng.integers(0, 2, size=users)
    thresholds = np.where(rng.random(users) < rng.choice([0.0, 0.5, 1.0]), at_scores, noisy).astype(np.int64)
    return rows, answered, tau, thresholds, step


@pytest.mark.parametrize("first", range(0, 400, 50))
def test_decisions_equal_those_of_all_pairs(first):
    for seed in range(first, first + 50):
        rows, answered, tau, thresholds, step = random_round(seed)
        expected = reference_decisions(rows, answered, tau, thresholds, step)
        outcome = decide(rows, answered, tau, thresholds, step=step)
        assert np.array_equal(outcome.kept, expected), seed
        assert 0 <= outcome.undecided <= answered.sum()


def test_a_score_exactly_at_the_threshold_is_filtered():
    rows, answered = np.zeros((4, 2)), np.ones(4, dtype=bool)
    assert not decide(rows, answered, 1.0, np.full(4, 8), step=0.5).kept.any()
    assert decide(rows, answered, 1.0, np.full(4, 7), step=0.5).kept.all()


@settings(derandomize=True, deadline=None, max_examples=60)
@given(seed=st.integers(0, 2**32 - 1), bad=st.sampled_from([np.nan, np.inf, -np.inf, 1e300, -1e300, 1e155]))
def test_an_absurd_row_changes_nobody_elses_decision(seed, bad):
    rows, answered, tau, thresholds, step = random_round(seed)
    own = seed % len(rows)
    absent = answered.copy()
    absent[own] = False
    rows = np.where(np.abs(rows).max(axis=1, keepdims=True) < 1e16, rows, 0.0)  # nobody else is as far out
    without = np.delete(decide(rows, absent, tau, thresholds, step=step).kept, own)
    rows[own, seed % rows.shape[1]] = bad
    outcome = decide(rows, answered, tau, thresholds, step=step)
    assert np.array_equal(np.delete(outcome.kept, own), without)
    assert np.isfinite(bad) or not outcome.kept[own]


@pytest.mark.parametrize("users", [1, 4096, 4097, 20_000])
def test_what_is_added_of_a_cohort_does_not_depend_on_the_number_of_threads(monkeypatch, users):
    monkeypatch.setattr(threads, "_SMALL", 0)
    rows = cohort("gaussian", users, 3, np.random.default_rng(users))
    rows[:: max(2, users // 7)] *= 1e200  # beyond anybody's reach
    answered, kept = np.arange(users) % 5 > 0, np.arange(users) % 3 < 2
    bits = []
    for number in (1, 2, 5):
        monkeypatch.setattr(numba.config, "NUMBA_NUM_THREADS", number)
        lower = lower_bounds(rows, 0.2, middle(rows), [1.0, REACH / 0.2])
        parts = lower, filtered_mean(rows, kept), concentration.usable(rows, answered)
        bits.append(b"".join(np.ascontiguousarray(part).tobytes() for part in parts))
    assert len(set(bits)) == 1
    blocks = [(rows[first : first + 512], kept[first : first + 512]) for first in range(0, users, 512)]
    scale, total = 2.0 ** -int(kept.sum()).bit_length(), np.zeros(3)
    for block, chosen in blocks:  # row after row, and block after block
        total += np.cumsum(np.vstack([np.zeros(3), block[chosen] * scale]), axis=0)[-1]
    np.testing.assert_array_equal(filtered_mean(rows, kept), total / (kept.sum() * scale))


@settings(derandomize=True, deadline=None, max_examples=60)
@given(seed=st.integers(0, 2**32 - 1))
def test_filtered_mean_is_the_mean_of_the_kept_rows(seed):
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(rng.integers(1, 80), 4))
    kept = rng.random(len(rows)) < 0.7
    rows[~kept] = rng.choice([np.nan, np.inf, 1e300])
    expected = rows[kept].mean(axis=0) if kept.any() else np.zeros(4)
    np.testing.assert_allclose(filtered_mean(rows, kept), expected, rtol=1e-12, atol=1e-13)


def test_an_undecidable_round_falls_back_to_all_pairs():
    rows = cohort("gaussian", 400, 5, np.random.default_rng(2))
    thresholds = np.rint(scores(rows, 1.0) * 2**20).astype(np.int64) - 1
    outcome = decide(rows, np.ones(400, dtype=bool), 1.0, thresholds, step=2.0**-20)
    assert outcome.undecided == 400
    assert outcome.kept.all()


@settings(derandomize=True, deadline=None, max_examples=100)
@given(seed=st.integers(0, 2**32 - 1), step_times_smoothness=st.sampled_from([0.1, 1.0, 2.0]))
def test_a_filtered_step_with_the_same_survivors_never_increases_distance(seed, step_times_smoothness):
    # Logistic users, β = largest ‖feature‖² / 4; the kept set is arbitrary but the same in both worlds.
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(30, 3)) * rng.choice([0.1, 1.0, 5.0])
    kept, labels = rng.random(30) < 0.8, rng.choice([-1.0, 1.0], size=30)
    step = step_times_smoothness / ((features**2).sum(axis=1).max() / 4)

    def after(point):
        slopes = -labels / (1 + np.exp(labels * (features @ point)))
        return point - step * filtered_mean(slopes[:, None] * features, kept)

    here = rng.normal(size=3)
    there = here + rng.normal(size=3) * 10.0 ** rng.uniform(-6, 1)
    assert np.linalg.norm(after(here) - after(there)) <= np.linalg.norm(here - there) * (1 + 1e-9) + 1e-14
