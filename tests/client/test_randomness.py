"""A client's words: the same for the same user whatever the batch, never twice in deployment."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from quoron_client.randomisers.randomness import SeededRandomness, SystemRandomness
from quoron_privacy.errors import RunError

FALSE_ALARM = 1e-8  # of each statistical check; three here. Seeds are fixed
fast = settings(derandomize=True, deadline=None, max_examples=60)
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
        from quoron_client.randomisers.randomness import fill_words

        key, user, out = 0x0123456789ABCDEF, 0xFEDCBA98_00000007, np.empty((1, 4), np.uint64)
        fill_words(np.uint64(key), np.array([user], np.uint64).view(np.int64), 2, out)
        for block in (1, 2):
            c = philox([block, 0, user & 0xFFFFFFFF, user >> 32], [key & 0xFFFFFFFF, key >> 32])
            assert out[0, 2 * block - 2 : 2 * block].tolist() == [c[0] | c[1] << 32, c[2] | c[3] << 32]

    def test_seeds_rounds_and_users_give_different_words(self):
        users = np.arange(50)
        words = [SeededRandomness(s).words(round=r, users=users, first=0, size=3) for s in (1, 2) for r in (0, 1, 12)]
        assert len(np.unique(words)) == 6 * 50 * 3

    def test_it_refuses_deployment(self):
        with pytest.raises(RunError, match="Expected randomness from the operating system, got SeededRandomness"):
            SeededRandomness(1).require_deployable()


class TestSystemRandomness:
    def test_no_word_comes_twice_even_for_the_same_labels(self):
        source = SystemRandomness()
        words = [source.words(round=0, users=np.arange(3), first=0, size=40) for _ in range(3)]
        assert len(np.unique(words)) == 3 * 3 * 40
        source.require_deployable()

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
