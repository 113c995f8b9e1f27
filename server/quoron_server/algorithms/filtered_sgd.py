"""Localised SGD with a noisy-threshold outlier filter: Ghazi, Kumar, Liu & Manurangsi, Algorithms 1 and 2, repaired.

In every round user i of the cohort is kept when κ_i + Lap(λ) > F, κ_i its concentration score; the step uses the mean
of the kept. A phase halts, and releases nothing new, when the users filtered in it reach a hidden random cutoff.
Otherwise a public average of its iterates is released with Gaussian noise whose scale rests on the concentration of
user averages (1/√m), not on the worst gradient. Gradients are not clipped: contraction needs true gradients of convex
smooth losses.

Changed from print, with proofs in docs/privacy/outlier-filter.md: integer cutoff apart from λ, halting that does not
show when, projected releases, explicit constants. `constants="paper"` runs the printed numbers, which carry no proof.
"""

from dataclasses import dataclass

import numpy as np

from quoron_client.questions import Answers
from quoron_protos.errors import VerificationError
from quoron_server.accounting import outlier_filter as theorem
from quoron_server.algorithm import Vector
from quoron_server.algorithms import _filter_plans as planning
from quoron_server.algorithms import phased_sgd
from quoron_server.algorithms._info import AlgorithmInfo
from quoron_server.algorithms._localised_plans import as_phases
from quoron_server.algorithms.localisation import Aggregate, LocalisedSGD, Phase
from quoron_server.mechanisms import outlier_filter as mechanism
from quoron_server.mechanisms.concentration import score_error
from quoron_server.mechanisms.cutoff import HiddenCutoff
from quoron_server.mechanisms.laplace import LaplaceThreshold
from quoron_server.noise import NoiseSource
from quoron_server.plan import Constants, Guarantee, Plan, Privacy
from quoron_server.problem import Problem

NAME = "filtered-sgd"
THEOREM = "docs/privacy/outlier-filter.md"


@dataclass(frozen=True, slots=True)
class FilteredParameters:
    """Public numbers of one run."""

    cohort_size: int  # B
    phases: tuple[Phase, ...]
    temperature: float  # τ, an inverse length
    distance: float  # d: how far apart ordinary users' average gradients are taken to lie
    filter: theorem.FilterParameters


class OutlierFilter:
    """The rule of Algorithm 2: noisy threshold on the concentration score, mean of the kept, hidden cutoff."""

    def __init__(self, parameters: FilteredParameters) -> None:
        self.parameters = parameters
        self.cutoff = HiddenCutoff(parameters.filter.cutoff_centre, parameters.filter.cutoff_decay)
        self.test = LaplaceThreshold(parameters.filter.laplace_scale, parameters.filter.threshold)

    def aggregate(self, answers: Answers, noise: NoiseSource, round_: int) -> Aggregate:
        """Mean of the kept users; whoever did not answer is isolated and counts as filtered."""
        limits = self.test.limits(len(answers.status), noise.stream("filter", round_))
        decided = mechanism.decide(
            answers.values, answers.answered, self.parameters.temperature, limits, step=self.test.grid
        )
        filtered = len(decided.kept) - int(decided.kept.sum())
        told = {"filtered": filtered, "undecided": decided.undecided, "threshold": self.test.threshold}
        told |= score_summary(decided.score_bounds)
        return Aggregate(mechanism.filtered_mean(answers.values, decided.kept), float(filtered), told)

    def passes(self, tally: float, noise: NoiseSource, phase: int) -> bool:
        """Whether fewer users were filtered than the phase's hidden cutoff."""
        return tally < self.cutoff.draw(noise.stream("cutoff", phase))


def score_summary(scores: Vector) -> dict[str, float]:
    """Least, middle and largest of a cohort's scores (n,), for simulation reports; empty for an empty cohort."""
    if not len(scores):
        return {}
    return {
        "score_min": float(scores.min()),
        "score_median": float(np.median(scores)),
        "score_max": float(scores.max()),
    }


def plan(problem: Problem, privacy: Privacy, options: planning.FilterOptions, constants: Constants, seed: int) -> Plan:
    """The plan with the least predicted excess risk. Raises Infeasible, saying how many users would do."""
    phased_sgd.require_smooth(NAME, problem)
    choose = planning.paper if constants == "paper" else planning.calibrated
    choice = choose(NAME, problem, privacy, options)
    filter_ = choice.filter
    shift = filter_.sensitivity(1.0, choice.distance)
    return Plan(
        algorithm=NAME,
        problem=problem,
        guarantee=Guarantee(
            privacy.epsilon,
            privacy.delta,
            "replace-one",
            "model",
            phased_sgd.ASSUMPTIONS,
            THEOREM,
            proved=constants == "calibrated",
        ),
        cost=phased_sgd.cost(problem, choice.schedule),
        parameters=FilteredParameters(
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
    """Theorem 1 for every phase at the plan's numbers, independently of how they were found."""
    p: FilteredParameters = plan.parameters
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
    """The algorithm, once the plan passes `verify`."""
    verify(plan)
    return LocalisedSGD(plan, OutlierFilter(plan.parameters))


INFO = AlgorithmInfo(
    name=NAME,
    summary="Phased SGD with a private concentration test and outlier removal; noise falls as 1/√m",
    paper="Ghazi, Kumar, Liu & Manurangsi, Nearly Linear-Time User-Level DP-SCO",
    algorithm_numbers="1, 2",
    exposure="model",
    adjacency=("replace-one",),
    constants=("calibrated", "paper"),
    theorem=THEOREM,
    options=planning.FilterOptions,
    plan=plan,
    verify=verify,
    make=make,
    removes_outliers=True,
)
