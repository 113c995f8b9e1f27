"""Audits of the look at a table, on worst-case neighbours, and of its broken twins."""

from dataclasses import replace

import numpy as np
import pytest

from audits.harness import delta_bounds, epsilon_lower_bound
from quoron_privacy.accounts import gdp
from quoron_privacy.counts.table_health import TableHealth
from quoron_privacy.noise.sources import SecureNoise, SeededNoise

EPSILON, DELTA, USERS, COLUMNS = 1.0, 0.01, 5, 30
DRAWS = 10_000
MU = gdp.mu_for(EPSILON, DELTA)
HONEST = TableHealth.for_mu(users=USERS, columns=COLUMNS, labels=2, mu=MU)
# Users who differ wherever they can: no row of use, or one label; one column that does not fit, another, or all.
LOST = (1.0, [0.0, 0.0], np.eye(COLUMNS)[0])
FOUND = (0.0, [1.0, 0.0], np.eye(COLUMNS)[1])
ALL = (1.0, [0.0, 0.0], np.ones(COLUMNS))
NONE = (0.0, [1.0, 0.0], np.zeros(COLUMNS))
ABSENT = None


def mean(health, own, vectors=None):
    """The mean of four users in whose rows nothing is amiss, and an own one."""
    make = vectors or health.vectors
    rows = np.vstack([make(np.zeros(1), np.array([[0.0, 1.0]]), np.zeros((1, COLUMNS)))] * (USERS - 1))
    if own is not ABSENT:
        none, labels, columns = own
        rows = np.vstack([rows, make(np.array([none]), np.array([labels]), columns[None, :])])
    if vectors is not None:
        return rows.sum(axis=0) / USERS  # the twin's reduction does not shorten
    return health.reduction.mean(health.reduction.of(rows, np.ones(len(rows), bool)))


def unclipped(none, labels, columns):
    """Users' vectors whose columns are not shortened together."""
    users, values, column = np.sqrt([0.4, 0.2, 0.4])
    value = np.where(none[:, None] > 0, 0.0, labels)
    return np.hstack(
        [users * none[:, None], users * value, values * columns.mean(axis=1, keepdims=True), column * columns]
    )


def audit(health, one=LOST, other=FOUND, source=SeededNoise(31), vectors=None):  # noqa: B008
    """ε that two worlds provably exceed, along the line on which they differ."""
    means = [mean(health, own, vectors) for own in (one, other)]
    line = means[0] - means[1]

    def world(centre, name):
        stream = source.stream(name)
        return lambda draws: health._gaussian.release(np.tile(centre, (draws, 1)), stream) @ line

    return epsilon_lower_bound(world(means[0], "P"), world(means[1], "Q"), delta=DELTA, draws=DRAWS)


@pytest.mark.parametrize("source", [SeededNoise(32), SecureNoise(b"h" * 32)], ids=["seeded", "secure"])
def test_replacing_a_user_by_the_farthest_other_is_within_the_promise(source):
    assert 0.1 < audit(HONEST, source=source) <= EPSILON


@pytest.mark.parametrize("own", [LOST, ALL])
def test_leaving_a_user_out_is_within_the_promise_under_its_own_noise(own):
    noise = TableHealth.for_mu(users=USERS, columns=COLUMNS, labels=2, mu=MU, adjacency="zero-out")
    assert 0.1 < audit(noise, own, ABSENT) <= EPSILON


def test_the_whole_vector_uses_what_it_is_charged_and_no_more():
    """By the likelihood ratio of what came out: a bound for δ(ε) from both sides."""
    means = [mean(HONEST, own) for own in (LOST, FOUND)]
    out = HONEST._gaussian.release(np.tile(means[0], (40_000, 1)), SeededNoise(33).stream("look"))
    far, near = (((out - centre) ** 2).sum(axis=1) / HONEST.scale**2 for centre in (means[1], means[0]))
    low, high = delta_bounds((far - near) / 2, epsilon=EPSILON)
    assert low <= DELTA
    assert high > 0.2 * DELTA


def test_a_quarter_of_the_noise_is_caught():
    assert audit(replace(HONEST, scale=HONEST.scale / 4)) > EPSILON


def test_columns_that_are_not_shortened_together_are_caught():
    assert audit(HONEST, ALL, NONE, vectors=unclipped) > EPSILON


def test_noise_for_one_column_alone_is_caught():
    """The twin's noise is made as if a user were in one block only, of weight 0.4, and another's in the same."""
    alone = replace(HONEST, scale=HONEST.scale * 0.4)
    assert audit(alone) > EPSILON


def test_a_divisor_that_counts_users_with_rows_is_caught():
    """Noise planned for fifty users, the mean divided by the five that have a usable row."""
    planned = TableHealth.for_mu(users=50, columns=COLUMNS, labels=2, mu=MU)
    assert audit(replace(planned, users=USERS)) > EPSILON
