"""One-pass DP-SGD: disjoint cohorts fixed in advance, a user-level clip, Gaussian noise every round.

Each user is asked in one round only, so the rounds compose in parallel and the whole transcript is exactly as private
as one round: μ-GDP with σ = 2C/(Bμ), replace-one. No amplification is needed. The baseline every user-level method has
to beat, and with `clip_norm` at the scale of user averages a strong one.

Statement and proof: docs/privacy/gaussian.md (parallel composition).
"""

from dataclasses import dataclass, replace

from quoron_privacy.accounts.gdp import mu_for
from quoron_privacy.errors import VerificationError
from quoron_privacy.gaussian import GaussianNoise, mean_sensitivity
from quoron_server.algorithms import search
from quoron_server.algorithms.averaged_sgd import default_clip
from quoron_server.algorithms.info import AlgorithmInfo, Chosen, Factor, Promises
from quoron_server.algorithms.noisy import plan as noisy
from quoron_server.algorithms.noisy.method import NoisySGD, NoisySGDParameters
from quoron_server.algorithms.noisy.method import drawn as samples
from quoron_server.algorithms.noisy.plan import moves, pairs, verify_round
from quoron_server.algorithms.optimisers import OptimiserOptions
from quoron_server.algorithms.references import ABADI_2016, ours
from quoron_server.plan import Privacy, RunPlan
from quoron_server.problem import Problem

NAME = "one-pass-dp-sgd"


@dataclass(frozen=True, slots=True)
class OnePassOptions(noisy.ClipOptions, OptimiserOptions):
    """Planning options; None lets the plan choose by predicted excess risk."""

    rounds: int | None = None
    step_size: float | None = None


def plan(problem: Problem, privacy: Privacy, options: OnePassOptions) -> Chosen:
    """The plan with the smallest predicted excess risk. Raises Infeasible below 2 users a round."""
    clip, optimiser = options.clip_norm or default_clip(problem), options.made(options.step_size)

    def scale(cohort: int) -> float:
        return noisy.noise_scale(mean_sensitivity(clip, cohort), problem, privacy)

    chosen = noisy.disjoint(NAME, problem, options.rounds, options.step_size, scale)
    phase = chosen.of
    cohort = problem.users // phase.rounds
    mechanism = GaussianNoise(mean_sensitivity(clip, cohort), scale(cohort))
    made = noisy.Clipped(clip, mechanism.sensitivity, mechanism.scale, mechanism.effective_mu(problem.dimension), None)
    if options.adaptive:
        kept = replace(privacy, delta=privacy.delta * (1 - 1e-9))
        mu = mu_for(kept.epsilon, search.left_of_delta(NAME, kept, gaussians=samples(problem, adaptive=True)))
        made = noisy.clipped(NAME, problem, options, clip, cohort, "replace-one", mu)
    phase = replace(phase, suffix=options.averaged(phase.suffix, phase.rounds))
    return noisy.chosen("disjoint", cohort, phase, chosen.risk, made, optimiser)


def verify(plan: RunPlan) -> None:
    """Each round is μ-GDP at replace-one sensitivity 2C/B, cohorts are disjoint, and μ gives (ε, δ)."""
    p = plan.parameters_of(NoisySGDParameters)
    verify_round(plan, "replace-one")
    if p.sampling != "disjoint" or p.rounds * p.cohort_size > plan.problem.users:
        raise VerificationError(f"Expected {p.rounds} disjoint cohorts of {p.cohort_size} among {plan.problem.users}.")


INFO = AlgorithmInfo(
    name=NAME,
    summary="Disjoint cohorts, user-level clip, Gaussian noise every round; every user asked once",
    origin=ours(ABADI_2016.at("Algorithm 1"), note="a baseline: users, in disjoint cohorts instead of samples"),
    promises=Promises(
        ("central-broadcast",),
        ("replace-one",),
        "docs/privacy/gaussian.md#parallel-composition",
        pairs,
        moves=moves,
        one_server=None,
    ),
    options=OnePassOptions,
    parameters=NoisySGDParameters,
    planner=plan,
    verifier=verify,
    maker=NoisySGD,
    factor=Factor(known=3.0, unknown=9.0),
    noise_ignores_domain=True,
)
