"""Localised SGD with a deterministic soft outlier filter: Algorithm 2S, ours, not in the papers.

Every user's weight is w_i = 1 - min(1, exp(-L (κ_i/B - f₁))); the phase's total suspicion V = Σ (1 - w_i) is compared
once, with Gaussian noise, against a limit. No noise a user, no cutoff: feasible with fewer users than the noisy filter,
for several times its release noise. Scores are needed exactly, of all pairs: O(B² d) a round.

Statement and proof: docs/privacy/soft-filter.md#sf1.
"""

import math
from dataclasses import dataclass
from functools import partial

import numpy as np

from quoron_client.protocol.questions import Answers
from quoron_privacy.gaussian import GaussianNoise
from quoron_privacy.noise.streams import NoiseSource
from quoron_privacy.robust.filter import soft_filter
from quoron_privacy.robust.filter import soft_filter as theorem
from quoron_privacy.robust.filter.concentration import cohort_scores, score_error, score_summary
from quoron_server.algorithms import search
from quoron_server.algorithms.info import ITERATES, UNMEASURED, AlgorithmInfo, Choosing, Chosen, Promises
from quoron_server.algorithms.localised import filtered as planning
from quoron_server.algorithms.localised.method import Aggregate, LocalisedSGD, Rule
from quoron_server.algorithms.localised.plan import FilteringParameters, require_of_phases
from quoron_server.algorithms.references import GHAZI_2026, ours
from quoron_server.plan import Privacy, RunPlan
from quoron_server.problem import Problem

NAME = "soft-filtered-sgd"


@dataclass(frozen=True, slots=True)
class SoftFilteredParameters(FilteringParameters):
    """Public numbers of one run."""

    filter: soft_filter.SoftFilterParameters


class SoftFilter(Rule):
    """The rule of Algorithm 2S: soft weights from exact scores, one noisy test of the phase's total suspicion."""

    def __init__(self, parameters: SoftFilteredParameters) -> None:
        self.parameters = parameters
        self.test = GaussianNoise(parameters.filter.softness_sensitivity, parameters.filter.test_noise)
        self.threshold = parameters.filter.test_threshold

    def aggregate(self, answers: Answers, noise: NoiseSource, round_: int) -> Aggregate:
        """Return the weighted mean; a user without an answer is isolated: weight 0, suspicion 1."""
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

    def passes(self, tally: float, noise: NoiseSource, phase: int) -> bool:
        """V ≤ Vmax, and V + N(0, s_u²) at most the threshold."""
        noisy = self.test.release(np.array([tally]), noise.stream("test", phase))
        return bool(tally <= self.parameters.filter.softness_limit and noisy[0] <= self.threshold)


def plan(problem: Problem, privacy: Privacy, options: planning.FilterOptions) -> Chosen:
    """The plan with the least predicted excess risk. Raises Infeasible, saying how many users would do."""
    search.require_smooth(NAME, problem)
    epsilon, delta, slack = privacy.epsilon, privacy.delta, _slack(problem, privacy.delta, privacy.epsilon)

    def calibrate(cohort: int, eta_beta: float) -> theorem.SoftFilterParameters:
        error = score_error(cohort, problem.dimension)
        return theorem.calibrate(epsilon, delta, cohort, eta_beta, problem.users, score_error=error, delta_slack=slack)

    smallest = partial(theorem.smallest_cohort, epsilon, delta)
    return planning.search_filtered(NAME, SoftFilteredParameters, problem, options, smallest, calibrate)


def verify(plan: RunPlan) -> None:
    """soft-filter#sf1 for every phase at the plan's numbers, independently of how they were found."""
    p, promise = plan.parameters_of(SoftFilteredParameters), plan.guarantee
    weight = p.filter.cohort_size - p.filter.softness_limit
    require_of_phases(plan, p.filter, p.norm, p.distance, p.temperature, weight)
    slack = search.lacks(gaussians=plan.problem.dimension) + 1e-5 * promise.delta / (1 + math.exp(promise.epsilon))
    theorem.verify(p.filter, promise.epsilon, promise.delta, delta_slack=slack)


def _slack(problem: Problem, delta: float, epsilon: float) -> float:
    """The samplers' total variation, and 1e-5 δ for the grids of test and release (docs/privacy/noise.md#n4)."""
    return planning.sampler_slack(problem) + 1e-5 * delta / (1 + math.exp(epsilon))


INFO = AlgorithmInfo(
    name=NAME,
    summary="As filtered-sgd with a deterministic soft filter and one test a phase; feasible with fewer users",
    origin=ours(GHAZI_2026.at("Algorithms 1 and 2"), note="a deterministic soft filter in place of theirs"),
    promises=Promises(
        ("central-release",),
        ("replace-one",),
        "docs/privacy/soft-filter.md",
        one_server="its filter looks at single answers: take tracking-srgd",
    ),
    options=planning.FilterOptions,
    parameters=SoftFilteredParameters,
    planner=plan,
    verifier=verify,
    maker=lambda plan: LocalisedSGD(plan, SoftFilter(plan.parameters_of(SoftFilteredParameters))),
    factor=UNMEASURED,  # no table has users enough
    no_black_boxes=ITERATES,
    choosing=Choosing(removes_outliers=True, remarks=planning.remarks),
)
