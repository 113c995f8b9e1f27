"""The first account of many rounds against what is known of them by other means."""

import math
from functools import partial

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution

from quoron_privacy.accounts import composition, gdp, subsampling


@pytest.mark.parametrize("rounds", [2, 30, 4000])
@pytest.mark.parametrize(("mu", "epsilon"), [(0.01, 0.05), (0.2, 1.0), (1.0, 0.001), (1.5, 12.0)])
def test_gaussian_rounds_cost_what_their_composition_does(rounds: int, mu: float, epsilon: float) -> None:
    exact = gdp.delta_for(mu, epsilon)
    once = partial(gdp.delta_for, mu / math.sqrt(rounds))
    found = composition.delta(once, once, rounds, epsilon, least=max(exact, 1e-300))
    assert 1 <= found / exact < 1.002


@pytest.mark.parametrize(("rate", "rounds", "mu"), [(0.01, 1000, 0.5), (0.3, 10, 0.4), (0.001, 50, 2.0)])
def test_coins_cost_what_an_accountant_of_others_says(rate: float, rounds: int, mu: float) -> None:
    once = privacy_loss_distribution.from_gaussian_mechanism(
        1 / mu, value_discretization_interval=2e-4, sampling_prob=rate
    )
    theirs = once.self_compose(rounds).get_epsilon_for_delta(1e-6)
    ours = subsampling.poisson_epsilon(rate, rounds, mu, 1e-6 / composition.SAFETY)
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
    assert composition.epsilon_for(lambda epsilon: 1e-9, 1e-6) == 0.0
    told = lambda epsilon: np.ones_like(epsilon)  # noqa: E731
    assert composition.delta(told, told, 5, 1.0) == 1.0
