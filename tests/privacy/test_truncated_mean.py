"""The truncated mean: what it promises in all, that one user moves it no further, that it finds the mean."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quoron_privacy.errors import Infeasible
from quoron_privacy.gaussian import GaussianNoise
from quoron_privacy.means.truncated_mean import TruncatedMean, calibrate
from quoron_privacy.noise.sources import SeededNoise

fast = settings(derandomize=True, deadline=None, max_examples=40)
EVERY = pytest.mark.parametrize("crude", ["none", "gaussian", "range"])
KNOWN = {"users": 20_000, "dimension": 10, "bound": 1.0, "spread": 1e-4, "mu": 0.2367}


def released(mean, values, answered=None, seed=1):
    answered = np.ones(len(values), bool) if answered is None else answered
    source = SeededNoise(seed)
    return mean.release(values, answered, source.stream("noise"), source.stream("public"))


@EVERY
@given(mu=st.floats(0.05, 3.0), dimension=st.integers(1, 40), spread=st.floats(1e-5, 1.0))
@fast
def test_everything_released_costs_the_mu_that_was_asked_for(crude, mu, dimension, spread):
    mean = calibrate(crude, users=50_000, dimension=dimension, bound=1.0, spread=spread, mu=mu)
    assert mu * (1 - 1e-6) <= mean.mu(dimension) <= mu


@EVERY
def test_the_pieces_add_up_in_squares(crude):
    mean = calibrate(crude, **KNOWN)
    last = mean.noise.effective_mu(10)
    first = 0.0 if mean.crude is None else mean.crude.mu(10) if crude == "range" else mean.crude.effective_mu(10)
    assert mean.mu(10) == pytest.approx(np.hypot(first, last))
    assert [entry.mechanism for entry in mean.entries(10)][-1] == "gaussian"
    assert len(mean.entries(10)) == 1 + (mean.crude is not None)


@EVERY
@given(row=st.lists(st.floats(allow_nan=True, allow_infinity=True), min_size=3, max_size=3), absent=st.booleans())
@fast
def test_given_the_crude_mean_one_user_moves_the_mean_by_two_radii_over_n(crude, row, absent):
    mean = TruncatedMean(8, 0.5, GaussianNoise(0.125, 1e-6), None, 1.0)
    if crude == "gaussian":
        mean = replace(mean, crude=GaussianNoise(1e-6, 1e3))  # same noise, but the first release moves with the row
    values = np.random.default_rng(0).normal(size=(8, 3))
    other, answered = values.copy(), np.ones(8, bool)
    other[5], answered[5] = row, not absent
    if crude != "none":
        assert np.isfinite(released(mean, other, answered)).all()
        return
    moved = released(mean, other, answered) - released(mean, values)
    assert np.linalg.norm(moved) <= 2 * 0.5 / 8 + 1e-6 * 1e-3


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e300])
@EVERY
def test_hostile_rows_cannot_raise(crude, bad):
    values = np.full((20_000, 10), 0.25)
    values[:50] = bad
    mean = calibrate(crude, **KNOWN)
    assert np.linalg.norm(released(mean, values) - 0.25) < 0.2


def test_an_epsilon_below_the_grid_is_refused():
    with pytest.raises(Infeasible, match="below the resolution"):
        calibrate("none", **{**KNOWN, "mu": 1e-9})
