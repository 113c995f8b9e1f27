"""What clients make private by themselves, and the words that they draw for it: each keeps what it promises."""

from decimal import Decimal, localcontext

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.linalg import hadamard

from privacy import references
from quoron_client.randomisers import (
    RangeBits,
    SeededRandomness,
    SystemRandomness,
    VectorNoise,
    gaussian_steps,
    noise_scale,
    rotated_coordinates,
)
from quoron_privacy.errors import ConfigError
from quoron_privacy.noise.streams import SeededNoise

FALSE_ALARM = 1e-8  # of each statistical check; about ten here. Seeds are fixed
fast = settings(derandomize=True, deadline=None, max_examples=80)
SOURCE = SeededRandomness(4)


class TestRotatedCoordinates:
    @given(dimension=st.integers(1, 40), seed=st.integers(0, 99))
    @fast
    def test_each_is_a_coordinate_of_the_whole_rotation(self, dimension, seed):
        rng = np.random.default_rng(seed)
        values, signs = rng.normal(size=(5, dimension)), rng.choice([-1.0, 1.0], dimension)
        length = 1 << (dimension - 1).bit_length()
        at = rng.integers(0, length, 5)
        padded = np.pad(values * signs, ((0, 0), (0, length - dimension)))
        expected = (padded @ hadamard(length))[np.arange(5), at] / np.sqrt(length)
        assert rotated_coordinates(values, signs, at) == pytest.approx(expected, abs=1e-12)

    def test_a_coordinate_beyond_the_padding_is_refused(self):
        with pytest.raises(ConfigError, match=r"Expected coordinates in \[0, 4\), got 4 to 4"):
            rotated_coordinates(np.ones((1, 3)), np.ones(3), np.array([4]))


class TestRangeBits:
    @given(epsilon=st.floats(1e-6, 40.0), bins=st.integers(2, 8))
    @fast
    def test_no_report_is_more_than_epsilon_likelier_for_one_value_than_for_another(self, epsilon, bins):
        flips = RangeBits(epsilon, bins, 1.0).flips
        with localcontext() as context:
            context.prec = 80
            # Two bits differ between any two values; each is kept against flipped.
            worst = 2 * (Decimal(2**64 - flips) / flips).ln()
            assert worst <= Decimal(epsilon)
            assert worst >= Decimal(epsilon) * (1 - Decimal(2) ** -30)
        assert references.bits_epsilon(flips) == pytest.approx(epsilon, rel=1e-9)

    def test_flips_happen_exactly_below_the_threshold(self):
        bits = RangeBits(1.0, 4, 1.0)

        class Scripted:
            def words(self, *, round, users, first, size):
                return np.array([[0, bits.flips - 1, bits.flips, 2**64 - 1]] * len(users), np.uint64)

        report = bits.randomise(np.array([-1.0, 1.0]), Scripted(), round=0, users=np.arange(2))
        assert report.tolist() == [[0, 1, 0, 0], [1, 1, 0, 1]]

    def test_each_bit_is_flipped_with_its_chance(self):
        bits, users = RangeBits(1.0, 8, 1.0), np.arange(50_000)
        for source in (SOURCE, SystemRandomness()):
            ones = bits.randomise(np.full(len(users), 0.3), source, round=0, users=users).sum(axis=0)
            chance = np.full(8, bits.flips / 2**64)
            chance[5] = 1 - chance[5]
            assert (stats.binom.sf(ones, len(users), chance) > FALSE_ALARM / 16).all()
            assert (stats.binom.cdf(ones, len(users), chance) > FALSE_ALARM / 16).all()

    @pytest.mark.parametrize(
        ("value", "index"), [(-1.0, 0), (0.999, 3), (1.0, 3), (-9.0, 0), (np.inf, 3), (-np.inf, 0), (np.nan, 2), (0, 2)]
    )
    def test_every_number_has_a_bin(self, value, index):
        assert RangeBits(1.0, 4, 1.0).indices(np.array([value])).tolist() == [index]

    @pytest.mark.parametrize(
        ("epsilon", "bins", "width"), [(0.0, 4, 1.0), (41.0, 4, 1.0), (1.0, 1, 1.0), (1.0, 4, 0.0)]
    )
    def test_parameters_out_of_range_are_refused_with_their_value(self, epsilon, bins, width):
        with pytest.raises(ConfigError, match="Expected"):
            RangeBits(epsilon, bins, width)


class TestGaussianSteps:
    def test_the_client_draws_what_the_server_draws(self):
        words = SeededNoise(9).stream("x").words(3 * 2000)

        class Same:
            def words(self, *, round, users, first, size):
                return words[first : first + size].reshape(1, size)

        class Stream:
            used = 0

            def draw(self, size):
                self.used += size
                return words[self.used - size : self.used].copy()

        from quoron_privacy.noise.streams import RandomStream

        drawn = gaussian_steps(500, Same(), round=0, users=np.arange(1))[0]
        assert np.array_equal(drawn, RandomStream(Stream().draw).gaussian_steps(500))

    def test_steps_follow_the_normal_law(self):
        for source in (SOURCE, SystemRandomness()):
            steps = gaussian_steps(5, source, round=0, users=np.arange(20_000)) * 2.0**-30
            assert stats.kstest(steps.ravel(), "norm").pvalue > FALSE_ALARM

    @given(users=st.lists(st.integers(0, 10**6), min_size=1, max_size=5, unique=True), dimension=st.integers(1, 40))
    @fast
    def test_a_row_does_not_depend_on_the_batch(self, users, dimension):
        whole = gaussian_steps(dimension, SOURCE, round=1, users=np.array(users))
        alone = gaussian_steps(dimension, SOURCE, round=1, users=np.array(users[-1:]))
        assert np.array_equal(whole[-1:], alone)

    def test_a_shortfall_is_topped_up_from_later_words(self):
        class Poor:
            def words(self, *, round, users, first, size):
                good = SOURCE.words(round=round, users=users, first=first, size=size)
                return np.full_like(good, 2**64 - 1) if first == 0 else good

        steps = gaussian_steps(4, Poor(), round=0, users=np.arange(3))
        assert np.abs(steps).max() < 10 << 30
        assert len(np.unique(steps)) == 12


class TestNoiseScale:
    @given(epsilon=st.floats(0.02, 8), log_delta=st.floats(-9, -1), dimension=st.integers(1, 2000))
    @fast
    def test_the_server_finds_the_clients_noise_enough_and_not_too_much(self, epsilon, log_delta, dimension):
        delta = 10**log_delta
        scale = noise_scale(radius=0.7, epsilon=epsilon, delta=delta, dimension=dimension)
        assert references.vector_delta(radius=0.7, scale=scale, dimension=dimension, epsilon=epsilon) <= delta
        less = references.vector_delta(radius=0.7, scale=scale * 0.9999, dimension=dimension, epsilon=epsilon)
        assert less > delta * (1 - 1e-6)

    @pytest.mark.parametrize(
        "change", [{"epsilon": 16.0}, {"delta": 1e-13}, {"radius": 0.0}, {"epsilon": 14, "dimension": 0}]
    )
    def test_what_cannot_be_promised_is_refused(self, change):
        with pytest.raises(ConfigError, match="Expected"):
            noise_scale(**{"radius": 1.0, "epsilon": 1.0, "delta": 1e-6, "dimension": 3, **change})


class TestVectorNoise:
    NOISE = VectorNoise(1.0, 1e-6, 1.0)

    def report(self, values, centre=None, users=None):
        values = np.asarray(values, float)
        centre = np.zeros(values.shape[1]) if centre is None else centre
        users = np.arange(len(values)) if users is None else users
        return self.NOISE.randomise(values, centre, SOURCE, round=2, users=users)

    def difference(self, values, **keywords):
        """What was added to the noise of the same user."""
        return self.report(values, **keywords) - self.report(np.zeros_like(values), **keywords)

    @given(size=st.floats(1e-6, 1e300), axes=st.integers(1, 4), direction=st.integers(0, 1000))
    @fast
    def test_no_two_values_are_more_than_two_radii_apart_before_noise(self, size, axes, direction):
        towards = np.random.default_rng(direction).normal(size=4) * (np.arange(4) < axes)
        value = size * towards / np.linalg.norm(towards)
        found = self.difference(value[None])
        assert np.linalg.norm(found) <= 1 + 1e-6
        assert found[0] == pytest.approx(value * min(1, 1 / size), abs=1e-6)

    @pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
    def test_a_value_that_is_not_finite_is_reported_like_the_centre(self, bad):
        values = np.array([[bad, 1.0], [0.2, 0.1]])
        assert np.array_equal(self.report(values)[0], self.report(np.zeros((2, 2)))[0])

    def test_reports_have_the_promised_noise(self):
        report = self.report(np.zeros((20_000, 3))) / self.NOISE.scale(3)
        assert stats.kstest(report.ravel(), "norm").pvalue > FALSE_ALARM

    def test_a_centre_of_another_shape_is_refused(self):
        with pytest.raises(ConfigError, match="Expected a finite centre"):
            self.report(np.zeros((1, 3)), centre=np.zeros(2))


USERS = st.lists(st.integers(0, 2**40), min_size=1, max_size=6, unique=True).map(np.array)


def philox(counter, key):
    """Philox4x32-10, as published."""
    c, k = list(counter), list(key)
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(p1 >> 32) ^ c[1] ^ k[0], p1 & 0xFFFFFFFF, (p0 >> 32) ^ c[3] ^ k[1], p0 & 0xFFFFFFFF]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return c


class TestSeededRandomness:
    @given(users=USERS, first=st.integers(0, 9), size=st.integers(1, 9))
    @fast
    def test_a_word_depends_on_user_and_position_alone(self, users, first, size):
        source = SeededRandomness(3)
        whole = source.words(round=2, users=users, first=0, size=20)
        part = source.words(round=2, users=users[::-1], first=first, size=size)
        assert np.array_equal(part, whole[::-1, first : first + size])

    def test_the_generator_is_the_published_one(self):
        assert philox([0] * 4, [0] * 2) == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
        from quoron_client.randomisers import fill_words

        key, user, out = 0x0123456789ABCDEF, 0xFEDCBA98_00000007, np.empty((1, 4), np.uint64)
        fill_words(np.uint64(key), np.array([user], np.uint64).view(np.int64), 2, out)
        for block in (1, 2):
            c = philox([block, 0, user & 0xFFFFFFFF, user >> 32], [key & 0xFFFFFFFF, key >> 32])
            assert out[0, 2 * block - 2 : 2 * block].tolist() == [c[0] | c[1] << 32, c[2] | c[3] << 32]


class TestSystemRandomness:
    def test_no_word_comes_twice_even_for_the_same_labels(self):
        source = SystemRandomness()
        words = [source.words(round=0, users=np.arange(3), first=0, size=40) for _ in range(3)]
        assert len(np.unique(words)) == 3 * 3 * 40

    def test_two_clients_have_different_words_and_print_no_key(self):
        one, two = (SystemRandomness().words(round=0, users=np.arange(1), first=0, size=9) for _ in range(2))
        assert not np.intersect1d(one, two).size
        assert repr(SystemRandomness()) == "SystemRandomness()"

    @pytest.mark.parametrize("source", [SeededRandomness(7), SystemRandomness()], ids=["seeded", "system"])
    def test_every_bit_of_a_word_is_fair(self, source):
        words = source.words(round=1, users=np.arange(1000), first=0, size=20).ravel()
        ones = ((words[:, None] >> np.arange(64, dtype=np.uint64)) & np.uint64(1)).sum(axis=0)
        assert stats.binom.sf(ones.max(), words.size, 0.5) > FALSE_ALARM / 64
        assert stats.binom.cdf(ones.min(), words.size, 0.5) > FALSE_ALARM / 64
