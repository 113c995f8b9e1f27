"""Audits of winsorised means: the log-likelihood ratio of choices and box on worst-case neighbours, and broken twins.

A release is made by the real mechanism; its ratio adds the exact laws of the choices to that of the Gaussian around
what the same mechanism, without noise, makes of either world. Bounds are wrong with probability at most
`harness.FAILURE` = 1e-8.
"""

import math
from dataclasses import replace

import numpy as np
import pytest

from audits.harness import delta_bounds
from quoron_privacy.accounts.gdp import mu_for
from quoron_privacy.means import winsorised_mean
from quoron_privacy.means.private_range import PrivateRange, costs, weights
from quoron_privacy.means.private_range_loops import tally
from quoron_privacy.means.rotation import padded, rotate
from quoron_privacy.means.winsorised_mean import WinsorisedMean
from quoron_privacy.noise.sources import SeededNoise

USERS, DIMENSION, RUNS, EPSILON, DELTA, HUGE = 12, 4, 2500, 1.0, 0.05, 1e9
SIGNS, EDGE, HALF_WIDTH = np.ones(DIMENSION), 2.0, 0.3
OTHERS = 100.0 * np.eye(1, DIMENSION)  # beyond the range in every rotated coordinate, so that choices stand at its edge


def sound(adjacency="replace-one"):
    crude = PrivateRange(0.2, 6, EDGE)
    mu = mu_for(EPSILON, DELTA)
    return WinsorisedMean.for_mu(
        users=USERS, crude=crude, half_width=HALF_WIDTH, mu=mu, dimension=DIMENSION, adjacency=adjacency
    )


class Silent:
    def gaussian_steps(self, shape):
        return np.zeros(shape, np.int64)


class Chosen:
    def __init__(self, places):
        self.places = iter(places)

    def weighted_choice(self, weights_):
        return next(self.places)


def world(own, others=OTHERS):
    """(rows, who answered); own=None is absent."""
    rows = np.repeat(others, USERS, axis=0)
    there = np.ones(USERS, np.bool_)
    rows[3] = 0.0 if own is None else own
    there[3] = own is not None
    return rows, there


def laws(mean, rows, there):
    """ln of the chance of every bin, for each coordinate."""
    counts = np.zeros((padded(DIMENSION), mean.crude.bins), np.int64)
    tally(rotate(rows[there], SIGNS), mean.crude.half_width, counts)
    whole = [weights(costs(each), mean.crude.epsilon) for each in counts]
    return counts, np.array([[math.log(w / sum(each)) for w in each] for each in whole])


def audit(mean, p, q):
    """Bounds on δ at EPSILON between the worlds `p` and `q`, each (rows, who answered)."""
    counts, here = laws(mean, *p)
    _, other = laws(mean, *q)
    ratios = np.zeros(RUNS)
    for run in range(RUNS):
        source = SeededNoise(run)
        places = [mean.crude.choose(each, stream) for stream in [source.stream("range")] for each in counts]
        z = rotate(mean.release(*p, SIGNS, source.stream("range"), source.stream("noise"))[0][None], SIGNS)[0]
        ends = [rotate(mean.release(*each, SIGNS, Chosen(places), Silent())[0][None], SIGNS)[0] for each in (p, q)]
        at = np.arange(len(places)), places
        ratios[run] = np.sum(here[at] - other[at])
        ratios[run] += (np.sum((z - ends[1]) ** 2) - np.sum((z - ends[0]) ** 2)) / (2 * mean.noise.scale**2)
    return delta_bounds(ratios, epsilon=EPSILON)


OPPOSITE = world(HUGE * np.eye(1, DIMENSION)), world(-HUGE * np.eye(1, DIMENSION))
LEFT_OUT = world(-HUGE * np.eye(1, DIMENSION)), world(None)


@pytest.mark.parametrize(("adjacency", "worlds"), [("replace-one", OPPOSITE), ("zero-out", LEFT_OUT)])
def test_a_mean_never_exceeds_its_claimed_delta_and_comes_near_it(adjacency, worlds):
    low, _ = audit(sound(adjacency), *worlds)
    assert 0.1 * DELTA < low <= DELTA


def test_the_audit_catches_a_box_without_its_diagonal():
    """2h/n where 2h√d₂/n is due."""
    mean = sound()
    short = replace(mean, noise=replace(mean.noise, scale=mean.noise.scale / math.sqrt(padded(DIMENSION))))
    assert audit(short, *OPPOSITE)[0] > DELTA


def unclamped(rotated, middles, half_width, unit, total):
    """Adds rows as they are, but for what integers can hold."""
    total += np.floor(np.clip((rotated - middles) / half_width, -50, 50) * unit).astype(np.int64).sum(axis=0)
    return 0


def test_the_audit_catches_a_clamp_that_is_left_out(monkeypatch):
    monkeypatch.setattr(winsorised_mean.loops, "add_clamped", unclamped)
    assert audit(sound(), *OPPOSITE)[0] > DELTA


def test_the_audit_catches_leaving_out_by_a_zero_row_at_the_price_of_leaving_out():
    """Half of ε₁ and h/n, while the absent user stands in zero's bin and is clamped around choices at the edge."""
    as_zero = world(np.zeros((1, DIMENSION)))
    assert audit(sound("zero-out"), world(HUGE * np.eye(1, DIMENSION)), as_zero)[0] > DELTA


def test_the_audit_catches_replacing_at_the_price_of_leaving_out():
    assert audit(sound("zero-out"), *OPPOSITE)[0] > DELTA
