"""Which answers count: one user, present or not, swaps at most one counted answer for another."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quoron_privacy.gaussian import mean_sensitivity
from quoron_privacy.means.clipping import clipped_mean
from quoron_server.algorithms.slots import first_answered

masks = st.lists(st.booleans(), min_size=1, max_size=40).map(lambda bits: np.array(bits, bool))


def by_definition(answered, size):
    counted = []
    for slot, there in enumerate(answered):
        if there and len(counted) < size:
            counted.append(slot)
    return set(counted)


@given(answered=masks, size=st.integers(1, 45))
@settings(derandomize=True, deadline=None, max_examples=200)
def test_the_first_answers_in_slot_order_count_and_no_others(answered, size):
    kept = answered.copy()
    counted = first_answered(answered, size)
    assert set(np.flatnonzero(counted)) == by_definition(answered, size)
    np.testing.assert_array_equal(answered, kept)
    assert counted.dtype == np.bool_


@given(answered=masks, size=st.integers(1, 45), data=st.data())
@settings(derandomize=True, deadline=None, max_examples=300)
def test_one_user_coming_or_leaving_swaps_at_most_one_counted_answer(answered, size, data):
    user = data.draw(st.integers(0, len(answered) - 1))
    with_user, without = answered.copy(), answered.copy()
    with_user[user], without[user] = True, False
    there, gone = by_definition(with_user, size), by_definition(without, size)
    assert there - gone <= {user}
    assert len(gone - there) <= 1
    if gone - there:  # a substitute came in for the user, so the number that counts is the same
        assert len(gone) == len(there) == size
    np.testing.assert_array_equal(first_answered(with_user, size), [slot in there for slot in range(len(answered))])
    np.testing.assert_array_equal(first_answered(without, size), [slot in gone for slot in range(len(answered))])


finite = st.floats(-1e300, 1e300)
rows = st.lists(st.one_of(finite, st.just(np.nan), st.just(np.inf)), min_size=2, max_size=2)


@given(
    seed=st.integers(0, 2**20),
    answered=masks,
    size=st.integers(1, 45),
    norm=st.sampled_from([1e-3, 1.0, 40.0]),
    first=st.one_of(st.none(), rows),
    second=st.one_of(st.none(), rows),
    data=st.data(),
)
@settings(derandomize=True, deadline=None, max_examples=300)
def test_replacing_a_user_or_its_absence_moves_the_mean_by_at_most_its_sensitivity(
    seed, answered, size, norm, first, second, data
):
    user = data.draw(st.integers(0, len(answered) - 1))
    values = np.random.default_rng(seed).standard_normal((len(answered), 2)) * 3 * norm
    means = []
    for own in (first, second):  # None: the user does not answer
        world, there = values.copy(), answered.copy()
        there[user] = own is not None
        world[user] = 0.0 if own is None else own
        if len(world) <= 64 * size:
            means.append(clipped_mean(world, first_answered(there, size), norm, size)[0])
    if means:
        assert np.linalg.norm(means[0] - means[1]) <= mean_sensitivity(norm, size)


def test_a_swap_moves_the_mean_by_two_clip_norms_so_zero_out_would_be_false_with_reserves():
    # the user at +C leaves, and the reserve that steps in sends -C
    values, norm, size = np.array([[5.0], [0.0], [-5.0]]), 1.0, 2
    here = clipped_mean(values, first_answered(np.array([True, True, True]), size), norm, size)[0]
    gone = clipped_mean(values, first_answered(np.array([False, True, True]), size), norm, size)[0]
    assert here - gone == pytest.approx(2 * norm / size)
    assert here - gone > mean_sensitivity(norm, size, "zero-out")
