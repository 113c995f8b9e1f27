"""Phased SGD of Feldman, Koren & Talwar at user level: the naive alternative to filtering.

One phase of SGD with cohorts of B users is non-expansive for convex, smooth losses, so replacing one user (whose
average gradient moves one step by at most 2Lη/B) moves every later iterate, and any public average, by at most 2Lη/B.
One Gaussian release a phase, disjoint users: exactly μ-GDP. Gradients must not be clipped: clipping breaks contraction.

Source: Feldman, Koren & Talwar (2020), Algorithm 2. Statement and proof: docs/privacy/phased-sgd.md.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quoron_client.questions import Answers
from quoron_protos.errors import Infeasible, VerificationError
from quoron_server.accounting.gdp import delta_for
from quoron_server.algorithms import _noisy_plans as noisy
from quoron_server.algorithms._info import AlgorithmInfo
from quoron_server.algorithms._localised_plans import Schedule, as_phases, best_schedule, cohort_for, shapes
from quoron_server.algorithms._search import round_grid
from quoron_server.algorithms.localisation import Aggregate, LocalisedSGD, Phase
from quoron_server.mechanisms.gaussian import GaussianNoise
from quoron_server.noise import NoiseSource
from quoron_server.plan import Constants, Cost, Guarantee, Plan, Privacy
from quoron_server.problem import Problem

Vector = NDArray[np.float64]

NAME = "phased-sgd"
THEOREM = "docs/privacy/phased-sgd.md"
LARGEST_ROUNDS = 2048
ASSUMPTIONS = (
    "every conceivable user's loss is convex, smooth and Lipschitz with the plan's constants "
    "(clients clip features and scale losses)",
    "clients compute true, unclipped gradients",
)


@dataclass(frozen=True, slots=True)
class PhasedOptions:
    """Planning options; None lets the plan choose by predicted excess risk."""

    rounds: int | None = None  # exactly; the cohort is then n / rounds, unless it is given too
    cohort_size: int | None = None
    step_size: float | None = None


@dataclass(frozen=True, slots=True)
class PhasedParameters:
    """Public numbers of one run."""

    cohort_size: int  # B
    phases: tuple[Phase, ...]
    mu: float  # GDP parameter of every phase, as computed


class PlainMean:
    """The mean with fixed divisor B: absent users contribute zero."""

    def __init__(self, cohort_size: int, lipschitz: float) -> None:
        self.cohort_size, self.longest = cohort_size, lipschitz * (1 + 1e-6)

    def aggregate(self, answers: Answers, noise: NoiseSource, round_: int) -> Aggregate:
        """(1/B) Σ of the answers; absent rows are zero, and so are rows that no honest client can send."""
        del noise, round_
        lengths = np.sqrt(np.sum(answers.values**2, axis=1))
        usable = answers.answered & (lengths <= self.longest)
        columns = np.ascontiguousarray(np.where(usable[:, None], answers.values, 0.0).T)
        # numpy adds contiguous numbers pairwise: the error stays below 1e-6 of b for any cohort that fits in memory
        return Aggregate(np.sum(columns, axis=1) / self.cohort_size)

    def passes(self, tally: float, noise: NoiseSource, phase: int) -> bool:
        """Always."""
        del tally, noise, phase
        return True


def plan(problem: Problem, privacy: Privacy, options: PhasedOptions, constants: Constants, seed: int) -> Plan:
    """The plan with the smallest predicted excess risk. Raises Infeasible for losses that are not convex and smooth."""
    del constants
    require_smooth(NAME, problem)
    largest = max(1, min(problem.users, LARGEST_ROUNDS))
    if options.rounds:
        cohorts = [cohort_for(NAME, problem, options.rounds, options.cohort_size)]
    else:
        cohorts = [options.cohort_size] if options.cohort_size else [problem.users // t for t in round_grid(largest)]

    def scale(sizes: Vector, _steps: Vector) -> Vector:
        each, which = np.unique(sizes, return_inverse=True)
        noise = [noisy.noise_scale(shift_per_step(problem, int(cohort)), problem, privacy) for cohort in each]
        return np.array(noise)[which]

    steps = [options.step_size] if options.step_size else None
    some = list(shapes((1, 2, 3, 5), (2.0, 4.0)))
    found = best_schedule(problem, cohorts, scale, rounds=options.rounds, all_shapes=some, steps=steps)
    if found is None:
        raise Infeasible(NAME, f"n={problem.users:,} users do not fill the cohorts", "smaller cohorts or fewer rounds")
    risk, schedule = found
    first = schedule.phases[0]
    shift = shift_per_step(problem, schedule.cohort_size)
    mu = GaussianNoise(first.step_size * shift, first.release_scale).effective_mu(problem.dimension)
    return Plan(
        algorithm=NAME,
        problem=problem,
        guarantee=Guarantee(privacy.epsilon, privacy.delta, "replace-one", "model", ASSUMPTIONS, THEOREM),
        cost=cost(problem, schedule),
        parameters=PhasedParameters(schedule.cohort_size, as_phases(schedule, shift), mu),
        predicted_excess_risk=risk,
        seed=seed,
    )


def shift_per_step(problem: Problem, cohort_size: int) -> float:
    """b / η = 2L/B, with room for the rounding of sums and iterates (relative 1e-6, far above T·B·2⁻⁵³)."""
    return 2 * problem.lipschitz / cohort_size * (1 + 1e-6)


def cost(problem: Problem, schedule: Schedule) -> Cost:
    """One average gradient of every user that a cohort reaches."""
    return Cost.of(problem, rounds=schedule.rounds, messages=schedule.rounds * schedule.cohort_size)


def require_smooth(name: str, problem: Problem) -> None:
    """Infeasible unless the loss is convex and smooth, which contraction rests on."""
    if not problem.convex or problem.beta is None:
        raise Infeasible(name, "the loss is not convex and smooth", "a convex smooth loss, such as logistic or huber")


def require_contraction(plan: Plan) -> None:
    """Every step satisfies ηβ ≤ 2, and the phases use disjoint users."""
    beta = plan.problem.beta or 0.0
    phases: tuple[Phase, ...] = plan.parameters.phases
    for phase in phases:
        if not (phase.step_size > 0 and phase.release_scale >= 0 and 1 <= phase.suffix <= phase.rounds):
            raise VerificationError(f"Expected positive steps and 1 <= suffix <= rounds in every phase, got {phase}.")
    if plan.parameters.cohort_size < 1:
        raise VerificationError(f"Expected cohort_size >= 1, got {plan.parameters.cohort_size}.")
    steep = max(phase.step_size for phase in phases) * beta
    if not steep <= 2:
        raise VerificationError(f"Expected step_size * smoothness <= 2 in every phase, got {steep}.")
    asked = sum(phase.rounds for phase in phases) * plan.parameters.cohort_size
    if asked > plan.problem.users:
        raise VerificationError(
            f"Expected at most {plan.problem.users} users in disjoint cohorts, the plan asks {asked}."
        )


def verify(plan: Plan) -> None:
    """Contraction, sensitivity 2Lη/B in every phase, and a μ that gives (ε, δ)."""
    p: PhasedParameters = plan.parameters
    require_smooth(NAME, plan.problem)
    require_contraction(plan)
    for phase in p.phases:
        needed = shift_per_step(plan.problem, p.cohort_size) * phase.step_size
        mu = GaussianNoise(phase.sensitivity, phase.release_scale).effective_mu(plan.problem.dimension)
        if not phase.sensitivity >= needed * (1 - 1e-12) or not p.mu >= mu * (1 - 1e-12):
            raise VerificationError(
                f"Expected sensitivity >= {needed} and mu >= {mu}, got {phase.sensitivity}, {p.mu}."
            )
    spent = delta_for(p.mu, plan.guarantee.epsilon) + noisy.numeric_slack(plan.problem, plan.guarantee.epsilon, 1)
    if not spent <= plan.guarantee.delta:
        raise VerificationError(f"Expected delta <= {plan.guarantee.delta}, the plan spends {spent}.")


def make(plan: Plan) -> LocalisedSGD:
    """The algorithm, once the plan passes `verify`."""
    verify(plan)
    return LocalisedSGD(plan, PlainMean(plan.parameters.cohort_size, plan.problem.lipschitz))


INFO = AlgorithmInfo(
    name=NAME,
    summary="Phases of SGD on fresh users, one noisy release a phase; no filter",
    paper="Feldman, Koren & Talwar (2020), at user level",
    algorithm_numbers="2",
    exposure="model",
    adjacency=("replace-one",),
    constants=("calibrated",),
    theorem=THEOREM,
    options=PhasedOptions,
    plan=plan,
    verify=verify,
    make=make,
)
