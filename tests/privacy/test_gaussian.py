"""The Gaussian mechanism: calibration against the definition, outputs on a grid that no value can move."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from quoron_privacy.accounts import gdp
from quoron_privacy.errors import Infeasible
from quoron_privacy.gaussian import LARGEST, GaussianNoise
from quoron_privacy.noise.sources import SecureNoise, SeededNoise
from quoron_privacy.noise.streams import RandomStream

SOURCE = SeededNoise(3)
fast = settings(derandomize=True, deadline=None, max_examples=60)
HOSTILE = np.array([0.0, -0.0, np.nan, np.inf, -np.inf, 1e300, -1e300, 5e-324, 1.0])


def delta_by_definition(mu, epsilon):
    """Hockey-stick divergence of N(0, 1) and N(mu, 1): P[L > ε] - e^ε Q[L > ε]."""
    cut = epsilon / mu + mu / 2
    return stats.norm.sf(cut - mu) - np.exp(epsilon) * stats.norm.sf(cut)


class TestCalibration:
    @given(
        sensitivity=st.floats(1e-6, 1e6),
        epsilon=st.floats(0.1, 4),
        delta=st.floats(1e-8, 1e-2),
        d=st.integers(1, 10**4),
    )
    @fast
    def test_calibrated_noise_meets_the_definition_and_wastes_nothing(self, sensitivity, epsilon, delta, d):
        noise = GaussianNoise.for_mu(sensitivity=sensitivity, mu=gdp.mu_for(epsilon, delta, gaussians=d), dimension=d)
        spent = delta_by_definition(noise.effective_mu(d), epsilon)
        assert spent <= delta * (1 + 1e-9)
        assert (
            delta_by_definition(sensitivity / noise.scale, epsilon) >= delta * 0.99
        )  # the slack is less than a hundredth

    def test_a_delta_below_the_resolution_of_the_noise_is_infeasible(self):
        with pytest.raises(Infeasible, match="delta=1e-60"):
            gdp.mu_for(1.0, 1e-60, gaussians=10)


class TestRelease:
    @given(value=st.floats(-100, 100), other=st.floats(-100, 100))
    @fast
    def test_two_values_under_the_same_noise_differ_by_their_grid_points_exactly(self, value, other):
        noise = GaussianNoise(1.0, 0.37)
        steps = [np.rint(noise.release(np.full(20, v), SOURCE.stream("pair")) / noise.step) for v in (value, other)]
        apart = np.unique(steps[0] - steps[1])
        assert len(apart) == 1
        assert abs(apart[0] - (value - other) / noise.step) <= 2

    @pytest.mark.parametrize("source", [SOURCE, SecureNoise(b"k" * 32)])
    def test_no_value_raises_warns_or_changes_the_shape(self, source):
        for scale in (1e-150, 1.0, 1e150):
            out = GaussianNoise(1.0, scale).release(HOSTILE, source.stream("hostile"))
            assert out.shape == HOSTILE.shape
            assert np.isfinite(out).all()
            assert (abs(out) <= (LARGEST + 16) * scale).all()

    def test_rounding_to_the_grid_stays_within_one_step_at_the_largest_values(self):
        noise, silence = GaussianNoise(1.0, 0.3), RandomStream(lambda size: np.zeros(size, np.uint64))
        values = np.random.default_rng(0).uniform(-LARGEST, LARGEST, 10_000) * 0.3
        steps = np.rint(noise.release(values, silence).astype(np.longdouble) / noise.step)
        assert (abs(steps - values.astype(np.longdouble) / noise.step) <= 1).all()
