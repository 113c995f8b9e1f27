import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from client import reference
from quoron_client import Box, L2Ball, make_loss
from quoron_client.losses.exponential import exponential
from quoron_privacy.errors import ConfigError

LOSSES_TRIED = reference.some_losses()
by_name = pytest.mark.parametrize("loss", LOSSES_TRIED, ids=lambda loss: loss.name)
STEADY = settings(derandomize=True, deadline=None, max_examples=50)


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


@pytest.mark.parametrize(
    ("name", "bounds", "message"),
    [
        ("logit", {}, r"Expected loss to be one of logistic, .* got loss='logit'"),
        (
            "hinge",
            {"width": 1.0},
            r"Expected the bounds of loss hinge to be among feature_norm, ridge, .*, got 'width'",
        ),
        ("huber", {"threshold": 0.0}, r"Expected threshold > 0 and finite, got threshold=0.0"),
        ("absolute", {"label_bound": -1.0}, r"Expected label_bound > 0 and finite, got label_bound=-1.0"),
        ("logistic", {"feature_norm": float("inf")}, r"Expected feature_norm > 0 and finite, got feature_norm=inf"),
        ("logistic", {"ridge": -0.1}, r"Expected ridge >= 0 and finite, got ridge=-0.1"),
    ],
)
def test_wrong_names_and_bounds_are_refused_with_their_name_and_value(name, bounds, message):
    with pytest.raises(ConfigError, match=message):
        make_loss(name, **bounds)


@by_name
def test_no_item_gradient_at_zero_is_longer_than_start_gradient(loss):
    labels = loss.bound_labels(np.linspace(-5, 5, 41))
    longest = loss.feature_norm * np.abs(loss.slope(np.zeros_like(labels), labels)).max()
    assert longest == pytest.approx(loss.start_gradient)
