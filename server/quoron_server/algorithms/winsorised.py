"""Winsorised ERM: full-batch noisy gradient descent, each gradient a mean of rotated coordinates clamped in a box.

    x_0 = 0
    for phase i:   n_i fresh users, all asked in each of K_i rounds;   x = c = x_{i-1}              (Levy et al. 2021)
        X_u = ∇F_u(x);   Y_u = H D X_u                                  D: public signs, new in every round
        a_j = a private choice of the bin in which coordinate j's middle lies
        z_j = a_j + (1/n_i) Σ_u clamp(Y_uj - a_j, ±h) + N(0, σ²)
        g   = the first d coordinates of D H z;   x = Proj(x - η_i (g + λ_i (x - c)))
        x_i = the mean of the phase's last w_i iterates

A round is μ_r-GDP with μ_r² = d₂ μ_BR² + (2h√d₂/(nσ))², a phase √K μ_r; phases share no user, and each may spend
everything. Statement, proof and the choice of h: docs/privacy/winsorised-erm.md#we1.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np

from quoron_client.protocol.questions import Answers, AverageGradient, Question
from quoron_privacy.accounts import gdp, sensitivity_recount
from quoron_privacy.accounts.pair import Pair
from quoron_privacy.errors import Infeasible, VerificationError
from quoron_privacy.means.private_range import BIN_WIDTH, PrivateRange, WinsorisedMean, bounded_range_mu, range_epsilon
from quoron_privacy.means.rotation import coordinate_bound, padded
from quoron_privacy.noise.streams import NoiseSource, total_variation
from quoron_privacy.release import Adjacency
from quoron_server.algorithm import InPhases, Update, Vector
from quoron_server.algorithms import search
from quoron_server.algorithms.averaged_sgd import PhaseModel, excess_risks, step_grid, suffix_shares
from quoron_server.algorithms.centring import public_signs
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
from quoron_server.algorithms.slots import partition
from quoron_server.parameters import Parameters
from quoron_server.plan import RunPlan
from quoron_server.problem import Problem
from quoron_server.schedule import RoundRelease, Rounds, gradients

NAME = "winsorised-erm"
THEOREM = "docs/privacy/winsorised-erm.md#we1"
ROUNDS = tuple(round_grid(512))  # that are tried
PHASES = (1, 2)
PULLS = (0.0, 0.03)  # λ over the curvature, of a second phase
FAILURE = 1e-3  # chance that choices miss in any round
DEVIATIONS = 3.0  # of a coordinate, about which it lies in the box
MOST_BINS = 1 << 12


@dataclass(frozen=True, slots=True)
class Phase:
    """One phase's public numbers."""

    first: int  # its users hold the slots first .. first + users - 1
    users: int  # n_i
    rounds: int  # K_i
    step_size: float  # η_i
    regularisation: float  # λ_i
    suffix: int  # w_i
    mean: WinsorisedMean  # of a round
    round_mu: float  # a round is this GDP, given the past


@dataclass(frozen=True, slots=True)
class WinsorisedERMParameters(Parameters):
    """Public numbers of one run."""

    adjacency: Adjacency
    phases: tuple[Phase, ...]
    mu: float  # GDP parameter of every phase

    def stretches(self, problem: Problem) -> Iterator[Rounds]:
        """Yield all users of a phase, in all of its rounds: choices and a mean."""
        for phase in self.phases:
            pairs = zip((phase.mean.crude, phase.mean.noise), phase.mean.entries(problem.dimension), strict=True)
            made = tuple(RoundRelease(*pair, phase.round_mu) for pair in pairs)
            yield Rounds(phase.rounds, phase.users, gradients(problem), made, often=phase.rounds)


@dataclass(frozen=True, slots=True, eq=False)
class WinsorisedERMState:
    """Everything between two rounds; all of it is released."""

    round: int
    centre: Vector  # c: where the phase began
    iterate: Vector  # x
    running: Vector  # sum of the averaged iterates, divided by their planned number


class WinsorisedERM(InPhases[WinsorisedERMParameters]):
    """Algorithm object for a plan with WinsorisedERMParameters."""

    kind = WinsorisedERMParameters

    def init(self) -> WinsorisedERMState:
        """Start at zero."""
        zero = np.zeros(self.plan.problem.dimension)
        return WinsorisedERMState(0, zero, zero, zero)

    def request(self, state: WinsorisedERMState, noise: NoiseSource) -> Question | None:
        """Average gradients of all users of the phase."""
        if state.round == self._ends[-1]:
            return None
        phase, problem = self.parameters.phases[self.phase_index(state.round)], self.plan.problem
        cohort = partition(seed=self.plan.seed, users=problem.users)[phase.first : phase.first + phase.users]
        task = AverageGradient(state.iterate[None, :], (1.0,), problem.user_smoothness)
        return Question(state.round, cohort, task)

    def update(self, state: WinsorisedERMState, answers: Answers, noise: NoiseSource) -> Update[WinsorisedERMState]:
        """Release the winsorised mean, and step."""
        index, t = self.phase_index(state.round), state.round
        phase = self.parameters.phases[index]
        signs = public_signs(self.plan.seed, t, len(state.iterate))
        gradient, clamped = phase.mean.release(
            answers.values, answers.answered, signs, noise.stream("range", t), noise.stream("release", t)
        )
        pull = phase.regularisation * (state.iterate - state.centre)
        iterate = self.plan.problem.domain.project(state.iterate - phase.step_size * (gradient + pull))
        left = int(self._ends[index]) - t
        running = state.running + iterate / phase.suffix if left <= phase.suffix else state.running
        after = WinsorisedERMState(t + 1, state.centre, iterate, running)
        if left == 1:
            after = WinsorisedERMState(t + 1, running, running, np.zeros_like(running))
        answered = int(np.sum(answers.answered))
        diagnostics: dict[str, Any] = {"answered": answered, "clamped_fraction": clamped / max(1, answered)}
        return Update(after, phase.mean.entries(len(iterate)), {"phase": index}, diagnostics)

    def model(self, state: WinsorisedERMState) -> Vector:
        """Return where the last complete phase ended, or within a phase the iterate."""
        return state.iterate


@dataclass(frozen=True, slots=True)
class WinsorisedERMOptions:
    """Planning options; None lets the plan choose by predicted excess risk."""

    rounds: int | None = None  # all of them, exactly
    phases: int | None = None
    step_size: float | None = None
    regularisation: float | None = None  # λ of phases after the first
    radius: float | None = None  # h, from public knowledge


Inputs = PlanInputs[WinsorisedERMOptions]


def _chosen(inputs: Inputs, found: Candidate[tuple[Phase, ...]]) -> Chosen:
    phases, adjacency = found.of, inputs.privacy.adjacency or "replace-one"
    mu = max(math.sqrt(phase.rounds) * phase.round_mu for phase in phases)
    return Chosen(WinsorisedERMParameters(adjacency, phases, mu * (1 + 1e-12)), found.risk, adjacency=adjacency)


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


def _check(inputs: Inputs) -> None:
    search.require_options(inputs.options, "rounds", "phases", least=1, above=False)
    search.require_options(inputs.options, "step_size", "radius", least=1e-100)
    search.require_options(inputs.options, "regularisation", above=False)


def _mean(inputs: Inputs, users: int, rounds: int, mu: float) -> WinsorisedMean:
    """Return the mean of one of `rounds` rounds that is μ-GDP; Infeasible where choices take all of it."""
    problem, adjacency = inputs.problem, inputs.privacy.adjacency or "replace-one"
    length, failure = padded(problem.dimension), FAILURE / rounds
    deviation = DEVIATIONS * problem.user_deviation / math.sqrt(length)  # a coordinate's, which is about normal
    reach = coordinate_bound(problem.lipschitz, dimension=problem.dimension, rows=users, failure=failure)
    reach = min(problem.lipschitz, reach)
    bins = min(max(2, math.ceil(reach / (BIN_WIDTH * deviation))), MOST_BINS)
    ends = 2 if adjacency == "replace-one" else 1
    # private-mean#m4 says what draws need: e^(-ε cost / 2). What a draw is charged is less for zero-out.
    epsilon = range_epsilon(users=users, bins=bins, choices=length, failure=failure / 2)
    left = mu**2 - length * bounded_range_mu(epsilon * ends / 2) ** 2
    if left <= (0.1 * mu) ** 2:
        raise Infeasible(NAME, f"{users:,} users are too few for private ranges in {rounds:,} rounds", "more users")
    crude = PrivateRange(epsilon, bins, reach)
    return WinsorisedMean.for_mu(
        users=users,
        crude=crude,
        half_width=inputs.options.radius or (DEVIATIONS + BIN_WIDTH) / DEVIATIONS * deviation,
        mu=mu,
        dimension=problem.dimension,
        adjacency=adjacency,
    )


def _candidates(inputs: Inputs) -> Iterator[Candidate[tuple[Phase, ...]]]:
    """Phases priced by their answers, with exact noise, the best step and suffix of each."""
    problem, privacy, options, totals = inputs.problem, inputs.privacy, inputs.options, inputs.rounds(ROUNDS)
    curvature = problem.beliefs.isotropic
    for number in [options.phases] if options.phases else PHASES:
        users = problem.users // number
        for total in totals:
            counts = [total // number + (total % number if k == 0 else 0) for k in range(number)]
            if users < 2 or min(counts) < 1:
                continue
            try:
                left = search.left_of_delta(NAME, privacy, gaussians=max(counts) * padded(problem.dimension))
                mu = gdp.mu_for(privacy.epsilon, left * (1 - 1e-9))  # of a whole phase
                means = [_mean(inputs, users, each, mu / math.sqrt(each)) for each in counts]
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
    models = [
        PhaseModel(
            each.rounds,
            steps,
            each.suffix,
            step_variance=problem.dimension * each.mean.noise.scale**2,
            pull=each.regularisation,
            lasting_variance=problem.user_deviation**2 / each.users,
        )
        for each in phases
    ]
    floor = statistical_floor(problem) if problem.beliefs.isotropic is None else 0.0
    return np.asarray(excess_risks(problem, models)) + floor


INFO = AlgorithmInfo(
    name=NAME,
    summary="Full-batch noisy gradient descent on means whose rotated coordinates are clamped in a private box",
    origin=repaired(
        LEVY_2021,
        BASSILY_SUN_2023.at("Algorithm 6"),
        note="the text of Levy et al. was not at hand: the mean is as Bassily & Sun reprint it, "
        "in a box that is wider by half a bin",
    ),
    promises=Promises(
        THEOREM,
        pairs,
        adjacency=("replace-one", "zero-out"),
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
