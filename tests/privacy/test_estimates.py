"""Values and intervals from released weights: that they cover, for noise and sampling, and what they are at the ends.

Each group of a release is one repetition with users of its own. An interval that covers with 95 % does so in fewer than
92.4 % of 2,000 repetitions with a chance below 1e-6.
"""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cover import by_default
from quoron_privacy.accounts import gdp
from quoron_privacy.errors import VerificationError
from quoron_privacy.histograms.weighted_histogram import (
    SURE,
    WeightedHistogram,
    count_of,
    mean_of,
    quantile_of,
    thirds,
    verify,
)
from quoron_privacy.noise.streams import SeededNoise

TIMES, LEAST = 2000, 0.924


def released(users: int, cells: int, own: np.ndarray, weights: np.ndarray, mu: float, *, running: bool = False):
    """Of TIMES groups of so many users, cells (TIMES, users), or (TIMES, users, 3) with weights of as many."""
    made = WeightedHistogram.for_mu(users=TIMES * users, groups=TIMES, cells=cells, mu=mu, running=running)
    first = np.arange(TIMES).reshape(-1, *[1] * (own.ndim - 1)) * cells
    owners = np.broadcast_to(np.arange(TIMES * users).reshape(own.shape[:2] + (1,) * (own.ndim - 2)), own.shape)
    held = made.held(owners.ravel(), (first + own).ravel(), np.broadcast_to(weights, own.shape).ravel())
    return made, made.release(held, SeededNoise(7).stream("estimates"))


def covered(found, truth: float) -> float:
    return float(np.mean([each.low <= truth <= each.high for each in found]))


@pytest.mark.parametrize(("share", "users", "mu"), [(0.3, 200, 1.0), (0.01, 200, 0.1), (0.5, 1000, 0.02)])
def test_intervals_of_counts_cover(share, users, mu):
    own = (np.random.default_rng(1).random((TIMES, users)) >= share).astype(np.int64)
    made = WeightedHistogram(TIMES * users, 1, 2, 1.0)
    made, found = released(users, 2, own, np.int64(made.one), mu)
    estimates = [count_of(each, users=users, scale=made.scale) for each in found[:, 0].tolist()]
    assert covered(estimates, share * users) >= LEAST


@pytest.mark.parametrize("mu", by_default([1.0, 0.1, 0.01], [0.1]))
@pytest.mark.parametrize("law", ["narrow", "wide", "skewed", "constant", "end"])
def test_intervals_of_means_cover(law, mu):
    rng, size = np.random.default_rng(2), (TIMES, 300)
    values = {
        "narrow": 0.4 + 0.01 * rng.standard_normal(size),
        "wide": rng.choice([-1.0, 1.0], size),
        "skewed": rng.beta(0.5, 4.0, size) * 2 - 1,
        "constant": np.full(size, -0.2),
        "end": np.ones(size),
    }[law]
    truth = {"narrow": 0.4, "wide": 0.0, "skewed": 2 / 9 - 1, "constant": -0.2, "end": 1.0}[law]
    one = WeightedHistogram(TIMES * 300, 1, 3, 1.0).one
    three = thirds(np.full(values.size, one), np.clip(values.ravel(), -1, 1)).reshape(*size, 3)
    made, found = released(300, 3, np.broadcast_to(np.arange(3), three.shape), three, mu)
    estimates = [mean_of(each, scale=made.scale) for each in found]
    assert covered(estimates, truth) >= LEAST
    if mu == 0.1 and law == "narrow":  # as wide as noise and sampling ask for, not as the range
        width = np.mean([each.high - each.low for each in estimates])
        assert width < 1.25 * 2 * SURE * made.scale * np.sqrt(2 + 3 * 0.16) / 300


@pytest.mark.parametrize("share", by_default([0.05, 0.5, 0.9], [0.05]))
@pytest.mark.parametrize("law", ["smooth", "points"])
def test_intervals_of_quantiles_cover(law, share):
    rng, users, cells = np.random.default_rng(3), 300, 64
    places = rng.beta(2.0, 5.0, (TIMES, users)) if law == "smooth" else rng.choice([0.1, 0.3, 0.9], (TIMES, users))
    own = np.minimum((places * cells).astype(np.int64), cells - 1)
    truth = float(np.quantile(rng.beta(2.0, 5.0, 10**6), share)) if law == "smooth" else 0.0
    if law == "points":  # a third each
        truth = 0.1 if share < 1 / 3 else 0.3 if share < 2 / 3 else 0.9
    one = WeightedHistogram(TIMES * users, 1, cells, 1.0).one
    made, found = released(users, cells, own, np.int64(one), 1.0, running=True)
    estimates = [quantile_of(each, share, made) for each in found]
    assert covered(estimates, truth) >= LEAST
    assert np.median([each.value for each in estimates]) == pytest.approx(truth, abs=0.05)


def test_where_nobody_is_intervals_are_all_that_can_be():
    made = WeightedHistogram.for_mu(users=100, groups=1, cells=8, mu=0.5, running=True)
    mean, quantile = mean_of(np.zeros(3), scale=5.0), quantile_of(np.full(8, -3.0), 0.5, made)
    assert (mean.low, mean.high) == (-1.0, 1.0)
    assert (quantile.low, quantile.high) == (0.0, 1.0)
    count = count_of(-40.0, users=100, scale=5.0)
    assert count.value == count.low == 0.0
    assert 0 < count.high < 20


CELLS = 6
items = st.lists(st.integers(-1, 2 * CELLS), max_size=40)  # cells of two groups, and none


def weighed(own: list[int], most: int, **kinds) -> tuple[WeightedHistogram, np.ndarray]:
    """One user's weights beside nobody else's."""
    made = WeightedHistogram(10, 2, CELLS, 1.0, most=most, **kinds)
    owners = np.zeros(len(own), np.int64)
    return made, made.held(owners, np.array(own, np.int64), made.weights(owners))


@given(one=items, other=items, most=st.integers(1, 50))
def test_no_two_users_are_farther_apart_than_the_sensitivity(one, other, most):
    root = np.array([math.comb(2 * j, j) / 4**j for j in range(CELLS)])
    coding = np.array([[root[t - j] if t >= j else 0.0 for j in range(CELLS)] for t in range(CELLS)])
    coding /= np.linalg.norm(root)
    made, first = weighed(one, most)
    _, second = weighed(other, most)
    for matrix in (np.eye(CELLS), coding):
        assert np.linalg.norm((first - second) @ matrix.T) <= made.sensitivity
        assert np.linalg.norm(first @ matrix.T) <= replace(made, adjacency="zero-out").sensitivity


@given(st.lists(st.floats(-1, 1), min_size=1, max_size=20), st.integers(0, 1 << 40))
def test_thirds_never_weigh_more_and_tell_a_value_and_its_square(places, weight):
    place, weights = np.array(places), np.full(len(places), weight, np.int64)
    made = thirds(weights, place)
    assert made.min() >= 0
    assert (made.sum(axis=1) == weights).all()
    np.testing.assert_allclose(made[:, 2] - made[:, 0], weights * place, atol=2 + 1e-12 * weight)
    np.testing.assert_allclose(made[:, 0] + made[:, 2] - made[:, 1], weights * place**2, atol=4 + 1e-12 * weight)


@pytest.mark.parametrize("adjacency", ["replace-one", "zero-out"])
@pytest.mark.parametrize(("cells", "running"), [(1, False), (300, False), (1, True), (300, True)])
@pytest.mark.parametrize("mu", [1e-4, 0.2, 4.0])
def test_the_price_is_the_one_asked_for_by_both_accounts(adjacency, cells, running, mu):
    made = WeightedHistogram.for_mu(users=5000, groups=3, cells=cells, mu=mu, running=running, adjacency=adjacency)
    assert made.pair.mu <= mu * (1 + 2e-9)
    epsilon = mu
    delta = gdp.delta_for(mu, epsilon) * (1 + 1e-6)
    verify([made], epsilon, delta)
    with pytest.raises(VerificationError, match="private, got δ"):
        verify([replace(made, scale=made.scale * 0.9)], epsilon, delta)


def test_running_sums_are_those_of_the_cells_and_their_noise_is_as_said():
    made = WeightedHistogram.for_mu(users=100, groups=400, cells=16, mu=0.5, running=True)
    held = np.random.default_rng(1).random((400, 16)) / 400
    off = made.release(held, SeededNoise(2).stream("x")) - np.cumsum(held, axis=1)
    # Two hundred draws' variances lie within 40 % of the truth but with a chance below 1e-6.
    for share in (0.0, 0.3, 1.0):
        found = (off - share * off[:, -1:]).std(axis=0)[:-1]
        np.testing.assert_allclose(found, made.against(share)[:-1], rtol=0.2)
    assert made.against(1.0)[-1] < 1e-6 * made.scale


def test_the_bound_is_reached_by_users_of_two_groups():
    made, first = weighed([0], 1)
    _, second = weighed([CELLS], 1)
    assert np.linalg.norm(first - second) == pytest.approx(math.sqrt(2))
    assert made.sensitivity == pytest.approx(math.sqrt(2), rel=1e-6)
