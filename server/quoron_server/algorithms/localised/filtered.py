"""Localised SGD with a noisy-threshold outlier filter: Ghazi, Kumar, Liu & Manurangsi, Algorithms 1 and 2, repaired.

In every round user i of the cohort is kept when κ_i + Lap(λ) > F, κ_i its concentration score; the step uses the mean
of the kept. A phase halts, and releases nothing new, when the users filtered in it reach a hidden random cutoff.
Otherwise a public average of its iterates is released with Gaussian noise whose scale rests on the concentration of
user averages (1/√m), not on the worst gradient. Gradients are not clipped: contraction needs true gradients of convex
smooth losses.

Changed from print, with docs/privacy/outlier-filter.md#f1: integer cutoff apart from λ, halting that does not
show when, projected releases, explicit constants. `constants="paper"` runs the printed numbers, which carry no proof.
"""

from quoron_privacy.errors import VerificationError
from quoron_privacy.robust.filter import outlier_filter as theorem
from quoron_privacy.robust.filter.concentration import score_error
from quoron_privacy.robust.filter.thresholds import LaplaceThreshold
from quoron_server.algorithms.forecast import UNMEASURED
from quoron_server.algorithms.info import ITERATES, AlgorithmInfo, Choosing, Promises
from quoron_server.algorithms.localised import filter_plan as planning
from quoron_server.algorithms.localised.method import LocalisedSGD
from quoron_server.algorithms.localised.outlier_filter import FilteredParameters, OutlierFilter
from quoron_server.algorithms.localised.plan import require_smooth
from quoron_server.plan import Plan, Privacy
from quoron_server.problem import Problem

NAME = "filtered-sgd"
THEOREM = "docs/privacy/outlier-filter.md"


def plan(problem: Problem, privacy: Privacy, options: planning.FilterOptions, seed: int) -> Plan:
    """The plan with the least predicted excess risk. Raises Infeasible, saying how many users would do."""
    require_smooth(NAME, problem)
    choice = planning.calibrated(NAME, problem, privacy, options)
    return planning.assembled(NAME, THEOREM, FilteredParameters, choice, problem, privacy, seed)


def paper_plan(problem: Problem, privacy: Privacy, options: planning.FilterOptions, seed: int) -> Plan:
    """The plan of the printed constants, for comparison: nothing is proved for them."""
    require_smooth(NAME, problem)
    choice = planning.paper(NAME, problem, privacy, options)
    return planning.assembled(NAME, THEOREM, FilteredParameters, choice, problem, privacy, seed, proved=False)


def verify(plan: Plan) -> None:
    """outlier-filter#f1 for every phase at the plan's numbers, independently of how they were found."""
    p = plan.parameters_of(FilteredParameters)
    planning.check_phases(plan)
    rounding = score_error(p.cohort_size, plan.problem.dimension) + LaplaceThreshold(p.filter.laplace_scale, 0.0).grid
    if not rounding <= p.filter.score_error:
        raise VerificationError(
            f"Expected score_error >= {rounding} in the plan of {NAME}, got {p.filter.score_error}."
        )
    if plan.guarantee.proved:
        slack = planning.sampler_slack(plan.problem)
        theorem.verify(p.filter, plan.guarantee.epsilon, plan.guarantee.delta, delta_slack=slack)


def make(plan: Plan) -> LocalisedSGD:
    """The algorithm of a plan."""
    return LocalisedSGD(plan, OutlierFilter(plan.parameters_of(FilteredParameters)))


INFO = AlgorithmInfo(
    name=NAME,
    summary="Phased SGD with a private concentration test and outlier removal; noise falls as 1/√m",
    paper="Ghazi, Kumar, Liu & Manurangsi, Nearly Linear-Time User-Level DP-SCO, Algorithms 1, 2",
    promises=Promises(("model",), ("replace-one",), THEOREM),
    options=planning.FilterOptions,
    parameters=FilteredParameters,
    planner=plan,
    paper_planner=paper_plan,
    verifier=verify,
    maker=make,
    factor=UNMEASURED,  # no table has users enough
    no_black_boxes=ITERATES,
    choosing=Choosing(removes_outliers=True, remarks=planning.remarks),
)
