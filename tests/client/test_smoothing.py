import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.special import betainc

from client import reference
from quoron_client import (
    AverageGradient,
    Box,
    Convolution,
    ItemBatch,
    L2Ball,
    LocalSGD,
    Moreau,
    average_gradient,
    local_sgd,
    make_loss,
    user_keys,
)
from quoron_client.compute.draws import ball_coordinates
from quoron_client.protocol.smoothing import ball_ratio

STEADY = settings(derandomize=True, deadline=None, max_examples=40)
RAGGED = (3, 0, 1, 33, 64, 4, 65, 2, 7)
KINKED = [make_loss("hinge", ridge=0.05, feature_norm=1.5), make_loss("absolute", ridge=0.05, feature_norm=1.5)]
by_name = pytest.mark.parametrize("loss", KINKED, ids=lambda loss: loss.name)
DIMENSIONS = st.integers(1, 300)


def density(s, dimension):
    """Of the first coordinate of a uniform point of the unit ball."""
    return ball_ratio(dimension) * (1 - s * s) ** ((dimension - 1) / 2)


def distribution(s, dimension):
    """Probability that the first coordinate is at most s."""
    s = np.clip(s, -1, 1)
    return 0.5 + 0.5 * np.sign(s) * betainc(0.5, (dimension + 1) / 2, s * s)


def slope_of_convolution(loss, q, y, spread, dimension):
    """Slope at prediction q of E φ(q + spread · u_1): the kinks' jumps times the chance to be beyond them."""
    if loss.name == "hinge":
        return -y * distribution((1 - y * q) / spread, dimension)
    return 2 * distribution((q - y) / spread, dimension) - 1


# Constants


@by_name
@STEADY
@given(dimension=DIMENSIONS, radius=st.floats(0.01, 10), y=st.sampled_from([-1.0, 1.0]), norm=st.floats(0.1, 3))
def test_convolution_is_as_smooth_and_as_close_as_it_says(loss, dimension, radius, y, norm):
    smoothing, spread = Convolution(radius, 0), radius * norm
    bound = smoothing.smoothness(lipschitz=norm, dimension=dimension)
    kink = 1.0 / y if loss.name == "hinge" else y
    predictions = kink + spread * np.linspace(-1.5, 1.5, 301)
    slopes = slope_of_convolution(loss, predictions, y, spread, dimension)
    bends = np.diff(slopes) / np.diff(predictions) * norm**2  # of the loss as a function of the model
    assert np.all(bends >= -1e-9)
    assert bends.max() <= bound * (1 + 1e-6)
    if loss.name == "absolute":  # its slope jumps by all that the bound allows
        assert bends.max() >= 0.98 * bound
    mean, _ = quad(lambda s: reference.phi(loss, kink + spread * s, y) * density(s, dimension), -1, 1, points=[0.0])
    bias = smoothing.bias(lipschitz=norm, dimension=dimension)
    assert -1e-9 <= mean - reference.phi(loss, kink, y) <= bias * (1 + 1e-6)
    if loss.name == "absolute":
        assert mean == pytest.approx(bias, rel=1e-6)
    assert bound <= norm * np.sqrt(dimension) / radius  # the constant of the literature


@by_name
@STEADY
@given(parameter=st.floats(0.01, 10), q=st.floats(-4, 4), y=st.sampled_from([-1.0, 1.0]), norm=st.floats(0.1, 3))
def test_envelope_is_below_the_loss_by_at_most_its_bias(loss, parameter, q, y, norm):
    width = parameter * norm**2
    p = q - width * reference.envelope_slope(loss, q, y, width)
    envelope = reference.phi(loss, p, y) + (p - q) ** 2 / (2 * width)
    gap = reference.phi(loss, q, y) - envelope
    assert -1e-9 <= gap <= Moreau(parameter).bias(lipschitz=norm, dimension=3) * (1 + 1e-9)


@by_name
@STEADY
@given(seed=st.integers(0, 2**32 - 1), parameter=st.floats(0.01, 10))
def test_gradients_of_the_envelope_differ_by_at_most_smoothness_times_distance(loss, seed, parameter):
    rng = np.random.default_rng(seed)
    batch = reference.random_batch(rng, [1] * 200, 4, np.float64, loss, spread=2.0)
    x = rng.standard_normal(4)
    z = x + rng.choice([1e-3, 1.0]) * rng.standard_normal(4)
    tasks = [AverageGradient(point[None], (1.0,), smoothing=Moreau(parameter)) for point in (x, z)]
    change = np.linalg.norm(np.subtract(*(average_gradient(loss, batch, task) for task in tasks)), axis=1)
    bound = Moreau(parameter).smoothness(lipschitz=1.5, dimension=4) + loss.ridge
    assert np.all(change <= bound * np.linalg.norm(x - z) * (1 + 1e-9) + 1e-13)


@pytest.mark.parametrize("name", ["hinge", "absolute", "least_squares", "huber"])
@pytest.mark.parametrize("domain", [L2Ball(2.0), Box(0.7)], ids=["ball", "box"])
def test_no_smoothed_item_gradient_is_longer_than_lipschitz(name, domain):
    rng = np.random.default_rng(1)
    loss = make_loss(name, ridge=0.1, feature_norm=1.5)
    rows = rng.standard_normal((600, 3))
    rows *= 1.5 / np.linalg.norm(rows, axis=1, keepdims=True)
    batch = ItemBatch(rows, np.sign(rng.standard_normal(600)), np.arange(601))
    for point in domain.project(np.concatenate([rows[:20], -rows[:20]]) * 100):
        for smoothing in [Convolution(0.8, 3), *([Moreau(0.4)] if loss.curvature is None else [])]:
            task = AverageGradient(point[None], (1.0,), smoothing=smoothing)
            found = average_gradient(loss, batch, task, keys=user_keys(0, np.arange(600)))
            assert np.linalg.norm(found, axis=1).max() <= loss.lipschitz(domain, 3, smoothing) * (1 + 1e-12)
    assert (loss.lipschitz(domain, 3, Convolution(0.8, 3)) > loss.lipschitz(domain, 3)) == (name == "least_squares")


# Kernels against item by item


@by_name
@pytest.mark.parametrize("smoothing", [Convolution(0.6, 9), Moreau(0.7)], ids=["convolution", "moreau"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_fast_smoothed_gradients_match_item_by_item_sums(loss, smoothing, dtype):
    rng = np.random.default_rng(2)
    batch = reference.random_batch(rng, RAGGED, 17, dtype, loss)
    batch.features[5] = 0.0  # an item without features has no kink to smooth
    keys = user_keys(4, np.arange(len(RAGGED)))
    coordinates = reference.ball_coordinates(RAGGED, 17, 9, keys)
    points = rng.standard_normal((2, 17))
    for task in (
        AverageGradient(points[:1], (1.0,), smoothing=smoothing),
        AverageGradient(points, (1.0, -0.7), smoothing=smoothing),
    ):
        expected = reference.average_gradient(loss, batch, task.points, task.weights, smoothing, coordinates)
        np.testing.assert_allclose(average_gradient(loss, batch, task, keys=keys), expected, rtol=0, atol=1e-13)


@by_name
@pytest.mark.parametrize("smoothing", [Convolution(0.6, 9), Moreau(0.7)], ids=["convolution", "moreau"])
@pytest.mark.parametrize("domain", [L2Ball(0.8), Box(0.3)], ids=["ball", "box"])
def test_fast_smoothed_pass_matches_step_by_step(loss, smoothing, domain):
    rng = np.random.default_rng(3)
    sizes = (3, 0, 20, 1, 7) * 5
    batch = reference.random_batch(rng, sizes, 9, np.float32, loss)
    keys = user_keys(1, np.arange(25))
    task = LocalSGD(domain.project(rng.standard_normal((25, 9))), 0.4, domain, smoothing)
    expected = reference.local_sgd(loss, batch, task, reference.ball_coordinates(sizes, 9, 9, keys))
    np.testing.assert_allclose(local_sgd(loss, batch, task, keys=keys), expected, rtol=0, atol=2e-13)


# Draws


@pytest.mark.parametrize("dimension", [1, 2, 7, 60])
def test_coordinates_follow_the_law_of_a_projected_point_of_the_ball(dimension):
    n, rng = 20_000, np.random.default_rng(5)
    one_user = ItemBatch(np.zeros((n, dimension), np.float32), np.zeros(n), np.array([0, n]))
    many = ItemBatch(np.zeros((n, dimension), np.float32), np.zeros(n), np.arange(n + 1))
    # Whole points of the ball, seen along some direction: what the coordinates stand for.
    points = rng.standard_normal((n, dimension))
    points *= rng.uniform(size=(n, 1)) ** (1 / dimension) / np.linalg.norm(points, axis=1, keepdims=True)
    direction = rng.standard_normal(dimension)
    samples = (
        ball_coordinates(one_user, seed=1, keys=user_keys(0, np.array([3]))),
        ball_coordinates(many, seed=2, keys=user_keys(7, np.arange(n))),
        points @ direction / np.linalg.norm(direction),
    )
    for sample in samples:
        law = distribution(np.sort(sample), dimension)
        gap = max(np.max(np.arange(1, n + 1) / n - law), np.max(law - np.arange(n) / n))
        # P(gap > t) <= 2 exp(-2 n t²) (Dvoretzky, Kiefer, Wolfowitz; Massart): 1e-8 for this t.
        assert gap <= np.sqrt(np.log(2e8) / (2 * n))


def test_draws_of_other_items_users_rounds_and_seeds_are_unrelated():
    n = 20_000
    batch = ItemBatch(np.zeros((n, 3), np.float32), np.zeros(n), np.arange(0, n + 1, 2))
    users = np.arange(n // 2)

    def draw(seed=0, number=0, cohort=users):
        return ball_coordinates(batch, seed=seed, keys=user_keys(number, cohort))

    base = draw()
    for other in (np.roll(base, 1), np.roll(base, 2), draw(seed=1), draw(number=1), draw(cohort=users + n), draw(1, 1)):
        # Every third product, so that no draw is in two of those averaged: independent, centred and within [-1, 1]. By
        # Hoeffding their mean is beyond t with chance 2 exp(-n t² / 2), which is 1e-8 for this t.
        for start in range(3):
            products = (base * other)[start::3]
            assert abs(products.mean()) <= np.sqrt(2 * np.log(2e8) / len(products))
    assert len(np.unique(np.concatenate([base, draw(seed=1), draw(number=1)]))) == 3 * n


def test_fast_draws_match_pythons_integers():
    sizes = (3, 0, 5, 1)
    batch = reference.random_batch(np.random.default_rng(7), sizes, 4)
    keys = user_keys(2**40, np.array([9_999_999, 0, 2**62, 5]))
    found = ball_coordinates(batch, seed=2**64 - 1, keys=keys)
    np.testing.assert_allclose(found, reference.ball_coordinates(sizes, 4, 2**64 - 1, keys), rtol=1e-13)
