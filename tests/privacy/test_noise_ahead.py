"""Noise drawn ahead is the noise of its labels, handed out once, and leaves no thread behind."""

import threading

import numpy as np
import pytest

from quoron_privacy.noise.ahead import NoiseAhead, StartedNoise
from quoron_privacy.noise.sources import SecureNoise, SeededNoise

SOURCES = [SeededNoise(3), SecureNoise(bytes(range(32))), StartedNoise(SecureNoise(bytes(range(32))), "a start")]


@pytest.mark.parametrize("source", SOURCES, ids=["seeded", "secure", "started"])
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
    source = SOURCES[1]
    plain = source.stream("release", 1)
    with NoiseAhead(source, threads=1) as noise:
        noise.expect(("release", 1), 10)
        early = noise.stream("release", 1)
        np.testing.assert_array_equal(first(early), first(plain))
        np.testing.assert_array_equal(early.gaussian_steps(10), plain.gaussian_steps(10))


def test_threads_end_with_the_run_also_when_it_fails():
    def fails() -> None:
        with NoiseAhead(SOURCES[0], threads=3) as noise:
            for round_ in range(50):
                noise.expect(("release", round_), 1000)
            raise KeyboardInterrupt

    earlier = set(threading.enumerate())  # another test's may be about to end
    with pytest.raises(KeyboardInterrupt):
        fails()
    begun = set(threading.enumerate()) - earlier
    assert not [each.name for each in begun if each.name.startswith("quoron-noise")]


def test_starts_are_independent_of_each_other_and_of_the_key_alone_but_those_of_a_simulation():
    source = SOURCES[1]
    one, other = (StartedNoise.fresh(source) for _ in range(2))
    assert "nonce" not in repr(one)
    drawn = [each.stream("release", 0).gaussian_steps(1000) for each in (one, other, source)]
    for i, j in ((0, 1), (0, 2), (1, 2)):
        assert not np.array_equal(drawn[i], drawn[j])
    np.testing.assert_array_equal(
        *(StartedNoise.simulated(source).stream("release", 0).gaussian_steps(1000) for _ in range(2))
    )
