"""What a run of noisy SGD costs by its scales, and the re-check of one round: for those who verify."""

from quoron_privacy.accounts import moved
from quoron_privacy.accounts.pair import Pair
from quoron_privacy.errors import VerificationError
from quoron_privacy.means.norm_counts import SHARES
from quoron_privacy.noise.streams import total_variation
from quoron_privacy.release import Adjacency
from quoron_server.algorithms.noisy import worth
from quoron_server.algorithms.noisy.clip import AdaptiveClip
from quoron_server.algorithms.noisy.method import NoisySGDParameters, drawn
from quoron_server.parameters import Moves
from quoron_server.plan import RunPlan
from quoron_server.problem import Problem


def require_clip(
    clip_norm: float, sensitivity: float, divisor: int, adaptive: AdaptiveClip | None, adjacency: Adjacency
) -> None:
    """One round's clip, fixed divisor, sensitivity and shares agree: VerificationError if not."""
    if divisor < 1:
        raise VerificationError(f"Expected a clip over at least one user, got {divisor}.")
    needed = moved.rows(1.0 if adaptive else clip_norm, divisor, adjacency)
    if not sensitivity >= needed * (1 - 1e-12):
        raise VerificationError(f"Expected sensitivity >= {needed} of a clip over {divisor} users, got {sensitivity}.")
    if adaptive is None:
        return
    if adaptive.adjacency != adjacency:
        raise VerificationError(f"Expected rows with shares for {adjacency}, got {adaptive}.")
    if not 1e-12 <= clip_norm <= 1e12:
        raise VerificationError(f"Expected a first clip norm in [1e-12, 1e12], got {clip_norm}.")


def verify_round(plan: RunPlan, adjacency: Adjacency) -> None:
    """One round's clip, sensitivity and noise agree with its claimed GDP parameter; VerificationError otherwise."""
    p = plan.parameters_of(NoisySGDParameters)
    require_clip(p.clip_norm, p.sensitivity, p.cohort_size, p.adaptive, adjacency)
    if not p.noise_scale > 0:
        raise VerificationError(f"Expected noise in a plan of {plan.algorithm}, got noise_scale={p.noise_scale}.")
    truth = recounted_mu(p, plan.problem.dimension)
    if not p.round_mu >= truth * (1 - 1e-12):
        raise VerificationError(f"Expected round_mu >= {truth}, got {p.round_mu}: too little noise for the claim.")


def pairs(p: NoisySGDParameters, problem: Problem, adjacency: Adjacency) -> tuple[Pair, ...]:
    """Of disjoint cohorts that of the own round, whose noise alone has to be exact; else that of all rounds."""
    once, mu = drawn(problem, p.adaptive is not None), recounted_mu(p, problem.dimension)
    if p.sampling == "disjoint":
        return (Pair.gaussian(mu, total_variation(gaussians=once)),)
    return worth.pairs(p.sampling, adjacency, problem.users, p.cohort_size, p.rounds, mu, once)


def moves(p: NoisySGDParameters, problem: Problem) -> list[Moves]:
    """min-cohort-free#q4: of a mean of rows that are cut to a fixed length."""
    del problem
    if p.adaptive is not None or not p.noise_scale > 0:
        return []
    return [Moves.of(lambda how: moved.rows(p.clip_norm, p.cohort_size, how) / p.noise_scale)] * p.rounds


def recounted_mu(p: NoisySGDParameters, dimension: int) -> float:
    """GDP of a round for one who is replaced in its cohort, with coins for one who is left out; by its scales."""
    how: Adjacency = "zero-out" if p.poisson_sampling else "replace-one"
    if p.adaptive is None:
        return moved.mu(moved.rows(p.clip_norm, p.cohort_size, how), p.noise_scale, dimension)
    return moved.mu(moved.rows(1.0, p.cohort_size, how), p.noise_scale, dimension + SHARES)
