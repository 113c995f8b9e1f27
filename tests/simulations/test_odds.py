"""What ε is said to mean is a bound for every test of every release, and no more than what mechanisms reach."""

import math

import numpy as np
import pytest
from scipy.stats import norm

from quoron.reports.pages import ALARMS, Odds, rounded_up
from quoron.results import percent
from quoron_privacy.accounts import gdp

GRID = np.linspace(1e-4, 1 - 1e-4, 801)


def best(alarms: np.ndarray, odds: Odds) -> np.ndarray:
    return np.array([odds.power(float(each)) for each in alarms])


@pytest.mark.parametrize(("epsilon", "delta"), [(0.1, 1e-6), (1.0, 1e-5), (1.0, 0.05), (8.0, 1e-6), (50.0, 1e-9)])
def test_randomised_response_that_reveals_with_chance_delta_meets_the_bounds_and_nothing_is_beyond(epsilon, delta):
    """The worst (ε, δ) pair there is (docs/privacy/gaussian.md#od1): its own trade-off is the bound."""
    kept = (1 - delta) / (1 + math.exp(-epsilon))
    one = np.array([delta, kept, 1 - delta - kept, 0.0])  # tells it, says it, says the other, tells the other
    other = one[::-1]
    alarms = np.concatenate([[0.0], np.cumsum(other)])
    found = np.concatenate([[0.0], np.cumsum(one)])
    odds = Odds(epsilon, delta)
    assert best(GRID, odds) == pytest.approx(np.interp(GRID, alarms, found), abs=1e-12)
    assert odds.right == pytest.approx(float(np.max(found + 1 - alarms)) / 2, abs=1e-12)


@pytest.mark.parametrize("mu", [0.05, 0.2367, 1.0, 4.0])
def test_of_a_gaussian_run_the_bounds_are_those_of_the_best_threshold(mu):
    epsilon, delta = gdp.epsilon_for(mu, 1e-6), 1e-6
    odds = Odds(epsilon, delta, mu)
    cuts = np.linspace(-8, 8 + mu, 4001)  # says yes beyond a cut of N(0, 1) or N(μ, 1)
    alarms, found = norm.sf(cuts), norm.sf(cuts - mu)
    assert best(alarms, odds) == pytest.approx(found, abs=1e-9)
    assert odds.right == pytest.approx(float(np.max(found + 1 - alarms)) / 2, abs=1e-6)
    assert np.all(best(GRID, odds) <= best(GRID, Odds(epsilon, delta)) + 1e-12)
    assert odds.right <= Odds(epsilon, delta).right


def test_samplers_that_are_not_exact_are_counted_on_both_sides():
    """Laws within s of those of a Gaussian pair: the one moves s of its mass to where it tells most, the other away."""
    mu, lack = 0.5, 0.01
    odds = Odds(30.0, 1e-9, mu, lack)
    alarms = np.linspace(0.01, 0.9, 90)
    moved = np.minimum(norm.cdf(norm.ppf(alarms + lack) + mu) + lack, 1.0)
    assert best(alarms, odds) == pytest.approx(moved, abs=1e-9)
    assert odds.right == pytest.approx(norm.cdf(mu / 2) + lack)


def test_odds_rise_beyond_the_factor_as_rarely_as_is_said():
    """gaussian#od3: of the Gaussian pair the loss exceeds ε + log 2 with chance 2δ at most; so for the worst one."""
    for mu in (0.1, 0.2367, 1.0, 3.0):
        for delta in (1e-9, 1e-6, 1e-3):
            epsilon = gdp.epsilon_for(mu, delta)
            assert norm.sf((epsilon + math.log(2) - mu**2 / 2) / mu) <= 2 * delta
    naive = norm.sf((gdp.epsilon_for(0.2367, 1e-6) - 0.2367**2 / 2) / 0.2367)
    assert naive > 1e-6  # "beyond e to the ε with probability δ at most" is wrong


def test_a_broken_reading_is_told_by_the_worst_pair():
    """The twin forgets δ: the response that reveals is found more often than it says."""
    epsilon, delta = 0.1, 0.05
    reached = delta + math.exp(epsilon) * ALARMS
    assert Odds(epsilon, delta).power(ALARMS) >= reached - 1e-12
    assert Odds(epsilon, 0.0).power(ALARMS) < reached


def test_what_is_told_is_never_rounded_below_what_is_proved():
    for share in np.random.default_rng(0).uniform(0, 1, 200):
        assert float(percent(share).removesuffix(" %")) >= 100 * share - 1e-9
    for value in (1.0001, 2.7182, 5.43656, 99.94, 44052.9):
        assert value <= float(rounded_up(value).replace(",", "")) <= 1.01 * value
    assert percent(0.05) == "5 %"
