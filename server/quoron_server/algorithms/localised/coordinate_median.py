"""The rule of Ghazi et al., Algorithms 6 to 8, repaired: a mean held near the coordinatewise median, a test a phase."""

import math
from dataclasses import dataclass

import numpy as np

from quoron_client.protocol.questions import Answers
from quoron_privacy.noise.streams import NoiseSource
from quoron_privacy.robust.coordinate_median import MedianParameters, debiased_mean
from quoron_privacy.robust.filter.concentration import cohort_scores, usable
from quoron_server.algorithms.localised.filtering import DOMINANT
from quoron_server.algorithms.localised.method import (
    CONTRACTION,
    Aggregate,
    LocalisedParameters,
    phase_releases,
    score_summary,
)
from quoron_server.parameters import Assumption, PlannedRelease
from quoron_server.problem import Problem


@dataclass(frozen=True, slots=True)
class CoordinateMedianParameters(LocalisedParameters):
    """Public numbers of one run."""

    temperature: float  # τ
    distance: float  # d∞
    clip_bound: float  # G∞: every coordinate of an answer is held within it
    median: MedianParameters

    @property
    def radius(self) -> float:
        """ς: how far a mean may lie from the median, a coordinate."""
        return self.median.room / self.temperature

    def releases(self, dimension: int) -> tuple[PlannedRelease, ...]:
        """One noisy average a phase, behind its test."""
        del dimension
        return phase_releases(self.phases, [self.median] * len(self.phases), None)

    def assumptions(self, problem: Problem) -> tuple[Assumption, ...]:
        """In ℓ∞ steps are non-expansive for dominant Hessians alone."""
        del problem
        return (*CONTRACTION, DOMINANT)


class CoordinateMedian:
    """The rule of Algorithms 6 to 8: a mean held near the median, and the least concentration score of the phase."""

    def __init__(self, parameters: CoordinateMedianParameters) -> None:
        self.parameters = parameters

    def aggregate(self, answers: Answers, noise: NoiseSource, round_: int) -> Aggregate:
        """The debiased mean; whoever did not answer counts as zero in it, and as isolated in the score.

        The tally is what the score lacks of B.
        """
        del noise, round_
        p = self.parameters
        present = usable(answers.values, answers.answered)
        rows = np.clip(np.where(present[:, None], answers.values, 0.0), -p.clip_bound, p.clip_bound)
        scores = cohort_scores(rows, present, p.temperature, norm="linf")
        score = math.fsum(scores) / p.cohort_size
        diagnostics = {"score": score, "threshold": p.median.threshold} | score_summary(scores)
        return Aggregate(debiased_mean(rows, p.median.trim, p.radius), max(0.0, p.cohort_size - score), diagnostics)

    def combine(self, tally: float, more: float) -> float:
        """The larger: a phase's score is its least."""
        return max(tally, more)

    def passes(self, tally: float, noise: NoiseSource, phase: int) -> bool:
        """Whether the least score, with noise, clears the threshold."""
        return self.parameters.median.test.decide(self.parameters.cohort_size - tally, noise.stream("test", phase))
