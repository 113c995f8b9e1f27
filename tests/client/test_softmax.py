"""The softmax loss: its constants (docs/privacy/losses.md#l3), its loops, and labels that are no class."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from client import reference
from quoron_client import (
    AverageGradient,
    Box,
    Convolution,
    ItemBatch,
    L2Ball,
    LocalSGD,
    Status,
    answer,
    average_gradient,
    average_loss,
    bounded,
    local_sgd,
    make_loss,
    smoothness_scale,
)
from quoron_client.losses import Softmax
from quoron_privacy.errors import ConfigError, DataError

STEADY = settings(derandomize=True, deadline=None, max_examples=60)
SIZES = (1, 5, 0, 40, 33, 64, 7)


def softmax(classes=3, **bounds):
    return make_loss("softmax", classes=classes, **bounds)


def value(a, y, x, classes):
    """f without ridge, from its definition."""
    scores = x.reshape(classes, -1) @ a.astype(np.float64)
    return float(np.logaddexp.reduce(scores) - scores[int(y)])


def gradient(loss, a, y, x):
    """One item's gradient, class by class."""
    a, out = a.astype(np.float64), []
    scores = x.reshape(loss.classes, -1) @ a
    for k, score in enumerate(scores):
        chance = 1 / sum(np.exp(min(other - score, 700.0)) for other in scores)
        out.append((chance - (k == y)) * a)
    return np.concatenate(out) + loss.ridge * x


def hessian(loss, a, x):
    scores = x.reshape(loss.classes, -1) @ a
    p = np.exp(scores - np.logaddexp.reduce(scores))
    return np.kron(np.diag(p) - np.outer(p, p), np.outer(a, a)) + loss.ridge * np.eye(x.size)


def batch_of(rng, sizes, features, classes, dtype=np.float32):
    batch = reference.random_batch(rng, sizes, features, dtype)
    labels = rng.integers(0, classes, len(batch.labels)).astype(float)
    return ItemBatch(batch.features, labels, batch.offsets)


def row(rng, norm, features):
    a = rng.standard_normal(features)
    return norm * a / np.linalg.norm(a)


class TestConstants:
    @STEADY
    @given(st.integers(0, 2**32 - 1), st.integers(2, 6), st.integers(1, 5), st.sampled_from([0.01, 1.0, 50.0]))
    def test_no_item_gradient_is_longer_than_lipschitz_and_none_bends_more_than_smoothness(self, seed, k, p, reach):
        rng, loss = np.random.default_rng(seed), softmax(k, feature_norm=1.5, ridge=0.1)
        domain = L2Ball(reach)
        a, x = row(rng, 1.5, p), domain.project(reach * rng.standard_normal(k * p))
        assert np.linalg.norm(gradient(loss, a, seed % k, x)) <= loss.lipschitz(domain, k * p) * (1 + 1e-12)
        spectrum = np.linalg.eigvalsh(hessian(loss, a, x))
        assert spectrum[-1] <= loss.smoothness * (1 + 1e-12)
        assert spectrum[0] >= -1e-12  # convex

    @STEADY
    @given(st.integers(0, 2**32 - 1), st.integers(2, 5), st.floats(0.01, 0.4))
    def test_scaled_hessian_of_every_user_never_exceeds_user_smoothness(self, seed, classes, user_smoothness):
        rng, loss = np.random.default_rng(seed), softmax(classes, ridge=0.01)
        batch = batch_of(rng, (1, 6, 20), 4, classes)
        scale = smoothness_scale(loss, batch, user_smoothness)
        x = rng.standard_normal(4 * classes) * 10.0 ** rng.integers(-2, 2)
        for s, (rows, _) in zip(scale, reference.users(batch), strict=True):
            whole = np.mean([hessian(loss, a.astype(float), x) for a in rows], axis=0)
            assert s * np.linalg.eigvalsh(whole)[-1] <= user_smoothness * (1 + 1e-9)

    @pytest.mark.parametrize("classes", [1, 2.5, 10**6, float("nan"), True])
    def test_a_number_of_classes_that_is_none_is_refused(self, classes):
        with pytest.raises(ConfigError, match="Expected classes to be a whole number from 2 to 10,000, got classes="):
            softmax(classes)

    def test_the_number_of_classes_has_to_be_said(self):
        with pytest.raises(ConfigError, match="Expected classes of loss softmax, got none"):
            make_loss("softmax")
        assert make_loss("softmax", classes=3.0) == softmax(3)  # as JSON of terms may have it


class TestLoops:
    @pytest.mark.parametrize("dtype", [np.float32, np.float64])
    @pytest.mark.parametrize(("classes", "features"), [(2, 1), (3, 10), (5, 37)])
    def test_average_gradient_and_loss_are_the_slow_ones(self, dtype, classes, features):
        rng, loss = np.random.default_rng(features), softmax(classes, ridge=0.05)
        batch = batch_of(rng, SIZES, features, classes, dtype)
        points = 2 * rng.standard_normal((2, classes * features))
        for task in (
            AverageGradient(points[:1], (1.0,)),
            AverageGradient(points, (3.0, -2.0), centre=points[0], reference_items=20, user_smoothness=0.1),
        ):
            expected = np.zeros((batch.users, classes * features))
            for u, (rows, labels) in enumerate(reference.users(batch)):
                for a, y in zip(rows, labels, strict=True):
                    for w, x in zip(task.weights, task.points, strict=True):
                        expected[u] += w * gradient(loss, a, y, x) / len(rows)
            if task.user_smoothness is not None:
                expected *= smoothness_scale(loss, batch, task.user_smoothness)[:, None]
                expected = np.sqrt(np.minimum(1, np.diff(batch.offsets) / 20))[:, None] * (expected - points[0])
            found = average_gradient(loss, batch, task)
            found[2] = expected[2]  # without items: zeros, and not less a centre
            np.testing.assert_allclose(found, expected, rtol=1e-11, atol=1e-13)
        losses = [
            np.mean([value(a, y, points[0], classes) for a, y in zip(rows, labels, strict=True)])
            + loss.ridge / 2 * points[0] @ points[0]
            if len(rows)
            else 0.0
            for rows, labels in reference.users(batch)
        ]
        np.testing.assert_allclose(average_loss(loss, batch, points[0]), losses, rtol=1e-12)

    @pytest.mark.parametrize("domain", [L2Ball(0.5), Box(0.2)], ids=["ball", "box"])
    def test_local_sgd_is_the_slow_one(self, domain):
        rng, loss = np.random.default_rng(5), softmax(3, ridge=0.05)
        batch = batch_of(rng, SIZES, 6, 3)
        starts = domain.project(rng.standard_normal((batch.users, 18)))
        found = local_sgd(loss, batch, LocalSGD(starts, 0.7, domain))
        for u, (rows, labels) in enumerate(reference.users(batch)):
            x, total = starts[u], np.zeros(18)
            for a, y in zip(rows, labels, strict=True):
                x = domain.project(x - 0.7 * gradient(loss, a, y, x))
                total = total + x
            np.testing.assert_allclose(found[u], [x, total / max(1, len(rows))], rtol=1e-11, atol=1e-13)

    @STEADY
    @given(st.integers(0, 2**32 - 1), st.sampled_from([0.1, 1.0, 2.0]))
    def test_two_starts_never_drift_apart(self, seed, product):
        rng, loss = np.random.default_rng(seed), softmax(3, ridge=0.02)
        batch = bounded(batch_of(rng, (12,), 4, 3, np.float64), loss)
        starts = L2Ball(2.0).project(2 * rng.standard_normal((2, 1, 12)))
        one, two = (
            local_sgd(loss, batch, LocalSGD(start, product / loss.smoothness, L2Ball(2.0)))[0, 0] for start in starts
        )
        assert np.linalg.norm(one - two) <= np.linalg.norm(starts[0] - starts[1]) * (1 + 1e-12)

    def test_bits_do_not_depend_on_threads_or_on_other_users(self):
        rng, loss = np.random.default_rng(6), softmax(3)
        batch = batch_of(rng, SIZES, 9, 3)
        task = AverageGradient(rng.standard_normal((1, 27)), (1.0,))
        alone = ItemBatch(batch.features[6:46].copy(), batch.labels[6:46].copy(), np.array([0, 40]))
        whole = average_gradient(loss, batch, task)
        assert whole.tobytes() == average_gradient(loss, batch, task, threads=3).tobytes()
        assert whole[3].tobytes() == average_gradient(loss, alone, task)[0].tobytes()

    def test_a_model_of_another_size_and_smoothing_are_refused(self):
        batch = batch_of(np.random.default_rng(7), (2,), 4, 3)
        with pytest.raises(DataError, match="Expected points with 12 coordinates, like the items, got 4"):
            average_gradient(softmax(3), batch, AverageGradient(np.zeros((1, 4)), (1.0,)))
        task = AverageGradient(np.zeros((1, 12)), (1.0,), smoothing=Convolution(0.1, 3))
        with pytest.raises(ConfigError, match="got loss='softmax', which is smooth"):
            average_gradient(softmax(3), batch, task)


class TestLabels:
    def test_what_is_no_class_is_nan_and_rejects_its_user_alone(self):
        labels = np.array([0.0, 2.0, 3.0, -1.0, 0.5, np.nan, np.inf, 1e300])
        loss = softmax(3)
        np.testing.assert_array_equal(loss.bound_labels(labels), [0, 2, *[np.nan] * 6])
        batch = bounded(ItemBatch(np.ones((8, 1)), labels, np.arange(9)), loss)
        assert np.isnan(batch.features[2:]).all()
        found = answer(loss, batch, AverageGradient(np.zeros((1, 3)), (1.0,)))
        assert list(found.status) == [Status.ANSWERED] * 2 + [Status.REJECTED] * 6
        assert not found.values[2:].any()

    def test_loops_do_not_trust_that_labels_were_bounded(self):
        """A class number is a place in no array: one out of range could read or write what is not its."""
        labels = np.array([3.0, -1.0, 0.5, np.nan, 1e300])
        batch, loss = ItemBatch(np.ones((5, 1)), labels, np.arange(6)), softmax(3)
        for point in (np.zeros(3), np.array([700.0, -700.0, 0.0])):
            assert np.isnan(average_gradient(loss, batch, AverageGradient(point[None], (1.0,)))).all()
            assert np.isnan(average_loss(loss, batch, point)).all()
            passes = local_sgd(loss, batch, LocalSGD(np.tile(point / 1e3, (5, 1)), 0.1, L2Ball(1.0)))
            assert np.isnan(passes).all()

    def test_wrong_labels_of_simulated_users_are_classes(self):
        np.testing.assert_array_equal(Softmax(classes=3).opposite(np.array([0.0, 1.0, 2.0])), [1, 2, 0])
