"""Rows that say who answers for nothing: the distances of free-presence#p1 to #p3, on the grid, and estimates."""

from fractions import Fraction
from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from audits.harness import Still
from one_epoch_reference import strategy
from quoron_privacy.errors import ConfigError
from quoron_privacy.gaussian import GaussianNoise
from quoron_privacy.means import free_counts
from quoron_privacy.means.clipping import ClippedSum
from quoron_privacy.means.clipping_loops import soft_share, whitened
from quoron_privacy.means.free_counts import COLUMN_PRESENCE as HERE
from quoron_privacy.means.free_counts import (
    ColumnMean,
    ColumnSum,
    LengthSum,
    LogLength,
    MomentMean,
    NormCountMean,
    NormCountSum,
    PrefixNormCounts,
    ShapedMomentSum,
    column_sensitivity,
    length_sums,
)
from quoron_privacy.noise.streams import SeededNoise
from quoron_privacy.release import packed, sum_bits

ADJACENCIES = ("replace-one", "zero-out")
ONE = np.ones(1, bool)


def tail_row(values, adjacency="replace-one", radius=1.0, transform=None, centre=None, soft=False):
    """One user's weighted row, as it is added: n = 1."""
    seen = []
    mechanism = NormCountMean.for_mu(dimension=len(values), users=1, mu=1.0, adjacency=adjacency, soft=soft)
    eye = np.eye(len(values)) if transform is None else transform
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GaussianNoise, "release", lambda _, value, stream: seen.append(value) or value)
        zero = np.zeros(len(values)) if centre is None else centre
        mechanism.release(NormCountSum(radius, 1, eye, zero).of(np.array([values]), ONE), Still())
    return seen[0]


def moment_row(factor, dimension, adjacency="replace-one", radius=1.0, transform=None, presence=True):
    seen = []
    mechanism = MomentMean.for_mu(dimension=dimension, users=1, mu=1.0, adjacency=adjacency, presence=presence)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GaussianNoise, "release", lambda _, value, stream: seen.append(value) or value)
        eye = np.eye(dimension) if transform is None else transform
        mechanism.release(ShapedMomentSum(1, eye, radius).of(np.array([factor]), ONE), radius, Still())
    return seen[0]


def length_row(logarithm, top=1.0):
    seen = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GaussianNoise, "release", lambda _, value, stream: seen.append(value) or value)
        LogLength.for_mu(users=1, mu=1.0).release(length_sums(np.array([logarithm]), ONE, top, 1), Still())
    return seen[0]


def exact_square(one, other):
    return sum((Fraction(float(a)) - Fraction(float(b))) ** 2 for a, b in zip(one, other, strict=True))


SIZES = (0.0, 1e-300, 1e-200, 1e-9, 0.1, 0.5, 2 / 3, 0.9, 1.0, 1.5, 1e9, 1e200, 1.7e308)
NEAR = (1 - 1e-9, 1 - 2**-52, 1.0, 1 + 2**-52, 1 + 1e-9)
EXTREME = st.sampled_from([0.0, -0.0, 5e-324, 1e-200, 1.0, -1.0, 1e200, 1.7e308, np.inf, -np.inf, np.nan])
NUMBERS = st.one_of(st.floats(-2, 2), EXTREME)


@given(st.integers(1, 9), st.integers(1, 20), st.integers(1, 20), st.integers(1, 3), st.integers(0, 2**32))
def test_several_whitened_rows_have_the_bits_of_one_sum_after_the_other(users, length, width, parts, seed):
    draw = np.random.default_rng(seed)
    values, transform = draw.normal(size=(users, parts * length)), draw.normal(size=(length, width))
    centre, found = draw.normal(size=parts * width), np.empty((users, parts * width))
    whitened(values, transform, centre, found)
    expected = np.tile(-centre, (users, 1)).reshape(users, parts, width)
    for number in range(length):
        expected += values.reshape(users, parts, length)[:, :, number, None] * transform[number]
    np.testing.assert_array_equal(found, expected.reshape(users, -1))


@given(st.integers(1, 20), st.integers(1, 20), st.integers(0, 2**32))
def test_factors_without_their_last_rows_of_zeros_are_read_as_those_with_them(dimension, rows, seed):
    draw, few = np.random.default_rng(seed), packed(dimension, min(rows, dimension))
    short = draw.normal(size=(5, few)) * draw.choice([0.0, 1.0, 1e200], size=(5, 1))
    whole = np.pad(short, ((0, 0), (0, packed(dimension) - few)))
    transform, windows = draw.normal(size=(dimension, dimension)), np.array([[0.1] * dimension, [0.5] * dimension])
    for sums in (
        ShapedMomentSum(5, transform, 2.0),
        LengthSum(5, transform, 1.0),
        ColumnSum(5, windows, 1.0, constant=False),
    ):
        one, other = (sums.of(factors, np.ones(5, bool)) for factors in (short, whole))
        np.testing.assert_array_equal(one.total, other.total)
        np.testing.assert_array_equal(one.cells, other.cells)
        for wrong in (short[:, : few - 1], np.pad(whole, ((0, 0), (0, 1)))):
            if wrong.shape[1] not in {packed(dimension, number) for number in range(1, dimension + 1)}:
                with pytest.raises(ConfigError, match="rows of"):
                    sums.of(wrong, np.ones(5, bool))


class TestNormCountMean:
    """free-presence#p3."""

    @pytest.mark.parametrize("soft", [False, True])
    @pytest.mark.parametrize("adjacency", ADJACENCIES)
    def test_all_pairs_of_corners_are_within_the_sensitivity_in_exact_arithmetic(self, adjacency, soft):
        rows = [np.zeros(5)]
        for direction in ([1.0, 0.0], [-1.0, 0.0], [0.6, 0.8]):
            for size in SIZES:
                for near in NEAR:
                    with np.errstate(over="ignore", under="ignore"):
                        rows.append(tail_row(size * near * np.array(direction), adjacency, soft=soft))
        bound = Fraction(GaussianNoise(1.0, 1.0).sensitivity * (2 if adjacency == "replace-one" else 1)) ** 2
        bound *= Fraction(1 + 1e-12) ** 2
        if adjacency == "replace-one":
            worst = max(exact_square(one, other) for one, other in combinations(rows, 2))
            assert worst <= bound
            assert float(worst) > 4 - 1e-6  # nothing is wasted
        else:
            assert max(exact_square(one, rows[0]) for one in rows) <= bound
            assert float(max(exact_square(one, rows[0]) for one in rows)) > 1 - 1e-6

    def test_whole_numbers_of_the_grid_never_exceed_four(self):
        """The claim itself, in integers: c of any length up to a' = 1 - q/2ᵇ, indicator 3 q >= 2ᵇ, tail √2 q/2ᵇ."""
        for unit in (4, 16, 27):
            for q in range(unit + 1):
                for r in range(unit + 1):
                    a, b = 1 - Fraction(q, unit), 1 - Fraction(r, unit)
                    apart = (a + b) ** 2 + 2 * (Fraction(q - r, unit)) ** 2 + ((3 * q >= unit) != (3 * r >= unit))
                    assert apart <= 4
                nobody = (1 - Fraction(q, unit)) ** 2 + 2 * Fraction(q, unit) ** 2 + (3 * q >= unit) + 1
                assert nobody <= 4

    def test_whole_numbers_of_the_grid_never_exceed_four_with_a_soft_share(self):
        """As above, h any whole number whose square is at most min(1, (1 - a') (1 + 3 a')): that of `soft_share`."""
        for unit in (16, 27, 64):
            soft = [int(soft_share(q, float(unit))) for q in range(unit + 1)]
            for q, h in enumerate(soft):
                a = 1 - Fraction(q, unit)
                assert 0 <= Fraction(h, unit) ** 2 <= min(1, (1 - a) * (1 + 3 * a))
                assert min(1, (1 - a) * (1 + 3 * a)) ** 0.5 - h / unit <= 1 / unit + 1e-9
                for r, g in enumerate(soft):
                    b = 1 - Fraction(r, unit)
                    assert (a + b) ** 2 + 2 * (a - b) ** 2 + Fraction(h - g, unit) ** 2 <= 4
                assert a**2 + 2 * (1 - a) ** 2 + Fraction(h, unit) ** 2 + 1 <= 4
                assert a**2 + (1 - a) ** 2 / 2 + Fraction(h, unit) ** 2 / 2 <= 1

    def test_means_are_those_of_the_slow_obvious_way(self):
        rng = np.random.default_rng(3)
        values, answered = rng.normal(size=(40, 3)), rng.random(40) < 0.8
        values[5, 1] = np.nan
        transform, centre, radius = rng.normal(size=(3, 3)), rng.normal(size=3), 2.0
        for adjacency in ADJACENCIES:
            mechanism = NormCountMean.for_mu(dimension=3, users=40, mu=1.0, adjacency=adjacency)
            found = mechanism.release(NormCountSum(radius, 40, transform, centre).of(values, answered), Still())
            expected, beyond, within, here = np.zeros(3), 0.0, 0, 0
            for value, there in zip(values, answered, strict=True):
                v = value @ transform - centre
                if there and np.isfinite(v).all():
                    c = v / max(radius, np.linalg.norm(v))
                    a = np.linalg.norm(c)
                    expected, beyond, within, here = expected + c, beyond + 1 - a, within + (a <= 2 / 3), here + 1
            np.testing.assert_allclose(found.mean, expected / 40, atol=1e-8)
            np.testing.assert_allclose(
                (found.beyond, found.within, found.presence), np.array([beyond, within, here]) / 40, atol=1e-7
            )

    def test_a_threshold_of_three_quarters_would_exceed_it(self):
        unit, worst = 16, Fraction(0)
        for q in range(unit + 1):
            for r in range(unit + 1):
                a, b = 1 - Fraction(q, unit), 1 - Fraction(r, unit)
                apart = (a + b) ** 2 + 2 * (a - b) ** 2 + ((4 * q >= unit) != (4 * r >= unit))
                worst = max(worst, apart)
        assert worst > 4.18

    def test_a_share_of_all_that_are_not_clipped_would_exceed_it(self):
        assert (1 + 1) ** 2 + 1 > 4.9  # a = 1, and just below it, opposite

    @settings(max_examples=100, deadline=None)
    @given(st.lists(NUMBERS, min_size=3, max_size=3), st.lists(NUMBERS, min_size=3, max_size=3), st.floats(1e-3, 1e3))
    def test_any_two_users_are_within_two_and_any_one_within_two_of_nobody(self, one, other, radius):
        for soft in (False, True):
            first, second = (tail_row(np.array(each), radius=radius, soft=soft) for each in (one, other))
            assert exact_square(first, second) <= 4 * (1 + Fraction(1, 10**12))
            assert exact_square(first, np.zeros(6)) <= 4 * (1 + Fraction(1, 10**12))
            zero_out = tail_row(np.array(one), "zero-out", radius=radius, soft=soft)
            assert exact_square(zero_out, np.zeros(6)) <= 1 + Fraction(1, 10**12)


class TestMomentMean:
    """free-presence#p2."""

    @settings(max_examples=80, deadline=None)
    @given(
        st.lists(NUMBERS, min_size=6, max_size=6),
        st.lists(NUMBERS, min_size=6, max_size=6),
        st.floats(1e-3, 1e3),
        st.just(np.eye(3)) | st.integers(0, 2**32).map(lambda seed: np.random.default_rng(seed).normal(size=(3, 3))),
    )
    def test_any_two_users_are_within_root_two_and_any_one_of_nobody(self, one, other, radius, transform):
        first, second = (moment_row(np.array(each), 3, radius=radius, transform=transform) for each in (one, other))
        limit = Fraction(MomentMean.for_mu(dimension=3, users=1, mu=1.0)._gaussian.sensitivity) ** 2
        assert exact_square(first, second) <= limit
        assert exact_square(first, np.zeros(7)) <= limit
        zero_out = MomentMean.for_mu(dimension=3, users=1, mu=1.0, adjacency="zero-out")
        for presence in (True, False):
            row = moment_row(np.array(one), 3, "zero-out", radius, transform, presence)
            assert exact_square(row, np.zeros(7)) <= Fraction(zero_out._gaussian.sensitivity) ** 2

    def test_a_server_that_trusts_raw_matrices_is_twice_the_radius_off(self):
        # the twin: symmetrise and clip, as if every client sent a positive matrix
        def trusting(matrix):
            matrix = (matrix + matrix.T) / 2
            return matrix * min(1.0, 1.0 / np.linalg.norm(matrix))

        sent, mechanism = np.diag([9.0, 0.0, 0.0]), MomentMean.for_mu(dimension=3, users=1, mu=1.0)
        assert np.linalg.norm(trusting(sent) - trusting(-sent)) > 1.4 * mechanism._gaussian.sensitivity
        # the same numbers sent as factors are at most √2 apart: here not at all
        one, two = (moment_row(each[np.triu_indices(3)], 3) for each in (sent, -sent))
        assert np.array_equal(one, two)

    def test_without_presence_zero_out_has_the_noise_of_replace_one_over_root_two_and_no_less(self):
        sizes = {"dimension": 5, "users": 100, "mu": 0.5}
        replaced, left_out = (
            MomentMean.for_mu(**sizes),
            MomentMean.for_mu(**sizes, adjacency="zero-out", presence=False),
        )
        assert left_out.scale * np.sqrt(2) == pytest.approx(replaced.scale, rel=1e-12)
        assert left_out.presence_deviation == np.inf
        halved = MomentMean(5, 100, "zero-out", replaced.scale / 2, presence=False)
        assert halved.effective_mu == pytest.approx(np.sqrt(2) * 0.5, rel=1e-6)

    def test_the_noise_has_variance_s_squared_on_the_diagonal_and_half_of_it_off(self):
        noise, stream = MomentMean(20, 10, "replace-one", 0.5), SeededNoise(5).stream("law")
        nobody = ShapedMomentSum(10, np.eye(20), 1.0).of(np.zeros((1, 210)), np.zeros(1, bool))
        draws = np.array([noise.release(nobody, 1.0, stream).mean for _ in range(2000)])
        assert np.array_equal(draws, draws.swapaxes(1, 2))
        diagonal = draws[:, np.arange(20), np.arange(20)].ravel() / 0.5
        off = draws[(slice(None), *np.triu_indices(20, 1))].ravel() / 0.5
        for sample, variance in ((diagonal, 1.0), (off, 0.5)):
            # six standard errors: false alarm 4e-9 each
            assert abs(sample.mean()) < 6 * np.sqrt(variance / len(sample))
            assert abs(sample.var() / variance - 1) < 6 * np.sqrt(2 / len(sample))
        pairs = [np.corrcoef(draws[:, 0, 1], draws[:, i, j])[0, 1] for i, j in ((0, 0), (0, 2), (1, 1), (1, 2))]
        assert np.abs(pairs).max() < 6 / np.sqrt(2000)

    def test_sums_over_the_identity_are_those_of_any_other_transform_to_the_bit(self):
        """The loop reads no product with it: here it is an identity only up to a column that no factor reaches."""
        factors = np.random.default_rng(4).normal(size=(50, 55)) * np.geomspace(1e-3, 1e3, 50)[:, None]
        factors[:, [0, 10, 19, *range(19, 55)]] *= np.arange(50)[:, None] % 2
        factors[:, np.triu_indices(10)[1] == 9] = 0.0
        almost = np.eye(10)
        almost[9, 9] = 2.0
        one, other = (ShapedMomentSum(50, each, 1.0).of(factors, np.ones(50, bool)) for each in (np.eye(10), almost))
        assert np.array_equal(one.total, other.total)

    def test_means_are_those_of_the_slow_obvious_way(self):
        rng = np.random.default_rng(3)
        factors, answered, transform = rng.normal(size=(30, 6)), rng.random(30) < 0.8, rng.normal(size=(3, 3))
        factors[4] = np.inf
        for adjacency in ADJACENCIES:
            mechanism = MomentMean.for_mu(dimension=3, users=30, mu=1.0, adjacency=adjacency)
            found = mechanism.release(ShapedMomentSum(30, transform, 2.0).of(factors, answered), 2.0, Still())
            total, here = np.zeros((3, 3)), 0
            for factor, there in zip(factors, answered, strict=True):
                if there and np.isfinite(factor).all():
                    upper = np.zeros((3, 3))
                    upper[np.triu_indices(3)] = factor
                    moment = transform.T @ upper.T @ upper @ transform
                    total, here = total + moment * min(1, 2.0 / np.linalg.norm(moment)), here + 1
            np.testing.assert_allclose(found.mean, total / 30, atol=1e-7)
            assert found.presence == pytest.approx(here / 30, abs=1e-7)

    def test_orthogonal_moments_are_as_far_apart_as_claimed(self):
        first, second = moment_row(np.array([5.0, 0, 0]), 2), moment_row(np.array([0, 0, 5.0]), 2)
        assert float(exact_square(first, second)) == pytest.approx(2, rel=1e-9)
        assert float(exact_square(first, np.zeros(4))) == pytest.approx(2, rel=1e-9)


class TestLogLength:
    """free-presence#p1."""

    @settings(max_examples=80, deadline=None)
    @given(NUMBERS, NUMBERS, st.floats(1e-9, 1e9))
    def test_any_two_users_are_within_one_and_any_one_of_nobody(self, one, other, top):
        first, second = length_row(one, top), length_row(other, top)
        assert exact_square(first, second) <= 1
        assert exact_square(first, (0.0, 0.0)) <= 1


def test_weights_are_below_what_the_proofs_allow():
    for adjacency, allowed in (
        ("replace-one", (1, 2, 1, 1)),
        ("zero-out", (Fraction(9, 10), Fraction(9, 20), Fraction(9, 20), Fraction(1, 10))),
    ):
        for weight, most in zip(free_counts.WEIGHTS[adjacency], allowed, strict=True):
            assert Fraction(weight) ** 2 <= most
    assert Fraction(free_counts.HERE) ** 2 <= Fraction(3, 4)


class TestPrefixNormCounts:
    """free-presence#p4."""

    @pytest.mark.parametrize("factorisation", ["blt", "banded", "tree"])
    @pytest.mark.parametrize("adjacency", ADJACENCIES)
    def test_a_user_of_any_round_moves_what_is_released_by_at_most_mu(self, adjacency, factorisation):
        made = PrefixNormCounts.for_mu(
            dimension=2, users=5, mu=0.7, rounds=6, factorisation=factorisation, adjacency=adjacency
        )
        assert made.effective_mu <= 0.7
        assert made.prefix.column_norm >= 1  # the grid's part of the proof
        matrix, quiet = strategy(factorisation, 6), made.scale / made.prefix.column_norm
        sizes = [0.0, 0.3, 2 / 3 * (1 - 1e-9), 0.7, 1.0]
        sums = [ClippedSum(1.0, 5).of(np.array([[sign * a, 0.0]]), ONE) for sign in (1, -1) for a in sizes]
        rows = [free_counts.weighted_row(each, 5, free_counts.WEIGHTS[adjacency]) for each in sums]
        others = [np.zeros(5)] if adjacency == "zero-out" else [np.zeros(5), *rows]
        worst = 0.0
        for u in range(6):
            for moved in (one - other for one in rows for other in others):
                column = np.linalg.norm(matrix[:, u]) * np.linalg.norm(moved[:2]) / made.scale
                worst = max(worst, np.hypot(column, np.linalg.norm(moved[2:]) / quiet))
        assert 0.7 * (1 - 1e-4) <= worst <= 0.7


NUMBERS_OF_ROWS = st.one_of(st.floats(-3, 3), st.sampled_from([0.0, 1.0, -1.0, 1e-160, 1e160, 1e308, np.inf, np.nan]))


def factor(items):
    """(d (d + 1) / 2,) of the mean of a aᵀ over rows a."""
    upper = np.linalg.qr(np.vstack([items, np.zeros((len(items[0]), len(items[0])))]) / np.sqrt(len(items)))[1]
    return upper[np.triu_indices(len(upper))]


def row(values, windows, constant, answered=True):
    """One user's weighted row, as it is added, n = 1: its numbers, and whether it is here."""
    sums = ColumnSum(1, windows, 1.0, constant).of(np.array([values]), np.array([answered]))
    return np.append(sums.total / 2.0 ** sum_bits(1, 1), HERE * sums.cells[0])


@st.composite
def two_users(draw):
    k, constant = draw(st.integers(1, 3)), draw(st.booleans())
    numbers = packed(k + constant)
    users = [draw(st.lists(NUMBERS_OF_ROWS, min_size=numbers, max_size=numbers)) for _ in range(2)]
    centres = draw(st.lists(st.floats(-1, 1), min_size=k, max_size=k))
    halves = draw(st.lists(st.sampled_from([1e-9, 0.1, 1.0]), min_size=k, max_size=k))
    return users, np.array([centres, halves]), constant


@settings(max_examples=100, deadline=None)
@given(two_users())
def test_any_two_users_are_within_one_and_any_one_of_nobody(both):
    (one, other), windows, constant = both
    with np.errstate(all="ignore"):
        first, second = row(one, windows, constant), row(other, windows, constant)
    most = column_sensitivity(windows.shape[1], 1)
    assert np.linalg.norm(first - second) <= most
    assert max(np.linalg.norm(first), np.linalg.norm(second)) <= most


def test_means_are_those_of_the_slow_obvious_way():
    rng, users = np.random.default_rng(1), 40
    numbers = [rng.uniform(-1, 1, (rng.integers(1, 5), 3)) for _ in range(users)]
    tables = [np.column_stack([own, np.ones(len(own))]) for own in numbers]
    tables[0][:, 1], tables[1][:, 2], tables[2][:, 0] = -1.0, 0.0, 1.0
    windows, answered = np.array([[0.2, -0.1, 0.0], [0.3, 2.0, 0.5]]), rng.random(users) < 0.8
    mechanism = ColumnMean.for_mu(columns=3, users=users, mu=1.0)
    factors = np.array([factor(own) for own in tables])
    found = mechanism.release(ColumnSum(users, windows, 1.0, True).of(factors, answered), Still())
    off = [(own[:, :3] - windows[0]) / windows[1] for own, here in zip(tables, answered, strict=True) if here]
    spreads = np.minimum([np.sqrt(np.mean(each**2, axis=0)) for each in off], 1)
    here = [own[:, :3] for own, there in zip(tables, answered, strict=True) if there]
    np.testing.assert_allclose(found.mean, np.clip([each.mean(axis=0) for each in off], -1, 1).sum(axis=0) / users)
    np.testing.assert_allclose(found.spread, spreads.sum(axis=0) / users)
    np.testing.assert_allclose(found.square, (spreads**2).sum(axis=0) / users)
    still = [[np.all(own == place, axis=0) for own in here] for place in (-1, 0, 1)]
    np.testing.assert_allclose(found.still, np.sum(still, axis=1) / users, atol=1e-12)
    assert found.presence == pytest.approx(answered.mean())


@pytest.mark.parametrize("make", [
    lambda **more: LogLength.for_mu(users=50, **more),
    lambda **more: MomentMean.for_mu(dimension=3, users=50, **more),
    lambda **more: MomentMean.for_mu(dimension=3, users=50, adjacency="zero-out", **more),
    lambda **more: NormCountMean.for_mu(dimension=3, users=50, **more),
    lambda **more: NormCountMean.for_mu(dimension=3, users=50, adjacency="zero-out", **more),
])  # fmt: skip
def test_the_noise_is_the_least_that_keeps_mu(make):
    mechanism = make(mu=0.3)
    assert 0.2999 < mechanism.effective_mu <= 0.3
    assert mechanism.entry().parameters["scale"] > 0


def test_pairs_of_corners_are_as_far_apart_as_claimed_and_none_is_farther():
    """Of one column: opposite ends, and an end against the middle with everybody's items at it, are at 1."""
    whole = np.array([[0.0], [1.0]])
    ends = [row(factor([[x, 1.0]]), whole, True) for x in (-1.0, 0.0, 1.0)]
    for one, other in pairwise(ends):
        assert np.linalg.norm(one - other) == pytest.approx(1, rel=1e-12)
    assert np.linalg.norm(ends[0] - ends[2]) == pytest.approx(1, rel=1e-12)
    assert np.linalg.norm(ends[0]) == pytest.approx(1, abs=1e-6)  # and from nobody
    grid = np.linspace(0, 1, 101)
    near, far = np.meshgrid(grid, grid)
    apart = (near + far) ** 2 + 1.5 * (near - far) ** 2 + 1.5 * (near**2 - far**2) ** 2
    assert apart.max() <= 4 + 1e-12
