"""The private mean as people call it: promises, methods, seeds, and what data may not do."""

from unittest import mock

import numpy as np
import pytest

from quoron.releases.mean import PrivateMean, mean
from quoron.training.lifetime import opened
from quoron_privacy.errors import BudgetExceeded, Infeasible, NothingReleased
from quoron_server.storage.lifetime_ledger import PopulationLedger

USERS = np.random.default_rng(0).normal([3.0, -1.0, 0.0, 0.5, 2.0], 0.05, size=(20_000, 5))
TRUTH = USERS.mean(axis=0)
METHODS = ["learnt", "clip", "two-stage", "range", "robust"]
every = pytest.mark.parametrize("method", METHODS)


def found(users=USERS, epsilon=1.0, delta=1e-6, **keywords) -> PrivateMean:
    return mean(users, epsilon=epsilon, delta=delta, **{"bound": 10.0, "spread": 0.3, "seed": 1, **keywords})


@every
def test_the_value_is_within_its_noise_of_the_mean(method):
    mean = found(method=method, epsilon=4.0)
    # Five coordinates, seven standard deviations: false alarm below 1e-10.
    assert np.abs(mean.value - TRUTH).max() < 7 * mean.noise_scale
    assert mean.method == method


@every
def test_the_guarantee_is_the_one_that_was_asked_for(method):
    mean = found(method=method, epsilon=2.0, delta=1e-5)
    assert (mean.epsilon, mean.delta) == (2.0, 1e-5)
    for said in ("(2, 1e-05)", "adjacency replace-one", "docs/privacy/private-mean.md"):
        assert said in mean.statement


@every
def test_a_mean_is_charged_once_before_it_is_released_and_not_where_there_is_no_room(method, tmp_path):
    more = {"bound": 10.0, "spread": 0.3, "method": method, "ledger": tmp_path / "ledger.sqlite", "seed": 1}
    with opened(tmp_path / "ledger.sqlite") as ledger:
        ledger.limit("everyone", epsilon=5.0, delta=1e-5)
    with (
        mock.patch.object(PopulationLedger, "release", side_effect=KeyboardInterrupt),
        pytest.raises(KeyboardInterrupt),
    ):
        mean(USERS, epsilon=2.0, **more)  # killed when nothing is said yet: it is spent all the same
    assert mean(USERS, epsilon=2.0, **more).method == method
    with pytest.raises(BudgetExceeded):
        mean(USERS, epsilon=2.0, **more)
    with opened(tmp_path / "ledger.sqlite") as ledger:
        assert [charge.epsilon for charge in ledger.charges("everyone")] == [2.0, 2.0]


def test_a_robust_mean_of_users_who_do_not_agree_is_charged_and_its_silence_kept(tmp_path):
    far = np.concatenate([USERS[:10_000], USERS[:10_000] + 5.0])
    with pytest.raises(NothingReleased):
        mean(far, epsilon=2.0, bound=20.0, spread=0.5, outliers=0.01, ledger=tmp_path / "ledger.sqlite")
    with opened(tmp_path / "ledger.sqlite") as ledger:
        assert len(ledger.charges("everyone")) == 1


@pytest.mark.parametrize("users", [3, 50, 82])
def test_the_users_that_a_robust_mean_asks_for_are_enough_and_one_fewer_are_not(users):
    declared = {"bound": 10.0, "spread": 0.5, "outliers": 0.01}
    with pytest.raises(Infeasible, match="needs users >=") as refused:
        found(USERS[:users, :3], **declared)
    needed = refused.value.users
    assert found(USERS[:needed, :3], **declared).method == "robust"
    with pytest.raises(Infeasible):
        found(USERS[: needed - 1, :3], **declared)
