import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privacy.robust.concentration_reference import KINDS, cohort, real_scores, reference_scores
from quoron_privacy.errors import ConfigError
from quoron_privacy.robust.filter.concentration import (
    DECAY_ERROR,
    RESOLUTION,
    cohort_scores,
    score_error,
    scores,
    scores_of,
)
from quoron_privacy.robust.filter.concentration_loops import decay

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


def test_wrong_shapes_are_refused():
    with pytest.raises(ConfigError, match="shape"):
        scores(np.zeros(3), 1.0)
    with pytest.raises(ConfigError, match="answered"):
        cohort_scores(np.zeros((3, 2)), np.ones(2, dtype=bool), 1.0)
    with pytest.raises(ConfigError, match="at most"):
        scores(np.zeros((2**19 + 1, 1)), 1.0)
