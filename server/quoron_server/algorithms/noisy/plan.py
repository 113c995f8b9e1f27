"""Plans of noisy SGD: rounds, step and cohorts by predicted risk, the noise for a guarantee by how cohorts are drawn.

* `one-pass-dp-sgd`: each user is asked in one round only, so rounds compose in parallel and the whole transcript is
  exactly as private as one round: μ-GDP with σ = 2C/(Bμ), replace-one. The baseline every user-level method has to
  beat, and with `clip_norm` at the scale of user averages a strong one (docs/privacy/gaussian.md).
* `dp-sgd-poisson`, `dp-sgd-wor`: rounds are Gaussian mechanisms on secretly sampled cohorts; ε comes from exact privacy
  loss distributions, and a central limit only ranks candidates. With the whole population every round it is user-level
  DP gradient descent, exactly √T μ-GDP (docs/privacy/subsampling.md).
* `sgd`: one pass without privacy, the reference that the price of privacy is measured against.

Those who verify count by the scales of a run and the second account; nothing that found the noise is asked.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np

from quoron_privacy.accounts import gdp, sensitivity_recount, subsampling
from quoron_privacy.accounts.pair import Pair
from quoron_privacy.errors import ConfigError, Infeasible, VerificationError
from quoron_privacy.gaussian import GaussianNoise, mean_sensitivity
from quoron_privacy.means.free_presence import SHARES, NormCountMean
from quoron_privacy.noise.streams import total_variation
from quoron_privacy.release import Adjacency
from quoron_server.algorithms import search
from quoron_server.algorithms.averaged_sgd import (
    RATES,
    PhaseModel,
    best_phases,
    ranking_mu,
    replaced_ranking_mu,
    require_cohorts,
)
from quoron_server.algorithms.info import (
    UNMEASURED,
    AlgorithmInfo,
    Choosing,
    Chosen,
    Factor,
    NoBlackBoxes,
    Promises,
    statistical_floor,
)
from quoron_server.algorithms.noisy.method import (
    COINS,
    QUANTILES,
    AdaptiveClip,
    NoisySGD,
    NoisySGDParameters,
    Sampling,
    drawn,
)
from quoron_server.algorithms.optimisers import OptimiserOptions
from quoron_server.algorithms.references import (
    ABADI_2016,
    MCMAHAN_2018,
    POLYAK_1992,
    WANG_2019,
    Origin,
    ours,
    theirs,
)
from quoron_server.algorithms.search import Candidate, PlanInputs, Planner, round_grid
from quoron_server.plan import Privacy, RunPlan
from quoron_server.problem import Problem

_Schemes = Mapping[Adjacency, Sampling]  # by what is promised, the usual one first

MOST_ROUNDS = 4096  # of one pass
LARGEST_ROUNDS = 1024  # of several
SUBSAMPLING = "docs/privacy/subsampling.md"
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


def count_room(p: Any, problem: Problem, epsilon: float, delta: float) -> float:
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


def pairs(p: NoisySGDParameters, problem: Problem, adjacency: Adjacency) -> tuple[Pair, ...]:
    """Of disjoint cohorts that of the own round, whose noise alone has to be exact; else that of all rounds."""
    once, mu = drawn(problem, p.adaptive is not None), recounted_mu(p, problem.dimension)
    if p.sampling == "disjoint":
        return (Pair.gaussian(mu, total_variation(gaussians=once)),)
    return pairs_of_rounds(p.sampling, adjacency, problem.users, p.cohort_size, p.rounds, mu, once)


def moves(p: NoisySGDParameters, problem: Problem) -> list[float]:
    """min-cohort#q4: of a mean of rows that are cut to a fixed length."""
    if p.adaptive is not None or not p.noise_scale > 0:
        return []
    return [sensitivity_recount.rows(p.clip_norm, p.cohort_size, "replace-one") / p.noise_scale] * p.rounds


def recounted_mu(p: NoisySGDParameters, dimension: int) -> float:
    """GDP of a round for one who is replaced in its cohort, with coins for one who is left out; by its scales."""
    how: Adjacency = "zero-out" if p.poisson_sampling else "replace-one"
    longest, numbers = (p.clip_norm, dimension) if p.adaptive is None else (1.0, dimension + SHARES)
    return sensitivity_recount.mu(sensitivity_recount.rows(longest, p.cohort_size, how), p.noise_scale, numbers)


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


def adaptive_clip(
    name: str, problem: Problem, options: ClipOptions, cohort: int, adjacency: Adjacency, scale: float
) -> AdaptiveClip:
    """Return a clip that follows weighted shares of `cohort` users with noise `scale`.

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


@dataclass(frozen=True, slots=True)
class SGDOptions:
    """Planning options; None lets the plan choose by predicted excess risk."""

    rounds: int | None = None
    step_size: float | None = None


@dataclass(frozen=True, slots=True)
class OnePassOptions(ClipOptions, OptimiserOptions, SGDOptions):
    """Planning options; None lets the plan choose by predicted excess risk."""


@dataclass(frozen=True, slots=True)
class DPSGDOptions(OnePassOptions):
    """Planning options; None lets the plan choose by predicted excess risk."""

    rate: float | None = None  # B / n


OnePass = PlanInputs[OnePassOptions]
Several = PlanInputs[DPSGDOptions]


def _check(inputs: PlanInputs[SGDOptions] | OnePass | Several) -> None:
    """Infeasible below two users in a round; ConfigError for an optimiser without a step."""
    options = inputs.options
    if isinstance(options, OptimiserOptions):
        options.made(options.step_size)
    require_cohorts(inputs.name, inputs.problem, 1 if isinstance(options, DPSGDOptions) else options.rounds or 1)


def _disjoint(
    noise: Callable[[OnePass, int], GaussianNoise] | None, inputs: OnePass
) -> Iterator[Candidate[PhaseModel]]:
    """Rounds of one pass over disjoint cohorts; `noise` is that of a round with so many users."""
    problem = inputs.problem
    tried = inputs.rounds(round_grid(max(1, min(problem.users // 2, MOST_ROUNDS))))
    cohorts = [problem.users // total for total in tried]
    scales = [noise(inputs, cohort).scale if noise else 0.0 for cohort in cohorts]
    variances = [
        problem.user_deviation**2 / cohort + problem.dimension * scale**2
        for cohort, scale in zip(cohorts, scales, strict=True)
    ]
    for risk, phase in best_phases(problem, tried, np.array(variances), step_size=inputs.options.step_size):
        yield Candidate(risk, (phase.rounds,), phase)


def _without_privacy(inputs: PlanInputs[SGDOptions], found: Candidate[PhaseModel]) -> Chosen:
    phase = found.of
    cohort, step, clip = inputs.problem.users // phase.rounds, phase.step_size, math.inf
    numbers = NoisySGDParameters(
        "disjoint", cohort, phase.rounds, step, phase.suffix, clip, sensitivity=0.0, noise_scale=0.0, round_mu=math.inf
    )
    return Chosen(numbers, found.risk)


def _one_pass_noise(inputs: OnePass, cohort: int) -> GaussianNoise:
    sensitivity = mean_sensitivity(inputs.clip_norm, cohort)
    return GaussianNoise(sensitivity, noise_scale(sensitivity, inputs.problem, inputs.privacy))


def _chosen_one_pass(inputs: OnePass, found: Candidate[PhaseModel]) -> Chosen:
    problem, privacy, cohort = inputs.problem, inputs.privacy, inputs.problem.users // found.of.rounds
    noise = _one_pass_noise(inputs, cohort)
    mu = noise.effective_mu(problem.dimension)
    if inputs.options.adaptive:
        kept = replace(privacy, delta=privacy.delta * (1 - 1e-9))
        left = search.left_of_delta(inputs.name, kept, gaussians=drawn(problem, adaptive=True))
        mu = gdp.mu_for(kept.epsilon, left)
    return _chosen(inputs, "disjoint", found.risk, found.of, cohort, noise.scale, mu)


def _sampling(schemes: _Schemes, privacy: Privacy) -> Sampling:
    """Return how cohorts are drawn for what is promised."""
    [usual, *_] = schemes
    return schemes.get(privacy.adjacency or usual, schemes[usual])


def _several(schemes: _Schemes, inputs: Several) -> list[Candidate[tuple[float, PhaseModel]]]:
    """Return all cohorts and rounds, with noise by a central limit."""
    problem, privacy, options = inputs.problem, inputs.privacy, inputs.options
    draws = DRAWS[_sampling(schemes, privacy)]
    rates = [options.rate] if options.rate else [rate for rate in RATES if rate * problem.users >= 2]
    total_mu = gdp.mu_for(privacy.epsilon, privacy.delta)
    rounds = inputs.rounds(round_grid(LARGEST_ROUNDS, smallest=4))
    wanted = [(rate, total, draws.ranking_mu(rate, total, total_mu)) for rate in rates for total in rounds]
    return _predicted(inputs, draws, wanted)


def _chosen_several(schemes: _Schemes, inputs: Several, found: Candidate[tuple[float, PhaseModel]]) -> Chosen:
    problem, privacy, sampling = inputs.problem, inputs.privacy, _sampling(schemes, inputs.privacy)
    draws, (rate, phase) = DRAWS[sampling], found.of
    cohort = max(1, round(rate * problem.users))
    samples = phase.rounds * drawn(problem, inputs.options.adaptive)
    left = search.left_of_delta(inputs.name, privacy, gaussians=samples)
    mu = draws.round_mu(draws.rate(cohort, problem.users), phase.rounds, privacy.epsilon, left)
    [exact] = _predicted(inputs, draws, [(cohort / problem.users, phase.rounds, mu)])
    moved = mean_sensitivity(inputs.clip_norm, cohort, draws.moved)
    noise = GaussianNoise.for_mu(sensitivity=moved, mu=mu * (1 - 1e-9), dimension=problem.dimension)
    chosen = _chosen(inputs, sampling, exact.risk, exact.of[1], cohort, noise.scale, mu)
    return replace(chosen, theorem=f"{SUBSAMPLING}#{sampling}", adjacency=draws.adjacency)


def _predicted(
    inputs: Several, draws: Draws, wanted: Sequence[tuple[float, int, float]]
) -> list[Candidate[tuple[float, PhaseModel]]]:
    """Return the best step and suffix for each (rate, number of rounds, μ a round)."""
    problem, clip = inputs.problem, inputs.clip_norm
    rates, rounds, _ = zip(*wanted, strict=True)
    variances = []
    for rate, _, mu in wanted:
        cohort = max(1, round(rate * problem.users))
        sigma = mean_sensitivity(clip, cohort, draws.moved) / mu
        variances.append((1 - rate) * problem.user_deviation**2 / cohort + problem.dimension * sigma**2)
    floor = statistical_floor(problem)
    found = best_phases(problem, rounds, np.array(variances), step_size=inputs.options.step_size)
    return [
        Candidate(risk + floor, (rate * phase.rounds,), (rate, phase))
        for rate, (risk, phase) in zip(rates, found, strict=True)
    ]


def _chosen(
    inputs: OnePass | Several,
    sampling: Sampling,
    risk: float,
    phase: PhaseModel,
    cohort: int,
    scale: float,
    mu: float,
) -> Chosen:
    """Rounds of `cohort` answers that are μ-GDP each, with noise `scale` where the clip is fixed.

    A risk is predicted for a fixed clip and plain steps alone. Errors as `adaptive_clip`.
    """
    problem, options = inputs.problem, inputs.options
    clip, optimiser = inputs.clip_norm, options.made(options.step_size)
    moved: Adjacency = "zero-out" if sampling in COINS else "replace-one"
    adaptive, longest = None, clip
    if options.adaptive:
        least = mu * (1 - 1e-9)  # a plan is re-checked by other arithmetic
        rows = NormCountMean.for_mu(dimension=problem.dimension, users=cohort, mu=least, adjacency=moved, soft=True)
        adaptive = adaptive_clip(inputs.name, problem, options, cohort, moved, rows.scale)
        scale, longest = rows.scale, 1.0
    numbers = NoisySGDParameters(
        sampling=sampling,
        cohort_size=cohort,
        rounds=phase.rounds,
        step_size=phase.step_size,
        suffix=options.averaged(phase.suffix, phase.rounds),
        clip_norm=clip,
        sensitivity=mean_sensitivity(longest, cohort, moved),
        noise_scale=scale,
        round_mu=mu,
        optimiser=optimiser,
        adaptive=adaptive,
    )
    return Chosen(numbers, risk if optimiser.plain and not options.adaptive else None)


def _verify(schemes: _Schemes, plan: RunPlan) -> None:
    """Cohorts drawn as promised; a round's clip, sensitivity and noise agree with its μ; all rounds: the registry."""
    p, sampling = plan.parameters_of(NoisySGDParameters), schemes[plan.guarantee.adjacency]
    require_clip(
        p.clip_norm, p.sensitivity, p.cohort_size, p.adaptive, "zero-out" if sampling in COINS else "replace-one"
    )
    if not p.noise_scale > 0:
        raise VerificationError(f"Expected noise in a plan of {plan.algorithm}, got noise_scale={p.noise_scale}.")
    search.require_least(plan.algorithm, "round_mu", p.round_mu, recounted_mu(p, plan.problem.dimension))
    if p.sampling != sampling:
        raise VerificationError(f"Expected sampling {sampling} in a plan of {plan.algorithm}, got {p.sampling}.")
    if sampling == "disjoint" and p.rounds * p.cohort_size > plan.problem.users:
        raise VerificationError(f"Expected {p.rounds} disjoint cohorts of {p.cohort_size} among {plan.problem.users}.")


SGD = AlgorithmInfo(
    name="sgd",
    summary="No privacy; the reference",
    origin=theirs(POLYAK_1992, note="no privacy"),
    promises=Promises(
        "docs/privacy/gaussian.md",
        trust_models=("none",),
        adjacency=("none",),
        one_server="it adds no noise and guarantees nothing: take tracking-srgd",
    ),
    options=SGDOptions,
    parameters=NoisySGDParameters,
    planner=Planner("sgd", _check, partial(_disjoint, None), _without_privacy),
    verifier=lambda plan: None,
    maker=NoisySGD,
    factor=UNMEASURED,
    no_black_boxes=NoBlackBoxes("it has no privacy"),
)
ONE_PASS = AlgorithmInfo(
    name="one-pass-dp-sgd",
    summary="Disjoint cohorts, user-level clip, Gaussian noise every round; every user asked once",
    origin=ours(ABADI_2016.at("Algorithm 1"), note="a baseline: users, in disjoint cohorts instead of samples"),
    promises=Promises("docs/privacy/gaussian.md#parallel-composition", pairs, moves=moves, one_server=None),
    options=OnePassOptions,
    parameters=NoisySGDParameters,
    planner=Planner("one-pass-dp-sgd", _check, partial(_disjoint, _one_pass_noise), _chosen_one_pass),
    verifier=partial(_verify, {"replace-one": "disjoint"}),
    maker=NoisySGD,
    factor=Factor(known=3.0, unknown=9.0),
    noise_ignores_domain=True,
)


def _info(name: str, schemes: _Schemes, summary: str, factor: Factor, curve_step: int, origin: Origin) -> AlgorithmInfo:
    return replace(
        ONE_PASS,
        name=name,
        summary=summary,
        origin=origin,
        promises=Promises(SUBSAMPLING, pairs, count_room, with_count, moves, adjacency=tuple(schemes), one_server=None),
        options=DPSGDOptions,
        planner=Planner(name, _check, partial(_several, schemes), partial(_chosen_several, schemes)),
        verifier=partial(_verify, schemes),
        factor=factor,
        choosing=Choosing(many_passes=True, curve_step=curve_step),
    )


POISSON = _info(
    "dp-sgd-poisson",
    {"zero-out": "poisson", "replace-one": "poisson-replaced"},
    "Several passes, each user in each round with a secret coin",
    Factor(known=7.0, unknown=None),
    curve_step=4,
    origin=theirs(MCMAHAN_2018.at("Algorithm 1")),
)
WITHOUT_REPLACEMENT = _info(
    "dp-sgd-wor",
    {"replace-one": "without-replacement"},
    "Several passes, a secret uniform cohort each round; rate 1 is DP gradient descent",
    Factor(known=7.0, unknown=12.0),
    curve_step=2,
    origin=theirs(MCMAHAN_2018.at("Algorithm 1"), WANG_2019, note="uniform cohorts in place of coins"),
)
