"""Plans of `winsorised-erm`: the box by one of three rules, rounds, steps and phases by predicted risk, exact noise.

A round is μ_r-GDP with μ_r² = d₂ μ_BR² + (2h√d₂/(nσ))², a phase √K μ_r; phases share no user, and each may spend
everything (docs/privacy/winsorised-erm.md#we1).
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Literal

import numpy as np

from quoron_privacy.accounts import gdp, sensitivity_recount
from quoron_privacy.accounts.pair import Pair
from quoron_privacy.arrays import Vector
from quoron_privacy.errors import ConfigError, Infeasible, VerificationError
from quoron_privacy.means.private_range import PrivateRange, WinsorisedMean, bounded_range_mu, range_epsilon
from quoron_privacy.means.rotation import coordinate_bound, padded
from quoron_privacy.noise.streams import total_variation
from quoron_privacy.release import Adjacency
from quoron_server.algorithms import search
from quoron_server.algorithms.averaged_sgd import PhaseModels, averaging, excess_risks, step_grid, suffix_shares
from quoron_server.algorithms.info import (
    AlgorithmInfo,
    Choosing,
    Chosen,
    Factor,
    NoBlackBoxes,
    Promises,
    known_worth,
    statistical_floor,
)
from quoron_server.algorithms.references import BASSILY_SUN_2023, LEVY_2021, repaired
from quoron_server.algorithms.search import Candidate, PlanInputs, Planner, round_grid
from quoron_server.algorithms.winsorised.method import Phase, WinsorisedERM, WinsorisedERMParameters
from quoron_server.plan import Privacy, RunPlan
from quoron_server.problem import Problem

NAME = "winsorised-erm"
THEOREM = "docs/privacy/winsorised-erm.md#we1"
Radius = Literal["usual", "fresh", "uniform"]
ROUNDS = tuple(round_grid(512))  # that are tried
PHASES = (1, 2)
PULLS = (0.0, 0.03)  # λ over the curvature, of a second phase
FAILURE = 1e-3  # chance that choices miss, or with fresh and uniform that a coordinate is clamped, in any round
BIN_WIDTH = 0.25  # β_w: half a bin, in units of the largest rotated deviation
DEVIATIONS = 3.0  # of a coordinate of the usual box
MOST_BINS = 1 << 12


@dataclass(frozen=True, slots=True)
class WinsorisedERMOptions:
    """Planning options; None lets the plan choose by predicted excess risk."""

    rounds: int | None = None  # all of them, exactly
    phases: int | None = None
    step_size: float | None = None
    regularisation: float | None = None  # λ of phases after the first
    radius: Radius | float = "usual"  # h: by rule, or a number from public knowledge
    adjacency: Adjacency = "replace-one"


Inputs = PlanInputs[WinsorisedERMOptions]


@dataclass(frozen=True, slots=True)
class Box:
    """What a round looks for: bins on [-reach, reach], and h around the chosen one."""

    reach: float
    bins: int
    half_width: float  # h


def _chosen(inputs: Inputs, found: Candidate[tuple[Phase, ...]]) -> Chosen:
    options, phases = inputs.options, found.of
    mu = max(math.sqrt(phase.rounds) * phase.round_mu for phase in phases)
    rule = options.radius if isinstance(options.radius, str) else "given"
    numbers = WinsorisedERMParameters(rule, options.adjacency, phases, mu * (1 + 1e-12))
    return Chosen(numbers, found.risk, adjacency=options.adjacency)


def verify(plan: RunPlan) -> None:
    """Disjoint phases, each round's choices and box paid for, and a μ that gives (ε, δ)."""
    p = plan.parameters_of(WinsorisedERMParameters)
    problem, last, promise = plan.problem, 0, plan.guarantee
    length = sensitivity_recount.rotated(problem.dimension)
    for phase in p.phases:
        mean = phase.mean
        search.require_of(
            NAME,
            phase,
            ("phases on disjoint users", last <= phase.first and phase.first + phase.users <= problem.users),
            ("at least one user and one round", phase.users >= 1 and phase.rounds >= 1),
            ("1 <= suffix <= rounds", 1 <= phase.suffix <= phase.rounds),
            ("step_size > 0 and regularisation >= 0", phase.step_size > 0 and phase.regularisation >= 0),
            ("a mean of the phase's users", mean.users == phase.users),
            ("the adjacency guaranteed", mean.adjacency == p.adjacency == promise.adjacency),
        )
        last = phase.first + phase.users
        # The box's diagonal: between its ends, for zero-out from its middle.
        ends = 2 if promise.adjacency == "replace-one" else 1
        far = ends * math.sqrt(sum(mean.half_width**2 for _ in range(length))) / phase.users
        if not mean.noise.sensitivity >= far:
            raise VerificationError(f"Expected sensitivity >= {far} of a box, got {mean.noise}.")
        search.require_least(NAME, "round_mu", phase.round_mu, recounted_mu(phase, length, promise.adjacency))
        if not p.mu >= math.sqrt(phase.rounds) * phase.round_mu:
            raise VerificationError(f"Expected mu >= that of {phase.rounds} rounds of {phase.round_mu}, got {p.mu}.")


def pairs(p: WinsorisedERMParameters, problem: Problem, adjacency: Adjacency) -> tuple[Pair, ...]:
    """A run is as private as its least private phase; only the own user's phase has to be exact."""
    length = sensitivity_recount.rotated(problem.dimension)
    mu = max(math.sqrt(phase.rounds) * recounted_mu(phase, length, adjacency) for phase in p.phases)
    return (Pair.gaussian(mu, total_variation(gaussians=max(phase.rounds for phase in p.phases) * length)),)


def recounted_mu(phase: Phase, length: int, adjacency: Adjacency) -> float:
    """GDP of a round: every coordinate's choice, and the box's diagonal, for zero-out from its middle."""
    ends = 2 if adjacency == "replace-one" else 1
    choice = sensitivity_recount.choice(phase.mean.crude.epsilon * ends / 2)
    far = ends * math.sqrt(length) * phase.mean.half_width / phase.users
    return sensitivity_recount.together(
        math.sqrt(length) * choice, sensitivity_recount.mu(far, phase.mean.noise.scale, length)
    )


def box(problem: Problem, radius: Radius | float, users: int, rounds: int) -> Box:
    """Return the bins and h of a phase of so many users and rounds.

    usual: three deviations of a near-Gaussian coordinate. fresh: what holds all users at points that do not depend on
    them, with chance 1 - FAILURE. uniform: at all points of the domain at once, the row as it was analysed.
    """
    length, failure = padded(problem.dimension), FAILURE / rounds
    if radius == "usual" or isinstance(radius, float | int):
        deviation = DEVIATIONS * problem.user_deviation / math.sqrt(length)
        half_width = (DEVIATIONS + BIN_WIDTH) / DEVIATIONS * deviation if radius == "usual" else float(radius)
    else:
        spread = concentration(problem, radius, users, rounds)
        deviation = coordinate_bound(spread, dimension=problem.dimension, rows=users, failure=failure / 2)
        half_width = (2 + BIN_WIDTH) * deviation
    reach = coordinate_bound(problem.lipschitz, dimension=problem.dimension, rows=users, failure=failure)
    reach = min(problem.lipschitz, reach)
    bins = min(max(2, math.ceil(reach / (BIN_WIDTH * deviation))), MOST_BINS)
    return Box(reach, bins, half_width)


def concentration(problem: Problem, radius: Radius, users: int, rounds: int) -> float:
    """τ: all users' average gradients lie within it of the expected one, but with a chance of FAILURE."""
    steep = problem.lipschitz / math.sqrt(problem.items_per_user)
    if radius == "fresh":
        return steep * (1 + math.sqrt(2 * math.log(2 * users * rounds / FAILURE)))
    if problem.beta is None:
        raise ConfigError("Expected a smooth loss with radius='uniform', got one whose slope jumps.")
    beta, d = problem.beta, problem.dimension
    nets = problem.radius * np.geomspace(1e-12, 1.0, 241)  # r: a net of the domain
    tail = 2 * (d * np.log1p(2 * problem.radius / nets) + math.log(2 * users / FAILURE))
    return float(np.min(steep * (1 + np.sqrt(tail)) + 2 * beta * nets))


def _check(inputs: Inputs) -> None:
    search.require_options(inputs.options, "rounds", "phases", least=1, above=False)
    search.require_options(inputs.options, "step_size", "radius", least=1e-100)
    search.require_options(inputs.options, "regularisation", above=False)
    if inputs.options.radius == "uniform":
        concentration(inputs.problem, "uniform", inputs.problem.users, 1)


def _mean(problem: Problem, options: WinsorisedERMOptions, users: int, rounds: int, mu: float) -> WinsorisedMean:
    """Return the mean of one of `rounds` rounds that is μ-GDP; Infeasible where choices take all of it."""
    found, length = box(problem, options.radius, users, rounds), padded(problem.dimension)
    chance = FAILURE / rounds / 2
    ends = 2 if options.adjacency == "replace-one" else 1
    # private-mean#m4 says what draws need: e^(-ε cost / 2). What a draw is charged is less for zero-out.
    epsilon = range_epsilon(users=users, bins=found.bins, choices=length, failure=chance)
    left = mu**2 - length * bounded_range_mu(epsilon * ends / 2) ** 2
    if left <= (0.1 * mu) ** 2:
        raise Infeasible(NAME, f"{users:,} users are too few for private ranges in {rounds:,} rounds", "more users")
    crude = PrivateRange(epsilon, found.bins, found.reach)
    return WinsorisedMean.for_mu(
        users=users,
        crude=crude,
        half_width=found.half_width,
        mu=mu,
        dimension=problem.dimension,
        adjacency=options.adjacency,
    )


def _total_mu(problem: Problem, privacy: Privacy, rounds: int) -> float:
    """Return μ of a whole phase of at most so many rounds; 0 where the samplers leave nothing."""
    delta = privacy.delta * (1 - 1e-9) - search.slack(privacy.epsilon, gaussians=rounds * padded(problem.dimension))
    return gdp.mu_for(privacy.epsilon, delta) if delta > 0 else 0.0


def _candidates(inputs: Inputs) -> Iterator[Candidate[tuple[Phase, ...]]]:
    """Phases priced by their answers, with exact noise, the best step and suffix of each."""
    problem, privacy, options, totals = inputs.problem, inputs.privacy, inputs.options, inputs.rounds(ROUNDS)
    curvature = problem.beliefs.isotropic
    for number in [options.phases] if options.phases else PHASES:
        users = problem.users // number
        for total in totals:
            counts = [total // number + (total % number if k == 0 else 0) for k in range(number)]
            mu = _total_mu(problem, privacy, max(counts))
            if users < 2 or min(counts) < 1 or mu <= 0:
                continue
            try:
                means = [_mean(problem, options, users, each, mu / math.sqrt(each)) for each in counts]
            except Infeasible:
                continue
            pulls = [0.0] if number == 1 or curvature is None else [share * curvature for share in PULLS]
            if options.regularisation is not None:
                pulls = [options.regularisation]
            steps = np.array([options.step_size] if options.step_size else step_grid(problem, total))
            for pull, share in product(pulls, suffix_shares(problem)):
                phases = tuple(
                    Phase(
                        first=k * users,
                        users=users,
                        rounds=count,
                        step_size=1.0,
                        regularisation=pull if k else 0.0,
                        suffix=max(1, round(share * count)),
                        mean=mean,
                        round_mu=mean.mu(problem.dimension) * (1 + 1e-12),
                    )
                    for k, (count, mean) in enumerate(zip(counts, means, strict=True))
                )
                risks = _risks(problem, phases, steps)
                least = int(np.argmin(risks))
                if math.isfinite(risks[least]):
                    made = tuple(replace(phase, step_size=float(steps[least])) for phase in phases)
                    yield Candidate(float(risks[least]), (sum(each.users * each.rounds for each in made),), made)


def _risks(problem: Problem, phases: tuple[Phase, ...], steps: Vector) -> Vector:
    """With each step size: where the curvature is known by the exact response of a quadratic, else by a bound."""
    curvature = problem.beliefs.isotropic
    variances = [problem.dimension * phase.mean.noise.scale**2 for phase in phases]
    if curvature is None:
        models = [
            PhaseModels(each.rounds, steps, each.suffix, variance)
            for each, variance in zip(phases, variances, strict=True)
        ]
        return np.asarray(excess_risks(problem, models)) + statistical_floor(problem)
    slowest = problem.beliefs.least_curvature or curvature
    remaining, scattered = np.array(problem.distance), np.array(0.0)  # along the slowest direction; the rest, squared
    for each, variance in zip(phases, variances, strict=True):
        pull = each.regularisation
        decay, spread = averaging(1 - steps * (curvature + pull), each.rounds, each.suffix)
        slow, _ = averaging(1 - steps * (slowest + pull), each.rounds, each.suffix)
        bias = decay + (1 - decay) * pull / (curvature + pull)
        sampled = (1 - decay) / (curvature + pull)
        remaining = remaining * np.abs(slow + (1 - slow) * pull / (slowest + pull))
        scattered = (
            bias**2 * scattered
            + sampled**2 * problem.user_deviation**2 / each.users
            + problem.dimension * (steps * np.sqrt(spread * variance / problem.dimension)) ** 2
        )
    return np.asarray((slowest * remaining**2 + curvature * scattered) / 2)


INFO = AlgorithmInfo(
    name=NAME,
    summary="Full-batch noisy gradient descent on means whose rotated coordinates are clamped in a private box",
    origin=repaired(
        LEVY_2021.at(),
        BASSILY_SUN_2023.at("Algorithm 6"),
        note="the text of Levy et al. was not at hand: the mean is as Bassily & Sun reprint it, "
        "in a box that is wider by half a bin",
    ),
    promises=Promises(
        ("central-broadcast",),
        ("replace-one", "zero-out"),
        THEOREM,
        pairs,
        one_server="it chooses quantiles by whole histograms with an exponential mechanism, which is no sum with "
        "noise: take tracking-srgd",
    ),
    options=WinsorisedERMOptions,
    parameters=WinsorisedERMParameters,
    planner=Planner(NAME, _check, _candidates, _chosen, "for a private range of every rotated coordinate", known_worth),
    verifier=verify,
    maker=WinsorisedERM,
    factor=Factor(known=5.0, unknown=20.0),
    no_black_boxes=NoBlackBoxes("it has no clip norm: where its boxes lie follows from what is known of a loss"),
    choosing=Choosing(many_passes=True),
)
