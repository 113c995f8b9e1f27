"""Private selection: the price by two accounts, against every outcome of small mechanisms, and twins that cost more."""

import math
from functools import cache
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from cover import by_default
from privacy.references import always
from quoron_privacy.accounts import gdp
from quoron_privacy.accounts.pair import DominatingPair
from quoron_privacy.errors import VerificationError
from quoron_privacy.noise.streams import SeededNoise
from quoron_privacy.selection import verified
from quoron_privacy.selection.price import Profile, Selection, at, calibrate, sticks
from quoron_privacy.selection.trials import Trials

Vector = NDArray[np.float64]
LAWS = {
    "negative binomial": Trials.negative_binomial(6.0, most=20),
    "geometric": Trials.negative_binomial(4.0, shape=1.0, most=30),
    "logarithmic": Trials.negative_binomial(3.0, shape=0.0, most=40),
    "twos": Trials.negative_binomial(4.0, shape=2.0, most=7),
    "fixed": always(3),
}


@cache
def usual() -> Trials:
    return Trials.negative_binomial(40.0)


def selected(masses: Vector, trials: Trials) -> Vector:
    """The law of the best of K draws from outcomes in ascending order, exactly."""
    through = np.concatenate([[0.0], np.cumsum(masses)])
    return sum(
        (chance * np.diff(through**number) for number, chance in enumerate(trials.chances, 1)), np.zeros(len(masses))
    )


def hockey(one: Vector, other: Vector, epsilon: float) -> float:
    return float(np.maximum(one - math.exp(epsilon) * other, 0.0).sum())


def profile_of(one: Vector, other: Vector) -> Profile:
    """δ at ε of two laws on a few outcomes, in the worse order."""
    return lambda epsilons: np.array(
        [max(hockey(one, other, each), hockey(other, one, each)) for each in epsilons.tolist()]
    )


def priced(trials: Trials, one: Vector, other: Vector, epsilon: float) -> float:
    found = profile_of(one, other)
    return at(epsilon, sticks(trials, found), found)


class TestThePriceIsNeverBelowTheTruth:
    @pytest.mark.parametrize("name", LAWS)
    @settings(max_examples=3)
    @given(seed=st.integers(0, 10**6), epsilon=st.floats(0.0, 3.0))
    def test_of_any_mechanism_on_a_few_outcomes_in_any_order(self, name: str, seed: int, epsilon: float) -> None:
        rng, trials = np.random.default_rng(seed), LAWS[name]
        one = rng.dirichlet(np.full(4, rng.choice([0.3, 1.0, 5.0]))) + 1e-9
        other = one * np.exp(rng.normal(0, rng.choice([0.1, 0.7]), 4))
        one, other = one / one.sum(), other / other.sum()
        bound = priced(trials, one, other, epsilon)
        for order in permutations(range(4)):
            places = list(order)
            laws = selected(one[places], trials), selected(other[places], trials)
            assert hockey(*laws, epsilon) <= bound * (1 + 1e-9) + 1e-14
            assert hockey(*reversed(laws), epsilon) <= bound * (1 + 1e-9) + 1e-14

    def test_and_close_to_it_where_the_worst_outcomes_stand_worst(self) -> None:
        # Odds of e^±1. The best outcome is likelier in one world, and the second best in the other.
        trials = Trials.negative_binomial(200.0, shape=1.0, most=4000)
        one, other = np.array([0.0, 1e-4 * math.e, 0.05]), np.array([0.0, 1e-4, 0.05 * math.e])
        one[0], other[0] = 1 - one[1:].sum(), 1 - other[1:].sum()
        laws = selected(one, trials), selected(other, trials)
        seen = float(np.log(laws[0] / laws[1])[1])
        assert seen > 2.7  # of a run of ε = 1
        assert priced(trials, one, other, seen * 0.98) > 0
        assert priced(trials, one, other, 3.0) < 1e-9  # (2 + η) ε: Papernot & Steinke (2022)

    def test_of_gaussian_scores_by_integration(self) -> None:
        # A score N(0, 1) or N(μ, 1) and nothing else: the best of K is (f(Φ)), whose loss has a closed form.
        mu, trials, epsilon = 0.3, usual(), 0.9
        points = np.linspace(-9, 9, 60_001)
        from scipy.stats import norm

        def density(shift: float) -> Vector:
            return np.asarray(trials.slopes(norm.sf(points - shift)) * norm.pdf(points - shift))

        seen = float(np.maximum(density(mu) - math.exp(epsilon) * density(0.0), 0.0).sum() * (points[1] - points[0]))
        assert seen <= Selection(trials, (DominatingPair.gaussian(mu),)).delta(epsilon)


class TestTwoAccountsOfOneTheorem:
    @pytest.mark.parametrize("epsilon", [0.1, 1.0, 8.0])
    def test_agree_on_gaussian_trials(self, epsilon: float) -> None:
        chosen = Selection(usual(), (DominatingPair.gaussian(gdp.mu_for(epsilon, 1e-6)),))
        price = chosen.epsilon(1e-6)
        second = verified.delta(chosen.trials, chosen.pairs, price, near=1e-6)
        assert 0.98e-6 <= second <= 1.5e-6
        verified.check(chosen.trials, chosen.pairs, chosen.promised(1e-6), 1e-6)

    def test_agree_where_users_differ_and_where_trials_are_no_gaussians(self) -> None:
        pairs = DominatingPair.sampled(0.05, 0.6, 40, "replace-one"), DominatingPair.gaussian(0.2)
        chosen = Selection(Trials.negative_binomial(10.0, most=20), pairs)
        price = chosen.promised(1e-6)
        assert 0.2e-6 <= verified.delta(chosen.trials, pairs, price, near=1e-6) <= 1e-6
        assert price >= max(pair.epsilon(1e-6) for pair in pairs)

    @pytest.mark.parametrize("law", [always(40), Trials.negative_binomial(40.0, shape=900.0)])
    def test_the_broken_twin_whose_number_is_another_is_refused(self, law: Trials) -> None:
        pair = (DominatingPair.gaussian(0.2367),)
        promised = Selection(usual(), pair).promised(1e-6)
        with pytest.raises(VerificationError, match="Expected the search to cost"):
            verified.check(law, pair, promised, 1e-6)


class TestTheBrokenTwins:
    """Of a trial that fails with chance 0.9 or 0.777: odds of e^0.8, by exact enumeration of all outcomes."""

    ONE, OTHER = np.array([0.9, 0.1]), np.array([1 - 0.1 * math.exp(0.8), 0.1 * math.exp(0.8)])
    EPSILON = 3.25  # four times 0.8, and a little more

    def test_of_a_secret_number_the_price_holds(self) -> None:
        laws = selected(self.ONE, usual()), selected(self.OTHER, usual())
        assert hockey(*laws, self.EPSILON) <= priced(usual(), self.ONE, self.OTHER, self.EPSILON) < 1e-9

    def test_a_fixed_number_of_trials_breaks_it(self) -> None:
        fixed = always(40)
        assert hockey(selected(self.ONE, fixed), selected(self.OTHER, fixed), self.EPSILON) > 0.01

    def test_a_number_that_can_be_told_breaks_it(self) -> None:
        told = [always(number) for number in range(1, usual().most + 1)]
        seen = [hockey(selected(self.ONE, each), selected(self.OTHER, each), self.EPSILON) for each in told]
        assert float(usual().chances @ np.array(seen)) > 0.005

    def test_a_failed_trial_that_is_raised_beside_the_best_breaks_it(self) -> None:
        """Odds of e^0.8 of a trial that fails, scores low or scores high: selection#se5."""
        one = np.array([0.01943499, 0.6735045, 0.30706051])
        other = np.array([0.00873271, 0.30789156, 0.68337573])
        assert np.abs(np.log(one / other)).max() < 0.81
        numbers = np.arange(1, usual().most + 1)

        def shown(law: Vector) -> Vector:
            """(no trial failed, best), (one did, best), exactly; where all failed there is no best."""
            risen = np.concatenate([[0.0], np.cumsum(law[1:])])
            clean = np.array([usual().chances @ each for each in np.diff(risen[:, None] ** numbers, axis=0)])
            best = selected(law, usual())
            return np.concatenate([best[:1], clean, best[1:] - clean])

        held = selected(one, usual()), selected(other, usual())
        assert hockey(*held, self.EPSILON) <= priced(usual(), one, other, self.EPSILON) < 1e-9
        assert hockey(shown(one), shown(other), self.EPSILON) > 6e-5

    def test_an_order_of_candidates_that_can_be_told_breaks_it(self) -> None:
        """Seven trials of what is (1/2, 0)-DP, then only another's, which any of these but a failure beats."""
        law, e, rare = Trials.negative_binomial(40.0, most=120), math.exp(0.5), 1e-9
        numbers = np.arange(1, law.most + 1)

        def loss(tried: NDArray[np.int64], better: float) -> float:
            """Of the rare outcome, of which one world has e times as much, and of better ones the other has."""
            more = min(e * better, 1 - (1 - better) / e)
            one, other = (
                float(law.chances @ (tried * (1 - each) ** np.maximum(tried - 1.0, 0.0))) * mass
                for each, mass in ((better, rare), (more, rare / e))
            )
            return math.log(one / other)

        places = np.linspace(0.001, 0.999, 999).tolist()
        assert max(loss(numbers, each) for each in places) < 2.0  # (2 + η) / 2
        assert max(loss(np.minimum(numbers, 7), each) for each in places) > 2.9


class TestThePriceInNumbers:
    @pytest.mark.parametrize("epsilon", by_default([0.05, 8.0], [8.0]))
    def test_calibrated_trials_cost_what_was_asked(self, epsilon: float) -> None:
        law = Trials.negative_binomial(10.0)
        mu = calibrate(epsilon, 1e-6, law)
        spent = Selection(law, (DominatingPair.gaussian(mu),)).promised(1e-6)
        assert 0.999 * epsilon < spent <= epsilon * (1 + 1e-5)

    def test_of_one_trial_is_that_of_a_trial(self) -> None:
        pair = DominatingPair.gaussian(0.3)
        assert Selection(always(1), (pair,)).epsilon(1e-6) == pytest.approx(pair.epsilon(1e-6), rel=1e-4)

    def test_is_below_the_renyi_bound_of_papernot_and_steinke(self) -> None:
        # Their bound of a Gaussian base (ρ = μ²/2) and the geometric law, optimised over both orders.
        mu, gamma = gdp.mu_for(1.0, 1e-6), 1 / 40
        rho, orders = mu**2 / 2, np.geomspace(1.01, 2000, 400)
        inner = np.array([2 * ((1 - 1 / a) * rho * a + math.log(1 / gamma) / a) for a in orders]).min()
        curve = rho * orders + inner + math.log(40) / (orders - 1)
        published = float((curve + np.log1p(-1 / orders) - (np.log(1e-6) + np.log(orders)) / (orders - 1)).min())
        ours = Selection(Trials.negative_binomial(40.0, shape=1.0, most=1200), (DominatingPair.gaussian(mu),)).epsilon(
            1e-6
        )
        assert 0.5 * published < ours < published


class TestTheNumberOfTrials:
    @pytest.mark.parametrize("name", LAWS)
    def test_is_drawn_by_the_very_law_that_is_priced(self, name: str) -> None:
        law = LAWS[name]
        seen = np.bincount([law.draw(SeededNoise(seed)) for seed in range(4000)], minlength=law.most + 1)[1:]
        expected = 4000 * law.chances
        assert not seen[expected == 0].any()
        large = expected > 5
        statistic = float((((seen - expected) ** 2) / np.maximum(expected, 1e-300))[large].sum())
        assert statistic < large.sum() + 60 + 8 * math.sqrt(large.sum())  # false alarm below 1e-6

    def test_has_the_mean_that_was_asked_for(self) -> None:
        assert usual().mean == pytest.approx(40.0, rel=1e-9)
        assert sum(usual().weights) == 1 << 60
