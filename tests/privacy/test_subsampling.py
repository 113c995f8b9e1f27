import math
from functools import partial

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution

from cover import by_default
from privacy import first_account
from privacy.first_account import poisson_epsilon, wor_epsilon
from quoron_privacy.accounts import composition, gdp, subsampling
from quoron_privacy.accounts.gdp import delta_for, epsilon_for, mu_for
from quoron_privacy.accounts.subsampling import wor_round_mu


@pytest.mark.parametrize("epsilon_at", [wor_epsilon, poisson_epsilon])
def test_everybody_every_round_is_plain_composition(epsilon_at):
    assert epsilon_at(1.0, 9, 0.1, 1e-6) == pytest.approx(epsilon_for(0.3, 1e-6), rel=1e-12)
    assert wor_round_mu(1.0, 9, 1.0, 1e-12) == pytest.approx(mu_for(1.0, 1e-12) / 3, rel=1e-12)


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
    assert poisson_epsilon(rate, rounds, 1 / k2, 1e-6) == pytest.approx(epsilon, rel=0.015)


@pytest.mark.parametrize("rounds", [2, 30, 4000])
@pytest.mark.parametrize(("mu", "epsilon"), [(0.01, 0.05), (0.2, 1.0), (1.0, 0.001), (1.5, 12.0)])
def test_gaussian_rounds_cost_what_their_composition_does(rounds: int, mu: float, epsilon: float) -> None:
    exact = gdp.delta_for(mu, epsilon)
    once = partial(gdp.delta_for, mu / math.sqrt(rounds))
    found = composition.delta(once, once, rounds, epsilon, least=max(exact, 1e-300))
    assert 1 <= found / exact < 1.002


@pytest.mark.parametrize(
    ("rate", "rounds", "mu"),
    by_default([(0.01, 1000, 0.5), (0.3, 10, 0.4), (0.001, 50, 2.0)], [(0.01, 1000, 0.5), (0.3, 10, 0.4)]),
)
def test_coins_cost_what_an_accountant_of_others_says(rate: float, rounds: int, mu: float) -> None:
    once = privacy_loss_distribution.from_gaussian_mechanism(
        1 / mu, value_discretization_interval=2e-4, sampling_prob=rate
    )
    theirs = once.self_compose(rounds).get_epsilon_for_delta(1e-6)
    ours = first_account.poisson_epsilon(rate, rounds, mu, 1e-6 / composition.SAFETY)
    assert ours == pytest.approx(theirs, rel=2e-3)


@pytest.mark.parametrize("rate", [1e-4, 0.1, 0.9])
@pytest.mark.parametrize("mu", [1e-3, 0.3, 4.0])
def test_profiles_of_coins_are_integrals_of_what_one_side_has_more(rate: float, mu: float) -> None:
    x = np.linspace(-12 - mu, 12 + mu, 400_001)
    normal = lambda at: np.exp(-((x - at) ** 2) / 2) / math.sqrt(2 * math.pi)  # noqa: E731
    laws = {sign: (1 - rate) * normal(0.0) + rate * normal(sign * mu) for sign in (-1, 1)}
    for epsilon in (0.0, 0.01, 0.3, 2.0):
        for profile, own, other in (
            (subsampling.wor_profile, laws[1], normal(0.0)),
            (subsampling.absent_profile, normal(0.0), laws[1]),
            (subsampling.replaced_profile, laws[1], laws[-1]),
        ):
            exact = float(np.maximum(own - math.exp(epsilon) * other, 0).sum() * (x[1] - x[0]))
            [found] = profile(rate, mu, np.array([epsilon]))
            assert found == pytest.approx(exact, rel=1e-6, abs=1e-14)


def test_what_nobody_can_see_costs_nothing_and_what_everybody_sees_all() -> None:
    assert first_account.epsilon_for(lambda epsilon: 1e-9, 1e-6) == 0.0
    told = lambda epsilon: np.ones_like(epsilon)  # noqa: E731
    assert composition.delta(told, told, 5, 1.0) == 1.0


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
                claimed = subsampling.replaced_profile(rate, mu, np.array([epsilon]))[0]
                found = float(np.maximum(p - math.exp(epsilon) * q, 0).sum())
                assert found <= claimed * (1 + 1e-3)  # of the grid
                zero_out = subsampling.wor_profile(rate, mu, np.array([epsilon]))[0]
                if (length, other, angle) == (1.0, 1.0, math.pi):  # the worst, beyond subsampling#k2's pair
                    assert found == pytest.approx(claimed, rel=1e-3)
                    assert epsilon > 0.1 or found > 1.3 * zero_out
