"""The private mean as people call it: promises, methods, seeds, and what data may not do."""

import numpy as np
import pytest

from quoron.mean import PrivateMean, private_mean

USERS = np.random.default_rng(0).normal([3.0, -1.0, 0.0, 0.5, 2.0], 0.05, size=(20_000, 5))
TRUTH = USERS.mean(axis=0)
METHODS = ["learnt", "clip", "two-stage", "range", "robust", "local"]
every = pytest.mark.parametrize("method", METHODS)


def found(users=USERS, epsilon=1.0, delta=1e-6, **keywords) -> PrivateMean:
    return private_mean(users, epsilon, delta, **{"bound": 10.0, "spread": 0.3, "simulation_seed": 1, **keywords})


@every
def test_the_value_is_within_its_noise_of_the_mean(method):
    mean = found(method=method, epsilon=4.0)
    # Five coordinates, seven standard deviations: false alarm below 1e-10.
    assert np.abs(mean.value - TRUTH).max() < 7 * mean.noise_scale
    assert mean.method == method


@every
def test_the_guarantee_is_the_one_that_was_asked_for(method):
    guarantee = found(method=method, epsilon=2.0, delta=1e-5).guarantee
    assert (guarantee.epsilon, guarantee.delta, guarantee.adjacency) == (2.0, 1e-5, "replace-one")
    assert guarantee.exposure == ("local" if method == "local" else "broadcast")
    assert guarantee.theorem.startswith("docs/privacy/")
