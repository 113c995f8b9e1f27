"""Votes: exact laws of every pair of neighbours of small tables, whose counts count, and what calibration promises."""

import math
from collections import Counter
from dataclasses import replace
from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtr

from quoron_privacy.accounts.lifetime import Charge
from quoron_privacy.counts import user_histograms as votes_module
from quoron_privacy.counts.user_histograms import NOISES, HiddenBins, KnownBins, Noise, counted_votes, verify
from quoron_privacy.errors import VerificationError
from quoron_privacy.noise.streams import LAPLACE_SLACK, RandomStream, SecureNoise, SeededNoise

fast = settings(derandomize=True, deadline=None, max_examples=60)
BINS = 4
EPSILON, DELTA = 1.0, 0.02


def stream(*labels: str | int) -> RandomStream:
    return SeededNoise(5).stream("votes", *labels)


def cell(value: int, scale: float, noise: Noise = "laplace") -> float:
    """P(⌊L⌋ = value) for L ~ Laplace(scale) or N(0, scale²): the integral of its density over [value, value + 1)."""
    nearest = value if value >= 0 else -value - 1
    if noise == "gaussian":
        return float(ndtr(-nearest / scale) - ndtr(-(nearest + 1) / scale))
    return 0.5 * math.exp(-nearest / scale) * -math.expm1(-1 / scale)


def shown(votes: int, mechanism: HiddenBins | KnownBins) -> dict[int | None, float]:
    """The law of what is shown of one bin; None: nothing. Far beyond the likely, tails are one outcome each."""
    least = mechanism.threshold if isinstance(mechanism, HiddenBins) else -80
    if not votes and isinstance(mechanism, HiddenBins):
        return {None: 1.0}
    law = {value: cell(value - votes, mechanism.scale, mechanism.noise) for value in range(least, 120)}
    return {None: max(0.0, 1 - sum(law.values())), **law}


def delta_between(first: tuple[int, ...], second: tuple[int, ...], mechanism: HiddenBins | KnownBins) -> float:
    """δ at EPSILON of the releases of two tables of counts, from the losses of their bins."""
    losses, infinite = {0.0: 1.0}, 0.0
    digits = 9 if mechanism.noise == "laplace" else 3  # losses of Gaussian noise are on no lattice: 0.2 % of δ
    for a, b in zip(first, second, strict=True):
        if a == b:
            continue
        here, there = shown(a, mechanism), shown(b, mechanism)
        least = 1e-15 if mechanism.noise == "laplace" else 1e-9
        never = sum(chance for what, chance in here.items() if chance > 1e-15 and there.get(what, 0.0) == 0.0)
        infinite = 1 - (1 - infinite) * (1 - never)
        joined: Counter[float] = Counter()
        for loss, chance in losses.items():
            for what, own in here.items():
                if own > least and there.get(what, 0.0) > 0:
                    joined[round(loss + math.log(own / there[what]), digits)] += chance * own
        losses = dict(joined)
    return infinite + sum(chance * max(0.0, -math.expm1(EPSILON - loss)) for loss, chance in losses.items())


def choices(most: int) -> list[frozenset[int]]:
    return [frozenset(each) for size in range(most + 1) for each in combinations(range(BINS), size)]


def worst(mechanism: HiddenBins | KnownBins, most: int, others: tuple[int, ...] = (0, 1)) -> float:
    """The largest δ over all neighbours: every number of others' votes, every own choice of up to `most` bins."""
    worlds = choices(most)
    if mechanism.adjacency == "zero-out":
        pairs = [(u, frozenset[int]()) for u in worlds] + [(frozenset[int](), u) for u in worlds]
    else:
        pairs = list(product(worlds, worlds))
    found = 0.0
    seen = set()
    for base in product(others, repeat=2):  # bins 0 and 1 are alike, and so are 2 and 3
        crowd = (base[0], base[0], base[1], base[1])
        for u, v in pairs:
            first = tuple(crowd[j] + (j in u) for j in range(BINS))
            second = tuple(crowd[j] + (j in v) for j in range(BINS))
            kind = tuple(sorted((a, b) for a, b in zip(first, second, strict=True) if a != b))
            if kind not in seen:
                seen.add(kind)
                found = max(found, delta_between(first, second, mechanism))
    return found


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("adjacency", ["replace-one", "zero-out"])
@pytest.mark.parametrize("most", [1, 2])
class TestExactLaws:
    def test_hidden_bins_never_exceed_their_promise_and_meet_it(self, most, adjacency, noise):
        bins = HiddenBins.calibrate(most=most, epsilon=EPSILON, delta=DELTA, adjacency=adjacency, noise=noise)
        found = worst(bins, most, (0, 1, 2, bins.threshold + (2 if noise == "laplace" else 12)))
        assert found <= bins.delta * (1 if noise == "laplace" else 1.005) <= DELTA * 1.005
        # Of Laplace noise a user whose bins are nobody else's; Gaussian noise is told in whole numbers.
        assert found >= bins.delta * (1 - 1e-6 if noise == "laplace" else 0.9)

    def test_known_bins_never_exceed_their_promise(self, most, adjacency, noise):
        own = {"bins": BINS, "most": most, "epsilon": EPSILON, "adjacency": adjacency, "noise": noise}
        bins = KnownBins.calibrate(delta=DELTA, **own)
        found = worst(bins, most, (0, 1))
        if noise == "laplace":
            assert found < 1e-6  # of the grid's tails
        else:
            assert bins.delta <= DELTA
            assert 0.9 * DELTA <= found <= 1.005 * bins.delta

    def test_a_quarter_of_the_noise_is_caught(self, most, adjacency, noise):
        hidden = HiddenBins.calibrate(most=most, epsilon=EPSILON, delta=DELTA, adjacency=adjacency, noise=noise)
        own = {"bins": BINS, "most": most, "epsilon": EPSILON, "delta": DELTA, "adjacency": adjacency}
        known = KnownBins.calibrate(noise=noise, **own)
        assert worst(replace(hidden, scale=hidden.scale / 4), most, (hidden.threshold + 3,)) > DELTA
        assert worst(replace(known, scale=known.scale / 4), most, (0, 1)) > DELTA

    def test_a_low_threshold_is_caught(self, most, adjacency, noise):
        bins = HiddenBins.calibrate(most=most, epsilon=EPSILON, delta=DELTA, adjacency=adjacency, noise=noise)
        assert worst(replace(bins, threshold=bins.threshold - math.ceil(bins.scale / 2)), most) > DELTA

    def test_votes_beyond_the_limit_are_caught(self, most, adjacency, noise):
        own = {"most": most, "epsilon": EPSILON, "delta": DELTA, "adjacency": adjacency, "noise": noise}
        hidden, known = HiddenBins.calibrate(**own), KnownBins.calibrate(bins=BINS, **own)
        assert worst(hidden, most + 1, (0, 1) if noise == "laplace" else (0, hidden.threshold + 3)) > hidden.delta
        if known.changes < BINS:
            assert worst(known, most + 1, (0, 1)) > max(1e-3, known.delta)


@pytest.mark.parametrize(
    ("scale", "held"), [(0.31, 30_000_000), (13.36, 10**10), (0.31, 2_600_468), (13.36, 28_017_950)]
)
def test_one_vote_of_very_many_moves_a_count_by_no_more_than_is_paid_for(scale, held):
    """votes#v7, where a count in steps is beyond what floats tell apart, and where it crosses from one to the other."""
    near = held + np.arange(-2000, 2001)
    moved = np.diff(votes_module._steps(near, scale * 2.0**-30))
    assert moved.max() <= KnownBins(1, 1, scale, "zero-out", "gaussian", 1.0).mu * 2**30
    assert moved.min() >= 2**30 / scale - 1.25


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("most", [1, 5])
def test_verification_refuses_what_the_theorem_does_not_cover(most, noise):
    bins = HiddenBins.calibrate(most=most, epsilon=1.0, delta=1e-6, noise=noise)
    known = KnownBins.calibrate(bins=50, most=most, epsilon=1.0, delta=1e-6, noise=noise)
    for wrong in (
        replace(bins, scale=bins.scale / 4),
        replace(bins, threshold=bins.threshold - math.ceil(bins.scale)),
        replace(bins, most=most + 1),
        replace(known, scale=known.scale / 4),
        replace(known, most=most + 1),
    ):
        with pytest.raises(VerificationError, match="private, got δ"):
            verify(wrong, 1.0, 1e-6)


def test_known_bins_can_be_charged_as_gaussian():
    bins = KnownBins.calibrate(bins=3, most=1, epsilon=0.5)
    assert Charge("r", "g", 0.5, bins.delta, mu=bins.mu, variation=bins.variation).variation == 3 * LAPLACE_SLACK


rows = st.lists(st.tuples(st.integers(0, 5), st.integers(-3, 8)), max_size=60)


@given(rows=rows, most=st.integers(1, 3))
@fast
def test_of_each_user_as_many_distinct_bins_count_as_may(rows, most):
    owners, votes = np.array(rows, np.int64).reshape(-1, 2).T
    own = {user: {vote for owner, vote in rows if owner == user} for user in owners}
    counted = Counter(counted_votes(owners, votes, most, stream("counted")).tolist())
    assert sum(counted.values()) == sum(min(most, len(held)) for held in own.values())
    for vote, times in counted.items():
        assert times <= sum(vote in held for held in own.values())


def test_which_votes_count_is_a_uniform_choice():
    """Six pairs of four bins, 12,000 users: each within 5.5 deviations, false alarm 6 · 4e-8 < 1e-6."""
    users = 12_000
    owners, votes = np.repeat(np.arange(users), 4), np.tile(np.arange(4), users)
    one_each = counted_votes(owners, votes + 4 * owners, 2, stream("uniform"))
    pairs = Counter(zip(*(np.sort(one_each)[i::2] % 4 for i in (0, 1)), strict=True))
    assert len(pairs) == 6
    assert all(abs(times - users / 6) < 5.5 * math.sqrt(users * 5 / 36) for times in pairs.values())


def test_nobody_s_votes_are_no_error():
    nothing = np.empty(0, np.int64)
    shown_bins, held = HiddenBins.calibrate(most=1, epsilon=1.0, delta=1e-6).release(nothing, nothing, stream("empty"))
    assert (len(shown_bins), len(held)) == (0, 0)
    assert KnownBins(3, 1, 1.0).release(nothing, nothing, SecureNoise.fresh().stream("empty")).shape == (3,)


EPSILON, DELTA = 1.0, 0.02


@pytest.mark.parametrize("adjacency", ["replace-one", "zero-out"])
def test_gaussian_noise_for_one_vote_is_caught_where_there_are_two(adjacency):
    two = HiddenBins.calibrate(most=2, epsilon=EPSILON, delta=DELTA, adjacency=adjacency, noise="gaussian")
    one = HiddenBins.calibrate(most=1, epsilon=EPSILON, delta=DELTA, adjacency=adjacency, noise="gaussian")
    assert two.scale == pytest.approx(math.sqrt(2) * one.scale, rel=1e-6)
    assert worst(replace(two, scale=one.scale), 2, (two.threshold + 3,)) > DELTA


@given(
    most=st.integers(1, 64),
    epsilon=st.floats(1e-3, 8.0),
    delta=st.floats(1e-12, 0.3),
    adjacency=st.sampled_from(["replace-one", "zero-out"]),
)
@settings(fast, max_examples=25)
def test_every_calibration_is_verified_by_the_other_route(most, epsilon, delta, adjacency):
    for noise in NOISES:
        hidden = HiddenBins.calibrate(most=most, epsilon=epsilon, delta=delta, adjacency=adjacency, noise=noise)
        assert hidden.epsilon <= epsilon
        assert hidden.delta <= delta
        verify(hidden, epsilon, delta)
        own = {"bins": 9, "most": most, "epsilon": epsilon, "adjacency": adjacency, "noise": noise}
        known = KnownBins.calibrate(delta=delta, **own)
        assert known.epsilon <= epsilon
        verify(known, epsilon, known.delta * (1 + 1e-6))
