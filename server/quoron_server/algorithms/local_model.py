"""Accelerated SGD in the local model: clients send private reports only, and the coordinator is not trusted.

    y_t = x_t/γ_t + (1 - 1/γ_t) a_t                       γ_t = (t + 2)/2,  η_t = (t + 1)/(2β)
    ĝ_t = mean of the reports c_t + clip_{C_t}(∇F_u(y_t) - c_t) + N(0, (C_t σ)² I), noise by each client
    x_{t+1} = Proj(x_t - η_t ĝ_t);   a_{t+1} = x_{t+1}/γ_t + (1 - 1/γ_t) a_t;   c_{t+1} = ĝ_t, 0 at first;   model a_T

Some smaller interactions may come before: they find the centre at x_0, and make no step. Every user answers one
question of the run, so the report is that user's whole part in it. All randomness of the server is public: it comes
from the plan's seed, and never from `noise`.

Plans choose steps and step size by predicted risk. On a quadratic of one curvature the steps, those of `acsa` without
strong convexity and with Ls = β, are linear. So the error of the model is a sum of responses: to the start point and to
the error of every gradient estimate. Where the curvature is unknown the proved bound ranks plans instead
(local-model#r6). Predictions never set noise: a plan proves that every report is (ε, δ)-private.

Source: Bassily & Sun (2023), Algorithm 5, with the step from x_t and the projection that the printed line leaves out,
and the last mean as the centre in place of a crude mean. As printed: `printed.bassily_sun`. Statement and proof:
docs/privacy/local-model.md.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from quoron_client.protocol.questions import Answers, AverageGradient, Question, VectorReport
from quoron_client.protocol.smoothing import moreau
from quoron_privacy import local
from quoron_privacy.accounts import sensitivity_recount
from quoron_privacy.accounts.pair import DominatingPair
from quoron_privacy.errors import VerificationError
from quoron_privacy.noise.streams import NoiseSource, total_variation
from quoron_server.algorithm import OfPlan, Update, Vector
from quoron_server.algorithms import centring, search
from quoron_server.algorithms.acsa import response
from quoron_server.algorithms.averaged_sgd import smoothings
from quoron_server.algorithms.printed import bassily_sun
from quoron_server.algorithms.printed.bassily_sun import VectorReports, vector_scale
from quoron_server.algorithms.references import BASSILY_SUN_2023, repaired
from quoron_server.algorithms.search import Candidate, PlanInputs, Planner, round_grid
from quoron_server.algorithms.slots import partition
from quoron_server.algorithms.spec import (
    AlgorithmSpec,
    Calibrated,
    Factor,
    Guarantees,
    NoBlackBoxes,
    statistical_floor,
    trivial_risk,
)
from quoron_server.parameters import Assumption, Kind, Parameters
from quoron_server.plan import RunPlan
from quoron_server.problem import Problem
from quoron_server.schedule import CountLeakage, RoundRelease, Rounds

NAME = "local-model"
THEOREM = "docs/privacy/local-model.md#r5"
STEPS_TRIED = tuple(round_grid(256))
WARM_SHARES, MAX_WARM_UPS = (0.01, 0.03, 0.1), 3  # of the users, in an interaction that only looks for a centre
STEPS = 2.0 ** np.arange(-8, 2.5, 0.5)  # of β - M, times what the bound for one variance asks for


@dataclass(frozen=True, slots=True)
class LocalModelParameters(Parameters):
    """Public numbers of one run."""

    rests_on = Assumption(Kind.ONE_REPORT), Assumption(Kind.CARELESS_PARTICIPATION)
    steps: int  # T
    users_a_step: int  # n_0
    inverse_step: float  # β
    first_radius: float  # C_0
    noise_scale: float  # σ: a report's noise per coordinate for a radius of 1, as clients compute it
    vector_epsilon: float  # what a report is private for
    vector_delta: float
    spread: float  # s, of users' averages around their mean
    smoothness: float  # M
    smoothing: float  # λ; 0 without
    warm_ups: int = 0  # interactions that only look for a centre, from where the run starts
    warm_users: int = 0  # of each of them

    @property
    def rounds(self) -> int:
        """Adaptive interactions of the run."""
        return self.warm_ups + self.steps

    @property
    def reports(self) -> VectorReports:
        """What clients add to them."""
        return VectorReports(self.vector_epsilon, self.vector_delta, self.noise_scale)

    def stretches(self, problem: Problem) -> tuple[Rounds, ...]:
        """Return the reports of every interaction, each of them private; the adversary sees which users answer."""
        zero, smoothing = np.zeros(problem.dimension), moreau(self.smoothing)
        gradient = AverageGradient(zero[None, :], (1.0,), problem.user_smoothness, smoothing=smoothing)
        report = VectorReport(gradient, self.vector_epsilon, self.vector_delta, self.first_radius, zero)
        made = RoundRelease(self.reports, self.reports.entry(), scaled=True)
        before = Rounds(self.warm_ups, self.warm_users, report, (made,), leaks=CountLeakage(math.inf))
        return before, replace(before, count=self.steps, cohort=self.users_a_step)

    def step(self, round_: int) -> int:
        """t of an interaction; 0 of those before."""
        return max(0, round_ - self.warm_ups)

    def largest(self, radius: float, dimension: int, users: int) -> float:
        """Return how far from the centre honest reports are, but with chance 10⁻⁶ in the run."""
        noise = radius * self.noise_scale
        return radius + noise * (math.sqrt(dimension) + math.sqrt(2 * math.log(1e6 * users)))


@dataclass(frozen=True, slots=True, eq=False)
class LocalModelState:
    """Everything between two interactions; all of it is public."""

    round: int  # interactions so far
    point: Vector  # x_t
    aggregate: Vector  # a_t
    centre: Vector  # c_t
    radius: float  # C_t


class LocalModel(OfPlan[LocalModelParameters]):
    """Algorithm object for a plan with LocalModelParameters."""

    kind = LocalModelParameters

    def init(self) -> LocalModelState:
        """Start at zero, and expect gradients around zero."""
        zero = np.zeros(self.plan.problem.dimension)
        return LocalModelState(0, zero, zero, zero, self.parameters.first_radius)

    def request(self, state: LocalModelState, noise: NoiseSource) -> Question | None:
        """Return a report of the gradient at y_t from this interaction's users."""
        p = self.parameters
        if state.round == p.rounds:
            return None
        gradient = AverageGradient(
            _middle(state, p)[None, :], (1.0,), self.plan.problem.user_smoothness, smoothing=moreau(p.smoothing)
        )
        cohort = partition(seed=self.plan.seed, users=self.plan.problem.users)[self.plan.schedule.slots(state.round)]
        task = VectorReport(gradient, p.vector_epsilon, p.vector_delta, state.radius, state.centre)
        return Question(state.round, cohort, task)

    def update(self, state: LocalModelState, answers: Answers, noise: NoiseSource) -> Update[LocalModelState]:
        """Find the centre, and step unless the interaction only looks for it."""
        p, d, users = self.parameters, len(state.point), self.plan.problem.users
        scale, asked = state.radius * p.noise_scale, self.plan.schedule.cohorts[state.round]
        largest = p.largest(state.radius, d, users)
        gradient = local.mean_of_reports(answers.values, answers.answered, state.centre, largest)
        after = replace(state, round=state.round + 1)
        if state.round >= p.warm_ups:
            step = p.step(state.round)
            share, length = 2 / (step + 2), (step + 1) / (2 * p.inverse_step)
            point = self.plan.problem.domain.project(state.point - length * gradient)
            after = replace(after, point=point, aggregate=share * point + (1 - share) * state.aggregate)
        drift = p.smoothness * float(np.linalg.norm(_middle(after, p) - _middle(state, p)))
        variance = p.spread**2 / asked + d * scale**2 / asked
        radius = centring.next_radius(p.spread, variance, drift, centring.margin(d), p.first_radius)
        diagnostics = {"answered": int(np.sum(answers.answered))}
        entry, public = p.reports.entry().scaled(state.radius), {"radius": state.radius, **diagnostics}
        return Update(replace(after, centre=gradient, radius=radius), (entry,), public, diagnostics)

    def model(self, state: LocalModelState) -> Vector:
        """a_t: a function of reports."""
        return state.aggregate


def _middle(state: LocalModelState, p: LocalModelParameters) -> Vector:
    """y_t; the step of an interaction that is not there any more is that of the last one."""
    share = 2 / (p.step(min(state.round, p.rounds - 1)) + 2)
    return share * state.point + (1 - share) * state.aggregate


@dataclass(frozen=True, slots=True)
class LocalModelOptions:
    """Planning options; None lets the plan choose by predicted excess risk."""

    rounds: int | None = None  # interactions
    clip_norm: float | None = None  # C_0, from public knowledge, never tuned on protected data
    smoothing: float | None = None  # λ of the Moreau envelope, for losses whose slope jumps


Inputs = PlanInputs[LocalModelOptions]


def verify(plan: RunPlan) -> None:
    """Slots are disjoint, and what one user sends is (ε, δ)-locally private, whatever centres and radii are."""
    p, guarantee, dimension = plan.parameters_of(LocalModelParameters), plan.guarantee, plan.problem.dimension
    rough = plan.problem.smoothness is None
    slots = p.steps * p.users_a_step + p.warm_ups * p.warm_users
    warm = p.warm_ups == p.warm_users == 0 or min(p.warm_ups, p.warm_users) >= 1
    # Clients compute σ from what they are sent about a report: a plan counts on no more than that.
    computed = vector_scale(p.vector_epsilon, p.vector_delta, dimension)
    search.require(
        NAME,
        ("positive steps and reports", min(p.steps, p.users_a_step) >= 1, (p.steps, p.users_a_step)),
        ("users in interactions that look for a centre", warm, (p.warm_ups, p.warm_users)),
        ("vector_epsilon within the guaranteed epsilon", 0 < p.vector_epsilon <= guarantee.epsilon, p.vector_epsilon),
        ("vector_delta within the guaranteed delta", 0 < p.vector_delta <= guarantee.delta, p.vector_delta),
        (f"at most {plan.problem.users} users with a slot", slots <= plan.problem.users, slots),
        ("inverse_step > 0", 0 < p.inverse_step < math.inf, p.inverse_step),
        ("a first radius in (1e-90, 1e90)", 1e-90 < p.first_radius < 1e90, p.first_radius),
        ("a finite smoothness", 0 <= p.smoothness < math.inf, p.smoothness),
        ("smoothing exactly of a loss whose slope jumps", rough == (p.smoothing > 0), p.smoothing),
        ("noise_scale as clients compute it", p.noise_scale <= computed * (1 + 1e-6), p.noise_scale),
    )
    report = DominatingPair.gaussian(
        sensitivity_recount.mu(2.0, p.noise_scale, dimension), total_variation(gaussians=dimension)
    )
    if not (spent := report.delta(guarantee.epsilon, p.vector_delta)) <= guarantee.delta:
        raise VerificationError(f"Expected delta <= {guarantee.delta} for what a user sends, the plan spends {spent}.")


def accelerated_risk(problem: Problem, steps: int, beta: float, smoothness: float, variances: Vector) -> float:
    """Predicted excess risk, exact for a quadratic of one curvature, else local-model#r6; variances of ĝ_t (T,)."""
    if (curvature := problem.beliefs.isotropic) is not None:
        bias, _, _ = response(steps, beta, problem.beliefs.least_curvature or curvature)
        _, weights, _ = response(steps, beta, curvature)
        slow = (problem.beliefs.least_curvature or curvature) * (bias * problem.radius) ** 2
        return float(slow + curvature * np.sum(weights**2 * variances)) / 2
    t = np.arange(1, steps + 1)
    local_noise = float(np.sum(t**2 * variances)) / (4 * (beta - smoothness))
    return (beta * problem.radius**2 + local_noise) / (steps * (steps + 1) / 2)


def _candidates(inputs: Inputs) -> Iterator[Candidate[LocalModelParameters]]:
    """All numbers of interactions, step sizes and smoothings."""
    problem, privacy = inputs.problem, inputs.privacy
    scale = vector_scale(privacy.epsilon, privacy.delta, problem.dimension)
    for interactions in inputs.rounds(STEPS_TRIED):
        for warm_ups, warm_users in _warm_ups(problem, interactions):
            steps = interactions - warm_ups
            if (users := (problem.users - warm_ups * warm_users) // steps) < 1:
                continue
            sent = LocalModelParameters(
                steps=steps,
                users_a_step=users,
                inverse_step=0.0,
                first_radius=inputs.clip_norm,
                noise_scale=scale,
                vector_epsilon=privacy.epsilon,
                vector_delta=privacy.delta,
                spread=problem.user_deviation,
                smoothness=0.0,
                smoothing=0.0,
                warm_ups=warm_ups,
                warm_users=warm_users,
            )
            yield from _stepped(problem, inputs.options, sent)


def _warm_ups(problem: Problem, interactions: int) -> Iterator[tuple[int, int]]:
    """Yield numbers of interactions that make no step, and users of each.

    Of a linear loss the gradient is the same everywhere, so a centre that is found at the start stays right.
    """
    yield 0, 0
    if problem.beta == 0:
        for share, count in product(WARM_SHARES, range(1, min(MAX_WARM_UPS, interactions - 1) + 1)):
            if (users := int(share * problem.users)) >= 1:
                yield count, users


def _stepped(
    problem: Problem, options: LocalModelOptions, sent: LocalModelParameters
) -> Iterator[Candidate[LocalModelParameters]]:
    """Yield all step sizes and smoothings for what a step's users send."""
    steps, sampling = sent.steps, problem.user_deviation**2 / sent.users_a_step
    noise = problem.dimension * sent.noise_scale**2 / sent.users_a_step
    first, margin = sent.first_radius, centring.margin(problem.dimension)
    for _ in range(sent.warm_ups):
        found = (problem.user_deviation**2 + problem.dimension * (sent.noise_scale * first) ** 2) / sent.warm_users
        first = centring.next_radius(problem.user_deviation, found, 0.0, margin, sent.first_radius)
    loudest = math.sqrt(sampling + noise * first**2)
    root = loudest * math.sqrt(steps * (steps + 1) * (steps + 2) / 12) / problem.radius
    for parameter in smoothings(problem, options.smoothing, problem.radius, none=False):
        smoothness = 1 / parameter + problem.ridge if parameter else problem.beta or 0.0
        for factor in STEPS if not sent.warm_ups else STEPS[(STEPS >= 0.25) & (STEPS <= 2)]:
            beta, variances = float(smoothness * (1 + 1e-3) + factor * root), np.empty(steps)
            path, facts = _path(problem, steps, beta), (problem.radius, smoothness, beta, sampling, noise)
            centring.loops.agd_variances(path, *facts, problem.user_deviation, margin, first, variances)
            risk = accelerated_risk(problem, steps, beta, smoothness, variances)
            risk += 0.5 * parameter * problem.lipschitz**2
            made = replace(sent, inverse_step=beta, smoothness=smoothness, smoothing=parameter)
            yield Candidate(risk + statistical_floor(problem), (sent.rounds,), made)


def _path(problem: Problem, steps: int, beta: float) -> Vector:
    """Return where y_t is predicted to be, 1 at the start, shape (T,)."""
    if problem.beliefs.isotropic is not None:
        return response(steps, beta, problem.beliefs.typical_curvature)[2]
    return 1 / np.arange(1, steps + 1)  # the bound 2βR²/T² gives no distance: as if it were one


def _worth(problem: Problem) -> float:
    """Excess risk of the start point, which a plan has to beat: for a solution at distance 3/R where features are."""
    start = trivial_risk(problem)
    if problem.feature_norm is None or not problem.even_curvature:  # none, as for a linear loss
        return start
    far = min(3 / problem.feature_norm, problem.radius)
    return min(start, problem.even_curvature * (problem.feature_norm * far) ** 2 / (2 * problem.features))


SPEC = AlgorithmSpec(
    name=NAME,
    summary="One report a user, private before it leaves the client: protects against the coordinator too",
    origin=repaired(
        BASSILY_SUN_2023.at("Algorithm 5"),
        note="steps start from another point and are projected; the last mean is the centre of the next reports",
    ),
    guarantees=Guarantees(
        THEOREM, trust_models=("local",), one_server="it needs neither server: clients add the noise"
    ),
    options=LocalModelOptions,
    parameters=LocalModelParameters,
    planner=Planner(
        NAME,
        _candidates,
        lambda _, found: Calibrated(found.of, found.risk),
        "for a report in every round",
        _worth,
    ),
    verifier=verify,
    maker=LocalModel,
    factor=Factor(known=None, unknown=2.0),
    printed=bassily_sun.LOCAL,
    no_black_boxes=NoBlackBoxes("its clients add noise of their own, which only clients of ours are known to do"),
)
