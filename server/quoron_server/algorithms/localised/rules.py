"""The rules of localised algorithms: how a cohort's answers become one gradient, and whether a phase may release.

* `PlainMean`: the mean with a fixed divisor (Feldman, Koren & Talwar 2020, Algorithm 2).
* `OutlierFilter`: noisy thresholds on the score, mean of the kept, hidden cutoff (Ghazi et al., Algorithm 2, repaired).
* `SoftFilter`: weights that fade with the score, one test a phase (Algorithm 2S, ours).
* `CoordinateMedian`: the mean held near the coordinatewise median, one test a phase (Ghazi et al., Algorithms 6 to 8,
  repaired).
"""

import math
from dataclasses import dataclass

import numpy as np

from quoron_client.protocol.questions import Answers
from quoron_privacy.gaussian import GaussianNoise
from quoron_privacy.noise import NoiseSource, total_variation
from quoron_privacy.robust.coordinate_median import MedianParameters, debiased_mean
from quoron_privacy.robust.filter import decisions, soft_filter
from quoron_privacy.robust.filter.concentration import Norm, cohort_scores, usable
from quoron_privacy.robust.filter.cutoff import HiddenCutoff
from quoron_privacy.robust.filter.outlier_filter import FilterParameters
from quoron_privacy.robust.filter.thresholds import LaplaceThreshold
from quoron_server.algorithms.localised.method import (
    CONTRACTION,
    Aggregate,
    LocalisedParameters,
    Phase,
    phase_releases,
    score_summary,
)
from quoron_server.assumptions import Assumption, Kind
from quoron_server.parameters import GaussianPromise, Parameters, PlannedRelease
from quoron_server.problem import Problem

DOMINANT = Assumption(Kind.DOMINANT_HESSIANS)


@dataclass(frozen=True, slots=True)
class PhasedParameters(LocalisedParameters):
    """Public numbers of one run."""

    mu: float  # GDP parameter of every phase, as computed

    def releases(self, dimension: int) -> tuple[PlannedRelease, ...]:
        """One noisy average a phase."""
        del dimension
        return phase_releases(self.phases, [phase.noise for phase in self.phases], self.mu)

    def gaussian(self, problem: Problem) -> GaussianPromise:
        """A run is as private as its least private phase; only the release of the own user's phase has to be exact."""
        return GaussianPromise(self.mu, total_variation(gaussians=problem.dimension))


class PlainMean:
    """The mean with fixed divisor B: absent users contribute zero."""

    def __init__(self, cohort_size: int, lipschitz: float) -> None:
        self.cohort_size, self.longest = cohort_size, lipschitz * (1 + 1e-6)

    def aggregate(self, answers: Answers, noise: NoiseSource, round_: int) -> Aggregate:
        """(1/B) Σ of the answers; absent rows are zero, and so are rows that no honest client can send."""
        del noise, round_
        with np.errstate(over="ignore"):  # an overflow is longer than anything, silently: nothing in the data may warn
            lengths = np.sqrt(np.sum(answers.values**2, axis=1))
        usable = answers.answered & (lengths <= self.longest)
        columns = np.ascontiguousarray(np.where(usable[:, None], answers.values, 0.0).T)
        # numpy adds contiguous numbers pairwise: the error stays below 1e-6 of b for any cohort that fits in memory
        return Aggregate(np.sum(columns, axis=1) / self.cohort_size)

    def combine(self, tally: float, more: float) -> float:
        """Their sum."""
        return tally + more

    def passes(self, tally: float, noise: NoiseSource, phase: int) -> bool:
        """Always."""
        del tally, noise, phase
        return True


@dataclass(frozen=True, slots=True)
class Share:
    """Whose places a phase uses: slots `first_user` on, places `first_place` on, each in one of `questions` visits."""

    first_user: int
    users: int
    first_place: int
    places: int  # k: of each user, a multiple of `questions`
    questions: int  # to each user, about places / questions of its places each
    cohorts: int  # into which the users are cut; those that are left over are never asked
    cohort_size: int  # users asked in a round

    @property
    def asked_for(self) -> int:
        """Places in one question."""
        return self.places // self.questions

    @property
    def rounds(self) -> int:
        """That ask each cohort `questions` times."""
        return self.questions * self.cohorts


@dataclass(frozen=True, slots=True)
class GroupedParameters(Parameters):
    """Public numbers of one run on the items of users."""

    layout: str  # "spread": a phase uses some places of all users; "disjoint": all places of some users
    phases: tuple[Phase, ...]
    shares: tuple[Share, ...]  # of each phase
    mus: tuple[float, ...]  # GDP parameter of each phase's release
    mu: float  # and of the run

    @property
    def cohort_size(self) -> int:
        """Users asked in the first round."""
        return self.shares[0].cohort_size

    def share_of(self, round_: int) -> tuple[Share, int]:
        """The share that a round belongs to, and its number among that share's rounds."""
        for share in self.shares:
            if round_ < share.rounds:
                return share, round_
            round_ -= share.rounds
        raise IndexError(round_)

    def releases(self, dimension: int) -> tuple[PlannedRelease, ...]:
        """One noisy average a phase."""
        del dimension
        alone = [
            phase_releases(self.phases, [phase.noise for phase in self.phases], mu)[index]
            for index, mu in enumerate(self.mus)
        ]
        return tuple(alone)

    def cohorts(self) -> tuple[int, ...]:
        """Those of each phase's share."""
        return tuple(share.cohort_size for share in self.shares for _ in range(share.rounds))

    def participations(self) -> int:
        """Those of all phases where they share users, else of one."""
        questions = [share.questions for share in self.shares]
        return sum(questions) if self.layout == "spread" else max(questions)

    def gaussian(self, problem: Problem) -> GaussianPromise:
        """μ of the run; of the noise, that of the releases which a user is in has to be exact."""
        releases = len(self.phases) if self.layout == "spread" else 1
        return GaussianPromise(self.mu, total_variation(gaussians=releases * problem.dimension))

    def assumptions(self, problem: Problem) -> tuple[Assumption, ...]:
        """Non-expansive steps, and attendance that tells nothing of the iterates."""
        del problem
        return CONTRACTION


class PlainMeans:
    """`PlainMean` of each round's own cohort."""

    def __init__(self, parameters: GroupedParameters, lipschitz: float) -> None:
        self.parameters, self.lipschitz = parameters, lipschitz

    def aggregate(self, answers: Answers, noise: NoiseSource, round_: int) -> Aggregate:
        """(1/B) Σ of the answers, B the round's cohort."""
        share, _ = self.parameters.share_of(round_)
        return PlainMean(share.cohort_size, self.lipschitz).aggregate(answers, noise, round_)

    def combine(self, tally: float, more: float) -> float:
        """Their sum."""
        return tally + more

    def passes(self, tally: float, noise: NoiseSource, phase: int) -> bool:
        """Always."""
        del tally, noise, phase
        return True


@dataclass(frozen=True, slots=True)
class FilteringParameters(LocalisedParameters):
    """What both filters have in common."""

    temperature: float  # τ, an inverse length
    distance: float  # d: how far apart ordinary users' average gradients are taken to lie
    filter: FilterParameters | soft_filter.SoftFilterParameters
    norm: Norm = "l2"  # of τ and d

    def releases(self, dimension: int) -> tuple[PlannedRelease, ...]:
        """One noisy average a phase, behind the filter and its cutoff, or its test."""
        del dimension
        return phase_releases(self.phases, [self.filter] * len(self.phases), None)

    def assumptions(self, problem: Problem) -> tuple[Assumption, ...]:
        """In ℓ∞ steps are non-expansive for dominant Hessians alone."""
        del problem
        return (*CONTRACTION, DOMINANT) if self.norm == "linf" else CONTRACTION


@dataclass(frozen=True, slots=True)
class FilteredParameters(FilteringParameters):
    """Public numbers of one run."""

    filter: FilterParameters


class OutlierFilter:
    """The rule of Algorithm 2: noisy threshold on the concentration score, mean of the kept, hidden cutoff."""

    def __init__(self, parameters: FilteredParameters) -> None:
        self.parameters = parameters
        self.cutoff = HiddenCutoff(parameters.filter.cutoff_centre, parameters.filter.cutoff_decay)
        self.test = LaplaceThreshold(parameters.filter.laplace_scale, parameters.filter.threshold)

    def aggregate(self, answers: Answers, noise: NoiseSource, round_: int) -> Aggregate:
        """Mean of the kept users; whoever did not answer is isolated and counts as filtered."""
        limits = self.test.limits(len(answers.status), noise.stream("filter", round_))
        decided = decisions.decide(
            answers.values,
            answers.answered,
            self.parameters.temperature,
            limits,
            step=self.test.grid,
            norm=self.parameters.norm,
        )
        filtered = len(decided.kept) - int(decided.kept.sum())
        diagnostics = {"filtered": filtered, "undecided": decided.undecided, "threshold": self.test.threshold}
        diagnostics |= score_summary(decided.score_bounds)
        return Aggregate(decisions.filtered_mean(answers.values, decided.kept), float(filtered), diagnostics)

    def combine(self, tally: float, more: float) -> float:
        """Their sum."""
        return tally + more

    def passes(self, tally: float, noise: NoiseSource, phase: int) -> bool:
        """Whether fewer users were filtered than the phase's hidden cutoff."""
        return tally < self.cutoff.draw(noise.stream("cutoff", phase))


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
