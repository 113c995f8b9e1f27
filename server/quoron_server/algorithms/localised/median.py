"""Localised SGD on a box with coordinatewise medians: Ghazi, Kumar, Liu & Manurangsi, Algorithms 5 to 8, repaired.

In every round the step uses the cohort's mean, each coordinate held near the median; the least concentration score of a
phase, in ℓ∞ and with noise, decides once whether the phase may release. Needs losses whose Hessians are diagonally
dominant and Lipschitz in ℓ1.

Changed from print, with proofs in docs/privacy/median-sgd.md: one noisy bit a phase with noise for the score's
sensitivity of 2 (printed: noise for 1), explicit constants, projected releases. The shift of a phase has no 1/B, so
that a plain mean has less noise below some 10⁸ items a user: `quoron plan` says how many. As printed:
`printed.ghazi.Medians`.
"""

import math
from dataclasses import dataclass
from functools import cache

import numpy as np

from quoron_client.protocol.questions import Answers
from quoron_privacy.arrays import Vector
from quoron_privacy.errors import Infeasible
from quoron_privacy.noise.streams import NoiseSource, total_variation
from quoron_privacy.robust import coordinate_median as theorem
from quoron_privacy.robust.coordinate_median import MedianParameters, debiased_mean
from quoron_privacy.robust.filter.concentration import (
    LARGEST_COHORT,
    cohort_scores,
    score_error,
    score_summary,
    usable,
)
from quoron_server.algorithms import search
from quoron_server.algorithms.info import ITERATES, UNMEASURED, AlgorithmInfo, Choosing, Chosen, Promises
from quoron_server.algorithms.localised.method import (
    Aggregate,
    LocalisedParameters,
    LocalisedSGD,
    Phase,
)
from quoron_server.algorithms.localised.plan import (
    Geometry,
    Schedule,
    SizedOptions,
    against_mean,
    behind_filter,
    best_schedule,
    cohorts,
    coordinatewise,
    require_of_phases,
)
from quoron_server.algorithms.printed import ghazi
from quoron_server.algorithms.references import GHAZI_2026, repaired
from quoron_server.algorithms.search import Candidate, PlanInputs, Planner, round_grid
from quoron_server.parameters import CONTRACTION, DOMINANT
from quoron_server.plan import Privacy, RunPlan
from quoron_server.problem import Problem

NAME = "median-sgd"
MOST_COHORTS = 256  # rounds that are tried: every step of a curved loss asks for its own calibration
MOST_FLAT_COHORTS = 4096  # and without curvature: noise does not fall with the cohort, so more steps leave less risk


@dataclass(frozen=True, slots=True)
class CoordinateMedianParameters(LocalisedParameters):
    """Public numbers of one run."""

    rests_on = (*CONTRACTION, DOMINANT)  # in ℓ∞ steps are non-expansive for dominant Hessians alone
    temperature: float  # τ
    distance: float  # d∞
    clip_bound: float  # G∞: every coordinate of an answer is held within it
    median: MedianParameters

    @property
    def radius(self) -> float:
        """ς: how far a mean may lie from the median, a coordinate."""
        return self.median.room / self.temperature

    def mechanism(self, phase: Phase) -> object:
        """Return the median, which every phase has."""
        return self.median


class CoordinateMedian(LocalisedSGD[CoordinateMedianParameters]):
    """The rule of Algorithms 6 to 8: a mean held near the median, and the least concentration score of the phase."""

    kind = CoordinateMedianParameters

    def aggregate(self, answers: Answers, noise: NoiseSource, round_: int) -> Aggregate:
        """Return the debiased mean; a user without an answer is zero in it, and isolated in the score.

        The test statistic is B minus the score.
        """
        p = self.parameters
        present = usable(answers.values, answers.answered)
        rows = np.clip(np.where(present[:, None], answers.values, 0.0), -p.clip_bound, p.clip_bound)
        scores = cohort_scores(rows, present, p.temperature, norm="linf")
        score = math.fsum(scores) / p.cohort_size
        diagnostics = {"score": score, "threshold": p.median.threshold} | score_summary(scores)
        return Aggregate(debiased_mean(rows, p.median.trim, p.radius), max(0.0, p.cohort_size - score), diagnostics)

    def combine(self, tally: float, more: float) -> float:
        """Return the larger: a phase's score is its least."""
        return max(tally, more)

    def passes(self, tally: float, noise: NoiseSource, phase: int) -> bool:
        """Return whether the least score, with noise, clears the threshold."""
        return self.parameters.median.test.decide(self.parameters.cohort_size - tally, noise.stream("test", phase))


@dataclass(frozen=True, slots=True)
class MedianOptions(SizedOptions):
    """Planning options."""

    distance: float | None = None  # typical distance, in ℓ∞, of users' average gradients, from public knowledge


@dataclass(frozen=True, slots=True)
class _Inputs(PlanInputs[MedianOptions]):
    """What a plan is made from."""

    @property
    def geometry(self) -> Geometry:
        """ℓ∞; Infeasible off a box and without dominance."""
        return coordinatewise(NAME, self.problem, self.options.distance)

    def calibrate(self, size: int, eta_beta: float) -> theorem.MedianParameters:
        """Return the median and test of cohorts of this size at steps up to this one; Infeasible."""
        problem, privacy = self.problem, self.privacy
        return theorem.calibrate(
            privacy.epsilon,
            privacy.delta,
            size,
            eta_beta,
            clip_bound(problem) / self.geometry.distance,
            score_error=rounding(size, problem.dimension),
            delta_slack=sampler_slack(problem, privacy),
        )


def _candidates(inputs: _Inputs) -> list[Candidate[Schedule]]:
    problem, options, geometry = inputs.problem, inputs.options, inputs.geometry

    @cache
    def factor(size: int, eta_beta: float) -> float:
        try:
            return inputs.calibrate(size, eta_beta).noise_factor
        except Infeasible:
            return math.inf

    def scale(sizes: Vector, first_steps: Vector) -> Vector:
        steep = first_steps * geometry.beta
        pairs = zip(sizes, steep, strict=True)
        return geometry.length * np.array([factor(int(size), each) if each <= 2 else math.inf for size, each in pairs])

    sizes = cohorts(
        inputs, round_grid(MOST_COHORTS if geometry.beta else MOST_FLAT_COHORTS), least=3, most=LARGEST_COHORT
    )
    fixed, steps = options.step_size, _steps(geometry)
    found = best_schedule(problem, sizes, scale, rounds=options.rounds, step_size=fixed, steps=steps)
    return [each for each in found if math.isfinite(each.risk)]


def _chosen(inputs: _Inputs, found: Candidate[Schedule]) -> Chosen:
    problem, geometry, schedule = inputs.problem, inputs.geometry, found.of
    median = inputs.calibrate(schedule.cohort_size, schedule.largest_step * geometry.beta)
    bound = clip_bound(problem)
    return behind_filter(
        CoordinateMedianParameters, problem, schedule, median, geometry, clip_bound=bound, median=median
    )


def verify(plan: RunPlan) -> None:
    """The theorem for every phase at the plan's numbers, independently of how they were found."""
    p, promise = plan.parameters_of(CoordinateMedianParameters), plan.guarantee
    problem, median = plan.problem, p.median
    require_of_phases(plan, median, "linf", p.distance, p.temperature, 1.0, p.cohort_size * 2.0**-50)
    search.require(
        NAME,
        ("clip = temperature * clip_bound", median.clip >= p.temperature * p.clip_bound * (1 - 1e-12), median.clip),
        ("clip_bound >= the bound on coordinates", p.clip_bound >= problem.coordinate_bound, p.clip_bound),
    )
    slack = search.lacks(gaussians=problem.dimension, laplaces=1)
    slack += 1e-5 * promise.delta / (1 + math.exp(promise.epsilon))
    theorem.verify(median, promise.epsilon, promise.delta, delta_slack=slack)


def clip_bound(problem: Problem) -> float:
    """Return where coordinates of answers are held: G∞ and room for rounding, so that nothing honest is touched."""
    return problem.coordinate_bound * (1 + 1e-6)


def rounding(cohort_size: int, dimension: int) -> float:
    """|computed - real| of a cohort's score at most: that of its κ, and of their mean."""
    return score_error(cohort_size, dimension) + cohort_size * 2.0**-50


def sampler_slack(problem: Problem, privacy: Privacy) -> float:
    """Total variation of a phase's noise: Gaussians and one Laplace; 1e-5 δ for the grid of the release."""
    exact = total_variation(gaussians=problem.dimension, laplaces=1)
    return exact + 1e-5 * privacy.delta / (1 + math.exp(privacy.epsilon))


def _steps(geometry: Geometry) -> list[float] | None:
    """Steps from ηβ∞ = 10⁻⁵ to 2: the score's sensitivity grows as ηβ∞B, so most plans need short ones."""
    if not geometry.beta:
        return None
    return [float(product / geometry.beta) for product in np.geomspace(1e-5, 2.0, 23)]


def _missing(inputs: _Inputs) -> Infeasible:
    problem, privacy, options = inputs.problem, inputs.privacy, inputs.options
    edge = theorem.smallest_cohort(privacy.epsilon, privacy.delta, 0.0)
    assert edge is not None  # without curvature a cohort that is large enough always is
    if (options.cohort_size or problem.users) < edge:
        what = f"cohort_size={options.cohort_size:,}" if options.cohort_size else f"n={problem.users:,}"
        return Infeasible(NAME, f"{what} is too small for the test", f"cohorts of {edge:,} users or more")
    return Infeasible(
        NAME,
        f"no cohort of n={problem.users:,} users with that step passes the test",
        f"cohorts from {edge:,} users up to about 2 / (step_size · smoothness)",
    )


INFO = AlgorithmInfo(
    name=NAME,
    summary="Phased SGD on a box with coordinatewise medians and one test a phase; for comparison, see its page",
    origin=repaired(GHAZI_2026.at("Algorithms 5 to 8"), note="one noisy bit a phase in place of a test a batch"),
    promises=Promises(
        "docs/privacy/median-sgd.md",
        trust_models=("central-release",),
        one_server="a median looks at single answers: take tracking-srgd",
    ),
    options=MedianOptions,
    parameters=CoordinateMedianParameters,
    planner=Planner(NAME, search.check_smooth, _candidates, _chosen, _missing, inputs=_Inputs),
    printed=ghazi.MEDIANS_AS_PRINTED,
    verifier=verify,
    maker=CoordinateMedian,
    factor=UNMEASURED,  # no table has users enough
    no_black_boxes=ITERATES,
    choosing=Choosing(remarks=against_mean),
)
