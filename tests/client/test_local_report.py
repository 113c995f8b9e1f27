"""A client's report of its gradient: right in the mean, the same in every batch, silent about bad data."""

from dataclasses import replace

import numpy as np
import pytest

from quoron_client import AverageGradient, ItemBatch, make_loss
from quoron_client.compute.local_report import local_report
from quoron_client.protocol.questions import Status
from quoron_client.protocol.reports import RangeReport, VectorReport
from quoron_client.randomisers import SeededRandomness

USERS, DIMENSION = 40, 6
RNG = np.random.default_rng(0)
LOSS = make_loss("logistic")
SOURCE = SeededRandomness(8)
GRADIENT = AverageGradient(RNG.normal(size=(1, DIMENSION)), (1.0,))
SIGNS = RNG.choice([-1.0, 1.0], DIMENSION)
COORDINATES = np.arange(USERS) % 8
VECTOR = VectorReport(GRADIENT, 1.0, 1e-6, 0.5, np.full(DIMENSION, 0.1))
RANGE = RangeReport(GRADIENT, 2.0, 16, 1.0, SIGNS, COORDINATES)


def items(bad=None, empty=None):
    features = RNG.normal(size=(3 * USERS, DIMENSION)) / DIMENSION
    labels = np.sign(RNG.normal(size=3 * USERS))
    if bad is not None:
        features[3 * bad] = np.nan
    counts = np.full(USERS, 3)
    if empty is not None:
        counts[empty], counts[empty + 1] = 0, 6
    return ItemBatch(features, labels, np.concatenate([[0], np.cumsum(counts)]))


def asked(batch, task, users=None):
    return local_report(LOSS, batch, task, SOURCE, round=4, users=np.arange(USERS) if users is None else users)


@pytest.mark.parametrize("task", [VECTOR, RANGE], ids=["vector", "range"])
@pytest.mark.parametrize("where", [{"bad": 7}, {"empty": 7}], ids=["not finite", "no items"])
def test_bad_data_looks_like_any_other_report(task, where):
    found = asked(items(**where), task)
    assert (found.status == Status.ANSWERED).all()
    assert np.isfinite(found.values).all()
    assert found.values[7].any()


@pytest.mark.parametrize("task", [VECTOR, RANGE], ids=["vector", "range"])
def test_a_report_does_not_depend_on_who_else_is_asked(task):
    batch, first, last = items(), 10, 13
    some = slice(batch.offsets[first], batch.offsets[last])
    offsets = batch.offsets[first : last + 1] - batch.offsets[first]
    part = ItemBatch(batch.features[some], batch.labels[some], offsets)
    own = replace(task, coordinates=COORDINATES[first:last]) if task is RANGE else task
    assert np.array_equal(asked(part, own, np.arange(first, last)).values, asked(batch, task).values[first:last])
