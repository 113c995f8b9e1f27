import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privacy.robust.concentration_reference import KINDS, cohort, real_scores, reference_scores
from quoron_privacy.errors import ConfigError
from quoron_privacy.robust.filter import concentration_loops
from quoron_privacy.robust.filter.concentration import (
    DECAY_ERROR,
    RESOLUTION,
    cohort_scores,
    score_error,
    scores,
    scores_of,
)
from quoron_privacy.robust.filter.concentration_loops import decay, distances, pack

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
    assert np.array_equal(scores_of(rows, some, tau, norm=norm), expected[some])


@norms
@examples
@given(**cohorts)
def test_computed_scores_lie_within_score_error_of_real_ones(norm, seed, users, dimension, kind, tau):
    rows = cohort(kind, users, dimension, np.random.default_rng(seed))
    error = np.abs(scores(rows, tau, norm=norm) - real_scores(rows, tau, norm)).max()
    assert error <= score_error(users, dimension)


def test_score_error_is_negligible_beside_a_sensitivity_of_one():
    assert score_error(10_000, 50) < 1e-6
    assert score_error(150_000, 1000) < 1e-5


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


@pytest.mark.parametrize("magnitude", [1e3, 1e6, 1e9, 1e150, 1.7e308])
def test_one_users_magnitude_leaves_every_other_score_as_without_that_user(magnitude):
    rows = np.random.default_rng(3).normal(size=(300, 20))
    rows[7] = magnitude
    assert np.array_equal(np.delete(scores(rows, 0.1), 7), scores(np.delete(rows, 7, axis=0), 0.1))


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


@examples
@given(**cohorts)
def test_permuting_users_permutes_scores_bit_by_bit(seed, users, dimension, kind, tau):
    rng = np.random.default_rng(seed)
    rows, order = cohort(kind, users, dimension, rng), rng.permutation(users)
    assert np.array_equal(scores(rows[order], tau), scores(rows, tau)[order])


@examples
@given(**cohorts)
def test_rows_of_some_users_equal_all_pairs_bit_by_bit(seed, users, dimension, kind, tau):
    rng = np.random.default_rng(seed)
    rows, indices = cohort(kind, users, dimension, rng), rng.permutation(users)[: 1 + users // 2]
    assert np.array_equal(scores_of(rows, indices, tau), scores(rows, tau)[indices])


def test_entries_are_symmetric_and_own_entries_are_exactly_one():
    rng = np.random.default_rng(8)
    for _ in range(200):
        pair = rng.normal(size=(2, 7))
        forward, backward = scores(pair, 0.3)
        assert forward == backward == scores(pair[::-1], 0.3)[0]
    assert scores(rng.normal(size=(1, 4)), 1e100)[0] == 1.0
    assert (scores(np.arange(500.0)[:, None], 1e100) == 1.0).all()
    assert (scores(np.full((500, 3), 1e308), 1e100) == 500.0).all()


@pytest.mark.parametrize("users", [1, 64, 65, 1000])
@pytest.mark.parametrize("threads", [2, 3, 8])
def test_bits_do_not_depend_on_the_number_of_threads(users, threads, monkeypatch):
    monkeypatch.setattr(concentration_loops, "_SMALL", 0)
    rows = np.random.default_rng(1).normal(size=(users, 12))
    assert np.array_equal(scores(rows, 0.1, threads=threads), scores(rows, 0.1, threads=1))
    some = np.arange(0, users, 3)
    assert np.array_equal(scores_of(rows, some, 0.1, threads=threads), scores(rows, 0.1)[some])


def test_distances_are_those_of_numpy_and_overflow_to_infinity():
    rng = np.random.default_rng(2)
    rows, point = rng.normal(size=(130, 11)), rng.normal(size=11)
    np.testing.assert_allclose(distances(pack(rows), point, 130), np.linalg.norm(rows - point, axis=1), rtol=1e-14)
    rows[5] = 1e300
    assert distances(pack(rows), point, 130)[5] == np.inf


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


def test_the_smoothness_bound_on_later_scores_is_attained():
    # One user of curvature β among users of curvature 0: their distances change by exactly β times the step.
    steep = np.zeros((50, 1))
    moved = steep.copy()
    moved[0] = 0.25 * 1e-3
    change = (scores(steep, 1.0) - scores(moved, 1.0))[0]
    assert change == pytest.approx(49 * -np.expm1(-0.25e-3), abs=1e-8)


@pytest.mark.parametrize("tau", [0.0, -1.0, np.nan, np.inf, 1e-130, 1e130])
def test_tau_out_of_range_is_refused_with_its_value(tau):
    with pytest.raises(ConfigError, match="Expected tau in"):
        scores(np.zeros((3, 2)), tau)


def test_wrong_shapes_are_refused():
    with pytest.raises(ConfigError, match="shape"):
        scores(np.zeros(3), 1.0)
    with pytest.raises(ConfigError, match="answered"):
        cohort_scores(np.zeros((3, 2)), np.ones(2, dtype=bool), 1.0)
    with pytest.raises(ConfigError, match="at most"):
        scores(np.zeros((2**19 + 1, 1)), 1.0)
