"""The lower bound for means in ℓ∞ of `benchmarks/linf.py`: no estimate is below it, the best are close."""

import math
import runpy
from pathlib import Path

import numpy as np
import pytest
from scipy import integrate, stats

LINF = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "linf.py"))
hardest_spread, lower_bound = LINF["hardest_spread"], LINF["lower_bound"]


def best_risk(coins: int, spread: float, flip: float = 0.0) -> float:
    """Exact mean excess risk, d = 1, A = D = 1, of the sign of the sum, told wrongly with chance `flip`; ties say 0."""

    def given(mean: float) -> float:
        heads = np.arange(coins + 1)
        chances = stats.binom.pmf(heads, coins, (1 + mean) / 2)
        value = (1 - 2 * flip) * np.sign(2 * heads - coins)
        return abs(mean) - mean * float(chances @ value)

    return float(integrate.quad(given, 0, spread)[0] / spread)


@pytest.mark.parametrize("epsilon", [0.1, 0.5, 1.0, 3.0])
def test_randomised_response_does_not_beat_the_bound_with_privacy(epsilon) -> None:
    # n users tell the sign of their one coin's majority with ε-DP as a whole: the sign of the sum, flipped.
    flip = 1 / (1 + math.exp(epsilon))
    for coins in (1, 3, 9):
        sizes = {"users": 1, "items_per_user": coins, "dimension": 1}
        for spread in (0.05, 0.2, 0.6, hardest_spread(**sizes, epsilon=epsilon, delta=1e-9)):
            found = lower_bound(**sizes, epsilon=epsilon, delta=0.0, spread=spread)
            assert found <= best_risk(coins, spread, flip)


def test_the_bound_has_the_rates_of_theorem_23() -> None:
    def hardest(n: int, m: int, d: int, epsilon: float) -> float:
        sizes = {"users": n, "items_per_user": m, "dimension": d}
        spread = hardest_spread(**sizes, epsilon=epsilon, delta=1e-15)
        return lower_bound(**sizes, epsilon=epsilon, delta=1e-15, spread=spread)

    few = hardest(1000, 10, 10_000, 0.1)  # d^1.5 / (n ε √m)
    assert few / hardest(2000, 10, 10_000, 0.1) == pytest.approx(2, rel=0.03)
    assert few / hardest(1000, 10, 2_500, 0.1) == pytest.approx(8, rel=0.03)
    assert few / hardest(1000, 40, 10_000, 0.1) == pytest.approx(2, rel=0.03)
    assert few / hardest(1000, 10, 10_000, 0.2) == pytest.approx(2, rel=0.03)
    many = hardest(10**6, 10, 16, 1.0)  # d / √(nm)
    assert many / hardest(4 * 10**6, 10, 16, 1.0) == pytest.approx(2, rel=0.03)
    assert many == pytest.approx(0.171 * 16 / math.sqrt(10**7), rel=0.03)


@pytest.mark.parametrize("coins", [1, 2, 5, 40, 400])
@pytest.mark.parametrize("share", [0.2, 1.0, 3.0])
def test_no_estimate_is_below_the_bound_without_privacy_and_the_best_is_close(coins, share) -> None:
    spread = min(0.9, share * hardest_spread(users=coins, items_per_user=1, dimension=1, epsilon=50.0, delta=1e-9))
    bound = lower_bound(users=coins, items_per_user=1, dimension=1, epsilon=math.inf, delta=0.0, spread=spread)
    best = best_risk(coins, spread)
    assert bound <= best
    if share == 1.0:
        assert best < 2.2 * bound
