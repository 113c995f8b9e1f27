"""Plans of `tracking-srgd`: sizes of pilot, warm-up and main cohorts by predicted risk, their noise, and the re-check.

On a quadratic whose curvature is about h in every direction, and a metric of about `metric`, every step multiplies the
distance to the optimum by ρ = 1 - (h + λ)/(metric + λ). The error of the model is then a sum of exact linear responses:
to the start point, to sampling noise, and to privacy noise, which in a main round is scaled by that round's radius. The
radius follows the schedule of the run, with predicted steps for the real ones. An isotropic curvature is an assumption:
the prediction ranks plans, is no bound and sets no noise.

Every user is in exactly one cohort, so every cohort may spend all of μ: docs/privacy/tracking-srgd.md#t1.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from quoron_privacy.accounts import sensitivity_recount
from quoron_privacy.accounts.gdp import mu_for
from quoron_privacy.accounts.pair import Pair
from quoron_privacy.arrays import Vector
from quoron_privacy.errors import Infeasible, Needs, VerificationError
from quoron_privacy.kernels.on_first_use import OnFirstUse
from quoron_privacy.means.free_presence import WEIGHTS, LogLength, MomentMean, NormCountMean, PrefixNormCounts
from quoron_privacy.noise.streams import total_variation
from quoron_privacy.prefix import noise as played
from quoron_privacy.prefix.noise import DEFAULT, sqrt_coefficients
from quoron_privacy.release import Adjacency, packed
from quoron_server.algorithms import search
from quoron_server.algorithms.centring import margin
from quoron_server.algorithms.info import AlgorithmInfo, Chosen, Factor, NoBlackBoxes, Promises, trivial_risk
from quoron_server.algorithms.references import BASSILY_SUN_2023, CHOQUETTE_CHOO_2025, ours
from quoron_server.algorithms.search import Candidate, PlanInputs, Planner
from quoron_server.algorithms.tracking.method import (
    LAG_SHARE,
    LEAST_SHARE,
    MAIN_FACTOR,
    PASSES,
    PILOT,
    TrackingParameters,
    TrackingSRGD,
    drawn,
    mechanisms,
)
from quoron_server.algorithms.whitening import curvature_share
from quoron_server.parameters import Assumption, Kind
from quoron_server.plan import RunPlan
from quoron_server.problem import Problem

Number = float | Vector  # one, or one for each of C candidates
Whole = int | NDArray[np.int64]

loops = OnFirstUse("quoron_server.algorithms.tracking.plan_loops")

NAME = "tracking-srgd"
PHASES = "lengths", "second moments", "warm-up", "main"
THEOREM = "docs/privacy/tracking-srgd.md#t1"
LARGEST_DIMENSION = 300  # of the features: with p of them a pilot user sends p (p + 1) / 2 numbers
LARGEST_ROUNDS = 48  # main rounds that are tried
WARMUPS = (2, 3, 4, 5, 6, 8, 10, 14, 20, 30)
WARMUP_SHARES = (0.005, 0.01, 0.02, 0.05, 0.1, 0.15)  # of the users, in each warm-up round
ALSO = " (fewer features or a method of many passes also do)"
NEAR = 1.1  # of the least predicted risk: fewer rounds are taken then
RESOLVED = 12.0, 25.0  # Bμ/√d of a warm-up round and of a main round, at least: below, radii do not settle
FARTHEST = 2.5  # root mean square of predictions at the optimum, at most, of labels that nothing is known of
UNKNOWN_CURVATURE = 0.4  # share of its bound that a Hessian of unknown spectrum is taken to reach
EDGE, PILOT_SHARE = 0.1, (0.08, 0.2)  # noise of each second moment of the pilot; users in all of the pilot
SLOWEST = 0.2  # and in the direction where it reaches least
NEAR_PREDICTION = 0.6  # of FARTHEST or of a label, where not training is looked at
ALONG = 0.35  # of the mean: a logistic Hessian along the optimum, where predictions are far from even
SHORT = 0.5  # a known Hessian over the metric in the slowest direction: the pilot's noise makes steps shorter
BEYOND = 40.0  # π* times nμ/(√d m), n all main users
BEYOND_RANGE = 0.03, 0.45
LENGTHS = 20.0, 60.0  # users of each of the pilot's lengths, over μ: at least and at most, where they are a few
# Of a unit moment's and a unit gradient's noise, times divisor and μ; zero-out pays for presence.
_UNITS: Mapping[Adjacency, tuple[float, float]] = {"replace-one": (math.sqrt(2), 2.0), "zero-out": (1.0, 1 / 0.9486832)}


class Assumed(NamedTuple):
    """Public facts and pessimistic guesses."""

    dimension: int  # d
    distance: float  # ‖x_0 - x*‖
    curvature: float  # h: typical eigenvalue of the Hessian without ridge
    least_curvature: float
    ridge: float  # λ
    spread: float  # s: of users' average gradients around their mean
    first_radius: float  # C_0
    margin: float  # κ
    gradient_spread: Number  # spread of the *change* of a user's average gradient, per unit of step


class Prediction(NamedTuple):
    """Parts of the excess risk."""

    optimisation: Number
    sampling: Number
    noise: Number

    @property
    def total(self) -> Number:
        """Their sum."""
        return self.optimisation + self.sampling + self.noise


def predict(
    known: Assumed,
    *,
    metric: Number,
    warmup: tuple[Whole, Whole, Number],
    main: tuple[Whole, Whole, Number],
    inverse: Vector,
) -> Prediction:
    """Predictions for (rounds, divisor, noise per unit of radius and per coordinate) of both phases.

    `inverse` is the first column of C⁻¹ of the prefix factorisation, at least as long as the most main rounds.
    """
    given = np.broadcast_arrays(metric, known.gradient_spread, *warmup, *main)
    candidates = np.stack([numbers.ravel() for numbers in given], axis=1).astype(np.float64)
    parts, scratch = np.empty((3, len(candidates))), np.zeros((2, len(inverse)))
    facts = *known[:-1], LAG_SHARE, MAIN_FACTOR
    loops.risks(facts, candidates, np.ascontiguousarray(inverse[::-1]), scratch[0], scratch[1], parts)
    return Prediction(*parts.reshape(3, *given[0].shape))


@dataclass(frozen=True, slots=True)
class TrackingOptions:
    """Planning options; None lets the plan choose by predicted excess risk."""

    rounds: int | None = None  # all of them: pilot, warm-up and main
    participation: float = 1.0  # declared share of asked users who answer; divisors count on it
    reference_items: int | None = None  # m_ref; users with fewer items count for less. None: items_per_user
    first_radius: float | None = None  # C_0, from public knowledge
    pilot_share: float | None = None  # share of the users in the pilot
    factorisation: str = DEFAULT


Inputs = PlanInputs[TrackingOptions]


class _Sizes(NamedTuple):
    length: int
    moment: int
    warmups: int
    warmup: int
    rounds: int
    main: int

    @property
    def total(self) -> int:
        return PILOT + self.warmups + self.rounds


def verify(plan: RunPlan) -> None:
    """Disjoint cohorts, divisors as declared, everything that a round divides by, and each cohort's releases together
    μ-GDP, whatever the radii are.
    """
    p, problem = plan.parameters_of(TrackingParameters), plan.problem
    cohorts = (p.length_cohort, p.moment_cohort, p.warmup_cohort, p.main_cohort)
    divisors = (p.length_divisor, p.moment_divisor, p.warmup_divisor, p.main_divisor)
    search.require(
        NAME,
        ("positive cohorts and rounds", min(*cohorts, p.warmup_rounds, p.main_rounds) >= 1, cohorts),
        (f"at most {problem.users} users with a slot", p.asked <= problem.users, p.asked),
        ("divisors of at least 1/64 of their cohort", _counts(cohorts, divisors), divisors),
        ("the problem's feature norm", p.feature_norm == problem.feature_norm, p.feature_norm),
        ("the problem's curvature", p.link_curvature == problem.link_curvature, p.link_curvature),
        ("the problem's ridge", p.ridge == problem.ridge, p.ridge),
        ("a first radius in (1e-140, 1e140)", 1e-140 < p.first_radius < 1e140, p.first_radius),
        ("0 < spread <= first radius", 0 < p.spread <= p.first_radius, p.spread),
        ("margin > 0", 0 < p.margin < math.inf, p.margin),
        ("beyond in (0, 1)", 0 < p.beyond < 1, p.beyond),
        ("reference_items >= 1", p.reference_items >= 1, p.reference_items),
    )
    if p.adjacency != plan.guarantee.adjacency:
        raise VerificationError(f"Expected adjacency {plan.guarantee.adjacency!r}, got {p.adjacency!r}.")
    for name, spent in zip(PHASES, recounted_mus(p, problem, p.adjacency), strict=True):
        if not spent <= p.mu * (1 + 1e-12):
            raise VerificationError(f"Expected mu >= {spent} for the {name} cohorts, got {p.mu}: too little noise.")


def pairs(p: TrackingParameters, problem: Problem, adjacency: Adjacency) -> tuple[Pair, ...]:
    """tracking-srgd#t1: of the transcript, pilot and gradients together; each user is in one round of either."""
    mu = max(recounted_mus(p, problem, adjacency))
    return (Pair.gaussian(mu, total_variation(gaussians=drawn(problem, p.rounds))),)


def recounted_mus(p: TrackingParameters, problem: Problem, adjacency: Adjacency) -> tuple[float, float, float, float]:
    """GDP of a length, a second moment, a warm-up round and all main rounds, by their scales."""
    features, weight, numbers = problem.features, WEIGHTS[adjacency][0], problem.dimension + 3
    length = sensitivity_recount.rows(1.0, p.length_divisor, "zero-out")
    moment = sensitivity_recount.unit_moment(features, p.moment_divisor, adjacency)
    warmup, main = (sensitivity_recount.rows(1.0, divisor, adjacency) for divisor in (p.warmup_divisor, p.main_divisor))
    return (
        sensitivity_recount.mu(length, p.length_scale, 2),
        sensitivity_recount.mu(moment, p.moment_scale * weight, packed(features) + 1),
        sensitivity_recount.mu(warmup, p.warmup_scale * weight, numbers),
        played.mu(mechanisms(p, features, problem.dimension).main.prefix, main, numbers),
    )


def _counts(cohorts: tuple[int, ...], divisors: tuple[int, ...]) -> bool:
    return all(divisor >= 1 and cohort <= 64 * divisor for cohort, divisor in zip(cohorts, divisors, strict=True))


def _check(inputs: Inputs) -> None:
    """ConfigError for options out of range; Infeasible for a loss that is not generalised linear, convex and smooth."""
    problem, options = inputs.problem, inputs.options
    search.require_participation(options.participation)
    search.require_options(options, "pilot_share", most=1.0)
    search.require_options(options, "first_radius", least=1e-100)
    search.require_options(options, "reference_items", least=1, above=False)
    if options.rounds is not None and options.rounds < PILOT + 2:
        condition = f"{options.rounds} rounds hold no pilot of {PILOT}, warm-up and main round"
        raise Infeasible(NAME, condition, Needs(f"rounds >= {PILOT + 2}", rounds=PILOT + 2))
    if problem.feature_norm is None or problem.link_curvature is None or not problem.convex:
        raise Infeasible(NAME, "the loss is not smooth", "a smooth loss, such as logistic or huber")
    if problem.link_curvature <= 0:
        raise Infeasible(NAME, "the loss has no curvature", "a curved loss, such as logistic or least_squares")
    if problem.features > LARGEST_DIMENSION:
        condition = f"a pilot user would send {problem.features}² / 2 numbers"
        raise Infeasible(NAME, condition, f"at most {LARGEST_DIMENSION} features")


def _candidates(inputs: Inputs) -> Iterable[Candidate[_Sizes]]:
    """Return all sizes of cohorts that let radii settle."""
    problem, privacy, options = inputs.problem, inputs.privacy, inputs.options
    mu = mu_for(privacy.epsilon, privacy.delta)
    tried = list(_sizes(problem, mu, options))
    if not tried:
        return []
    risks = predicted(problem, mu, options, tried, privacy.adjacency or "replace-one").total
    totals = np.nan_to_num(risks, nan=math.inf, posinf=math.inf).tolist()
    return [Candidate(risk, (sizes.total,), sizes) for risk, sizes in zip(totals, tried, strict=True)]


def _sizes(problem: Problem, mu: float, options: TrackingOptions) -> Iterator[_Sizes]:
    n, root = problem.users, math.sqrt(problem.dimension)
    least, least_main = (resolution * root for resolution in RESOLVED)
    enough = PASSES * _edge(problem, mu * options.participation) / EDGE / n  # brings a second moment's noise to EDGE
    pilot = round((options.pilot_share or min(max(enough, PILOT_SHARE[0]), PILOT_SHARE[1])) * n)
    least_length, most_length = (math.ceil(users / (mu * options.participation)) for users in LENGTHS)
    length = min(max(least_length, pilot // 20), most_length, max(2, pilot // (3 * PASSES)))
    moment = pilot // PASSES - length
    if moment < 2:
        return
    for warmups, share in product(WARMUPS if options.rounds is None else (1, *WARMUPS), WARMUP_SHARES):
        warmup = round(share * n)
        left = n - pilot - warmups * warmup
        if left < n // 10 or warmup * options.participation * mu <= least:
            continue
        for rounds in _main_rounds(options.rounds, warmups):
            main = left // rounds
            if main * options.participation * mu > least_main:
                yield _Sizes(length, moment, warmups, warmup, rounds, main)


def _edge(problem: Problem, mu: float) -> float:
    """Of a whitened second moment's noise, times the users it is of: √(2p) √2 / μ times a user's length."""
    p = problem.features
    return 2 * math.sqrt(p) / mu * math.sqrt(p + p * p / problem.items_per_user)


def _main_rounds(wanted: int | None, warmups: int) -> list[int]:
    if wanted is None:
        return [2, 3, 4, 6, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, LARGEST_ROUNDS]
    left = wanted - PILOT - warmups
    return [left] if left >= 1 else []


def predicted(
    problem: Problem, mu: float, options: TrackingOptions, tried: Sequence[_Sizes], adjacency: Adjacency
) -> Prediction:
    """Predicted excess risk of each of some sizes."""
    _, moment, warmups, warmup, rounds, main = np.array(tried).T
    d, p = problem.dimension, problem.features
    typical, least = _curvatures(problem)
    apart, noise = _UNITS[adjacency]
    warm, main = (np.maximum(1, np.floor(options.participation * size)) for size in (warmup, main))
    edge = _edge(problem, options.participation * mu) * apart / math.sqrt(2) / moment
    distance = _distance(problem)
    square = distance**2 / (problem.link_curvature or 1.0)  # of predictions
    share = max(curvature_share(problem.beliefs.sigmoid, square), LEAST_SHARE[0])
    assumed = Assumed(
        dimension=d,
        distance=distance,
        curvature=typical,
        least_curvature=least,
        ridge=problem.ridge * _unit(problem) ** 2,
        spread=_spread(problem),
        first_radius=_first_radius(problem, options),
        margin=margin(d),
        gradient_spread=0.5 * math.sqrt(p / problem.items_per_user),
    )
    warm_noise, main_noise = noise / (warm * mu), noise / (main * mu)
    coefficients, inverse = sqrt_coefficients(int(rounds.max()))  # those of fewer rounds are the first of them
    main_noise = main_noise * np.sqrt(np.cumsum(coefficients**2))[rounds - 1]
    parts = predict(
        assumed,
        metric=share * (1 + edge),
        warmup=(warmups, warm, warm_noise),
        main=(rounds, main, main_noise),
        inverse=inverse,
    )
    return Prediction(*(part * (1 + edge**2) for part in parts))  # directions of which the pilot released nothing


def _unit(problem: Problem) -> float:
    """√p / (R √φ₂): a gradient's dual norm over its length, were features alike in all directions."""
    return math.sqrt(problem.features / (problem.link_curvature or 1.0)) / (problem.feature_norm or 1.0)


def _distance(problem: Problem, known: float = math.inf, unknown: float = 1.0) -> float:
    """Of the optimum from the start, in the metric: √φ₂ times the root mean square of predictions there.

    Where curvature is known that is at most `known`, else `unknown` of what labels are taken to allow.
    """
    far, root = problem.distance * (problem.feature_norm or 1.0), math.sqrt(problem.link_curvature or 1.0)
    if problem.beliefs.isotropic is not None:
        return root * min(far / math.sqrt(problem.features), known)
    return root * min(far, unknown * (problem.beliefs.label_bound or FARTHEST))


def _curvatures(problem: Problem) -> tuple[float, float]:
    """In the metric, without ridge: typically, and in the direction where it is least; at most 1."""
    known, even = problem.beliefs.isotropic, (problem.even_curvature or 1.0) / (problem.link_curvature or 1.0)
    if known is None:
        return UNKNOWN_CURVATURE * even, SLOWEST * even
    slowest = (problem.beliefs.least_curvature or known) * (ALONG if problem.beliefs.sigmoid else SHORT)
    typical, least = (min(max(bend - problem.ridge, 1e-12) * _unit(problem) ** 2, 1.0) for bend in (known, slowest))
    return typical, least


def _spread(problem: Problem) -> float:
    """Of users' averages, in the dual norm: from the declared deviation, else from the largest start gradient."""
    item = problem.beliefs.gradient_deviation or problem.start
    return _unit(problem) * math.hypot(item / math.sqrt(problem.items_per_user), problem.beliefs.heterogeneity)


def _first_radius(problem: Problem, options: TrackingOptions) -> float:
    return options.first_radius or _unit(problem) * problem.start


def _worth(problem: Problem) -> float:
    """Excess risk of the start point, which a plan has to beat, for a solution that is nearer than a plan fears."""
    near = min(_distance(problem), _distance(problem, 3 / math.sqrt(problem.features), NEAR_PREDICTION))
    return min(trivial_risk(problem), 0.5 * _curvatures(problem)[0] * near**2)


def _beyond(problem: Problem, mu: float, sizes: _Sizes, options: TrackingOptions) -> float:
    """π*: users who are clipped are few of one kind, a bias that no number of users removes; noise falls with it."""
    users = sizes.rounds * sizes.main * options.participation
    wanted = BEYOND * math.sqrt(problem.dimension) * problem.items_per_user / (users * mu)
    return min(0.5, max(min(max(wanted, BEYOND_RANGE[0]), BEYOND_RANGE[1]), 2 * problem.beliefs.hostile_share))


def _chosen(inputs: Inputs, found: Candidate[_Sizes]) -> Chosen:
    problem, privacy, options, sizes = inputs.problem, inputs.privacy, inputs.options, found.of
    d, adjacency = problem.dimension, privacy.adjacency or "replace-one"
    left = search.left_of_delta(NAME, privacy, gaussians=drawn(problem, sizes.total))
    mu = mu_for(privacy.epsilon, left * (1 - 1e-9))
    target = mu * (1 - 1e-8)  # a plan is re-checked by other arithmetic
    length, moment, warm, main = (
        max(1, math.floor(options.participation * size))
        for size in (sizes.length, sizes.moment, sizes.warmup, sizes.main)
    )
    warmup = NormCountMean.for_mu(dimension=d, users=warm, mu=target, adjacency=adjacency).scale
    sums = PrefixNormCounts.for_mu(
        dimension=d,
        users=main,
        mu=target,
        rounds=sizes.rounds,
        factorisation=options.factorisation,
        adjacency=adjacency,
    )
    p = TrackingParameters(
        adjacency=adjacency,
        length_cohort=sizes.length,
        length_divisor=length,
        length_scale=LogLength.for_mu(users=length, mu=target).scale,
        moment_cohort=sizes.moment,
        moment_divisor=moment,
        moment_scale=MomentMean.for_mu(dimension=problem.features, users=moment, mu=target, adjacency=adjacency).scale,
        warmup_rounds=sizes.warmups,
        warmup_cohort=sizes.warmup,
        warmup_divisor=warm,
        warmup_scale=warmup,
        main_rounds=sizes.rounds,
        main_cohort=sizes.main,
        main_divisor=main,
        main_scale=sums.scale,
        factorisation=options.factorisation,
        feature_norm=problem.feature_norm or 1.0,
        link_curvature=problem.link_curvature or 1.0,
        ridge=problem.ridge,
        sigmoid=problem.beliefs.sigmoid,
        intercept=problem.beliefs.intercept and problem.beliefs.hostile_share == 0 and problem.outputs == 1,
        spread=min(_spread(problem), _first_radius(problem, options)),
        first_radius=_first_radius(problem, options),
        beyond=_beyond(problem, mu_for(privacy.epsilon, privacy.delta), sizes, options),
        margin=margin(d),
        reference_items=options.reference_items or problem.items_per_user,
        mu=mu,
    )
    declared = Assumption(Kind.DECLARED_PARTICIPATION, (options.participation,))
    counted = Assumption(Kind.ABSENT_IS_ZERO_ROW) if options.participation == 1 else declared
    return Chosen(p, found.risk, adjacency=adjacency, assumptions=(counted,))


INFO = AlgorithmInfo(
    name=NAME,
    summary="One pass, private broadcasts: private metric, warm-up, recursive gradients, private radius (recommended)",
    origin=ours(BASSILY_SUN_2023.at("Algorithm 1"), CHOQUETTE_CHOO_2025.at("Algorithm 1")),
    promises=Promises(THEOREM, pairs, adjacency=("replace-one", "zero-out"), one_server=None),
    options=TrackingOptions,
    parameters=TrackingParameters,
    planner=Planner(NAME, _check, _candidates, _chosen, "for a radius that settles in one pass", _worth, ALSO, NEAR),
    verifier=verify,
    maker=TrackingSRGD,
    factor=Factor(known=2.0, unknown=8.0),
    noise_ignores_domain=True,
    no_black_boxes=NoBlackBoxes("it asks for the second moment of a user's features, which no gradient tells"),
)
