"""One-pass DP-SGD: disjoint cohorts fixed in advance, a user-level clip, Gaussian noise every round.

Each user is asked in one round only, so the rounds compose in parallel and the whole transcript is exactly as private
as one round: μ-GDP with σ = 2C/(Bμ), replace-one. No amplification is needed. The baseline every user-level method has
to beat, and with `clip_norm` at the scale of user averages a strong one.

Statement and proof: docs/privacy/gaussian.md (parallel composition).
"""

import math
from dataclasses import dataclass

from quoron_privacy.clipping import mean_sensitivity
from quoron_privacy.errors import VerificationError
from quoron_privacy.gaussian import GaussianNoise
from quoron_privacy.gdp import delta_for
from quoron_privacy.noise import total_variation
from quoron_server.algorithms.info import AlgorithmInfo, GaussianPromise
from quoron_server.algorithms.noisy import plan as noisy
from quoron_server.algorithms.noisy.method import NoisySGD, NoisySGDParameters
from quoron_server.algorithms.search import round_grid, single_phases
from quoron_server.plan import Cost, Guarantee, Plan, Privacy
from quoron_server.problem import Problem

NAME = "one-pass-dp-sgd"
THEOREM = "docs/privacy/gaussian.md#parallel-composition"


@dataclass(frozen=True, slots=True)
class OnePassOptions:
    """Planning options; None lets the plan choose by predicted excess risk."""

    rounds: int | None = None
    step_size: float | None = None
    clip_norm: float | None = None  # from public knowledge, never tuned on protected data


def plan(problem: Problem, privacy: Privacy, options: OnePassOptions, seed: int) -> Plan:
    """The plan with the smallest predicted excess risk. Raises Infeasible below 2 users a round."""
    clip = options.clip_norm or noisy.default_clip(problem)
    rounds = [options.rounds] if options.rounds else round_grid(max(1, min(problem.users // 2, 4096)))
    noisy.require_cohorts(NAME, problem, min(rounds))

    def scale(total: int) -> float:
        cohort = problem.users // total
        return noisy.noise_scale(mean_sensitivity(clip, cohort), problem, privacy)

    variance = {
        total: problem.user_deviation**2 / (problem.users // total) + problem.dimension * scale(total) ** 2
        for total in rounds
    }
    steps = [options.step_size] if options.step_size else None
    risk, phase = noisy.few_rounds(single_phases(problem, rounds, variance, steps))
    cohort = problem.users // phase.rounds
    mechanism = GaussianNoise(mean_sensitivity(clip, cohort), scale(phase.rounds))
    return Plan(
        algorithm=NAME,
        problem=problem,
        guarantee=Guarantee(privacy.epsilon, privacy.delta, "replace-one", "broadcast", (), THEOREM),
        cost=Cost.of(problem, rounds=phase.rounds, messages=phase.rounds * cohort),
        parameters=NoisySGDParameters(
            sampling="disjoint",
            cohort_size=cohort,
            rounds=phase.rounds,
            step_size=phase.step_size,
            suffix=phase.suffix,
            clip_norm=clip,
            sensitivity=mechanism.sensitivity,
            noise_scale=mechanism.scale,
            round_mu=mechanism.effective_mu(problem.dimension),
        ),
        predicted_excess_risk=risk,
        seed=seed,
    )


def verify(plan: Plan) -> None:
    """Each round is μ-GDP at replace-one sensitivity 2C/B, cohorts are disjoint, and μ gives (ε, δ)."""
    p: NoisySGDParameters = plan.parameters
    noisy.verify_round(plan, "replace-one")
    if p.sampling != "disjoint" or p.rounds * p.cohort_size > plan.problem.users:
        raise VerificationError(f"Expected {p.rounds} disjoint cohorts of {p.cohort_size} among {plan.problem.users}.")
    spent = delta_for(p.round_mu, plan.guarantee.epsilon) + noisy.numeric_slack(plan.problem, plan.guarantee.epsilon, 1)
    if not spent <= plan.guarantee.delta or not math.isfinite(spent):
        raise VerificationError(f"Expected delta <= {plan.guarantee.delta}, the plan spends {spent}.")


def gaussian(plan: Plan) -> GaussianPromise:
    """By parallel composition, μ of a round; only the noise of the own user's round has to be exact."""
    p: NoisySGDParameters = plan.parameters
    return GaussianPromise(p.round_mu, total_variation(gaussians=plan.problem.dimension))


INFO = AlgorithmInfo(
    name=NAME,
    summary="Disjoint cohorts, user-level clip, Gaussian noise every round; every user asked once",
    paper="baseline; Abadi et al. (2016) at user level, with disjoint cohorts",
    algorithm_numbers="-",
    exposure="broadcast",
    adjacency=("replace-one",),
    theorem=THEOREM,
    options=OnePassOptions,
    planner=plan,
    verifier=verify,
    maker=NoisySGD,
    wide=True,
    gaussian_promise=gaussian,
)
