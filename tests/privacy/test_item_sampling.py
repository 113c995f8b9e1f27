import math

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom, norm

from quoron_privacy.accounts import item_sampling
from quoron_privacy.accounts.composition import SAFETY
from quoron_privacy.accounts.gdp import epsilon_for
from quoron_privacy.errors import ConfigError


@pytest.mark.parametrize(("rate", "items", "rounds", "z"), [(0.1, 4, 5, 1.5), (0.02, 30, 20, 3.0), (0.9, 3, 2, 2.0)])
def test_the_account_is_that_of_an_accountant_of_others(rate, items, rounds, z):
    shifts = list(range(items + 1))
    once = privacy_loss_distribution.from_mixture_gaussian_mechanism(
        z, shifts, list(binom.pmf(shifts, items, rate)), value_discretization_interval=5e-3
    )
    expected = once.self_compose(rounds).get_epsilon_for_delta(1e-5)
    ours = item_sampling.epsilon(rate, items, rounds, z, 1e-5 / SAFETY, "zero-out")
    assert ours == pytest.approx(expected, rel=2e-3)


def densities(rate, items, z, adjacency, x):
    chances = binom.pmf(np.arange(items + 1), items, rate)
    left = sum(chance * norm.pdf(x, j, z) for j, chance in enumerate(chances))
    sign = -1 if adjacency == "replace-one" else 0
    return left, sum(chance * norm.pdf(x, sign * j, z) for j, chance in enumerate(chances))


@pytest.mark.parametrize("adjacency", ["zero-out", "replace-one"])
@pytest.mark.parametrize("own_left", [True, False])
@settings(derandomize=True, deadline=None, max_examples=12)
@given(rate=st.floats(0.01, 0.95), items=st.integers(1, 12), z=st.floats(0.4, 8.0), epsilon=st.floats(-3, 3))
def test_the_profile_is_the_integral_of_what_one_side_has_more(adjacency, own_left, rate, items, z, epsilon):
    x = np.linspace(-items - 12 * z, items + 12 * z, 100_001)
    left, right = densities(rate, items, z, adjacency, x)
    if not own_left:
        left, right = right, left
    expected = np.trapezoid(np.maximum(left - math.exp(epsilon) * right, 0), x)
    [found] = item_sampling.profile(rate, items, z, adjacency, np.array([epsilon]), own_left=own_left)
    assert found == pytest.approx(expected, abs=1e-7)


def test_vectors_in_any_direction_stay_below_the_pair():
    # group-privacy#g2 in the plane: m = 3, each set of items with a vector of its own, at most as long as it has items
    rng, rate, z = np.random.default_rng(3), 0.4, 1.3
    sets = [[bit for bit in range(3) if number >> bit & 1] for number in range(8)]
    chances = np.array([rate ** len(s) * (1 - rate) ** (3 - len(s)) for s in sets])
    grid = np.linspace(-9, 9, 241)
    points = np.stack(np.meshgrid(grid, grid), axis=-1)
    cell = (grid[1] - grid[0]) ** 2 / (2 * np.pi * z**2)

    def law(turned):
        total = np.zeros(points.shape[:2])
        for chance, chosen in zip(chances, sets, strict=True):
            angle, share = rng.uniform(0, 2 * np.pi), rng.choice([1.0, 1.0, rng.random()])
            angle = turned if rng.random() < 0.5 else angle
            mean = share * len(chosen) * np.array([np.cos(angle), np.sin(angle)])
            total += chance * np.exp(-np.sum((points - mean) ** 2, axis=-1) / (2 * z**2))
        return total * cell

    absent = np.exp(-np.sum(points**2, axis=-1) / (2 * z**2)) * cell
    for epsilon in (0.0, 0.3, 1.0):
        most = {
            (adjacency, left): item_sampling.profile(rate, 3, z, adjacency, np.array([epsilon]), own_left=left)[0]
            for adjacency in ("zero-out", "replace-one")
            for left in (True, False)
        }
        for _ in range(12):
            one, other = law(0.0), law(np.pi)
            above = lambda p, q, e=epsilon: np.maximum(p - math.exp(e) * q, 0).sum()  # noqa: E731
            assert above(one, absent) <= most["zero-out", True] + 1e-6
            assert above(absent, one) <= most["zero-out", False] + 1e-6
            assert max(above(one, other), above(other, one)) <= most["replace-one", True] + 1e-6


def test_all_items_in_every_round_is_plain_composition():
    assert item_sampling.epsilon(1.0, 5, 9, 60.0, 1e-6, "zero-out") == pytest.approx(epsilon_for(0.25, 1e-6))
    assert item_sampling.epsilon(1.0, 5, 9, 60.0, 1e-6, "replace-one") == pytest.approx(epsilon_for(0.5, 1e-6))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rate": 0.0}, "rate in"),
        ({"rate": 1.5}, "rate in"),
        ({"delta": 0.0}, "delta"),
        ({"items": 0}, "items"),
        ({"adjacency": "add"}, "adjacency"),
    ],
)
def test_arguments_out_of_range_are_refused_by_name(changes, message):
    values = {"rate": 0.1, "items": 4, "rounds": 2, "z": 3.0, "delta": 1e-6, "adjacency": "zero-out"} | changes
    with pytest.raises(ConfigError, match=message):
        item_sampling.epsilon(**values)
