"""The learnt mean of one column: what it is clipped to, how those beyond are told, and at what error."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from privacy.test_learnt_mean import fast
from quoron_privacy.means import learnt_interval, learnt_radii
from quoron_privacy.means.learnt_mean import LEAST


@given(strength=st.floats(4.5 * LEAST, 1e12))
@fast
def test_whatever_is_looked_at_there_is_enough_left_for_the_mean(strength):
    first, place, around = learnt_interval.shares_of(strength)
    assert min(first, place, around) > 0
    assert 1 - first - place - around >= learnt_interval.LEAST_LAST


@given(
    centre=st.floats(-3.0, 3.0),
    ends=st.tuples(st.floats(0.1, 5.0), st.floats(0.1, 5.0)),
    radius=st.floats(1e-3, 10.0),
    values=st.lists(st.floats(-20.0, 20.0), min_size=1, max_size=9),
)
@fast
def test_both_means_together_are_of_rows_of_norm_one_and_the_narrow_one_is_even(centre, ends, radius, values):
    interval = learnt_interval.Interval(centre - ends[0], centre + ends[1], 0.0, 0.0, 0.0)
    narrow = learnt_interval.Narrow(centre, radius, 1.0, 0.0)
    there, back = (
        learnt_interval.rows_of(centre + sign * np.array(values)[:, None], interval, narrow, np.ones(2))
        for sign in (1, -1)
    )
    assert np.all(np.linalg.norm(there, axis=1) <= 1 + 1e-15)
    assert there[:, 1] == pytest.approx(-back[:, 1], abs=1e-6)


@given(
    ends=st.tuples(st.floats(0.5, 5.0), st.floats(0.5, 5.0)),
    beyond=st.tuples(st.floats(0.0, 3.0), st.floats(0.0, 3.0)),
    values=st.lists(st.floats(-400.0, 400.0), min_size=1, max_size=9),
)
@fast
def test_users_beyond_the_ends_are_told_whole_by_nodes_and_the_rest_as_if_there_were_none(ends, beyond, values):
    """Rows of norm one, parts at nodes not negative; all parts, times where they stand, add to where a user is."""
    low, high = -ends[0], ends[1]
    interval = learnt_interval.Interval(low, high, 0.0, 0.0, 0.0, (low - beyond[0], high + beyond[1]))
    narrow = learnt_interval.Narrow(interval.middle, 0.3, 1.0, 0.0)
    nodes = learnt_interval.nodes_of(interval, 420.0)
    x = np.array(values)
    rows = learnt_interval.rows_of(x[:, None], interval, narrow, nodes)
    above, below = rows[:, 2:].reshape(len(x), 2, -1).transpose(1, 0, 2)
    assert np.all(np.linalg.norm(rows, axis=1) <= 1 + 1e-12)
    assert (above.min() >= 0, below.min() >= 0) == (True, True)
    far = (x < interval.ends[0]) | (x > interval.ends[1])
    whole = interval.middle + interval.half * rows[:, 0] + (above - below) @ nodes[1:]
    assert whole == pytest.approx(np.where(far, x, np.clip(x, low, high)), rel=1e-9, abs=1e-9)
    assert not rows[~far, 2:].any()
    assert not rows[far, 1].any()


def test_nodes_count_where_they_stand_out_by_themselves_or_with_a_neighbour_and_no_others():
    nodes = learnt_interval.nodes_of(learnt_interval.Interval(-1.0, 1.0, 0.0, 0.0, 0.0), 100.0)
    own = np.zeros((2, len(nodes) - 1))
    assert learnt_interval.far_of(own.ravel(), 0.001, nodes, ()) == (0.0, 0.0, 0.0)
    own[0, 1] = 0.003
    assert learnt_interval.far_of(own.ravel(), 0.001, nodes, ()) == (0.0, 0.0, 0.0)
    own[1, 1] = 0.006
    total, noise, reach = learnt_interval.far_of(own.ravel(), 0.001, nodes, ())
    assert (total, noise, reach) == (pytest.approx(-0.006 * nodes[2]), pytest.approx(0.001 * nodes[2]), nodes[2])
    own[1, 1:3] = 0.0037
    assert learnt_interval.far_of(own.ravel(), 0.001, nodes, ())[0] == pytest.approx(-0.0037 * nodes[2:4].sum())
    own[1] = 0.0
    assert learnt_interval.far_of(own.ravel(), 0.001, nodes, (11.0,))[0] == 0.0
    own[0, 1] = 0.0035
    assert learnt_interval.far_of(own.ravel(), 0.001, nodes, (11.0,))[0] > 0.0


def test_no_scale_takes_more_looks_than_samples_are_counted_for():
    """From the whole range to the smallest scale by bins that are 4,096 times narrower than three of the last."""
    width, looks = 2.0 / learnt_interval.MOST_PLACES, 1
    while not learnt_interval.near_enough(width, learnt_radii.SMALLEST):
        width, looks = max(3 * width / learnt_interval.MOST_PLACES, 3 * learnt_radii.SMALLEST), looks + 1
    assert (looks + 1) * learnt_interval.TRIES <= learnt_interval.LOOKS
    for scale in (learnt_radii.SMALLEST, 1.0):
        assert len(learnt_interval.bins_around(scale, 1.0, 1e12)) <= learnt_interval.MOST_PLACES
