"""Integer rows of users for two servers: how long they are, how far apart, and that fast sums are their sums."""

from decimal import Decimal, localcontext
from math import sqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quoron_privacy.errors import ConfigError, RunError
from quoron_privacy.means.clipping import ChangeSum, ClippedSum
from quoron_privacy.means.free_counts import (
    ColumnSum,
    Contrasts,
    ContrastSum,
    LengthSum,
    NormCountSum,
    ShapedMomentSum,
    VectorLengthSum,
    weights_of,
)
from quoron_privacy.two_servers.rows import RingRows, RingSums, fits, sum_of_squares
from quoron_privacy.two_servers.specification import ADJACENCIES, KINDS, Block, RoundSpec

UNIT = (1 << 29) + 12_345
WIDE = 3 * UNIT  # of shares
D = 3
SHAPE = np.array([[1.0, 0.3, 0.0], [0.0, 2.0, -1.0], [0.0, 0.0, 0.5]])
CENTRE = np.array([0.1, -0.2, 0.3])
WINDOWS = np.array([[0.0, 0.5], [1.0, 2.0]])
N = 100  # a divisor
CONTRASTS = ContrastSum(Contrasts(1, 4), NormCountSum(0.7, N, np.array([[0.5]])))


def spec(kind, length, adjacency="replace-one", unit=UNIT):
    return RoundSpec((Block("sums", length, unit, kind),), adjacency)


def counting(kind="norm-counts", adjacency="replace-one", unit=UNIT):
    return RoundSpec((Block("sums", D, unit, kind), Block("shares", 3, min(3 * unit, 1 << 34), kind)), adjacency)


def every(adjacency="replace-one", unit=UNIT):
    """One reduction of each kind, with how many numbers a user sends."""
    own = adjacency, unit
    return [
        (RingRows(spec("clipped", D, *own), ClippedSum(0.7, N, CENTRE)), D),
        (RingRows(spec("clipped", 1, *own), ChangeSum(ClippedSum(0.7, N))), 2),
        (RingRows(counting("norm-counts", *own), ClippedSum(0.7, N, CENTRE)), D),
        (RingRows(counting("soft-norm-counts", *own), NormCountSum(0.7, N, SHAPE)), D),
        (RingRows(counting("soft-norm-counts", *own), CONTRASTS), 4),
        (RingRows(spec("moment", 7, *own), ShapedMomentSum(N, np.eye(D), 0.9)), 6),
        (RingRows(spec("shaped-moment", 7, *own), ShapedMomentSum(N, SHAPE, 0.9)), 6),
        (RingRows(spec("columns", 13, *own), ColumnSum(N, WINDOWS, 1.0, True)), 6),
        (RingRows(spec("length", 2, *own), LengthSum(N, SHAPE, 2.0)), 6),
        (RingRows(spec("length", 2, *own), VectorLengthSum(N, SHAPE, 2.0)), D),
    ]


EVERY = every()
NAMES = [f"{type(each.reduction).__name__}-{number}" for number, (each, _) in enumerate(EVERY)]
PLACES = range(len(EVERY))
odd = st.sampled_from([0.0, 1.0, -1.0, 2.0, 0.7, 1e-200, -1e200, 1e308, 5e-324, np.nan, np.inf, -np.inf])
value = odd | st.floats(-3, 3) | st.floats(allow_nan=True)


def drawn(data, users, length):
    row = st.lists(value, min_size=length, max_size=length)
    return np.array(data.draw(st.lists(row, min_size=users, max_size=users)), np.float64)


def moved(one, other, made):
    """How far apart two rows are in units of the last block, as a bound in steps is checked."""
    wide = made.blocks[-1].unit
    steps = sum(sum_of_squares(one[at] - other[at]) * (wide / block.unit) ** 2 for block, at in made.parts())
    return sqrt(steps), wide


class TestRows:
    @pytest.mark.parametrize("at", PLACES, ids=NAMES)
    @pytest.mark.parametrize("adjacency", ADJACENCIES)
    @settings(max_examples=15, deadline=None)
    @given(st.data())
    def test_no_row_is_longer_and_no_two_are_farther_apart_than_their_kind_says(self, at, adjacency, data):
        unit = data.draw(st.sampled_from([1, 2, 7, 1000, UNIT, 1 << 34]))
        reduction, length = every(adjacency, unit)[at]
        made, kind = reduction.spec, KINDS[reduction.spec.blocks[0].kind]
        which = ADJACENCIES.index(adjacency)
        one, other = reduction.rows(drawn(data, 2, length), np.ones(2, bool))
        assert fits(one, made)
        assert fits(other, made)
        cut = kind.cut * sqrt(made.blocks[-1].length)
        far, unit = moved(one, other, made)
        if adjacency == "replace-one":
            assert far <= sqrt(kind.square_apart[0]) * unit * (1 + 1e-15) + cut
        away, unit = moved(one, np.zeros_like(one), made)
        assert away <= sqrt(kind.square_apart[which]) * unit * (1 + 1e-15) + cut * (1 - which)

    @pytest.mark.parametrize("at", PLACES, ids=NAMES)
    @settings(max_examples=15, deadline=None)
    @given(st.data(), st.integers(0, 9))
    def test_fast_sums_are_the_sums_of_what_clients_mask(self, at, data, users):
        reduction, length = EVERY[at]
        values = drawn(data, users, length).reshape(users, length)
        answered = np.array(data.draw(st.lists(st.booleans(), min_size=users, max_size=users)), bool)
        sums, rows = reduction.of(values, answered), reduction.rows(values, answered)
        exact = [sum(int(each) for each in column) % 2**64 for column in rows.T]
        assert sums.total.tolist() == (exact or [0] * reduction.spec.length)
        assert sums.answered == np.count_nonzero(answered)
        assert not rows[~answered].any()

    @pytest.mark.parametrize("at", PLACES, ids=NAMES)
    def test_sums_are_the_same_in_every_order_and_in_pieces(self, at):
        reduction, length = EVERY[at]
        rng = np.random.default_rng(3)
        values, answered = rng.normal(size=(301, length)).round(1), rng.random(301) < 0.9
        whole, order = reduction.of(values, answered), rng.permutation(301)
        parts = [reduction.of(values[part], answered[part]) for part in (order[:100], order[100:101], order[101:])]
        assert (whole.total == (parts[0] + parts[1] + parts[2]).total).all()

    @pytest.mark.parametrize("at", PLACES, ids=NAMES)
    def test_a_row_that_is_not_finite_is_the_zero_row_and_moves_nobody_else(self, at):
        reduction, length = EVERY[at]
        values = np.random.default_rng(5).normal(size=(4, length)).round()
        for bad in (np.nan, np.inf, -np.inf):
            values[2, 0] = bad
            rows = reduction.rows(values, np.ones(4, bool))
            alone = reduction.rows(values[[0, 1, 3]], np.ones(3, bool))
            assert (rows[[0, 1, 3]] == alone).all()
            assert not rows[2].any()

    def test_sums_with_noise_are_not_added_to_one_another(self):
        made = RingSums(np.zeros(1, np.uint64), b"c" * 32)
        with pytest.raises(RunError, match="without noise"):
            made + made

    def test_a_radius_that_is_none_and_rows_of_another_length_are_refused_whatever_users_hold(self):
        for radius in (1e200, 1e-200):
            with pytest.raises(ConfigError, match="norm"):
                RingRows(counting(), NormCountSum(radius, N, SHAPE))
        for reduction, length in EVERY:
            with pytest.raises(ConfigError, match="Expected"):
                reduction.of(np.ones((1, length + 1)), np.ones(1, bool))
        with pytest.raises(ConfigError, match="kind"):
            RingRows(spec("moment", D), ClippedSum(1.0, N))
        many = ContrastSum(Contrasts(1, 10**6), NormCountSum(0.7, N, np.eye(1)))  # a matrix of 10¹² numbers
        with pytest.raises(ConfigError, match="rows of 1000000 numbers"):
            RingRows(counting(), many).of(np.ones((1, D)), np.ones(1, bool))
        with pytest.raises(ConfigError, match="may sum, got one with None"):
            RingRows(spec("clipped", D), None)

    @pytest.mark.parametrize("shape", [(3, 1), (3, 4), (3, 0), (3,)])
    def test_a_transform_that_is_not_square_is_refused_before_a_loop_reads_beyond_it(self, shape):
        moment = RoundSpec((Block("moment", 7, 1 << 28, "shaped-moment"),))
        length = RoundSpec((Block("length", 2, 1 << 28, "length"),))
        own = ShapedMomentSum(N, np.ones(shape), 1.0), LengthSum(N, np.ones(shape), 1.0)
        for made, reduction in zip((moment, length), own, strict=True):
            with pytest.raises(ConfigError, match="shape"):
                RingRows(made, reduction)


class TestAgainstTheDefinition:
    """Rows again, in a hundred digits."""

    def exact(self, values, norm):
        with localcontext() as context:
            context.prec = 100
            made = [Decimal(float(each)) for each in values]
            length = sum(each * each for each in made).sqrt()
            shrunk = min(1 / Decimal(norm), 1 / length if length else Decimal(1))
            return [each * shrunk for each in made]

    def within(self, row, units, exact, off=2e-5):
        for z, unit, number in zip(row.tolist(), units, exact, strict=True):
            reference = number * unit
            assert abs(z) <= abs(reference) + Decimal(off)
            assert abs(z) > abs(reference) - 1 - Decimal(off)
            assert z * reference >= 0

    def test_clipped_rows_are_the_clipped_vector_cut_towards_zero(self):
        values = np.random.default_rng(1).normal(size=(50, D)) * np.geomspace(1e-3, 1e3, 50)[:, None]
        rows = RingRows(spec("clipped", D), ClippedSum(0.7, N)).rows(values, np.ones(50, bool))
        for row, own in zip(rows, values, strict=True):
            self.within(row, [UNIT] * D, self.exact(own, 0.7))

    @pytest.mark.parametrize("kind", ["moment", "shaped-moment"])
    @pytest.mark.parametrize("adjacency", ADJACENCIES)
    def test_moments_are_those_of_the_clipped_factor_with_the_root_of_two_inside(self, kind, adjacency):
        values = np.random.default_rng(2).normal(size=(50, 6)) * np.geomspace(1e-3, 1e3, 50)[:, None]
        rows = RingRows(spec(kind, 7, adjacency), ShapedMomentSum(N, np.eye(D), 1.3)).rows(values, np.ones(50, bool))
        pairs = list(zip(*np.triu_indices(D), strict=True))
        own, _, _, here = (Decimal(each) for each in weights_of(adjacency, kind == "moment"))
        for row, value in zip(rows, values, strict=True):
            with localcontext() as context:
                context.prec = 100
                factor = {pair: Decimal(float(each)) for pair, each in zip(pairs, value, strict=True)}
                exact = [
                    sum(factor.get((k, i), 0) * factor.get((k, j), 0) for k in range(D))
                    * Decimal(1 + int(i != j)).sqrt()
                    for i, j in pairs
                ]
                length = max(Decimal("1.3"), sum(each * each for each in exact).sqrt())
                self.within(row, [UNIT] * 7, [*(own * each / length for each in exact), here])

    @pytest.mark.parametrize("kind", ["norm-counts", "soft-norm-counts"])
    @pytest.mark.parametrize("adjacency", ADJACENCIES)
    def test_shares_are_functions_of_the_clipped_norm_with_their_weights_inside(self, kind, adjacency):
        values = np.random.default_rng(3).normal(size=(60, D)) * np.geomspace(1e-3, 1e3, 60)[:, None]
        rows = RingRows(counting(kind, adjacency, UNIT), ClippedSum(0.7, N)).rows(values, np.ones(60, bool))
        weights = [Decimal(each) for each in weights_of(adjacency, kind.startswith("soft"))]
        for row, own in zip(rows, values, strict=True):
            with localcontext() as context:
                context.prec = 100
                unit = self.exact(own, 0.7)
                left = 1 - min(Decimal(1), sum(each * each for each in unit).sqrt())
                near = Decimal(left >= Decimal(1) / 3)
                if kind.startswith("soft"):
                    near = min(Decimal(1), (left * (4 - 3 * left)).sqrt())
                shares = [weights[1] * left, weights[2] * near, weights[3]]
                self.within(row[:D], [UNIT] * D, [weights[0] * each for each in unit])
                self.within(row[D:], [WIDE] * 3, shares, off=0.2)
