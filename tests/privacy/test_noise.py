"""The noise source: streams that repeat and never overlap, samplers that follow their laws on the grid."""

import itertools
import threading
from bisect import bisect_left, bisect_right
from decimal import Decimal, localcontext
from fractions import Fraction
from hashlib import blake2b

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from quoron_privacy.errors import RunError
from quoron_privacy.noise.samplers import (
    ascending,
    below,
    bin_levels,
    gaussian_bins,
    gaussian_tables,
    laplace_digits,
    propose_gaussian,
    settle_gaussian,
)
from quoron_privacy.noise.streams import (
    GAUSSIAN_SLACK,
    LAPLACE_SLACK,
    NoiseAhead,
    RandomStream,
    SecureNoise,
    SeededNoise,
    StartedNoise,
    _encode,
    total_variation,
)

FALSE_ALARM = 1e-8  # of each statistical check below; about 40 checks, so below 1e-6 in all. Seeds are fixed
SOURCES = [SeededNoise(11), SecureNoise(bytes(range(32)))]
LABELS = st.lists(st.one_of(st.text(max_size=5), st.integers()), max_size=4).map(tuple)
sources = pytest.mark.parametrize("source", SOURCES, ids=["seeded", "secure"])
fast = settings(derandomize=True, deadline=None, max_examples=50)


def fits(observed, expected):
    """Chi-square against exact cell probabilities."""
    expected = np.asarray(expected) * observed.sum()
    return stats.chi2.sf(((observed - expected) ** 2 / expected).sum(), len(expected) - 1) > FALSE_ALARM


def scripted(*words):
    """A stream of given words, then of rejected Gaussian proposals."""
    left = list(words)

    def draw(size):
        taken, left[:] = left[:size], left[size:]
        return np.array(taken + [2**64 - 1] * (size - len(taken)), np.uint64)

    return RandomStream(draw)


def proposed(which, inside, coin):
    """(accepted, step, sure) of three words."""
    return propose_gaussian(np.uint64(which), np.uint64(inside), np.uint64(coin), gaussian_tables())


class TestStreams:
    def test_seeded_words_are_philox_under_the_hash_of_seed_and_labels(self):
        key = blake2b(_encode(11, "release", 3), digest_size=16, person=b"quoron-seeded").digest()
        philox = np.random.Philox(key=int.from_bytes(key, "little"))
        assert np.array_equal(SOURCES[0].stream("release", 3).words(9), philox.random_raw(9))

    @sources
    def test_a_stream_does_not_depend_on_how_it_is_cut(self, source):
        cut, whole = source.stream("x"), source.stream("x")
        pieces = np.concatenate([cut.words(n) for n in (3, 0, 1, 13, 500)])
        assert np.array_equal(pieces, whole.words(517))

    @given(one=LABELS, other=LABELS)
    @fast
    def test_different_labels_give_different_bits(self, one, other):
        for source in SOURCES:
            equal = np.array_equal(source.stream(*one).words(4), source.stream(*other).words(4))
            assert equal == (one == other)

    def test_different_keys_give_different_bits(self):
        streams = [
            source.stream("x") for source in (*SOURCES, SeededNoise(12), SecureNoise(b"k" * 32), SecureNoise.fresh())
        ]
        words = np.array([stream.words(4) for stream in streams])
        assert len(np.unique(words)) == words.size


class TestKeys:
    def test_a_seeded_source_refuses_deployment(self):
        with pytest.raises(RunError, match="Expected cryptographic noise, got SeededNoise"):
            SeededNoise(1).require_deployable()

    def test_a_resumed_source_continues_with_identical_noise(self):
        source = SecureNoise.fresh()
        resumed = SecureNoise(source.export_key())
        assert np.array_equal(source.stream("a", 1).gaussian_steps(100), resumed.stream("a", 1).gaussian_steps(100))
        assert source.fingerprint() == resumed.fingerprint()
        assert np.array_equal(SeededNoise(int(SOURCES[0].export_key())).stream().words(3), SOURCES[0].stream().words(3))

    def test_fingerprints_tell_keys_apart_and_do_not_hold_them(self):
        names = [SecureNoise(bytes([i] * 32)).fingerprint() for i in range(1, 51)] + [SeededNoise(5).fingerprint()]
        assert len(set(names)) == 51
        assert bytes([7] * 8).hex() not in names[6]

    def test_the_key_is_not_printed(self):
        assert repr(SecureNoise(b"\x41" * 32)) == "SecureNoise()"


class TestGaussianSteps:
    @sources
    def test_it_follows_the_normal_law(self, source):
        z = (source.stream("law").gaussian_steps(1_000_000) + 0.5) * 2.0**-30
        cells = np.searchsorted(stats.norm.ppf(np.arange(1, 200) / 200), z)
        assert fits(np.bincount(cells, minlength=200), np.full(200, 1 / 200))
        limit = stats.norm.isf(FALSE_ALARM / 2)
        moments = [(z, 1), (z**2 - 1, np.sqrt(2)), (z**3, np.sqrt(15)), (z**4 - 3, np.sqrt(96))]
        for moment, deviation in moments:
            assert abs(moment.mean()) * 1000 / deviation < limit
        assert abs((z[1:] * z[:-1]).mean()) * 1000 < limit
        for beyond in (3.0, 4.0, 4.5):
            tail = 2 * stats.norm.sf(beyond)
            assert stats.binomtest(int((abs(z) > beyond).sum()), len(z), tail).pvalue > FALSE_ALARM

    def test_it_follows_the_normal_law_inside_the_proposal_bins(self):
        z = (SOURCES[0].stream("inside").gaussian_steps(1_000_000) + 0.5) * 2.0**-30
        edges = np.linspace(-2.0, 2.0, 4 * 16 * 8 + 1)  # eight cells in each bin of width 1/16
        observed = np.histogram(z, edges)[0]
        assert fits(observed, np.diff(stats.norm.cdf(edges)) / np.diff(stats.norm.cdf([-2, 2])))

    def test_negative_values_round_down_like_positive_ones(self):
        kept = (2**63) | (1 << 38)  # half a bin plus one step, sign bit clear
        up = scripted(0, kept, 0).gaussian_steps(1)[0]
        down = scripted(0, kept + 1, 0).gaussian_steps(1)[0]
        assert (up, down) == (2**25 + 1, -(2**25 + 1) - 1)

    def test_words_and_what_settles_them_give_each_bin_its_exact_chance(self):
        """All 2⁶⁴ words, in rational arithmetic: sure ones for their bin, those at a threshold by 128 bits more."""
        with localcontext() as context:
            context.prec = 120
            heights = [(-Decimal(k * k) / 512).exp() for k in range(400)]
            exact = [Fraction(height / sum(heights)) for height in heights]
        levels = [Fraction(level) for level in bin_levels()]
        bins, chance = [int(level) for level in gaussian_bins()], [Fraction(0)] * 256
        for k, (last, at) in enumerate(itertools.pairwise([-1, *bins])):
            chance[k] += Fraction(max(at - last - 1, 0), 2**64)  # words between two thresholds: nothing else is sure
        for word in sorted(set(bins)):
            within = [level for level in levels if word < level * 2**64 < word + 1]
            edges = [Fraction(word, 2**64), *within, Fraction(word + 1, 2**64)]
            for low, high in itertools.pairwise(edges):
                chance[bisect_right(levels, low)] += high - low
        assert sum(chance) == 1
        distance = sum(abs(one - other) for one, other in itertools.zip_longest(chance, exact, fillvalue=Fraction(0)))
        assert distance < Fraction(1, 2**180)

    def test_the_bin_of_a_word_is_the_number_of_thresholds_below_it_at_the_edges_of_every_cell(self):
        bins, firsts = [int(level) for level in gaussian_bins()[:255]], gaussian_tables()[1]
        words = {(at + by) % 2**64 for at in bins for by in (-1, 0, 1)} | {2**64 - 1}
        for place, first in enumerate(firsts.tolist()):
            least, width = 2**64 - (256 - place % 256) * 2 ** (56 - place // 256 * 8), 2 ** (56 - place // 256 * 8)
            words |= {least, least + width - 1}
            if place % 256 < 255 or place == len(firsts) - 1:  # others are cells of a further byte
                assert 0 <= bisect_left(bins, least + width - 1) - first <= 7
        for word in sorted(words):
            assert proposed(word, 0, 0)[1] >> 26 == bisect_left(bins, word)

    @given(word=st.integers(0, 2**64 - 1), ones=st.integers(0, 63))
    @fast
    def test_the_bin_of_any_word_is_the_number_of_thresholds_below_it(self, word, ones):
        word |= 2**64 - 2 ** (64 - ones)
        assert proposed(word, 0, 0)[1] >> 26 == bisect_left([int(level) for level in gaussian_bins()[:255]], word)

    @given(k=st.integers(0, 146), inside=st.integers(0, 2**64 - 1), tail=st.integers(0, 2**128 - 1))
    @fast
    def test_a_sure_decision_is_right_however_its_words_go_on_and_others_are_settled_exactly(self, k, inside, tail):
        """All 2⁵³ coins at once: those below are accepted and those above rejected whatever digits were cut."""
        inside &= ~1
        which = int(gaussian_bins()[k]) // 2 + (int(gaussian_bins()[k - 1]) // 2 if k else 0)
        with localcontext() as context:
            context.prec = 100
            place = inside >> 11
            ends = Decimal(place) / 2**53, Decimal(place + 1) / 2**53, (place + Decimal(tail) / 2**128) / 2**53
            most, least, exact = ((-(w * (2 * k + w)) / 512).exp() for w in ends)
        low, high = int(least * 2**53) - 2**6, int(most * 2**53) + 2**6
        for coin in (low - 1, high + 1):
            if 0 <= coin < 2**53:
                accepted, _, sure = proposed(which, inside, coin << 11)
                assert sure
                assert accepted == (coin == low - 1)
                assert (coin + 1 <= least * 2**53) == accepted
        for coin in range(low, high + 1, 7):
            if not 0 <= coin < 2**53:
                continue
            accepted, step, sure = proposed(which, inside, coin << 11)
            more = np.array([0, 0, tail >> 64, tail & (2**64 - 1), tail >> 64, tail & (2**64 - 1)], np.uint64)
            settled = settle_gaussian(np.array([which, inside, coin << 11], np.uint64), more)
            assert settled == ((coin + Decimal(tail) / 2**128) / 2**53 < exact, step)
            assert not sure or accepted == settled[0]

    @pytest.mark.parametrize("k", [0, 1, 40, 146])
    def test_a_word_at_a_threshold_is_settled_by_what_follows_it(self, k):
        at = int(gaussian_bins()[k])
        assert not proposed(at, 2**63, 0)[2]
        with localcontext() as context:
            context.prec = 100
            rest = int((bin_levels()[k] * 2**64 - at) * 2**128)
        for tail, bin_ in ((rest - 2, k), (rest + 2, k + 1)):
            words = [tail >> 64, tail & (2**64 - 1), 0, 0, 0, 0]
            assert scripted(at, 2**63, 0, *[0] * 42, *words).gaussian_steps(1)[0] == bin_ * 2**26 + 2**25

    def test_a_stream_ends_before_its_cipher_repeats_itself(self, monkeypatch):
        monkeypatch.setattr("quoron_privacy.noise.streams._MOST_WORDS", 10)
        stream = SecureNoise(bytes(range(32))).stream("short")
        stream.words(10)
        with pytest.raises(RunError, match="words of one stream"):
            stream.words(1)

    def test_a_shortfall_of_the_oversample_is_made_up(self):
        rejected = (0, 2**64 - 1, 2**64 - 1)
        steps = scripted(*rejected * 200, *(0, 2**63, 0) * 5).gaussian_steps(5)
        assert steps.tolist() == [2**25] * 5

    def test_the_slack_of_one_sample_is_within_the_constant(self):
        assert total_variation(gaussians=1) <= GAUSSIAN_SLACK
        assert total_variation(gaussians=10**9) <= 10**9 * GAUSSIAN_SLACK < 1e-38


def laplace_cells(scale, edge):
    """P(⌊L⌋ = k) for k from -edge - 1 to edge, L ~ Laplace(scale), the outer two with their tails; a hundred digits."""
    with localcontext() as context:
        context.prec = 110
        tails = [(-Decimal(k) / Decimal(scale)).exp() / 2 for k in range(edge + 1)]
        half = [one - other for one, other in itertools.pairwise(tails)] + [tails[-1]]
        half = [Fraction(int(cell * 2**300), 2**300) for cell in half]
    return [*reversed(half), *half]


def drawn_cells(chances, edge):
    """The same of a sign and binary digits that are one with `chances`."""
    law = [Fraction(1, 2)]
    for chance in chances:
        law = [cell * (1 - chance) for cell in law] + [cell * chance for cell in law]  # the digit's place is len(law)
    law += [Fraction(0)] * (edge - len(law))
    half = [*law[:edge], sum(law[edge:], Fraction(0))]
    return [*reversed(half), *half]


def distance(one, other):
    """Total variation."""
    return sum(abs(p - q) for p, q in zip(one, other, strict=True)) / 2


class TestLaplaceSteps:
    @pytest.mark.parametrize("scale", [0.05, 0.3, 3.0, 40.0])
    def test_it_follows_the_law_of_a_floored_laplace_and_its_broken_twin_does_not(self, scale):
        steps, edge = SOURCES[1].stream("laplace").laplace_steps(scale, 400_000), int(8 * scale) + 1
        law = [float(cell) for cell in laplace_cells(scale, edge)]

        def counts(values):
            return np.bincount(np.clip(values, -edge - 1, edge) + edge + 1, minlength=2 * edge + 2)

        assert fits(counts(steps), law)
        assert not fits(counts(steps ^ -(steps < 0).astype(np.int64) - (steps < 0)), law)  # towards zero, not down

    @pytest.mark.parametrize("scale", [0.004, 0.05, 0.7, 1.0, 3.7])
    def test_digits_give_each_cell_its_exact_chance_and_64_bits_would_not(self, scale):
        """All words in rational arithmetic, those at a level with the 128 bits that settle them."""
        chances, levels = laplace_digits(scale)
        exact = laplace_cells(scale, 700)
        assert distance(drawn_cells([Fraction(chance, 2**192) for chance in chances], 700), exact) < LAPLACE_SLACK
        if len(levels):
            twin = drawn_cells([Fraction(int(level), 2**64) for level in levels], 700)
            assert distance(twin, exact) > LAPLACE_SLACK

    @given(scale=st.floats(0.01, 2.0**50), seed=st.integers(0, 10**6))
    @fast
    def test_samples_are_those_of_a_slow_reference(self, scale, seed):
        drawn, chances = SeededNoise(seed).stream("same"), laplace_digits(scale)[0]
        words = iter(drawn.words(3 * (len(chances) + 1)).tolist())
        for step in SeededNoise(seed).stream("same").laplace_steps(scale, 3).tolist():
            negative = next(words) % 2
            magnitude = sum(2**digit for digit, chance in enumerate(chances) if next(words) * 2**128 < chance)
            assert step == (-magnitude - 1 if negative else magnitude)

    @pytest.mark.parametrize("digit", [0, 3, 9, 11])
    @pytest.mark.parametrize("sign", [0, 1])
    def test_a_word_at_its_level_is_settled_by_what_follows_it(self, digit, sign):
        chances, levels = laplace_digits(25.0)
        never = [2**64 - 1] * len(levels)
        at = [sign, *never[:digit], int(levels[digit]), *never[digit + 1 :]]
        rest = chances[digit] % 2**128
        for tail, one in ((rest - 1, 1), (rest, 0)):
            step = int(scripted(*at, tail % 2**64, tail >> 64).laplace_steps(25.0, 1)[0])
            assert step == (-(one << digit) - 1 if sign else one << digit)
        for word, one in ((int(levels[digit]) - 1, 1), (int(levels[digit]) + 1, 0)):
            at[1 + digit] = word
            if word >= 0:
                assert abs(int(scripted(*at).laplace_steps(25.0, 1)[0]) + sign) == one << digit

    @pytest.mark.parametrize("word", [0, 1, 2**64 - 1, 2**64 - 2])
    def test_extreme_words_and_scales_stay_in_range(self, word):
        for scale, most in ((2.0**50, 2**57), (1e-300, 0)):
            assert abs(int(scripted(*[word] * 70).laplace_steps(scale, 1)[0])) <= most + 1

    @given(scale=st.floats(1e-300, 2.0**50))
    @settings(fast, max_examples=20)
    def test_every_digit_has_its_chance_and_those_left_out_have_next_to_none(self, scale):
        chances, levels = laplace_digits(scale)
        assert len(levels) == len(chances) <= 57
        with localcontext() as context:
            context.prec = 120
            for digit in range(len(chances) + 1):
                exact = Fraction(1 / (1 + min(2**digit / Decimal(scale), Decimal(999)).exp()))
                if digit < len(chances):
                    assert 0 <= exact - Fraction(chances[digit], 2**192) < Fraction(1, 2**191)
                    assert int(levels[digit]) == chances[digit] >> 128
                else:  # and the next one's is its square, and so on
                    assert exact < Fraction(1, 2**173)


class TestUniformSamplers:
    def test_uniform_below_is_uniform_and_rejects_the_incomplete_multiple(self):
        draws = SOURCES[0].stream("below").uniform_below(7, 70_000)
        assert fits(np.bincount(draws, minlength=7), np.full(7, 1 / 7))
        bound = 3 * 2**61  # two whole multiples below 2⁶⁴: the lowest 2⁶² words are rejected
        assert scripted(2**62 - 1, 2**62, 2**62 + 5).uniform_below(bound, 2).tolist() == [2**62 + 5, 2**62]

    def test_every_permutation_is_equally_likely(self):
        stream = SOURCES[0].stream("permutations")
        index = {order: i for i, order in enumerate(itertools.permutations(range(4)))}
        drawn = [index[tuple(stream.permutation(4).tolist())] for _ in range(12_000)]
        assert fits(np.bincount(drawn, minlength=24), np.full(24, 1 / 24))

    @given(size=st.integers(1, 400), chosen=st.floats(0, 1), seed=st.integers(0, 9))
    def test_a_subset_is_floyds_in_order_however_many_are_chosen(self, size, chosen, seed):
        count = round(chosen * size)
        members = SeededNoise(seed).stream("order").subset(size, count)
        stream, taken = SeededNoise(seed).stream("order"), set()
        bounds = np.arange(size - count + 1, size + 1, dtype=np.uint64)
        for bound, pick in zip(bounds.tolist(), below(stream.words, bounds).tolist(), strict=True):
            taken.add(bound - 1 if pick in taken else pick)
        assert members.dtype == np.int64
        assert members.tolist() == sorted(taken)
        assert len(members) == count
        shuffled = SeededNoise(seed).stream("shuffled").permutation(count)
        assert ascending(members[shuffled], size).tolist() == members.tolist()

    @pytest.mark.parametrize(("size", "chosen"), [(6, 2), (6, 5), (5, 1)])
    def test_every_subset_is_equally_likely(self, size, chosen):
        stream = SOURCES[1].stream("subsets")
        index = {members: i for i, members in enumerate(itertools.combinations(range(size), chosen))}
        drawn = [index[tuple(stream.subset(size, chosen).tolist())] for _ in range(10_000)]
        assert fits(np.bincount(drawn, minlength=len(index)), np.full(len(index), 1 / len(index)))

    def test_poisson_members_are_chosen_independently_at_the_rate(self):
        stream = SOURCES[0].stream("poisson")
        drawn = [sum(1 << i for i in stream.poisson_subset(4, 0.3)) for _ in range(20_000)]
        expected = [0.3 ** bin(s).count("1") * 0.7 ** (4 - bin(s).count("1")) for s in range(16)]
        assert fits(np.bincount(drawn, minlength=16), expected)

    @pytest.mark.parametrize("chance", [0.0, 2.0**-70, 0.25, 0.9, 1.0])
    def test_coins_land_with_their_chances_including_never_and_always(self, chance):
        ones = int(SOURCES[1].stream("coins", str(chance)).bernoulli(chance, (50, 1000)).sum())
        assert stats.binomtest(ones, 50_000, chance).pvalue > FALSE_ALARM
        assert chance not in (0.0, 1.0) or ones == 50_000 * chance

    @given(chance=st.one_of(st.floats(0, 1), st.floats(0, 1).map(lambda chance: chance**12)))
    @fast
    def test_a_coin_has_exactly_its_chance(self, chance):
        """All words at once: those below the level, and at it all that may follow; 53 bits were ⌈2⁵³ chance⌉ / 2⁵³."""
        level, rest = divmod(Fraction(chance) * 2**64, 1)
        for word in {level - 1, level, level + 1, 0, 2**64 - 1}:
            if 0 <= word < 2**64 and (word != level or not rest):
                assert scripted(int(word)).bernoulli(chance, 1)[0] == (Fraction(word) < level)
        if rest:
            length = -(-rest.denominator.bit_length() // 64)
            for follows, one in ((rest.denominator - rest.numerator - 1, False), (rest.denominator - 1, True)):
                words = [follows >> 64 * i & (2**64 - 1) for i in range(length)]
                assert scripted(int(level), *words).bernoulli(chance, 1)[0] == one


class TestWeightedChoice:
    def test_weights_beyond_a_word_are_exact(self):
        weights = [2**100, 2**100, 2**101]
        stream = SOURCES[1].stream("big")
        drawn = [stream.weighted_choice(weights) for _ in range(20_000)]
        assert fits(np.bincount(drawn, minlength=3), [0.25, 0.25, 0.5])
        assert scripted(2**64 - 1, 2**64 - 1).weighted_choice([2**127, 2**127 - 1, 1]) == 2


AHEAD = [SeededNoise(3), SecureNoise(bytes(range(32))), StartedNoise(SecureNoise(bytes(range(32))), "a start")]


@pytest.mark.parametrize("source", AHEAD, ids=["seeded", "secure", "started"])
def test_what_was_drawn_ahead_and_what_follows_it_are_the_streams_own(source):
    plain = source.stream("release", 1)
    with NoiseAhead(source, threads=2) as noise:
        for round_ in range(4):
            noise.expect(("release", round_), 70_000)
        early = noise.stream("release", 1)
        np.testing.assert_array_equal(early.gaussian_steps((7, 10_000)), plain.gaussian_steps((7, 10_000)))
        np.testing.assert_array_equal(early.gaussian_steps(5), plain.gaussian_steps(5))
        np.testing.assert_array_equal(early.words(3), plain.words(3))
        again = noise.stream("release", 1).gaussian_steps(70_000)
        np.testing.assert_array_equal(again, source.stream("release", 1).gaussian_steps(70_000))


@pytest.mark.parametrize("first", [lambda s: s.words(2), lambda s: s.gaussian_steps(9), lambda s: s.uniform(3)])
def test_a_stream_that_is_used_otherwise_than_expected_starts_from_its_start(first):
    source = AHEAD[1]
    plain = source.stream("release", 1)
    with NoiseAhead(source, threads=1) as noise:
        noise.expect(("release", 1), 10)
        early = noise.stream("release", 1)
        np.testing.assert_array_equal(first(early), first(plain))
        np.testing.assert_array_equal(early.gaussian_steps(10), plain.gaussian_steps(10))


def test_threads_end_with_the_run_also_when_it_fails():
    def fails() -> None:
        with NoiseAhead(AHEAD[0], threads=3) as noise:
            for round_ in range(50):
                noise.expect(("release", round_), 1000)
            raise KeyboardInterrupt

    earlier = set(threading.enumerate())  # another test's may be about to end
    with pytest.raises(KeyboardInterrupt):
        fails()
    begun = set(threading.enumerate()) - earlier
    assert not [each.name for each in begun if each.name.startswith("quoron-noise")]


def test_starts_are_independent_of_each_other_and_of_the_key_alone_but_those_of_a_simulation():
    source = AHEAD[1]
    one, other = (StartedNoise.fresh(source) for _ in range(2))
    assert "nonce" not in repr(one)
    drawn = [each.stream("release", 0).gaussian_steps(1000) for each in (one, other, source)]
    for i, j in ((0, 1), (0, 2), (1, 2)):
        assert not np.array_equal(drawn[i], drawn[j])
    np.testing.assert_array_equal(
        *(StartedNoise.simulated(source).stream("release", 0).gaussian_steps(1000) for _ in range(2))
    )
