"""Localised SGD with a deterministic soft outlier filter: Algorithm 2S, ours, not in the papers.

Every user's weight is w_i = 1 - min(1, exp(-L (κ_i/B - f₁))); the phase's total suspicion V = Σ (1 - w_i) is compared
once, with Gaussian noise, against a limit. No noise a user, no cutoff: feasible with fewer users than the noisy filter,
for several times its release noise. Scores are needed exactly, of all pairs: O(B² d) a round.

Statement and proof: docs/privacy/soft-filter.md (Theorem 2).
"""

import math
from dataclasses import dataclass

import numpy as np

from quoron_client.questions import Answers
from quoron_protos.errors import VerificationError
from quoron_server.accounting import soft_filter as theorem
from quoron_server.algorithms import _filter_plans as planning
from quoron_server.algorithms import phased_sgd
from quoron_server.algorithms._info import AlgorithmInfo
from quoron_server.algorithms._localised_plans import as_phases
from quoron_server.algorithms.filtered_sgd import score_summary
from quoron_server.algorithms.localisation import Aggregate, LocalisedSGD, Phase
from quoron_server.mechanisms import soft_filter as mechanism
from quoron_server.mechanisms.concentration import cohort_scores, score_error
from quoron_server.mechanisms.gaussian import GaussianNoise
from quoron_server.noise import NoiseSource
from quoron_server.plan import Constants, Guarantee, Plan, Privacy
from quoron_server.problem import Problem

NAME = "soft-filtered-sgd"
THEOREM = "docs/privacy/soft-filter.md"


@dataclass(frozen=True, slots=True)
class SoftFilteredParameters:
    """Public numbers of one run."""

    cohort_size: int  # B
    phases: tuple[Phase, ...]
    temperature: float  # τ
    distance: float  # d
    filter: theorem.SoftFilterParameters


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
        scores = cohort_scores(answers.values, answers.answered, self.parameters.temperature)
        suspicions = mechanism.suspicions(scores, cohort_size=p.cohort_size, slope=p.steepness, cutoff=p.floor)
        weights = mechanism.soft_weights(suspicions)
        suspicion = math.fsum(suspicions)
        told = {
            "filtered": int(np.sum(weights < 0.5)),
            "suspicion": suspicion,
            "threshold": p.floor * p.cohort_size,
        } | score_summary(scores)
        return Aggregate(mechanism.soft_mean(answers.values, weights), suspicion, told)

    def passes(self, tally: float, noise: NoiseSource, phase: int) -> bool:
        """V ≤ Vmax, and V + N(0, s_u²) at most the threshold."""
        noisy = self.test.release(np.array([tally]), noise.stream("test", phase))
        return bool(tally <= self.parameters.filter.softness_limit and noisy[0] <= self.threshold)


def plan(problem: Problem, privacy: Privacy, options: planning.FilterOptions, constants: Constants, seed: int) -> Plan:
    """The plan with the least predicted excess risk. Raises Infeasible, saying how many users would do."""
    del constants
    phased_sgd.require_smooth(NAME, problem)

    def calibrate(cohort: int, eta_beta: float) -> theorem.SoftFilterParameters:
        return theorem.calibrate(
            privacy.epsilon,
            privacy.delta,
            cohort,
            eta_beta,
            problem.users,
            score_error=score_error(cohort, problem.dimension),
            delta_slack=_slack(problem, privacy.delta, privacy.epsilon),
        )

    def smallest(eta_beta: float) -> int:
        return theorem.smallest_cohort(privacy.epsilon, privacy.delta, eta_beta)

    choice = planning.search(NAME, problem, options, smallest, calibrate)
    filter_ = choice.filter
    shift = filter_.sensitivity(1.0, choice.distance)
    return Plan(
        algorithm=NAME,
        problem=problem,
        guarantee=Guarantee(privacy.epsilon, privacy.delta, "replace-one", "model", phased_sgd.ASSUMPTIONS, THEOREM),
        cost=phased_sgd.cost(problem, choice.schedule),
        parameters=SoftFilteredParameters(
            cohort_size=choice.schedule.cohort_size,
            phases=as_phases(choice.schedule, shift),
            temperature=filter_.temperature(choice.distance),
            distance=choice.distance,
            filter=filter_,
        ),
        predicted_excess_risk=choice.risk,
        seed=seed,
    )


def verify(plan: Plan) -> None:
    """Theorem 2 for every phase at the plan's numbers, independently of how they were found."""
    planning.check_phases(plan)
    p: SoftFilteredParameters = plan.parameters
    slack = _slack(plan.problem, plan.guarantee.delta, plan.guarantee.epsilon)
    theorem.verify(p.filter, plan.guarantee.epsilon, plan.guarantee.delta, delta_slack=slack)
    if p.filter.score_error < score_error(p.cohort_size, plan.problem.dimension):
        raise VerificationError(
            f"Expected score_error to cover rounding in the plan of {NAME}, got {p.filter.score_error}."
        )


def make(plan: Plan) -> LocalisedSGD:
    """The algorithm, once the plan passes `verify`."""
    verify(plan)
    return LocalisedSGD(plan, SoftFilter(plan.parameters))


def _slack(problem: Problem, delta: float, epsilon: float) -> float:
    """The samplers' total variation, and 1e-5 δ for the grids of test and release (docs/privacy/noise.md, N4)."""
    return planning.sampler_slack(problem) + 1e-5 * delta / (1 + math.exp(epsilon))


INFO = AlgorithmInfo(
    name=NAME,
    summary="As filtered-sgd with a deterministic soft filter and one test a phase; feasible with fewer users",
    paper="ours (Algorithm 2S), after Ghazi, Kumar, Liu & Manurangsi",
    algorithm_numbers="2S",
    exposure="model",
    adjacency=("replace-one",),
    constants=("calibrated",),
    theorem=THEOREM,
    options=planning.FilterOptions,
    plan=plan,
    verify=verify,
    make=make,
    removes_outliers=True,
)
