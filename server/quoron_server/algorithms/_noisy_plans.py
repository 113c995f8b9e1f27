"""What the planners of clipped noisy SGD share: the clip, the noise for a promise, and the re-check of one round."""

import math
from collections.abc import Iterable

from quoron_protos.errors import Infeasible, VerificationError
from quoron_server.algorithms.noisy_sgd import NoisySGDParameters
from quoron_server.mechanisms.clipping import mean_sensitivity
from quoron_server.mechanisms.gaussian import GaussianNoise
from quoron_server.noise import total_variation
from quoron_server.plan import Adjacency, Plan, Privacy
from quoron_server.prediction import PhaseModel
from quoron_server.problem import Problem


def default_clip(problem: Problem) -> float:
    """A clip at the scale of user averages, from public facts: the drift ‖∇F‖ and the spread between users.

    With known curvature h the drift is at most about h · radius; otherwise a bound on the gradients at the start point.
    Users beyond it are shortened, which biases the step and never harms privacy.
    """
    start = problem.lipschitz if problem.start_gradient is None else problem.start_gradient
    if problem.curvature == "isotropic" and problem.typical_curvature is not None:
        drift = problem.typical_curvature * problem.radius
        return min(problem.lipschitz, 1.3 * math.hypot(drift, problem.user_deviation))
    return min(problem.lipschitz, start)


def numeric_slack(problem: Problem, epsilon: float, releases: int) -> float:
    """What the sampler's total variation adds to δ, for `releases` vectors of d noise samples each."""
    return (1 + math.exp(epsilon)) * total_variation(gaussians=releases * problem.dimension)


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
    truth = GaussianNoise(p.sensitivity, p.noise_scale).effective_mu(plan.problem.dimension)
    if not p.round_mu >= truth * (1 - 1e-12):
        raise VerificationError(f"Expected round_mu >= {truth}, got {p.round_mu}: too little noise for the claim.")
