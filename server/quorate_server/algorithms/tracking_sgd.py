"""One-pass DP-SGD whose clip follows the gradient: users are clipped around what the last release predicts.

    c_t = ĝ_{t-1} + κ (x_t - x_{t-1}),     c_0 = 0
    C_t = margin · √((a ‖x_t - x_{t-1}‖ + √d σ_{t-1})² + s²),  at most C_0
    ĝ_t = c_t + (1/B) Σ_u clip_{C_t}(∇F_u(x_t) - c_t) + N(0, σ_t² I),     σ_t = (2 C_t / B) / μ
    x_{t+1} = Proj(x_t - η ĝ_t);   model = average of the last `suffix` iterates

Centre and radius are functions of earlier releases and public constants (curvature κ, its error a, spread s of users'
averages), so they cost nothing: given the past, every round is μ-GDP, each user is in one round, and the transcript is
exactly μ-GDP. Once the gradient is tracked the radius falls to the spread of user averages, 1/√m of an item's.

Ours; after the centred means of Bassily & Sun (2023). Statement and proof: docs/privacy/tracking-sgd.md.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from quorate_client.questions import Answers, AverageGradient, Question
from quorate_protos.errors import VerificationError
from quorate_server.accounting.gdp import delta_for
from quorate_server.algorithm import Release, Update, Vector
from quorate_server.algorithms import _noisy_plans as noisy
from quorate_server.algorithms._info import AlgorithmInfo
from quorate_server.algorithms._search import round_grid, step_grid, suffix_grid
from quorate_server.mechanisms.clipping import clipped_mean, mean_sensitivity
from quorate_server.mechanisms.gaussian import GaussianNoise
from quorate_server.noise import NoiseSource
from quorate_server.plan import Constants, Cost, Guarantee, Plan, Privacy
from quorate_server.prediction import PhaseModel, excess_risk
from quorate_server.prediction_one_epoch import response
from quorate_server.problem import Problem
from quorate_server.slots import partition

NAME = "tracking-sgd"
THEOREM = "docs/privacy/tracking-sgd.md"
MARGIN = 1.3  # of a user's distance from the centre, so that few ordinary users are clipped


@dataclass(frozen=True, slots=True)
class TrackingOptions:
    """Planning options; None lets the plan choose by predicted excess risk."""

    rounds: int | None = None
    step_size: float | None = None
    clip_norm: float | None = None  # C_0, from public knowledge


@dataclass(frozen=True, slots=True)
class TrackingParameters:
    """Public numbers of one run."""

    cohort_size: int  # B
    rounds: int  # T
    step_size: float  # η
    suffix: int
    first_radius: float  # C_0, also the largest
    spread: float  # s: standard deviation of users' average gradients
    curvature: float  # κ: how the gradient is taken to change along a step; 0 where unknown
    drift: float  # a: how wrong κ may be
    noise_per_radius: float  # σ_t / C_t
    mu: float  # GDP parameter of every round


@dataclass(frozen=True, slots=True, eq=False)
class TrackingState:
    """Everything between two rounds; all of it is public."""

    round: int
    x: Vector
    previous: Vector  # x_{t-1}
    estimate: Vector  # ĝ_{t-1}
    radius: float  # C_{t-1}
    running: Vector


class TrackingSGD:
    """Algorithm object for a plan with TrackingParameters."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.parameters: TrackingParameters = plan.parameters

    def init(self) -> TrackingState:
        """Start at zero, with centre zero."""
        zero = np.zeros(self.plan.problem.dimension)
        return TrackingState(0, zero, zero, zero, self.parameters.first_radius, zero)

    def request(self, state: TrackingState, noise: NoiseSource) -> Question | None:
        """Average gradients of the next cohort."""
        del noise
        p = self.parameters
        if state.round == p.rounds:
            return None
        first = state.round * p.cohort_size
        cohort = partition(seed=self.plan.seed, users=self.plan.problem.users)[first : first + p.cohort_size]
        return Question(
            state.round, cohort, AverageGradient(state.x[None, :], (1.0,), self.plan.problem.user_smoothness)
        )

    def update(self, state: TrackingState, answers: Answers, noise: NoiseSource) -> Update[TrackingState]:
        """Clip around the centre, release, step."""
        p = self.parameters
        moved = state.x - state.previous
        radius = (
            p.first_radius if state.round == 0 else _radius(p, float(np.linalg.norm(moved)), state.radius, len(moved))
        )
        centre = state.estimate + p.curvature * moved
        mean, clipped = clipped_mean(answers.values - centre, answers.answered, radius, p.cohort_size)
        mechanism = GaussianNoise(mean_sensitivity(radius, p.cohort_size), radius * p.noise_per_radius)
        estimate = centre + mechanism.release(mean, noise.stream("release", state.round))
        x = self.plan.problem.domain.project(state.x - p.step_size * estimate)
        counted = p.rounds - state.round <= p.suffix
        running = state.running + x / p.suffix if counted else state.running
        after = TrackingState(state.round + 1, x, state.x, estimate, radius, running)
        answered = int(np.sum(answers.answered))
        told: dict[str, Any] = {"answered": answered, "clipped_fraction": clipped / max(1, answered)}
        entry = Release("gaussian", {"scale": mechanism.scale, "sensitivity": mechanism.sensitivity})
        return Update(after, (entry,), {"radius": radius}, told)

    def model(self, state: TrackingState) -> Vector:
        """The suffix average once complete, before that the current iterate."""
        return state.running if state.round == self.parameters.rounds else state.x

    def iterate(self, state: TrackingState) -> Vector:
        """As `model`: every iterate is already private."""
        return self.model(state)


def _radius(p: TrackingParameters, moved: float, before: float, dimension: int) -> float:
    """C_t from public numbers: the step just made, the noise of the last estimate, the spread between users."""
    uncertain = p.drift * moved + math.sqrt(dimension) * p.noise_per_radius * before
    return min(p.first_radius, MARGIN * math.hypot(uncertain, p.spread))


def plan(problem: Problem, privacy: Privacy, options: TrackingOptions, constants: Constants, seed: int) -> Plan:
    """The plan with the least predicted excess risk, or the one of fewest rounds within 5 % of it."""
    del constants
    rounds = [options.rounds] if options.rounds else round_grid(max(1, min(problem.users // 2, 1024)))
    noisy.require_cohorts(NAME, problem, min(rounds))
    known = problem.typical_curvature if problem.curvature == "isotropic" else None
    steepest = problem.beta if problem.beta is not None else problem.lipschitz / problem.radius
    least = problem.least_curvature or known or 0.0
    base = TrackingParameters(
        cohort_size=1,
        rounds=1,
        step_size=1.0,
        suffix=1,
        first_radius=options.clip_norm or noisy.default_clip(problem),
        spread=problem.user_deviation,
        curvature=known or 0.0,
        drift=steepest if known is None else max(known - least, known / 4),
        noise_per_radius=0.0,
        mu=0.0,
    )
    found = []
    for total in rounds:
        cohort = problem.users // total
        unit = noisy.noise_scale(mean_sensitivity(1.0, cohort), problem, privacy)
        mu = GaussianNoise(mean_sensitivity(1.0, cohort), unit).effective_mu(problem.dimension)
        for step in [options.step_size] if options.step_size else step_grid(problem, total):
            for suffix in suffix_grid(problem, total):
                tried = replace(
                    base, cohort_size=cohort, rounds=total, step_size=step, suffix=suffix, noise_per_radius=unit, mu=mu
                )
                found.append((_predicted(problem, tried), tried))
    best = min(risk for risk, _ in found)
    near = [(p.rounds, risk, p) for risk, p in found if risk <= 1.05 * best]
    _, risk, chosen = min(near, key=lambda entry: entry[:2])
    return Plan(
        algorithm=NAME,
        problem=problem,
        guarantee=Guarantee(privacy.epsilon, privacy.delta, "replace-one", "broadcast", (), THEOREM),
        cost=Cost.of(problem, rounds=chosen.rounds, messages=chosen.rounds * chosen.cohort_size),
        parameters=chosen,
        predicted_excess_risk=risk,
        seed=seed,
    )


def _predicted(problem: Problem, p: TrackingParameters) -> float:
    """Predicted excess risk: the radius along the predicted path, its noise, and how far each round's error reaches."""
    known = problem.typical_curvature if problem.curvature == "isotropic" else None
    dimension, sampling = problem.dimension, problem.user_deviation**2 / p.cohort_size
    if known is None:
        noise = dimension * (p.noise_per_radius * p.first_radius) ** 2
        return excess_risk(problem, [PhaseModel(p.rounds, p.step_size, p.suffix, sampling + noise)])
    moved = response("ftrl", p.rounds, 1 / p.step_size, known, p.suffix)
    slow = response("ftrl", p.rounds, 1 / p.step_size, problem.least_curvature or known, p.suffix)
    steps = problem.radius * np.abs(np.diff(slow.path))
    radius, radii = p.first_radius, [p.first_radius]
    for step in steps:
        radius = _radius(p, float(step), radius, dimension)
        radii.append(radius)
    lasting = np.cumsum(moved.sums[::-1])[::-1]
    variance = sampling + dimension * (p.noise_per_radius * np.array(radii)) ** 2
    slowest = problem.least_curvature or known
    error = known * float(np.sum(lasting**2 * variance))
    return (slowest * (slow.bias * problem.radius) ** 2 + error) / 2


def verify(plan: Plan) -> None:
    """Disjoint cohorts; noise per radius that makes every round μ-GDP whatever the radius; (ε, δ) from μ."""
    p: TrackingParameters = plan.parameters
    if p.rounds * p.cohort_size > plan.problem.users:
        raise VerificationError(f"Expected {p.rounds} disjoint cohorts of {p.cohort_size} among {plan.problem.users}.")
    truth = GaussianNoise(mean_sensitivity(1.0, p.cohort_size), p.noise_per_radius).effective_mu(plan.problem.dimension)
    if not p.mu >= truth * (1 - 1e-12):
        raise VerificationError(f"Expected mu >= {truth}, got {p.mu}: too little noise for the claim.")
    spent = delta_for(p.mu, plan.guarantee.epsilon) + noisy.numeric_slack(plan.problem, plan.guarantee.epsilon, 1)
    if not spent <= plan.guarantee.delta:
        raise VerificationError(f"Expected delta <= {plan.guarantee.delta}, the plan spends {spent}.")


def make(plan: Plan) -> TrackingSGD:
    """The algorithm, once the plan passes `verify`."""
    verify(plan)
    return TrackingSGD(plan)


INFO = AlgorithmInfo(
    name=NAME,
    summary="One-pass DP-SGD clipped around a private prediction of the gradient, with a shrinking public radius",
    paper="ours, after Bassily & Sun (2023)",
    algorithm_numbers="-",
    exposure="broadcast",
    adjacency=("replace-one",),
    constants=("calibrated",),
    theorem=THEOREM,
    options=TrackingOptions,
    plan=plan,
    verify=verify,
    make=make,
)
