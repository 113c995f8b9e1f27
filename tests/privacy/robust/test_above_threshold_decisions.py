from fractions import Fraction
from math import exp

import numpy as np
import pytest

from quoron_privacy.errors import ConfigError
from quoron_privacy.robust.above_threshold import AboveThreshold
from quoron_privacy.robust.laplace_test import LaplaceTest
from quoron_privacy.robust.outlier_mean import in_score_units, score_scale


class Steps:
    """A stream with one noise."""

    def __init__(self, noise):
        self.noise = noise

    def laplace_steps(self, scale, shape):
        assert shape == 1
        return np.array([self.noise])


def tail(x, scale):
    """P(Laplace(scale) >= x)."""
    return 0.5 * exp(-x / scale) if x > 0 else 1 - 0.5 * exp(x / scale)


def cells(scale, span):
    """P(⌊L⌋ = k) for k from -span to span - 1."""
    return {k: tail(k, scale) - tail(k + 1, scale) for k in range(-span, span)}


class TestLaplaceTest:
    def test_one_user_changes_the_chance_of_either_answer_by_the_claimed_factor(self):
        test = LaplaceTest(cohort_size=20, core=14, threshold=15.0, scale=3.0)
        claimed = exp(2 * 19 / 20 / 3.0) * (1 + 1e-12)
        limit, scale = in_score_units(15.0, 20), score_scale(3.0, 20)
        for score in range(20, 401):
            for other in range(max(20, score - 38), min(400, score + 38) + 1):
                p, q = tail(limit - score, scale), tail(limit - other, scale)
                assert p <= claimed * q
                assert 1 - p <= claimed * (1 - q)
        assert test.decide(400, Steps(-100))
        assert not test.decide(400, Steps(-101))

    def test_threshold_and_scale_are_rounded_up(self):
        for average, size in ((0.1, 10), (1 / 3, 3), (700.0, 1000), (5.1, 7)):
            exact = Fraction(average) * size
            assert exact <= in_score_units(average, size) < exact + 1
            assert Fraction(score_scale(average, size)) > exact

    def test_ledger_entry_and_errors(self):
        entry = LaplaceTest(10, 5, 0.5, 6.0).entry()
        assert dict(entry.parameters) == {"cohort_size": 10, "threshold": 6.0, "scale": 0.5}
        for bad in ((0, 5, 0.5, 6.0), (10, 5, 0.5, float("nan")), (10, 5, 0.0, 6.0), (10, 5, 1e300, 6.0)):
            with pytest.raises(ConfigError):
                LaplaceTest(*bad)


class TestAboveThreshold:
    def test_the_first_failure_halts_for_good(self):
        test = AboveThreshold(cohort_size=10, threshold=6.0, threshold_scale=1.0, score_scale=2.0)
        assert test.decide(70, 65, Steps(-5)) == 65
        assert test.decide(70, 65, Steps(-6)) is None
        assert test.decide(10**6, None, Steps(10**6)) is None

    @pytest.mark.parametrize("seed", range(6))
    def test_every_transcript_of_a_small_series_obeys_the_claimed_ratio(self, seed):
        # subsampled-lottery#o6 without releases: e^{ds/b_ξ + 2 ds/b_v} on transcripts, for all scores of neighbours.
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
                    passing = tail(base + k - value, wide)
                    found[t] += chance * (1 - passing)
                    chance *= passing
                found[4] += chance
            return found

        claimed = exp(step / size / b_threshold + 2 * step / size / b_score)
        p, q = transcripts(scores), transcripts(others)
        assert p.sum() == pytest.approx(1, abs=1e-9)
        assert (p <= claimed * q * (1 + 1e-9)).all()
        assert (q <= claimed * p * (1 + 1e-9)).all()

    def test_a_fresh_threshold_each_step_would_break_the_ratio(self):
        # The broken twin, the printed line inside its loop: 30 steps multiply their ratios, one threshold would not.
        size, b_threshold, b_score = 5, 4.0, 6.0
        step, base, wide = 2 * (size - 1), 18, score_scale(b_score, size)
        law = cells(score_scale(b_threshold, size), 900)
        high, low = (sum(p * tail(base + k - score, wide) for k, p in law.items()) for score in (20, 20 - step))
        assert (high / low) ** 30 > 10 * exp(step / size / b_threshold + 2 * step / size / b_score)

    def test_ledger_entry_and_errors(self):
        entry = AboveThreshold(10, 6.0, 0.5, 1.0).entry()
        assert entry.mechanism == "above-threshold"
        assert dict(entry.parameters) == {
            "cohort_size": 10,
            "threshold": 6.0,
            "threshold_scale": 0.5,
            "score_scale": 1.0,
        }
        for bad in ((10, 6.0, 0.0, 1.0), (10, 6.0, 1.0, 0.0), (10, -1.0, 1.0, 1.0), (10, 6.0, 1e300, 1.0)):
            with pytest.raises(ConfigError):
                AboveThreshold(*bad)
