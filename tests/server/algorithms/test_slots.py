"""The public order of users: numpy's permutation, however it is made."""

import numpy as np
import pytest

from quoron_server.algorithms import slots


@pytest.mark.parametrize("users", [1, 2, 3, 4, 5, 64, 65, 1000, 65_536, 65_537, 100_003])
@pytest.mark.parametrize("seed", [0, 7, 2**70])
def test_the_order_of_many_is_that_of_few(monkeypatch, users, seed):
    monkeypatch.setattr(slots, "MANY", 1)
    monkeypatch.setattr(slots, "_WORDS", 1 << 10)  # so that words end in the midst of everything
    made = slots.partition.__wrapped__(seed=seed, users=users)
    expected = np.random.Generator(np.random.Philox(key=seed)).permutation(users)
    np.testing.assert_array_equal(made, expected)
    assert made.dtype == expected.dtype == np.int64
    assert not made.flags.writeable
