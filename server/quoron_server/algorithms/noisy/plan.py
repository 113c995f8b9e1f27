"""What the planners of clipped noisy SGD share: the clip, the noise for a promise, and the re-check of one round."""

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

from quoron_privacy.clipping import mean_sensitivity
from quoron_privacy.errors import Infeasible, VerificationError
from quoron_privacy.gaussian import GaussianNoise
from quoron_privacy.noise import total_variation
from quoron_privacy.release import Adjacency
from quoron_server.algorithms.forecast import PhaseModel
from quoron_server.algorithms.info import GaussianPromise
from quoron_server.algorithms.noisy.method import NoisySGDParameters
from quoron_server.plan import Plan, Privacy
from quoron_server.problem import Problem

if TYPE_CHECKING:
    from dp_accounting import DpEvent


def default_clip(problem: Problem) -> float:
    """A clip at the scale of user averages, from public facts: the drift ‖∇F‖ and the spread between users.

    With known curvature h the drift is at most about h · distance; otherwise a bound on gradients at the start.
    Users beyond it are shortened, which biases the step and never harms privacy.
    """
    start = problem.start
    if (curvature := problem.beliefs.isotropic) is not None:
        drift = curvature * problem.distance
        return min(problem.lipschitz, 1.3 * math.hypot(drift, problem.user_deviation))
    return min(problem.lipschitz, start)


def numeric_slack(problem: Problem, epsilon: float, releases: int) -> float:
    """What the sampler's total variation adds to δ, for `releases` vectors of d noise samples each."""
    return (1 + math.exp(epsilon)) * total_variation(gaussians=releases * problem.dimension)


def everybody_every_round(plan: Plan) -> GaussianPromise | None:
    """√T μ of a run that asks all users in each of its T rounds; None where cohorts are sampled.

    A sampled run is √T μ-GDP too, but that forgets the sampling: it is worth far less than the run's (ε, δ).
    """
    p = plan.parameters
    if p.cohort_size != plan.problem.users:
        return None
    mu = math.sqrt(p.rounds) * p.round_mu * (1 + 2.0**-50)
    return GaussianPromise(mu, total_variation(gaussians=p.rounds * plan.problem.dimension))


def fixed_size_event(plan: Plan) -> "DpEvent":
    """T rounds, each μ-GDP given a uniform cohort of B of the n - 1 users that a curious client knows less of."""
    from dp_accounting import dp_event  # heavy

    p = plan.parameters
    others = max(p.cohort_size, plan.problem.users - 1)
    once = dp_event.SampledWithoutReplacementDpEvent(others, p.cohort_size, dp_event.GaussianDpEvent(1 / p.round_mu))
    return dp_event.SelfComposedDpEvent(once, p.rounds)


def coins_event(plan: Plan) -> "DpEvent":
    """T rounds, each μ-GDP when a user that joins with chance B/n is there against when it is not."""
    from dp_accounting import dp_event  # heavy

    p = plan.parameters
    once = dp_event.PoissonSampledDpEvent(p.cohort_size / plan.problem.users, dp_event.GaussianDpEvent(1 / p.round_mu))
    return dp_event.SelfComposedDpEvent(once, p.rounds)


def noise_scale(sensitivity: float, problem: Problem, privacy: Privacy) -> float:
    """σ that makes one Gaussian release of this ℓ2 sensitivity (ε, δ)-DP, grid and sampler errors included."""
    return GaussianNoise.calibrate(
        sensitivity=sensitivity,
        epsilon=privacy.epsilon,
        delta=privacy.delta * (1 - 1e-9),  # a plan is re-checked by other arithmetic
        dimension=problem.dimension,
    ).scale


def scale_for(sensitivity: float, problem: Problem, mu: float) -> float:
    """σ that makes a release of this sensitivity μ-GDP as computed, grid rounding included."""
    return GaussianNoise.for_mu(sensitivity=sensitivity, mu=mu * (1 - 1e-9), dimension=problem.dimension).scale


def require_cohorts(name: str, problem: Problem, rounds: int) -> None:
    """Infeasible unless `rounds` disjoint cohorts of at least two users exist."""
    if problem.users < 2 * rounds:
        raise Infeasible(name, f"{problem.users} users cannot fill {rounds} cohorts of 2", f"n >= {2 * rounds}")


def few_rounds(candidates: Iterable[tuple[float, PhaseModel]], *, tolerance: float = 0.05) -> tuple[float, PhaseModel]:
    """Among candidates within `tolerance` of the least predicted risk, the best of those with fewest rounds."""
    found = list(candidates)
    best = min(risk for risk, _ in found)
    near = [(phase.rounds, risk, phase) for risk, phase in found if risk <= (1 + tolerance) * best]
    _, risk, phase = min(near, key=lambda entry: entry[:2])
    return risk, phase


def verify_round(plan: Plan, adjacency: Adjacency) -> None:
    """One round's clip, fixed divisor, sensitivity and noise agree with its claimed GDP parameter."""
    p: NoisySGDParameters = plan.parameters
    needed = mean_sensitivity(p.clip_norm, p.cohort_size, adjacency)
    if not p.sensitivity >= needed * (1 - 1e-12):
        raise VerificationError(f"Expected sensitivity >= {needed} for clip and cohort, got {p.sensitivity}.")
    if (noise := p.noise) is None:
        raise VerificationError(f"Expected noise in a plan of {plan.algorithm}, got noise_scale={p.noise_scale}.")
    truth = noise.effective_mu(plan.problem.dimension)
    if not p.round_mu >= truth * (1 - 1e-12):
        raise VerificationError(f"Expected round_mu >= {truth}, got {p.round_mu}: too little noise for the claim.")
