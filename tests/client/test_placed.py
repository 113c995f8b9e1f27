"""Gradients at places: item by item, with empty places, clips and broken items."""

import numpy as np
import pytest

from client import reference
from quoron_client.compute import work
from quoron_client.compute.gradients import average_gradient
from quoron_client.compute.work import answer, placed_gradient
from quoron_client.protocol.placed import PlacedGradient
from quoron_client.protocol.questions import Status
from quoron_privacy.errors import DataError

POINT = np.array([[0.4, -0.2, 0.7]])
PLACES = np.array([[0, 2, 5], [1, -1, -1], [3, 0, 1], [-1, -1, -1], [7, 8, 9]])


def batch(loss=None, sizes=(6, 2, 4, 3, 5)):
    return reference.random_batch(np.random.default_rng(2), sizes, 3, loss=loss)


@pytest.mark.parametrize("loss", reference.some_losses(), ids=lambda loss: loss.name)
@pytest.mark.parametrize("clip", [None, 0.3])
def test_sums_are_those_of_the_items_at_the_places(loss, clip):
    items = batch(loss)
    found = placed_gradient(loss, items, PlacedGradient(POINT, PLACES, 4.0, clip))
    for u, (rows, labels) in enumerate(reference.users(items)):
        expected = np.zeros(3)
        for place in PLACES[u]:
            if 0 <= place < len(labels):
                own = reference.gradient(loss, rows[place], labels[place], POINT[0])
                expected += own if clip is None else own * min(1.0, clip / np.linalg.norm(own))
        np.testing.assert_allclose(found[u], expected / 4, atol=1e-12)


def test_an_item_more_moves_no_other_place():
    loss = reference.some_losses()[0]
    whole = batch(loss, (4,))
    shorter = whole.of(np.array([0]))
    shorter = type(whole)(shorter.features[:3].copy(), shorter.labels[:3].copy(), np.array([0, 3]))
    for place in range(3):
        task = PlacedGradient(POINT, np.array([[place]]), 1.0)
        np.testing.assert_array_equal(placed_gradient(loss, whole, task), placed_gradient(loss, shorter, task))
    last = PlacedGradient(POINT, np.array([[3]]), 1.0)
    assert not placed_gradient(loss, shorter, last).any()
    assert placed_gradient(loss, whole, last).any()


def test_the_bits_do_not_depend_on_who_else_is_asked():
    loss = reference.some_losses()[0]
    items = batch(loss)
    together = placed_gradient(loss, items, PlacedGradient(POINT, PLACES, 3.0, 0.5))
    for user in range(5):
        alone = PlacedGradient(POINT, PLACES[[user]], 3.0, 0.5)
        np.testing.assert_array_equal(placed_gradient(loss, items.of(np.array([user])), alone)[0], together[user])


def test_a_broken_item_is_seen_where_it_is_asked_for_only():
    loss = reference.some_losses()[0]
    items = batch(loss, (3, 3))
    items.features[2] = np.nan
    for places, status in ((0, Status.ANSWERED), (2, Status.REJECTED)):
        found = answer(loss, items, PlacedGradient(POINT, np.full((2, 1), places), 1.0))
        assert found.status.tolist() == [status, Status.ANSWERED]
        assert np.isfinite(found.values).all()


def test_places_that_nobody_has_take_no_work(monkeypatch):
    """A coordinator may name millions of them in one question, and the client answers others meanwhile."""
    computed = []

    def counting(loss, items, task, **named):
        computed.append(len(items.labels))
        return average_gradient(loss, items, task, **named)

    monkeypatch.setattr(work, "average_gradient", counting)
    loss, items = reference.some_losses()[0], batch(sizes=(6,))
    many = np.roll(np.arange(10_000), 77)[None]
    found = placed_gradient(loss, items, PlacedGradient(POINT, many, 4.0))
    assert computed == [1] * 6
    np.testing.assert_array_equal(found, placed_gradient(loss, items, PlacedGradient(POINT, many[:, 77:83], 4.0)))


def test_places_for_other_users_are_refused():
    with pytest.raises(DataError, match="row of places"):
        placed_gradient(reference.some_losses()[0], batch(), PlacedGradient(POINT, PLACES[:2], 1.0))
