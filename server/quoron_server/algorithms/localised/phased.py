"""Phased SGD of Feldman, Koren & Talwar at user level: the naive alternative to filtering.

One phase of SGD with cohorts of B users is non-expansive for convex, smooth losses. Replacing one user moves one step
by at most 2Lη/B, and so every later iterate, and any public average, by at most 2Lη/B.
One Gaussian release a phase, disjoint users: exactly μ-GDP. Gradients must not be clipped: clipping breaks contraction,
and so do clients that choose by the iterate whether to answer.

Source: Feldman, Koren & Talwar (2020), Algorithm 2. Statement and proof: docs/privacy/phased-sgd.md.
"""

import numpy as np
from numpy.typing import NDArray

from quoron_privacy.accounts import sensitivity_recount
from quoron_privacy.accounts.pair import Pair
from quoron_privacy.errors import Infeasible, VerificationError
from quoron_privacy.gaussian import GaussianNoise
from quoron_privacy.noise.streams import total_variation
from quoron_privacy.release import Adjacency
from quoron_server.algorithms import search
from quoron_server.algorithms.info import ITERATES, AlgorithmInfo, Chosen, Factor, Promises
from quoron_server.algorithms.localised.method import LocalisedSGD, PhasedParameters, PlainMean
from quoron_server.algorithms.localised.plan import (
    Schedule,
    SizedOptions,
    as_phases,
    best_schedule,
    cohorts,
    require_contraction,
    shapes,
)
from quoron_server.algorithms.noisy import plan as noisy
from quoron_server.algorithms.references import FELDMAN_2020, theirs
from quoron_server.algorithms.search import Candidate, PlanInputs, Planner, round_grid
from quoron_server.parameters import Moves
from quoron_server.plan import RunPlan
from quoron_server.problem import Problem

Vector = NDArray[np.float64]

NAME = "phased-sgd"
LARGEST_ROUNDS = 2048


def _candidates(inputs: PlanInputs[SizedOptions]) -> list[Candidate[Schedule]]:
    problem, options = inputs.problem, inputs.options
    sizes = cohorts(inputs, round_grid(max(1, min(problem.users, LARGEST_ROUNDS))))

    def scale(tried: Vector, _steps: Vector) -> Vector:
        each, which = np.unique(tried, return_inverse=True)
        noise = [noisy.noise_scale(shift_per_step(problem, int(cohort)), problem, inputs.privacy) for cohort in each]
        return np.array(noise)[which]

    some = list(shapes((1, 2, 3, 5), (2.0, 4.0)))
    return best_schedule(problem, sizes, scale, rounds=options.rounds, all_shapes=some, step_size=options.step_size)


def _chosen(inputs: PlanInputs[SizedOptions], found: Candidate[Schedule]) -> Chosen:
    schedule, problem = found.of, inputs.problem
    first, shift = schedule.phases[0], shift_per_step(problem, schedule.cohort_size)
    mu = GaussianNoise(first.step_size * shift, first.release_scale).effective_mu(problem.dimension)
    return Chosen(PhasedParameters(schedule.cohort_size, as_phases(schedule, shift), mu), found.risk)


def _missing(inputs: PlanInputs[SizedOptions]) -> Infeasible:
    condition = f"n={inputs.problem.users:,} users do not fill the cohorts"
    return Infeasible(NAME, condition, "smaller cohorts or fewer rounds")


def shift_per_step(problem: Problem, cohort_size: int) -> float:
    """b / η = 2L/B, with room for rows up to L (1 + 1e-6), and as much for the rounding of sums and iterates."""
    return 2 * problem.lipschitz / cohort_size * (1 + 2e-6)


def verify(plan: RunPlan) -> None:
    """Contraction, sensitivity 2Lη/B in every phase, and a μ that gives (ε, δ)."""
    p = plan.parameters_of(PhasedParameters)
    search.require_smooth(NAME, plan.problem)
    require_contraction(plan)
    for phase in p.phases:
        needed = shift_per_step(plan.problem, p.cohort_size) * phase.step_size
        if phase.noise is None:
            raise VerificationError(f"Expected noise in every phase of {NAME}, got {phase}.")
        search.require_least(NAME, "sensitivity", phase.sensitivity, needed)
    search.require_gaussian(plan, pairs(p, plan.problem, plan.guarantee.adjacency), p.mu)


def pairs(p: PhasedParameters, problem: Problem, adjacency: Adjacency) -> tuple[Pair, ...]:
    """A run is as private as its least private phase; only the release of the own user's phase has to be exact."""
    del adjacency
    far = 2 * problem.lipschitz / p.cohort_size * (1 + 2e-6)  # room for long rows, and for sums and iterates
    mus = (sensitivity_recount.mu(far * each.step_size, each.release_scale, problem.dimension) for each in p.phases)
    return (Pair.gaussian(max(mus), total_variation(gaussians=problem.dimension)),)


def moves(p: PhasedParameters, problem: Problem) -> list[Moves]:
    """min-cohort#q4: of the average of each phase, by one answer."""
    far = 2 * problem.lipschitz / p.cohort_size * (1 + 2e-6)
    found = [(far * each.step_size / each.release_scale, each.rounds) for each in p.phases]
    return [Moves(once, once / 2) for once, rounds in found for _ in range(rounds)]


def make(plan: RunPlan) -> LocalisedSGD:
    """The algorithm of a plan."""
    cohort = plan.parameters_of(PhasedParameters).cohort_size
    return LocalisedSGD(plan, PlainMean(cohort, plan.problem.lipschitz))


INFO = AlgorithmInfo(
    name=NAME,
    summary="Phases of SGD on fresh users, one noisy release a phase; no filter",
    origin=theirs(
        FELDMAN_2020.at("Algorithm 2"), note="cohorts of users in place of single examples; their text was not at hand"
    ),
    promises=Promises(
        ("central-release",),
        ("replace-one",),
        "docs/privacy/phased-sgd.md",
        pairs,
        moves=moves,
        one_server="its iterates have no noise within a phase, and the coordinator would see them: take "
        "accelerated-srgd or tracking-srgd",
    ),
    options=SizedOptions,
    parameters=PhasedParameters,
    planner=Planner(NAME, search.check_smooth, _candidates, _chosen, _missing),
    verifier=verify,
    maker=make,
    factor=Factor(known=2.5, unknown=11.0),
    no_black_boxes=ITERATES,
)
