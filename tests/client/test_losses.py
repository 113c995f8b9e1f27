"""What a loss states holds for every item that a client lets through."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from client import reference
from quoron_client import (
    AverageGradient,
    Box,
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
from quoron_client.data.encoding import Classes, Comparison, Positive, Range, Signs, meaning, outcomes
from quoron_client.losses.standard import exponential
from quoron_privacy.errors import DataError

LOSSES_TRIED = reference.some_losses()
by_name = pytest.mark.parametrize("loss", LOSSES_TRIED, ids=lambda loss: loss.name)
STEADY = settings(derandomize=True, deadline=None, max_examples=60)


def items_at_the_bounds(loss, rng, count, dimension):
    """Items that press against the public bounds: rows of full length, labels at their ends or inside."""
    rows = rng.standard_normal((count, dimension))
    rows *= loss.feature_norm / np.linalg.norm(rows, axis=1, keepdims=True)
    rows[: count // 4] *= rng.uniform(0, 1, (count // 4, 1))
    ends = getattr(loss, "label_bound", 1.0)
    labels = np.sign(rng.standard_normal(count)) * ends
    if loss.name not in reference.MARGIN:
        labels[::2] *= rng.uniform(0, 1, len(labels[::2]))
    return rows, labels


def points_of(domain, rng, count, dimension):
    """Points of the domain, half of them on its boundary."""
    points = domain.project(5.0 * rng.standard_normal((count, dimension)))
    points[::2] *= rng.uniform(0, 1, (len(points[::2]), 1))
    return points


@by_name
def test_value_and_slope_are_the_textbook_formulas(loss):
    predictions, labels = np.meshgrid(np.linspace(-40, 40, 161), [-1.0, 1.0])
    expected = [reference.phi(loss, p, y) for p, y in zip(predictions.flat, labels.flat, strict=True)]
    slopes = [reference.phi_slope(loss, p, y) for p, y in zip(predictions.flat, labels.flat, strict=True)]
    np.testing.assert_allclose(loss.value(predictions, labels).ravel(), expected, rtol=1e-14, atol=1e-300)
    np.testing.assert_allclose(loss.slope(predictions, labels).ravel(), slopes, rtol=1e-14, atol=1e-300)


@by_name
@pytest.mark.parametrize("domain", [L2Ball(2.0), Box(0.7)], ids=["ball", "box"])
def test_no_item_gradient_is_longer_than_lipschitz(loss, domain):
    rng = np.random.default_rng(2)
    rows, labels = items_at_the_bounds(loss, rng, 400, 5)
    points = points_of(domain, rng, 400, 5)
    # The worst case as well: the point is the row's own direction, on either side.
    aligned = domain.project(np.concatenate([rows, -rows]) * 1e3)
    for x, a, y in [
        *zip(points, rows, labels, strict=True),
        *zip(aligned, np.tile(rows, (2, 1)), np.tile(labels, 2), strict=True),
    ]:
        length = np.linalg.norm(reference.gradient(loss, a, y, x))
        assert length <= loss.lipschitz(domain, 5) * (1 + 1e-12)


@pytest.mark.parametrize(
    "loss", [loss for loss in LOSSES_TRIED if loss.smoothness is not None], ids=lambda loss: loss.name
)
def test_item_gradients_differ_by_at_most_smoothness_times_distance(loss):
    rng = np.random.default_rng(3)
    rows, labels = items_at_the_bounds(loss, rng, 2000, 4)
    for a, y in zip(rows, labels, strict=True):
        x = rng.standard_normal(4)
        z = x + rng.choice([1e-3, 1.0]) * (a if rng.random() < 0.5 else rng.standard_normal(4))
        change = np.linalg.norm(reference.gradient(loss, a, y, x) - reference.gradient(loss, a, y, z))
        assert change <= loss.smoothness * np.linalg.norm(x - z) * (1 + 1e-9) + 1e-14


@STEADY
@given(st.lists(st.floats(-700, 700), min_size=1, max_size=40))
def test_own_exponential_agrees_with_the_library(arguments):
    for t in arguments:
        assert exponential(t) == pytest.approx(np.exp(t), rel=5e-16, abs=0)


def test_own_exponential_at_the_edges():
    assert exponential(0.0) == 1.0
    assert exponential(-np.inf) == exponential(-1e300) < 1e-300
    assert 1e300 < exponential(np.inf) < np.inf
    assert np.isnan(exponential(np.nan))


@by_name
def test_no_item_gradient_at_zero_is_longer_than_start_gradient(loss):
    labels = loss.bound_labels(np.linspace(-5, 5, 41))
    longest = loss.feature_norm * np.abs(loss.slope(np.zeros_like(labels), labels)).max()
    assert longest == pytest.approx(loss.start_gradient)


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


@STEADY
@given(
    seed=st.integers(0, 2**32 - 1),
    sizes=st.lists(st.integers(1, 30), min_size=1, max_size=6),
    dimension=st.integers(1, 24),
    user_smoothness=st.floats(1e-3, 1.5),
    ridge=st.sampled_from([0.0, 0.02]),
    rank=st.integers(1, 24),
    dtype=st.sampled_from([np.float32, np.float64]),
)
def test_scaled_hessian_never_exceeds_user_smoothness(seed, sizes, dimension, user_smoothness, ridge, rank, dtype):
    rng = np.random.default_rng(seed)
    loss = make_loss("least_squares", ridge=ridge)
    batch = reference.random_batch(rng, sizes, dimension, dtype, loss)
    batch.features[:, min(rank, dimension) :] = 0.0
    scale = smoothness_scale(loss, batch, user_smoothness)
    exact = np.array([reference.hessian_bound(loss, rows) for rows, _ in reference.users(batch)])
    assert np.all(scale * exact <= user_smoothness)
    assert np.all((scale > 0) & (scale <= 1))
    # Nor is anybody scaled down by more than the allowance for rounding.
    np.testing.assert_allclose(scale, np.minimum(1.0, user_smoothness / exact), rtol=1e-8)


@STEADY
@given(
    seed=st.integers(0, 2**32 - 1),
    size=st.integers(1, 12),
    factor=st.floats(1 - 1e-8, 1 + 1e-8),
    copies=st.sampled_from([1, 8, 11]),
)
def test_scale_has_no_step_where_the_quick_tests_hand_over(seed, size, factor, copies):
    rng = np.random.default_rng(seed)
    loss = make_loss("logistic")
    one = reference.random_batch(rng, [size], 6)
    exact = reference.hessian_bound(loss, one.features)
    features, offsets = np.tile(one.features, (copies, 1)), size * np.arange(copies + 1)
    scales = smoothness_scale(loss, ItemBatch(features, np.ones(len(features)), offsets), exact * factor)
    assert np.all(scales * exact <= exact * factor)
    np.testing.assert_allclose(scales, min(1.0, factor), rtol=3e-9)


@STEADY
@given(
    seed=st.integers(0, 2**32 - 1),
    runs=st.lists(st.tuples(st.integers(0, 25), st.integers(1, 20)), min_size=1, max_size=4),
    dimension=st.sampled_from([1, 2, 5, 8, 13, 60]),
    ridge=st.sampled_from([0.0, 0.05]),
    dtype=st.sampled_from([np.float32, np.float64]),
    unit=st.sampled_from([1e-18, 1e-9, 1.0, 1e9, 1e18]),  # of features: squares of the outer two are beyond float32
)
def test_users_looked_at_together_are_scaled_as_each_alone(seed, runs, dimension, ridge, dtype, unit):
    rng = np.random.default_rng(seed)
    loss = make_loss("logistic", ridge=ridge)
    sizes = [size for size, users in runs for _ in range(users)]  # runs of users of equally many items
    batch = reference.random_batch(rng, sizes, dimension, dtype, loss)
    batch.features[:] *= dtype(unit)
    exact = [reference.hessian_bound(loss, rows) for rows, _ in reference.users(batch) if len(rows)]
    bound = float(np.median(exact)) if exact else 0.1  # about half of them stay below
    if len(batch.features):
        batch.features[rng.integers(len(batch.features)), 0] = rng.choice([np.nan, np.inf, 1e30])
    together = smoothness_scale(loss, batch, bound)
    alone = [smoothness_scale(loss, batch.of(np.array([user])), bound)[0] for user in range(batch.users)]
    np.testing.assert_array_equal(together, alone)


def test_edge_users():
    batch = ItemBatch(np.array([[0.0, 0.0], [np.nan, 1.0], [np.inf, 0.0]]), np.ones(3), np.array([0, 0, 1, 2, 3]))
    scale = smoothness_scale(make_loss("logistic", ridge=0.5), batch, 0.25)
    np.testing.assert_allclose(scale, [1.0, 0.5, np.nan, np.nan], rtol=1e-8)
    np.testing.assert_array_equal(smoothness_scale(make_loss("linear"), batch, 0.25), 1.0)
    np.testing.assert_array_equal(smoothness_scale(make_loss("linear", ridge=0.5), batch, 0.25), [1, 0.5, 0.5, 0.5])


domains = st.builds(L2Ball, st.floats(1e-3, 1e3)) | st.builds(Box, st.floats(1e-3, 1e3))
pairs = hnp.arrays(np.float64, (2, 5), elements=st.floats(-1e4, 1e4))


@STEADY
@given(domain=domains, points=pairs)
def test_projections_lie_in_the_set_nearest_to_their_points_and_are_non_expansive(domain, points):
    (x, z), size = domain.project(points), np.abs(points).max() * domain.norm_bound(5)
    assert np.linalg.norm(x - z) <= np.linalg.norm(points[0] - points[1]) * (1 + 1e-14) + 1e-15 * np.abs(points).max()
    assert max(np.linalg.norm(x), np.linalg.norm(z)) <= domain.norm_bound(5) * (1 + 1e-15)
    np.testing.assert_allclose(domain.project(np.array([x, z])), [x, z], rtol=1e-15, atol=0)
    # The variational inequality: <y - P(y), z - P(y)> <= 0 for every z of the set.
    assert (points[0] - x) @ (z - x) <= 1e-13 * (size + domain.norm_bound(5) ** 2)


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


TWO = Classes("ill", ("no", "yes"))


@pytest.mark.parametrize(
    ("label", "values", "said"),
    [
        (TWO, ("no", "yes"), "ill"),
        (Classes("k", (False, True)), (False, True), "k"),
        (Signs("k", truth=True), (False, True), "k"),
        (Comparison("delay", ">", 15.0), (False, True), "delay > 15"),
        (Positive("r2", "Y"), (False, True), "r2 = Y"),
        (Range("cost", 0, 9), (), "cost"),
    ],
)
def test_every_kind_of_label_has_values_of_its_own_and_a_name(label, values, said):
    assert outcomes(label) == values
    assert [*map(type, outcomes(label))] == [*map(type, values)]
    assert meaning(label) == said
