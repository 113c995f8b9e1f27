"""Plans of `mean-sgd` and `recentred-sgd`: centre, cohort, rounds, step by predicted risk; noise by exact accounting.

A round, given its cohort and the past, is μ-GDP with μ² = d₂ μ_BR(ε₁)² + μ_g²; T of them on uniform cohorts cost
`wor_epsilon`, on cohorts by coins, without a range, `poisson_epsilon`. A central limit ranks candidates and sets no
noise.

Source: docs/privacy/mean-sgd.md#ms1.
"""

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal

import numpy as np

from quoron_privacy.accounts import gdp, sensitivity_recount
from quoron_privacy.accounts.pair import Pair
from quoron_privacy.errors import ConfigError, Infeasible
from quoron_privacy.gaussian import GaussianNoise, mean_sensitivity
from quoron_privacy.means import private_range
from quoron_privacy.means.private_range import PrivateRange
from quoron_privacy.release import Adjacency
from quoron_server.algorithms import centring, search
from quoron_server.algorithms.averaged_sgd import (
    RATES,
    Integers,
    PhaseModel,
    Vector,
    best_phases,
    default_clip,
    require_cohorts,
    smoothed,
    smoothings,
)
from quoron_server.algorithms.info import (
    UNMEASURED,
    AlgorithmInfo,
    Choosing,
    Chosen,
    Factor,
    Promises,
    statistical_floor,
)
from quoron_server.algorithms.mean.method import Estimator, MeanSGD, MeanSGDParameters
from quoron_server.algorithms.noisy import plan as worth
from quoron_server.algorithms.noisy.method import Sampling
from quoron_server.algorithms.noisy.plan import COUNTING, DRAWS
from quoron_server.algorithms.printed import bassily_sun
from quoron_server.algorithms.references import BASSILY_SUN_2023, ours, repaired
from quoron_server.algorithms.search import NEAR, Candidate, best, round_grid
from quoron_server.parameters import Moves
from quoron_server.plan import Privacy, RunPlan
from quoron_server.problem import Problem

NAME, RECENTRED = "mean-sgd", "recentred-sgd"
THEOREM = "docs/privacy/mean-sgd.md#ms1"
COINS = "docs/privacy/mean-sgd.md#ms3"
ESTIMATORS: Mapping[str, tuple[Estimator, ...]] = MappingProxyType({NAME: ("range", "clip"), RECENTRED: ("tracking",)})
SMALLEST_ROUNDS, LARGEST_ROUNDS = 4, 1024
LATE = (0.5, 0.25)  # shares of the iterates that may be averaged where the curvature is unknown, beside all
WORST_SIGNAL = 0.3002  # max over a of a(1 - a/√(1 + a²)): what an error of 1 in a linear loss's gradient leaves at most
STEPS = 17  # of a linear loss that are tried
WIDER = (1.0, 2.0, 4.0, 8.0)  # times the reach of users, tried for the bins of a range
FAILURE = 1e-3  # chance that a private range misses in any round


@dataclass(frozen=True, slots=True)
class RecentredSGDOptions:
    """Planning options; None lets the plan choose by predicted excess risk."""

    rounds: int | None = None
    rate: float | None = None  # B / n
    step_size: float | None = None
    clip_norm: float | None = None  # C_0, from public knowledge, never tuned on protected data
    smoothing: float | None = None  # λ of the Moreau envelope, for losses whose slope jumps
    sampling: Literal["auto", "coins", "uniform"] = "auto"  # how cohorts are drawn; coins need less noise


@dataclass(frozen=True, slots=True)
class MeanSGDOptions(RecentredSGDOptions):
    """The same, and the centre: a private range, or 0 and no crude mean, which is Algorithm 1 for a radius of L."""

    estimator: Literal["auto", "range", "clip"] = "range"


Options = MeanSGDOptions | RecentredSGDOptions


@dataclass(frozen=True, slots=True)
class _Run:
    """What is chosen of a run."""

    estimator: Estimator
    sampling: Sampling
    rate: float
    smoothing: float
    phase: PhaseModel


def plan(problem: Problem, privacy: Privacy, options: Options) -> Chosen:
    """The plan with fewest answers within 5 % of the least predicted risk; Infeasible where no estimator works."""
    _require(problem, privacy, options)
    found = {name: _best(problem, privacy, options, name) for name in _wanted(options)}
    feasible = {name: tried[0].risk for name, tried in found.items() if tried}
    if not feasible:
        raise _too_few(problem)
    name, reason = min(feasible, key=lambda estimator: feasible[estimator]), _reason(found)
    drawn, *everybody = (_calibrated(problem, privacy, options, tried.of, reason) for tried in found[name])
    for other in everybody:  # whose noise was ranked as it is; that of drawn cohorts by a central limit
        assert drawn.risk is not None
        assert other.risk is not None
        if other.risk * NEAR < drawn.risk:
            return other
    return drawn


def verify(plan: RunPlan) -> None:
    """Radius-free noise and the choices of the range are as private as they claim; all rounds: the registry."""
    p, name = plan.parameters_of(MeanSGDParameters), plan.algorithm
    users = plan.problem.users
    rough, promise = plan.problem.smoothness is None, plan.guarantee
    drawn = p.sampling in DRAWS and DRAWS[p.sampling].adjacency == promise.adjacency
    search.require(
        name,
        ("cohorts drawn for the adjacency guaranteed", drawn, p.sampling),
        ("no range of cohorts by coins", not (p.poisson_sampling and p.estimator == "range"), p.sampling),
        (f"estimator {' or '.join(ESTIMATORS[name])}", p.estimator in ESTIMATORS[name], p.estimator),
        (f"1 <= cohort_size <= {users}", 1 <= p.cohort_size <= users, p.cohort_size),
        ("1 <= suffix <= rounds", 1 <= p.suffix <= p.rounds, p.suffix),
        (
            "a range exactly when the estimator is range",
            (p.estimator == "range") == (p.range_epsilon > 0),
            p.estimator,
        ),
        ("a first radius in (1e-140, 1e140)", 1e-140 < p.first_radius < 1e140, p.first_radius),
        (
            "a finite smoothness when tracking",
            p.estimator != "tracking" or 0 <= p.smoothness < math.inf,
            p.smoothness,
        ),
        (
            "smoothing only of a loss whose slope jumps",
            p.smoothing == 0 or (rough and p.smoothing > 0),
            p.smoothing,
        ),
    )
    search.require_least(name, "round_mu", p.round_mu, recounted_mu(p, plan.problem.dimension))


def pairs(p: MeanSGDParameters, problem: Problem, adjacency: Adjacency) -> tuple[Pair, ...]:
    """Of drawn cohorts, or of everybody in every round."""
    mu = recounted_mu(p, problem.dimension)
    return worth.pairs_of_rounds(p.sampling, adjacency, problem.users, p.cohort_size, p.rounds, mu, problem.dimension)


def recounted_mu(p: MeanSGDParameters, dimension: int) -> float:
    """GDP of a round given its cohort, by its scales: a mean of unit rows, and the choices of a range."""
    how: Adjacency = "zero-out" if p.poisson_sampling else "replace-one"
    mean = sensitivity_recount.mu(sensitivity_recount.rows(1.0, p.cohort_size, how), p.noise_scale, dimension)
    if not p.range_epsilon:
        return mean
    return sensitivity_recount.together(
        mean, math.sqrt(sensitivity_recount.rotated(dimension)) * sensitivity_recount.choice(p.range_epsilon)
    )


def moves(p: MeanSGDParameters, problem: Problem) -> list[Moves]:
    """Return how far one user moves the mean of unit rows in each round (min-cohort#q4).

    The choices of a range are charged separately, for any participation.
    """
    del problem
    return [Moves.of(lambda how: sensitivity_recount.rows(1.0, p.cohort_size, how) / p.noise_scale)] * p.rounds


def _require(problem: Problem, privacy: Privacy, options: Options) -> None:
    search.require_choice(options, sampling=("auto", "coins", "uniform"))
    if isinstance(options, MeanSGDOptions):
        search.require_choice(options, estimator=("auto", *ESTIMATORS[NAME]))
    zero_out, ranges = privacy.adjacency == "zero-out", _wanted(options) == ("range",)
    if zero_out and ranges:
        needs = "privacy.adjacency=replace-one, or algorithm.options.estimator=clip"
        raise Infeasible(NAME, "nothing is proved of a private range under zero-out", needs)
    for wrong, why in (
        (zero_out and options.sampling == "uniform", "privacy.adjacency=replace-one with cohorts of a fixed size"),
        (options.sampling == "coins" and ranges, "sampling=uniform with a private range"),
    ):
        if wrong:
            raise ConfigError(f"Expected {why}, got {options} under {privacy.adjacency}: nothing else is proved.")
    search.require_options(options, "smoothing", "clip_norm", "step_size")
    search.require_rough(problem, options.smoothing)
    require_cohorts(_name(options), problem, 1)


def _name(options: Options) -> str:
    return NAME if isinstance(options, MeanSGDOptions) else RECENTRED


def _wanted(options: Options) -> tuple[Estimator, ...]:
    """Estimators to choose among."""
    if isinstance(options, MeanSGDOptions) and options.estimator != "auto":
        return (options.estimator,)
    return ESTIMATORS[_name(options)]


def _best(problem: Problem, privacy: Privacy, options: Options, estimator: Estimator) -> list[Candidate[_Run]]:
    """The estimator's candidate with fewest answers among about the best, and where that draws, of those that do not.

    Empty where none is feasible.
    """
    total = gdp.mu_for(privacy.epsilon, privacy.delta)
    grid = [
        (rate, rounds)
        for rate in ([options.rate] if options.rate else RATES)
        if options.rate or rate * problem.users >= 2
        for rounds in _rounds(problem, options)
        if rate == 1 or rounds >= SMALLEST_ROUNDS or options.rounds  # of fewer a central limit says nothing
    ]
    tried = [
        candidate
        for sampling in _samplings(privacy, options, estimator)
        for candidate in _candidates(
            problem, options, estimator, sampling, [(*each, DRAWS[sampling].ranking_mu(*each, total)) for each in grid]
        )
    ]
    first, everybody = best(tried), best(each for each in tried if each.of.rate == 1)
    found = [first] if first is everybody else [first, everybody]
    return [each for each in found if each is not None]


def _samplings(privacy: Privacy, options: Options, estimator: Estimator) -> tuple[Sampling, ...]:
    """Ways of drawing cohorts that something is proved of, and that are asked for."""
    if privacy.adjacency == "zero-out":
        return () if estimator == "range" else ("poisson",)
    offered: dict[str, tuple[Sampling, ...]] = {"uniform": ("without-replacement",), "coins": ("poisson-replaced",)}
    if estimator == "range":
        return offered["uniform"] if options.sampling != "coins" else ()
    # where everybody is asked both are the same, and the first is taken
    return offered.get(options.sampling, (*offered["uniform"], *offered["coins"]))


def _rounds(problem: Problem, options: Options) -> list[int]:
    """Of a linear loss a single step may be the best: its gradient is the same everywhere."""
    return (
        [options.rounds]
        if options.rounds
        else round_grid(LARGEST_ROUNDS, smallest=1 if problem.beta == 0 else SMALLEST_ROUNDS)
    )


def _candidates(
    problem: Problem,
    options: Options,
    estimator: Estimator,
    sampling: Sampling,
    wanted: Sequence[tuple[float, int, float]],
) -> list[Candidate[_Run]]:
    """The best step and suffix for each smoothing and each feasible (rate, number of rounds, μ a round)."""
    within = [(rate, rounds, *_within(problem, options, estimator, rate, rounds, mu)) for rate, rounds, mu in wanted]
    feasible = [each for each in within if each[3] > 0]
    if not feasible:
        return []
    tried = smoothings(problem, options.smoothing, problem.distance, none=estimator != "tracking")
    return [found for each in tried for found in _best_steps(problem, options, estimator, sampling, feasible, each)]


def _within(
    problem: Problem, options: Options, estimator: Estimator, rate: float, rounds: int, mu: float
) -> tuple[float, float]:
    """(first radius, μ left for the Gaussian); μ is 0 where a range takes all of it."""
    if estimator != "range":
        return _first_radius(problem, options), mu
    found = _range(problem, options, _cohort(problem, rate), rounds, mu)
    return (0.0, 0.0) if found is None else found[1:]


def _best_steps(
    problem: Problem,
    options: Options,
    estimator: Estimator,
    sampling: Sampling,
    feasible: Sequence[tuple[float, int, float, float]],
    parameter: float,
) -> list[Candidate[_Run]]:
    """The best step and suffix for each (rate, rounds, first radius, μ)."""
    seen = smoothed(problem, parameter)
    rates, _, firsts, mus = (np.array(column) for column in zip(*feasible, strict=True))
    rounds, cohorts = [each[1] for each in feasible], np.array([_cohort(problem, rate) for rate, *_ in feasible])
    units = np.array([mean_sensitivity(1.0, int(cohort), DRAWS[sampling].moved) for cohort in cohorts]) / mus
    samplings = (1 - rates) * problem.user_deviation**2 / cohorts

    def tracked(steps: Vector, suffixes: Integers) -> Vector:
        """Early rounds are noisier, but decay in the average: those that enter it decide."""
        return centring.sgd_variances(
            seen,
            smoothness=seen.beta or 0.0,
            rounds=np.array(rounds),
            steps=steps,
            suffixes=suffixes,
            samplings=samplings,
            units=units,
            spread=problem.user_deviation,
            first=_first_radius(problem, options),
        )

    variances = tracked if estimator == "tracking" else samplings + problem.dimension * (units * firsts) ** 2
    extra = 0.5 * parameter * problem.lipschitz**2 + statistical_floor(problem)
    if seen.beta == 0:  # the steps see the users at hand, whose mean gradient is so far from the population's
        extra += WORST_SIGNAL * problem.distance * problem.user_deviation / math.sqrt(problem.users)
    # The bound for unknown curvature is about all iterates, or about late ones from anywhere: worth it where early
    # releases are far noisier.
    late = seen.beliefs.isotropic is None and estimator == "tracking"
    tried = _linear_steps(seen, rounds, samplings, units, firsts) if seen.beta == 0 else None
    shares = (1.0, *LATE) if late else None
    found = best_phases(seen, rounds, variances, step_size=options.step_size, steps=tried, shares=shares)
    return [
        Candidate(risk + extra, (rate * phase.rounds,), _Run(estimator, sampling, rate, parameter, phase))
        for (rate, *_), (risk, phase) in zip(feasible, found, strict=True)
    ]


def _linear_steps(problem: Problem, rounds: Sequence[int], samplings: Vector, units: Vector, firsts: Vector) -> Vector:
    """Return steps for a linear loss: about (distance)/√(V T), the best for one variance V; shape (W, K).

    From the noise of the first radius, which is the largest, to that of one as small as users' spread.
    """
    noises = problem.dimension * units**2
    settled = np.minimum(firsts, centring.margin(problem.dimension) * problem.user_deviation)
    loud, quiet = samplings + noises * firsts**2, samplings + noises * settled**2
    low, high = (problem.distance / np.sqrt(variance * np.array(rounds)) for variance in (loud, quiet))
    return np.geomspace(low / 2, 4 * high, STEPS, axis=1)


def _cohort(problem: Problem, rate: float) -> int:
    return max(1, round(rate * problem.users))


def _first_radius(problem: Problem, options: Options) -> float:
    return options.clip_norm or default_clip(problem)


def _reach(problem: Problem) -> float:
    """τ: nearly all users' averages are within it of their mean."""
    return centring.margin(problem.dimension) * problem.user_deviation


def _range(
    problem: Problem, options: Options, cohort: int, rounds: int, mu: float
) -> tuple[PrivateRange, float, float] | None:
    """(range, radius around it, μ left for the Gaussian) of one round; None where the range takes all of μ.

    The least noise of ranges for users who lie as far apart as they are believed to, or farther: wider bins are fewer,
    and cost less of μ. Where a range leaves half of μ² none twice as wide is better.
    """
    found: list[tuple[float, tuple[PrivateRange, float, float]]] = []
    for factor in WIDER:
        with suppress(Infeasible):
            mean = private_range.calibrate(
                "range",
                users=cohort,
                dimension=problem.dimension,
                bound=_first_radius(problem, options),
                spread=factor * _reach(problem),
                mu=mu,
                failure=FAILURE / rounds,
            )
            assert isinstance(mean.crude, PrivateRange)
            left = math.sqrt(mu**2 - mean.crude.mu(problem.dimension) ** 2)
            found.append((mean.radius / left, (mean.crude, mean.radius, left)))
            if 2 * left**2 >= mu**2:
                break
    return min(found, key=lambda pair: pair[0])[1] if found else None


def _calibrated(problem: Problem, privacy: Privacy, options: Options, run: _Run, reason: str) -> Chosen:
    rounds, cohort = run.phase.rounds, _cohort(problem, run.rate)
    delta = search.left_of_delta(_name(options), privacy, gaussians=rounds * problem.dimension)
    draws = DRAWS[run.sampling]
    mu = draws.round_mu(draws.rate(cohort, problem.users), rounds, privacy.epsilon, delta)
    fixed = replace(options, smoothing=run.smoothing or None)
    final = _candidates(problem, fixed, run.estimator, run.sampling, [(run.rate, rounds, mu)])
    chosen = best((each for each in final if each.of.smoothing == run.smoothing), near=1.0)
    if chosen is None:
        raise _too_few(problem)
    phase = chosen.of.phase
    first, left, epsilon, bins, half_width = _first_radius(problem, options), mu, 0.0, 0, 0.0
    if run.estimator == "range" and (found := _range(problem, options, cohort, rounds, mu)) is not None:
        crude, first, left = found
        epsilon, bins, half_width = crude.epsilon, crude.bins, crude.half_width
    noise = GaussianNoise.for_mu(
        sensitivity=mean_sensitivity(1.0, cohort, draws.moved), mu=left * (1 - 1e-9), dimension=problem.dimension
    )
    numbers = MeanSGDParameters(
        estimator=run.estimator,
        reason=reason,
        sampling=run.sampling,
        cohort_size=cohort,
        rounds=rounds,
        step_size=phase.step_size,
        suffix=phase.suffix,
        first_radius=first,
        noise_scale=noise.scale,
        spread=problem.user_deviation,
        sampling_variance=problem.user_deviation**2 / cohort,
        smoothness=smoothed(problem, run.smoothing).beta or 0.0,
        smoothing=run.smoothing,
        range_epsilon=epsilon,
        bins=bins,
        half_width=half_width,
        round_mu=mu,
    )
    theorem = COINS if numbers.poisson_sampling else None
    return Chosen(numbers, chosen.risk, theorem=theorem, adjacency=draws.adjacency)


def _reason(found: dict[Estimator, list[Candidate[_Run]]]) -> str:
    """Why this estimator, in one phrase."""
    if len(found) == 1:
        return "asked for"
    risks = [f"{name} {f'{tried[0].risk:.2g}' if tried else 'is infeasible'}" for name, tried in found.items()]
    return f"least predicted risk: {', '.join(risks)}"


def _too_few(problem: Problem) -> Infeasible:
    """Only a range can fail: it needs users enough for half of a round's μ."""
    condition = f"{problem.users:,} users are too few for a private range of {problem.dimension} coordinates a round"
    return Infeasible.too_few(NAME, condition, problem.users + 1, also=", or recentred-sgd")


RECENTRED_INFO = AlgorithmInfo(
    name=RECENTRED,
    summary="Several passes, secret cohorts, a private mean clipped around the last release",
    origin=ours(BASSILY_SUN_2023.at("Algorithm 4"), note="the last release is the centre, and the radius follows it"),
    promises=Promises(
        ("central-broadcast",),
        ("replace-one", "zero-out"),
        THEOREM,
        pairs,
        COUNTING,
        moves,
        one_server=None,
    ),
    options=RecentredSGDOptions,
    parameters=MeanSGDParameters,
    planner=plan,
    verifier=verify,
    maker=MeanSGD,
    factor=Factor(known=8.0, unknown=12.0),
    noise_ignores_domain=True,
    choosing=Choosing(many_passes=True, curve_step=4),
)
MEAN = replace(
    RECENTRED_INFO,
    name=NAME,
    summary="Several passes, secret cohorts, a private mean clipped around a private range",
    origin=repaired(BASSILY_SUN_2023.at("Algorithms 1, 4 and 6"), note="noise once, around a centre that is released"),
    promises=replace(
        RECENTRED_INFO.promises,
        one_server="its private range reads whole histograms without noise: take recentred-sgd or tracking-srgd",
    ),
    options=MeanSGDOptions,
    factor=UNMEASURED,  # of ranges
    printed=bassily_sun.CENTRAL,
)
