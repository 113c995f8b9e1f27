import itertools
import math

import mpmath
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.special import log_ndtr

from privacy.references import responses_delta
from quoron_privacy.accounts import gdp
from quoron_privacy.gaussian import LARGEST, GaussianNoise
from quoron_privacy.noise.streams import RandomStream, SecureNoise, SeededNoise

mus = st.floats(1e-3, 20)
epsilons = st.floats(-8, 40)


def exact_delta(mu: float, epsilon: float) -> mpmath.mpf:
    with mpmath.workdps(60):
        m, e = mpmath.mpf(mu), mpmath.mpf(epsilon)
        return mpmath.ncdf(m / 2 - e / m) - mpmath.exp(e) * mpmath.ncdf(-m / 2 - e / m)


@given(mu=mus, epsilon=epsilons)
@example(mu=0.001, epsilon=0.0003)
@settings(derandomize=True, deadline=None, max_examples=150)
def test_delta_is_never_below_the_exact_value_and_at_most_1e_9_above(mu, epsilon):
    exact, ours = exact_delta(mu, epsilon), gdp.delta_for(mu, epsilon)
    assert ours >= exact
    assert ours <= exact * (1 + 1e-9) + mpmath.mpf(1e-15)


@given(epsilon=st.floats(0.01, 30), log_delta=st.floats(-12, -0.5))
@settings(derandomize=True, deadline=None, max_examples=60)
def test_mu_for_is_the_largest_mu_that_keeps_the_promise(epsilon, log_delta):
    delta = 10**log_delta
    mu = gdp.mu_for(epsilon, delta)
    assert gdp.delta_for(mu, epsilon) <= delta
    assert gdp.delta_for(mu * (1 + 1e-8), epsilon) > delta


def test_no_noise_comparison_is_needed_for_zero_mu_and_huge_values_do_not_overflow():
    assert gdp.delta_for(0.0, 1.0) == 0.0
    assert gdp.delta_for(0.0, -1.0) == pytest.approx(1 - math.exp(-1))
    assert gdp.epsilon_for(0.0, 1e-9) == 0.0
    assert gdp.delta_for(1e-300, 700.0) <= 1e-15
    assert gdp.delta_for(1e200, 1.0) == 1.0


@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize("epsilon", [0.0, 0.3, 1.0, -0.4])
def test_composed_randomised_response_equals_the_sum_over_all_transcripts(count, epsilon):
    each = 0.45
    yes = 1 / (1 + math.exp(-each))
    total = 0.0
    for answers in itertools.product([0, 1], repeat=count):
        p = math.prod(yes if a else 1 - yes for a in answers)
        q = math.prod(1 - yes if a else yes for a in answers)
        total += max(p - math.exp(epsilon) * q, 0.0)
    ours = responses_delta(epsilon, each, count)
    assert total - 1e-15 <= ours <= total * (1 + 1e-8) + 1e-14


@pytest.mark.parametrize("pure", [0.0, 1e-12, 1e-6, 0.1, 3.0, 40.0, 300.0, 700.0, 1400.0])
def test_pure_mu_is_never_below_the_truth_and_next_to_it(pure):
    mu, truth = gdp.pure_mu(pure), -np.logaddexp(0.0, pure)  # ln of the chance that a response is a lie
    assert log_ndtr(-mu / 2) <= truth + 1e-12 * abs(truth)
    if math.isfinite(mu):
        assert log_ndtr(-(mu * (1 - 1e-10) - 1e-10) / 2) >= truth


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
