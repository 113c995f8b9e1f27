"""What clients compute, against slow and obvious versions: the same bits whoever else is asked, on any threads."""

from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from client import reference
from quoron_client import (
    Answers,
    AverageGradient,
    AverageLoss,
    Box,
    Convolution,
    ItemBatch,
    L2Ball,
    LocalSGD,
    MomentAndGradient,
    Moreau,
    SecondMoment,
    Status,
    answer,
    average_gradient,
    average_loss,
    bounded,
    local_sgd,
    make_loss,
    second_moment_factor,
    smoothness_scale,
    user_keys,
)
from quoron_client.compute import user_loops, work
from quoron_client.compute.gradients import gradient_sums
from quoron_client.compute.user_loops import accumulate, copied, predict, predict_both, within
from quoron_client.compute.work import local_report, placed_gradient
from quoron_client.protocol.questions import PlacedGradient, RangeReport, VectorReport
from quoron_client.randomisers import SeededRandomness
from quoron_privacy.kernels.simd import aligned
from quoron_privacy.means.clipping import ClippedSum
from quoron_privacy.release import packed

SHAPES = [(dimension, rows) for dimension in (1, 3, 4, 7, 20, 31, 32, 45, 100) for rows in (1, 2, 4, 5, 11)]


@contextmanager
def on_threads(threads):
    """However few users there are."""
    with pytest.MonkeyPatch.context() as changed:
        changed.setattr(user_loops, "_SMALL", 0)
        changed.setattr(user_loops, "all_threads", lambda: threads)
        yield


def example(dimension, rows, dtype=np.float32):
    rng = np.random.default_rng(dimension + 100 * rows)
    features = rng.standard_normal((rows + 2, dimension)).astype(dtype)
    points = aligned(2, dimension)
    points[:, :dimension] = rng.standard_normal((2, dimension))
    return features, points, rng.standard_normal(rows + 3)


@pytest.mark.parametrize(("dimension", "rows"), SHAPES)
def test_predictions_are_inner_products_with_the_bits_of_each_row_alone(dimension, rows):
    features, (x, y), _ = example(dimension, rows)
    flat, found, alone = features.reshape(-1), np.zeros(rows + 5), np.zeros(rows + 5)
    predict(flat, 1, rows, dimension, x, found, 2)
    for i in range(rows):
        predict(flat, 1 + i, 1, dimension, x, alone, 2 + i)
    np.testing.assert_array_equal(found, alone)
    exact = features[1 : rows + 1].astype(np.longdouble) @ x[:dimension]
    np.testing.assert_allclose(found[2 : rows + 2], exact.astype(float), rtol=0, atol=1e-13)
    both, other, second = np.zeros(rows + 5), np.zeros(rows + 5), np.zeros(rows + 5)
    predict_both(flat, 1, rows, dimension, x, y, both, other, 2)
    predict(flat, 1, rows, dimension, y, second, 2)
    np.testing.assert_array_equal(both, found)
    np.testing.assert_array_equal(other, second)


@pytest.mark.parametrize(("dimension", "rows"), SHAPES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_sum_of_rows_has_the_same_bits_in_one_go_and_row_by_row(dimension, rows, dtype):
    features, (total, piecewise), coefficients = example(dimension, rows, dtype)
    flat = features.reshape(-1)
    accumulate(flat, 1, rows, dimension, coefficients, 3, total, True)
    for i in range(rows):
        accumulate(flat, 1 + i, 1, dimension, coefficients, 3 + i, piecewise, i == 0)
    np.testing.assert_array_equal(total[:dimension], piecewise[:dimension])
    exact = coefficients[3 : rows + 3].astype(np.longdouble) @ features[1 : rows + 1]
    np.testing.assert_allclose(total[:dimension], exact.astype(float), rtol=0, atol=1e-13)
    accumulate(flat, 1, rows, dimension, coefficients, 3, total, False)
    np.testing.assert_allclose(total[:dimension], 2 * exact.astype(float), rtol=0, atol=1e-13)


def test_no_more_is_copied_than_is_asked_for():
    for count in range(10):
        out = np.zeros(14)
        copied(np.arange(20.0), 5, count, out, 2)
        np.testing.assert_array_equal(out, [0, 0, *range(5, 5 + count), *[0] * (12 - count)])


def test_numbers_are_within_a_bound_only_if_all_are_finite():
    numbers = np.array([9.0, 1.0, -2.0, 9.0])
    assert within(numbers, 1, 2, 2.0)
    assert not within(numbers, 1, 2, 1.9)
    for bad in (np.nan, np.inf, -np.inf):
        assert not within(np.array([0.0, bad]), 0, 2, np.inf)


QUADRATIC = make_loss("quadratic", steep=0.8, flat=0.03, ridge=0.01, feature_norm=1.5)
by_name = pytest.mark.parametrize("loss", [*reference.some_losses(), QUADRATIC], ids=lambda loss: loss.name)
STEADY = settings(derandomize=True, deadline=None, max_examples=60)
RAGGED = (3, 0, 1, 33, 64, 4, 65, 2, 7, 129, *[1] * 70, 0, 1, 2, 0)  # around the kernel's groups of 4 and blocks of 64


def at(*points, weights=None, user_smoothness=None):
    points = np.array(points, dtype=np.float64)
    return AverageGradient(points, weights or (1.0,) * len(points), user_smoothness)


@by_name
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("dimension", [1, 3, 17, 40])
def test_fast_gradients_and_losses_match_item_by_item_sums(loss, dtype, dimension):
    rng = np.random.default_rng(dimension)
    batch = reference.random_batch(rng, RAGGED, dimension, dtype, loss)
    x, z = rng.standard_normal((2, dimension))
    for task in (at(x), at(x, z, weights=(1.0, -0.7))):
        expected = reference.average_gradient(loss, batch, task.points, task.weights)
        np.testing.assert_allclose(average_gradient(loss, batch, task), expected, rtol=0, atol=5e-15)
    expected = reference.average_loss(loss, batch, x)
    np.testing.assert_allclose(average_loss(loss, batch, x), expected, rtol=0, atol=5e-15)


@pytest.mark.parametrize("name", reference.SMOOTH)
@pytest.mark.parametrize("user_smoothness", [None, 0.03])
def test_a_gradient_step_is_a_contraction_up_to_rounding(name, user_smoothness):
    rng = np.random.default_rng(8)
    loss = make_loss(name, ridge=0.02)
    batch = reference.random_batch(rng, [6] * 200, 8, np.float32, loss, spread=0.9)
    worst = max(reference.hessian_bound(loss, rows) for rows, _ in reference.users(batch))
    beta = worst if user_smoothness is None else user_smoothness
    assert name == "linear" or beta <= worst
    for distance in (1.0, 1e-6, 1e-12):
        x = rng.standard_normal(8)
        z = x + distance * rng.standard_normal(8)
        gap = np.linalg.norm(x - z)
        at_x, at_z = (average_gradient(loss, batch, at(p, user_smoothness=user_smoothness)) for p in (x, z))
        for eta in (1 / beta, 2 / beta):
            after = np.linalg.norm((x - eta * at_x) - (z - eta * at_z), axis=1)
            # The step moves by eta times the gradient, whose coordinates carry a few units of rounding at size 1.
            assert np.all(after <= gap * (1 + 1e-14) + (1 + eta) * 4e-15)


def crowd_of(rng, sizes, dimension, loss=None):
    """Ragged users, one of whom holds a NaN and one infinity, if there are as many."""
    batch = reference.random_batch(rng, sizes, dimension, np.float32, loss or make_loss("logistic"))
    for row, bad in ((0, np.nan), (len(batch.labels) - 1, np.inf)):
        if 0 <= row < len(batch.labels):
            batch.features[row, dimension - 1] = bad
    return batch


@STEADY
@given(
    seed=st.integers(0, 2**32 - 1),
    sizes=st.lists(st.integers(0, 150), min_size=1, max_size=30),
    dimension=st.integers(1, 40),
    norm=st.floats(1e-3, 10),
    threads=st.integers(1, 3),
    largest=st.sampled_from([np.inf, 0.5, 0.0]),
    centred=st.booleans(),
)
def test_sums_are_exactly_those_of_rows(seed, sizes, dimension, norm, threads, largest, centred):
    rng, loss = np.random.default_rng(seed), make_loss("logistic", ridge=0.01)
    batch = crowd_of(rng, sizes, dimension, loss)
    x, z = rng.standard_normal((2, dimension))
    reduction = ClippedSum(norm, 8, 0.1 * z if centred else None)
    task = at(x, z, weights=(1.0, -0.9), user_smoothness=0.3)
    are_those_of_rows(loss, batch, task, reduction, largest, threads)


def are_those_of_rows(loss, batch, task, reduction, largest, threads):
    """The sums of gradients, to the integer."""
    rows = average_gradient(loss, batch, task)
    with np.errstate(invalid="ignore"):
        there = (batch.counts > 0) & np.isfinite(rows).all(axis=1) & (np.abs(rows).max(axis=1) <= largest)
    expected = reduction.of(rows, there)
    with on_threads(threads):
        found = gradient_sums(loss, batch, task, reduction, largest=largest)
    np.testing.assert_array_equal(found.total, expected.total)
    np.testing.assert_array_equal(found.cells, expected.cells)
    assert (found.clipped, found.answered) == (expected.clipped, expected.answered)


@given(
    dimension=st.integers(1, 40),
    others=st.lists(st.sampled_from([0, 1, 2, 9]), max_size=6),
    users=st.integers(1, 220),
    kind=st.sampled_from([np.float32, np.float64]),
    ridge=st.sampled_from([0.0, 0.3]),
    seed=st.integers(0, 10**6),
)
@settings(max_examples=60)
def test_users_of_one_item_have_the_integers_of_their_rows_wherever_they_lie(
    dimension, others, users, kind, ridge, seed
):
    rng, loss = np.random.default_rng(seed), make_loss("logistic", ridge=ridge)
    counts = np.concatenate([np.ones(users, np.int64), np.array(others, np.int64), np.ones(users, np.int64)])
    features = rng.standard_normal((int(counts.sum()), dimension)).astype(kind)
    labels = rng.choice([-1.0, 1.0, np.nan], len(features), p=[0.48, 0.48, 0.04])
    features[rng.random(len(features)) < 0.03] = rng.choice([np.nan, np.inf, 1e30])
    table = ItemBatch(features, labels, np.concatenate([[0], np.cumsum(counts)]))
    some = table.seen(rng.permutation(len(counts))[: rng.integers(1, len(counts) + 1)])
    point, centre = rng.standard_normal((1, dimension)), rng.standard_normal(dimension)
    task = AverageGradient(point, (0.7,), centre=rng.choice([0.0, 0.4]) * centre)
    reduction = ClippedSum(0.9, len(counts), rng.choice([0.0, 0.2]) * centre)
    for batch in (table, some):
        are_those_of_rows(loss, batch, task, reduction, 20.0, 1)


DOMAINS = pytest.mark.parametrize("domain", [L2Ball(0.8), Box(0.3)], ids=["ball", "box"])


@pytest.mark.parametrize("loss", reference.some_losses(), ids=lambda loss: loss.name)
@DOMAINS
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_fast_pass_matches_step_by_step(loss, domain, dtype):
    rng = np.random.default_rng(1)
    batch = reference.random_batch(rng, (3, 0, 20, 1, 7), 9, dtype, loss)
    task = LocalSGD(domain.project(rng.standard_normal((5, 9))), 0.4, domain)
    expected = reference.local_sgd(loss, batch, task)
    np.testing.assert_allclose(local_sgd(loss, batch, task), expected, rtol=0, atol=5e-14)
    assert np.any(np.linalg.norm(expected[:, 0], axis=1) > 0.79) or isinstance(domain, Box)


@DOMAINS
@pytest.mark.parametrize("name", reference.SMOOTH)
def test_two_starts_never_drift_apart(domain, name):
    rng = np.random.default_rng(2)
    loss = make_loss(name, ridge=0.02)
    batch = reference.random_batch(rng, [15] * 100, 6, np.float32, loss, spread=0.7)
    longest = np.linalg.norm(batch.features.astype(np.float64), axis=1).max()
    step = 2 / (loss.curvature * longest**2 + loss.ridge)
    starts = domain.project(rng.standard_normal((2, 100, 6)))
    starts[1, :50] = starts[0, :50] + 1e-9 * rng.standard_normal((50, 6))
    ends = [local_sgd(loss, batch, LocalSGD(start, step, domain))[:, 0] for start in starts]
    before, after = (np.linalg.norm(pair[0] - pair[1], axis=1) for pair in (starts, ends))
    assert np.all(after <= before + 15 * (1 + step) * 1e-15)


SIZES = (1, 5, 0, 40, 33, 20)
TRIED = (*reference.some_losses(), make_loss("softmax", classes=3, ridge=0.05, feature_norm=1.5))
by_weighted = pytest.mark.parametrize("loss", TRIED, ids=lambda loss: loss.name)


def weighted(rng, loss, sizes=SIZES, features=7, dtype=np.float32):
    batch = reference.random_batch(rng, sizes, features, dtype, loss)
    labels = rng.integers(0, 3, len(batch.labels)).astype(float) if loss.outputs > 1 else batch.labels
    weights = rng.uniform(0, 1, len(labels))
    weights[:: max(1, len(weights) // 5)] = rng.choice([0.0, 1.0])
    return ItemBatch(batch.features, labels, batch.offsets, weights)


def item_by_item(loss, batch):
    """Each item as a user without weight or ridge, and its weight over m_u."""
    alone = ItemBatch(batch.features, batch.labels, np.arange(len(batch.labels) + 1))
    counts = np.diff(batch.offsets)
    return replace(loss, ridge=0.0), alone, batch.weights / np.repeat(np.maximum(counts, 1), counts)


def summed(batch, rows):
    return np.array([rows[i:j].sum(axis=0) for i, j in zip(batch.offsets[:-1], batch.offsets[1:], strict=True)])


@by_weighted
def test_gradient_and_loss_are_the_stated_objective(loss):
    rng = np.random.default_rng(1)
    batch, d = weighted(rng, loss), 7 * loss.outputs
    points, (plain, alone, shares) = rng.standard_normal((2, d)), item_by_item(loss, batch)
    task = AverageGradient(points, (3.0, -2.0))
    items = average_gradient(plain, alone, task)
    expected = summed(batch, shares[:, None] * items) + loss.ridge * (3 * points[0] - 2 * points[1])
    expected[2] = 0.0  # nobody without items answers
    np.testing.assert_allclose(average_gradient(loss, batch, task), expected, rtol=1e-11, atol=1e-13)
    values = summed(batch, shares * average_loss(plain, alone, points[0]))
    values += np.where(np.diff(batch.offsets) > 0, loss.ridge / 2 * points[0] @ points[0], 0.0)
    np.testing.assert_allclose(average_loss(loss, batch, points[0]), values, rtol=1e-11)


@by_weighted
@pytest.mark.parametrize("domain", [L2Ball(0.5), Box(0.2)], ids=["ball", "box"])
def test_local_sgd_takes_weighted_steps(loss, domain):
    rng = np.random.default_rng(2)
    batch, d = weighted(rng, loss), 7 * loss.outputs
    starts = domain.project(rng.standard_normal((batch.users, d)))
    found = local_sgd(loss, batch, LocalSGD(starts, 0.3, domain))
    plain, _, _ = item_by_item(loss, batch)
    for u in range(batch.users):
        x, total, rows = starts[u], np.zeros(d), range(batch.offsets[u], batch.offsets[u + 1])
        for i in rows:
            own = ItemBatch(batch.features[i : i + 1], batch.labels[i : i + 1], np.array([0, 1]))
            slope = average_gradient(plain, own, AverageGradient(x[None], (1.0,)))[0]
            x = domain.project(x - 0.3 * (batch.weights[i] * slope + loss.ridge * x))
            total = total + x
        np.testing.assert_allclose(found[u], [x, total / max(1, len(rows))], rtol=1e-10, atol=1e-12)


@by_weighted
@STEADY
@given(seed=st.integers(0, 2**32 - 1))
def test_lipschitz_and_smoothness_of_the_loss_hold_for_every_weighted_user(loss, seed):
    rng = np.random.default_rng(seed)
    batch = bounded(weighted(rng, loss, dtype=np.float64), loss)
    domain, d = L2Ball(3.0), 7 * loss.outputs
    one, two = domain.project(5 * rng.standard_normal((2, d)))
    gradients = [average_gradient(loss, batch, AverageGradient(x[None], (1.0,))) for x in (one, two)]
    lengths = np.linalg.norm(np.concatenate(gradients), axis=1)
    assert lengths.max() <= loss.lipschitz(domain, d) * (1 + 1e-12)
    if loss.smoothness is None:
        return
    distance = np.linalg.norm(one - two)
    change = np.linalg.norm(gradients[0] - gradients[1], axis=1)
    assert change.max() <= loss.smoothness * distance * (1 + 1e-9)
    scaled = smoothness_scale(loss, batch, 0.1) * change  # the scale that weights leave as it is
    assert scaled.max() <= 0.1 * distance * (1 + 1e-9)


def test_second_moment_weighs_its_items_and_stays_within_the_feature_norm():
    rng, loss = np.random.default_rng(4), make_loss("logistic")
    batch = bounded(weighted(rng, loss, dtype=np.float64), loss)
    factors = second_moment_factor(batch)
    upper = np.triu_indices(7)
    for u, (rows, _) in enumerate(reference.users(batch)):
        w = batch.weights[batch.offsets[u] : batch.offsets[u + 1]]
        triangle = np.zeros((7, 7))
        triangle[upper] = factors[u]
        expected = (rows * w[:, None]).T @ rows / max(1, len(rows))
        np.testing.assert_allclose(triangle.T @ triangle, expected, atol=1e-12)
    assert np.linalg.norm(factors, axis=1).max() <= loss.feature_norm


def test_weights_are_brought_within_their_bounds_and_one_that_is_no_number_rejects_its_user():
    weights = np.array([0.5, 3.0, -1.0, np.nan, np.inf])
    batch = bounded(ItemBatch(np.ones((5, 1)), np.ones(5), np.arange(6), weights), make_loss("logistic"))
    np.testing.assert_array_equal(batch.weights[:3], [0.5, 1.0, 0.0])
    found = answer(make_loss("logistic"), batch, AverageGradient(np.zeros((1, 1)), (1.0,)))
    np.testing.assert_array_equal(found.values[:, 0], [-0.25, -0.5, 0.0, 0.0, 0.0])
    assert list(found.status) == [Status.ANSWERED] * 3 + [Status.REJECTED] * 2
    assert list(answer(make_loss("logistic"), batch, SecondMoment(1)).status) == list(found.status)


TABLES = st.tuples(st.integers(1, 9), st.integers(1, 7))


def of_one(rows, most=None):
    rows = np.ascontiguousarray(rows)
    return second_moment_factor(ItemBatch(rows, np.zeros(len(rows)), np.array([0, len(rows)])), rows=most)[0]


def unpacked(factor, dimension):
    matrix = np.zeros((dimension, dimension))
    matrix[np.triu_indices(dimension)] = factor
    return matrix


@STEADY
@given(seed=st.integers(0, 2**32 - 1), shape=TABLES, largest=st.integers(0, 3))
def test_fast_factor_matches_exact_cholesky_whatever_the_rank(seed, shape, largest):
    # Small integers: zero, equal and dependent columns are common, and decided exactly by the reference.
    draw = np.random.default_rng(seed)
    for _ in range(5):
        rows = draw.integers(-largest, largest + 1, shape).astype(np.float32)
        expected = reference.second_moment_factor(rows)
        np.testing.assert_allclose(of_one(rows), expected, rtol=0, atol=1e-13)
        short = min(shape)
        np.testing.assert_array_equal(of_one(rows, short), of_one(rows)[: packed(shape[1], short)])
        assert not expected[packed(shape[1], short) :].any()


@STEADY
@given(seed=st.integers(0, 2**32 - 1), sizes=st.lists(st.integers(0, 30), min_size=1, max_size=6), d=st.integers(1, 12))
def test_factors_square_is_the_second_moment_and_its_norm_that_of_the_features(seed, sizes, d):
    batch = reference.random_batch(np.random.default_rng(seed), sizes, d, np.float64)
    for factor, (rows, _) in zip(second_moment_factor(batch), reference.users(batch), strict=True):
        matrix = unpacked(factor, d)
        np.testing.assert_allclose(matrix.T @ matrix, rows.T @ rows / max(len(rows), 1), rtol=0, atol=2e-15 * (d + 3))
        assert np.all(np.diag(matrix) >= 0)
        np.testing.assert_array_equal(matrix[len(rows) :], 0.0)
        norms = np.linalg.norm(rows, axis=1)
        assert np.linalg.norm(factor) <= max(norms, default=0.0) * (1 + 1e-14)
        assert np.linalg.norm(factor) == pytest.approx(np.sqrt(np.mean(norms**2)) if len(norms) else 0.0, rel=1e-13)


POINT = np.array([[0.4, -0.2, 0.7]])
PLACES = np.array([[0, 2, 5], [1, -1, -1], [3, 0, 1], [-1, -1, -1], [7, 8, 9]])


def placed_batch(loss=None, sizes=(6, 2, 4, 3, 5)):
    return reference.random_batch(np.random.default_rng(2), sizes, 3, loss=loss)


@pytest.mark.parametrize("loss", reference.some_losses(), ids=lambda loss: loss.name)
@pytest.mark.parametrize("clip", [None, 0.3])
def test_sums_are_those_of_the_items_at_the_places(loss, clip):
    items = placed_batch(loss)
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
    whole = placed_batch(loss, (4,))
    shorter = whole.of(np.array([0]))
    shorter = type(whole)(shorter.features[:3].copy(), shorter.labels[:3].copy(), np.array([0, 3]))
    for place in range(3):
        task = PlacedGradient(POINT, np.array([[place]]), 1.0)
        np.testing.assert_array_equal(placed_gradient(loss, whole, task), placed_gradient(loss, shorter, task))
    last = PlacedGradient(POINT, np.array([[3]]), 1.0)
    assert not placed_gradient(loss, shorter, last).any()
    assert placed_gradient(loss, whole, last).any()


def test_a_broken_item_is_seen_where_it_is_asked_for_only():
    loss = reference.some_losses()[0]
    items = placed_batch(loss, (3, 3))
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
    loss, items = reference.some_losses()[0], placed_batch(sizes=(6,))
    many = np.roll(np.arange(10_000), 77)[None]
    found = placed_gradient(loss, items, PlacedGradient(POINT, many, 4.0))
    assert computed == [1] * 6
    np.testing.assert_array_equal(found, placed_gradient(loss, items, PlacedGradient(POINT, many[:, 77:83], 4.0)))


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


KEYS = user_keys(3, np.random.default_rng(8).permutation(10_000)[:900])
KINKED = [
    AverageGradient(np.full((1, 20), 0.1), (1.0,), smoothing=Convolution(0.5, 1)),
    *(
        LocalSGD(np.full((900, 20), 0.1), 0.5, L2Ball(1.0), smoothing)
        for smoothing in (Convolution(0.5, 1), Moreau(0.3))
    ),
]
PLACED = PlacedGradient(np.full((1, 20), 0.1), np.random.default_rng(9).integers(-1, 9, (900, 3)), 3.0, 0.5)
WIDE = [AverageGradient(np.full((2, 60), 0.1), (1.0, -0.5)), LocalSGD(np.full((900, 60), 0.1), 0.5, L2Ball(1.0))]


@pytest.mark.parametrize(
    ("loss", "task"),
    [
        *((make_loss("logistic", ridge=0.01), task) for task in (*tasks(900, 20), PLACED)),
        *((make_loss("hinge", ridge=0.01), task) for task in KINKED),
        *((make_loss("softmax", classes=3), task) for task in WIDE),
    ],
)
def test_bits_depend_neither_on_threads_nor_on_who_else_is_asked(loss, task):
    rng = np.random.default_rng(5)
    batch = reference.random_batch(rng, rng.integers(0, 30, 900), 20, loss=loss)
    if loss.name == "softmax":
        batch = replace(batch, labels=rng.integers(0, 3, len(batch.labels)).astype(float))
    with on_threads(1):
        whole = answer(loss, batch, task, keys=KEYS)
    with on_threads(3):
        np.testing.assert_array_equal(answer(loss, batch, task, keys=KEYS).values, whole.values)
    for user, (features, labels) in list(enumerate(reference.users(batch)))[:20]:
        alone, own = ItemBatch(features, labels, np.array([0, len(labels)])), slice(user, user + 1)
        part = {name: getattr(task, name)[own] for name in ("starts", "places") if hasattr(task, name)}
        found = answer(loss, alone, replace(task, **part), keys=KEYS[own])
        np.testing.assert_array_equal(found.values[0], whole.values[user])


def test_checked_takes_out_a_row_by_its_own_values_alone():
    values = np.array([[1.0, np.nan], [np.inf, 0.0], [-np.inf, 0.0], [3.0, -4.0], [0.0, -5.1], [1.0, 1.0]])
    status = np.array([0, 0, 0, 0, 0, Status.MISSING], dtype=np.uint8)
    found = Answers.checked(values, status, largest=5.0)
    np.testing.assert_array_equal(found.status, [2, 2, 2, 0, 2, 1])
    np.testing.assert_array_equal(found.values, [[0, 0], [0, 0], [0, 0], [3, -4], [0, 0], [0, 0]])


USERS, DIMENSION = 40, 6
RNG = np.random.default_rng(0)
REPORTED = make_loss("logistic")
SOURCE = SeededRandomness(8)
GRADIENT = AverageGradient(RNG.normal(size=(1, DIMENSION)), (1.0,))
SIGNS = RNG.choice([-1.0, 1.0], DIMENSION)
COORDINATES = np.arange(USERS) % 8
VECTOR = VectorReport(GRADIENT, 1.0, 1e-6, 0.5, np.full(DIMENSION, 0.1))
RANGE = RangeReport(GRADIENT, 2.0, 16, 1.0, SIGNS, COORDINATES)


def items(bad=None, empty=None):
    features = RNG.normal(size=(3 * USERS, DIMENSION)) / DIMENSION
    labels = np.sign(RNG.normal(size=3 * USERS))
    if bad is not None:
        features[3 * bad] = np.nan
    counts = np.full(USERS, 3)
    if empty is not None:
        counts[empty], counts[empty + 1] = 0, 6
    return ItemBatch(features, labels, np.concatenate([[0], np.cumsum(counts)]))


def asked(batch, task, users=None):
    return local_report(REPORTED, batch, task, SOURCE, round=4, users=np.arange(USERS) if users is None else users)


@pytest.mark.parametrize("task", [VECTOR, RANGE], ids=["vector", "range"])
@pytest.mark.parametrize("where", [{"bad": 7}, {"empty": 7}], ids=["not finite", "no items"])
def test_bad_data_looks_like_any_other_report(task, where):
    found = asked(items(**where), task)
    assert (found.status == Status.ANSWERED).all()
    assert np.isfinite(found.values).all()
    assert found.values[7].any()


@pytest.mark.parametrize("task", [VECTOR, RANGE], ids=["vector", "range"])
def test_a_report_does_not_depend_on_who_else_is_asked(task):
    batch, first, last = items(), 10, 13
    some = slice(batch.offsets[first], batch.offsets[last])
    offsets = batch.offsets[first : last + 1] - batch.offsets[first]
    part = ItemBatch(batch.features[some], batch.labels[some], offsets)
    own = replace(task, coordinates=COORDINATES[first:last]) if task is RANGE else task
    assert np.array_equal(asked(part, own, np.arange(first, last)).values, asked(batch, task).values[first:last])
