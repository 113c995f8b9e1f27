import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quoron_privacy.accounts import item_sampling
from quoron_privacy.accounts.gdp import delta_for, epsilon_for, mu_for
from quoron_privacy.accounts.subsampling import (
    poisson_epsilon,
    poisson_round_mu,
    wor_epsilon,
    wor_round_mu,
)
from quoron_privacy.errors import ConfigError

# (rate, rounds, μ per round) at δ = 1e-6: ε from an independent implementation
TABLE = {
    (0.01, 1000, 0.5): 0.827,
    (0.05, 100, 1.0): 4.46,
    (0.05, 100, 0.3): 0.707,
    (0.1, 200, 0.2): 1.32,
    (0.5, 50, 0.1): 1.58,
}


@pytest.mark.parametrize("rate", [0.01, 0.3])
@pytest.mark.parametrize("mu", [0.3, 2.0])
def test_one_round_costs_exactly_rate_times_the_gaussian_delta(rate, mu):
    for delta in (1e-6, 1e-4):
        epsilon = wor_epsilon(rate, 1, mu, delta)
        exact = rate * delta_for(mu, math.log1p(math.expm1(epsilon) / rate))
        assert exact <= delta  # never optimistic
        assert exact >= 0.95 * delta or epsilon < 1e-3


def tilted_pair(rate: float, mu: float, points: int) -> tuple[np.ndarray, np.ndarray]:
    """Two coarse laws of one round's data: means ±, mixed with the other cohorts' outputs; for lower bounds only."""
    x = np.linspace(-9, 9 + mu, points)
    density = lambda centre: np.exp(-0.5 * (x - centre) ** 2) / math.sqrt(2 * math.pi) * (x[1] - x[0])  # noqa: E731
    rest = density(mu / 2)  # the cohort without the user sits between the two
    return (1 - rate) * rest + rate * density(mu), (1 - rate) * rest + rate * density(0.0)


@pytest.mark.parametrize(("rate", "mu"), [(0.1, 1.0), (0.5, 0.7)])
def test_two_rounds_of_a_real_sampled_gaussian_stay_below_the_claim(rate, mu):
    p, q = tilted_pair(rate, mu, 801)
    pp, qq = np.outer(p, p).ravel(), np.outer(q, q).ravel()
    for delta in (1e-3, 1e-5):
        epsilon = wor_epsilon(rate, 2, mu, delta)
        for first, second in ((pp, qq), (qq, pp)):
            assert np.maximum(first - math.exp(epsilon) * second, 0).sum() <= delta


@pytest.mark.parametrize("epsilon_at", [wor_epsilon, poisson_epsilon])
def test_everybody_every_round_is_plain_composition(epsilon_at):
    assert epsilon_at(1.0, 9, 0.1, 1e-6) == pytest.approx(epsilon_for(0.3, 1e-6), rel=1e-12)
    assert wor_round_mu(1.0, 9, 1.0, 1e-12) == pytest.approx(mu_for(1.0, 1e-12) / 3, rel=1e-12)


@given(
    rate=st.floats(1e-3, 0.9),
    rounds=st.integers(1, 200),
    epsilon=st.floats(0.1, 8),
    scheme=st.sampled_from([(wor_round_mu, wor_epsilon), (poisson_round_mu, poisson_epsilon)]),
)
@settings(derandomize=True, deadline=None, max_examples=6)
def test_calibrated_rounds_use_the_budget_and_no_more(rate, rounds, epsilon, scheme):
    round_mu, epsilon_at = scheme
    mu = round_mu(rate, rounds, epsilon, 1e-6)
    assert epsilon_at(rate, rounds, mu, 1e-6) <= epsilon * (1 + 2e-6)  # it is rounded up
    assert epsilon_at(rate, rounds, 1.01 * mu, 1e-6) > epsilon
    assert mu >= 0.99 * mu_for(epsilon, 1e-6) / math.sqrt(rounds) * 0.95


@pytest.mark.parametrize(
    "arguments", [(0.0, 10, 0.1, 1e-6), (1.2, 10, 0.1, 1e-6), (0.1, 0, 0.1, 1e-6), (0.1, 10, 0.1, 0.0)]
)
def test_arguments_out_of_range_are_refused(arguments):
    with pytest.raises(ConfigError, match=r"Expected (rate|rounds|delta)"):
        wor_epsilon(*arguments)


# (rate, rounds, ε) at δ = 1e-6: noise in units of C/B by subsampling#k1, #k3 and #k2, as the page prints it
NOISE = {
    (0.01, 1000, 1.0): (3.49, 2.68, 1.56),
    (0.01, 100, 4.0): (1.29, 0.647, 0.638),
    (0.03, 16, 0.5): (3.24, 2.03, 1.60),
    (0.3, 64, 1.0): (20.9, 20.3, 10.3),
}


@pytest.mark.parametrize("case", NOISE)
def test_the_page_prints_what_cohorts_by_coins_need_where_a_user_is_replaced(case):
    rate, rounds, epsilon = case
    k1, k3, k2 = NOISE[case]
    assert wor_epsilon(rate, rounds, 2 / k1, 1e-6) == pytest.approx(epsilon, rel=0.015)
    assert poisson_epsilon(rate, rounds, 1 / k3, 1e-6, "replace-one") == pytest.approx(epsilon, rel=0.015)
    assert item_sampling.epsilon(rate, 1, rounds, k3, 1e-6, "replace-one") == pytest.approx(epsilon, rel=0.015)
    assert poisson_epsilon(rate, rounds, 1 / k2, 1e-6) == pytest.approx(epsilon, rel=0.015)


def test_vectors_of_a_replaced_user_in_any_direction_stay_below_the_pair_of_coins():
    """subsampling#k3 in the plane: what the user adds in either world, of any lengths up to μ and angle."""
    rate, mu, grid = 0.2, 1.3, np.linspace(-7, 7, 281)
    x, y = np.meshgrid(grid, grid)

    def world(vector):
        law = [np.exp(-((x - a) ** 2 + (y - b) ** 2) / 2) for a, b in ((0.0, 0.0), vector)]
        return ((1 - rate) * law[0] + rate * law[1]) / (2 * math.pi) * (grid[1] - grid[0]) ** 2

    for length, other, angle in (
        (1.0, 1.0, math.pi),
        (1.0, 1.0, 2.5),
        (1.0, 0.4, math.pi),
        (1.0, 0.0, 0.0),
        (0.7, 1, 1),
    ):
        one = world((mu * length, 0.0))
        two = world((mu * other * math.cos(angle), mu * other * math.sin(angle)))
        for p, q in ((one, two), (two, one)):
            for epsilon in (0.0, 0.1, 0.4, 1.0):
                claimed = item_sampling.profile(rate, 1, 1 / mu, "replace-one", np.array([epsilon]))[0]
                found = float(np.maximum(p - math.exp(epsilon) * q, 0).sum())
                assert found <= claimed * (1 + 1e-3)  # of the grid
                zero_out = item_sampling.profile(rate, 1, 1 / mu, "zero-out", np.array([epsilon]))[0]
                if (length, other, angle) == (1.0, 1.0, math.pi):  # the worst, beyond subsampling#k2's pair
                    assert found == pytest.approx(claimed, rel=1e-3)
                    assert epsilon > 0.1 or found > 1.3 * zero_out
