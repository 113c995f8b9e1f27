"""Audits of the three mechanisms with free presence and of the one-round moment, with twins that must be caught."""

from dataclasses import replace

import numpy as np
import pytest

from audits.harness import delta_bounds
from quoron_privacy.accounts import gdp
from quoron_privacy.means import free_presence, free_presence_columns, norm_counts
from quoron_privacy.means.free_presence import LogLength, MomentMean
from quoron_privacy.means.free_presence_columns import HERE as COLUMNS_HERE
from quoron_privacy.means.free_presence_columns import WEIGHTS, ColumnMean
from quoron_privacy.means.norm_counts import NormCountMean
from quoron_privacy.noise.sources import SeededNoise

EPSILON, DELTA, USERS, DRAWS = 1.0, 0.01, 5, 4_000
MU = gdp.mu_for(EPSILON, DELTA)
HERE = np.ones(USERS, bool)
GONE = np.array([True, True, False, True, True])
TAIL = NormCountMean.for_mu(dimension=2, users=USERS, mu=MU)
MOMENT = MomentMean.for_mu(dimension=2, users=USERS, mu=MU)
COLUMNS = ColumnMean.for_mu(columns=2, users=USERS, mu=MU)
LENGTH = LogLength.for_mu(users=USERS, mu=MU)


def tail(mechanism, own, answered, stream):
    """(mean, tail, within, presence) in units of the noise."""
    values = np.tile([0.3, 0.1], (USERS, 1))
    values[2] = own
    found = mechanism.release(values, answered, np.eye(2), np.zeros(2), 1.0, stream)
    weights = np.array([1, 1, 1.4142135, 1, 1])
    return np.array([*found.mean, found.beyond, found.within, found.presence]) * weights / TAIL.scale


def classes(mechanism, own, answered, stream):
    """As `tail`, of two parts of one number each, whitened one by one and clipped as one."""
    values = np.tile([0.3, 0.1], (USERS, 1))
    values[2] = own
    found = mechanism.release(values, answered, np.array([[2.0]]), np.zeros(2), 1.0, stream)
    weights = np.array([1, 1, 1.4142135, 1, 1])
    return np.array([*found.mean, found.beyond, found.within, found.presence]) * weights / TAIL.scale


def moment(mechanism, own, answered, stream):
    factors = np.tile([0.5, 0.1, 0.5], (USERS, 1))
    factors[2] = own
    found = mechanism.release(factors, answered, np.eye(2), 1.0, stream)
    upper = found.mean[[0, 0, 1], [0, 1, 1]] * [1, np.sqrt(2), 1]
    return np.array([*upper, found.presence]) / MOMENT.scale


def length(mechanism, own, answered, stream):
    logs = np.full(USERS, -1.0)
    logs[2] = own
    found = mechanism.release(logs, answered, 1.0, stream)
    return np.array([found.mean, found.presence * 0.8660254]) / LENGTH.scale


def columns(mechanism, own, answered, stream):
    """(m, s, q, z, presence) of two columns beside a constant one, in units of the noise."""
    factors = np.tile([0.5, 0.3, 1.0, 0, 0, 0], (USERS, 1))
    factors[2] = own
    found = mechanism.release(factors, answered, np.array([[0.0, 0.0], [1.0, 1.0]]), 1.0, True, stream)
    rows = np.concatenate([[found.mean, found.spread, found.square], found.still])
    weighted = rows * (np.array(WEIGHTS) / np.sqrt(2))[:, None]
    return np.append(weighted.ravel(), found.presence * COLUMNS_HERE) / COLUMNS.scale


class Still:
    def gaussian_steps(self, shape):
        return np.zeros(shape, np.int64)


PAIRS = {  # of the own user: what both worlds hold, at the corners of free-presence#p1 to #p3; None is nobody
    "opposite gradients": (tail, TAIL, [9.0, 0.0], [-9.0, 0.0]),
    "opposite gradients in two classes": (classes, TAIL, [9.0, 9.0], [-9.0, -9.0]),
    "a gradient at its end and one well within": (tail, TAIL, [9.0, 0.0], [-2 / 3, 0.0]),
    "no gradient and nobody": (tail, TAIL, [0.0, 0.0], None),
    "orthogonal moments": (moment, MOMENT, [9.0, 0.0, 0.0], [0.0, 0.0, 9.0]),
    "a moment and nobody": (moment, MOMENT, [9.0, 0.0, 0.0], None),
    "a moment of all entries and nobody": (moment, MOMENT, [9.0, 9.0, 9.0], None),
    "opposite ends of ranges": (columns, COLUMNS, [1.0, 1.0, 1.0, 0, 0, 0], [-1.0, -1.0, 1.0, 0, 0, 0]),
    "ends of ranges and nobody": (columns, COLUMNS, [1.0, 1.0, 1.0, 0, 0, 0], None),
    "the longest and the shortest": (length, LENGTH, 5.0, -9.0),
    "the longest and nobody": (length, LENGTH, 5.0, None),
}


def spent(name, twin=lambda mechanism: mechanism):
    """Bounds for δ(ε), from the log-likelihood ratio that noise of the stated scale would give."""
    release, mechanism, own, other = PAIRS[name]

    def world(held, stream):
        gone = held is None
        return release(twin(mechanism), np.nan if gone else held, GONE if gone else HERE, stream)

    near, far = world(own, Still()), world(other, Still())
    stream = SeededNoise(3).stream("audit")
    drawn = np.array([world(own, stream) for _ in range(DRAWS)])
    actual = mechanism.scale / twin(mechanism).scale  # a twin's noise is smaller, which the one who looks knows
    away = np.sum((drawn - far) ** 2, axis=1) - np.sum((drawn - near) ** 2, axis=1)
    return delta_bounds(actual**2 * away / 2, epsilon=EPSILON)


@pytest.mark.parametrize("name", PAIRS)
def test_the_tightest_neighbours_keep_the_promise(name):
    low, high = spent(name)
    assert low <= DELTA
    assert high > DELTA / 2  # and use it up


@pytest.mark.parametrize("name", PAIRS)
def test_half_of_the_noise_is_caught(name):
    assert spent(name, lambda mechanism: replace(mechanism, scale=mechanism.scale / 2))[0] > DELTA


def test_a_moment_that_is_clipped_a_chunk_at_a_time_is_caught(monkeypatch):
    """Chunks are how it travels: each within the radius is not the whole within it."""
    rows, columns = np.triu_indices(2)

    def by_chunks(factors, answered, transform, radius, unit):
        total = np.zeros(3, np.int64)
        for factor in factors[answered & np.isfinite(factors).all(axis=1)]:
            upper = np.zeros((2, 2))
            upper[rows, columns] = factor
            whitened = transform.T @ upper.T @ upper @ transform
            total += (np.clip(whitened[rows, columns] / radius, -1, 1) * unit).astype(np.int64)
        return total, int(np.sum(answered & np.isfinite(factors).all(axis=1)))

    monkeypatch.setattr(free_presence.loops, "sum_moments", by_chunks)
    assert spent("a moment of all entries and nobody")[0] > DELTA


def test_columns_that_are_not_brought_to_their_windows_are_caught(monkeypatch):
    """Twice as far from the middle as the end is."""
    honest = free_presence_columns.loops.sum_columns

    def unclipped(rows, answered, windows, scale, constant, weights, total):
        return honest(rows, answered, windows, scale, constant, 2 * weights, total)

    monkeypatch.setattr(free_presence_columns.loops, "sum_columns", unclipped)
    assert spent("opposite ends of ranges")[0] > DELTA


def test_a_clip_for_each_class_is_caught(monkeypatch):
    honest = norm_counts.loops.sum_norm_counts

    def each_for_itself(values, answered, transform, centre, radius, unit):
        parts = [
            honest(values[:, [k]].copy(), answered, transform, centre[[k]], radius, unit)
            for k in range(values.shape[1])
        ]
        return np.concatenate([total for total, *_ in parts]), parts[0][1], parts[0][2]

    monkeypatch.setattr(norm_counts.loops, "sum_norm_counts", each_for_itself)
    assert spent("opposite gradients in two classes")[0] > DELTA


def test_the_noise_of_zero_out_is_caught_under_replace_one():
    halved = NormCountMean.for_mu(dimension=2, users=USERS, mu=MU, adjacency="zero-out")
    assert spent("opposite gradients", lambda _: replace(TAIL, scale=halved.scale))[0] > DELTA
