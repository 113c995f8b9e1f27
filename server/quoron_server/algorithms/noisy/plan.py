"""What plans of noisy SGD share: clip, smoothing, the noise for a guarantee and its cost, by how cohorts are drawn.

Those who verify count by the scales of a run and the second account; nothing that found the noise is asked. Statements
and proofs: docs/privacy/subsampling.md.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np

from quoron_privacy.accounts import gdp, sensitivity_recount, subsampling
from quoron_privacy.accounts.pair import Pair
from quoron_privacy.errors import ConfigError, Infeasible, VerificationError
from quoron_privacy.gaussian import GaussianNoise, mean_sensitivity
from quoron_privacy.means.norm_counts import SHARES, NormCountMean
from quoron_privacy.noise.streams import total_variation
from quoron_privacy.release import Adjacency
from quoron_server.algorithms import search
from quoron_server.algorithms.averaged_sgd import (
    PhaseModel,
    best_phases,
    ranking_mu,
    replaced_ranking_mu,
    require_cohorts,
)
from quoron_server.algorithms.info import Chosen, Counting
from quoron_server.algorithms.noisy.method import COINS, QUANTILES, AdaptiveClip, NoisySGDParameters, Sampling, drawn
from quoron_server.algorithms.optimisers import SGD, Optimiser
from quoron_server.algorithms.search import Candidate, best, round_grid
from quoron_server.parameters import Moves
from quoron_server.plan import Privacy, RunPlan
from quoron_server.problem import Problem

LARGEST_ROUNDS = 4096  # of one pass
LOUDEST_SHARE = 0.2  # noise of the share within a clip norm beyond which it tells nothing of it


@dataclass(frozen=True, slots=True)
class Draws:
    """One way of drawing; a round's μ is about a row that `moved`: replaced in its cohort, or left out."""

    adjacency: Adjacency  # that is promised
    moved: Adjacency
    ranking_mu: Callable[[float, int, float], float]  # about the μ of a round, to rank candidates by
    round_mu: Callable[[float, int, float, float], float]  # the largest for (rate, rounds, ε, δ)
    known: int  # users of whom somebody knows that they were not drawn, which tells something of the others

    def rate(self, cohort: int, users: int) -> float:
        """Return the chance that a user is in a round's cohort, given that `known` users are known not to be."""
        return min(1.0, cohort / (users - self.known)) if cohort < users else 1.0


DRAWS: Mapping[Sampling, Draws] = {
    "without-replacement": Draws("replace-one", "replace-one", ranking_mu, subsampling.wor_round_mu, known=1),
    "poisson": Draws("zero-out", "zero-out", ranking_mu, subsampling.poisson_round_mu, known=0),
    "poisson-replaced": Draws(
        "replace-one",
        "zero-out",
        replaced_ranking_mu,
        partial(subsampling.poisson_round_mu, adjacency="replace-one"),
        known=0,
    ),
}


def fixed_size(users: int, cohort: int, rounds: int, mu: float, drawn: int) -> tuple[Pair]:
    """T rounds of secret uniform cohorts, each μ-GDP given its cohort and drawing so many samples; replace-one.

    Given that a curious client is not in a cohort, another user is with chance B/(n - 1).
    """
    rate = cohort / (users - 1) if cohort < users else 1.0
    return (Pair.sampled(min(1.0, rate), mu, rounds, "replace-one").lacking(total_variation(gaussians=rounds * drawn)),)


def pairs_of_rounds(
    sampling: Sampling, adjacency: Adjacency, users: int, cohort: int, rounds: int, mu: float, drawn: int
) -> tuple[Pair]:
    """T rounds whose cohorts are drawn so, each of so many samples; with coins μ is that of a user who is left out."""
    if sampling not in COINS:
        return fixed_size(users, cohort, rounds, mu, drawn)
    lack, rate = total_variation(gaussians=rounds * drawn), cohort / users
    if adjacency == "replace-one":  # there in both worlds, and moved apart
        return (Pair.coins(rate, mu, rounds).lacking(lack),)
    return (Pair.sampled(rate, mu, rounds, "zero-out").lacking(lack),)


def room_for_counts(p: Any, problem: Problem, epsilon: float, delta: float) -> float:
    """Return the μ of a count within (ε, δ) in each round by coins, by the first account; 0 for other cohorts."""
    adaptive = isinstance(p, NoisySGDParameters) and p.adaptive is not None
    left = delta - (1 + math.exp(epsilon)) * total_variation(gaussians=p.rounds * drawn(problem, adaptive))
    if p.sampling not in COINS or left <= 0:
        return 0.0
    whole = DRAWS[p.sampling].round_mu(p.cohort_size / problem.users, p.rounds, epsilon, left)
    return math.sqrt(max((whole * (1 - 1e-7)) ** 2 - p.round_mu**2, 0.0))


def with_count(p: Any, mu: float) -> Any:
    """Return the numbers with less noise, worth as much as they are with a μ-GDP count; None but for cohorts by coins.

    For parameters with `noise`, `noise_scale` and `round_mu`.
    """
    if (noise := p.noise) is None or not p.poisson_sampling:
        return None
    scale = noise.sensitivity / math.hypot(noise.sensitivity / noise.scale, mu)
    return replace(p, noise_scale=scale, round_mu=math.hypot(p.round_mu, mu) * (1 + 1e-8))


COUNTING = Counting(room_for_counts, with_count)


def require_clip(
    clip_norm: float, sensitivity: float, divisor: int, adaptive: AdaptiveClip | None, adjacency: Adjacency
) -> None:
    """One round's clip, fixed divisor, sensitivity and shares agree: VerificationError if not."""
    if divisor < 1:
        raise VerificationError(f"Expected a clip over at least one user, got {divisor}.")
    needed = sensitivity_recount.rows(1.0 if adaptive else clip_norm, divisor, adjacency)
    search.require_least("a clip", f"sensitivity over {divisor} users", sensitivity, needed)
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
    search.require_least(plan.algorithm, "round_mu", p.round_mu, recounted_mu(p, plan.problem.dimension))


def pairs(p: NoisySGDParameters, problem: Problem, adjacency: Adjacency) -> tuple[Pair, ...]:
    """Of disjoint cohorts that of the own round, whose noise alone has to be exact; else that of all rounds."""
    once, mu = drawn(problem, p.adaptive is not None), recounted_mu(p, problem.dimension)
    if p.sampling == "disjoint":
        return (Pair.gaussian(mu, total_variation(gaussians=once)),)
    return pairs_of_rounds(p.sampling, adjacency, problem.users, p.cohort_size, p.rounds, mu, once)


def moves(p: NoisySGDParameters, problem: Problem) -> list[Moves]:
    """min-cohort#q4: of a mean of rows that are cut to a fixed length."""
    del problem
    if p.adaptive is not None or not p.noise_scale > 0:
        return []
    return [Moves.of(lambda how: sensitivity_recount.rows(p.clip_norm, p.cohort_size, how) / p.noise_scale)] * p.rounds


def recounted_mu(p: NoisySGDParameters, dimension: int) -> float:
    """GDP of a round for one who is replaced in its cohort, with coins for one who is left out; by its scales."""
    how: Adjacency = "zero-out" if p.poisson_sampling else "replace-one"
    if p.adaptive is None:
        return sensitivity_recount.mu(
            sensitivity_recount.rows(p.clip_norm, p.cohort_size, how), p.noise_scale, dimension
        )
    return sensitivity_recount.mu(sensitivity_recount.rows(1.0, p.cohort_size, how), p.noise_scale, dimension + SHARES)


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
