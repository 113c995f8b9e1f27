import numpy as np
import pytest

from client import reference
from quoron_client import (
    Answers,
    AverageGradient,
    AverageLoss,
    Box,
    ItemBatch,
    L2Ball,
    LocalSGD,
    MomentAndGradient,
    SecondMoment,
    Status,
    answer,
    bounded,
    make_loss,
)
from quoron_privacy.errors import DataError

HOSTILE = (np.nan, np.inf, -np.inf)


def tasks(users, dimension):
    points = np.full((2, dimension), 0.1)
    return [
        AverageGradient(points[:1], (1.0,)),
        AverageGradient(points, (1.0, -0.5), user_smoothness=0.1),
        AverageGradient(points[:1], (1.0,), centre=points[0], reference_items=9),
        SecondMoment(dimension),
        SecondMoment(dimension + 1, 0.5),
        MomentAndGradient(dimension, points[0], points[1]),
        AverageLoss(points),
        LocalSGD(np.zeros((users, dimension)), 0.5, L2Ball(1.0)),
        LocalSGD(np.zeros((users, dimension)), 0.5, Box(1.0)),
    ]


@pytest.mark.parametrize("name", reference.SMOOTH)
@pytest.mark.parametrize("place", ["feature", "label"])
@pytest.mark.parametrize("bad", HOSTILE)
def test_bad_data_is_rejected_without_an_exception_and_without_touching_others(name, place, bad):
    loss = make_loss(name)
    clean = bounded(reference.random_batch(np.random.default_rng(1), (2, 0, 5, 3), 4, loss=loss), loss)
    features, labels = clean.features.copy(), clean.labels.copy()
    if place == "feature":
        features[3, 1] = bad
    else:
        labels[3] = bad
    spoilt = ItemBatch(features, labels, clean.offsets)
    for task in tasks(4, 4):
        expected = answer(loss, clean, task)
        np.testing.assert_array_equal(
            expected.status, [Status.ANSWERED, Status.MISSING, Status.ANSWERED, Status.ANSWERED]
        )
        for batch in (spoilt, bounded(spoilt, loss)):
            found = answer(loss, batch, task)
            np.testing.assert_array_equal(
                found.status, [Status.ANSWERED, Status.MISSING, Status.REJECTED, Status.ANSWERED]
            )
            np.testing.assert_array_equal(found.values[[0, 1, 3]], expected.values[[0, 1, 3]])
            np.testing.assert_array_equal(found.values[2], 0.0)


def test_finite_data_of_any_size_is_answered_once_bounded():
    features = np.array([[1e300, -1e300], [1e-320, 0.0], [3.0, 4.0]])
    loss = make_loss("least_squares")
    batch = bounded(ItemBatch(features, np.array([1e300, 0.0, 1.0]), np.array([0, 1, 2, 3])), loss)
    for task in tasks(3, 2):
        found = answer(loss, batch, task)
        assert found.answered.all()
        assert np.abs(found.values).max() <= 2.0


def test_a_second_moment_of_another_dimension_is_refused():
    batch = reference.random_batch(np.random.default_rng(1), (2, 5), 4)
    with pytest.raises(DataError, match="Expected dimension=4, like the items, got dimension=3"):
        answer(make_loss("logistic"), batch, SecondMoment(3))


def test_checked_takes_out_a_row_by_its_own_values_alone():
    values = np.array([[1.0, np.nan], [np.inf, 0.0], [-np.inf, 0.0], [3.0, -4.0], [0.0, -5.1], [1.0, 1.0]])
    status = np.array([0, 0, 0, 0, 0, Status.MISSING], dtype=np.uint8)
    found = Answers.checked(values, status, largest=5.0)
    np.testing.assert_array_equal(found.status, [2, 2, 2, 0, 2, 1])
    np.testing.assert_array_equal(found.values, [[0, 0], [0, 0], [0, 0], [3, -4], [0, 0], [0, 0]])
