"""What sums of several persons' rows can be, and that all that our loops make pass."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quoron_privacy.means.clipping import ChangeSum, ClippedSum
from quoron_privacy.means.free_counts import COLUMN_WEIGHTS as WEIGHTS
from quoron_privacy.means.free_counts import (
    ColumnSum,
    Contrasts,
    ContrastSum,
    LengthSum,
    NormCountSum,
    ShapedMomentSum,
    VectorLengthSum,
)
from quoron_privacy.means.silo_sums import longest, objection
from quoron_privacy.release import Sums, packed

D = 4
COLUMNS = np.array([[0.0, 0.5, -1.0], [1.0, 0.1, 2.0]])
SHAPES = {  # reduction and length of a row, for so many users in all
    "clipped": lambda n: (ClippedSum(0.7, n), D),
    "around": lambda n: (ClippedSum(0.7, n, np.full(D, 0.3)), D),
    "norm-counts": lambda n: (NormCountSum(1.3, n, np.eye(D)), D),
    "shaped": lambda n: (ShapedMomentSum(n, np.eye(D), 0.5), packed(D)),
    "length": lambda n: (LengthSum(n, np.eye(D), 2.0), packed(D)),
    "vector-length": lambda n: (VectorLengthSum(n, np.eye(D), 2.0), D),
    "columns": lambda n: (ColumnSum(n, COLUMNS, 1.0, True), packed(D)),
    "bare-columns": lambda n: (ColumnSum(n, COLUMNS, 0.5, False), packed(D - 1)),
    "change": lambda n: (ChangeSum(ClippedSum(0.7, n)), 2),
    "contrasts": lambda n: (ContrastSum(Contrasts(2, 3), NormCountSum(1.3, n, np.eye(2))), 6),
    "contrast-length": lambda n: (ContrastSum(Contrasts(2, 3), VectorLengthSum(n, np.eye(2), 2.0)), 6),
}


def silo(kind, persons, seed=0, scale=1.0, users=1000):
    reduction, length = SHAPES[kind](users)
    rows = np.random.default_rng(seed).normal(scale=scale, size=(persons, length))
    return reduction, rows


def wrong(reduction, sums, persons):
    return objection(sums, reduction, persons=persons, length=len(sums.total))


@pytest.mark.parametrize("kind", SHAPES)
class TestHonestSums:
    @given(
        persons=st.integers(0, 12),
        users=st.sampled_from([12, 1000, 10**7]),
        scale=st.sampled_from([0.0, 1e-300, 1e-3, 0.2, 1.0, 1e10, 1e300]),
        alike=st.booleans(),
        seed=st.integers(0, 2**32),
    )
    @settings(max_examples=30, deadline=None)
    def test_always_pass(self, kind, persons, users, scale, alike, seed):
        """The worst for a bound on their length are rows that are alike."""
        reduction, rows = silo(kind, persons, seed, scale, users)
        rows = np.repeat(rows[:1], persons, axis=0) if alike else rows
        with np.errstate(all="ignore"):
            rows[seed % 7 :: 7] *= 1e30
            rows[seed % 5 :: 5] = [np.nan, np.inf, 0.0][seed % 3]
            sums = reduction.of(rows, np.random.default_rng(seed).random(persons) < 0.8)
        assert wrong(reduction, sums, persons) is None

    def test_of_more_persons_than_were_asked_do_not(self, kind):
        reduction, rows = silo(kind, 10, scale=1e3)
        assert wrong(reduction, reduction.of(rows, np.ones(10, bool)), 9) is not None


@pytest.mark.parametrize("kind", SHAPES)
class TestHostileSums:
    @pytest.mark.parametrize("times", [1.001, 2, 2**9, -1.001])
    def test_longer_than_as_many_rows_are_refused(self, kind, times):
        reduction, rows = silo(kind, 1, scale=1e3)
        if kind in ("shaped", "length", "vector-length", "contrast-length"):  # far longer than the radius
            rows = np.abs(rows)
        ten = reduction.of(np.repeat(rows, 10, axis=0), np.ones(10, bool))
        row = longest(reduction)
        weights = np.ones(len(ten.total))
        if row.dimension:
            across, down = np.triu_indices(row.dimension)
            weights = np.where(across == down, 1.0, 2.0)
        far = np.abs(np.linalg.norm(np.sqrt(weights) * ten.total))
        sent = (ten.total * (times * 10 * row.norm / far)).clip(-(2.0**62), 2.0**62).astype(np.int64)
        assert wrong(reduction, Sums(sent, ten.cells, ten.clipped, 10), 10) is not None

    @pytest.mark.parametrize(
        "change",
        [
            lambda s: Sums(s.total[:-1], s.cells, s.clipped, s.answered),
            lambda s: Sums(s.total.astype(np.float64), s.cells, s.clipped, s.answered),
            lambda s: Sums(s.total, s.cells[:3], s.clipped, s.answered),
            lambda s: Sums(s.total, s.cells, s.clipped, -1),
            lambda s: Sums(s.total, s.cells, -1, s.answered),
            lambda s: Sums(s.total, s.cells, s.answered + 1, s.answered),
            lambda s: Sums(s.total, s.cells + np.array([0, 11, 0, 0]), s.clipped, s.answered),
            lambda s: Sums(s.total, s.cells - np.array([2**60, 0, 0, 0]), s.clipped, s.answered),
            lambda s: Sums(s.total, s.cells + np.array([0, 0, 0, 2**60]), s.clipped, s.answered),
            lambda s: Sums(s.total, s.cells + np.array([0, 0, 1, 0]), s.clipped, s.answered),
            lambda s: Sums(np.full_like(s.total, -(2**63)), s.cells, s.clipped, s.answered),
        ],
    )
    def test_that_no_rows_have_are_refused(self, kind, change):
        reduction, rows = silo(kind, 10, scale=0.1)
        honest = reduction.of(rows, np.ones(10, bool))
        reduction_length = len(honest.total)
        assert objection(change(honest), reduction, persons=10, length=reduction_length) is not None


@pytest.mark.parametrize(
    ("kinds", "shares", "passes"),
    [
        ((0, 1, 2), (1.0, 1.0, 1.0), True),
        ((0, 1, 2), (-0.5, 0.5, 0.5), True),
        ((0, 1, 2), (0.0, 0.5, 0.25), True),
        ((3, 5), (0.5, 0.5), True),
        ((0, 1, 2), (1.001, 1.0, 1.0), False),
        ((0, 1, 2), (0.51, 0.5, 0.5), False),
        ((1, 2), (1.001, 1.0), False),
        ((1, 2), (-0.001, 0.0), False),
        ((1, 2), (0.5, 0.51), False),
        ((1, 2), (0.5, 0.24), False),
        ((2,), (-0.001,), False),
        ((4,), (-0.001,), False),
        ((3, 5), (0.5, 0.501), False),
        ((0,), (3.8,), False),  # no longer than ten rows of all columns, and √15 times as far in one
    ],
)
def test_what_is_sent_of_one_column_is_a_mixture_of_rows_of_it(kinds, shares, passes):
    reduction = ColumnSum(1000, COLUMNS, 1.0, True)
    total, weights = np.zeros((6, 3)), reduction.weights(float(longest(reduction).unit))
    assert len(weights) == len(WEIGHTS)
    for kind, share in zip(kinds, shares, strict=True):
        total[kind, 1] = 10 * share * weights[kind]
    sums = Sums(total.astype(np.int64).ravel(), np.array([10, 0, 0, 0], np.int64), 0, 10)
    assert (objection(sums, reduction, persons=10, length=18) is None) is passes


def test_columns_without_a_constant_have_no_means():
    reduction = ColumnSum(1000, COLUMNS, 1.0, False)
    for place in (0, 3 * 3, 5 * 3):
        total = np.zeros(18, np.int64)
        total[3], total[6], total[place] = 1000, 1000, 10
        sums = Sums(total, np.array([10, 0, 0, 0], np.int64), 0, 10)
        assert objection(sums, reduction, persons=10, length=18) is not None


def test_what_passes_of_three_persons_is_in_the_hull_of_rows():
    """silos#si3 by brute force: steps of a tenth of the unit, one coordinate, against all mixtures of single rows."""
    passed = sum(
        in_the_hull(*each) for each in itertools.product(range(0, 31, 3), range(4), range(0, 31, 3), range(-30, 31, 5))
    )
    assert passed > 300


def in_the_hull(short, within, soft, total):
    """Whether such sums pass; AssertionError where they do and no mixture of three rows is as far in some direction."""
    reduction = ClippedSum(1.0, 1000)
    unit = 1 << reduction.bits
    tenth = unit / 10
    cells = np.array([round(short * tenth), within, 3, round(soft * tenth)], np.int64)
    sums = Sums(np.array([round(total * tenth)], np.int64), cells, 0, 3)
    if objection(sums, reduction, persons=3, length=1) is not None:
        return False
    a = np.linspace(0.0, 1.0, 3001)  # of single rows, (c, 1 - a) with |c| = a
    for told, by_row in (
        (within / 3, 3 * (1 - a) >= 1),
        (soft / 30, np.minimum(1.0, np.sqrt((1 - a) * (1 + 3 * a)))),
    ):
        for q, p in itertools.product((1.0, -1.0), (0.0, 0.3, 1.0, 3.0, -0.3, -1.0, -3.0)):
            for c in (0.0, 0.5, 2.0):
                value = c * abs(total) / 30 + p * short / 30 + q * told
                assert value <= np.max(c * a + p * (1 - a) + q * by_row) + 2e-3
    return True
