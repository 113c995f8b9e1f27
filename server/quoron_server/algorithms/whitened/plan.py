"""Plans of `whitened-tracking`: public shares of μ² for each release, a bound on what is left, and the re-check.

Everybody answers every round, so a user pays for all releases: Σ μ_i² <= μ². Proof:
docs/privacy/whitened-tracking.md#w1.
"""

import math
from dataclasses import dataclass

from quoron_privacy.accounts import gdp, sensitivity_recount
from quoron_privacy.accounts.pair import DominatingPair
from quoron_privacy.errors import ConfigError, Infeasible, Needs
from quoron_privacy.gaussian import GaussianNoise, mean_sensitivity
from quoron_privacy.means.free_counts import WEIGHTS, ColumnMean, Contrasts, LogLength, MomentMean, NormCountMean
from quoron_privacy.noise.streams import total_variation
from quoron_privacy.release import Adjacency, packed
from quoron_server.algorithms import search
from quoron_server.algorithms.references import BASSILY_SUN_2023, DWORK_2014, ours
from quoron_server.algorithms.spec import AlgorithmSpec, Calibrated, Factor, Guarantees, NoBlackBoxes, Policy
from quoron_server.algorithms.whitened.method import COMMON, MIN_RESOLUTION, WhitenedTracking, before
from quoron_server.algorithms.whitened.parameters import COLUMNS, PARTS, STAGES, WhitenedParameters, drawn
from quoron_server.plan import Decision, PolicyInputs, Privacy, RunPlan
from quoron_server.problem import Problem

NAME = "whitened-tracking"
THEOREM = "docs/privacy/whitened-tracking.md#w1"
MOST_CLASSES = 1_000  # whose curvatures are a matrix
LARGEST_DIMENSION = 1_000  # everybody sends d (d + 1) / 2 numbers
MIN_PARTICIPATION = 0.25  # with which `auto` takes it: no share of users who answer is taken for less than a fifth
ROUNDS = 13  # twelve gradients and a vote
ROUNDS_FROM, ROUNDS_TO = 4, 64
FEWER_ROUNDS = tuple(range(ROUNDS, ROUNDS_FROM - 1, -1))  # that `auto` takes where a budget allows no more
COLUMN_SHARE = 0.01  # of μ², of each look at columns
MOMENTS = (0.045, 0.04, 0.035, 0.03)  # of the second moments
VOTE = 0.02
LENGTH = (0.006, 0.03)  # of each length, at least and at most
LENGTH_RESOLUTION = 6.2  # a length wants (6.2 / (nμ))² of μ²
GROWTH = 1.2  # of μ_t² from round to round
FEARED = 0.02  # declared share of adversarial users above which it is ready for them, by default
VOTE_BOUND = 0.1
SURE_CLASSES = (
    "The predicted risk is of classes that columns tell with doubt. Of classes that they tell almost surely 7 times "
    "as much may be left. The run tells a bound of its own."
)
SEEN = 2.0  # over ν: the share of its range over which one column varies that looks see; of most columns it is less
ODD = "One odd table in {} left more than predicted, up to {} times: columns "  # benchmarks/unseen_shapes.py
LONG = (
    "Where the label has a long tail one in four did, up to 7 times; up to 80 times at a large epsilon where columns "
    "are nearly copies of one another: declare ranges that hold nearly all values."
)
OWN = "The run tells its own bound."
RATE = (
    f"The predicted risk is for labels of which the rarer class has {100 * COMMON:g} % or more: where it has less, "
    "declare problem.label_rate."
)
FEW_ITEMS = 3  # a user, up to which columns are rare for users as well as for rows
SMOOTHING = 0.25  # λ of a hinge's envelope, in units of the margin


@dataclass(frozen=True, slots=True)
class WhitenedOptions:
    """Planning options; None lets the plan choose."""

    rounds: int | None = None  # all of them; 13 by default
    participation: float = search.within(1 / 32, 1.0, 1.0)  # declared share who answer; it steers the forecast alone
    smoothing: float | None = None  # of a hinge: λ of its Moreau envelope, at most 1; SMOOTHING by default
    # Clip more, in fear of adversarial users: where there are none it leaves up to 240 times as much. None: where more
    # than one in fifty are declared, below which it has not been worth that.
    robust: bool | None = None
    parts: bool = False  # whether the first message is thirteen questions: two servers and sums of silos need it


def plan(problem: Problem, privacy: Privacy, options: WhitenedOptions) -> Calibrated:
    """Return the one plan for these numbers; Infeasible where its noise would leave nothing of the signal."""
    _require(problem, options)
    users, first = problem.users, PARTS if options.parts else 0
    rounds = ROUNDS if options.rounds is None else options.rounds - first
    mu = _mu(problem, privacy, rounds)
    if (refusal := _unlearnable(problem, mu, options)) is not None:  # whatever d is: no other method learns then
        raise refusal
    left = resolution(problem, mu, options, users)
    if problem.outputs > MOST_CLASSES:
        raise Infeasible(NAME, f"an item has {problem.outputs:,} predictions", f"at most {MOST_CLASSES:,} classes")
    if problem.features > LARGEST_DIMENSION:
        condition = f"{problem.features} features make {packed(problem.features):,} numbers of a second moment"
        raise Infeasible(NAME, condition, f"d <= {LARGEST_DIMENSION}")
    adjacency: Adjacency = privacy.adjacency or "replace-one"
    p = _calibrated(problem, adjacency, options, rounds, mu)
    risk = before(problem, rounds, left)
    risk = None if risk is None else risk + 0.5 * p.smoothing
    return Calibrated(p, risk, adjacency=adjacency)


def verify(plan: RunPlan) -> None:
    """Everybody in every round with divisor n, the sensitivities of free-presence (p1 to p3, p6), and Σ μ_i² <= μ²."""
    p = plan.parameters_of(WhitenedParameters)
    search.require(
        NAME,
        (f"cohorts of all {plan.problem.users} users", p.cohort_size == plan.problem.users, p.cohort_size),
        ("the problem's predictions", p.outputs == plan.problem.outputs, p.outputs),
        (f"{ROUNDS_FROM} to {ROUNDS_TO} rounds", ROUNDS_FROM <= p.rounds <= ROUNDS_TO, p.rounds),
        (f"{STAGES} second moments", len(p.moment_scales) == STAGES, len(p.moment_scales)),
        ("a mean for each gradient", len(p.gradient_scales) == p.gradients, len(p.gradient_scales)),
        ("the problem's feature norm", p.feature_norm == plan.problem.feature_norm, p.feature_norm),
        ("the problem's curvature", p.link_curvature == _curvature(plan.problem, p.smoothing), p.link_curvature),
        ("smoothing only of a slope that jumps", not p.smoothing or plan.problem.link_curvature is None, p.smoothing),
        ("the problem's ridge", p.ridge == plan.problem.ridge, p.ridge),
        ("positive bounds", min(p.vote_bound, p.start_slope, p.resolution, p.mean_curvature) > 0, p.vote_bound),
    )


def pairs(p: WhitenedParameters, problem: Problem, adjacency: Adjacency) -> tuple[DominatingPair, ...]:
    """whitened-tracking#w1: of the transcript, by its scales."""
    d, users, weight = problem.features, p.cohort_size, WEIGHTS[adjacency][0]
    numbers = Contrasts(d, problem.outputs).dimension
    length = sensitivity_recount.mu(sensitivity_recount.rows(1.0, users, "zero-out"), p.length_scale, 2)
    own = d - (p.intercept and d > 1)
    columns = sensitivity_recount.mu(sensitivity_recount.columns(own, users), p.column_scale, 6 * own + 1)
    moments = [
        sensitivity_recount.mu(sensitivity_recount.unit_moment(d, users, adjacency), scale * weight, packed(d) + 1)
        for scale in p.moment_scales
    ]
    mean = sensitivity_recount.rows(1.0, users, adjacency)
    means = [sensitivity_recount.mu(mean, scale * weight, numbers + 3) for scale in p.gradient_scales]
    vote = sensitivity_recount.mu(sensitivity_recount.rows(1.0, users, adjacency), p.vote_scale, 1)
    mu = sensitivity_recount.together(*(columns,) * COLUMNS, *(length,) * (STAGES + 1), *moments, *means, vote)
    return (DominatingPair.gaussian(mu, total_variation(gaussians=drawn(problem, p.rounds))),)


def moves(p: WhitenedParameters, problem: Problem) -> list[float | None]:
    """min-cohort#q4: of the vote. Gradients tell their counts themselves."""
    vote = sensitivity_recount.rows(1.0, p.cohort_size, "replace-one") / p.vote_scale
    return [*[None] * (p.first + p.gradients), vote]


def taken(plan: RunPlan, allowed: PolicyInputs) -> Decision:
    """Return whether all users may be asked in every round: always on one machine with all rows, else if enough answer.

    Neither n, d nor ε has a limit: more of any is as good as before, or better. A budget that forbids so many rounds,
    answers or bytes leaves no plan to be asked about, or one of fewer rounds.
    """
    if allowed.participation < MIN_PARTICIPATION:
        return Decision(False, f"where {MIN_PARTICIPATION:.0%} of users are expected to answer, {NAME} would be taken")
    if allowed.everybody:
        return Decision(True, "one machine holds all rows, and may ask everybody in every round")
    return Decision(
        True, f"everybody may be asked {plan.cost.rounds} times, as budget.answers_per_user may say otherwise"
    )


def remarks(plan: RunPlan) -> tuple[str, ...]:
    """Return what its forecast takes for granted; what being ready for adversarial users costs, and not to be."""
    if plan.problem.outputs > 2:
        return (SURE_CLASSES, *_ready(plan))
    share = 100 * min(SEEN / plan.parameters_of(WhitenedParameters).resolution, 1.0)
    if not plan.problem.beliefs.sigmoid:
        return (f"{ODD.format('twenty', 2)}within {share:.2g} % of their ranges. {LONG} {OWN}", *_ready(plan))
    rare = "mostly 0 or " if plan.problem.items_per_user <= FEW_ITEMS else ""
    odd = f"{ODD.format('five', 110)}{rare}within {share:.2g} % of their ranges, labels beyond doubt. {OWN}"
    return (odd, *([RATE] if plan.problem.beliefs.label_rate is None else []), *_ready(plan))


def _ready(plan: RunPlan) -> tuple[str, ...]:
    if plan.parameters_of(WhitenedParameters).robust:
        return (
            "It clips more (robust), in fear of hostile users: if nobody is, that leaves 1 to 240 times as much, most "
            "with one row a user and a large epsilon; with 5 % who stay close to the others it leaves as much as "
            "without. algorithm.options.robust=false clips as usual.",
        )
    if plan.problem.beliefs.hostile_share > 0:
        return (
            f"Up to {100 * FEARED:g} % of declared hostile users it clips as usual; the worst that so many did was "
            "at most 4 times what algorithm.options.robust=true left.",
        )
    return ()


def too_few(problem: Problem, privacy: Privacy, participation: float) -> Infeasible | None:
    """Why nothing can be expected of few users at this ε: the best that we know would leave the start as it was."""
    problem, options = problem.settled(wide=True), WhitenedOptions(participation=participation)
    try:
        _require(problem, options)
        return _unlearnable(problem, _mu(problem, privacy, ROUNDS), options)
    except Infeasible:
        return None


def resolution(problem: Problem, mu: float, options: WhitenedOptions, users: int) -> float:
    """ν = nμ_g / √D, by which a forecast goes; n is the users expected to answer."""
    numbers = Contrasts(problem.features, problem.outputs).dimension
    return options.participation * users * mu * math.sqrt(_gradient_share(users, mu)) / math.sqrt(numbers)


def _mu(problem: Problem, privacy: Privacy, rounds: int) -> float:
    """Return μ of a run; Infeasible where the samplers leave nothing of δ."""
    left = search.left_of_delta(NAME, privacy, gaussians=drawn(problem, rounds))
    return gdp.mu_for(privacy.epsilon, left * (1 - 1e-9))


def _length_share(users: int, mu: float) -> float:
    """Of μ², for each of the lengths."""
    return min(max((LENGTH_RESOLUTION / (users * mu)) ** 2, LENGTH[0]), LENGTH[1])


def _gradient_share(users: int, mu: float) -> float:
    return 1 - (STAGES + 1) * _length_share(users, mu) - COLUMNS * COLUMN_SHARE - sum(MOMENTS) - VOTE


def _require(problem: Problem, options: WhitenedOptions) -> None:
    """ConfigError for options out of range; Infeasible for a loss that is not generalised linear, convex and smooth."""
    least, most = (rounds + (PARTS if options.parts else 0) for rounds in (ROUNDS_FROM, ROUNDS_TO))
    if options.rounds is not None and not least <= options.rounds <= most:
        condition = f"rounds={options.rounds} is not within {least} and {most}"
        raise Infeasible(NAME, condition, Needs(f"{least} to {most} rounds", rounds=least))
    hinge = problem.link_curvature is None and problem.beliefs.label_bound is None
    if problem.feature_norm is None or not (problem.link_curvature or hinge) or not problem.convex:
        condition = (
            "the loss is not a convex function of predictions with a curvature, or with an envelope that has one"
        )
        raise Infeasible(NAME, condition, "loss logistic, softmax, huber, least_squares or hinge")
    if options.smoothing is not None and not (hinge and 0 < options.smoothing <= 1):
        raise ConfigError(
            f"Expected algorithm.options.smoothing above 0 and at most 1, of a loss whose slope jumps, got "
            f"smoothing={options.smoothing:g}. Leave it out, or take loss hinge."
        )


def _calibrated(
    problem: Problem, adjacency: Adjacency, options: WhitenedOptions, rounds: int, mu: float
) -> WhitenedParameters:
    users = problem.users
    smoothing = (options.smoothing or SMOOTHING) if problem.link_curvature is None else 0.0
    numbers = Contrasts(problem.features, problem.outputs).dimension
    target = mu * (1 - 1e-8)  # a plan is re-checked by other arithmetic
    length, gradients = _length_share(users, mu), rounds - 1
    own = target * math.sqrt(_gradient_share(users, mu))
    weights = [GROWTH**t for t in range(gradients)]
    mus = [own * math.sqrt(weight / math.fsum(weights)) for weight in weights]
    slope = problem.start / (problem.feature_norm or 1.0)
    label = problem.beliefs.label_bound
    sigmoid = problem.beliefs.sigmoid
    bound = VOTE_BOUND if sigmoid else VOTE_BOUND * slope * (label or 1.0)
    robust = problem.beliefs.hostile_share > FEARED if options.robust is None else options.robust
    vote = GaussianNoise.for_mu(
        sensitivity=mean_sensitivity(1.0, users, adjacency), mu=target * math.sqrt(VOTE), dimension=1
    )
    return WhitenedParameters(
        cohort_size=users,
        rounds=rounds,
        adjacency=adjacency,
        length_scale=LogLength.for_mu(users=users, mu=target * math.sqrt(length)).scale,
        column_scale=ColumnMean.for_mu(
            columns=problem.features - (problem.beliefs.intercept and problem.features > 1),
            users=users,
            mu=target * math.sqrt(COLUMN_SHARE),
        ).scale,
        moment_scales=tuple(
            MomentMean.for_mu(
                dimension=problem.features, users=users, mu=target * math.sqrt(share), adjacency=adjacency
            ).scale
            for share in MOMENTS
        ),
        gradient_scales=tuple(
            NormCountMean.for_mu(dimension=numbers, users=users, mu=one, adjacency=adjacency).scale for one in mus
        ),
        vote_scale=vote.scale,
        vote_bound=bound,
        feature_norm=problem.feature_norm or 1.0,
        link_curvature=_curvature(problem, smoothing) or 1.0,
        mean_curvature=_mean_curvature(problem, _curvature(problem, smoothing) or 1.0),
        smoothing=smoothing,
        start_slope=slope,
        ridge=problem.ridge,
        sigmoid=sigmoid,
        outputs=problem.outputs,
        intercept=problem.beliefs.intercept,
        resolution=resolution(problem, mu, WhitenedOptions(), users),
        robust=robust,
        mu=mu,
        parts=options.parts,
    )


def _curvature(problem: Problem, smoothing: float) -> float | None:
    """φ₂, of the Moreau envelope where there is one."""
    return 1 / smoothing if smoothing else problem.link_curvature


def _mean_curvature(problem: Problem, curvature: float) -> float:
    """1/K of K classes, whose chances are even at the start; of a hinge, which bends near a margin of 1 alone, 2."""
    if problem.outputs > 1:
        return min(curvature, 1 / problem.outputs)
    hinge = problem.beliefs.label_bound is None and not problem.beliefs.sigmoid
    return min(curvature, 2.0) if hinge else curvature


def _unlearnable(problem: Problem, mu: float, options: WhitenedOptions) -> Infeasible | None:
    """Why nothing can be learnt from so few users at this μ, with the least n that would do; None where it can."""
    found = resolution(problem, mu, options, problem.users)
    if found >= MIN_RESOLUTION:
        return None

    condition = (
        f"n={problem.users:,} users at this epsilon give the gradients a resolution of nμ/√d = {found:.3g} < "
        f"{MIN_RESOLUTION:g}, at which more is lost to noise than learnt"
    )
    return Infeasible.too_few(NAME, condition, math.ceil(problem.users * MIN_RESOLUTION / found))


SPEC = AlgorithmSpec(
    name=NAME,
    summary="For tables and few users: whiten by a private metric, then everybody answers every round (private radius)",
    origin=ours(DWORK_2014, BASSILY_SUN_2023.at("Algorithm 1")),
    guarantees=Guarantees(THEOREM, pairs, moves=moves, adjacency=("replace-one", "zero-out"), one_server=None),
    options=WhitenedOptions,
    parameters=WhitenedParameters,
    planner=plan,
    verifier=verify,
    maker=WhitenedTracking,
    factor=Factor(known=1.0, unknown=1.0),  # it predicts a bound
    noise_ignores_domain=True,
    no_black_boxes=NoBlackBoxes(
        "it asks for the second moment of a user's features and for losses, which no gradient tells"
    ),
    policy=Policy(
        many_passes=True,
        rule=taken,
        too_few=too_few,
        fewer_rounds=FEWER_ROUNDS,
        remarks=remarks,
    ),
)
