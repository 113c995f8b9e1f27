"""Audits of weights over cells on worst-case neighbours, and of their broken twins.

Each group is one run of its own: what is released of it is independent of the others. Every bound is wrong with
probability at most `harness.FAILURE` = 1e-8.
"""

import math
from dataclasses import replace

import numpy as np
import pytest

from audits.harness import epsilon_lower_bound
from quoron_privacy.accounts import gdp
from quoron_privacy.counts.spread import Spread
from quoron_privacy.noise.sources import SeededNoise

EPSILON, DELTA, DRAWS, CELLS = 2.0, 0.02, 40_000, 4
MU = gdp.mu_for(EPSILON, DELTA)


def world(made: Spread, own: np.ndarray, seed: int, *, by_items: bool = False):
    """What one user's items in cells `own` do to the statistic that tells best of the first cell from the last."""
    root = np.array([math.comb(2 * j, j) / 4**j for j in range(CELLS)]) if made.running else np.eye(CELLS)[0]
    coding = np.array([[root[t - j] if t >= j else 0.0 for j in range(CELLS)] for t in range(CELLS)])
    away = np.eye(CELLS)[0] - (np.eye(CELLS)[-1] if made.adjacency == "replace-one" else 0.0)
    best = np.linalg.solve(coding.T, coding @ away)  # the noise of what is released is coding times independent noise

    def draw(runs: int) -> np.ndarray:
        all_ = replace(made, groups=runs, users=runs)
        owners = np.repeat(np.arange(runs), len(own))
        cells = (np.arange(runs)[:, None] * CELLS + own).ravel()
        weights = all_.weights(owners)
        held = all_.held(owners, cells, weights)
        if by_items:  # the twin: a user weighs by its items
            held = np.tile(np.bincount(own, minlength=CELLS).astype(float), (runs, 1))
        released = all_.release(held, SeededNoise(seed).stream("audit"))
        return released @ best

    return draw


def found(made: Spread, items: int = 5, **twin) -> float:
    """All items of a user in the first cell, against all of them in the last."""
    first, last = np.zeros(items, np.int64), np.full(items, CELLS - 1)
    if made.adjacency == "zero-out":
        last = np.zeros(0, np.int64)
    return epsilon_lower_bound(world(made, first, 1, **twin), world(made, last, 2, **twin), delta=DELTA, draws=DRAWS)


def a_spread(adjacency: str = "replace-one", *, running: bool = False) -> Spread:
    # Rounding of so many groups to the grid is none of what a single one has.
    return Spread.for_mu(users=DRAWS, groups=1, cells=CELLS, mu=MU, running=running, adjacency=adjacency)  # type: ignore[arg-type]


@pytest.mark.parametrize("adjacency", ["replace-one", "zero-out"])
def test_a_release_never_exceeds_the_claimed_epsilon_and_comes_near(adjacency):
    assert 0.5 * EPSILON < found(a_spread(adjacency)) <= EPSILON


def test_running_sums_never_exceed_the_claimed_epsilon():
    assert 0.5 * EPSILON < found(a_spread(running=True)) <= EPSILON


def test_the_audit_catches_half_of_the_noise():
    for running in (False, True):
        made = a_spread(running=running)
        assert found(replace(made, scale=made.scale / 2)) > EPSILON


@pytest.mark.parametrize("running", [False, True])
def test_the_audit_catches_a_histogram_in_which_a_user_weighs_by_items(running):
    assert found(a_spread(running=running), by_items=True) > EPSILON
    assert found(a_spread(running=running), items=50) <= EPSILON


def test_the_audit_catches_noise_for_zero_out_where_users_are_replaced():
    made = a_spread()
    assert found(replace(made, scale=a_spread("zero-out").scale)) > EPSILON
