"""What the planners of noisy SGD share: clip, smoothing, and the noise for a promise."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from quoron_privacy.accounts import gdp
from quoron_privacy.errors import ConfigError, Infeasible
from quoron_privacy.gaussian import GaussianNoise, mean_sensitivity
from quoron_privacy.means.norm_counts import NormCountMean
from quoron_privacy.release import Adjacency
from quoron_server.algorithms.averaged_sgd import PhaseModel, Vector, best_phases, require_cohorts
from quoron_server.algorithms.forecast import statistical_floor
from quoron_server.algorithms.info import Chosen
from quoron_server.algorithms.noisy.clip import QUANTILES, AdaptiveClip
from quoron_server.algorithms.noisy.method import NoisySGDParameters
from quoron_server.algorithms.noisy.sampled import Sampling
from quoron_server.algorithms.optimisers import SGD, Optimiser
from quoron_server.algorithms.search import Candidate, best, round_grid
from quoron_server.plan import Privacy
from quoron_server.problem import Problem

LARGEST_ROUNDS = 4096  # of one pass
LOUDEST_SHARE = 0.2  # noise of the share within a clip norm beyond which it tells nothing of it


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
    """A clip and noise that make a round of `cohort` answers μ-GDP; errors as `adaptive_clip`."""
    if not options.adaptive:
        sensitivity = mean_sensitivity(clip, cohort, adjacency)
        return Clipped(clip, sensitivity, scale_for(sensitivity, problem, mu), mu, None)
    d, least = problem.dimension, mu * (1 - 1e-9)  # a plan is re-checked by other arithmetic
    scale = NormCountMean.for_mu(dimension=d, users=cohort, mu=least, adjacency=adjacency, soft=True).scale
    adaptive = adaptive_clip(name, problem, options, cohort, adjacency, scale)
    return Clipped(clip, mean_sensitivity(1.0, cohort, adjacency), scale, mu, adaptive)


def adaptive_clip(
    name: str, problem: Problem, options: ClipOptions, cohort: int, adjacency: Adjacency, scale: float
) -> AdaptiveClip:
    """A clip that follows weighted shares of `cohort` users with noise `scale`.

    ConfigError for a quantile that the shares cannot find; Infeasible where so few answer that their noise would say
    more of the clip norm than users do.
    """
    if not QUANTILES[0] <= options.quantile <= QUANTILES[1]:
        raise ConfigError(f"Expected options.quantile in {list(QUANTILES)}, got quantile={options.quantile}.")
    made = AdaptiveClip(options.quantile, adjacency)
    if (loud := made.deviation(scale)) > LOUDEST_SHARE:
        raise Infeasible.too_few(
            name,
            f"the share of {cohort:,} users within a clip norm gets noise of {loud:.2g}, which tells nothing",
            math.ceil(problem.users * loud / LOUDEST_SHARE),
            also=", or a clip_norm of your own",
        )
    return made


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
