"""Audits of single reports in the local model, on the worst two values of one user, and of their broken twins.

Every bound is wrong with probability at most `harness.FAILURE` = 1e-8.
"""

from dataclasses import dataclass, replace

import numpy as np
import pytest

from audits.harness import delta_bounds, epsilon_lower_bound
from quoron_client.randomisers import RangeBits, SeededRandomness, SystemRandomness, VectorNoise
from quoron_privacy import local
from quoron_privacy.accounts import gdp

DRAWS = 1_000_000
BINS = 4
HUGE = 1e9


@dataclass(frozen=True)
class PrintedOtherwise(RangeBits):
    """Flips each bit with probability 1 / (e^ε + 1), which one changed bit would need."""

    @property
    def flips(self):
        return RangeBits(2 * self.epsilon, self.bins, self.half_width).flips


def bits_world(bits, value, source, round_):
    """Bit of the first bin less that of the last: all that tells the two values apart."""

    def draw(draws):
        users = np.arange(draws)
        report = bits.randomise(np.full(draws, value), source, round=round_, users=users).astype(np.int8)
        return report[:, 0] - report[:, -1]

    return draw


def bits_audit(bits, source=SeededRandomness(91)):  # noqa: B008
    worlds = (bits_world(bits, value, source, round_) for round_, value in enumerate((-HUGE, HUGE)))
    return epsilon_lower_bound(*worlds, delta=0.0, draws=DRAWS)


@pytest.mark.parametrize("epsilon", [1.0, 2.0])
@pytest.mark.parametrize("source", [SeededRandomness(92), SystemRandomness()], ids=["seeded", "system"])
def test_range_bits_never_exceed_epsilon_and_reach_95_percent_of_it(epsilon, source):
    assert 0.95 * epsilon <= bits_audit(RangeBits(epsilon, BINS, 1.0), source) <= epsilon


@pytest.mark.parametrize("epsilon", [1.0, 2.0])
def test_the_audit_catches_the_flip_chance_of_a_single_bit(epsilon):
    assert bits_audit(PrintedOtherwise(epsilon, BINS, 1.0)) > 1.9 * epsilon


@dataclass(frozen=True)
class Quieter(VectorNoise):
    """Less noise than the promise takes."""

    quiet: float = 1.0

    def scale(self, dimension):
        return VectorNoise(self.epsilon, self.delta, self.radius).scale(dimension) / self.quiet


@dataclass(frozen=True)
class Unclipped(VectorNoise):
    """Noise for the radius, values as they come."""

    def randomise(self, values, centre, randomness, *, round, users):
        noise = super().randomise(np.zeros_like(values), np.zeros_like(centre), randomness, round=round, users=users)
        return values + noise


SOUND = VectorNoise(1.0, 1e-3, 2.0)


def vector_world(noise, value, source, round_):
    def draw(draws):
        values, users = np.full((draws, 1), value), np.arange(draws)
        return noise.randomise(values, np.array([5.0]), source, round=round_, users=users)[:, 0]

    return draw


def vector_audit(noise, source=SeededRandomness(93), draws=DRAWS // 2):  # noqa: B008
    worlds = (vector_world(noise, value, source, round_) for round_, value in enumerate((-HUGE, HUGE)))
    return epsilon_lower_bound(*worlds, delta=noise.delta, draws=draws)


@pytest.mark.parametrize("source", [SeededRandomness(94), SystemRandomness()], ids=["seeded", "system"])
def test_a_vector_report_never_exceeds_its_claimed_epsilon(source):
    assert 0.6 < vector_audit(SOUND, source) <= SOUND.epsilon


@pytest.mark.parametrize("quiet", [4.0, 2.0], ids=["noise / 4", "sensitivity C instead of 2C"])
def test_the_audit_catches_too_little_noise(quiet):
    assert vector_audit(Quieter(1.0, 1e-3, 2.0, quiet), draws=DRAWS // 5) > SOUND.epsilon


def test_the_audit_catches_a_missing_clip():
    assert vector_audit(Unclipped(1.0, 1e-3, 2.0), draws=DRAWS // 50) > SOUND.epsilon


class TestTwoMessagesOfOneUser:
    """Range bits, then a vector report; the log-likelihood ratio of both together."""

    EPSILON, DELTA = 1.0, 1e-3

    def spent(self, first, mu, epsilon):
        """Bounds for δ at `epsilon` of everything that the user sent."""
        ratio = local.bits_epsilon(RangeBits(first, BINS, 1.0).flips)  # of a report with the one bit and not the other
        own = bits_world(RangeBits(first, BINS, 1.0), -HUGE, SeededRandomness(95), 0)(DRAWS)
        scale = 2 / mu
        sent = vector_world(replace(SOUND, radius=1.0), HUGE, SeededRandomness(95), 1)(DRAWS)
        noise = (sent - 6.0) / replace(SOUND, radius=1.0).scale(1) * scale
        return delta_bounds(own * ratio + 2 * (1 + noise) / scale**2, epsilon=epsilon)

    def test_a_split_budget_holds(self):
        mu = local.second_message_mu(range_epsilon=0.5, epsilon=self.EPSILON, delta=self.DELTA)
        low, high = self.spent(0.5, mu, self.EPSILON)
        assert low <= self.DELTA
        assert high > 0.5 * self.DELTA  # of two bits only some reports reach the worst ratio

    def test_the_audit_catches_the_printed_budget(self):
        """Theorem 4.3 asks ε/2 of the range and noise for the full ε, and claims ε in all."""
        low, _ = self.spent(0.5, gdp.mu_for(self.EPSILON, self.DELTA), self.EPSILON)
        assert low > self.DELTA
        assert self.spent(0.5, gdp.mu_for(self.EPSILON, self.DELTA), 1.5 * self.EPSILON)[0] <= self.DELTA

    def test_the_audit_catches_the_full_budget_twice(self):
        low, _ = self.spent(self.EPSILON, gdp.mu_for(self.EPSILON, self.DELTA), self.EPSILON)
        assert low > self.DELTA
