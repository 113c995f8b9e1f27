import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from quoron_client import ItemBatch, bounded, make_loss
from quoron_privacy.errors import DataError

STEADY = settings(derandomize=True, deadline=None, max_examples=100)


def one_user(features, labels=None):
    labels = np.ones(len(features)) if labels is None else np.asarray(labels, dtype=np.float64)
    return ItemBatch(features, labels, np.array([0, len(features)]))


@STEADY
@given(data=st.data(), dtype=st.sampled_from([np.float32, np.float64]), bound=st.sampled_from([1e-3, 1.0, 3.7]))
def test_no_bounded_row_is_longer_than_feature_norm(data, dtype, bound):
    width = 32 if dtype is np.float32 else 64
    entries = st.floats(width=width) | st.floats(-2, 2, width=width)
    features = data.draw(hnp.arrays(dtype, st.tuples(st.integers(1, 4), st.integers(1, 6)), elements=entries))
    loss = make_loss("huber", feature_norm=bound)
    before = features.copy()
    batch = bounded(one_user(features), loss)
    np.testing.assert_array_equal(features, before)
    for old, new in zip(features, batch.features.astype(np.longdouble), strict=True):
        if np.isfinite(old).all():
            length = np.sqrt(np.sum(new * new))
            assert length <= bound * (1 + (0 if np.any(old != new) else 1e-14))
        else:
            assert np.isnan(new).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_an_item_with_a_bad_feature_or_label_becomes_nan_and_no_other_changes(bad):
    features = np.full((3, 2), 0.5, dtype=np.float32)
    features[1, 0] = bad
    labels = np.array([1.0, 1.0, bad])
    batch = bounded(one_user(features, labels), make_loss("absolute"))
    assert np.isnan(batch.features[1:]).all()
    assert np.isnan(batch.labels[1:]).all()
    np.testing.assert_array_equal(batch.features[0], features[0])
    assert batch.labels[0] == 1.0


@pytest.mark.parametrize(
    ("features", "labels", "offsets"),
    [
        (np.zeros((3, 2), np.int64), np.zeros(3), np.array([0, 3])),
        (np.zeros((3, 2), np.float16), np.zeros(3), np.array([0, 3])),
        (np.zeros((3, 2)).T, np.zeros(2), np.array([0, 2])),
        (np.zeros((3, 2)), np.zeros(3, np.float32), np.array([0, 3])),
        (np.zeros((3, 2)), np.zeros(3), np.array([0, 2])),
        (np.zeros((3, 2)), np.zeros(3), np.array([0, 4, 3])),
        (np.zeros((3, 2)), np.zeros(3), np.array([], np.int64)),
        (np.zeros((3, 2)), np.zeros(4), np.array([0, 3])),
        (np.zeros(3), np.zeros(3), np.array([0, 3])),
    ],
)
def test_memory_that_compiled_loops_could_misread_is_refused(features, labels, offsets):
    with pytest.raises(DataError, match="Expected"):
        ItemBatch(features, labels, offsets)
