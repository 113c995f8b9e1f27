"""Bounded range: never cheaper than the worst pair of laws, and a run's ε against exact laws composed another way."""

import math

import numpy as np
import pytest
from scipy import fft
from scipy.optimize import brentq
from scipy.stats import norm

from privacy.first_account import wor_epsilon
from privacy.references import worst_pair
from quoron_privacy.accounts.subsampling import wor_round_mu
from quoron_privacy.means.private_range import (
    bounded_range_mu,
    calibrate,
)
from renyi import renyi_ceiling


def bracket(rate, rounds, mu, delta, gap):
    """(below, above) for ε at δ of sampled rounds: their exact losses rounded down and up to a lattice, by FFT.

    Positive losses as when the user's share is present against absent, negative ones as in the reverse, the rest at 0.
    """
    top = 8.0
    edges = np.arange(1, round(top / gap) + 1) * gap

    def place(loss):  # x at which ln(1 - q + q e^(μx - μ²/2)) = loss
        return (np.log((np.expm1(loss) + rate) / rate) + mu**2 / 2) / mu

    present = (1 - rate) * norm.sf(place(edges)) + rate * norm.sf(place(edges) - mu)  # P(loss > edge)
    absent = norm.sf(place(edges))  # P(loss < -edge)
    start = (1 - rate) * norm.sf(mu / 2) + rate * norm.sf(mu / 2 - mu), norm.sf(mu / 2)
    up, down = -np.diff([start[0], *present, 0.0]), -np.diff([start[1], *absent, 0.0])
    found = []
    for higher in (False, True):
        size = len(edges)
        law = np.zeros(2 * size + 3)  # index size + 1 is loss 0
        zero = size + 1
        law[zero] = 1 - start[0] - start[1]
        law[zero + higher : zero + higher + size + 1] += up
        law[zero - size + higher - 1 : zero + higher] += down[::-1]
        points = fft.next_fast_len(1 << math.ceil(math.log2(8 * len(law))), real=True)
        shift = np.zeros(points)
        shift[: len(law)] = law
        shift = np.roll(shift, -zero)
        total = fft.irfft(fft.rfft(shift) ** rounds, points)
        losses = gap * np.concatenate([np.arange(points // 2), np.arange(points // 2 - points, 0)])
        held = total > 1e-17
        found.append(smallest_epsilon(total[held], losses[held], delta))
    return tuple(found)


def smallest_epsilon(masses, losses, delta):
    """Where E (1 - e^(ε - loss))₊ falls to δ."""
    return brentq(lambda e: (masses * -np.expm1(np.minimum(e - losses, 0))).sum() - delta, 0, 9)


class TestBoundedRangeMu:
    def test_the_centred_pair_attains_it(self):
        for eta in (0.1, 1.0, 4.0):
            p, q = worst_pair(eta, eta / 2)
            assert norm.ppf(p[0]) - norm.ppf(q[0]) == pytest.approx(bounded_range_mu(eta), rel=1e-9)


class TestRounds:
    """Whole runs of a truncated mean on random cohorts."""

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("rate", "rounds", "epsilon"),
        [(0.05, 100, 1.0), (0.2, 20, 2.0), (0.5, 30, 4.0)],
    )
    def test_epsilon_of_a_run_is_within_two_percent_of_exact_composition(self, rate, rounds, epsilon):
        delta = 1e-6
        mu = wor_round_mu(rate, rounds, epsilon, delta)
        mean = calibrate("range", users=20_000, dimension=10, bound=1.0, spread=1e-4, mu=mu)
        spent = mean.mu(10)
        claimed = wor_epsilon(rate, rounds, spent, delta)
        below, above = bracket(rate, rounds, spent, delta, gap=5e-5)
        assert 0.98 * epsilon < claimed <= epsilon
        assert below <= claimed <= 1.02 * below
        assert above <= 1.02 * below

    @pytest.mark.parametrize("rate", [0.01, 0.1, 0.5, 1.0])
    @pytest.mark.parametrize("mu", [0.05, 0.3, 1.0])
    def test_the_renyi_ceiling_is_never_below(self, rate, mu):
        assert renyi_ceiling(rate, 50, mu**2 / 2, 1e-6) >= wor_epsilon(rate, 50, mu, 1e-6) * 0.999
