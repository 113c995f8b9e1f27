"""The private radius: one cell a user, noise that is charged for, a spread that finds its level."""

from fractions import Fraction
from math import exp, sqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quoron_privacy.accounts import gdp
from quoron_privacy.errors import ConfigError, Infeasible
from quoron_privacy.means.radius_cells import RadiusCells, updated_spread
from quoron_privacy.noise.sources import SeededNoise
from quoron_privacy.noise.streams import RandomStream
from sums import clipped_residuals

CELL = st.sampled_from([0.1, 0.4, 0.9, 3.0, np.nan])  # distances in each of the four cells of q = 1, and none
fast = settings(derandomize=True, deadline=None, max_examples=150)
PUBLIC = {"target": 0.9, "deviation": 0.02, "may_shrink": True, "least": 1e-3, "largest": 100.0}


def counts_of(distances, answered=None):
    rows = np.array(distances, np.float64)[:, None]
    answered = np.ones(len(rows), bool) if answered is None else answered
    return clipped_residuals(rows, None, answered, 1.0, 1.0, len(rows))[1]


class TestRadiusCells:
    @given(distances=st.lists(CELL, min_size=1, max_size=6), own=CELL, divisor=st.sampled_from([1, 7, 10**6]))
    @fast
    def test_replacing_one_user_moves_the_fractions_by_no_more_than_the_sensitivity(self, distances, own, divisor):
        for adjacency, other in (("replace-one", [own, *distances[1:]]), ("zero-out", [np.nan, *distances[1:]])):
            one, two = counts_of(distances) / divisor, counts_of(other) / divisor
            moved = sum((Fraction(float(a)) - Fraction(float(b))) ** 2 for a, b in zip(one, two, strict=True))
            assert moved <= Fraction(RadiusCells(divisor, adjacency, 1.0).sensitivity) ** 2

    def test_a_user_who_changes_cells_attains_the_sensitivity(self):
        moved = (counts_of([0.1, 3.0]) - counts_of([0.1, 0.4])) / 2
        assert np.linalg.norm(moved) == pytest.approx(RadiusCells(2, "replace-one", 1.0).sensitivity, rel=1e-12)

    @given(divisor=st.integers(1, 10**6), mu=st.floats(1e-4, 3), adjacency=st.sampled_from(["replace-one", "zero-out"]))
    @fast
    def test_noise_for_a_mu_spends_all_of_it_and_no_more(self, divisor, mu, adjacency):
        cells = RadiusCells.for_mu(divisor=divisor, mu=mu, adjacency=adjacency)
        assert mu * (1 - 1e-4) <= cells.effective_mu <= mu * (1 + 1e-12)
        assert cells.scale >= (sqrt(2) if adjacency == "replace-one" else 1.0) / divisor / mu

    def test_halving_the_noise_under_zero_out_is_not_private(self):
        replaced = RadiusCells.for_mu(divisor=1000, mu=0.2)
        halved = RadiusCells(1000, "zero-out", replaced.scale / 2)
        assert halved.effective_mu == pytest.approx(sqrt(2) * 0.2, rel=1e-6)

    def test_cells_beside_a_gradient_of_the_full_budget_break_the_promise(self):
        mu = gdp.mu_for(1.0, 1e-6)
        share = RadiusCells.for_mu(divisor=1000, mu=0.3 * mu).effective_mu
        assert gdp.delta_for(gdp.compose(mu * sqrt(1 - 0.09), share), 1.0) <= 1e-6 * (1 + 1e-6)
        assert gdp.delta_for(gdp.compose(mu, share), 1.0) > 1.4e-6

    def test_the_release_is_the_cumulative_fraction_plus_noise_of_the_stated_size(self):
        cells, stream = RadiusCells(100, "replace-one", 0.02), SeededNoise(1).stream("cells")
        drawn = np.array([cells.release(np.array([10, 20, 30, 25]), stream) for _ in range(20_000)])
        # six standard errors: false alarm 2e-9 each
        for column, (mean, deviation) in enumerate(((0.1, 0.02), (0.3, 0.02 * sqrt(2)), (0.6, 0.02 * sqrt(3)))):
            assert abs(drawn[:, column].mean() - mean) < 6 * deviation / sqrt(20_000)
            assert abs(drawn[:, column].std() / deviation - 1) < 6 / sqrt(40_000)

    def test_the_divisor_is_the_plan_whoever_answers(self):
        silence = RandomStream(lambda size: np.zeros(size, np.uint64))
        nobody, one = np.zeros(4, np.int64), np.array([1, 0, 0, 0])
        cells = RadiusCells(4, "replace-one", 0.01)
        assert cells.release(nobody, silence) == pytest.approx((0.0, 0.0, 0.0), abs=1e-9)
        assert cells.release(one, silence) == pytest.approx((0.25, 0.25, 0.25), abs=1e-9)

    def test_public_mistakes_are_refused_by_name(self):
        with pytest.raises(ConfigError, match="Expected adjacency replace-one or zero-out, got adjacency='none'"):
            RadiusCells(5, "none", 1.0)
        with pytest.raises(ConfigError, match="Expected divisor to be an integer >= 1"):
            RadiusCells.for_mu(divisor=0, mu=0.1)
        with pytest.raises(ConfigError, match=r"Expected counts of shape \(4,\), got \(3,\)"):
            RadiusCells(5, "replace-one", 1.0).release(np.zeros(3, np.int64), SeededNoise(0).stream())
        with pytest.raises(Infeasible, match="below the resolution of the grid"):
            RadiusCells.for_mu(divisor=5, mu=1e-9)

    def test_the_ledger_entry_states_the_parameters(self):
        cells = RadiusCells(8, "zero-out", 0.5)
        assert cells.entry().mechanism == "radius-cells"
        assert dict(cells.entry().parameters) == {"sensitivity": cells.sensitivity, "scale": 0.5, "divisor": 8}


class TestUpdatedSpread:
    @pytest.mark.parametrize(
        ("fractions", "factor"),
        [
            ((0.93, 0.95, 1.0), 0.35),  # beyond target + deviation within q/4
            ((0.92, 0.93, 1.0), 0.6),  # beyond target + 1.4 deviation within q/2
            ((0.92, 0.92, 0.32), 2.0),  # hardly anybody within q
            ((0.1, 0.5, 0.95), exp(-0.6 * 0.05)),
            ((0.1, 0.5, 1.7), exp(-0.6 * 0.1)),  # noise beyond one counts as one
            ((0.1, 0.5, 0.9), 1.0),
            ((0.1, 0.5, 0.8), exp(0.06 * 0.1 / 0.1)),
            ((0.1, 0.2, 0.34), exp(0.06 * 0.56 / 0.1)),  # not below 0.35 - deviation
        ],
    )
    def test_each_rule_moves_the_spread_by_its_factor(self, fractions, factor):
        assert updated_spread(2.0, fractions, **PUBLIC) == pytest.approx(2.0 * factor, rel=1e-12)
        held = updated_spread(2.0, fractions, **(PUBLIC | {"may_shrink": False}))
        assert held == pytest.approx(2.0 * max(1.0, factor), rel=1e-12)

    @given(
        spread=st.floats(width=64),
        fractions=st.tuples(*[st.floats(width=64) | st.floats(-1, 2)] * 3),
        target=st.floats(0.01, 0.999999),
        deviation=st.floats(0, 1e3),
        may_shrink=st.booleans(),
    )
    @fast
    def test_whatever_was_released_the_spread_stays_between_its_public_bounds(
        self, spread, fractions, target, deviation, may_shrink
    ):
        public = {"target": target, "deviation": deviation, "may_shrink": may_shrink, "least": 1e-6, "largest": 3.0}
        assert 1e-6 <= updated_spread(spread, fractions, **public) <= 3.0

    @pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
    def test_a_non_finite_number_gives_the_cap(self, bad):
        assert updated_spread(bad, (0.1, 0.5, 0.9), **PUBLIC) == 100.0
        for place in range(3):
            fractions = [0.1, 0.5, 0.9]
            fractions[place] = bad
            assert updated_spread(1.0, tuple(fractions), **PUBLIC) == 100.0

    @pytest.mark.parametrize("start", [0.05, 0.25, 1.0, 4.0, 20.0])
    def test_from_any_start_it_finds_the_spread_at_which_the_target_is_within(self, start):
        # users' distances are |N(0, 1)|: nine in ten are within 1.645
        distances = np.abs(np.random.default_rng(0).normal(size=(30, 2000)))
        cells, spread = RadiusCells.for_mu(divisor=2000, mu=0.1), start
        for round_, row in enumerate(distances):
            counts = clipped_residuals(row[:, None], None, np.ones(2000, bool), 1.0, spread, 2000)[1]
            fractions = cells.release(counts, SeededNoise(2).stream("cells", round_))
            spread = updated_spread(spread, fractions, **(PUBLIC | {"deviation": cells.scale}))
        assert 1.2 < spread < 2.3

    def test_public_mistakes_are_refused_by_name(self):
        for wrong in ({"target": 1.0}, {"deviation": -1.0}, {"least": 0.0}, {"largest": np.inf}):
            with pytest.raises(ConfigError, match=f"Expected {next(iter(wrong))}"):
                updated_spread(1.0, (0.1, 0.5, 0.9), **(PUBLIC | wrong))
