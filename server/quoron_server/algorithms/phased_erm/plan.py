"""Plans of `phased-erm`: phases, λ, steps and their number by predicted risk, the noise by the theorem.

Every phase may spend all of (ε, δ), because phases share no user (docs/privacy/phased-erm.md#pe1).

Predicted excess risk of phased ERM, from public facts only; it ranks plans and never sets noise.

Where F is about a quadratic of curvature h, all is linear. A phase of J steps at step η takes its start's error e to

    b e - r ζ,    b = a^J + (1 - a^J) λ/(h + λ),    r = (1 - a^J)/(h + λ),    a = 1 - η (h + λ),

ζ the error of its users' average gradient, and adds the noise of its release. Where the curvature is unknown, the
stability of regularised minimisers, the gap that J steps leave and the distance between phases are added up.

`phased-erm` in the registry.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from quoron_privacy.accounts import sensitivity_recount
from quoron_privacy.accounts.pair import Pair
from quoron_privacy.errors import ConfigError, Infeasible
from quoron_privacy.noise.streams import total_variation
from quoron_privacy.release import Adjacency
from quoron_server.algorithms import search
from quoron_server.algorithms.averaged_sgd import Number
from quoron_server.algorithms.info import ITERATES, AlgorithmInfo, Choosing, Chosen, Factor, Promises
from quoron_server.algorithms.noisy import plan as noisy
from quoron_server.algorithms.phased_erm.method import Phase, PhasedERM, PhasedERMParameters, Solver, apart, momentum
from quoron_server.algorithms.references import ZHANG_BYO_2022, ours
from quoron_server.algorithms.search import Candidate, best, halves, round_grid
from quoron_server.plan import Privacy, RunPlan
from quoron_server.problem import Problem

Vector = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class PhaseModel:
    """What is known of a phase; each a number, or an array with one for each of many candidates."""

    users: float  # n_k
    left: Number  # (1 - ηλ)^J of gd or (1 - α)^J of agd at h = 0: what J steps leave of the gap
    decay: Number  # a^J at h
    slow_decay: Number  # a^J at the least curvature
    regularisation: Number  # λ
    release_scale: Number  # σ


def predicted(problem: Problem, phases: list[PhaseModel]) -> Vector:
    """Predicted E F(x) - F* after `phases`, in the units of the loss."""
    curvature = problem.beliefs.isotropic
    return _bounded(problem, phases) if curvature is None else _isotropic(problem, curvature, phases)


def _isotropic(problem: Problem, curvature: float, phases: list[PhaseModel]) -> Vector:
    slowest = problem.beliefs.least_curvature or curvature
    remaining, spread = np.array(problem.distance), np.array(0.0)  # distance along the slowest; the rest, squared
    for phase in phases:
        pull = np.asarray(phase.regularisation)
        bias = phase.decay + (1 - phase.decay) * pull / (curvature + pull)
        slow = phase.slow_decay + (1 - phase.slow_decay) * pull / (slowest + pull)
        sampled = (1 - phase.decay) / (curvature + pull)
        remaining = remaining * np.abs(slow)
        spread = (
            bias**2 * spread
            + sampled**2 * problem.user_deviation**2 / phase.users
            + problem.dimension * np.asarray(phase.release_scale) ** 2
        )
    return np.asarray((slowest * remaining**2 + curvature * spread) / 2)


def _bounded(problem: Problem, phases: list[PhaseModel]) -> Vector:
    steep, away, total, rest = problem.lipschitz, np.array(problem.distance**2), np.array(0.0), np.array(0.0)
    for phase in phases:
        pull = np.asarray(phase.regularisation)
        gap = steep**2 / pull * np.asarray(phase.left)  # of the phase's objective, from its start
        noise = problem.dimension * np.asarray(phase.release_scale) ** 2
        total = total + pull * away / 2 + 2 * problem.user_deviation**2 / (pull * phase.users)
        away = 2 * (2 * gap / pull + noise)
        rest = np.minimum(steep * np.sqrt(away), steep * np.sqrt(2 * gap / pull) + (problem.beta or 0.0) * noise / 2)
    return np.asarray(total + rest)


NAME = "phased-erm"
THEOREM = "docs/privacy/phased-erm.md#pe1"
LARGEST_ROUNDS = 512
PHASES = (1, 2, 3)
GROWTHS = (1.0, 4.0, 16.0)  # λ_{k+1} / λ_k
PULLS = (0.0, 1e-3, 1e-2, 0.03, 0.1, 0.5)  # λ_1 over the curvature, where that is known
RULES = (0.25, 1.0, 4.0)  # λ_1 over the rule's, where it is not
STEPS = (0.1, 0.25, 0.5, 1.0)  # η over 2 / (β + 2λ)
ROUNDING = 1 + 2e-6  # half for rows as long as counts, half for sums and iterates ("Floating point" of the page)


@dataclass(frozen=True, slots=True)
class PhasedERMOptions:
    """Planning options; None lets the plan choose by predicted excess risk."""

    rounds: int | None = None  # all of them, exactly
    phases: int | None = None
    solver: Literal["gd", "agd"] = "gd"  # agd: in simulation only
    regularisation: float | None = None  # λ_1
    step_size: float | None = None  # η of every phase of gd, at most 2 / (β + 2λ)


def shift(problem: Problem, solver: Solver, users: int, rounds: int, step_size: float, pull: float) -> float:
    """Return Δ of a phase: how far replacing one user moves its last point, rounding included.

    For gd: (2L/n) η Σ_{j<J} (1 - ηλ)^j, which is (2L/(λn)) (1 - (1 - ηλ)^J), and 2LηJ/n for λ = 0.
    For agd: 2L/(λn) + 2ξ, ξ = √2 (L/λ) (1 - α)^(J/2) a bound on the distance from the minimiser.
    """
    if solver == "agd":
        share = momentum(pull, problem.beta or 0.0)
        missed = math.sqrt(2) * problem.lipschitz / pull * float((1 - share) ** (rounds / 2))
        return (2 * problem.lipschitz / (pull * users) + 2 * missed) * ROUNDING
    return 2 * problem.lipschitz * step_size / users * _geometric(step_size * pull, rounds) * ROUNDING


def _geometric(share: float, rounds: int) -> float:
    """Σ_{j<J} (1 - q)^j, from above."""
    if share * rounds < 1e-7:  # there J is an upper bound that is as good, and the quotient loses digits
        return float(rounds)
    return min(float(rounds), -math.expm1(rounds * math.log1p(-share)) / share if share < 1 else 1.0)


def plan(problem: Problem, privacy: Privacy, options: PhasedERMOptions) -> Chosen:
    """The plan of least predicted risk; among those about as good, one with few gradients. Infeasible if not convex."""
    _require(problem, options)
    found = best(each for each in _candidates(problem, privacy, options) if math.isfinite(each.risk))
    if found is None:
        raise Infeasible(NAME, f"n={problem.users:,} users do not fill the phases", "fewer phases or more rounds")
    phases = found.of
    mu = max(phase.noise.effective_mu(problem.dimension) for phase in phases)
    return Chosen(PhasedERMParameters(options.solver, phases, mu), found.risk)


def verify(plan: RunPlan) -> None:
    """Disjoint phases, steps that contract, Δ added up step by step, and a μ that gives (ε, δ)."""
    p = plan.parameters_of(PhasedERMParameters)
    problem, last = plan.problem, 0
    search.require_smooth(NAME, problem)
    beta = problem.beta or 0.0
    for phase in p.phases:
        search.require_of(
            NAME,
            phase,
            ("solver gd or agd", p.solver in ("gd", "agd")),
            ("at least one user and one round", phase.users >= 1 and phase.rounds >= 1),
            ("phases on disjoint users", last <= phase.first and phase.first + phase.users <= problem.users),
            ("regularisation >= 0", phase.regularisation >= 0),
            ("regularisation > 0 with agd", p.solver == "gd" or phase.regularisation > 0),
            ("step_size > 0", phase.step_size > 0),
            ("step_size <= 2 / (β + 2λ)", phase.step_size * (beta + 2 * phase.regularisation) <= 2 * (1 + 1e-12)),
        )
        last = phase.first + phase.users
        search.require_least(NAME, "sensitivity", phase.sensitivity, apart(problem, p.solver, phase))
    search.require_gaussian(plan, pairs(p, problem, plan.guarantee.adjacency), p.mu)


def pairs(p: PhasedERMParameters, problem: Problem, adjacency: Adjacency) -> tuple[Pair, ...]:
    """A run is as private as its least private phase; only the release of the own user's phase has to be exact."""
    del adjacency
    mu = max(
        sensitivity_recount.mu(apart(problem, p.solver, each), each.release_scale, problem.dimension)
        for each in p.phases
    )
    return (Pair.gaussian(mu, total_variation(gaussians=problem.dimension)),)


def _require(problem: Problem, options: PhasedERMOptions) -> None:
    search.require_smooth(NAME, problem)
    search.require_options(options, "rounds", "phases", least=1, above=False)
    search.require_options(options, "step_size")
    search.require_options(options, "regularisation", above=False)
    pull, step, beta = options.regularisation or 0.0, options.step_size, problem.beta or 0.0
    search.require_choice(options, solver=("gd", "agd"))
    if options.solver == "agd" and (step is not None or options.regularisation == 0):
        raise ConfigError("Expected no step_size and a regularisation > 0 with solver=agd, got others.")
    if step is not None and not step * (beta + 2 * pull) <= 2:
        raise ConfigError(
            f"Expected algorithm.options.step_size <= 2 / (beta + 2 regularisation) = {2 / (beta + 2 * pull):.6g}, "
            f"got step_size={step}."
        )


def _candidates(
    problem: Problem, privacy: Privacy, options: PhasedERMOptions
) -> Iterator[Candidate[tuple[Phase, ...]]]:
    """Phases priced by their gradients, the noise exact; plans of equally many phases are predicted together."""
    unit = noisy.noise_scale(1.0, problem, privacy)  # σ for a Δ of 1
    totals = [options.rounds] if options.rounds else round_grid(LARGEST_ROUNDS)
    shares = (1.0,) if options.step_size or options.solver == "agd" else STEPS
    for number in [options.phases] if options.phases else PHASES:
        tried = [
            phases
            for sizes in _sizes(problem.users, number)
            for first in _pulls(problem, options, unit)
            for growth in (GROWTHS if number > 1 and first > 0 else (1.0,))
            for total in totals
            if total >= number and min(sizes) >= 1
            for share in shares
            if (
                phases := _phases(
                    problem, options, unit, sizes, [first * growth**k for k in range(number)], total, share
                )
            )
        ]
        if tried:
            for risk, phases in zip(map(float, _risks(problem, options.solver, tried)), tried, strict=True):
                yield Candidate(risk, (sum(each.users * each.rounds for each in phases),), phases)


def _sizes(users: int, number: int) -> list[list[int]]:
    """Users of each phase: equally many, and halves of what is left."""
    equal = [users // number] * number
    return [equal] if number == 1 else [equal, halves(users, number)]


def _pulls(problem: Problem, options: PhasedERMOptions, unit: float) -> list[float]:
    """λ_1 to try."""
    if options.regularisation is not None:
        return [options.regularisation]
    curvature = problem.beliefs.isotropic
    if curvature is not None:
        found = [share * curvature for share in PULLS]
    else:  # λ R² / 2 against 2 s²/(λ n), and λ R against √d 2L/(λ n) unit: the larger of what balances them
        sampled = 2 * problem.user_deviation / (problem.distance * math.sqrt(problem.users))
        moved = 2 * problem.lipschitz * unit * math.sqrt(problem.dimension) / problem.users
        noised = math.sqrt(moved / problem.distance)
        found = [share * max(sampled, noised) for share in RULES]
    return [each for each in found if each > 0 or options.solver == "gd"]


def _phases(
    problem: Problem,
    options: PhasedERMOptions,
    unit: float,
    sizes: list[int],
    pulls: list[float],
    total: int,
    share: float,
) -> tuple[Phase, ...]:
    """Phases with equally many rounds, the first with what is left over; none where a step would not contract."""
    number, phases, first, beta = len(sizes), [], 0, problem.beta or 0.0
    for k, (users, pull) in enumerate(zip(sizes, pulls, strict=True)):
        rounds = total // number + (total % number if k == 0 else 0)
        bent = beta + 2 * pull
        largest = 2 / bent if bent > 0 else problem.distance / problem.lipschitz / math.sqrt(rounds)
        step = options.step_size or share * largest
        if step * bent > 2 * (1 + 1e-15):
            return ()
        apart = shift(problem, options.solver, users, rounds, step, pull)
        if not 1e-150 < apart * unit < 1e150:
            return ()
        phases.append(Phase(first, users, rounds, step, pull, apart, apart * unit * (1 + 1e-12)))
        first += users
    return tuple(phases)


def _risks(problem: Problem, solver: Solver, tried: Sequence[tuple[Phase, ...]]) -> Vector:
    """Of each of some candidates with equally many phases; infinite where nothing can be predicted."""
    curvature = problem.beliefs.isotropic or 0.0
    slowest = problem.beliefs.least_curvature or curvature

    def model(phases: tuple[Phase, ...]) -> PhaseModel:
        users, rounds, steps, pulls, scales = np.array(
            [(each.users, each.rounds, each.step_size, each.regularisation, each.release_scale) for each in phases]
        ).T
        if solver == "agd":
            shares = np.array([momentum(pull, problem.beta or 0.0) for pull in pulls])
            kept = (1 - shares) ** (rounds / 2)
            return PhaseModel(users, kept**2, kept, kept, pulls, scales)
        left, decay, slow = ((1 - steps * (bend + pulls)) ** rounds for bend in (0.0, curvature, slowest))
        return PhaseModel(users, left, decay, slow, pulls, scales)

    models = [model(each) for each in zip(*tried, strict=True)]
    if problem.beliefs.isotropic is not None:
        return predicted(problem, models)
    bounded = np.all([np.asarray(each.regularisation) > 0 for each in models], axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(bounded, predicted(problem, models), np.inf)


INFO = AlgorithmInfo(
    name=NAME,
    summary="Phases of regularised ERM on fresh users by full-batch steps, one noisy release a phase",
    origin=ours(ZHANG_BYO_2022.at(), note="users, and a solver of fixed length; their text was not at hand"),
    promises=Promises(
        ("central-release",),
        ("replace-one",),
        THEOREM,
        pairs,
        one_server="its iterates have no noise within a phase, and the coordinator would see them: take "
        "accelerated-srgd or tracking-srgd",
    ),
    options=PhasedERMOptions,
    parameters=PhasedERMParameters,
    planner=plan,
    verifier=verify,
    maker=PhasedERM,
    factor=Factor(known=2.0, unknown=4.0),
    no_black_boxes=ITERATES,
    choosing=Choosing(many_passes=True),
)
