"""What the planners of noisy SGD share: clip, smoothing, the noise for a promise, and the re-check of one round."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from quoron_privacy.accounts import gdp, moved
from quoron_privacy.errors import ConfigError, Infeasible, VerificationError
from quoron_privacy.gaussian import GaussianNoise, mean_sensitivity
from quoron_privacy.means.radius_cells import RadiusCells
from quoron_privacy.release import Adjacency
from quoron_server.algorithms.averaged_sgd import PhaseModel, Vector, best_phases, require_cohorts
from quoron_server.algorithms.forecast import statistical_floor
from quoron_server.algorithms.info import Chosen
from quoron_server.algorithms.noisy.method import AdaptiveClip, NoisySGDParameters
from quoron_server.algorithms.noisy.sampled import Sampling
from quoron_server.algorithms.optimisers import SGD, Optimiser
from quoron_server.algorithms.search import Candidate, best, round_grid
from quoron_server.plan import Plan, Privacy
from quoron_server.problem import Problem

CELLS_SHARE = 0.05  # of a round's μ², for the counts that an adaptive clip follows
LARGEST_ROUNDS = 4096  # of one pass
LOUDEST_CELLS = 0.2  # noise of a count's share beyond which it tells nothing of the clip


@dataclass(frozen=True)  # a mix-in
class ClipOptions:
    """Options of algorithms that can follow the users with their clip norm."""

    clip_norm: float | None = None  # from public knowledge, never tuned on protected data; the first one if adaptive
    clip: Literal["fixed", "adaptive"] = "fixed"
    quantile: float = 0.5  # share of users meant to be within an adaptive clip norm

    @property
    def adaptive(self) -> bool:
        """Whether the clip norm follows the users."""
        return self.clip == "adaptive"


@dataclass(frozen=True, slots=True)
class Clipped:
    """What privatises one round's answers."""

    clip_norm: float
    sensitivity: float
    noise_scale: float
    round_mu: float  # at least that of the whole round
    adaptive: AdaptiveClip | None


def clipped(
    name: str, problem: Problem, options: ClipOptions, clip: float, cohort: int, adjacency: Adjacency, mu: float
) -> Clipped:
    """A clip and noise that make a round of `cohort` answers μ-GDP.

    An adaptive clip's counts take CELLS_SHARE of μ². ConfigError for a quantile that the counts cannot find; Infeasible
    where so few answer that their noise would say more of the clip norm than users do.
    """
    if not options.adaptive:
        sensitivity = mean_sensitivity(clip, cohort, adjacency)
        return Clipped(clip, sensitivity, scale_for(sensitivity, problem, mu), mu, None)
    mu *= 1 - 1e-9
    sensitivity = mean_sensitivity(1.0, cohort, adjacency)
    adaptive = adaptive_clip(name, problem, options, cohort, adjacency, math.sqrt(CELLS_SHARE) * mu)
    scale = scale_for(sensitivity, problem, math.sqrt(1 - CELLS_SHARE) * mu)
    return Clipped(clip, sensitivity, scale, mu * (1 + 1e-9), adaptive)


def adaptive_clip(
    name: str, problem: Problem, options: ClipOptions, cohort: int, adjacency: Adjacency, mu: float
) -> AdaptiveClip:
    """Counts of `cohort` users that are μ-GDP; errors as `clipped`."""
    if not 0.4 <= options.quantile <= 0.95:
        raise ConfigError(f"Expected options.quantile in [0.4, 0.95], got quantile={options.quantile}.")
    cells = RadiusCells.for_mu(divisor=cohort, mu=mu, adjacency=adjacency)
    if cells.scale > LOUDEST_CELLS:
        raise Infeasible.too_few(
            name,
            f"the share of {cohort:,} users within a clip norm gets noise of {cells.scale:.2g}, which tells nothing",
            math.ceil(problem.users * cells.scale / LOUDEST_CELLS),
            also=", or a clip_norm of your own",
        )
    return AdaptiveClip(cells, options.quantile)


def noise_scale(sensitivity: float, problem: Problem, privacy: Privacy) -> float:
    """σ that makes one Gaussian release of this ℓ2 sensitivity (ε, δ)-DP, grid and sampler errors included."""
    delta, dimension = privacy.delta * (1 - 1e-9), problem.dimension  # a plan is re-checked by other arithmetic
    mu = gdp.mu_for(privacy.epsilon, delta, gaussians=dimension)
    return GaussianNoise.for_mu(sensitivity=sensitivity, mu=mu, dimension=dimension).scale


def scale_for(sensitivity: float, problem: Problem, mu: float) -> float:
    """σ that makes a release of this sensitivity μ-GDP as computed, grid rounding included."""
    return GaussianNoise.for_mu(sensitivity=sensitivity, mu=mu * (1 - 1e-9), dimension=problem.dimension).scale


def sampled(
    problem: Problem,
    rates: Sequence[float],
    rounds: Sequence[int],
    variances: Vector,
    *,
    step_size: float | None,
) -> list[Candidate[tuple[float, PhaseModel]]]:
    """(rate, phase) at the best step and suffix for each rate and number of rounds, priced by the answers."""
    floor = statistical_floor(problem)
    found = best_phases(problem, rounds, variances, step_size=step_size)
    return [
        Candidate(risk + floor, (rate * phase.rounds,), (rate, phase))
        for rate, (risk, phase) in zip(rates, found, strict=True)
    ]


def disjoint(
    name: str,
    problem: Problem,
    rounds: int | None,
    step_size: float | None,
    noise: Callable[[int], float] = lambda cohort: 0.0,
) -> Candidate[PhaseModel]:
    """One pass over disjoint cohorts: the fewest rounds of about the least risk, `noise(cohort)` the σ of a round.

    Infeasible below two users a round.
    """
    tried = [rounds] if rounds else round_grid(max(1, min(problem.users // 2, LARGEST_ROUNDS)))
    require_cohorts(name, problem, min(tried))
    cohorts = [problem.users // total for total in tried]
    variances = [problem.user_deviation**2 / cohort + problem.dimension * noise(cohort) ** 2 for cohort in cohorts]
    found = best_phases(problem, tried, np.array(variances), step_size=step_size)
    chosen = best(Candidate(risk, (phase.rounds,), phase) for risk, phase in found)
    assert chosen is not None
    return chosen


def chosen(
    sampling: Sampling,
    cohort: int,
    phase: PhaseModel,
    risk: float,
    made: Clipped,
    optimiser: Optimiser = SGD,
    *,
    theorem: str | None = None,
) -> Chosen:
    """A phase with `cohort` users a round; a risk is predicted for a fixed clip and plain steps alone."""
    numbers = NoisySGDParameters(
        sampling=sampling,
        cohort_size=cohort,
        rounds=phase.rounds,
        step_size=phase.step_size,
        suffix=phase.suffix,
        clip_norm=made.clip_norm,
        sensitivity=made.sensitivity,
        noise_scale=made.noise_scale,
        round_mu=made.round_mu,
        optimiser=optimiser,
        adaptive=made.adaptive,
    )
    predicted = optimiser.plain and made.adaptive is None
    return Chosen(numbers, risk if predicted else None, theorem=theorem)


def require_clip(
    clip_norm: float, sensitivity: float, divisor: int, adaptive: AdaptiveClip | None, adjacency: Adjacency
) -> None:
    """One round's clip, fixed divisor, sensitivity and counts agree: VerificationError if not."""
    needed = moved.rows(1.0 if adaptive else clip_norm, divisor, adjacency)
    if not sensitivity >= needed * (1 - 1e-12):
        raise VerificationError(f"Expected sensitivity >= {needed} of a clip over {divisor} users, got {sensitivity}.")
    if adaptive is None:
        return
    cells = adaptive.cells
    if (cells.divisor, cells.adjacency) != (divisor, adjacency):
        raise VerificationError(f"Expected counts of {divisor} users under {adjacency}, got {cells}.")
    if not 1e-12 <= clip_norm <= 1e12:
        raise VerificationError(f"Expected a first clip norm in [1e-12, 1e12], got {clip_norm}.")


def verify_round(plan: Plan, adjacency: Adjacency) -> None:
    """One round's clip, sensitivity and noise agree with its claimed GDP parameter; VerificationError otherwise."""
    p = plan.parameters_of(NoisySGDParameters)
    require_clip(p.clip_norm, p.sensitivity, p.cohort_size, p.adaptive, adjacency)
    if not p.noise_scale > 0:
        raise VerificationError(f"Expected noise in a plan of {plan.algorithm}, got noise_scale={p.noise_scale}.")
    truth = p.recounted_mu(plan.problem.dimension)
    if not p.round_mu >= truth * (1 - 1e-12):
        raise VerificationError(f"Expected round_mu >= {truth}, got {p.round_mu}: too little noise for the claim.")
