"""The private mean as people call it: promises, methods, seeds, and what data may not do."""

import doctest
import importlib
import math

import numpy as np
import pandas as pd
import pytest

import quoron_client.randomisers.gaussian as client_gaussian
import quoron_client.randomisers.hadamard as client_hadamard
import quoron_client.randomisers.randomness as client_randomness
import quoron_privacy.means.rotation as server_hadamard
from quoron.mean import PrivateMean, private_mean
from quoron_privacy import local
from quoron_privacy.errors import ConfigError, DataError, Infeasible, NothingReleased
from quoron_privacy.means import private_range

module = importlib.import_module("quoron.mean")
USERS = np.random.default_rng(0).normal([3.0, -1.0, 0.0, 0.5, 2.0], 0.05, size=(20_000, 5))
TRUTH = USERS.mean(axis=0)
METHODS = ["learnt", "clip", "two-stage", "range", "robust", "local"]
every = pytest.mark.parametrize("method", METHODS)


def found(users=USERS, epsilon=1.0, delta=1e-6, **keywords) -> PrivateMean:
    return private_mean(users, epsilon, delta, **{"bound": 10.0, "spread": 0.3, "simulation_seed": 1, **keywords})


@pytest.mark.parametrize(
    "each",
    [module, private_range, local, server_hadamard, client_gaussian, client_hadamard, client_randomness],
    ids=lambda each: each.__name__,
)
def test_the_examples_of_the_pages_run(each):
    assert doctest.testmod(each, extraglobs={"np": np}).failed == 0


def test_too_few_users_to_learn_from_are_told_how_many_it_takes():
    with pytest.raises(Infeasible, match=r"50 users are too few to learn a radius; needs users >= \d+"):
        found(USERS[:50], method="learnt")


@every
@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e308])
def test_no_user_can_raise_or_move_the_mean_far(method, bad):
    users = USERS.copy()
    users[7] = bad
    users.flags.writeable = False  # nothing is copied that need not be, and nobody's array is written to
    mean = found(users, method=method)
    assert np.linalg.norm(mean.value - TRUTH) < 20 * mean.noise_scale + 2 * mean.radius / 2000


@pytest.mark.parametrize(("method", "value"), [("clip", 0.999), ("learnt", 1.0)])
def test_a_user_who_overflows_alone_is_absent_alone(method, value):
    """The divisor stays: who is absent counts as the centre."""
    items = [np.full((2, 5), 1.7e308), *[np.ones((2, 5))] * 999]
    mean = found(items, spread=None, method=method)
    assert np.linalg.norm(mean.value - value) < 20 * mean.noise_scale + 1e-9


@pytest.mark.parametrize(
    "users", [[], np.empty((0, 3)), np.empty((3, 0)), [[[1.0]], [[1.0, 2.0]]], [np.empty((0, 2))], ["no"], 5]
)
def test_users_that_are_none_or_do_not_fit_are_refused(users):
    with pytest.raises(DataError, match="Expected"):
        found(users)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"method": "magic"}, "Expected method in auto, learnt, clip"),
        ({"method": "range", "spread": None}, "Expected spread with method='range'"),
        ({"outliers": 0.01, "method": "clip"}, "Expected no outliers with method='clip'"),
        ({"outliers": 0.01, "spread": None}, "Expected spread with outliers=0.01"),
    ],
)
def test_wrong_requests_name_the_thing(change, message):
    with pytest.raises(ConfigError, match=message):
        found(**change)


def test_too_few_users_for_ranges_are_told():
    with pytest.raises(Infeasible, match="users >="):
        found(USERS[:50], method="range")


def with_outliers(share=0.01):
    """The users, some of whom have moved to the far corner of what may be; and the mean of the others."""
    users, moved = USERS.copy(), int(share * len(USERS))
    users[:moved] = -10.0 / math.sqrt(5)
    return users, users[moved:].mean(axis=0)


def test_one_in_a_hundred_at_the_far_corner_does_a_robust_mean_no_harm():
    """Its error is that of its noise, near the clean mean's; plain clipping is off by a hundredth of the way."""
    users, honest = with_outliers()
    clean = found(method="two-stage")
    robust, plain = found(users, outliers=0.01), found(users, method="clip")
    assert robust.method == "robust"
    assert robust.noise_scale < 2 * clean.noise_scale
    # Seven standard deviations in each of five coordinates: false alarm below 1e-10.
    assert np.abs(robust.value - honest).max() < 7 * robust.noise_scale + 1e-3
    error = np.linalg.norm(robust.value - honest)
    assert np.linalg.norm(plain.value - honest) > 10 * max(error, 7 * robust.noise_scale)


def test_a_silent_robust_mean_is_an_error_that_says_what_it_cost():
    users, _ = with_outliers(0.3)
    with pytest.raises(NothingReleased, match=r"Nothing was released: .* spread=0.3 .*, delta=1e-06\), is spent"):
        found(users, outliers=0.01)


class TestWhatUsersMayBe:
    def test_a_frame_of_numbers_counts_by_its_values(self):
        frame = pd.DataFrame(USERS, columns=list("abcde"))
        assert np.array_equal(found(frame).value, found(USERS).value)
        assert np.array_equal(found(frame.astype({"a": "float32"})).value, found(frame.astype({"a": "float32"})).value)

    @pytest.mark.parametrize("other", ["word", pd.Timestamp("2020-01-01"), 1j, None])
    def test_columns_of_anything_else_are_refused_by_name(self, other):
        frame = pd.DataFrame({"height": [1.0, 2.0], "name": [other, other]})
        with pytest.raises(DataError, match="columns name"):
            found(frame)


@pytest.mark.parametrize("epsilon", [0.5, 8.0])
@pytest.mark.parametrize(
    ("columns", "given"),
    [
        *[(columns, {"bound": 1e6 * math.sqrt(columns)}) for columns in (1, 3, 10, 30)],
        *[(columns, {"bound": 1000.0, "spread": 3.0 * math.sqrt(columns)}) for columns in (1, 3, 10)],
    ],
)
def test_a_mean_is_refused_or_nearer_than_the_scale_of_users_and_never_refused_to_more_of_them(columns, given, epsilon):
    """Users of scale 1 far from zero, in bounds up to a million times as large; fixed seeds. Public numbers decide."""
    rng, centre = np.random.default_rng(1), 0.5 * given["bound"] / math.sqrt(columns)
    with pytest.raises(Infeasible, match=f"10 users in dimension {columns} at epsilon={epsilon:g}, delta=1e-06") as few:
        private_mean(rng.normal(centre, 1.0, (10, columns)), epsilon, 1e-6, **given, simulation_seed=1)
    told = few.value
    assert f"users >= {told.users:,}" in str(told)
    for users in (told.users, told.users + 1, 2 * told.users, 9 * told.users):
        rows = rng.normal(centre, 1.0, (users, columns))
        error = np.linalg.norm(private_mean(rows, epsilon, 1e-6, **given, simulation_seed=2).value - rows.mean(axis=0))
        assert error < 4 * given.get("spread", math.sqrt(columns))
    with pytest.raises(Infeasible):
        private_mean(rows[: told.users - 1], epsilon, 1e-6, **given, simulation_seed=1)


@pytest.mark.parametrize("method", ["auto", "clip", "local"])
def test_so_few_users_that_the_noise_is_longer_than_the_bound_are_refused_with_the_number_that_would_do(method):
    """By public numbers, before anything is released: zero would be as good, and nobody would be told."""
    few = USERS[:20]
    said = "to learn their scale within" if method == "auto" else "times as long as"
    with pytest.raises(Infeasible, match=rf"{said} bound=10.*users >= ") as refused:
        private_mean(few, 0.5, 1e-6, bound=10.0, method=method, simulation_seed=1)
    assert refused.value.users is not None
    rows = np.resize(few, (refused.value.users, 5))
    found = private_mean(rows, 0.5, 1e-6, bound=10.0, method=method, simulation_seed=1)
    assert found.noise_scale * math.sqrt(5) <= 10.0


def test_what_a_masked_array_hides_is_not_there():
    hidden = np.where(np.arange(len(USERS))[:, None] < 500, 9.0, USERS)
    masked, gone = np.ma.masked_equal(hidden, 9.0), np.where(hidden == 9.0, np.nan, hidden)
    assert np.array_equal(found(masked).value, found(gone).value)
    assert np.array_equal(found(list(masked)).value, found(gone).value)
