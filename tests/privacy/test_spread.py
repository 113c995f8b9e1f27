"""Weights of users over cells: what one user moves, by a slow reference; their price by both accounts; their sums."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quoron_privacy.accounts import gdp
from quoron_privacy.counts import spread
from quoron_privacy.counts.spread import Spread, thirds
from quoron_privacy.errors import ConfigError, Infeasible, VerificationError
from quoron_privacy.noise.sources import SeededNoise

CELLS = 6
items = st.lists(st.integers(-1, 2 * CELLS), max_size=40)  # cells of two groups, and none


def weighed(own: list[int], most: int, **kinds) -> tuple[Spread, np.ndarray]:
    """One user's weights beside nobody else's."""
    made = Spread(10, 2, CELLS, 1.0, most=most, **kinds)
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


@given(own=st.lists(st.integers(0, CELLS - 1), min_size=1, max_size=30), most=st.integers(1, 60))
def test_a_user_weighs_one_or_its_items_up_to_the_most(own, most):
    _, held = weighed(own, most)
    assert held.sum() == pytest.approx(min(len(own), most) / most, abs=1e-9)
    assert held.sum() <= 1
    np.testing.assert_allclose(held[0], np.bincount(own, minlength=CELLS) / max(len(own), most), atol=1e-9)


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
    made = Spread.for_mu(users=5000, groups=3, cells=cells, mu=mu, running=running, adjacency=adjacency)
    assert made.effective_mu <= mu * (1 + 1e-9)
    epsilon = mu
    delta = gdp.delta_for(mu, epsilon) * (1 + 1e-6)
    spread.verify([made], epsilon, delta)
    with pytest.raises(VerificationError, match="private, got δ"):
        spread.verify([replace(made, scale=made.scale * 0.9)], epsilon, delta)


def test_running_sums_are_those_of_the_cells_and_their_noise_is_as_said():
    made = Spread.for_mu(users=100, groups=400, cells=16, mu=0.5, running=True)
    held = np.random.default_rng(1).random((400, 16)) / 400
    off = made.release(held, SeededNoise(2).stream("x")) - np.cumsum(held, axis=1)
    # Two hundred draws' variances lie within 40 % of the truth but with a chance below 1e-6.
    for share in (0.0, 0.3, 1.0):
        found = (off - share * off[:, -1:]).std(axis=0)[:-1]
        np.testing.assert_allclose(found, made.against(share)[:-1], rtol=0.2)
    assert made.against(1.0)[-1] < 1e-6 * made.scale


def test_a_weight_that_is_too_large_or_a_user_too_many_is_refused():
    made = Spread(10, 1, 2, 1.0)
    with pytest.raises(ConfigError, match="at most one weight of each"):
        made.held(np.zeros(2, np.int64), np.zeros(2, np.int64), np.full(2, made.one))
    with pytest.raises(ConfigError, match="Expected 10 users at most"):
        made.held(np.array([10]), np.array([0]), np.array([made.one]))
    with pytest.raises(ConfigError, match="Expected weights of shape"):
        made.release(np.zeros(2), SeededNoise(1).stream("x"))
    with pytest.raises(ConfigError, match="Expected cells <="):
        Spread(10, 1, 1 << 20, 1.0)
    with pytest.raises(Infeasible):
        Spread.for_mu(users=10, groups=1, cells=1, mu=1e-12)


def test_sums_do_not_depend_on_the_order_of_rows():
    rng = np.random.default_rng(3)
    owners, cells = rng.integers(0, 1000, 20_000), rng.integers(0, 12, 20_000)
    made = Spread(1000, 2, 6, 1.0, most=3)
    weights = made.weights(owners)
    order = rng.permutation(len(owners))
    np.testing.assert_array_equal(
        made.held(owners, cells, weights), made.held(owners[order], cells[order], weights[order])
    )
