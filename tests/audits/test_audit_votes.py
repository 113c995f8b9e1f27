"""Audits of votes on worst-case neighbours, through the release itself, and of their broken twins.

Many runs are one release over bins and users of their own: what is shown of one run is independent of the others. Every
bound is wrong with probability at most `harness.FAILURE` = 1e-8.
"""

from dataclasses import replace

import numpy as np
import pytest

from audits.harness import epsilon_lower_bound
from quoron_privacy.counts.facts import RankChoice, distances
from quoron_privacy.counts.votes import HiddenBins, KnownBins
from quoron_privacy.means.private_range import weights
from quoron_privacy.noise.sources import SeededNoise

EPSILON, DELTA, DRAWS = 2.0, 0.02, 30_000
MOST = 2
HIDDEN = HiddenBins.calibrate(most=MOST, epsilon=EPSILON, delta=DELTA, noise="laplace")
KNOWN = KnownBins.calibrate(bins=12, most=MOST, epsilon=EPSILON)
CROWD = HIDDEN.threshold + 2
EIGHT = HiddenBins.calibrate(most=8, epsilon=EPSILON, delta=DELTA, noise="gaussian")
EIGHT_KNOWN = KnownBins.calibrate(bins=16, most=8, epsilon=EPSILON, delta=DELTA, noise="gaussian")


def world(mechanism, own, crowd, half, seed):
    """Sampler of the log-likelihood's sufficient statistic: how many of the first `half` bins show more than `crowd`
    less how many show fewer, and the reverse for as many other bins.

    In each run `crowd` users vote for each of the bins, one bin each, and one more user for all of `own`.
    """
    width = 2 * half

    def draw(runs):
        first = np.arange(runs)[:, None]
        bins = np.concatenate([np.repeat(np.arange(width), crowd), [*own]])
        voters = np.concatenate([np.arange(width * crowd), np.full(len(own), width * crowd)])
        owners, votes = (first * (width * crowd + 1) + voters).ravel(), (first * width + bins).ravel()
        stream = SeededNoise(seed).stream("audit")
        if isinstance(mechanism, KnownBins):
            held = replace(mechanism, bins=width * runs).release(owners, votes, stream)
        else:
            held = np.zeros(width * runs, np.int64)
            which, counts = mechanism.release(owners, votes, stream)
            held[which] = counts
        signs = held.reshape(runs, width) - crowd
        if mechanism.noise == "laplace":  # whose likelihood knows no more
            signs = np.sign(signs)
        return signs[:, :half].sum(axis=1) - signs[:, half:].sum(axis=1)

    return draw


def found(mechanism, crowd, half=MOST, draws=DRAWS):
    """One user's votes for the first half of the bins, against votes for the other half."""
    worlds = (world(mechanism, range(i * half, (i + 1) * half), crowd, half, 31 + i) for i in range(2))
    delta = DELTA if isinstance(mechanism, HiddenBins) or mechanism.noise == "gaussian" else 0.0
    return epsilon_lower_bound(*worlds, delta=delta, draws=draws)


@pytest.mark.parametrize("crowd", [0, 1, CROWD])
def test_hidden_bins_never_exceed_the_claimed_epsilon(crowd):
    assert found(HIDDEN, crowd) <= EPSILON


def test_known_bins_never_exceed_the_claimed_epsilon_and_come_near():
    assert 0.5 * EPSILON < found(KNOWN, 1) <= EPSILON


def test_the_audit_catches_a_quarter_of_the_noise():
    assert found(replace(KNOWN, scale=KNOWN.scale / 4), 1) > EPSILON
    assert found(replace(HIDDEN, scale=HIDDEN.scale / 4), CROWD, draws=10_000) > EPSILON


def test_the_audit_catches_a_low_threshold_with_a_user_s_own_bins():
    assert found(replace(HIDDEN, threshold=HIDDEN.threshold - 2), 0) > EPSILON


@pytest.mark.parametrize(("mechanism", "crowd"), [(KNOWN, 1), (HIDDEN, CROWD)])
def test_the_audit_catches_votes_that_nobody_limits(mechanism, crowd):
    assert found(mechanism, crowd, half=6, draws=10_000) <= EPSILON  # of six votes two count
    assert found(replace(mechanism, most=6), crowd, half=6, draws=10_000) > EPSILON


@pytest.mark.parametrize(("mechanism", "crowd"), [(EIGHT, EIGHT.threshold + 12), (EIGHT, 0), (EIGHT_KNOWN, 1)])
def test_gaussian_noise_never_exceeds_the_claimed_epsilon(mechanism, crowd):
    assert found(mechanism, crowd, half=8, draws=2_000 if crowd > 1 else 5_000) <= EPSILON


@pytest.mark.parametrize(("mechanism", "crowd"), [(EIGHT, EIGHT.threshold + 12), (EIGHT_KNOWN, 1)])
def test_the_audit_catches_gaussian_noise_for_one_vote_where_there_are_eight(mechanism, crowd):
    one = HiddenBins.calibrate(most=1, epsilon=EPSILON, delta=DELTA, noise="gaussian").scale
    assert found(replace(mechanism, scale=one), crowd, half=8, draws=2_000) > EPSILON


def test_the_audit_catches_a_low_threshold_under_gaussian_noise():
    low = replace(EIGHT, threshold=EIGHT.threshold - 4)
    assert found(low, 0, half=8, draws=5_000) > EPSILON


def ranks(votes, epsilon, seed):
    """Many independent choices of one rank, by the exact integer weights."""
    whole = weights(distances(np.array(votes), 3), epsilon)
    below = np.cumsum([float(weight / sum(whole)) for weight in whole])
    return lambda draws: np.searchsorted(below[:-1], SeededNoise(seed).stream("rank").uniform(draws), side="right")


def rank_audit(epsilon):
    """One user moves from the last bin to the first: the rank comes nearer to one end, and farther from the other."""
    worlds = ranks([2, 1, 3], epsilon, 1), ranks([3, 1, 2], epsilon, 2)
    return epsilon_lower_bound(*worlds, delta=0.0, draws=200_000)


def test_a_rank_never_exceeds_its_claimed_epsilon():
    choice = RankChoice(EPSILON, 3)
    assert 0.25 * EPSILON < rank_audit(choice.epsilon) <= EPSILON


def test_the_audit_catches_a_rank_at_four_times_its_epsilon():
    assert rank_audit(4 * EPSILON) > EPSILON
