"""The Gaussian mechanism: calibration against the definition, outputs on a grid that no value can move."""

import numpy as np
from scipy import stats

from quoron_privacy.gaussian import LARGEST, GaussianNoise
from quoron_privacy.noise.streams import SeededNoise

SOURCE = SeededNoise(3)


class TestRelease:
    def test_the_low_bits_of_an_output_say_nothing_about_the_value(self):
        # chi-square of the lowest 6 bits for four values, false alarm 1e-8 each
        noise = GaussianNoise(1.0, 1.0)
        for value in (0.0, 0.1, 1 / 3, 1e-12):
            low = (
                np.rint(noise.release(np.full(100_000, value), SOURCE.stream("bits", str(value))) / noise.step)
            ).astype(int)
            assert stats.chisquare(np.bincount(low & 63, minlength=64)).pvalue > 1e-8

    def test_clamping_moves_no_two_values_apart(self):
        noise = GaussianNoise(1.0, 1.0)
        values = np.array([-1e9, -LARGEST, LARGEST - 1, LARGEST, 1e9])
        clean = noise.release(values, SOURCE.stream("clamp")) - noise.release(np.zeros(5), SOURCE.stream("clamp"))
        assert (np.diff(clean) <= np.diff(values) + 2 * noise.step).all()
        assert clean[0] == -LARGEST
        assert clean[-1] == LARGEST
