"""Audits of the noisy threshold test and of the hidden cutoff, and of their broken twins."""

import numpy as np
import pytest
from scipy import stats

from audits.harness import delta_bounds, epsilon_lower_bound
from quoron_privacy.noise.sources import SeededNoise
from quoron_privacy.robust.filter.cutoff import HiddenCutoff
from quoron_privacy.robust.filter.thresholds import LaplaceThreshold

SOURCE = SeededNoise(31)
EPSILON = 0.5  # of one decision, for a score that moves by one
TEST = LaplaceThreshold(scale=1 / EPSILON, threshold=10.0)
BROKEN = LaplaceThreshold(scale=1 / EPSILON / 4, threshold=10.0)


def decision(test, score, name):
    return lambda draws: test.decide(np.full(draws, score), SOURCE.stream(name, str(score)))


@pytest.mark.parametrize("score", [10.0, 9.0, 9.5, 5.0, 14.0])
def test_one_decision_never_exceeds_its_epsilon(score):
    found = epsilon_lower_bound(decision(TEST, score, "P"), decision(TEST, score + 1, "Q"), delta=0.0, draws=300_000)
    assert found <= TEST.epsilon(1.0)


def test_the_audit_is_tight_above_the_threshold_and_catches_a_quarter_of_the_noise():
    # both scores below the threshold: the hit probabilities are exactly e^ε apart
    found = [
        epsilon_lower_bound(decision(t, 8.0, "P"), decision(t, 9.0, "Q"), delta=0.0, draws=300_000)
        for t in (TEST, BROKEN)
    ]
    assert 0.9 * EPSILON < found[0] <= TEST.epsilon(1.0)
    assert found[1] > TEST.epsilon(1.0)


def test_the_audit_catches_a_score_that_moves_by_more_than_its_sensitivity():
    found = epsilon_lower_bound(decision(TEST, 7.0, "P"), decision(TEST, 9.0, "Q"), delta=0.0, draws=300_000)
    assert found > TEST.epsilon(1.0)


@pytest.mark.parametrize(("test", "caught"), [(TEST, False), (BROKEN, True)])
def test_a_transcript_of_decisions_loses_what_composition_says(test, caught):
    # 20 users' decisions, every score moved by one: claimed as 20 randomised responses at EPSILON
    users, epsilon = 20, 4.0
    rate = 1 / (1 + np.exp(-EPSILON))
    k = np.arange(users + 1)
    loss = (2 * k - users) * EPSILON
    claim = float((stats.binom.pmf(k, users, rate) * np.maximum(0.0, -np.expm1(epsilon - loss))).sum())
    hits = test.decide(np.full((100_000, users), 10.0), SOURCE.stream("transcript", str(caught)))
    laws = [stats.laplace.sf(test.effective_threshold - score, scale=test.scale) for score in (10.0, 9.0)]
    log_ratio = np.where(hits, np.log(laws[0] / laws[1]), np.log((1 - laws[0]) / (1 - laws[1]))).sum(axis=1)
    low, _ = delta_bounds(log_ratio, epsilon=epsilon)
    assert (low > claim) == caught


class TestCutoff:
    """One less than `centre` users are surely filtered; the own user is kept in one world and filtered in the other."""

    cutoff = HiddenCutoff(centre=4, decay=0.5)
    end_mass = cutoff.weights[0] / sum(cutoff.weights)

    def halted(self, count, name):
        stream = SOURCE.stream("halt", name)
        return lambda draws: np.array([count >= self.cutoff.draw(stream) for _ in range(draws)])

    def test_whether_one_user_was_counted_stays_hidden(self):
        worlds = self.halted(3, "in"), self.halted(4, "out")
        found = epsilon_lower_bound(*worlds, delta=self.end_mass, draws=100_000)
        assert found <= self.cutoff.decay

    def test_the_audit_catches_a_deterministic_cutoff(self):
        worlds = [lambda draws, count=count: np.full(draws, count >= self.cutoff.centre) for count in (3, 4)]
        assert epsilon_lower_bound(*worlds, delta=self.end_mass, draws=100_000) > self.cutoff.decay

    @pytest.mark.parametrize("shift", [1, 2])
    def test_the_effective_cutoff_loses_its_decay_for_one_user_and_more_for_two(self, shift):
        stream = SOURCE.stream("effective")
        law = np.array(self.cutoff.weights, float) / float(sum(self.cutoff.weights))
        drawn = np.array([self.cutoff.draw(stream) for _ in range(50_000)])
        other = np.concatenate([np.zeros(shift), law[:-shift]])[drawn - 1]  # law of cutoff + shift
        with np.errstate(divide="ignore"):
            log_ratio = np.log(law[drawn - 1] / other)
        low, _ = delta_bounds(log_ratio, epsilon=self.cutoff.decay)
        assert (low > self.end_mass) == (shift == 2)
