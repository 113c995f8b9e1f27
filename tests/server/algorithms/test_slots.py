"""The public order of users."""

import numpy as np
import pytest

from quoron_server.algorithms.slots import partition


@pytest.mark.parametrize("users", [1, 2, 100_003])
def test_every_user_has_one_slot_and_the_order_cannot_be_written(users):
    order = partition(seed=2**70, users=users)
    np.testing.assert_array_equal(np.sort(order), np.arange(users))
    assert not order.flags.writeable
