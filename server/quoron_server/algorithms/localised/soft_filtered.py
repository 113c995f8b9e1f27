"""Localised SGD with a deterministic soft outlier filter: Algorithm 2S, ours, not in the papers.

Every user's weight is w_i = 1 - min(1, exp(-L (κ_i/B - f₁))); the phase's total suspicion V = Σ (1 - w_i) is compared
once, with Gaussian noise, against a limit. No noise a user, no cutoff: feasible with fewer users than the noisy filter,
for several times its release noise. Scores are needed exactly, of all pairs: O(B² d) a round.

Statement and proof: docs/privacy/soft-filter.md#sf1.
"""

import math
from functools import partial

from quoron_privacy.robust.filter import soft_filter as theorem
from quoron_privacy.robust.filter.concentration import score_error
from quoron_server.algorithms.forecast import UNMEASURED
from quoron_server.algorithms.info import ITERATES, AlgorithmInfo, Choosing, Chosen, Promises
from quoron_server.algorithms.localised import filter_plan as planning
from quoron_server.algorithms.localised.geometry import require_of_phases
from quoron_server.algorithms.localised.method import LocalisedSGD
from quoron_server.algorithms.localised.plan import require_smooth
from quoron_server.algorithms.localised.soft_filter import SoftFilter, SoftFilteredParameters
from quoron_server.plan import Plan, Privacy
from quoron_server.problem import Problem

NAME = "soft-filtered-sgd"


def plan(problem: Problem, privacy: Privacy, options: planning.FilterOptions) -> Chosen:
    """The plan with the least predicted excess risk. Raises Infeasible, saying how many users would do."""
    require_smooth(NAME, problem)
    epsilon, delta, slack = privacy.epsilon, privacy.delta, _slack(problem, privacy.delta, privacy.epsilon)

    def calibrate(cohort: int, eta_beta: float) -> theorem.SoftFilterParameters:
        error = score_error(cohort, problem.dimension)
        return theorem.calibrate(epsilon, delta, cohort, eta_beta, problem.users, score_error=error, delta_slack=slack)

    smallest = partial(theorem.smallest_cohort, epsilon, delta)
    return planning.search(NAME, SoftFilteredParameters, problem, options, smallest, calibrate)


def verify(plan: Plan) -> None:
    """soft-filter#sf1 for every phase at the plan's numbers, independently of how they were found."""
    p, promise = plan.parameters_of(SoftFilteredParameters), plan.guarantee
    require_of_phases(plan, p.filter, p.norm, p.distance, p.temperature, score_error)
    slack = _slack(plan.problem, promise.delta, promise.epsilon)
    theorem.verify(p.filter, promise.epsilon, promise.delta, delta_slack=slack)


def make(plan: Plan) -> LocalisedSGD:
    """The algorithm of a plan."""
    return LocalisedSGD(plan, SoftFilter(plan.parameters_of(SoftFilteredParameters)))


def _slack(problem: Problem, delta: float, epsilon: float) -> float:
    """The samplers' total variation, and 1e-5 δ for the grids of test and release (docs/privacy/noise.md#n4)."""
    return planning.sampler_slack(problem) + 1e-5 * delta / (1 + math.exp(epsilon))


INFO = AlgorithmInfo(
    name=NAME,
    summary="As filtered-sgd with a deterministic soft filter and one test a phase; feasible with fewer users",
    paper="ours (Algorithm 2S), after Ghazi, Kumar, Liu & Manurangsi, Algorithm 2S",
    promises=Promises(
        ("model",),
        ("replace-one",),
        "docs/privacy/soft-filter.md",
        one_server="its filter looks at single answers: take tracking-srgd",
    ),
    options=planning.FilterOptions,
    parameters=SoftFilteredParameters,
    planner=plan,
    verifier=verify,
    maker=make,
    factor=UNMEASURED,  # no table has users enough
    no_black_boxes=ITERATES,
    choosing=Choosing(removes_outliers=True, remarks=planning.remarks),
)
