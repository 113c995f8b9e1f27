from fractions import Fraction
from math import ceil, exp

import numpy as np
import pytest

from privacy.references import OneNoise, laplace_tail
from quoron_privacy.errors import ConfigError
from quoron_privacy.noise.streams import SeededNoise
from quoron_privacy.robust.laplace_gate import LaplaceGate
from quoron_privacy.robust.outlier_mean import in_score_units, score_scale
from quoron_server.algorithms.printed.lowy_erm import AboveThreshold


def cells(scale, span):
    """P(⌊L⌋ = k) for k from -span to span - 1."""
    return {k: laplace_tail(k, scale) - laplace_tail(k + 1, scale) for k in range(-span, span)}


class TestLaplaceTest:
    def test_decisions_are_those_of_the_real_numbers(self):
        test = LaplaceGate(cohort_size=7, core=5, threshold=5.1, scale=0.4)
        for score in range(7, 50):
            for noise in range(-30, 30):
                passes = Fraction(score + noise, 7) >= Fraction(5.1)
                assert test.decide(score, OneNoise(noise)) == passes


class TestAboveThreshold:
    def test_a_score_passes_from_the_limit_on(self):
        test = AboveThreshold(cohort_size=10, threshold=6.0, threshold_scale=1.0, score_scale=2.0)
        assert test.decide(70, 65, OneNoise(-5))
        assert not test.decide(70, 65, OneNoise(-6))

    def test_a_fresh_threshold_each_step_would_break_the_ratio(self):
        # The broken twin, the printed line inside its loop: 30 steps multiply their ratios, one threshold would not.
        size, b_threshold, b_score = 5, 4.0, 6.0
        step, base, wide = 2 * (size - 1), 18, score_scale(b_score, size)
        law = cells(score_scale(b_threshold, size), 900)
        high, low = (sum(p * laplace_tail(base + k - score, wide) for k, p in law.items()) for score in (20, 20 - step))
        assert (high / low) ** 30 > 10 * exp(step / size / b_threshold + 2 * step / size / b_score)

    @pytest.mark.parametrize("numbers", [(9, 6.0, 0.0, 1.0), (9, 6.0, 1.0, 0.0), (9, -1.0, 1.0, 1.0)])
    def test_numbers_that_say_nothing_are_refused(self, numbers):
        with pytest.raises(ConfigError, match="Expected"):
            AboveThreshold(*numbers)

    def test_the_limit_is_the_threshold_rounded_up_plus_one_step(self):
        test = AboveThreshold(cohort_size=7, threshold=5.1, threshold_scale=1e-3, score_scale=1.0)
        limits = {test.draw_limit(SeededNoise(1).stream("limit", i)) for i in range(50)}
        assert limits == {ceil(7 * Fraction(5.1)) + 1, ceil(7 * Fraction(5.1))}  # noise ⌊±0⌋ is 0 or -1

    @pytest.mark.parametrize("seed", range(6))
    def test_every_transcript_of_a_small_series_obeys_the_claimed_ratio(self, seed):
        # One threshold, without releases: e^{ds/b_ξ + 2 ds/b_v} on transcripts, for all scores of neighbours.
        rng = np.random.default_rng(seed)
        size, b_threshold, b_score = 5, 4.0, 6.0
        test = AboveThreshold(size, 3.5, b_threshold, b_score)
        step = 2 * (size - 1)
        scores = rng.integers(size, size * size + 1, size=4)
        others = np.clip(scores + rng.integers(-step, step + 1, size=4), size, size * size)
        wide, narrow = score_scale(test.score_scale, size), score_scale(test.threshold_scale, size)
        base = in_score_units(test.threshold, size) + 1

        def transcripts(values):
            """Chance of halting at each step, and of never halting."""
            found = np.zeros(5)
            for k, chance in cells(narrow, 900).items():
                for t, value in enumerate(values):
                    passing = laplace_tail(base + k - value, wide)
                    found[t] += chance * (1 - passing)
                    chance *= passing
                found[4] += chance
            return found

        claimed = exp(step / size / b_threshold + 2 * step / size / b_score)
        p, q = transcripts(scores), transcripts(others)
        assert p.sum() == pytest.approx(1, abs=1e-9)
        assert (p <= claimed * q * (1 + 1e-9)).all()
        assert (q <= claimed * p * (1 + 1e-9)).all()

    def test_low_cohorts_pass_no_more_often_than_the_two_tails_allow(self):
        # θ = k + ds + m₁ + m₂: S < C k + 2(C - 1) passes with probability at most ½e^{-m₁/b_ξ} + ½e^{-m₂/b_v}.
        size, core, b_threshold, b_score, m1, m2 = 6, 4, 0.8, 1.1, 2.3, 3.7
        test = AboveThreshold(size, core + 2 * (size - 1) / size + m1 + m2, b_threshold, b_score)
        base = in_score_units(test.threshold, size) + 1
        wide, narrow = score_scale(b_score, size), score_scale(b_threshold, size)
        score = size * core + 2 * (size - 1) - 1
        passing = sum(chance * laplace_tail(base + k - score, wide) for k, chance in cells(narrow, 400).items())
        assert passing <= 0.5 * exp(-m1 / b_threshold) + 0.5 * exp(-m2 / b_score)
