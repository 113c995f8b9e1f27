"""Coins on a cube: the population, its optimum, and the bound below which no private method's mean excess risk lies."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import integrate, stats

from quoron import sources
from quoron.populations import Cube, hardest_spread, lower_bound
from quoron.simulation.scene import setup
from quoron_client.compute.enforcement import bounded
from quoron_client.protocol.domains import Box, L2Ball
from quoron_privacy.errors import ConfigError

CROWD = Cube(users=400, items_per_user=50, dimension=3, domain=Box(0.5), spread=0.6, bound=2.0, seed=4)


def test_items_are_coins_with_the_declared_means_and_the_same_for_any_cohort() -> None:
    batch = CROWD.items(np.arange(400))
    assert set(np.unique(np.abs(batch.features))) == {np.float32(2.0)}
    off = (batch.features.mean(axis=0) - CROWD.mean) / (2 / math.sqrt(20_000))
    assert np.abs(off).max() < 5.5  # standard deviations: by chance less than once in ten million
    assert np.abs(CROWD.mean).max() <= 0.6
    np.testing.assert_array_equal(CROWD.items(np.array([7, 3])).features[50:], batch.features[150:200])
    held = bounded(batch, CROWD.loss)
    assert held.features is batch.features  # its loss's bounds hold as they are


def test_the_optimum_is_a_corner_and_a_wrong_sign_costs_twice_its_mean() -> None:
    corner = 0.5 * np.sign(CROWD.mean)
    np.testing.assert_array_equal(CROWD.optimum, corner)
    assert CROWD.excess_risk(corner) == 0
    for j in range(3):
        wrong = corner.copy()
        wrong[j] *= -1
        assert CROWD.excess_risk(wrong) == pytest.approx(2 * 0.5 * abs(CROWD.mean[j]))
    assert CROWD.excess_risk(np.zeros(3)) == pytest.approx(0.5 * np.abs(CROWD.mean).sum())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"domain": L2Ball(1.0)}, "domain.kind='box'"),
        ({"spread": 2.0}, "spread < bound=2"),
    ],
)
def test_what_is_no_cube_is_refused(changes, message) -> None:
    with pytest.raises(ConfigError, match=message):
        replace(CROWD, **changes)
    with pytest.raises(ConfigError, match="users in"):
        CROWD.items(np.array([400]))


def best_risk(coins: int, spread: float, flip: float = 0.0) -> float:
    """Exact mean excess risk, d = 1, A = D = 1, of the sign of the sum, told wrongly with chance `flip`; ties say 0."""

    def given(mean: float) -> float:
        heads = np.arange(coins + 1)
        chances = stats.binom.pmf(heads, coins, (1 + mean) / 2)
        value = (1 - 2 * flip) * np.sign(2 * heads - coins)
        return abs(mean) - mean * float(chances @ value)

    return float(integrate.quad(given, 0, spread)[0] / spread)


@pytest.mark.parametrize("coins", [1, 2, 5, 40, 400])
@pytest.mark.parametrize("share", [0.2, 1.0, 3.0])
def test_nobody_beats_the_bound_without_privacy_and_the_best_estimate_comes_close(coins, share) -> None:
    spread = min(0.9, share * hardest_spread(users=coins, items_per_user=1, dimension=1, epsilon=50.0, delta=1e-9))
    bound = lower_bound(users=coins, items_per_user=1, dimension=1, epsilon=math.inf, delta=0.0, spread=spread)
    best = best_risk(coins, spread)
    assert bound <= best
    if share == 1.0:
        assert best < 2.2 * bound


def test_the_preset_plans_in_linf_and_other_domains_and_losses_are_refused() -> None:
    config, _ = sources.resolve("linf")
    scene = setup(config, Path.cwd())
    assert scene.problem.domain == Box(1.0)
    assert (scene.problem.coordinate_lipschitz, scene.problem.coordinate_smoothness) == (1.0, 0.0)
    hard, _ = sources.resolve("linf", ["population.seed=3"])
    object.__setattr__(hard, "population", hard.population.model_copy(update={"spread": None}))
    assert setup(hard, Path.cwd()).population.spread == pytest.approx(0.684 / math.sqrt(40_000 * 100), rel=0.03)
    for wrong in (["domain.kind=l2-ball"], ["loss.name=logistic"], ["loss.ridge=0.1"], ["loss.active_features=1"]):
        config, _ = sources.resolve("linf", wrong)
        with pytest.raises(ConfigError, match=r"population\.kind='cube'"):
            setup(config, Path.cwd())
    config, _ = sources.resolve("quickstart", ["loss.active_features=1"])
    with pytest.raises(ConfigError, match=r"Expected no loss\.active_features for this synthetic"):
        setup(config, Path.cwd())
