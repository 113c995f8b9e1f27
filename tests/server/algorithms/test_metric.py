"""The metric of a private curvature model: what dense linear algebra and library solvers say."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import lsq_linear, minimize

from quoron_client.protocol.domains import Box, L2Ball
from quoron_server.algorithms.tracking import Metric
from quoron_server.algorithms.whitening import canonical, eigen


def dense(metric):
    return metric.basis * metric.eigenvalues @ metric.basis.T + metric.ridge * np.eye(len(metric.eigenvalues))


@st.composite
def metrics(draw, condition=1e3, largest=6):
    dimension, seed = draw(st.integers(1, largest)), draw(st.integers(0, 10**6))
    rng = np.random.default_rng(seed)
    basis = np.linalg.qr(rng.standard_normal((dimension, dimension)))[0]
    eigenvalues = np.sort(np.exp(rng.uniform(-np.log(condition), 0.0, dimension)))
    return Metric(eigenvalues, basis, draw(st.sampled_from([0.0, 0.01, 1.0])))


def points(metric, seed, size=3.0):
    return size * np.random.default_rng(seed).standard_normal(len(metric.eigenvalues))


def test_directions_are_the_same_however_a_processor_rotates_and_mirrors_those_of_equal_eigenvalues():
    rng, values = np.random.default_rng(2), np.array([1.0, 2.0, 2.0 + 1e-12, 5.0])
    first, turn = np.linalg.qr(rng.standard_normal((4, 4)))[0], np.diag([-1.0, 1.0, 1.0, -1.0])
    turn[1:3, 1:3] = [[0.6, -0.8], [0.8, 0.6]]
    found, basis = eigen(first * values @ first.T)
    np.testing.assert_allclose(canonical(values, first @ turn), canonical(values, first), atol=1e-12)
    np.testing.assert_allclose(basis, canonical(values, first), atol=1e-12)
    np.testing.assert_allclose(basis * found @ basis.T, first * values @ first.T, atol=1e-11)
    small = np.array([1e-10, 1e-9, 1.0, 2.0])  # far apart, if not beside the largest
    np.testing.assert_allclose(np.abs(first.T @ canonical(small, first)), np.eye(4), atol=1e-9)


@given(dimension=st.integers(1, 8), seed=st.integers(0, 1000), curvature=st.floats(0.1, 2))
@settings(derandomize=True, deadline=None, max_examples=50)
def test_of_a_transform_the_metric_is_the_moment_that_it_whitens_more_where_that_is_in_doubt(
    dimension, seed, curvature
):
    rng = np.random.default_rng(seed)
    transform, doubt = rng.standard_normal((dimension, dimension)), rng.uniform(0, 10, dimension)
    metric = Metric.of(transform, doubt, curvature=curvature, ridge=0.0)
    whitened = transform.T @ dense(metric) @ transform
    np.testing.assert_allclose(whitened, curvature * np.diag(1 + doubt), atol=1e-6 * curvature)


@given(metric=metrics(), seed=st.integers(0, 1000), outputs=st.integers(1, 3))
@settings(derandomize=True, deadline=None, max_examples=50)
def test_whitened_gradients_are_as_long_as_their_dual_norm_and_are_coloured_back(metric, seed, outputs):
    gradient = points(metric, seed, outputs)
    gradient = np.concatenate([gradient * (k + 1) for k in range(outputs)])
    without = np.kron(np.eye(outputs), dense(metric) - metric.ridge * np.eye(len(metric.eigenvalues)))
    whitened = metric.whiten(gradient)
    assert whitened @ whitened == pytest.approx(gradient @ np.linalg.solve(without, gradient), rel=1e-8)
    parts = gradient.reshape(outputs, -1) @ metric.transform
    np.testing.assert_allclose(parts.ravel(), whitened, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(metric.colour(whitened), gradient, rtol=1e-9, atol=1e-9)


@given(metric=metrics(), seed=st.integers(0, 1000))
@settings(derandomize=True, deadline=None, max_examples=50)
def test_step_apply_and_length_are_those_of_the_full_matrix(metric, seed):
    vector, full = points(metric, seed), dense(metric)
    without = full - metric.ridge * np.eye(len(vector))
    np.testing.assert_allclose(metric.step(vector), np.linalg.solve(full, vector), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(metric.apply(vector), without @ vector, atol=1e-12)
    assert metric.length(vector) == pytest.approx(np.sqrt(vector @ without @ vector), rel=1e-9)


@given(metric=metrics(), seed=st.integers(0, 1000), half=st.floats(0.05, 3.0))
@settings(derandomize=True, deadline=None, max_examples=60)
def test_projection_onto_a_box_is_that_of_an_exact_solver(metric, seed, half):
    point, root = points(metric, seed), np.linalg.cholesky(dense(metric)).T
    expected = lsq_linear(root, root @ point, (-half, half), method="bvls", tol=1e-15).x
    found = metric.project(Box(half), point)
    np.testing.assert_allclose(found, expected, atol=2e-5)
    assert np.abs(found).max() <= half


@given(metric=metrics(largest=4), seed=st.integers(0, 1000), radius=st.floats(0.05, 3.0))
@settings(derandomize=True, deadline=None, max_examples=40)
def test_projection_onto_a_ball_is_that_of_a_general_solver(metric, seed, radius):
    point, full = points(metric, seed), dense(metric)
    found = metric.project(L2Ball(radius), point)
    assert np.linalg.norm(found) <= radius * (1 + 1e-12)
    if np.linalg.norm(point) <= radius:
        np.testing.assert_array_equal(found, point)
        return
    expected = minimize(
        lambda x: (x - point) @ full @ (x - point) / 2,
        point * radius / np.linalg.norm(point),
        jac=lambda x: full @ (x - point),
        constraints={"type": "ineq", "fun": lambda x: radius**2 - x @ x, "jac": lambda x: -2 * x},
        method="SLSQP",
        options={"ftol": 1e-15, "maxiter": 1000},
    ).x
    np.testing.assert_allclose(found, expected, atol=2e-5)


@given(
    metric=metrics(condition=1e6),
    seed=st.integers(0, 1000),
    radius=st.floats(1e-3, 1e3),
    size=st.floats(1e-3, 1e9),
)
@settings(derandomize=True, deadline=None, max_examples=80)
def test_projection_onto_a_ball_satisfies_the_conditions_of_optimality(metric, seed, radius, size):
    # M (z - x) = ν x for a ν >= 0, and ‖x‖ is the radius
    point = points(metric, seed, size)
    found = metric.project(L2Ball(radius), point)
    if np.linalg.norm(point) <= radius:
        return
    assert np.linalg.norm(found) == pytest.approx(radius, rel=1e-6)
    force = dense(metric) @ (point - found)
    level = force @ found / (found @ found)
    assert level >= 0
    np.testing.assert_allclose(force, level * found, atol=1e-6 * np.linalg.norm(force))


@pytest.mark.parametrize("domain", [L2Ball(0.7), Box(0.5)])
@given(metric=metrics(), one=st.integers(0, 1000), two=st.integers(0, 1000))
@settings(derandomize=True, deadline=None, max_examples=40)
def test_projections_bring_no_two_points_further_apart_in_the_metric(domain, metric, one, two):
    a, b, full = points(metric, one), points(metric, two), dense(metric)
    apart = a - b
    closer = metric.project(domain, a) - metric.project(domain, b)
    assert closer @ full @ closer <= apart @ full @ apart + 1e-5


@pytest.mark.parametrize("domain", [L2Ball(0.7), Box(0.5)])
def test_a_metric_of_equal_eigenvalues_projects_like_the_euclidean_one(domain):
    metric = Metric(np.full(4, 0.3), np.linalg.qr(np.random.default_rng(2).standard_normal((4, 4)))[0], 0.1)
    for seed in range(20):
        point = points(metric, seed)
        np.testing.assert_allclose(metric.project(domain, point), domain.project(point), atol=1e-12)
