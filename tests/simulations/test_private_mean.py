"""The private mean as people call it: promises, methods, seeds, and what data may not do."""

import doctest
import importlib
import math

import numpy as np
import pytest

import quoron_client.randomisers.gaussian as client_gaussian
import quoron_client.randomisers.hadamard as client_hadamard
import quoron_client.randomisers.randomness as client_randomness
import quoron_server.accounting.bounded_range as bounded_range
import quoron_server.accounting.local as local
import quoron_server.mechanisms.hadamard as server_hadamard
from quoron.mean import PrivateMean, private_mean
from quoron_protos.errors import ConfigError, DataError, Infeasible
from quoron_server.accounting import gdp

module = importlib.import_module("quoron.mean")
USERS = np.random.default_rng(0).normal([3.0, -1.0, 0.0, 0.5, 2.0], 0.05, size=(20_000, 5))
TRUTH = USERS.mean(axis=0)
METHODS = ["clip", "two-stage", "range", "local"]
every = pytest.mark.parametrize("method", METHODS)


def found(users=USERS, epsilon=1.0, delta=1e-6, **keywords) -> PrivateMean:
    return private_mean(users, epsilon, delta, **{"bound": 10.0, "spread": 0.3, "seed": 1, **keywords})


@pytest.mark.parametrize(
    "each",
    [module, bounded_range, local, server_hadamard, client_gaussian, client_hadamard, client_randomness],
    ids=lambda each: each.__name__,
)
def test_the_examples_of_the_pages_run(each):
    assert doctest.testmod(each, extraglobs={"np": np}).failed == 0


@every
def test_the_value_is_within_its_noise_of_the_mean(method):
    mean = found(method=method, epsilon=4.0)
    # Five coordinates, seven standard deviations: false alarm below 1e-10.
    assert np.abs(mean.value - TRUTH).max() < 7 * mean.noise_scale
    assert mean.method == method


@every
def test_the_same_seed_gives_the_same_bits_and_none_gives_others(method):
    assert np.array_equal(found(method=method).value, found(method=method).value)
    assert not np.array_equal(found(method=method).value, found(method=method, seed=2).value)
    assert not np.array_equal(found(method=method, seed=None).value, found(method=method, seed=None).value)


@every
def test_the_guarantee_is_the_one_that_was_asked_for(method):
    guarantee = found(method=method, epsilon=2.0, delta=1e-5).guarantee
    assert (guarantee.epsilon, guarantee.delta, guarantee.adjacency) == (2.0, 1e-5, "replace-one")
    assert guarantee.exposure == ("local" if method == "local" else "broadcast")
    assert guarantee.theorem.startswith("docs/privacy/")


def test_a_clipped_mean_has_the_least_noise_that_keeps_the_promise():
    assert found(method="clip").noise_scale == pytest.approx(2 * 10.0 / 20_000 / gdp.mu_for(1.0, 1e-6), rel=1e-4)


def test_auto_takes_the_least_noise():
    scales = {method: found(method=method).noise_scale for method in METHODS[:3]}
    assert found(method="auto").noise_scale == min(scales.values())
    assert found(method="auto", spread=None).method == "clip"
    assert found(method="auto", users=USERS[:50]).method == "clip"


def test_a_users_items_count_by_their_mean():
    rng = np.random.default_rng(3)
    items = [rng.normal(size=(1 + i % 4, 5)) for i in range(300)]
    rows = np.array([own.mean(axis=0) for own in items])
    assert np.array_equal(found(items).value, found(rows).value)
    assert np.array_equal(found([list(row) for row in rows]).value, found(rows).value)


@every
@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e308])
def test_no_user_can_raise_or_move_the_mean_far(method, bad):
    users = USERS.copy()
    users[7] = bad
    mean = found(users, method=method)
    assert np.linalg.norm(mean.value - TRUTH) < 20 * mean.noise_scale + 2 * mean.radius / 2000


def test_a_user_who_overflows_alone_is_absent_alone():
    items = [np.full((2, 5), 1.7e308), *[np.ones((2, 5))] * 999]
    assert np.linalg.norm(found(items, spread=None).value - 0.999) < 20 * found(items, spread=None).noise_scale


@pytest.mark.parametrize(
    "users", [[], np.empty((0, 3)), np.empty((3, 0)), [[[1.0]], [[1.0, 2.0]]], [np.empty((0, 2))], ["no"], 5]
)
def test_users_that_are_none_or_do_not_fit_are_refused(users):
    with pytest.raises(DataError, match="Expected"):
        found(users)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"method": "magic"}, "Expected method in auto, clip"),
        ({"bound": 0.0}, "Expected bound in"),
        ({"spread": -1.0}, "Expected spread in"),
        ({"method": "range", "spread": None}, "Expected spread with method='range'"),
        ({"epsilon": 100.0}, "Expected epsilon in"),
        ({"delta": 0.0}, "Expected delta in"),
    ],
)
def test_wrong_requests_name_the_thing(change, message):
    with pytest.raises(ConfigError, match=message):
        found(**change)


def test_too_few_users_for_ranges_are_told():
    with pytest.raises(Infeasible, match="users >="):
        found(USERS[:50], method="range")


def test_scouts_and_others_are_different_users_and_pay_off_when_there_are_many():
    users = np.random.default_rng(1).normal(2.0, 0.001, size=(100_000, 3))
    plain = private_mean(users, 4.0, 1e-6, bound=10.0, method="local", seed=4)
    centred = private_mean(users, 4.0, 1e-6, bound=10.0, spread=0.01, method="local", seed=4)
    assert plain.radius == 10.0
    assert centred.radius < 1.0
    assert centred.noise_scale < plain.noise_scale / 10
    assert np.abs(centred.value - users.mean(axis=0)).max() < 7 * centred.noise_scale
    assert math.isfinite(centred.noise_scale)
