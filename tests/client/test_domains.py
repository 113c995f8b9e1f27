import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from quoron_client import Box, L2Ball

STEADY = settings(derandomize=True, deadline=None, max_examples=100)
domains = st.builds(L2Ball, st.floats(1e-3, 1e3)) | st.builds(Box, st.floats(1e-3, 1e3))
pairs = hnp.arrays(np.float64, (2, 5), elements=st.floats(-1e4, 1e4))


@STEADY
@given(domain=domains, points=pairs)
def test_projections_are_non_expansive(domain, points):
    x, z = domain.project(points)
    before = np.linalg.norm(points[0] - points[1])
    assert np.linalg.norm(x - z) <= before * (1 + 1e-14) + 1e-15 * np.abs(points).max()


@STEADY
@given(domain=domains, points=pairs)
def test_projections_lie_in_the_set_and_leave_its_points_alone(domain, points):
    projected = domain.project(points)
    assert np.linalg.norm(projected, axis=1).max() <= domain.norm_bound(5) * (1 + 1e-15)
    np.testing.assert_allclose(domain.project(projected), projected, rtol=1e-15, atol=0)


@STEADY
@given(domain=domains, points=pairs)
def test_no_point_of_the_set_is_nearer_than_the_projection(domain, points):
    x, inside = domain.project(points[0]), domain.project(points[1])
    # The variational inequality: <y - P(y), z - P(y)> <= 0 for every z of the set.
    size = np.abs(points).max() * domain.norm_bound(5)
    assert (points[0] - x) @ (inside - x) <= 1e-13 * (size + domain.norm_bound(5) ** 2)
