"""Audits of the private mean in the central model, on worst-case neighbours, and of its broken twins.

The exponential mechanism is also enumerated exactly (test_private_range.py), which says more than sampling can. Every
bound here is wrong with probability at most `harness.FAILURE` = 1e-8.
"""

import math
from dataclasses import replace

import numpy as np
import pytest

from audits.harness import epsilon_lower_bound
from quoron_server.accounting import gdp
from quoron_server.accounting.bounded_range import bounded_range_epsilon
from quoron_server.mechanisms.clipping import clipped_mean
from quoron_server.mechanisms.private_range import PrivateRange, costs, weights
from quoron_server.mechanisms.truncated_mean import calibrate
from quoron_server.noise import SeededNoise

DRAWS = 400_000
EPSILON, DELTA = 1.0, 1e-3
USERS = 8
HUGE = 1e6


def choices(counts, epsilon, seed):
    """Many independent choices of the same range, by the exact integer weights."""
    whole = weights(costs(np.array(counts)), epsilon)
    below = np.cumsum([float(weight / sum(whole)) for weight in whole])
    return lambda draws: np.searchsorted(below[:-1], SeededNoise(seed).stream("choice").uniform(draws), side="right")


def range_audit(claimed, spent):
    """Five users, one of whom moves from one end to the other: the bins differ most in likelihood there."""
    worlds = choices([3, 0, 2], spent, 1), choices([2, 0, 3], spent, 2)
    return epsilon_lower_bound(*worlds, delta=0.0, draws=DRAWS) - claimed


@pytest.mark.parametrize("epsilon", [1.0, 3.0])
def test_a_private_range_never_exceeds_its_claimed_epsilon(epsilon):
    assert -0.7 * epsilon < range_audit(epsilon, epsilon) <= 0


@pytest.mark.parametrize("epsilon", [1.0, 3.0])
def test_the_audit_catches_a_range_at_four_times_its_epsilon(epsilon):
    assert range_audit(epsilon, 4 * epsilon) > 0


def honest():
    """Eight users are too few for a useful centre, which is where most could go wrong: a third of μ² for it."""
    mu = gdp.mu_for(EPSILON, DELTA)
    return calibrate("gaussian", users=USERS, dimension=1, bound=1.0, spread=0.5, mu=mu)


def world(mean, own, seed, *, clips=True):
    """The two releases of many runs, reduced to the log-likelihood ratio of the worst pair, as `release` makes them.

    Others sit at zero. The own user is at ±HUGE: the first mean moves by L/n either way, the second by C/n.
    """

    def draw(runs):
        source = SeededNoise(seed)
        rows = np.zeros((USERS, 1))
        rows[3] = own
        answered = np.ones(USERS, bool)
        first, _ = clipped_mean(rows, answered, mean.bound if clips else math.inf, USERS)
        centre = mean.crude.release(np.full(runs, first[0]), source.stream("first"))
        ends = np.sign(own) * mean.radius if clips else own
        # Others are clipped around the centre too: known to the observer, who sees the centre.
        last = mean.noise.release(np.full(runs, ends / USERS), source.stream("last"))
        shifts = mean.bound / USERS, mean.radius / USERS
        return centre * shifts[0] / mean.crude.scale**2 + last * shifts[1] / mean.noise.scale**2

    return draw


def audit(mean, **keywords):
    worlds = (world(mean, own, 71 + i, **keywords) for i, own in enumerate((HUGE, -HUGE)))
    return epsilon_lower_bound(*worlds, delta=DELTA, draws=DRAWS)


def test_two_releases_together_never_exceed_the_claimed_epsilon():
    assert 0.6 < audit(honest()) <= EPSILON


def test_the_audit_catches_a_quarter_of_the_noise():
    mean = honest()
    assert audit(replace(mean, noise=replace(mean.noise, scale=mean.noise.scale / 4))) > EPSILON


def test_the_audit_catches_a_first_release_that_is_not_charged():
    mean, alone = (
        honest(),
        calibrate("none", users=USERS, dimension=1, bound=1.0, spread=None, mu=gdp.mu_for(1.0, DELTA)),
    )
    last = replace(mean.noise, scale=alone.noise.scale * mean.radius)
    first = replace(mean.crude, scale=alone.noise.scale)
    assert audit(replace(mean, noise=last, crude=first)) > EPSILON


def test_the_audit_catches_a_missing_clip():
    assert audit(honest(), clips=False) > EPSILON


def ranged(mean, own, seed):
    """The whole estimator with private ranges, run after run."""

    def draw(runs):
        rows = np.full((USERS, 2), 0.1)
        rows[3] = own
        released = np.empty(runs)
        for run in range(runs):
            noise = SeededNoise(seed).stream("noise", run)
            value = mean.release(rows, np.ones(USERS, bool), noise, SeededNoise(1).stream("public"))
            released[run] = value.sum()
        return released

    return draw


class TestWholeEstimator:
    """Rotation, ranges, clip and noise. Little power against the sound one; the broken twin is caught all the same."""

    RUNS = 4000

    def found(self, strengthen):
        mean = calibrate("none", users=USERS, dimension=2, bound=1.0, spread=None, mu=gdp.mu_for(EPSILON, DELTA) * 0.8)
        crude = PrivateRange(bounded_range_epsilon(gdp.mu_for(EPSILON, DELTA) * 0.6 / math.sqrt(2)), 8, 1.0)
        assert math.hypot(crude.mu(2), mean.noise.effective_mu(2)) <= gdp.mu_for(EPSILON, DELTA)
        crude = replace(crude, epsilon=crude.epsilon * strengthen)
        whole = replace(mean, crude=crude, noise=replace(mean.noise, scale=mean.noise.scale / strengthen))
        worlds = (ranged(whole, own, 81 + i) for i, own in enumerate((HUGE, -HUGE)))
        return epsilon_lower_bound(*worlds, delta=DELTA, draws=self.RUNS)

    def test_it_never_exceeds_the_claimed_epsilon(self):
        assert self.found(1.0) <= EPSILON

    def test_the_audit_catches_a_tenth_of_the_noise(self):
        assert self.found(10.0) > EPSILON
