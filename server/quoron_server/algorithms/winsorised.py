"""Winsorised ERM: full-batch noisy gradient descent, each gradient a mean of rotated coordinates clamped in a box.

    x = 0
    for K rounds:   all n users are asked                                                           (Levy et al. 2021)
        X_u = ∇F_u(x);   Y_u = H D X_u                                  D: public signs, new in every round
        a_j = a private choice of the bin in which coordinate j's middle lies
        z_j = a_j + (1/n) Σ_u clamp(Y_uj - a_j, ±h) + N(0, σ²)
        g   = the first d coordinates of D H z;   x = Proj(x - η g)
    model: the mean of the last w iterates

A round is μ_r-GDP with μ_r² = d₂ μ_BR² + (2h√d₂/(nσ))², a run √K μ_r. Statement, proof and the choice of h:
docs/privacy/winsorised-erm.md#we1.
"""

import math
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from quoron_client.protocol.questions import Answers
from quoron_privacy.accounts import gdp, sensitivity_recount
from quoron_privacy.accounts.pair import DominatingPair
from quoron_privacy.errors import Infeasible, VerificationError
from quoron_privacy.means.private_range import BIN_WIDTH, PrivateRange, WinsorisedMean, bounded_range_mu, range_epsilon
from quoron_privacy.means.rotation import coordinate_bound, padded
from quoron_privacy.noise.streams import NoiseSource, total_variation
from quoron_privacy.release import Adjacency
from quoron_server.algorithms import search
from quoron_server.algorithms.averaged_sgd import best_phases
from quoron_server.algorithms.centring import public_signs
from quoron_server.algorithms.descent import Descent, Estimate, State
from quoron_server.algorithms.references import BASSILY_SUN_2023, LEVY_2021, repaired
from quoron_server.algorithms.search import Candidate, PlanInputs, Planner, round_grid
from quoron_server.algorithms.spec import (
    AlgorithmSpec,
    Calibrated,
    Factor,
    Guarantees,
    NoBlackBoxes,
    Policy,
    known_worth,
    statistical_floor,
)
from quoron_server.parameters import Parameters
from quoron_server.plan import RunPlan
from quoron_server.problem import Problem
from quoron_server.schedule import RoundRelease, Rounds, gradients

NAME = "winsorised-erm"
THEOREM = "docs/privacy/winsorised-erm.md#we1"
ROUNDS = tuple(round_grid(512))  # that are tried
FAILURE = 1e-3  # chance that choices miss in any round
DEVIATIONS = 3.0  # of a coordinate, about which it lies in the box
MAX_BINS = 1 << 12


@dataclass(frozen=True, slots=True)
class WinsorisedERMParameters(Parameters):
    """Public numbers of one run."""

    adjacency: Adjacency
    cohort_size: int  # n: everybody, every round
    rounds: int  # K
    step_size: float  # η
    suffix: int  # w
    mean: WinsorisedMean  # of a round
    round_mu: float  # a round is this GDP, given the past
    mu: float  # GDP parameter of the run

    def stretches(self, problem: Problem) -> tuple[Rounds, ...]:
        """Return all users in all rounds: choices and a mean."""
        pairs = zip((self.mean.crude, self.mean.noise), self.mean.entries(problem.dimension), strict=True)
        made = tuple(RoundRelease(*pair, self.round_mu) for pair in pairs)
        return (Rounds(self.rounds, self.cohort_size, gradients(problem), made, often=self.rounds),)


class WinsorisedERM(Descent[WinsorisedERMParameters, State]):
    """Algorithm object for a plan with WinsorisedERMParameters; all of a state is released."""

    kind = WinsorisedERMParameters

    def estimate(self, state: State, answers: Answers, noise: NoiseSource) -> Estimate:
        """Return the winsorised mean."""
        t, mean = state.round, self.parameters.mean
        signs = public_signs(self.plan.seed, t, len(state.iterate))
        gradient, clamped = mean.release(
            answers.values, answers.answered, signs, noise.stream("range", t), noise.stream("release", t)
        )
        answered = int(np.sum(answers.answered))
        diagnostics = {"answered": answered, "clamped_fraction": clamped / max(1, answered)}
        return Estimate(gradient, mean.entries(len(gradient)), diagnostics=diagnostics)


@dataclass(frozen=True, slots=True)
class WinsorisedERMOptions:
    """Planning options; None lets the plan choose by predicted excess risk."""

    rounds: int | None = None  # exactly
    step_size: float | None = None
    radius: float | None = None  # h, from public knowledge


Inputs = PlanInputs[WinsorisedERMOptions]


def verify(plan: RunPlan) -> None:
    """Each round's choices and box paid for, and a μ that gives (ε, δ)."""
    p, guarantee = plan.parameters_of(WinsorisedERMParameters), plan.guarantee
    mean, length = p.mean, sensitivity_recount.rotated(plan.problem.dimension)
    search.require_of(
        NAME,
        p,
        (f"1 <= cohort_size <= {plan.problem.users}", 1 <= p.cohort_size <= plan.problem.users),
        ("1 <= suffix <= rounds", 1 <= p.suffix <= p.rounds),
        ("step_size > 0", p.step_size > 0),
        ("a mean of the cohort", mean.users == p.cohort_size),
        ("a mean of the adjacency guaranteed", mean.adjacency == p.adjacency),
    )
    # The box's diagonal: between its ends, for zero-out from its middle.
    ends = 2 if guarantee.adjacency == "replace-one" else 1
    far = ends * math.sqrt(sum(mean.half_width**2 for _ in range(length))) / p.cohort_size
    if not mean.noise.sensitivity >= far:
        raise VerificationError(f"Expected sensitivity >= {far} of a box, got {mean.noise}.")
    search.require_least(NAME, "round_mu", p.round_mu, recounted_mu(p, length, guarantee.adjacency))
    if not p.mu >= math.sqrt(p.rounds) * p.round_mu:
        raise VerificationError(f"Expected mu >= that of {p.rounds} rounds of {p.round_mu}, got {p.mu}.")


def pairs(p: WinsorisedERMParameters, problem: Problem, adjacency: Adjacency) -> tuple[DominatingPair, ...]:
    """Of all rounds."""
    length = sensitivity_recount.rotated(problem.dimension)
    mu = math.sqrt(p.rounds) * recounted_mu(p, length, adjacency)
    return (DominatingPair.gaussian(mu, total_variation(gaussians=p.rounds * length)),)


def recounted_mu(p: WinsorisedERMParameters, length: int, adjacency: Adjacency) -> float:
    """GDP of a round: every coordinate's choice, and the box's diagonal, for zero-out from its middle."""
    ends = 2 if adjacency == "replace-one" else 1
    far = ends * math.sqrt(length) * p.mean.half_width / p.cohort_size
    mean = sensitivity_recount.mu(far, p.mean.noise.scale, length)
    return sensitivity_recount.behind_choices(mean, length, p.mean.crude.epsilon * ends / 2)


def _mean(inputs: Inputs, rounds: int, mu: float) -> WinsorisedMean:
    """Return the mean of one of `rounds` rounds that is μ-GDP; Infeasible where choices take all of it."""
    problem, users, adjacency = inputs.problem, inputs.problem.users, inputs.privacy.adjacency or "replace-one"
    length, failure = padded(problem.dimension), FAILURE / rounds
    deviation = DEVIATIONS * problem.user_deviation / math.sqrt(length)  # a coordinate's, which is about normal
    reach = coordinate_bound(problem.lipschitz, dimension=problem.dimension, rows=users, failure=failure)
    reach = min(problem.lipschitz, reach)
    bins = min(max(2, math.ceil(reach / (BIN_WIDTH * deviation))), MAX_BINS)
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


def _chosen(_: Inputs, found: Candidate[WinsorisedERMParameters]) -> Calibrated:
    return Calibrated(found.of, found.risk, adjacency=found.of.adjacency)


def _candidates(inputs: Inputs) -> Iterator[Candidate[WinsorisedERMParameters]]:
    """Rounds priced by their answers, with exact noise, each at its best step and suffix."""
    problem, privacy = inputs.problem, inputs.privacy
    means: dict[int, WinsorisedMean] = {}
    for rounds in inputs.rounds(ROUNDS) if problem.users >= 2 else ():
        with suppress(Infeasible):
            left = search.left_of_delta(NAME, privacy, gaussians=rounds * padded(problem.dimension))
            means[rounds] = _mean(inputs, rounds, gdp.mu_for(privacy.epsilon, left * (1 - 1e-9)) / math.sqrt(rounds))
    if not means:
        return
    # Where the curvature is known, the model says what is left by the sampling error that all gradients share.
    floor = statistical_floor(problem) if problem.beliefs.isotropic is None else 0.0
    variances = np.array([problem.dimension * mean.noise.scale**2 for mean in means.values()])
    lasting, step_size = problem.user_deviation**2 / problem.users, inputs.options.step_size
    found = best_phases(problem, list(means), variances, step_size=step_size, lasting_variance=lasting)
    for mean, (risk, phase) in zip(means.values(), found, strict=True):
        round_mu = mean.mu(problem.dimension) * (1 + 1e-12)
        made = WinsorisedERMParameters(
            adjacency=mean.adjacency,
            cohort_size=problem.users,
            rounds=phase.rounds,
            step_size=phase.step_size,
            suffix=phase.suffix,
            mean=mean,
            round_mu=round_mu,
            mu=math.sqrt(phase.rounds) * round_mu * (1 + 1e-12),
        )
        if math.isfinite(risk):
            yield Candidate(risk + floor, (problem.users * phase.rounds,), made)


SPEC = AlgorithmSpec(
    name=NAME,
    summary="Full-batch noisy gradient descent on means whose rotated coordinates are clamped in a private box",
    origin=repaired(
        LEVY_2021,
        BASSILY_SUN_2023.at("Algorithm 6"),
        note="the text of Levy et al. was not at hand: the mean is as Bassily & Sun reprint it, "
        "in a box that is wider by half a bin",
    ),
    guarantees=Guarantees(
        THEOREM,
        pairs,
        adjacency=("replace-one", "zero-out"),
        one_server="it chooses quantiles by whole histograms with an exponential mechanism, which is no sum with "
        "noise: take tracking-srgd",
    ),
    options=WinsorisedERMOptions,
    parameters=WinsorisedERMParameters,
    planner=Planner(NAME, _candidates, _chosen, "for a private range of every rotated coordinate", known_worth),
    verifier=verify,
    maker=WinsorisedERM,
    factor=Factor(known=5.0, unknown=20.0),
    no_black_boxes=NoBlackBoxes("it has no clip norm: where its boxes lie follows from what is known of a loss"),
    policy=Policy(many_passes=True),
)
