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
from quoron_privacy.accounts import gdp
from quoron_privacy.arrays import Vector
from quoron_privacy.errors import Infeasible, VerificationError
from quoron_privacy.noise.streams import NoiseSource, total_variation
from quoron_privacy.robust import coordinate_median as theorem
from quoron_privacy.robust.coordinate_median import MedianParameters, debiased_mean
from quoron_privacy.robust.filter.concentration import LARGEST_COHORT, cohort_scores, score_error, score_summary, usable
from quoron_server.algorithms import search
from quoron_server.algorithms.descent import Estimate
from quoron_server.algorithms.localised.phased import (
    FAILURE,
    LocalisedParameters,
    LocalisedSGD,
    LocalisedState,
    Phase,
    Schedule,
    SizedOptions,
    behind_filter,
    best_schedule,
    cohorts,
    require_of_phases,
)
from quoron_server.algorithms.printed import ghazi
from quoron_server.algorithms.references import GHAZI_2026, repaired
from quoron_server.algorithms.search import Candidate, PlanInputs, Planner, round_grid
from quoron_server.algorithms.spec import ITERATES, UNMEASURED, AlgorithmSpec, Calibrated, Guarantees, Policy
from quoron_server.parameters import CONTRACTION, DOMINANT
from quoron_server.plan import Privacy, RunPlan
from quoron_server.problem import Problem

NAME = "median-sgd"
MAX_COHORTS = 256  # rounds that are tried: every step of a curved loss asks for its own calibration
MAX_FLAT_COHORTS = 4096  # and without curvature: noise does not fall with the cohort, so more steps leave less risk


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

    def estimate(self, state: LocalisedState, answers: Answers, noise: NoiseSource) -> Estimate:
        """Return the debiased mean; a user without an answer is zero in it, and isolated in the score.

        The test statistic is B minus the least score of the phase.
        """
        p = self.parameters
        present = usable(answers.values, answers.answered)
        rows = np.clip(np.where(present[:, None], answers.values, 0.0), -p.clip_bound, p.clip_bound)
        scores = cohort_scores(rows, present, p.temperature, norm="linf")
        score = math.fsum(scores) / p.cohort_size
        diagnostics = {"score": score, "threshold": p.median.threshold} | score_summary(scores)
        gradient, tally = debiased_mean(rows, p.median.trim, p.radius), max(state.tally, p.cohort_size - score)
        return Estimate(gradient, diagnostics=diagnostics, remembered={"tally": tally})

    def passes(self, tally: float, noise: NoiseSource, phase: int) -> bool:
        """Return whether the least score, with noise, clears the threshold."""
        return self.parameters.median.decide(self.parameters.cohort_size - tally, noise.stream("test", phase))


@dataclass(frozen=True, slots=True)
class MedianOptions(SizedOptions):
    """Planning options."""

    distance: float | None = None  # typical distance, in ℓ∞, of users' average gradients, from public knowledge


@dataclass(frozen=True, slots=True)
class _Inputs(PlanInputs[MedianOptions]):
    """What a plan is made from."""

    @property
    def beta(self) -> float:
        """β∞, as a map of ℓ∞ into itself."""
        return self.problem.coordinate_beta or 0.0

    @property
    def distance(self) -> float:
        """d∞."""
        return self.options.distance or coordinate_distance(self.problem)

    def calibrate(self, size: int, eta_beta: float) -> theorem.MedianParameters:
        """Return the median and test of cohorts of this size at steps up to this one; Infeasible."""
        problem, privacy = self.problem, self.privacy
        return theorem.calibrate(
            privacy.epsilon,
            privacy.delta,
            size,
            eta_beta,
            clip_bound(problem) / self.distance,
            score_error=rounding(size, problem.dimension),
            delta_slack=sampler_slack(problem, privacy),
        )


def coordinate_distance(problem: Problem) -> float:
    """d∞ such that all ordinary users lie within it of one another, but for a chance of FAILURE: utility only.

    Hoeffding's inequality for every coordinate of every user: |q_j - E q_j| <= G∞ √(2 ln(2dn/FAILURE)/m).
    """
    likely = math.log(2 * problem.dimension * problem.users / FAILURE)
    items = problem.coordinate_bound * math.sqrt(2 * likely / problem.items_per_user)
    return 2 * min(items + problem.beliefs.heterogeneity, problem.coordinate_bound)


def against_mean(plan: RunPlan) -> tuple[str, ...]:
    """The first release's noise beside that of a plain mean of the same cohorts and steps, and where they would meet.

    The plain mean's shift is 2Gη/B (phased-sgd); the other's is in proportion to 1/√m while users are alike.
    """
    p, guarantee, items = plan.parameters_of(CoordinateMedianParameters), plan.guarantee, plan.problem.items_per_user
    mean = 2 * plan.problem.lipschitz / p.cohort_size / gdp.mu_for(guarantee.epsilon, guarantee.delta)
    times = p.phases[0].release_scale / (p.phases[0].step_size * mean)
    said = f"The release has {times:.3g} times the noise of a plain mean of as large cohorts (phased-sgd)"
    return (
        f"{said}; the two meet at about m = {max(1.0, items * times**2):.2g} items a user, and m = {items:,} here.",
    )


def _check(inputs: _Inputs) -> None:
    """Raise Infeasible for losses that are not convex and smooth, off a box and without dominance."""
    search.require_smooth(NAME, inputs.problem)
    search.require_box(NAME, inputs.problem)


def _candidates(inputs: _Inputs) -> list[Candidate[Schedule]]:
    problem, options, length = inputs.problem, inputs.options, inputs.distance * math.sqrt(inputs.problem.dimension)

    @cache
    def factor(size: int, eta_beta: float) -> float:
        try:
            return inputs.calibrate(size, eta_beta).noise_factor
        except Infeasible:
            return math.inf

    def scale(sizes: Vector, first_steps: Vector) -> Vector:
        pairs = zip(sizes, first_steps * inputs.beta, strict=True)
        return length * np.array([factor(int(size), step) if step <= 2 else math.inf for size, step in pairs])

    most = MAX_COHORTS if inputs.beta else MAX_FLAT_COHORTS
    sizes = cohorts(inputs, round_grid(most), least=3, most=LARGEST_COHORT)
    fixed, steps = options.step_size, _steps(inputs.beta)
    found = best_schedule(problem, sizes, scale, rounds=options.rounds, step_size=fixed, steps=steps)
    return [candidate for candidate in found if math.isfinite(candidate.risk)]


def _chosen(inputs: _Inputs, found: Candidate[Schedule]) -> Calibrated:
    problem, schedule, root = inputs.problem, found.of, math.sqrt(inputs.problem.dimension)
    median = inputs.calibrate(schedule.cohort_size, schedule.largest_step * inputs.beta)
    own = {"clip_bound": clip_bound(problem), "median": median}
    return behind_filter(CoordinateMedianParameters, problem, schedule, median, inputs.distance, root, **own)


def verify(plan: RunPlan) -> None:
    """The theorem for every phase at the plan's numbers, independently of how they were found."""
    p, guarantee = plan.parameters_of(CoordinateMedianParameters), plan.guarantee
    problem, median = plan.problem, p.median
    try:
        search.require_box(NAME, problem)
    except Infeasible as error:
        raise VerificationError(f"Expected a problem for {NAME}, got one that is not: {error}") from error
    beta, rounded, root = problem.coordinate_beta or 0.0, p.cohort_size * 2.0**-50, math.sqrt(problem.dimension)
    require_of_phases(plan, median, beta, p.distance, p.temperature, 1.0, rounded, root)
    search.require(
        NAME,
        ("clip = temperature * clip_bound", median.clip >= p.temperature * p.clip_bound * (1 - 1e-12), median.clip),
        ("clip_bound >= the bound on coordinates", p.clip_bound >= problem.coordinate_bound, p.clip_bound),
    )
    slack = search.lacks(gaussians=problem.dimension, laplaces=1)
    slack += 1e-5 * guarantee.delta / (1 + math.exp(guarantee.epsilon))
    theorem.verify(median, guarantee.epsilon, guarantee.delta, delta_slack=slack)


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


def _steps(beta: float) -> list[float] | None:
    """Steps from ηβ∞ = 10⁻⁵ to 2: the score's sensitivity grows as ηβ∞B, so most plans need short ones."""
    if not beta:
        return None
    return [float(product / beta) for product in np.geomspace(1e-5, 2.0, 23)]


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


SPEC = AlgorithmSpec(
    name=NAME,
    summary="Phased SGD on a box with coordinatewise medians and one test a phase; for comparison, see its page",
    origin=repaired(GHAZI_2026.at("Algorithms 5 to 8"), note="one noisy bit a phase in place of a test a batch"),
    guarantees=Guarantees(
        "docs/privacy/median-sgd.md",
        trust_models=("central-release",),
        one_server="a median looks at single answers: take tracking-srgd",
    ),
    options=MedianOptions,
    parameters=CoordinateMedianParameters,
    planner=Planner(NAME, _candidates, _chosen, _missing, inputs=_Inputs, check=_check),
    printed=ghazi.MEDIANS_AS_PRINTED,
    verifier=verify,
    maker=CoordinateMedian,
    factor=UNMEASURED,  # no table has users enough
    no_black_boxes=ITERATES,
    policy=Policy(remarks=against_mean),
)
