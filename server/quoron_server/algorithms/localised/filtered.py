"""Localised SGD with a noisy-threshold outlier filter: Ghazi, Kumar, Liu & Manurangsi, Algorithms 1 and 2, repaired.

In every round user i of the cohort is kept when κ_i + Lap(λ) > F, κ_i its concentration score; the step uses the mean
of the kept. A phase halts, and releases nothing new, when the users filtered in it reach a hidden random cutoff.
Otherwise a public average of its iterates is released with Gaussian noise whose scale rests on the concentration of
user averages (1/√m), not on the worst gradient. Gradients are not clipped: contraction needs true gradients of convex
smooth losses.

Changed from print, with docs/privacy/outlier-filter.md#f1: integer cutoff apart from λ, halting that does not
show when, projected releases, explicit constants. As printed: `printed.ghazi.Filter`.
"""

import math
from dataclasses import dataclass
from functools import partial

from quoron_client.protocol.questions import Answers
from quoron_privacy.errors import Infeasible, Needs
from quoron_privacy.noise.streams import NoiseSource
from quoron_privacy.robust.filter import decisions
from quoron_privacy.robust.filter import outlier_filter as theorem
from quoron_privacy.robust.filter.concentration import score_error, score_summary
from quoron_privacy.robust.filter.cutoff import HiddenCutoff
from quoron_privacy.robust.filter.outlier_filter import FilterParameters
from quoron_privacy.robust.filter.thresholds import LaplaceThreshold
from quoron_server.algorithms import checks
from quoron_server.algorithms.forecast import UNMEASURED
from quoron_server.algorithms.info import ITERATES, AlgorithmInfo, Choosing, Chosen, Promises
from quoron_server.algorithms.localised import filter_plan as planning
from quoron_server.algorithms.localised.filtering import FilteringParameters
from quoron_server.algorithms.localised.geometry import require_of_phases
from quoron_server.algorithms.localised.method import Aggregate, LocalisedSGD
from quoron_server.algorithms.printed import ghazi
from quoron_server.algorithms.references import GHAZI_2026, repaired
from quoron_server.plan import Privacy, RunPlan
from quoron_server.problem import Problem

NAME = "filtered-sgd"
GRID_ERROR = 3e-4  # at least one step of the score grid for λ up to 300; more for small ε, where λ is larger
SMALLEST_EPSILON = 0.1  # the accountant's tables grow as 1/ε²


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


def plan(problem: Problem, privacy: Privacy, options: planning.FilterOptions) -> Chosen:
    """The plan with the least predicted excess risk. Raises Infeasible, saying how many users would do."""
    checks.require_smooth(NAME, problem)
    epsilon, delta, slack = privacy.epsilon, privacy.delta, planning.sampler_slack(problem)
    if epsilon < SMALLEST_EPSILON:
        enough = Needs(f"epsilon >= {SMALLEST_EPSILON:g}", epsilon=SMALLEST_EPSILON)
        raise Infeasible(NAME, f"epsilon={epsilon:g} is too small to tabulate", enough)
    if (1 + math.exp(epsilon)) * slack >= delta:
        needs = "a smaller epsilon, fewer users or a larger delta"
        raise Infeasible(NAME, f"the noise of n={problem.users:,} decisions is not exact enough for delta", needs)

    def calibrate(cohort: int, eta_beta: float) -> theorem.FilterParameters:
        error = score_error(cohort, problem.dimension) + GRID_ERROR * max(1.0, 1 / epsilon**2)
        return theorem.calibrate(epsilon, delta, cohort, eta_beta, problem.users, score_error=error, delta_slack=slack)

    smallest = partial(theorem.smallest_cohort, epsilon, delta)
    return planning.search(NAME, FilteredParameters, problem, options, smallest, calibrate)


def verify(plan: RunPlan) -> None:
    """outlier-filter#f1 for every phase at the plan's numbers, independently of how they were found."""
    p, promise = plan.parameters_of(FilteredParameters), plan.guarantee
    weight = p.filter.cohort_size - 2 * p.filter.cutoff_centre + 2  # N + 1
    grid = p.filter.laplace_scale * 2.0**-20
    require_of_phases(plan, p.filter, p.norm, p.distance, p.temperature, weight, grid)
    users = plan.problem.users
    slack = checks.lacks(gaussians=plan.problem.dimension, laplaces=users) + math.ldexp(users, -95)
    theorem.verify(p.filter, promise.epsilon, promise.delta, delta_slack=slack)


def make(plan: RunPlan) -> LocalisedSGD:
    """The algorithm of a plan."""
    return LocalisedSGD(plan, OutlierFilter(plan.parameters_of(FilteredParameters)))


INFO = AlgorithmInfo(
    name=NAME,
    summary="Phased SGD with a private concentration test and outlier removal; noise falls as 1/√m",
    origin=repaired(
        GHAZI_2026.at("Algorithms 1 and 2"), note="noise apart from the cutoff, an integer; a halt does not say when"
    ),
    promises=Promises(
        ("central-release",),
        ("replace-one",),
        "docs/privacy/outlier-filter.md",
        one_server="its filter looks at single answers: take tracking-srgd",
    ),
    options=planning.FilterOptions,
    parameters=FilteredParameters,
    planner=plan,
    printed=ghazi.FILTER_AS_PRINTED,
    verifier=verify,
    maker=make,
    factor=UNMEASURED,  # no table has users enough
    no_black_boxes=ITERATES,
    choosing=Choosing(removes_outliers=True, remarks=planning.remarks),
)
