"""A pair's δ is never below the truth and hardly above it: brute force, forty digits, accountants of others."""

import math

import mpmath
import pytest

from privacy.test_second_account import exact_gaussian, expected
from quoron_privacy.accounts import gdp
from quoron_privacy.accounts.pair import DominatingPair
from quoron_privacy.errors import ConfigError
from quoron_privacy.release import Adjacency

COHORTS = ((0.1, 1.0, 0.5), (0.4, 0.7, 1.0), (0.02, 2.5, 2.0))  # rate, μ, ε
RUN = DominatingPair.sampled(0.01, 0.5, 1000, "replace-one")


def of_two_rounds() -> list[tuple[DominatingPair, float]]:
    """What `expected` has gone through cell by cell, and the ε."""
    cohorts = [(DominatingPair.sampled(rate, mu, 2, "replace-one"), epsilon) for rate, mu, epsilon in COHORTS]
    coins = [(DominatingPair.sampled(rate, mu, 2, "zero-out"), epsilon) for rate, mu, epsilon in COHORTS]
    moved = [(DominatingPair.coins(rate, mu, 2), epsilon) for rate, mu, epsilon in COHORTS]
    return [*cohorts, *coins, *moved]


def test_two_rounds_are_what_all_pairs_of_cells_say() -> None:
    for (pair, epsilon), cells in zip(of_two_rounds(), expected(), strict=True):
        assert cells * (1 - 1e-9) <= pair.delta(epsilon, 1e-4) <= 1.006 * cells


@pytest.mark.parametrize(
    ("mu", "epsilon"), [(0.002, 0.01), (0.02, 0.1), (0.3, 1.0), (1.0, 0.1), (4.0, 15.0), (9.0, 3.0), (60.0, 900.0)]
)
def test_a_gaussian_is_what_forty_digits_say(mu: float, epsilon: float) -> None:
    exact, pair = exact_gaussian(mu, epsilon), DominatingPair.gaussian(mu)
    assert exact <= pair.delta(epsilon) <= exact * (1 + 1e-9) + 1e-299


def test_responses_are_what_their_binomial_says() -> None:
    epsilon, times, own = 0.9, 7, 0.3
    with mpmath.workdps(40):
        high = mpmath.exp(own) / (1 + mpmath.exp(own))
        exact = float(
            mpmath.fsum(
                mpmath.binomial(times, j) * high**j * (1 - high) ** (times - j) * -mpmath.expm1(epsilon - loss)
                for j in range(times + 1)
                if (loss := (2 * j - times) * mpmath.mpf(own)) > epsilon
            )
        )
    pair = DominatingPair.response(own, times)
    assert exact <= pair.delta(epsilon) <= exact * (1 + 1e-9)
    assert DominatingPair.response(own).delta(own + 1e-12) < 1e-12


def test_stages_on_one_lattice_are_what_they_are_in_closed_form() -> None:
    """Rounds that everybody joins but for a millionth: a Gaussian in disguise, beside a true one and responses."""
    disguised = (
        DominatingPair.sampled(1 - 1e-9, 0.05, 16, "replace-one")
        .and_(DominatingPair.response(0.02, 3))
        .and_(DominatingPair.gaussian(0.15))
    )
    plain = DominatingPair.gaussian(0.25).and_(DominatingPair.response(0.02, 3))
    for epsilon in (0.3, 1.0):
        exact = plain.delta(epsilon)
        assert exact * (1 - 1e-6) <= disguised.delta(epsilon, exact) < 1.004 * exact


def test_stages_of_two_adjacencies_are_not_one_pair() -> None:
    with pytest.raises(ConfigError, match="one adjacency"):
        DominatingPair.sampled(0.1, 0.4, 3, "zero-out").and_(DominatingPair.sampled(0.1, 0.4, 3, "replace-one"))


def test_what_samplers_lack_adds_up_and_is_paid_at_every_epsilon() -> None:
    pair = DominatingPair.gaussian(0.2, 1e-9).and_(DominatingPair.gaussian(0.1, 2e-9))
    assert 3e-9 <= pair.variation < 3.0001e-9
    added = pair.delta(1.0) - DominatingPair(pair.mu).delta(1.0)
    assert added == pytest.approx((1 + math.e) * 3e-9, rel=1e-6)


def test_epsilon_is_where_delta_is_reached() -> None:
    for delta in (1e-5, 1e-12):
        epsilon = DominatingPair.gaussian(0.5).epsilon(delta)
        assert epsilon == pytest.approx(gdp.epsilon_for(0.5, delta), rel=1e-5)
        both = DominatingPair.sampled(0.05, 0.3, 100, "replace-one").and_(DominatingPair.response(0.05))
        assert both.delta(both.epsilon(delta), delta) <= delta
        assert both.delta(0.998 * both.epsilon(delta), delta) > delta
    assert DominatingPair.response(0.3).epsilon(1e-9) == pytest.approx(0.3, rel=1e-5)
    assert DominatingPair.approximate(0.3, 1e-6).epsilon(1e-7) == math.inf


def test_a_stage_of_which_epsilon_and_delta_are_known_costs_both() -> None:
    stage = DominatingPair.approximate(0.5, 1e-7)
    assert stage.delta(0.5) == pytest.approx(1e-7, rel=1e-9)
    assert stage.delta(0.2) == pytest.approx(1e-7 + (1 - 1e-7) * (1 - math.exp(0.2 - 0.5)) / (1 + math.exp(-0.5)))
    together = stage.and_(RUN)
    assert 1e-7 + 0.99 * RUN.delta(1.3) < together.delta(1.3)
    assert together.delta(1.5) <= 1e-7 + RUN.delta(1.0)


def test_a_table_is_the_stage_that_it_was_made_of() -> None:
    high = 1 / (1 + math.exp(-0.2))
    table = DominatingPair.table((-0.2, 0.2), (1 - high, high), times=40)
    assert table.delta(1.5) == pytest.approx(DominatingPair.response(0.2, 40).delta(1.5), rel=1e-9)
    assert table.and_(RUN).delta(2.0) == pytest.approx(DominatingPair.response(0.2, 40).and_(RUN).delta(2.0), rel=1e-9)


def test_a_table_of_one_order_alone_is_refused() -> None:
    """The other law of masses m at losses l has m e^-l there, and what lacks of 1 where the first has nothing."""
    with pytest.raises(ConfigError, match="one order alone"):
        DominatingPair.table((-0.1, 0.5), (0.6, 0.4))


def test_what_tells_everything_costs_everything() -> None:
    assert DominatingPair.sampled(0.1, 1e4, 10, "replace-one").delta(1.0) == 1.0
    assert DominatingPair.gaussian(1e4).delta(1.0) == 1.0
    assert DominatingPair.sampled(0.5, 1.0, 10**9, "replace-one").delta(1.0) == 1.0


def test_events_are_composed_by_an_accountant_of_others() -> None:
    from dp_accounting.pld import PLDAccountant

    pair = (
        DominatingPair.sampled(0.05, 0.4, 30, "zero-out")
        .and_(DominatingPair.response(0.1))
        .and_(DominatingPair.gaussian(0.2))
    )
    found = PLDAccountant(value_discretization_interval=1e-3).compose(pair.event()).get_delta(1.0)
    assert found == pytest.approx(pair.delta(1.0, found), rel=0.01)
    assert DominatingPair.approximate(0.1, 1e-7).event() is None


@pytest.mark.parametrize("delta", [1e-15, 1e-30])
def test_it_is_as_close_far_out_in_the_tail(delta: float) -> None:
    epsilon, mu = 6.0, 3.0
    while exact_gaussian(mu, epsilon) > delta:
        mu *= 0.98
    exact, pair = exact_gaussian(mu, epsilon), DominatingPair.sampled(1 - 1e-12, mu / 4, 16, "zero-out")
    assert 0.999 * exact < pair.delta(epsilon, delta) < 1.004 * exact


@pytest.mark.parametrize(
    ("pair", "epsilon"),
    [
        (DominatingPair.approximate(0.7, 1e-6), 0.7),
        (DominatingPair.approximate(0.95, 1e-6).and_(DominatingPair.response(0.05)), 1.0),
        (DominatingPair.approximate(3.0, 1e-6), 3.0),
    ],
)
def test_where_delta_is_flat_epsilon_is_the_start_of_the_range(pair: DominatingPair, epsilon: float) -> None:
    assert epsilon <= pair.epsilon(1e-6) <= epsilon * (1 + 2e-6)


@pytest.mark.parametrize(
    ("rate", "mu", "rounds", "adjacency", "epsilon", "delta"),
    [
        (1e-6, 1.65088, 1000, "replace-one", 0.05, 1e-12),
        (1e-5, 1.27167, 1000, "replace-one", 0.05, 1e-12),
        pytest.param(1e-6, 1.50459, 10**5, "replace-one", 0.05, 1e-12, marks=pytest.mark.slow),
        pytest.param(1e-5, 2.156, 10**5, "zero-out", 1.0, 1e-6, marks=pytest.mark.slow),
    ],
)
def test_one_large_loss_of_a_rare_cohort_is_worth_what_it_costs(
    rate: float, mu: float, rounds: int, adjacency: Adjacency, epsilon: float, delta: float
) -> None:
    run = DominatingPair.sampled(rate, mu, rounds, adjacency)
    assert 0.95 * delta < run.delta(epsilon, delta) <= delta


@pytest.mark.slow
@pytest.mark.parametrize(("mu", "rounds"), [(1.0097341302179415, 10), (0.9064186904392293, 1000)])
def test_it_is_close_where_one_round_in_a_million_makes_up_delta(mu: float, rounds: int) -> None:
    run = DominatingPair.sampled(1e-4, mu, rounds, "replace-one")
    assert 0.049 < run.epsilon(1e-12) < 0.05


def test_losses_too_large_for_their_opposites_are_told_for_certain() -> None:
    for pair in (
        DominatingPair.response(800),
        DominatingPair.response(800.0, 3),
        DominatingPair.approximate(800, 1e-6),
    ):
        assert 1 - 1e-9 < pair.delta(1.0) <= 1
        assert pair.and_(DominatingPair.sampled(0.1, 0.4, 30, "zero-out")).delta(1.0) > 1 - 1e-9
    assert DominatingPair.approximate(800, 1e-6).delta(800.0) == pytest.approx(1e-6, rel=1e-9)
    assert DominatingPair.approximate(800, 1e-6).epsilon(1e-6) == pytest.approx(800, rel=1e-5)


PAIRS = {
    "gaussian": DominatingPair.gaussian(0.3),
    "coins and decisions": DominatingPair.sampled(0.2, 0.3, 10, "zero-out").and_(DominatingPair.response(0.05)),
    "of which (ε, δ) is known": DominatingPair.approximate(0.3, 1e-7).and_(DominatingPair.gaussian(0.3, 1e-12)),
}
NEAR = 1e-6


@pytest.mark.parametrize("name", PAIRS)
def test_masses_are_certified_at_every_epsilon(name: str) -> None:
    pair = PAIRS[name]
    law = pair.lattice(NEAR)
    for share in (0.3, 1.0):
        epsilon = share * DominatingPair(pair.mu, pair.stages).epsilon(NEAR)
        assert 0.997 < law.delta(epsilon) / pair.delta(epsilon, NEAR) < 1.01


@pytest.mark.parametrize("name", PAIRS)
def test_dp_accounting_composes_what_it_is_given(name: str) -> None:
    from dp_accounting.pld import pld_pmf, privacy_loss_distribution

    pair = PAIRS[name]
    laws = DominatingPair(pair.mu, pair.stages).lattice(1e-9).laws
    masses = [pld_pmf.DensePLDPmf(law.gap, law.first, law.masses, law.infinite, True) for law in laws]
    given = privacy_loss_distribution.PrivacyLossDistribution(*masses)
    twice = given.compose(given)
    epsilon = 1.2 * pair.epsilon(1e-4)
    both = DominatingPair(pair.mu, pair.stages).and_(DominatingPair(pair.mu, pair.stages))
    found = twice.get_delta_for_epsilon(epsilon)
    assert 0.997 * both.delta(epsilon, found) < found < 1.02 * both.delta(epsilon, found)


def test_nothing_has_losses_of_nothing() -> None:
    assert DominatingPair().lattice(NEAR).delta(0.0) == 0


def test_a_bounded_sum_fits_whatever_is_near() -> None:
    pair = DominatingPair.response(1.0)
    assert 1 <= pair.lattice(NEAR).delta(0.5) / pair.delta(0.5) < 1.001


def test_a_gaussian_and_a_response_are_a_mixture_of_two_profiles() -> None:
    mu, own, epsilon = 0.3, 0.05, 1.0
    share = 1 / (1 + math.exp(-own))
    exact = share * exact_gaussian(mu, epsilon - own) + (1 - share) * exact_gaussian(mu, epsilon + own)
    pair = DominatingPair.gaussian(mu).and_(DominatingPair.response(own))
    assert exact * (1 - 1e-12) <= pair.delta(epsilon) <= exact * (1 + 1e-9)


def test_the_order_of_stages_and_how_rounds_are_told_do_not_matter() -> None:
    parts = [
        DominatingPair.sampled(0.05, 0.4, 30, "zero-out"),
        DominatingPair.response(0.1),
        DominatingPair.gaussian(0.2),
    ]
    forwards, backwards = parts[0].and_(parts[1]).and_(parts[2]), parts[2].and_(parts[1]).and_(parts[0])
    assert forwards == backwards
    assert hash(forwards) == hash(backwards)
    assert (
        DominatingPair.sampled(0.05, 0.4, 10, "zero-out").and_(DominatingPair.sampled(0.05, 0.4, 20, "zero-out"))
        == parts[0]
    )


def test_a_response_costs_less_beside_rounds_than_added() -> None:
    delta = 1e-6
    run = DominatingPair.sampled(0.05, 0.3, 100, "replace-one")
    assert run.and_(DominatingPair.response(0.01, 20)).epsilon(delta) < run.epsilon(delta) + 0.04
