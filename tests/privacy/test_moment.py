"""The private second moment: √2 R² apart whatever is sent, exact sums, isometric noise."""

from fractions import Fraction
from math import sqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from quoron_privacy.accounts import gdp
from quoron_privacy.means.moment import SecondMomentNoise, moment_sensitivity
from quoron_privacy.noise.sources import SeededNoise
from quoron_privacy.release import packed
from sums import moment_mean

NORMS = st.floats(1e-3, 1e3)
HOSTILE = st.floats(width=64) | st.sampled_from([0.0, 5e-324, -1e-300, 1e300, np.nan, np.inf]) | st.floats(-2, 2)
DIVISORS = st.sampled_from([1, 3, 1000, 10**9])  # the last one makes the grid of the sum coarse
fast = settings(derandomize=True, deadline=None, max_examples=150)


def factors(dimension, users):
    return hnp.arrays(np.float64, (users, packed(dimension)), elements=HOSTILE)


def unpack(row, dimension):
    upper = np.zeros((dimension, dimension), row.dtype)
    upper[np.triu_indices(dimension)] = row
    return upper


def vec(matrix):
    """Isometric: ‖vec(A)‖₂ = ‖A‖_F."""
    rows, columns = np.triu_indices(len(matrix))
    return matrix[rows, columns] * np.where(rows == columns, 1.0, np.sqrt(np.longdouble(2)))


def slow_mean(rows, answered, dimension, norm, divisor):
    """The definition, one user at a time."""
    total = np.zeros(packed(dimension), np.longdouble)
    for row, here in zip(rows, answered, strict=True):
        if here and np.isfinite(row).all() and row.any():
            row = row.astype(np.longdouble)
            row = row / np.abs(row).max() * min(np.abs(row).max(), norm / np.linalg.norm(row / np.abs(row).max()))
            upper = unpack(row, dimension)
            total += vec(upper.T @ upper)
    return total / divisor


def distance(one, two):
    """Exact, squared."""
    return sum((Fraction(float(a)) - Fraction(float(b))) ** 2 for a, b in zip(one, two, strict=True))


class TestMomentMean:
    @given(data=st.data(), dimension=st.integers(1, 4), norm=NORMS)
    @fast
    def test_it_agrees_with_the_definition(self, data, dimension, norm):
        rows = data.draw(factors(dimension, 4))
        answered = np.array(data.draw(st.lists(st.booleans(), min_size=4, max_size=4)))
        mean = moment_mean(rows, answered, dimension=dimension, norm=norm, divisor=5)
        assert abs(mean - slow_mean(rows, answered, dimension, norm, 5)).max() <= norm**2 * 1e-14

    @given(data=st.data(), dimension=st.integers(1, 4), norm=NORMS, divisor=DIVISORS)
    @fast
    def test_replacing_one_user_moves_the_mean_by_no_more_than_its_sensitivity(self, data, dimension, norm, divisor):
        rows, other = data.draw(factors(dimension, 3)), data.draw(factors(dimension, 1))
        means = [
            moment_mean(np.vstack([rows, own]), np.ones(4, bool), dimension=dimension, norm=norm, divisor=divisor)
            for own in (rows[:1], other)
        ]
        assert distance(*means) <= Fraction(moment_sensitivity(dimension, norm, divisor)) ** 2

    def test_a_server_that_trusts_raw_matrices_is_twice_r_squared_off(self):
        # the twin: symmetrise and clip to Frobenius norm R², as if every client sent a positive matrix
        def trusting(matrix):
            matrix = (matrix + matrix.T) / 2
            return matrix * min(1.0, 1.0 / np.linalg.norm(matrix))

        sent = np.diag([9.0, 0.0, 0.0])
        moved = np.linalg.norm(vec(trusting(sent) - trusting(-sent)).astype(float))
        assert moved == pytest.approx(2.0)
        assert moved > 1.4 * moment_sensitivity(3, 1.0, 1)
        # the same numbers sent to the real server, as factors, are at most √2 apart: here not at all
        rows = np.stack([sent[np.triu_indices(3)], -sent[np.triu_indices(3)]])
        one, two = (moment_mean(row[None], np.ones(1, bool), dimension=3, norm=1.0, divisor=1) for row in rows)
        assert np.array_equal(one, two)

    @given(row=factors(4, 1), norm=NORMS)
    @fast
    def test_every_answer_is_positive_semidefinite_with_trace_at_most_r_squared(self, row, norm):
        mean = moment_mean(row, np.ones(1, bool), dimension=4, norm=norm, divisor=1)
        moment = unpack(mean / np.where(np.eye(4)[np.triu_indices(4)] == 1, 1, sqrt(2)), 4)
        moment = moment + moment.T - np.diag(np.diag(moment))
        assert np.linalg.eigvalsh(moment / norm**2).min() >= -1e-14
        assert np.trace(moment) <= norm**2 * (1 + 1e-14)

    def test_thousands_of_users_in_any_order_give_the_same_bits(self):
        rng = np.random.default_rng(2)
        rows = rng.normal(size=(5000, packed(6))) * np.exp(4 * rng.normal(size=(5000, 1)))
        everyone = np.ones(5000, bool)
        one, two = (moment_mean(x, everyone, dimension=6, norm=3.0, divisor=4000) for x in (rows, rows[::-1]))
        assert one.tobytes() == two.tobytes()
        assert abs(one - slow_mean(rows, everyone, 6, 3.0, 4000)).max() < 1e-10

    @pytest.mark.parametrize("sent", [np.nan, np.inf, -np.inf])
    def test_a_non_finite_or_absent_factor_is_the_zero_matrix(self, sent):
        rows = np.array([[1.0, 0.5, 0.2], [sent, 1.0, 1.0], [7.0, 7.0, 7.0]])
        mean = moment_mean(rows, np.array([True, True, False]), dimension=2, norm=9.0, divisor=3)
        alone = moment_mean(rows[:1], np.ones(1, bool), dimension=2, norm=9.0, divisor=3)
        assert np.array_equal(mean, alone)


def released(noise, factors, answered, stream):
    return noise.release(noise.reduction.of(factors, answered), stream)


class TestSecondMomentNoise:
    def test_halving_the_noise_under_zero_out_is_not_private(self):
        mu = gdp.mu_for(1.0, 1e-6)
        replaced = SecondMomentNoise.for_mu(dimension=5, feature_norm=1.0, divisor=100, mu=mu)
        halved = SecondMomentNoise(5, 1.0, 100, "zero-out", replaced.scale / 2)
        assert halved.effective_mu == pytest.approx(sqrt(2) * mu, rel=1e-6)
        assert gdp.delta_for(halved.effective_mu, 1.0) == pytest.approx(2.2e-4, rel=0.02)
        divided = SecondMomentNoise(5, 1.0, 100, "zero-out", replaced.scale / sqrt(2))
        assert gdp.delta_for(divided.effective_mu, 1.0) <= 1e-6 * (1 + 1e-5)

    def test_the_noise_has_variance_s_squared_on_the_diagonal_and_half_of_it_off(self):
        noise = SecondMomentNoise(20, 1.0, 10, "replace-one", 0.5)
        stream, nobody = SeededNoise(5).stream("law"), np.zeros((1, packed(20)))
        draws = np.array([released(noise, nobody, np.zeros(1, bool), stream) for _ in range(2000)])
        assert np.array_equal(draws, draws.swapaxes(1, 2))
        diagonal = draws[:, np.arange(20), np.arange(20)].ravel() / 0.5
        off = draws[(slice(None), *np.triu_indices(20, 1))].ravel() / 0.5
        for sample, variance in ((diagonal, 1.0), (off, 0.5)):
            # six standard errors: false alarm 4e-9 each
            assert abs(sample.mean()) < 6 * sqrt(variance / len(sample))
            assert abs(sample.var() / variance - 1) < 6 * sqrt(2 / len(sample))
        pairs = [np.corrcoef(draws[:, 0, 1], draws[:, i, j])[0, 1] for i, j in ((0, 0), (0, 2), (1, 1), (1, 2))]
        assert np.abs(pairs).max() < 6 / sqrt(2000)
