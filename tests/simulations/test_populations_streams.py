"""The counter-based generator: known answers, a slow reference, and statistical soundness."""

import numpy as np
import pytest
from scipy import stats

from quoron.populations._families import exponential
from quoron.populations.streams import fill_normals, fill_uniforms, normals, words

MASK = 0xFFFFFFFF


def philox_reference(counter, key):
    """Salmon et al. 2011, in plain integers."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (p1 >> 32) ^ c1 ^ k0, p1 & MASK, (p0 >> 32) ^ c3 ^ k1, p0 & MASK
        k0, k1 = (k0 + 0x9E3779B9) & MASK, (k1 + 0xBB67AE85) & MASK
    return [c0, c1, c2, c3]


@pytest.mark.parametrize(
    ("block", "user", "purpose", "seed", "expected"),
    [
        (0, 0, 0, 0, "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        (MASK, -1, MASK, 2**64 - 1, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        (0x243F6A88, 0x13198A2E85A308D3, 0x03707344, 0x299F31D0A4093822, "d16cfe09 94fdcceb 5001e420 24126ea1"),
    ],
)
def test_words_are_the_published_known_answers_of_philox(block, user, purpose, seed, expected):
    found = words(seed=seed, purpose=purpose, users=np.array([user]), block=block)[0]
    assert [f"{int(word):08x}" for word in found] == expected.split()


def test_normals_match_box_muller_in_float64():
    seed, user, count = 2**40 + 17, 2**33 + 5, 403
    expected = []
    for block in range(101):
        raw = philox_reference((block, user & MASK, user >> 32, 1), (seed & MASK, seed >> 32))
        for radius_word, angle_word in (raw[:2], raw[2:]):
            radius = np.sqrt(-2 * np.log((radius_word + 0.5) / 2**32))
            quadrant, angle = angle_word >> 30, (angle_word & (2**30 - 1)) / 2**30
            angle = np.pi / 2 * (angle if angle < 0.5 else angle - 1)  # signed, around the quadrant's axis
            first, second = [(np.sin, np.cos), (np.cos, np.sin)][quadrant % 2]
            expected.append(radius * first(angle) * (-1 if quadrant >= 2 else 1))
            expected.append(radius * second(angle) * (-1 if quadrant in (1, 2) else 1))
    found = normals(seed=seed, purpose=1, user=user, count=count)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected[:count], rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("fill", [fill_normals, fill_uniforms])
def test_streams_drawn_together_are_those_drawn_one_by_one(fill):
    counts = np.array([0, 1, 2, 403, 4, 5000, 0, 37, 8])  # blocks that are cut, and streams longer than a group
    users, starts = np.arange(len(counts)) + 2**33, 100 + np.concatenate([[0], np.cumsum(counts)])
    kind = np.float32 if fill is fill_normals else np.float64
    together = np.full(counts.sum() + 1, 7, kind)
    fill(np.uint64(3), np.uint32(1), users, starts, together)
    for user, count, first in zip(users, counts, starts - 100, strict=False):
        alone = np.empty(count, kind)
        fill(np.uint64(3), np.uint32(1), np.array([user]), np.array([0, count]), alone)
        np.testing.assert_array_equal(together[first : first + count], alone)
    assert together[-1] == 7


class TestStatisticalSoundness:
    """Fixed seeds; each check would fail a sound generator with probability below 1e-7."""

    draws = staticmethod(lambda: normals(seed=11, purpose=1, user=5, count=4_000_000).astype(np.float64))

    def test_law_is_normal_also_in_the_tails(self):
        x = self.draws()
        assert stats.kstest(x[:1_000_000], "norm").pvalue > 1e-8
        for level in (2.0, 3.0, 4.0):
            expected = len(x) * stats.norm.sf(level)
            for beyond in (np.sum(x > level), np.sum(x < -level)):
                assert abs(beyond - expected) < 6 * np.sqrt(expected) + 3
        assert np.abs(x).max() < 6.8

    def test_neighbours_within_and_across_users_are_uncorrelated(self):
        x = self.draws()
        for lag in (1, 2, 3, 4, 10, 500):
            assert abs(np.mean(x[:-lag] * x[lag:])) * np.sqrt(len(x)) < 5.6
            assert abs(np.mean((x[:-lag] ** 2 - 1) * (x[lag:] ** 2 - 1))) * np.sqrt(len(x)) / 2 < 5.6
        users = np.array([normals(seed=11, purpose=1, user=user, count=8) for user in range(20_000)], np.float64)
        across = users[:-1] * users[1:]
        assert abs(across.mean()) * np.sqrt(across.size) < 5.6


def test_exponential_is_within_a_billionth_and_ends_before_it_overflows():
    points = np.concatenate([np.linspace(-700, 700, 20_001), np.random.default_rng(0).uniform(-5, 5, 20_000), [0.0]])
    found = np.array([exponential(x) for x in points])
    np.testing.assert_allclose(found, np.exp(points), rtol=1e-9)
    assert exponential(1e300) == exponential(700.0) < np.inf
    assert exponential(-1e300) == exponential(-700.0) > 0
