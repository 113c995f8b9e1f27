"""The Gaussian mechanism: calibration against the definition, outputs on a grid that no value can move."""

from math import sqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from quoron_privacy.accounts import gdp
from quoron_privacy.errors import ConfigError, Infeasible
from quoron_privacy.gaussian import LARGEST, GaussianNoise, mean_slack
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

    def test_the_known_value_at_epsilon_one(self):
        noise = GaussianNoise.for_mu(sensitivity=0.02, mu=gdp.mu_for(1.0, 1e-6, gaussians=1), dimension=1)
        assert round(noise.scale, 4) == 0.0845

    def test_a_delta_below_the_resolution_of_the_noise_is_infeasible(self):
        with pytest.raises(Infeasible, match="delta=1e-60"):
            gdp.mu_for(1.0, 1e-60, gaussians=10)

    def test_zero_sensitivity_is_refused_with_its_name_and_value(self):
        with pytest.raises(ConfigError, match=r"Expected sensitivity > 0 and finite, got sensitivity=0\.0"):
            GaussianNoise(0.0, 1.0)

    def test_effective_mu_covers_the_worst_rounding_of_two_values(self):
        noise = GaussianNoise(1.0, 2.0)
        assert noise.effective_mu(100) >= 0.5 + 2 * sqrt(100) * 2.0**-30


class TestRelease:
    @given(value=st.floats(-1e3, 1e3), scale=st.floats(1e-3, 1e3))
    @fast
    def test_every_output_is_a_whole_number_of_steps(self, value, scale):
        # The precision attack looks for outputs that only some values can reach.
        noise = GaussianNoise(1.0, scale)
        out = noise.release(np.full(20, value), SOURCE.stream("grid"))
        steps = np.rint(out / noise.step)
        assert np.array_equal(steps * noise.step, out)

    @given(value=st.floats(-100, 100), other=st.floats(-100, 100))
    @fast
    def test_two_values_under_the_same_noise_differ_by_their_grid_points_exactly(self, value, other):
        noise = GaussianNoise(1.0, 0.37)
        steps = [np.rint(noise.release(np.full(20, v), SOURCE.stream("pair")) / noise.step) for v in (value, other)]
        apart = np.unique(steps[0] - steps[1])
        assert len(apart) == 1
        assert abs(apart[0] - (value - other) / noise.step) <= 2

    def test_the_low_bits_of_an_output_say_nothing_about_the_value(self):
        # chi-square of the lowest 6 bits for four values, false alarm 1e-8 each
        noise = GaussianNoise(1.0, 1.0)
        for value in (0.0, 0.1, 1 / 3, 1e-12):
            low = (
                np.rint(noise.release(np.full(100_000, value), SOURCE.stream("bits", str(value))) / noise.step)
            ).astype(int)
            assert stats.chisquare(np.bincount(low & 63, minlength=64)).pvalue > 1e-8

    def test_the_release_has_the_stated_mean_and_deviation(self):
        out = GaussianNoise(1.0, 0.5).release(np.full(400_000, 3.0), SOURCE.stream("moments"))
        # six standard errors: false alarm 2e-9 each
        assert abs(out.mean() - 3.0) < 6 * 0.5 / sqrt(400_000)
        assert abs(out.std() - 0.5) < 6 * 0.5 / sqrt(800_000)

    @pytest.mark.parametrize("source", [SOURCE, SecureNoise(b"k" * 32)])
    def test_no_value_raises_warns_or_changes_the_shape(self, source):
        for scale in (1e-150, 1.0, 1e150):
            out = GaussianNoise(1.0, scale).release(HOSTILE, source.stream("hostile"))
            assert out.shape == HOSTILE.shape
            assert np.isfinite(out).all()
            assert (abs(out) <= (LARGEST + 16) * scale).all()

    def test_clamping_moves_no_two_values_apart(self):
        noise = GaussianNoise(1.0, 1.0)
        values = np.array([-1e9, -LARGEST, LARGEST - 1, LARGEST, 1e9])
        clean = noise.release(values, SOURCE.stream("clamp")) - noise.release(np.zeros(5), SOURCE.stream("clamp"))
        assert (np.diff(clean) <= np.diff(values) + 2 * noise.step).all()
        assert clean[0] == -LARGEST
        assert clean[-1] == LARGEST

    def test_rounding_to_the_grid_stays_within_one_step_at_the_largest_values(self):
        noise, silence = GaussianNoise(1.0, 0.3), RandomStream(lambda size: np.zeros(size, np.uint64))
        values = np.random.default_rng(0).uniform(-LARGEST, LARGEST, 10_000) * 0.3
        steps = np.rint(noise.release(values, silence).astype(np.longdouble) / noise.step)
        assert (abs(steps - values.astype(np.longdouble) / noise.step) <= 1).all()

    def test_shapes_are_kept(self):
        noise = GaussianNoise(1.0, 1.0)
        assert noise.release(np.zeros((2, 3)), SOURCE.stream()).shape == (2, 3)
        assert noise.release(np.zeros(0), SOURCE.stream()).shape == (0,)

    def test_the_ledger_entry_states_the_parameters(self):
        entry = GaussianNoise(1.0, 2.0).entry()
        assert (entry.mechanism, dict(entry.parameters)) == ("gaussian", {"sensitivity": 1.0, "scale": 2.0})


def test_mean_slack_is_far_below_one():
    assert 0 < mean_slack(10) < 1e-12
    assert mean_slack(10**6) < 1e-7
