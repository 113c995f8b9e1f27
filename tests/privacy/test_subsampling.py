import math

import pytest

from quoron_privacy.accounts import item_sampling
from quoron_privacy.accounts.gdp import delta_for, epsilon_for, mu_for
from quoron_privacy.accounts.subsampling import (
    poisson_epsilon,
    wor_epsilon,
    wor_round_mu,
)
from quoron_privacy.errors import ConfigError


@pytest.mark.parametrize("rate", [0.01, 0.3])
@pytest.mark.parametrize("mu", [0.3, 2.0])
def test_one_round_costs_exactly_rate_times_the_gaussian_delta(rate, mu):
    for delta in (1e-6, 1e-4):
        epsilon = wor_epsilon(rate, 1, mu, delta)
        exact = rate * delta_for(mu, math.log1p(math.expm1(epsilon) / rate))
        assert exact <= delta  # never optimistic
        assert exact >= 0.95 * delta or epsilon < 1e-3


@pytest.mark.parametrize("epsilon_at", [wor_epsilon, poisson_epsilon])
def test_everybody_every_round_is_plain_composition(epsilon_at):
    assert epsilon_at(1.0, 9, 0.1, 1e-6) == pytest.approx(epsilon_for(0.3, 1e-6), rel=1e-12)
    assert wor_round_mu(1.0, 9, 1.0, 1e-12) == pytest.approx(mu_for(1.0, 1e-12) / 3, rel=1e-12)


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
