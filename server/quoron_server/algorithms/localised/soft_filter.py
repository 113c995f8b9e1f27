"""The rule of Algorithm 2S, ours: weights that fade with the score, one test a phase."""

import math
from dataclasses import dataclass

import numpy as np

from quoron_client.protocol.questions import Answers
from quoron_privacy.gaussian import GaussianNoise
from quoron_privacy.noise.streams import NoiseSource
from quoron_privacy.robust.filter import soft_filter
from quoron_privacy.robust.filter.concentration import cohort_scores
from quoron_server.algorithms.localised.filtering import FilteringParameters
from quoron_server.algorithms.localised.method import Aggregate, score_summary


@dataclass(frozen=True, slots=True)
class SoftFilteredParameters(FilteringParameters):
    """Public numbers of one run."""

    filter: soft_filter.SoftFilterParameters


class SoftFilter:
    """The rule of Algorithm 2S: soft weights from exact scores, one noisy test of the phase's total suspicion."""

    def __init__(self, parameters: SoftFilteredParameters) -> None:
        self.parameters = parameters
        self.test = GaussianNoise(parameters.filter.softness_sensitivity, parameters.filter.test_noise)
        self.threshold = parameters.filter.test_threshold

    def aggregate(self, answers: Answers, noise: NoiseSource, round_: int) -> Aggregate:
        """Weighted mean; whoever did not answer is isolated: weight 0, suspicion 1."""
        del noise, round_
        p = self.parameters.filter
        scores = cohort_scores(answers.values, answers.answered, self.parameters.temperature, norm=self.parameters.norm)
        suspicions = soft_filter.suspicions(scores, cohort_size=p.cohort_size, slope=p.steepness, cutoff=p.floor)
        weights = soft_filter.soft_weights(suspicions)
        suspicion = math.fsum(suspicions)
        diagnostics = {
            "filtered": int(np.sum(weights < 0.5)),
            "suspicion": suspicion,
            "threshold": p.floor * p.cohort_size,
        } | score_summary(scores)
        return Aggregate(soft_filter.soft_mean(answers.values, weights), suspicion, diagnostics)

    def combine(self, tally: float, more: float) -> float:
        """Their sum."""
        return tally + more

    def passes(self, tally: float, noise: NoiseSource, phase: int) -> bool:
        """V ≤ Vmax, and V + N(0, s_u²) at most the threshold."""
        noisy = self.test.release(np.array([tally]), noise.stream("test", phase))
        return bool(tally <= self.parameters.filter.softness_limit and noisy[0] <= self.threshold)
