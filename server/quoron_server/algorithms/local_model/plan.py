"""Plans of `local-model`: estimator, steps and step size by predicted risk, group sizes by local-model#r3, a re-check.

On a quadratic of one curvature the steps, those of `acsa` without strong convexity and with Ls = β, are linear. So the
error of the model is a sum of responses: to the start point and to the error of every gradient estimate. Where the
curvature is unknown the proved bound ranks plans instead (local-model#r6). Predictions never set noise: a plan proves
that every report is (ε, δ)-private.

Source: docs/privacy/local-model.md#r5.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Literal

import numpy as np

from quoron_privacy import local
from quoron_privacy.accounts import sensitivity_recount
from quoron_privacy.accounts.pair import Pair
from quoron_privacy.arrays import Vector
from quoron_privacy.errors import Infeasible, VerificationError
from quoron_privacy.means.rotation import coordinate_bound, padded
from quoron_privacy.noise.streams import total_variation
from quoron_server.algorithms import centring, search
from quoron_server.algorithms.acsa import response
from quoron_server.algorithms.averaged_sgd import smoothings
from quoron_server.algorithms.info import (
    AlgorithmInfo,
    Chosen,
    Factor,
    NoBlackBoxes,
    Promises,
    statistical_floor,
    trivial_risk,
)
from quoron_server.algorithms.local_model.method import Estimator, LocalModel, LocalModelParameters
from quoron_server.algorithms.local_reports import vector_scale
from quoron_server.algorithms.printed import bassily_sun
from quoron_server.algorithms.references import BASSILY_SUN_2023, repaired
from quoron_server.algorithms.search import Candidate, PlanInputs, Planner, best, least_of, round_grid
from quoron_server.plan import RunPlan
from quoron_server.problem import Problem

# What the users of a step send, with the smoothing and β of its steps.
_Drafted = tuple[LocalModelParameters, float, float]

NAME = "local-model"
THEOREM = "docs/privacy/local-model.md#r5"
ESTIMATORS: tuple[Estimator, ...] = ("tracking", "range")
STEPS_TRIED = tuple(round_grid(256))
FAILURE = 1e-3  # chance that a range estimate misses in any step
MOST_BINS = 1 << 8  # of a range report, one bit each
WARM_SHARES, MOST_WARM_UPS = (0.01, 0.03, 0.1), 3  # of the users, in an interaction that only looks for a centre
STEPS = 2.0 ** np.arange(-8, 2.5, 0.5)  # of β - M, times what the bound for one variance asks for


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


@dataclass(frozen=True, slots=True)
class LocalModelOptions:
    """Planning options; None lets the plan choose by predicted excess risk."""

    rounds: int | None = None  # interactions: one a step, two with estimator "range"
    estimator: Literal["auto", "tracking", "range"] = "auto"
    clip_norm: float | None = None  # C_0, from public knowledge, never tuned on protected data
    smoothing: float | None = None  # λ of the Moreau envelope, for losses whose slope jumps


Inputs = PlanInputs[LocalModelOptions]


def verify(plan: RunPlan) -> None:
    """Slots are disjoint, and what one user sends is (ε, δ)-locally private, whatever centres and radii are."""
    p = plan.parameters_of(LocalModelParameters)
    promise, ranged = plan.guarantee, p.estimator == "range"
    rough = plan.problem.smoothness is None
    slots = p.steps * p.users_a_step + p.warm_ups * p.warm_users
    warm = p.warm_ups == p.warm_users == 0 or (not ranged and min(p.warm_ups, p.warm_users) >= 1)
    binned = 2 <= p.bins <= 2**16 and 0 < p.half_width < math.inf
    # Clients compute σ from what they are sent about a vector report: a plan counts on no more than that.
    computed = vector_scale(p.vector_epsilon, p.vector_delta, plan.problem.dimension)
    search.require(
        NAME,
        ("estimator tracking or range", p.estimator in ESTIMATORS, p.estimator),
        ("positive steps and reports", min(p.steps, p.vectors) >= 1, (p.steps, p.vectors)),
        ("interactions that look for a centre where it is the last mean", warm, (p.warm_ups, p.warm_users)),
        ("range reports exactly when the estimator is range", p.scouts >= 1 if ranged else p.scouts == 0, p.scouts),
        (
            "what a user sends within the guaranteed epsilon",
            _within(p, promise.epsilon),
            (p.vector_epsilon, p.range_epsilon),
        ),
        ("vector_delta within the guaranteed delta", 0 < p.vector_delta <= promise.delta, p.vector_delta),
        ("2 to 65536 bins of a finite width", not ranged or binned, (p.bins, p.half_width)),
        (f"at most {plan.problem.users} users with a slot", slots <= plan.problem.users, slots),
        ("inverse_step > 0", 0 < p.inverse_step < math.inf, p.inverse_step),
        ("a first radius in (1e-90, 1e90)", 1e-90 < p.first_radius < 1e90, p.first_radius),
        ("a finite smoothness", 0 <= p.smoothness < math.inf, p.smoothness),
        ("smoothing exactly of a loss whose slope jumps", rough == (p.smoothing > 0), p.smoothing),
        ("noise_scale as clients compute it", p.noise_scale <= computed * (1 + 1e-6), p.noise_scale),
    )
    spent = _spent(p, plan.problem.dimension, promise.epsilon)
    if not spent <= promise.delta:
        raise VerificationError(f"Expected delta <= {promise.delta} for what a user sends, the plan spends {spent}.")


def _within(p: LocalModelParameters, epsilon: float) -> bool:
    """Each message's own ε, of which a user sends one, is positive and at most `epsilon`."""
    ranged = 0 < p.range_epsilon <= epsilon if p.estimator == "range" else p.range_epsilon == 0
    return ranged and 0 < p.vector_epsilon <= epsilon


def _spent(p: LocalModelParameters, dimension: int, epsilon: float) -> float:
    """Return δ at `epsilon` of everything that one user sends; a range report is purely private."""
    vector = Pair.gaussian(sensitivity_recount.mu(2.0, p.noise_scale, dimension), total_variation(gaussians=dimension))
    report = Pair.response(p.range_epsilon).delta(epsilon) if p.estimator == "range" else 0.0
    return max(vector.delta(epsilon, p.vector_delta), report)


def _check(inputs: Inputs) -> None:
    options = inputs.options
    search.require_choice(options, estimator=("auto", *ESTIMATORS))
    search.require_options(options, "smoothing", "clip_norm", least=1e-80, most=1e80)
    search.require_rough(inputs.problem, options.smoothing)


def _candidates(inputs: Inputs) -> Iterator[Candidate[_Drafted]]:
    """Of the estimator of least risk the fewest interactions among about the best."""
    problem, options = inputs.problem, inputs.options
    wanted: tuple[Estimator, ...] = ESTIMATORS if options.estimator == "auto" else (options.estimator,)
    found = {
        estimator: best(
            candidate
            for steps in _steps(inputs, estimator)
            for warm in _warm_ups(problem, estimator, steps)
            if (sent := _reports(inputs, estimator, steps - warm[0], *warm)) is not None
            for candidate in _stepped(problem, options, sent)
        )
        for estimator in wanted
    }
    if (least := least_of(found)) is not None and (chosen := found[least[0]]) is not None:
        sent, smoothing, inverse_step = chosen.of
        yield replace(chosen, of=(replace(sent, reason=least[1]), smoothing, inverse_step))


def _chosen(inputs: Inputs, found: Candidate[_Drafted]) -> Chosen:
    sent, smoothing, inverse_step = found.of
    smooth = _smoothness(inputs.problem, smoothing)
    return Chosen(replace(sent, inverse_step=inverse_step, smoothness=smooth, smoothing=smoothing), found.risk)


def _warm_ups(problem: Problem, estimator: Estimator, interactions: int) -> Iterator[tuple[int, int]]:
    """Yield numbers of interactions that make no step, and users of each.

    Of a linear loss the gradient is the same everywhere, so a centre that is found at the start stays right.
    """
    yield 0, 0
    if estimator == "tracking" and problem.beta == 0:
        for share, count in product(WARM_SHARES, range(1, min(MOST_WARM_UPS, interactions - 1) + 1)):
            if (users := int(share * problem.users)) >= 1:
                yield count, users


def _steps(inputs: Inputs, estimator: Estimator) -> list[int]:
    tried = inputs.rounds(STEPS_TRIED)
    if estimator == "range" and inputs.options.rounds is not None:
        return [rounds // 2 for rounds in tried if rounds % 2 == 0]
    return tried


def _reports(
    inputs: Inputs, estimator: Estimator, steps: int, warm_ups: int = 0, warm_users: int = 0
) -> LocalModelParameters | None:
    """Return what a step's users send, before the size of the steps is chosen; None where there are too few of them."""
    problem, privacy = inputs.problem, inputs.privacy
    users, d = (problem.users - warm_ups * warm_users) // steps, problem.dimension
    if users < 1:
        return None
    sent = LocalModelParameters(
        estimator=estimator,
        reason="",
        steps=steps,
        scouts=0,
        vectors=users,
        inverse_step=0.0,
        first_radius=inputs.clip_norm,
        noise_scale=vector_scale(privacy.epsilon, privacy.delta, d),
        vector_epsilon=privacy.epsilon,
        vector_delta=privacy.delta,
        range_epsilon=0.0,
        bins=0,
        half_width=0.0,
        spread=problem.user_deviation,
        sampling_variance=problem.user_deviation**2 / users,
        smoothness=0.0,
        smoothing=0.0,
        warm_ups=warm_ups,
        warm_users=warm_users,
    )
    if estimator != "range":
        return sent
    if (layout := _layout(problem, sent.first_radius, FAILURE / steps)) is None:
        return None
    bins, half_width, radius = layout
    scouts = local.crude_mean_users(dimension=d, bins=bins, failure=FAILURE / steps, epsilon=privacy.epsilon)
    if (left := users - scouts) <= 0:
        return None
    sent = replace(sent, scouts=scouts, vectors=left, sampling_variance=problem.user_deviation**2 / left)
    return replace(sent, first_radius=radius, range_epsilon=privacy.epsilon, bins=bins, half_width=half_width)


def _layout(problem: Problem, bound: float, failure: float) -> tuple[int, float, float] | None:
    """(bins, half width, radius around the crude mean); None where users spread over the whole range."""
    d, n = problem.dimension, problem.users
    reach = centring.margin(d) * problem.user_deviation
    deviation, largest = (coordinate_bound(norm, dimension=d, rows=n, failure=failure) for norm in (reach, bound))
    half_width = min(bound, largest)
    bins = min(math.floor(half_width / deviation), MOST_BINS)
    if bins < 2:
        return None
    width = 2 * half_width / bins
    return bins, half_width, local.centred_radius(reach, dimension=d, users=n, failure=failure, width=width)


def _stepped(problem: Problem, options: LocalModelOptions, sent: LocalModelParameters) -> Iterator[Candidate[_Drafted]]:
    """Yield all step sizes and smoothings for what a step's users send."""
    steps, sampling = sent.steps, sent.sampling_variance
    noise = problem.dimension * sent.noise_scale**2 / sent.vectors
    first, margin = sent.first_radius, centring.margin(problem.dimension)
    for _ in range(sent.warm_ups):
        found = (problem.user_deviation**2 + problem.dimension * (sent.noise_scale * first) ** 2) / sent.warm_users
        first = centring.next_radius(problem.user_deviation, found, 0.0, margin, sent.first_radius)
    loudest = math.sqrt(sampling + noise * first**2)
    root = loudest * math.sqrt(steps * (steps + 1) * (steps + 2) / 12) / problem.radius
    for parameter in smoothings(problem, options.smoothing, problem.radius, none=False):
        smoothness = _smoothness(problem, parameter)
        for factor in STEPS if not sent.warm_ups else STEPS[(STEPS >= 0.25) & (STEPS <= 2)]:
            beta = smoothness * (1 + 1e-3) + factor * root
            variances = np.full(steps, sampling + noise * first**2)
            if sent.estimator == "tracking":
                path, facts = _path(problem, steps, beta), (problem.radius, smoothness, beta, sampling, noise)
                centring.loops.agd_variances(path, *facts, problem.user_deviation, margin, first, variances)
            risk = accelerated_risk(problem, steps, beta, smoothness, variances)
            risk += 0.5 * parameter * problem.lipschitz**2
            drafted = sent, parameter, float(beta)
            yield Candidate(risk + statistical_floor(problem), (steps + sent.warm_ups,), drafted)


def _smoothness(problem: Problem, parameter: float) -> float:
    return 1 / parameter + problem.ridge if parameter else problem.beta or 0.0


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


def _missing(inputs: Inputs) -> Infeasible:
    problem, options = inputs.problem, inputs.options
    if options.rounds is not None and options.estimator == "range" and options.rounds % 2:
        return Infeasible(NAME, f"{options.rounds} rounds are no pairs of range and vector", "an even rounds")
    if _layout(problem, inputs.clip_norm, FAILURE) is None:
        return Infeasible(NAME, "users are spread over the whole range, which bins cannot divide", "another estimator")
    condition = f"{problem.users:,} users are too few for range reports of {padded(problem.dimension)} coordinates"
    return Infeasible.too_few(NAME, condition, problem.users + 1)


INFO = AlgorithmInfo(
    name=NAME,
    summary="One report a user, private before it leaves the client: protects against the coordinator too",
    origin=repaired(
        BASSILY_SUN_2023.at("Algorithms 2, 3 and 5"), note="steps start from another point and are projected"
    ),
    promises=Promises(THEOREM, trust_models=("local",), one_server="it needs neither server: clients add the noise"),
    options=LocalModelOptions,
    parameters=LocalModelParameters,
    planner=Planner(NAME, _check, _candidates, _chosen, _missing, _worth),
    verifier=verify,
    maker=LocalModel,
    factor=Factor(known=None, unknown=2.0),
    printed=bassily_sun.LOCAL,
    no_black_boxes=NoBlackBoxes("its clients add noise of their own, which only clients of ours are known to do"),
)
